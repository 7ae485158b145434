"""LAPACK's promise for least squares on part of its grid; `python -m experiments.numerics` runs all of it."""

import numpy as np
import pytest

from experiments import numerics

pytestmark = pytest.mark.float32_is_slow

SHAPES = [(2, 3), (3, 2), (5, 10), (10, 5), (50, 50)]


@pytest.mark.parametrize(
    "shape", [*SHAPES[:2], *(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[2:])], ids=str
)
def test_ratios_of_the_default_solver(dtype, shape):
    rows = list(numerics.lapack_rows(numerics.eagle_solver(), [shape], (2,), (np.dtype(dtype).name,), seeds=4))
    failed = numerics.failures(rows, numerics.TESTS)
    assert not failed, "\n".join(map(numerics.describe, failed))


@pytest.mark.slow
@pytest.mark.parametrize("nrhs", numerics.NRHS)
@pytest.mark.parametrize("m", numerics.SIZES)
def test_ratios_on_the_whole_grid(dtype, m, nrhs):
    shapes = [(m, n) for n in numerics.SIZES]
    rows = list(numerics.lapack_rows(numerics.eagle_solver(), shapes, (nrhs,), (np.dtype(dtype).name,)))
    failed = numerics.failures(rows)
    assert not failed, "\n".join(map(numerics.describe, failed))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ratios_of_the_papers_steps_on_consistent_data(dtype, shape):
    solver = numerics.eagle_solver("paper")
    rows = list(numerics.lapack_rows(solver, [shape], (2,), (np.dtype(dtype).name,), seeds=2))
    failed = numerics.failures([row for row in rows if row["consistent"]])
    assert not failed, "\n".join(map(numerics.describe, failed))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)], ids=str)
def test_degenerate_shapes(dtype, shape):
    rows = list(numerics.lapack_rows(numerics.eagle_solver(), [shape], (1,), (np.dtype(dtype).name,)))
    assert not numerics.failures(rows, numerics.TESTS)


# What follows examines the examiner: LAPACK's own driver passes, and small damage does not.


def test_lapack_itself_passes():
    shapes = [(m, n) for m in numerics.SIZES for n in numerics.SIZES]
    rows = list(numerics.lapack_rows(numerics.numpy_solver, shapes))
    assert len(rows) == 7 * 7 * 3 * 2 * 12
    assert not numerics.failures(rows, numerics.TESTS)


def damaged(dtype, m, n, rank, consistent, damage):
    """Ratios of an exact answer, to which damage(problem) has been added."""
    q = numerics.make_problem(m, n, 2, dtype, rank, "normal", consistent, seed=0)
    x = numerics.numpy_solver(q.a[None], q.b[None])[0][0]
    return numerics.test_ratios(q, x + damage(q).astype(x.dtype))


@pytest.mark.parametrize("name", numerics.DTYPES)
def test_each_ratio_notices_an_error_of_a_few_hundred_roundings(name):
    error = 1000 * numerics.roundoff(name)

    def within(q):
        return error * q.V @ np.ones((q.V.shape[1], 2))

    def outside(q):
        v = np.ones((q.V.shape[0], 2))
        return error * (v - q.V @ (q.V.T @ v))

    assert damaged(name, 5, 3, "full", True, within)["DQRT16"] > numerics.THRESHOLD
    assert damaged(name, 5, 3, "full", True, within)["DQRT17"] > numerics.THRESHOLD / 5
    assert damaged(name, 5, 3, "full", False, within)["DQRT17"] > numerics.THRESHOLD
    assert damaged(name, 3, 5, "full", True, outside)["DQRT14"] > numerics.THRESHOLD
    assert damaged(name, 5, 4, "3/4", False, outside)["row space"] > numerics.THRESHOLD


def test_failures_counts_statuses_and_infinities():
    good = {"status": "CONVERGED", "ratios": {"DQRT16": 1.0}}
    rows = [
        good,
        good | {"status": "STAGNATED"},
        good | {"ratios": {"DQRT16": np.inf}},
        good | {"ratios": {"DQRT16": np.nan}},
    ]
    assert numerics.failures(rows) == rows[1:]


@pytest.mark.parametrize("name", numerics.DTYPES)
def test_problems_are_what_dqrt15_makes(name):
    for q in numerics.make_problems(10, 8, 3, name):
        s = np.linalg.svd(numerics.unit(q.a.astype(float)), compute_uv=False)
        rank = 8 if q.rank == "full" else 6
        assert s[rank - 1] > 0.09 * s[0] and (s[rank:] < 20 * numerics.roundoff(name) * s[0]).all()
        least = float(np.finfo(name).tiny) / numerics.roundoff(name) ** 2
        expected = {"up": 1 / least, "down": least}.get(q.scale, np.abs(q.a).max())
        assert np.abs(q.a).max() == pytest.approx(expected, rel=1e-6)
        a, b = numerics.unit(q.a.astype(float)), numerics.unit(q.b.astype(float))
        residual = b - a @ np.linalg.lstsq(a, b, rcond=1e-5)[0]
        assert (np.abs(residual).max() < 1e-5) == q.consistent
