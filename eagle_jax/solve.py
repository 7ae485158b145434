"""The public drivers: solve, estimate, lstsq, factor, and trajectory."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax import (
    accelerated,
    averaging,
    derivatives,
    fallback,
    layered,
    local,
    machines,
    plain,
    shared_derivatives,
    sketched,
)
from eagle_jax.blocks import as_array, as_blocks, as_count, as_matrices, as_static, check_equal, lanes, mapped
from eagle_jax.linalg import (
    adjoint,
    epsilon,
    matmul,
    norm,
    power_of_two,
    real_dtype,
    safe_divide,
    times,
    times_powers,
    varying_like,
)
from eagle_jax.methods import auto, merged
from eagle_jax.methods.factor import Answer, Factor, default_rcond
from eagle_jax.schedules import OPTIMAL, PAPER, FixedSteps, LayerSteps, resolve
from eagle_jax.sketch import Sketch
from eagle_jax.solution import SketchedStats, Solution, Stats, Status
from eagle_jax.spectral import condition_number
from eagle_jax.update import State


class Settings(NamedTuple):
    """Static arguments, resolved and checked."""

    rtol: float
    rcond: float | None
    max_steps: int | None
    schedule: FixedSteps | LayerSteps | None  # None: optimal

    def limits(self, A) -> tuple[float, float, int | None]:
        """(rtol, rcond, max_steps) of the paper's steps."""
        return self.rtol, default_rcond(A) if self.rcond is None else self.rcond, self.max_steps


def solve(
    A,
    B,
    C,
    *,
    rtol=None,
    rcond=None,
    max_steps=None,
    schedule=OPTIMAL,
    sketch: Sketch | None = None,
    ridge=None,
    axis_name=None,
    acceleration="auto",
) -> Solution:
    """Fills in the hidden block of [[A, C], [B, D]]: `value` = D = B A^+ C (d' x n').

    Works under jit, vmap, grad and in float32, float64, complex64 or complex128 (the paper's steps, sketches and
    machines: real data only); A may have any shape and rank. Subnormal entries are zeros, as they are to XLA.
    Derivatives of any order are those of B A^+ C with the same singular values dropped, for changes of A that keep
    stats.rank, whatever the schedule; they are taken at the solution, and take a solve with min(d, n) right-hand sides.
    Where that has lost more than half of its digits they are NaN.

    Args:
      A, B, C: d x n, d' x n and d x n'. Leading dimensions are a batch, and broadcast; every lane has its status.
      rtol: backward error to reach, 32 eps by default (the solver aims at a quarter of it). CONVERGED means, for every
        row b of B, w of W and with r = b - w A: what A still explains of r is at most rtol (sum |w_i| ||a_i|| + ||b||),
        a_i the rows of A that you gave, so that a row of A may be wrong in its own size only (or the same for A y = C,
        whichever of B and C is thinner). Plain schedules of `solve` know D and no W: there it is what is left of C, or
        what A still explains of it.
      rcond: singular values at or below rcond*||A||_2 are dropped, as numpy does. The default, eps*max(d, n) and never
        more than sqrt(eps), drops what rounding cannot tell from zero when the rows of A are scaled to equal lengths
        (the columns, if there are more rows); if there is any, it is applied to A as you gave it. To the paper's steps
        it is a budget of steps.
      max_steps: stop the paper's iteration after that many Updates of A.
      schedule: "optimal" (default: a rank-revealing factorisation), "paper" (eta=1/3, gamma=1), "emergent", a pair
        (eta, gamma) or a `FixedSteps`. Anything but "optimal" runs the paper's plain iteration. A `LayerSteps`, for
        `solve` without a sketch, runs all its steps and nothing else, whatever max_steps and acceleration say; the
        status tells whether that was enough.
      sketch: a `Sketch`: a sketched step costs O(n d r), where d x n x d is too much. `stats` is a `SketchedStats`,
        max_steps counts sketches, and the backward error is estimated from random columns. "optimal" takes about
        rank(A)/r sketches if B = W A, and ends at B A^+ C for all other data too, by dense steps; with max_steps it
        does not, and says so. Other schedules, and all on machines, are the paper's sketched steps, for B = W A (else
        the status is INCONSISTENT); at most 10 000 of them, if max_steps does not say. r = n is the same as no sketch;
        n counts this machine's columns, and a ridge's d.
      ridge: lambda, at least 0: W minimises ||W A - B||^2 + lambda ||W||^2, and `value` is W C. May be traced, and
        differentiated where it is not 0; in a batch one number, or one for each A.
      axis_name: inside `shard_map` or `vmap` over an axis of that name, A and B are this machine's columns of the whole
        A and B, C is replicated, and so are the results. Only blocks of the size of C and D cross machines, or
        triangles of d (d + 1) / 2 floats where these are fewer or B is not W A. `stats` is a `DistributedStats`;
        max_steps counts rounds. Several axes are a tuple. Derivatives are NaN where rcond drops more than rounding.
      acceleration: with axis_name only. "none" and "freeze" are the paper's averaging, for B = W A (else the status is
        INCONSISTENT), and the only ones that take a plain schedule; "krylov" reaches its limit in fewer rounds; "auto"
        is right for all data. Machines that sketch average: there "auto" is "none".
    """
    A, B, C = as_blocks(A, B, C, batched=axis_name is None)
    settings = _settings(A, rtol, rcond, max_steps, schedule)
    return _dispatch(A, B, C, settings, sketch, ridge, axis_name, acceleration)


