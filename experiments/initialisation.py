"""E14 (ours): which algorithm emerges under which read-out sign and which initial standard deviation.

    python -m experiments.initialisation        (every shipped noiseless network of one head, whatever its sign and std)

The prediction is sign * D_L. Networks of other sign or std are made by

    python -m experiments.train --regime=distributed --sign=1 --std=0.1 --ship

and measured like all others: test error per layer, step sizes, how far the weights are from the block form, and how
many directions of A a layer conditions. When a direction is won or lost is seen in the stored histories:

    python -m experiments.study regime=distributed std=0.1 --every=200
"""

import dataclasses

import numpy as np

from eagle_jax import pretrained
from experiments import common, emergence, study

ITEM = "initialisation"
NAMES = ("mse", "mse_mean", "eta_largest", "gamma_largest", "form_QK", "form_VP", "form_median", "VP_rank", "kappa")
TAGS = {"unconstrained": "U", "distributed": "D", "computation_limited": "CL"}


@dataclasses.dataclass(frozen=True)
class Config:
    tasks: int = 4096
    runs: int = 3
    seed: int = 51
    models: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(pretrained.available()))
    histories: tuple[str, ...] = dataclasses.field(default_factory=lambda: study.histories())


PRESETS = {"quick": Config(tasks=256, runs=1), "default": Config(tasks=1024), "full": Config(runs=10)}


def directions(run: pretrained.Pretrained) -> int:
    """How many a layer can condition."""
    a = run.config.architecture
    return a.rank if a.regime == "computation_limited" else a.n // a.blocks


def run(cfg: Config) -> common.Results:
    """One row per network; `regime`, `sign` and `std` say which. `history_*`: spectra of training by step."""
    found = [pretrained.read(pretrained.FOLDER / f"{name}.npz") for name in cfg.models]
    plain = [r for r in found if r.config.architecture.regime in TAGS and r.config.architecture.heads == 1]
    runs = [r for r in plain if r.config.noise == 0 and r.config.seed < cfg.runs]
    rows = [emergence.measure(r, emergence.Config(tasks=cfg.tasks, seed=cfg.seed)) for r in common.track(runs, "E14")]
    results: common.Results = {name: np.array([row[name] for row in rows]) for name in NAMES}
    results["regime"] = np.array([TAGS[r.config.architecture.regime] for r in runs])
    results["sign"] = np.array([r.config.architecture.sign for r in runs], int)
    results["std"] = np.array([r.config.std for r in runs], float)
    results["directions"] = np.array([directions(r) for r in runs], int)
    for i, name in enumerate(cfg.histories):
        with np.load(study.HISTORIES / f"{name}.npz") as stored:
            results |= {f"history_{i}_{k}": stored[k] for k in ("setting", "steps", "QK", "VP")}
    return results | {"histories": len(cfg.histories)}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
