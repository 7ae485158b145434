"""Derivatives of D = B A^+ C by the implicit formula, at the solution: no step of any solver is differentiated.

With J = A^+, W = B J, R = B - W A and Y = J C, for tangents that keep the rank of A,

    dD = (dB - W dA) Y + W J^T dA^T (C - A Y) + R dA^T J^T Y + W dC .

Only J is solved for, once, by the solver itself. So J has these derivatives too, and second derivatives follow.
"""

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.linalg import adjoint, matmul, norm
from eagle_jax.machines import Alone, Peers
from eagle_jax.solution import Solution


def tangent(J, blocks, tangents, peers: Alone | Peers = Alone()):  # noqa: B008  it has no state
    """dD; or dW if C is None. A, B and the rows of J are this machine's; C and the result are everybody's."""
    A, B, C = blocks
    dA, dB, dC = tangents
    if C is None:
        C, dC = jnp.eye(A.shape[0], dtype=A.dtype), jnp.zeros((A.shape[0],) * 2, A.dtype)
    W, Y = peers.sum(matmul(B, J)), matmul(J, C)
    outside, inverse = C - peers.sum(matmul(A, Y)), peers.sum(matmul(adjoint(J), Y))
    R = B - matmul(W, A)
    parts = matmul(dB - matmul(W, dA), Y) + matmul(matmul(W, adjoint(J)), matmul(adjoint(dA), outside))
    return peers.sum(parts + matmul(R, matmul(adjoint(dA), inverse))) + matmul(W, dC)


def pseudo_inverse(A, estimate):
    """A^+ (n x d) by estimate(A, B) = B A^+, with as few right-hand sides as possible.

    NaN where it has lost more than half of its digits, so that no derivative is wrong in silence.
    """
    d, n = A.shape
    wide = d <= n
    solution = estimate(adjoint(A) if wide else A, jnp.eye(min(d, n), dtype=A.dtype))
    J = adjoint(solution.value) if wide else solution.value
    return jnp.where(solution.stats.backward_error <= jnp.finfo(A.dtype).eps ** 0.5, J, jnp.nan)


def shared_pseudo_inverse(A, estimate, peers: Peers):
    """This machine's rows of the pseudo-inverse of all machines' columns together.

    A^T (A A^T)^+, and two Newton-Schulz steps J (2 I - A J) against the squared condition number in it.
    """
    J = matmul(adjoint(A), estimate(peers.sum(matmul(A, adjoint(A))), jnp.eye(A.shape[0], dtype=A.dtype)).value)
    for _ in range(2):
        J = 2 * J - matmul(J, peers.sum(matmul(A, J)))
    left = matmul(peers.sum(matmul(A, J)), A) - A
    wrong = peers.sum(norm(left) ** 2) > 1e-6 * peers.sum(norm(A) ** 2)
    return jnp.where(wrong, jnp.nan, J)


def with_tangent(solution: Solution, value) -> Solution:
    """The tangent of a Solution whose value has this one: status and stats have none."""

    def none(x):
        inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        return jnp.zeros_like(x) if inexact else np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(none, solution)._replace(value=value)
