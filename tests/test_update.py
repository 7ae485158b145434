"""Algorithm 1 against the paper's formulas and the invariants of its lemmas."""

# numpy arrays stand in for jax.Array in State.
# pyright: reportArgumentType=false

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eagle_jax import State, theory, update, update_estimate
from eagle_jax.update import update_energy
from tests import helpers

ETA, GAMMA = 1 / 3, 1.0
SHAPES = [(7, 5), (5, 7), (6, 6)]


def blocks(d, n, dtype, rows=3, columns=2, seed=0):
    rng = np.random.default_rng([d, n, seed])
    sizes = [(d, n), (rows, n), (d, columns), (rows, columns)]
    return State(*(rng.standard_normal(size).astype(dtype) for size in sizes))


def formulas(state, rho, eta, gamma, S=None):
    """The paper's lines, in float64."""
    A, B, C, D = (np.asarray(x, np.float64) for x in state)
    S = np.eye(A.shape[1]) if S is None else np.asarray(S, np.float64)
    As, Bs = A @ S, B @ S
    return State(
        A - eta * rho * As @ As.T @ As @ S.T,
        B - eta * rho * Bs @ As.T @ As @ S.T,
        C - gamma * rho * As @ As.T @ C,
        D + gamma * rho * Bs @ As.T @ C,
    )


def assert_states_close(found, expected, dtype, factor=100):
    for name, x, y in zip(State._fields, found, expected, strict=False):
        assert helpers.norm2(np.asarray(x) - y) <= factor * helpers.eps(dtype) * helpers.norm2(y), name


