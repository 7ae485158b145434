"""Block LQ: rank-revealing least squares by matrix products, in time that does not depend on the condition number.

EAGLE makes A an isometry step by step; then one Update fills D. Here A becomes an isometry block by block: read r rows,
make them orthonormal, clear the rest of them. With orthonormal rows P and a lower triangular R of the numerical rank,

    A⁺ = Pᴴ R⁻¹ V,        W = B A⁺ = ((B Pᴴ) R⁻¹) V,        Y = A⁺ C = Pᴴ (R⁻¹ (V C)) .

full rank     M = U S A, rows equilibrated by powers of two (S) and mixed by an orthogonal U so that leading rows span
              leading directions (RURV: Demmel, Dumitriu, Holtz 2007);  M = L P, R = L, V = U S.
deficient     A = F P with F = (U S)⁻¹ L of full column rank; Fᴴ = L₂ P₂ in the caller's scaling, which the minimum norm
              is about; R = L₂ᴴ, V = P₂.
truncated     where singular values are near rcond ‖A‖: [R, τ I] = L̃ [P₁, ·] holds no squares, and T = P₁ᴴP₁ has the
              eigenvalues s²/(s² + τ²), above 1/2 just where s > τ. Sharpened to 0 and 1 by Updates it is the projector
              Π on the leading right singular vectors: R ← L̃, P ← P₁ T⁻¹ Π P, numpy's answer for any rcond.

All here is for a fat A (d ≤ n); `Factor` turns a tall one over.
"""

import dataclasses
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax.linalg import (
    adjoint,
    epsilon,
    get,
    lengths,
    matmul,
    norm,
    numbers,
    power_of_two,
    put,
    real_dtype,
    repeat,
    safe_divide,
    square,
    times,
    times_powers,
    varying_like,
    worst,
)
from eagle_jax.schedules import SETTLE

# Rows of A in a block, and blocks of P that are cleared at once, for up to so many rows of A: small enough that rows,
# made orthonormal one by one in a Gram matrix, cost less than the products around them, large enough for these to run
# at the speed of large products. Up to the first of them one block is all. `python -m experiments.bench.solve`.
_ONE_BLOCK, _SMALL = 48, 480
_BLOCK, _LARGE_BLOCK, _LARGE_CHUNK = 48, 64, 4
# Probes whose images tell norms: the chance that four normal numbers have a mean square below 0.02 is 2e-4.
_PROBES = 4
# Norms from probes may be too small by a factor of 8, and by power iterations by 2.
_CAUTION = 16


class Triangle(NamedTuple):
    """A triangular matrix of r x r blocks and the inverses of those on its diagonal; zero in rows that are not kept."""

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
    return adjoint(solve_right(adjoint(C), turned(t)))


def turned(t: Triangle) -> Triangle:
    return Triangle(adjoint(t.L), adjoint(t.J), ~t.upper)


# ---- M = L P -------------------------------------------------------------------------------------------------------


class LQ(NamedTuple):
    """M ~ L P. P: W x n; its `kept` rows are orthonormal, the others zero: the rank is their number."""

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
        if d <= _ONE_BLOCK:
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
    needed = longest2 > tol**2
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
    return LQ(s.rows, s.T, s.kept)


# ---- A⁺ = Pᴴ R⁻¹ V -------------------------------------------------------------------------------------------------


class Core(NamedTuple):
    """The pseudo-inverse Pᴴ R⁻¹ V. P: W x n, R: W x W, V: W x d; zero in rows that are not kept."""

    P: jax.Array
    R: Triangle
    V: jax.Array
    rank: jax.Array


def _normals(shape, dtype):
    return jnp.asarray(np.random.default_rng(1).standard_normal(shape), dtype)


def largest(A, weights, iterations):
    """‖diag(w) A‖₂ for each w, from below, by power iterations."""
    weights = jnp.repeat(jnp.stack(weights), _PROBES, 0)

    def step(_, carry):
        x = carry[0]
        x = times(x, 1 / jnp.maximum(lengths(x), float(jnp.finfo(x.dtype).tiny))[:, None])
        y = matmul(times(x, weights), A)
        return times(matmul(y, adjoint(A)), weights), lengths(y)

    start = _normals(weights.shape, A.dtype), jnp.zeros(len(weights), weights.dtype)
    sizes = repeat(iterations, step, varying_like(start, A, weights))[1]
    return jnp.max(sizes.reshape(-1, _PROBES), 1)


