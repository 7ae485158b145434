"""Block LQ: rank-revealing least squares by matrix products, in time that does not depend on the condition number.

EAGLE makes A an isometry step by step; then one Update fills D. Here A becomes an isometry block by block: read r rows,
make them orthonormal, clear the rest of them. With orthonormal rows P and a lower triangular R of the numerical rank,

    A⁺ = Pᴴ R⁻¹ V,        W = B A⁺ = ((B Pᴴ) R⁻¹) V,        Y = A⁺ C = Pᴴ (R⁻¹ (V C)) .

full rank     M = U S A, rows equilibrated by powers of two (S) and mixed by an orthogonal U so that leading rows span
              leading directions (RURV: Demmel, Dumitriu, Holtz 2007);  M = L P, R = L, V = U S.
deficient     A = F P with F = (U S)⁻¹ L of full column rank; Fᴴ = L₂ P₂ in the caller's scaling, which the minimum norm
              is about; R = L₂ᴴ, V = P₂.
truncated     where singular values are near rcond ‖A‖: [R, τ I] = L̃ [P₁, ·] holds no squares, and T = P₁ᴴP₁ has the
              eigenvalues s²/(s² + τ²), above 1/2 just where s > τ. Sharpened to 0 and 1 by Updates it is the projector Π
              on the leading right singular vectors: R ← L̃, P ← P₁ T⁻¹ Π P, numpy's answer for any rcond.

All here is for a fat A (d ≤ n); `Factor` turns a tall one over.
"""

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
    matmul,
    norm,
    power_of_two,
    put,
    real_dtype,
    square,
    varying_like,
)
from eagle_jax.schedules import SETTLE

# Rows of A in one block: small enough that pivots, taken one by one, cost less than the products around them.
# `python -m experiments.bench.solve` has the times.
_ONE_BLOCK, _BLOCK = 32, 48
# Probes whose images tell norms: the chance that four normal numbers have a mean square below 0.02 is 2e-4.
_PROBES = 4


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
    r, W = t.J.shape[-1], t.L.shape[0]

    def block(i, X):
        i = t.blocks - 1 - i
        c = t.first[i]
        g = get(G, (G.shape[0], r), 0, c) - matmul(X, get(t.L, (W, r), 0, c))
        return put(X, get(X, g.shape, 0, c) + matmul(g, t.J[i]), 0, c)

    return lax.fori_loop(0, t.blocks, block, varying_like(jnp.zeros_like(G), G, t))


def solve_left(t: Triangle, C):
    """Z with L Z = C, from the first block to the last."""
    r, W = t.J.shape[-1], t.L.shape[0]

    def block(i, Z):
        c = t.first[i]
        g = get(C, (r, C.shape[1]), c, 0) - matmul(get(t.L, (r, W), c, 0), Z)
        return put(Z, get(Z, g.shape, c, 0) + matmul(t.J[i], g), c, 0)

    return lax.fori_loop(0, t.blocks, block, varying_like(jnp.zeros_like(C), C, t))


# ---- M = L P -------------------------------------------------------------------------------------------------------


class LQ(NamedTuple):
    """M ~ L P. P: W x n, orthonormal rows, then zero ones; L: rows of M x W.

    Row order[i] of M was the i-th to enter P, so L[order] is the lower triangular `triangle`.
    """

    P: jax.Array
    L: jax.Array
    J: jax.Array
    first: jax.Array
    order: jax.Array
    rank: jax.Array
    blocks: jax.Array

    def triangle(self) -> Triangle:
        W = self.P.shape[0]
        kept = (jnp.arange(W) < self.rank)[:, None]
        return Triangle(jnp.where(kept, self.L[self.order], 0), self.J, self.first, self.blocks)


class _Progress(NamedTuple):
    lq: LQ
    j: jax.Array  # the block of rows at work
    waiting: jax.Array  # those of its rows that are not in P


def pivoted(G, cut2):
    """(Q, order, kept): Q G Qᴴ = I on the leading rows, one for each pivot of G above cut2; row order[i] was pivot i."""
    r = G.shape[0]
    index = jnp.arange(r, dtype=jnp.int32)

    def step(i, carry):
        E, T, free, inverses, turn = carry
        diagonal = jnp.where(free, jnp.real(jnp.diagonal(E)), -1)
        p = jnp.argmax(diagonal)
        good = diagonal[p] > cut2
        inverse = jnp.where(good, 1 / jnp.where(good, diagonal[p], 1), 0)
        hit = (index == p) & good
        free = free & ~hit
        c = jnp.where(free, E[:, p] * inverse, 0)[:, None]
        turn = jnp.where(hit, jnp.asarray(i, jnp.int32), turn)
        return E - c * E[p], T - c * T[p], free, jnp.where(hit, inverse, inverses), turn

    zeros, last = jnp.zeros(r, real_dtype(G.dtype)), jnp.full(r, r, jnp.int32)
    start = varying_like((G, jnp.eye(r, dtype=G.dtype), jnp.ones(r, bool), zeros, last), G, cut2)
    _, T, free, inverses, turn = lax.fori_loop(0, r, step, start)
    order = jnp.argsort(turn).astype(jnp.int32)
    return (T * jnp.sqrt(inverses)[:, None])[order], order, ~free


