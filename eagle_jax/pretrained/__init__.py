"""Trained weights, one small .npz a run: `load("distributed", seed=1)`. MODELS.md in this folder is the model card."""

import json
import pathlib
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from eagle_jax.attention import Weights
from eagle_jax.training import TrainConfig
from eagle_jax.transformer import REGIMES

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
    """The file name of a run, without its suffix; what it leaves out has the paper's value."""
    a = config.architecture
    heads = f"-{a.heads}heads" if a.heads > 1 else ""
    sign = "-plus" if a.sign > 0 else ""
    std = f"-std{config.std:g}" if config.std != TrainConfig.std else ""
    return f"{a.regime}{heads}{sign}{std}-noise{config.noise:g}-seed{config.seed}"


def save(path, run: Pretrained):
    weights: dict = {k: np.asarray(w) for k, w in run.weights._asdict().items() if w is not None}
    text = json.dumps({"config": run.config.to_json(), "metrics": run.metrics})
    np.savez_compressed(path, loss=run.loss.astype(np.float32), json=np.array(text), **weights)


def read(path) -> Pretrained:
    with np.load(path, allow_pickle=False) as stored:
        text = json.loads(str(stored["json"]))
        weights = Weights(**{k: jnp.asarray(stored[k]) for k in Weights._fields if k in stored})
        return Pretrained(weights, TrainConfig.from_json(text["config"]), stored["loss"], text["metrics"])


def available() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(regime: str, *, seed: int = 0, noise: float = 0.0, heads: int = 1) -> Pretrained:
    """The shipped run of that setting; the error names what there is."""
    if regime not in REGIMES:
        raise ValueError(f"regime={regime!r}; expected one of {REGIMES}")
    middle = f"-{heads}heads" if heads > 1 else ""
    path = FOLDER / f"{regime}{middle}-noise{noise:g}-seed{seed}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"no trained weights for regime={regime!r}, seed={seed}, noise={noise:g}, heads={heads}; there are "
            f"{', '.join(available()) or 'none'}. `python -m experiments.train` makes them"
        )
    return read(path)
