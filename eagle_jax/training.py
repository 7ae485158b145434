"""Training of the paper's networks: fresh tasks every step, sampled on the device, many steps per compiled call.

A `Run` resumes from the newest whole checkpoint in its folder, and a run that was interrupted equals one that was
not, bit for bit: step i draws from fold_in(key, i), and nothing else is random.
"""

import dataclasses
import fcntl
import json
import math
import pathlib
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle_jax import problems
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.transformer import Architecture

# A loss this many times the median of its surroundings is a spike.
SPIKE = 10.0


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on; defaults are the paper's. `noise` is a variance, `std` that of the initial weights.

    `factors` is s, the rank of the tasks.
    """

    architecture: Architecture = dataclasses.field(default_factory=Architecture)
    seed: int = 0
    noise: float = 0.0
    std: float = 0.02
    steps: int = 20_000
    batch: int = 1024
    learning_rate: float = 1e-3
    clip: float = 0.1
    factors: int = 10

    def __post_init__(self):
        for name in ("steps", "batch", "factors"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; expected a positive integer")
        for name in ("std", "learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}; expected a positive number")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise={self.noise}; expected a variance, at least 0")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed}; expected an integer from 0 to 2**32 - 1")

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: dict) -> "TrainConfig":
        return cls(**{**stored, "architecture": Architecture(**stored["architecture"])})

    # What another kind of training changes: see experiments/study.py.

    def start(self, key: jax.Array) -> Any:
        """What is trained, at the beginning: the weights themselves."""
        return self.architecture.init(key, self.std)

    def network(self, trained: Any) -> Weights:
        """The weights of the network that `trained` stands for."""
        return trained

    def rate(self) -> optax.ScalarOrSchedule:
        return self.learning_rate

    def tasks(self, keys: jax.Array) -> Blocks:
        return draw(self, keys, self.noise)


class TrainState(NamedTuple):
    weights: Any  # Weights, or what config.network makes them of
    optimiser: optax.OptState
    step: jax.Array
    key: jax.Array  # raw; step i draws its tasks from fold_in(key, i)


class Metrics(NamedTuple):
    """One value per step."""

    loss: jax.Array
    gradient_norm: jax.Array
    skipped: jax.Array  # the gradient was not finite


def sample(config: TrainConfig, keys: jax.Array):
    """(blocks, Z, wanted) of one task per key; `wanted` is what read_out should be: D, D for each machine, or W*."""
    a = config.architecture
    blocks = config.tasks(keys)
    if a.regime == "estimation":
        wanted = _draw(problems.training_parameter, config, keys, noise=config.noise)
    else:
        wanted = blocks.D[:, None] if a.regime == "distributed" else blocks.D
    return blocks, a.tokens(blocks), wanted


def _inputs(config: TrainConfig, keys: jax.Array):
    """(Z, metric, wanted) for predict: the tasks of `sample`, on fewer tokens where their rank allows it."""
    a = config.architecture
    if config.noise or a.regime == "estimation" or config.factors >= a.d:  # estimation's bias tells the keys apart
        _, Z, wanted = sample(config, keys)
        return Z, None, wanted
    blocks, metric = _draw(problems.compact_training_task, config, keys)
    return a.tokens(Blocks(*blocks)), metric, blocks.D[:, None] if a.regime == "distributed" else blocks.D


def draw(config: TrainConfig, keys: jax.Array, noise: float) -> Blocks:
    return Blocks(*_draw(problems.training_task, config, keys, noise=noise))


def _draw(make, config: TrainConfig, keys: jax.Array, **more):
    a = config.architecture
    sizes = {"n": a.n, "d": a.d, "n_out": a.n_out, "d_out": a.d_out, "s": config.factors}
    return jax.vmap(partial(make, **sizes, **more, dtype=jnp.float32))(keys)


def task_keys(config: TrainConfig, key, step) -> jax.Array:
    return jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), step), config.batch)


def init(config: TrainConfig) -> TrainState:
    weights_key, _ = jax.random.split(jax.random.key(config.seed))
    return with_weights(config, config.start(weights_key))


def with_weights(config: TrainConfig, weights: Any) -> TrainState:
    """The start of a run from given weights; the tasks are those of config.seed."""
    _, tasks_key = jax.random.split(jax.random.key(config.seed))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(weights, _optimiser(config).init(weights), zero, jax.random.key_data(tasks_key))


def _optimiser(config: TrainConfig) -> Any:  # optax's types know no None in a pytree
    """Adam behind a clip of the global norm; a step whose gradient is not finite is left out, and counted."""
    steps = optax.chain(optax.clip_by_global_norm(config.clip), optax.adam(config.rate()))
    return optax.apply_if_finite(steps, max_consecutive_errors=config.steps)


def _gradients(config: TrainConfig, mesh: Mesh | None):
    """(weights, keys) -> (mean loss over the batch, its gradient), the batch split over the mesh's first axis."""
    reduce = (lambda x: x) if mesh is None else partial(jax.lax.pmean, axis_name=mesh.axis_names[0])

    predict = config.architecture.predict

    def loss(weights, keys):
        Z, metric, wanted = _inputs(config, keys)
        return reduce(jnp.mean(jnp.square(predict(config.network(weights), Z, metric) - wanted)))

    gradients = jax.value_and_grad(loss)
    if mesh is None:
        return gradients
    shard = PartitionSpec(mesh.axis_names[0])
    return jax.shard_map(gradients, mesh=mesh, in_specs=(PartitionSpec(), shard), out_specs=PartitionSpec())


