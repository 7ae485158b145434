"""One command: it goes on where it stopped, shows one display, and ends with verdicts and a report."""

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from rich.console import Console

from experiments import common, estimate, reproduce, stopping, suitesparse
from tests.helpers import stopping_results


class Interrupted:
    """Stands for an experiment: stored results on the second attempt, Ctrl-C on the first."""

    ITEM = "convergence"
    PRESETS = {"quick": stopping.Config(runs=3)}  # noqa: RUF012

    def __init__(self):
        self.attempts = 0

    def run(self, cfg):
        self.attempts += 1
        if self.attempts == 1:
            raise KeyboardInterrupt
        return {"x": float(cfg.runs)}


@pytest.fixture
def experiments(monkeypatch):
    """A quick experiment, and one that is interrupted once."""
    calls = []

    def run(cfg):
        calls.append(cfg)
        return stopping_results()

    quick = types.SimpleNamespace(ITEM="stopping", PRESETS={"quick": stopping.Config(runs=2)}, run=run)
    monkeypatch.setattr(reproduce, "EXPERIMENTS", (quick, Interrupted()))
    monkeypatch.setattr(reproduce.report, "FIGURES", {"n10_stopping": reproduce.report.FIGURES["n10_stopping"]})
    return calls


def test_an_interrupted_run_goes_on_and_ends_with_the_report(experiments, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce("quick", tmp_path)
    assert "same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    reproduce.reproduce("quick", tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    assert len(experiments) == 1 and "[1/2] stopping: stored results are current" in said
    assert ": convergence " in said and "N10" in said and "refuted" in said and "report.html" in said
    assert (tmp_path / "report.html").stat().st_size > 10_000 and (tmp_path / "claims.json").exists()


def test_a_failed_experiment_costs_only_itself(experiments, tmp_path, capsys, monkeypatch):
    def fail(cfg):
        raise ValueError("a word on the cause")

    broken = types.SimpleNamespace(ITEM="convergence", PRESETS=Interrupted.PRESETS, run=fail)
    monkeypatch.setattr(reproduce, "EXPERIMENTS", (broken, reproduce.EXPERIMENTS[0]))
    with pytest.raises(SystemExit, match="convergence"):
        reproduce.reproduce("quick", tmp_path)
    said = capsys.readouterr().err
    assert "a word on the cause" in said and "[1/2] convergence: failed" in said and len(experiments) == 1
    assert (tmp_path / "report.html").exists() and common.stored(tmp_path, "stopping")


@pytest.mark.slow
def test_side_by_side_in_processes_of_their_own(experiments, tmp_path, capsys, monkeypatch):
    cfg = stopping.Config(gapped_n=12, kahan_n=12, runs=2)
    real = types.SimpleNamespace(ITEM="stopping", PRESETS={"quick": cfg}, run=stopping.run)
    monkeypatch.setattr(reproduce, "EXPERIMENTS", (real,))
    reproduce.reproduce("quick", tmp_path, jobs=2)
    assert "side by side: [1/1] stopping" in capsys.readouterr().err
    assert common.is_current(tmp_path, "stopping", cfg) and (tmp_path / "figures" / "n10_stopping.pdf").exists()


def test_a_seed_and_a_folder_reach_the_configurations(tmp_path):
    (tmp_path / "a.mtx").touch()
    pairs = reproduce._configured("quick", 7, str(tmp_path))
    assert {cfg.seed for _, cfg in pairs} == {7}
    assert pairs[0][0] is suitesparse and pairs[0][1].matrices[0].startswith("a, ")
    assert suitesparse not in [experiment for experiment, _ in reproduce._configured("quick", None, None)]


def test_loops_inside_are_lines_of_the_same_display(monkeypatch):
    monkeypatch.setattr(common, "console", Console(force_terminal=True, width=100))
    with common.progress() as display:
        whole = display.add_task("experiments", total=2)
        lines = []
        for _ in common.track(range(2), "outer"):
            for _ in common.track(range(3), "inner"):
                lines.append([task.description for task in display.tasks])
            display.advance(whole)
        assert lines == [["experiments", "outer", "inner"]] * 6
        assert [task.description for task in display.tasks] == ["experiments"] and display.finished
    assert list(common.track(range(3), "alone")) == [0, 1, 2]


def test_progress_is_seen_without_a_terminal(monkeypatch, capsys):
    assert list(common.track("abc", "quick")) == list("abc") and capsys.readouterr().err == ""
    monkeypatch.setattr(common, "SECONDS_BETWEEN_LINES", 0)
    assert list(common.track("abc", "slow")) == list("abc")
    assert capsys.readouterr().err.splitlines() == [f"slow: {i} of 3" for i in range(3)]


WAIT = """
import time
from experiments import reproduce
if __name__ == "__main__":
    with reproduce._processes(2, True) as pool:
        print(pool.submit(reproduce.os.getpid).result(), flush=True)
        time.sleep(60)
"""


@pytest.mark.slow
def test_workers_end_with_the_main_process_however_it_ends(tmp_path):
    (tmp_path / "wait.py").write_text(WAIT)
    main = subprocess.Popen([sys.executable, tmp_path / "wait.py"], stdout=subprocess.PIPE, text=True, cwd=common.ROOT)
    assert main.stdout
    worker = Path(f"/proc/{main.stdout.readline().strip()}")
    assert worker.exists()
    main.kill()
    main.wait()
    for _ in range(100):
        # a zombie has ended; nobody may be there to collect it
        if not worker.exists() or "(zombie)" in (worker / "status").read_text():
            return
        time.sleep(0.1)
    pytest.fail("the worker has outlived the main process by 10 s")


@pytest.mark.slow
@pytest.mark.parametrize(("module", "flag"), [("reproduce", "--matrix_dir"), ("ranks", "--runs")])
def test_help_lists_the_flags(module, flag):
    command = [sys.executable, "-m", f"experiments.{module}", "--help"]
    shown = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, timeout=120).stdout
    assert flag in shown and "--out" in shown


def test_estimates_grow_with_the_preset():
    known = [e for e in (*reproduce.EXPERIMENTS, suitesparse) if e.ITEM in estimate.SECONDS]
    assert len(known) == len(estimate.SECONDS)
    for experiment in known:
        quick, default, full = (estimate.SECONDS[experiment.ITEM](experiment.PRESETS[p]) for p in reproduce.NAMES)
        assert 0 < quick <= default <= full, experiment.ITEM


def test_estimates_are_scaled_to_what_this_machine_took(tmp_path):
    short, long = stopping.Config(runs=2), stopping.Config(runs=100)
    model = estimate.SECONDS["stopping"]
    other = {"convergence": Interrupted.PRESETS["quick"]}
    assert estimate.seconds({"stopping": long, "unheard_of": None}, tmp_path) == {"stopping": model(long)}
    common.save(tmp_path, "stopping", short, stopping_results(), 3 * model(short), "a command", "digest")
    assert estimate.seconds({"stopping": long}, tmp_path)["stopping"] == pytest.approx(3 * model(long), rel=1e-2)
    scaled = estimate.seconds(other, tmp_path)["convergence"]
    assert scaled == pytest.approx(3 * estimate.SECONDS["convergence"](other["convergence"]), rel=1e-2)
    about = (tmp_path / "stopping.json").read_text().replace('"runs"', '"problems"')
    (tmp_path / "stopping.json").write_text(about)  # a configuration of other code
    assert estimate.scales(tmp_path) == {}
    assert [estimate.spoken(x) for x in (30, 720, 12_600)] == ["30 s", "12 min", "3.5 h"]
