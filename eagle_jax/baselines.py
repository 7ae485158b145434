"""What EAGLE is compared with: solvers for D = W C, W = argmin ||W A - B||_F, recording D after every step.

One signature, `baseline(A, B, C, *, steps, ridge) -> Trace`, for jit and vmap, with A (d, n), B (d', n) and
C (d, n'). `ridge` is lambda in ½||W A - B||² + ½ lambda ||W||²; it and `steps` are plain numbers. W starts
at 0. The formulas are those of the paper's appendix "Details on the implementation of baselines".
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.blocks import as_blocks, as_matrices
from eagle_jax.linalg import matmul, safe_divide
from eagle_jax.sketch import Sketch
from eagle_jax.spectral import sharp_energy_bound
from eagle_jax.update import sketched

_POWER_STEPS = 100


class Trace(NamedTuple):
    """D: the last value, (d', n'). history: D after each step, (steps, d', n')."""

    D: jax.Array
    history: jax.Array


def direct(A: jax.Array, B: jax.Array, C: jax.Array, *, steps: int = 1, ridge: float = 0.0) -> Trace:
    """Least squares by SVD (`jnp.linalg.lstsq`, minimum norm): one step, whatever `steps` says."""
    A, B, C = _check(A, B, C, steps, ridge)
    if ridge:
        A = jnp.concatenate([A, ridge**0.5 * jnp.eye(A.shape[0], dtype=A.dtype)], axis=1)
        B = jnp.pad(B, ((0, 0), (0, A.shape[1] - B.shape[1])))
    W = jnp.linalg.lstsq(A.T, B.T)[0].T
    D = matmul(W, C)
    return Trace(D, D[None])


def gradient_descent(A: jax.Array, B: jax.Array, C: jax.Array, *, steps: int = 1000, ridge: float = 0.0) -> Trace:
    """W <- W - ((W A - B) Aᵀ + ridge W)/||A||₂².

    The norm comes from 100 power iterations. The paper's two leave ||A||₂² 11 to 25 % short on data like its
    own, and GD would run with a longer step than the one it is said to have.
    """
    A, B, C = _check(A, B, C, steps, ridge)
    step_size = safe_divide(1.0, _squared_norm(A))

    def step(W, _):
        W = W - step_size * (matmul(matmul(W, A) - B, A.T) + ridge * W)
        return W, matmul(W, C)

    _, history = jax.lax.scan(step, jnp.zeros((B.shape[0], A.shape[0]), A.dtype), length=steps)
    return Trace(history[-1], history)


class _CG(NamedTuple):
    W: jax.Array
    R: jax.Array
    P: jax.Array
    rr: jax.Array


def conjugate_gradients(A: jax.Array, B: jax.Array, C: jax.Array, *, steps: int = 500, ridge: float = 0.0) -> Trace:
    """CG on W G = B Aᵀ with the formed G = A Aᵀ + ridge I; one inner product over all of W, as in the paper.

    G has the square of A's condition number. On a rank-deficient A the iteration can drift after it has
    converged: read `history`, not only the last D.
    """
    A, B, C = _check(A, B, C, steps, ridge)
    G = matmul(A, A.T) + ridge * jnp.eye(A.shape[0], dtype=A.dtype)
    R = matmul(B, A.T)

    start = _CG(jnp.zeros_like(R), R, R, jnp.vdot(R, R, precision="highest"))
    _, history = jax.lax.scan(_cg_step(lambda P: matmul(P, G), C), start, length=steps)
    return Trace(history[-1], history)


def _cg_step(multiply: Callable, C: jax.Array) -> Callable:
    def step(s: _CG, _):
        PG = multiply(s.P)
        alpha = safe_divide(s.rr, jnp.vdot(s.P, PG, precision="highest"))
        W = s.W + alpha * s.P
        R = s.R - alpha * PG
        rr = jnp.vdot(R, R, precision="highest")
        P = R + safe_divide(rr, s.rr) * s.P
        return _CG(W, R, P, rr), matmul(W, C)

    return step


def conjugate_gradients_until(A: jax.Array, B: jax.Array, *, target: float, limit: int) -> tuple[jax.Array, jax.Array]:
    """(W, steps) of the same CG at the first ||W A - B||_F² <= target ||B||_F²; steps is -1 if `limit` is not enough.

    Looking at W A doubles the cost of a step: for counting, not for timing.
    """
    A, B = as_matrices(A=A, B=B)
    G, R = matmul(A, A.T), matmul(B, A.T)
    step = _cg_step(lambda P: matmul(P, G), jnp.zeros((A.shape[0], 0), A.dtype))

    def unfinished(carry):
        s, steps = carry
        return (jnp.sum((matmul(s.W, A) - B) ** 2) > target * jnp.sum(B**2)) & (steps < limit)

    def body(carry):
        return step(carry[0], None)[0], carry[1] + 1

    start = _CG(jnp.zeros_like(R), R, R, jnp.vdot(R, R, precision="highest"))
    end = jax.lax.while_loop(unfinished, body, (start, jnp.zeros((), jnp.int32)))
    return end[0].W, jnp.where(unfinished((end[0], -1)), -1, end[1])


# The same among machines. A and B are one machine's columns, inside shard_map or vmap over `axis`; C and the result
# are replicated, and a step is one sum of a d' x d block over machines.


def distributed_gradient_descent(A: jax.Array, B: jax.Array, C: jax.Array, *, axis: str, steps: int) -> Trace:
    """W <- W - mean (W A - B) Aᵀ / max ||A||₂²: the mean of the local gradients, the step of the largest local norm."""
    A, B, C = _check(A, B, C, steps, 0.0)
    step_size = safe_divide(1.0, jax.lax.pmax(_squared_norm(A), axis))

    def step(W, _):
        W = W - step_size * jax.lax.pmean(matmul(matmul(W, A) - B, A.T), axis)
        return W, matmul(W, C)

    _, history = jax.lax.scan(step, jnp.zeros((B.shape[0], A.shape[0]), A.dtype), length=steps)
    return Trace(history[-1], history)


def distributed_conjugate_gradients(A: jax.Array, B: jax.Array, C: jax.Array, *, axis: str, steps: int) -> Trace:
    """CG on W G = B Aᵀ, G = sum A Aᵀ over machines, applied and never formed. One round more for the start."""
    A, B, C = _check(A, B, C, steps, 0.0)
    R = jax.lax.psum(matmul(B, A.T), axis)
    step = _cg_step(lambda P: jax.lax.psum(matmul(matmul(P, A), A.T), axis), C)
    start = _CG(jnp.zeros_like(R), R, R, jnp.vdot(R, R, precision="highest"))
    _, history = jax.lax.scan(step, start, length=steps)
    return Trace(history[-1], history)


def gram_all_reduce(A: jax.Array, B: jax.Array, C: jax.Array, *, axis: str, steps: int = 1) -> Trace:
    """G and B Aᵀ summed over machines once, then solved by eigenvalues: d (d + 1)/2 + d' d floats if packed."""
    A, B, C = _check(A, B, C, steps, 0.0)
    G, V = jax.lax.psum(matmul(A, A.T), axis), jax.lax.psum(matmul(B, A.T), axis)
    values, Q = jnp.linalg.eigh(G)
    inverse = jnp.where(values > jnp.finfo(A.dtype).eps * len(values) * values[-1], 1 / values, 0)
    D = matmul(matmul(matmul(V, Q) * inverse, Q.T), C)
    return Trace(D, D[None])


