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

from eagle_jax.fallback import unless
from eagle_jax.linalg import (
    adjoint,
    epsilon,
    get,
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

# Rows of A in one block: small enough that pivots, taken one by one, cost less than the products around them, large
# enough for these to run at the speed of large products. `python -m experiments.bench.solve` has the times.
_ONE_BLOCK, _BLOCK, _SMALL, _LARGE_BLOCK = 32, 48, 480, 96
# Rows of P that are cleared at once: products with those that are not there yet cost half of this.
_CHUNK = 256
# Rounds on one block: each resolves 0.3 of the digits.
_ROUNDS = 5
# Probes whose images tell norms: the chance that four normal numbers have a mean square below 0.02 is 2e-4.
_PROBES = 4
# Norms from probes may be too small by a factor of 8, and by power iterations by 2.
_CAUTION = 16


class Triangle(NamedTuple):
    """A lower triangular matrix of blocks with dynamic places, and the inverses of its diagonal blocks.

    L: W x W, zero beyond the rank. J: inverses, zero beyond a block's size. first: where each block begins.
    """

    L: jax.Array
    J: jax.Array
    first: jax.Array
    blocks: jax.Array


def solve_right(G, t: Triangle):
    """X with X L = G, from the last block to the first."""
    if len(t.J) == 1:
        return matmul(G, t.J[0])
    r, W = t.J.shape[-1], t.L.shape[0]

    def block(i, X):
        i = t.blocks - 1 - i
        c = t.first[i]
        g = get(G, (G.shape[0], r), 0, c) - matmul(X, get(t.L, (W, r), 0, c))
        return put(X, get(X, g.shape, 0, c) + matmul(g, t.J[i]), 0, c)

    return repeat(t.blocks, block, varying_like(jnp.zeros_like(G), G, t))


def solve_left(t: Triangle, C):
    """Z with L Z = C, from the first block to the last."""
    if len(t.J) == 1:
        return matmul(t.J[0], C)
    r, W = t.J.shape[-1], t.L.shape[0]

    def block(i, Z):
        c = t.first[i]
        g = get(C, (r, C.shape[1]), c, 0) - matmul(get(t.L, (r, W), c, 0), Z)
        return put(Z, get(Z, g.shape, c, 0) + matmul(t.J[i], g), c, 0)

    return repeat(t.blocks, block, varying_like(jnp.zeros_like(C), C, t))


# ---- M = L P -------------------------------------------------------------------------------------------------------


class LQ(NamedTuple):
    """M[order] ~ T P. P: W x n, orthonormal rows, then zero ones; T: triangular; order: of M's rows as they came in."""

    P: jax.Array
    T: Triangle
    order: jax.Array
    rank: jax.Array


class _Progress(NamedTuple):
    rows: jax.Array  # P in the first `rank` of them, and from the next block on what of M is still to be read
    block: jax.Array  # the rows of M at work
    waiting: jax.Array  # those of them that are not in P
    j: jax.Array  # its number
    T: Triangle
    order: jax.Array
    rank: jax.Array


class Sizes(NamedTuple):
    """r: rows of a block. chunk: rows of P that are cleared at once. W: d in whole blocks and one to spare, unless d is
    one block.
    """

    r: int
    chunk: int
    W: int

    @classmethod
    def of(cls, d: int) -> "Sizes":
        if d <= _ONE_BLOCK:
            return cls(d, d, d)
        r = _BLOCK if d <= _SMALL else _LARGE_BLOCK
        W = r * (-(-d // r) + 1)
        return cls(r, r if d <= _SMALL else min(_CHUNK, W), W)


def cleared(X, P, c, chunk: int):
    """(X Pᴴ, X - X Pᴴ P) with the first c rows of P, from chunk to chunk."""
    (W, n), r = P.shape, len(X)
    if chunk == W:
        K = jnp.where(numbers(W) < c, matmul(X, adjoint(P)), 0)
        return K, X - matmul(K, P)

    def part(i, carry):
        K, X = carry
        first = jnp.minimum(i * chunk, W - chunk)
        rows, index = get(P, (chunk, n), first, 0), first + numbers(chunk)
        k = jnp.where((index >= i * chunk) & (index < c), matmul(X, adjoint(rows)), 0)
        return put(K, get(K, k.shape, 0, first) + k, 0, first), X - matmul(k, rows)

    return repeat(-(-c // chunk), part, varying_like((jnp.zeros((r, W), X.dtype), X), X, P, c))


def pivoted(G, cut2):
    """(Q, order, kept): Q G Qᴴ = I on leading rows, one for each pivot of G above cut2; order: rows by their pivots."""
    r = G.shape[0]
    index = numbers(r)

    def step(i, carry):
        E, pivots, scales, order = carry  # E: what is left of G, and beside it the elimination so far
        p, pivot = jnp.argmax(pivots).astype(jnp.int32), jnp.max(pivots)
        good = pivot > cut2
        inverse = jnp.where(good, 1 / jnp.where(good, pivot, 1), 0)
        hit = (index == p) & good
        row = jnp.sum(jnp.where(hit[:, None], E, 0), 0)
        left = jnp.where(hit, -1, pivots - square(row[:r]) * inverse)
        c = jnp.where((pivots > 0) & ~hit, times(row[:r].conj(), inverse), 0)
        return (
            E - c[:, None] * row,
            jnp.where(pivots > 0, left, pivots),
            jnp.where(hit, jnp.sqrt(inverse), scales),
            jnp.where((index == i) & good, p, order),
        )

    zeros = jnp.zeros(r, real_dtype(G.dtype))
    start = jnp.concatenate([G, jnp.eye(r, dtype=G.dtype)], 1), jnp.real(jnp.diagonal(G)), zeros, index * 0
    steps = jnp.where(jnp.max(start[1]) > cut2, r, 0)  # none for blocks that hold nothing new
    E, _, scales, order = repeat(steps, step, varying_like(start, G, cut2))
    kept = scales > 0
    Q = times(E[:, r:], scales[:, None])[order]
    return jnp.where((index < jnp.sum(kept, dtype=jnp.int32))[:, None], Q, 0), order, kept


def isometric(Y, P, c, k, chunk: int):
    """The leading k rows of Y, nearly orthonormal and nearly orthogonal to P's first c, made so.

    They are cleared once more, now that they have length one, which is what makes it lasting, and take a step of
    Newton-Schulz, which is Update. One pass squares what is wrong; one does unless the rows were small remainders.
    """
    eye = jnp.diag((numbers(len(Y)) < k).astype(Y.dtype))
    enough = epsilon(Y.dtype) ** 0.5

    def step(carry):
        Y, _, passes = carry
        K, Y = cleared(Y, P, c, chunk)
        G = matmul(Y, adjoint(Y))
        off = jnp.maximum(jnp.max(jnp.abs(K)), jnp.max(jnp.abs(G - eye)))
        return matmul(1.5 * eye - 0.5 * G, Y), off, passes + 1

    start = Y, (k > 0).astype(real_dtype(Y.dtype)), jnp.zeros((), jnp.int32)
    return lax.while_loop(lambda t: (t[1] > enough) & (t[2] < 4), step, varying_like(start, P, Y, c))[0]


def _told_from_noise(block, waiting, P, c, chunk: int, tol):
    """(K, X, squares of X's rows, Q, order, new): the waiting rows = K P + X, and `pivoted` of X's Gram matrix.

    One Gram matrix resolves half of the digits. So rows with pivots below delta of the longest wait for a next round,
    cleared of those that went in: one round for most blocks, two or three where the rank ends.
    """
    K, X = cleared(jnp.where(waiting[:, None], block, 0), P, c, chunk)
    size2 = jnp.sum(square(X), 1)
    delta2 = epsilon(X.dtype) ** 0.6
    return K, X, size2, *pivoted(matmul(X, adjoint(X)), jnp.maximum(tol**2, delta2 * jnp.max(size2)))


def _enter(sizes: Sizes, tol, s: _Progress) -> _Progress:
    """One round on a block of rows: cleared of P, those that the Gram matrix can tell from noise go into P."""
    (r, chunk, _), T, c = sizes, s.T, s.rank
    K, X, size2, Q, order, new = _told_from_noise(s.block, s.waiting, s.rows, c, chunk, tol)
    k = jnp.sum(new, dtype=jnp.int32)
    kept = numbers(r) < k
    Y = isometric(matmul(Q, X), s.rows, c, k, chunk)
    own = matmul(X, adjoint(Y))[order]
    rows = put(s.rows, jnp.where(kept[:, None], Y, get(s.rows, Y.shape, c, 0)), c, 0)
    triangle = Triangle(
        L=put(T.L, jnp.where(kept[:, None], put(K[order], own, 0, c), 0), c, 0),
        J=put(T.J, _inverse(own, Q[:, order], kept)[None], T.blocks, 0, 0),
        first=put(T.first, c[None], T.blocks),
        blocks=T.blocks + (k > 0).astype(jnp.int32),
    )
    waiting = s.waiting & ~new & (size2 > tol**2)
    stay = jnp.any(waiting) & (k > 0)
    return _Progress(
        rows=rows,
        block=jnp.where(stay, s.block, get(rows, Y.shape, (s.j + 1) * r, 0)),
        waiting=~stay | waiting,
        j=s.j + (~stay).astype(jnp.int32),
        T=triangle,
        order=put(s.order, s.j * r + order, c),
        rank=c + k,
    )


def _inverse(L, J, kept):
    """The inverse of L's leading block by Newton's iteration; J is near it, since Q X is near an isometry."""
    both = kept[:, None] & kept
    L, J = jnp.where(both, L, 0), jnp.where(both, J, 0)
    for _ in range(2):
        J = matmul(J, jnp.where(both, 2 * jnp.eye(len(kept), dtype=L.dtype), 0) - matmul(L, J))
    return J


class _Rounds(NamedTuple):
    """Like _Progress, for one block."""

    P: jax.Array
    L: jax.Array
    J: jax.Array  # its inverse
    order: jax.Array
    rank: jax.Array
    waiting: jax.Array
    more: jax.Array
    rounds: jax.Array


def one_block(M, tol) -> LQ:
    """`lq` of a few rows, as those of a batch: rows go to their places by products, where slices would be scatters."""
    (r, n), dtype, index = M.shape, M.dtype, numbers(len(M))

    def enter(s: _Rounds) -> _Rounds:
        K, X, size2, Q, order, new = _told_from_noise(M, s.waiting, s.P, s.rank, r, tol)
        k = jnp.sum(new, dtype=jnp.int32)
        kept = index < k
        Y = isometric(matmul(Q, X), s.P, s.rank, k, r)
        pick = ((order[:, None] == index) & kept[:, None]).astype(dtype)
        place = (index[:, None] == s.rank + index) & kept
        at = place.astype(dtype)
        own, K = matmul(pick, matmul(X, adjoint(Y))), matmul(pick, K)
        inverse = _inverse(own, matmul(Q, pick.T), kept)
        waiting = s.waiting & ~new & (size2 > tol**2)
        return _Rounds(
            P=s.P + matmul(at, Y),
            L=s.L + matmul(at, K + matmul(own, at.T)),
            J=s.J + matmul(at, matmul(inverse, at.T - matmul(K, s.J))),
            order=s.order + jnp.sum(jnp.where(place, order, 0), 1, dtype=jnp.int32),
            rank=s.rank + k,
            waiting=waiting,
            more=jnp.any(waiting) & (k > 0) & (s.rounds < _ROUNDS),
            rounds=s.rounds + 1,
        )

    none, zero = jnp.zeros((r, r), dtype), jnp.zeros((), jnp.int32)
    start = _Rounds(
        P=jnp.zeros((r, n), dtype),
        L=none,
        J=none,
        order=index * 0,
        rank=zero,
        waiting=jnp.ones(r, bool),
        more=jnp.ones((), bool),
        rounds=zero,
    )
    s = lax.while_loop(lambda s: s.more, enter, varying_like(start, M, tol))
    triangle = Triangle(s.L, s.J[None], jnp.zeros_like(s.order[:1]), jnp.ones_like(s.rank))
    return LQ(s.P, triangle, s.order, s.rank)


def lq(M, sizes: Sizes, tol, rows) -> LQ:
    """M = L P, up to rows below tol, from M's first `rows`, which bound the rank. P takes M's place as that is read."""
    (r, _, W), dtype = sizes, M.dtype
    if r == W:
        return one_block(M, tol)
    M = jnp.pad(M, ((0, W - len(M)), (0, 0)))
    last = -(-rows // r)
    most = W // r + 2 * _ROUNDS  # rounds that are not full come only where the pivots fall by another 1/delta
    zero = jnp.zeros((), jnp.int32)
    T = Triangle(jnp.zeros((W, W), dtype), jnp.zeros((most, r, r), dtype), jnp.zeros(most, jnp.int32), zero)
    start = _Progress(M, M[:r], jnp.ones(r, bool), zero, T, jnp.zeros(W, jnp.int32), zero)
    s = lax.while_loop(
        lambda s: (s.j < last) & (s.T.blocks < most),
        partial(_enter, sizes, tol),
        varying_like(start, M, tol, jnp.asarray(last)),
    )
    return LQ(jnp.where((numbers(W) < s.rank)[:, None], s.rows, 0), s.T, s.order, s.rank)


class Mixing(NamedTuple):
    """A fixed random orthogonal matrix U, or some of its columns: signs, and a Kronecker product of two small ones."""

    small: jax.Array
    large: jax.Array
    signs: jax.Array

    @classmethod
    def of(cls, d: int, dtype) -> "Mixing":
        rng = np.random.default_rng(3)
        s = max(math.isqrt(d), 1) if d > _ONE_BLOCK else d
        s = next((k for k in range(s, 0, -1) if d % k == 0 and k**3 >= d), s)  # a divisor of d, if one is near its root
        t = -(-d // s)
        small, large = (np.linalg.qr(rng.standard_normal((k, k)))[0] if k > 1 else np.ones((1, 1)) for k in (s, t))
        return cls(*(jnp.asarray(x, dtype) for x in (small, large, rng.choice([-1.0, 1.0], d))))

    def mix(self, A):
        """U A, O(d^1.5) a column; a few rows more than A has where d has no divisor near its root."""
        s, t, n = len(self.small), len(self.large), A.shape[1]
        A = jnp.pad(self.signs[:, None] * A, ((0, s * t - A.shape[0]), (0, 0)))
        A = matmul(self.small, A.reshape(s, t * n))
        return A if t == 1 else matmul(self.large, A.reshape(s, t, n)).reshape(s * t, n)

    def rows(self, index):
        """Those rows of U."""
        t = len(self.large)
        both = self.small[index // t][:, :, None] * self.large[index % t][:, None, :]
        return both.reshape(len(index), -1)[:, : len(self.signs)] * self.signs


# ---- A⁺ = Pᴴ R⁻¹ V -------------------------------------------------------------------------------------------------


class Core(NamedTuple):
    """The pseudo-inverse Pᴴ R⁻¹ V. P: W x n, R: W x W, V: W x d; zero beyond the rank."""

    P: jax.Array
    R: Triangle
    V: jax.Array
    rank: jax.Array


def _normals(shape, dtype):
    return jnp.asarray(np.random.default_rng(1).standard_normal(shape), dtype)


def _unit(x):
    return times(x, 1 / jnp.maximum(norm(x, -1, True), float(jnp.finfo(x.dtype).tiny)))


def largest(A, iterations: int):
    """‖A‖₂ from below, by power iterations."""

    def step(_, carry):
        y = matmul(_unit(carry[0]), A)
        return matmul(y, adjoint(A)), jnp.max(norm(y, -1))

    start = _normals((_PROBES, A.shape[0]), A.dtype), jnp.zeros((), real_dtype(A.dtype))
    return repeat(iterations, step, varying_like(start, A))[1]


def inverse_size(core: Core):
    """About ‖A⁺‖ in the Frobenius norm: the mean of four squares is rarely below 1/50 of what it should be."""
    probes = _normals((_PROBES, len(core.P)), core.P.dtype)
    return norm(matmul(solve_right(probes, core.R), core.V)) / _PROBES**0.5


def _turned_over(t: Triangle) -> Triangle:
    """The adjoint, upper triangular, with rows and columns in reverse order: lower triangular again."""
    r, W, most = t.J.shape[-1], len(t.L), len(t.first)
    block = (t.blocks - 1 - numbers(most)) % most
    return Triangle(adjoint(t.L)[::-1, ::-1], adjoint(t.J)[block, ::-1, ::-1], W - r - t.first[block], t.blocks)


def _leading_times(P, A, rank, chunk: int):
    """P A for the first `rank` rows of P, the others being zero."""

    def part(i, product):
        first = jnp.minimum(i * chunk, len(P) - chunk)
        return put(product, matmul(get(P, (chunk, len(A)), first, 0), A), first, 0)

    zeros = varying_like(jnp.zeros((len(P), A.shape[1]), A.dtype), P, A, rank)
    return repeat(-(-rank // chunk), part, zeros)


def _deficient(A, P, rank, tau, noise) -> Core:
    """From A = F P: the complete orthogonal decomposition, truncated at tau where singular values are near it."""
    sizes = Sizes.of(len(A))
    two = lq(_leading_times(P, adjoint(A), rank, sizes.chunk), sizes, noise, rank)  # Fᴴ from A itself, and not from L
    leading = (numbers(sizes.W) < two.rank)[:, None]
    core = Core(jnp.where(leading, P[two.order], 0)[::-1], _turned_over(two.T), two.P[::-1], two.rank)
    clear = _CAUTION * inverse_size(core) * tau < 1
    return lax.cond(clear, lambda core: core, partial(_truncated, sizes=sizes, tau=tau), core)


def _truncated(core: Core, sizes: Sizes, tau) -> Core:
    """Singular values at or below tau dropped."""
    P, R, V, rank = core
    W, dtype = len(P), P.dtype
    eye = jnp.eye(W, dtype=dtype)
    ridge = jnp.where(numbers(W) >= W - rank, tau, 0).astype(dtype)
    three = lq(jnp.concatenate([R.L, ridge * eye], 1), sizes, tau / 8, W)
    P1 = three.P[:, :W]
    T = matmul(adjoint(P1), P1)
    projector = _sharpened(T)
    # T⁻¹ Π = Π (1 + N)(1 + N²)(1 + N⁴)... with N = (1 - T) Π, |N| <= 1/2
    terms = math.ceil(math.log2(-math.log2(epsilon(dtype))))
    grow = lambda _, c: (c[0] + matmul(c[0], c[1]), matmul(c[1], c[1]))  # noqa: E731
    inverse, _ = repeat(terms, grow, (projector, projector - matmul(T, projector)))
    leading = (numbers(W) < three.rank)[:, None]
    P = matmul(matmul(P1, inverse), P)
    kept = jnp.round(jnp.real(jnp.trace(projector))).astype(jnp.int32)
    return Core(P, three.T, jnp.where(leading, V[three.order], 0), kept)


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
    return 0.5 * epsilon(A.dtype) * max(A.shape[0], 8)


def default_rcond(A) -> float:
    """LAPACK's eps max(d, n), but never more than half of the digits."""
    eps = epsilon(A.dtype)
    return min(eps * max(A.shape), eps**0.5)


def equilibrated(A):
    """(unit, s, unit A, diag(s) unit A): by powers of two, the largest entry and the rows' lengths near one."""
    unit = power_of_two(jnp.max(jnp.abs(A)))
    A1 = times(A, unit)
    s = power_of_two(jnp.max(jnp.abs(A1), 1))
    s = s * power_of_two(norm(times(A1, s[:, None]), 1))
    return unit, s, A1, times(A1, s[:, None])


def mixed(A) -> Core:
    """M = U A = L P: the pseudo-inverse if the rank is full."""
    d = len(A)
    mixing, sizes = Mixing.of(d, A.dtype), Sizes.of(d)
    M = mixing.mix(A)
    P, T, order, rank = lq(M, sizes, noise(A) * jnp.max(norm(M, 1)), len(M))
    return Core(P, T, jnp.where((numbers(sizes.W) < rank)[:, None], mixing.rows(order), 0), rank)


def factorise(A, rcond=None) -> Rows:
    """For d <= n; see the top of this file.

    Singular values at or below rcond ‖A‖₂ are dropped. The default drops what rounding cannot tell from zero, in rows
    of equal length.
    """
    d, dtype = len(A), A.dtype
    unit, s, A1, A0 = equilibrated(A)
    P, R, U, rank = mixed(A0)
    full, given = Core(P, R, times(U, s), rank), rcond is not None
    if not given:
        rcond, judged, seen = default_rcond(A), full._replace(V=U), A0
    else:
        rcond, judged, seen = jnp.asarray(rcond, real_dtype(dtype)), full, A1
    clear = (rank == d) & (_CAUTION * inverse_size(judged) * rcond * largest(seen, 3) < 1)

    iterations = 20 if given else 5

    def deficient(A1, P, rank, rcond):
        size = largest(A1, iterations)
        return _deficient(A1, P, rank, rcond * size, noise(A1) * size)

    core = unless(clear, full, deficient, A1, P, rank, jnp.asarray(rcond, real_dtype(dtype)))
    inverse, size = inverse_size(core), largest(A1, 3)
    return Rows(A0, unit, s, core.P, core.R, times(core.V, 1 / s), core.rank, size / unit, inverse * unit)


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
    sizes, size_B = norm(f.A, 1), norm(B, 1)

    def explain(R, W):
        G = matmul(R, adjoint(f.P))
        return G, worst(safe_divide(norm(G, 1), matmul(jnp.abs(W), sizes[:, None])[:, 0] + size_B))

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
