"""The default solver: condition A by optimal Updates, and let a Krylov iteration finish the thin blocks.

Everything happens on a fat matrix M (s x l, s <= l) with right-hand sides as rows, in one of two forms:

    least squares   X M ~ rhs     rhs: p x l, X: p x s      (M = A, when A has more columns than rows)
    minimum norm    X M^T = rhs   rhs: p x s, X: p x l      (M = A^T otherwise)

An Update multiplies M from the left by T = scale (I - eta M M^T). The same factor acts on the right-hand side, so
X is the same for every M_l and each step may start from the X of the one before. Once M_l is moderately
conditioned, conjugate residuals on the explicit E = M_l M_l^T (s x s times p rows) are far cheaper than a further
Update, so the loop alternates: Update, then as many thin iterations as pay. What stops it is the backward error of X
in the *original* M and rhs, so rounding in the conditioned copies cannot fake convergence.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax.certificate import Errors, backward_error, worst
from eagle_jax.scaling import power_of_two, step_budget
from eagle_jax.schedules import CYCLE, LIFT
from eagle_jax.solution import Stats, Status
from eagle_jax.spectral import energy_bound, norm, safe_divide
from eagle_jax.update import State, matmul, update, update_energy

# Below this side length a thin batched product costs about as much as a full one, so whole cycles of Updates run
# between thin solves, and those are short and unrolled.
_SMALL = 64
_SMALL_ITERATIONS = 3
_PROBES = 2
# Gram matrices of M pay when M is at least this many times wider than high.
_GRAM_ASPECT = 2


class Target(NamedTuple):
    """The original problem, scaled; what the certificate is measured against."""

    M: jax.Array
    rhs: jax.Array
    size: jax.Array  # ||M||_2, from above
    minimum_norm: bool
    carry_rhs: bool  # see `_moved_along`


class Krylov(NamedTuple):
    z: jax.Array
    r: jax.Array
    p: jax.Array
    rE: jax.Array
    pE: jax.Array
    energy: jax.Array  # <r E, r>


def conjugate_residuals(multiply, r, needed, budget, blind):
    """Rows z with z E ~ r. Returns (Krylov state, iterations, slow); multiply(r) = (r E, <r E, r>).

    Conjugate residuals and not conjugate gradients: r may have a part in the null space of E, which minimising the
    residual leaves alone. Stops when the energy <r E, r> has fallen by `needed` (at most 1e-8, where restarting on a
    fresh residual is wiser), or when the pace so far predicts more than `budget` iterations (`slow`).
    A budget of None is for small problems: a few iterations, unrolled. Directions that E shrinks by more than
    `blind` are rounding noise to it; dividing by that would fill z with noise, so they are left out.
    """
    rE, energy0 = multiply(r)
    state = Krylov(jnp.zeros_like(r), r, r, rE, rE, energy0)

    def iterate(state):
        z, r, p, rE, pE, energy = state
        size = _rows(pE, pE)
        alpha = jnp.where(size > blind**2 * _rows(p, p), safe_divide(energy, size), 0)
        z, r = z + alpha * p, r - alpha * pE
        rE, fresh = multiply(r)
        beta = safe_divide(fresh, energy)
        return Krylov(z, r, r + beta * p, rE, rE + beta * pE, fresh)

    if budget is None:
        for _ in range(_SMALL_ITERATIONS):
            state = iterate(state)
        return state, jnp.asarray(_SMALL_ITERATIONS, jnp.int32), jnp.asarray(False)

    drop = jnp.maximum(needed, 1e-8).astype(r.dtype)

    def reduction(state):
        return jnp.sqrt(worst(safe_divide(state.energy, energy0)))

    def more(carry):
        state, i = carry
        reduced = reduction(state)
        predicted = i.astype(r.dtype) * jnp.log(needed) / jnp.minimum(jnp.log(reduced), -1e-6)
        return (reduced > drop) & (i < budget) & ((i < 8) | (predicted < budget))

    state, i = lax.while_loop(more, lambda c: (iterate(c[0]), c[1] + 1), (state, jnp.asarray(0, jnp.int32)))
    return state, i, reduction(state) > drop


def by_energy(E):
    """r -> (r E, <r E, r>), one small product."""

    def multiply(r):
        rE = matmul(r, E)
        return rE, jnp.maximum(_rows(r, rE), 0)

    return multiply


def by_factor(M):
    """The same through M: <r E, r> = ||r M||^2 stays accurate when r is mostly in the null space of E = M M^T."""

    def multiply(r):
        rM = matmul(r, M)
        return matmul(rM, M.T), _rows(rM, rM)

    return multiply


def _rows(x, y):
    return jnp.sum(x * y, axis=-1, keepdims=True)


class Carry(NamedTuple):
    M: jax.Array  # the conditioned copy of M
    C: jax.Array  # Update's C block, see `_moved_along`
    E: jax.Array  # M M^T
    X: jax.Array  # the best so far
    residual: jax.Array  # of X in the original problem: R for minimum norm, R M^T for least squares
    errors: Errors  # of X, in the original problem
    done: jax.Array
    inconsistent: jax.Array  # rhs has a part that M cannot reach
    growth: jax.Array  # by which small singular values have been raised
    steps: jax.Array
    inner: jax.Array
    best_step: jax.Array


def condition_and_solve(target: Target, E, rtol, max_steps: int):
    """Alternates optimal Updates of M with thin Krylov solves until X has converged. Returns (Carry, condition)."""
    M, rhs, size, minimum_norm, carry_rhs = target
    s, l = M.shape
    polish = s < _SMALL or not carry_rhs
    solve_thin = _carried_solve if carry_rhs else partial(_conditioned_solve, minimum_norm=minimum_norm)

    def attempt(c: Carry):
        """One thin solve in the conditioned problem, judged in the original one."""
        correction, slow, inconsistent, i = solve_thin(c, 0.25 * rtol / c.errors.backward)
        X = c.X + correction
        projected = None if minimum_norm else _projected(c.E, c.C)
        errors, R, gradient = backward_error(M, rhs, X, size, minimum_norm, projected)
        better = errors.merit < 0.7 * c.errors.merit
        if carry_rhs:
            gain = 1e-3 if polish else 0.1
            worthwhile = ~slow & (errors.merit < gain * c.errors.merit) & (errors.backward > 0.25 * rtol)
            final = jnp.asarray(True)
        else:
            # A large residual makes the answer sensitive to the gradient's last digits, and a pass is cheap: go on
            # until it no longer helps, though M is conditioned or one more cycle has been tried.
            worthwhile = errors.merit < 0.3 * c.errors.merit
            final = (_spread(c.E) <= 0.1) | (~better & (c.steps > c.best_step))
        tried = (X, R if minimum_norm else gradient, errors, c.steps)
        X, residual, errors, best_step = jax.tree.map(
            lambda new, old: jnp.where(better, new, old), tried, (c.X, c.residual, c.errors, c.best_step)
        )
        return c._replace(
            X=X,
            residual=residual,
            errors=errors,
            done=c.done | ((errors.backward <= rtol) & final),
            inconsistent=c.inconsistent | inconsistent,
            inner=c.inner + i,
            best_step=best_step,
        ), worthwhile

    def refine(c: Carry) -> Carry:
        return lax.while_loop(lambda t: t[1], lambda t: attempt(t[0]), (c, ~c.done))[0]

    def step(c: Carry, scale, eta) -> Carry:
        nothing = jnp.zeros((0, l), M.dtype), jnp.zeros((0, c.C.shape[1]), M.dtype)
        new = update(State(c.M, nothing[0], c.C, nothing[1]), 1.0, eta, eta, energy=c.E)
        A = scale * new.A
        return c._replace(M=A, C=scale * new.C, E=matmul(A, A.T), growth=c.growth * scale, steps=c.steps + 1)

    def advance(c: Carry) -> Carry:
        if not polish:
            return step(c, *LIFT)
        scales, etas = (jnp.asarray(v, M.dtype) for v in zip(*CYCLE[:max_steps], strict=True))
        return lax.fori_loop(0, len(scales), lambda i, c: step(c, scales[i], etas[i]), c)

    X = jnp.zeros((rhs.shape[0], l if minimum_norm else s), M.dtype)
    errors, R, gradient = backward_error(M, rhs, X, size, minimum_norm)
    zero, one, no = jnp.asarray(0, jnp.int32), jnp.ones((), M.dtype), jnp.asarray(False)
    C, probes = _moved_along(M, rhs, size, carry_rhs)
    residual, converged = R if minimum_norm else gradient, errors.backward <= rtol
    start = Carry(M / size, C, E / size**2, X, residual, errors, converged, no, one, zero, zero, zero)
    end = lax.while_loop(
        lambda c: ~c.done & (c.steps < max_steps), lambda c: refine(advance(c)), start if polish else refine(start)
    )
    probes = end.C[:, :_PROBES].T if carry_rhs else matmul(probes, end.C)
    condition = size * norm(matmul(probes, end.E)) / _PROBES**0.5  # about ||M|| ||M^+||, blind to the null space
    return end, jnp.maximum(condition, 1)


def _moved_along(M, rhs, size, carry_rhs):
    """The columns that Update's C line (with gamma = eta) multiplies by the same factors as M, and random probes.

    carry_rhs, for minimum norm only: the right-hand sides, since (Q M) y = Q c has the solution of M y = c. That is
    the cheapest, and right whenever c is in the range of M. Otherwise the identity, which becomes Q: the residual of
    the original problem is conditioned by it afresh each time, whereas a conditioned copy of an inconsistent rhs
    would carry the amplified rounding of the part that M cannot reach.
    """
    probes = jnp.asarray(np.random.default_rng(1).standard_normal((_PROBES, M.shape[0])), M.dtype)
    if carry_rhs:
        return jnp.concatenate([probes, rhs]).T / size, probes
    return jnp.eye(M.shape[0], dtype=M.dtype) / size, probes


def _blind(c: Carry):
    s, eps = c.M.shape[0], jnp.finfo(c.M.dtype).eps
    return jnp.minimum(4 * eps * s**0.5 * c.growth, 1e-3).astype(c.M.dtype)


def _spread(E):
    """||E - c I||_F / c, c the mean eigenvalue. At most 0.5: no eigenvalue below half the mean, hence full rank."""
    s = E.shape[-1]
    centre = jnp.trace(E) / s
    return norm(E - centre * jnp.eye(s, dtype=E.dtype)) / centre


def _projected(E, Q):
    """gradient -> ||P R||, from above: R (Q M)^T = gradient Q^T where Q M is near an isometry, else inf."""
    least = 0.5 * jnp.trace(E) / E.shape[-1]
    certified = _spread(E) <= 0.5
    return lambda gradient: jnp.where(certified, norm(matmul(gradient, Q.T), -1) / jnp.sqrt(least), jnp.inf)


def _carried_solve(c: Carry, needed):
    """Solves X M_l^T = rhs_l further. Returns (correction of X, slow, inconsistent, iterations)."""
    r = c.C[:, _PROBES:].T - matmul(c.X, c.M.T)
    budget = None if c.M.shape[0] < _SMALL else c.M.shape[0] // 3

    def run(multiply):
        return conjugate_residuals(multiply, r, needed, budget, _blind(c))

    if budget is None:
        krylov, i, slow = run(by_factor(c.M))
    else:
        krylov, i, slow = lax.cond(c.inconsistent, lambda: run(by_factor(c.M)), lambda: run(by_energy(c.E)))
    inconsistent = jnp.any(norm(krylov.rE, -1) < 1e-6 * norm(krylov.r, -1))
    return matmul(krylov.z, c.M), slow, inconsistent, i


def _conditioned_solve(c: Carry, needed, *, minimum_norm):
    """Conditions the original problem's residual by Q = c.C and solves for a correction. Returns the same."""
    r = matmul(_in_range(c.residual, c.E) if minimum_norm else c.residual, c.C.T)
    krylov, i, slow = conjugate_residuals(by_energy(c.E), r, needed, None, _blind(c))
    z = _in_range(krylov.z, c.E)
    return matmul(z, c.M if minimum_norm else c.C), slow, jnp.asarray(False), i