def estimate(
    A,
    B,
    *,
    rtol=None,
    rcond=None,
    max_steps=None,
    schedule=OPTIMAL,
    sketch: Sketch | None = None,
    ridge=None,
    axis_name=None,
    acceleration="auto",
) -> Solution:
    """The parameter W* = B A^+ (d' x d) in `value`; the minimum-norm minimiser of ||W A - B||. See `solve`."""
    A, B = as_matrices(A=A, B=B, batched=axis_name is None)
    check_equal("columns", "B", B.shape[-1], "A", A.shape[-1])
    settings = _settings(A, rtol, rcond, max_steps, schedule)
    return _dispatch(A, B, None, settings, sketch, ridge, axis_name, acceleration)


def lstsq(a, b, *, rtol=None, rcond=None, max_steps=None, schedule=OPTIMAL, ridge=None) -> Solution:
    """numpy's orientation: the minimum-norm x that minimises ||a x - b||; a: m x k, b: m or m x p. See `solve`.

    b is a vector if it has one dimension, and else a matrix, as in numpy 2: a batch of vectors is b[..., None].
    """
    a, b = (as_array(name, x) for name, x in (("a", a), ("b", b)))
    vector = b.ndim == 1
    a, b = as_matrices(a=a, b=b[:, None] if vector else b, batched=True)
    if a.shape[-2] != b.shape[-2]:
        raise ValueError(
            f"b has {b.shape[-2]} rows but a has {a.shape[-2]}; they must agree (a: m x k, b: m or m x p; a batch of "
            "vectors is b[..., None])"
        )
    settings = _settings(a, rtol, rcond, max_steps, schedule)
    W, status, stats = _dispatch(a.mT, b.mT, None, settings, None, ridge, None, "auto")
    return Solution(W[..., 0, :] if vector else W.mT, status, stats)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factored:
    """A, factorised once for any number of B and C: `factor(A).solve(B, C)` equals `solve(A, B, C)`. A pytree.

    Leading dimensions of A are a batch, which B and C must fit; if A has none, those of B and C are. Derivatives are
    those of B A^+ C, also with respect to the A that was factorised.
    """

    A: jax.Array  # with a ridge's columns
    factor: Factor
    finite: jax.Array
    ridged: bool = dataclasses.field(metadata={"static": True})
    settings: Settings = dataclasses.field(metadata={"static": True})

    @property
    def rank(self) -> jax.Array:
        """How many singular values of A are above rcond*||A||_2."""
        return self.factor.rows.rank

    def estimate(self, B) -> Solution:
        """W = B A^+."""
        _, B = as_matrices(A=self.A, B=B, batched=True)
        return self._lanes(self._padded(B), None)

    def solve(self, B, C) -> Solution:
        """D = B A^+ C."""
        A, B, C = as_matrices(A=self.A, B=B, C=C, batched=True)
        check_equal("rows", "C", C.shape[-2], "A", A.shape[-2])
        return self._lanes(self._padded(B), C)

    def lstsq(self, b) -> Solution:
        """The x that minimises ||A^T x - b||, numpy's orientation: A^T is m x k, b is m or m x p. See `lstsq`."""
        b = as_array("b", b)
        vector = b.ndim == 1
        W, status, stats = self.estimate(b[None] if vector else b.mT)
        return Solution(W[..., 0, :] if vector else W.mT, status, stats)

    def _padded(self, B):
        d, n = self.A.shape[-2:]
        check_equal("columns", "B", B.shape[-1], "A", n - d * self.ridged)
        return jnp.pad(B, [(0, 0)] * (B.ndim - 1) + [(0, d * self.ridged)])

    def _lanes(self, B, C) -> Solution:
        batch = self.A.shape[:-2]
        given = jnp.broadcast_shapes(B.shape[:-2], () if C is None else C.shape[:-2])
        if batch and given not in ((), batch):
            raise ValueError(f"B and C have the batch {given} but A has {batch}; they must agree")
        B, C = (None if x is None else jnp.broadcast_to(x, (*(batch or given), *x.shape[-2:])) for x in (B, C))

        def function(*arguments):
            return _by_factor(*arguments, settings=self.settings)

        axes = (0, 0, None if C is None else 0, 0, 0) if batch else (None, 0, None if C is None else 0, None, None)
        return mapped(function, batch or given, (self.A, B, C, self.factor, self.finite), axes)


