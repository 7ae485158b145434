"""The stopping path against formulas in A's singular values, against ridge, and its choice against the oracle."""

import doctest
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax import PAPER, problems, stopping_path
from experiments import regularisation
from tests import helpers

pytestmark = pytest.mark.usefixtures("cheap_compilation")

SCHEDULES = {"paper": PAPER, "emergent": eagle_jax.EMERGENT}
STEPS = 20


def left_over(s, steps, fixed):
    """f_l(s), the fraction of a singular direction that l steps have not fitted; steps x len(s)."""
    x, f, history = s / s.max(), np.ones_like(s), []
    for _ in range(steps):
        f = f * (1 - fixed.gamma / fixed.headroom * x**2)
        x = (x - fixed.eta / fixed.headroom * x**3) / fixed.contraction
        history.append(f)
    return np.array(history)


def test_example():
    result = doctest.testmod(importlib.import_module("eagle_jax.regularisation"))
    assert result.attempted > 3 and result.failed == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", [(8, 20, 8), (20, 8, 8), (12, 16, 5)], ids=["wide", "tall", "deficient"])
def test_path_is_its_formula(x64, shape, schedule):
    d, n, rank = shape
    case = helpers.make_case(d, n, np.float64, rank=rank, kappa=30, consistent=False)
    A, B = 3 * case.A, case.B  # not of norm 1
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    U, s, Vt = U[:, :rank], s[:rank], Vt[:rank]
    path = stopping_path(A, B, steps=STEPS, schedule=schedule)
    f = left_over(s, STEPS, SCHEDULES[schedule])
    np.testing.assert_allclose(path.dof, (1 - f).sum(1), atol=1e-12 * d)
    for l in range(STEPS):
        W = B @ (Vt.T * (1 - f[l]) / s) @ U.T
        np.testing.assert_allclose(path.W[l], W, atol=1e-10)
        H = (Vt.T * (1 - f[l])) @ Vt
        free = 1 - np.trace(H) / n
        if free > 1e-7:
            gcv = np.mean((B - B @ H) ** 2) / free**2
            np.testing.assert_allclose(path.gcv[l], gcv, rtol=1e-6)
        else:
            assert path.gcv[l] == np.inf
    assert path.best == np.argmin(path.gcv)
    np.testing.assert_array_equal(path.W_best, path.W[path.best])


def test_same_iterates_as_trajectory(dtype):
    case = helpers.make_case(8, 20, dtype, kappa=30, consistent=False)
    path = stopping_path(case.A, case.B, steps=STEPS)
    D = eagle_jax.trajectory(case.A, case.B, case.C, steps=STEPS).D
    assert path.W.dtype == path.gcv.dtype == path.dof.dtype == dtype
    # What is outside A's row space grows by 1.5 a step, and its rounding with it.
    found = jnp.matmul(path.W, case.C, precision="highest")
    assert np.all(np.abs(found - D).max((1, 2)) < 50 * helpers.eps(dtype) * 1.5 ** np.arange(1, STEPS + 1))


def test_probes_estimate_the_trace(x64):
    case = helpers.make_case(40, 80, np.float64, kappa=100, consistent=False)
    exact = stopping_path(case.A, case.B, steps=STEPS)
    found = jax.vmap(lambda key: stopping_path(case.A, case.B, steps=STEPS, key=key, probes=4))(
        jax.random.split(jax.random.key(0), 64)
    )
    np.testing.assert_allclose(found.W[0], exact.W, atol=1e-12)
    # Signs give a variance of 2 (‖N‖² - the squares of N's diagonal) each.
    U, s, _ = np.linalg.svd(case.A)
    f = left_over(s, STEPS, PAPER)
    diagonal = (f[:, None] * U**2).sum(-1)
    deviation = (2 * ((f**2).sum(1) - (diagonal**2).sum(1)) / 4) ** 0.5
    random = deviation > 1e-3
    assert np.all(np.abs(np.mean(found.dof, 0) - exact.dof)[random] < 4 * deviation[random] / 64**0.5)
    assert np.all(np.abs(np.std(found.dof, 0) / deviation - 1)[random] < 0.4)
    assert np.abs(np.asarray(found.best) - int(exact.best)).max() <= 2


