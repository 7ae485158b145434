"""The paper's iteration with constant (eta, gamma), run to a residual instead of to a fixed depth."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.certificate import Errors, backward_error, settled
from eagle_jax.linalg import matmul, norm, power_of_two, safe_divide, times_powers, varying_like
from eagle_jax.scaling import step_budget
from eagle_jax.schedules import FixedSteps
from eagle_jax.solution import Solution, Stats, Status
from eagle_jax.spectral import energy_bound
from eagle_jax.update import State, update, update_estimate

# A residual this much larger than at the start is divergence, not a detour.
DIVERGED = 1e3


def scaled_state(A, B, C) -> State:
    """(A, B) divided by ||A||, which leaves every D_l as it is; D_0 = 0."""
    s = jnp.linalg.norm(A, ord=2)
    s = jnp.where(s > 0, s, 1)
    return State(A / s, B / s, C, jnp.zeros((B.shape[0], C.shape[1]), A.dtype))


def step(state: State, fixed: FixedSteps) -> State:
    """One Update at ||A|| = 1; (A, B) are rescaled so that ||A|| <= 1 again, so one norm at the start suffices."""
    A, B, C, D = update(state, 1 / fixed.headroom, fixed.eta, fixed.gamma)
    return State(A / fixed.contraction, B / fixed.contraction, C, D)


def stationarity(state: State):
    """Largest over the columns of ||A^T C|| / ||C||: 0 when nothing in C is left for A to explain."""
    return jnp.max(safe_divide(norm(matmul(state.A.T, state.C), 0), norm(state.C, 0)), initial=0)


class _Loop(NamedTuple):
    iterate: Any
    best: jax.Array
    errors: Errors  # of `best`
    current: jax.Array  # merit of `iterate`
    done: jax.Array
    steps: jax.Array
    best_step: jax.Array


def run(iterate, advance, measure, value, rtol, limit) -> _Loop:
    """Steps until `measure` calls it done, keeping the best iterate: past convergence rounding grows again."""
    zero = jnp.asarray(0, jnp.int32)
    first, _ = measure(iterate, zero)

    def more(c: _Loop):
        return ~c.done & (c.steps < limit) & (c.current < DIVERGED)

    def body(c: _Loop):
        iterate = advance(c.iterate)
        errors, enough = measure(iterate, c.steps + 1)
        better = (errors.merit < c.errors.merit) | enough
        return _Loop(
            iterate,
            jnp.where(better, value(iterate), c.best),
            jax.tree.map(lambda new, old: jnp.where(better, new, old), errors, c.errors),
            jnp.where(jnp.isnan(errors.merit), jnp.inf, errors.merit),
            enough | (better & (errors.backward <= rtol)),
            c.steps + 1,
            jnp.where(better, c.steps + 1, c.best_step),
        )

    start = _Loop(iterate, value(iterate), first, first.merit, first.backward <= rtol, zero, zero)
    start = varying_like(start, first.merit)
    return lax.while_loop(more, body, start)


def solve(A, B, C, rtol, rcond, max_steps, fixed: FixedSteps) -> Solution:
    """D by Update on all four blocks."""
    A, A_scale, size = _normalised(A)
    B_scale = power_of_two(jnp.max(jnp.abs(B), axis=1, keepdims=True, initial=0))
    C_scale = power_of_two(jnp.max(jnp.abs(C), axis=0, keepdims=True, initial=0))
    B, C = B * B_scale, C * C_scale
    C_norm = norm(C, 0)
    start = State(A, B / size, C, jnp.zeros((B.shape[0], C.shape[1]), A.dtype))

    def measure(state: State, _):
        left = safe_divide(norm(state.C, 0), C_norm)
        stationary = safe_divide(norm(matmul(state.A.T, state.C), 0), norm(state.C, 0))
        error = jnp.max(jnp.minimum(left, stationary), initial=0)
        return Errors(error, error), jnp.asarray(False)

    limit, exhausted = _limit(rcond, max_steps, fixed)
    c = run(start, lambda z: step(z, fixed), measure, lambda z: z.D, rtol, limit)
    D = times_powers(c.best, (A_scale,), (B_scale, C_scale))
    scales = jnp.sum(A_scale) + jnp.sum(B_scale) + jnp.sum(C_scale)
    return _finish(c, D, scales, size / A_scale, exhausted, fixed)


def estimate(A, B, rtol, rcond, max_steps, fixed: FixedSteps) -> Solution:
    """W by the estimation form; the error is the backward error in the original data."""
    A, A_scale, size = _normalised(A)
    B_scale = power_of_two(jnp.max(jnp.abs(B), axis=1, keepdims=True, initial=0))
    B = B * B_scale / size
    unit = jnp.ones((), A.dtype)

    def advance(iterate):
        A_l, B_l, W = update_estimate(*iterate, rho=1 / fixed.headroom, eta=fixed.eta, gamma=fixed.gamma)
        return A_l / fixed.contraction, B_l / fixed.contraction, W

    def measure(iterate, steps):
        A_l, B_l, W = iterate
        errors, _, _ = backward_error(A, B, W, unit, minimum_norm=False)
        R = B_l - matmul(W, A_l)
        stationary = jnp.max(safe_divide(norm(matmul(R, A_l.T), -1), norm(R, -1)))
        return errors, settled(errors, stationary, _growth(fixed, steps, A.dtype), rtol)

    limit, exhausted = _limit(rcond, max_steps, fixed)
    start = (A, B, jnp.zeros((B.shape[0], A.shape[0]), A.dtype))
    c = run(start, advance, measure, lambda z: z[2], rtol, limit)
    W = times_powers(c.best, (A_scale,), (B_scale,))
    return _finish(c, W, jnp.sum(A_scale) + jnp.sum(B_scale), size / A_scale, exhausted, fixed)


def _normalised(A):
    """(A scaled to norm <= 1, the power of two in it, the norm bound after that power of two)."""
    A_scale = power_of_two(jnp.max(jnp.abs(A)))
    A = A * A_scale
    size = jnp.sqrt(energy_bound(matmul(A, A.T) if A.shape[0] <= A.shape[1] else matmul(A.T, A)))
    size = jnp.where(size > 0, size, 1)
    return A / size, A_scale, size


def _limit(rcond, max_steps, fixed):
    budget = step_budget(fixed, rcond)
    if max_steps is not None and max_steps < budget:
        return max_steps, Status.MAX_STEPS
    return budget, None


def _finish(c: _Loop, value, scales, size, exhausted, fixed) -> Solution:
    late = c.best_step >= c.steps - 6
    out_of_steps = jnp.where(late, Status.RANK_CUTOFF, Status.STAGNATED) if exhausted is None else exhausted
    status = jnp.where(c.done, Status.CONVERGED, out_of_steps)
    broken = ~c.done & ~(c.current < DIVERGED) | ~jnp.all(jnp.isfinite(value))
    status = jnp.where(broken, Status.BREAKDOWN, status)
    finite = jnp.isfinite(scales)
    status = jnp.where(finite, status, Status.NONFINITE).astype(jnp.int32)
    growth = _growth(fixed, c.steps, value.dtype)
    stats = Stats(c.steps, c.errors.backward, size, growth, jnp.full_like(c.steps, -1))
    return Solution(jnp.where(finite, value, jnp.nan), status, stats)


def _growth(fixed: FixedSteps, steps, dtype):
    return jnp.asarray(1 / fixed.contraction, dtype) ** steps.astype(dtype)
