"""The public drivers: solve, estimate, lstsq, prepare, and trajectory."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax import accelerated, averaging, engine, layered, machines, plain
from eagle_jax.blocks import as_blocks, as_matrices, check_equal
from eagle_jax.schedules import OPTIMAL, PAPER, FixedSteps, LayerSteps, resolve
from eagle_jax.solution import Solution, Stats, Status
from eagle_jax.spectral import condition_number, norm, safe_divide, vary
from eagle_jax.update import State, matmul


class Settings(NamedTuple):
    """Static arguments, resolved and checked."""

    rtol: float
    rcond: float
    max_steps: int | None
    schedule: FixedSteps | LayerSteps | None  # None: optimal


def solve(
    A, B, C, *, rtol=None, rcond=None, max_steps=None, schedule=OPTIMAL, axis_name=None, acceleration="auto"
) -> Solution:
    """Fills in the hidden block of [[A, C], [B, D]]: `value` = D = B A^+ C (d' x n').

    Works under jit, vmap and in float32 or float64; A may have any shape and rank. Subnormal entries are zeros, as they
    are to XLA.

    Args:
      A, B, C: d x n, d' x n and d x n'.
      rtol: backward error to reach, 32 eps by default (the solver aims at a quarter of it). CONVERGED means that
        min(||R||/(||A|| ||W|| + ||B||), ||R A^T||/(||A|| ||R||)) <= rtol for R = B - W A and every row of B, measured
        on the A and B you gave (or the same for A y = C, whichever of B and C is thinner).
      rcond: singular values below rcond*||A|| need not be resolved; eps*max(d, n) by default. It is a budget of steps
        and no sharp filter: values within a factor of ten of the cut are damped.
      max_steps: stop after that many Updates of A.
      schedule: "optimal" (default), "paper" (eta=1/3, gamma=1), "emergent", or a pair (eta, gamma). Anything but
        "optimal" runs the paper's plain iteration and stops on the residual of C. A `LayerSteps` runs all its steps and
        nothing else, whatever max_steps and acceleration say; the status tells whether that was enough.
      axis_name: inside `shard_map` or `vmap` over an axis of that name, A and B are this machine's columns of the whole
        A and B, C is replicated, and so are the results. Only blocks of the size of C and D cross machines, or half
        a d x d matrix where that takes fewer floats. `stats` is a `DistributedStats`; max_steps counts rounds.
      acceleration: with axis_name only. "none" and "freeze" are the paper's averaging, for B = W A (else the status is
        INCONSISTENT); "krylov" reaches its limit in fewer rounds; "auto" is right for all data.
    """
    A, B, C = as_blocks(A, B, C)
    if axis_name is not None:
        return _among_machines(A, B, C, axis_name, _settings(A, rtol, rcond, max_steps, schedule), acceleration)
    return _solve(A, B, C, _settings(A, rtol, rcond, max_steps, schedule))


def estimate(
    A, B, *, rtol=None, rcond=None, max_steps=None, schedule=OPTIMAL, axis_name=None, acceleration="auto"
) -> Solution:
    """The parameter W* = B A^+ (d' x d) in `value`; the minimum-norm minimiser of ||W A - B||. See `solve`."""
    A, B = as_matrices(A=A, B=B)
    check_equal("columns", "B", B.shape[1], "A", A.shape[1])
    if axis_name is not None:
        return _among_machines(A, B, None, axis_name, _settings(A, rtol, rcond, max_steps, schedule), acceleration)
    return _estimate(A, B, _settings(A, rtol, rcond, max_steps, schedule))


def lstsq(a, b, *, rtol=None, rcond=None, max_steps=None, schedule=OPTIMAL) -> Solution:
    """numpy's orientation: the minimum-norm x that minimises ||a x - b||; a: m x k, b: m or m x p. See `solve`."""
    b = b if hasattr(b, "ndim") else jnp.asarray(b)
    vector = b.ndim == 1
    a, b = as_matrices(a=a, b=b[:, None] if vector else b)
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"b has {b.shape[0]} rows but a has {a.shape[0]}; they must agree (a: m x k, b: m or m x p)")
    W, status, stats = _estimate(a.T, b.T, _settings(a, rtol, rcond, max_steps, schedule))
    return Solution(W[0] if vector else W.T, status, stats)


