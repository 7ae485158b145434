"""The bounds against the recursion, against exact arithmetic, and against the iteration they speak about."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_jax import theory

EPS = np.finfo(float).eps
kappas = st.floats(0, 30).map(lambda t: 10.0**t)
tolerances = st.floats(-15, 0).map(lambda t: 10.0**t)


@pytest.mark.parametrize("theta", [Fraction(1, 10**9), Fraction(1, 3), Fraction(7), Fraction(10**12)])
def test_theta_step_is_one_update_of_the_extreme_eigenvalues(theta):
    largest, least = Fraction(1), 1 / (theta + 1)
    update = [x * (1 - x / 3) ** 2 for x in (largest, least)]
    exact = update[0] / update[1] - 1
    assert theory.theta_step(float(theta)) == pytest.approx(float(exact), rel=16 * EPS)


@given(st.floats(-200, 200).map(lambda t: 10.0**t))
def test_theta_step_keeps_the_lemmas_inequalities(theta):
    after, slack = theory.theta_step(theta), 1 + 16 * EPS
    assert after <= 3 / 4 * theta * theta * slack
    assert after <= 4 / 9 * theta * slack
    assert after <= math.exp(-5 / 9) * theta
    assert (1 + theta) <= 9 / 4 * (1 + after) * slack


@given(kappas, tolerances)
def test_exact_steps_lie_between_the_lower_bound_and_the_corrected_one(kappa_E, eps):
    steps = theory.steps_exact(kappa_E, eps)
    assert theory.steps_lower_bound(kappa_E, eps) <= steps <= theory.steps_corrected(kappa_E, eps)
    # the leading term is 1/ln(9/4) with nothing but the quadratic phase on top
    assert steps <= math.log(kappa_E) / math.log(9 / 4) + 3 + max(0, math.log2(math.log(4 / (3 * eps))))


@given(st.floats(4, 30).map(lambda t: 10.0**t), tolerances)
def test_erratum_the_printed_number_of_steps_is_too_small(kappa_E, eps):
    assert theory.steps_printed(kappa_E, eps) < theory.steps_exact(kappa_E, eps)


def test_erratum_below_any_possible_number_of_steps():
    assert theory.steps_printed(1e8, 1e-6) < theory.steps_lower_bound(1e8, 1e-6)


@pytest.mark.parametrize(
    ("kappa_A", "printed", "lower", "exact", "corrected"),
    [(1e1, 9, 6, 10, 15), (1e2, 12, 12, 15, 23), (1e3, 15, 18, 21, 31), (1e4, 18, 23, 27, 40)],
)
def test_values_at_1e_6(kappa_A, printed, lower, exact, corrected):
    kappa_E = kappa_A**2
    assert theory.steps_printed(kappa_E, 1e-6) == printed
    assert theory.steps_lower_bound(kappa_E, 1e-6) == lower
    assert theory.steps_exact(kappa_E, 1e-6) == exact
    assert theory.steps_corrected(kappa_E, 1e-6) == corrected


def test_nothing_to_do_at_kappa_one():
    assert theory.theta_step(0.0) == 0.0
    assert theory.steps_exact(1.0, 1e-12) == 0
    assert theory.steps_lower_bound(1.0) == 0


@given(st.floats(0, 8).map(lambda t: 10.0**t), tolerances)
def test_exact_steps_count_updates_of_singular_values(kappa_A, eps):
    """Newton–Schulz on the two extreme singular values, kept at norm 1."""
    sigma, steps = 1 / kappa_A, 0
    # 1 - sigma² is carried separately: it is the theta that subtraction would lose.
    gap = (1 - sigma) * (1 + sigma)
    while gap / sigma**2 > eps:
        sigma, steps = sigma * (3 - sigma**2) / 2, steps + 1
        gap = gap**2 * (4 - (1 - gap)) / 4
    assert abs(steps - theory.steps_exact(kappa_A**2, eps)) <= (abs(gap / sigma**2 / eps - 1) < 1e-6)


def residual_steps(sigma, eps):
    """Updates until ||N_l|| = max prod (1 - lambda) <= eps, the error of D per ||W||·||C||."""
    sigma, N, steps = np.array(sigma), 1.0, 0
    while np.max(N) > eps:
        N, sigma, steps = N * (1 - sigma**2), sigma * (3 - sigma**2) / 2, steps + 1
    return steps


def test_theorem1_has_the_order_of_the_iteration():
    ratios = [
        residual_steps(np.geomspace(1 / kappa, 1, 50), eps) / theory.theorem1(kappa, eps)
        for kappa in (1e1, 1e3, 1e5, 1e8)
        for eps in (1e-2, 1e-6, 1e-12)
    ]
    assert min(ratios) > 1.5 and max(ratios) < 4


def test_theorem1_depends_on_the_norms_through_a_double_logarithm_only():
    base = theory.theorem1(1e3, 1e-8)
    scaled = theory.theorem1(1e3, 1e-8, d_out=4, norm_W=50.0, norm_C=10.0)
    assert scaled == pytest.approx(theory.theorem1(1e3, 1e-11), rel=8 * EPS)
    assert base < scaled < base + 0.4


def test_theorem2_values():
    assert theory.theorem2(1e4, 0.5, 1.0) == pytest.approx(math.log(1e4), rel=8 * EPS)
    assert theory.theorem2(1.0, 0.5, 1e-3, d_out=4, norm_W=5.0, norm_C=100.0) == pytest.approx(
        2 * math.log(1e6), rel=8 * EPS
    )


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: theory.theta_step(-1.0), "theta: got -1.0"),
        (lambda: theory.steps_exact(0.5, 1e-3), "kappa_E: got 0.5"),
        (lambda: theory.steps_exact(math.inf, 1e-3), "kappa_E: got inf"),
        (lambda: theory.steps_exact(2.0, 0.0), "eps: got 0.0"),
        (lambda: theory.steps_lower_bound(2.0, -1.0), "eps: got -1.0"),
        (lambda: theory.steps_printed(2.0, 1.5), "eps: got 1.5"),
        (lambda: theory.steps_corrected(2.0, 1.5), "eps: got 1.5"),
        (lambda: theory.theorem1(0.0, 1e-3), "kappa: got 0.0"),
        (lambda: theory.theorem1(2.0, 1e-3, norm_W=0.0), "norm_W: got 0.0"),
        (lambda: theory.theorem2(0.0, 0.5, 1e-3), "kappa_max: got 0.0"),
        (lambda: theory.theorem2(2.0, 1.5, 1e-3), "alpha: got 1.5"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
