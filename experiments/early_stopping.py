"""N8: noise of standard deviation 0.01 on A, B and C: the error of D along the iteration, in the three regimes.

    python -m experiments.early_stopping

Paper: "early stopping regularises as GD does" (a figure, three regimes). D is clean, so the error first falls and
then, once an iteration fits the noise, rises: the least on the way is what stopping can reach.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from eagle_jax import problems
from experiments import common, diversity, sketching

ITEM = "early_stopping"


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 240
    kappa: float = 1e2
    sigma: float = 0.01
    machines: int = 3
    width: int = 60  # r of the sketches
    steps: int = 60
    sketched_steps: int = 1_000
    gd_steps: int = 20_000
    runs: int = 50
    seed: int = 12


PRESETS = {
    "quick": Config(n=60, width=15, runs=2, sketched_steps=300, gd_steps=4_000),
    "default": Config(runs=5, gd_steps=4_000),
    "full": Config(),
}


def build(cfg: Config, key) -> problems.Problem:
    keys = jax.random.split(key)
    clean = problems.conditioned(keys[0], n=cfg.n, d=cfg.n, kappa=cfg.kappa)
    return problems.noisy(clean, keys[1], cfg.sigma)


def spread(problem: problems.Problem, machines: int) -> problems.Problem:
    """The same data, its columns dealt to machines."""
    A, B, C, D = problem
    cut = lambda x: jnp.stack(jnp.split(x, machines, axis=1))  # noqa: E731
    return problems.Problem(cut(A), cut(B), C, D)


def measure(cfg: Config, problem: problems.Problem) -> dict:
    shared = spread(problem, cfg.machines)
    histories = {
        "centralised_paper": common.paper_history(problem, cfg.steps),
        "centralised_gd": common.gd_history(problem, cfg.gd_steps),
        "distributed_averaging": diversity.history(shared, "averaging", 10 * cfg.steps),
        "distributed_gd": diversity.history(shared, "gd", cfg.gd_steps),
        "sketched_columns": sketching.iterates("columns", problem, jax.random.key(0), cfg.width, cfg.sketched_steps),
        "sketched_sgd": sketching.iterates("sgd", problem, jax.random.key(0), cfg.width, cfg.gd_steps),
        "lstsq": common.direct_solution(problem)[None],
    }
    return {name: common.relative_errors(h, problem.D) for name, h in histories.items()}


def run(cfg: Config) -> common.Results:
    return common.over_runs(partial(build, cfg), partial(measure, cfg), cfg.seed, cfg.runs, "N8")


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
