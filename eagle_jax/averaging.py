"""The paper's distributed EAGLE: every machine's Update, averaged."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax import plain
from eagle_jax.accelerated import inconsistency, scanned
from eagle_jax.certificate import Errors, judge
from eagle_jax.linalg import matmul, norm, power_of_two, safe_divide, varying_like, worst
from eagle_jax.local import Local, local_data
from eagle_jax.machines import Peers
from eagle_jax.schedules import FixedSteps
from eagle_jax.solution import DistributedStats, Method, Solution, Status
from eagle_jax.spectral import rows
from eagle_jax.update import State, update, update_estimate


class Averaging(NamedTuple):
    blocks: tuple  # A, B, C, D; or A, B, W in the estimation form
    moved: jax.Array  # what the last round changed, per column of C or row of W
    settled: jax.Array  # every machine's A is conditioned


class Averaged(NamedTuple):
    """The arguments of `plain.run`, and the factors to undo the scaling of the value."""

    start: Averaging
    advance: Callable
    measure: Callable
    value: Callable
    scale: jax.Array


def average(A, B, C, axis, rtol, rcond, limit, fixed: FixedSteps, freeze: bool) -> Solution:
    """The paper's distributed EAGLE: D by Updates whose C and D deltas are averaged; W if C is None.

    Converges to B A^+ C if B = W A, and otherwise to something near the mean of the machines' own solutions, which
    the status says. `freeze` stops updating A and B when all machines are conditioned: same D, less work.
    """
    peers = Peers.on(axis)
    local = local_data(A, B, peers)
    step = partial(_average_step, peers=peers, fixed=fixed, freeze=freeze)
    loop = _averaged_estimate(local, peers, step) if C is None else _averaged_solve(local, C, step, fixed)
    c = plain.run(loop.start, loop.advance, loop.measure, loop.value, rtol, limit)
    if peers.count == 1:  # nothing to average
        inconsistent = jnp.asarray(False)
    else:
        unexplained = inconsistency(local, peers, rtol)
        inconsistent = ~local.consistent | (unexplained > 100 * jnp.finfo(A.dtype).eps)
    failed = jnp.where(c.steps >= limit, Status.MAX_STEPS, Status.STAGNATED)
    trusted = c.done & (c.iterate.settled | ~_drowned(local, peers, c.steps, fixed, rtol))
    status = jnp.where(inconsistent, Status.INCONSISTENT, jnp.where(trusted, Status.CONVERGED, failed))
    D = c.best * loop.scale
    status = jnp.where(jnp.all(jnp.isfinite(D)) & ~jnp.isnan(c.errors.merit), status, Status.BREAKDOWN)
    finite = local.finite & jnp.all(jnp.isfinite(loop.scale))
    status = jnp.where(finite, status, Status.NONFINITE).astype(jnp.int32)
    d, block = A.shape[0], D.size + (0 if C is None else C.size)
    floats = c.steps.astype(jnp.float32) * block
    method, none = jnp.asarray(Method.AVERAGING, jnp.int32), jnp.asarray(0, jnp.int32)
    size = local.size / local.A_scale
    unknown, cheaper = jnp.full_like(c.steps, -1), floats > d * (d + 1) / 2
    stats = DistributedStats(
        c.steps, none, c.errors.backward, size, local.kappa, unknown, method, c.steps, floats, cheaper
    )
    return Solution(jnp.where(finite, D, jnp.nan), status, stats)


def _drowned(local: Local, peers: Peers, steps, fixed: FixedSteps, rtol):
    """Whether rounding noise in a deficient machine's null space, which every Update raises, may have reached D."""
    A = local.machine.A
    columns = jnp.sum(jnp.any(A != 0, axis=0), dtype=jnp.int32)
    full = local.machine.rank == jnp.minimum(columns, A.shape[0])
    raised = jnp.finfo(A.dtype).eps * jnp.asarray(1 / fixed.contraction, A.dtype) ** steps.astype(A.dtype)
    return ~peers.all(full) & (raised**2 > rtol)  # D has it twice, through A and through B


