"""Accuracy against outside yardsticks: LAPACK's least-squares test ratios and NIST's certified regressions.

    python -m experiments.numerics [--schedule=optimal] [--data_dir=...] [--out=results/numerics.json]

Nearly all of the time is compilation. LAPACK promises that every test ratio stays
below 30; the requirement on the NIST problems is to lose at most one digit against Householder QR.
"""

import itertools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
import scipy.linalg
from absl import app, flags, logging

import eagle_jax
from eagle_jax import Status
from experiments import common

SIZES = (0, 1, 2, 3, 5, 10, 50)
NRHS = (1, 2, 15)
DTYPES = ("float64", "float32")
RANKS = ("full", "3/4")
SCALES = ("normal", "up", "down")
LAPACK_TESTS = ("DQRT14", "DQRT16", "DQRT17")
TESTS = (*LAPACK_TESTS, "row space")
THRESHOLD = 30.0
DIGITS_LOST = 1.0

# LAPACK's ratios


class LeastSquares(NamedTuple):
    """One problem a x ~ b, with orthonormal columns V that span the row space of a."""

    a: np.ndarray
    b: np.ndarray
    V: np.ndarray
    rank: str
    scale: str
    consistent: bool
    seed: int


def roundoff(dtype) -> float:
    """LAPACK's DLAMCH('Epsilon'): half the spacing of the numbers above 1."""
    return float(np.finfo(dtype).eps) / 2


def orthonormal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((rows, columns)))[0]


def make_problem(m: int, n: int, nrhs: int, dtype, rank: str, scale: str, consistent: bool, seed: int) -> LeastSquares:
    """DQRT15: singular values 1 and uniform in (0.1, 1), the rest 0; norms near the limits of `dtype`.

    A right-hand side that is not consistent has a part of the same size outside the range of a.
    """
    rng = np.random.default_rng([m, n, nrhs, seed, RANKS.index(rank)])
    r = min(m, n) if rank == "full" else 3 * min(m, n) // 4
    U, V = orthonormal(rng, m, r), orthonormal(rng, n, r)
    s = np.sort(rng.uniform(0.1, 1, r))[::-1]
    s[:1] = 1
    a = (U * s) @ V.T
    b = U @ rng.standard_normal((r, nrhs))
    if not consistent:
        b = b + rng.standard_normal((m, nrhs))
    if scale != "normal" and r:
        least = float(np.finfo(dtype).tiny) / roundoff(dtype) ** 2
        factor = (least if scale == "down" else 1 / least) / np.abs(a).max()
        a, b = a * factor, b * factor
    return LeastSquares(a.astype(dtype), b.astype(dtype), V, rank, scale, consistent, seed)


def make_problems(m: int, n: int, nrhs: int, dtype, seeds: int = 1) -> list[LeastSquares]:
    """Every rank, scaling and kind of right-hand side of one shape."""
    return [
        make_problem(m, n, nrhs, dtype, rank, scale, consistent, seed)
        for rank in RANKS
        for scale in SCALES
        for consistent in (True, False)
        for seed in range(seeds)
    ]


def one_norm(x: np.ndarray) -> float:
    """The largest column sum, as DLANGE('1')."""
    return float(np.abs(x).sum(axis=0).max()) if x.size else 0.0


def unit(x: np.ndarray) -> np.ndarray:
    """x divided by its largest entry, unless that is 0."""
    largest = np.abs(x).max() if x.size else 0.0
    return x / largest if largest else x


def dqrt14(a: np.ndarray, x: np.ndarray, eps: float) -> float:
    """Is X in the row space of A? Largest entry of the trailing triangle in LQ of [A; X'], both scaled."""
    m, n, nrhs = *a.shape, x.shape[1]
    if n == 0 or nrhs == 0:
        return 0.0
    R = np.asarray(np.linalg.qr(np.concatenate([unit(a), unit(x.T)]).T, mode="r"))
    trailing = np.triu(R[m:, m:])
    return float(np.abs(trailing).max(initial=0)) / (max(m, n, nrhs) * eps)


