"""D1-D6: distributed EAGLE, its rounds of communication against the number of machines and their diversity.

    python -m experiments.diversity

Paper: error 1e-2 in at most 15 rounds, whatever M is (d = n = 1000, kappa_max = 1e3, alpha about 1); rounds grow like
1/alpha (M = 3, alpha = 1, 1/1.2, 1/2.8, 1/85); GD needs 10-100x more; (d + d') n' floats a round; freezing A and B
takes less time (alpha about 0.1); "CG is unavailable".

alpha is the ratio of the mean projector's smallest positive eigenvalue to its largest, the only reading that allows the
paper's values at M = 3 (`problems.distributed`). A round is one collective sum of a thin block.
"""

import dataclasses
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

import eagle_jax
from eagle_jax import baselines, problems
from eagle_jax.distributed import iterates_workers
from eagle_jax.solution import Method
from experiments import common

ITEM = "diversity"
TARGET = 1e-6
METHODS = ("averaging", "krylov", "cg", "gd")
_AXIS = "machines"
_SHOWN = 400  # rounds in the figure


@dataclasses.dataclass(frozen=True)
class Config:
    d: int = 240
    n: int = 80
    machines: int = 3
    kappa_max: float = 1e3
    alphas: tuple[float, ...] = (1.0, 1 / 1.2, 1 / 2.8, 1 / 85)
    caps: tuple[int, ...] = (3_000, 400, 4_000, 100_000)  # rounds of METHODS
    large: int = 1000
    counts: tuple[int, ...] = (1, 3, 5, 8)
    large_rounds: int = 23
    large_runs: int = 10
    freeze_alphas: tuple[float, ...] = (1 / 2.8, 0.1, 1 / 30)
    repeats: int = 5
    runs: int = 10
    seed: int = 11


PRESETS = {
    "quick": Config(
        d=60, n=20, caps=(3_000, 200, 1_000, 3_000), large=120, counts=(1, 3), large_runs=1, repeats=2, runs=1
    ),
    "default": Config(caps=(3_000, 400, 4_000, 20_000), large_runs=3, runs=3),
    "full": Config(),
}


@partial(jax.jit, static_argnums=(1, 2))
def baseline_history(problem, name: str, steps: int):
    run = partial(baselines.DISTRIBUTED[name], axis=_AXIS, steps=steps)
    return jax.vmap(run, in_axes=(0, 0, None), axis_name=_AXIS)(*problem[:3]).history[0]


def history(problem, method: str, rounds: int):
    """D after each round."""
    if method in baselines.DISTRIBUTED:
        return baseline_history(problem, method, rounds)
    how = {"averaging": Method.AVERAGING, "krylov": Method.PROJECTOR, "preconditioned": Method.PRECONDITIONED}[method]
    return iterates_workers(*problem[:3], rounds=rounds, method=how)


def errors_of(problem, method: str, rounds: int) -> np.ndarray:
    """Relative error after each round."""
    return np.asarray(common.relative_errors(history(problem, method, rounds), problem.D))


def rounds_to(problem, method: str, cap: int, target: float = TARGET) -> int:
    """Rounds until the relative error is below the target; -1 if `cap` is not enough."""
    return int(common.first_below(errors_of(problem, method, cap), target))


def alpha_sweep(cfg: Config) -> common.Results:
    rounds = np.full((len(cfg.alphas), cfg.runs, len(METHODS)), common.NOT_REACHED)
    index, curves = np.zeros((len(cfg.alphas), cfg.runs)), []
    sizes = {"machines": cfg.machines, "d": cfg.d, "n": cfg.n, "kappa_max": cfg.kappa_max}
    for i, alpha in enumerate(cfg.alphas):
        build = jax.jit(partial(problems.distributed, **sizes, alpha=alpha, measure="ratio", dtype=jnp.float64))
        for j, key in enumerate(common.track(common.keys(cfg.seed, cfg.runs), f"D2 alpha={alpha:.3g}")):
            problem = build(key)
            index[i, j] = float(eagle_jax.diversity_index(problem.A))
            errors = [errors_of(problem, method, cap) for method, cap in zip(METHODS, cfg.caps, strict=True)]
            rounds[i, j] = [common.first_below(e, TARGET) for e in errors]
            if j == 0:
                curves.append([np.pad(e[:_SHOWN], (0, max(0, _SHOWN - len(e))), mode="edge") for e in errors])
    return {
        "alphas": np.array(cfg.alphas),
        "index": index,
        "rounds": rounds,
        "curves": np.array(curves),
        "caps": np.array(cfg.caps),
    }


