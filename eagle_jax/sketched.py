"""Computation-limited EAGLE: a step sees A only through a sketch A S (d x r), and costs O(n d r).

    plain       the paper's: one Update with a fresh S per step, alone or averaged over machines.
    deflation   Updates of the sketch alone, A S -> Q with orthonormal columns, cost d r^2 each; then Update's step
                for C and D, with Q in the place of A, takes Q's part out of C and of A itself. A loses r dimensions a
                step: n/r steps end it. See `python -m experiments.sketching` for what plain steps take.

Both keep D + W C and B = W A for every W, if B = W A at the start. Otherwise they end somewhere else than at B A^+ C:
sketches do not commute. That is noticed by probes: columns A x of random x ride along with C, and must end as B x.
Random columns g, which end as W g, tell the size of W.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax import plain
from eagle_jax.certificate import Errors
from eagle_jax.linalg import matmul, norm, power_of_two, safe_divide, times_powers, worst
from eagle_jax.machines import Alone, Peers
from eagle_jax.scaling import step_budget
from eagle_jax.schedules import CYCLE, SETTLED, FixedSteps
from eagle_jax.sketch import PROBES, Sketch
from eagle_jax.solution import DistributedStats, Method, SketchedStats, Solution, Status
from eagle_jax.spectral import sharp_energy_bound
from eagle_jax.update import State, sketched, update, update_estimate

# Eight columns A x and eight g, the last ones of C and D.
_EACH = 8
_PROBES = 2 * _EACH
# Of a W that explains B: ||A|| ||W|| / ||B||. Random W have about sqrt(d).
_LARGEST = 1e3
# Plain steps, unless max_steps says more: rcond allows (n/r)^2 times those without sketches, 132 800 for n = 40, r = 1.
MOST_SKETCHES = 10_000
# What turns a sketch into Q: singular values above 1/400 of the largest come out as 1, within rounding. What lies below
# is left for later sketches, which find it on top once the rest is gone.
_TO_ORTHONORMAL = CYCLE + CYCLE + SETTLED
_GROWTH = math.prod(scale for scale, _ in _TO_ORTHONORMAL)


class Data(NamedTuple):
    """The blocks scaled by powers of two and turned by the sketch family, and the probes."""

    A: jax.Array
    B: jax.Array
    C: jax.Array | None  # None in the estimation form
    probes: jax.Array  # [A x, g], A x summed over machines
    answers: jax.Array  # B x, likewise
    size_B: jax.Array
    size_A: jax.Array  # a lower bound of ||A||_2
    up: tuple[jax.Array, ...]  # what undoes the scaling of D, multiplied,
    down: tuple[jax.Array, ...]  # and divided by
    norm: jax.Array  # ||A||_F of the largest machine, as it was
    finite: jax.Array

    def errors(self, D) -> Errors:
        """||B - W A|| / (||A|| ||W|| + ||B||), row by row, for the W that maps probes to D.

        Sketches of noise make W large, which must not hide what is left of B.
        """
        left, size_W = norm(self.answers - D[:, :_EACH], -1) / _EACH**0.5, norm(D[:, _EACH:], -1) / _EACH**0.5
        size = jnp.minimum(self.size_A * size_W, _LARGEST * self.size_B)
        error = worst(safe_divide(left, size + self.size_B))
        return Errors(error, worst(safe_divide(left, self.size_B)))

    @property
    def explicable(self):
        """Norm of the probes that A reaches."""
        return norm(self.probes[:, :_EACH])


def _data(A, B, C, sketch: Sketch, peers: Peers | Alone) -> tuple[Data, Sketch]:
    shared, sketch = sketch.key, Sketch(sketch.r, peers.fold(sketch.key), sketch.family)
    top = peers.largest(jnp.max(jnp.abs(A)), *jnp.max(jnp.abs(B), axis=1))
    scale = power_of_two(top)
    A_scale, B_scale = scale[0], scale[1:, None]
    size = peers.largest(norm(A * A_scale))[0]
    A, B = sketch.rotate(A * A_scale, B * B_scale)
    down = (B_scale,)
    finite = jnp.all(jnp.isfinite(top))
    if C is not None:
        C_scale = power_of_two(jnp.max(jnp.abs(C), axis=0))
        C, down = C * C_scale, (B_scale, C_scale)
        finite &= jnp.all(jnp.isfinite(C_scale))
    d, n = A.shape
    x = jax.random.normal(jax.random.fold_in(sketch.key, PROBES), (n, _EACH), A.dtype)
    g = jax.random.normal(jax.random.fold_in(shared, PROBES), (d, _EACH), A.dtype)
    probes = jnp.concatenate([peers.sum(matmul(A, x)), g], axis=1)
    size_B = jnp.sqrt(peers.sum(norm(B, -1) ** 2))
    data = Data(
        A, B, C, probes, peers.sum(matmul(B, x)), size_B, size / d**0.5, (A_scale,), down, size / A_scale, finite
    )
    return data, sketch


def _bound(As):
    """||As||_2^2, from above."""
    bound = sharp_energy_bound(matmul(As, As.T) if As.shape[0] <= As.shape[1] else matmul(As.T, As))
    return jnp.where(bound > 0, bound, 1)


# ---- plain ---------------------------------------------------------------------------------------------------------


class Plain(NamedTuple):
    state: State  # the last columns of C and D belong to the probes
    W: jax.Array  # the estimation form rides along; d' x 0 otherwise
    step: jax.Array


def advance(it: Plain, sketch: Sketch, fixed: FixedSteps, peers: Peers | Alone) -> Plain:
    """One Update with a fresh sketch, rho from ||A S||."""
    A, B = it.state.A, it.state.B
    S = sketch.draw(it.step, A.shape[1], A.dtype)
    constants = 1 / (fixed.headroom * _bound(sketched(A, S))), fixed.eta, fixed.gamma
    new = update(it.state, *constants, S=S, reduce=peers.mean)
    W = update_estimate(A, B, it.W, *constants, S=S, reduce=peers.mean)[2] if it.W.size else it.W
    return Plain(_unit(new), W, it.step + 1)


def _unit(state: State) -> State:
    """A and B divided by ||A||_F, which Updates only lessen: W stays what it is."""
    size = norm(state.A)
    size = jnp.where(size > 0, size, 1)
    return state._replace(A=state.A / size, B=state.B / size)


def plain_start(A, B, C, W=None) -> Plain:
    D = jnp.zeros((B.shape[0], C.shape[1]), A.dtype)
    W = jnp.zeros((B.shape[0], 0), A.dtype) if W is None else W
    return Plain(_unit(State(A, B, C, D)), W, jnp.asarray(0, jnp.int32))


def plain_budget(A, sketch: Sketch, fixed: FixedSteps, rcond) -> int:
    return step_budget(fixed, rcond) * math.ceil(A.shape[1] / sketch.r) ** 2


def run_plain(A, B, C, sketch: Sketch, axis, rtol, rcond, limit, fixed: FixedSteps) -> Solution:
    """The paper's sketched EAGLE, or its estimation form if C is None; on machines if there is an axis."""
    peers = Alone() if axis is None else Peers.on(axis)
    budget = plain_budget(A, sketch, fixed, rcond)
    data, sketch = _data(A, B, C, sketch, peers)
    estimating = C is None
    columns = data.probes if data.C is None else jnp.concatenate([data.C, data.probes], axis=1)
    W = jnp.zeros((B.shape[0], A.shape[0]), A.dtype) if estimating else None
    start = plain_start(data.A, data.B, columns, W)
    eps = jnp.finfo(A.dtype).eps

    def left(it: Plain):
        return safe_divide(norm(it.state.C[:, -_PROBES:-_EACH]), data.explicable)

    def measure(it: Plain, _):
        D = matmul(it.W, data.probes) if estimating else it.state.D[:, -_PROBES:]
        return data.errors(D), left(it) <= eps**1.5  # nothing is left to explain: what is wrong now stays wrong

    def value(it: Plain):
        return it.W if estimating else it.state.D[:, :-_PROBES]

    limit = MOST_SKETCHES if limit is None else limit
    limited = limit < budget
    step = partial(advance, sketch=sketch, fixed=fixed, peers=peers)
    c = plain.run(start, step, measure, value, rtol, min(limit, budget))
    explained = (left(c.iterate) <= eps**0.5) & (c.errors.backward > eps**0.5)
    out = jnp.asarray(Status.MAX_STEPS if limited else Status.STAGNATED)
    failed = jnp.where(explained, Status.INCONSISTENT, jnp.where(c.current < plain.DIVERGED, out, Status.BREAKDOWN))
    return _finish(data, c, failed, rtol, _stats(data, c, columns, peers, fixed.contraction, A.shape[1] / sketch.r))


