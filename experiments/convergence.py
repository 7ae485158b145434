"""N1, N5: error against iteration, its order, and the estimation form.

    python -m experiments.convergence

Paper: n = d = 240, kappa = 1e2, 50 runs; "log-log slope about 2" (quadratic convergence); the estimation form
"recovers the same second order convergence", W_l C = D_l. No numbers beyond the slope.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import eagle_jax
from eagle_jax import problems
from experiments import common

ITEM = "convergence"
# The order is read off between these two relative errors: above, the linear phase; below, rounding.
QUADRATIC_FROM, QUADRATIC_TO = 3e-2, 1e-13


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 240
    kappa: float = 1e2
    steps: int = 24
    first_order_steps: int = 1000
    runs: int = 50
    seed: int = 0


PRESETS = {
    "quick": Config(runs=3, first_order_steps=500),
    "default": Config(runs=10),
    "full": Config(),
}


@partial(jax.jit, static_argnums=1)
def estimation_history(problem: problems.Problem, steps: int):
    """W after each step of the estimation form, in the paper's own scaling: rho_l = 1/||A_l||^2."""
    A, B, _, D = problem
    rho = 1 / jnp.linalg.norm(A, 2) ** 2

    def step(carry, _):
        A, B, W, rho = carry
        A, B, W = eagle_jax.update_estimate(A, B, W, rho, *eagle_jax.PAPER[:2])
        # eta = 1/3 makes ||A'||^2 = (4/9) ||A||^2 exactly
        return (A, B, W, rho * 9 / 4), W

    start = (A, B, jnp.zeros((D.shape[0], A.shape[0]), A.dtype), rho)
    return jax.lax.scan(step, start, length=steps)[1]


def fitted_order(errors: np.ndarray) -> float:
    """Slope of log e_(l+1) against log e_l in the quadratic phase; NaN with fewer than two pairs there."""
    now, then = errors[:-1], errors[1:]
    keep = (now <= QUADRATIC_FROM) & (then >= QUADRATIC_TO)
    # the phase begins where the error starts to fall by more than a factor of five a step
    keep &= then < now / 5
    if keep.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(now[keep]), np.log(then[keep]), 1)[0])


def run(cfg: Config) -> common.Results:
    def measure(problem):
        _, _, C, D = problem
        eagle = common.paper_history(problem, cfg.steps)
        by_estimate = estimation_history(problem, cfg.steps) @ C
        gap = jnp.max(jnp.abs(by_estimate - eagle))
        gd = common.gd_history(problem, cfg.first_order_steps)
        cg = common.cg_history(problem, cfg.first_order_steps)
        return {
            "eagle": common.relative_errors(eagle, D),
            "estimation": common.relative_errors(by_estimate, D),
            "estimation_gap": gap,
            "estimation_gap_relative": gap / jnp.linalg.norm(D),
            "gd": common.relative_errors(gd, D),
            "cg": common.relative_errors(cg, D),
        }

    build = partial(problems.conditioned, n=cfg.n, d=cfg.n, kappa=cfg.kappa)
    results = common.over_runs(build, measure, cfg.seed, cfg.runs, "N1, N5 convergence")
    results["order"] = np.array([fitted_order(errors) for errors in results["eagle"]])
    results["order_estimation"] = np.array([fitted_order(errors) for errors in results["estimation"]])
    return results


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
