"""A machine that holds some columns (A^u, B^u) of A and B, conditioned, and what it can ask of its peers."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax.linalg import epsilon, matmul, norm, power_of_two, varying_axes
from eagle_jax.scaling import step_budget
from eagle_jax.schedules import SETTLE
from eagle_jax.solution import DistributedStats, Method, Solution, Status
from eagle_jax.spectral import energy_bound, rows, vary
from eagle_jax.update import State, update

ACCELERATIONS = ("none", "freeze", "krylov", "auto")
# What a solve may take when no limit is given.
MOST_ROUNDS = 10_000


class Machine(NamedTuple):
    """One machine's A (d x n), conditioned.

    U = A R or Q A has singular values 1 or (rounding noise of) 0, and J = R U^T or U^T Q is A's pseudo-inverse, up to
    what conditioning leaves. `half` is Q (d x d) if d <= n, else R (n x n).
    """

    A: jax.Array
    U: jax.Array
    half: jax.Array
    size: jax.Array
    growth: jax.Array  # by which noise in A's null spaces has been raised
    kappa: jax.Array  # condition number, from above
    steps: jax.Array

    @property
    def wide(self) -> bool:
        return self.A.shape[0] <= self.A.shape[1]

    def spread(self, v):
        """v J^T: rows over d -> rows over the columns of A."""
        return matmul(matmul(v, self.half.T), self.U) if self.wide else matmul(matmul(v, self.U), self.half.T)

    def collect(self, w):
        """w J: rows over the columns of A -> rows over d."""
        return matmul(matmul(w, self.U.T), self.half) if self.wide else matmul(matmul(w, self.half), self.U.T)

    def project(self, v):
        """v U U^T."""
        return matmul(matmul(v, self.U), self.U.T)


def condition(A, limit: int) -> Machine:
    """Optimal Updates of A until each singular value is 1 or rounding noise. No communication."""
    d, n = A.shape
    wide, eps, dtype = d <= n, jnp.finfo(A.dtype).eps, A.dtype
    size = jnp.sqrt(energy_bound(matmul(A, A.T) if wide else matmul(A.T, A)))
    size = jnp.where(size > 0, size, 1)
    scales, etas = (jnp.asarray(v, dtype) for v in zip(*SETTLE, strict=True))
    empty = jnp.zeros((0, n), dtype), jnp.zeros((d, 0), dtype)

    def step(i, c):
        U, half, growth = c
        if wide:
            new = update(State(U, empty[0], half, jnp.zeros((0, d), dtype)), 1.0, etas[i], etas[i])
            return scales[i] * new.A, scales[i] * new.C, scales[i] * growth
        new = update(State(U, half, empty[1], jnp.zeros((n, 0), dtype)), 1.0, etas[i], etas[i])
        return scales[i] * new.A, scales[i] * new.B, scales[i] * growth

    def unsettled(c):
        U, _, growth, steps = c
        left = U - (matmul(matmul(U, U.T), U) if wide else matmul(U, matmul(U.T, U)))
        return (norm(left) > 10 * eps * growth * min(d, n) ** 0.5) & (steps < limit)

    def cycle(c):
        *c, steps = c
        return (*lax.fori_loop(0, len(SETTLE), step, tuple(c)), steps + len(SETTLE))

    start = (A / size, jnp.eye(min(d, n), dtype=dtype) / size, jnp.ones((), dtype), jnp.asarray(0, jnp.int32))
    U, half, growth, steps = lax.while_loop(unsettled, cycle, vary(start, size))
    gram = matmul(half.T, matmul(matmul(U, U.T), half)) if wide else matmul(half, matmul(matmul(U.T, U), half.T))
    kappa = jnp.maximum(size * jnp.sqrt(jnp.trace(gram)), 1)
    return Machine(A, U, half, size, growth, kappa, steps)


class Peers(NamedTuple):
    """The machines on one or more named axes of shard_map or vmap."""

    axes: tuple

    @classmethod
    def on(cls, axis_name) -> "Peers":
        return cls(axis_name if isinstance(axis_name, tuple) else (axis_name,))

    @property
    def count(self) -> int:
        return math.prod(map(lax.axis_size, self.axes))

    def sum(self, x) -> jax.Array:
        return lax.psum(x, self.axes)

    def sums(self, *parts) -> list[jax.Array]:
        """Sums of matrices with equally many rows, in one collective."""
        ends = np.cumsum([x.shape[-1] for x in parts])[:-1]
        return jnp.split(self.sum(jnp.concatenate(parts, axis=-1)), ends, axis=-1)

    def mean(self, x):
        return self.sum(x) / self.count

    def most(self, x):
        """The maxima."""
        return lax.pmax(x, self.axes)

    def largest(self, *scalars):
        return self.most(jnp.stack(scalars))

    def all(self, flag):
        return lax.pmin(flag.astype(jnp.int32), self.axes) > 0

    def gather(self, x, axis):
        """All x along one of the axes, the same on all of its machines; typed so, where types tell (shard_map)."""
        typed = axis in varying_axes(x)
        return lax.all_gather(x, axis, to="invarying" if typed else "varying")

    def fold(self, key):
        """A key of this machine's own."""
        for axis in self.axes:
            key = jax.random.fold_in(key, lax.axis_index(axis))
        return key


