"""E16 (ours): is a departure from the paper's form what the task wants, or where training happened to stop?

    python -m experiments.restart        (every regime, the first shipped seeds)

Each network is trained on twice, with the paper's settings and fresh tasks: from its own weights, and from the paper's
form that was read from them (`embed`, factors scaled like the trained ones, plus noise of 0.01). If the restarted
network ends lower and keeps the form, the departure is an accident of the first training; if it leaves the form again
for a lower loss, the task wants it. The same question for the step sizes alone: Adam on the schedule's numbers.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eagle_jax import extraction, pretrained, training
from eagle_jax.attention import Weights
from eagle_jax.extraction import Extracted
from eagle_jax.pretrained import Pretrained
from eagle_jax.training import TrainConfig
from experiments import common, emergence

ITEM = "restart"
NOISE = 0.01
UNSEEN = 1000  # a seed that no shipped run has
STARTS = ("trained", "continued", "restarted", "tuned")


@dataclasses.dataclass(frozen=True)
class Config:
    steps: int = 2000
    tune_steps: int = 600
    batch: int = 1024
    tasks: int = 4096
    regimes: tuple[str, ...] = ("U", "D", "CL")
    runs: int = 10
    seed: int = 31
    models: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(pretrained.available()))


PRESETS = {
    "quick": Config(steps=20, tune_steps=20, batch=128, tasks=256, regimes=("U", "D"), runs=1),
    "default": Config(steps=400, tune_steps=200, tasks=1024, runs=2),
    "full": Config(),
}


def like(form: Weights, trained: Weights) -> Weights:
    """The same products, with query, key and value as large as in the trained network, layer by layer."""
    size = lambda w: jnp.sqrt(jnp.sum(w**2, axis=(1, 2, 3), keepdims=True))  # noqa: E731
    q, k, v = (size(getattr(trained, x)) / size(getattr(form, x)) for x in ("query", "key", "value"))
    return Weights(form.query * q, form.key * k, form.value * v, form.projection / (q * k * v))


def restarted(run: Pretrained, cfg: Config) -> Weights:
    architecture = run.config.architecture
    extracted = extraction.extract(run.weights, architecture)
    form = like(extraction.embed(extracted.as_schedule(), architecture), run.weights)
    leaves, tree = jax.tree.flatten(form)
    keys = jax.random.split(jax.random.key(cfg.seed), len(leaves))
    noisy = [w + NOISE * jax.random.normal(k, w.shape, w.dtype) for w, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, noisy)


def afresh(run: Pretrained, cfg: Config) -> TrainConfig:
    """The run's settings with tasks that no network has seen, the same for all of them, who share a compilation."""
    return dataclasses.replace(run.config, seed=UNSEEN, batch=cfg.batch)


def train_on(run: Pretrained, weights: Weights, cfg: Config) -> Weights:
    """More training."""
    config = afresh(run, cfg)
    state = training.with_weights(config, jax.tree.map(jnp.copy, weights))  # train_steps takes its argument's memory
    return training.train_steps(config, state, cfg.steps)[0].weights


@partial(jax.jit, static_argnums=0)
def _tuned_logs(config: TrainConfig, logs, S, keys):
    """Adam on the logarithms of eta and gamma, one step for each key; a batch that overflows is left out."""
    architecture = config.architecture
    optimiser = optax.chain(optax.clip_by_global_norm(config.clip), optax.adam(1e-2))
    optimiser = optax.apply_if_finite(optimiser, len(keys))

    def loss(logs, key):
        blocks, _, wanted = training.sample(config, jax.random.split(key, config.batch))
        Z = extraction.run_updates(architecture, *jnp.exp(logs), S, blocks)[-1]
        return jnp.mean(jnp.square(architecture.read_out(Z) - wanted))

    def step(carry, key):
        logs, state = carry
        updates, state = optimiser.update(jax.grad(loss)(logs, key), state)
        return (optax.apply_updates(logs, updates), state), None

    return jax.lax.scan(step, (logs, optimiser.init(logs)), keys)[0][0]


def tuned(run: Pretrained, extracted: Extracted, cfg: Config) -> Extracted:
    """The step sizes alone, trained as the network was: the best schedule near the extracted one."""
    sizes = jnp.asarray(np.stack([extracted.eta_rho, extracted.gamma_rho]), jnp.float32)
    S = None if extracted.S is None else jnp.asarray(extracted.S, jnp.float32)
    start = jnp.where(sizes > 0, jnp.log(jnp.maximum(sizes, 1e-6)), jnp.log(1e-6))
    keys = jax.random.split(jax.random.key(cfg.seed), cfg.tune_steps)
    eta, gamma = np.asarray(jnp.exp(_tuned_logs(afresh(run, cfg), start, S, keys)), np.float64)
    alphas = np.stack([np.ones_like(eta), -eta, -gamma / extracted.architecture.blocks], axis=-1)
    return extracted._replace(alphas=alphas[:, None])


def describe(run: Pretrained, weights: Weights, cfg: Config) -> dict:
    """Test error and structure of a network; measured as in emergence.py."""
    m = emergence.measure(run._replace(weights=weights), emergence.Config(tasks=cfg.tasks, seed=cfg.seed))
    names = ("mse", "mse_mean", "eta_rho", "gamma_rho", "VP_rank", "form_median", "general_median")
    return {name: m[name] for name in names} | {k: m[k] for k in ("difference", "own", "next") if k in m}


def measure(tag: str, run: Pretrained, cfg: Config) -> dict:
    extracted = extraction.extract(run.weights, run.config.architecture)
    networks = {
        "trained": run.weights,
        "continued": train_on(run, run.weights, cfg),
        "restarted": train_on(run, restarted(run, cfg), cfg),
    }
    best = tuned(run, extracted, cfg)
    schedule = extraction.embed(best.as_schedule(), run.config.architecture)
    rows = {name: describe(run, w, cfg) for name, w in (networks | {"tuned": schedule}).items()}
    return {f"{tag}_{name}": np.stack([rows[start][name] for start in STARTS]) for name in rows["trained"]}


def run(cfg: Config) -> common.Results:
    """Arrays are runs x STARTS x ..."""
    results: common.Results = {"starts": np.array(STARTS), "steps": cfg.steps}
    models = emergence.Config(runs=cfg.runs, models=cfg.models)
    for tag in common.track(cfg.regimes, "E16 restart"):
        rows = [measure(tag, run, cfg) for run in emergence.shipped(models, tag)]
        if rows:
            results |= {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return results


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
