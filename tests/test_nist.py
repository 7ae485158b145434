"""NIST's certified regressions: at most one digit behind Householder QR."""

import numpy as np
import pytest

from experiments import numerics

PROBLEMS = {problem.name: problem for problem in numerics.regressions()}


def test_every_data_set_was_found():
    assert set(PROBLEMS) == {"Norris", "Longley", *(f"Wampler{i}" for i in range(1, 6))}


@pytest.mark.parametrize("name", PROBLEMS)
def test_digits(x64, name):
    row = numerics.nist_row(PROBLEMS[name], schedules=("optimal",))
    assert row["optimal status"] == "CONVERGED"
    assert row["optimal"] >= row["qr"] - numerics.DIGITS_LOST, row


@pytest.mark.parametrize("name", PROBLEMS)
def test_certified_coefficients_are_stationary(name):
    """Guards the transcription: the residual is orthogonal to the columns, to the digits certified."""
    X, y, certified = PROBLEMS[name].X, PROBLEMS[name].y, PROBLEMS[name].certified
    residual = y - X @ certified
    size = np.linalg.norm(X, axis=0) * np.linalg.norm(y)
    assert (np.abs(X.T @ residual) < 1e-12 * size + 1e-14 * np.abs(X.T) @ np.abs(X) @ np.abs(certified)).all()


def test_wamplers_noise_is_orthogonal():
    x = numerics.polynomial(np.arange(21.0), 5)
    assert not (x.T @ numerics.WAMPLER_NOISE).any()
    assert numerics.wampler(5).y[:2].tolist() == [7590001, -20479994]  # as NIST prints them


def test_digits_counts_digits():
    certified = np.array([1.0, 100.0])
    assert numerics.digits(certified * (1 + 1e-7), certified) == pytest.approx(7, abs=1e-3)
    assert numerics.digits(np.array([1.0, 200.0]), certified) == 0
    assert numerics.digits(np.array([np.nan, 100.0]), certified) == 0
    assert numerics.digits(certified, certified) == numerics.CERTIFIED_DIGITS