# The same with r columns of A and B a step, or a combination of them: `sketch` chooses.


def stochastic_gradient_descent(A: jax.Array, B: jax.Array, C: jax.Array, *, sketch: Sketch, steps: int) -> Trace:
    """W <- W - (W As - Bs) Asᵀ / ||As||₂² with a fresh sketch (As, Bs) = (A S, B S) every step."""
    A, B, C = _check(A, B, C, steps, 0.0)

    def step(W, i):
        S = sketch.draw(i, A.shape[1], A.dtype)
        As, Bs = sketched(A, S), sketched(B, S)
        W = W - safe_divide(1.0, sharp_energy_bound(matmul(As.T, As))) * matmul(matmul(W, As) - Bs, As.T)
        return W, matmul(W, C)

    start = jnp.zeros((B.shape[0], A.shape[0]), A.dtype)
    _, history = jax.lax.scan(step, start, jnp.arange(steps, dtype=jnp.int32))
    return Trace(history[-1], history)


def sketch_and_conjugate_gradients(
    A: jax.Array, B: jax.Array, C: jax.Array, *, sketch: Sketch, steps: int, inner: int = 10
) -> Trace:
    """`inner` CG iterations a step on the residual of a fresh sketch, ||(B - W A) S - V As|| for the correction V.

    With many of them a step projects W on the solutions of W As = Bs: block Kaczmarz.
    """
    A, B, C = _check(A, B, C, steps, 0.0)

    def step(W, i):
        S = sketch.draw(i, A.shape[1], A.dtype)
        As = sketched(A, S)
        R = matmul(sketched(B, S) - matmul(W, As), As.T)
        start = _CG(jnp.zeros_like(R), R, R, jnp.vdot(R, R, precision="highest"))
        move = _cg_step(lambda P: matmul(matmul(P, As), As.T), jnp.zeros((A.shape[0], 0), A.dtype))
        W = W + jax.lax.scan(move, start, length=inner)[0].W
        return W, matmul(W, C)

    start = jnp.zeros((B.shape[0], A.shape[0]), A.dtype)
    _, history = jax.lax.scan(step, start, jnp.arange(steps, dtype=jnp.int32))
    return Trace(history[-1], history)