def _stats(data: Data, c, columns, peers, contraction, slowness):
    condition = (1 / contraction) ** (c.steps.astype(data.A.dtype) / slowness)
    none = jnp.asarray(0, jnp.int32)
    if isinstance(peers, Alone):
        return SketchedStats(c.steps, none, c.errors.backward, data.norm, condition)
    d = columns.shape[0]
    block = columns.size + data.B.shape[0] * (columns.shape[1] + (d if data.C is None else 0))
    floats = c.steps.astype(jnp.float32) * block
    method, gram = jnp.asarray(Method.AVERAGING, jnp.int32), floats > d * (d + 1) / 2
    unknown = jnp.full_like(c.steps, -1)
    return DistributedStats(
        c.steps, none, c.errors.backward, data.norm, condition, unknown, method, c.steps, floats, gram
    )


# ---- deflation -----------------------------------------------------------------------------------------------------


class Deflation(NamedTuple):
    X: jax.Array  # what is left of [A, C, probes]
    Y: jax.Array  # [B, D, D of the probes], B with the other sign: W X + Y stays what it is
    least: jax.Array  # the smallest ||A S|| so far
    left: jax.Array  # ||A||_F
    stuck: jax.Array  # the last step took less than half of it
    step: jax.Array
    spoilt: jax.Array  # a sketch of nothing but noise has made much of B