def factor(A, *, rtol=None, rcond=None, ridge=None) -> Factored:
    """The default solver's factorisation of A (d x n), to be used with many B and C. Options: see `solve`."""
    (A,) = as_matrices(A=A, batched=True)
    settings = _settings(A, rtol, rcond, None, OPTIMAL)
    if 0 in A.shape[-2:]:
        raise ValueError(f"A has shape {A.shape}; expected at least one row and one column")
    if ridge is not None:
        A, _ = _with_ridge(A, A[..., :0, :], ridge, None)

    def one(A):
        finite = jnp.all(jnp.isfinite(A))
        return auto.factor(lax.stop_gradient(jnp.where(finite, A, 0)), settings.rcond), finite

    factor, finite = lanes(jax.jit(one), A)
    return Factored(A, factor, finite, ridge is not None, settings)


def _by_factor(A, B, C, factor: Factor, finite, settings: Settings) -> Solution:
    found = _apply_factor(*map(_held, (A, B, C)), factor=factor, finite=finite, rtol=settings.rtol)
    return _differentiable(found, (A, B, C), settings, factor)


def _apply_factor(A, B, C, factor: Factor, finite, rtol) -> Solution:
    if C is not None and B.shape[0] > C.shape[1]:
        solution = _apply_factor(adjoint(A), adjoint(C), adjoint(B), factor.turned(), finite, rtol)
        return solution._replace(value=adjoint(solution.value))
    undo = lambda x: x  # noqa: E731
    if C is not None:
        B, C, undo = _fitted(A, B, C)
    finite &= jnp.all(jnp.isfinite(B))
    answer = factor.estimate(jnp.where(finite, B, 0), rtol)
    value = answer.value
    if C is not None:
        value, finite = undo(matmul(value, C)), finite & jnp.all(jnp.isfinite(C))
    return solution_of(value, answer, finite, rtol)


def _fitted(A, B, C):
    """(B with rows of A's size, C with columns of size one, what undoes this in D): W, between them, is in range."""
    unit, b, c = (power_of_two(jnp.max(jnp.abs(x), axis, keepdims=True)) for x, axis in ((A, None), (B, 1), (C, 0)))
    return times_powers(B, (b,), (unit,)), times(C, c), lambda D: times_powers(D, (unit,), (b, c))


def solution_of(value, answer: Answer, finite, rtol: float) -> Solution:
    _, error, passes, rank, size, inverse_size = answer
    status = jnp.where(error <= rtol, Status.CONVERGED, Status.STAGNATED)
    status = jnp.where(jnp.all(jnp.isfinite(value)), status, Status.BREAKDOWN)
    status = jnp.where(finite, status, Status.NONFINITE).astype(jnp.int32)
    stats = Stats(passes, error, size, jnp.maximum(size * inverse_size, 1), rank)
    return Solution(jnp.where(finite, value, jnp.nan), status, stats)


