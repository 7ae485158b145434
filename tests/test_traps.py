"""The ways in which a naive EAGLE fails; each was measured on one before this library was written."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eagle_jax
from eagle_jax import PAPER, State, Status, update
from tests import helpers


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
def test_1_a_gap_in_the_spectrum_does_not_stop_the_iteration(x64, schedule):
    """Singular values 1 (39 times) and 1e-8: D hardly moves for dozens of steps, then does."""
    rng = np.random.default_rng(0)
    A = helpers.with_spectrum(rng, 40, 40, [1.0] * 39 + [1e-8])
    B, C = rng.standard_normal((3, 40)) @ A, A @ rng.standard_normal((40, 2))
    C = C + 0.1 * np.linalg.svd(A)[0][:, -1:]  # the small direction counts
    case = helpers.case_of(A, B, C, np.float64)
    D, status, _ = eagle_jax.solve(case.A, case.B, case.C, schedule=schedule)
    assert status == Status.CONVERGED
    helpers.assert_close(D, case)
    change = np.diff(eagle_jax.trajectory(case.A, case.B, case.C, steps=6).D, axis=0)
    assert helpers.norm2(change[2]) < 1e-3 * helpers.norm2(case.D), "the premise: D seems to have settled"


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
def test_2_noise_in_the_null_space_does_not_grow(x64, schedule):
    """Rank 37 of 50, general B, inconsistent C: plain steps are right at step 10 and 1e16 off at step 100."""
    case = helpers.make_case(50, 50, np.float64, rank=37, consistent=False)
    far = eagle_jax.trajectory(case.A, case.B, case.C, steps=100).D[-1]
    assert not helpers.error(far, case) < case.scale, "the premise: the bare iteration blows up"
    D, status, _ = eagle_jax.solve(case.A, case.B, case.C, schedule=schedule)
    if schedule == "optimal":
        assert status == Status.CONVERGED
        helpers.assert_close(D, case)
    else:
        assert helpers.error(D, case) <= 1e-6 * case.scale
        assert status != Status.CONVERGED or helpers.error(D, case) <= helpers.tolerance(case)


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
def test_3_any_scaling(dtype, schedule):
    exponent = 160 if dtype == jnp.float64 else 20
    case = helpers.make_case(6, 9, dtype)
    solve = functools.partial(eagle_jax.solve, schedule=schedule)
    for a, b, c in [(1, 1, 0), (-1, -1, 0), (1, 0, 1), (-1, 0, -1), (1, 1, 1), (-1, -1, -1), (0, 1, -1)]:
        A, B, C = (x * np.dtype(dtype).type(10.0 ** (k * exponent)) for x, k in zip(case[:3], (a, b, c), strict=True))
        D, status, _ = solve(A, B, C)
        assert status == Status.CONVERGED, (a, b, c)
        shrunk = np.asarray(D, np.float64) * 10.0 ** ((a - b - c) * exponent)
        helpers.assert_close(shrunk, case)
    D, status, _ = solve(0 * case.A, case.B, case.C)
    assert status == Status.CONVERGED and not np.asarray(D).any()


def test_3_an_answer_that_overflows_is_not_called_converged(dtype):
    exponent = 160 if dtype == jnp.float64 else 20
    case = helpers.make_case(6, 9, dtype)
    large = np.dtype(dtype).type(10.0**exponent)
    _, status, _ = eagle_jax.solve(case.A / large, case.B * large, case.C)
    assert status == Status.BREAKDOWN


@pytest.mark.parametrize("kappa", [1e2, 1e4, 1e5])
def test_4_float32_loses_what_conditioning_takes_and_no_more(kappa):
    case = helpers.make_case(20, 20, np.float32, kappa=kappa, consistent=False)
    D, status, _ = eagle_jax.solve(case.A, case.B, case.C)
    assert status == Status.CONVERGED
    helpers.assert_close(D, case, factor=1)


@pytest.mark.float32_is_slow
@pytest.mark.parametrize("kind", ["ill-conditioned", "deficient"])
@pytest.mark.parametrize("transposed", [False, True])
def test_5_gram_matrices_are_given_up_in_time(dtype, kind, transposed):
    """kappa^2 beyond 1/eps, or no full rank: the cheap path for very wide matrices has to step aside."""
    rank, kappa = (5, 3.0) if kind == "deficient" else (None, 0.01 / helpers.eps(dtype) ** 0.8)
    case = helpers.make_case(8, 48, dtype, rank=rank, kappa=kappa)
    if transposed:
        case = helpers.case_of(case.A.T, case.C.T, case.B.T, dtype, rank or 8)
    D, status, _ = eagle_jax.solve(case.A, case.B, case.C)
    assert status == Status.CONVERGED
    helpers.assert_close(D, case)


@pytest.mark.parametrize("size", [20, 80])
def test_6_optimal_steps_lose_no_digits_in_float32(size):
    """Clusters at both ends, and values spread over four decades, against the plain steps."""
    rng = np.random.default_rng(size)
    spectrum = np.r_[np.ones(size // 2), np.geomspace(1, 1e-4, size - size // 2)]
    A = helpers.with_spectrum(rng, size, size, spectrum)
    case = helpers.case_of(A, rng.standard_normal((3, size)) @ A, A @ rng.standard_normal((size, 2)), np.float32)
    optimal = eagle_jax.solve(case.A, case.B, case.C)
    assert optimal.status == Status.CONVERGED
    plain = helpers.error(eagle_jax.solve(case.A, case.B, case.C, schedule="paper").value, case)
    floor = 32 * helpers.eps(np.float32) * helpers.norm2(case.D)
    assert helpers.error(optimal.value, case) <= 10 * max(plain, floor)


def distributed(A, B, C, steps):
    """Algorithm 1 on stacked shards; the last State of every machine."""

    def machine(A, B):
        def step(state, _):
            rho = 1 / jnp.linalg.norm(state.A, ord=2) ** 2
            return update(state, rho, PAPER.eta, PAPER.gamma, reduce=lambda x: lax.pmean(x, "machine")), None

        return lax.scan(step, State(A, B, C, jnp.zeros((B.shape[0], C.shape[1]), A.dtype)), length=steps)[0]

    return jax.vmap(machine, axis_name="machine")(A, B)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_7_averaging_machines_is_least_squares_only_without_noise(x64, noise):
    """With noise it converges to something else, and the solver on the joint data does not."""
    rng = np.random.default_rng(3)
    A = rng.standard_normal((4, 10, 14)) * np.geomspace(1, 0.05, 10)[:, None]
    W, C = rng.standard_normal((3, 10)), rng.standard_normal((10, 2))
    B = W @ A + noise * rng.standard_normal((4, 3, 14))
    D = distributed(A, B, C, steps=40).D[0]
    joint = helpers.case_of(np.concatenate(list(A), axis=1), np.concatenate(list(B), axis=1), C, np.float64)
    distance = helpers.error(D, joint) / helpers.norm2(joint.D)
    assert distance > 0.02 if noise else distance < 1e-9
    solution = eagle_jax.solve(joint.A, joint.B, joint.C)  # while the solver returns least squares
    assert solution.status == Status.CONVERGED
    helpers.assert_close(solution.value, joint)


def test_8_all_machines_see_the_same_reduced_values(x64):
    """A stopping rule on C and D is one decision: they agree bit for bit, whatever the shards hold."""
    rng = np.random.default_rng(4)
    A = rng.standard_normal((3, 6, 5)) * np.array([1.0, 1e-3, 1e3])[:, None, None]
    B = rng.standard_normal((3, 2, 5))
    final = distributed(A, B, rng.standard_normal((6, 2)), steps=15)
    for x in (final.C, final.D):
        assert np.isfinite(x).all()
        np.testing.assert_array_equal(x, np.broadcast_to(x[0], x.shape))
