"""Distributed EAGLE: every execution mode gives the centralised answer, or says that it does not."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import eagle_jax
from eagle_jax import Method, State, Status, baselines, distributed, machines, problems, theory
from eagle_jax.spectral import energy_bound
from experiments import hunt, hunt_machines

D, WIDE, NARROW = 12, 40, 7


def slow(*values):
    """Most of the time here is compilation: what another case nearly covers is left to `make test-slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _cheap(cheap_compilation):
    """Small programs, each run once."""


def blocks(dtype, columns, count=3, noise=0.0, seed=0, d_out=2, n_out=3):
    """(A_blocks, B_blocks, C) with B = W A + noise."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((count, D, columns)) * np.geomspace(1, 1e-2, D)[:, None]
    B = rng.standard_normal((d_out, D)) @ A
    B = B + noise * B.std() * rng.standard_normal(B.shape)
    C = A[0] @ rng.standard_normal((columns, n_out)) + A[-1] @ rng.standard_normal((columns, n_out))
    return (jnp.asarray(x, dtype) for x in (A, B, C))


def whole(blocks):
    return jnp.concatenate(list(blocks), axis=1)


def wanted(A, B, C):
    A, B, C = (np.asarray(x, np.float64) for x in (whole(A), whole(B), C))
    return B @ np.linalg.pinv(A) @ C


def error(value, expected):
    return np.linalg.norm(np.asarray(value, np.float64) - expected) / np.linalg.norm(expected)


def mesh_of(count, name="x"):
    return jax.make_mesh((count,), (name,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def tolerance(dtype):
    return 2e3 * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize("columns", [slow(WIDE), NARROW])
@pytest.mark.parametrize("acceleration", ["none", slow("freeze"), slow("krylov"), "auto"])
def test_consistent_data(dtype, acceleration, columns):
    A, B, C = blocks(dtype, columns)
    s = eagle_jax.solve_workers(A, B, C, acceleration=acceleration)
    assert Status(int(s.status)) is Status.CONVERGED
    assert error(s.value, wanted(A, B, C)) < tolerance(dtype)


@pytest.mark.float32_is_slow
@pytest.mark.parametrize(
    ("columns", "shape"), [(WIDE, (2, 3)), (NARROW, (3, 2)), slow(NARROW, (2, 3)), slow(WIDE, (3, 2))]
)
def test_noisy_data_by_default(dtype, columns, shape):
    d_out, n_out = shape
    A, B, C = blocks(dtype, columns, noise=0.1, d_out=d_out, n_out=n_out)
    s = eagle_jax.solve_workers(A, B, C)
    assert Status(int(s.status)) is Status.CONVERGED
    assert error(s.value, wanted(A, B, C)) < tolerance(dtype)


@pytest.mark.parametrize("columns", [slow(WIDE), NARROW])
@pytest.mark.parametrize("acceleration", ["none", slow("freeze"), "krylov"])
@pytest.mark.parametrize("shape", [(2, 3), slow((3, 2))], ids=str)
def test_averaging_says_that_it_is_not_least_squares_on_noisy_data(x64, acceleration, columns, shape):
    d_out, n_out = shape
    A, B, C = blocks(jnp.float64, columns, noise=0.1, d_out=d_out, n_out=n_out)
    s = eagle_jax.solve_workers(A, B, C, acceleration=acceleration)
    assert error(s.value, wanted(A, B, C)) > 1e-4
    assert Status(int(s.status)) is Status.INCONSISTENT


@pytest.mark.parametrize("noise", [1e-12, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("acceleration", ["krylov", slow("auto")])
def test_converged_is_true_at_every_noise_level(x64, noise, acceleration):
    A, B, C = blocks(jnp.float64, NARROW, noise=noise, d_out=3, n_out=2)
    s = eagle_jax.solve_workers(A, B, C, acceleration=acceleration)
    converged = Status(int(s.status)) is Status.CONVERGED
    assert converged or acceleration == "krylov"
    assert not converged or error(s.value, wanted(A, B, C)) < 1e-11


@pytest.mark.parametrize("columns", [slow(WIDE), NARROW])
@pytest.mark.parametrize("noise", [slow(0.0), 0.1])
def test_estimates(dtype, columns, noise):
    A, B, _ = blocks(dtype, columns, noise=noise)
    expected = wanted(A, B, jnp.eye(D, dtype=dtype))
    for acceleration in ("freeze", "auto") if noise == 0 else ("auto",):
        s = eagle_jax.estimate_workers(A, B, acceleration=acceleration)
        assert Status(int(s.status)) is Status.CONVERGED
        assert error(s.value, expected) < 100 * tolerance(dtype)


def test_one_round_is_the_mean_of_every_machines_update(x64):
    A, B, C = blocks(jnp.float64, NARROW)
    s = eagle_jax.solve_workers(A, B, C, acceleration="none", max_steps=3)
    size = jnp.sqrt(jax.vmap(lambda a: energy_bound(a.T @ a))(A))[:, None, None]
    states = [State(a, b, C, jnp.zeros((2, 3))) for a, b in zip(A / size, B / size, strict=True)]
    for _ in range(3):
        new = [eagle_jax.update(z, 1.0, 1 / 3, 1.0) for z in states]
        mean_C, mean_D = (jnp.mean(jnp.stack([getattr(z, name) for z in new]), axis=0) for name in "CD")
        states = [State(1.5 * z.A, 1.5 * z.B, mean_C, mean_D) for z in new]
    assert Status(int(s.status)) is Status.MAX_STEPS
    assert int(s.stats.rounds) == 3
    assert error(s.value, np.asarray(states[0].D)) < 1e-14


@pytest.mark.slow
def test_freezing_changes_nothing_but_the_work(x64):
    A, B, C = blocks(jnp.float64, NARROW)
    plain, frozen = (eagle_jax.solve_workers(A, B, C, acceleration=a) for a in ("none", "freeze"))
    assert int(plain.stats.rounds) == int(frozen.stats.rounds)
    assert error(frozen.value, np.asarray(plain.value)) < 1e-13


@pytest.mark.parametrize("noise", [slow(0.0), 0.1])
def test_uneven_empty_zero_and_deficient_blocks(x64, noise):
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((D, n)) for n in (15, 0, 4, 9)]
    A[3] = A[3][:, :2] @ rng.standard_normal((2, 9))
    A.append(np.zeros((D, 5)))
    W, C = rng.standard_normal((2, D)), rng.standard_normal((D, 3))
    B = [W @ a + noise * rng.standard_normal((2, a.shape[1])) for a in A]
    B[-1][:] = 0
    s = eagle_jax.solve_workers(A, B, C)
    assert Status(int(s.status)) is Status.CONVERGED
    assert error(s.value, wanted(A, B, C)) < 1e-11


@pytest.mark.slow
def test_joint_range_that_is_not_everything(x64):
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((D, 2)) for _ in range(3)]
    W, C = rng.standard_normal((2, D)), rng.standard_normal((D, 3))
    B = [W @ a for a in A]
    for acceleration in machines.ACCELERATIONS:
        s = eagle_jax.solve_workers(A, B, C, acceleration=acceleration)
        assert Status(int(s.status)) is Status.CONVERGED, acceleration
        assert error(s.value, wanted(A, B, C)) < 1e-11


def test_deficient_rank_and_noise_in_single_precision():
    g = np.random.default_rng(6)
    A = ((g.standard_normal((10, 5)) * [1, 0.3, 0.1, 0.03, 0.01]) @ g.standard_normal((5, 12))).astype("f")
    B, C = g.standard_normal((1, 12)).astype("f"), g.standard_normal((10, 2)).astype("f")
    U, s, Vh = np.linalg.svd(A.astype(float))
    expected = B @ (Vh[:5].T / s[:5]) @ U[:, :5].T @ C
    found = eagle_jax.solve_workers(np.split(A, 2, axis=1), np.split(B, 2, axis=1), C)
    assert (Status(int(found.status)), int(found.stats.rank)) == (Status.CONVERGED, 5)
    assert error(found.value, expected) < 1e-4


def test_a_small_hunt_among_machines_finds_nothing(x64):
    tally = hunt_machines.run(80, seed=1, shapes=((10, 12, 2),), dtypes=("float32",), rconds=(None,))
    assert tally.cases == 80 and not (tally.silent or tally.flagged or tally.ranks), hunt.report(tally)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(26, 20, 2), (20, 26, 3), (10, 6, 3), (4, 4, 2), (40, 30, 3), (9, 64, 8)])
def test_hunts_among_machines_find_nothing(x64, shape):
    tally = hunt_machines.run(200, seed=2, shapes=(shape,))
    assert tally.cases == 200 and not (tally.silent or tally.flagged or tally.ranks), hunt.report(tally)


@pytest.mark.slow
def test_averaging_does_not_trust_deficient_machines_for_long(x64):
    rng = np.random.default_rng(0)
    ranges = rng.standard_normal((D, 8))
    A = [ranges[:, i : i + 4] @ rng.standard_normal((4, 9)) for i in (0, 1, 2, 4)]
    W = rng.standard_normal((2, D))
    B, C = [W @ a for a in A], sum(A) @ rng.standard_normal((9, 3))
    plain, frozen = (eagle_jax.solve_workers(A, B, C, acceleration=a) for a in ("none", "freeze"))
    assert error(plain.value, wanted(A, B, C)) > 1e-6  # null-space noise, raised by 3/2 a round
    assert Status(int(plain.status)) is Status.STAGNATED
    assert error(frozen.value, wanted(A, B, C)) < 1e-11
    assert Status(int(frozen.status)) is Status.CONVERGED


@pytest.mark.parametrize("noise", [slow(0.0), 0.1])
def test_any_number_of_devices_gives_the_same_answer(x64, noise):
    A, B, C = blocks(jnp.float64, 41, count=1, noise=noise)
    answers = [eagle_jax.solve_sharded(A[0], B[0], C, mesh=mesh_of(m), axis="x") for m in (1, 2, 4, 8)]
    assert all(Status(int(s.status)) is Status.CONVERGED for s in answers)
    for s in answers:
        assert error(s.value, np.asarray(answers[0].value)) < 1e-12


def test_inside_the_users_own_shard_map_and_a_mesh_of_two_axes(x64):
    A, B, C = blocks(jnp.float64, 24, count=1, noise=0.1)
    mesh = jax.make_mesh((2, 4), ("batch", "columns"), axis_types=(AxisType.Auto,) * 2)
    spec = PartitionSpec(None, "columns")

    def mine(A, B, C):
        s = eagle_jax.solve(2 * A, B, C, axis_name="columns")
        return s.value, s.status

    value, status = jax.jit(
        jax.shard_map(mine, mesh=mesh, in_specs=(spec, spec, PartitionSpec()), out_specs=PartitionSpec())
    )(A[0], B[0], C)
    assert Status(int(status)) is Status.CONVERGED
    assert error(2 * value, wanted(A, B, C)) < 1e-11
    s = eagle_jax.estimate_sharded(A[0], B[0], mesh=mesh, axis="columns")
    assert error(s.value @ C, wanted(A, B, C)) < 1e-11


def test_a_batch_of_queries(x64):
    A, B, C = blocks(jnp.float64, NARROW, noise=0.1)
    batch = jnp.stack([C, 3 * C[::-1], jnp.zeros_like(C)])
    s = jax.vmap(partial(eagle_jax.solve_workers, A, B))(batch)
    assert s.status.shape == (3,)
    assert np.all(s.status == Status.CONVERGED)
    for value, c in zip(s.value[:2], batch, strict=False):
        assert error(value, wanted(A, B, c)) < 1e-11
    assert np.all(s.value[2] == 0)


@pytest.mark.parametrize("acceleration", ["none", slow("freeze"), "krylov"])
def test_every_round_sends_the_thin_blocks_and_nothing_else(x64, acceleration):
    d, n_out, d_out = D, 3, 2
    A, B, C = blocks(jnp.float64, 16, count=1, d_out=d_out, n_out=n_out)
    mesh = mesh_of(4)
    solve = jax.jit(partial(eagle_jax.solve_sharded, mesh=mesh, axis="x", acceleration=acceleration))
    record = eagle_jax.ledger(solve.lower(A[0], B[0], C).compile())
    sent = [sum(c.floats for c in loop) for loop in record.loops]
    assert {c.kind for loop in [record.once, *record.loops] for c in loop} == {"all-reduce"}
    if acceleration == "none":
        assert sent[0] == (d + d_out) * n_out
    if acceleration == "krylov":
        assert sent[0] == d * d_out
    largest = max(c.floats for loop in [record.once, *record.loops] for c in loop)
    assert largest <= (d + d_out + 1) * n_out


def test_factors_send_one_triangle_and_a_thin_block_a_round(x64):
    A, B, _ = blocks(jnp.float64, 16, count=1, noise=0.1)
    solve = jax.jit(partial(eagle_jax.estimate_sharded, mesh=mesh_of(4), axis="x")).lower(A[0], B[0]).compile()
    record, s = eagle_jax.ledger(solve), solve(A[0], B[0])
    k = 16 // 4  # columns of a machine
    triangle, thin = D * k - k * (k - 1) // 2, 2 * D
    assert [c.floats for c in record.once if c.kind == "all-gather"] == [triangle]
    assert [thin] in [[c.floats for c in loop] for loop in record.loops]
    assert (int(s.stats.method), int(s.stats.rank)) == (Method.FACTORS, D)
    assert int(s.stats.floats) == triangle + (int(s.stats.rounds) - 1) * thin
    assert max(c.floats for loop in [record.once, *record.loops] for c in loop) <= triangle


def test_the_way_follows_the_data(x64):
    method = lambda *a, **k: Method(int(eagle_jax.solve_workers(*a, **k).stats.method))  # noqa: E731
    assert method(*blocks(jnp.float64, WIDE)) is Method.PROJECTOR
    assert method(*blocks(jnp.float64, WIDE, noise=0.1)) is Method.FACTORS
    assert method(*blocks(jnp.float64, WIDE), acceleration="freeze") is Method.AVERAGING


def test_krylov_takes_a_third_of_the_rounds(x64):
    p = problems.distributed(jax.random.key(0), machines=3, d=30, n=20, kappa_max=1e3, alpha=0.1, dtype=jnp.float64)
    plain, krylov = (eagle_jax.solve_workers(p.A, p.B, p.C, acceleration=a, rtol=1e-10) for a in ("freeze", "krylov"))
    assert 3 * int(krylov.stats.rounds) < int(plain.stats.rounds)
    assert bool(plain.stats.gram_cheaper)
    for s, acceleration in ((plain, "freeze"), (krylov, "krylov")):
        rounds = theory.predicted_rounds(1e3, 0.1, 1e-10, acceleration=acceleration)
        assert 0.5 < int(s.stats.rounds) / rounds < 1.5


def test_a_second_call_does_not_compile(x64):
    A, B, C = blocks(jnp.float64, NARROW)
    sizes = []
    for factor in (1.0, 2.0):
        eagle_jax.solve_workers(factor * A, B, C, acceleration="krylov")
        sizes.append(cast(Any, distributed._run_workers)._cache_size())
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", list(baselines.DISTRIBUTED))
def test_baselines_among_machines_end_at_least_squares(x64, name):
    A, B, C = blocks(jnp.float64, WIDE, noise=0.1)
    run = partial(baselines.DISTRIBUTED[name], axis="m", steps={"gd": 40_000, "cg": 60, "gram": 1}[name])
    trace = jax.jit(jax.vmap(run, in_axes=(0, 0, None), axis_name="m"))(A, B, C)
    assert error(trace.D[0], wanted(A, B, C)) < {"gd": 1e-2, "cg": 1e-9, "gram": 1e-9}[name]


@pytest.mark.parametrize("method", [Method.AVERAGING, Method.PROJECTOR, Method.PRECONDITIONED])
def test_iterates_end_where_the_solver_does(x64, method):
    A, B, C = blocks(jnp.float64, 200)
    D = distributed.iterates_workers(A, B, C, rounds=60, method=method)
    assert D.shape == (60, 2, 3)
    assert error(D[-1], wanted(A, B, C)) < 1e-10
    assert error(D[0], wanted(A, B, C)) > 0.1


def test_scale_of_the_data_does_not_matter(dtype):
    A, B, C = blocks(dtype, NARROW, noise=0.1)
    tiny, huge = (float(np.finfo(dtype).tiny) ** 0.8, float(np.finfo(dtype).max) ** 0.8)
    expected = eagle_jax.solve_workers(A, B, C).value
    for a, b in ((tiny, tiny), (huge, huge)):
        s = eagle_jax.solve_workers(A * a, B * b, C)
        assert Status(int(s.status)) is Status.CONVERGED
        assert error(s.value, np.asarray(expected, np.float64)) < tolerance(dtype)


@pytest.mark.parametrize("acceleration", ["none", slow("freeze"), slow("krylov"), "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_bad_machine_is_known_to_all(acceleration, bad):
    A, B, C = blocks(jnp.float32, NARROW)
    s = eagle_jax.solve_workers(A.at[1, 0, 0].set(bad), B, C, acceleration=acceleration)
    assert Status(int(s.status)) is Status.NONFINITE
    assert np.all(np.isnan(s.value))


@pytest.mark.parametrize("acceleration", [slow("none"), "auto"])
@pytest.mark.parametrize("shape", [(2, 3), slow((3, 2))], ids=str)
def test_bad_queries(acceleration, shape):
    d_out, n_out = shape
    A, B, C = blocks(jnp.float32, NARROW, d_out=d_out, n_out=n_out)
    s = eagle_jax.solve_workers(A, B, C.at[0, 0].set(jnp.nan), acceleration=acceleration)
    assert Status(int(s.status)) is Status.NONFINITE


@pytest.mark.parametrize("acceleration", machines.ACCELERATIONS)
@pytest.mark.parametrize(("d", "d_out", "n_out"), [(0, 2, 2), (4, 0, 2), (4, 2, 0)])
def test_empty_dimensions(acceleration, d, d_out, n_out):
    A, B, C = jnp.ones((2, d, 3)), jnp.ones((2, d_out, 3)), jnp.ones((d, n_out))
    s = eagle_jax.solve_workers(A, B, C, acceleration=acceleration)
    assert Status(int(s.status)) is Status.CONVERGED
    assert s.value.shape == (d_out, n_out) and np.all(s.value == 0)


def test_zero_data():
    zero = jnp.zeros((3, 4, 5))
    for acceleration in ("none", "auto"):
        s = eagle_jax.solve_workers(zero, zero[:, :2], jnp.ones((4, 2)), acceleration=acceleration)
        assert Status(int(s.status)) is Status.CONVERGED, acceleration
        assert np.all(s.value == 0)


def test_messages():
    A, B, C = blocks(jnp.float32, NARROW)
    with pytest.raises(ValueError, match="acceleration='fast'; expected one of"):
        eagle_jax.solve_workers(A, B, C, acceleration="fast")
    with pytest.raises(ValueError, match='use acceleration="none" or "freeze"'):
        eagle_jax.solve_workers(A, B, C, schedule="paper")
    with pytest.raises(ValueError, match="axis='y' is not an axis of the mesh; expected one of"):
        eagle_jax.solve_sharded(A[0], B[0], C, mesh=mesh_of(2), axis="y")
    with pytest.raises(ValueError, match="A_blocks has 3 machines and B_blocks 2"):
        eagle_jax.solve_workers(A, B[:2], C)
    with pytest.raises(ValueError, match=r"B_blocks\[1\] has 6 columns but A_blocks\[1\] has 7"):
        eagle_jax.solve_workers(list(A), [B[0], B[1][:, :6], B[2]], C)


def test_data_that_varies_over_other_axes_too(x64):
    A, B, C = (np.asarray(x) for x in blocks(jnp.float64, 8, count=2, noise=0.1))
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    column, layer = PartitionSpec(None, "x"), PartitionSpec("y", None, "x")

    @partial(jax.shard_map, mesh=mesh, in_specs=(layer, column, PartitionSpec()), out_specs=PartitionSpec("y"))
    def run(A, B, C):
        accelerations = ("auto", "freeze")
        values = [eagle_jax.solve(A[0], B, C, axis_name="x", acceleration=a).value for a in accelerations]
        return jnp.stack(values)[None]

    for value, a in zip(jax.jit(run)(A, B[0], C), A, strict=True):
        assert error(value[0], B[0] @ np.linalg.pinv(a) @ C) < 1e-11
    s = eagle_jax.solve_sharded(A[0], B[0], C, mesh=mesh, axis=("x", "y"))
    assert error(s.value, B[0] @ np.linalg.pinv(A[0]) @ C) < 1e-11


def test_explicit_meshes(x64):
    A, B, C = blocks(jnp.float64, 16, count=1, noise=0.1)
    expected = wanted(A, B, C)
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    assert mesh.axis_types == (AxisType.Explicit,)
    solve = partial(eagle_jax.solve_sharded, mesh=mesh, axis="x")
    assert error(solve(A[0], B[0], C).value, expected) < 1e-11
    a, b = (jax.device_put(jnp.stack([x.T] * 4), NamedSharding(mesh, PartitionSpec("x"))) for x in (A[0], B[0]))
    found = eagle_jax.lstsq(a, b).value
    assert jax.typeof(found).sharding.spec[0] == "x"
    assert error(jnp.asarray(np.asarray(found))[1].T @ C, expected) < 1e-11


@pytest.mark.parametrize("rank", [4, slow(2)])
def test_gradients_of_simulated_machines_are_those_of_one(x64, rank):
    rng = np.random.default_rng(0)
    s = np.geomspace(1, 1e-3, rank)
    A = jnp.asarray((rng.standard_normal((4, rank)) * s) @ rng.standard_normal((rank, 6)))
    B, C, G = (jnp.asarray(rng.standard_normal(shape)) for shape in ((3, 6), (4, 2), (3, 2)))

    def loss(solve, A, B, C):
        return jnp.sum(solve(A, B, C) * G)

    def together(A, B, C):
        A, B = (jnp.stack(jnp.split(x, 2, axis=1)) for x in (A, B))
        return eagle_jax.solve_workers(A, B, C).value

    def alone(A, B, C):
        return B @ jnp.linalg.pinv(A) @ C if rank == 4 else eagle_jax.solve(A, B, C).value

    found = jax.jit(jax.grad(partial(loss, together), argnums=(0, 1, 2)))(A, B, C)
    for x, y in zip(found, jax.grad(partial(loss, alone), argnums=(0, 1, 2))(A, B, C), strict=True):
        assert error(x, np.asarray(y)) < 1e-9


@pytest.mark.slow
def test_second_derivatives_among_machines(x64):
    rng = np.random.default_rng(0)
    A, B, V = (jnp.asarray(rng.standard_normal(shape)) for shape in ((3, 6), (2, 6), (3, 6)))

    def slope(estimate):
        return jax.grad(lambda A: jnp.vdot(jax.grad(lambda A: jnp.sum(estimate(A) ** 3))(A), V))(A)

    blocks_of = lambda x: jnp.stack(jnp.split(x, 2, axis=1))  # noqa: E731
    found = slope(lambda A: eagle_jax.estimate_workers(blocks_of(A), blocks_of(B)).value)
    assert error(found, np.asarray(slope(lambda A: B @ jnp.linalg.pinv(A)))) < 1e-9


def test_the_gradient_of_data_with_nan_is_nan(x64, cheap_compilation):
    A = np.random.default_rng(0).standard_normal((2, 3, 3))
    B, C = np.ones((2, 1, 3)), np.ones((3, 1))
    A[1, 0, 0] = np.nan
    loss = lambda A, B: jnp.sum(eagle_jax.solve_workers(A, B, C).value)  # noqa: E731
    for gradient in jax.grad(loss, argnums=(0, 1))(jnp.asarray(A), jnp.asarray(B)):
        assert np.all(np.isnan(gradient))
