"""Random problems against an SVD: wrong answers that say CONVERGED, and easy problems that are flagged.

    make hunt        (python -m experiments.hunt --cases=10000 --way=default)

Shapes, ranks, spectra (geometric, two clusters, one gap), scales, graded rows, right-hand sides, precisions, complex
data and rcond are drawn at random. Silent: CONVERGED with an error above 100 eps kappa (1 + kappa ||r|| / (||A||
||x||)), kappa over the singular values that are kept; where rcond cuts inside the spectrum also over the gap. Easy: eps
kappa below 1e-4 / max(d, n).
"""

import dataclasses
from functools import partial

import jax
import numpy as np
from absl import app, flags

import eagle_jax
from experiments import common

SHAPES = ((1, 1), (2, 3), (5, 5), (9, 30), (30, 9), (6, 80), (33, 47), (70, 64), (60, 500))
DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclasses.dataclass
class Tally:
    cases: int = 0
    silent: list[str] = dataclasses.field(default_factory=list)
    flagged: list[str] = dataclasses.field(default_factory=list)
    ranks: list[str] = dataclasses.field(default_factory=list)
    worst: float = 0.0  # error over 100 times its bound, of what converged


@dataclasses.dataclass
class Case:
    A: np.ndarray
    B: np.ndarray
    X: np.ndarray  # the answer
    rank: int
    kappa: float
    bound: float
    graded: bool
    about: str


def spectrum(rng, k: int, kappa: float) -> tuple[np.ndarray, str]:
    kind = rng.choice(["geometric", "clusters", "gap"])
    if kind == "geometric" or k == 1:
        return np.geomspace(1, 1 / kappa, k) if k > 1 else np.ones(1), "geometric"
    low = k // 2 if kind == "clusters" else 1
    return np.r_[np.ones(k - low), np.full(low, 1 / kappa)], str(kind)


def draw(rng, d: int, n: int, dtype: str, rcond: float | None, grading: bool = True) -> Case | None:
    """None where rcond cuts within a hundredth of a singular value, or where no singular value is left."""
    eps = float(np.finfo(dtype).eps)
    complex_ = np.issubdtype(dtype, np.complexfloating)

    def normal(*shape):
        x = rng.standard_normal(shape)
        return x + 1j * rng.standard_normal(shape) if complex_ else x

    k = min(d, n) if rng.random() < 0.5 else int(rng.integers(1, min(d, n) + 1))
    kappa = 10 ** rng.uniform(0, -np.log10(eps * max(d, n)) - 2)
    s, kind = spectrum(rng, k, kappa)
    U, V = (np.linalg.qr(normal(m, k))[0] for m in (d, n))
    A = (U * s) @ V.conj().T
    consistent = rng.random() < 0.5
    # Scaling the rows of A scales the columns of W, if the rank is full.
    graded = grading and rcond is None and k == d <= n and rng.random() < 0.3
    grade = 2.0 ** rng.integers(-20, 20, d) if graded else np.ones(d)
    unit = 2.0 ** rng.integers(-60, 60)
    stored = (unit * grade[:, None] * A).astype(dtype)
    A = stored.astype(complex if complex_ else float) / grade[:, None] / unit
    B = (normal(2, d) @ A if consistent else normal(2, n)).astype(dtype)
    U, s, Vh = np.linalg.svd(A, full_matrices=False)
    cut = (eps * max(d, n) if rcond is None else rcond) * s[0]
    kept = s > cut
    rank = int(kept.sum())
    if rank == 0 or np.any(np.abs(s / cut - 1) < 0.01):
        return None
    X = (B @ Vh[kept].conj().T / s[kept]) @ U[:, kept].conj().T
    kappa = s[0] / s[rank - 1]
    rest = np.linalg.norm(B - X @ A)
    bound = 100 * eps * kappa * (1 + kappa * rest / max(s[0] * np.linalg.norm(X), 1e-300))
    if rcond is not None and rank < len(s):
        bound /= 1 - s[rank] / s[rank - 1]
    about = (
        f"{d}x{n} {dtype} {kind} rank {rank} kappa {kappa:.0e} rcond {rcond} consistent {consistent} graded {graded}"
    )
    return Case(stored, B, X / grade / unit, rank, kappa, bound, graded, about)