def isometric(P, Y, c, k):
    """(P, Y): the k rows Y, nearly orthonormal and nearly orthogonal to P, made so, and put into P as rows c, c+1, ...

    Newton-Schulz, which is Update, on the stack of P and Y: one pass squares what is wrong, and one does unless the
    rows were small remainders. They have length one by now, which is what makes the clearing lasting.
    """
    r = Y.shape[0]
    eye = jnp.diag((jnp.arange(r) < k).astype(Y.dtype))
    enough = epsilon(Y.dtype) ** 0.5

    def step(carry):
        P, Y, _, passes = carry
        K = matmul(Y, adjoint(P))
        G = get(K, (r, r), 0, c)
        K = put(K, G - eye, 0, c)
        off = jnp.max(jnp.abs(K))
        Y = matmul(put(-K, 1.5 * eye - 0.5 * G, 0, c), P)
        return put(P, Y, c, 0), Y, off, passes + 1

    one = varying_like((jnp.ones((), real_dtype(Y.dtype)), jnp.zeros((), jnp.int32)), P, Y, c)
    first = step((put(P, Y, c, 0), Y, *one))
    return lax.while_loop(lambda t: (t[2] > enough) & (t[3] < 4), step, first)[:2]


def _enter(M, r, tol, s: _Progress) -> _Progress:
    """One round on a block of rows: cleared of P, those that the Gram matrix can tell from noise go into P.

    One Gram matrix resolves half of the digits. So rows with pivots below delta of the longest wait for a next round,
    cleared of those that went in: one round for most blocks, two or three where the rank ends.
    """
    lq, (W, n), dtype = s.lq, s.lq.P.shape, M.dtype
    delta2 = epsilon(dtype) ** 0.6
    rows = jnp.where(s.waiting[:, None], get(M, (r, n), s.j * r, 0), 0)
    K = matmul(rows, adjoint(lq.P))
    X = rows - matmul(K, lq.P)
    size2 = jnp.sum(square(X), 1)
    Q, order, new = pivoted(matmul(X, adjoint(X)), jnp.maximum(tol**2, delta2 * jnp.max(size2)))
    k = jnp.sum(new, dtype=jnp.int32)
    P, Y = isometric(lq.P, matmul(Q, X), lq.rank, k)
    own = matmul(X, adjoint(Y))
    L = jnp.where(s.waiting[:, None], put(K, own, 0, lq.rank), get(lq.L, (r, W), s.j * r, 0))
    kept = jnp.arange(r) < k
    waiting = s.waiting & ~new & (size2 > tol**2)
    stay = jnp.any(waiting) & (k > 0)
    advanced = LQ(
        P=P,
        L=put(lq.L, L, s.j * r, 0),
        J=put(lq.J, _inverse(own[order], Q[:, order], kept)[None], lq.blocks, 0, 0),
        first=put(lq.first, lq.rank[None], lq.blocks),
        order=put(lq.order, s.j * r + order, lq.rank),
        rank=lq.rank + k,
        blocks=lq.blocks + (k > 0),
    )
    return _Progress(advanced, s.j + ~stay, ~stay | waiting)


def _inverse(L, J, kept):
    """The inverse of L's leading block by Newton's iteration; J is near it, since Q X is near an isometry."""
    both = kept[:, None] & kept
    L, J = jnp.where(both, L, 0), jnp.where(both, J, 0)
    for _ in range(2):
        J = matmul(J, jnp.where(both, 2 * jnp.eye(len(kept), dtype=L.dtype), 0) - matmul(L, J))
    return J


