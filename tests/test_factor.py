"""Block LQ: the factorisation itself, ranks, truncation, complex data, and `eagle_jax.factor`."""

import chex
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax import Status
from eagle_jax.methods import factor, gram, lq
from experiments import hunt

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def random(dtype, *shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def made(dtype, d, n, s, seed=0):
    """d x n with the singular values s."""
    U, V = (np.linalg.qr(random(np.result_type(dtype, float), m, len(s), seed=seed + m))[0] for m in (d, n))
    return ((U * s) @ V.conj().T).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "n", "rank"), [(20, 33, 20), (60, 60, 60), (101, 120, 47)])
def test_rows_become_orthonormal_and_the_rank_is_their_number(x64, dtype, d, n, rank):
    A = made(dtype, d, n, np.geomspace(1, 0.05, rank))
    eps = np.finfo(dtype).eps
    core = factor.mixed(jnp.asarray(A))
    P = np.asarray(core.P)
    P = P[np.any(P != 0, 1)]
    assert core.rank == rank == len(P)
    assert np.abs(P @ P.conj().T - np.eye(rank)).max() <= 50 * eps
    assert np.linalg.norm(A - A @ P.conj().T @ P) <= 50 * eps * np.linalg.norm(A)


@pytest.mark.parametrize("last", [1e-8, 0.3])
def test_a_row_that_is_small_in_the_callers_scaling_only(x64, last):
    """Independent as scaled, dependent as given: the second factorisation keeps fewer rows than the first."""
    e = np.eye(5)
    A, B = np.stack([e[0], 1e-20 * (e[0] + e[1]), last * e[2]]), e[:3]
    W, status, stats = eagle_jax.estimate(A, B, rcond=1e-10)
    assert status == int(Status.CONVERGED) and int(stats.rank) == 2
    np.testing.assert_allclose(W, B @ np.linalg.pinv(A, rcond=1e-10), atol=1e-12)


def test_rows_that_P_does_not_span_are_seen(x64):
    """A is such that the fixed mixing gives two blocks of dependent rows first, and takes the rank to have ended."""
    small, large, signs = (np.asarray(x) for x in factor.mixing(144, jnp.float64))
    M = np.zeros((144, 160))
    M[:48] = random(float, 48, 10) @ random(float, 10, 160)
    M[96:] = random(float, 48, 160, seed=1)
    for A, rank in ((jnp.asarray((np.kron(small, large) * signs).T @ M), 10), (jnp.asarray(M), 58)):
        core = factor.mixed(A)
        tol = factor.noise(A) * float(jnp.max(jnp.linalg.norm(A, axis=1)))
        assert core.rank == rank and bool(factor._spans(core.P, A, tol)) == (rank == 58)


def test_chunks_of_deficient_rank_are_merged(x64):
    """The rank ends blocks before the rows do: what was not read must not be in P."""
    A, B = made(float, 256, 3000, np.geomspace(1, 0.1, 100)), random(float, 2, 3000)
    F, G = gram.compressed(jnp.asarray(A), jnp.asarray(B))
    np.testing.assert_allclose(np.asarray(F @ F.T), A @ A.T, atol=1e-13)
    np.testing.assert_allclose(np.asarray(G @ F.T), B @ A.T, atol=1e-12)


