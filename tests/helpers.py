"""Problems with known spectra, the reference answer, and the tolerances that the tests share."""

from typing import NamedTuple

import numpy as np

from eagle_jax.transformer import Architecture

SMALL = {"n": 6, "d": 5, "n_out": 2, "layers": 3}
ARCHITECTURES = {
    "unconstrained": Architecture("unconstrained", **SMALL),
    "8 heads": Architecture("unconstrained", **SMALL, heads=8),
    "computation_limited": Architecture("computation_limited", **SMALL, rank=3),
    "distributed": Architecture("distributed", **SMALL, machines=3),
    "estimation": Architecture("estimation", **SMALL, d_out=1),
}
# One table feeds the same properties to every solver.
SCHEDULES = {"optimal": "optimal", "paper": "paper", "emergent": "emergent", "pair": (0.3, 1.2)}


def eps(dtype) -> float:
    return float(np.finfo(dtype).eps)


class Case(NamedTuple):
    """Blocks in their dtype, and what float64 knows of them: D = B A⁺ C, kappa, size of rounding."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    kappa: float
    scale: float  # ||B|| ||A⁺|| ||C||


def orthonormal(rng, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((rows, columns)))[0]


def with_spectrum(rng, d: int, n: int, s) -> np.ndarray:
    """d x n with singular values s and otherwise 0."""
    return (orthonormal(rng, d, len(s)) * np.asarray(s)) @ orthonormal(rng, n, len(s)).T


def pinv(A, rank: int | None = None) -> np.ndarray:
    """A⁺ in float64, cut at `rank` if that is known, else at numpy's eps*max(shape) of A's own dtype."""
    A = np.asarray(A)
    U, s, Vt = np.linalg.svd(A.astype(np.float64), full_matrices=False)
    keep = s > eps(A.dtype) * max(*A.shape, 1) * s.max(initial=0) if rank is None else np.arange(len(s)) < rank
    return (Vt[keep].T / s[keep]) @ U[:, keep].T


def norm2(x) -> float:
    return float(np.linalg.norm(np.asarray(x, np.float64), 2)) if np.size(x) else 0.0


def case_of(A, B, C, dtype, rank: int | None = None) -> Case:
    """The reference for blocks that are rounded to `dtype` first."""
    A, B, C = (np.asarray(x).astype(dtype) for x in (A, B, C))
    inverse = pinv(A, rank)
    D = B.astype(float) @ inverse @ C.astype(float)
    return Case(A, B, C, D, norm2(A) * norm2(inverse), norm2(B) * norm2(inverse) * norm2(C))


def make_case(d, n, dtype, *, rank=None, kappa=10.0, consistent=True, rows=3, columns=2, seed=0) -> Case:
    """Log-spaced spectrum. Consistent: B in the row space and C in the range of A; otherwise both random."""
    rng = np.random.default_rng([d, n, seed])
    r = min(d, n) if rank is None else rank
    A = with_spectrum(rng, d, n, np.geomspace(1, 1 / kappa, r))
    if consistent:
        B, C = rng.standard_normal((rows, d)) @ A, A @ rng.standard_normal((n, columns))
    else:
        B, C = rng.standard_normal((rows, n)), rng.standard_normal((d, columns))
    return case_of(A, B, C, dtype, r)


def tolerance(case: Case, factor: float = 4.0) -> float:
    """Error in D that a backward error of rtol = 32 eps allows: A⁺ moves by kappa times as much."""
    return factor * 32 * eps(case.A.dtype) * case.kappa * case.scale


def error(value, case: Case) -> float:
    return norm2(np.asarray(value, np.float64) - case.D)


def assert_close(value, case: Case, factor: float = 4.0) -> None:
    found, allowed = error(value, case), tolerance(case, factor)
    assert found <= allowed, f"error {found:.2e} > {allowed:.2e} (kappa {case.kappa:.1e}, scale {case.scale:.1e})"


def stopping_results() -> dict[str, np.ndarray]:
    """Results as `experiments.stopping` gives them, made up: the rule stops at an error of 0.5, 1e-9 is attainable."""
    steps, runs = 4, 3
    return {
        "matrices": np.array(["gapped", "kahan"]),
        "taus": np.array([1e-4]),
        "stop_steps": np.full((2, runs, 1), 2),
        "stop_error": np.full((2, runs, 1), 0.5),
        "solve_error": np.full((2, runs), 1e-9),
        "error": np.full((2, runs, steps), 1e-9),
        "change": np.full((2, runs, steps), 1e-5),
    }