def lq(M, r: int, tol, width: int, stages: int = 1, rows=None) -> LQ:
    """M = L P, up to rows below tol, from M's first `rows` (all if None) and for ranks up to width - r.

    P grows in a few static widths, which saves half of the products.
    """
    (d, n), dtype = M.shape, M.dtype
    blocks = -(-d // r)
    M = jnp.pad(M, ((0, blocks * r - d), (0, 0)))
    last = blocks if rows is None else -(-rows // r)
    most = width // r + 8  # rounds that are not full come only where the pivots fall by another 1/delta
    widths = [max(round((width // r - 1) * (i + 1) / stages), 1) * r for i in range(stages - 1)] + [width]
    zero, W = jnp.zeros((), jnp.int32), widths[0]
    found = LQ(
        P=jnp.zeros((W, n), dtype),
        L=jnp.zeros((blocks * r, W), dtype),
        J=jnp.zeros((most, r, r), dtype),
        first=jnp.zeros(most, jnp.int32),
        order=jnp.zeros(W, jnp.int32),
        rank=zero,
        blocks=zero,
    )
    s = varying_like(_Progress(found, zero, jnp.ones(r, bool)), M, tol, last)
    for W in widths:
        more = W - s.lq.P.shape[0]
        wider = s.lq._replace(
            P=jnp.pad(s.lq.P, ((0, more), (0, 0))),
            L=jnp.pad(s.lq.L, ((0, 0), (0, more))),
            order=jnp.pad(s.lq.order, (0, more)),
        )

        def go_on(s: _Progress, W=W):
            return (s.j < last) & (s.lq.rank + r <= W) & (s.lq.blocks < most)

        s = lax.while_loop(go_on, partial(_enter, M, r, tol), s._replace(lq=wider))
    return s.lq


def mixing(d: int, dtype):
    """V -> U V for a fixed random orthogonal U: signs and Kronecker products of two small orthogonal matrices.

    One product if d has a divisor near its root; else one on the first rows and one on the last. O(d^1.5) a column.
    """
    rng = np.random.default_rng(3)
    root = math.isqrt(d)
    divisors = [s for s in range(root, 0, -1) if d % s == 0]
    s = divisors[0] if divisors and divisors[0] ** 3 >= d else max(root, 1)
    t = d // s
    small, large = (jnp.asarray(np.linalg.qr(rng.standard_normal((k, k)))[0], dtype) for k in (s, t))
    signs = jnp.asarray(rng.choice([-1.0, 1.0], (d, 1)), dtype)

    def turn(V):
        V1 = jnp.einsum("ij,jkn->ikn", small, V.reshape(s, t, -1), precision=lax.Precision.HIGHEST)
        return matmul(large, V1).reshape(V.shape)

    def mix(V):
        V = signs * V
        if s * t == d:
            return turn(V)
        V = jnp.concatenate([turn(V[: s * t]), V[s * t :]])
        return jnp.concatenate([V[: d - s * t], turn(V[d - s * t :])])

    return mix


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
    return x / jnp.maximum(norm(x, -1, True), float(jnp.finfo(x.dtype).tiny))


def largest(A, iterations: int):
    """‖A‖₂ from below, by power iterations."""

    def step(_, carry):
        y = matmul(_unit(carry[0]), A)
        return matmul(y, adjoint(A)), jnp.max(norm(y, -1))

    start = _normals((_PROBES, A.shape[0]), A.dtype), jnp.zeros((), real_dtype(A.dtype))
    return lax.fori_loop(0, iterations, step, varying_like(start, A))[1]


def inverse_size(core: Core, iterations: int):
    """About the Frobenius norm of the pseudo-inverse; with inverse iterations, its spectral norm from below."""
    x = matmul(solve_right(_normals((_PROBES, len(core.P)), core.P.dtype), core.R), core.V)

    def step(_, carry):
        z = adjoint(solve_left(core.R, matmul(core.V, adjoint(_unit(carry[0])))))
        return matmul(solve_right(z, core.R), core.V), jnp.max(norm(z, -1))

    return lax.fori_loop(0, iterations, step, (x, norm(x) / _PROBES**0.5))[1]


def _turned_over(t: Triangle) -> Triangle:
    """The adjoint, upper triangular, with rows and columns in reverse order: lower triangular again."""
    r, W, most = t.J.shape[-1], len(t.L), len(t.first)
    block = (t.blocks - 1 - jnp.arange(most)) % most
    return Triangle(adjoint(t.L)[::-1, ::-1], adjoint(t.J)[block, ::-1, ::-1], W - r - t.first[block], t.blocks)


def _deficient(A, P, rank, tau, noise) -> Core:
    """From A = F P: the complete orthogonal decomposition, truncated at tau where singular values are near it."""
    W, r = len(P), _block(A.shape[0])
    two = lq(matmul(P, adjoint(A)), r, noise, W, rows=rank)  # F is P Aᴴ, and not what L says of it
    leading = (jnp.arange(W) < two.rank)[:, None]
    core = Core(jnp.where(leading, P[two.order], 0)[::-1], _turned_over(two.triangle()), two.P[::-1], two.rank)
    clear = 1 / (2 * inverse_size(core, 4)) > tau
    return lax.cond(clear, lambda core: core, partial(_truncated, r=r, tau=tau), core)


def _truncated(core: Core, r: int, tau) -> Core:
    """Singular values at or below tau dropped."""
    P, R, V, rank = core
    W, dtype = len(P), P.dtype
    eye = jnp.eye(W, dtype=dtype)
    ridge = jnp.where(jnp.arange(W) >= W - rank, tau, 0).astype(dtype)
    three = lq(jnp.concatenate([R.L, ridge * eye], 1), r, tau / 8, W)
    P1 = three.P[:, :W]
    T = matmul(adjoint(P1), P1)
    projector = _sharpened(T)
    inverse, power = projector, projector - matmul(T, projector)  # T⁻¹ = Π (1 + N)(1 + N²)(1 + N⁴)..., |N| <= 1/2
    for _ in range(math.ceil(math.log2(-math.log2(epsilon(dtype))))):
        inverse, power = inverse + matmul(inverse, power), matmul(power, power)
    leading = (jnp.arange(W) < three.rank)[:, None]
    P = matmul(matmul(P1, inverse), P)
    kept = jnp.round(jnp.real(jnp.trace(projector))).astype(jnp.int32)
    return Core(P, three.triangle(), jnp.where(leading, V[three.order], 0), kept)


def _sharpened(T):
    """The eigenvalues of T above 1/2 moved to 1, the others to 0: Updates of 2 T - I, which make it an isometry."""
    eye = jnp.eye(len(T), dtype=T.dtype)
    enough = 8 * len(T) ** 0.5 * epsilon(T.dtype)

    def cycle(carry):
        X, _, i = carry
        for scale, eta in SETTLE:
            X = scale * (X - eta * matmul(matmul(X, X), X))
        return X, norm(matmul(X, X) - eye) / len(T) ** 0.5, i + 1

    start = varying_like((2 * T - eye, jnp.ones((), real_dtype(T.dtype)), jnp.zeros((), jnp.int32)), T)
    X, _, _ = lax.while_loop(lambda c: (c[1] > enough) & (c[2] < 8), cycle, start)
    return 0.5 * (X + eye)


def _block(d: int) -> int:
    return d if d <= _ONE_BLOCK else _BLOCK


def _stages(d: int) -> int:
    return 1 if d <= 2 * _BLOCK else 3


class Rows(NamedTuple):
    """A with rows scaled by powers of two to lengths near one, and its pseudo-inverse."""

    A: jax.Array
    scale: jax.Array  # rows of A over the caller's
    P: jax.Array
    R: Triangle
    V: jax.Array
    rank: jax.Array
    size: jax.Array  # ‖A‖₂ of the caller, about
    inverse_size: jax.Array  # ‖A⁺‖ likewise


def factorise(A, rcond) -> Rows:
    """For d <= n; see the top of this file. Singular values at or below rcond ‖A‖₂ are dropped."""
    (d, _), dtype = A.shape, A.dtype
    r, eps = _block(d), epsilon(dtype)
    unit = power_of_two(jnp.max(jnp.abs(A)))
    A1 = A * unit
    s = power_of_two(jnp.max(jnp.abs(A1), 1))[:, None]
    s = s * power_of_two(norm(A1 * s, 1, True))
    A0, mix = A1 * s, mixing(d, dtype)
    M = mix(A0)
    noise = 0.5 * eps * max(d, 8)
    first = lq(M, r, noise * jnp.max(norm(M, 1)), -(-d // r) * r + r, _stages(d))
    leading = (jnp.arange(len(first.P)) < first.rank)[:, None]
    V = jnp.where(leading, mix(jnp.diag(s[:, 0].astype(dtype)))[first.order], 0)
    full = Core(first.P, first.triangle(), V, first.rank)
    size = largest(A1, 3)
    tau = rcond * size
    clear = (first.rank == d) & (1 / (4 * inverse_size(full, 0)) > 2 * tau)

    def deficient(A1, first_P, rank, size):
        size = jnp.maximum(size, largest(A1, 20))
        return _deficient(A1, first_P, rank, rcond * size, noise * size)

    core = lax.cond(clear, lambda *_: full, deficient, A1, first.P, first.rank, size)
    return Rows(A0, (s * unit)[:, 0], core.P, core.R, core.V / s[:, 0], core.rank, size / unit, unit * inverse_size(core, 0))
