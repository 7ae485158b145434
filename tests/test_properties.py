"""Symmetries of B A⁺ C, for random blocks of one shape (so that each property compiles once)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eagle_jax
from eagle_jax import Status
from tests import helpers

seeds = st.integers(0, 2**32 - 1)
kappas = st.floats(0, 3).map(lambda t: 10.0**t)
SHAPE = (7, 9)


def solve(A, B, C, schedule="optimal"):
    D, status, _ = eagle_jax.solve(A, B, C, schedule=schedule)
    assert status == Status.CONVERGED
    return np.asarray(D, np.float64)


@given(seed=seeds, kappa=kappas, consistent=st.booleans())
def test_answer(dtype, seed, kappa, consistent):
    case = helpers.make_case(*SHAPE, dtype, kappa=kappa, consistent=consistent, seed=seed)
    helpers.assert_close(solve(case.A, case.B, case.C), case)


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
@given(seed=seeds, kappa=kappas, exponents=st.tuples(*[st.integers(-10, 10)] * 3))
def test_powers_of_two_scale_exactly(dtype, schedule, seed, kappa, exponents):
    case = helpers.make_case(*SHAPE, dtype, kappa=kappa, seed=seed)
    a, b, c = (2.0**k for k in exponents)
    scaled = [(x * dtype(s)).astype(dtype) for x, s in zip(case[:3], (a, b, c), strict=True)]
    scaled = [np.asarray(x) for x in scaled]
    np.testing.assert_array_equal(solve(*scaled, schedule), solve(*case[:3], schedule) * (b * c / a))


@given(seed=seeds, kappa=kappas, scales=st.tuples(*[st.floats(-8, 8).map(lambda t: 10.0**t)] * 3))
def test_scaling(dtype, seed, kappa, scales):
    case = helpers.make_case(*SHAPE, dtype, kappa=kappa, consistent=False, seed=seed)
    A, B, C = ((x * s).astype(dtype) for x, s in zip(case[:3], scales, strict=True))
    helpers.assert_close(solve(A, B, C) * scales[0] / scales[1] / scales[2], case)


@given(seed=seeds, kappa=kappas)
def test_orthogonal_invariance(dtype, seed, kappa):
    """(U A V, B V, U C) has the same answer."""
    case = helpers.make_case(*SHAPE, dtype, kappa=kappa, consistent=False, seed=seed)
    rng = np.random.default_rng(seed)
    U, V = helpers.orthonormal(rng, 7, 7), helpers.orthonormal(rng, 9, 9)
    turned = helpers.case_of(U @ case.A @ V, case.B @ V, U @ case.C, dtype)
    helpers.assert_close(solve(turned.A, turned.B, turned.C), case)


@given(seed=seeds, kappa=kappas)
def test_order_of_rows_and_columns(dtype, seed, kappa):
    case = helpers.make_case(*SHAPE, dtype, kappa=kappa, consistent=False, seed=seed)
    rng = np.random.default_rng(seed)
    i, j, k, l = (rng.permutation(n) for n in (7, 9, 3, 2))
    D = solve(case.A[np.ix_(i, j)], case.B[np.ix_(k, j)], case.C[np.ix_(i, l)])
    helpers.assert_close(D[np.ix_(np.argsort(k), np.argsort(l))], case)


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
@given(seed=seeds, kappa=kappas)
def test_transposition(dtype, schedule, seed, kappa):
    """solve(A, B, C)ᵀ = solve(Aᵀ, Cᵀ, Bᵀ)."""
    case = helpers.make_case(*SHAPE, dtype, kappa=kappa, seed=seed)
    helpers.assert_close(solve(case.A, case.B, case.C, schedule), case)
    helpers.assert_close(solve(case.A.T, case.C.T, case.B.T, schedule).T, case)


@given(seed=seeds, kappa=kappas)
def test_linearity_in_B_and_C(dtype, seed, kappa):
    """Every row of B and column of C is a problem of its own: a column does not see its neighbours' size."""
    case = helpers.make_case(*SHAPE, dtype, kappa=kappa, seed=seed)
    rows, columns = np.array([1, 1e-6, 1e6], dtype), np.array([1e5, 1e-5], dtype)
    D = solve(case.A, rows[:, None] * case.B, case.C * columns)
    helpers.assert_close(D / rows[:, None] / columns, case)
