"""Sketches: their distribution, the sketched solvers' answers and statuses, and what a step costs."""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, case_of, eps, make_case, norm2, with_spectrum

import eagle_jax
from eagle_jax import Sketch, Status, sketched
from eagle_jax.sketch import orthogonal
from eagle_jax.update import State, update

FAMILIES = ("orthogonal", "columns", "rotated")
# With max_steps no dense phase follows, which would take most of the compile time.
SKETCHES_ONLY: Any = {"max_steps": 60}
pytestmark = [pytest.mark.usefixtures("cheap_compilation"), pytest.mark.float32_is_slow]


def key(seed=0):
    return jax.random.key(seed)


def test_orthogonal_sketches_are_orthonormal_and_uniform(dtype):
    S = jax.vmap(lambda k: orthogonal(k, 12, 4, dtype))(jax.random.split(key(), 2000))
    chex.assert_trees_all_close(S.mT @ S, jnp.broadcast_to(jnp.eye(4, dtype=dtype), (2000, 4, 4)), atol=20 * eps(dtype))
    large = jax.vmap(lambda k: orthogonal(k, 80, 40, dtype))(jax.random.split(key(), 20))
    gap = large.mT @ large - jnp.eye(40, dtype=dtype)
    assert float(jnp.max(jnp.abs(gap))) < 40 * eps(dtype)
    assert abs(float(jnp.mean(large[:, 3, :] ** 2)) - 1 / 80) < 2e-3
    # Uniform: the mean of S Sᵀ is (r/n) I, and S itself has mean 0 (LAPACK's Q alone has signs).
    assert np.abs(np.mean(S @ S.mT, axis=0) - np.eye(12) * 4 / 12).max() < 0.03
    assert np.abs(np.mean(S, axis=0)).max() < 0.03


@pytest.mark.parametrize("r", [1, 5, 7, 12])
def test_columns_have_their_turn_before_one_comes_again(r):
    rounds = -(-12 // r)
    seen = [np.asarray(Sketch(r, key(), "columns").draw(step, 12, jnp.float32)) for step in range(rounds)]
    assert all(len(set(s.tolist())) == r for s in seen)
    assert set(np.concatenate(seen).tolist()) == set(range(12))


def test_column_numbers_are_a_sketch_like_any_other(dtype):
    c = make_case(9, 12, dtype)
    state = State(jnp.asarray(c.A), jnp.asarray(c.B), jnp.asarray(c.C), jnp.zeros((3, 2), dtype))
    chosen = jnp.array([7, 2, 11])
    dense = jnp.eye(12, dtype=dtype)[:, chosen]
    chex.assert_trees_all_close(
        update(state, 0.3, 0.5, 1.1, S=chosen), update(state, 0.3, 0.5, 1.1, S=dense), rtol=10 * eps(dtype)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "n", "r", "family", "options"),
    [
        (40, 40, 10, "columns", {"rank": 23}),
        (30, 50, 10, "orthogonal", {"consistent": False}),
        (30, 30, 8, "rotated", {"rank": 17, "consistent": False}),
    ],
)
def test_default_ends_at_the_nystrom_answer(d, n, r, family, options, dtype):
    c = make_case(d, n, dtype, **options)
    sketch = Sketch(r, key(1), family)
    assert_close(eagle_jax.raise_if_failed(eagle_jax.solve(c.A, c.B, c.C, sketch=sketch)).value, c)
    if "rank" not in options:
        assert_close(eagle_jax.raise_if_failed(eagle_jax.estimate(c.A, c.B, sketch=sketch)).value @ c.C, c)


def assert_sketches_are_enough(c, sketch):
    assert_close(eagle_jax.raise_if_failed(eagle_jax.solve(c.A, c.B, c.C, sketch=sketch, **SKETCHES_ONLY)).value, c)
    W = eagle_jax.estimate(c.A, c.B, sketch=sketch, **SKETCHES_ONLY)
    assert_close(W.value @ c.C, c)


@pytest.mark.parametrize(("d", "n", "r", "family"), [(40, 40, 5, "orthogonal"), (24, 60, 10, "rotated")])
def test_sketches_alone_are_enough_where_an_exact_W_exists(d, n, r, family, dtype):
    assert_sketches_are_enough(make_case(d, n, dtype), Sketch(r, key(1), family))


def test_sketches_alone_are_enough_for_C_outside_of_the_range_of_A(x64):
    """In float32 too much is left to noise, and the dense phase takes over."""
    assert_sketches_are_enough(make_case(60, 24, np.float64, consistent=False), Sketch(7, key(1), "columns"))


