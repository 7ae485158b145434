"""The networks: the fast forms against the paper's formula, and EAGLE written into the weights, layer by layer."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import ARCHITECTURES
from jax.test_util import check_grads

from eagle_jax import attention, problems
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.transformer import REGIMES, Architecture, Transformer
from eagle_jax.update import State, update, update_estimate

pytestmark = [pytest.mark.usefixtures("cheap_compilation"), pytest.mark.float32_is_slow]


def tasks(architecture, dtype, batch=()):
    sizes = {name: getattr(architecture, name) for name in ("n", "d", "n_out", "d_out")}
    make = functools.partial(problems.training_task, **sizes, s=4, dtype=dtype)
    for _ in batch:
        make = jax.vmap(make)
    return Blocks(*make(jax.random.split(jax.random.key(1), batch) if batch else jax.random.key(1)))


def random_weights(architecture, dtype, std=0.3):
    return jax.tree.map(lambda w: w.astype(dtype), architecture.init(jax.random.key(2), std))


def layer_by_the_formula(Z, weights: Weights, architecture: Architecture):
    """Heads one by one, with scores, mask, and bias matrix."""
    mask = np.zeros((Z.shape[0], Z.shape[0]))
    mask[:, : architecture.keys] = 1
    bias = 0
    if weights.bias is not None:
        bias = np.where(np.arange(Z.shape[0])[:, None] < architecture.keys, *np.asarray(weights.bias))
    blocks = np.split(np.asarray(Z), architecture.blocks, axis=1)
    new = np.array(Z)
    for h, VP in enumerate(np.asarray(weights.VP)):
        block, QK = (blocks[h], weights.QK[0]) if architecture.blocks > 1 else (blocks[0], weights.QK[h])
        new = new + np.asarray(attention.masked(jnp.asarray(block), QK, jnp.asarray(VP), mask.astype(Z.dtype), bias))
    return new


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_follow_the_formula(dtype, name):
    architecture = ARCHITECTURES[name]
    weights = random_weights(architecture, dtype)
    Z = architecture.tokens(tasks(architecture, dtype))
    history = architecture.activations(weights, Z)
    assert history.dtype == dtype and history.shape == (architecture.layers + 1, *Z.shape)
    np.testing.assert_array_equal(history[0], Z)
    for before, after, one in zip(history, history[1:], weights.layers(), strict=False):
        wanted = layer_by_the_formula(before, one, architecture)
        np.testing.assert_allclose(after, wanted, atol=50 * float(jnp.finfo(dtype).eps) * np.abs(wanted).max())
    np.testing.assert_array_equal(architecture.apply(weights, Z), history[-1])
    chex.assert_trees_all_close(
        architecture.predict(weights, Z), architecture.read_out(history[-1]), rtol=100 * float(jnp.finfo(dtype).eps)
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_is_its_problems_one_by_one(x64, name):
    architecture = ARCHITECTURES[name]
    weights = random_weights(architecture, jnp.float64)
    Z = architecture.tokens(tasks(architecture, jnp.float64, (2, 3)))
    one_by_one = jax.vmap(jax.vmap(lambda z: architecture.predict(weights, z)))(Z)
    np.testing.assert_allclose(architecture.predict(weights, Z), one_by_one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_are_those_of_the_formula(x64, name):
    architecture = ARCHITECTURES[name]
    weights = random_weights(architecture, jnp.float64)
    Z = architecture.tokens(tasks(architecture, jnp.float64, (2,)))
    check_grads(lambda w, z: architecture.predict(w, z), (weights, Z), order=1, modes=("rev",), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "estimation"])
def test_keys_of_low_rank_may_be_given_by_few_rows_and_a_metric(x64, name):
    architecture = ARCHITECTURES[name]
    sizes = {name: getattr(architecture, name) for name in ("n", "d", "n_out", "d_out")}
    blocks, metric = problems.compact_training_task(jax.random.key(1), **sizes, s=4, dtype=jnp.float64)
    Z, Y = architecture.tokens(tasks(architecture, jnp.float64)), architecture.tokens(Blocks(*blocks))
    assert Y.shape[-2] == 4 + architecture.d_out < Z.shape[-2]
    weights = random_weights(architecture, jnp.float64, std=0.1)
    energy = lambda w, z, m: jnp.sum(jnp.square(architecture.predict(w, z, m)))  # noqa: E731
    value, gradient = jax.value_and_grad(energy)(weights, Y, metric)
    wanted, wanted_gradient = jax.value_and_grad(energy)(weights, Z, None)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    chex.assert_trees_all_close(gradient, wanted_gradient, rtol=1e-10, atol=1e-12 * float(wanted))
    check_grads(energy, (weights, Y, metric), order=1, modes=("rev",), atol=1e-5, rtol=1e-5)


def test_a_token_sees_keys_only(x64):
    """Moving the tokens behind the first d changes nobody else's update."""
    architecture = ARCHITECTURES["unconstrained"]
    weights = random_weights(architecture, jnp.float64)
    Z = architecture.tokens(tasks(architecture, jnp.float64))
    moved = Z.at[architecture.d :].add(1.0)
    step = lambda z: attention.layer(z, weights.layers()[0], architecture.d)[: architecture.d]  # noqa: E731
    np.testing.assert_array_equal(step(Z), step(moved))
    assert not np.allclose(step(Z), step(Z.at[0].add(1.0)))


