"""Step sizes.

A singular value x of A (scaled so that ||A|| = 1) moves to p(x) = x - eta x^3 in one Update and is then
rescaled. Constant steps keep (eta, gamma) for ever; the optimal cubic chooses eta from bounds on the spectrum.
"""

import math
from typing import Any, NamedTuple

import numpy as np


class FixedSteps(NamedTuple):
    """Constant (eta, gamma) with rho = 1/(headroom ||A||_2^2)."""

    eta: float
    gamma: float
    headroom: float = 1.0

    @property
    def contraction(self) -> float:
        """max of x - eta x^3 over [0, 1]: bounds ||A'||/||A||, exact for eta <= 1/3."""
        eta = self.eta / self.headroom
        return 1.0 - eta if eta <= 1 / 3 else 2 / 3 / math.sqrt(3 * eta)


class LayerSteps(NamedTuple):
    """Absolute step sizes, one per step: step l has eta_l rho_l and gamma_l rho_l, whatever ||A|| is.

    What the layers of a trained network are (see extraction.py). Tuples of floats, so that it is hashable: under jit it
    is a static argument. S, if not empty, has the sketch of each step: steps x n x r, as nested tuples.
    """

    eta_rho: tuple[float, ...]
    gamma_rho: tuple[float, ...]
    S: Any = ()


PAPER = FixedSteps(1 / 3, 1.0)
# The trained network ties rho to the largest ||A||^2 of a training batch, not to ||A||^2 of the problem at hand. On
# a problem whose own norm is used, eta = 1 would erase the leading singular direction; `headroom` stands for the
# batch. See `python -m experiments.step_sizes`, which measures it.
EMERGENT = FixedSteps(1.0, 1.92, headroom=4.0)
OPTIMAL: str | tuple = "optimal"  # typed as what `schedule=` takes, of which it is the default

_FIXED = {"paper": PAPER, "emergent": EMERGENT}


def resolve(schedule) -> FixedSteps | LayerSteps | None:
    """Name, pair, FixedSteps or LayerSteps -> one of the latter two, or None for "optimal"."""
    if isinstance(schedule, LayerSteps):
        return checked(schedule)
    if isinstance(schedule, FixedSteps):
        fixed = schedule
    elif isinstance(schedule, str):
        if schedule != OPTIMAL and schedule not in _FIXED:
            raise ValueError(
                f"schedule={schedule!r} is not known; use one of {[OPTIMAL, *_FIXED]} or a pair (eta, gamma)"
            )
        if schedule == OPTIMAL:
            return None
        fixed = _FIXED[schedule]
    else:
        try:
            eta, gamma = (float(v) for v in schedule)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"schedule={schedule!r} is neither a name in {[OPTIMAL, *_FIXED]} nor a pair (eta, gamma) of floats"
            ) from error
        fixed = FixedSteps(eta, gamma)
    if not (fixed.eta > 0 and fixed.gamma > 0 and fixed.headroom >= 1):
        raise ValueError(f"schedule={fixed} needs eta > 0, gamma > 0 and headroom >= 1")
    return fixed


def checked(schedule: LayerSteps) -> LayerSteps:
    eta_rho, gamma_rho = (tuple(map(float, sizes)) for sizes in schedule[:2])
    if not 0 < len(eta_rho) == len(gamma_rho) or not all(map(math.isfinite, eta_rho + gamma_rho)):
        raise ValueError(f"schedule={schedule[:2]} needs as many finite eta_rho as gamma_rho, at least one")
    S = np.asarray(schedule.S, float)
    if S.size and (S.ndim != 3 or len(S) != len(eta_rho) or not np.isfinite(S).all()):
        raise ValueError(f"schedule.S of shape {S.shape}; expected finite numbers, {len(eta_rho)} steps x n x r")
    return LayerSteps(eta_rho, gamma_rho, tuple(tuple(map(tuple, step)) for step in S.tolist()) if S.size else ())


# Fitting the cubic on [0.05, 1] instead of on the unknown true interval costs 3 % of its growth and keeps every
# singular value that has been lifted lifted; evaluating it 1 % inside the interval absorbs an optimistic norm bound.
FLOOR = 0.05
CUSHION = 0.99


def optimal_cubic(lower: float) -> tuple[float, float, float]:
    """(scale, eta, lower') of the cubic scale (x - eta x^3) that maps [lower, 1] into [lower', 1] best.

    Chen & Chow (2014): p(x) = b (1.5 a x - 0.5 a^3 x^3) with a = sqrt(3/(1+l+l^2)), b = 4/(2 + l (1+l) a^3)
    equioscillates between p(l) and 2 - p(l); dividing by the latter makes 1 the bound again.
    """
    a = math.sqrt(3 / (1 + lower + lower**2))
    b = 4 / (2 + lower * (1 + lower) * a**3)
    image = b * (1.5 * a * lower - 0.5 * a**3 * lower**3)
    return CUSHION * 1.5 * a * b / (2 - image), CUSHION**2 * a**2 / 3, CUSHION * image / (2 - image)


def cycle(lower: float) -> tuple[tuple[float, float], ...]:
    """Optimal steps (scale, eta) that take [lower, 1] to [0.9, 1]."""
    steps = []
    while lower < 0.9:
        scale, eta, lower = optimal_cubic(lower)
        steps.append((scale, eta))
    return tuple(steps)


# One lifting step; and a whole cycle that takes [FLOOR, 1] to [0.9, 1], to be repeated for what lies below FLOOR.
LIFT = optimal_cubic(FLOOR)[:2]
CYCLE = cycle(FLOOR)
# The same, and four of the paper's steps that bring what is above 0.9 to 1 within rounding.
SETTLED = ((1.5, 1 / 3),) * 4
SETTLE = CYCLE + SETTLED


def growth_per_step(schedule) -> float:
    """Factor by which one step raises the small singular values relative to the largest."""
    return LIFT[0] if schedule is None else 1.0 / schedule.contraction
