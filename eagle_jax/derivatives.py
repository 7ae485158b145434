"""Derivatives of D = B A^+ C by the implicit formula, at the solution: no step of any solver is differentiated.

With J = A^+, W = B J, R = B - W A and Y = J C, for tangents that keep the rank of A,

    dD = (dB - W dA) Y + W J^H dA^H (C - A Y) + R dA^H J^H Y + W dC .

J comes from A's factorisation, and has the same rule, so that second derivatives follow. R and C - A Y are what A does
not explain: rounding leaves some of what it does in them, which J^H J would raise, so they are projected once more.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.linalg import adjoint, epsilon, matmul, norm
from eagle_jax.machines import Alone, Peers
from eagle_jax.methods.factor import Factor
from eagle_jax.solution import Solution


def tangent(J, blocks, tangents, peers: Alone | Peers = Alone(), rank=None):  # noqa: B008  it has no state
    """dD; or dW if C is None. A, B and the rows of J are this machine's; C and the result are everybody's.

    rank: of A, on one machine.
    """
    A, B, C = blocks
    dA, dB, dC = tangents
    d, n = A.shape
    if C is None:
        C, dC = jnp.eye(d, dtype=A.dtype), jnp.zeros((d, d), A.dtype)
    W, Y = peers.sum(matmul(B, J)), matmul(J, C)
    outside, inverse = C - peers.sum(matmul(A, Y)), peers.sum(matmul(adjoint(J), Y))
    R = B - matmul(W, A)
    if rank is not None:
        outside = jnp.where(rank == d, 0, outside - matmul(A, matmul(J, outside)))
        R = jnp.where(rank == n, 0, R - matmul(matmul(R, J), A))
    parts = matmul(dB - matmul(W, dA), Y) + matmul(matmul(W, adjoint(J)), matmul(adjoint(dA), outside))
    return peers.sum(parts + matmul(R, matmul(adjoint(dA), inverse))) + matmul(W, dC)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def pseudo_inverse(A, factor: Factor, digits: float):
    """A^+ (n x d) from A's factorisation, with as few right-hand sides as possible.

    NaN where the backward error is above `digits`, so that no derivative is wrong in silence.
    """
    d, n = A.shape
    eye, rtol = jnp.eye(min(d, n), dtype=A.dtype), 32 * epsilon(A.dtype)
    answer = factor.right(eye, rtol) if d <= n else factor.estimate(eye, rtol)
    return jnp.where(answer.error <= digits, answer.value, jnp.nan)


@pseudo_inverse.defjvp
def _pseudo_inverse_jvp(digits, primals, tangents):
    A, factor = primals
    J = pseudo_inverse(A, factor, digits)
    n, d = J.shape
    eyes = jnp.eye(n, dtype=A.dtype), jnp.eye(d, dtype=A.dtype)
    changes = tangents[0], *map(jnp.zeros_like, eyes)
    return J, tangent(J, (A, *eyes), changes, rank=factor.rows.rank)


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
