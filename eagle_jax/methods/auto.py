"""Which dense method answers, and how many problems of a batch at a time: chosen by A's shape, before tracing."""

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.methods import gram
from eagle_jax.methods.factor import Answer, Factor

# Gram matrices pay when A is at least this many times wider than high.
_LONG = 8
# Under vmap so many entries of A are at work together: what a core's cache holds. Larger problems go one after the
# other. A loop or a branch that one lane needs is then taken by its group only. `python -m experiments.bench.solve`.
_TOGETHER = 64 * 18 * 18


def estimate(A, B, rtol: float, rcond: float | None) -> Answer:
    """W = B A⁺ of finite A and B."""

    def one(A, B) -> Answer:
        d, n = A.shape
        return gram.estimate(A, B, rtol, rcond) if n >= _LONG * d else Factor.of(A, rcond).estimate(B, rtol)

    return in_groups(one, A.size)(A, B)


def factor(A, rcond: float | None) -> Factor:
    return in_groups(lambda A: Factor.of(A, rcond), A.size)(A)


def in_groups(function, entries: int):
    """`function`, which under vmap takes as many lanes at a time as fit `_TOGETHER`."""
    most = _TOGETHER // max(entries, 1)
    if most <= 1:
        return jax.custom_batching.sequential_vmap(function)

    @jax.custom_batching.custom_vmap
    def call(*arrays):
        return function(*arrays)

    @call.def_vmap
    def _(size, batched, *arrays):
        arrays = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(arrays, batched, strict=True)]
        groups = -(-size // most)
        lanes = -(-size // groups)
        spare = [(0, groups * lanes - size)]
        arrays = [jnp.pad(x, spare + [(0, 0)] * (x.ndim - 1), mode="edge") for x in arrays]
        found = lax.map(lambda xs: jax.vmap(function)(*xs), [x.reshape(groups, lanes, *x.shape[1:]) for x in arrays])
        found = jax.tree.map(lambda y: y.reshape(groups * lanes, *y.shape[2:])[:size], found)
        return found, jax.tree.map(lambda _: True, found)

    return call