def _in_range(x, E):
    """x - x (I - E)^3: after whole cycles E is near a projector, and this drops what x has in its null space.

    Cycles raise the noise there far more than the data may have needed.
    """
    rest = x
    for _ in range(3):
        rest = rest - matmul(rest, E)
    return x - rest


def gram_and_solve(M, rhs, minimum_norm, rtol):
    """For l >> s: all Updates on the s x s energy, then refinement of X against the original M.

    The energy E = M M^T squares the condition number, so this path only answers when it can prove that E has been
    conditioned to a multiple of the identity (hence full rank) and when the backward error, measured with M
    itself, reaches rtol. Returns (X, error, Stats); error is inf if the caller has to take the other path.
    """
    dtype, s = M.dtype, M.shape[0]
    info = jnp.finfo(dtype)
    E = matmul(M, M.T)
    top = energy_bound(E)
    in_range = (top > info.tiny**0.4) & (top < info.max**0.4)
    top = jnp.where(in_range, top, 1)
    size = jnp.sqrt(top)
    scales, etas = (jnp.asarray(v, dtype) for v in zip(*CYCLE, strict=True))

    def more(c):
        E, _, growth, _ = c
        return (_spread(E) > 0.1) & (growth < 0.1 / info.eps**0.5) & in_range

    def step(i, c):
        E, Q, growth, steps = c
        E, Q = update_energy(E, Q, etas[i])
        return scales[i] ** 2 * E, scales[i] * Q, growth * scales[i], steps + 1

    start = (E / top, jnp.eye(s, dtype=dtype) / size, jnp.ones((), dtype), jnp.asarray(0, jnp.int32))
    E, Q, _, steps = lax.while_loop(more, lambda c: lax.fori_loop(0, len(CYCLE), step, c), start)
    certified = (_spread(E) <= 0.1) & in_range
    projected = None if minimum_norm else _projected(E, Q)

    def correct(c):
        X, r, best, _, passes = c
        krylov, _, _ = conjugate_residuals(by_energy(E), matmul(r, Q.T), None, None, 0)
        z = matmul(krylov.z, Q)
        new = X + (matmul(z, M) if minimum_norm else z)
        errors, R, gradient = backward_error(M, rhs, new, size, minimum_norm, projected)
        X, kept = jax.tree.map(lambda n, o: jnp.where(errors.merit < best.merit, n, o), (new, errors), (X, best))
        return X, R if minimum_norm else gradient, kept, errors.merit < 0.1 * best.merit, passes + 1

    X = jnp.zeros((rhs.shape[0], M.shape[1] if minimum_norm else s), dtype)
    first = rhs if minimum_norm else matmul(rhs, M.T)
    worst_errors = Errors(jnp.asarray(jnp.inf, dtype), jnp.asarray(jnp.inf, dtype))
    carry = (X, first, worst_errors, certified, jnp.asarray(0, jnp.int32))
    X, _, best, _, passes = lax.while_loop(lambda c: c[3] & (c[2].backward > rtol / 16), correct, carry)
    error = jnp.where(certified & (best.backward <= rtol), best.backward, jnp.inf)
    return X, error, Stats(steps, passes, error, size, size * energy_bound(Q))


