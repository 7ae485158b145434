"""R1: matrices of the SuiteSparse collection, from a folder of Matrix Market files.

    python -m experiments.suitesparse --matrix_dir=FOLDER
    python -m experiments.suitesparse --download        (fetches the paper's matrices, to matrices/ or --matrix_dir)

Paper (v2): Maragal_4, Maragal_5, pf2177, dwt_1007, bcsstm13, 162bit, N_pid; EAGLE against SVD, CG and LSMR to a
residual ||W A - B||_F² of 1e-3 ||B||_F², B and D one row.

Rows and columns are permuted by two pivoted QR factorisations so that A is r x r, r the numerical rank; then D = W C
exactly, W = B A⁻¹. B is the longest of the dependent rows, of those with a D other than 0 if there are any; or W A with
a random W where they are zero (bcsstm13). A matrix of full column rank has no C, and D is empty; one of full row rank
is transposed; a square nonsingular one has no block to fill and is left out. Every method estimates W to two targets:
the paper's, and ten times the residual ||W A - B||_F of the SVD, at least 1e-10 ||B||_F. "optimal" is
`eagle_jax.estimate`, which knows no looser target than full accuracy. LSMR works on the sparse A, the others on a dense
one.
"""

import dataclasses
import math
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
from experiments import common, matrices

ITEM = "suitesparse"
WANTED = tuple(matrices.PAPERS)
TARGET, SMALLEST = 1e-3, 1e-20  # of ||W A - B||_F² / ||B||_F²
MOST_REPEATS = 50


@dataclasses.dataclass(frozen=True)
class Config:
    matrix_dir: str = ""
    most_entries: int = 10**9  # larger matrices (rows times columns, as they are made dense) are left out
    paper_limit: int = 100
    cg_limit: int = 20_000
    lsmr_limit: int = 20_000
    timing: float = 20.0  # seconds for the repetitions of one matrix and target
    runs: int = 1  # the matrices are given
    seed: int = 0  # of W, where that is made
    matrices: tuple[str, ...] = ()  # names and digests of the files: results are not reused when they change

    def __post_init__(self):
        if self.matrix_dir:
            found = tuple(f"{name_of(path)}, {common.sha256(path)[:16]}" for path in files(self.matrix_dir))
            object.__setattr__(self, "matrices", found)


PRESETS = {
    "quick": Config(most_entries=10**5, cg_limit=2_000, lsmr_limit=2_000, timing=1.0),
    "default": Config(most_entries=10**7),
    "full": Config(),
}


def files(folder: str | Path) -> list[Path]:
    """Also in folders below: an archive of the collection unpacks to NAME/NAME.mtx."""
    found = sorted(p for p in Path(folder).rglob("*.mtx*") if p.name.endswith((".mtx", ".mtx.gz")))
    if not found:
        raise FileNotFoundError(
            f"matrix_dir={folder}: no .mtx or .mtx.gz file there or below; the paper's are {', '.join(WANTED)}; "
            "python -m experiments.suitesparse --download fetches them"
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


def full_rank_block(X: np.ndarray, seed: int = 0) -> Problem | None:
    """[[A, C], [B, D]] with A of size and rank r, B and D one row; None if X is square and nonsingular."""
    rank, columns = numerical_rank(X)
    if rank == X.shape[0]:
        if rank == X.shape[1]:
            return None
        return full_rank_block(X.T, seed)
    _, rows = numerical_rank(X[:, columns[:rank]].T)
    X = X[rows][:, columns]
    dependent = X[rank:]
    with_D = dependent[dependent[:, rank:].any(axis=1)]
    dependent = with_D if len(with_D) else dependent
    row = dependent[np.argmax(np.linalg.norm(dependent[:, :rank], axis=1))]
    if not row.any():
        row = np.random.default_rng(seed).standard_normal(rank) @ X[:rank]
    return Problem(*eagle_jax.Blocks.split(jnp.asarray(np.vstack([X[:rank], row])), rank, rank))


def residual(W, A, B) -> float:
    """||W A - B||_F² / ||B||_F²."""
    return float(jnp.sum((W @ A - B) ** 2) / jnp.sum(B**2))


class Attempt(NamedTuple):
    """One method at one target: W and how to time it; None if missed."""

    W: Any
    steps: int
    run: Callable | None = None


MISSED = Attempt(None, common.NOT_REACHED)


@jax.jit
def _svd(A, B):
    return jnp.linalg.lstsq(A.T, B.T)[0].T


def by_svd(p: Problem, target: float, cfg: Config) -> Attempt:
    W = _svd(p.A, p.B)
    return Attempt(W, 1, lambda p: _svd(p.A, p.B)) if residual(W, p.A, p.B) <= target else MISSED


def by_optimal(p: Problem, target: float, cfg: Config) -> Attempt:
    solution = eagle_jax.estimate(p.A, p.B)
    if residual(solution.value, p.A, p.B) > target:
        return MISSED
    return Attempt(solution.value, int(solution.stats.steps), lambda p: eagle_jax.estimate(p.A, p.B).value)


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
    A, b = np.asarray(p.A), np.asarray(p.B)[0]
    At = scipy.sparse.csr_array(A.T)
    run = lambda p: scipy.sparse.linalg.lsmr(At, b, atol=0, btol=target**0.5, conlim=0, maxiter=cfg.lsmr_limit)  # noqa: E731
    W, _, steps, *_ = run(p)
    # its running estimate of the residual is a little off
    missed = residual(W[None], p.A, p.B) > 1.1 * target
    return MISSED if missed else Attempt(W[None], int(steps), lambda p: run(p)[0])


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
                "seconds": [seconds.get(name, math.nan) for name in attempts],
                "steps": [attempt.steps for attempt in attempts.values()],
                "error": [error_of_D(attempt.W, p) for attempt in attempts.values()],
            }
        )
    results = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    kappa, status = np.linalg.cond(p.A), int(eagle_jax.estimate(p.A, p.B).status)
    return results | {"kappa": kappa, "rank": np.array(len(p.A)), "accurate": np.array(accurate), "status": status}


def read(path: Path, most_entries: int, seed: int = 0) -> tuple[tuple[int, int], Problem | str]:
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
    return shape, full_rank_block(X / np.abs(X).max(), seed) or "square and nonsingular"


def run(cfg: Config) -> common.Results:
    rows, names, shapes, skipped = [], [], [], []
    for path in common.track(files(cfg.matrix_dir), "R1 SuiteSparse"):
        shape, problem = read(path, cfg.most_entries, cfg.seed)
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


def fetched() -> bool:
    """Whether that was asked for."""
    if flags.FLAGS.download:
        folder = Path(flags.FLAGS.matrix_dir or "matrices")
        matrices.download(folder)
        common.console.print(f"python -m experiments.{ITEM} --matrix_dir={folder} runs R1 on them", highlight=False)
    return flags.FLAGS.download


def main() -> None:
    define_flag()
    flags.DEFINE_boolean("download", False, "Fetch the paper's matrices, and end.")
    common.launch(ITEM, run, PRESETS, needed=("matrix_dir",), instead=fetched)


if __name__ == "__main__":
    main()
