"""The default solver: condition A by optimal Updates, and let a Krylov iteration finish the thin blocks.

Everything happens on a fat matrix M (s x l, s <= l) with right-hand sides as rows, in one of two forms:

    least squares   X M ~ rhs     rhs: p x l, X: p x s      (M = A, when A has more columns than rows)
    minimum norm    X M^T = rhs   rhs: p x s, X: p x l      (M = A^T otherwise)

An Update multiplies M from the left by T = scale (I - eta M M^T). The same factors act either on the right-hand side
(the carried path: X is the same for every M_l, and each step starts from the X of the one before), or on the identity
(the others: Q = T ... T conditions the residual of X in the original problem). Once M_l is moderately conditioned,
conjugate residuals on the explicit E = M_l M_l^T (s x s times p rows) are far cheaper than a further Update, so the
loop alternates: Update, then as many thin iterations as pay. What stops it is the backward error of X in the
*original* M and rhs, so rounding in the conditioned copies cannot fake convergence.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax.certificate import Errors, backward_error, times_transpose
from eagle_jax.fallback import unless
from eagle_jax.krylov import by_energy, by_factor, conjugate_residuals
from eagle_jax.scaling import power_of_two, step_budget
from eagle_jax.schedules import CYCLE, LIFT, SETTLE
from eagle_jax.solution import Stats, Status
from eagle_jax.spectral import energy_bound, norm, vary
from eagle_jax.update import State, matmul, update, update_energy

# Below this side length a thin batched product costs about as much as a full one, so whole cycles of Updates run
# between thin solves, and those are of a fixed length that is enough for most.
_SMALL = 64
_SMALL_ITERATIONS = 12
# Where each thin solve starts from a fresh residual, short ones do: more iterations refine the preconditioned residual
# below the accuracy of the original one.
_ROBUST_ITERATIONS = 3
# The cheap path starts with two steps and a cycle, and gives up after that many steps, lest one bad lane of a batch
# keep the good ones busy.
_SMALL_STEPS = 10
# From this side length on, a thin solve costs little beside an Update and is tried after each; below, after two.
_LARGE = 512
# An iterate replaces the best so far if its merit is below this multiple of the best one's.
_BETTER = 0.7
_PROBES = 2
# Gram matrices of M pay when M is at least this many times wider than high.
_GRAM_ASPECT = 2


class Target(NamedTuple):
    """The original problem, scaled; what the certificate is measured against."""

    M: jax.Array
    rhs: jax.Array
    size: jax.Array  # ||M||_2, from above
    minimum_norm: bool


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


class Path(NamedTuple):
    """One way through `condition_and_solve`.

    Attributes:
      carry_rhs: see `_moved_along`.
      opening: steps before the first thin solve; None tries one before any step.
      cycle: steps between thin solves.
      solve_thin: (Carry, M, wanted reduction) -> (correction of X, slow, inconsistent, iterations).
      look: Carry -> (`projected` of backward_error, whether the rank is certainly full).
      judge: (Carry before, new Errors, slow, full rank, rtol) -> (try another thin solve, may stop here).
      limit: steps in all.
      stride: steps between thin solves where that is less than a cycle. Such a path gives up when two cycles
        have brought no improvement.
      dtype: of the conditioned copies; None: that of the data. X and its errors always have that of the data.
    """

    carry_rhs: bool
    opening: tuple | None
    cycle: tuple
    solve_thin: Callable
    look: Callable
    judge: Callable
    limit: int
    stride: int | None = None
    dtype: Any = None


def hurried(s: int, limit: int) -> Path:
    """For small matrices: enough for most, and over soon."""
    thin = partial(_carried_solve, fixed=(by_energy, _SMALL_ITERATIONS))
    return carried(s, min(limit, _SMALL_STEPS))._replace(solve_thin=thin)


def carried(s: int, limit: int) -> Path:
    """The cheapest; right whenever rhs is in the range of M."""
    if s < _SMALL:
        thin = partial(_carried_solve, fixed=(by_factor, _ROBUST_ITERATIONS))
        opening = CYCLE[:2] if limit > 2 else ()
        return Path(True, opening, CYCLE, thin, _look_no_further, partial(_judge_carried, gain=1e-3), limit)
    cycle = (LIFT,) if s >= _LARGE else CYCLE[:2]
    thin, judge = partial(_carried_solve, fixed=None), partial(_judge_carried, gain=0.1)
    return Path(True, None, cycle, thin, _look_no_further, judge, limit)


def robust(minimum_norm: bool, limit: int) -> Path:
    """Right for all data, at one more product a step."""
    thin = partial(_conditioned_solve, minimum_norm=minimum_norm)
    return Path(False, (), SETTLE, thin, partial(_look_at_range, minimum_norm=minimum_norm), _judge_robust, limit)


def refined(s: int, minimum_norm: bool, dtype) -> Path:
    """M is conditioned in a precision of choice, which sees enough of X's residual to improve X.

    Rounding leaks through Q into M's null space, where no residual of least squares shows it, so the rank has to be
    full. For minimum norm, X is made of rows of M itself.
    """
    thin = partial(_refining_solve, minimum_norm=minimum_norm)
    judge = partial(_judge_carried, gain=0.1, any_rank=minimum_norm)
    look = _look_no_further if minimum_norm else _look_at_isometry
    limit, stride = step_budget(None, 4 * float(jnp.finfo(dtype).eps)), 1 if s >= _LARGE else 2
    return Path(False, CYCLE[:2], CYCLE, thin, look, judge, limit, stride, dtype)


def _look_no_further(_: Carry):
    return None, jnp.asarray(False)


def _judge_carried(c: Carry, errors: Errors, slow, full_rank, rtol, *, gain, any_rank=True):
    worthwhile = ~slow & (errors.merit < gain * c.errors.merit) & (errors.backward > 0.25 * rtol)
    return worthwhile, full_rank | any_rank


def _judge_robust(c: Carry, errors: Errors, slow, full_rank, rtol):
    """A large residual makes the answer sensitive to the gradient's last digits, and a pass is cheap: go on while it
    helps, and stop only when M is conditioned or a further cycle has brought nothing.
    """
    better = errors.merit < _BETTER * c.errors.merit
    final = (norm(_centred(c.E)) <= 0.1) | (~better & (c.steps > c.best_step))
    return errors.merit < 0.3 * c.errors.merit, final


def condition_and_solve(target: Target, E, rtol, path: Path):
    """Alternates optimal Updates of M with thin Krylov solves until X has converged. Returns (Carry, condition)."""
    M, rhs, size, minimum_norm = target

    def attempt(c: Carry):
        """One thin solve in the conditioned problem, judged in the original one."""
        correction, slow, inconsistent, i = path.solve_thin(c, M, 0.25 * rtol / c.errors.backward)
        X = c.X + correction
        projected, full_rank = path.look(c)
        errors, R, gradient = backward_error(
            M, rhs, X, size, minimum_norm, projected=projected, consistent=path.carry_rhs
        )
        worthwhile, final = path.judge(c, errors, slow, full_rank, rtol)
        # Merit mistrusts a large ||X||, which is no noise if the rank is full.
        proved = full_rank & (errors.backward <= rtol) & (c.errors.backward > rtol)
        better = proved | (errors.merit < _BETTER * c.errors.merit)
        tried = (X, R if minimum_norm else gradient, errors, c.steps)
        X, residual, errors, best_step = jax.tree.map(
            lambda new, old: jnp.where(better, new, old),
            tried,
            (c.X, c.residual, c.errors, c.best_step),
        )
        return c._replace(
            X=X,
            residual=residual,
            errors=errors,
            done=c.done | ((errors.backward <= rtol) & final),
            inconsistent=c.inconsistent | inconsistent,
            inner=c.inner + i,
            best_step=best_step,
        ), worthwhile | proved

    def refine(c: Carry) -> Carry:
        return lax.while_loop(lambda t: t[1], lambda t: attempt(t[0]), (c, ~c.done))[0]

    start, probes = _start(target, E, rtol, path.carry_rhs)
    start = refine(start) if path.opening is None else _advance(start, path.opening)
    whole = path.stride is not None or (path.limit - len(path.opening or ())) % len(path.cycle) == 0
    left = lambda c: None if whole else path.limit - c.steps  # noqa: E731

    def more(c: Carry):
        over = c.done | c.inconsistent if path.carry_rhs else c.done
        if path.stride is not None:
            over = over | (c.steps - c.best_step >= 2 * len(path.cycle))
        return ~over & (c.steps < path.limit)

    end = lax.while_loop(more, lambda c: refine(_advance(c, path.cycle, left(c), path.stride)), start)
    probes = end.C[:, :_PROBES].T if path.carry_rhs else matmul(probes, end.C)
    # About ||M|| ||M^+||, blind to the null space.
    condition = size * norm(matmul(probes, end.E)).astype(size.dtype) / _PROBES**0.5
    return end, jnp.maximum(condition, 1)


def _start(target: Target, E, rtol, carry_rhs):
    M, rhs, size, minimum_norm = target
    X = jnp.zeros((rhs.shape[0], M.shape[1] if minimum_norm else M.shape[0]), M.dtype)
    # What the rhs's unreachable part makes of a carried X is judged too kindly by its gradient; X = 0 is not.
    anyway, R, gradient = backward_error(M, rhs, X, size, minimum_norm)
    errors, _, _ = backward_error(M, rhs, X, size, minimum_norm, consistent=carry_rhs)
    zero, one, no = jnp.asarray(0, jnp.int32), jnp.ones((), E.dtype), jnp.asarray(False)
    conditioned = (M / size).astype(E.dtype)
    C, probes = _moved_along(conditioned, rhs / size, 1 / size, carry_rhs)
    residual, converged = R if minimum_norm else gradient, anyway.backward <= rtol
    errors = jax.tree.map(lambda a, b: jnp.where(converged, a, b), anyway, errors)
    start = Carry(conditioned, C, E, X, residual, errors, converged, no, one, zero, zero, zero)
    return vary(start, E + jnp.sum(rhs).astype(E.dtype)), probes


def _advance(c: Carry, steps, left=None, stride=None) -> Carry:
    """Updates of M and of what moves along, by the given (scale, eta); at most `left`, or the next `stride`.

    A number of trips that differs between vmapped lanes costs a select of the whole carry each, hence None.
    """
    if not steps:
        return c
    scales, etas = (jnp.asarray(v, c.M.dtype) for v in zip(*steps, strict=True))

    def step(i, c: Carry) -> Carry:
        i = i if stride is None else c.steps % len(steps)
        B, D = (jnp.zeros((0, x.shape[1]), c.M.dtype) for x in (c.M, c.C))
        new = update(State(c.M, B, c.C, D), 1.0, etas[i], etas[i], energy=c.E)
        A = scales[i] * new.A
        return c._replace(M=A, C=scales[i] * new.C, E=matmul(A, A.T), growth=c.growth * scales[i], steps=c.steps + 1)

    count = stride or len(steps)
    return lax.fori_loop(0, count if left is None else jnp.minimum(count, left), step, c)


def _moved_along(M, rhs, unit, carry_rhs):
    """The columns that Update's C line (with gamma = eta) multiplies by the same factors as M, and random probes.

    carry_rhs, for minimum norm only: the right-hand sides, since (Q M) y = Q c has the solution of M y = c. That is
    the cheapest, and right whenever c is in the range of M. Otherwise the identity, which becomes Q: the residual of
    the original problem is conditioned by it afresh each time, whereas a conditioned copy of an inconsistent rhs
    would carry the amplified rounding of the part that M cannot reach.
    """
    probes = jnp.asarray(np.random.default_rng(1).standard_normal((_PROBES, M.shape[0])), M.dtype)
    unit = unit.astype(M.dtype)
    if carry_rhs:
        return jnp.concatenate([probes * unit, rhs]).T, probes
    return unit * jnp.eye(M.shape[0], dtype=M.dtype), probes


def _blind(c: Carry):
    s, eps = c.M.shape[0], float(jnp.finfo(c.M.dtype).eps)
    return jnp.minimum(4 * eps * s**0.5 * c.growth, 1e-3).astype(c.M.dtype)


def _centred(E):
    """E / c - I, c the mean eigenvalue."""
    s = E.shape[-1]
    return E * (s / jnp.trace(E)) - jnp.eye(s, dtype=E.dtype)


def _spread(E, squarings=2):
    """||E / c - I||_2 from above, c the mean eigenvalue. At most 0.5: all are above half the mean, full rank."""
    power = _centred(E)
    for _ in range(squarings):
        power = matmul(power, power)
    return energy_bound(power) ** (0.5**squarings)


def _isometric(E, Q, spread):
    """(R, gradient) -> ||P R||, from above: R (Q M)^T = gradient Q^T where Q M is near an isometry, else inf."""
    least = 0.5 * jnp.trace(E) / E.shape[-1]
    return lambda _, gradient: jnp.where(spread <= 0.5, norm(matmul(gradient, Q.T), -1) / jnp.sqrt(least), jnp.inf)


def _look_at_isometry(c: Carry):
    """Rounding noise that has been raised as far as the data looks like full rank too, so it must not have been."""
    E, Q = c.E.astype(c.X.dtype), c.C.astype(c.X.dtype)
    raised = c.growth * float(jnp.finfo(c.E.dtype).eps) * c.E.shape[-1] ** 0.5
    spread = jnp.where(raised <= 0.5, _spread(c.E, 1), jnp.inf)
    return _isometric(E, Q, spread), spread <= 0.5


def _look_at_range(c: Carry, *, minimum_norm):
    """The same where Q M is a partial isometry: all that is not rounding noise has been raised to 1."""
    s, dtype = c.M.shape[0], c.M.dtype
    # ||(I - E) M|| by random rows: the chance that all eight miss it by a factor of ten is below 1e-8.
    probes = jnp.asarray(np.random.default_rng(2).standard_normal((8, s)) / 8**0.5, dtype)
    settled = norm(matmul(probes - matmul(probes, c.E), c.M)) <= 10 * jnp.finfo(dtype).eps * c.growth * s**0.5
    partial_isometry = jnp.where(settled, 1.01, jnp.inf)
    spread = norm(_centred(c.E))
    isometric = _isometric(c.E, c.C, spread)

    def projected(R, gradient):
        if minimum_norm:
            return partial_isometry * norm(matmul(R, c.E), -1)
        return jnp.minimum(isometric(R, gradient), partial_isometry * norm(matmul(gradient, c.C.T), -1))

    return projected, spread <= 0.5


def _carried_solve(c: Carry, _, needed, *, fixed):
    """Solves X M_l^T = rhs_l further; `fixed` is (by_energy | by_factor, iterations), or None for a pace rule."""
    r = c.C[:, _PROBES:].T - matmul(c.X, c.M.T)
    s, blind = c.M.shape[0], _blind(c)
    if fixed is not None:
        by, iterations = fixed
        multiply = by(c.E if by is by_energy else c.M)
        krylov, i, slow = conjugate_residuals(multiply, r, None, iterations, blind)
    else:
        krylov, i, slow = conjugate_residuals(by_energy(c.E), r, needed, s // 2, blind)
    unreachable = 10 * s**0.5 * jnp.finfo(r.dtype).eps
    inconsistent = jnp.any(norm(krylov.rE, -1) < unreachable * norm(krylov.r, -1))
    return matmul(krylov.z, c.M), slow, inconsistent, i


def _conditioned_solve(c: Carry, _, needed, *, minimum_norm):
    """A correction from the original problem's residual, conditioned by Q = c.C. Returns what `_carried_solve` does."""
    r = matmul(in_range(c.residual, c.E) if minimum_norm else c.residual, c.C.T)
    krylov, i, slow = conjugate_residuals(by_energy(c.E), r, None, _ROBUST_ITERATIONS, _blind(c))
    z = in_range(krylov.z, c.E)
    # Q raises the noise that the first projection leaves; it commutes with E, so that the second drops it.
    correction = matmul(z, c.M) if minimum_norm else in_range(matmul(z, c.C), c.E)
    return correction, slow, jnp.asarray(False), i