@pytest.mark.parametrize("seed", [2, 6, 7])
def test_a_rank_that_ends_with_a_block_costs_no_digits(x64, seed):
    """48 rows are a block: with rank 96 all of the first two are needed, good or bad, and P is renewed from A."""
    A, B = made(float, 144, 200, np.geomspace(1, 1e-2, 96), seed=seed), random(float, 2, 200)
    W, status, stats = eagle_jax.estimate(A, B)
    expected = np.linalg.lstsq(A.T, B.T, rcond=None)[0].T
    assert status == int(Status.CONVERGED) and int(stats.rank) == 96
    assert np.linalg.norm(np.asarray(W) - expected) <= 1e-13 * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_truncation_is_as_accurate_as_what_it_keeps(x64, dtype):
    """Singular values 1 and 0.9 rcond: what is kept has condition number 1, and so has the error."""
    rcond = 1e-3
    A, B = made(dtype, 9, 14, np.r_[np.ones(5), np.full(4, 0.9 * rcond)]), random(dtype, 2, 14)
    W = eagle_jax.estimate(A, B, rcond=rcond).value
    expected = np.linalg.lstsq(A.T.astype(float), B.T.astype(float), rcond=rcond)[0].T
    assert np.linalg.norm(np.asarray(W) - expected) <= 100 * np.finfo(dtype).eps * np.linalg.norm(expected)


def test_a_large_rcond_below_all_singular_values(x64):
    """(tau / s)^2 = 1/100 of the error is left by a pass of refinement: seven would not do."""
    A, B = made(float, 2, 3, np.ones(1)), random(float, 2, 3)
    W, status, _ = eagle_jax.estimate(A, B, rcond=0.1)
    assert status == int(Status.CONVERGED)
    np.testing.assert_allclose(W, B @ np.linalg.pinv(A), rtol=0, atol=1e-14)


def test_triangles_are_solved_from_both_sides(x64):
    A = made(np.float64, 100, 130, np.geomspace(1, 1e-6, 100))
    core = factor.mixed(jnp.asarray(A))
    L = np.asarray(core.R.L)[:100, :100]
    G, C = random(float, 3, len(core.P)), random(float, len(core.P), 3)
    X, Z = lq.solve_right(jnp.asarray(G), core.R), lq.solve_left(core.R, jnp.asarray(C))
    np.testing.assert_allclose(np.asarray(X)[:, :100] @ L, G[:, :100], atol=1e-9 * float(jnp.linalg.norm(X)))
    np.testing.assert_allclose(L @ np.asarray(Z)[:100], C[:100], atol=1e-9 * float(jnp.linalg.norm(Z)))


