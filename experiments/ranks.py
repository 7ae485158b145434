"""N4, N7: rank-deficient data, at n = 240 and at n = 1920.

    python -m experiments.ranks

Paper: ranks 30, 60, 120, 240 at n = d = 240 and 240, 480, 960, 1920 at n = d = 1920: EAGLE converges at every
rank; CG "does not converge reliably when applied to low-rank matrices".

CG is the paper's own (formed A Aᵀ, no ridge). Its best and its last error are both kept: the difference is
the drift after convergence.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from eagle_jax import problems
from experiments import common

ITEM = "ranks"


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 240
    ranks: tuple[int, ...] = (30, 60, 120, 240)
    kappa: float = 1e2
    steps: int = 30
    cg_steps: int = 2000
    repeats: int = 5
    large_n: int = 1920
    large_ranks: tuple[int, ...] = (240, 480, 960, 1920)
    large_runs: int = 3
    runs: int = 50
    seed: int = 2


PRESETS = {
    "quick": Config(runs=2, repeats=1, large_n=480, large_ranks=(60, 120, 240, 480), large_runs=1, steps=24),
    "default": Config(runs=10, repeats=3, large_runs=1),
    "full": Config(),
}


def _measure(cfg: Config) -> Callable:
    def measure(problem):
        solution = common.optimal_solution(problem)
        paper, cg = common.paper_history(problem, cfg.steps), common.cg_history(problem, cfg.cg_steps)
        return {
            "paper": common.relative_errors(paper, problem.D),
            "paper_mse": common.mean_squared_errors(paper, problem.D),
            "cg": common.relative_errors(cg, problem.D),
            "cg_mse": common.mean_squared_errors(cg, problem.D),
            "optimal": common.relative_errors(solution.value, problem.D),
            "optimal_status": solution.status,
            "optimal_steps": solution.stats.steps,
        }

    return measure


def _seconds(problem: problems.Problem, steps: int, repeats: int) -> np.ndarray:
    functions = {
        "paper": lambda p: common.paper_history(p, max(steps, 1)),
        "optimal": common.optimal_solution,
        "lstsq": common.direct_solution,
    }
    return np.array(list(common.interleaved_seconds(functions, problem, repeats).values()))


def _sweep(cfg: Config, n: int, ranks: tuple[int, ...], runs: int, prefix: str) -> common.Results:
    rows, measure = [], _measure(cfg)
    for rank in ranks:
        build = jax.jit(partial(problems.conditioned, n=n, d=n, kappa=cfg.kappa, rank=rank))
        row = common.over_runs(build, measure, cfg.seed, runs, f"N4, N7 n={n} rank={rank}")
        for name in ("paper", "cg"):
            row[f"{name}_steps"] = common.first_below(row.pop(f"{name}_mse"), common.TARGET_MSE)
        if n == cfg.n:
            timed = build(common.keys(cfg.seed, runs)[0])
            row["seconds"] = _seconds(timed, int(row["paper_steps"][0]), cfg.repeats)
        rows.append(row)
    results = {f"{prefix}_{name}": np.stack([row[name] for row in rows]) for name in rows[0]}
    return results | {f"{prefix}_n": np.array(n), f"{prefix}_ranks": np.array(ranks)}


def run(cfg: Config) -> common.Results:
    small = _sweep(cfg, cfg.n, cfg.ranks, cfg.runs, "small")
    large = _sweep(cfg, cfg.large_n, cfg.large_ranks, cfg.large_runs, "large")
    return small | large | {"timed": np.array(["paper", "optimal", "lstsq"])}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