def sketch_and_precondition(A: jax.Array, B: jax.Array, C: jax.Array, *, sketch: Sketch, steps: int) -> Trace:
    """CG on W A Aᵀ = B Aᵀ, preconditioned by the triangular factor of one sketch: (A S)ᵀ = Q R, S: n x r with r > d.

    For n much larger than d, and for A of rank d. With r = 4 d a step gains about a digit for the square of the error,
    whatever kappa is.
    """
    A, B, C = _check(A, B, C, steps, 0.0)
    if sketch.r < A.shape[0]:
        raise ValueError(f"sketch.r={sketch.r} is less than A's {A.shape[0]} rows; expected 2 to 4 times as many")
    As = sketched(A, sketch.draw(0, A.shape[1], A.dtype))
    R = jnp.linalg.qr(As.T, mode="r")

    def precondition(V, transposed):
        return jax.scipy.linalg.solve_triangular(R, V.T, trans=1 if transposed else 0).T

    def multiply(P):
        W = precondition(P, False)
        return precondition(matmul(matmul(W, A), A.T), True)

    rhs = precondition(matmul(B, A.T), True)
    start = _CG(jnp.zeros_like(rhs), rhs, rhs, jnp.vdot(rhs, rhs, precision="highest"))
    Cz = jax.scipy.linalg.solve_triangular(R, C, trans=1)
    _, history = jax.lax.scan(_cg_step(multiply, Cz), start, length=steps)
    return Trace(history[-1], history)


SKETCHED: dict[str, Callable[..., Trace]] = {
    "sgd": stochastic_gradient_descent,
    "sketch_cg": sketch_and_conjugate_gradients,
    "sketch_precondition": sketch_and_precondition,
}

DISTRIBUTED: dict[str, Callable[..., Trace]] = {
    "gd": distributed_gradient_descent,
    "cg": distributed_conjugate_gradients,
    "gram": gram_all_reduce,
}

BASELINES: dict[str, Callable[..., Trace]] = {
    "direct": direct,
    "gd": gradient_descent,
    "cg": conjugate_gradients,
}


def _squared_norm(A: jax.Array) -> jax.Array:
    """||A||₂² by power iteration on A Aᵀ; never above it."""
    # A fixed random start: a constant vector can be orthogonal to the top singular vector of a structured A.
    v = jax.random.normal(jax.random.key(0), (A.shape[0],), A.dtype)

    def multiply(_, v):
        v = matmul(A, matmul(v, A))
        return v * safe_divide(1.0, jnp.linalg.norm(v))

    v = jax.lax.fori_loop(0, _POWER_STEPS, multiply, v)
    Av = matmul(v, A)
    return jnp.vdot(Av, Av, precision="highest")


def _check(A, B, C, steps: int, ridge: float) -> list[jax.Array]:
    if steps < 1:
        raise ValueError(f"steps={steps}; expected a positive integer")
    if not ridge >= 0:
        raise ValueError(f"ridge={ridge}; expected a number, at least 0")
    return as_blocks(A, B, C)