def _average_step(move, blocks, settled, *, peers: Peers, fixed: FixedSteps, freeze: bool):
    """One round of move(blocks, rho, eta, gamma, reduce=, frozen=). Returns (blocks, settled)."""
    constants = 1 / fixed.headroom, fixed.eta, fixed.gamma
    # Where a singular value x stays under x - eta x^3 and the rescaling.
    fixed_point = (1 - fixed.contraction) * fixed.headroom / fixed.eta

    def condition(blocks):
        A, B, *rest = move(*blocks, *constants, reduce=peers.mean)
        left = blocks[0] - (blocks[0] - A) * (fixed.headroom / fixed.eta / fixed_point)
        settled = peers.all(norm(left) < 1e-5) if freeze else jnp.asarray(False)
        return (A / fixed.contraction, B / fixed.contraction, *rest), settled

    def keep(blocks):
        return tuple(move(*blocks, *constants, reduce=peers.mean, frozen=True)), settled | True

    return lax.cond(settled, keep, condition, blocks) if freeze else condition(blocks)


def _averaged_solve(local: Local, C, step, fixed: FixedSteps) -> Averaged:
    C_scale = power_of_two(jnp.max(jnp.abs(C), axis=0, initial=0))
    C = C * C_scale
    size, size_C = local.machine.size, norm(C, 0)

    def advance(it: Averaging) -> Averaging:
        blocks, settled = step(lambda A, B, C, D, *a, **k: update(State(A, B, C, D), *a, **k), it.blocks, it.settled)
        before, after = it.blocks[2], blocks[2]
        # mean E C comes with the averaged delta: no further collective.
        moved = safe_divide(norm(before - after, 0), norm(before, 0)) * (fixed.headroom / fixed.gamma)
        return Averaging(blocks, moved, settled)

    def measure(it: Averaging, _):
        error = worst(jnp.minimum(safe_divide(norm(it.blocks[2], 0), size_C), it.moved))
        return Errors(error, error), jnp.asarray(False)

    D = jnp.zeros((local.B.shape[0], C.shape[1]), C.dtype)
    C, D, *rest = varying_like((C, D, jnp.ones_like(size_C), jnp.asarray(False)), local.size, local.size_B)
    start = Averaging((local.machine.A / size, local.B / size, C, D), *rest)
    return Averaged(start, advance, measure, lambda it: it.blocks[3], local.A_scale / local.B_scale / C_scale)


def _averaged_estimate(local: Local, peers: Peers, step) -> Averaged:
    machine, B = local.machine, local.B

    def advance(it: Averaging) -> Averaging:
        blocks, settled = step(update_estimate, it.blocks, it.settled)
        moved = safe_divide(norm(blocks[2] - it.blocks[2], -1), norm(blocks[2], -1))
        return Averaging(blocks, moved, settled)

    def measure(it: Averaging, _):
        W = it.blocks[2]
        rest = B - matmul(W, machine.A)
        size_R = jnp.sqrt(peers.sum(rows(rest, rest))[:, 0])
        errors = judge(local.size, norm(W, -1), local.size_B, size_R, jnp.inf, jnp.inf)
        return errors, worst(it.moved) <= 8 * jnp.finfo(W.dtype).eps

    W, *rest = jnp.zeros((B.shape[0], machine.A.shape[0]), B.dtype), jnp.ones(B.shape[0], B.dtype), jnp.asarray(False)
    W, *rest = varying_like((W, *rest), local.size, local.size_B)
    start = Averaging((machine.A / machine.size, B / machine.size, W), *rest)
    return Averaged(start, advance, measure, lambda it: it.blocks[2], local.A_scale / local.B_scale)


def iterates(A, B, C, axis, rounds: int, fixed: FixedSteps):
    """D (rounds x d' x n') after each round."""
    peers = Peers.on(axis)
    local = local_data(A, B, peers)
    loop = _averaged_solve(local, C, partial(_average_step, peers=peers, fixed=fixed, freeze=False), fixed)
    return loop.value(scanned(loop.advance, loop.start, rounds)) * loop.scale