@partial(jax.jit, static_argnums=(0, 2, 3), donate_argnums=1)
def train_steps(config: TrainConfig, state: TrainState, count: int, mesh: Mesh | None = None):
    """`count` steps. Returns (TrainState, Metrics with a leading axis of length count)."""
    gradients, optimiser = _gradients(config, mesh), _optimiser(config)

    def step(state: TrainState, _):
        value, gradient = gradients(state.weights, task_keys(config, state.key, state.step))
        updates, new = optimiser.update(gradient, state.optimiser, state.weights)
        weights = jax.tree.map(jnp.add, state.weights, updates)
        metrics = Metrics(value, optax.tree.norm(gradient), ~new.last_finite)
        return TrainState(weights, new, state.step + 1, state.key), metrics

    return jax.lax.scan(step, state, length=count)


class Run:
    """A folder with config.json, metrics.jsonl (one line per `chunk` of steps) and checkpoints/, for one process."""

    def __init__(self, config: TrainConfig, folder, *, mesh: Mesh | None = None, chunk: int = 100):
        if chunk < 1:
            raise ValueError(f"chunk={chunk}; expected a positive number of steps")
        self.config, self.mesh, self.chunk = config, mesh, chunk
        self.folder = pathlib.Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self.checkpoints = ocp.CheckpointManager(self.folder / "checkpoints", options=options)
        self._agree_on_config()
        self.state = self._restore()

    def _locked(self):
        """Held as long as the process lives, however it ends."""
        file = (self.folder / "lock").open("w")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(f"another process trains in {self.folder}; wait for it, or use another folder") from None
        return file

    def _agree_on_config(self):
        """A folder belongs to one config; only `steps` may change, since a longer run starts as the shorter one did."""
        path, ours = self.folder / "config.json", _flat(self.config.to_json())
        if path.exists():
            try:
                theirs = _flat(json.loads(path.read_text()))
            except ValueError as error:
                raise ValueError(f"{path} cannot be read ({error}); remove {self.folder} to start again") from None
            names = [k for k in {**theirs, **ours} if k != "steps" and theirs.get(k) != ours.get(k)]
            if names:
                differences = ", ".join(f"{k}: {theirs.get(k)} there, {ours.get(k)} now" for k in names)
                raise ValueError(f"{self.folder} holds a run with another config ({differences}); use another folder")
        elif self.checkpoints.all_steps():
            raise ValueError(f"{self.folder} has checkpoints but no config.json; use another folder")
        _write(path, json.dumps(self.config.to_json(), indent=1))

    def _restore(self) -> TrainState:
        state = self._newest_whole(init(self.config))
        if int(state.step) > self.config.steps:
            raise ValueError(
                f"{self.folder} is at step {state.step}, beyond steps={self.config.steps}; ask for more, or use "
                "another folder"
            )
        lines = [line for line in self._lines() if line["step"] <= int(state.step)]
        if sum(len(line["loss"]) for line in lines) != int(state.step):
            raise ValueError(
                f"{self._metrics} does not have the losses of all {state.step} steps that the checkpoint has; remove "
                f"{self.folder} to start again"
            )
        _write(self._metrics, "".join(json.dumps(line) + "\n" for line in lines))
        return state if self.mesh is None else jax.device_put(state, NamedSharding(self.mesh, PartitionSpec()))

    def _newest_whole(self, start: TrainState) -> TrainState:
        for step in sorted(self.checkpoints.all_steps(), reverse=True):
            try:
                return cast(TrainState, self.checkpoints.restore(step, args=ocp.args.StandardRestore(start)))
            except (OSError, ValueError, KeyError) as error:
                warnings.warn(
                    f"checkpoint {step} of {self.folder} cannot be read and is left out: {error}", stacklevel=4
                )
                self.checkpoints.delete(step)
        return start

    @property
    def _metrics(self) -> pathlib.Path:
        return self.folder / "metrics.jsonl"

    def _lines(self) -> list[dict]:
        if not self._metrics.exists():
            return []
        whole = [line for line in self._metrics.read_text().split("\n")[:-1] if line]
        try:
            return [json.loads(line) for line in whole]
        except ValueError as error:
            raise ValueError(f"{self._metrics} cannot be read ({error}); remove {self.folder} to start again") from None

    @property
    def step(self) -> int:
        return int(self.state.step)

    @property
    def done(self) -> bool:
        return self.step >= self.config.steps

    def save(self):
        if self.checkpoints.latest_step() != self.step:
            self.checkpoints.save(self.step, args=ocp.args.StandardSave(self.state))

    def advance(self) -> dict:
        """Up to `chunk` steps; the line added to metrics.jsonl."""
        start = time.perf_counter()
        count = min(self.chunk - self.step % self.chunk, self.config.steps - self.step)
        self.state, metrics = jax.block_until_ready(train_steps(self.config, self.state, count, self.mesh))
        loss, gradient_norm, skipped = (np.asarray(x) for x in metrics)
        line = {
            "step": self.step,
            "loss": [float(f"{x:.6g}") for x in loss],
            "gradient_norm": float(np.median(gradient_norm)),
            "skipped": int(skipped.sum()),
            "seconds": round(time.perf_counter() - start, 3),
        }
        with self._metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def fit(self, *, save_every: int = 1000, progress: Callable[[dict], None] = lambda line: None, stop=lambda: False):
        """Trains to the end, or until stop() after some chunk; saves every `save_every` steps and before returning."""
        if save_every < 1:
            raise ValueError(f"save_every={save_every}; expected a positive number of steps")
        while not self.done and not stop():
            before = self.step
            progress(self.advance())
            if self.step // save_every > before // save_every:
                self.save()
        self.save()
        return self

    def losses(self) -> np.ndarray:
        return np.concatenate([line["loss"] for line in self._lines()] or [[]])

    def skipped(self) -> int:
        return sum(line["skipped"] for line in self._lines())