class Prepared(NamedTuple):
    """W* of a fixed (A, B); call it with C, as often as wanted, for D = W* C without conditioning again."""

    estimate: Solution

    def __call__(self, C) -> Solution:
        W, status, stats = self.estimate
        (C,) = as_matrices(C=C)
        check_equal("rows", "C", C.shape[0], "A", W.shape[1])
        D = matmul(W, C)
        broken = jnp.where(jnp.all(jnp.isfinite(C)), Status.BREAKDOWN, Status.NONFINITE)
        converged = status == int(Status.CONVERGED)
        status = jnp.where(converged & ~jnp.all(jnp.isfinite(D)), broken, status).astype(jnp.int32)
        return Solution(jnp.where(status == int(Status.NONFINITE), jnp.nan, D), status, stats)


def prepare(A, B, *, rtol=None, rcond=None, max_steps=None, schedule=OPTIMAL) -> Prepared:
    """Conditions (A, B) once for many queries: `prepare(A, B)(C)` equals `solve(A, B, C)`."""
    return Prepared(estimate(A, B, rtol=rtol, rcond=rcond, max_steps=max_steps, schedule=schedule))


class Trajectory(NamedTuple):
    """Iterates of the plain algorithm; entry l of each history is the value after l+1 steps.

    D: steps x d' x n'. residual: ||A_l^T C_l|| / (||A_l|| ||C_l||), 0 once C_l vanishes. C_norm: ||C_l|| / ||C_0||.
    kappa: condition number of A_l (by SVD).
    """

    D: jax.Array
    residual: jax.Array
    C_norm: jax.Array
    kappa: jax.Array
    final: State


def trajectory(A, B, C, *, steps: int | None = None, schedule: str | tuple = "paper") -> Trajectory:
    """Runs `steps` plain Updates and keeps their history.

    `schedule` is "paper", "emergent" or (eta, gamma); or a `LayerSteps`, all of it, without `steps`.
    """
    A, B, C = as_blocks(A, B, C)
    fixed = resolve(schedule)
    if isinstance(fixed, LayerSteps):
        if steps is not None:
            raise ValueError(f"steps={steps} with a LayerSteps, which says itself how many; leave `steps` out")
        history, final = _layers(A, B, C, fixed)
        return Trajectory(history.D, history.residual, history.C_norm, history.kappa, final)
    if fixed is None:
        raise ValueError('trajectory follows the plain iteration; use schedule="paper", "emergent" or (eta, gamma)')
    if not (isinstance(steps, int) and steps >= 1):
        raise ValueError(f"steps={steps}; expected a positive integer")
    return _trajectory(A, B, C, steps, fixed)


def _settings(A, rtol, rcond, max_steps, schedule) -> Settings:
    eps = float(jnp.finfo(A.dtype).eps)
    rtol = 32 * eps if rtol is None else float(rtol)
    rcond = eps * max(*A.shape, 1) if rcond is None else float(rcond)
    if not eps <= rtol < 1:
        raise ValueError(f"rtol={rtol}; expected a number between {A.dtype}'s eps={eps:.1e} and 1, or None for 32*eps")
    if not 0 < rcond < 1:
        raise ValueError(f"rcond={rcond}; expected a number between 0 and 1, or None for eps*max(A.shape)")
    if max_steps is not None and not (isinstance(max_steps, int) and max_steps >= 1):
        raise ValueError(f"max_steps={max_steps}; expected a positive integer, or None for what rcond allows")
    return Settings(rtol, rcond, max_steps, resolve(schedule))


@partial(jax.jit, static_argnums=3)
def _solve(A, B, C, settings: Settings) -> Solution:
    if isinstance(settings.schedule, LayerSteps):
        return layered.solve(A, B, C, settings.rtol, settings.schedule)
    if settings.schedule is not None and 0 not in A.shape:
        return plain.solve(A, B, C, *settings[:3], settings.schedule)
    if B.shape[0] <= C.shape[1]:
        return Prepared(_estimate(A, B, settings))(C)
    transposed = Prepared(_estimate(A.T, C.T, settings))(B.T)
    return transposed._replace(value=transposed.value.T)


@partial(jax.jit, static_argnums=2)
def _estimate(A, B, settings: Settings) -> Solution:
    if 0 in A.shape or B.shape[0] == 0:
        return _empty(jnp.zeros((B.shape[0], A.shape[0]), A.dtype), A, B)
    if isinstance(settings.schedule, LayerSteps):
        raise ValueError("schedule=LayerSteps(...) is for solve and trajectory; W* is solve(A, B, identity)")
    if settings.schedule is not None:
        return plain.estimate(A, B, *settings[:3], settings.schedule)
    return _optimal(A, B, settings)


