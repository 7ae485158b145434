"""EAGLE among machines that each hold some columns (A^u, B^u) of A and B: what runs inside shard_map or vmap.

Conditioning is local: Updates turn A^u into U^u with orthonormal columns or rows, and give an approximate inverse
J^u = (A^u)^+ as a product of two matrices. What crosses machines are blocks of d x n' or d' x d floats, summed over
the axis, in one of these ways:

    averaging        the paper's: C and D are replaced by the mean of every machine's Update.
    mean projector   conjugate residuals on P = mean A^u J^u, of which averaging is the Richardson iteration.
    preconditioned   conjugate gradients on G = sum A^u A^u^T with mean J^u^T J^u, for data with B != W A.
    gram             one sum of G itself, conditioned on every machine; then refinement as above.

All but averaging work in one of two forms, with the columns of A spread over machines: least squares
X A ~ B for a replicated X, or minimum norm X A^T = C^T for an X spread like the columns. Each pass starts from the
residual in the original data, and that residual decides when to stop. It is the same number on every machine.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.certificate import Errors, judge
from eagle_jax.krylov import DEEPEST, krylov_start, krylov_step
from eagle_jax.linalg import matmul, norm, power_of_two, safe_divide, worst
from eagle_jax.machines import MOST_ROUNDS, Local, Machine, Peers, local_data
from eagle_jax.schedules import SETTLE
from eagle_jax.solution import DistributedStats, Method, Solution, Status
from eagle_jax.spectral import energy_bound, rows, vary
from eagle_jax.update import update_energy


class Way(NamedTuple):
    """One way to correct X by what is left of the right-hand side.

    Attributes:
      residual: X -> (what `solve` starts from, Errors).
      solve: (residual, wanted reduction) -> (z, iterations, whether it is too slow to go on).
      lift: z -> correction of X.
      rounds: of a residual, of an iteration, and of the first iteration beyond that.
    """

    residual: Callable
    solve: Callable
    lift: Callable
    rounds: tuple[int, int, int]


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

    def normal(self, X, projected):
        """(B - X A) A^T; projected(that) bounds the norm of the residual's part in A's row space."""
        rest = self.B - matmul(X, self.machine.A)
        r, squares = self.peers.sums(matmul(rest, self.machine.A.T), rows(rest, rest))
        return r, self._errors(X, jnp.sqrt(squares[:, 0]), norm(r, -1), projected(r))

    def _errors(self, X, size_R, size_gradient, size_PR):
        return judge(self.size, norm(X, -1), self.size_rhs, size_R, size_gradient, size_PR)

    def spread_average(self, z):
        return z

    def spread_normal(self, z):
        return z


class MinimumNorm(NamedTuple):
    """X A^T = rhs; X (n' x columns) is spread over machines like the columns of A, rhs is C^T."""

    machine: Machine
    rhs: jax.Array
    peers: Peers
    size: jax.Array
    size_rhs: jax.Array

    def zero(self):
        return vary(jnp.zeros((self.rhs.shape[0], self.machine.A.shape[1]), self.rhs.dtype), self.machine.size)

    def averaged(self, X):
        AX, squares = self.peers.sums(matmul(X, self.machine.A.T), rows(X, X))
        R = self.rhs - AX
        RA = matmul(R, self.machine.A)
        gradient = jnp.sqrt(self.peers.sum(rows(RA, RA)))
        return R, judge(self.size, jnp.sqrt(squares[:, 0]), self.size_rhs, norm(R, -1), gradient[:, 0], jnp.inf)

    def normal(self, X, _):
        return self.averaged(X)

    def spread_average(self, z):
        return self.machine.spread(z) / self.peers.count

    def spread_normal(self, z):
        return matmul(z, self.machine.A)


def by_mean_projector(machine: Machine, peers: Peers):
    """r -> (r P, <r P, r>), one round."""

    def multiply(r):
        rP = peers.mean(machine.project(r))
        return rP, jnp.maximum(rows(r, rP), 0)

    return multiply


def mean_projector(form, blind, budget) -> Way:
    multiply = by_mean_projector(form.machine, form.peers)

    def solve(r, needed):
        return conjugate_residuals(multiply, r, needed, budget, blind)

    return Way(form.averaged, solve, form.spread_average, (1, 1, 1))


def conjugate_residuals(multiply, r, needed, budget, blind):
    """Rows z with z E ~ r as by `krylov.conjugate_residuals`, but where an iteration is a round: none is wasted.

    Returns (z, iterations, slow); slow if the pace so far predicts more than `budget` iterations.
    """
    start = krylov_start(multiply, r)
    step = partial(krylov_step, multiply, blind=blind)
    state, i, slow = _iterated(step, start, lambda s: s.energy, needed, budget, grace=16)
    return state.z, i, slow


def _iterated(step, start, energy, needed, budget, grace):
    """Steps until energy(state)^(1/2) has fallen by `needed`, or its pace after `grace` steps promises nothing.

    Returns (state, steps, whether it is not there).
    """
    energy0 = energy(start)
    drop = jnp.maximum(needed, DEEPEST).astype(energy0.dtype)

    def reduction(state):
        return jnp.sqrt(jnp.max(safe_divide(energy(state), energy0)))

    def more(c):
        state, i = c
        now = reduction(state)
        predicted = i.astype(now.dtype) * jnp.log(drop) / jnp.minimum(jnp.log(now), -1e-6)
        return (now > drop) & (i < budget) & ((i < grace) | (predicted < budget))

    carry = vary((start, jnp.asarray(0, jnp.int32)), energy0)
    state, i = lax.while_loop(more, lambda c: (step(c[0]), c[1] + 1), carry)
    return state, i, reduction(state) > drop


def preconditioned(form, budget) -> Way:
    """For machines that all have rank d.

    H = mean (A^u A^u^T)^-1 is at least M (sum A^u A^u^T)^-1, by convexity of the inverse, which bounds ||P R||.
    """
    machine, peers = form.machine, form.peers
    multiply, precondition = by_gram(machine, peers), by_mean_inverse(machine, peers)

    def residual(X):
        z = []

        def projected(r):
            z.append(precondition(r))
            return jnp.sqrt(jnp.maximum(rows(r, z[0])[:, 0], 0) / peers.count)

        r, errors = form.normal(X, projected)
        return (r, z[0] if z else precondition(r)), errors

    def solve(start, needed):
        r, z = start
        return conjugate_gradients(multiply, precondition, r, z, needed, budget)

    return Way(residual, solve, form.spread_normal, (2, 2, 0))


def by_gram(machine: Machine, peers: Peers):
    """p -> p G, one round."""
    return lambda p: peers.sum(matmul(matmul(p, machine.A), machine.A.T))


def by_mean_inverse(machine: Machine, peers: Peers):
    """r -> r H, one round."""
    return lambda r: peers.mean(matmul(matmul(r, machine.half.T), machine.half))


class Gradients(NamedTuple):
    y: jax.Array
    r: jax.Array
    z: jax.Array
    p: jax.Array
    rz: jax.Array


def gradients_start(r, z) -> Gradients:
    return vary(Gradients(jnp.zeros_like(r), r, z, z, rows(r, z)), r + z)


def gradients_step(multiply, precondition, state: Gradients) -> Gradients:
    """One iteration of preconditioned conjugate gradients, a row at a time."""
    y, r, z, p, rz = state
    pG = multiply(p)
    alpha = safe_divide(rz, rows(p, pG))
    y, r = y + alpha * p, r - alpha * pG
    z = precondition(r)
    fresh = jnp.maximum(rows(r, z), 0)
    return Gradients(y, r, z, z + safe_divide(fresh, rz) * p, fresh)


def conjugate_gradients(multiply, precondition, r, z, needed, budget):
    """Rows y with y G ~ r, z = r H; needed is the reduction of <r H, r>^(1/2). Returns (y, iterations, slow)."""
    step = partial(gradients_step, multiply, precondition)
    state, i, slow = _iterated(step, gradients_start(r, z), lambda s: s.rz, needed, budget, grace=4)
    return state.y, i, slow


def gram(form, budget) -> Way:
    """Conditions the sum of all A^u A^u^T, of which one triangle is sent, and uses it on residuals of the data."""
    machine, peers = form.machine, form.peers
    E = matmul(machine.A, machine.A.T)
    d = E.shape[0]
    upper = jnp.triu_indices(d)
    packed = lax.psum(E[upper], peers.axis)
    G = jnp.zeros((d, d), E.dtype).at[upper].set(packed)  # not zeros_like: E varies over machines
    G = G + jnp.triu(G, 1).T
    top = energy_bound(G)
    top = jnp.where(top > 0, top, 1)
    eps = jnp.finfo(E.dtype).eps

    def unsettled(E, growth):
        return norm(E - matmul(E, E)) > 10 * eps * growth**2 * d**0.5

    P, Q, growth, _ = condition_energy(G / top, SETTLE, unsettled)
    Q = Q / jnp.sqrt(top)
    blind = jnp.minimum(4 * eps * d**0.5 * growth, 1e-3)
    isometric = ~unsettled(P, growth) & (jnp.trace(P) > d - 0.5)  # then ||P R|| is the norm of R (Q A)^T

    def multiply(r):
        rQA = matmul(matmul(r, Q), machine.A)
        rE = matmul(peers.sum(matmul(rQA, machine.A.T)), Q.T)
        return rE, jnp.maximum(rows(r, rE), 0)

    def residual(X):
        r, errors = form.normal(X, lambda r: jnp.where(isometric, 1.1 * norm(matmul(r, Q.T), -1), jnp.inf))
        return matmul(r, Q.T), errors

    def solve(r, needed):
        z, i, slow = conjugate_residuals(multiply, in_range(r, P), needed, budget, blind)
        return in_range(matmul(in_range(z, P), Q), P), i, slow

    return Way(residual, solve, form.spread_normal, (1, 1, 1))


def improve(make_way: Callable[[], Way], X, errors: Errors, on, rtol, limit) -> Progress:
    """Corrects X until its backward error is at most rtol or stops falling; nothing if not `on`."""
    none = jnp.asarray(0, jnp.int32)

    def body(c, way: Way):
        p, r, _ = c
        per_residual, per_iteration, first = way.rounds
        z, i, slow = way.solve(r, 0.25 * rtol / p.errors.backward)
        X = p.X + way.lift(z)
        fresh, errors = way.residual(X)
        better = errors.merit < 0.7 * p.errors.merit
        rounds = p.rounds + per_iteration * i + first + per_residual
        going = ~slow & (errors.backward < 0.3 * p.errors.backward) & (errors.backward > rtol) & (rounds < limit)
        X, errors, r = jax.tree.map(lambda n, o: jnp.where(better, n, o), (X, errors, fresh), (p.X, p.errors, r))
        return Progress(X, errors, rounds, p.inner + i), r, going

    def run():
        way = make_way()
        r, errors = way.residual(X)
        start = Progress(X, errors, none + way.rounds[0], none), r, errors.backward > rtol
        return lax.while_loop(lambda c: c[2], partial(body, way=way), start)[0]

    return lax.cond(on, run, lambda: Progress(X, errors, none, none))


class Answer(NamedTuple):
    """Of one of the accelerated forms. X is as the form has it."""

    X: jax.Array
    errors: Errors
    method: jax.Array
    rounds: jax.Array
    inner: jax.Array
    floats: jax.Array


def accelerate(form, local: Local, rtol, limit, acceleration, certify=lambda X: 0.0) -> Answer:
    """The mean projector if the data may be consistent, then what is right for any data, cheapest first.

    Other ways than the mean projector are for acceleration="auto". certify: X -> error that the mean projector's X has
    beyond its residual.
    """
    auto = acceleration == "auto" or form.peers.count == 1
    height, d = form.size_rhs.shape[0], form.machine.A.shape[0]
    blind = _blind(form.peers.largest(form.machine.growth)[0], form)
    gram_rounds = -(-(d + 1) // (2 * height))  # as many floats as half of a d x d matrix
    # What the Gram matrix would cost, and the rounds that come after it.
    patience = min(limit, gram_rounds + 6) if auto else limit
    unknown = _unknown(form)
    zero = form.zero()

    promising = local.consistent | (not auto)
    first = improve(lambda: mean_projector(form, blind, patience), zero, unknown, promising, rtol, limit)
    extra = certify(first.X)
    errors = Errors(*(jnp.maximum(e, extra) for e in first.errors))
    rounds, inner, method = first.rounds, first.inner, jnp.asarray(Method.PROJECTOR, jnp.int32)
    if not auto:
        return Answer(first.X, errors, method, rounds, inner, _floats(rounds, height * d))

    best = first.X, errors, method
    ways = [(lambda: gram(form, patience), jnp.asarray(True), Method.GRAM)]
    if form.machine.wide:
        ways.insert(0, (lambda: preconditioned(form, patience // 2), local.capable, Method.PRECONDITIONED))
    for make_way, able, name in ways:
        start = zero if isinstance(form, MinimumNorm) else best[0]
        next_ = improve(make_way, start, unknown, able & (best[1].backward > rtol), rtol, limit)
        better = next_.errors.backward < best[1].backward
        new = next_.X, next_.errors, jnp.asarray(name, jnp.int32)
        best = jax.tree.map(lambda n, o, better=better: jnp.where(better, n, o), new, best)
        rounds, inner = rounds + next_.rounds, inner + next_.inner
    X, errors, method = best
    gram_floats = jnp.where(next_.rounds > 0, d * (d + 1) / 2, 0.0)
    floats = _floats(rounds, height * d) + gram_floats.astype(jnp.float32)
    return Answer(X, errors, method, rounds, inner, floats)


def _blind(growth, form):
    d, dtype = form.machine.A.shape[0], form.machine.A.dtype
    return jnp.minimum(4 * jnp.finfo(dtype).eps * d**0.5 * growth, 1e-3).astype(dtype)


def _unknown(form) -> Errors:
    inf = jnp.asarray(jnp.inf, form.machine.A.dtype)
    return Errors(inf, inf)


def _floats(rounds, block):
    return rounds.astype(jnp.float32) * block


def probed(local: Local, peers: Peers, rhs):
    """The minimum-norm form of X A^T = rhs with one row more, and the error of that row's B X^T.

    B x depends on which solution x of A x = c one takes, unless B = W A. The row is c = A x0 for a random x0, and the
    error is how far B x is from B x0, relative to the size of the terms and to kappa, by which rounding may raise it.
    """
    machine, B = local.machine, local.B
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index(peers.axis))
    x0 = jax.random.normal(key, (1, B.shape[1]), B.dtype)
    probe, wanted, square = peers.sums(matmul(x0, machine.A.T), matmul(x0, B.T), rows(x0, x0))
    rhs = jnp.concatenate([rhs, probe])

    def certify(X):
        got, square_x = peers.sums(matmul(X[-1:], B.T), rows(X[-1:], X[-1:]))
        size = norm(local.size_B) * (jnp.sqrt(square) + jnp.sqrt(square_x)) * local.kappa
        return safe_divide(norm(got - wanted), size[0, 0])

    return MinimumNorm(machine, rhs, peers, local.size, norm(rhs, -1)), certify


def estimate(A, B, axis, rtol, rcond, limit, acceleration) -> Solution:
    """W = B A^+ of all columns, replicated; A and B are this machine's."""
    peers = Peers(axis)
    local = local_data(A, B, peers, rcond)
    form = LeastSquares(local.machine, local.B, peers, local.size, local.size_B)
    answer = accelerate(form, local, rtol, limit, acceleration)
    return _solution(answer.X * local.A_scale / local.B_scale, answer, local, peers, rtol, limit)


def solve(A, B, C, axis, rtol, rcond, limit, acceleration) -> Solution:
    """D = B A^+ C, replicated, by A's minimum-norm solutions for the columns of C."""
    peers = Peers(axis)
    local = local_data(A, B, peers, rcond)
    C_scale = power_of_two(jnp.max(jnp.abs(C), axis=0, initial=0))[:, None]
    local = local._replace(finite=local.finite & jnp.all(jnp.isfinite(C)))
    form, certify = probed(local, peers, C.T * C_scale)
    answer = accelerate(form, local, rtol, limit, acceleration, certify)
    D = peers.sum(matmul(local.B, answer.X[:-1].T))
    answer = answer._replace(rounds=answer.rounds + 1, floats=answer.floats + D.size)
    return _solution(D * local.A_scale / local.B_scale / C_scale.T, answer, local, peers, rtol, limit)


def _solution(value, answer: Answer, local: Local, peers: Peers, rtol, limit) -> Solution:
    eps, d = jnp.finfo(value.dtype).eps, local.machine.A.shape[0]
    error = answer.errors.backward
    projector = answer.method == int(Method.PROJECTOR)
    inconsistent = projector & ((error > 100 * eps) | ~local.consistent)
    failed = jnp.where(inconsistent, Status.INCONSISTENT, Status.STAGNATED)
    failed = jnp.where(answer.rounds >= limit, Status.MAX_STEPS, failed)
    status = jnp.where(error <= rtol, Status.CONVERGED, failed)
    status = jnp.where(jnp.all(jnp.isfinite(value)), status, Status.BREAKDOWN)
    status = jnp.where(local.finite, status, Status.NONFINITE).astype(jnp.int32)
    steps = lax.pmax(local.machine.steps, peers.axis)
    stats = DistributedStats(
        steps,
        answer.inner,
        error,
        local.size / local.A_scale,
        local.kappa,
        answer.method,
        answer.rounds,
        answer.floats,
        answer.floats > d * (d + 1) / 2,
    )
    return Solution(jnp.where(local.finite, value, jnp.nan), status, stats)


def iterates(A, B, C, axis, rounds: int, method: Method):
    """D (rounds x d' x n') after each round of a Krylov iteration for W without restarts."""
    peers = Peers(axis)
    local = local_data(A, B, peers, float(jnp.finfo(A.dtype).eps) * max(A.shape))
    form, machine = LeastSquares(local.machine, local.B, peers, local.size, local.size_B), local.machine
    if method == Method.PROJECTOR:  # one round for the residual, one for the first product, one for each iteration
        multiply, blind = by_mean_projector(machine, peers), _blind(local.growth, form)
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
    blind = _blind(local.growth, form)
    make_way = partial(mean_projector, form, blind, MOST_ROUNDS)
    return certify(improve(make_way, form.zero(), _unknown(form), jnp.asarray(True), rtol, MOST_ROUNDS).X)


def in_range(x, E):
    """x - x (I - E)^3: after whole cycles E is near a projector, and this drops what x has in its null space.

    Cycles raise the noise there far more than the data may have needed.
    """
    rest = x
    for _ in range(3):
        rest = rest - matmul(rest, E)
    return x - rest


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
