"""N9: how much the step sizes matter, and what ties the trained network's steps to the paper's.

    python -m experiments.step_sizes

Paper: n = d = 15, rank 15, best error in 200 iterations; scaling eta and gamma by a common factor in
[0.2, 2], or gamma/eta by a ratio in [0.2, 2], has "minimal effect". Here rho_l = 1/||A_l||^2 is recomputed at
every step.

Headroom: the trained network ties rho to the largest ||A||^2 of its batch, so for a typical task its steps
are shorter than they look by max ||A||^2 / median ||A||^2, measured over batches of 1024 training tasks.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import eagle_jax
from eagle_jax import problems
from experiments import common

ITEM = "step_sizes"
TOLERANCE = 1e-10


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 15
    kappa: float = 1e2
    steps: int = 200
    grid: int = 41
    low: float = 0.05
    high: float = 10.0
    batch: int = 1024
    batches: int = 20
    emergent_n: int = 100
    emergent_kappas: tuple[float, ...] = (1e1, 1e2, 1e3, 1e4)
    runs: int = 50
    seed: int = 4


PRESETS = {
    "quick": Config(runs=5, grid=21, batches=3),
    "default": Config(runs=20),
    "full": Config(),
}


def error_history(problem: problems.Problem, eta, gamma, steps: int):
    """Relative error after each Update with rho = 1/||A_l||^2, (A, B) kept at ||A|| = 1."""

    def step(state: eagle_jax.State, _):
        # The largest eigenvalue of the Gram matrix is enough: ||A|| is not small.
        size = jnp.sqrt(jnp.linalg.eigvalsh(state.A @ state.A.T)[-1])
        state = eagle_jax.update(state._replace(A=state.A / size, B=state.B / size), 1.0, eta, gamma)
        return state, common.relative_errors(state.D, problem.D)

    start = eagle_jax.State(*problem[:3], jnp.zeros_like(problem.D))
    return jax.lax.scan(step, start, length=steps)[1]


@partial(jax.jit, static_argnums=3)
def grid_errors(problem: problems.Problem, etas, gammas, steps: int):
    return jax.vmap(partial(error_history, problem, steps=steps))(etas, gammas)


def _scan_grid(cfg: Config, grid: np.ndarray, name: str) -> dict[str, np.ndarray]:
    eta, gamma = eagle_jax.PAPER[:2]
    etas = jnp.asarray(eta * (grid if name == "factor" else grid**-0.5))
    gammas = jnp.asarray(gamma * (grid if name == "factor" else grid**0.5))

    errors = common.over_runs(
        partial(problems.conditioned, n=cfg.n, d=cfg.n, kappa=cfg.kappa),
        lambda problem: grid_errors(problem, etas, gammas, cfg.steps),
        cfg.seed,
        cfg.runs,
        f"N9 {name}",
    )
    best = np.nanmin(np.where(np.isfinite(errors), errors, np.inf), axis=-1)
    return {f"{name}_best": best, f"{name}_steps": common.first_below(errors, TOLERANCE)}


def _headroom(cfg: Config) -> np.ndarray:
    """max ||A||^2 / median ||A||^2 of each batch."""

    @jax.jit
    def measure(tasks):
        squares = jnp.linalg.eigvalsh(tasks.A @ jnp.swapaxes(tasks.A, 1, 2))[:, -1]
        return jnp.max(squares) / jnp.median(squares)

    def build(key):
        return jax.vmap(problems.training_task)(jax.random.split(key, cfg.batch))

    return common.over_runs(build, measure, cfg.seed, cfg.batches, "N9 headroom")


def _emergent(cfg: Config, kappa: float) -> dict[str, np.ndarray]:
    def measure(problem):
        solution = eagle_jax.solve(*problem[:3], schedule="emergent")
        return {
            "emergent_error": common.relative_errors(solution.value, problem.D),
            "emergent_steps": solution.stats.steps,
            "emergent_status": solution.status,
        }

    build = partial(problems.conditioned, n=cfg.emergent_n, d=cfg.emergent_n, kappa=kappa)
    return common.over_runs(build, measure, cfg.seed, min(cfg.runs, 5), f"N9 emergent kappa={kappa:.0e}")


def run(cfg: Config) -> common.Results:
    grid = np.geomspace(cfg.low, cfg.high, cfg.grid)
    grid = np.unique(np.concatenate([grid, [0.2, 1.0, 2.0]]))
    results: common.Results = {"grid": grid, "headroom": _headroom(cfg)}
    for name in ("factor", "ratio"):
        results |= _scan_grid(cfg, grid, name)
    rows = [_emergent(cfg, kappa) for kappa in cfg.emergent_kappas]
    results |= {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return results | {"emergent_kappas": np.array(cfg.emergent_kappas)}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
