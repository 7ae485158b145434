"""What each data family promises: ranks, condition numbers, diversity, moments, and D = B A⁺ C."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import problems, theory

pytestmark = pytest.mark.usefixtures("cheap_compilation")

KEY = jax.random.key(7)
SMALL: Any = {"n": 40, "d": 32, "n_out": 6, "d_out": 8}
GENERATORS = {
    "training_task": functools.partial(problems.training_task, **SMALL),
    "conditioned": functools.partial(problems.conditioned, **SMALL, rank=9),
    **{name: functools.partial(problems.family, name, **SMALL, rank=9) for name in problems.FAMILIES},
}
RANKS = dict.fromkeys(GENERATORS, 9) | {"training_task": 10, "block": 5}
JITTED = {name: jax.jit(make) for name, make in GENERATORS.items()}
distributed = jax.jit(problems.distributed, static_argnames=("machines", "d", "n", "kappa_max", "alpha", "measure"))


def singular_values(A):
    return np.linalg.svd(np.asarray(A, np.float64), compute_uv=False)


def nystrom(A, B, C, rank):
    """B A⁺ C with A⁺ cut at the known rank."""
    U, s, Vt = np.linalg.svd(np.asarray(A, np.float64), full_matrices=False)
    return (np.asarray(B) @ Vt[:rank].T / s[:rank]) @ (U[:, :rank].T @ np.asarray(C))


def assert_nystrom(problem, rank):
    A, B, C, D = map(np.asarray, problem)
    s, eps = singular_values(A), float(np.finfo(A.dtype).eps)
    assert s[rank] < 20 * eps * s[0] < s[rank - 1]
    # D's rounding grows with kappa on the way through A⁺
    bound = 20 * eps * (s[0] / s[rank - 1]) * np.linalg.norm(B) * np.linalg.norm(C) / s[rank - 1]
    assert np.linalg.norm(nystrom(A, B, C, rank) - D) < bound < 0.5 * np.linalg.norm(D)


@pytest.mark.parametrize("name", GENERATORS)
def test_hidden_block_is_the_nystrom_estimate(x64, name):
    assert_nystrom(JITTED[name](KEY), RANKS[name])


@pytest.mark.parametrize("name", ["training_task", "conditioned"])
def test_hidden_block_is_the_nystrom_estimate_in_float32(name):
    assert_nystrom(JITTED[name](KEY), RANKS[name])


@pytest.mark.parametrize("name", ["training_task", "conditioned", "block"])
def test_generators_are_pure_under_vmap(x64, name):
    keys = jax.random.split(KEY, 2)
    batch = [np.asarray(x) for x in jax.jit(jax.vmap(GENERATORS[name]))(keys)]
    for i, key in enumerate(keys):
        for x, y in zip(JITTED[name](key), batch, strict=True):
            np.testing.assert_allclose(x, y[i], atol=1e-13 * np.max(np.abs(batch[0])))
    assert not np.allclose(batch[0][0], batch[0][1])


@pytest.mark.parametrize("name", GENERATORS)
def test_shapes_and_dtypes(x64, name):
    shapes = [(32, 40), (8, 40), (32, 6), (8, 6)]
    for dtype in (None, jnp.float32):
        problem = jax.eval_shape(functools.partial(GENERATORS[name], dtype=dtype), KEY)
        assert [x.shape for x in problem] == shapes
        assert {x.dtype for x in problem} == {jnp.dtype(dtype or jnp.float64)}
    batch = jax.eval_shape(jax.jit(jax.vmap(GENERATORS[name])), jax.random.split(KEY, 2))
    assert [x.shape for x in batch] == [(2, *shape) for shape in shapes]
    with jax.enable_x64(False):
        assert jax.eval_shape(GENERATORS[name], KEY).A.dtype == jnp.float32


def test_no_two_qr_factorisations_are_independent(x64):
    """Under vmap two such LAPACK calls can hang a small CPU thread pool; `distributed` chains its two."""
    for make, count in ((GENERATORS["conditioned"], 1), (problems.distributed, 2)):
        program = jax.jit(jax.vmap(make)).lower(jax.random.split(KEY, 2)).as_text()
        assert program.count("custom_call @lapack_dgeqrf") == count


@pytest.mark.parametrize("kappa", [1.0, 1e2, 1e8])
def test_conditioned_hits_both_ends(x64, kappa):
    s = singular_values(problems.conditioned(KEY, **SMALL, kappa=kappa, rank=9).A)[:9]
    eps = np.finfo(float).eps
    assert s[0] == pytest.approx(1, abs=50 * eps)
    assert s[-1] == pytest.approx(1 / kappa, abs=50 * eps)


def test_singular_values_are_log_uniform(x64):
    s = problems._log_uniform(KEY, 1e2, (240,), jnp.dtype(float))
    u = -np.log(np.asarray(s)) / np.log(1e2)
    # Kolmogorov–Smirnov distance; above 1.95/sqrt(240) has probability 1e-3
    assert np.max(np.abs(np.sort(u) - (np.arange(240) + 0.5) / 240)) < 1.95 / 240**0.5


def test_training_task_moments_and_noise(x64):
    keys = jax.random.split(KEY, 2000)
    scale = 0.7 ** np.arange(1, 11)
    sample = jax.jit(jax.vmap(functools.partial(problems.training_task, noise=0.1)))(keys)
    # E X_ij² = sum_i Sigma_ii² / s, and the noise
    expected = np.sum(scale**2) / 10 + 0.1
    for x in sample:
        assert np.mean(np.asarray(x) ** 2) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("name", ["gaussian", "student_t", "correlated", "rademacher"])
def test_factors_have_the_stated_distribution(x64, name):
    F = problems._entries(name, KEY, (400, 600), jnp.dtype(float))
    F = np.asarray(problems._correlate(F) if name == "correlated" else F)
    assert F.var() == pytest.approx(1, rel=0.05)
    lag = np.mean(F[1:] * F[:-1])
    assert lag == pytest.approx(0.8 if name == "correlated" else 0, abs=0.03)
    assert np.mean(F[2:] * F[:-2]) == pytest.approx(0.64 if name == "correlated" else 0, abs=0.04)
    if name == "rademacher":
        np.testing.assert_allclose(np.unique(F), [-(10**0.5), 0, 10**0.5], rtol=1e-15)
        assert np.mean(F != 0) == pytest.approx(0.1, abs=0.005)
    # P(|t_4/sqrt 2| > 4) = 4.8e-3, against 6e-5 for a Gaussian
    if name == "student_t":
        assert np.mean(np.abs(F) > 4) == pytest.approx(4.8e-3, rel=0.2)


def test_correlated_columns_have_the_stated_covariance(x64):
    L, i = np.asarray(problems._correlate(jnp.eye(6))), np.arange(6)
    np.testing.assert_allclose(L @ L.T, 0.8 ** np.abs(i[:, None] - i), rtol=16 * np.finfo(float).eps)


def test_block_rows_are_five_centroids(x64):
    A, B, *_ = map(np.asarray, JITTED["block"](KEY))
    rows = np.unique(np.round(A, 12), axis=0)
    assert len(rows) == 5
    seen = np.round(np.concatenate([A, B]), 12)
    assert len(np.unique(seen, axis=0)) == 5


def test_noisy_moves_what_is_seen_only(x64):
    clean = JITTED["conditioned"](KEY)
    dirty = problems.noisy(clean, KEY, 0.3)
    assert dirty.D is clean.D
    moved = [np.asarray(x) - np.asarray(y) for x, y in zip(dirty[:3], clean[:3], strict=True)]
    for x in moved:
        assert x.std() == pytest.approx(0.3, rel=0.2)
    assert np.concatenate([x.ravel() for x in moved]).std() == pytest.approx(0.3, rel=0.05)
    assert not np.allclose(moved[0][:8], moved[1])


def mean_projector(A_blocks):
    """Eigenvalues of (1/M) sum_u Pᵘ above rounding, with plain numpy; and every machine's singular values."""
    mean, spectra = 0.0, []
    for A in np.asarray(A_blocks):
        U, s, _ = np.linalg.svd(A, full_matrices=False)
        rank = int(np.sum(s > 1e-10))
        spectra.append(s[:rank])
        mean = mean + U[:, :rank] @ U[:, :rank].T / len(A_blocks)
    eigenvalues = np.linalg.eigvalsh(mean)
    return eigenvalues[eigenvalues > 1e-9], spectra