def _all_finite(x):
    return jnp.all(jnp.isfinite(x), axis=(-2, -1))


def applied(estimate: Solution, C, undo=lambda D: D) -> Solution:
    """W C from W; `undo` a scaling of it."""
    W, status, stats = estimate
    D = undo(matmul(W, C))
    broken = jnp.where(_all_finite(C), Status.BREAKDOWN, Status.NONFINITE)
    converged = status == int(Status.CONVERGED)
    status = jnp.where(converged & ~_all_finite(D), broken, status).astype(jnp.int32)
    return Solution(jnp.where((status == int(Status.NONFINITE))[..., None, None], jnp.nan, D), status, stats)


class Trajectory(NamedTuple):
    """Iterates of the plain algorithm; entry l of each history is the value after l+1 steps.

    D: steps x d' x n'. residual: the largest over the columns of ||A_l^T C_l|| / ||C_l||, 0 once C_l vanishes; plain
    steps keep ||A_l|| <= 1. C_norm: ||C_l|| / ||C_0||. kappa: condition number of A_l (by SVD).
    """

    D: jax.Array
    residual: jax.Array
    C_norm: jax.Array
    kappa: jax.Array
    final: State


def trajectory(
    A, B, C, *, steps: int | None = None, schedule: str | tuple = "paper", sketch: Sketch | None = None
) -> Trajectory:
    """Runs `steps` plain Updates and keeps their history.

    `schedule` is "paper", "emergent" or (eta, gamma); or a `LayerSteps`, all of it, without `steps`. With a sketch they
    are sketched Updates, and "optimal" is known too: A_l and C_l are then what deflation has left.
    """
    A, B, C = as_blocks(A, B, C)
    fixed, sketch = resolve(schedule), _useful(sketch, A)
    if isinstance(fixed, LayerSteps):
        if steps is not None or sketch is not None:
            raise ValueError(f"steps={steps}, sketch={sketch} with a LayerSteps, which says it all; leave them out")
        history, final = _layers(A, B, C, fixed)
        return Trajectory(history.D, history.residual, history.C_norm, history.kappa, final)
    if fixed is None and sketch is None:
        raise ValueError('trajectory follows the plain iteration; use schedule="paper", "emergent" or (eta, gamma)')
    return _trajectory(A, B, C, sketch, as_count("steps", steps), fixed)


def checked_tolerances(A, rtol, rcond) -> tuple[float, float | None]:
    eps = epsilon(A.dtype)
    rtol = 32 * eps if rtol is None else as_static("rtol", rtol)
    rcond = None if rcond is None else as_static("rcond", rcond)
    if not eps <= rtol < 1:
        raise ValueError(f"rtol={rtol}; expected a number between {A.dtype}'s eps={eps:.1e} and 1, or None for 32*eps")
    if rcond is not None and not 0 <= rcond < 1:
        raise ValueError(f"rcond={rcond}; expected a number from 0 to less than 1, or None for eps*max(A.shape)")
    return rtol, rcond


def _settings(A, rtol, rcond, max_steps, schedule) -> Settings:
    rtol, rcond = checked_tolerances(A, rtol, rcond)
    if max_steps is not None:
        max_steps = as_count("max_steps", max_steps, "a positive integer, or None for what rcond allows")
    fixed = resolve(schedule)
    if fixed is not None and jnp.issubdtype(A.dtype, jnp.complexfloating):
        raise TypeError(
            f'schedule={schedule!r} with {A.dtype}; the paper\'s steps are for real data, "optimal" for any'
        )
    return Settings(rtol, rcond, max_steps, fixed)