def dqrt16(a: np.ndarray, x: np.ndarray, b: np.ndarray, eps: float) -> float:
    """max over the columns of ||b - A x|| / (max(m, n) ||A|| ||x|| eps); for consistent systems."""
    if 0 in (*a.shape, x.shape[1]):
        return 0.0
    size_a, size_r, size_x = one_norm(a), np.abs(b - a @ x).sum(axis=0), np.abs(x).sum(axis=0)
    if size_a == 0:
        return 0.0 if not size_r.any() else 1 / eps
    if (size_x == 0).any():
        return 1 / eps
    return float((size_r / size_a / size_x).max()) / (max(a.shape) * eps)


def dqrt17(a: np.ndarray, x: np.ndarray, b: np.ndarray, zero_residual: bool, eps: float) -> float:
    """||R' A|| / (||A|| alpha max(m, n, nrhs) eps); alpha = ||b|| for a zero residual, else max|R|."""
    if 0 in (*a.shape, x.shape[1]):
        return 0.0
    R = b - a @ x
    size_R, size_a, size_b = float(np.abs(R).max()), one_norm(a), one_norm(b)
    error = one_norm(unit(R).T @ (a / size_a if size_a else a))
    if zero_residual:
        error = error * (size_R / size_b if size_b else size_R)
    return error / (max(*a.shape, x.shape[1]) * eps)


def row_space(V: np.ndarray, x: np.ndarray, eps: float) -> float:
    """DQRT14 for every shape, not LAPACK's: ||x - V V' x|| / (max(n, nrhs) ||x|| eps), 0 for minimum norm."""
    if x.size == 0 or not x.any():
        return 0.0
    x = unit(x)
    return one_norm(x - V @ (V.T @ x)) / (max(x.shape) * one_norm(x) * eps)


def test_ratios(problem: LeastSquares, x: np.ndarray) -> dict[str, float]:
    """The tests that DDRVLS applies to this kind of problem. inf for an x that is not finite."""
    eps = roundoff(problem.a.dtype)
    a, b, x = (v.astype(np.float64) for v in (problem.a, problem.b, x))
    m, n = a.shape
    names = ["row space"] + ["DQRT14"] * (n > m) + ["DQRT16"] * problem.consistent
    names += ["DQRT17"] * (m > n or not problem.consistent)
    if not np.isfinite(x).all():
        return dict.fromkeys(names, np.inf)
    zero_residual = problem.consistent or problem.V.shape[1] == m
    ratios = {
        "row space": lambda: row_space(problem.V, x, eps),
        "DQRT14": lambda: dqrt14(a, x, eps),
        "DQRT16": lambda: dqrt16(a, x, b, eps),
        "DQRT17": lambda: dqrt17(a, x, b, zero_residual, eps),
    }
    return {name: ratios[name]() for name in names}


Solver = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def eagle_solver(schedule="optimal") -> Solver:
    """(stacked a, stacked b) -> (stacked x, statuses), by one vmapped call."""

    def solve(a, b):
        x, status, _ = jax.jit(jax.vmap(lambda a, b: eagle_jax.lstsq(a, b, schedule=schedule)))(a, b)
        return np.asarray(x), np.asarray(status)

    return solve


def numpy_solver(a, b):
    """The same for numpy's SVD (LAPACK's gelsd), with the rank cut-off that the library uses."""
    rcond = float(np.finfo(a.dtype).eps) * max(a.shape[1:])  # numpy itself works, and cuts off, in float64
    x = [
        np.linalg.lstsq(u, v, rcond=rcond)[0] if u.size else np.zeros((u.shape[1], v.shape[1]))
        for u, v in zip(a, b, strict=True)
    ]
    return np.stack(x).astype(a.dtype), np.zeros(len(x), int)


def lapack_rows(solver: Solver, shapes, nrhs=NRHS, dtypes=DTYPES, seeds: int = 1) -> Iterator[dict]:
    """One row per problem: its description, its status and its test ratios."""
    for dtype, (m, n), p in common.track(itertools.product(dtypes, shapes, nrhs), "LAPACK's grid"):
        problems = make_problems(m, n, p, dtype, seeds)
        x, status = solver(np.stack([q.a for q in problems]), np.stack([q.b for q in problems]))
        for q, x_q, status_q in zip(problems, x, status, strict=True):
            yield {
                **{"m": m, "n": n, "nrhs": p, "dtype": dtype, "rank": q.rank, "scale": q.scale},
                **{"consistent": q.consistent, "seed": q.seed, "status": Status(int(status_q)).name},
                "ratios": test_ratios(q, x_q),
            }


