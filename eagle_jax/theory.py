"""The paper's bounds as functions of plain floats; lemmas go by their labels in "Theoretical Analyses".

kappa_E is the condition number of E = A Aᵀ, the square of A's, and theta = kappa_E - 1; eta = 1/3, gamma = 1.

Erratum. `decay_schedule_main` shrinks theta by exp(-(5/3) eta lambda) a step: exp(-5/9) at eta lambda =
1/3. The next lemma, `central_condition_number_contraction`, puts exp(-5/3) and finds (3/5) ln kappa_E steps
where 9/5 follows. No proof can save the 3/5: one step divides kappa_E by less than 9/4, so it takes at
least ln(kappa_E)/ln(9/4) = 1.23 ln(kappa_E) steps. This is also the true leading term: the lemma's estimate
is in fact theta <- (1 - 5/9) theta, before it is relaxed to an exponential. The 3/5 recurs in
`central_N_is_small` and in the distributed lemmas, whose L(1) also differs from their own formula (3 + ...
for 1 + ...). The orders of both theorems stand.
"""

import math


def theta_step(theta: float) -> float:
    """theta after one update (lemma `decay_schedule_main`, equality at eta lambda = 1/3).

    At most 3/4 theta², at most 4/9 theta, and 4/9 theta in the limit of large theta.
    """
    if not theta >= 0:
        raise ValueError(f"theta: got {theta}, expected a number, at least 0.")
    # theta² (4 theta + 3)/(3 theta + 2)², in factors that do not overflow
    return theta * (theta / (3 * theta + 2)) * ((4 * theta + 3) / (3 * theta + 2))


def steps_exact(kappa_E: float, eps: float) -> int:
    """The number of updates after which kappa(E) - 1 <= eps: the recursion itself, no bound."""
    _check(kappa_E, eps)
    theta, steps = kappa_E - 1, 0
    while theta > eps:
        theta, steps = theta_step(theta), steps + 1
    return steps


def steps_printed(kappa_E: float, eps: float) -> int:
    """L as printed in `central_condition_number_contraction`: too small from kappa_E = 300 on, see above."""
    _check(kappa_E, eps)
    return 2 + math.ceil(3 / 5 * math.log(kappa_E)) + _quadratic_steps(eps)


def steps_corrected(kappa_E: float, eps: float) -> int:
    """L with the 9/5 that follows from `decay_schedule_main`: kappa(E_l) - 1 <= eps for all l >= L.

    After 2 + (9/5) ln kappa_E steps theta <= exp(-10/9) < 1/e, from where 3/4 theta is squared at every step.
    """
    _check(kappa_E, eps)
    return 2 + math.ceil(9 / 5 * math.log(kappa_E)) + max(0, _quadratic_steps(eps))


def steps_lower_bound(kappa_E: float, eps: float = 0.0) -> int:
    """No fewer updates can give kappa(E) - 1 <= eps: each divides kappa(E) by less than 9/4."""
    _check(kappa_E, eps, least=0.0)
    return max(0, math.ceil(math.log(kappa_E / (1 + eps)) / math.log(9 / 4)))


def theorem1(kappa: float, eps: float, *, d_out: int = 1, norm_W: float = 1.0, norm_C: float = 1.0) -> float:
    """Theorem 1 (centralised): steps to ||D_l - D*||_F <= eps, as an order with constant 1, not as a bound.

    ln kappa + ln ln(sqrt(d') ||W*||_F ||C||_F / eps), kappa = kappa(A); the inner logarithm counts as >= 1.
    """
    _check(kappa, eps, name="kappa")
    return math.log(kappa) + math.log(max(1.0, _digits(eps, d_out, norm_W, norm_C)))


def theorem2(
    kappa_max: float, alpha: float, eps: float, *, d_out: int = 1, norm_W: float = 1.0, norm_C: float = 1.0
) -> float:
    """Theorem 2 (distributed, noiseless, ||Aᵘ||₂ = 1): rounds to ||D_l - D||_F <= eps, an order, constant 1.

    ln kappa_max + (1/alpha) ln(sqrt(d') ||C||_F ||W*||_F / eps); the statement lacks a parenthesis after
    kappa_max. alpha is the diversity index, the smallest positive eigenvalue of the mean projector. The proof
    bounds a round's contraction by 1 - 1/kappa(mean E), which is the wrong way round: gamma is tied to each
    machine's norm, which is at least the mean's. With 1 - alpha/2, from `distributed_global_conditioning`, it
    holds. So orthogonal ranges count as alpha = 1/M, not as the text's 1, which is their 1/kappa(mean E).
    """
    _check(kappa_max, eps, name="kappa_max")
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha: got {alpha}, expected a number in (0, 1].")
    return math.log(kappa_max) + max(0.0, _digits(eps, d_out, norm_W, norm_C)) / alpha


def predicted_rounds(kappa_max: float, alpha: float, eps: float, *, acceleration: str = "none") -> float:
    """Rounds of distributed EAGLE to an error of eps, with constants, from (kappa_max, alpha).

    Averaging (also frozen): ln kappa_max / ln 1.5 rounds condition the machines, then the error falls by 1 - alpha.
    "krylov" conditions without communication, and takes the rounds of conjugate residuals on a spectrum [alpha, 1].
    Compare with d/(2 n'): beyond that, sending half of the Gram matrix takes fewer floats.
    """
    _check(kappa_max, eps, name="kappa_max")
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha: got {alpha}, expected a number in (0, 1].")
    if acceleration == "krylov":
        root = math.sqrt(alpha)
        return 1.0 if alpha == 1 else math.log(2 / eps) / math.log((1 + root) / (1 - root))
    conditioning = math.log(kappa_max) / math.log(1.5)
    return conditioning + (_quadratic_steps(eps) if alpha == 1 else math.log(eps) / math.log(1 - alpha))


def _digits(eps: float, d_out: int, norm_W: float, norm_C: float) -> float:
    for name, value in (("d_out", d_out), ("norm_W", norm_W), ("norm_C", norm_C)):
        if not value > 0:
            raise ValueError(f"{name}: got {value}, expected a positive number.")
    return math.log(d_out) / 2 + math.log(norm_W) + math.log(norm_C) - math.log(eps)


def _quadratic_steps(eps: float) -> int:
    """ceil(log2 ln(4/(3 eps))), the steps of the quadratic phase."""
    if not eps < 4 / 3:
        raise ValueError(f"eps: got {eps}, expected a number below 4/3: there the bound's logarithm is 0.")
    return math.ceil(math.log2(math.log(4 / (3 * eps))))


def _check(kappa: float, eps: float, *, name: str = "kappa_E", least: float | None = None) -> None:
    if not (kappa >= 1 and math.isfinite(kappa)):
        raise ValueError(f"{name}: got {kappa}, expected a finite number, at least 1.")
    if not (eps > 0 or eps == least):
        raise ValueError(f"eps: got {eps}, expected a positive number.")
