"""One factorisation of the columns that many machines hold: each factors its own, and triangles are merged.

    [A¹ … Aᴹ] = [L¹ … Lᴹ] diag(P¹, …, Pᴹ),   then   [L¹ … Lᴹ]⁺ = Pᴴ R⁻¹ V   as in `factor`, the same on every machine,

and a machine's columns of A's row basis are those of P that belong to its triangle, times Pᵘ. Nothing is squared, and
what crosses machines are triangles, d (d + 1) / 2 floats each, once for each axis that the machines are on. Products of
the size of a right-hand side then give the answer and its certificate in the original data.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax.linalg import adjoint, get, lengths, matmul, norm, power_of_two, times
from eagle_jax.machines import Peers
from eagle_jax.methods.factor import Factor, mixed, noise


class Merged(NamedTuple):
    factor: Factor  # of all columns, for this machine's
    sent: int  # floats by each machine, in rounds
    rounds: int


def factor(A, peers: Peers, rcond: float | None) -> Merged:
    """A (d x n, n at least 1): this machine's columns, finite on every machine."""
    d, columns = len(A), A.shape[1] * peers.count
    unit, s = _shared_scales(A, peers)
    A = times(A, unit)
    share, sent = _merged(times(A, s[:, None]), peers)
    wrong = norm(times(A, s[:, None]) - share.of(share.F))
    spans = peers.all(wrong <= 4 * d * noise(A) * jnp.max(lengths(share.F)))
    F = jnp.pad(times(share.F, 1 / s[:, None]), ((0, 0), (0, max(d - share.F.shape[1], 0))))
    rows = Factor.of(F, rcond, columns).rows
    rows = rows._replace(
        A=times(A, rows.unit * rows.s[:, None]),
        P=share.of(rows.P),
        unit=unit * rows.unit,
        size=rows.size / unit,
        inverse_size=rows.inverse_size * unit,
        spans=rows.spans & spans,
    )
    return Merged(Factor(rows, tall=False, peers=peers), sent, len(peers.axes))


def _shared_scales(A, peers: Peers):
    """`factor.equilibrated` of all columns together: (unit, s)."""
    most = peers.most(jnp.max(jnp.abs(A), 1))
    unit = power_of_two(jnp.max(most))
    s = power_of_two(most * unit)
    squares = peers.sum(jnp.square(lengths(times(times(A, unit), s[:, None]))))
    return unit, s * power_of_two(jnp.sqrt(squares))


class _Share(NamedTuple):
    """This machine's columns are F times P, in the place that P's rows have among F's columns."""

    F: jax.Array
    P: jax.Array
    start: jax.Array

    def of(self, X):
        """The same columns of X, from X in terms of F's columns."""
        return matmul(get(X, (len(X), len(self.P)), 0, self.start), self.P)


def _merged(A, peers: Peers) -> tuple[_Share, int]:
    """Triangles of all machines side by side, and the floats that each machine has sent."""
    share, sent = _Share(A, jnp.zeros((0, 0), A.dtype), jnp.zeros((), jnp.int32)), 0
    for axis in peers.axes:
        L, Q = triangle(share.F)
        P = share.of(Q) if share.P.size else Q
        place = np.tril_indices(len(L), 0, L.shape[1])
        parts = peers.gather(L[place], axis)
        whole = jnp.zeros((len(parts), *L.shape), L.dtype).at[:, *place].set(parts)
        start = lax.axis_index(axis).astype(jnp.int32) * L.shape[1]
        share = _Share(jnp.concatenate(list(whole), 1), P, start)
        sent += len(place[0])
    return share, sent


def triangle(A):
    """A = L P, L lower triangular (d x the smaller of d and n): by products, then Householder's on what is left."""
    P = None
    if A.shape[1] > len(A):
        P = mixed(A).P
        A = matmul(A, adjoint(P))
    Q, R = jnp.linalg.qr(adjoint(A))
    return adjoint(R), adjoint(Q) if P is None else matmul(adjoint(Q), P)
