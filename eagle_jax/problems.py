"""Every data family of the paper, by name and by key.

A problem is X = [[A, C], [B, D]] with D hidden; without noise D = B A⁺ C exactly. Every generator is a pure
function of its key: `jit` and `vmap` go over the key, the sizes and constants are plain Python numbers.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from eagle_jax.linalg import matmul

FAMILIES = ("svd", "gaussian", "student_t", "correlated", "rademacher", "block")
GALLERY = ("hilbert", "kahan", "vandermonde", "lauchli", "graded", "gapped")
MEASURES = ("index", "ratio")

_STUDENT_DOF = 4
_CORRELATION = 0.8
_SPARSITY = 0.1
_CLUSTERS = 5


class Problem(NamedTuple):
    """The blocks of X: A (d, n), B (d', n), C (d, n'), D (d', n'). A and B may be stacked by machine."""

    A: jax.Array
    B: jax.Array
    C: jax.Array
    D: jax.Array


def training_task(
    key: jax.Array,
    *,
    n: int = 18,
    d: int = 18,
    n_out: int = 2,
    d_out: int = 2,
    s: int = 10,
    decay: float = 0.7,
    noise: float = 0.0,
    dtype: DTypeLike | None = None,
) -> Problem:
    """The transformer's training data: X = R1 R2ᵀ/√s, rows of R1 and R2 iid N(0, diag(decay^i)), i = 1..s.

    `noise` is the variance of the Gaussian noise on X, on all of it, hidden block included; for a clean D use
    `noisy(training_task(key), key2, sigma)`.
    """
    _check_sizes(n=n, d=d, n_out=n_out, d_out=d_out, s=s)
    _require(decay > 0, "decay", decay, "a positive number")
    _require(noise >= 0, "noise", noise, "a variance, at least 0")
    F, R2, Z = _training_factors(key, d + d_out, n + n_out, s, decay, bool(noise), _float(dtype))
    X = matmul(F, R2.T)
    if noise:
        X = X + noise**0.5 * Z
    return _cut(X, d, n)


def _training_factors(key, rows, columns, s, decay, noise, dtype):
    """F, R2 and normals Z with X = F R2ᵀ + sigma Z."""
    R1, R2, Z = _normals(key, dtype, (rows, s), (columns, s), (rows, columns if noise else 0))
    return R1 * jnp.asarray(decay ** np.arange(1, s + 1) / s**0.5, dtype), R2, Z


def compact_training_task(
    key: jax.Array, *, n: int, d: int, n_out: int, d_out: int, s: int, decay: float = 0.7, dtype: DTypeLike
) -> tuple[Problem, jax.Array]:
    """`training_task` without noise, as (s rows in place of the d rows of A and C, metric s x s).

    The rows are F times these s ones, and the metric is FᵀF: the Gram matrix of [A C] is [A C]ᵀ metric [A C].
    """
    _check_sizes(n=n, d=d, n_out=n_out, d_out=d_out, s=s)
    F, R2, _ = _training_factors(key, d + d_out, n + n_out, s, decay, False, _float(dtype))
    rows = jnp.concatenate([R2.T, matmul(F[d:], R2.T)])
    columns = jax.lax.optimization_barrier(F[:d].T)  # transposed in memory: XLA's CPU backend is slow otherwise
    return _cut(rows, s, n), matmul(columns, F[:d])


def training_parameter(
    key: jax.Array,
    *,
    n: int = 18,
    d: int = 18,
    n_out: int = 2,
    d_out: int = 2,
    s: int = 10,
    decay: float = 0.7,
    noise: float = 0.0,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """W* = B A⁺ (d' x d) of the noiseless part of `training_task` with the same arguments.

    From the factors, A = F R2ᵀ with F of full column rank for s <= d, n: W* = f (FᵀF)⁻¹ Fᵀ, f the rows of B.
    """
    _require(s <= min(d, n), "s", s, f"at most d={d} and n={n}")
    F = _training_factors(key, d + d_out, n + n_out, s, decay, bool(noise), _float(dtype))[0]
    gram = jax.scipy.linalg.cho_factor(matmul(F[:d].T, F[:d]))
    return matmul(jax.scipy.linalg.cho_solve(gram, F[d:].T).T, F[:d].T)


def conditioned(
    key: jax.Array,
    *,
    n: int = 240,
    d: int = 240,
    n_out: int = 2,
    d_out: int = 2,
    kappa: float = 1e2,
    rank: int | None = None,
    dtype: DTypeLike | None = None,
) -> Problem:
    """A of given `rank` and condition, then B = W A, C = A Y, D = W A Y.

    A's nonzero singular values are log-uniform in [1/kappa, 1] and hit both ends.
    The bordering blocks come after A because cutting A out of a larger X would not leave it with this kappa.
    W and Y are Gaussian with variances 1/d and 1/n, so that B and C are of A's size.
    """
    _check_sizes(n=n, d=d, n_out=n_out, d_out=d_out)
    rank = _check_rank(rank, n, d)
    _check_kappa("kappa", kappa, rank)
    dtype = _float(dtype)
    key1, key2 = jax.random.split(key)
    G1, G2, W, Y = _normals(key1, dtype, (d, rank), (n, rank), (d_out, d), (n, n_out))
    U, V = _haar(G1, G2)
    A = matmul(U * _log_uniform(key2, kappa, (rank,), dtype), V.T)
    W, C = W / d**0.5, matmul(A, Y) / n**0.5
    return Problem(A, matmul(W, A), C, matmul(W, C))


def family(
    name: str,
    key: jax.Array,
    *,
    n: int = 240,
    d: int = 240,
    n_out: int = 2,
    d_out: int = 2,
    rank: int = 240,
    dtype: DTypeLike | None = None,
) -> Problem:
    """One of the six data distributions of the ablation, `FAMILIES`.

    "svd" is `conditioned` with kappa = 100. The others build all of X = F Gᵀ/√rank and cut it, so A's
    condition is what chance makes it: 1e4 to 1e6 with square factors. "block" has rank 5, its number of
    clusters, whatever `rank` says.
    """
    _require(name in FAMILIES, "name", name, f"one of {FAMILIES}")
    _check_sizes(n=n, d=d, n_out=n_out, d_out=d_out)
    dtype = _float(dtype)
    if name != "block":
        rank = _check_rank(rank, n, d)
    if name == "svd":
        return conditioned(key, n=n, d=d, n_out=n_out, d_out=d_out, rank=rank, dtype=dtype)
    rows, columns = d + d_out, n + n_out
    if name == "block":
        _require(min(n, d) >= _CLUSTERS, "n, d", (n, d), f"at least {_CLUSTERS} each, the number of clusters")
        rank = _CLUSTERS
        key1, key2 = jax.random.split(key)
        F = jax.nn.one_hot(_clusters(key1, d, d_out), rank, dtype=dtype)
        G = jax.random.normal(key2, (columns, rank), dtype)
    else:
        F, G = jnp.split(_entries(name, key, (rows + columns, rank), dtype), [rows])
    if name == "correlated":
        F, G = _correlate(F), _correlate(G)
    return _cut(matmul(F, G.T) / rank**0.5, d, n)


def _entries(name: str, key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    """iid entries of mean 0 and variance 1."""
    if name == "rademacher":
        u = jax.random.uniform(key, shape, dtype)
        return jnp.where(u < _SPARSITY, jnp.sign(u - _SPARSITY / 2), 0) / _SPARSITY**0.5
    if name == "student_t":
        # By definition; jax.random.t samples by rejection and takes several times as long to compile.
        z, chi = jnp.split(jax.random.normal(key, (1 + _STUDENT_DOF, *shape), dtype), [1])
        unit_variance = (_STUDENT_DOF / (_STUDENT_DOF - 2)) ** 0.5
        return z[0] / jnp.sqrt(jnp.mean(chi**2, axis=0)) / unit_variance
    return jax.random.normal(key, shape, dtype)


def _correlate(Z: jax.Array) -> jax.Array:
    """Columns with covariance rho^|i-j|, by its Cholesky factor: stationary AR(1) series."""
    i = np.arange(Z.shape[0])
    L = np.tril(_CORRELATION ** np.abs(i[:, None] - i))
    L[:, 1:] *= (1 - _CORRELATION**2) ** 0.5
    return matmul(jnp.asarray(L, Z.dtype), Z)


def _clusters(key: jax.Array, d: int, d_out: int) -> jax.Array:
    # Every cluster must have an observed row: a hidden row of an unseen cluster could not be predicted.
    u = jax.random.uniform(key, (d + d_out,))
    return jnp.concatenate([jnp.argsort(u[:d]) % _CLUSTERS, jnp.floor(u[d:] * _CLUSTERS).astype(int)])


def noisy(problem: Problem, key: jax.Array, sigma: float) -> Problem:
    """The problem with iid N(0, sigma²) on A, B and C; D stays clean."""
    A, B, C, D = problem
    Z = _normals(key, A.dtype, A.shape, B.shape, C.shape)
    return Problem(A + sigma * Z[0], B + sigma * Z[1], C + sigma * Z[2], D)


def distributed(
    key: jax.Array,
    *,
    machines: int = 3,
    d: int = 240,
    n: int = 240,
    n_out: int = 2,
    d_out: int = 2,
    kappa_max: float = 1e3,
    alpha: float = 0.35,
    measure: str = "index",
    dtype: DTypeLike | None = None,
) -> Problem:
    """M machines with n columns *each* and a prescribed diversity: A is (M, d, n), B is (M, d', n).

    Every Aᵘ has norm 1 and condition number `kappa_max`; with A = [A¹ … Aᴹ], B = W A, C = A Y, D = W C. Let
    P be the mean of the projectors on the ranges of the Aᵘ. `alpha` prescribes, up to rounding,

    * measure="index": the smallest positive eigenvalue of P, the diversity index. If the ranges do not all
      coincide, some machine misses a direction of the joint range: the index is 1 or at most 1 - 1/M.
    * measure="ratio": that eigenvalue over the largest one, anywhere in (0, 1]. It is 1 for orthogonal
      ranges, whose index is 1/M. The paper's remark on orthogonal ranges and its 0.83 at M=3 fit this
      reading only.

    Construction: the joint range is cut into orthogonal cells of dimension M. In each, M unit vectors with
    equal pairwise angles, one per machine, are what a machine misses (index) or all it sees (ratio); the
    angle sets the cell's eigenvalues. The cells run geometrically from `alpha` to the largest possible
    value, so that P's spectrum is spread out. Directions outside the cells are seen by every machine (index
    only). There are as many cells as fit; the joint range is all of R^d when n >= d (ratio: when M n >= d
    and M divides d).
    """
    _check_sizes(machines=machines, d=d, n=n, n_out=n_out, d_out=d_out)
    dtype = _float(dtype)
    cells, shared = _dimensions(machines, d, n, alpha, measure)
    rank = cells * (machines - 1 if measure == "index" else 1) + shared
    _check_kappa("kappa_max", kappa_max, rank)
    key1, key2 = jax.random.split(key)
    shapes = (d, cells * machines + shared), (machines, d, rank), (machines, n, rank)
    G, G1, G2, W, Y = _normals(key1, dtype, *shapes, (d_out, d), (machines, n, n_out))
    (Q,) = _haar(G)
    R = _ranges(Q, machines, cells, alpha, measure)
    # Rᵀ G1 is Gaussian like G1, and makes the second QR wait for the first (see _haar).
    U, V = jax.vmap(_haar)(matmul(R.mT, G1), G2)
    s = _log_uniform(key2, kappa_max, (machines, rank), dtype)
    A = matmul(matmul(R, U) * s[:, None, :], V.mT)
    W, C = W / d**0.5, jnp.sum(matmul(A, Y), axis=0) / (machines * n) ** 0.5
    return Problem(A, matmul(W, A), C, matmul(W, C))


def _dimensions(M: int, d: int, n: int, alpha: float, measure: str) -> tuple[int, int]:
    """The number of cells, and of directions outside them that every machine sees."""
    _require(measure in MEASURES, "measure", measure, f"one of {MEASURES}")
    top = 1 - 1 / M if measure == "index" or M == 1 else 1.0
    reachable = f"1 or in (0, {top:.4g}] with machines={M} and measure={measure!r}"
    _require(alpha == 1 or 0 < alpha <= top, "alpha", alpha, reachable)
    if measure == "ratio":
        _require(d >= M, "d", d, f"at least {M}, a direction for each machine")
        return min(d // M, n), 0
    if alpha == 1:
        return 0, min(d, n)
    _require(d >= M and n >= M - 1, "d, n", (d, n), f"d >= {M} and n >= {M - 1} when alpha < 1")
    cells = min(d // M, n // (M - 1))
    return cells, min(n, d - cells) - cells * (M - 1)


def _ranges(Q: jax.Array, M: int, cells: int, alpha: float, measure: str) -> jax.Array:
    """Orthonormal bases (M, d, rank) of the machines' ranges; Q spans the joint range, cells first."""
    d = Q.shape[0]
    common = jnp.broadcast_to(Q[:, cells * M :], (M, d, Q.shape[1] - cells * M))
    if cells == 0:
        return common
    alphas = np.geomspace(alpha, 1 - 1 / M if measure == "index" else 1, cells)
    in_cell = jnp.asarray(_cells(M, alphas, measure), Q.dtype)
    own = jnp.einsum("dcm,cumk->udck", Q[:, : cells * M].reshape(d, cells, M), in_cell, precision="highest")
    return jnp.concatenate([own.reshape(M, d, -1), common], axis=-1)


def _cells(M: int, alpha: np.ndarray, measure: str) -> np.ndarray:
    """Bases (cells, M machines, M, k) of what a machine sees of a cell; k = M-1 (index) or 1 (ratio)."""
    # Unit vectors u with pairwise inner product 1 - gap: (1/M) sum u uᵀ has eigenvalues gap/M (M-1 times) and
    # 1 - gap (M-1)/M. Missing u leaves one minus these, the least of them gap (M-1)/M.
    gap = M * alpha / (M - 1 if measure == "index" else 1 + (M - 1) * alpha)
    a = np.sqrt(gap)
    b = (np.sqrt(M - (M - 1) * gap) - a) / M
    u = a[:, None, None] * np.eye(M) + b[:, None, None]
    if measure == "ratio":
        return u[..., None]
    # The Householder reflection of the first axis into -u; its other columns are a basis of u's complement.
    w = u + np.eye(M)[0]
    H = np.eye(M) - 2 * w[..., None] * w[..., None, :] / np.sum(w * w, axis=-1)[..., None, None]
    return H[..., 1:]


def gallery(name: str, n: int, dtype: DTypeLike = np.float64) -> np.ndarray:
    """A deterministic hard matrix of the test gallery, computed in float64 and rounded once.

    hilbert, vandermonde (equispaced nodes in [0, 1]), kahan (angle 1.2) and graded (rows and columns scaled
    from 1 down to 1e-4) are n x n and ill-conditioned; lauchli is (n+1) x n with kappa about (n/eps)^(1/2),
    so that the rounded AᵀA is singular or nearly so; gapped has singular values 1 (n-1 times) and 1e-8.
    """
    _require(name in GALLERY, "name", name, f"one of {GALLERY}")
    _check_sizes(n=n)
    i = np.arange(n)
    if name == "hilbert":
        A = 1 / (1.0 + i[:, None] + i)
    elif name == "kahan":
        A = np.sin(1.2) ** i[:, None] * (np.eye(n) - np.cos(1.2) * np.triu(np.ones((n, n)), 1))
    elif name == "vandermonde":
        A = np.vander(np.linspace(0, 1, n), increasing=True)
    elif name == "lauchli":
        A = np.vstack([np.ones(n), float(jnp.finfo(dtype).eps) ** 0.5 * np.eye(n)])
    else:
        sine = (2 / (n + 1)) ** 0.5 * np.sin(np.pi * (i[:, None] + 1) * (i + 1) / (n + 1))
        cosine = (2 / n) ** 0.5 * np.cos(np.pi * i[:, None] * (2 * i + 1) / (2 * n))
        cosine[0] /= 2**0.5
        if name == "graded":
            scale = np.geomspace(1, 1e-4, n)
            A = scale[:, None] * sine * scale
        else:
            A = cosine * np.where(i == n - 1, 1e-8, 1.0) @ sine
    return A.astype(dtype)


def _normals(key: jax.Array, dtype: DTypeLike, *shapes: tuple[int, ...]) -> list[jax.Array]:
    """Standard normal arrays, from one draw: many draws take several times as long to compile."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = jax.random.normal(key, (sum(sizes),), dtype)
    parts = jnp.split(flat, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _haar(*gaussians: jax.Array) -> list[jax.Array]:
    """Haar-distributed orthonormal columns from Gaussian matrices of equal width, all in one QR.

    One, because on CPU two independent batched LAPACK calls in a program can wait for each other for ever
    when the thread pool is small (jaxlib 0.10.1, seen with 2 cores). Rows of zeros change nothing but the
    shape.
    """
    rows = max(G.shape[0] for G in gaussians)
    Q, R = jnp.linalg.qr(jnp.stack([jnp.pad(G, ((0, rows - G.shape[0]), (0, 0))) for G in gaussians]))
    # QR leaves the signs to LAPACK; a positive diagonal of R makes Q a function of the Gaussian alone.
    Q = Q * jnp.where(jnp.diagonal(R, axis1=-2, axis2=-1) < 0, -1, 1).astype(Q.dtype)[:, None, :]
    return [q[: G.shape[0]] for q, G in zip(Q, gaussians, strict=True)]


def _float(dtype: DTypeLike | None) -> jnp.dtype:
    return jnp.dtype(jnp.result_type(float) if dtype is None else dtype)


def _cut(X: jax.Array, d: int, n: int) -> Problem:
    return Problem(X[:d, :n], X[d:, :n], X[:d, n:], X[d:, n:])


def _log_uniform(key: jax.Array, kappa: float, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Singular values in [1/kappa, 1], the first 1 and the last 1/kappa."""
    u = jax.random.uniform(key, shape, dtype).at[..., -1].set(1).at[..., 0].set(0)
    return jnp.exp(-np.log(kappa).item() * u)


def _check_rank(rank: int | None, n: int, d: int) -> int:
    rank = min(n, d) if rank is None else rank
    _require(1 <= rank <= min(n, d), "rank", rank, f"between 1 and min(n, d) = {min(n, d)}")
    return rank


def _check_kappa(name: str, kappa: float, rank: int) -> None:
    _require(1 <= kappa < math.inf, name, kappa, "a finite number, at least 1")
    _require(rank > 1 or kappa == 1, name, kappa, "1: the rank is 1, and so is the condition number")


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        _require(value >= 1, name, value, "a positive integer")


def _require(ok: bool, name: str, got: object, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name}: got {got!r}, expected {expected}.")
