"""Ranks in processes of their own: the answer, and that trouble with one of them ends all of them, with a reason."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from experiments import common, distributed

CONFIG = distributed.Config(d=12, columns=101, devices_per_process=2)
PROBLEM = [f"--{name}={value}" for name, value in common.as_json(CONFIG).items()]
# What no test should come near.
ENOUGH_SECONDS = 100


@pytest.fixture(autouse=True)
def _children(monkeypatch):
    """Processes that the tests start find the package, and compile cheaply."""
    monkeypatch.chdir(common.ROOT)
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


@pytest.fixture
def run_ranks(tmp_path):
    """(flags of rank 0, flags of rank 1, ...) -> [(exit code, output), ...]; without the launcher, as on a cluster."""
    started = []

    def run(*arguments: str):
        port = distributed.free_port()
        for rank, extra in enumerate(arguments):
            flags = [*PROBLEM, f"--out={tmp_path}", *extra.split()]
            started.append(distributed.start(rank, len(arguments), port, flags))
        outputs = [process.communicate(timeout=ENOUGH_SECONDS)[0] for process in started]
        return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def run_launcher(*arguments: str):
    command = [sys.executable, "-m", "experiments.distributed", *PROBLEM, *arguments]
    launcher = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output = launcher.communicate(timeout=ENOUGH_SECONDS)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)  # with whatever it left behind
        launcher.wait()
    return launcher.returncode, output


def test_two_processes_give_the_answer_of_one(x64, cheap_compilation, tmp_path):
    code, output = run_launcher("--local=2", f"--out={tmp_path}", f"--timeout_seconds={ENOUGH_SECONDS - 10}")
    assert code == 0, output
    found = json.loads((tmp_path / "distributed.json").read_text())
    assert (found["processes"], found["devices"], found["status"]) == (2, 4, "CONVERGED")
    assert found["error"] < 1e-12
    assert "[0] status: CONVERGED" in output and "[1] rank 1 of 2: 2 devices" in output
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    alone = distributed.solve(CONFIG, mesh)
    np.testing.assert_allclose(found["value"], alone.value, rtol=1e-12)
    assert found["rounds"] == int(alone.stats.rounds)


@pytest.mark.parametrize("rank", [0, 1], ids=["coordinator", "worker"])
def test_a_killed_rank_ends_the_other(run_ranks, rank):
    endings = run_ranks(*2 * [f"--die_rank={rank} --timeout_seconds=28"])
    code, output = endings[1 - rank]
    assert endings[rank][0] == -signal.SIGKILL
    assert code != 0
    assert "another task died" in output or f"rank {1 - rank}, solving: " in output
    assert "no end after" not in output  # noticed by jax, before the watchdog


@pytest.mark.slow
def test_a_stalled_rank_trips_the_watchdog(run_ranks):
    endings = run_ranks(*2 * ["--stall_rank=1 --timeout_seconds=14"])
    barked = [
        f"rank {r}, solving: no end after --timeout_seconds=14; a rank" in out for r, (_, out) in enumerate(endings)
    ]
    assert any(barked)
    for (code, output), by_itself in zip(endings, barked, strict=True):
        # If rank 0 started first, its time is up first, and jax may end rank 1 for want of a coordinator.
        assert code == distributed.TIMED_OUT if by_itself else code != 0 and "another task died" in output


def test_different_problems_are_named(run_ranks):
    for code, output in run_ranks("--timeout_seconds=60", "--timeout_seconds=60 --d=13 --nox64"):
        assert code == distributed.DISAGREED
        assert "rank 1 has d=13, rank 0 has d=12; rank 1 has x64=False, rank 0 has x64=True" in output


def test_the_launcher_ends_the_others():
    code, output = run_launcher("--local=2", "--die_rank=1", f"--timeout_seconds={ENOUGH_SECONDS - 10}")
    assert code == 128 + signal.SIGKILL
    assert "rank 1 ended with code -9" in output and "killing the ranks that have not ended" in output
    assert "another task died" not in output  # rank 0 was not left to notice it by itself, 22 s later
