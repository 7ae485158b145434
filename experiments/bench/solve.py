"""Time of the default solver over that of jnp.linalg.lstsq, for every shape, kappa, rank and right-hand side.

    python -m experiments.bench.solve                        (about 25 minutes on 2 cores)
    python -m experiments.bench.solve --shape=240x240,1000x1000 --rounds=5
    python -m experiments.bench.solve --matrix_dir=DIR       (Matrix Market files of up to 2100 rows as well)

Every shape that is done is stored with its provenance, and a run of other shapes adds to it: the tables are of all that
is stored.

All methods of a problem run in turn, again and again; ratios are medians over the rounds of the time over that of
jnp.linalg.lstsq in the same round, so that a busy machine disturbs all of them alike. Errors are relative to gelsd's
answer. The table is sorted: where the default is slowest comes first. `products` are those of the factorisation alone.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.io
import scipy.linalg
from absl import app, flags

import eagle_jax
from experiments import common

SHAPES = (
    "240x240",
    "1000x1000",
    "240x360",
    "1000x1500",
    "500x2000",
    "256x20000",
    "256x100000",
    "2000x500",
    "1024x18x18",
    "1024x18x18 float32",
)
# Rows of the real matrices that are timed: an SVD of the next larger one takes minutes.
LEAST_REAL, MOST_REAL = 200, 2100
KAPPAS = (1e1, 1e3, 1e5, 1e8)
# The threads of a BLAS spin for a while after its last call, on the cores that the next method would use.
_PAUSE = 0.05
YARDSTICK, OURS = "jnp lstsq", "eagle_jax"
PEERS = ("gelsd", "gelsy", "lineax QR", "pivoted QR", "products")


@dataclasses.dataclass(frozen=True)
class Row:
    problem: str
    rank: int
    ratios: dict[str, float]
    milliseconds: float  # of the yardstick
    errors: dict[str, float]
    status: str


def _by_vector(solver):
    def run(A, B):
        operator = lx.MatrixLinearOperator(A.T)
        return jax.vmap(lambda b: lx.linear_solve(operator, b, solver, throw=False).value)(B)

    return run


def _pivoted_qr(A, B):
    """The basic solution of rank-deficient problems; QR with column pivoting as jax.scipy has it."""
    Q, R, order = jax.scipy.linalg.qr(A.T, mode="economic", pivoting=True)
    rank = jnp.sum(jnp.abs(jnp.diagonal(R)) > jnp.abs(R[0, 0]) * max(A.shape) * jnp.finfo(A.dtype).eps)
    k = R.shape[0]
    kept = jnp.arange(k) < rank
    R = jnp.where(kept[:, None] & kept, R[:, :k], jnp.eye(k, dtype=R.dtype))
    X = jax.scipy.linalg.solve_triangular(R, jnp.where(kept[:, None], Q.T @ B.T, 0))
    return jnp.zeros((A.shape[0], len(B)), A.dtype).at[order[:k]].set(X).T


def _products(A, B):
    """Two clearings of each of d/48 blocks against what is there: what no implementation can go below."""
    d, n = sorted(A.shape)
    r = min(48, d)
    M = (A if A.shape[0] <= A.shape[1] else A.T)[:r]
    total = jnp.zeros((r, n), A.dtype)
    for width in range(r, d + 1, r):
        P = jnp.broadcast_to(M[:1], (width, n)) + total[:1]
        for _ in range(2):
            total = total + (M @ P.T) @ P
    return total[: len(B)]


@functools.cache
def competitors() -> dict:
    """(A, B) -> W for matrices that are no batch."""
    return {
        YARDSTICK: jax.jit(lambda A, B: jnp.linalg.lstsq(A.T, B.T)[0].T),
        OURS: jax.jit(lambda A, B: eagle_jax.estimate(A, B).value),
        "gelsd": lambda A, B: np.linalg.lstsq(np.asarray(A).T, np.asarray(B).T, rcond=None)[0].T,
        "gelsy": lambda A, B: _gelsy(np.asarray(A), np.asarray(B)),
        "lineax QR": jax.jit(_by_vector(lx.QR())),
        "lineax SVD": jax.jit(_by_vector(lx.SVD())),
        "pivoted QR": jax.jit(_pivoted_qr),
        "products": jax.jit(_products),
    }


def _gelsy(A, B):
    solution = scipy.linalg.lstsq(A.T, B.T, lapack_driver="gelsy")
    assert solution is not None
    return solution[0].T


@functools.cache
def batched() -> dict:
    methods = {name: f for name, f in competitors().items() if name not in ("gelsd", "gelsy", "products")}
    return {name: jax.jit(jax.vmap(f)) for name, f in methods.items()}


def made(rng, d: int, n: int, kappa: float, rank: int) -> np.ndarray:
    U, V = (np.linalg.qr(rng.standard_normal((m, rank)))[0] for m in (d, n))
    return (U * np.geomspace(1, 1 / kappa, rank)) @ V.T


def race(problem: str, methods: dict, A, B, rounds: int, solution) -> Row:
    answers, times = {}, {}
    for name, f in methods.items():
        try:
            answers[name] = np.asarray(jax.block_until_ready(f(A, B)), np.float64)
        except Exception as error:  # some refuse some shapes
            print(f"{problem}: {name} gives no answer ({type(error).__name__})")
    for _ in range(rounds):
        for name in answers:
            time.sleep(_PAUSE)
            start = time.perf_counter()
            jax.block_until_ready(methods[name](A, B))
            times.setdefault(name, []).append(time.perf_counter() - start)
    base = np.array(times[YARDSTICK])
    reference = answers.get("gelsd", answers[YARDSTICK])
    errors = {
        n: float(np.linalg.norm(a - reference) / np.linalg.norm(reference))
        for n, a in answers.items()
        if n != "products"
    }
    ratios = {n: float(np.median(np.array(t) / base)) for n, t in times.items()}
    status = np.unique(np.asarray(solution.status))
    names = "/".join(eagle_jax.Status(int(s)).name for s in status)
    return Row(problem, int(np.max(solution.stats.rank)), ratios, 1e3 * float(np.median(base)), errors, names)


def rows(shapes, rounds: int):
    for shape, kappa, full, consistent in itertools.product(shapes, KAPPAS, (True, False), (True, False)):
        size, _, dtype = str(shape).partition(" ")
        *lanes, d, n = map(int, size.split("x"))
        rng, dtype = np.random.default_rng(0), dtype or "float64"
        rank = min(d, n) if full else min(d, n) // 2
        build = functools.partial(made, rng, d, n, kappa, rank)
        A = np.stack([build() for _ in range(lanes[0])]) if lanes else build()
        B = rng.standard_normal((*A.shape[:-2], 2, d)) @ A if consistent else rng.standard_normal((*A.shape[:-2], 2, n))
        A, B = jnp.asarray(A, dtype), jnp.asarray(B, dtype)
        name = f"{shape}, kappa {kappa:.0e}, {'full' if full else 'half'} rank, "
        name += "B = W A" if consistent else "general"
        yield race(name, batched() if lanes else competitors(), A, B, rounds, eagle_jax.estimate(A, B))


def real_rows(folder: pathlib.Path, rounds: int):
    for path in sorted(folder.glob("*.mtx")):
        A = np.asarray(scipy.io.mmread(path).toarray(), float)  # pyright: ignore[reportAttributeAccessIssue]
        A = A if A.shape[0] <= A.shape[1] else A.T
        if not LEAST_REAL <= len(A) <= MOST_REAL:
            continue
        B = np.random.default_rng(0).standard_normal((2, A.shape[1]))
        A, B = jnp.asarray(A), jnp.asarray(B)
        name = f"{path.stem} {A.shape[0]}x{A.shape[1]}, general"
        yield race(name, competitors(), A, B, rounds, eagle_jax.estimate(A, B))


def first_calls(shapes=((240, 240), (1000, 1000))) -> list[dict]:
    """Seconds to trace and compile, lines of the lowered program, and memory beside the arguments over theirs."""
    found = []
    for d, n in shapes:
        arguments = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((d, n), (2, n))]
        row: dict = {"shape": f"{d}x{n}"}
        for name in (YARDSTICK, OURS):
            start = time.perf_counter()
            lowered = competitors.__wrapped__()[name].lower(*arguments)  # fresh, so that nothing is compiled yet
            compiled = lowered.compile()
            row[f"{name} s"] = time.perf_counter() - start
            row[f"{name} lines"] = len(lowered.as_text().splitlines())
            memory = compiled.memory_analysis()
            used = memory.temp_size_in_bytes + memory.output_size_in_bytes
            row[f"{name} memory"] = used / memory.argument_size_in_bytes
        found.append(row)
    return found


def describe(row: Row) -> str:
    others = "  ".join(f"{name} {ratio:.2f}" for name, ratio in row.ratios.items() if name not in (YARDSTICK, OURS))
    return (
        f"{row.ratios[OURS]:6.2f}  {row.problem:52s} rank {row.rank:5d} {row.status:10s} error {row.errors[OURS]:.0e}  "
        f"({YARDSTICK} {row.milliseconds:.1f} ms; {others})"
    )


def summary(found: list[Row]) -> str:
    """A line a shape: the least and the largest ratio over condition numbers and right-hand sides."""
    lines = [
        f"| time over {YARDSTICK}'s | full rank | half rank | {' | '.join(PEERS)} |",
        "|---" * (3 + len(PEERS)) + "|",
    ]
    for shape, rows in itertools.groupby(found, lambda row: row.problem.partition(",")[0]):
        group = list(rows)
        full, half = ([r for r in group if f"{word} rank" in r.problem] for word in ("full", "half"))
        cells = [_range(full or group, OURS), _range(half, OURS), *(_range(group, peer) for peer in PEERS)]
        lines.append(f"| {shape} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(rows: list[Row], method: str) -> str:
    ratios = [row.ratios[method] for row in rows if method in row.ratios]
    if not ratios:
        return "-"
    least, most = (f"{x:.2g}" for x in (min(ratios), max(ratios)))
    return least if least == most else f"{least} to {most}"


def main(argv):
    common.begin(argv)
    jax.config.update("jax_enable_x64", True)
    shapes = SHAPES if _SHAPE.value is None else tuple(_SHAPE.value)
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown:
        raise app.UsageError(f"--shape={','.join(unknown)}; expected some of {', '.join(SHAPES)}")
    path = pathlib.Path(_OUT.value) / "bench_solve.json"
    stored = json.loads(path.read_text())["by_shape"] if path.exists() else {}
    work = {shape: rows([shape], _ROUNDS.value) for shape in shapes}
    if _MATRIX_DIR.value is not None:
        work["real matrices"] = real_rows(pathlib.Path(_MATRIX_DIR.value), _ROUNDS.value)
    for shape, races in work.items():
        found = []
        for row in races:
            found.append(dataclasses.asdict(row))
            print(describe(row), flush=True)
        stored[shape] = {"rows": found, "provenance": common.provenance()}
        common.write_report(path, {"by_shape": stored})
    order = [*SHAPES, "real matrices"]
    everything = [Row(**row) for shape in order if shape in stored for row in stored[shape]["rows"]]
    print("\nslowest first\n" + "\n".join(map(describe, sorted(everything, key=lambda r: -r.ratios[OURS]))))
    print("\n" + summary(everything) + "\n")
    compiled = first_calls()
    for row in compiled:
        print(", ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    common.write_report(path, {"by_shape": stored, "first_calls": compiled})


if __name__ == "__main__":
    _SHAPE = flags.DEFINE_list("shape", None, f"some of {', '.join(SHAPES)}")
    _MATRIX_DIR = flags.DEFINE_string("matrix_dir", None, "folder of .mtx files")
    _ROUNDS = flags.DEFINE_integer("rounds", 5, "how often each method is run")
    _OUT = flags.DEFINE_string("out", "results", "folder for bench_solve.json")
    app.run(main)