ETA_RHO, GAMMA_RHO = 0.11, 0.23


def eagle_weights(architecture: Architecture, S=None) -> Weights:
    """One layer that is one Update with eta rho = ETA_RHO, gamma rho = GAMMA_RHO: a1 = 1, a2, a3."""
    w, n_out, M = architecture.width, architecture.n_out, architecture.blocks
    n = w - n_out
    S = np.eye(n) if S is None else S
    Q = np.concatenate([S, np.zeros((n_out, S.shape[1]))])
    V = np.block([[S, np.zeros((n, n_out))], [np.zeros((n_out, S.shape[1])), np.eye(n_out)]])
    P = np.zeros((M, M, *V.shape))
    for u in range(M):
        P[u, :, n:, S.shape[1] :] = -GAMMA_RHO / M * np.eye(n_out)
        P[u, u, :n, : S.shape[1]] = -ETA_RHO * S
    return Weights(*(jnp.asarray(x) for x in (Q[None], Q[None], V[None], P.reshape(M, M * w, V.shape[1]))))


def expected(architecture: Architecture, blocks: Blocks, sign: float, S=None):
    """The blocks after one Update; the network carries -D, so D enters and leaves with the other sign."""
    return update(State(blocks.A, blocks.B, blocks.C, sign * blocks.D), 1.0, ETA_RHO, GAMMA_RHO, S=S)


@pytest.mark.parametrize("sketched", [False, True])
def test_a_layer_is_an_update(x64, sketched):
    regime = "computation_limited" if sketched else "unconstrained"
    architecture = ARCHITECTURES[regime]
    S = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))[0] if sketched else None
    blocks = tasks(architecture, jnp.float64)
    Z = attention.layer(blocks.join(), eagle_weights(architecture, S), architecture.d)
    A, B, C, D = expected(architecture, blocks, -1, None if S is None else jnp.asarray(S))
    chex.assert_trees_all_close(Blocks.split(Z, 5, 6), Blocks(A, B, C, -D), rtol=1e-13, atol=1e-15)


