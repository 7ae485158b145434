"""Exact rescaling, and how many steps a rank cut-off allows."""

import jax.numpy as jnp
import numpy as np

from eagle_jax.schedules import growth_per_step


def step_budget(schedule, rcond: float) -> int:
    """Steps that raise a singular value rcond*||A|| to the size of the largest, and three to settle."""
    return int(np.ceil(np.log(1 / rcond) / np.log(growth_per_step(schedule)))) + 3


def power_of_two(size):
    """The power of two that brings `size` into [0.5, 1): scaling by it is exact. 1 for 0, NaN for NaN and Inf."""
    _, exponent = jnp.frexp(jnp.where(jnp.isfinite(size), size, 1))
    limit = int(jnp.finfo(size.dtype).maxexp) - 2
    scale = jnp.ldexp(jnp.ones_like(size), -jnp.clip(exponent, -limit, limit))
    scale = jnp.where(size > 0, scale, 1)
    return jnp.where(jnp.isfinite(size), scale, jnp.nan)
