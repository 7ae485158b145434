"""The baselines' shared contract, and each one's formula against plain numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_case, norm2

import eagle_jax
from eagle_jax.baselines import (
    BASELINES,
    SKETCHED,
    Trace,
    _squared_norm,
    conjugate_gradients,
    direct,
    gradient_descent,
    sketch_and_precondition,
)

pytestmark = pytest.mark.usefixtures("cheap_compilation")

N, D_ROWS = 16, 12
# enough steps for kappa = 10 at float64: GD contracts by 1 - 1/kappa²
STEPS = {"direct": 1, "gd": 3500, "cg": 60}


def problem(kappa=10.0, rank=D_ROWS, dtype=float, seed=0):
    """A with singular values geometric in [1/kappa, 1], B = W A, C = A Y, D = W A Y; from numpy."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((m, rank)))[0] for m in (D_ROWS, N))
    A = U * np.geomspace(1, 1 / kappa, rank) @ V.T
    W, Y = rng.standard_normal((2, D_ROWS)), rng.standard_normal((N, 3))
    return [jnp.asarray(x, dtype) for x in (A, W @ A, A @ Y, W @ A @ Y)]


def noisy(x):
    noise = 0.1 * np.random.default_rng(9).standard_normal(x.shape)
    return jnp.asarray(np.asarray(x) + noise, x.dtype)


def regression(A, B, C, ridge=0.0):
    """argmin ½||W A - B||² + ½ ridge ||W||², times C, in numpy."""
    A, B, C = (np.asarray(x, np.float64) for x in (A, B, C))
    W = np.linalg.lstsq(
        np.concatenate([A, ridge**0.5 * np.eye(len(A))], axis=1).T,
        np.concatenate([B, np.zeros((len(B), len(A)))], axis=1).T,
        rcond=None,
    )[0].T
    return W @ C


@pytest.mark.parametrize("name", BASELINES)
def test_converges_to_least_squares(dtype, name):
    A, B, C, D = problem(dtype=dtype)
    # general B: the system is inconsistent, and W is a projection
    B = noisy(B)
    trace = jax.jit(functools.partial(BASELINES[name], steps=STEPS[name]))(A, B, C)
    assert isinstance(trace, Trace) and trace.history.shape == (STEPS[name], *D.shape)
    assert trace.D.dtype == trace.history.dtype == dtype
    np.testing.assert_array_equal(trace.D, trace.history[-1])
    # the normal equations see kappa² = 100
    bound = 20 * float(jnp.finfo(dtype).eps) * 100 * float(np.linalg.norm(B) * np.linalg.norm(C))
    np.testing.assert_allclose(trace.D, regression(A, B, C), atol=bound)


@pytest.mark.parametrize("name", BASELINES)
def test_ridge_means_the_same_everywhere(x64, name):
    A, B, C, _ = problem()
    trace = jax.jit(functools.partial(BASELINES[name], steps=STEPS[name], ridge=1e-2))(A, B, C)
    expected = regression(A, B, C, ridge=1e-2)
    np.testing.assert_allclose(trace.D, expected, atol=1e-12)
    assert np.linalg.norm(expected - regression(A, B, C)) > 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", BASELINES)
def test_jit_and_vmap(x64, name):
    lanes = [problem(kappa=3.0, seed=seed)[:3] for seed in range(3)]
    solve = jax.jit(functools.partial(BASELINES[name], steps=20))
    together = jax.jit(jax.vmap(solve))(*map(jnp.stack, zip(*lanes, strict=True)))
    for i, lane in enumerate(lanes):
        alone = solve(*lane)
        # CG's middle steps amplify rounding, its last ones do not
        np.testing.assert_allclose(together.history[i], alone.history, atol=1e-10)
        np.testing.assert_allclose(together.D[i], alone.D, atol=1e-13)


def test_direct_is_the_minimum_norm_solution_on_low_rank(x64):
    A, B, C, _ = problem(rank=5)
    B, C = noisy(B), noisy(C)
    expected = np.asarray(B) @ np.linalg.pinv(np.asarray(A), rcond=1e-10) @ np.asarray(C)
    np.testing.assert_allclose(direct(A, B, C).D, expected, atol=1e-13)


def test_gradient_descent_takes_the_papers_steps(x64):
    A, B, C, _ = problem()
    history = gradient_descent(A, B, C, steps=5, ridge=1e-3).history
    A, B, C = map(np.asarray, (A, B, C))
    W, step = np.zeros((2, D_ROWS)), 1 / np.linalg.norm(A, 2) ** 2
    for D in history:
        W = W - step * ((W @ A - B) @ A.T + 1e-3 * W)
        np.testing.assert_allclose(D, W @ C, atol=1e-12)