def inverse_size(core: Core, weights):
    """About ‖A⁺ diag(w)‖ in the Frobenius norm: the mean of four squares is rarely below 1/50 of what it should be."""
    probes = _normals((_PROBES, len(core.P)), core.P.dtype)
    return norm(times(matmul(solve_right(probes, core.R), core.V), weights)) / _PROBES**0.5


def once(needed, function, x):
    """function(x) if needed, else x: a loop, since under vmap a lax.cond would always do both."""
    return lax.while_loop(lambda c: c[1], lambda c: (function(c[0]), c[1] & False), (x, needed))[0]


def _deficient(A, s, core: Core, noise) -> Core:
    """From diag(1/s) A = F P, P having fewer rows: the complete orthogonal decomposition, Fᴴ = L₂ P₂."""
    two = lq(times(matmul(core.P, adjoint(A)), 1 / s), Sizes.of(len(core.P)), noise)
    return Core(jnp.where(two.kept[:, None], core.P, 0), turned(two.T), two.P, jnp.sum(two.kept, dtype=jnp.int32))


def _truncated(core: Core, tau) -> Core:
    """Singular values at or below tau dropped."""
    P, R, V, _ = core
    W, dtype = len(P), P.dtype
    kept = jnp.any(V != 0, 1)
    three = lq(jnp.concatenate([R.L, jnp.diag(jnp.where(kept, tau, 0).astype(dtype))], 1), Sizes.of(W), tau / 8)
    P1 = three.P[:, :W]
    T = matmul(adjoint(P1), P1)
    projector = _sharpened(T)
    # T⁻¹ Π = Π (1 + N)(1 + N²)(1 + N⁴)... with N = (1 - T) Π, |N| <= 1/2
    terms = math.ceil(math.log2(-math.log2(epsilon(dtype))))
    grow = lambda _, c: (c[0] + matmul(c[0], c[1]), matmul(c[1], c[1]))  # noqa: E731
    inverse, _ = repeat(terms, grow, (projector, projector - matmul(T, projector)))
    P = matmul(matmul(P1, inverse), P)
    rank = jnp.round(jnp.real(jnp.trace(projector))).astype(jnp.int32)
    return Core(P, three.T, jnp.where(three.kept[:, None], V, 0), rank)


def _sharpened(T):
    """The eigenvalues of T above 1/2 moved to 1, the others to 0: Updates of 2 T - I, which make it an isometry."""
    eye = jnp.eye(len(T), dtype=T.dtype)
    enough = 8 * len(T) ** 0.5 * epsilon(T.dtype)
    scales, etas = (jnp.asarray(v, T.dtype) for v in zip(*SETTLE, strict=True))

    def step(i, X):
        return scales[i] * (X - etas[i] * matmul(matmul(X, X), X))

    def cycle(carry):
        X = repeat(len(SETTLE), step, carry[0])
        return X, norm(matmul(X, X) - eye) / len(T) ** 0.5, carry[2] + 1

    start = varying_like((2 * T - eye, jnp.ones((), real_dtype(T.dtype)), jnp.zeros((), jnp.int32)), T)
    X, _, _ = lax.while_loop(lambda c: (c[1] > enough) & (c[2] < 8), cycle, start)
    return 0.5 * (X + eye)


class Rows(NamedTuple):
    """A with rows scaled by powers of two to lengths near one, and its pseudo-inverse."""

    A: jax.Array
    unit: jax.Array  # rows of A are those of the caller times unit s, powers of two
    s: jax.Array
    P: jax.Array
    R: Triangle
    V: jax.Array
    rank: jax.Array
    size: jax.Array  # ‖A‖₂ of the caller, about
    inverse_size: jax.Array  # ‖A⁺‖ likewise


def noise(A) -> float:
    """What rounding leaves of rows that should be zero, relative to the longest: at most d/5 eps in rank-deficient
    matrices of 20 to 240 rows and 30 to 5000 columns, in both precisions.
    """
    complexity = 1.0 if jnp.issubdtype(A.dtype, jnp.complexfloating) else 0.5
    return complexity * epsilon(A.dtype) * max(A.shape[0], 8)


