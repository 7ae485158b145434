"""Derivatives of D = B A⁺ C where machines hold some columns of A and B each: the formula of `derivatives`, summed up.

With J = A⁺, W = B J, Y = J C, R = B - W A and Q = C - A Y,

    dD = Σ (dB - W dA) Y + W (Σ Jᴴ dAᴴ) Q + (Σ R dAᴴ) Σ Jᴴ Y + W dC ,

sums over machines, with this machine's columns of A, B, R and rows of J and Y. These rows have a rule of their own,
that of D with B = I, so that second derivatives follow. NaN where the answer has lost more than half of its digits, or
where rcond has dropped what is not rounding.
"""

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.linalg import adjoint, epsilon, matmul, norm
from eagle_jax.methods.factor import Factor


def tangent(blocks, tangents, factor: Factor):
    """dD; or dW if C is None."""
    A, B, C = blocks
    dA, dB, dC = tangents
    total = factor.peers.sum
    if C is None:
        C, dC = _identity(A)
    W, Y = left(A, B, factor), right(A, C, factor)
    R = _exact(B - matmul(W, A), lambda R: R - matmul(total(matmul(R, adjoint(factor.rows.P))), factor.rows.P))
    parts = matmul(dB - matmul(W, dA), Y)
    return total(parts) + _rest(A, C, Y, dA, W, total(matmul(R, adjoint(dA))), factor) + matmul(W, dC)


def _identity(A):
    return jnp.eye(len(A), dtype=A.dtype), jnp.zeros((len(A), len(A)), A.dtype)


def _rest(A, C, Y, dA, W, RdA, factor: Factor):
    """W (Σ Jᴴ dAᴴ) Q + (Σ R dAᴴ) Σ Jᴴ Y."""
    total, J = factor.peers.sum, right(A, _identity(A)[0], factor)
    Q = _exact(C - total(matmul(A, Y)), lambda Q: Q - total(matmul(A, matmul(J, Q))))
    Q = jnp.where(factor.rows.rank == len(A), 0, Q)
    return matmul(matmul(W, total(matmul(adjoint(J), adjoint(dA)))), Q) + matmul(RdA, total(matmul(adjoint(J), Y)))


def _exact(x, improve):
    """improve(x), a value with less rounding in it, with x's derivatives."""
    return x + lax.stop_gradient(improve(x) - x)


@jax.custom_jvp
def left(A, B, factor: Factor):
    """W = B A⁺."""
    return _trusted(A, factor.estimate(B, 32 * epsilon(A.dtype)), factor)


@left.defjvp
def _left_jvp(primals, tangents):
    A, B, factor = primals
    return left(*primals), tangent((A, B, None), (*tangents[:2], None), factor)


@jax.custom_jvp
def right(A, C, factor: Factor):
    """This machine's rows of Y = A⁺ C."""
    return _trusted(A, factor.right(C, 32 * epsilon(A.dtype)), factor)


@right.defjvp
def _right_jvp(primals, tangents):
    A, C, factor = primals
    dA, dC, _ = tangents
    total, P = factor.peers.sum, factor.rows.P
    Y, J = right(*primals), right(A, _identity(A)[0], factor)
    N = adjoint(dA) - matmul(J, total(matmul(A, adjoint(dA))))
    N = _exact(N, lambda N: N - matmul(adjoint(P), total(matmul(P, N))))
    return Y, _rest(A, C, Y, dA, J, N, factor) + matmul(J, dC - total(matmul(dA, Y)))


def _trusted(A, answer, factor: Factor):
    total, P = factor.peers.sum, factor.rows.P
    dropped = total(norm(A - matmul(total(matmul(A, adjoint(P))), P)) ** 2)
    half = epsilon(A.dtype) ** 0.5
    trusted = (answer.error <= half) & (dropped <= half**2 * total(norm(A) ** 2))
    return jnp.where(trusted, answer.value, jnp.nan)
