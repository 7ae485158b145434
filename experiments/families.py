"""N6: the six data distributions of the ablation.

    python -m experiments.families

Paper: n = d = 240, rank 240; EAGLE converges on all six (figures only, no numbers).

Only "svd" has a prescribed condition number; in the others A is cut out of a product of two random square
factors, and its condition number, stored here, is 1e4 to 1e6. The block family has rank 5.
"""

import dataclasses
from functools import partial

import numpy as np

import eagle_jax
from eagle_jax import problems
from experiments import common

ITEM = "families"


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 240
    rank: int = 240
    steps: int = 60
    cg_steps: int = 5000
    runs: int = 50
    seed: int = 3


PRESETS = {"quick": Config(runs=2, cg_steps=2000), "default": Config(runs=10), "full": Config()}


def run(cfg: Config) -> common.Results:
    def measure(problem):
        solution = common.optimal_solution(problem)
        return {
            "kappa": eagle_jax.condition_number(problem.A),
            "paper": common.relative_errors(common.paper_history(problem, cfg.steps), problem.D),
            "cg": common.relative_errors(common.cg_history(problem, cfg.cg_steps), problem.D),
            "lstsq": common.relative_errors(common.direct_solution(problem), problem.D),
            "optimal": common.relative_errors(solution.value, problem.D),
            "optimal_status": solution.status,
            "optimal_steps": solution.stats.steps,
        }

    rows = []
    for name in problems.FAMILIES:
        build = partial(problems.family, name, n=cfg.n, d=cfg.n, rank=cfg.rank)
        rows.append(common.over_runs(build, measure, cfg.seed, cfg.runs, f"N6 {name}"))
    results: common.Results = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return results | {"families": np.array(problems.FAMILIES)}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