def judge(tally: Tally, case: Case, W, status: int, rank: int) -> None:
    tally.cases += 1
    eps = float(np.finfo(case.A.dtype).eps)
    scale = np.abs(case.X).max(0, keepdims=True)  # graded columns of W count alike
    scale = np.where(scale > 0, scale, 1) if case.graded else 1.0
    with np.errstate(all="ignore"):
        size = np.linalg.norm(case.X / scale)
        error = float(np.linalg.norm((np.asarray(W, complex) - case.X) / scale) / size)
    about = f"{case.about}: error {error:.1e}, bound {case.bound:.1e}, rank {rank}"
    if status == eagle_jax.Status.CONVERGED:
        tally.worst = max(tally.worst, error / case.bound)
        if not error <= case.bound:
            tally.silent.append(about)
    elif eps * case.kappa * max(case.A.shape) < 1e-4:
        tally.flagged.append(f"{about}, {eagle_jax.Status(status).name}")
    if rank != case.rank and eps * case.kappa * max(case.A.shape) < 1e-2:
        tally.ranks.append(about)


@partial(jax.jit, static_argnums=(2, 3))
def estimate(A, B, rcond, way="default"):
    """Sketches: r is a third of the columns, and one key serves all problems."""
    options: dict = {"schedule": "paper"} if way == "paper" else {}
    if way == "sketched":
        options = {"sketch": eagle_jax.Sketch(-(-A.shape[-1] // 3), jax.random.key(0))}
    return eagle_jax.estimate(A, B, rcond=rcond, **options)


def hunt(cases: int, seed: int = 0, shapes=SHAPES, dtypes=DTYPES, way: str = "default") -> Tally:
    """The cases are shared out among shapes, precisions and rcond; each of these is one compiled program.

    The paper's steps may give up on an easy problem; they and sketches know no rank, and judge rows by the longest.
    """
    rng, tally = np.random.default_rng(seed), Tally()
    rconds = (None, 1e-1, 1e-3) if way == "default" else (None,)
    turns = [(d, n, dtype, rcond) for d, n in shapes for dtype in dtypes for rcond in rconds]
    for turn, (d, n, dtype, rcond) in enumerate(turns):
        drawn = []
        while len(drawn) < -(-(cases - tally.cases) // (len(turns) - turn)):
            case = draw(rng, d, n, dtype, rcond, way == "default")
            drawn += [case] if case is not None else []
        if not drawn:
            continue
        W, status, stats = estimate(np.stack([c.A for c in drawn]), np.stack([c.B for c in drawn]), rcond, way)
        ranks = np.asarray(stats.rank) if way == "default" else [c.rank for c in drawn]
        for case, *found in zip(drawn, np.asarray(W), np.asarray(status), ranks, strict=True):
            judge(tally, case, *found)
        if len(turns) > 8:  # programs are many small mappings of memory, of which a process may have 65 530
            jax.clear_caches()
    return tally


def report(tally: Tally) -> str:
    lines = [
        f"{tally.cases} cases: {len(tally.silent)} silent errors, {len(tally.flagged)} easy ones flagged, "
        f"{len(tally.ranks)} other ranks than the SVD's; largest error that CONVERGED: {tally.worst:.2f} of the bound"
    ]
    for name in ("silent", "flagged", "ranks"):
        lines += [f"{name}: {about}" for about in getattr(tally, name)[:20]]
    return "\n".join(lines)


def main(argv):
    common.begin(argv)
    jax.config.update("jax_enable_x64", True)
    tally = hunt(_CASES.value, _SEED.value, way=_WAY.value)
    print(report(tally))
    raise SystemExit(bool(tally.silent or tally.flagged or tally.ranks))


if __name__ == "__main__":
    _CASES = flags.DEFINE_integer("cases", 10_000, "how many problems")
    _SEED = flags.DEFINE_integer("seed", 0, "of the random numbers")
    _WAY = flags.DEFINE_enum("way", "default", ["default", "sketched", "paper"], "what answers")
    app.run(main)
