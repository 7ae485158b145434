"""Extraction on networks whose algorithm is known: what `embed` writes, `extract` must find."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ARCHITECTURES

import eagle_jax
from eagle_jax import LayerSteps, estimation_network, extraction, problems
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.solution import Status
from eagle_jax.transformer import Architecture

pytestmark = [pytest.mark.usefixtures("cheap_compilation"), pytest.mark.float32_is_slow]

COMPLETING = [name for name in ARCHITECTURES if name != "estimation"]
LIMITED = Architecture("computation_limited", layers=3)
SCHEDULE = LayerSteps((0.1, 0.07, 0.3), (0.2, 0.13, 0.7))


def sketches(architecture: Architecture):
    if architecture.regime != "computation_limited":
        return None
    rng = np.random.default_rng(0)
    return np.linalg.qr(rng.standard_normal((architecture.layers, architecture.n, architecture.rank)))[0]


def embedded(architecture, dtype, schedule=SCHEDULE):
    S = sketches(architecture)
    return extraction.embed(schedule if S is None else schedule._replace(S=S), architecture, dtype)


def tasks(architecture, dtype, count=3) -> Blocks:
    make = lambda key: problems.training_task(key, n=6, d=5, s=4, d_out=architecture.d_out, dtype=dtype)  # noqa: E731
    return Blocks(*jax.vmap(make)(jax.random.split(jax.random.key(1), count)))


@pytest.mark.parametrize("name", ["unconstrained", "8 heads", "distributed"])
@pytest.mark.parametrize("seed", range(5))
def test_round_trip_is_exact(x64, name, seed):
    rng = np.random.default_rng(seed)
    schedule = LayerSteps(tuple(rng.uniform(-1, 1, 3).tolist()), tuple(rng.uniform(0, 5, 3).tolist()))
    extracted = extraction.extract(embedded(ARCHITECTURES[name], jnp.float64, schedule), ARCHITECTURES[name])
    if name == "distributed":  # gamma rho = M (gamma rho / M), and machines are three
        assert extracted.as_schedule().eta_rho == schedule.eta_rho
        np.testing.assert_array_max_ulp(extracted.gamma_rho, np.array(schedule.gamma_rho), maxulp=1)
    else:
        assert extracted.as_schedule() == schedule
    assert extracted.residuals.form_QK.max() == extracted.residuals.form_VP.max() == 0


def test_round_trip_with_a_sketch(x64):
    """Exact but for the rounding of an eigenvalue problem; S itself is only fixed up to a rotation."""
    architecture = ARCHITECTURES["computation_limited"]
    extracted = extraction.extract(embedded(architecture, jnp.float64), architecture)
    np.testing.assert_allclose(extracted.as_schedule()[:2], SCHEDULE[:2], rtol=1e-14)
    S, found = np.asarray(sketches(architecture)), np.asarray(extracted.S)
    np.testing.assert_allclose(found @ found.mT, S @ S.mT, atol=1e-14)
    assert max(x.max() for x in extracted.residuals[-2:]) < 1e-14


@pytest.mark.parametrize("name", COMPLETING)
def test_an_embedded_schedule_is_update_step_by_step(dtype, name):
    architecture = ARCHITECTURES[name]
    weights, blocks = embedded(architecture, dtype), tasks(architecture, dtype)
    extracted = extraction.extract(weights, architecture)
    by_network = architecture.activations(weights, architecture.tokens(blocks))
    by_algorithm = extraction.algorithm(extracted, blocks)
    assert by_algorithm.dtype == dtype
    scale = float(jnp.max(jnp.abs(by_network)))
    np.testing.assert_allclose(by_algorithm, by_network, atol=50 * float(jnp.finfo(dtype).eps) * scale)
    gap = extraction.fidelity(weights, extracted, blocks)
    assert gap.Z.shape == gap.D.shape == (4, 3) and gap.Z.max() < (50 * float(jnp.finfo(dtype).eps) * scale) ** 2


@pytest.mark.parametrize("name", ["unconstrained", "computation_limited"])
def test_a_schedule_runs_as_trajectory_and_as_solve(x64, name):
    architecture = ARCHITECTURES[name]
    extracted = extraction.extract(embedded(architecture, jnp.float64), architecture)
    blocks = tasks(architecture, jnp.float64)
    A, B, C = (x[0] for x in blocks[:3])
    history = eagle_jax.trajectory(A, B, C, schedule=extracted.as_schedule())
    Z = extraction.algorithm(extracted, blocks)[:, 0]
    np.testing.assert_allclose(history.D, -Z[1:, 5:, 6:], rtol=1e-12, atol=1e-15)
    chex.assert_trees_all_close(Blocks.split(Z[-1], 5, 6), Blocks(*history.final[:3], -history.final.D), rtol=1e-12)
    solution = eagle_jax.solve(A, B, C, schedule=extracted.as_schedule())
    np.testing.assert_allclose(solution.value, history.D[-1], rtol=1e-12)
    assert int(solution.status) == Status.MAX_STEPS and int(solution.stats.steps) == 3
    np.testing.assert_allclose(solution.stats.norm, jnp.linalg.norm(A, 2))


def test_a_schedule_runs_on_machines(x64):
    architecture = ARCHITECTURES["distributed"]
    extracted = extraction.extract(embedded(architecture, jnp.float64), architecture)
    blocks = tasks(architecture, jnp.float64)
    A, B = (jnp.stack(jnp.split(x[0], 3, axis=1)) for x in blocks[:2])
    solve = lambda A, B: eagle_jax.solve(A, B, blocks.C[0], schedule=extracted.as_schedule(), axis_name="m")  # noqa: E731
    solution = jax.vmap(solve, axis_name="m")(A, B)
    wanted = extraction.machine_blocks(architecture, extraction.algorithm(extracted, blocks)[-1, 0]).D
    np.testing.assert_allclose(solution.value, -wanted, rtol=1e-12, atol=1e-15)
    probes = 4
    assert solution.stats.floats.tolist() == [3 * (5 + 2) * (2 + probes) + (5 + 2) * probes] * 3


def test_the_status_of_a_list_of_steps_is_honest(x64):
    """On orthonormal data one step with gamma rho = 1 is the whole solution; a far too long step is a breakdown."""
    A, B, C = np.eye(3), np.ones((1, 3)), np.ones((3, 2))
    run = lambda gamma, C=C: eagle_jax.solve(A, B, C, schedule=LayerSteps((0.1,), (gamma,)))  # noqa: E731
    assert int(run(1.0).status) == Status.CONVERGED
    np.testing.assert_allclose(run(1.0).value, B @ C)
    assert int(run(0.5).status) == Status.MAX_STEPS
    assert int(run(1e6).status) == Status.BREAKDOWN
    assert int(run(1.0, np.full((3, 2), np.nan)).status) == Status.NONFINITE
    # eta = 1 erases A; what it has not carried over to D by then is lost, not solved
    assert int(eagle_jax.solve(A, B, C, schedule=LayerSteps((1.0,), (0.5,))).status) == Status.MAX_STEPS


def test_averaged_and_sketched_steps_notice_that_B_is_not_W_A(x64):
    A, C = np.array([[[1.0]], [[2.0]]]), np.ones((1, 1))
    schedule = LayerSteps((0.1, 0.1), (0.1, 1 / 1.125))
    for B, status in ((A * 3, Status.CONVERGED), (np.array([[[1.0]], [[0.0]]]), Status.INCONSISTENT)):
        assert int(eagle_jax.solve_workers(A, B, C, schedule=schedule).status) == status
    A, first = np.ones((1, 2)), ((1.0,), (0.0,))
    for B, status in ((3 * A, Status.CONVERGED), (np.array([[1.0, 0.0]]), Status.INCONSISTENT)):
        assert int(eagle_jax.solve(A, B, C, schedule=LayerSteps((0.1,), (1.0,), (first,))).status) == status


def limited_weights(std: float) -> Weights:
    return LIMITED.init(jax.random.key(0), std)


def untrained_estimation():
    architecture = Architecture("estimation", d_out=1)
    return architecture.init(jax.random.key(0), 0.1), architecture


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, A: eagle_jax.trajectory(A, A, A, schedule=s, steps=2), "which says it all"),
        (lambda s, A: eagle_jax.estimate(A, A, schedule=s), "is for solve and trajectory"),
        (lambda s, A: eagle_jax.solve(A[:0], A, A[:0], schedule=s), "not empty"),
        (lambda s, A: eagle_jax.solve(A, A, A, schedule=LayerSteps((0.1,), (0.1, 0.2))), "as many finite eta_rho"),
        (lambda s, A: eagle_jax.solve(A, A, A, schedule=LayerSteps((np.nan,), (0.1,))), "as many finite eta_rho"),
        (lambda s, A: extraction.embed(s, Architecture("estimation", d_out=1)), "no place for a schedule"),
        (lambda s, A: extraction.embed(s, Architecture("computation_limited", layers=3)), "schedule.S is empty with"),
        (lambda s, A: extraction.embed(s._replace(S=np.ones((3, 18, 5))), LIMITED), "orthonormal columns"),
        (lambda s, A: extraction.embed(s._replace(S=np.ones((3, 18, 4))), LIMITED), r"expected \(3, 18, 5\)"),
        (lambda s, A: extraction.embed(s, Architecture()), "schedule has 3 steps; expected layers=4"),
        (lambda s, A: eagle_jax.solve(A, A, A, schedule=s._replace(S=np.ones((3, 4, 2)))), "as many as A"),
        (lambda s, A: eagle_jax.solve(A, A, A, schedule=s._replace(S=np.ones((2, 3, 2)))), "3 steps x n x r"),
        (
            lambda s, A: extraction.extract(LIMITED.init(jax.random.key(0), 0.1), Architecture()),
            "weights.query has shape",
        ),
        (lambda s, A: extraction.extract(limited_weights(np.nan), LIMITED), "NaN or infinite"),
        (lambda s, A: extraction.cluster(A, 0), "levels=0; expected at least 1"),
        (lambda s, A: extraction.extract(*untrained_estimation()), "use estimation_network.extract"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call(SCHEDULE, np.eye(3, dtype=np.float32))


@pytest.mark.parametrize("name", ["unconstrained", "8 heads", "distributed"])
def test_signs_do_not_matter(x64, name):
    """Flipping W_Q and W_P of a head is the same network; extraction must not see it."""
    architecture = ARCHITECTURES[name]
    weights = architecture.init(jax.random.key(3), 0.5)
    sign = jnp.where(jnp.arange(3) % 2 == 0, -1.0, 1.0).astype(jnp.float32)[:, None, None, None]
    flipped = weights._replace(query=weights.query * sign, projection=weights.projection * sign)
    one, other = (extraction.products(w) for w in (weights, flipped))
    np.testing.assert_array_equal(one.QK, other.QK)
    np.testing.assert_array_equal(one.VP, other.VP)
    assert np.trace(one.QK, axis1=-2, axis2=-1).min() >= 0
    blocks = tasks(architecture, jnp.float32)
    Z = architecture.tokens(blocks)
    aligned = architecture.activations(extraction.as_weights(one), Z)
    np.testing.assert_allclose(aligned, architecture.activations(weights, Z), rtol=2e-3, atol=1e-4)


def test_sparsify_keeps_what_is_above_tau():
    W = np.array([[4.0, -1.0], [1.0, 2.0]])  # mean |w| = 2, tau = 3
    np.testing.assert_array_equal(extraction.sparsify(W), [[4.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(extraction.sparsify(W, 1.0), [[4.0, 0.0], [0.0, 2.0]])


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_clusters_are_the_best_ones(levels):
    """Against all partitions of the sorted entries into runs."""
    values = np.sort(np.random.default_rng(levels).standard_normal(9))
    best = np.inf
    for cuts in np.ndindex(*[10] * (levels - 1)):
        groups = [g for g in np.split(values, sorted(cuts)) if g.size]
        best = min(best, sum(np.sum((g - g.mean()) ** 2) for g in groups))
    shuffled = np.random.default_rng(0).permutation(values).reshape(3, 3)
    found = extraction.cluster(shuffled, levels)
    assert np.unique(found).size == levels
    np.testing.assert_allclose(np.sum((found - shuffled) ** 2), best, rtol=1e-10)


def test_clusters_of_few_values_are_exact():
    W = np.array([[0.1, 0.0, 0.3], [0.3, 0.1, 0.1]])
    np.testing.assert_array_equal(extraction.cluster(W, 3), W)
    np.testing.assert_array_equal(extraction.cluster(W, 5), W)


def test_simplifications_of_a_noisy_embedding_find_it_again(x64):
    """Noise far below the entries: after sparsifying and clustering only 2 and 3 values are left, near the alphas."""
    architecture = Architecture("unconstrained")
    schedule = LayerSteps((0.1,) * 4, (0.19,) * 4)
    p = extraction.products(extraction.embed(schedule, architecture, dtype=jnp.float64))
    noise = 1e-3 * np.random.default_rng(0).standard_normal(p.QK.shape)
    noisy = p._replace(QK=p.QK + noise, VP=p.VP + noise)
    found = extraction.clustered(noisy)
    assert all(np.unique(q).size == 2 for q in found.QK) and all(np.unique(v).size == 3 for v in found.VP)
    np.testing.assert_allclose(extraction.read_off(found, architecture)[:, 0], [[1.0, -0.1, -0.19]] * 4, atol=2e-3)
    extracted = extraction.extract(extraction.as_weights(noisy, jnp.float64), architecture)
    wanted = np.linalg.norm(noise, axis=(-2, -1))[:, 0] / np.linalg.norm(noisy.QK, axis=(-2, -1))[:, 0]
    np.testing.assert_allclose(extracted.residuals.form_QK, wanted, rtol=0.1)


@pytest.mark.parametrize("name", COMPLETING)
def test_the_general_form_contains_the_block_form(x64, name):
    architecture = ARCHITECTURES[name]
    p = extraction.products(embedded(architecture, jnp.float64))
    general = extraction.two_sketches(p, architecture)
    chex.assert_trees_all_close((general.QK, general.VP), (p.QK, p.VP), atol=1e-14)


def test_the_general_form_drops_cross_blocks_and_foreign_conditioning(x64):
    architecture = ARCHITECTURES["distributed"]
    p = extraction.products(architecture.init(jax.random.key(0), 1.0))
    general = extraction.two_sketches(p, architecture)
    n, blocks = 2, extraction.blocks_of(general.VP, architecture)
    assert np.abs(general.QK[..., n:]).max() == np.abs(general.QK[..., n:, :]).max() == 0
    assert np.abs(blocks[..., :n, n:]).max() == np.abs(blocks[..., n:, :n]).max() == 0
    own = extraction.own_blocks(general, architecture)[..., :n, :n]
    np.testing.assert_array_equal(own, np.broadcast_to(own[:, :1], own.shape))
    assert np.abs(blocks[:, 0, 1, :n, :n]).max() == 0 < np.abs(own).min()


def test_properties_of_known_matrices():
    W = np.diag([2.0, 2.0, 0.0, 1.0])
    W[0, 3] = 3.0
    found = extraction.properties(W, 3)
    assert found.diagonality == 9 / 18 and found.off_block == 9 / 18 and found.rank == 2
    np.testing.assert_allclose(found.spectrum, [2, 2, 0], atol=1e-15)
    S = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    assert extraction.relative_difference(3 * S @ S.T, -5 * S @ S.T) < 1e-14
    projectors = extraction.random_projectors(0, 6, 2, 3)
    np.testing.assert_allclose(projectors @ projectors, projectors, atol=1e-14)
    np.testing.assert_allclose(np.trace(projectors, axis1=-2, axis2=-1), 2)


def test_look_ahead_tells_own_from_next_sketch(x64):
    architecture = ARCHITECTURES["computation_limited"]
    p = extraction.products(embedded(architecture, jnp.float64))
    S = extraction.sketches(p, architecture)
    p.VP[:, 0, 6:, :6] = 1.0
    found = extraction.look_ahead(p, architecture)
    assert found.own.max() < 1e-12 < 0.1 < found.next.min()
    p.VP[:-1, 0, :6, :6] = -S[1:] @ S[1:].mT
    p.VP[:-1, 0, 6:, :6] = S[1:].mT[:, :2]
    found = extraction.look_ahead(p, architecture)
    assert found.next.max() < 1e-12 < 0.1 < found.own.min()
    np.testing.assert_allclose(found.read, 1)


def test_scaling_uses_the_largest_norm_of_each_batch():
    architecture = ARCHITECTURES["unconstrained"]
    extracted = extraction.extract(embedded(architecture, jnp.float32), architecture)
    norms = np.array([[1.0, 2.0, 1.0, 4.0, 9.0]] * 3)
    found = extraction.scaling(extracted, norms, batch=2)
    np.testing.assert_allclose(found.eta_largest, extracted.eta_rho * (4 + 16) / 2)
    np.testing.assert_allclose(found.gamma_median, extracted.gamma_rho * 4)


def test_norms_are_those_of_what_a_layer_reads(x64):
    architecture = ARCHITECTURES["computation_limited"]
    extracted = extraction.extract(embedded(architecture, jnp.float64), architecture)
    history = extraction.algorithm(extracted, tasks(architecture, jnp.float64))
    wanted = np.linalg.norm(np.asarray(history[1, 2, :5, :6]) @ np.asarray(extracted.S)[1], 2)
    found = extraction.norms_of(extracted, history)
    assert found.shape == (3, 3)
    np.testing.assert_allclose(found[1, 2], wanted)


def estimation_weights(architecture: Architecture, eta_rho, beta) -> Weights:
    """a1 = 1, a2 = a3 = -eta rho, and the bias that brings in -beta b."""
    d, layers = architecture.d, len(eta_rho)
    QK, VP, bias = (
        np.zeros((layers, 1, d + 1, d + 1)),
        np.zeros((layers, 1, d + 1, d + 1)),
        np.zeros((layers, 2, d + 1)),
    )
    QK[:, 0, :d, :d] = np.eye(d)
    VP[:, 0] = -np.asarray(eta_rho)[:, None, None] * np.eye(d + 1)
    bias[:, 1, d] = -np.asarray(beta)
    return extraction.as_weights(extraction.Products(QK, VP, bias), jnp.float64)


def test_the_estimation_form_is_found_again(x64):
    """With beta = a1 the network is update_estimate; in the first layer, where W = 0, beta may be anything."""
    architecture = ARCHITECTURES["estimation"]
    weights = estimation_weights(architecture, (0.1, 0.2, 0.3), (1.9, 1.0, 1.0))
    extracted = estimation_network.extract(weights, architecture)
    np.testing.assert_allclose(extracted.eta_rho, [0.1, 0.2, 0.3], rtol=1e-15)
    np.testing.assert_allclose(extracted.gamma_rho, [0.19, 0.2, 0.3], rtol=1e-15)
    assert extracted.residuals.max() == 0
    blocks = tasks(architecture, jnp.float64)
    gap = estimation_network.fidelity(weights, extracted, blocks)
    assert gap.Z.shape == gap.D.shape == (4, 3) and max(gap.Z.max(), gap.D.max()) < 1e-28
    other = estimation_network.fidelity(weights, extracted._replace(beta=np.ones(3)), blocks)
    assert other.D[1:].min() > 1e-6