def orthonormalised(As, Bs):
    """(Q, Bq, ||As||): As R with orthonormal columns, and Bs R, by Updates of the small block."""
    size = jnp.sqrt(_bound(As))
    scales, etas = (jnp.asarray(v, As.dtype) for v in zip(*_TO_ORTHONORMAL, strict=True))
    none = jnp.zeros((As.shape[0], 0), As.dtype), jnp.zeros((Bs.shape[0], 0), As.dtype)

    def step(i, blocks):
        A, B, _, _ = update(State(blocks[0], blocks[1], *none), 1.0, etas[i], etas[i])
        return scales[i] * A, scales[i] * B

    Q, Bq = lax.fori_loop(0, len(_TO_ORTHONORMAL), step, (As / size, Bs / size))
    return Q, Bq, size


def deflate(it: Deflation, n: int, sketch: Sketch) -> Deflation:
    """Takes the range of A S out of A and C: Update's step for C and D, with Q for A, on all columns."""
    S = sketch.draw(it.step, n, it.X.dtype)
    Q, Bq, size = orthonormalised(sketched(it.X[:, :n], S), -sketched(it.Y[:, :n], S))
    _, _, X, Y = update(State(Q, Bq, it.X, it.Y), 1.0, 1.0, 1.0, frozen=True)
    left = norm(X[:, :n])
    return Deflation(X, Y, jnp.minimum(it.least, size), left, left > 0.5 * it.left, it.step + 1, it.spoilt)


def deflation_start(A, B, C) -> Deflation:
    Y = jnp.concatenate([-B, jnp.zeros((B.shape[0], C.shape[1]), A.dtype)], axis=1)
    size, zero, no = norm(A), jnp.asarray(0, jnp.int32), jnp.asarray(False)
    return Deflation(jnp.concatenate([A, C], axis=1), Y, size, size, no, zero, no)


def run_deflation(A, B, C, sketch: Sketch, rtol, rcond, limit) -> Solution:
    """D, or W if C is None, from deflated sketches. CONVERGED only if the probes say so."""
    (d, n), eps = A.shape, jnp.finfo(A.dtype).eps
    data, sketch = _data(A, B, C, sketch, Alone())
    columns = jnp.eye(d, dtype=A.dtype) if data.C is None else data.C
    start = deflation_start(data.A, data.B, jnp.concatenate([columns, data.probes], axis=1))
    size, size_C = norm(data.A), norm(columns, 0)
    nothing = max(rcond, 4 * n**0.5 * float(eps)) * size

    def measure(it: Deflation, _):
        # A step that took much may have left something of use among the noise: one more.
        exhausted = (it.left <= nothing) & it.stuck | (it.left <= eps * size)
        return data.errors(it.Y[:, -_PROBES:]), exhausted

    budget = 8 * math.ceil(min(d, n) / sketch.r) + 64  # a spectrum with many gaps takes more than n/r sketches
    limited = limit is not None and limit < budget

    def step(it: Deflation) -> Deflation:
        new = deflate(it, n, sketch)
        grown = norm(new.Y[:, -_EACH:]) > 2 * norm(it.Y[:, -_EACH:])  # W of the probes
        return new._replace(spoilt=it.spoilt | ((it.left <= nothing) & grown))

    c = plain.run(start, step, measure, lambda it: it.Y[:, n:-_PROBES], rtol, limit if limited else budget)
    # Rounding noise that came out in Q does harm where C has a part outside of A's range, and nowhere else.
    raised = jnp.minimum(eps * n**0.5 * _GROWTH * safe_divide(size, c.iterate.least), 1)
    outside = worst(safe_divide(norm(c.iterate.X[:, n:-_PROBES], 0), size_C))
    noisy = c.iterate.spoilt | (raised**2 * outside > max(rtol, d * float(eps)))
    failed = jnp.where(c.done, Status.INCONSISTENT, jnp.asarray(Status.MAX_STEPS if limited else Status.STAGNATED))
    failed = jnp.where(noisy, Status.STAGNATED, failed)
    condition = safe_divide(size, jnp.maximum(c.iterate.least, nothing))
    stats = SketchedStats(c.steps, jnp.asarray(0, jnp.int32), c.errors.backward, data.norm, condition)
    return _finish(data, c, failed, rtol, stats, ~noisy)


def _finish(data: Data, c, failed, rtol, stats, trusted=True) -> Solution:
    value = times_powers(c.best, data.up, data.down)
    status = jnp.where((c.errors.backward <= rtol) & trusted, Status.CONVERGED, failed)
    status = jnp.where(jnp.all(jnp.isfinite(value)), status, Status.BREAKDOWN)
    status = jnp.where(data.finite, status, Status.NONFINITE).astype(jnp.int32)
    return Solution(jnp.where(data.finite, value, jnp.nan), status, stats)
