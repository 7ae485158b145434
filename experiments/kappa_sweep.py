"""N2, N3: iterations and time to a mean squared error of 1e-20 against the condition number.

    python -m experiments.kappa_sweep

Paper: kappa in 1e2..1e5, iterations "scaling only with log kappa", time between lstsq and CG/GD (a figure);
"about 100x fewer iterations than CG at kappa = 1e4".

Times are of one problem per kappa, each method run for exactly the steps it needs, the least of
interleaved repeats; "optimal" is `eagle_jax.solve` with its defaults, a factorisation of full accuracy without steps
to count. GD is run on one problem per kappa and stopped at `gd_cap`: not reached is reported as -1.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np

from eagle_jax import problems, theory
from experiments import common

ITEM = "kappa_sweep"
METHODS = ("paper", "optimal", "cg", "gd", "lstsq")


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 240
    kappas: tuple[float, ...] = (1e2, 1e3, 1e4, 1e5)
    paper_cap: int = 45
    cg_cap: int = 60_000
    gd_cap: int = 400_000
    repeats: int = 5
    runs: int = 50
    seed: int = 1


PRESETS = {
    "quick": Config(runs=2, cg_cap=30_000, gd_cap=3_000, repeats=3),
    "default": Config(runs=10, gd_cap=20_000),
    "full": Config(),
}


def _steps(cfg: Config, build: Callable, label: str) -> dict[str, np.ndarray]:
    """Iterations to the target for every run, and how far each method got."""

    def measure(problem):
        histories = {
            "paper": common.paper_history(problem, cfg.paper_cap),
            "cg": common.cg_history(problem, cfg.cg_cap),
            "optimal": common.optimal_solution(problem).value[None],
            "lstsq": common.direct_solution(problem)[None],
        }
        return {name: common.mean_squared_errors(history, problem.D) for name, history in histories.items()}

    errors = common.over_runs(build, measure, cfg.seed, cfg.runs, label)
    results = {f"best_{name}": e.min(-1) for name, e in errors.items()}
    results |= {f"steps_{name}": common.first_below(errors[name], common.TARGET_MSE) for name in ("paper", "cg")}
    return results


def _times(cfg: Config, problem: problems.Problem, steps: dict[str, int]) -> np.ndarray:
    """Seconds of METHODS, NaN where the target was not reached; `steps` has those that count theirs."""
    functions = {
        "paper": lambda p: common.paper_history(p, steps["paper"]),
        "optimal": common.optimal_solution,
        "cg": lambda p: common.cg_history(p, steps["cg"]),
        "gd": lambda p: common.gd_history(p, steps["gd"]),
        "lstsq": common.direct_solution,
    }
    reached = {name: f for name, f in functions.items() if steps.get(name, 1) != common.NOT_REACHED}
    seconds = common.interleaved_seconds(reached, problem, cfg.repeats)
    return np.array([seconds.get(name, math.nan) for name in METHODS])


def _one_kappa(cfg: Config, kappa: float) -> dict[str, np.ndarray]:
    build = partial(problems.conditioned, n=cfg.n, d=cfg.n, kappa=kappa)
    results = _steps(cfg, build, f"N2 kappa={kappa:.0e}")
    problem = build(common.keys(cfg.seed, cfg.runs)[0])
    gd = np.asarray(common.mean_squared_errors(common.gd_history(problem, cfg.gd_cap), problem.D))
    results["best_gd"] = gd.min()
    results["steps_gd"] = common.first_below(gd, common.TARGET_MSE)
    steps = {name: int(np.ravel(results[f"steps_{name}"])[0]) for name in ("paper", "cg", "gd")}
    results["seconds"] = _times(cfg, problem, steps)
    # The recursion is for kappa(E_l) - 1, which is about the relative error of D once it is small.
    size = float(jnp.sqrt(jnp.mean(problem.D**2)))
    eps = common.TARGET_MSE**0.5 / size
    results["theory_exact"] = np.array(theory.steps_exact(kappa**2, eps))
    results["theory_lower"] = np.array(theory.steps_lower_bound(kappa**2, eps))
    return results


def slope_per_log_kappa(kappas: np.ndarray, steps: np.ndarray) -> float:
    """Steps per unit of ln kappa, from the medians over runs (steps: kappas x runs)."""
    return float(np.polyfit(np.log(kappas), np.median(steps, axis=-1), 1)[0])


def run(cfg: Config) -> common.Results:
    rows = [_one_kappa(cfg, kappa) for kappa in cfg.kappas]
    results: common.Results = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    results["kappas"] = np.array(cfg.kappas)
    results["methods"] = np.array(METHODS)
    lstsq = results["seconds"][:, METHODS.index("lstsq")]
    results["seconds_over_lstsq"] = results["seconds"] / lstsq[:, None]
    results["slope_paper"] = slope_per_log_kappa(results["kappas"], common.nan_unless_reached(results["steps_paper"]))
    results["slope_theory"] = 2 / math.log(9 / 4)
    return results | {"cg_cap": cfg.cg_cap}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
