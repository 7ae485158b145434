"""Trains the paper's transformers (20 000 steps each) and ships the weights.

    python -m experiments.train --regime=distributed --seed=3
    python -m experiments.train --regime=all --seeds=10 --ship      # the whole set, skipping what is done

Runs are kept in --out, resume after an interruption (SIGTERM included) and end with a .npz of weights, loss history,
spikes and test error. With --ship that file also goes to eagle_jax/pretrained, with a fresh model card.
"""

import dataclasses
import itertools
import pathlib
import signal
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jax.sharding import Mesh
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_jax import pretrained, training
from eagle_jax.training import Run, TrainConfig
from eagle_jax.transformer import REGIMES, Architecture
from experiments import common

_TEST_TASKS, _TEST_SEED = 4096, 10**6
_WINDOW = 20
OTHER_STD = 0.1  # of initial weights, for E14


def whole_set(seeds: int, steps: int) -> Iterator[TrainConfig]:
    """Noiseless runs of the three regimes; 8 heads and estimation; noisy runs; other signs and initial scales (E14)."""
    three = [Architecture(regime) for regime in ("unconstrained", "computation_limited", "distributed")]
    extra = [Architecture("unconstrained", heads=8), Architecture("estimation", d_out=1)]
    few = min(seeds, 3)
    for architectures, count, noise in ((three, seeds, 0.0), (extra, few, 0.0), (three, seeds, 0.01)):
        for seed in range(count):
            for architecture in architectures:
                yield TrainConfig(architecture, seed=seed, noise=noise, steps=steps)
    for seed, std, sign, one in itertools.product(range(few), (OTHER_STD, TrainConfig.std), (-1, 1), three):
        if (std, sign) != (TrainConfig.std, Architecture.sign):
            yield TrainConfig(dataclasses.replace(one, sign=sign), seed=seed, std=std, steps=steps)


def test_errors(config: TrainConfig, weights) -> list[float]:
    """Median over fresh tasks of the squared error of the read-out, before the first layer and after each."""
    a = config.architecture
    keys = jax.random.split(jax.random.key(_TEST_SEED), _TEST_TASKS)
    _, Z, wanted = training.sample(config, keys)
    errors = [jnp.mean(jnp.square(a.read_out(z) - wanted), axis=(-2, -1)) for z in a.activations(weights, Z)]
    return [float(jnp.median(e)) for e in errors]


