"""A given list of Updates with absolute step sizes, as the layers of a trained network are; no norms, no stopping."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.linalg import matmul, norm, safe_divide, varying_like
from eagle_jax.machines import Alone, Peers
from eagle_jax.plain import DIVERGED
from eagle_jax.schedules import LayerSteps
from eagle_jax.solution import DistributedStats, Method, Solution, Stats, Status
from eagle_jax.spectral import condition_of
from eagle_jax.update import State, update

_PROBES = 4


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
    start = varying_like(start, jnp.sum(A) + jnp.sum(B) + jnp.sum(C))

    def step(state, sizes):
        eta, gamma, *S = sizes
        state = update(state, 1.0, eta, gamma, S=S[0] if S else None, reduce=reduce)
        return state, state

    sizes = tuple(jnp.asarray(x, A.dtype) for x in schedule[: 3 if schedule.S else 2])
    if schedule.S and sizes[2].shape[1] != A.shape[1]:
        raise ValueError(f"schedule.S has {sizes[2].shape[1]} rows; expected as many as A {A.shape} has columns")
    _, after = lax.scan(step, start, sizes)
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
    # By the first A: a direction that the steps have erased from A is still one of the problem's.
    unexplained = safe_divide(norm(matmul(A[0].mT, C), -2), s[:1, :1] * C_norm)[1:]
    return History(D[1:], worst(stationary), whole, kappa[1:], worst(jnp.minimum(left, unexplained))), s


def trajectory(A, B, C, schedule: LayerSteps) -> tuple[History, State]:
    """The history and the last state."""
    found = states(A, B, C, schedule)
    return history(found)[0], jax.tree.map(lambda x: x[-1], found)


def solve(A, B, C, rtol, schedule: LayerSteps, axis_name=None) -> Solution:
    """D after the last step. CONVERGED if that solved the problem to rtol, MAX_STEPS if the list was too short.

    Averaged or sketched steps need B = W A for some W. Random columns A x ride along with C and must end as B x.
    """
    if 0 in (*A.shape, B.shape[0], C.shape[1]):
        raise ValueError(f"A {A.shape}, B {B.shape}, C {C.shape}: a LayerSteps needs blocks that are not empty")
    peers = Alone() if axis_name is None else Peers.on(axis_name)
    wanted, x = C.shape[1], jnp.zeros((A.shape[1], 0), A.dtype)
    if schedule.S or axis_name is not None:
        x = jax.random.normal(peers.fold(jax.random.key(0)), (A.shape[1], _PROBES), A.dtype)
    C = jnp.concatenate([C, peers.sum(matmul(A, x))], axis=1)
    found, s = history(states(A, B, C, schedule, axis_name))
    D, answers, sound = found.D[-1], peers.sum(matmul(B, x)), found.C_norm[-1] < DIVERGED
    rank_cut = float(jnp.finfo(A.dtype).eps) * max(A.shape)
    error, size, kappa, dirty = peers.largest(
        found.error[-1],
        s[0, 0],
        condition_of(s[0], rank_cut),
        jnp.where(jnp.isfinite(jnp.sum(A) + jnp.sum(B) + jnp.sum(C)), 0, 1).astype(A.dtype),
    )
    astray = norm(D[:, wanted:] - answers) > 100 * rtol * kappa * norm(answers)
    status = jnp.where(astray, Status.INCONSISTENT, Status.CONVERGED)
    status = jnp.where(error <= rtol, status, Status.MAX_STEPS)
    status = jnp.where(sound & jnp.all(jnp.isfinite(D)), status, Status.BREAKDOWN)
    status = jnp.where(dirty > 0, Status.NONFINITE, status).astype(jnp.int32)
    steps = jnp.asarray(len(schedule.eta_rho), jnp.int32)
    stats = Stats(steps, error, size, kappa, jnp.full_like(steps, -1))
    if axis_name is not None:
        sent = len(schedule.eta_rho) * (C.size + D.size) + (A.shape[0] + B.shape[0]) * _PROBES
        method, floats = jnp.asarray(Method.AVERAGING, jnp.int32), jnp.asarray(sent, jnp.float32)
        cheaper = floats > A.shape[0] * (A.shape[0] + 1) / 2
        none = jnp.zeros_like(steps)
        stats = DistributedStats(steps, none, *stats[1:], method, steps, floats, cheaper)
    return Solution(jnp.where(dirty > 0, jnp.nan, D[:, :wanted]), status, stats)