def _dispatch(A, B, C, settings: Settings, sketch: Sketch | None, ridge, axis_name, acceleration) -> Solution:
    if acceleration not in machines.ACCELERATIONS:
        raise ValueError(f"acceleration={acceleration!r}; expected one of {machines.ACCELERATIONS}")
    alone = sketch is None and axis_name is None
    if not alone and jnp.issubdtype(A.dtype, jnp.complexfloating):
        raise TypeError(f"{A.dtype} with a sketch or axis_name; these are for real data, one machine for any")
    if alone and settings.schedule is None and settings.max_steps is not None:
        raise ValueError(
            f'max_steps={settings.max_steps} with schedule="optimal", which is a factorisation; leave it out, or use '
            'schedule="paper"'
        )
    if axis_name is None and acceleration != "auto":
        raise ValueError(f"acceleration={acceleration!r} without axis_name: it is for machines; leave it out")
    if ridge is not None:
        A, B = _with_ridge(A, B, ridge, axis_name)
    sketch = _useful(sketch, A)
    if axis_name is not None:
        axes = tuple((axis, lax.axis_size(axis)) for axis in machines.Peers.on(axis_name).axes)
        return _among_machines(A, B, C, sketch, axes, settings, acceleration)
    return lanes(lambda A, B, C: _alone(A, B, C, sketch, settings), A, B, C)


def check_ridge(ridge, batch=()):
    if ridge is None:
        return
    if isinstance(ridge, str) or np.ndim(ridge) > len(batch):
        raise ValueError(f"ridge={ridge!r}; expected a number, at least 0, or None for none; in a batch one for each")
    if not isinstance(ridge, jax.core.Tracer) and not np.all(np.asarray(ridge) >= 0):
        raise ValueError(f"ridge={ridge}; expected a number, at least 0, or None for none")


def _with_ridge(A, B, ridge, axis_name):
    """[A, sqrt(ridge) I] and [B, 0]: least squares on them is ridge regression. Machines share the ridge out."""
    check_ridge(ridge, A.shape[:-2])
    if not isinstance(ridge, jax.Array):
        ridge = jax.device_put(np.asarray(ridge, real_dtype(A.dtype)))
    return _ridge_columns(A, B, ridge, 1 if axis_name is None else lax.axis_size(axis_name))


@partial(jax.jit, static_argnums=3)
def _ridge_columns(A, B, ridge, share):
    d = A.shape[-2]
    weight = jnp.sqrt(ridge.astype(A.dtype) / share)[..., None, None] * jnp.eye(d, dtype=A.dtype)
    A = jnp.concatenate([A, jnp.broadcast_to(weight, (*A.shape[:-2], d, d))], axis=-1)
    return A, jnp.concatenate([B, jnp.zeros((*B.shape[:-1], d), B.dtype)], axis=-1)


def _alone(A, B, C, sketch: Sketch | None, settings: Settings) -> Solution:
    found = _found(*map(_held, (A, B, C)), sketch=sketch, settings=settings)
    return _differentiable(found, (A, B, C), settings)


def _held(x):
    return None if x is None else lax.stop_gradient(x)


def _found(A, B, C, sketch: Sketch | None, settings: Settings) -> Solution:
    if sketch is None or 0 in (*A.shape, B.shape[0]) or (C is not None and C.shape[1] == 0):
        return _estimate(A, B, settings) if C is None else _solve(A, B, C, settings)
    return _sketched(A, B, C, sketch, settings)


def _differentiable(solution: Solution, blocks, settings: Settings, factor: Factor | None = None) -> Solution:
    """With the derivatives of B A^+ C in its value; status and stats have none."""
    return solution._replace(value=_with_tangent(solution.value, blocks, factor, settings))


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _with_tangent(value, blocks, factor: Factor | None, settings: Settings):
    return value


@_with_tangent.defjvp
def _with_tangent_jvp(settings, primals, tangents):
    _, blocks, factor = primals
    return _with_tangent(*primals, settings), _tangent(blocks, tangents[1], settings, factor)


def _tangent(blocks, tangents, settings: Settings, factor: Factor | None = None):
    A = blocks[0]
    if 0 in A.shape or 0 in (x.size for x in blocks if x is not None):
        return jnp.zeros(_shape(*blocks), A.dtype)
    finite = jnp.all(jnp.isfinite(A))
    factor = Factor.of(lax.stop_gradient(jnp.where(finite, A, 0)), settings.rcond) if factor is None else factor
    return jnp.where(finite, 1.0, jnp.nan).astype(A.dtype) * derivatives.whole_tangent(blocks, tangents, factor)


def _shape(A, B, C) -> tuple[int, int]:
    return B.shape[0], A.shape[0] if C is None else C.shape[1]


