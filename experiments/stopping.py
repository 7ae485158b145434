"""N10: is ||D_l - D_(l-1)||_F < tau a good stopping rule?

    python -m experiments.stopping

Paper: "a simple ||D_l - D_(l-1)||_F < tau stopping rule suffices in practice" (no tau is given). Two
matrices that contradict it: singular values {1 (39 times), 1e-8}, and Kahan(60). tau is relative to ||D_l||_F
here. W and C are Gaussian, B = W A, D = W C, so that no direction of A is unimportant.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax import problems
from experiments import common

ITEM = "stopping"
MATRICES = ("gapped", "kahan")


@dataclasses.dataclass(frozen=True)
class Config:
    gapped_n: int = 40
    kahan_n: int = 60
    steps: int = 90
    taus: tuple[float, ...] = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)
    runs: int = 50
    seed: int = 5


PRESETS = {"quick": Config(runs=3), "default": Config(runs=20), "full": Config()}


def _histories(cfg: Config, name: str) -> dict[str, np.ndarray]:
    A = jnp.asarray(problems.gallery(name, cfg.gapped_n if name == "gapped" else cfg.kahan_n))

    def build(key):
        key_W, key_C = jax.random.split(key)
        W = jax.random.normal(key_W, (2, A.shape[0]), A.dtype)
        C = jax.random.normal(key_C, (A.shape[0], 2), A.dtype)
        return problems.Problem(A, W @ A, C, W @ C)

    def measure(problem):
        history = common.paper_history(problem, cfg.steps)
        solution = common.optimal_solution(problem)
        return {
            "error": common.relative_errors(history, problem.D),
            # before the first step D = 0, so the first change is D_1 itself: 100 %
            "change": common.relative_errors(jnp.concatenate([0 * history[:1], history[:-1]]), history),
            "solve_error": common.relative_errors(solution.value, problem.D),
            "solve_status": solution.status,
            "solve_steps": solution.stats.steps,
        }

    return common.over_runs(build, measure, cfg.seed, cfg.runs, f"N10 {name}")


def run(cfg: Config) -> common.Results:
    rows = [_histories(cfg, name) for name in MATRICES]
    results: common.Results = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    # matrices x runs x taus
    stops = np.stack([common.first_below(results["change"], tau) for tau in cfg.taus], axis=-1)
    at_stop = np.take_along_axis(results["error"], np.maximum(stops, 1) - 1, axis=-1)
    results["stop_steps"] = stops
    results["stop_error"] = np.where(stops == common.NOT_REACHED, np.nan, at_stop)
    return results | {"taus": np.array(cfg.taus), "matrices": np.array(MATRICES)}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