def _refining_solve(c: Carry, M, needed, *, minimum_norm):
    """What E, Q = c.C and M of low precision make of the residual: a correction to about that precision."""
    dtype = c.E.dtype
    scale = power_of_two(jnp.max(jnp.abs(c.residual), axis=-1, keepdims=True))
    r = matmul((c.residual * scale).astype(dtype), c.C.T)
    needed = jnp.maximum(needed, 8 * float(jnp.finfo(dtype).eps)).astype(dtype)
    krylov, i, slow = conjugate_residuals(by_energy(c.E), r, needed, c.E.shape[0] // 2, _blind(c))
    # In M's precision: for minimum norm, much of z Q cancels in z Q M.
    correction = matmul(krylov.z.astype(M.dtype), c.C.astype(M.dtype)) / scale
    return matmul(correction, M) if minimum_norm else correction, slow, jnp.asarray(False), i


def in_range(x, E):
    """x - x (I - E)^3: after whole cycles E is near a projector, and this drops what x has in its null space.

    Cycles raise the noise there far more than the data may have needed.
    """
    rest = x
    for _ in range(3):
        rest = rest - matmul(rest, E)
    return x - rest


def gram_and_solve(M, rhs, minimum_norm, rtol, condition_dtype):
    """For l >> s: all Updates on the s x s energy, then refinement of X against the original M.

    The energy E = M M^T squares the condition number, so this path only answers when it can prove that E has been
    conditioned to a multiple of the identity (hence full rank) and when the backward error, measured with M
    itself, reaches rtol. Returns (X, error, Stats); error is inf if the caller has to take the other path.
    """
    dtype, s = M.dtype, M.shape[0]
    seen = M.astype(condition_dtype)
    info = jnp.finfo(condition_dtype)
    E = matmul(seen, seen.T)
    top = energy_bound(E)
    scalable = (top > info.tiny**0.4) & (top < info.max**0.4)
    top = jnp.where(scalable, top, 1)
    size = jnp.sqrt(top).astype(dtype)
    # A cycle leaves the eigenvalues of E in [0.81, 1], most of them near 1.
    enough, iterations = 0.3, _ROBUST_ITERATIONS if s < _SMALL else _SMALL_ITERATIONS
    E, Q, _, steps = condition_energy(E / top, CYCLE, lambda E, _: (_spread(E) > enough) & scalable)
    E, Q = E.astype(dtype), Q.astype(dtype) / size
    spread = _spread(E)
    condition = size * energy_bound(Q)
    # Beyond that, E has too few digits in its smallest eigenvalue to refine by.
    certified = (spread <= enough) & scalable & (float(info.eps) * condition**2 < 2e-3)
    projected = None if minimum_norm else _isometric(E, Q, spread)

    def correct(c):
        X, r, best, _, passes = c
        krylov, _, _ = conjugate_residuals(by_energy(E), matmul(r, Q.T), None, iterations, 0)
        z = matmul(krylov.z, Q)
        new = X + (matmul(z, M) if minimum_norm else z)
        errors, R, gradient = backward_error(M, rhs, new, size, minimum_norm, projected=projected)
        X, kept = jax.tree.map(lambda n, o: jnp.where(errors.merit < best.merit, n, o), (new, errors), (X, best))
        return X, R if minimum_norm else gradient, kept, errors.merit < 0.1 * best.merit, passes + 1

    X = jnp.zeros((rhs.shape[0], M.shape[1] if minimum_norm else s), dtype)
    first = rhs if minimum_norm else times_transpose(rhs, M)
    worst_errors = Errors(jnp.asarray(jnp.inf, dtype), jnp.asarray(jnp.inf, dtype))
    carry = vary((X, first, worst_errors, certified, jnp.asarray(0, jnp.int32)), E + jnp.sum(rhs))
    X, _, best, _, passes = lax.while_loop(lambda c: c[3] & (c[2].backward > rtol / 16), correct, carry)
    error = jnp.where(certified & (best.backward <= rtol), best.backward, jnp.inf)
    return X, error, Stats(steps, passes, error, size, condition)


def condition_energy(E, cycle, more):
    """Updates of E (norm at most 1) by cycles while more(E, growth), and while E has digits left to condition.

    Returns (Q E Q^T, Q, growth, steps).
    """
    dtype = E.dtype
    scales, etas = (jnp.asarray(v, dtype) for v in zip(*cycle, strict=True))

    def go_on(c):
        E, _, growth, _ = c
        return more(E, growth) & (growth < 0.1 / jnp.finfo(dtype).eps ** 0.5)

    def step(i, c):
        E, Q, growth, steps = c
        E, Q = update_energy(E, Q, etas[i])
        return scales[i] ** 2 * E, scales[i] * Q, growth * scales[i], steps + 1

    start = vary((E, jnp.eye(E.shape[-1], dtype=dtype), jnp.ones((), dtype), jnp.asarray(0, jnp.int32)), E)
    return lax.while_loop(go_on, lambda c: lax.fori_loop(0, len(cycle), step, c), start)


def _paths(s, minimum_norm, limit, dtype, max_steps) -> list[Path]:
    """From the cheapest to the one that is right for all data."""
    paths = [robust(minimum_norm, limit)]
    if not minimum_norm and s >= _SMALL and max_steps is None:
        paths.insert(0, refined(s, minimum_norm, dtype))
    if minimum_norm and (s >= _SMALL or limit > _SMALL_STEPS):
        paths.insert(0, carried(s, limit))
    if minimum_norm and s < _SMALL:
        paths.insert(0, hurried(s, limit))
    return paths


def least_squares(A, rhs, rtol, rcond, max_steps, condition_dtype=None):
    """Minimum-norm least-squares rows X of X A ~ rhs; A has any shape and scaling. Returns (X, status, Stats)."""
    minimum_norm = A.shape[0] >= A.shape[1]
    budget = step_budget(None, rcond)
    budget += -budget % len(SETTLE)
    limit = budget if max_steps is None else min(max_steps, budget)
    rhs_scale = power_of_two(jnp.max(jnp.abs(rhs), axis=-1, keepdims=True))
    scaled_rhs = rhs * rhs_scale

    def fat(A):
        return A.T if minimum_norm else A

    # Stages answer for A scaled to a largest entry near 1.
    def condition(A, scaled_rhs, *, path: Path):
        scale = power_of_two(jnp.max(jnp.abs(A)))
        M = scale * fat(A)
        seen = M if path.dtype is None else M.astype(path.dtype)
        E = matmul(seen, seen.T)
        size = jnp.sqrt(energy_bound(E))
        size = jnp.where(size > 0, size, 1)
        E, size = E / size**2, size.astype(M.dtype)
        c, condition = condition_and_solve(Target(M, scaled_rhs, size, minimum_norm), E, rtol, path)
        exhausted = jnp.where(c.best_step >= c.steps - 6, Status.RANK_CUTOFF, Status.STAGNATED)
        exhausted = Status.MAX_STEPS if max_steps == limit else exhausted
        reached = c.done if path.stride is not None else c.errors.backward <= rtol
        status = jnp.where(reached, Status.CONVERGED, exhausted)
        return c.X, status, Stats(c.steps, c.inner, c.errors.backward, size / scale, condition)

    def condense(A, scaled_rhs, *, dtype):
        X, error, stats = gram_and_solve(fat(A), scaled_rhs, minimum_norm, rtol, dtype)
        status = jnp.where(jnp.isfinite(error), Status.CONVERGED, Status.STAGNATED)
        return X / power_of_two(jnp.max(jnp.abs(A))), status, stats

    s = min(A.shape)
    gram = max(A.shape) >= _GRAM_ASPECT * s and max_steps is None
    paths = [robust(minimum_norm, limit)] if gram else _paths(s, minimum_norm, limit, A.dtype, max_steps)
    stages = [partial(condition, path=path) for path in paths]
    if gram:
        stages.insert(0, partial(condense, dtype=A.dtype))
    # With fewer digits than that, no Gram matrix is good enough to refine by, see `gram_and_solve`.
    if condition_dtype is not None and not (gram and float(jnp.finfo(condition_dtype).eps) > 2e-3):
        path = refined(s, minimum_norm, condition_dtype)
        stages.insert(0, partial(condense, dtype=condition_dtype) if gram else partial(condition, path=path))
    X, status, stats = _first_certified(stages, A, scaled_rhs)
    # One factor: at the ends of the range either of the two alone would flush parts of X to zero.
    X = X * (power_of_two(jnp.max(jnp.abs(A))) / rhs_scale)
    finite = jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(rhs_scale))
    status = jnp.where(jnp.all(jnp.isfinite(X)), status, Status.BREAKDOWN)
    status = jnp.where(finite, status, Status.NONFINITE).astype(jnp.int32)
    return jnp.where(finite, X, jnp.nan), status, stats


def _first_certified(stages, A, rhs):
    """The answer of the first stage that converges on it, or the last one's."""
    first, *others = stages
    answer = first(A, rhs)
    if not others:
        return answer
    _, status, stats = answer
    answered = (status == int(Status.CONVERGED)) | ~jnp.isfinite(stats.norm)
    return unless(answered, answer, partial(_first_certified, others), A, rhs)