def failures(rows, tests=LAPACK_TESTS) -> list[dict]:
    """Rows with a ratio of 30 or more, or without convergence."""

    def passed(row):
        return row["status"] == Status.CONVERGED.name and all(row["ratios"].get(t, 0) < THRESHOLD for t in tests)

    return [row for row in rows if not passed(row)]


def lapack_table(rows: list[dict]) -> str:
    """Largest ratio by dtype, rank, scaling and test."""
    lines = [
        f"{'dtype':8} {'rank':5} {'scale':7}" + "".join(f"{t:>11}" for t in TESTS) + f"{'problems':>10}{'failed':>8}"
    ]
    for dtype in DTYPES:
        for rank in RANKS:
            for scale in SCALES:
                chosen = [r for r in rows if (r["dtype"], r["rank"], r["scale"]) == (dtype, rank, scale)]
                if not chosen:
                    continue
                worst = [max((r["ratios"].get(t, 0.0) for r in chosen), default=0.0) for t in TESTS]
                cells = "".join(f"{w:11.3g}" for w in worst)
                unconverged = sum(r["status"] != Status.CONVERGED.name for r in chosen)
                lines.append(f"{dtype:8} {rank:5} {scale:7}{cells}{len(chosen):10}{unconverged:8}")
    return "\n".join(lines)


# NIST's data

_HALF = [759, -2048, 2048, -2048, 2523, -2048, 2048, -2048, 1838, -2048]
WAMPLER_NOISE = np.array([*_HALF, 2048, *_HALF[::-1]], float)
LONGLEY = [-3482258.63459582, 15.0618722713733, -0.0358191792925910, -2.02022980381683]
LONGLEY += [-1.03322686717359, -0.0511041056535807, 1829.15146461355]
NORRIS = [-0.262323073774029, 1.00211681802045]
CERTIFIED_DIGITS = 15.0


class Regression(NamedTuple):
    """Columns X, data y, certified coefficients, and the rank cut-off to use (None: the solver's own)."""

    name: str
    X: np.ndarray
    y: np.ndarray
    certified: np.ndarray
    rcond: float | None = None


def polynomial(x: np.ndarray, degree: int) -> np.ndarray:
    return np.vander(x, degree + 1, increasing=True)


def wampler(which: int) -> Regression:
    """Degree 5 at 0..20. 1: coefficients 1; 2: 10^-i; 3, 4, 5: 1 with a residual times 1, 100, 1e4."""
    x = np.arange(21.0)
    certified = 10.0 ** -np.arange(6) if which == 2 else np.ones(6)
    powers = polynomial(x, 5)
    # The first is a sum of integers and exact; NIST prints the second to 5 decimals, which is exact as well.
    y = np.round(powers @ certified, 5)
    if which > 2:
        y = y + 100.0 ** (which - 3) * WAMPLER_NOISE
    return Regression(f"Wampler{which}", powers, y, certified)


def norris() -> Regression:
    """Ships with scipy's tests: y and x from line 61."""
    import scipy.stats

    path = pathlib.Path(scipy.stats.__file__).parent / "tests/data/nist_linregress/Norris.dat"
    y, x = np.loadtxt(path, skiprows=60).T
    return Regression("Norris", polynomial(x, 1), y, np.array(NORRIS))


def longley() -> Regression:
    from statsmodels.datasets import longley as data

    table = np.asarray(data.load().data, float)
    return Regression("Longley", np.c_[np.ones(len(table)), table[:, 1:]], table[:, 0], np.array(LONGLEY))


def filip(data_dir: str) -> Regression:
    """Degree 10, kappa 1.8e15: full rank, but only for a cut-off below eps."""
    folder = pathlib.Path(data_dir) / "nist"
    data = np.genfromtxt(folder / "filip.csv", delimiter=",", names=True)
    certified = np.genfromtxt(folder / "filip_coefficients.csv", delimiter=",", skip_header=1)[:, -1]
    return Regression("Filip", polynomial(data["x"], 10), data["y"], certified, rcond=2.0**-56)