def _among_machines(A, B, C, axis_name, settings: Settings, acceleration) -> Solution:
    if acceleration not in machines.ACCELERATIONS:
        raise ValueError(f"acceleration={acceleration!r}; expected one of {machines.ACCELERATIONS}")
    rtol, rcond, limit, fixed = settings
    if isinstance(fixed, LayerSteps):
        if C is None:
            raise ValueError("schedule=LayerSteps(...) is for solve and trajectory; W* is solve(A, B, identity)")
        return layered.solve(A, B, C, rtol, fixed, axis_name)
    limit = machines.MOST_ROUNDS if limit is None else limit
    if fixed is not None and acceleration in ("krylov", "auto"):
        raise ValueError(
            f'schedule={fixed} is for the plain iteration; with axis_name, use acceleration="none" or "freeze"'
        )
    wide = A.shape[0] if C is None else C.shape[1]
    if 0 in (A.shape[0], B.shape[0], wide):
        return machines.empty(jnp.zeros((B.shape[0], wide), A.dtype), A, B, axis_name)
    if A.shape[1] == 0:  # this machine has nothing to say, but takes part
        A, B = (jnp.zeros((x.shape[0], 1), x.dtype) for x in (A, B))
    if acceleration in ("none", "freeze"):
        return averaging.average(A, B, C, axis_name, rtol, rcond, limit, fixed or PAPER, acceleration == "freeze")
    if C is None:
        return accelerated.estimate(A, B, axis_name, rtol, rcond, limit, acceleration)
    if B.shape[0] <= C.shape[1]:
        return Prepared(accelerated.estimate(A, B, axis_name, rtol, rcond, limit, acceleration))(C)
    return accelerated.solve(A, B, C, axis_name, rtol, rcond, limit, acceleration)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _optimal(A, B, settings: Settings) -> Solution:
    fast = Solution(*engine.least_squares(A, B, *settings[:3]))
    if settings.max_steps is not None:
        return fast

    # At condition numbers near 1/eps the paper's short steps, which never turn a singular value back, lose less.
    # What they call converged there is the rounding floor of their own residuals, and may be above rtol.
    def plainly(A, B, fast):
        slow = plain.estimate(A, B, *settings[:3], PAPER)
        converged, error = slow.status == int(Status.CONVERGED), slow.stats.backward_error
        status = jnp.where(converged & (error > settings.rtol), Status.STAGNATED, slow.status).astype(jnp.int32)
        better = converged & (error < fast.stats.backward_error)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), slow._replace(status=status), fast)

    answered = (fast.status == int(Status.CONVERGED)) | (fast.status == int(Status.NONFINITE))
    return engine.unless(answered, fast, plainly, A, B, fast)


@_optimal.defjvp
def _refuse_derivatives(settings, primals, tangents):
    # Differentiating the loops would give NaN: they divide by residuals that vanish.
    raise NotImplementedError(
        "derivatives through the default solver are not implemented; differentiate B A^+ C by its closed formula, "
        'or use schedule="paper" for forward mode'
    )


def _empty(value, A, B) -> Solution:
    """The pseudo-inverse of an empty or unasked-for A is empty: the answer is exact."""
    finite = jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B))
    status = jnp.where(finite, Status.CONVERGED, Status.NONFINITE).astype(jnp.int32)
    zero, one = jnp.zeros((), A.dtype), jnp.ones((), A.dtype)
    return Solution(value, status, Stats(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), zero, zero, one))


_layers = jax.jit(layered.trajectory, static_argnums=3)


@partial(jax.jit, static_argnums=(3, 4))
def _trajectory(A, B, C, steps, fixed) -> Trajectory:
    start = plain.scaled_state(A, B, C)

    def step(state, _):
        state = plain.step(state, fixed)
        history = (
            state.D,
            plain.stationarity(state),
            safe_divide(norm(state.C), norm(start.C)),
            condition_number(state.A),
        )
        return state, history

    start = vary(start, jnp.sum(start.A) + jnp.sum(start.B) + jnp.sum(start.C))
    final, (D, residual, C_norm, kappa) = lax.scan(step, start, length=steps)
    return Trajectory(D, residual, C_norm, kappa, final)