@pytest.mark.parametrize("family", FAMILIES)
def test_deflation_takes_n_over_r_sketches(family, x64):
    for kappa in (1e2, 1e6, 1e10):
        c = make_case(48, 48, np.float64, kappa=kappa)
        solution = eagle_jax.solve(c.A, c.B, c.C, sketch=Sketch(8, key(2), family), **SKETCHES_ONLY)
        assert int(solution.status) == Status.CONVERGED
        assert int(solution.stats.steps) <= 48 // 8 + 2
        assert_close(solution.value, c)


SPECTRA = {
    "gapped": np.r_[np.ones(20), np.full(12, 1e-7)],
    "graded": 2.0 ** -np.arange(32),
    "one large": np.r_[1.0, np.full(31, 1e-5)],
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_default_resolves_hard_spectra(family, x64):
    rng = np.random.default_rng(0)
    for spectrum in SPECTRA.values():
        A = with_spectrum(rng, 32, 32, spectrum)
        c = case_of(A, rng.standard_normal((2, 32)) @ A, A @ rng.standard_normal((32, 2)), np.float64)
        solution = eagle_jax.solve(c.A, c.B, c.C, sketch=Sketch(6, key(), family), **SKETCHES_ONLY)
        assert_close(eagle_jax.raise_if_failed(solution).value, c)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["orthogonal", "columns"])
def test_plain_steps_converge_or_say_that_they_did_not(family, dtype):
    c = make_case(24, 24, dtype, kappa=10)
    plain = partial(eagle_jax.solve, sketch=Sketch(12, key(), family), schedule="paper")
    solution = eagle_jax.raise_if_failed(plain(c.A, c.B, c.C))
    assert_close(solution.value, c)
    assert int(solution.stats.steps) > 2
    assert int(plain(c.A, c.B, c.C, max_steps=3).status) == Status.MAX_STEPS
    W = eagle_jax.estimate(c.A, c.B, sketch=Sketch(12, key(), family), schedule="paper", rtol=1e3 * eps(dtype))
    assert_close(eagle_jax.raise_if_failed(W).value @ c.C, c, factor=100)


@pytest.mark.parametrize("family", ["orthogonal", "columns"])
def test_plain_steps_report_data_without_an_exact_W(family, dtype):
    """The invariant B = W A is what sketches live on; the limit is 10 % off here and more."""
    c = make_case(16, 40, dtype, consistent=False)
    for solution in (
        eagle_jax.solve(c.A, c.B, c.C, sketch=Sketch(10, key(), family), schedule="paper"),
        eagle_jax.estimate(c.A, c.B, sketch=Sketch(10, key(), family), schedule="paper"),
    ):
        assert int(solution.status) == Status.INCONSISTENT
    D = eagle_jax.solve(c.A, c.B, c.C, sketch=Sketch(10, key(), family), schedule="paper").value
    assert norm2(D - c.D) > 0.1 * norm2(c.D)


def test_limited_deflation_says_what_is_missing(x64):
    c = make_case(40, 40, np.float64)
    solution = eagle_jax.solve(c.A, c.B, c.C, sketch=Sketch(10, key()), max_steps=2)
    assert int(solution.status) == Status.MAX_STEPS
    assert int(solution.stats.steps) == 2
    noisy = make_case(16, 40, np.float64, consistent=False)
    solution = eagle_jax.solve(noisy.A, noisy.B, noisy.C, sketch=Sketch(10, key()), max_steps=50)
    assert int(solution.status) == Status.INCONSISTENT


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["optimal", "paper"])
def test_r_equal_to_n_is_the_unsketched_solver(schedule, dtype):
    c = make_case(12, 9, dtype)
    for family in FAMILIES:
        whole = eagle_jax.solve(c.A, c.B, c.C, sketch=Sketch(9, key(), family), schedule=schedule)
        chex.assert_trees_all_equal(whole, eagle_jax.solve(c.A, c.B, c.C, schedule=schedule))


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
def test_same_key_same_answer_and_lanes_are_independent(schedule, x64):
    cases = [make_case(20, 20, np.float64, kappa=k, seed=i) for i, k in enumerate((5.0, 50.0))]
    A, B, C = (jnp.stack([getattr(c, name) for c in cases]) for name in "ABC")

    @jax.jit
    @jax.vmap
    def run(A, B, C, k):
        return eagle_jax.solve(A, B, C, sketch=Sketch(10, k, "columns"), schedule=schedule, rtol=1e-11, max_steps=300)

    keys = jax.random.split(key(3))
    both = run(A, B, C, keys)
    chex.assert_trees_all_equal(both, run(A, B, C, keys))
    for i, c in enumerate(cases):
        alone = eagle_jax.solve(
            c.A, c.B, c.C, sketch=Sketch(10, keys[i], "columns"), schedule=schedule, rtol=1e-11, max_steps=300
        )
        assert int(both.status[i]) == int(alone.status) == Status.CONVERGED
        assert int(both.stats.steps[i]) == int(alone.stats.steps)
        chex.assert_trees_all_close(both.value[i], alone.value, rtol=1e-10)
    assert not np.array_equal(both.value[0], run(A, B, C, keys[::-1]).value[0])


