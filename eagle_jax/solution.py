"""What a solver returns: a value, a status that survives jit and vmap, and what was measured on the way."""

import enum
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np


class Status(enum.IntEnum):
    """Outcome of a solve. Inside jit it is a traced integer, under vmap one per lane."""

    CONVERGED = 0
    MAX_STEPS = 1
    RANK_CUTOFF = 2
    STAGNATED = 3
    NONFINITE = 4
    BREAKDOWN = 5
    INCONSISTENT = 6

    @property
    def message(self) -> str:
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "converged: the backward error is at most rtol.",
    Status.MAX_STEPS: "max_steps ran out before the backward error reached rtol; raise max_steps or rtol.",
    Status.RANK_CUTOFF: (
        "singular values below rcond*||A|| still carry part of the answer, and rcond forbids resolving them; "
        "lower rcond to include them, or accept the regularised value."
    ),
    Status.STAGNATED: (
        "rounding stopped the progress before the backward error reached rtol; the best iterate is returned. "
        "Raise rtol to stats.backward_error, use float64, or rescale the rows of A; for averaged machines of deficient "
        'rank, use acceleration="freeze".'
    ),
    Status.NONFINITE: "an input holds NaN or Inf; clean A, B, C before solving. The value is all NaN.",
    Status.BREAKDOWN: (
        "the iteration or the final rescaling overflowed; use a stable schedule (eta < 1, gamma < 2) or float64."
    ),
    Status.INCONSISTENT: (
        "the data is not B = W A for any W. Averages over machines and sketches then end elsewhere than at B A^+ C; "
        'use acceleration="auto" for machines, without a sketch; schedule="optimal" with a sketch on one machine.'
    ),
}


class Stats(NamedTuple):
    """Measured during the solve.

    Attributes:
      steps: the paper's steps; for the factorisation, passes of refinement.
      backward_error: residual measure that decided `status`, see `eagle_jax.solve`.
      norm: estimate of ||A||_2.
      condition: estimate of ||A||_2 / (smallest singular value that the answer needed).
      rank: how many singular values of A the answer has used; -1 where the paper's steps do not know.
    """

    steps: jax.Array
    backward_error: jax.Array
    norm: jax.Array
    condition: jax.Array
    rank: jax.Array


class SketchedStats(NamedTuple):
    """Measured during a sketched solve.

    Attributes:
      steps: sketches used.
      dense_steps: passes of refinement by the factorisation of all of A afterwards; 0 if the sketches were enough.
      backward_error: estimate of ||B - W A|| / (||A|| ||W|| + ||B||) from random columns.
      norm: ||A||_F.
      condition: estimate of ||A|| / (smallest singular value that the sketches resolved).

    After those the last three are as in `Stats`.
    """

    steps: jax.Array
    dense_steps: jax.Array
    backward_error: jax.Array
    norm: jax.Array
    condition: jax.Array


class Method(enum.IntEnum):
    """What gave the answer of a distributed solve."""

    AVERAGING = 0
    PROJECTOR = 1
    PRECONDITIONED = 2
    FACTORS = 3


class DistributedStats(NamedTuple):
    """Measured during a distributed solve; the same on every machine.

    Attributes:
      steps: of AVERAGING; else passes of refinement of A^u's pseudo-inverse, on the machine that took most.
      inner_steps: Krylov iterations.
      backward_error: as in `Stats`.
      norm: as in `Stats` for FACTORS; else of the machine with the largest one, a lower bound of ||A||.
      condition: as in `Stats` for FACTORS; else of the machine with the largest one, from above: kappa_max.
      rank: as in `Stats` for FACTORS; else -1.
      method: a `Method`.
      rounds: collective sums of a thin block, one after the other.
      floats: sent by each machine in all of them, a triangle of FACTORS included.
      gram_cheaper: whether sending half of the d x d Gram matrix would have taken fewer floats.
    """

    steps: jax.Array
    inner_steps: jax.Array
    backward_error: jax.Array
    norm: jax.Array
    condition: jax.Array
    rank: jax.Array
    method: jax.Array
    rounds: jax.Array
    floats: jax.Array
    gram_cheaper: jax.Array


class Solution(NamedTuple):
    """`value` is the answer, `status` says whether to trust it (see `Status`)."""

    value: jax.Array
    status: jax.Array
    stats: Any  # Stats, SketchedStats or DistributedStats

    @property
    def forward_error(self) -> jax.Array:
        """||W - B A^+|| / ||B A^+||, estimated as condition * backward error; of A^+ C where C is thinner than B.

        With a large residual B - W A on ill-conditioned data the true one can be larger, by up to a factor of the
        condition number.
        """
        return self.stats.condition * self.stats.backward_error


class SolveError(RuntimeError):
    """Raised on the host by `raise_if_failed`."""


def raise_if_failed(solution: Solution) -> Solution:
    """Returns `solution` if every lane converged, otherwise raises `SolveError` with cause and remedy.

    Reads concrete values, so call it outside jit.
    """
    if isinstance(solution.status, jax.core.Tracer):
        raise TypeError(
            "raise_if_failed needs concrete values but `solution` is traced; "
            "return the Solution from the jitted function and call raise_if_failed on the result"
        )
    status = np.asarray(solution.status)
    failed = status != Status.CONVERGED
    if not failed.any():
        return solution
    errors = np.broadcast_to(np.asarray(solution.stats.backward_error), status.shape)[failed]
    lanes = "" if status.ndim == 0 else f"{failed.sum()} of {status.size} lanes failed; the first: "
    worst = Status(int(status[failed].flat[0]))
    raise SolveError(f"{lanes}{worst.name}: {worst.message} (backward error {errors.flat[0]:.1e})")
