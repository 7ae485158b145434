"""EAGLE among machines that each hold some columns (A^u, B^u) of A and B: what runs inside shard_map or vmap.

    averaging        the paper's: C and D are replaced by the mean of every machine's Update. See `averaging`.
    mean projector   conjugate residuals on P = mean A^u J^u, of which averaging is the Richardson iteration; every
                     machine finds J^u = (A^u)^+ by itself. For B = W A; d x n' or d' x d floats a round.
    factors          right for any data: the factorisation of all columns, from every machine's own. See
                     `methods.merged`. Triangles of d (d + 1) / 2 floats cross machines, once.

The mean projector has one of two forms, with the columns of A spread over machines: least squares X A ~ B for a
replicated X, or minimum norm X A^T = C^T for an X spread like the columns. Each pass starts from the residual in the
original data, and that residual decides when to stop. It is the same number on every machine.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.certificate import Errors, judge
from eagle_jax.krylov import DEEPEST, krylov_start, krylov_step
from eagle_jax.linalg import epsilon, matmul, norm, power_of_two, safe_divide, varying_like, worst
from eagle_jax.local import Local, Machine, local_data
from eagle_jax.machines import MOST_ROUNDS, Peers
from eagle_jax.methods import merged
from eagle_jax.solution import DistributedStats, Method, Solution, Status
from eagle_jax.spectral import rows

# Iterations before the pace is trusted.
_GRACE = 16


class Progress(NamedTuple):
    X: jax.Array
    errors: Errors
    rounds: jax.Array
    inner: jax.Array


class LeastSquares(NamedTuple):
    """X A ~ B; X (d' x d) is replicated."""

    machine: Machine
    B: jax.Array
    peers: Peers
    size: jax.Array  # ||A||, from below
    size_rhs: jax.Array

    def zero(self):
        return jnp.zeros((self.B.shape[0], self.machine.A.shape[0]), self.B.dtype)

    def averaged(self, X):
        """mean (B - X A) J."""
        rest = self.B - matmul(X, self.machine.A)
        r, squares = self.peers.sums(self.machine.collect(rest) / self.peers.count, rows(rest, rest))
        errors = self._errors(X, jnp.sqrt(squares[:, 0]), jnp.inf, jnp.inf)
        return r, errors._replace(merit=worst(norm(r, -1)))  # on noisy data, B - X A does not fall

    def _errors(self, X, size_R, size_gradient, size_PR):
        return judge(self.size, norm(X, -1), self.size_rhs, size_R, size_gradient, size_PR)

    def spread(self, z):
        return z


class MinimumNorm(NamedTuple):
    """X A^T = rhs; X (n' x columns) is spread over machines like the columns of A, rhs is C^T."""

    machine: Machine
    rhs: jax.Array
    peers: Peers
    size: jax.Array
    size_rhs: jax.Array

    def zero(self):
        return varying_like(jnp.zeros((self.rhs.shape[0], self.machine.A.shape[1]), self.rhs.dtype), self.machine.size)

    def averaged(self, X):
        AX, squares = self.peers.sums(matmul(X, self.machine.A.T), rows(X, X))
        R = self.rhs - AX
        RA = matmul(R, self.machine.A)
        gradient = jnp.sqrt(self.peers.sum(rows(RA, RA)))
        return R, judge(self.size, jnp.sqrt(squares[:, 0]), self.size_rhs, norm(R, -1), gradient[:, 0], jnp.inf)

    def spread(self, z):
        return self.machine.spread(z) / self.peers.count


def by_mean_projector(machine: Machine, peers: Peers):
    """r -> (r P, <r P, r>), one round."""

    def multiply(r):
        rP = peers.mean(machine.project(r))
        return rP, jnp.maximum(rows(r, rP), 0)

    return multiply


def conjugate_residuals(multiply, r, needed, budget, blind):
    """Rows z with z E ~ r, each iteration a round: until the residual has fallen by `needed`, or its pace promises
    nothing.

    Returns (z, iterations, slow); slow if the pace so far predicts more than `budget` iterations.
    """
    start = krylov_start(multiply, r)
    drop = jnp.maximum(needed, DEEPEST).astype(start.energy.dtype)

    def reduction(state):
        return jnp.sqrt(jnp.max(safe_divide(state.energy, start.energy)))

    def more(c):
        state, i = c
        now = reduction(state)
        predicted = i.astype(now.dtype) * jnp.log(drop) / jnp.minimum(jnp.log(now), -1e-6)
        return (now > drop) & (i < budget) & ((i < _GRACE) | (predicted < budget))

    carry = varying_like((start, jnp.asarray(0, jnp.int32)), start)
    state, i = lax.while_loop(more, lambda c: (krylov_step(multiply, c[0], blind), c[1] + 1), carry)
    return state.z, i, reduction(state) > drop


def improve(form, budget, on, rtol, limit) -> Progress:
    """X from zero by the mean projector, until its backward error is at most rtol or stops falling; zero if not `on`.

    The number of rounds until it gives up is known to be too small after `budget` iterations in one pass.
    """
    multiply, blind = by_mean_projector(form.machine, form.peers), _blind(form.machine.A)
    none, inf = jnp.asarray(0, jnp.int32), jnp.asarray(jnp.inf, form.machine.A.dtype)
    nothing = varying_like(Progress(form.zero(), Errors(inf, inf), none, none), form.size, form.size_rhs)

    def body(c):
        p, r, _ = c
        z, i, slow = conjugate_residuals(multiply, r, 0.25 * rtol / p.errors.backward, budget, blind)
        X = p.X + form.spread(z)
        fresh, errors = form.averaged(X)
        better = errors.merit < 0.7 * p.errors.merit
        rounds = p.rounds + i + 2
        going = ~slow & (errors.backward < 0.3 * p.errors.backward) & (errors.backward > rtol) & (rounds < limit)
        X, errors, r = jax.tree.map(lambda n, o: jnp.where(better, n, o), (X, errors, fresh), (p.X, p.errors, r))
        return Progress(X, errors, rounds, p.inner + i), r, going

    def run():
        r, errors = form.averaged(nothing.X)
        start = nothing._replace(errors=errors, rounds=nothing.rounds + 1), r, errors.backward > rtol
        return lax.while_loop(lambda c: c[2], body, start)[0]

    return lax.cond(on, run, lambda: nothing)


class Answer(NamedTuple):
    """Of the mean projector or of the factors; the value in the caller's scaling."""

    value: jax.Array
    error: jax.Array
    method: jax.Array
    rounds: jax.Array
    inner: jax.Array
    floats: jax.Array
    norm: jax.Array
    condition: jax.Array
    rank: jax.Array  # -1 if not known


def by_projector(form, local: Local, budget, on, rtol, limit, lift, certify) -> Answer:
    """lift: X -> (the value, floats sent for it). certify: X -> the error that X has beyond its residual."""
    found = improve(form, budget, on, rtol, limit)
    value, sent = lift(found.X)
    floats = found.rounds.astype(jnp.float32) * (form.size_rhs.shape[0] * form.machine.A.shape[0])
    return Answer(
        value=value,
        error=jnp.maximum(found.errors.backward, certify(found.X)),
        method=jnp.asarray(Method.PROJECTOR, jnp.int32),
        rounds=found.rounds + int(sent > 0),
        inner=found.inner,
        floats=floats + sent,
        norm=local.size / local.A_scale,
        condition=local.kappa,
        rank=jnp.asarray(-1, jnp.int32),
    )


def by_factors(A, B, C, peers: Peers, rtol, rcond) -> Answer:
    """W, or B A⁺ C if C is given. Every pass of refinement is a round."""
    factor, triangles, rounds = merged.factor(A, peers, rcond)
    if C is None:
        found = factor.estimate(B, rtol)
        value, block, last = found.value, len(B) * len(factor.rows.P), 0
    else:
        found = factor.right(C, rtol)
        value, block, last = peers.sum(matmul(B, found.value)), C.size, len(B) * C.shape[1]
    blocks = found.passes + int(C is None)
    return Answer(
        value=value,
        error=found.error,
        method=jnp.asarray(Method.FACTORS, jnp.int32),
        rounds=rounds + blocks + int(C is not None),
        inner=jnp.zeros((), jnp.int32),
        floats=(triangles + last + block * blocks).astype(jnp.float32),
        norm=found.size,
        condition=jnp.maximum(found.size * found.inverse_size, 1),
        rank=found.rank,
    )


def accelerate(form, local: Local, blocks, limits, acceleration, lift, certify=lambda X: 0.0) -> Solution:
    """The mean projector if the data may be consistent; with acceleration="auto" what is right for any data, where that
    fails or would move more floats. lift and certify: see `by_projector`.
    """
    rtol, rcond, limit = limits
    auto = acceleration == "auto" or form.peers.count == 1
    d, k = form.machine.A.shape
    k = min(d, k)
    # As many floats as the factors take: a triangle, and three blocks.
    patience = -(-(d * k - k * (k - 1) // 2) // (len(form.size_rhs) * d)) + 3
    on = (local.consistent & local.sound & (rcond is None)) if auto else jnp.asarray(True)
    first = by_projector(form, local, min(limit, patience) if auto else limit, on, rtol, limit, lift, certify)

    def alike(answer: Answer) -> Answer:
        return varying_like(answer, form.size, form.size_rhs, local.size_B, local.finite)

    def by_all():
        A, B, C = (None if x is None else jnp.where(local.finite, x, 0) for x in blocks)
        found = by_factors(A, B, C, form.peers, rtol, rcond)
        spent = (getattr(first, name) + getattr(found, name) for name in ("rounds", "inner", "floats"))
        return alike(found._replace(**dict(zip(("rounds", "inner", "floats"), spent, strict=True))))

    if auto:
        first = lax.cond(first.error > rtol, by_all, lambda: alike(first))
    return _solution(first, local, form.peers, rtol, limit)


def _blind(A) -> float:
    """Eigenvalues of the mean projector that rounding cannot tell from zero."""
    return min(4 * epsilon(A.dtype) * len(A) ** 0.5, 1e-3)


def probed(local: Local, peers: Peers, rhs):
    """The minimum-norm form of X A^T = rhs with one row more, and the error of that row's B X^T.

    B x depends on which solution x of A x = c one takes, unless B = W A. The row is c = A x0 for a random x0, and the
    error is how far B x is from B x0, relative to the size of the terms and to kappa, by which rounding may raise it.
    """
    machine, B = local.machine, local.B
    x0 = jax.random.normal(peers.fold(jax.random.key(0)), (1, B.shape[1]), B.dtype)
    probe, wanted, square = peers.sums(matmul(x0, machine.A.T), matmul(x0, B.T), rows(x0, x0))
    rhs = jnp.concatenate([rhs, probe])

    def certify(X):
        got, square_x = peers.sums(matmul(X[-1:], B.T), rows(X[-1:], X[-1:]))
        size = norm(local.size_B) * (jnp.sqrt(square) + jnp.sqrt(square_x)) * local.kappa
        return safe_divide(norm(got - wanted), size[0, 0])

    return MinimumNorm(machine, rhs, peers, local.size, norm(rhs, -1)), certify


def estimate(A, B, axis, rtol, rcond, limit, acceleration) -> Solution:
    """W = B A^+ of all columns, replicated; A and B are this machine's."""
    peers = Peers.on(axis)
    local = local_data(A, B, peers)
    form = LeastSquares(local.machine, local.B, peers, local.size, local.size_B)

    def lift(X):
        return X * local.A_scale / local.B_scale, 0

    return accelerate(form, local, (A, B, None), (rtol, rcond, limit), acceleration, lift)


def solve(A, B, C, axis, rtol, rcond, limit, acceleration) -> Solution:
    """D = B A^+ C, replicated, by A's minimum-norm solutions for the columns of C."""
    peers = Peers.on(axis)
    local = local_data(A, B, peers)
    C_scale = power_of_two(jnp.max(jnp.abs(C), axis=0, initial=0))[:, None]
    local = local._replace(finite=local.finite & jnp.all(jnp.isfinite(C)))
    form, certify = probed(local, peers, C.T * C_scale)

    def lift(X):
        D = peers.sum(matmul(local.B, X[:-1].T))
        return D * local.A_scale / local.B_scale / C_scale.T, D.size

    return accelerate(form, local, (A, B, C), (rtol, rcond, limit), acceleration, lift, certify)


def _solution(answer: Answer, local: Local, peers: Peers, rtol, limit) -> Solution:
    value, error = answer.value, answer.error
    eps, d = epsilon(value.dtype), local.machine.A.shape[0]
    projector = answer.method == int(Method.PROJECTOR)
    inconsistent = projector & ((error > 100 * eps) | ~local.consistent)
    failed = jnp.where(inconsistent, Status.INCONSISTENT, Status.STAGNATED)
    failed = jnp.where(projector & (answer.rounds >= limit), Status.MAX_STEPS, failed)
    status = jnp.where(error <= rtol, Status.CONVERGED, failed)
    status = jnp.where(jnp.all(jnp.isfinite(value)), status, Status.BREAKDOWN)
    status = jnp.where(local.finite, status, Status.NONFINITE).astype(jnp.int32)
    stats = DistributedStats(
        steps=peers.most(local.machine.passes),
        inner_steps=answer.inner,
        backward_error=error,
        norm=answer.norm,
        condition=answer.condition,
        rank=answer.rank,
        method=answer.method,
        rounds=answer.rounds,
        floats=answer.floats,
        gram_cheaper=answer.floats > d * (d + 1) / 2,
    )
    return Solution(jnp.where(local.finite, value, jnp.nan), status, stats)


def by_gram(machine: Machine, peers: Peers):
    """p -> p G, one round."""
    return lambda p: peers.sum(matmul(matmul(p, machine.A), machine.A.T))


def by_mean_inverse(machine: Machine, peers: Peers):
    """r -> r H, one round."""
    return lambda r: peers.mean(machine.collect(machine.spread(r)))


class Gradients(NamedTuple):
    y: jax.Array
    r: jax.Array
    z: jax.Array
    p: jax.Array
    rz: jax.Array


def gradients_start(r, z) -> Gradients:
    return varying_like(Gradients(jnp.zeros_like(r), r, z, z, rows(r, z)), r + z)


def gradients_step(multiply, precondition, state: Gradients) -> Gradients:
    """One iteration of preconditioned conjugate gradients, a row at a time."""
    y, r, z, p, rz = state
    pG = multiply(p)
    alpha = safe_divide(rz, rows(p, pG))
    y, r = y + alpha * p, r - alpha * pG
    z = precondition(r)
    fresh = jnp.maximum(rows(r, z), 0)
    return Gradients(y, r, z, z + safe_divide(fresh, rz) * p, fresh)


def iterates(A, B, C, axis, rounds: int, method: Method):
    """D (rounds x d' x n') after each round of a Krylov iteration for W without restarts."""
    peers = Peers.on(axis)
    local = local_data(A, B, peers)
    form, machine = LeastSquares(local.machine, local.B, peers, local.size, local.size_B), local.machine
    if method == Method.PROJECTOR:  # one round for the residual, one for the first product, one for each iteration
        multiply, blind = by_mean_projector(machine, peers), _blind(A)
        state = krylov_start(multiply, form.averaged(form.zero())[0])
        W, spent = scanned(lambda s: krylov_step(multiply, s, blind), state, rounds).z, 2
    else:  # two rounds for the residual and two for each iteration, of which the second prepares the next
        multiply, precondition = by_gram(machine, peers), by_mean_inverse(machine, peers)
        r = peers.sum(matmul(local.B, machine.A.T))
        state = gradients_start(r, precondition(r))
        states = scanned(partial(gradients_step, multiply, precondition), state, -(-rounds // 2))
        W, spent = jnp.repeat(states.y, 2, axis=0), 2
    W = jnp.concatenate([jnp.zeros((spent, *W.shape[1:]), W.dtype), W])[:rounds]
    return matmul(W * local.A_scale / local.B_scale, C)


def scanned(step, start, count: int):
    """The states after 1, ..., count steps."""

    def advance(state, _):
        state = step(state)
        return state, state

    return lax.scan(advance, start, length=count)[1]


def inconsistency(local: Local, peers: Peers, rtol):
    """How far B is from W A, by a random probe: zero within rounding for consistent data."""
    form, certify = probed(local, peers, jnp.zeros((0, local.machine.A.shape[0]), local.B.dtype))
    found = improve(form, MOST_ROUNDS, jnp.asarray(True), rtol, MOST_ROUNDS)
    return certify(found.X)