def default_rcond(A) -> float:
    """LAPACK's eps max(d, n), but never more than half of the digits."""
    eps = epsilon(A.dtype)
    return min(eps * max(A.shape), eps**0.5)


def equilibrated(A):
    """(unit, s, diag(s) unit A): by powers of two, the largest entry and the rows' lengths near one."""
    most = jnp.max(jnp.abs(A), 1)
    unit = power_of_two(jnp.max(most))
    s = power_of_two(most * unit)
    s = s * power_of_two(lengths(times(times(A, unit), s[:, None])))
    return unit, s, times(times(A, unit), s[:, None])


def mixing(d: int, dtype):
    """(O₁, O₂, signs) of U = (O₁ ⊗ O₂) diag(signs), a fixed random orthogonal matrix, or its first d columns."""
    rng = np.random.default_rng(3)
    s = math.isqrt(d)
    s = next((k for k in range(s, 0, -1) if d % k == 0 and k**3 >= d), s)  # a divisor of d, if one is near its root
    small, large = (np.linalg.qr(rng.standard_normal((k, k)))[0] for k in (s, -(-d // s)))
    return [jnp.asarray(x, dtype) for x in (small, large, rng.choice([-1.0, 1.0], d))]


def mixed(A) -> Core:
    """M = U A = L P: the pseudo-inverse if the rank is full. One block, which takes its longest rows first, needs no U.

    U A costs O(d^1.5) a column; it has a few rows more than A where d has no divisor near its root.
    """
    d, n = A.shape
    if d <= _ONE_BLOCK:
        M, U = A, jnp.eye(d, dtype=A.dtype)
    else:
        small, large, signs = mixing(d, A.dtype)
        s, t = len(small), len(large)
        M = jnp.pad(signs[:, None] * A, ((0, s * t - d), (0, 0)))
        M = matmul(large, matmul(small, M.reshape(s, t * n)).reshape(s, t, n)).reshape(s * t, n)
        U = (small[:, None, :, None] * large[:, None, :]).reshape(s * t, s * t)[:, :d] * signs
    sizes = Sizes.of(len(M))
    P, T, kept = lq(M, sizes, noise(A) * jnp.max(lengths(M)))
    U = jnp.where(kept[:, None], jnp.pad(U, ((0, sizes.W - len(M)), (0, 0))), 0)
    return Core(P, T, U, jnp.sum(kept, dtype=jnp.int32))


def factorise(A, rcond=None) -> Rows:
    """For d <= n; see the top of this file.

    Singular values at or below rcond ‖A‖₂ are dropped. The default drops what rounding cannot tell from zero, in rows
    of equal length.
    """
    given = rcond is not None
    unit, s, A = equilibrated(A)
    ones = jnp.ones_like(s)
    rcond = jnp.asarray(rcond if given else default_rcond(A), s.dtype)
    core = mixed(A)
    weights = s if given else ones
    inverse = _CAUTION * rcond * inverse_size(core, weights)
    # Norms with rows as scaled, and as the caller has them; accurate where a singular value may be as small as rcond.
    iterations = jnp.where(inverse * norm(lengths(A) / weights) < 1, 3, 20)
    scaled, callers = largest(A, (ones, 1 / s), iterations)

    def deficient(core: Core) -> Core:
        core = _deficient(A, s, core, noise(A) * callers)
        near = _CAUTION * rcond * inverse_size(core, ones) * callers >= 1
        core = once(near, partial(_truncated, tau=rcond * callers), core)
        return core._replace(V=times(core.V, 1 / s))

    needed = (core.rank < len(A)) | (inverse * (callers if given else scaled) >= 1)
    core = once(needed, deficient, core)
    return Rows(A, unit, s, core.P, core.R, core.V, core.rank, callers / unit, inverse_size(core, s) * unit)


# ---- solutions -----------------------------------------------------------------------------------------------------


class Refined(NamedTuple):
    X: jax.Array
    error: jax.Array  # backward, of X
    passes: jax.Array


def _refined(correct, residual, explain, first, start, rtol) -> Refined:
    """X from 0 by corrections until its backward error is at most rtol / 4, at least two and as long as they help."""

    def pass_(carry):
        X, G, error, _, passes = carry
        new = X + correct(G)
        G, new_error = explain(residual(new), new)
        better = new_error < error
        X, G = jnp.where(better, new, X), jnp.where(better, G, 0)
        return X, G, jnp.where(better, new_error, error), error, passes + 1

    def more(carry):
        _, _, error, before, passes = carry
        return (passes < 2) | ((error > 0.25 * rtol) & (error < 0.25 * before) & (passes < 8))

    inf = jnp.full((), jnp.inf, real_dtype(start.dtype))
    carry = start, first, inf, inf, jnp.zeros((), jnp.int32)
    X, _, error, _, passes = lax.while_loop(more, pass_, varying_like(carry, first, start, residual(start)))
    return Refined(X, error, passes)


def least_squares(f: Rows, B, rtol) -> Refined:
    """W ~ B A⁺ of the scaled A. P is a basis of what A explains: ‖R Pᴴ‖ is what is left to explain of B, for any rank.

    The backward error compares it, row by row, with Σ |w_i| ‖a_i‖ + ‖b‖: each row of A may be wrong in its own size.
    """
    sizes, size_B = lengths(f.A), lengths(B)

    def explain(R, W):
        G = matmul(R, adjoint(f.P))
        return G, worst(safe_divide(lengths(G), matmul(jnp.abs(W), sizes[:, None])[:, 0] + size_B))

    return _refined(
        correct=lambda G: matmul(solve_right(G, f.R), f.V),
        residual=lambda W: B - matmul(W, f.A),
        explain=explain,
        first=matmul(B, adjoint(f.P)),
        start=jnp.zeros((len(B), len(f.A)), B.dtype),
        rtol=rtol,
    )


def minimum_norm(f: Rows, C, rtol) -> Refined:
    """Y ~ A⁺ C of the scaled A; V (C - A Y) is what is left, since V A = R P."""
    first = matmul(f.V, C)
    size_R, size_C = jnp.max(norm(f.R.L, 1)), norm(first, 0)

    def explain(R, Y):
        G = matmul(f.V, R)
        return G, worst(safe_divide(norm(G, 0), size_R * norm(Y, 0) + size_C))

    return _refined(
        correct=lambda G: matmul(adjoint(f.P), solve_left(f.R, G)),
        residual=lambda Y: C - matmul(f.A, Y),
        explain=explain,
        first=first,
        start=jnp.zeros((f.A.shape[1], C.shape[1]), C.dtype),
        rtol=rtol,
    )


class Answer(NamedTuple):
    """A value, its backward error, passes of refinement, and of A: the rank, about ‖A‖ and about ‖A⁺‖."""

    value: jax.Array
    error: jax.Array
    passes: jax.Array
    rank: jax.Array
    size: jax.Array
    inverse_size: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factor:
    """A's factorisation, for any number of right-hand sides; a pytree. A is to be finite."""

    rows: Rows  # of A, or of its adjoint
    tall: bool = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, A, rcond=None) -> "Factor":
        tall = A.shape[0] > A.shape[1]
        return cls(factorise(adjoint(A) if tall else A, rcond), tall)

    def estimate(self, B, rtol) -> Answer:
        """W = B A⁺."""
        return _adjoint(self._right(adjoint(B), rtol)) if self.tall else self._left(B, rtol)

    def right(self, C, rtol) -> Answer:
        """Y = A⁺ C."""
        return _adjoint(self._left(adjoint(C), rtol)) if self.tall else self._right(C, rtol)

    def _left(self, B, rtol) -> Answer:
        unit = power_of_two(jnp.max(jnp.abs(B), 1, keepdims=True))
        W, error, passes = least_squares(self.rows, times(B, unit), rtol)
        return self._answer(times_powers(W, (self.rows.s, self.rows.unit), (unit,)), error, passes)

    def _right(self, C, rtol) -> Answer:
        first, top = power_of_two(jnp.max(jnp.abs(C), 0)), jnp.max(self.rows.s)
        C = times(times(C, first), (self.rows.s / top)[:, None])
        then = power_of_two(jnp.max(jnp.abs(C), 0))
        Y, error, passes = minimum_norm(self.rows, times(C, then), rtol)
        return self._answer(times_powers(Y, (top, self.rows.unit), (first, then)), error, passes)

    def _answer(self, value, error, passes) -> Answer:
        return Answer(value, error, passes, self.rows.rank, self.rows.size, self.rows.inverse_size)


def _adjoint(answer: Answer) -> Answer:
    return answer._replace(value=adjoint(answer.value))