def steps(state, count):
    """[(state, rho)] along the plain iteration at rho = 1/||A||^2."""
    out = []
    for _ in range(count):
        rho = 1 / helpers.norm2(state.A) ** 2
        out.append((state, rho))
        state = update(state, rho, ETA, GAMMA)
    return [*out, (state, 1 / helpers.norm2(state.A) ** 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sketch", [0, 1, 3])
def test_update_is_the_papers(dtype, shape, sketch):
    state = blocks(shape[0], shape[1], dtype)
    S = helpers.orthonormal(np.random.default_rng(1), shape[1], sketch).astype(dtype) if sketch else None
    rho = 0.8 / helpers.norm2(state.A) ** 2
    found = update(state, rho, 0.4, 1.3, S=S)
    assert all(x.dtype == dtype for x in found)
    assert_states_close(found, formulas(state, rho, 0.4, 1.3, S), dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sketched", [False, True])
def test_a_given_energy_changes_nothing(dtype, shape, sketched):
    state = blocks(shape[0], shape[1], dtype)
    S = helpers.orthonormal(np.random.default_rng(1), shape[1], 4).astype(dtype) if sketched else None
    As = state.A if S is None else state.A @ S
    found = update(state, 0.05, ETA, GAMMA, S=S, energy=As @ As.T)
    assert_states_close(found, formulas(state, 0.05, ETA, GAMMA, S), dtype)


def test_machines_share_C_and_D_only(dtype):
    machines = [blocks(6, 4, dtype, seed=u) for u in range(3)]
    C, D = machines[0].C, machines[0].D
    A, B = (jnp.stack([m[i] for m in machines]) for i in (0, 1))
    rhos = jnp.asarray([0.02, 0.03, 0.04], dtype)

    def one(A, B, rho):
        return update(State(A, B, C, D), rho, ETA, GAMMA, reduce=lambda x: lax.pmean(x, "machine"))

    found = jax.vmap(one, axis_name="machine")(A, B, rhos)
    alone = [formulas(m._replace(C=C, D=D), float(r), ETA, GAMMA) for m, r in zip(machines, rhos, strict=True)]
    mean = [np.mean([s[i] for s in alone], axis=0) for i in (2, 3)]
    for u in range(3):
        expected = State(alone[u].A, alone[u].B, *mean)
        assert_states_close(State(*(x[u] for x in found)), expected, dtype)


def test_estimate_times_C_is_D_step_by_step(dtype):
    case = helpers.make_case(8, 6, dtype, consistent=False)
    state = State(case.A, case.B, case.C, np.zeros((3, 2), dtype))
    A, B, W = case.A, case.B, np.zeros((3, 8), dtype)
    for l in range(12):
        rho = 1 / helpers.norm2(state.A) ** 2
        A, B, W = update_estimate(A, B, W, rho, ETA, GAMMA)
        state = update(state, rho, ETA, GAMMA)
        scale = helpers.norm2(W) * helpers.norm2(case.C)
        assert helpers.norm2(W @ case.C - state.D) <= 100 * (l + 1) * helpers.eps(dtype) * scale
        assert_states_close((A, B), (np.asarray(state.A), np.asarray(state.B)), dtype)


def test_sketched_forms_apply_the_same_factors_in_opposite_order(dtype):
    """Sketched energies do not commute: D_l = W* (I - N) C_0 but W_l = W* (I - Nᵀ), so W_l C is not D_l."""
    case = helpers.make_case(8, 8, dtype)
    W_star, N = case.B @ helpers.pinv(case.A), np.eye(8)
    state = State(case.A, case.B, case.C, np.zeros((3, 2), dtype))
    A, B, W = case.A, case.B, np.zeros((3, 8), dtype)
    for l in range(12):
        S = helpers.orthonormal(np.random.default_rng(l), 8, 4).astype(dtype)
        As = np.asarray(state.A, np.float64) @ S
        rho = 1 / helpers.norm2(As) ** 2
        N = (np.eye(8) - GAMMA * rho * As @ As.T) @ N
        A, B, W = update_estimate(A, B, W, rho, ETA, GAMMA, S=S)
        state = update(state, rho, ETA, GAMMA, S=S)
        allowed = 100 * (l + 1) * helpers.eps(dtype) * case.kappa
        assert helpers.norm2(W - W_star @ (np.eye(8) - N.T)) <= allowed * helpers.norm2(W_star)
        assert helpers.norm2(state.D - W_star @ (np.eye(8) - N) @ case.C) <= allowed * case.scale
        assert_states_close((A, B), (np.asarray(state.A), np.asarray(state.B)), dtype)


def test_update_energy_is_the_energy_of_update(dtype):
    state = blocks(5, 9, dtype)
    rho = 1 / helpers.norm2(state.A) ** 2
    E, Q = update_energy(state.A @ state.A.T, np.eye(5, dtype=dtype), ETA * rho)
    after = update(state, rho, ETA, GAMMA).A
    scale = helpers.eps(dtype) * helpers.norm2(state.A) ** 2
    assert helpers.norm2(E - after @ after.T) <= 100 * scale
    assert helpers.norm2(Q @ state.A - after) <= 100 * helpers.eps(dtype) * helpers.norm2(state.A)
    T = np.eye(5) - ETA * rho * state.A @ state.A.T  # the lemma: E <- E (I - eta E)^2, its factors commute
    assert helpers.norm2(E - state.A @ state.A.T @ T @ T) <= 100 * scale


def test_the_estimate_stays_where_it_is(x64):
    """V_l = W* E_l with E = A Aᵀ and V = B Aᵀ: (A, B) change, the answer does not."""
    case = helpers.make_case(6, 9, np.float64, kappa=30, consistent=False)
    W = case.B @ helpers.pinv(case.A)
    for l, (state, _) in enumerate(steps(State(case.A, case.B, case.C, np.zeros((3, 2))), 20)):
        A, B = np.asarray(state.A), np.asarray(state.B)
        allowed = 100 * (l + 1) * helpers.eps(float) * case.kappa * helpers.norm2(B) * helpers.norm2(A)
        assert helpers.norm2(B @ A.T - W @ A @ A.T) <= allowed, l


def test_D_is_what_the_product_of_residual_factors_says(x64):
    """D_l = W* (I - N_l) C_0, N_l = prod (I - gamma rho_l E_l)."""
    case = helpers.make_case(6, 6, np.float64, kappa=20)
    W, N = case.B @ helpers.pinv(case.A), np.eye(6)
    for state, rho in steps(State(case.A, case.B, case.C, np.zeros((3, 2))), 20):
        allowed = 1000 * helpers.eps(float) * case.kappa * case.scale
        assert helpers.norm2(np.asarray(state.D) - W @ (np.eye(6) - N) @ case.C) <= allowed
        A = np.asarray(state.A)
        N = N @ (np.eye(6) - GAMMA * rho * A @ A.T)


@pytest.mark.parametrize("kappa", [2.0, 1e2, 1e4])
def test_condition_number_follows_the_lemma(x64, kappa):
    """theta = kappa(E) - 1 <- theta^2 (4 theta + 3) / (3 theta + 2)^2 at eta = 1/3."""
    case = helpers.make_case(5, 8, np.float64, kappa=kappa)
    thetas = []
    for state, _ in steps(State(case.A, case.B, case.C, np.zeros((3, 2))), 8):
        s = np.linalg.svd(np.asarray(state.A), compute_uv=False)
        thetas.append(float((s[0] / s[-1]) ** 2 - 1))
    slack = 1000 * helpers.eps(float)
    for before, after in itertools.pairwise(thetas):
        assert after == pytest.approx(theory.theta_step(before), rel=slack * kappa, abs=slack)
        assert after <= 0.75 * before**2 * (1 + slack * kappa) + slack


def test_A_tends_to_the_polar_factor(x64):
    case = helpers.make_case(6, 9, np.float64, kappa=50)
    state, rho = steps(State(case.A, case.B, case.C, np.zeros((3, 2))), 25)[-1]
    U, _, Vt = np.linalg.svd(case.A, full_matrices=False)
    assert helpers.norm2(np.asarray(state.A) * rho**0.5 - U @ Vt) <= 1000 * helpers.eps(float) * case.kappa
