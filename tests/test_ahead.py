"""Reading ahead: the step, its invariants, and its extraction from networks that do it exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import ahead, extraction, problems
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.transformer import Architecture
from eagle_jax.update import State, update, update_ahead

pytestmark = pytest.mark.usefixtures("x64")
LIMITED = Architecture("computation_limited", n=8, d=6, n_out=2, d_out=1, layers=3, rank=2)


def state(key=0) -> tuple[State, jax.Array]:
    A, W, C = (
        jax.random.normal(k, shape, jnp.float64)
        for k, shape in zip(jax.random.split(jax.random.key(key), 3), ((6, 8), (1, 6), (6, 2)), strict=True)
    )
    return State(A, W @ A, C, jnp.zeros((1, 2))), W


def columns(*numbers) -> np.ndarray:
    return np.eye(8)[:, list(numbers)]


def test_conditioning_what_it_reads_is_update():
    start, _ = state()
    S = jnp.asarray(np.linalg.qr(np.random.default_rng(0).standard_normal((8, 3)))[0])
    for one, other in zip(update_ahead(start, 0.1, 0.5, 0.7, S=S, T=S), update(start, 0.1, 0.5, 0.7, S=S), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_disjoint_columns_are_cleared_as_C_is_and_the_invariants_stay():
    start, W = state()
    S, T = columns(0, 1), columns(4, 5, 6)
    after = update_ahead(start, 0.02, 1.0, 1.0, S=S, T=T)
    E = start.A[:, :2] @ start.A[:, :2].T
    np.testing.assert_allclose(after.C, start.C - 0.02 * E @ start.C, atol=1e-12)
    np.testing.assert_allclose(after.A[:, 4:7], start.A[:, 4:7] - 0.02 * E @ start.A[:, 4:7], atol=1e-12)
    np.testing.assert_array_equal(after.A[:, :4], start.A[:, :4])
    np.testing.assert_allclose(after.B, W @ after.A, atol=1e-12)
    np.testing.assert_allclose(after.D + W @ after.C, start.D + W @ start.C, atol=1e-12)


def network(S, T, eta, gamma) -> Weights:
    """W_QK = S S^T, W_VP = diag(-eta T T^T, -gamma I)."""
    layers, n, r = S.shape
    query = np.zeros((layers, 1, 10, r))
    value, projection = np.zeros((2, layers, 1, 10, r + 2))
    query[:, 0, :n] = S
    value[:, 0, :n, :r], value[:, 0, n:, r:] = T, np.eye(2)
    projection[:, 0, :n, :r] = -eta[:, None, None] * T
    projection[:, 0, n:, r:] = -gamma[:, None, None] * np.eye(2)
    return Weights(*(jnp.asarray(w) for w in (query, query, value, projection)))


def test_a_network_that_reads_ahead_is_read_back():
    S = np.stack([columns(0, 1), columns(2, 3), columns(4, 5)])
    T = np.stack([columns(4, 2), columns(5, 4), columns(0, 1)])
    eta, gamma = np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.3, 0.4])
    weights = network(S, T, eta, gamma)
    found = ahead.extract(weights, LIMITED)
    np.testing.assert_allclose(found.eta_rho, [0.1, 0.2, 0.0], atol=1e-7)  # nothing is read after the last layer
    np.testing.assert_allclose(found.gamma_rho, gamma, atol=1e-7)
    blocks = Blocks(
        *jax.vmap(lambda k: problems.training_task(k, n=8, d=6, d_out=1, s=4))(jax.random.split(jax.random.key(1), 4))
    )
    history = LIMITED.activations(weights, LIMITED.tokens(blocks))
    for one in (found, found.flat()):
        gap = extraction.gap(LIMITED, history[:-1], ahead.run(one, blocks)[:-1])
        assert gap.Z.max() < 1e-12
        assert extraction.gap(LIMITED, history, ahead.run(one, blocks)).D.max() < 1e-12
    shares = ahead.shares(extraction.products(weights), LIMITED)
    np.testing.assert_allclose([shares.later_read, shares.later_written], 1, atol=1e-12)
    np.testing.assert_allclose(shares.chance, [0.5, 0.25])
    np.testing.assert_allclose(shares.own, 0, atol=1e-12)


def test_what_no_later_layer_reads_is_left_out():
    S = np.stack([columns(0, 1), columns(2, 3), columns(4, 5)])
    seen = ahead.read_later(S)
    np.testing.assert_allclose(np.diagonal(seen, axis1=1, axis2=2).sum(1), [4, 2, 0])
    T = np.stack([columns(6, 7), columns(6, 7), columns(6, 7)])
    assert ahead.extract(network(S, T, np.ones(3), np.ones(3)), LIMITED).eta_rho.max() == 0
    with pytest.raises(ValueError, match="regime='distributed'; expected 'computation_limited'"):
        ahead.extract(network(S, T, np.ones(3), np.ones(3)), Architecture("distributed"))