def spikes(config: TrainConfig, losses: np.ndarray, window: int = 201) -> list[dict]:
    """Steps whose loss is above SPIKE times the median around them, with the largest ||A|| of their batch.

    The batches are drawn again: a step's tasks depend on the seed and the step alone.
    """
    padded = np.pad(np.where(np.isnan(losses), np.inf, losses), window // 2, mode="edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=-1)
    found = np.flatnonzero(~(losses <= SPIKE * medians) & np.isfinite(medians))  # not where a run fails throughout
    key = init(config).key
    short = lambda x: float(f"{x:.4g}")  # noqa: E731  there may be thousands, and they are shipped with the weights
    return [
        {"step": i, "loss": short(losses[i]), "median": short(medians[i]), "norm": short(largest_norm(config, key, i))}
        for i in map(int, found)
    ]


def largest_norm(config: TrainConfig, key, step: int) -> float:
    """Largest ||A||_2 in a step's batch."""
    return float(_largest_norm(config, key, step))


@partial(jax.jit, static_argnums=0)
def _largest_norm(config, key, step):
    blocks, _, _ = sample(config, task_keys(config, key, step))
    return jnp.max(jnp.linalg.norm(blocks.A, ord=2, axis=(-2, -1)))


def _write(path: pathlib.Path, text: str):
    """All of it or nothing."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def _flat(tree: dict, prefix: str = "") -> dict:
    items = {}
    for key, value in tree.items():
        items |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return items
