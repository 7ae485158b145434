"""Long data: least squares W A ~ B where A (d x n) has many more columns than rows.

gram        W E = B Aᴴ with E = A Aᴴ, refined on A and B. It squares the condition number, so it answers where it can
            certify that; it reads the data three or four times.
compressed  otherwise: [F, A_i] = F' P_i for one chunk of columns after the other, and B along with A. Orthonormal
            P_i change no least-squares problem; the end is one of d x (d + a block), for any rank.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.fallback import unless
from eagle_jax.linalg import (
    adjoint,
    epsilon,
    get,
    matmul,
    norm,
    power_of_two,
    real_dtype,
    repeat,
    safe_divide,
    square,
    times,
    times_powers,
    varying_like,
    worst,
)
from eagle_jax.methods.factor import Answer, Factor, default_rcond, equilibrated, inverse_norms, mixed
from eagle_jax.methods.lq import solve_right

# Columns a chunk: what fits a cache, for reading A once and using it twice.
_CHUNK = 1024
# Columns merged at a time, in units of d: the factor so far, carried along, then costs an eighth of the work. Every
# merge adds its rounding, so few rows have wider ones.
_MERGED, _FEWEST = 8, 1024


def gradient(A, B, W):
    """(R Aᴴ, ‖R‖² of the rows) of R = B - W A, in one pass over the data."""
    n = A.shape[1]
    whole = n // _CHUNK

    def part(A, B):
        R = B - matmul(W, A)
        return matmul(R, adjoint(A)), jnp.sum(square(R), 1)

    def add(i, total):
        cut = lambda x: get(x, (len(x), _CHUNK), 0, i * _CHUNK)  # noqa: E731
        return jax.tree.map(jnp.add, total, part(cut(A), cut(B)))

    rest = part(A[:, whole * _CHUNK :], B[:, whole * _CHUNK :])
    if whole == 0:
        return rest
    return repeat(whole, add, varying_like(rest, A, B, W))


class _Pass(NamedTuple):
    W: jax.Array
    correction: jax.Array
    error: jax.Array
    before: jax.Array
    passes: jax.Array


def judged(A, B, W, sizes, explained):
    """(backward error of W, R Aᴴ), by LSQR's tests; sizes: the lengths ‖a_i‖ of A's rows.

    Row by row the least of what is left and of what A explains of it, both relative to Σ |w_i| ‖a_i‖ + ‖b‖, and of
    ‖R Aᴴ‖ / (‖A‖ ‖R‖) with the rows of A made equal.
    """
    G, R2 = gradient(A, B, W)
    scale = matmul(jnp.abs(W), sizes[:, None])[:, 0] + norm(B, 1)
    left = safe_divide(jnp.minimum(jnp.sqrt(R2), explained(G)), scale)
    stationary = safe_divide(norm(times(G, safe_divide(1.0, sizes)), 1), jnp.sqrt(R2))  # ‖A‖ >= 1 then
    return worst(jnp.minimum(left, stationary)), G


def gram(A, B, rtol, rcond) -> Answer:
    """By corrections R Aᴴ E⁻¹ until the backward error is at most rtol / 4. It is inf where E has too few digits.

    A as it is: its squares must be far from the ends of the range.
    """
    d, eps, info = len(A), epsilon(A.dtype), jnp.finfo(A.dtype)
    E = matmul(A, adjoint(A))
    squares = jnp.real(jnp.diagonal(E))
    scalable = jnp.all((squares > float(info.tiny) ** 0.6) & (squares < float(info.max) ** 0.6))
    sizes = jnp.sqrt(jnp.where(scalable, squares, 1))
    s = power_of_two(sizes)
    core = mixed(jnp.where(scalable, times(E, s * s[:, None]), 0))
    inverse = jnp.sqrt(inverse_norms(core, (jnp.ones_like(s),))[0])
    size = norm(sizes * s)
    # In rows of equal length; for a given rcond in the caller's, where the least singular value may be less by max(s).
    cut = default_rcond(A) * size if rcond is None else rcond * norm(sizes) * jnp.max(s)
    # Beyond that, E has too few digits in its smallest eigenvalue to refine by.
    able = (core.rank == d) & (eps * inverse**2 * norm(times(E, s * s[:, None])) < 2e-3) & (4 * inverse * cut < 1)

    def correction(G):
        return times(matmul(solve_right(matmul(times(G, s), adjoint(core.P)), core.R), core.V), s)

    def step(c: _Pass) -> _Pass:
        W = c.W + c.correction
        # R's part in A's row space has the length sqrt(G E⁻¹ Gᴴ).
        explained = lambda G: jnp.sqrt(jnp.maximum(jnp.sum(jnp.real(G * correction(G).conj()), 1), 0))  # noqa: E731
        error, G = judged(A, B, W, sizes, explained)
        better = error < c.error
        return _Pass(
            W=jnp.where(better, W, c.W),
            correction=correction(G),
            error=jnp.where(better, error, c.error),
            before=c.error,
            passes=c.passes + 1,
        )

    def more(c: _Pass):
        return able & (c.error > 0.25 * rtol) & ((c.passes < 2) | (c.error < 0.25 * c.before)) & (c.passes < 8)

    zero, inf = jnp.zeros((len(B), d), A.dtype), jnp.full((), jnp.inf, real_dtype(A.dtype))
    start = _Pass(zero, correction(gradient(A, B, zero)[0]), inf, inf, jnp.zeros((), jnp.int32))
    end = lax.while_loop(more, step, varying_like(start, A, B))
    return Answer(end.W, end.error, end.passes, core.rank, norm(sizes), inverse * jnp.max(s))


def width(d: int, dtype) -> int:
    """Columns of what `compressed` makes of A with d rows."""
    return jax.eval_shape(mixed, jax.ShapeDtypeStruct((d, max(_MERGED * d, _FEWEST)), dtype)).P.shape[0]


def compressed(A, B, start: tuple[jax.Array, jax.Array] | None = None) -> tuple[jax.Array, jax.Array]:
    """(F, G): W F ~ G has the solutions of W A ~ B, for any rank. F: d x (d + a block). Added to `start`."""
    d, n = A.shape
    chunk = min(max(_MERGED * d, _FEWEST), n)
    count = -(-n // chunk) if n else 0
    A, B = (jnp.pad(x, ((0, 0), (0, count * chunk - n))) for x in (A, B))
    if start is None:
        columns = width(d, A.dtype)
        start = jnp.zeros((d, columns), A.dtype), jnp.zeros((len(B), columns), A.dtype)
    if n == 0:
        return start

    def merge(i, so_far):
        A_i, B_i = (
            jnp.concatenate([old, get(new, (len(new), chunk), 0, i * chunk)], 1)
            for old, new in zip(so_far, (A, B), strict=True)
        )
        P = mixed(A_i).P
        return matmul(A_i, adjoint(P)), matmul(B_i, adjoint(P))

    return repeat(count, merge, varying_like(start, A, B))


def estimate(A, B, rtol, rcond) -> Answer:
    """W = B A⁺ for d much less than n."""
    unit_B = power_of_two(jnp.max(jnp.abs(B), 1, keepdims=True))

    def slowly(A, B, unit_B):
        unit, s, A0 = equilibrated(A)
        F, G = compressed(A0, B)
        answer = Factor.of(times(F, 1 / s[:, None]), rcond, A.shape[1]).estimate(G, rtol)
        error = answer.error
        if rcond is None:  # ‖R Aᴴ‖ / ‖A‖ is less than what A explains of R; seen on the data itself
            seen, _ = judged(A0, B, times(answer.value, 1 / s), norm(A0, 1), lambda G: norm(G, 1) / norm(A0))
            error = jnp.where(seen > rtol, seen, error)
        return Answer(
            times_powers(answer.value, (unit,), (unit_B,)),
            error,
            *answer[2:4],
            answer.size / unit,
            answer.inverse_size * unit,
        )

    fast = gram(A, times(B, unit_B), rtol, rcond)
    answered, fast = fast.error <= rtol, fast._replace(value=times(fast.value, 1 / unit_B))
    return unless(answered, fast, slowly, A, times(B, unit_B), unit_B)
