"""M = L P by blocks of rows, with matrix products only: P has orthonormal rows, L is block triangular, the rank shows.

    rows of M        L            P
    [ block 1 ]   [ #     ]   [ orthonormal rows,  ]      one block X: cleared of P, K = X Pᴴ, X ← X - K P
    [ block 2 ] = [ # #   ] x [ as many as M       ]                   orthonormal in its Gram matrix, Y = T X
    [ block 3 ]   [ # # # ]   [ has dimensions     ]                   cleared again, one step of Newton-Schulz

It takes one round a block for any condition number. Rows stay in their places; what brings nothing new is zero in P.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.linalg import (
    adjoint,
    epsilon,
    get,
    lengths,
    matmul,
    numbers,
    put,
    real_dtype,
    repeat,
    square,
    times,
    varying_like,
)

# Rows of A in a block, and blocks of P that are cleared at once, for up to so many rows of A: small enough that rows,
# made orthonormal one by one in a Gram matrix, cost less than the products around them, large enough for these to run
# at the speed of large products. Up to the first of them one block is all. `python -m experiments.bench.solve`.
ONE_BLOCK, _SMALL = 48, 480
_BLOCK, _LARGE_BLOCK, _LARGE_CHUNK = 48, 128, 2


class Triangle(NamedTuple):
    """A triangular matrix L of r x r blocks, and the inverses J of those on its diagonal, zero where no row is kept."""

    L: jax.Array  # W x W
    J: jax.Array  # W/r x r x r
    upper: jax.Array  # or lower


def solve_right(G, t: Triangle):
    """X with X L = G: from the last block to the first, or if L is upper triangular the other way round."""
    count, r, _ = t.J.shape
    if count == 1:
        return matmul(G, t.J[0])

    def block(i, X):
        j = jnp.where(t.upper, i, count - 1 - i)
        g = get(G, (len(G), r), 0, j * r) - matmul(X, get(t.L, (count * r, r), 0, j * r))
        return put(X, matmul(g, get(t.J, (1, r, r), j, 0, 0)[0]), 0, j * r)

    return repeat(count, block, varying_like(jnp.zeros_like(G), G, t))


def solve_left(t: Triangle, C):
    """Z with L Z = C."""
    count, r, _ = t.J.shape
    if count == 1:
        return matmul(t.J[0], C)

    def block(i, Z):
        j = jnp.where(t.upper, count - 1 - i, i)
        g = get(C, (r, C.shape[1]), j * r, 0) - matmul(get(t.L, (r, count * r), j * r, 0), Z)
        return put(Z, matmul(get(t.J, (1, r, r), j, 0, 0)[0], g), j * r, 0)

    return repeat(count, block, varying_like(jnp.zeros_like(C), C, t))


def turned(t: Triangle) -> Triangle:
    return Triangle(adjoint(t.L), adjoint(t.J), ~t.upper)


class LQ(NamedTuple):
    """M ~ L P. P: W x n, orthonormal rows and zero ones; kept: the rows of M that they were made of."""

    P: jax.Array
    T: Triangle
    kept: jax.Array


class Sizes(NamedTuple):
    """r: rows of a block. chunk: rows of P that are cleared at once. W: at least d, in whole chunks."""

    r: int
    chunk: int
    W: int

    @classmethod
    def of(cls, d: int) -> "Sizes":
        if d <= ONE_BLOCK:
            return cls(d, d, d)
        rows, blocks = (_BLOCK, 1) if d <= _SMALL else (_LARGE_BLOCK, _LARGE_CHUNK)
        chunks = -(-d // (rows * blocks))
        r = 8 * -(-d // (8 * chunks * blocks))
        return cls(r, blocks * r, chunks * blocks * r)


def row_by_row(M, tol) -> LQ:
    """A few rows, the longest first: each cleared of those before it, twice, which is enough, and scaled to length one.

    The inverse of L comes along: what is done to the rows is done to those of the identity. All problems of a batch
    take the same steps.
    """
    (r, n), index = M.shape, numbers(len(M))
    rows = jnp.concatenate([M, jnp.eye(r, dtype=M.dtype)], 1)

    def step(i, carry):
        done, left2 = carry
        p = jnp.argmax(left2).astype(jnp.int32)
        x = get(rows, (1, n + r), p, 0)
        for _ in range(2):
            x = x - matmul(matmul(x[:, :n], adjoint(done[:, :n])), done)
        x = times(x, _scale(jnp.sum(square(x[:, :n])), tol**2))
        gone2 = square(matmul(M, adjoint(x[:, :n])))[:, 0]
        return put(done, x, i, 0), jnp.where(index == p, -1, jnp.where(left2 < 0, -1, jnp.maximum(left2 - gone2, 0)))

    start = jnp.zeros_like(rows), jnp.square(lengths(M))
    done, _ = repeat(r, step, varying_like(start, M, tol))
    P, J = done[:, :n], done[:, n:]
    return LQ(P, Triangle(matmul(M, adjoint(P)), J[None], jnp.zeros((), bool)), jnp.any(J != 0, 0))


def _scale(size2, cut2):
    """What makes a row of square length size2 one of length 1; 0 if it is not above cut2."""
    return jnp.where(size2 > cut2, lax.rsqrt(jnp.where(size2 > cut2, size2, 1)), 0)


def cleared(X, P, kept, count, chunk: int):
    """(X Pᴴ, X - X Pᴴ P) with the kept rows of P, in its first `count` chunks."""
    n = P.shape[1]

    def part(i, carry):
        K, X = carry
        rows = get(P, (chunk, n), i * chunk, 0)
        k = jnp.where(get(kept, (chunk,), i * chunk), matmul(X, adjoint(rows)), 0)
        return put(K, k, 0, i * chunk), X - matmul(k, rows)

    return repeat(count, part, varying_like((jnp.zeros((len(X), len(P)), X.dtype), X), X, P, count))


def gram_schmidt(G, size2, steps, cut2):
    """(T, new): T G Tᴴ = I on the new rows, one by one as above, in the metric G with the diagonal size2.

    Rows whose square length is at most cut2 when cleared of those before them are not new, and zero.
    """
    r, index = len(G), numbers(len(G))
    eye = jnp.eye(r, dtype=G.dtype)

    def step(_, carry):
        T, K, left2 = carry  # K: coefficients of all rows, one column of L in each row
        p = jnp.argmax(left2).astype(jnp.int32)
        t = get(eye, (1, r), p, 0) - matmul(get(K, (r, 1), 0, p).T, T)
        t = times(t, _scale(jnp.real(matmul(t, adjoint(get(G, (1, r), p, 0)))), cut2))
        k = matmul(t, G).conj()
        left2 = jnp.where((index == p) | (left2 < 0), -1, jnp.maximum(left2 - square(k[0]), 0))
        return put(T, t, p, 0), put(K, k, p, 0), left2

    T, _, _ = repeat(steps, step, varying_like((jnp.zeros_like(G), jnp.zeros_like(G), size2), G, cut2))
    return T, jnp.any(T != 0, 1)


def isometric(Y, new, needed, P, kept, count, chunk: int):
    """The new rows of Y, nearly orthonormal and nearly orthogonal to P's, made so.

    They are cleared once more, now that they have length one, which is what makes it lasting, and take a step of
    Newton-Schulz, which is Update. One pass squares what is wrong; one does unless the rows were small remainders.
    """
    eye = jnp.where(_diagonal(len(Y)) & new, 1, 0).astype(Y.dtype)
    enough = epsilon(Y.dtype) ** 0.5

    def step(carry):
        Y, _, passes = carry
        _, Y = cleared(Y, P, kept, count, chunk)
        G = matmul(Y, adjoint(Y))
        return matmul(1.5 * eye - 0.5 * G, Y), jnp.max(jnp.abs(G - eye)), passes + 1

    start = Y, needed.astype(real_dtype(Y.dtype)), jnp.zeros((), jnp.int32)
    return lax.while_loop(lambda t: (t[1] > enough) & (t[2] < 4), step, varying_like(start, P, Y, count))[0]


def _diagonal(r: int):
    return numbers(r)[:, None] == numbers(r)


class _Progress(NamedTuple):
    rows: jax.Array  # P, and from the next block on what of M is still to be read
    block: jax.Array  # the rows of M at work,
    waiting: jax.Array  # those of them that are not in P,
    j: jax.Array  # its number,
    again: jax.Array  # and 1 if some are
    T: Triangle
    kept: jax.Array


def _enter(sizes: Sizes, tol, s: _Progress) -> _Progress:
    """One round on a block of rows: cleared of P, those that the Gram matrix can tell from noise go into P.

    One Gram matrix resolves half of the digits. So rows shorter than delta of the longest, when cleared of those before
    them, wait for a next round: one round for most blocks, two or three where the rank ends.
    """
    (r, chunk, W), n, c = sizes, s.block.shape[1], s.j * sizes.r
    count = lax.div(s.j + s.again + (chunk // r - 1), jnp.int32(chunk // r))
    K, X = cleared(jnp.where(s.waiting[:, None], s.block, 0), s.rows, s.kept, count, chunk)
    G = matmul(X, adjoint(X))
    size2 = jnp.sum(jnp.where(_diagonal(r), jnp.real(G), 0), 1)
    longest2 = jnp.max(size2)
    needed = (longest2 > tol**2) & jnp.isfinite(longest2)
    T, new = gram_schmidt(G, size2, jnp.where(needed, r, 0), jnp.maximum(tol**2, epsilon(X.dtype) ** 0.6 * longest2))
    Y = isometric(matmul(T, X), new, needed, s.rows, s.kept, count, chunk)
    before, own = get(K, (r, r), 0, c), matmul(X, adjoint(Y))
    kept, J, L = get(s.kept, (r,), c), get(s.T.J, (1, r, r), s.j, 0, 0)[0], get(s.T.L, (r, W), c, 0)
    # The inverse of own's new rows and columns, which T is nearly; and of [[a, 0], [b, own]], a from earlier rounds.
    inverse = 2 * T - matmul(matmul(T, jnp.where(new[:, None], own, 0)), T)
    J = J + matmul(inverse, jnp.where(_diagonal(r), 1, 0).astype(X.dtype) - matmul(before, J))
    L = jnp.where(s.waiting[:, None], put(K, before + own, 0, c), L)
    P = jnp.where(new[:, None], Y, jnp.where(kept[:, None], get(s.rows, (r, n), c, 0), 0))
    rows = put(s.rows, P, c, 0)
    waiting = s.waiting & ~new & (size2 > tol**2)
    stay = jnp.any(waiting) & needed
    return _Progress(
        rows=rows,
        block=jnp.where(stay, s.block, get(rows, (r, n), c + r, 0)),
        waiting=~stay | waiting,
        j=jnp.where(stay, s.j, jnp.where(needed | (s.again == 1), s.j + 1, len(s.T.J))),
        again=stay.astype(jnp.int32),
        T=s.T._replace(L=put(s.T.L, L, c, 0), J=put(s.T.J, J[None], s.j, 0, 0)),
        kept=put(s.kept, kept | new, c),
    )


def lq(M, sizes: Sizes, tol) -> LQ:
    """M = L P, up to rows below tol. P takes M's place as that is read."""
    (r, _, W), dtype = sizes, M.dtype
    if r == W:
        return row_by_row(M, tol)
    M = jnp.pad(M, ((0, W - len(M)), (0, 0)))
    count = W // r
    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    start = _Progress(
        rows=M,
        block=M[:r],
        waiting=jnp.ones(r, bool),
        j=zero,
        again=zero,
        T=Triangle(jnp.zeros((W, W), dtype), jnp.zeros((count, r, r), dtype), no),
        kept=jnp.zeros(W, bool),
    )
    s = lax.while_loop(lambda s: s.j < count, partial(_enter, sizes, tol), varying_like(start, M, tol))
    return LQ(jnp.where(s.kept[:, None], s.rows, 0), s.T, s.kept)  # where the rank ended early, the rest is M's
