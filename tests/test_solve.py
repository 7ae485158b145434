"""The drivers against numpy's pseudo-inverse, and what JAX users may expect of them."""

# numpy arrays stand in for jax.Array in State.
# pyright: reportArgumentType=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax import PAPER, State, Status, update
from eagle_jax.certificate import times_transpose
from eagle_jax.methods import gram
from tests import helpers

# name: d, n, rank
SHAPES = {"tall": (24, 10, None), "wide": (10, 24, None), "square": (16, 16, None), "deficient": (16, 16, 9)}
LARGE = {"large": (80, 96, None), "large deficient": (96, 80, 50)}


@pytest.mark.parametrize("schedule", helpers.SCHEDULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_completion_is_the_pseudo_inverse(dtype, shape, schedule):
    d, n, rank = SHAPES[shape]
    for consistent in (True, False):
        case = helpers.make_case(d, n, dtype, rank=rank, consistent=consistent)
        D, status, stats = eagle_jax.solve(case.A, case.B, case.C, schedule=helpers.SCHEDULES[schedule])
        assert D.dtype == dtype and D.shape == (3, 2)
        assert status.dtype == jnp.int32 and stats.backward_error.dtype == dtype
        # Plain steps amplify what is outside A's row space: they may give up, not lie.
        if consistent or schedule == "optimal":
            assert status == Status.CONVERGED, (consistent, status, stats)
        if status == Status.CONVERGED:
            helpers.assert_close(D, case)


@pytest.mark.float32_is_slow
@pytest.mark.parametrize("shape", LARGE)
def test_larger_sizes_take_another_path(dtype, shape):
    d, n, rank = LARGE[shape]
    for consistent in (True, False):
        case = helpers.make_case(d, n, dtype, rank=rank, kappa=100, consistent=consistent)
        D, status, _ = eagle_jax.solve(case.A, case.B, case.C)
        assert status == Status.CONVERGED, consistent
        helpers.assert_close(D, case)


@pytest.mark.float32_is_slow
@pytest.mark.parametrize("schedule", ["optimal", "paper"])
@pytest.mark.parametrize("shape", SHAPES)
def test_estimate_is_the_minimum_norm_estimate(dtype, shape, schedule):
    d, n, rank = SHAPES[shape]
    case = helpers.make_case(d, n, dtype, rank=rank)
    reference = helpers.case_of(case.A, case.B, np.eye(d), dtype, rank)
    W, status, stats = eagle_jax.estimate(case.A, case.B, schedule=schedule)
    assert status == Status.CONVERGED
    helpers.assert_close(W, reference)
    assert 0.8 * helpers.norm2(case.A) <= stats.norm <= 4 * helpers.norm2(case.A) * min(d, n) ** 0.5
    if schedule == "optimal":
        assert int(stats.rank) == np.linalg.matrix_rank(case.A)


@pytest.mark.float32_is_slow
def test_lstsq_takes_vectors_and_matrices(dtype):
    case = helpers.make_case(6, 15, dtype, consistent=False, rows=2)
    a, b = case.A.T, case.B.T
    expected = np.linalg.lstsq(a.astype(float), b.astype(float), rcond=None)[0]
    allowed = 4 * 32 * helpers.eps(dtype) * case.kappa * helpers.norm2(helpers.pinv(a)) * helpers.norm2(b)
    matrix, vector = eagle_jax.lstsq(a, b), eagle_jax.lstsq(a, b[:, 0])
    assert matrix.value.shape == (6, 2) and vector.value.shape == (6,)
    assert matrix.status == vector.status == Status.CONVERGED
    assert helpers.norm2(matrix.value - expected) <= allowed
    assert np.linalg.norm(vector.value - expected[:, 0]) <= allowed


def stacked(cases):
    return [np.stack([getattr(c, k) for c in cases]) for k in "ABC"]


@pytest.mark.float32_is_slow
@pytest.mark.parametrize("schedule", helpers.SCHEDULES)
def test_jit_and_vmap_change_nothing(dtype, schedule):
    cases = [helpers.make_case(8, 6, dtype, kappa=k, seed=s) for s, k in enumerate([2.0, 10.0, 50.0])]

    def solve(A, B, C):
        return eagle_jax.solve(A, B, C, schedule=helpers.SCHEDULES[schedule])

    batch = jax.vmap(solve)(*stacked(cases))
    assert batch.status.shape == (3,) and batch.value.shape == (3, 3, 2)
    for lane, case in enumerate(cases):
        alone, jitted = solve(case.A, case.B, case.C), jax.jit(solve)(case.A, case.B, case.C)
        np.testing.assert_array_equal(alone.value, jitted.value)
        assert alone.status == jitted.status == batch.status[lane] == Status.CONVERGED
        for value in (alone.value, batch.value[lane]):
            helpers.assert_close(value, case)


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
def test_every_lane_has_its_own_status(dtype, schedule):
    fine = helpers.make_case(8, 6, dtype)
    A = np.stack([fine.A, np.full_like(fine.A, np.nan), np.zeros_like(fine.A), fine.A, fine.A])
    B = np.stack([fine.B] * 5)
    C = np.stack([fine.C] * 5)
    B[3, 0, 0], C[4, 0, 0] = np.inf, np.nan
    value, status, _ = jax.vmap(lambda A, B, C: eagle_jax.solve(A, B, C, schedule=schedule))(A, B, C)
    bad = Status.NONFINITE
    assert status.tolist() == [Status.CONVERGED, bad, Status.CONVERGED, bad, bad]
    helpers.assert_close(value[0], fine)
    assert not np.asarray(value[2]).any()
    assert np.isnan(np.asarray(value)[[1, 3, 4]]).all()
    with pytest.raises(eagle_jax.SolveError, match="3 of 5 lanes failed; the first: NONFINITE"):
        eagle_jax.raise_if_failed(eagle_jax.Solution(value, status, _))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["optimal", pytest.param("paper", marks=pytest.mark.slow)])