def regressions(data_dir: str | None = None) -> Iterator[Regression]:
    """What is available: Norris needs scipy's test data, Longley statsmodels, Filip `data_dir`."""
    for name, load in {"Norris": norris, "Longley": longley}.items():
        try:
            yield load()
        except (ImportError, OSError) as error:
            logging.warning("%s left out: %s", name, error)
    yield from map(wampler, range(1, 6))
    if data_dir:
        yield filip(data_dir)


def qr_solve(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    Q, R = np.linalg.qr(X)
    return scipy.linalg.solve_triangular(R, Q.T @ y)


def digits(x, certified: np.ndarray) -> float:
    """Least log relative error over the coefficients, between 0 and the 15 digits that are certified."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lre = -np.log10(np.abs(np.asarray(x) - certified) / np.abs(certified))
    return float(np.clip(np.nan_to_num(lre.min(), nan=0.0), 0, CERTIFIED_DIGITS))


def nist_row(problem: Regression, schedules=("optimal", "paper")) -> dict:
    """Digits of each solver; needs x64."""
    X, y, certified, rcond = problem.X, problem.y, problem.certified, problem.rcond
    row: dict = {"name": problem.name}
    row["numpy"] = digits(np.linalg.lstsq(X, y, rcond=rcond)[0], certified)
    row["qr"] = digits(qr_solve(X, y), certified)
    for schedule in schedules:
        solution = eagle_jax.lstsq(X, y, schedule=schedule, rcond=rcond)
        row[schedule] = digits(solution.value, certified)
        row[f"{schedule} status"] = Status(int(solution.status)).name
    return row


def nist_table(rows: list[dict]) -> str:
    columns = ("numpy", "qr", "optimal", "paper")
    lines = [f"{'digits':10}" + "".join(f"{c:>9}" for c in columns) + "  status (optimal, paper)"]
    for row in rows:
        cells = "".join(f"{row[c]:9.1f}" for c in columns)
        lines.append(f"{row['name']:10}{cells}  {row['optimal status']}, {row['paper status']}")
    return "\n".join(lines)


# Entry point


def run(schedule: str = "optimal", data_dir: str | None = None, sizes=SIZES, nrhs=NRHS, dtypes=DTYPES) -> dict:
    """Both parts; needs x64."""
    start = time.perf_counter()
    rows = list(lapack_rows(eagle_solver(schedule), [(m, n) for m in sizes for n in sizes], nrhs, dtypes))
    nist = [nist_row(problem) for problem in regressions(data_dir)]
    failed = failures(rows)
    return {
        "schedule": schedule,
        "seconds": time.perf_counter() - start,
        "lapack": rows,
        "nist": nist,
        "lapack_failures": failed,
        "lapack_passed": not failed,
        "nist_passed": all(row["optimal"] >= row["qr"] - DIGITS_LOST for row in nist),
    }


def describe(row: dict) -> str:
    ratios = " ".join(f"{k}={v:.3g}" for k, v in row["ratios"].items())
    kind = "consistent" if row["consistent"] else "inconsistent"
    shape = f"m={row['m']} n={row['n']} nrhs={row['nrhs']} {row['dtype']}"
    return f"{shape} rank={row['rank']} scale={row['scale']} {kind} seed={row['seed']} {row['status']} {ratios}"


def main(_) -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # hundreds of shapes, each compiled for one small run
    result = run(_SCHEDULE.value, _DATA_DIR.value)
    print(lapack_table(result["lapack"]))
    for row in result["lapack_failures"][:20]:
        print("  failed:", describe(row))
    print(f"LAPACK ratios below {THRESHOLD:g}, all converged: {'PASS' if result['lapack_passed'] else 'FAIL'}\n")
    print(nist_table(result["nist"]))
    print(f"at most {DIGITS_LOST:g} digit behind QR: {'PASS' if result['nist_passed'] else 'FAIL'}")
    print(f"{result['seconds']:.0f} s")
    common.write_report(pathlib.Path(_OUT.value), result)


if __name__ == "__main__":
    _SCHEDULE = flags.DEFINE_string("schedule", "optimal", "schedule of eagle_jax.lstsq for the LAPACK part")
    _DATA_DIR = flags.DEFINE_string("data_dir", None, "folder with nist/filip.csv and nist/filip_coefficients.csv")
    _OUT = flags.DEFINE_string("out", "results/numerics.json", "where the numbers go")
    app.run(main)
