"""Nyström extrapolation against the exact kernel matrix and against scikit-learn's."""

import doctest
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax import Status, nystrom, nystrom_blocks
from tests import helpers

pytestmark = [pytest.mark.usefixtures("cheap_compilation"), pytest.mark.float32_is_slow]

POINTS, LANDMARKS = 60, 24


def rbf(X, Y):
    return jnp.exp(-jnp.sum((X[:, None] - Y) ** 2, axis=-1))


def polynomial(X, Y):
    """Of rank 6 in the plane."""
    return (1 + jnp.matmul(X, Y.T, precision="highest")) ** 2


def points(dtype, n=POINTS, seed=0):
    return jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, (n, 2)), dtype)


def relative(found, exact):
    return helpers.norm2(np.asarray(found) - np.asarray(exact)) / helpers.norm2(exact)


def test_example():
    result = doctest.testmod(importlib.import_module("eagle_jax.nystrom"))
    assert result.attempted > 3 and result.failed == 0


def test_low_rank_is_exact(dtype):
    """All of K, its products and blocks with new points, though K_LL has rank 6 of 24."""
    X, Y, v = points(dtype), points(dtype, 7, seed=1), points(dtype, seed=2)
    K = nystrom(polynomial, X, X[:LANDMARKS])
    assert K.estimate.status == Status.CONVERGED and K.estimate.stats.backward_error <= 32 * helpers.eps(dtype)
    assert K.W.shape == (POINTS, LANDMARKS) and K.W.dtype == dtype
    allowed = 1e3 * helpers.eps(dtype)
    assert relative(K.block(polynomial(X[:LANDMARKS], Y)), polynomial(X, Y)) < allowed
    assert relative(K.matvec(v), jnp.matmul(polynomial(X, X), v, precision="highest")) < allowed
    np.testing.assert_array_equal(K.matvec(v[:, 0]).shape, (POINTS,))
    assert relative(K.matvec(v[:, :1])[:, 0], K.matvec(v[:, 0])) < allowed


def test_error_falls_with_landmarks_which_may_repeat(x64):
    X = points(jnp.float64)
    exact = rbf(X, X)
    errors = []
    for count in (4, 8, 12, 24):
        K = nystrom(rbf, X, jnp.tile(X[:count], (LANDMARKS // count, 1)))
        assert K.estimate.status == Status.CONVERGED
        errors.append(relative(K.matvec(jnp.eye(POINTS)), exact))
        # The same space as the landmarks once each, by numpy; repeated ones share the weight.
        once = np.linalg.lstsq(rbf(X[:count], X[:count]), rbf(X[:count], X), rcond=None)[0].T
        folded = np.asarray(K.W).reshape(POINTS, -1, count)
        np.testing.assert_allclose(folded.sum(1) @ rbf(X[:count], X), once @ rbf(X[:count], X), atol=1e-9)
        np.testing.assert_allclose(folded[:, 0], folded[:, -1], atol=1e-9 * np.abs(folded).max())
    # Nested landmarks leave a smaller positive semidefinite remainder, whatever the kernel.
    assert np.all(np.diff(errors) < 0) and errors[-1] < 5e-3


def test_same_as_scikit_learn(x64):
    kernel_approximation = pytest.importorskip("sklearn.kernel_approximation")
    X = np.asarray(points(jnp.float64))
    theirs = kernel_approximation.Nystroem(kernel="rbf", gamma=1.0, n_components=LANDMARKS, random_state=0).fit(X)
    features = theirs.transform(X)
    K = nystrom(rbf, X, theirs.components_)
    ours = K.matvec(jnp.eye(POINTS))
    exact = rbf(X, X)
    # They raise the singular values of K_LL to 1e-12 and take a square root of its inverse.
    assert relative(ours, features @ features.T) < 1e-7
    assert relative(ours, exact) <= 1.001 * relative(features @ features.T, exact)


def floors(kappa):
    """Relative errors of K v in three forms; rank 10, 30 of 100 points are landmarks, kappa of K_LL."""
    kernel_approximation = pytest.importorskip("sklearn.kernel_approximation")
    rng = np.random.default_rng(0)
    X, v = rng.standard_normal((100, 10)) * np.geomspace(1, kappa**-0.5, 10), rng.standard_normal(100)
    theirs = kernel_approximation.Nystroem(kernel="linear", n_components=30, random_state=0).fit(X)
    features, L = theirs.transform(X), theirs.components_
    K = nystrom(lambda X, Y: X @ Y.T, X, L)
    assert K.estimate.status == Status.CONVERGED
    inverse = np.linalg.pinv(L @ L.T, rcond=30 * helpers.eps(np.float64))
    products = (K.matvec(v), K.K_XL @ (inverse @ (K.K_XL.T @ v)), features @ (features.T @ v))
    scale = helpers.norm2(X) ** 2 * np.linalg.norm(v)
    return [float(np.linalg.norm(product - X @ (X.T @ v)) / scale) for product in products]


def test_floor_does_not_grow_with_kappa(x64):
    """The table of the module: W (K_LX v) stays at eps where an explicit inverse loses with kappa."""
    for kappa in (1e2, 1e6, 1e10, 1e14):
        ours, explicit, _ = floors(kappa)
        assert ours < 16 * helpers.eps(np.float64), kappa
        assert kappa < 1e10 or explicit > 1e3 * ours


@pytest.mark.slow
def test_jit_and_vmap(x64):
    batch = jnp.stack([points(jnp.float64, seed=s) for s in range(3)])

    def product(X, v):
        K = nystrom(rbf, X, X[:LANDMARKS])
        return K, K.matvec(v)

    v = points(jnp.float64, seed=9)
    lanes, products = jax.vmap(product, (0, None))(batch, v)
    assert isinstance(lanes, eagle_jax.Nystrom) and lanes.estimate.status.tolist() == [0, 0, 0]
    for X, W, found in zip(batch, lanes.W, products, strict=True):
        K, alone = jax.jit(product)(X, v)
        assert relative(found, alone) < 1e-9
        assert relative(K.block(K.K_XL.T), jnp.matmul(W, K.K_XL.T)) < 1e-9


def test_nan_is_a_status(x64):
    X = points(jnp.float64).at[3, 0].set(jnp.nan)
    K = nystrom(rbf, X, X[:LANDMARKS])
    assert K.estimate.status == Status.NONFINITE and np.isnan(K.W).all()
    with pytest.raises(eagle_jax.SolveError, match="NONFINITE"):
        eagle_jax.raise_if_failed(K.estimate)


def test_messages():
    X = points(jnp.float32, 6)
    with pytest.raises(TypeError, match=r"kernel is ndarray and not callable.*nystrom_blocks"):
        nystrom(np.eye(2), X, X)
    with pytest.raises(ValueError, match=r"K_LL has shape \(6, 3\); expected a square matrix"):
        nystrom_blocks(jnp.zeros((6, 3)), jnp.zeros((6, 3)))
    with pytest.raises(ValueError, match=r"K_XL has shape \(3, 6\); expected \(3, 3\), a column for each of the 3"):
        nystrom_blocks(jnp.zeros((3, 3)), jnp.zeros((3, 6)))
    K = eagle_jax.Nystrom(eagle_jax.Solution(jnp.zeros((6, 3)), jnp.zeros(()), None), jnp.zeros((6, 3)))
    with pytest.raises(ValueError, match=r"K_LY has shape \(6, 3\); expected \(3, number of points Y\)"):
        K.block(jnp.zeros((6, 3)))
    with pytest.raises(ValueError, match=r"v has shape \(3,\); expected \(6,\) or \(6, p\)"):
        K.matvec(jnp.zeros(3))
