"""How many steps a rank cut-off allows."""

import numpy as np

from eagle_jax.schedules import growth_per_step


def step_budget(schedule, rcond: float) -> int:
    """Steps that raise a singular value rcond*||A|| to the size of the largest, and three to settle."""
    return int(np.ceil(np.log(1 / rcond) / np.log(growth_per_step(schedule)))) + 3