@pytest.mark.parametrize("rcond", [1e-1, 1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("kappa", [1e8, 1e12])
def test_truncation_is_numpys(x64, cheap_compilation, kappa, rcond):
    A, B = made(float, 60, 80, np.geomspace(1, 1 / kappa, 60)), random(float, 2, 80)
    W, status, stats = eagle_jax.estimate(A, B, rcond=rcond)
    expected, _, rank, _ = np.linalg.lstsq(A.T, B.T, rcond=rcond)
    assert status == int(Status.CONVERGED) and int(stats.rank) == rank
    assert np.linalg.norm(np.asarray(W) - expected.T) <= 1e3 * np.finfo(float).eps / rcond * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [*DTYPES[1::2], *(pytest.param(t, marks=pytest.mark.slow) for t in DTYPES[::2])])
@pytest.mark.parametrize(("d", "n", "rank"), [(7, 9, 7), (9, 7, 4), (40, 40, 25), (5, 70, 5), (70, 5, 3)])
def test_complex_and_real_data_of_every_shape(x64, dtype, d, n, rank):
    A, B, C = made(dtype, d, n, np.geomspace(1, 0.1, rank)), random(dtype, 2, n), random(dtype, d, 3, seed=1)
    J = np.linalg.pinv(A.astype(np.complex128), rcond=1e-5)

    @jax.jit  # one program: its parts share A's factors
    def everything(A, B, C):
        one = C[:, :1]
        return (
            eagle_jax.estimate(A, B),
            eagle_jax.solve(A, B, C),
            eagle_jax.solve(A, B, one),
            eagle_jax.lstsq(A.T, B[0]),
        )

    answers = B @ J, B @ J @ C, B @ J @ C[:, :1], (B @ J)[0]
    for got, expected in zip(everything(A, B, C), answers, strict=True):
        assert got.status == int(Status.CONVERGED) and int(got.stats.rank) == rank
        assert np.linalg.norm(np.asarray(got.value) - expected) <= 1e3 * np.finfo(dtype).eps * np.linalg.norm(expected)


def test_badly_scaled_columns_in_float32():
    """jax issue 11433: jnp.linalg.lstsq leaves |a x - b| = 562."""
    a = [
        [122, 1141, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 122, 1141, 1, -156536, -1459977],
        [686, 1209, 1, 0, 0, 0, -493286, -869838],
        [0, 0, 0, 686, 1209, 1, -877486, -1547319],
        [626, 2, 1, 0, 0, 0, -450148, -1812],
        [0, 0, 0, 626, 2, 1, 0, 0],
        [23, 339, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 23, 339, 1, 0, 0],
    ]
    a, b = np.array(a, np.float32), np.array([0, 1279, 719, 1279, 719, 0, 0, 0], np.float32)
    x, status, stats = eagle_jax.lstsq(a, b)
    assert status == int(Status.CONVERGED) and stats.rank == 8
    assert np.linalg.norm(a.astype(float) @ np.asarray(x, float) - b) < 1e-2


def test_a_million_float32_rows_have_a_default_rcond():
    x = np.arange(1e6, dtype=np.float32)[:, None]
    solution = eagle_jax.raise_if_failed(eagle_jax.lstsq(x, 3 * x[:, 0]))
    np.testing.assert_allclose(solution.value, 3, rtol=1e-5)
    F, G = gram.compressed(jnp.asarray(x.T / 1e6), jnp.asarray(3 * x.T / 1e6))
    np.testing.assert_allclose(G / F, 3, rtol=1e-5)


@pytest.mark.parametrize("kappa", [1e2, 1e9])
@pytest.mark.parametrize("rank", [12, 7])
def test_long_data_of_any_rank(x64, kappa, rank):
    A, B = made(float, 12, 900, np.geomspace(1, 1 / kappa, rank)), random(float, 2, 900)
    W, status, stats = eagle_jax.estimate(A, B)
    expected = B @ np.linalg.pinv(A)
    assert status == int(Status.CONVERGED) and stats.rank == rank
    assert np.linalg.norm(np.asarray(W) - expected) <= 1e2 * np.finfo(float).eps * kappa**2 * np.linalg.norm(expected)
    F, G = gram.compressed(jnp.asarray(A), jnp.asarray(B))
    np.testing.assert_allclose(np.asarray(F @ F.T), A @ A.T, atol=1e-14 * 900**0.5)
    np.testing.assert_allclose(np.asarray(G @ F.T), B @ A.T, atol=1e-12)


def test_a_factorisation_serves_everything(x64):
    A, B, C = made(float, 8, 11, np.geomspace(1, 0.1, 6)), random(float, 2, 11), random(float, 8, 3)

    @jax.jit
    def pairs(f, A, B, C):
        one, many = C[:, :1], f.solve(jnp.stack([B, 2 * B]), C).value
        return (
            (f.estimate(B).value, eagle_jax.estimate(A, B).value),
            (f.solve(B, C).value, eagle_jax.solve(A, B, C).value),
            (f.solve(B, one).value, eagle_jax.solve(A, B, one).value),
            (f.lstsq(B[0]).value, eagle_jax.lstsq(A.T, B[0]).value),
            (eagle_jax.factor(A, ridge=0.3).estimate(B).value, eagle_jax.estimate(A, B, ridge=0.3).value),
            (many[1], 2 * many[0]),
        )

    f = jax.jit(eagle_jax.factor)(A)
    assert int(f.rank) == 6
    for through, direct in pairs(f, A, B, C):
        chex.assert_trees_all_close(through, direct, rtol=1e-11)
    leaves, tree = jax.tree.flatten(f)
    again = jax.tree.unflatten(tree, [np.asarray(leaf) for leaf in leaves])
    chex.assert_trees_all_equal(again.estimate(B).value, f.estimate(B).value)


def test_a_factorisation_has_the_derivatives_of_the_answer(x64, cheap_compilation):
    A, B, C = made(float, 4, 6, np.linspace(1, 2, 3)), random(float, 2, 6), random(float, 4, 3)
    through = jax.grad(lambda A: jnp.sum(eagle_jax.factor(A).solve(B, C).value ** 2))(A)
    direct = jax.grad(lambda A: jnp.sum(eagle_jax.solve(A, B, C).value ** 2))(A)
    chex.assert_trees_all_close(through, direct, rtol=1e-9, atol=1e-10)


def test_gradients_are_as_good_as_the_answer(x64, cheap_compilation):
    """B = W A, geometric spectrum; the derivative of sum(D) is -(W^T 1)(Y 1)^T, here from float64."""
    for dtype, kappa in ((np.float32, 1e4), (np.float64, 1e7)):
        A = made(dtype, 8, 8, np.geomspace(1, 1 / kappa, 8))
        B, C = (random(float, 2, 8) @ A.astype(float)).astype(dtype), random(dtype, 8, 2)
        gradient = jax.grad(lambda A, B=B, C=C: jnp.sum(eagle_jax.solve(A, B, C).value))(A)
        J = np.linalg.inv(A.astype(np.longdouble).astype(float))
        exact = -np.outer((B @ J).sum(0), (J @ C).sum(1))
        error = np.linalg.norm(np.asarray(gradient, float) - exact) / np.linalg.norm(exact)
        assert error <= 100 * np.finfo(dtype).eps * kappa


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_programs_for_accelerators_call_no_library(platform):
    """Everything is products, loops and sorts of XLA's own."""

    def everything(A, B, C):
        loss = lambda A: jnp.sum(eagle_jax.solve(A, B, C).value)  # noqa: E731
        return eagle_jax.solve(A, B, C), eagle_jax.estimate(A, B), eagle_jax.lstsq(A, C), jax.grad(loss)(A)

    blocks = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((40, 60), (2, 60), (40, 3))]
    text = jax.export.export(jax.jit(everything), platforms=[platform])(*blocks).mlir_module()
    calls = {line.split("custom_call @")[1].split("(")[0] for line in text.splitlines() if "custom_call @" in line}
    assert calls <= {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}, calls