def finish(run: Run) -> pretrained.Pretrained:
    config, losses = run.config, run.losses()
    weights = config.network(run.state.weights)
    key = training.init(config).key
    ordinary = [training.largest_norm(config, key, step) for step in range(50)]
    metrics = {
        "median test MSE per layer": test_errors(config, weights),
        "median loss of the last 1000 steps": float(np.median(losses[-1000:])),
        "skipped steps": run.skipped(),
        "spikes": training.spikes(config, losses),
        "usual largest norm": float(np.median(ordinary)),
        "provenance": common.provenance(),
    }
    windows = losses[: len(losses) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    history = np.stack([np.median(windows, axis=1), np.max(windows, axis=1)])
    return pretrained.Pretrained(weights, config, history, metrics)


def data_mesh(devices: int) -> Mesh | None:
    """An axis of that many devices to share each batch; a CPU is divided into as many."""
    if devices == 1:
        return None
    jax.config.update("jax_num_cpu_devices", devices)
    if devices > jax.device_count() or TrainConfig.batch % devices:
        raise app.UsageError(
            f"--devices={devices}; expected a divisor of the batch of {TrainConfig.batch}, and at most the "
            f"{jax.device_count()} devices there are"
        )
    return jax.make_mesh((devices,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices])


def train(config: TrainConfig, out: pathlib.Path, progress: Progress, stop, mesh=None) -> pathlib.Path | None:
    """Trains one setting to its end, unless its weights are there already; None if stopped before."""
    name = pretrained.name(config)
    result = out / f"{name}.npz"
    for path in (result, pretrained.FOLDER / result.name):
        if path.exists() and pretrained.read(path).config == config:
            return path
    run = Run(config, out / name, mesh=mesh)
    bar = progress.add_task(name, total=config.steps, completed=run.step, loss="")

    def show(line):
        median = f"{np.median(line['loss']):.2e}"
        progress.update(bar, completed=line["step"], loss=median)
        if not progress.console.is_terminal and line["step"] % 1000 == 0:
            progress.console.print(f"{name}: step {line['step']}, loss {median}", soft_wrap=True)

    run.fit(progress=show, stop=stop)
    if not run.done:
        message = f"{name}: stopped and saved at step {run.step}; the same command goes on from there"
        progress.console.print(message, soft_wrap=True)
        return None
    if run.skipped() == config.steps:
        progress.console.print(f"{name}: nothing was learnt, no step had a finite gradient", soft_wrap=True)
    pretrained.save(result, finish(run))
    progress.remove_task(bar)
    progress.console.print(f"wrote {result}", soft_wrap=True)
    return result


def model_card() -> str:
    """A table of all shipped runs, from the files themselves."""
    lines = [
        "# Trained models",
        "",
        "Linear attention-only transformers of 4 layers, made by `python -m experiments.train --regime=all --ship`:",
        "Adam 1e-3, batch 1024, 20 000 steps, global-norm clip 0.1, normal initial weights of standard deviation 0.02,",
        "read-out -D_L, unless the name says otherwise: it has every field of the configuration.",
        "`eagle_jax.pretrained.load(regime, seed=, noise=, heads=, std=)` reads them, `pretrained.read(path)` those of",
        "the other sign. Test errors are over 4096 fresh tasks. The folder study has what was trained otherwise",
        "(`experiments/study.py`), and how the weights' spectra came about in some runs.",
        "",
        "| run | median test MSE after layers 0, 1, 2, 3, 4 | skipped steps | spikes |",
        "|---|---|---|---|",
    ]
    for name in pretrained.available():
        metrics = pretrained.read(pretrained.FOLDER / f"{name}.npz").metrics
        errors = ", ".join(f"{x:.1e}" for x in metrics["median test MSE per layer"])
        lines.append(f"| {name} | {errors} | {metrics['skipped steps']} | {len(metrics['spikes'])} |")
    return "\n".join(lines) + "\n"


def ship(path: pathlib.Path):
    (pretrained.FOLDER / path.name).write_bytes(path.read_bytes())
    (pretrained.FOLDER / "MODELS.md").write_text(model_card())


def asked_for() -> Iterator[TrainConfig]:
    one = (_SEED, _NOISE, _HEADS, _SIGN, _STD)
    if _REGIME.value == "all":
        ignored = [f"--{flag.name}" for flag in one if flag.present]
        if ignored:
            raise app.UsageError(f"{', '.join(ignored)} with --regime=all, which has them all; leave them out")
        yield from whole_set(_SEEDS.value, _STEPS.value)
        return
    try:
        d_out = 1 if _REGIME.value == "estimation" else Architecture.d_out
        architecture = Architecture(_REGIME.value, d_out=d_out, heads=_HEADS.value, sign=_SIGN.value)
        yield TrainConfig(architecture, _SEED.value, _NOISE.value, _STD.value, _STEPS.value)
    except ValueError as error:
        raise app.UsageError(str(error)) from None


def main(argv):
    common.begin(argv)
    mesh = data_mesh(_DEVICES.value)
    logging.set_verbosity(logging.WARNING)  # the checkpoint manager tells its life story at INFO
    out = pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    configs = list(asked_for())
    stopped = []

    def stop(number, _):
        stopped.append(number)
        signal.signal(number, signal.SIG_DFL)  # the second one is final

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    found = []
    with Progress(*columns) as progress:
        for config in configs:
            path = train(config, out, progress, lambda: bool(stopped), mesh)
            if path is None:
                raise SystemExit(128 + stopped[0])  # as shells have it, so that what comes next does not start
            if _SHIP.value and path.parent != pretrained.FOLDER:
                ship(path)
            found.append(path)
    folders = sorted({str(path.parent) for path in found})
    print(f"{len(found)} trained network{'s' * (len(found) != 1)} in {' and '.join(folders)}")


if __name__ == "__main__":
    _REGIME = flags.DEFINE_enum("regime", "unconstrained", [*REGIMES, "all"], "which network, or the whole set")
    _SEED = flags.DEFINE_integer("seed", 0, "seed of the weights and of the tasks")
    _SEEDS = flags.DEFINE_integer(
        "seeds", 10, "with --regime=all: seeds per setting (at most 3 for 8 heads, estimation and E14)", lower_bound=1
    )
    _NOISE = flags.DEFINE_float("noise", 0.0, "variance of the noise on X; the paper has 0 and 0.01")
    _HEADS = flags.DEFINE_integer("heads", 1, "heads of the unconstrained network")
    _SIGN = flags.DEFINE_integer("sign", -1, "the prediction is sign * D_L")
    _STD = flags.DEFINE_float("std", TrainConfig.std, "standard deviation of the initial weights")
    _STEPS = flags.DEFINE_integer("steps", 20_000, "training steps")
    _DEVICES = flags.DEFINE_integer("devices", 1, "devices that share each batch; a CPU is divided into as many", 1)
    _OUT = flags.DEFINE_string("out", "runs", "folder with one folder per run")
    _SHIP = flags.DEFINE_bool("ship", False, "put the finished weights into eagle_jax/pretrained")
    app.run(main)