def test_history_is_that_of_the_solver(x64):
    c = make_case(24, 24, np.float64, kappa=100)
    sketch = Sketch(6, key(4))
    path = eagle_jax.trajectory(c.A, c.B, c.C, steps=5, sketch=sketch, schedule="optimal")
    errors = np.linalg.norm(path.D - c.D, axis=(1, 2)) / norm2(c.D)
    assert errors[2] > 1e-4 and errors[4] < 1e-10  # 24/6 sketches leave nothing
    plain = eagle_jax.trajectory(c.A, c.B, c.C, steps=40, sketch=sketch)
    assert plain.D.shape == (40, 3, 2)
    # D + W C stays what it is, whatever S was.
    left = np.asarray(plain.final.D + c.B @ np.linalg.pinv(c.A) @ plain.final.C) - c.D
    assert norm2(left) < 1e-11 * norm2(c.D)


def test_nonfinite_empty_and_zero_inputs(dtype):
    c = make_case(12, 12, dtype)
    sketch = Sketch(4, key())
    for schedule in ("optimal", "paper"):
        options = {"sketch": sketch, "schedule": schedule, **SKETCHES_ONLY}
        for name in ("A", "B", "C"):
            blocks = {k: jnp.asarray(getattr(c, k)) for k in "ABC"}
            blocks[name] = blocks[name].at[0, 0].set(jnp.nan)
            solution = eagle_jax.solve(*blocks.values(), **options)
            assert int(solution.status) == Status.NONFINITE
            assert np.isnan(solution.value).all()
        zero = eagle_jax.solve(0 * c.A, c.B, c.C, **options)
        assert not np.asarray(zero.value).any()
        assert int(eagle_jax.solve(c.A, 0 * c.B, c.C, **options).status) == Status.CONVERGED
        assert eagle_jax.solve(c.A, c.B[:0], c.C, **options).value.shape == (0, 2)
        assert eagle_jax.solve(c.A, c.B, c.C[:, :0], **options).value.shape == (3, 0)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_scales_do_not_matter(scale):
    c = make_case(16, 16, np.float32)
    solution = eagle_jax.solve(c.A * np.float32(scale), c.B, c.C, sketch=Sketch(4, key()), **SKETCHES_ONLY)
    eagle_jax.raise_if_failed(solution)
    assert_close(np.asarray(solution.value, np.float64) * scale, c)