def test_a_small_hunt_finds_nothing(x64, cheap_compilation):
    tally = hunt.hunt(200, seed=1, shapes=((9, 14),), dtypes=("float32", "float64"))
    assert tally.cases == 200 and not (tally.silent or tally.flagged or tally.ranks), hunt.report(tally)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sketched", "paper"])
def test_a_small_hunt_among_sketches_and_the_papers_steps(x64, way):
    tally = hunt.hunt(200, seed=1, shapes=((9, 14),), dtypes=("float32", "float64"), way=way)
    assert not tally.silent and (way == "paper" or not tally.flagged), hunt.report(tally)


def test_the_hunt_sees_a_wrong_answer(x64):
    case = next(
        c for c in (hunt.draw(np.random.default_rng(s), 5, 5, "float64", None) for s in range(9)) if c is not None
    )
    tally = hunt.Tally()
    hunt.judge(tally, case, case.X * (1 + 1e3 * case.bound), int(Status.CONVERGED), case.rank)
    hunt.judge(tally, case, case.X, int(Status.CONVERGED), case.rank - 1)
    assert len(tally.silent) == 1 and len(tally.ranks) == 1


def test_helpers_spectrum_is_what_it_says():
    A = made(np.float64, 6, 9, [3.0, 2.0, 1.0])
    np.testing.assert_allclose(np.linalg.svd(A, compute_uv=False)[:3], [3, 2, 1], rtol=1e-12)
    assert helpers.eps(np.float64) == np.finfo(np.float64).eps
