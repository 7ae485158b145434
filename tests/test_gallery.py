"""Notorious matrices, and the corners where the answer is a matter of definition."""

import numpy as np
import pytest

import eagle_jax
from eagle_jax import Status, problems
from tests import helpers

pytestmark = [pytest.mark.usefixtures("cheap_compilation"), pytest.mark.float32_is_slow]

SIZES = {
    "hilbert": (4, 9),
    "kahan": (30, 60),
    "vandermonde": (6, 12),
    "lauchli": (10,),
    "graded": (12,),
    "gapped": (40,),
}


@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=() if n == max(sizes) else pytest.mark.slow)
        for name, sizes in SIZES.items()
        for n in sizes
    ],
)
def test_ill_conditioned(dtype, name, n):
    """Backward error at rounding level; forward error as small as conditioning allows and near numpy's."""
    A = problems.gallery(name, n, dtype)
    d = A.shape[0]
    rng = np.random.default_rng(n)
    B = (rng.standard_normal((3, d)) @ A).astype(dtype)
    W, status, stats = eagle_jax.estimate(A, B)
    exact = [x.astype(np.float64) for x in (A, B)]
    W = np.asarray(W, np.float64)
    residual = np.linalg.norm(exact[1] - W @ exact[0], axis=1)
    size = helpers.norm2(A) * np.linalg.norm(W, axis=1) + np.linalg.norm(exact[1], axis=1)
    rcond = helpers.eps(dtype) * max(A.shape)
    assert (residual <= 4 * max(32 * helpers.eps(dtype), rcond) * size).all(), (residual / size, status)
    case = helpers.case_of(A, B, np.eye(d), dtype)
    if case.kappa * helpers.eps(dtype) < 0.1 / max(A.shape):
        assert status == Status.CONVERGED, stats
        helpers.assert_close(W, case, factor=1)
        by_numpy = np.linalg.lstsq(A.T, B.T, rcond=rcond)[0].T
        if dtype == np.float64:  # numpy works in double anyway
            floor = 32 * helpers.eps(dtype) * case.scale
            assert helpers.error(W, case) <= 100 * max(helpers.error(by_numpy, case), floor)


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize(("d", "n", "rank"), [(12, 12, 7), (8, 20, 1), pytest.param(20, 8, 5, marks=pytest.mark.slow)])
def test_exact_rank_deficiency(dtype, d, n, rank, consistent):
    """Products of small integers: the rank is exact in floating point, without noise in the null space."""
    rng = np.random.default_rng([d, n])
    A = (rng.integers(-3, 4, (d, rank)) @ rng.integers(-3, 4, (rank, n))).astype(dtype)
    if consistent:
        B, C = rng.integers(-2, 3, (3, d)) @ A, A @ rng.integers(-2, 3, (n, 2))
    else:
        B, C = rng.standard_normal((3, n)), rng.standard_normal((d, 2))
    case = helpers.case_of(A, B, C, dtype, rank)
    D, status, _ = eagle_jax.solve(case.A, case.B, case.C)
    assert status == Status.CONVERGED
    helpers.assert_close(D, case)


@pytest.mark.parametrize("schedule", helpers.SCHEDULES)
def test_one_by_one(dtype, schedule):
    for a in (2.0, -1e-3, 0.0):
        blocks = [np.array([[x]], dtype) for x in (a, 3.0, 5.0)]
        D, status, _ = eagle_jax.solve(*blocks, schedule=helpers.SCHEDULES[schedule])
        assert status == Status.CONVERGED
        expected = 0 if a == 0 else 15 / np.float64(blocks[0][0, 0])
        assert abs(float(D[0, 0]) - expected) <= 64 * helpers.eps(dtype) * abs(expected)


@pytest.mark.parametrize("schedule", helpers.SCHEDULES)
@pytest.mark.parametrize("empty", ["d", "n", "d'", "n'", "all"])
def test_empty_blocks(dtype, empty, schedule):
    size = {k: 0 if empty in (k, "all") else v for k, v in {"d": 4, "n": 3, "d'": 2, "n'": 5}.items()}
    A, B, C = (np.ones((size[i], size[j]), dtype) for i, j in (("d", "n"), ("d'", "n"), ("d", "n'")))
    schedule = helpers.SCHEDULES[schedule]
    D, status, _ = eagle_jax.solve(A, B, C, schedule=schedule)
    assert D.shape == (size["d'"], size["n'"]) and D.dtype == dtype and status == Status.CONVERGED
    assert not np.asarray(D).any()
    W, status, _ = eagle_jax.estimate(A, B, schedule=schedule)
    assert W.shape == (size["d'"], size["d"]) and status == Status.CONVERGED
    assert W.dtype == dtype


@pytest.mark.parametrize("schedule", helpers.SCHEDULES)
def test_zero_matrix(dtype, schedule):
    blocks = [np.ones(s, dtype) for s in ((4, 3), (2, 3), (4, 5))]
    for zero in ([0], [1], [2], [0, 1, 2]):
        changed = [0 * x if i in zero else x for i, x in enumerate(blocks)]
        D, status, _ = eagle_jax.solve(*changed, schedule=helpers.SCHEDULES[schedule])
        assert status == Status.CONVERGED and not np.asarray(D).any(), zero


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
@pytest.mark.parametrize("shape", [(5, 4), (3, 12), (70, 70)], ids=str)
def test_nan_and_inf(dtype, shape, schedule):
    case = helpers.make_case(shape[0], shape[1], dtype)
    for block in range(3):
        for bad in (np.nan, np.inf, -np.inf):
            blocks = [x.copy() for x in case[:3]]
            blocks[block][-1, 0] = bad
            D, status, _ = eagle_jax.solve(*blocks, schedule=schedule)
            assert status == Status.NONFINITE, ("ABC"[block], bad)
            assert np.isnan(D).all(), ("ABC"[block], bad)