def machine_sweep(cfg: Config) -> common.Results:
    errors = []
    for count in common.track(cfg.counts, "D1"):
        sizes = {"machines": count, "d": cfg.large, "n": cfg.large, "kappa_max": cfg.kappa_max, "alpha": 1.0}
        cases = (problems.distributed(k, **sizes, dtype=jnp.float64) for k in common.keys(cfg.seed, cfg.large_runs))
        errors.append([errors_of(case, "averaging", cfg.large_rounds) for case in cases])
    return {"counts": np.array(cfg.counts), "count_errors": np.array(errors), "large": np.array(cfg.large)}


def floats_per_round(cfg: Config) -> common.Results:
    """Of the paper's averaging, out of the compiled program, for several (d, d', n'); a mesh of one device will do."""
    sizes = ((cfg.d, 2, 2), (cfg.d, 2, 7), (cfg.d // 2, 5, 3))
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",), axis_types=(AxisType.Auto,))
    solve = jax.jit(partial(eagle_jax.solve_sharded, mesh=mesh, axis="x", acceleration="none"))
    sent = []
    for d, d_out, n_out in sizes:
        blocks = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((d, cfg.n), (d_out, cfg.n), (d, n_out))]
        record = eagle_jax.ledger(solve.lower(*blocks).compile())
        sent.append(sum(c.floats for c in record.loops[0]) if record.loops else 0)
    expected = [(d + d_out) * n_out for d, d_out, n_out in sizes]
    return {"floats_sizes": np.array(sizes), "floats": np.array(sent), "floats_expected": np.array(expected)}


def freezing(cfg: Config) -> common.Results:
    """Rounds (alphas x 2), seconds (alphas x 2 x repeats) and the relative difference of D; 2: not frozen, frozen."""
    rounds, seconds, gaps = [], [], []
    sizes = {"machines": cfg.machines, "d": cfg.d, "n": cfg.n, "kappa_max": 1e2, "measure": "ratio"}
    for alpha in cfg.freeze_alphas:
        problem = problems.distributed(common.keys(cfg.seed, 1)[0], **sizes, alpha=alpha, dtype=jnp.float64)
        solve = partial(eagle_jax.solve_workers, *problem[:3], rtol=1e-10)
        found = {name: jax.block_until_ready(solve(acceleration=name)) for name in ("none", "freeze")}
        times = {name: [] for name in found}
        for _ in range(cfg.repeats):
            for name in found:
                start = time.perf_counter()
                jax.block_until_ready(solve(acceleration=name))
                times[name].append(time.perf_counter() - start)
        none, frozen = (np.asarray(solution.value) for solution in found.values())
        rounds.append([int(solution.stats.rounds) for solution in found.values()])
        seconds.append(list(times.values()))
        gaps.append(np.linalg.norm(none - frozen) / np.linalg.norm(none))
    named = {"alphas": cfg.freeze_alphas, "rounds": rounds, "seconds": seconds, "gap": gaps}
    return {f"freeze_{name}": np.array(value) for name, value in named.items()}


def run(cfg: Config) -> common.Results:
    results = alpha_sweep(cfg) | machine_sweep(cfg) | floats_per_round(cfg) | freezing(cfg)
    return results | {"methods": np.array(METHODS)}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
