"""E15 (ours): did the network learn an algorithm or a table? Its four steps on problems it never saw.

    python -m experiments.transfer        (every shipped unconstrained seed)

Trained on 18 x 18 tasks of rank 10, decay 0.7. Here: other norms, sizes, ranks and spectra, one at a time. Four runs of
four steps each: the network itself (where the size allows), its extracted schedule as it is, the same after scaling
(A, B) to the median norm of training, and the paper's constants (eta = 1/3, gamma = 1, rho = 1/||A||²). Then many
steps: the schedule has only four, its law (eta, gamma) = (1, 1.92) over the largest norm of a batch has no end.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import eagle_jax
from eagle_jax import extraction, layered, pretrained, problems
from eagle_jax.blocks import Blocks
from eagle_jax.pretrained import Pretrained
from eagle_jax.schedules import LayerSteps
from experiments import common, emergence

ITEM = "transfer"
METHODS = ("network", "schedule", "scaled", "paper")
SWEEPS = {
    "factor": (0.125, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0),
    "n": (6, 9, 18, 36, 72, 144),
    "s": (1, 2, 4, 7, 10, 14, 18),
    "decay": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
}
USUAL = {"factor": 1.0, "n": 18, "s": 10, "decay": 0.7}
# eta = 1/3, gamma = 1 and rho = 1/||A_l||² on A of norm 1: then ||A_l||² = (4/9)^l exactly.
PAPER = LayerSteps(tuple((9 / 4) ** l / 3 for l in range(4)), tuple((9 / 4) ** l for l in range(4)))


@dataclasses.dataclass(frozen=True)
class Config:
    tasks: int = 1024
    long_n: int = 60
    long_kappa: float = 1e2
    long_steps: int = 40
    runs: int = 10
    seed: int = 41
    models: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(pretrained.available()))


PRESETS = {"quick": Config(tasks=64, runs=1), "default": Config(tasks=256, runs=2), "full": Config()}


def tasks(count: int, seed: int, factor: float, n: int, s: int, decay: float) -> Blocks:
    """Training tasks with one property changed; `factor` multiplies A and B, which leaves D as it is."""
    A, B, C, D = _tasks(common.keys(seed, count), int(n), int(s), decay)
    return Blocks(A * factor, B * factor, C, D)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _tasks(keys, n: int, s: int, decay: float) -> problems.Problem:
    return jax.vmap(partial(problems.training_task, n=n, d=n, s=s, decay=decay, dtype=jnp.float32))(keys)


def normed(blocks: Blocks, norm: float) -> Blocks:
    """Every problem scaled to ||A|| = norm; the norms by eigenvalues of A A^T, which is good enough and quick."""
    A = np.asarray(blocks.A)
    scale = (norm / np.sqrt(np.linalg.eigvalsh(A @ A.swapaxes(-1, -2))[:, -1])).astype(np.float32)[:, None, None]
    return blocks._replace(A=blocks.A * scale, B=blocks.B * scale)


@jax.jit
def all_steps(blocks: Blocks, schedule: LayerSteps) -> jax.Array:
    """D after the schedule's steps; their sizes are traced here, so that networks share a compilation."""
    return jax.vmap(lambda A, B, C: layered.states(A, B, C, schedule).D[-1])(blocks.A, blocks.B, blocks.C)


def relative(D, wanted) -> float:
    """Median over tasks of the relative error."""
    D, wanted = np.asarray(D, np.float64), np.asarray(wanted, np.float64)
    error = np.linalg.norm(D - wanted, axis=(-2, -1)) / np.linalg.norm(wanted, axis=(-2, -1))
    return float(np.median(np.where(np.isfinite(error), error, np.inf)))


def by_network(run: Pretrained, blocks: Blocks) -> float:
    architecture = run.config.architecture
    if blocks.A.shape[1:] != (architecture.d, architecture.n):
        return np.nan
    return relative(architecture.predict(run.weights, architecture.tokens(blocks)), blocks.D)


def sweep(name: str, runs: list[Pretrained], usual_norm: float, cfg: Config) -> np.ndarray:
    """runs x values x METHODS."""
    errors = np.full((len(runs), len(SWEEPS[name]), len(METHODS)), np.nan)
    schedules = [extraction.extract(r.weights, r.config.architecture).as_schedule() for r in runs]
    for j, value in enumerate(common.track(SWEEPS[name], f"E15 {name}")):
        blocks = tasks(cfg.tasks, cfg.seed, **(USUAL | {name: value}))
        scaled, paper = normed(blocks, usual_norm), relative(all_steps(normed(blocks, 1.0), PAPER), blocks.D)
        for i, (one, schedule) in enumerate(zip(runs, schedules, strict=True)):
            by_schedule = (relative(all_steps(x, schedule), blocks.D) for x in (blocks, scaled))
            errors[i, j] = [by_network(one, blocks), *by_schedule, paper]
    return errors


def long_run(runs: list[Pretrained], usual_norm: float, cfg: Config) -> dict:
    """Errors per step on one well-posed problem: the four steps, then the laws they follow, the paper's constants."""
    problem = problems.conditioned(jax.random.key(cfg.seed), n=cfg.long_n, d=cfg.long_n, kappa=cfg.long_kappa)
    A, B, C, D = problem
    scale = usual_norm / jnp.linalg.norm(A, 2)
    schedule = extraction.extract(runs[0].weights, runs[0].config.architecture).as_schedule()
    curves = {"schedule": eagle_jax.trajectory(A * scale, B * scale, C, schedule=schedule).D}
    for name in ("emergent", "paper"):
        curves[name] = eagle_jax.trajectory(A, B, C, steps=cfg.long_steps, schedule=name).D
    return {f"long_{name}": np.asarray(common.relative_errors(h, D)) for name, h in curves.items()}


def run(cfg: Config) -> common.Results:
    runs = emergence.shipped(emergence.Config(runs=cfg.runs, models=cfg.models), "U")
    results: common.Results = {"methods": np.array(METHODS), "seeds": np.array([r.config.seed for r in runs], int)}
    if not runs:
        return results
    usual = tasks(cfg.tasks, cfg.seed + 1, **USUAL).A
    usual_norm = float(np.median(np.linalg.norm(np.asarray(usual), 2, axis=(-2, -1))))
    for name, values in SWEEPS.items():
        results |= {f"{name}_values": np.array(values, float), name: sweep(name, runs, usual_norm, cfg)}
    return results | {"usual_norm": usual_norm} | long_run(runs, usual_norm, cfg)


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
