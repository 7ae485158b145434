"""R1: matrices of the SuiteSparse collection, from a folder of Matrix Market files.

    python -m experiments.suitesparse --matrix_dir=FOLDER

Paper (v2): Maragal_4, Maragal_5, pf2177, dwt_1007, bcsstm13, 162bit, N_pid; EAGLE against SVD, CG and LSMR to a
residual ||W A - B||_F² of 1e-3 ||B||_F². They are at https://sparse.tamu.edu; nothing is fetched.

Rows and columns are permuted by two pivoted QR factorisations so that A is r x r, r the numerical rank; then D = W C
exactly, W = B A⁻¹. A matrix of full column rank has no C, and D is empty; one of full row rank is transposed; a square
nonsingular one has no block to fill and is left out. Every method estimates W to two targets: the paper's, and ten
times the residual ||W A - B||_F of the SVD, at least 1e-10 ||B||_F. "optimal" is `eagle_jax.estimate` with the loosest
rtol of RTOLS that meets the target. LSMR works on the sparse A, on at most `lsmr_rows` rows of B, their time scaled up.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.io
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from absl import flags

import eagle_jax
from eagle_jax import baselines
from eagle_jax.problems import Problem
from eagle_jax.spectral import energy_bound
from experiments import common

ITEM = "suitesparse"
WANTED = ("Maragal_4", "Maragal_5", "pf2177", "dwt_1007", "bcsstm13", "162bit", "N_pid")
TARGET, SMALLEST = 1e-3, 1e-20  # of ||W A - B||_F² / ||B||_F²
MOST_REPEATS = 50
RTOLS = (1e-1, 1e-2, 1e-4, 1e-8, None)


@dataclasses.dataclass(frozen=True)
class Config:
    matrix_dir: str = ""
    most_entries: int = 10**9  # larger matrices (rows times columns, as they are made dense) are left out
    paper_limit: int = 100
    cg_limit: int = 20_000
    lsmr_limit: int = 20_000
    lsmr_rows: int = 100
    timing: float = 20.0  # seconds for the repetitions of one matrix and target
    runs: int = 1  # the matrices are given
    seed: int = 0  # of the rows that LSMR gets
    matrices: tuple[str, ...] = ()  # names and digests of the files: results are not reused when they change

    def __post_init__(self):
        if self.matrix_dir:
            found = tuple(f"{name_of(path)}, {common.sha256(path)[:16]}" for path in files(self.matrix_dir))
            object.__setattr__(self, "matrices", found)


PRESETS = {
    "quick": Config(most_entries=10**5, cg_limit=2_000, lsmr_limit=2_000, lsmr_rows=20, timing=1.0),
    "default": Config(most_entries=10**7),
    "full": Config(),
}


def files(folder: str | Path) -> list[Path]:
    """Also in folders below: an archive of the collection unpacks to NAME/NAME.mtx."""
    found = sorted(p for p in Path(folder).rglob("*.mtx*") if p.name.endswith((".mtx", ".mtx.gz")))
    if not found:
        raise FileNotFoundError(
            f"matrix_dir={folder}: no .mtx or .mtx.gz file there or below; the paper's are {', '.join(WANTED)}, at "
            "https://sparse.tamu.edu"
        )
    # NAME.mtx beside NAME.mtx.gz is one matrix
    return list({name_of(path): path for path in reversed(found)}.values())[::-1]


def name_of(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".mtx")


def numerical_rank(X: np.ndarray) -> tuple[int, np.ndarray]:
    """The rank and the columns in the order of a QR factorisation with pivoting."""
    factors = scipy.linalg.qr(X, mode="r", pivoting=True)
    sizes, columns = np.abs(np.diag(factors[0])), factors[-1]
    return int((sizes > np.finfo(float).eps * max(X.shape) * sizes.max(initial=0.0)).sum()), columns


def full_rank_block(X: np.ndarray) -> Problem | None:
    """[[A, C], [B, D]] with A of size and rank r; None if X is square and nonsingular."""
    rank, columns = numerical_rank(X)
    if rank == X.shape[0]:
        if rank == X.shape[1]:
            return None
        return full_rank_block(X.T)
    _, rows = numerical_rank(X[:, columns[:rank]].T)
    X = X[rows][:, columns]
    return Problem(*eagle_jax.Blocks.split(jnp.asarray(X), rank, rank))


def residual(W, A, B) -> float:
    """||W A - B||_F² / ||B||_F²."""
    return float(jnp.sum((W @ A - B) ** 2) / jnp.sum(B**2))


class Attempt(NamedTuple):
    """One method at one target: W (None if missed), how to time it, or how long it took."""

    W: Any
    steps: int
    run: Callable | None = None
    seconds: float = math.nan


MISSED = Attempt(None, common.NOT_REACHED)


@jax.jit
def _svd(A, B):
    return jnp.linalg.lstsq(A.T, B.T)[0].T


def by_svd(p: Problem, target: float, cfg: Config) -> Attempt:
    W = _svd(p.A, p.B)
    return Attempt(W, 1, lambda p: _svd(p.A, p.B)) if residual(W, p.A, p.B) <= target else MISSED


def by_optimal(p: Problem, target: float, cfg: Config) -> Attempt:
    for rtol in RTOLS:
        solution = eagle_jax.estimate(p.A, p.B, rtol=rtol)
        if residual(solution.value, p.A, p.B) <= target:
            run = lambda p, rtol=rtol: eagle_jax.estimate(p.A, p.B, rtol=rtol).value  # noqa: E731
            return Attempt(solution.value, int(solution.stats.steps), run)
    return MISSED


@jax.jit
def _start(A, B):
    """||A||₂ at most 1: an upper bound of the norm costs at most a step or two, and no SVD."""
    size = jnp.sqrt(energy_bound(A @ A.T))
    return A / size, B / size, jnp.zeros((B.shape[0], A.shape[0]), A.dtype)


@jax.jit
def _plain_step(A, B, W):
    A, B, W = eagle_jax.update_estimate(A, B, W, 1.0, *eagle_jax.PAPER[:2])
    return 1.5 * A, 1.5 * B, W


@jax.jit
def _paper_steps(A, B, steps):
    return jax.lax.fori_loop(0, steps, lambda _, carry: _plain_step(*carry), _start(A, B))[2]


def by_paper(p: Problem, target: float, cfg: Config) -> Attempt:
    state = _start(p.A, p.B)
    for steps in range(1, cfg.paper_limit + 1):
        state = _plain_step(*state)
        if residual(state[2], p.A, p.B) <= target:
            return Attempt(state[2], steps, lambda p, steps=steps: _paper_steps(p.A, p.B, steps))
    return MISSED


def by_cg(p: Problem, target: float, cfg: Config) -> Attempt:
    until = partial(baselines.conjugate_gradients_until, target=target, limit=cfg.cg_limit)
    W, steps = jax.jit(until)(p.A, p.B)
    if int(steps) == common.NOT_REACHED:
        return MISSED
    # The history of a thin product: the baseline keeps D after every step.
    timed = jax.jit(partial(baselines.conjugate_gradients, steps=max(int(steps), 1)))
    thin = jnp.zeros((p.A.shape[0], 1), p.A.dtype)
    return Attempt(W, int(steps), lambda p: timed(p.A, p.B, thin).D)


def by_lsmr(p: Problem, target: float, cfg: Config) -> Attempt:
    """Row by row to the same relative residual, on the sparse A; steps are the most that a row took."""
    A, B = np.asarray(p.A), np.asarray(p.B)
    At = scipy.sparse.csr_array(A.T)
    chosen = np.random.default_rng(cfg.seed).permutation(np.flatnonzero(B.any(axis=1)))[: cfg.lsmr_rows]
    start = time.perf_counter()
    rows = [
        scipy.sparse.linalg.lsmr(At, b, atol=0, btol=target**0.5, conlim=0, maxiter=cfg.lsmr_limit) for b in B[chosen]
    ]
    seconds = (time.perf_counter() - start) * len(B) / len(chosen)
    W = np.stack([row[0] for row in rows])
    # its running estimate of the residual is a little off
    if residual(W, A, B[chosen]) > 1.1 * target:
        return MISSED
    whole = W[np.argsort(chosen)] if len(chosen) == len(B) else None
    return Attempt(whole, max(row[2] for row in rows), seconds=seconds)


METHODS: dict[str, Callable[[Problem, float, Config], Attempt]] = {
    "optimal": by_optimal,
    "paper": by_paper,
    "cg": by_cg,
    "lsmr": by_lsmr,
    "lstsq": by_svd,
}


def error_of_D(W, p: Problem) -> float:
    """NaN where there is no D, or none to compare with."""
    return float(common.relative_errors(W @ p.C, p.D)) if W is not None and p.D.size and p.D.any() else math.nan


def measure(p: Problem, cfg: Config) -> dict[str, np.ndarray]:
    """seconds, steps and error of D: targets x METHODS; NaN and NOT_REACHED where a target is missed."""
    accurate = max(SMALLEST, 100 * residual(_svd(p.A, p.B), p.A, p.B))
    rows = []
    for target in (TARGET, accurate):
        attempts = {name: method(p, target, cfg) for name, method in METHODS.items()}
        timed = {name: attempt.run for name, attempt in attempts.items() if attempt.run}
        once = sum(common.interleaved_seconds(timed, p, 1).values())
        seconds = common.interleaved_seconds(timed, p, int(np.clip(cfg.timing / once, 1, MOST_REPEATS)))
        rows.append(
            {
                "seconds": [seconds.get(name, attempt.seconds) for name, attempt in attempts.items()],
                "steps": [attempt.steps for attempt in attempts.values()],
                "error": [error_of_D(attempt.W, p) for attempt in attempts.values()],
            }
        )
    results = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    kappa, status = np.linalg.cond(p.A), int(eagle_jax.estimate(p.A, p.B).status)
    return results | {"kappa": kappa, "rank": np.array(len(p.A)), "accurate": np.array(accurate), "status": status}


def read(path: Path, most_entries: int) -> tuple[tuple[int, int], Problem | str]:
    """Its size, and the problem made of it or why there is none."""
    try:
        rows, columns, _, _, field, _ = scipy.io.mminfo(path)
        shape = int(rows), int(columns)
        if math.prod(shape) > most_entries:
            return shape, "larger than this preset takes"
        if field == "complex":
            return shape, "complex"
        X = scipy.sparse.csr_matrix(scipy.io.mmread(path)).toarray().astype(np.float64)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a Matrix Market file: {error}; mend or remove it") from error
    if not np.isfinite(X).all():
        raise ValueError(f"{path} has entries that are not finite; mend or remove it")
    if not X.any():
        return shape, "zero"
    problem = full_rank_block(X / np.abs(X).max())
    if problem is None:
        return shape, "square and nonsingular"
    return shape, problem if problem.B.any() else "its dependent rows are zero"


def run(cfg: Config) -> common.Results:
    rows, names, shapes, skipped = [], [], [], []
    for path in common.track(files(cfg.matrix_dir), "R1 SuiteSparse"):
        shape, problem = read(path, cfg.most_entries)
        if isinstance(problem, str):
            skipped.append(f"{name_of(path)} ({problem})")
            continue
        rows.append(measure(problem, cfg))
        names.append(name_of(path))
        shapes.append(shape)
    if not rows:
        raise ValueError(f"no matrix of {cfg.matrix_dir} has a block to fill: {'; '.join(skipped)}")
    results: common.Results = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    labels = {"names": names, "skipped": skipped, "methods": list(METHODS), "shapes": shapes}
    return results | {name: np.array(value) for name, value in labels.items()}


def define_flag() -> None:
    where = f"{', '.join(WANTED)}, at https://sparse.tamu.edu"
    flags.DEFINE_string("matrix_dir", None, f"Folder of .mtx or .mtx.gz files, for R1; the paper's are {where}.")
    flags.register_validator("matrix_dir", lambda folder: folder != "", "is empty; expected a folder")


def main() -> None:
    define_flag()
    common.launch(ITEM, run, PRESETS, needed=("matrix_dir",))


if __name__ == "__main__":
    main()