@pytest.fixture
def noisy_problems(x64):
    """24 problems with noise on B, and clean columns C, D to predict."""

    def make(key):
        keys = jax.random.split(key)
        clean = problems.conditioned(keys[0], n=120, d=60, n_out=60, kappa=1e3)
        return problems.noisy(clean, keys[1], 0.003)._replace(A=clean.A, C=clean.C)

    return jax.vmap(make)(jax.random.split(jax.random.key(1), 24))


def errors_in_D(W, problem):
    """Relative, for W with any axes between the runs and the matrix."""
    D = np.einsum("r...ij,rjk->r...ik", W, problem.C)
    truth = np.asarray(problem.D).reshape(len(D), *(1,) * (D.ndim - 3), *problem.D.shape[1:])
    return np.linalg.norm(D - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))


def ridge_path(A, B, penalties):
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    return np.stack([B @ (Vt.T * (s / (s**2 + p))) @ U.T for p in penalties])


def test_choice_is_near_the_oracle_and_ridge(noisy_problems):
    problem = noisy_problems
    path = jax.vmap(lambda A, B: stopping_path(A, B, steps=30))(problem.A, problem.B)
    along = errors_in_D(path.W, problem)
    runs = np.arange(len(along))
    oracle, chosen = along.min(1), along[runs, np.asarray(path.best)]
    least_squares = np.array([B @ helpers.pinv(A) for A, B in zip(*map(np.asarray, problem[:2]), strict=True)])
    ridge = np.stack([ridge_path(A, B, np.geomspace(1e-7, 1, 60)) for A, B in zip(*problem[:2], strict=True)])
    assert np.median(chosen / oracle) < 1.05
    assert np.median(chosen) < 0.8 * np.median(errors_in_D(least_squares, problem))
    assert np.median(oracle / errors_in_D(ridge, problem).min(1)) < 1.05


def test_jit_vmap_and_float32():
    case = helpers.make_case(8, 20, np.float32, kappa=30, consistent=False)
    once = stopping_path(case.A, case.B, steps=STEPS)
    jitted = jax.jit(lambda A, B: stopping_path(A, B, steps=STEPS))(case.A, case.B)
    lanes = jax.vmap(lambda B: stopping_path(case.A, B, steps=STEPS))(np.stack([case.B, 2 * case.B]))
    np.testing.assert_array_equal(once.W, jitted.W)
    np.testing.assert_allclose(lanes.gcv[1], 4 * once.gcv, rtol=1e-4)
    assert lanes.best.tolist() == [int(once.best)] * 2


def test_nan_is_never_chosen_silently():
    case = helpers.make_case(8, 20, np.float32, kappa=30, consistent=False)
    case.B[0, 0] = np.nan
    path = stopping_path(case.A, case.B, steps=STEPS)
    assert np.isinf(path.gcv).all() and np.isnan(path.W_best).any()


def test_experiment_tiny(x64):
    pytest.importorskip("sklearn")
    results = [regularisation.run("linnerud", 2, splits=2, seed=0)]
    assert results[0]["shape"] == (9, 15) and all(np.isfinite(results[0]["EAGLE, GCV"]))
    for oracle, chosen in zip(results[0]["EAGLE, oracle"], results[0]["EAGLE, GCV"], strict=True):
        assert oracle <= chosen
    assert regularisation.table(results).count("\n") == 2
    X, Y = regularisation.load("diabetes")
    data = regularisation.split(X, Y, 2, np.random.default_rng(0))
    assert data.A.shape == (65, 332) and data.D.shape == (1, 110)
    np.testing.assert_allclose(data.A.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(data.B.std(1), 1)


def test_messages():
    A, B = jnp.ones((2, 3)), jnp.ones((1, 3))
    with pytest.raises(ValueError, match="B has 2 columns but A has 3"):
        stopping_path(A, B[:, :2], steps=3)
    with pytest.raises(ValueError, match=r"A has shape \(0, 3\).*at least one row"):
        stopping_path(A[:0], B, steps=3)
    with pytest.raises(ValueError, match='use schedule="paper"'):
        stopping_path(A, B, steps=3, schedule="optimal")
    for steps in (0, 2.0, 500):
        with pytest.raises(ValueError, match=rf"steps={steps}; expected an integer from 1 to 43"):
            stopping_path(A, B, steps=steps)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="probes=0; expected a positive integer"):
        stopping_path(A, B, steps=3, probes=0)
    with pytest.raises(ValueError, match=r"probes=4 without a key; pass key=jax.random.key"):
        stopping_path(A, B, steps=3, probes=4)