def test_a_layer_is_a_distributed_update(x64):
    architecture = ARCHITECTURES["distributed"]
    blocks = tasks(architecture, jnp.float64)
    A, B = (attention.split(x, 3) for x in (blocks.A, blocks.B))

    def machine(A, B):
        state = State(A, B, blocks.C, jnp.zeros_like(blocks.D))
        return update(state, 1.0, ETA_RHO, GAMMA_RHO, reduce=lambda x: jax.lax.pmean(x, "machines"))

    wanted = jax.vmap(machine, axis_name="machines")(A, B)
    Z = attention.layer(architecture.tokens(blocks), eagle_weights(architecture), architecture.d, machines=3)
    got = Blocks.split(attention.split(Z, 3), 5, 2)
    chex.assert_trees_all_close(got, Blocks(wanted.A, wanted.B, wanted.C, -wanted.D), rtol=1e-13, atol=1e-15)


def test_a_layer_is_an_estimation_update(x64):
    """Keys are data points, the last token is (w, 0): the second query bias brings in -b."""
    architecture = ARCHITECTURES["estimation"]
    blocks = tasks(architecture, jnp.float64)
    d = architecture.d
    diagonal = lambda *values: jnp.diag(jnp.asarray(values, float))[None]  # noqa: E731
    read = diagonal(*[1.0] * d, 0.0)
    # The values of the data tokens move both a and b by -eta rho; only the a part of it reaches w.
    write = diagonal(*[-ETA_RHO] * (d + 1))
    bias = jnp.zeros((2, d + 1)).at[1, d].set(-1.0)
    weights = Weights(read, read, diagonal(*[1.0] * (d + 1)), write, bias)
    w = jnp.linspace(-1, 1, d)
    Z = architecture.tokens(blocks).at[-1, :d].set(w)
    new = attention.layer(Z, weights, architecture.keys)
    A, B, W = update_estimate(blocks.A, blocks.B, w[None], 1.0, ETA_RHO, ETA_RHO)
    np.testing.assert_allclose(new[:-1], jnp.concatenate([A, B]).T, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(architecture.read_out(new), W, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_papers_shapes(regime):
    architecture = Architecture(regime, d_out=1 if regime == "estimation" else 2)
    weights = architecture.init(jax.random.key(0), 0.1)
    shapes = {name: None if w is None else w.shape for name, w in weights._asdict().items()}
    wide = {name: (4, 1, 20, 20) for name in ("query", "key", "value", "projection")} | {"bias": None}
    assert (
        shapes
        == {
            "unconstrained": wide,
            "computation_limited": wide
            | {"query": (4, 1, 20, 5), "key": (4, 1, 20, 5), "value": (4, 1, 20, 7), "projection": (4, 1, 20, 7)},
            "distributed": {name: (4, 1, 8, 8) for name in wide} | {"projection": (4, 3, 24, 8), "bias": None},
            "estimation": {name: (4, 1, 19, 19) for name in wide} | {"bias": (4, 2, 19)},
        }[regime]
    )


def test_the_flax_container_is_thin():
    architecture = ARCHITECTURES["estimation"]
    model = Transformer(architecture, rngs=nnx.Rngs(0))
    blocks = tasks(architecture, jnp.float32)
    Z = architecture.tokens(blocks)
    np.testing.assert_array_equal(model(Z), architecture.apply(model.weights, Z))
    np.testing.assert_array_equal(model.predict(blocks), architecture.predict(model.weights, Z))
    gradient = nnx.grad(lambda m: jnp.sum(m.predict(blocks) ** 2))(model)
    assert float(jnp.abs(gradient.query[...]).max()) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regime": "central"}, "regime='central'; expected one of"),
        ({"sign": 0}, "sign=0; expected -1 or 1"),
        ({"heads": 0}, "heads=0; expected a positive integer"),
        ({"layers": 2.5}, "layers=2.5; expected a positive integer"),
        ({"regime": "distributed", "heads": 2}, "only 'unconstrained' has several heads"),
        ({"regime": "distributed", "machines": 4}, "n=18 columns cannot be shared out evenly"),
        ({"regime": "estimation"}, "d_out=2 with regime='estimation'; expected 1"),
    ],
)
def test_bad_architectures(settings, message):
    with pytest.raises(ValueError, match=message):
        Architecture(**settings)
