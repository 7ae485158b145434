"""What a machine knows by itself of its columns (A^u, B^u): A^u's range and pseudo-inverse, and whether B^u = W A^u."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.linalg import epsilon, matmul, norm, power_of_two
from eagle_jax.machines import Peers
from eagle_jax.methods.factor import Factor
from eagle_jax.solution import DistributedStats, Method, Solution, Status
from eagle_jax.spectral import energy_bound, rows


class Machine(NamedTuple):
    """One machine's A (d x n). Rows of Z are orthonormal or zero and span A's columns, and A^+ = J Z.

    Z is the last factor: so what comes out of it is in A's range, whatever rounding does before.
    """

    A: jax.Array
    J: jax.Array
    Z: jax.Array
    size: jax.Array  # ||A||, from above
    kappa: jax.Array
    rank: jax.Array
    passes: jax.Array  # of refinement of J
    sound: jax.Array  # whether Z is what it should be

    def spread(self, v):
        """v A^+^T: rows over d -> rows over the columns of A."""
        return matmul(matmul(v, self.Z.T), self.J.T)

    def collect(self, w):
        """w A^+: rows over the columns of A -> rows over d."""
        return matmul(matmul(w, self.J), self.Z)

    def project(self, v):
        """v A A^+."""
        return matmul(matmul(v, self.Z.T), self.Z)


def condition(A) -> Machine:
    """Of a finite A, with entries below 1. No communication."""
    d, n = A.shape
    factor = Factor.of(A)
    found, f = factor.inverse(32 * epsilon(A.dtype)), factor.rows
    Z = f.P if factor.tall else f.V * f.s
    Z = jnp.where(f.rank == d, jnp.eye(len(Z), d, dtype=A.dtype), Z)  # the range is everything
    G = matmul(Z, Z.T)
    size = jnp.sqrt(energy_bound(matmul(A, A.T) if d <= n else matmul(A.T, A)))
    size = jnp.where(size > 0, size, 1)
    return Machine(
        A=A,
        J=matmul(found.value, Z.T),
        Z=Z,
        size=size,
        kappa=jnp.maximum(size * norm(found.value), 1),
        rank=found.rank,
        passes=found.passes,
        sound=norm(G - matmul(G, G)) <= 100 * epsilon(A.dtype) * d**0.5,
    )


class Local(NamedTuple):
    """A machine's data after scaling by powers of two that all machines share."""

    machine: Machine
    B: jax.Array
    A_scale: jax.Array
    B_scale: jax.Array
    size: jax.Array  # ||A||, from below
    size_B: jax.Array  # of the rows, over all machines
    kappa: jax.Array
    consistent: jax.Array  # B = W^u A^u on every machine, as far as these can tell
    sound: jax.Array  # every machine knows its range to rounding
    finite: jax.Array


def local_data(A, B, peers: Peers) -> Local:
    eps = epsilon(A.dtype)
    finite = peers.all(jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B)))
    A, B = (jnp.where(finite, x, 0) for x in (A, B))
    scale = power_of_two(peers.largest(jnp.max(jnp.abs(A), initial=0), *jnp.max(jnp.abs(B), axis=1, initial=0)))
    A_scale, B_scale = scale[0], scale[1:, None]
    machine, B = condition(A * A_scale), B * B_scale
    rest = B - matmul(machine.collect(B), machine.A)
    consistent = norm(rest) <= 100 * eps * machine.kappa * norm(B)
    size, kappa = peers.largest(machine.size, machine.kappa)
    size_B = jnp.sqrt(peers.sum(rows(B, B))[:, 0])
    consistent, sound = peers.all(consistent), peers.all(machine.sound)
    return Local(machine, B, A_scale, B_scale, size, size_B, kappa, consistent, sound, finite)


def empty(value, A, B, axis) -> Solution:
    """The answer if nothing is asked for, or A has no rows; machines still agree on whether the data is finite."""
    finite = Peers.on(axis).all(jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B)))
    status = jnp.where(finite, Status.CONVERGED, Status.NONFINITE).astype(jnp.int32)
    none, zero, one = jnp.asarray(0, jnp.int32), jnp.zeros((), A.dtype), jnp.ones((), A.dtype)
    floats, method = jnp.zeros((), jnp.float32), jnp.asarray(Method.FACTORS, jnp.int32)
    stats = DistributedStats(none, none, zero, zero, one, none, method, none, floats, jnp.asarray(False))
    return Solution(value, status, stats)
