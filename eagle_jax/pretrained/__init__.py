"""Trained weights, one small .npz a run: `load("distributed", seed=1)`. MODELS.md in this folder is the model card."""

import dataclasses
import json
import pathlib
import zipfile
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from eagle_jax.attention import Weights
from eagle_jax.training import TrainConfig
from eagle_jax.transformer import Architecture

FOLDER = pathlib.Path(__file__).parent


class Pretrained(NamedTuple):
    """A finished run.

    Attributes:
      weights: Weights, layer axis first; `config.architecture` runs them.
      config: the TrainConfig of the run.
      loss: training loss, the median and the largest of every 20 steps: 2 x (steps / 20).
      metrics: median test MSE per layer, skipped steps, spikes with the largest ||A|| of their batch, versions.
    """

    weights: Weights
    config: TrainConfig
    loss: np.ndarray
    metrics: dict


def name(config: TrainConfig) -> str:
    """The file name of a run, without its suffix: every field of its configuration, so that no default can change what
    a name means.
    """
    fields = {**dataclasses.asdict(config.architecture), **dataclasses.asdict(config)}
    del fields["architecture"]
    regime = fields.pop("regime")
    return "-".join([regime, *(f"{field}{value}" for field, value in fields.items())])


def save(path, run: Pretrained):
    weights: dict = {k: np.asarray(w) for k, w in run.weights._asdict().items() if w is not None}
    text = json.dumps({"config": run.config.to_json(), "metrics": run.metrics})
    unfinished = pathlib.Path(f"{path}.unfinished")
    with unfinished.open("wb") as file:
        np.savez_compressed(file, loss=run.loss.astype(np.float32), json=np.array(text), **weights)
    unfinished.replace(path)


def read(path, kind: type[TrainConfig] = TrainConfig) -> Pretrained:
    """`kind`: what the run was configured by."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            text = json.loads(str(stored["json"]))
            weights = Weights(**{k: jnp.asarray(stored[k]) for k in Weights._fields if k in stored})
            return Pretrained(weights, kind.from_json(text["config"]), stored["loss"], text["metrics"])
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError) as error:
        raise ValueError(
            f"{path} is not a whole file of trained weights ({error}); remove it and train again"
        ) from error


def available() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(regime: str, *, seed: int = 0, noise: float = 0.0, heads: int = 1, std: float = TrainConfig.std) -> Pretrained:
    """The shipped run of that setting; the error names what there is. `read` takes a path, of any run."""
    d_out = 1 if regime == "estimation" else Architecture.d_out
    wanted = TrainConfig(Architecture(regime, d_out=d_out, heads=heads), seed=seed, noise=noise, std=std)
    path = FOLDER / f"{name(wanted)}.npz"
    if not path.exists() or (run := read(path)).config != wanted:
        raise FileNotFoundError(
            f"no trained weights for regime={regime!r}, seed={seed}, noise={noise}, heads={heads}, std={std}; there "
            f"are {_summary() or 'none'}. `python -m experiments.train` makes them"
        )
    return run


def _summary() -> str:
    """The settings that `load` knows, with their seeds."""
    seeds: dict[str, list[int]] = {}
    for config in (read(FOLDER / f"{stem}.npz").config for stem in available()):
        a = config.architecture
        if a.sign == Architecture.sign:
            setting = f"{a.regime!r} noise={config.noise} heads={a.heads} std={config.std}"
            seeds.setdefault(setting, []).append(config.seed)
    return "; ".join(f"{setting} seeds {', '.join(map(str, sorted(found)))}" for setting, found in seeds.items())