def test_eager_equals_compiled(x64, schedule):
    case = helpers.make_case(5, 4, np.float64, kappa=3)
    with jax.disable_jit():
        solution = eagle_jax.solve(case.A, case.B, case.C, schedule=schedule)
    assert solution.status == Status.CONVERGED
    helpers.assert_close(solution.value, case)


def test_trajectory_is_the_loop_of_update(dtype):
    case = helpers.make_case(9, 7, dtype, kappa=5)
    history = eagle_jax.trajectory(case.A, case.B, case.C, steps=12)
    state = State(case.A, case.B, case.C, np.zeros((3, 2), dtype))
    for l in range(12):
        state = update(state, 1 / helpers.norm2(state.A) ** 2, PAPER.eta, PAPER.gamma)
        s = np.linalg.svd(np.asarray(state.A, np.float64), compute_uv=False)
        slack = 100 * (l + 1) * helpers.eps(dtype)
        assert helpers.norm2(history.D[l] - state.D) <= slack * case.kappa * case.scale
        relative = np.linalg.norm(state.C) / np.linalg.norm(case.C)
        assert history.C_norm[l] == pytest.approx(relative, rel=slack * 100, abs=slack)
        assert history.kappa[l] == pytest.approx(s[0] / s[-1], rel=slack * case.kappa)
    assert history.final.A.shape == case.A.shape and len(history.residual) == 12
    np.testing.assert_array_equal(history.final.D, history.D[-1])
    assert history.kappa[-1] == pytest.approx(1, abs=100 * helpers.eps(dtype))


def test_trajectory_converges_to_what_solve_returns(dtype):
    case = helpers.make_case(8, 8, dtype, kappa=20)
    for schedule in ("paper", "emergent"):
        history = eagle_jax.trajectory(case.A, case.B, case.C, steps=60, schedule=schedule)
        helpers.assert_close(history.D[-1], case)


def compilations(action) -> int:
    """How often XLA was called during `action`."""
    seen = []

    def listen(event, *_, **__):
        seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        action()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return sum("backend_compile" in event for event in seen)


@pytest.mark.parametrize("schedule", ["optimal", pytest.param("paper", marks=pytest.mark.slow)])
def test_second_call_compiles_nothing(x64, schedule):
    first, second = (helpers.make_case(7, 5, np.float64, seed=s) for s in (0, 1))

    def call(case):
        jax.block_until_ready(eagle_jax.solve(case.A, case.B, case.C, schedule=schedule))

    jax.clear_caches()
    assert compilations(lambda: call(first)) > 0
    assert compilations(lambda: call(second)) == 0


@pytest.mark.parametrize(("shape", "most"), [((512, 512), 13), ((64, 4096), 4)], ids=str)
def test_memory_is_a_small_multiple_of_the_input(x64, shape, most):
    """Square: A, P, L, V, the factors of the completion, and three products of its projectors, in one arena."""
    d, n = shape
    blocks = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((d, n), (8, n), (d, 8))]
    memory = jax.jit(eagle_jax.solve).lower(*blocks).compile().memory_analysis()
    assert memory is not None
    used = memory.temp_size_in_bytes + memory.output_size_in_bytes
    assert used <= most * memory.argument_size_in_bytes, used / memory.argument_size_in_bytes


def test_settings_are_obeyed(x64, cheap_compilation):
    case = helpers.make_case(10, 10, np.float64, kappa=1e6)
    _, status, stats = eagle_jax.solve(case.A, case.B, case.C, max_steps=2, schedule="paper")
    assert status == Status.MAX_STEPS and stats.steps == 2
    with pytest.raises(ValueError, match='max_steps=2 with schedule="optimal"'):
        eagle_jax.solve(case.A, case.B, case.C, max_steps=2)
    for schedule in ("optimal", "paper"):
        loose = eagle_jax.solve(case.A, case.B, case.C, rtol=1e-3, schedule=schedule)
        tight = eagle_jax.solve(case.A, case.B, case.C, schedule=schedule)
        assert loose.status == tight.status == Status.CONVERGED
        assert loose.stats.backward_error <= 1e-3 and tight.stats.backward_error <= 32 * helpers.eps(float)
        assert loose.stats.steps <= tight.stats.steps