class Alone(NamedTuple):
    """What `Peers` does, for one machine without peers."""

    def sum(self, x):
        return x

    def mean(self, x):
        return x

    def most(self, x):
        return x

    def largest(self, *scalars):
        return jnp.stack(scalars)

    def fold(self, key):
        return key


class Local(NamedTuple):
    """A machine's data after scaling by powers of two that all machines share."""

    machine: Machine
    B: jax.Array
    A_scale: jax.Array
    B_scale: jax.Array
    size: jax.Array  # ||A||, from below
    size_B: jax.Array  # of the rows, over all machines
    kappa: jax.Array
    growth: jax.Array
    consistent: jax.Array  # B = W^u A^u on every machine
    finite: jax.Array


def local_data(A, B, peers: Peers, rcond) -> Local:
    eps = jnp.finfo(A.dtype).eps
    finite = peers.all(jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B)))
    top = peers.largest(jnp.max(jnp.abs(A), initial=0), *jnp.max(jnp.abs(B), axis=1, initial=0))
    scale = power_of_two(jnp.where(finite, top, 1))
    A_scale, B_scale = scale[0], scale[1:, None]
    rcond = epsilon(A.dtype) * max(A.shape) if rcond is None else rcond
    machine, B = condition(A * A_scale, step_budget(None, rcond)), B * B_scale
    rest = B - matmul(machine.collect(B), machine.A)
    consistent = norm(rest) <= 100 * eps * machine.kappa * norm(B)
    size, kappa, growth = peers.largest(machine.size, machine.kappa, machine.growth)
    size_B = jnp.sqrt(peers.sum(rows(B, B))[:, 0])
    return Local(machine, B, A_scale, B_scale, size, size_B, kappa, growth, peers.all(consistent), finite)


def empty(value, A, B, axis) -> Solution:
    """The answer if nothing is asked for, or A has no rows; machines still agree on whether the data is finite."""
    finite = Peers.on(axis).all(jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B)))
    status = jnp.where(finite, Status.CONVERGED, Status.NONFINITE).astype(jnp.int32)
    none, zero, one = jnp.asarray(0, jnp.int32), jnp.zeros((), A.dtype), jnp.ones((), A.dtype)
    floats, method = jnp.zeros((), jnp.float32), jnp.asarray(Method.FACTORS, jnp.int32)
    stats = DistributedStats(none, none, zero, zero, one, none, method, none, floats, jnp.asarray(False))
    return Solution(value, status, stats)