def test_errors_name_the_argument():
    c = make_case(8, 8, np.float32)
    solve = partial(eagle_jax.solve, c.A, c.B, c.C)
    for r in (0, 9, 2.5):
        with pytest.raises(ValueError, match=r"sketch.r=.*between 1 and A's 8 columns"):
            solve(sketch=Sketch(r, key()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"sketch.family='gaussian'.*orthogonal"):
        solve(sketch=Sketch(4, key(), "gaussian"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"sketch.key=0.*jax.random.key"):
        solve(sketch=Sketch(4, 0))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"sketch=4.*Sketch"):
        solve(sketch=4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="acceleration='krylov' with a sketch"):
        eagle_jax.solve_workers(c.A[None], c.B[None], c.C, sketch=Sketch(4, key()), acceleration="krylov")


def flops(function, *arguments) -> float:
    cost = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert cost is not None
    return cost["flops"]


@pytest.mark.parametrize("family", ["columns", "rotated", "orthogonal"])
def test_a_step_costs_what_r_allows(family):
    """XLA's own count, sketches included."""
    n = 256
    state = State(*(jnp.ones(s, jnp.float32) for s in ((n, n), (2, n), (n, 2), (2, 2))))

    def plain(state, r):
        start = sketched.Plain(state, jnp.zeros((2, 0)), jnp.asarray(0, jnp.int32))
        return sketched.advance(start, Sketch(r, key(), family), eagle_jax.PAPER, sketched.Alone())

    def deflated(state, r):
        it = sketched.deflation_start(state.A, state.B, state.C)
        return sketched.deflate(it, n, Sketch(r, key(), family))

    dense = flops(lambda state: update(state, 1.0, 0.3, 1.0), state)
    for step, most in ((plain, 4.0), (deflated, 6.0)):
        eighth, quarter = (flops(partial(step, r=r), state) for r in (n // 8, n // 4))
        assert eighth <= most * n * n * n / 8 * 2, family
        assert eighth < 0.6 * quarter
        assert eighth < 0.5 * dense


@pytest.mark.slow
def test_sketched_machines(x64):
    """Three machines with their own sketches, simulated and on a mesh: the answer of one."""
    c = make_case(12, 36, np.float64, kappa=5)
    sketch = Sketch(6, key(5), "columns")
    A, B = (np.stack(np.split(x, 3, axis=1)) for x in (c.A, c.B))
    solution = eagle_jax.raise_if_failed(eagle_jax.solve_workers(A, B, c.C, sketch=sketch, rtol=1e-11))
    assert norm2(solution.value - c.D) < 1e-9 * norm2(c.D)
    mesh = jax.make_mesh((3,), ("m",), devices=jax.devices()[:3], axis_types=(jax.sharding.AxisType.Auto,))
    shards = eagle_jax.solve_sharded(c.A, c.B, c.C, mesh=mesh, axis="m", sketch=sketch, rtol=1e-11)
    chex.assert_trees_all_close(shards.value, solution.value, rtol=1e-9)
    assert int(shards.stats.rounds) == int(solution.stats.rounds)
    W = eagle_jax.raise_if_failed(eagle_jax.estimate_workers(A, B, sketch=sketch, rtol=1e-10)).value
    assert norm2(W @ c.C - c.D) < 1e-8 * norm2(c.D)
    noisy = make_case(12, 36, np.float64, consistent=False)
    A, B = (np.stack(np.split(x, 3, axis=1)) for x in (noisy.A, noisy.B))
    assert int(eagle_jax.solve_workers(A, B, noisy.C, sketch=sketch).status) == Status.INCONSISTENT


@pytest.mark.parametrize("r", [12, 16])
def test_noise_of_a_deficient_rank_is_no_data(x64, r):
    """With r >= d, one sketch may hold all of A, and the next one rounding noise, which B's noise was divided by."""
    rng = np.random.default_rng(3)
    A, B = rng.standard_normal((12, 17)), rng.standard_normal((3, 17))
    A[:, 5:] = A[:, 4:5]
    W = B @ np.linalg.pinv(A, rcond=1e-12)
    estimate = jax.jit(lambda key: eagle_jax.estimate(A, B, sketch=Sketch(r, key, "rotated")))
    for seed in range(4):
        solution = estimate(key(seed))
        assert int(solution.status) == Status.CONVERGED
        np.testing.assert_allclose(solution.value, W, atol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "dtype", "shape"),
    [
        ("optimal", np.float64, (10, 6, 3)),
        ("emergent", np.float32, (6, 10, 1)),
    ],
)
def test_a_W_of_noise_does_not_hide_what_is_left(x64, schedule, dtype, shape):
    """General B: where sketches of noise explained it, ||W|| made any residual look small."""
    d, n, rank = shape
    cases = [make_case(d, n, dtype, rank=rank, consistent=False, seed=s) for s in range(40)]
    A, B, C = (jnp.stack([getattr(c, name) for c in cases]) for name in "ABC")
    C = A @ jnp.ones((n, 2), dtype)
    run = jax.jit(
        lambda x: jax.lax.map(lambda t: eagle_jax.solve(*t[:3], sketch=Sketch(2, t[3]), schedule=schedule), x)
    )
    value, status, _ = run((A, B, C, jax.random.split(key(7), 40)))
    for c, D, s, C_lane in zip(cases, value, status, C, strict=True):
        reference = case_of(c.A, c.B, C_lane, dtype, rank)
        assert int(s) == (Status.CONVERGED if schedule == "optimal" else Status.INCONSISTENT)
        if schedule == "optimal":
            assert_close(D, reference)


def test_plain_sketches_are_bounded(x64):
    """rcond alone would allow 132 800."""
    c = make_case(40, 40, np.float64, kappa=1e8)
    assert sketched.plain_budget(c.A, Sketch(1, key()), eagle_jax.PAPER, 40 * eps(np.float64)) > sketched.MOST_SKETCHES
    sketched_solve = partial(eagle_jax.solve, sketch=Sketch(1, key(), "columns"), schedule="paper", rtol=1e-14)
    _, status, stats = sketched_solve(c.A, c.B, c.C)
    assert status == int(Status.MAX_STEPS) and int(stats.steps) == sketched.MOST_SKETCHES