def test_rcond_regularises(x64, cheap_compilation):
    """A singular value of 1e-9 is dropped for rcond = 1e-5, and kept for rcond = 1e-12."""
    rng = np.random.default_rng(0)
    A = helpers.with_spectrum(rng, 9, 9, [1.0, 0.8, 0.5, 1e-9])
    B, C = rng.standard_normal((2, 9)), rng.standard_normal((9, 2))
    dropped = helpers.case_of(A, B, C, np.float64, rank=3)
    assert helpers.error(eagle_jax.solve(A, B, C, rcond=1e-5).value, dropped) <= 1e-3 * dropped.scale
    B = rng.standard_normal((2, 9)) @ A  # with a residual, 1e-9 squared is out of float64's reach
    kept = helpers.case_of(A, B, C, np.float64, rank=4)
    helpers.assert_close(eagle_jax.solve(A, B, C, rcond=1e-12).value, kept)


@pytest.mark.parametrize("length", [10, 16 * 1024, 20_000])
def test_long_products_in_chunks(x64, length):
    rng = np.random.default_rng(0)
    R, M = rng.standard_normal((3, length)), rng.standard_normal((5, length))
    got = jax.jit(times_transpose)(R, M)
    np.testing.assert_allclose(got, R @ M.T, rtol=1e-12, atol=1e-12 * length**0.5)


@pytest.mark.parametrize("rows", [12, 80])
def test_wide_data_is_answered_by_its_gram_matrix(x64, rows):
    """Nothing else would show that the fast path had stopped certifying itself: the fallback is right, and slow."""
    case = helpers.make_case(rows, 8 * rows, np.float64, kappa=1e3, consistent=False)
    rtol = 32 * helpers.eps(float)
    answer = gram.gram(jnp.asarray(case.A), jnp.asarray(case.B), rtol, None)
    assert answer.error <= rtol and answer.passes <= 3
    expected = np.asarray(case.B) @ np.linalg.pinv(np.asarray(case.A))
    np.testing.assert_allclose(answer.value, expected, atol=1e-10 * float(np.linalg.norm(expected)))


def test_large_condition_numbers_in_a_batch(x64, cheap_compilation):
    """Square systems up to kappa = 1e12, each lane within a modest multiple of eps kappa."""
    rng = np.random.default_rng(0)
    kappas = np.repeat([1e2, 1e9, 1e11, 1e12], 6)
    spectra = np.stack([np.geomspace(1, 1 / kappa, 12) for kappa in kappas])
    U, V = (np.linalg.qr(rng.standard_normal((len(kappas), 12, 12)))[0] for _ in range(2))
    b = rng.standard_normal((len(kappas), 12))
    expected = np.einsum("bij,bj,bkj,bk->bi", V, 1 / spectra, U, b)
    x, status, _ = jax.vmap(eagle_jax.lstsq)(U * spectra[:, None] @ V.mT, b)
    assert (status == int(Status.CONVERGED)).all()
    error = np.linalg.norm(x - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert (error < 100 * helpers.eps(float) * kappas).all(), error


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
@pytest.mark.parametrize("shape", [pytest.param((6, 6), marks=pytest.mark.slow), (6, 20)], ids=str)
def test_every_device_solves_its_own_problems(x64, schedule, shape):
    rng = np.random.default_rng(0)
    A, W_true = rng.standard_normal((8, *shape)), rng.standard_normal((8, 2, shape[0]))
    # On inconsistent data rounding keeps the plain iteration a little above rtol in some lanes, and it says so.
    B = W_true @ A + (rng.standard_normal((8, 2, shape[1])) if schedule == "optimal" else 0)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("x")
    solve = jax.vmap(lambda A, B: eagle_jax.estimate(A, B, schedule=schedule))
    W, status, _ = jax.jit(jax.shard_map(solve, mesh=mesh, in_specs=split, out_specs=split))(A, B)
    assert (status == int(Status.CONVERGED)).all()
    np.testing.assert_allclose(W, B @ np.linalg.pinv(A), rtol=1e-9, atol=1e-11)


def test_the_largest_numbers_are_finite():
    big = float(jnp.finfo(jnp.float32).max) * 0.9
    x, status, _ = eagle_jax.lstsq(big * jnp.eye(3), big * jnp.asarray([1.0, 0.5, 0.25]))
    assert status == int(Status.CONVERGED)
    np.testing.assert_allclose(x, [1.0, 0.5, 0.25], rtol=1e-5)


def test_a_trajectory_of_nothing_stays_finite():
    A, B = jnp.eye(3), jnp.ones((1, 3))
    assert (eagle_jax.trajectory(A, B, jnp.zeros((3, 1)), steps=2).C_norm == 0).all()
    with pytest.raises(ValueError, match="steps=0; expected a positive integer"):
        eagle_jax.trajectory(A, B, jnp.zeros((3, 1)), steps=0)
