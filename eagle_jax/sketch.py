"""Sketches S (n x r): which r combinations of A's columns one step may look at.

orthogonal   S uniform among matrices with orthonormal columns, a fresh one every step; A S costs 2 n d r
columns      r columns of A; every column has its turn before one comes again
rotated      one uniform rotation of the columns at the start, then as "columns"
"""

import dataclasses
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from eagle_jax.linalg import matmul, varying_like
from eagle_jax.schedules import SETTLED, cycle
from eagle_jax.update import update_energy

Family = Literal["orthogonal", "columns", "rotated"]
# What is folded into the key for other things than a step's sketch.
_ROTATION, PROBES = 2**32 - 1, 2**32 - 2


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sketch:
    """`Sketch(60, jax.random.key(0))`: r, a key and a family. A pytree: vmap may run over keys.

    The same key gives the same sketches; steps differ, and so do machines, which fold their index into the key.
    """

    r: int = dataclasses.field(metadata={"static": True})
    key: jax.Array
    family: Family = dataclasses.field(default="orthogonal", metadata={"static": True})

    def check(self, n: int):
        if not isinstance(self.r, int) or not 1 <= self.r <= n:
            raise ValueError(f"sketch.r={self.r}; expected an integer between 1 and A's {n} columns")
        if self.family not in get_args(Family):
            raise ValueError(f"sketch.family={self.family!r}; expected one of {get_args(Family)}")
        if not (isinstance(self.key, jax.Array) and jnp.issubdtype(self.key.dtype, jax.dtypes.prng_key)):
            raise TypeError(f"sketch.key={self.key!r}; expected a typed key, as jax.random.key(0) makes")

    def rotate(self, *blocks):
        """The blocks after the family's rotation of their columns, which changes no answer."""
        if self.family != "rotated":
            return blocks
        n = blocks[0].shape[1]
        R = orthogonal(jax.random.fold_in(self.key, _ROTATION), n, n, blocks[0].dtype)
        return tuple(matmul(x, R) for x in blocks)

    def draw(self, step, n: int, dtype) -> jax.Array:
        """S of a step: n x r floats, or r column numbers."""
        if self.family == "orthogonal":
            return orthogonal(jax.random.fold_in(self.key, step), n, self.r, dtype)
        rounds = -(-n // self.r)
        order = jax.random.permutation(jax.random.fold_in(self.key, step // rounds), n)
        return order[(step % rounds * self.r + jnp.arange(self.r, dtype=jnp.int32)) % n]


def orthogonal(key, n: int, r: int, dtype) -> jax.Array:
    """Uniform among n x r matrices with orthonormal columns: the orthonormal factor of Gaussians.

    Normals of 32 bits, whose direction is random enough, take half the time of those of 64.
    """
    X = jax.random.normal(key, (n, r), jnp.float32).astype(dtype)
    return _polar(X) if n >= 64 and 2 * r <= n else _by_qr(X)


def _by_qr(X):
    Q, R = jnp.linalg.qr(X)
    return Q * jnp.where(jnp.diagonal(R) < 0, -1, 1).astype(X.dtype)  # a positive diagonal of R makes Q uniform


def _polar(X):
    """X (X^T X)^(-1/2) of Gaussians with n >= 2 r by Updates of the small Gram matrix, whose spectrum is known.

    On CPU, LAPACK's QR in a loop takes as long as a hundred such steps when its threads and XLA's get in each
    other's way; on accelerators it is slow anyway.
    """
    n, r = X.shape
    largest, least = n**0.5 + r**0.5 + 1, n**0.5 - r**0.5 - 1  # bounds that Gaussians all but never break
    X = X / largest
    steps = cycle(least / largest) + SETTLED
    scales, etas = (jnp.asarray(v, X.dtype) for v in zip(*steps, strict=True))

    def step(i, blocks):
        E, Q = update_energy(blocks[0], blocks[1], etas[i])
        return scales[i] ** 2 * E, scales[i] * Q

    start = varying_like((matmul(X.T, X), jnp.eye(r, dtype=X.dtype)), X)
    return matmul(X, jax.lax.fori_loop(0, len(scales), step, start)[1])
