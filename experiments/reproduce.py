"""Runs every experiment, draws the figures and judges the claims.

    python -m experiments.reproduce --preset=quick|default|full

Items whose stored results come from the same configuration and the same source are skipped, so an interrupted
run can be resumed. "full" is the paper's 50 runs.
"""

import dataclasses
import time
from pathlib import Path

import jax
from absl import app, flags

from experiments import (
    claims,
    common,
    convergence,
    diversity,
    early_stopping,
    emergence,
    error_map,
    families,
    initialisation,
    kappa_sweep,
    ranks,
    report,
    restart,
    step_sizes,
    stopping,
    transfer,
)

NUMERICAL = (convergence, kappa_sweep, ranks, families, step_sizes, stopping, error_map, early_stopping, diversity)
EXPERIMENTS = (*NUMERICAL, emergence, transfer, restart, initialisation)
NAMES = ("quick", "default", "full")


def reproduce(preset: str, out: Path, seed: int | None = None) -> None:
    start = time.perf_counter()
    for i, experiment in enumerate(EXPERIMENTS, 1):
        cfg = experiment.PRESETS[preset]
        if seed is not None:
            cfg = dataclasses.replace(cfg, seed=seed)
        label = f"[{i}/{len(EXPERIMENTS)}] {experiment.ITEM}"
        if common.is_current(out, experiment.ITEM, cfg):
            common.console.print(f"{label}: stored results are current", highlight=False, markup=False)
            continue
        common.console.print(f"{label}: running", highlight=False, markup=False)
        command = f"python -m experiments.reproduce --preset={preset}"
        wall = common.run_and_save(out, experiment.ITEM, experiment.run, cfg, command)
        common.console.print(f"{label}: {wall:.0f} s", highlight=False, markup=False)
    figures = report.draw_all(out)
    path, records = claims.write(out)
    claims.print_table(records)
    minutes = (time.perf_counter() - start) / 60
    common.console.print(f"{minutes:.1f} min; wrote {path} and {len(figures)} figures in {out / 'figures'}")


def main() -> None:
    common.define_out_flag()
    flags.DEFINE_enum("preset", "default", NAMES, "How much to run.")
    flags.DEFINE_integer("seed", None, "Replaces the seed of every experiment.")

    def run(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"unknown arguments {argv[1:]}")
        jax.config.update("jax_enable_x64", True)
        reproduce(flags.FLAGS.preset, Path(flags.FLAGS.out), flags.FLAGS.seed)

    app.run(run)


if __name__ == "__main__":
    main()