def least_squares(M, rhs, minimum_norm, rtol, rcond, max_steps):
    """Least-squares / minimum-norm rows X for a fat M, in any scaling. Returns (X, status, Stats)."""
    budget = step_budget(None, rcond)
    limit = budget if max_steps is None else min(max_steps, budget)
    rhs_scale = power_of_two(jnp.max(jnp.abs(rhs), axis=-1, keepdims=True))
    scaled_rhs = rhs * rhs_scale

    def run(carry_rhs):
        M_scale = power_of_two(jnp.max(jnp.abs(M)))
        scaled = M * M_scale
        E = matmul(scaled, scaled.T)
        size = jnp.sqrt(energy_bound(E))
        size = jnp.where(size > 0, size, 1)
        target = Target(scaled, scaled_rhs, size, minimum_norm, carry_rhs)
        c, condition = condition_and_solve(target, E, rtol, limit)
        exhausted = jnp.where(c.best_step >= c.steps - 6, Status.RANK_CUTOFF, Status.STAGNATED)
        exhausted = exhausted if limit == budget else Status.MAX_STEPS
        status = jnp.where(c.done, Status.CONVERGED, exhausted)
        return c.X * M_scale, status, Stats(c.steps, c.inner, c.errors.backward, size / M_scale, condition)

    def robustly(first, acceptable):
        """The slower path, only if the first one has not certified itself (no cost otherwise, nor under vmap)."""
        again = lax.while_loop(lambda a: ~a[1], lambda a: (run(False), jnp.asarray(True)), (first, acceptable))
        return again[0]

    if M.shape[1] >= _GRAM_ASPECT * M.shape[0] and limit == budget:
        X, error, stats = gram_and_solve(M, scaled_rhs, minimum_norm, rtol)
        X, status, stats = robustly((X, jnp.asarray(Status.CONVERGED), stats), jnp.isfinite(error))
    elif minimum_norm:
        first = run(True)
        X, status, stats = robustly(first, (first[1] == int(Status.CONVERGED)) | ~jnp.isfinite(first[2].norm))
    else:
        X, status, stats = run(False)
    X = X / rhs_scale
    finite = jnp.isfinite(stats.norm) & jnp.all(jnp.isfinite(rhs_scale))
    status = jnp.where(jnp.all(jnp.isfinite(X)), status, Status.BREAKDOWN)
    status = jnp.where(finite, status, Status.NONFINITE).astype(jnp.int32)
    return jnp.where(finite, X, jnp.nan), status, stats
