"""Algorithm 1 of the paper: one Update, and nothing else.

Every solver, regime and experiment in this package steps through these functions.
`rho` is 1/||A S||_2^2 (or an estimate of it from below); `eta` and `gamma` are the paper's constants.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.linalg import matmul


class State(NamedTuple):
    """The four blocks of [[A, C], [B, D]]; A: d x n, B: d' x n, C: d x n', D: d' x n'."""

    A: jax.Array
    B: jax.Array
    C: jax.Array
    D: jax.Array


def _identity(delta):
    return delta


def update(
    state: State, rho, eta, gamma, *, S=None, energy=None, reduce: Callable = _identity, frozen: bool = False
) -> State:
    """One EAGLE step.

        As = A S,  Bs = B S
        A' = A - eta rho As As^T As S^T        C' = C - gamma rho As As^T C
        B' = B - eta rho Bs As^T As S^T        D' = D + gamma rho Bs As^T C

    Args:
      S: optional n x r sketch with orthonormal columns, or r numbers of columns of A; None is the identity.
      energy: As As^T if the caller has it already.
      reduce: how the C and D deltas of several machines are combined: identity on one machine,
        `lambda x: lax.pmean(x, axis)` inside shard_map or vmap. A and B never leave their machine.
      frozen: leave A and B as they are, once they are conditioned.
    """
    A, B, C, D = state
    As, Bs, dA, dB = _frozen(A, B, S) if frozen else _conditioning(A, B, S, energy)
    if energy is None:
        AtC = matmul(As.T, C)
        dC, dD = matmul(As, AtC), matmul(Bs, AtC)
    else:
        dC, dD = matmul(energy, C), matmul(matmul(Bs, As.T), C)
    return State(
        _plus_lifted(A, -eta * rho * dA, S),
        _plus_lifted(B, -eta * rho * dB, S),
        C - reduce(gamma * rho * dC),
        D + reduce(gamma * rho * dD),
    )


def update_ahead(state: State, rho, eta, gamma, *, S, T) -> State:
    """Update, but the columns that it conditions are A T instead of those that it reads, A S.

        As = A S,  Bs = B S
        A' = A - eta rho As As^T A T T^T       C' = C - gamma rho As As^T C
        B' = B - eta rho Bs As^T A T T^T       D' = D + gamma rho Bs As^T C

    T = S is Update. With T for columns that later steps read, these are cleared of what was read, as C is: deflation.
    It is what the computation-limited network does (ahead.py), and B = W A and D + W C stay what they are, too.
    """
    A, B, C, D = state
    As, Bs = sketched(A, S), sketched(B, S)
    AtA, AtC = matmul(As.T, sketched(A, T)), matmul(As.T, C)
    return State(
        _plus_lifted(A, -eta * rho * matmul(As, AtA), T),
        _plus_lifted(B, -eta * rho * matmul(Bs, AtA), T),
        C - gamma * rho * matmul(As, AtC),
        D + gamma * rho * matmul(Bs, AtC),
    )


def update_estimate(A, B, W, rho, eta, gamma, *, S=None, reduce: Callable = _identity, frozen: bool = False):
    """The estimation form: same A' and B', and W' = W - gamma rho (W As - Bs) As^T.

    On one machine without a sketch W_l C = D_l for every l. With S or reduce the energies of different steps do not
    commute, and W_l and D_l only share their limit.
    """
    As, Bs, dA, dB = _frozen(A, B, S) if frozen else _conditioning(A, B, S, None)
    dW = matmul(matmul(W, As) - Bs, As.T)
    A, B = _plus_lifted(A, -eta * rho * dA, S), _plus_lifted(B, -eta * rho * dB, S)
    return A, B, W - reduce(gamma * rho * dW)


def sketched(X, S):
    """X S."""
    if S is None:
        return X
    return X[:, S] if jnp.issubdtype(S.dtype, jnp.integer) else matmul(X, S)


def _plus_lifted(X, Y, S):
    """X + Y S^T."""
    if S is None:
        return X + Y
    return X.at[:, S].add(Y, unique_indices=True) if jnp.issubdtype(S.dtype, jnp.integer) else X + matmul(Y, S.T)


def _frozen(A, B, S):
    As, Bs = sketched(A, S), sketched(B, S)
    return As, Bs, jnp.zeros_like(As), jnp.zeros_like(Bs)


def _conditioning(A, B, S, energy):
    """(As, Bs, As As^T As, Bs As^T As), through the smaller of the two Gram matrices."""
    As, Bs = sketched(A, S), sketched(B, S)
    if energy is not None or As.shape[0] <= As.shape[1]:
        energy = matmul(As, As.T) if energy is None else energy
        dA, dB = matmul(energy, As), matmul(matmul(Bs, As.T), As)
    else:
        gram = matmul(As.T, As)
        dA, dB = matmul(As, gram), matmul(Bs, gram)
    return As, Bs, dA, dB


def update_energy(E, Q, eta_rho):
    """The lemma's view of the same step, E = A A^T: E' = (I - eta rho E) E (I - eta rho E), Q' = Q (I - eta rho E).

    Costs d x d products only, however many columns A has, but squares the condition number: rounding hides
    singular values of A below sqrt(eps) ||A||.
    """
    T = jnp.eye(E.shape[-1], dtype=E.dtype) - eta_rho * E
    return matmul(matmul(T, E), T), matmul(Q, T)
