"""The comparison with other libraries: its yardstick, and how outcomes become entries."""

import numpy as np
import pytest

from experiments import neighbours


def test_the_reference_is_better_than_numpys():
    """A large, exactly known x, and a right-hand side that is exact in float64: numpy loses eight digits."""
    A = np.round(neighbours.matrix(30, 8, 8, 1e8) * 2**20) / 2**20 + np.eye(30, 8) * 2.0**-20
    x = np.arange(1.0, 9.0)
    b = A @ x  # a sum of few products of few bits each: no rounding
    ours, numpys = (np.linalg.norm(found - x) for found in (neighbours.exact(A, b), np.linalg.lstsq(A, b)[0]))
    assert ours < 1e-3 * numpys


@pytest.mark.parametrize(
    ("function", "entry"),
    [
        (None, "-"),
        (lambda A, b: np.linalg.lstsq(A, b, rcond=None)[0], "0e+00"),
        (lambda A, b: np.full(3, np.nan), "NaN"),
        (lambda A, b: np.ones(3) / [][0], "IndexError"),
    ],
)
def test_entries(function, entry):
    A, b = neighbours.matrix(5, 3, 3, 2.0), neighbours.vector(5)

    def check(solve, A, b):
        return neighbours.relative(solve(A, b), np.linalg.lstsq(A, b, rcond=None)[0])

    assert neighbours.attempt(check, function, A, b) == entry


def test_table():
    text = neighbours.table({"ridge": dict.fromkeys(neighbours.SOLVERS, "1e-15")})
    header, _, row = text.split("\n")
    assert header.count("|") == row.count("|") == len(neighbours.SOLVERS) + 2 and row.startswith("| ridge | 1e-15")
