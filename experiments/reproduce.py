"""Runs every experiment behind a claim, draws the figures, judges the claims and writes the report.

    python -m experiments.reproduce --preset=quick|default|full [--out=FOLDER] [--seed=N] [--matrix_dir=FOLDER]

Items whose stored results come from the same configuration and the same source are skipped, so an interrupted
run can be resumed by the same command. "full" has the paper's 50 runs, and 10 where networks or many machines are
run. R1 needs SuiteSparse matrices in a folder. Presets write to the same folder: give a quick look its own.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

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
    page,
    ranks,
    report,
    restart,
    sketching,
    step_sizes,
    stopping,
    suitesparse,
    transfer,
)

NUMERICAL = (convergence, kappa_sweep, ranks, families, step_sizes, stopping, error_map, early_stopping, diversity)
EXPERIMENTS = (*NUMERICAL, sketching, emergence, transfer, restart, initialisation)
NAMES = ("quick", "default", "full")


def _say(text: str) -> None:
    common.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _configured(preset: str, seed: int | None, matrix_dir: str | None) -> list[tuple[Any, Any]]:
    """(experiment, its configuration) for everything that can run."""
    pairs = [(experiment, experiment.PRESETS[preset]) for experiment in EXPERIMENTS]
    if matrix_dir:
        pairs.append((suitesparse, dataclasses.replace(suitesparse.PRESETS[preset], matrix_dir=matrix_dir)))
    return pairs if seed is None else [(e, dataclasses.replace(cfg, seed=seed)) for e, cfg in pairs]


def run_all(preset: str, out: Path, seed: int | None = None, matrix_dir: str | None = None) -> None:
    """Every experiment whose results are not there yet, under one progress display."""
    pairs = _configured(preset, seed, matrix_dir)
    given = {"seed": seed, "matrix_dir": matrix_dir}
    command = f"python -m experiments.reproduce --preset={preset}"
    command += "".join(f" --{name}={value}" for name, value in given.items() if value is not None)
    with common.progress() as display:
        whole = display.add_task("experiments", total=len(pairs))
        for i, (experiment, cfg) in enumerate(pairs, 1):
            label = f"[{i}/{len(pairs)}] {experiment.ITEM}"
            if common.is_current(out, experiment.ITEM, cfg):
                _say(f"{label}: stored results are current")
            else:
                _say(f"{label}: running")
                wall = common.run_and_save(out, experiment.ITEM, experiment.run, cfg, command)
                _say(f"{label}: {wall:.0f} s")
            display.advance(whole)


def conclude(out: Path) -> list[Path]:
    """Figures, verdicts and the page, from what is stored; the files written."""
    figures = report.draw_all(out)
    path, records = claims.write(out)
    claims.print_table(records)
    return [page.write(out), path, *figures]


def reproduce(preset: str, out: Path, seed: int | None = None, matrix_dir: str | None = None) -> None:
    start = time.perf_counter()
    try:
        run_all(preset, out, seed, matrix_dir)
    except KeyboardInterrupt:
        _say(f"interrupted; finished experiments are kept in {out}, and the same command goes on from there")
        raise SystemExit(130) from None
    html, path, *figures = conclude(out)
    _say(f"{(time.perf_counter() - start) / 60:.1f} min; {path}, {len(figures)} figures in {out / 'figures'}")
    _say(f"report: {html.resolve()}")


def main() -> None:
    common.define_out_flag()
    flags.DEFINE_enum("preset", "default", NAMES, "How much to run.")
    flags.DEFINE_integer("seed", None, "Replaces the seed of every experiment.")
    suitesparse.define_flag()

    def run(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"unknown arguments {argv[1:]}")
        jax.config.update("jax_enable_x64", True)
        reproduce(flags.FLAGS.preset, Path(flags.FLAGS.out), flags.FLAGS.seed, flags.FLAGS.matrix_dir)

    common.show_in_help()
    app.run(run)


if __name__ == "__main__":
    main()