# machines, d, n, alpha, measure, rank of the joint range
DIVERSITY = [
    (3, 25, 25, 0.35, "index", 25),
    (3, 24, 24, 0.01, "index", 24),
    (3, 24, 8, 0.35, "index", 12),
    (8, 24, 24, 0.83, "index", 24),
    (1, 24, 8, 1.0, "index", 8),
    (3, 24, 8, 0.83, "ratio", 24),
]


@pytest.mark.parametrize(("machines", "d", "n", "alpha", "measure", "joint"), DIVERSITY)
def test_distributed_has_the_prescribed_diversity(x64, machines, d, n, alpha, measure, joint):
    kappa = 1e3
    problem = distributed(KEY, machines=machines, d=d, n=n, kappa_max=kappa, alpha=alpha, measure=measure)
    A, B, C, D = map(np.asarray, problem)
    assert (A.shape, B.shape) == ((machines, d, n), (machines, 2, n))
    assert (C.shape, D.shape) == ((d, 2), (2, 2))
    # rounding in A turns its range by eps·kappa
    eps = np.finfo(float).eps
    eigenvalues, spectra = mean_projector(A)
    measured = eigenvalues[0] / (eigenvalues[-1] if measure == "ratio" else 1)
    assert measured == pytest.approx(alpha, abs=50 * eps * kappa)
    assert len(eigenvalues) == joint
    for s in spectra:
        assert s[0] == pytest.approx(1, abs=50 * eps)
        assert s[0] / s[-1] == pytest.approx(kappa, rel=50 * eps * kappa)
    A, B = np.concatenate(A, axis=1), np.concatenate(B, axis=1)
    np.testing.assert_allclose(nystrom(A, B, C, joint), D, atol=1e3 * eps * kappa)


