"""Step sizes: what they promise about a singular value."""

import numpy as np
import pytest

from eagle_jax import EMERGENT, PAPER, FixedSteps
from eagle_jax.scaling import step_budget
from eagle_jax.schedules import CYCLE, FLOOR, LIFT, growth_per_step, optimal_cubic, resolve

GRID = np.linspace(0, 1, 20001)


@pytest.mark.parametrize(
    "fixed", [PAPER, EMERGENT, FixedSteps(0.1, 1.0), FixedSteps(1.0, 1.0), FixedSteps(0.7, 1, 2.0)]
)
def test_contraction_is_the_largest_image(fixed):
    image = GRID - fixed.eta / fixed.headroom * GRID**3
    assert image.max() == pytest.approx(fixed.contraction, rel=1e-7)
    assert growth_per_step(fixed) == pytest.approx(1 / image.max(), rel=1e-7)


def test_names_and_pairs():
    assert resolve("paper") == PAPER == FixedSteps(1 / 3, 1.0)
    assert resolve("emergent") == EMERGENT and resolve("optimal") is None
    assert resolve((0.25, 1.5)) == FixedSteps(0.25, 1.5) == resolve(np.array([0.25, 1.5]))


@pytest.mark.parametrize("lower", [1e-6, 0.01, 0.05, 0.3, 0.8, 0.99])
def test_optimal_cubic_maps_its_interval_into_the_promised_one(lower):
    scale, eta, image = optimal_cubic(lower)
    x = np.r_[lower, GRID[lower <= GRID]]
    y = scale * (x - eta * x**3)
    assert y.max() <= 1 and y.min() >= image * (1 - 1e-12) and image > lower * 0.99
    # No cubic with the same bound on [lower, 1] lifts more, up to the cushion.
    for other in np.linspace(0.05, 1.0, 60):
        z = x - other * x**3
        assert z.min() / z.max() <= image / 0.9


def test_no_singular_value_is_lost():
    """A non-monotone polynomial could push a large value near 0; one above the floor has to stay above it."""
    for scale, eta in (LIFT, *CYCLE):
        y = scale * (GRID - eta * GRID**3)
        assert (y[1:] > 0).all() and y.max() <= 1
    scale, eta = LIFT
    x = GRID[GRID >= FLOOR]
    assert (scale * (x - eta * x**3) >= FLOOR).all()


def test_one_cycle_flattens_everything_above_the_floor():
    x = GRID[GRID >= FLOOR]
    for scale, eta in CYCLE:
        x = scale * (x - eta * x**3)
    assert x.min() >= 0.89 and x.max() <= 1


@pytest.mark.parametrize("schedule", [None, PAPER, EMERGENT])
@pytest.mark.parametrize("rcond", [1e-3, 1e-8, 1e-15])
def test_budget_resolves_rcond(schedule, rcond):
    growth, steps = growth_per_step(schedule), step_budget(schedule, rcond)
    assert growth ** (steps - 3) * rcond >= 1 > growth ** (steps - 4) * rcond
