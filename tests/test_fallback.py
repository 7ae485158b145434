"""The fallback mechanism of the default solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.fallback import _LANES, unless


def run(answered, vmaps=1):
    """(what `unless` returns for lanes 0, 1, 2, ..., how many fallbacks ran); the fallback negates."""
    calls = []

    def fallback(x):
        jax.debug.callback(lambda _: calls.append(1), x)
        # A loop, as in the solver: XLA must not hoist it out as invariant.
        return jax.lax.fori_loop(0, 3, lambda _, y: -y, x)

    call = lambda done, x: unless(done, x, fallback, x)  # noqa: E731
    for _ in range(vmaps):
        call = jax.vmap(call)
    lanes = jnp.arange(1.0, 1 + answered.size).reshape(answered.shape)
    value = jax.block_until_ready(jax.jit(call)(jnp.asarray(answered), lanes))
    jax.effects_barrier()
    return np.asarray(value), len(calls)


@pytest.mark.parametrize("vmaps", [0, 1, 2])
def test_nothing_runs_if_all_is_answered(vmaps):
    answered = np.ones((4, 8)[:vmaps], bool)
    value, calls = run(answered, vmaps)
    assert calls == 0
    np.testing.assert_array_equal(value, np.arange(1.0, 1 + answered.size).reshape(answered.shape))


@pytest.mark.parametrize("vmaps", [0, 1, 2])
def test_everything_runs_if_nothing_is_answered(vmaps):
    answered = np.zeros((4, 8)[:vmaps], bool)
    value, _ = run(answered, vmaps)
    np.testing.assert_array_equal(value, -np.arange(1.0, 1 + answered.size).reshape(answered.shape))


@pytest.mark.parametrize("unanswered", [[0], [63], [3, 17, 18], list(range(0, 64, 2))])
def test_only_the_lanes_that_ask_run(unanswered):
    answered = np.ones(64, bool)
    answered[unanswered] = False
    value, calls = run(answered)
    np.testing.assert_array_equal(value, np.where(answered, 1, -1) * np.arange(1.0, 65))
    group = 64 // _LANES
    assert calls == group * -(-len(unanswered) // group)


def test_operands_without_lanes_are_shared():
    shared = jnp.asarray(5.0)
    call = jax.vmap(lambda done: unless(done, jnp.zeros(()), lambda x: 2 * x, shared))
    np.testing.assert_array_equal(call(jnp.asarray([True, False, True])), [0, 10, 0])


@pytest.mark.parametrize("vmaps", [0, 1])
def test_the_fallback_stays_inside_its_loop(vmaps):
    """As loop-invariant it could be hoisted, and would always run, as in a plain vmapped loop of one trip."""

    def fallback(x):
        return jax.lax.while_loop(lambda y: jnp.sum(y) < 1e30, lambda y: y @ y, x)

    call = lambda done, x: unless(done, x, fallback, x)  # noqa: E731
    for _ in range(vmaps):
        call = jax.vmap(call)
    lanes = (40,)[:vmaps]
    text = jax.jit(call).lower(jnp.ones(lanes, bool), jnp.ones((*lanes, 64, 64))).compile().as_text()
    assert text is not None
    entry = text[text.index("ENTRY") :]
    assert entry.count(" while(") == 1