def test_distributed_spreads_the_spectrum(x64):
    """Few distinct eigenvalues would let a Krylov method finish in as many rounds."""
    A, *_ = distributed(KEY, machines=3, d=24, n=24, kappa_max=1e3, alpha=0.01, measure="index")
    assert len(np.unique(np.round(mean_projector(A)[0], 8))) >= 10


def test_distributed_blocks_differ_and_batch(x64):
    settings: Any = {"machines": 3, "d": 24, "n": 24, "kappa_max": 1e3, "alpha": 0.01, "measure": "index"}
    keys = jax.random.split(KEY, 2)
    batch = np.asarray(jax.vmap(functools.partial(distributed, **settings))(keys).A)
    np.testing.assert_allclose(batch[1], distributed(keys[1], **settings).A, atol=1e-13)
    (U0, _, V0), (U1, _, V1) = map(np.linalg.svd, batch[0, :2])
    assert abs(U0[:, 0] @ U1[:, 0]) < 0.9 and abs(V0[0] @ V1[0]) < 0.9


def rounds_of_eagle(problem, eps):
    """Rounds of distributed EAGLE, every machine kept at norm 1, until ||D_l - D||_F <= eps."""
    A, B, C, D_true = (np.asarray(x) for x in problem)
    D = np.zeros_like(D_true)
    for rounds in range(5000):
        if np.linalg.norm(D - D_true) <= eps:
            return rounds
        At = A.swapaxes(1, 2)
        C, D = C - np.mean(A @ (At @ C), axis=0), D + np.mean(B @ (At @ C), axis=0)
        # conditioned by then; going on would multiply the rounding in a machine's null space by 3/2 a round
        if rounds < 24:
            A, B = 1.5 * A - 0.5 * A @ (At @ A), 1.5 * B - 0.5 * B @ (At @ A)
    raise AssertionError("no convergence in 5000 rounds")


