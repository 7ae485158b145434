"""Training: what is learned, resumed, skipped, refused, and split over devices."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import pretrained, problems, training
from eagle_jax.training import Run, TrainConfig
from eagle_jax.transformer import REGIMES, Architecture


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's Adam multiplies floats with integers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


ROOT = pathlib.Path(__file__).parent.parent
TINY = {"n": 6, "d": 4, "n_out": 1, "layers": 2, "rank": 2}


def config(regime="unconstrained", **changes) -> TrainConfig:
    architecture = Architecture(regime, **TINY, d_out=1)
    return dataclasses.replace(TrainConfig(architecture, steps=12, batch=16, factors=3), **changes)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_loss_falls(tmp_path, regime):
    run = Run(config(regime, steps=300, learning_rate=1e-2, batch=64, factors=2), tmp_path, chunk=100).fit()
    losses = run.losses()
    assert losses.shape == (300,) and run.done and run.skipped() == 0
    assert np.median(losses[-50:]) < 0.9 * np.median(losses[:20])


def test_interrupted_equals_uninterrupted_bit_for_bit(tmp_path):
    whole = Run(config(), tmp_path / "whole", chunk=4).fit(save_every=4)
    stops = iter([False, True])
    first = Run(config(), tmp_path / "parts", chunk=4).fit(stop=lambda: next(stops))
    assert first.step == 4 and not first.done
    second = Run(config(), tmp_path / "parts", chunk=4)
    assert second.step == 4
    second.advance()  # these steps are lost: no checkpoint was written
    third = Run(config(), tmp_path / "parts", chunk=4)
    assert third.step == 4
    third.fit()
    chex.assert_trees_all_equal(third.state, whole.state)
    np.testing.assert_array_equal(third.losses(), whole.losses())


def test_chunks_do_not_matter(tmp_path):
    runs = [Run(config(), tmp_path / str(chunk), chunk=chunk).fit() for chunk in (3, 12)]
    chex.assert_trees_all_equal(runs[0].state, runs[1].state)


def test_another_config_is_refused_by_name(tmp_path):
    Run(config(), tmp_path).fit()
    with pytest.raises(ValueError, match=r"another config \(noise: 0.0 there, 0.01 now\)"):
        Run(config(noise=0.01), tmp_path)
    with pytest.raises(ValueError, match=r"architecture.sign: -1 there, 1 now"):
        Run(config(architecture=dataclasses.replace(config().architecture, sign=1)), tmp_path)
    assert Run(config(steps=20), tmp_path).step == 12  # longer is allowed


def test_a_folder_that_went_further_is_refused(tmp_path):
    Run(config(), tmp_path).fit()
    with pytest.raises(ValueError, match="is at step 12, beyond steps=4"):
        Run(config(steps=4), tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "checkpoints but no config.json"),
        (lambda folder: (folder / "config.json").write_text('{"seed'), "config.json cannot be read"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), "losses of all 12 steps"),
        (lambda folder: (folder / "metrics.jsonl").write_text("{]\n"), "metrics.jsonl cannot be read"),
    ],
)
def test_a_spoilt_folder_is_refused(tmp_path, spoil, message):
    Run(config(), tmp_path).fit()
    spoil(tmp_path)
    with pytest.raises(ValueError, match=message):
        Run(config(), tmp_path)


def test_a_spoilt_checkpoint_gives_way_to_the_one_before(tmp_path):
    run = Run(config(), tmp_path, chunk=4).fit(save_every=4)
    newest = tmp_path / "checkpoints" / "12"
    for path in newest.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match="checkpoint 12 .* cannot be read"):
        again = Run(config(), tmp_path, chunk=4)
    assert again.step == 8
    chex.assert_trees_all_equal(again.fit().state, run.state)


def test_two_processes_do_not_share_a_folder(tmp_path):
    code = "import sys; from tests.test_training import Run, config; Run(config(), sys.argv[1])"
    run = Run(config(), tmp_path)
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert other.returncode != 0 and "another process trains in" in other.stderr
    assert run.fit().done


def test_a_half_written_checkpoint_is_ignored(tmp_path):
    stops = iter([False, True])
    run = Run(config(), tmp_path, chunk=4).fit(stop=lambda: next(stops))
    whole = tmp_path / "checkpoints" / "4"
    assert whole.is_dir()
    broken = tmp_path / "checkpoints" / "8.orbax-checkpoint-tmp-0"
    broken.mkdir()
    (broken / "default").write_text("half")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    again = Run(config(), tmp_path, chunk=4)
    chex.assert_trees_all_equal(again.state, run.state)
    assert len(again.fit().losses()) == 12


def test_steps_without_a_finite_gradient_are_skipped_and_counted(monkeypatch):
    c = config(batch=4)
    inputs = training._inputs

    def poisoned(config, keys):
        Z, metric, wanted = inputs(config, keys)
        bad = jax.random.bits(keys[0]) % 3 == 0
        return jnp.where(bad, jnp.inf, 1.0) * Z, metric, wanted

    monkeypatch.setattr(training, "_inputs", poisoned)
    before = training.init(c)
    after, metrics = training.train_steps.__wrapped__(c, before, 12)  # pyright: ignore
    skipped = int(metrics.skipped.sum())
    assert 0 < skipped < 12
    assert skipped == int((~np.isfinite(metrics.gradient_norm)).sum()) == int(after.optimiser.total_notfinite)
    assert all(np.isfinite(w).all() for w in jax.tree.leaves(after.weights))
    assert not np.array_equal(before.weights.query, after.weights.query)


@pytest.mark.parametrize("regime", ["unconstrained", "distributed"])
def test_data_parallel_gives_the_same_curve(regime):
    c = config(regime, steps=8)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    alone, metrics_alone = training.train_steps(c, training.init(c), 8)
    together, metrics_together = training.train_steps(c, training.init(c), 8, mesh)
    np.testing.assert_allclose(metrics_together.loss, metrics_alone.loss, rtol=1e-5)
    chex.assert_trees_all_close(together.weights, alone.weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("regime", ["unconstrained", "computation_limited", "distributed"])
def test_the_loss_is_that_of_the_sampled_tasks(regime):
    c = config(regime)
    state = training.init(c)
    keys = training.task_keys(c, state.key, 0)
    assert training._inputs(c, keys)[1] is not None  # fewer tokens than sample gives
    _, Z, wanted = training.sample(c, keys)
    loss = jnp.mean(jnp.square(c.architecture.predict(state.weights, Z) - wanted))
    weights = jax.tree.map(jnp.array, state.weights)
    _, metrics = training.train_steps(c, state, 1)
    np.testing.assert_allclose(metrics.loss[0], loss, rtol=1e-5)
    state = training.with_weights(c, weights)
    _, noisy = training.train_steps(dataclasses.replace(c, noise=1.0), state, 1)
    assert float(noisy.loss[0]) > 2 * float(loss)


def test_spikes_come_with_the_norm_of_their_batch():
    c = config(steps=400)
    losses = np.ones(400)
    losses[[30, 222]] = 50.0, np.nan
    found = training.spikes(c, losses)
    assert [spike["step"] for spike in found] == [30, 222]
    assert training.spikes(c, np.full(400, np.nan)) == []  # nothing to be above
    keys = training.task_keys(c, training.init(c).key, 30)
    make = lambda key: problems.training_task(key, n=6, d=4, n_out=1, d_out=1, s=3)  # noqa: E731
    norms = np.linalg.norm(np.asarray(jax.vmap(make)(keys).A), ord=2, axis=(1, 2))
    assert found[0]["norm"] == pytest.approx(norms.max(), rel=1e-3)


def test_the_parameter_is_the_minimum_norm_solution(x64):
    for seed in range(3):
        sizes = {"n": 9, "d": 8, "d_out": 2, "s": 4, "dtype": jnp.float64}
        A, B, _, _ = problems.training_task(jax.random.key(seed), **sizes)
        W = problems.training_parameter(jax.random.key(seed), **sizes)
        np.testing.assert_allclose(W, np.asarray(B) @ np.linalg.pinv(A, rcond=1e-10), rtol=1e-8, atol=1e-10)


def test_files_keep_everything(tmp_path):
    c = config("estimation")
    run = pretrained.Pretrained(training.init(c).weights, c, np.ones((2, 3)), {"skipped steps": 0})
    pretrained.save(tmp_path / "x.npz", run)
    back = pretrained.read(tmp_path / "x.npz")
    chex.assert_trees_all_equal(back.weights, run.weights)
    assert back.config == c and back.metrics == run.metrics and (back.loss == 1).all()
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:500])
    with pytest.raises(ValueError, match="not a whole file of trained weights"):
        pretrained.read(tmp_path / "x.npz")


def test_loading_what_is_not_there_says_what_is():
    with pytest.raises(ValueError, match="regime='central'; expected one of"):
        pretrained.load("central")
    with pytest.raises(FileNotFoundError, match="no trained weights for regime='distributed', seed=99"):
        pretrained.load("distributed", seed=99)
    with pytest.raises(FileNotFoundError, match="noise=0"):
        pretrained.load("distributed", noise=0.01000000001)
    with pytest.raises(ValueError, match="heads=0; expected a positive integer"):
        pretrained.load("unconstrained", heads=0)


def shipped():
    """One seed of each setting by default, all of them with the slow tests."""
    for name in pretrained.available():
        yield name if "-seed0-" in name else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", list(shipped()))
def test_shipped_weights_do_what_their_metrics_say(name):
    run = pretrained.read(pretrained.FOLDER / f"{name}.npz")
    a = run.config.architecture
    assert run.config.steps == 20_000 and pretrained.name(run.config) == name
    keys = jax.random.split(jax.random.key(5), 512)
    _, Z, wanted = training.sample(run.config, keys)
    error = float(jnp.median(jnp.mean(jnp.square(a.predict(run.weights, Z) - wanted), axis=(-2, -1))))
    stated = run.metrics["median test MSE per layer"]
    assert 0.5 * stated[-1] < error < 2 * stated[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0; expected a positive integer"),
        ({"steps": 2.5}, "steps=2.5; expected a positive integer"),
        ({"noise": -1.0}, "noise=-1.0; expected a variance"),
        ({"std": np.inf}, "std=inf; expected a positive number"),
        ({"seed": 2**32}, "seed=4294967296; expected an integer from 0"),
    ],
)
def test_bad_configs(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_sigterm_saves_and_the_command_goes_on(tmp_path):
    command = [sys.executable, "-m", "experiments.train", "--regime=distributed", "--steps=400", "--devices=2"]
    command.append(f"--out={tmp_path}")
    folder = tmp_path / pretrained.name(TrainConfig(Architecture("distributed"), steps=400))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "stopped and saved at step" in output
    stored = json.loads((folder / "config.json").read_text())
    assert TrainConfig.from_json(stored).architecture.regime == "distributed"
    stopped = int(output.split("saved at step ")[1].split(";")[0])
    assert 0 < stopped < 400
    output = subprocess.run(command, capture_output=True, text=True, timeout=240).stdout
    assert "1 trained network in" in output
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(100, 500, 100))
