"""Derivatives of D = B A^+ C by the implicit formula, at the solution: no step of any solver is differentiated.

With J = A^+, W = B J, Y = J C, and what A leaves of B and C, R = B - W A and Q = C - A Y, for tangents that keep the
rank of A,

    dD = T Y + a Q + b J^H Y + W dC,    T = dB - W dA,  a = W J^H dA^H,  b = R dA^H .

W, R, Y, Q and J are solutions of their own, with the same rule, so that second derivatives follow. B J and J C would be
wrong by eps ||B|| ||J||, which is much more than eps kappa ||W|| where B = W A; and rounding leaves some of what A
explains in R and Q, which J^H J would raise, so it is taken out once more.

Where rcond drops A2 = A - A J A, the subspaces that are kept and dropped are coupled: singular vectors turn. Then a has
W J^H J (dA + S^H A2) A2^H more, and b has R A2^H S, with

    S = dA J + A2 dA^H J^H J + (A2 A2^H) S (J^H J) ,

of the size of sigma_(k+1)/sigma_k; sigma_k is the last singular value that is kept.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax.linalg import adjoint, epsilon, matmul, norm, power_of_two, times, varying_like
from eagle_jax.methods.factor import Factor
from eagle_jax.solution import Solution


def whole_tangent(blocks, tangents, factor: Factor):
    """dD from A's factorisation; or dW if C is None."""
    A, B, C = blocks
    dA, dB, dC = tangents
    W, R, _ = left(A, B, factor)
    J, A2 = inverse(A, factor)
    T, a, b = _rows(A, dA, dB, W, R, J, A2)
    if C is None:
        return _of_W(T, a, b, A, J, factor)
    Y, Q, _ = right(A, C, factor)
    return matmul(T, Y) + matmul(a, Q) + matmul(b, matmul(adjoint(J), Y)) + matmul(W, dC)


def _rows(A, dA, dB, W, R, J, A2):
    """T, a and b; all as thin as B. For the squares of A2 and J in them these are scaled."""
    unit = power_of_two(jnp.max(jnp.abs(A)))
    WJ, dAH = matmul(W, adjoint(J)), adjoint(dA)
    J, A2 = times(J, 1 / unit), times(A2, unit)
    A2H, JH, RA2 = adjoint(A2), adjoint(J), matmul(R, adjoint(A2))
    if A.shape[0] <= A.shape[1]:
        JJ = matmul(JH, J)
        S = stein(matmul(A2, A2H), JJ, matmul(dA, J) + matmul(A2, matmul(dAH, JJ)))
        WJJ = matmul(WJ, J)
        turned = matmul(WJJ, dA) + matmul(matmul(WJJ, adjoint(S)), A2)
        coupled = matmul(RA2, S)
    else:  # the same from the smaller side
        JJ = matmul(J, JH)
        S = stein(matmul(A2H, A2), JJ, matmul(dAH, JH) + matmul(A2H, matmul(dA, JJ)))
        turned = matmul(WJ, adjoint(S))
        coupled = matmul(matmul(RA2, dA) + matmul(matmul(RA2, A2), S), J)
    return dB - matmul(W, dA), matmul(WJ, dAH) + matmul(turned, A2H), matmul(R, dAH) + coupled


def _of_W(T, a, b, A, J, factor: Factor):
    outside = jnp.where(factor.rows.rank == A.shape[0], 0, a - matmul(matmul(a, A), J))
    return matmul(T + matmul(b, adjoint(J)), J) + outside


@jax.custom_jvp
def left(A, B, factor: Factor):
    """(W = B A^+, R = B - W A, W's backward error). Where A has n rows that are independent R is 0."""
    answer = factor.estimate(B, 32 * epsilon(A.dtype))
    R = factor.unexplained(B - matmul(answer.value, A))
    return answer.value, jnp.where(factor.rows.rank == A.shape[1], 0, R), answer.error


@left.defjvp
def _left_jvp(primals, tangents):
    A, _, factor = primals
    W, R, error = left(*primals)
    J, A2 = inverse(A, factor)
    T, a, b = _rows(A, tangents[0], tangents[1], W, R, J, A2)
    outside = T - matmul(matmul(T, J), A)
    outside = outside - matmul(matmul(outside, J), A)  # J^H J would raise what rounding has left in it
    dR = jnp.where(factor.rows.rank == A.shape[1], 0, outside - matmul(a, A2) - matmul(b, adjoint(J)))
    return (W, R, error), (_of_W(T, a, b, A, J, factor), dR, jnp.zeros_like(error))


def right(A, C, factor: Factor):
    """(Y = A^+ C, Q = C - A Y, Y's backward error)."""
    Y, Q, error = left(adjoint(A), adjoint(C), factor.turned())
    return adjoint(Y), adjoint(Q), error


def inverse(A, factor: Factor):
    """(A^+, A - A A^+ A), with as few right-hand sides as possible.

    NaN where it has lost more than half of its digits, so that no derivative is wrong in silence.
    """
    d, n = A.shape
    J, outside, error = (right if d <= n else left)(A, jnp.eye(min(d, n), dtype=A.dtype), factor)
    A2 = matmul(outside, A) if d <= n else matmul(A, outside)
    return jnp.where(error <= epsilon(A.dtype) ** 0.5, J, jnp.nan), A2


# Two to that power are the terms of the series for S.
_DOUBLINGS = 40


def stein(M, N, start):
    """S = start + M S N, where the spectral radii of M and N have a product below 1; NaN if they hardly do."""

    def solve(M, N, start):
        """By doubling: after k steps S has 2^k terms of the series."""
        tiny = float(jnp.finfo(start.dtype).tiny)

        def step(c):
            S, M, N, _, k = c
            size = jnp.maximum(norm(N), tiny)
            M, N = times(M, size), times(N, 1 / size)
            return S + matmul(M, matmul(S, N)), matmul(M, M), matmul(N, N), norm(M), k + 1

        def more(c):
            return (c[3] > epsilon(start.dtype)) & (c[4] < _DOUBLINGS)

        c = start, M, N, norm(M) * norm(N), jnp.zeros((), jnp.int32)
        c = lax.while_loop(more, step, varying_like(c, M, N, start))
        return jnp.where(c[3] > epsilon(start.dtype), jnp.nan, c[0])

    return lax.custom_linear_solve(
        lambda S: S - matmul(M, matmul(S, N)),
        start,
        lambda _, rhs: solve(M, N, rhs),
        lambda _, rhs: solve(M.mT, N.mT, rhs),
    )


def with_tangent(solution: Solution, value) -> Solution:
    """The tangent of a Solution whose value has this one: status and stats have none."""

    def none(x):
        inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        return jnp.zeros_like(x) if inexact else np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(none, solution)._replace(value=value)
