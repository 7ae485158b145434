"""Networks that are trained otherwise: one form of the weights, another start, other data, other sizes.

    python -m experiments.study regime=computation_limited share=layer seed=1
    python -m experiments.study regime=computation_limited layers=8 --out=runs/study --every=200

Every field of `Study`, TrainConfig and Architecture can be given as name=value. Runs resume and end as those of
experiments/train.py; --every also keeps the weights of every so many steps, and their spectra in the folder history.
What the experiments use is shipped in eagle_jax/pretrained/study.
"""

import dataclasses
import pathlib
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging

from eagle_jax import extraction, pretrained, training
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.training import Run, TrainConfig
from eagle_jax.transformer import Architecture
from experiments import common
from experiments.train import finish

FOLDER = pretrained.FOLDER / "study"
HISTORIES = FOLDER / "history"
SHARES = ("no", "layer", "all", "next")
STARTS = ("normal", "symmetric", "orthogonal")


def shipped() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))


def histories() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in HISTORIES.glob("*.npz")))


class Tied(NamedTuple):
    """`weights`, but W_VP's leading n x n block is `scale` times a W_QK's, layer by layer."""

    weights: Weights
    scale: jax.Array


@dataclasses.dataclass(frozen=True)
class Study(TrainConfig):
    """A TrainConfig and what else was tried on the computation-limited network.

    Attributes:
      share: "layer": W_VP's leading block is a multiple of W_QK's, as in the paper's form; "all": the multiples are of
        one matrix for all layers; "next": it is a multiple of the next layer's W_QK; "no": free.
      one_read: W_K = W_Q.
      begin: the initial weights: "normal"; "symmetric" (W_K = W_Q, and W_P = -W_V into the own block: no direction
        starts with the wrong sign); "orthogonal" columns.
      decay: the learning rate falls to 0 along a cosine.
      noisy: the share of the tasks that has the noise.
    """

    share: str = "no"
    one_read: bool = False
    begin: str = "normal"
    decay: bool = False
    noisy: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        for name, known in (("share", SHARES), ("begin", STARTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}; expected one of {known}")
        if self.share != "no" and self.architecture.regime != "computation_limited":
            raise ValueError(f"regime={self.architecture.regime!r}; only 'computation_limited' has tied weights")
        if (self.one_read or self.begin != "normal") and self.architecture.regime == "estimation":
            raise ValueError("regime='estimation' has no symmetric form")
        if not 0 < self.noisy <= 1:
            raise ValueError(f"noisy={self.noisy}; expected a share, above 0 and at most 1")

    def start(self, key: jax.Array) -> Any:
        weights = super().start(key)
        if self.begin == "orthogonal":
            weights = jax.tree.map(partial(_orthogonal, std=self.std), weights)
        if self.begin == "symmetric":
            projection = -own(weights.value, self.architecture)
            weights = weights._replace(key=jnp.copy(weights.query), projection=projection)  # donated: no aliases
        return weights if self.share == "no" else Tied(weights, -jnp.ones(self.architecture.layers))

    def network(self, trained: Any) -> Weights:
        weights, scale = trained if isinstance(trained, Tied) else (trained, None)
        weights = weights._replace(key=weights.query) if self.one_read else weights
        return weights if scale is None else tied(weights, scale, self)

    def rate(self) -> optax.ScalarOrSchedule:
        return optax.cosine_decay_schedule(self.learning_rate, self.steps) if self.decay else self.learning_rate

    def tasks(self, keys: jax.Array) -> Blocks:
        count = round(self.noisy * len(keys))
        if count == len(keys):
            return super().tasks(keys)
        parts = training.draw(self, keys[:count], self.noise), training.draw(self, keys[count:], 0.0)
        return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def own(value: jax.Array, architecture: Architecture) -> jax.Array:
    """A projection that writes into the own block as `value` reads, and nowhere else."""
    layers, _, w, k = value.shape
    M = architecture.blocks
    into = jnp.eye(M, dtype=value.dtype)[:, :, None, None] * value[:, :, None]
    return into.reshape(layers, -1, M * w, k)


def _orthogonal(w: jax.Array, std: float) -> jax.Array:
    """Orthonormal columns along w, times the norm that normal ones would have."""
    return jnp.linalg.qr(w)[0] * (std * w.shape[-2] ** 0.5)


def tied(weights: Weights, scale: jax.Array, config: Study) -> Weights:
    """W_VP's leading block is scale times the W_QK's that config.share says; the rows for C, D and the rest stay free.

    The last layer has no next one; what it writes there, nothing reads.
    """
    n, more = config.architecture.n, config.architecture.n_out
    lead = lambda w: jnp.broadcast_to(w[:1, :, :n] if config.share == "all" else w[:, :, :n], w[:, :, :n].shape)  # noqa: E731
    with_lead = lambda lead, w: jnp.concatenate([lead, w[:, :, n:]], axis=2)  # noqa: E731
    wider = lambda w: jnp.pad(w, ((0, 0), (0, 0), (0, 0), (0, more)))  # noqa: E731
    whose = lambda w: jnp.roll(w, -1, axis=0) if config.share == "next" else w  # noqa: E731
    query, key = lead(weights.query), lead(weights.key)
    return Weights(
        with_lead(query, weights.query),
        with_lead(key, weights.key),
        with_lead(wider(whose(query)), weights.value),
        with_lead(wider(scale[:, None, None, None] * whose(key)), weights.projection),
    )


# ---- runs ---------------------------------------------------------------------------------------------------


def from_words(words: list[str]) -> Study:
    """A Study of words such as share=layer, seed=1, rank=9."""
    sizes: dict[str, Any] = {}
    more: dict[str, Any] = {}
    types: dict[str, Any] = {
        f.name: (found, f.type) for found, kind in ((more, Study), (sizes, Architecture)) for f in _fields(kind)
    }
    for word in words:
        name, _, text = word.partition("=")
        if name not in types or not text:
            raise app.UsageError(f"{word!r}; expected name=value with a name of {', '.join(types)}")
        found, kind = types[name]
        try:
            found[name] = _VALUES[kind](text)
        except (ValueError, KeyError):
            raise app.UsageError(f"{word!r}; expected a value of type {kind.__name__}") from None
    try:
        return Study(Architecture(**sizes), **more)
    except ValueError as error:
        raise app.UsageError(str(error)) from None


_VALUES: dict[Any, Any] = {int: int, float: float, str: str, bool: {"True": True, "False": False}.__getitem__}


def _fields(kind) -> list[dataclasses.Field]:
    return [f for f in dataclasses.fields(kind) if f.name != "architecture"]


def train(config: Study, out: pathlib.Path, every: int) -> pathlib.Path:
    """Trains to the end, unless that was done. every: how the weights' spectra came about, in the folder history."""
    name = pretrained.name(config)
    result, folder = out / f"{name}.npz", out / name
    if result.exists() and pretrained.read(result, Study).config == config:
        return result
    run = Run(config, folder)

    def keep(line):
        if line["step"] % 1000 == 0:
            print(f"{name}: step {line['step']}, loss {np.median(line['loss']):.2e}", flush=True)
        if every and line["step"] % every == 0:
            weights = config.network(run.state.weights)._asdict()
            np.savez(folder / f"weights{line['step']:06d}.npz", **{k: w for k, w in weights.items() if w is not None})

    run.fit(progress=keep)
    if every:
        (out / "history").mkdir(exist_ok=True)
        save_history(folder, out / "history" / f"{name}.npz", config)
    pretrained.save(result, finish(run))
    return result


def save_history(folder: pathlib.Path, path: pathlib.Path, config: Study) -> None:
    """Spectra of the kept steps: eigenvalues of the leading blocks, steps x layers x n, W_VP's averaged over machines.

    Of their symmetric parts, signs so that W_QK's trace is positive: layers condition where W_VP's are negative.
    """
    files = sorted(folder.glob("weights*.npz"))
    rows = [spectra(Weights(**np.load(file)), config.architecture) for file in files]
    QK, VP = (np.stack(x).astype(np.float32) for x in zip(*rows, strict=True))
    steps = np.array([int(file.stem.removeprefix("weights")) for file in files])
    others = setting(dataclasses.replace(config, std=TrainConfig.std, steps=TrainConfig.steps)).replace("as usual", "")
    label = f"std={config.std} {others}".strip()
    np.savez_compressed(path, steps=steps, QK=QK, VP=VP, setting=np.array(label))


def spectra(weights: Weights, architecture: Architecture) -> tuple[np.ndarray, np.ndarray]:
    p = extraction.products(weights)
    n = architecture.width - architecture.n_out
    blocks = p.QK.mean(1)[:, :n, :n], extraction.own_blocks(p, architecture).mean(1)[:, :n, :n]
    QK, VP = (np.linalg.eigvalsh((W + W.swapaxes(-1, -2)) / 2) for W in blocks)
    return QK, VP


def setting(config: TrainConfig) -> str:
    """What differs from the usual training, but the seed; a TrainConfig has the same names."""
    usual, changes = Study(Architecture(config.architecture.regime), seed=config.seed), []
    for mine, theirs in ((config.architecture, usual.architecture), (config, usual)):
        for field in dataclasses.fields(mine):
            value = getattr(mine, field.name)
            if field.name != "architecture" and value != getattr(theirs, field.name):
                changes.append(f"{field.name}={value}")
    return " ".join(changes) or "as usual"


def main(argv):
    config = from_words(argv[1:])
    common.begin(argv[:1])
    logging.set_verbosity(logging.WARNING)
    out = pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    print(f"wrote {train(config, out, _EVERY.value)}")


if __name__ == "__main__":
    _OUT = flags.DEFINE_string("out", "runs/study", "folder with one folder per run")
    _EVERY = flags.DEFINE_integer("every", 0, "keep the weights of every so many steps, a multiple of 100; 0: none")
    app.run(main)
