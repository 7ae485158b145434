"""Runs every experiment behind a claim, draws the figures, judges the claims and writes the report.

    python -m experiments.reproduce --preset=quick|default|full [--matrix_dir=FOLDER]     (--help has the other flags)

Items whose stored results come from the same configuration and the same source are skipped, so an interrupted
run can be resumed by the same command. Items whose wall time is a result run first and alone, the others --jobs at a
time: most of a short run is compilation, which does not fill the cores. "full" has the paper's 50 runs, and 10 where
networks or many machines are run. R1 needs SuiteSparse matrices in a folder. Results go to results/, those of the
quick preset to results/quick/. It begins with an estimate of the time (`estimate.py`).
"""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import jax
from absl import app, flags

from experiments import (
    claims,
    common,
    computation_limited,
    convergence,
    diversity,
    early_stopping,
    emergence,
    error_map,
    estimate,
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

TIMED = (kappa_sweep, ranks, diversity, sketching)  # and suitesparse, where there are matrices
NUMERICAL = (convergence, families, step_sizes, stopping, error_map, early_stopping)
EXPERIMENTS = (*TIMED, restart, emergence, computation_limited, transfer, initialisation, *NUMERICAL)
NAMES = ("quick", "default", "full")


def _say(text: str) -> None:
    common.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _configured(preset: str, seed: int | None, matrix_dir: str | None) -> list[tuple[Any, Any]]:
    """(experiment, its configuration) for everything that can run."""
    pairs = [(experiment, experiment.PRESETS[preset]) for experiment in EXPERIMENTS]
    if matrix_dir is not None:
        pairs.insert(0, (suitesparse, common.configured(suitesparse.PRESETS[preset], matrix_dir=matrix_dir)))
    return pairs if seed is None else [(e, common.configured(cfg, seed=seed)) for e, cfg in pairs]


def _expected(pairs: list[tuple[Any, Any]], out: Path, jobs: int) -> str:
    """How long that will take, the longest first."""
    waiting = {e.ITEM: cfg for e, cfg in pairs if not common.is_current(out, e.ITEM, cfg)}
    seconds = estimate.seconds(waiting, out)
    alone = {e.ITEM for e in (*TIMED, suitesparse)}
    whole = sum(s if item in alone else s / jobs for item, s in seconds.items())
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    said = ", ".join(f"{item} {estimate.spoken(seconds[item])}" for item in longest)
    unknown = ", ".join(item for item in waiting if item not in seconds)
    return f"about {estimate.spoken(whole)}: {said or 'nothing to run'}" + (f"; and {unknown}" if unknown else "")


def run_all(
    preset: str, out: Path, seed: int | None, matrix_dir: str | None, pool: Executor | None, jobs: int
) -> list[str]:
    """Every experiment whose results are not there yet, under one progress display; the names of those that failed."""
    failed = []

    def finish(label: str, item: str, seconds: Callable[[], float]) -> None:
        try:
            _say(f"{label}: {seconds():.0f} s")
        except Exception as error:  # one experiment must not cost the user the others
            failed.append(item)
            _say("".join(traceback.format_exception(error)) + f"{label}: failed; the others go on")
        display.advance(whole)

    pairs = _configured(preset, seed, matrix_dir)
    _say(_expected(pairs, out, jobs))
    given = {"seed": seed, "matrix_dir": matrix_dir}
    command = f"python -m experiments.reproduce --preset={preset}"
    command += "".join(f" --{name}={value}" for name, value in given.items() if value is not None)
    beside = []
    with common.progress() as display:
        whole = display.add_task("experiments", total=len(pairs))
        for i, (experiment, cfg) in enumerate(pairs, 1):
            label = f"[{i}/{len(pairs)}] {experiment.ITEM}"
            arguments = (out, experiment.ITEM, experiment.run, cfg, command, preset)
            if common.is_current(out, experiment.ITEM, cfg):
                _say(f"{label}: stored results are current")
                display.advance(whole)
            elif pool and experiment not in (*TIMED, suitesparse):
                beside.append((label, arguments))
            else:
                _say(f"{label}: running")
                finish(label, experiment.ITEM, partial(common.run_and_save, *arguments))
        if pool and beside:
            _say(f"side by side: {', '.join(label for label, _ in beside)}")
            futures = {pool.submit(common.run_and_save, *given): (label, given[1]) for label, given in beside}
            for future in as_completed(futures):
                finish(*futures[future], future.result)
    return failed


@contextlib.contextmanager
def _processes(jobs: int, quick: bool) -> Iterator[Executor | None]:
    """A pool of that many; one is this process."""
    if jobs == 1:
        yield None
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker, (quick,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(quick: bool) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    jax.config.update("jax_enable_x64", True)
    # Programs of a quick look run for a moment: to optimise them takes longer. Nothing is timed here.
    jax.config.update("jax_disable_most_optimizations", quick)
    common.console.quiet = True  # the display belongs to the main process


def _end_with_parent() -> None:
    """However the main process ended: by Ctrl-C it does not wait, and nobody else would stop its workers."""
    parent = parent_process()
    if parent:
        parent.join()
        os._exit(1)


def conclude(out: Path, pool: Executor | None = None) -> list[Path]:
    """Figures, verdicts and the page, from what is stored; the files written."""
    figures = report.draw_all(out, pool.map if pool else map)
    path, records = claims.write(out)
    claims.print_table(records)
    return [page.write(out), path, *figures]


def reproduce(preset: str, out: Path, seed: int | None = None, matrix_dir: str | None = None, jobs: int = 1) -> None:
    start = time.perf_counter()
    try:
        with _processes(jobs, preset == "quick") as pool:
            failed = run_all(preset, out, seed, matrix_dir, pool, jobs)
            html, path, *figures = conclude(out, pool)
    except KeyboardInterrupt:
        _say(f"interrupted; finished experiments are kept in {out}, and the same command goes on from there")
        raise
    _say(f"{(time.perf_counter() - start) / 60:.1f} min; {path}, {len(figures)} figures in {out / 'figures'}")
    _say(f"report: {html.resolve()}")
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}; their claims have older results or none")


def main() -> None:
    common.define_out_flag()
    flags.DEFINE_enum("preset", "default", NAMES, "How much to run.")
    flags.DEFINE_integer("seed", None, "Replaces the seed of every experiment.")
    flags.DEFINE_integer("jobs", min(os.cpu_count() or 1, 4), "Experiments at a time.", lower_bound=1)
    suitesparse.define_flag()

    def run(argv: list[str]) -> None:
        common.begin(argv)
        jax.config.update("jax_enable_x64", True)
        f = flags.FLAGS
        try:
            reproduce(f.preset, common.out_folder(f.preset), f.seed, f.matrix_dir, f.jobs)
        except KeyboardInterrupt:
            sys.stderr.flush()
            os._exit(130)  # XLA's threads may still be at work, and do not survive an orderly exit

    common.show_in_help()
    app.run(run)


if __name__ == "__main__":
    main()