@pytest.mark.parametrize("name", ["svd", "gaussian"])
def test_power_iteration_is_within_a_tenth_of_a_percent(x64, name):
    """On data like the paper's: the top of the spectrum is crowded, and the paper's two iterations are not enough."""
    rng = np.random.default_rng(1)
    G1, G2 = rng.standard_normal((2, 240, 240))
    A = np.linalg.qr(G1)[0] * 100 ** -rng.uniform(size=240) @ np.linalg.qr(G2)[0] if name == "svd" else G1 @ G2
    ratio = float(jax.jit(_squared_norm)(A)) / np.linalg.norm(A, 2) ** 2
    assert 1 - 1e-3 < ratio < 1 + 1e-13
    v = rng.standard_normal(240)
    for _ in range(2):
        v = A @ (A.T @ (v / np.linalg.norm(v)))
    v /= np.linalg.norm(v)
    assert np.sum((v @ A) ** 2) < 0.9 * np.linalg.norm(A, 2) ** 2


def test_power_iteration_sees_a_top_direction_orthogonal_to_ones(x64):
    v = np.array([1.0, -1.0, 1.0, -1.0]) / 2
    A = 10 * np.outer(v, v) + np.eye(4)
    assert float(_squared_norm(jnp.asarray(A))) == pytest.approx(121, rel=1e-12)


def test_conjugate_gradients_take_the_papers_steps(x64):
    A, B, C, _ = problem()
    history = conjugate_gradients(A, B, C, steps=5).history
    A, B, C = map(np.asarray, (A, B, C))
    G, W = A @ A.T, np.zeros((2, D_ROWS))
    R = P = B @ A.T
    rr = np.sum(R * R)
    for D in history:
        alpha = rr / np.sum(P * (P @ G))
        W, R, rr_old = W + alpha * P, R - alpha * P @ G, rr
        rr = np.sum(R * R)
        P = R + rr / rr_old * P
        np.testing.assert_allclose(D, W @ C, atol=1e-13)


def test_conjugate_gradients_finish_in_as_many_steps_as_distinct_eigenvalues(x64):
    A, B, C, D = problem(kappa=1.0)
    history = conjugate_gradients(A, B, C, steps=4).history
    np.testing.assert_allclose(history[0], D, atol=1e-14)


def exactly_solved(dtype):
    A = 2 * jnp.eye(4, dtype=dtype)
    return A, jnp.ones((2, 4), dtype), jnp.ones((4, 3), dtype)


@pytest.mark.parametrize("name", BASELINES)
def test_exact_convergence_and_zero_data_give_no_nan(dtype, name):
    A, B, C = exactly_solved(dtype)
    solve = jax.jit(functools.partial(BASELINES[name], steps=300))
    np.testing.assert_allclose(solve(A, B, C).history, 2, rtol=8 * float(jnp.finfo(dtype).eps))
    zeros = [jnp.zeros_like(x) for x in (A, B, C)]
    for data in ((zeros[0], B, C), (A, zeros[1], C), zeros):
        np.testing.assert_array_equal(solve(*data).D, 0)


def test_conjugate_gradients_stay_put_long_after_convergence(dtype):
    A, B, C, D = problem(dtype=dtype)
    history = conjugate_gradients(A, B, C, steps=2000).history
    bound = 100 * 100 * float(jnp.finfo(dtype).eps) * float(np.linalg.norm(D))
    np.testing.assert_allclose(np.asarray(history)[60:] - np.asarray(D), 0, atol=bound)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"A": np.zeros((3, 4, 5), "f")}, r"A has shape \(3, 4, 5\); expected a matrix"),
        ({"B": np.zeros((2, 7), "f")}, "B has 7 columns but A has 4"),
        ({"C": np.zeros((7, 2), "f")}, "C has 7 rows but A has 3"),
        ({"C": np.zeros((3, 2), "i")}, "C is int32; expected float32, float64"),
        ({"steps": 0}, "steps=0; expected a positive integer"),
        ({"ridge": -1.0}, "ridge=-1.0; expected a number, at least 0"),
    ],
)
def test_bad_arguments_are_named(name, change, named):
    arguments = {"A": np.zeros((3, 4), "f"), "B": np.zeros((2, 4), "f"), "C": np.zeros((3, 2), "f")} | change
    with pytest.raises((TypeError, ValueError), match=named):
        BASELINES[name](**arguments)


@pytest.mark.parametrize("name", ["sgd", "sketch_cg", "sketch_precondition"])
def test_sketched_baselines_reach_the_answer(name, x64):
    c = make_case(12, 60, np.float64, kappa=5, consistent=name != "sketch_precondition")
    sketch = eagle_jax.Sketch(36, jax.random.key(0))
    steps = 3000 if name == "sgd" else 400
    trace = jax.jit(functools.partial(SKETCHED[name], sketch=sketch, steps=steps))(c.A, c.B, c.C)
    assert trace.history.shape == (steps, 3, 2)
    assert norm2(trace.D - c.D) < 1e-9 * norm2(c.D)
    assert norm2(trace.history[0] - c.D) > 1e-6 * norm2(c.D)


def test_sketch_and_precondition_needs_more_columns_than_rows(x64):
    A, B, C, _ = problem()
    with pytest.raises(ValueError, match=r"sketch.r=8 is less than A's 12 rows"):
        sketch_and_precondition(A, B, C, sketch=eagle_jax.Sketch(8, jax.random.key(0)), steps=3)