def _useful(sketch: Sketch | None, A) -> Sketch | None:
    """Checked, and None if it leaves nothing out."""
    if sketch is None:
        return None
    if not isinstance(sketch, Sketch):
        raise TypeError(f"sketch={sketch!r}; expected an eagle_jax.Sketch, e.g. Sketch(60, jax.random.key(0))")
    sketch.check(A.shape[-1])
    return None if sketch.r == A.shape[-1] else sketch


@partial(jax.jit, static_argnums=4)
def _sketched(A, B, C, sketch: Sketch, settings: Settings) -> Solution:
    if isinstance(settings.schedule, LayerSteps):
        raise ValueError("schedule=LayerSteps(...) with a sketch; its steps are those of the whole A, leave sketch out")
    if settings.schedule is not None:
        return sketched.run_plain(A, B, C, sketch, None, *settings.limits(A), settings.schedule)
    answer = sketched.run_deflation(A, B, C, sketch, *settings.limits(A))
    if settings.max_steps is not None:
        return answer

    def densely(A, B, C, sketches):
        value, status, stats = _estimate(A, B, settings) if C is None else _solve(A, B, C, settings)
        return Solution(value, status, SketchedStats(sketches, *stats[:4]))

    answered = (answer.status == int(Status.CONVERGED)) | (answer.status == int(Status.NONFINITE))
    return fallback.unless(answered, answer, densely, A, B, C, answer.stats.steps)


@partial(jax.jit, static_argnums=3)
def _solve(A, B, C, settings: Settings) -> Solution:
    if isinstance(settings.schedule, LayerSteps):
        return layered.solve(A, B, C, settings.rtol, settings.schedule)
    if settings.schedule is not None and 0 not in A.shape:
        return plain.solve(A, B, C, *settings.limits(A), settings.schedule)
    if 0 in (*A.shape, *B.shape, *C.shape):
        return applied(_estimate(A, B, settings), C)
    if B.shape[0] > C.shape[1]:
        transposed = _solve(A.T, C.T, B.T, settings)
        return transposed._replace(value=transposed.value.T)
    B, C, undo = _fitted(A, B, C)
    return applied(_estimate(A, B, settings), C, undo)


@partial(jax.jit, static_argnums=2)
def _estimate(A, B, settings: Settings) -> Solution:
    if 0 in A.shape or B.shape[0] == 0:
        return _empty(jnp.zeros((B.shape[0], A.shape[0]), A.dtype), A, B)
    if isinstance(settings.schedule, LayerSteps):
        raise ValueError("schedule=LayerSteps(...) is for solve and trajectory; W* is solve(A, B, identity)")
    if settings.schedule is None:
        return _factored(A, B, settings)
    solution = plain.estimate(A, B, *settings.limits(A), settings.schedule)
    # Plain steps call it converged where rounding stops them, wherever that is.
    refuted = (solution.status == int(Status.CONVERGED)) & (solution.stats.backward_error > settings.rtol)
    status = jnp.where(refuted, Status.STAGNATED, solution.status).astype(jnp.int32)
    return solution._replace(status=status)


def _factored(A, B, settings: Settings) -> Solution:
    finite = jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B))
    A, B = (jnp.where(finite, x, 0) for x in (A, B))
    answer = auto.estimate(A, B, settings.rtol, settings.rcond)
    return solution_of(answer.value, answer, finite, settings.rtol)


