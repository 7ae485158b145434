"""E14 (ours): which algorithm emerges under which read-out sign and which initial standard deviation.

    python -m experiments.initialisation        (every shipped unconstrained network, whatever its sign and std)

The prediction is sign * D_L. Networks of other sign or std are made by

    python -m experiments.train --regime=unconstrained --sign=1 --std=0.02 --ship

and measured like all others: test error per layer, step sizes, and how far the weights are from the block form.
"""

import dataclasses

import numpy as np

from eagle_jax import pretrained
from experiments import common, emergence

ITEM = "initialisation"
NAMES = ("mse", "mse_mean", "eta_largest", "gamma_largest", "form_QK", "form_VP", "form_median")


@dataclasses.dataclass(frozen=True)
class Config:
    tasks: int = 4096
    runs: int = 10
    seed: int = 51
    models: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(pretrained.available()))


PRESETS = {"quick": Config(tasks=256, runs=1), "default": Config(tasks=1024, runs=3), "full": Config()}


def run(cfg: Config) -> common.Results:
    """One row per network; `sign` and `std` say which."""
    found = [pretrained.read(pretrained.FOLDER / f"{name}.npz") for name in cfg.models]
    plain = [r for r in found if (r.config.architecture.regime, r.config.architecture.heads) == ("unconstrained", 1)]
    runs = [r for r in plain if r.config.noise == 0 and r.config.seed < cfg.runs]
    rows = [emergence.measure(r, emergence.Config(tasks=cfg.tasks, seed=cfg.seed)) for r in common.track(runs, "E14")]
    results: common.Results = {name: np.array([row[name] for row in rows]) for name in NAMES}
    results["sign"] = np.array([r.config.architecture.sign for r in runs], int)
    results["std"] = np.array([r.config.std for r in runs], float)
    return results


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
