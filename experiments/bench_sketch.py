"""Times of sketched steps and solves, as ratios within one run.

    python -m experiments.bench_sketch        (5 minutes)

Three tables: time of a step by r over that of the unsketched step (paper at n = 240: 21, 16, 7, 5 ms for r = n, n/2,
n/4, n/8); time to an error of 1e-2 and 1e-6 over that of the default dense solver, for EAGLE's plain and deflated
sketches, SGD and sketch-and-CG; and for a wide noisy problem, where sketch-and-precondition is at home.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import eagle_jax
from eagle_jax import Sketch, baselines, problems
from experiments import common, sketching

PARTS = (8, 4, 2, 1)


def table(title: str, columns, rows: dict[str, list]) -> None:
    print(f"\n{title}\n{'':24}" + "".join(f"{c:>12}" for c in columns))
    for name, values in rows.items():
        print(f"{name:24}" + "".join(f"{'not reached' if np.isnan(v) else f'{v:.3g}':>12}" for v in values))


def step_times(n: int) -> dict[str, list[float]]:
    """A step's time over the unsketched one, method -> widths."""
    problem = problems.conditioned(jax.random.key(0), n=n, d=n, kappa=1e2, dtype=jnp.float64)
    methods, steps = ("plain", "columns", "deflation", "sgd"), max(20, 40_000 // n)
    caps = dict.fromkeys(methods, steps)
    seconds, _ = sketching.step_seconds(problem, [n // p for p in PARTS], caps, steps, _ROUNDS.value)
    return {name: (row / seconds[0, -1]).tolist() for name, row in zip(methods, seconds, strict=True)}


def times_to_targets(n: int, kappa: float, r: int) -> dict[str, list[float]]:
    """Seconds to each error over the dense solver's seconds (which reaches rounding); NaN where it is not reached."""
    key, problem = jax.random.key(1), problems.conditioned(jax.random.key(0), n=n, d=n, kappa=kappa, dtype=jnp.float64)
    caps = {"plain": 4_000, "columns": 4_000, "deflation": 4 * n // r, "sgd": 100_000, "sketch_cg": 4_000}
    timed = caps | {"sgd": 1_000, "sketch_cg": 100}
    seconds, _ = sketching.step_seconds(problem, [r], timed, 100, _ROUNDS.value)
    dense = common.interleaved_seconds({"dense": common.optimal_solution}, problem, 3 * _ROUNDS.value)["dense"]
    found = {}
    for (method, cap), each in zip(caps.items(), seconds[:, 0], strict=True):
        errors = np.asarray(common.relative_errors(sketching.iterates(method, problem, key, r, cap), problem.D))
        rounds = common.nan_unless_reached(np.array([common.first_below(errors, t) for t in sketching.TARGETS]))
        found[method] = [*rounds.tolist(), *(rounds * each / dense).tolist()]
    return found


def wide(d: int, n: int) -> dict[str, list[float]]:
    """[error, time over jnp.linalg.lstsq] on noisy data B != W A."""
    key = jax.random.split(jax.random.key(2), 3)
    A = problems.conditioned(key[0], n=n, d=d, kappa=1e3, dtype=jnp.float64).A
    B, C = jax.random.normal(key[1], (2, n), jnp.float64), jax.random.normal(key[2], (d, 2), jnp.float64)
    sketch = Sketch(4 * d, jax.random.key(3), "columns")
    narrow = Sketch(d // 4, jax.random.key(3), "columns")
    solvers = {
        "lstsq": lambda p: baselines.direct(*p).D,
        "dense EAGLE": lambda p: eagle_jax.solve(*p).value,
        "sketched EAGLE": lambda p: eagle_jax.solve(*p, sketch=narrow).value,
        "sketch-and-precondition": lambda p: baselines.sketch_and_precondition(*p, sketch=sketch, steps=60).D,
    }
    solvers = {name: jax.jit(f) for name, f in solvers.items()}
    seconds = common.interleaved_seconds(solvers, (A, B, C), _ROUNDS.value)  # pyright: ignore[reportArgumentType]
    D = np.asarray(solvers["lstsq"]((A, B, C)))
    error = {k: np.linalg.norm(np.asarray(f((A, B, C))) - D) / np.linalg.norm(D) for k, f in solvers.items()}
    return {name: [float(error[name]), seconds[name] / seconds["lstsq"]] for name in solvers}


def main(_):
    jax.config.update("jax_enable_x64", True)
    start, result = time.perf_counter(), {}
    for n in map(int, _SIZES.value):
        result[f"step {n}"] = rows = step_times(n)
        table(f"time of a step over the unsketched one, n = d = {n}", [f"r = n/{p}" for p in PARTS], rows)
    for kappa, r in ((1e2, 60), (1e4, 60)):
        result[f"targets {kappa:.0e}"] = rows = times_to_targets(240, kappa, r)
        columns = ["rounds 1e-2", "rounds 1e-6", "time 1e-2", "time 1e-6"]
        table(f"n = d = 240, r = {r}, kappa = {kappa:.0e}; time over the dense solver", columns, rows)
        gains = {m: rows["sgd"][2] / rows[m][2] for m in ("plain", "columns", "deflation")}
        print("SGD's time to 1e-2 over that of " + ", ".join(f"{m}: {gain:.1f}" for m, gain in gains.items()))
    result["wide"] = rows = wide(200, 20_000)
    table("noisy, d = 200, n = 20000, kappa = 1e3", ["error", "time/lstsq"], rows)
    print(f"\n{time.perf_counter() - start:.0f} s")
    common.write_report(Path(_OUT.value) / "bench_sketch.json", result)


if __name__ == "__main__":
    _ROUNDS = flags.DEFINE_integer("rounds", 5, "repetitions; the least time counts")
    _SIZES = flags.DEFINE_list("sizes", ["240", "960"], "n = d of the step times")
    _OUT = flags.DEFINE_string("out", "results", "folder for bench_sketch.json")
    app.run(main)
