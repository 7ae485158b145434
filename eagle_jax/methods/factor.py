"""Block LQ: rank-revealing least squares by matrix products, in time that does not depend on the condition number.

EAGLE makes A an isometry step by step; then one Update fills D. Here A becomes an isometry block by block: read r rows,
make them orthonormal, clear the rest of them. With orthonormal rows P and a lower triangular R of the numerical rank,

    A⁺ = Pᴴ R⁻¹ V,        W = B A⁺ = ((B Pᴴ) R⁻¹) V,        Y = A⁺ C = Pᴴ (R⁻¹ (V C)) .

full rank     M = U S A, rows equilibrated by powers of two (S) and mixed by an orthogonal U so that leading rows span
              leading directions (RURV: Demmel, Dumitriu, Holtz 2007);  M = L P, R = L, V = U S.
deficient     A = F P with F = (U S)⁻¹ L of full column rank in the caller's scaling, which the minimum norm is about.
              [Fᴴ, τ I] = L̃ [P₁, P₂] holds no squares; P₂ is small if F's singular values are well above τ = rcond ‖A‖,
              and then R = L̃ᴴ, V = P₁.
truncated     if not: T = P₁P₁ᴴ has the eigenvalues s²/(s² + τ²), above 1/2 just where s > τ. Sharpened to 0 and 1 by
              Updates it is a projector Π: V = T⁻¹ Π P₁, numpy's answer for any rcond that is above rounding.

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
from eagle_jax.machines import Alone, Peers
from eagle_jax.methods.lq import ONE_BLOCK, Sizes, Triangle, lq, solve_left, solve_right, turned
from eagle_jax.schedules import SETTLE

# Probes whose images tell norms: the chance that four normal numbers have a mean square below 0.02 is 2e-4.
_PROBES = 4
# Norms from probes may be too small by that.
_CAUTION = 8
# A pass leaves (τ/s)² < 1/_CAUTION² where s is not near τ: 2⁻⁵² takes nine.
_MOST_PASSES = 12


class Core(NamedTuple):
    """The pseudo-inverse Pᴴ R⁻¹ V. P: W x n, R: W x W, V: W x d; zero in rows that are not kept."""

    P: jax.Array
    R: Triangle
    V: jax.Array
    rank: jax.Array


def _normals(shape, dtype):
    return jnp.asarray(np.random.default_rng(1).standard_normal(shape), dtype)


def _unit(x):
    """Rows scaled to length one."""
    return times(x, 1 / jnp.maximum(lengths(x), float(jnp.finfo(x.dtype).tiny))[:, None])


def largest(A, weights, iterations):
    """‖diag(w) A‖ for each w: by power iterations, from below; without any the Frobenius norm, from above."""
    weights = jnp.repeat(jnp.stack(weights), _PROBES, 0)

    def step(_, carry):
        y = matmul(times(_unit(carry[0]), weights), A)
        return times(matmul(y, adjoint(A)), weights), lengths(y)

    start = _normals(weights.shape, A.dtype), lengths(weights * lengths(A))
    sizes = repeat(iterations, step, varying_like(start, A, weights, iterations))[1]
    return jnp.max(sizes.reshape(-1, _PROBES), 1)


def inverse_norms(core: Core, weights, limit: jax.Array | float = np.inf):
    """About ‖A⁺ diag(w)‖ for each w: the Frobenius norm by probes; where the first is above the limit, which may be as
    many singular values that are not small, the 2-norm by inverse iterations.
    """
    P, R, V, _ = core
    weights = jnp.repeat(jnp.stack(weights), _PROBES, 0)

    def forth(x):
        return times(matmul(solve_right(x, R), V), weights)

    def step(_, carry):
        y = forth(_unit(adjoint(solve_left(R, matmul(V, adjoint(times(carry[0], weights)))))))
        return _unit(y), jnp.max(lengths(y).reshape(-1, _PROBES), 1)

    probes = forth(_normals((len(weights), len(P)), P.dtype))
    start = _unit(probes), norm(probes.reshape(-1, _PROBES * weights.shape[1]), 1) / _PROBES**0.5
    return repeat(jnp.where(start[1][0] > limit, 3, 0), step, varying_like(start, probes, limit))[1]


def once(needed, function, x):
    """function(x) if needed, else x: a loop, since under vmap a lax.cond would always do both."""
    return lax.while_loop(lambda c: c[1], lambda c: (function(c[0]), c[1] & False), (x, needed))[0]


def _complete(A, s, core: Core, size, tau):
    """(Core, ‖A⁺‖_F) of diag(1/s) A, of the norm `size`, without singular values at or below tau.

    Its rank may be less than the number of its rows.
    """
    W, d = core.V.shape
    kept = jnp.where(jnp.any(core.P != 0, 1), 1, 0).astype(A.dtype)
    Fh = times(matmul(core.P, adjoint(A)), 1 / s)
    rows, T, _ = lq(jnp.concatenate([Fh, jnp.diag(times(kept, tau))], 1), Sizes.of(W), tau / 8)
    P1, P2 = rows[:, :d], rows[:, d:]
    inverse = safe_divide(norm(P2), tau)
    clear = inverse * tau < 1 / _CAUTION
    full = Core(core.P, turned(T), P1, core.rank), inverse
    # V A renews P: its rows may have been made of nearly dependent ones, with that error in them; A's have none. Where
    # R⁻¹ raises the rounding of V A beyond it, the old P is the better one.
    renewable = clear & (inverse * size < epsilon(A.dtype) ** -0.4)
    full = once(renewable, partial(_renewed, A, s), full)
    return once(~clear, partial(_truncated, P2=P2, tau=tau), full)


def _renewed(A, s, found):
    core, inverse = found
    return core._replace(P=solve_left(core.R, matmul(times(core.V, 1 / s), A))), inverse


def _truncated(found, P2, tau):
    """Singular values at or below tau dropped, on both sides: L̃⁻¹ would raise what rounding leaves of them."""
    (P, R, P1, _), _ = found
    T, outside = matmul(P1, adjoint(P1)), matmul(adjoint(P2), P2)
    kept = jnp.diag(jnp.any(P != 0, 1).astype(P.dtype))
    right, left = _sharpened(jnp.stack([T, kept - outside]))
    # T⁻¹ Π by Newton's iteration from 4/3 Π: T is between 1/2 and 1 there, so 1/3 is wrong, then 1/9, ... 2e-8, and
    # what is left of it is refined.
    inverse = repeat(4, lambda _, X: 2 * X - matmul(X, matmul(T, X)), 4 / 3 * right)
    V = matmul(inverse, P1)
    rank = jnp.round(jnp.real(jnp.trace(right))).astype(jnp.int32)
    return Core(matmul(left, P), R, V, rank), safe_divide(norm(matmul(adjoint(P2), V)), tau)


def _sharpened(both):
    """The eigenvalues of each matrix above 1/2 moved to 1, the others to 0: Updates make 2 T - I an isometry."""
    count, W, _ = both.shape
    eye = jnp.eye(W, dtype=both.dtype)
    enough = 8 * W**0.5 * epsilon(both.dtype)
    scales, etas = (jnp.asarray(v, both.dtype) for v in zip(*SETTLE, strict=True))

    def step(i, X):
        return scales[i] * (X - etas[i] * matmul(matmul(X, X), X))

    def cycle(carry):
        X = repeat(len(SETTLE), step, carry[0])
        return X, norm(matmul(X, X) - eye) / W**0.5, carry[2] + 1

    def one(i, both):
        T = get(both, (1, W, W), i, 0, 0)[0]
        start = varying_like((2 * T - eye, jnp.ones((), real_dtype(T.dtype)), jnp.zeros((), jnp.int32)), T)
        X, _, _ = lax.while_loop(lambda c: (c[1] > enough) & (c[2] < 8), cycle, start)
        return put(both, 0.5 * (X + eye)[None], i, 0, 0)

    return repeat(count, one, both)  # one after the other: half the memory


class Rows(NamedTuple):
    """A with rows scaled by powers of two to lengths near one, and its pseudo-inverse."""

    A: jax.Array
    unit: jax.Array  # rows of A are those of the caller times unit s, powers of two
    s: jax.Array
    P: jax.Array
    R: Triangle
    V: jax.Array
    rank: jax.Array
    size: jax.Array  # of the caller's A: the Frobenius norm, or where a singular value is near rcond about ‖A‖₂
    inverse_size: jax.Array  # the Frobenius norm of its A⁺, about
    spans: jax.Array  # whether P has all rows of A


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
    if d <= ONE_BLOCK:
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


def factorise(A, rcond=None, columns: int | jax.Array = 0) -> Rows:
    """For d <= n; see the top of this file.

    Singular values at or below rcond ‖A‖₂ are dropped. The default drops what rounding cannot tell from zero, in rows
    of equal length; if there is any, in the caller's rows. columns: those that A had before it was merged.
    """
    given = rcond is not None
    unit, s, A = equilibrated(A)
    ones = jnp.ones_like(s)
    if rcond is None:
        eps = epsilon(A.dtype)
        rcond = jnp.maximum(default_rcond(A), jnp.minimum(eps * columns, eps**0.5))
    rcond = jnp.asarray(rcond, s.dtype)
    core = mixed(A)
    top, lengths_A = jnp.max(s), lengths(A)
    weights, bound = (s / top, top * norm(lengths_A / s)) if given else (ones, norm(lengths_A))
    first, inverse = inverse_norms(core, (weights, s / top), 1 / (_CAUTION * rcond * bound))
    # With rows as scaled, and as the caller has them; accurate where a singular value may be as small as rcond.
    iterations = jnp.where(_CAUTION * rcond * first * bound < 1, 0, 40 if given else 12)
    scaled, callers = largest(A, (ones, 1 / s), iterations)
    spans = _spans(core.P, A, noise(A) * jnp.max(lengths_A))
    tau = jnp.maximum(rcond, noise(A)) * callers

    def complete(found):
        core, inverse = _complete(A, s, found[0], callers, tau)
        return core._replace(V=times(core.V, 1 / s)), inverse

    needed = (core.rank < len(A)) | (_CAUTION * rcond * first * (top * callers if given else scaled) >= 1)
    core, inverse = once(needed, complete, (core, inverse * top))
    return Rows(A, unit, s, core.P, core.R, core.V, core.rank, callers / unit, inverse * unit, spans)


def _spans(P, A, tol):
    """Whether P has all rows of A but for remainders below tol each, by random combinations of them."""
    y = matmul(_normals((_PROBES, len(A)), A.dtype), A)
    return norm(y - matmul(matmul(y, adjoint(P)), P)) <= 4 * len(A) * tol


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
        return (passes < 2) | ((error > 0.25 * rtol) & (error < 0.25 * before) & (passes < _MOST_PASSES))

    inf = jnp.full((), jnp.inf, real_dtype(start.dtype))
    rest = first, inf, inf, jnp.zeros((), jnp.int32)
    # Of machines X may be one's own rows; the errors are everybody's.
    carry = varying_like(start, first, correct(first)), *varying_like(rest, first)
    X, _, error, _, passes = lax.while_loop(more, pass_, carry)
    return Refined(X, error, passes)


def least_squares(f: Rows, B, rtol, total) -> Refined:
    """W ~ B A⁺ of the scaled A. P is a basis of what A explains: ‖R Pᴴ‖ is what is left to explain of B, for any rank.

    The backward error compares it, row by row, with Σ |w_i| ‖a_i‖ + ‖b‖: each row of A may be wrong in its own size.
    Columns of A, B and P may be one machine's; then `total` sums over machines.
    """
    squares = total(jnp.square(jnp.concatenate([lengths(f.A), lengths(B)])))
    sizes, size_B = jnp.split(jnp.sqrt(squares), [len(f.A)])

    def explain(R, W):
        G = total(matmul(R, adjoint(f.P)))
        return G, worst(safe_divide(lengths(G), matmul(jnp.abs(W), sizes[:, None])[:, 0] + size_B))

    return _refined(
        correct=lambda G: matmul(solve_right(G, f.R), f.V),
        residual=lambda W: B - matmul(W, f.A),
        explain=explain,
        first=total(matmul(B, adjoint(f.P))),
        start=jnp.zeros((len(B), len(f.A)), B.dtype),
        rtol=rtol,
    )


def minimum_norm(f: Rows, C, rtol, total) -> Refined:
    """Y ~ A⁺ C of the scaled A; V (C - A Y) is what is left, since V A = R P. Rows of Y are where A's columns are."""
    first = matmul(f.V, C)
    size_R, size_C = jnp.max(norm(f.R.L, 1)), norm(first, 0)

    def explain(R, Y):
        G = matmul(f.V, R)
        return G, worst(safe_divide(norm(G, 0), size_R * jnp.sqrt(total(jnp.sum(square(Y), 0))) + size_C))

    return _refined(
        correct=lambda G: matmul(adjoint(f.P), solve_left(f.R, G)),
        residual=lambda Y: C - total(matmul(f.A, Y)),
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
    """A's factorisation, for any number of right-hand sides; a pytree. A is to be finite.

    With peers, which hold some columns each, A and B are this machine's, and so are the rows of A⁺; all else is shared.
    """

    rows: Rows  # of A, or of its adjoint
    tall: bool = dataclasses.field(metadata={"static": True})
    peers: Alone | Peers = dataclasses.field(default=Alone(), metadata={"static": True})

    @classmethod
    def of(cls, A, rcond=None, columns: int | jax.Array = 0) -> "Factor":
        tall = A.shape[0] > A.shape[1]
        return cls(factorise(adjoint(A) if tall else A, rcond, columns), tall)

    def estimate(self, B, rtol) -> Answer:
        """W = B A⁺."""
        return _adjoint(self._right(adjoint(B), rtol)) if self.tall else self._left(B, rtol)

    def right(self, C, rtol) -> Answer:
        """Y = A⁺ C."""
        return _adjoint(self._left(adjoint(C), rtol)) if self.tall else self._right(C, rtol)

    def turned(self) -> "Factor":
        """That of the adjoint."""
        return Factor(self.rows, not self.tall)

    def unexplained(self, B):
        """B without what A explains of it, if that is little: one pass of refinement."""
        return adjoint(self._outside(adjoint(B))) if self.tall else self._beyond(B)

    def _beyond(self, B):
        f, unit = self.rows, power_of_two(jnp.max(jnp.abs(B), 1, keepdims=True))
        B = times(B, unit)
        return times(B - matmul(matmul(solve_right(matmul(B, adjoint(f.P)), f.R), f.V), f.A), 1 / unit)

    def _outside(self, C):
        f, unit, s = self.rows, power_of_two(jnp.max(jnp.abs(C), 0)), self.rows.s[:, None]
        C = times(times(C, unit), s / jnp.max(s))
        return times(C - matmul(f.A, matmul(adjoint(f.P), solve_left(f.R, matmul(f.V, C)))), jnp.max(s) / s) / unit

    def inverse(self, rtol) -> Answer:
        """A⁺, by as few right-hand sides as possible."""
        few = jnp.eye(len(self.rows.A), dtype=self.rows.A.dtype)
        return self.estimate(few, rtol) if self.tall else self.right(few, rtol)

    def _left(self, B, rtol) -> Answer:
        unit = power_of_two(self.peers.most(jnp.max(jnp.abs(B), 1, keepdims=True)))
        W, error, passes = least_squares(self.rows, times(B, unit), rtol, self.peers.sum)
        return self._answer(times_powers(W, (self.rows.s, self.rows.unit), (unit,)), error, passes)

    def _right(self, C, rtol) -> Answer:
        first, top = power_of_two(jnp.max(jnp.abs(C), 0)), jnp.max(self.rows.s)
        C = times(times(C, first), (self.rows.s / top)[:, None])
        then = power_of_two(jnp.max(jnp.abs(C), 0))
        Y, error, passes = minimum_norm(self.rows, times(C, then), rtol, self.peers.sum)
        return self._answer(times_powers(Y, (top, self.rows.unit), (first, then)), error, passes)

    def _answer(self, value, error, passes) -> Answer:
        error = jnp.where(self.rows.spans, error, jnp.inf)
        return Answer(value, error, passes, self.rows.rank, self.rows.size, self.rows.inverse_size)


def _adjoint(answer: Answer) -> Answer:
    return answer._replace(value=adjoint(answer.value))
