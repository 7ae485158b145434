"""EAGLE as a solver of lineax: any dense operator, of any shape and rank; pseudo-inverse solutions.

>>> import jax.numpy as jnp, lineax
>>> from eagle_jax.lineax_solver import EAGLE
>>> operator = lineax.MatrixLinearOperator(jnp.array([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]))  # of rank 1
>>> print(jnp.round(lineax.linear_solve(operator, jnp.array([1.0, 2.0, 5.0]), EAGLE()).value, 4))
[0.5 0.5]

lineax differentiates around the solver, so jvp and vjp need nothing here. It is no dependency of eagle_jax: only this
module imports it.
"""

from typing import Any, NamedTuple

import jax

from eagle_jax.solution import Status
from eagle_jax.solve import lstsq

try:
    import equinox as eqx
    import lineax
    from lineax.internal import (
        PackedStructures,
        pack_structures,
        ravel_vector,
        transpose_packed_structures,
        unravel_solution,
    )
except ImportError as error:
    raise ImportError(
        "eagle_jax.lineax_solver needs lineax, which eagle_jax does not install; run `pip install lineax`"
    ) from error

_RESULTS = {
    Status.MAX_STEPS: lineax.RESULTS.max_steps_reached,
    Status.RANK_CUTOFF: lineax.RESULTS.conlim,
    Status.STAGNATED: lineax.RESULTS.stagnation,
    Status.NONFINITE: lineax.RESULTS.nonfinite_input,
    Status.BREAKDOWN: lineax.RESULTS.breakdown,
}


def _result(status) -> lineax.RESULTS:
    result = lineax.RESULTS.successful
    for failure, meaning in _RESULTS.items():
        result = lineax.RESULTS.where(status == int(failure), meaning, result)
    return result


class _State(NamedTuple):
    matrix: jax.Array
    structures: PackedStructures


class EAGLE(lineax.AbstractLinearSolver[_State]):
    """`lineax.linear_solve(operator, vector, EAGLE())`: the minimum-norm least-squares solution, by `eagle_jax.lstsq`.

    `rtol` and `rcond` are those of `eagle_jax.solve`. The solution's stats have its `Status` as a number,
    `num_steps` and `backward_error`. One solve conditions the operator for one vector; for many
    vectors at once, `eagle_jax.lstsq(a, b)` takes a matrix b.
    """

    rtol: float | None = eqx.field(default=None, static=True)
    rcond: float | None = eqx.field(default=None, static=True)

    def init(self, operator: lineax.AbstractLinearOperator, options: dict[str, Any]) -> _State:
        del options
        return _State(operator.as_matrix(), pack_structures(operator))

    def compute(self, state: _State, vector, options: dict[str, Any]):
        del options
        b = ravel_vector(vector, state.structures)
        x, status, stats = lstsq(state.matrix, b, rtol=self.rtol, rcond=self.rcond)
        about = {"status": status, "num_steps": stats.steps, "backward_error": stats.backward_error}
        return unravel_solution(x, state.structures), _result(status), about

    def transpose(self, state: _State, options: dict[str, Any]):
        del options
        return _State(state.matrix.T, transpose_packed_structures(state.structures)), {}

    def conj(self, state: _State, options: dict[str, Any]):
        del options
        return _State(state.matrix.conj(), state.structures), {}

    def assume_full_rank(self):
        return False