@partial(jax.custom_jvp, nondiff_argnums=(4, 5, 6))
def _among_machines(A, B, C, sketch: Sketch | None, axes, settings: Settings, acceleration) -> Solution:
    axis_name = tuple(axis for axis, _ in axes)
    (rtol, rcond, limit), fixed = settings.limits(A), settings.schedule
    if isinstance(fixed, LayerSteps):
        if C is None:
            raise ValueError("schedule=LayerSteps(...) is for solve and trajectory; W* is solve(A, B, identity)")
        return layered.solve(A, B, C, rtol, fixed, axis_name)
    if sketch is not None and acceleration in ("freeze", "krylov"):
        raise ValueError(
            f'acceleration={acceleration!r} with a sketch; expected "auto" or "none": sketches are averaged'
        )
    if sketch is None:
        limit = machines.MOST_ROUNDS if limit is None else limit
    if sketch is None and fixed is not None and acceleration in ("krylov", "auto"):
        raise ValueError(
            f'schedule={fixed} is for the plain iteration; with axis_name, use acceleration="none" or "freeze"'
        )
    wide = A.shape[0] if C is None else C.shape[1]
    if 0 in (A.shape[0], B.shape[0], wide):
        return local.empty(jnp.zeros((B.shape[0], wide), A.dtype), A, B, axis_name)
    if A.shape[1] == 0:  # this machine has nothing to say, but takes part
        A, B = (jnp.zeros((x.shape[0], 1), x.dtype) for x in (A, B))
    if sketch is not None and A.shape[1] > 1:
        return sketched.run_plain(A, B, C, sketch, axis_name, rtol, rcond, limit, fixed or PAPER)
    if acceleration in ("none", "freeze"):
        return averaging.average(A, B, C, axis_name, rtol, rcond, limit, fixed or PAPER, acceleration == "freeze")
    rcond = settings.rcond
    if C is None:
        return accelerated.estimate(A, B, axis_name, rtol, rcond, limit, acceleration)
    if B.shape[0] <= C.shape[1]:
        return applied(accelerated.estimate(A, B, axis_name, rtol, rcond, limit, acceleration), C)
    return accelerated.solve(A, B, C, axis_name, rtol, rcond, limit, acceleration)


@_among_machines.defjvp
def _among_machines_jvp(axes, settings, acceleration, primals, tangents):
    *blocks, sketch = primals

    def both(blocks, tangents):
        solution = _among_machines(*blocks, sketch, axes, settings, acceleration)
        A = blocks[0]
        if solution.value.size == 0 or A.size == 0:
            return solution, jnp.zeros_like(solution.value)
        peers = machines.Peers(tuple(axis for axis, _ in axes))
        finite = peers.all(jnp.all(jnp.isfinite(A)))
        factor = merged.factor(lax.stop_gradient(jnp.where(finite, A, 0)), peers, settings.rcond).factor
        return solution, jnp.where(finite, shared_derivatives.tangent(blocks, tangents, factor), jnp.nan)

    solution, value = machines.with_axes(both, axes, blocks, list(tangents[:3]))
    return solution, derivatives.with_tangent(solution, value)


def _empty(value, A, B) -> Solution:
    """The pseudo-inverse of an empty or unasked-for A is empty: the answer is exact."""
    finite = jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B))
    status = jnp.where(finite, Status.CONVERGED, Status.NONFINITE).astype(jnp.int32)
    none, real = jnp.zeros((), jnp.int32), real_dtype(A.dtype)
    zero, one = jnp.zeros((), real), jnp.ones((), real)
    return Solution(value, status, Stats(none, zero, zero, one, none))


_layers = jax.jit(layered.trajectory, static_argnums=3)


@partial(jax.jit, static_argnums=(4, 5))
def _trajectory(A, B, C, sketch: Sketch | None, steps, fixed) -> Trajectory:
    n = A.shape[1]
    start: Any = plain.scaled_state(A, B, C)
    if sketch is None:
        advance, look = partial(plain.step, fixed=fixed), lambda state: state
    else:
        A, B = sketch.rotate(start.A, start.B)
        if fixed is None:
            start = sketched.deflation_start(A, B, C)
            advance = partial(sketched.deflate, n=n, sketch=sketch)
            look = lambda it: State(it.X[:, :n], -it.Y[:, :n], it.X[:, n:], it.Y[:, n:])  # noqa: E731
        else:
            start = sketched.plain_start(A, B, C)
            advance = partial(sketched.advance, sketch=sketch, fixed=fixed, peers=machines.Alone())
            look = lambda it: it.state  # noqa: E731

    def step(iterate, _):
        iterate = advance(iterate)
        state = look(iterate)
        size = safe_divide(norm(state.C), norm(C))
        return iterate, (state.D, plain.stationarity(state), size, condition_number(state.A))

    start = varying_like(start, jnp.sum(A) + jnp.sum(B) + jnp.sum(C))
    final, (D, residual, C_norm, kappa) = lax.scan(step, start, length=steps)
    return Trajectory(D, residual, C_norm, kappa, look(final))
