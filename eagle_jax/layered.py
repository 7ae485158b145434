"""A given list of Updates with absolute step sizes, as the layers of a trained network are; no norms, no stopping."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.plain import DIVERGED
from eagle_jax.schedules import LayerSteps
from eagle_jax.solution import DistributedStats, Method, Solution, Stats, Status
from eagle_jax.spectral import condition_of, norm, safe_divide, vary
from eagle_jax.update import State, matmul, update


class History(NamedTuple):
    """One entry per step: the first four of `eagle_jax.Trajectory`, and the error that `solve` judges by."""

    D: jax.Array
    residual: jax.Array
    C_norm: jax.Array
    kappa: jax.Array
    error: jax.Array


def states(A, B, C, schedule: LayerSteps, axis_name=None) -> State:
    """The blocks before the first step and after each, stacked. With `axis_name` C and D are machines' averages."""
    reduce = (lambda x: x) if axis_name is None else lambda x: lax.pmean(x, axis_name)
    start = State(A, B, C, jnp.zeros((B.shape[0], C.shape[1]), A.dtype))
    start = vary(start, jnp.sum(A) + jnp.sum(B) + jnp.sum(C))

    def step(state, sizes):
        state = update(state, 1.0, *sizes, reduce=reduce)
        return state, state

    _, after = lax.scan(step, start, tuple(jnp.asarray(x, A.dtype) for x in schedule))
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, after)


def history(all_states: State):
    """(History, singular values of A_0, A_1, ...)."""
    A, _, C, D = all_states
    s = jnp.linalg.svd(A, compute_uv=False)
    C_norm = norm(C, -2)
    left = safe_divide(C_norm, C_norm[:1])[1:]
    stationary = safe_divide(norm(matmul(A.mT, C), -2), s[:, :1] * C_norm)[1:]
    kappa = condition_of(s, float(jnp.finfo(A.dtype).eps) * max(A.shape[-2:]))
    worst = lambda x: jnp.max(x, axis=-1, initial=0)  # noqa: E731
    whole = safe_divide(norm(C, (-2, -1)), norm(C[0]))[1:]
    return History(D[1:], worst(stationary), whole, kappa[1:], worst(jnp.minimum(left, stationary))), s


def trajectory(A, B, C, schedule: LayerSteps) -> tuple[History, State]:
    """The history and the last state."""
    found = states(A, B, C, schedule)
    return history(found)[0], jax.tree.map(lambda x: x[-1], found)


def solve(A, B, C, rtol, schedule: LayerSteps, axis_name=None) -> Solution:
    """D after the last step. CONVERGED if that solved the problem to rtol, MAX_STEPS if the list was too short."""
    if 0 in (*A.shape, B.shape[0], C.shape[1]):
        raise ValueError(f"A {A.shape}, B {B.shape}, C {C.shape}: a LayerSteps needs blocks that are not empty")
    largest = (lambda x: x) if axis_name is None else lambda x: lax.pmax(x, axis_name)
    found, s = history(states(A, B, C, schedule, axis_name))
    D, error, sound = found.D[-1], largest(found.error[-1]), found.C_norm[-1] < DIVERGED
    status = jnp.where(error <= rtol, Status.CONVERGED, Status.MAX_STEPS)
    status = jnp.where(sound & jnp.all(jnp.isfinite(D)), status, Status.BREAKDOWN)
    dirty = largest(jnp.where(jnp.isfinite(jnp.sum(A) + jnp.sum(B) + jnp.sum(C)), 0, 1)) > 0
    status = jnp.where(dirty, Status.NONFINITE, status).astype(jnp.int32)
    size = largest(s[0, 0])
    kappa = largest(condition_of(s[0], float(jnp.finfo(A.dtype).eps) * max(A.shape)))
    stats = Stats(jnp.asarray(len(schedule.eta_rho), jnp.int32), jnp.asarray(0, jnp.int32), error, size, kappa)
    if axis_name is not None:
        floats = jnp.asarray(len(schedule.eta_rho) * (C.size + D.size), jnp.float32)
        method = jnp.asarray(Method.AVERAGING, jnp.int32)
        cheaper = floats > A.shape[0] * (A.shape[0] + 1) / 2
        stats = DistributedStats(*stats, method, stats.steps, floats, cheaper)
    return Solution(jnp.where(dirty, jnp.nan, D), status, stats)