@pytest.mark.parametrize(
    ("d", "n", "alpha", "measure", "index"),
    [(25, 25, 0.35, "index", 0.35), (24, 24, 0.01, "index", 0.01), (24, 8, 0.83, "ratio", 0.83 / 2.66)],
)
def test_the_index_sets_the_pace_of_theorem2(x64, d, n, alpha, measure, index):
    """In the last case the ranges are nearly orthogonal; the pace is that of the index and not of the ratio."""
    problem = distributed(KEY, machines=3, d=d, n=n, kappa_max=1e3, alpha=alpha, measure=measure)
    rounds = [rounds_of_eagle(problem, eps) for eps in (1e-5, 1e-10)]
    assert rounds[1] - rounds[0] == pytest.approx(-np.log(1e5) / np.log1p(-index), rel=0.02, abs=4)
    norm_C = float(np.linalg.norm(problem.C))
    assert 0.3 < rounds[1] / theory.theorem2(1e3, index, 1e-10, d_out=2, norm_W=2**0.5, norm_C=norm_C) < 2


def test_gallery_spectra():
    n, eps = 30, np.finfo(float).eps
    for name in problems.GALLERY:
        A = problems.gallery(name, n)
        assert A.shape == ((n + 1, n) if name == "lauchli" else (n, n)) and A.dtype == np.float64
        s = singular_values(A)
        assert s[0] / s[-1] > 1e5
        assert problems.gallery(name, n, np.float32).dtype == np.float32
        assert np.all(np.isfinite(problems.gallery(name, 1)))
    s = singular_values(problems.gallery("gapped", n))
    np.testing.assert_allclose(s, [1] * (n - 1) + [1e-8], atol=20 * eps)
    s = singular_values(problems.gallery("lauchli", n))
    np.testing.assert_allclose(s, [(n + eps) ** 0.5] + [eps**0.5] * (n - 1), atol=20 * eps)
    hilbert = problems.gallery("hilbert", 3)
    np.testing.assert_allclose(hilbert, [[1, 1 / 2, 1 / 3], [1 / 2, 1 / 3, 1 / 4], [1 / 3, 1 / 4, 1 / 5]])
    # column pivoting finds nothing to do in Kahan's matrix: from row k down, all columns are of one length
    kahan = problems.gallery("kahan", n)
    for k in range(n):
        lengths = np.linalg.norm(kahan[k:, k:], axis=0)
        np.testing.assert_allclose(lengths, kahan[k, k], rtol=1e-13)
    vandermonde = problems.gallery("vandermonde", 5)
    np.testing.assert_allclose(vandermonde[2], [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16])
    graded = np.abs(problems.gallery("graded", n))
    assert graded[-1].max() < 1e-3 * graded[0].max() and graded[:, -1].max() < 1e-3 * graded[:, 0].max()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: problems.family("cauchy", KEY), "name: got 'cauchy', expected one of"),
        (lambda: problems.family("gaussian", KEY, n=10), "rank: got 240, expected between 1 and .* 10"),
        (lambda: problems.family("block", KEY, n=4, d=9), r"n, d: got \(4, 9\)"),
        (lambda: problems.gallery("cauchy", 3), "name: got 'cauchy', expected one of"),
        (lambda: problems.gallery("hilbert", 0), "n: got 0, expected a positive integer"),
        (lambda: problems.training_task(KEY, s=0), "s: got 0"),
        (lambda: problems.training_task(KEY, decay=0.0), "decay: got 0.0"),
        (lambda: problems.training_task(KEY, noise=-1.0), "noise: got -1.0"),
        (lambda: problems.conditioned(KEY, **SMALL, kappa=0.5), "kappa: got 0.5"),
        (lambda: problems.conditioned(KEY, **SMALL, rank=1), "kappa: got 100.0, expected 1:"),
        (lambda: problems.conditioned(KEY, **SMALL, rank=33), "rank: got 33"),
        (lambda: problems.distributed(KEY, d=24, n=24, alpha=0.83), r"alpha: got 0.83, expected .*0.6667\]"),
        (lambda: problems.distributed(KEY, d=24, n=24, alpha=0.0), "alpha: got 0.0"),
        (lambda: problems.distributed(KEY, machines=1, alpha=0.5, measure="ratio"), "alpha: got 0.5"),
        (lambda: problems.distributed(KEY, d=24, n=1), r"d, n: got \(24, 1\)"),
        (lambda: problems.distributed(KEY, d=2, n=9, measure="ratio"), "d: got 2"),
        (lambda: problems.distributed(KEY, d=24, n=24, measure="mean"), "measure: got 'mean'"),
        (lambda: problems.distributed(KEY, d=24, n=24, kappa_max=0.0), "kappa_max: got 0.0"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
