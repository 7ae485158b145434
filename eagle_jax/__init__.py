"""EAGLE in JAX: block completion, least squares and Nystrom extrapolation by matrix products alone.

Importing computes nothing and changes no configuration.
"""

import warnings as _warnings

import jaxlib.version as _jaxlib_version

from eagle_jax.blocks import Blocks
from eagle_jax.distributed import estimate_sharded, estimate_workers, ledger, solve_sharded, solve_workers
from eagle_jax.nystrom import Nystrom, nystrom, nystrom_blocks
from eagle_jax.regularisation import StoppingPath, stopping_path
from eagle_jax.schedules import EMERGENT, PAPER, FixedSteps, LayerSteps
from eagle_jax.sketch import Sketch
from eagle_jax.solution import (
    DistributedStats,
    Method,
    SketchedStats,
    Solution,
    SolveError,
    Stats,
    Status,
    raise_if_failed,
)
from eagle_jax.solve import Factored, Trajectory, estimate, factor, lstsq, solve, trajectory
from eagle_jax.spectral import condition_number, diversity_index
from eagle_jax.stream import Stream, stream
from eagle_jax.update import State, update, update_estimate

__version__ = "0.1.0"

__all__ = [
    "EMERGENT",
    "PAPER",
    "Blocks",
    "DistributedStats",
    "Factored",
    "FixedSteps",
    "LayerSteps",
    "Method",
    "Nystrom",
    "Sketch",
    "SketchedStats",
    "Solution",
    "SolveError",
    "State",
    "Stats",
    "Status",
    "StoppingPath",
    "Stream",
    "Trajectory",
    "condition_number",
    "diversity_index",
    "estimate",
    "estimate_sharded",
    "estimate_workers",
    "factor",
    "ledger",
    "lstsq",
    "nystrom",
    "nystrom_blocks",
    "raise_if_failed",
    "solve",
    "solve_sharded",
    "solve_workers",
    "stopping_path",
    "stream",
    "trajectory",
    "update",
    "update_estimate",
]


def _warn_if_jaxlib_is_wrong(version: str) -> None:
    """jaxlib 0.10.2 gives wrong numbers on CPU for a vmapped product followed by a reduction (jax issue 39103)."""
    if version == "0.10.2":
        _warnings.warn(
            "jaxlib 0.10.2 computes wrong numbers on CPU (jax issue 39103); install another, e.g. jaxlib==0.10.1",
            RuntimeWarning,
            stacklevel=3,
        )


_warn_if_jaxlib_is_wrong(_jaxlib_version.__version__)
