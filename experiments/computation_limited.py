"""E17 (ours): what the computation-limited network does, and whether the paper's form or its own is the better solver.

    python -m experiments.computation_limited        (the shipped networks, and those of experiments/study.py)

The paper has one sketch S S^T in W_QK and W_VP, "0.28 apart". What is measured: where W_VP reads and writes (ahead.py);
network against algorithm, layer by layer, for the paper's form, for that of `update_ahead`, with and without equal
eigenvalues, and for two free matrices; networks that were trained with W_VP tied to W_QK; what other settings of the
training change; and both forms as solvers, at equal cost, of problems of other sizes, the step sizes of both trained.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eagle_jax import ahead, extraction, pretrained, problems, training
from eagle_jax.pretrained import Pretrained
from eagle_jax.update import State, update_ahead
from experiments import common, emergence, study

ITEM = "computation_limited"
FORMS = ("own", "ahead", "flat", "general")
METHODS = ("paper", "one", "next", "others", "all")


@dataclasses.dataclass(frozen=True)
class Config:
    """sizes: (n, r, steps, variance of the noise) of the solvers' problems."""

    tasks: int = 2048
    runs: int = 10
    seed: int = 61
    sizes: tuple[tuple[int, int, int, float], ...] = (
        (18, 5, 4, 0.0),
        (18, 5, 4, 0.01),
        (60, 15, 4, 0.0),
        (60, 8, 8, 0.0),
        (240, 60, 4, 0.0),
    )
    train_steps: int = 800
    entries: int = 300_000  # of A in a batch
    models: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(pretrained.available()))
    studies: tuple[str, ...] = dataclasses.field(default_factory=lambda: study.shipped())


# ---- the shipped networks -----------------------------------------------------------------------------------


def forms(run: Pretrained, blocks) -> dict[str, jax.Array]:
    """Z after every layer, by what was read from the network."""
    architecture, found = run.config.architecture, ahead.extract(run.weights, run.config.architecture)
    general = extraction.as_weights(extraction.two_sketches(extraction.products(run.weights), architecture))
    return {
        "own": extraction.algorithm(extraction.extract(run.weights, architecture), blocks),
        "ahead": ahead.run(found, blocks),
        "flat": ahead.run(found.flat(), blocks),
        "general": architecture.activations(general, architecture.tokens(blocks)),
    }


def seen(Z, later: np.ndarray) -> np.ndarray:
    """Z after every layer, of A and B what later layers read: the rest is anything."""
    n = later.shape[-1]
    columns = np.concatenate([np.eye(n)[None], later])  # before the first layer all of it
    lead = np.einsum("ltij,ljk->ltik", np.asarray(Z)[..., :n], columns)
    return np.concatenate([lead, np.asarray(Z)[..., n:]], axis=-1)


def measure(run: Pretrained, cfg: Config) -> dict:
    architecture = run.config.architecture
    blocks, Z, wanted = training.sample(run.config, common.keys(cfg.seed, cfg.tasks))
    network = architecture.activations(run.weights, Z)
    p, found = extraction.products(run.weights), ahead.extract(run.weights, architecture)
    result = ahead.shares(p, architecture)._asdict() | {"eta_rho": found.eta_rho, "gamma_rho": found.gamma_rho}
    result["mse"] = np.median(emergence.errors(architecture, network, wanted), axis=1)
    later = ahead.read_later(extraction.sketches(p, architecture))
    for name, history in forms(run, blocks).items():
        gap = extraction.gap(architecture, seen(network, later), seen(history, later))
        errors = emergence.errors(architecture, history, wanted)
        result |= {f"{name}_Z": np.median(gap.Z, axis=1), f"{name}_D": np.median(gap.D, axis=1)}
        result[f"{name}_mse"] = np.median(errors, axis=1)
    return result


# ---- networks that were trained otherwise -------------------------------------------------------------------


def studied(run: Pretrained, cfg: Config) -> dict:
    """Error and structure of one network on tasks of its own kind."""
    architecture = run.config.architecture
    _, Z, wanted = training.sample(run.config, common.keys(cfg.seed, cfg.tasks))
    history = architecture.activations(run.weights, Z)
    p = extraction.products(run.weights)
    kappa = emergence.conditions(run, history)
    found = emergence.sketching(p, architecture)["difference"][:-1]
    later = ahead.shares(p, architecture)
    return {
        "study_setting": study.setting(run.config),
        "study_difference": np.array([found.min(), np.median(found), found.max()]),
        "study_kappa": kappa[[0, -2]],
        "study_mse": np.median(emergence.errors(architecture, history, wanted)[-1]),
        "study_later": np.median(later.later_read),
        "study_seed": run.config.seed,
    }


# ---- solvers ------------------------------------------------------------------------------------------------


def widths(method: str, n: int, r: int, steps: int, key) -> tuple[jax.Array, jax.Array]:
    """(S, T) of every step. Rotations do not change the tasks' distribution: columns in turn are like any S."""
    eye = jnp.eye(n, dtype=jnp.float32)
    turn = jnp.stack([eye[:, (l * r + np.arange(r)) % n] for l in range(steps + 1)])
    others = eye - turn[:-1] @ turn[:-1].mT
    fresh = jnp.linalg.qr(jax.random.normal(key, (steps, n, r), jnp.float32))[0]
    same = jnp.broadcast_to(turn[:1], fresh.shape)
    pairs = {"paper": (fresh, fresh), "one": (same, same), "next": (turn[:-1], turn[1:]), "others": (turn[:-1], others)}
    return (pairs | {"all": (turn[:-1], jnp.broadcast_to(eye, others.shape))})[method]


def answers(tasks, logs, S, T):
    """D after each step, tasks x steps x d' x n'."""
    eta, gamma = jnp.exp(logs)

    def one(A, B, C):
        def step(state, sizes):
            S, T, eta, gamma = sizes
            state = update_ahead(state, 1.0, eta, gamma, S=S, T=T)
            return state, state.D

        start = State(A, B, C, jnp.zeros((B.shape[0], C.shape[1]), A.dtype))
        return jax.lax.scan(step, start, (S, T, eta, gamma))[1]

    return jax.vmap(one)(tasks.A, tasks.B, tasks.C)


@partial(jax.jit, static_argnums=(1, 2, 3))
def draw(key, n: int, noise: float, count: int) -> problems.Problem:
    """Training tasks of another size: rank and decay scaled so that the spectrum falls by as much."""
    s = round(n * 10 / 18)
    make = partial(problems.training_task, n=n, d=n, s=s, decay=0.7 ** (10 / s), noise=noise, dtype=jnp.float32)
    return jax.vmap(make)(jax.random.split(key, count))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def tuned(n: int, noise: float, batch: int, steps: int, logs, S, T, key):
    """Adam on the logarithms of eta and gamma, with the loss of the networks' training."""
    optimiser = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(optax.cosine_decay_schedule(5e-2, steps)))

    def loss(logs, key):
        tasks = draw(key, n, noise, batch)
        return jnp.mean(jnp.square(answers(tasks, logs, S, T)[:, -1] - tasks.D))

    def step(carry, key):
        logs, state = carry
        gradient = jnp.nan_to_num(jax.grad(loss)(logs, key), nan=0.0, posinf=0.0, neginf=0.0)
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(logs, updates), state), None

    return jax.lax.scan(step, (logs, optimiser.init(logs)), jax.random.split(key, steps))[0][0]


def solvers(size: tuple[int, int, int, float], cfg: Config) -> np.ndarray:
    """METHODS x (steps + 1): median over fresh tasks of the squared error."""
    n, r, steps, noise = size
    batch = max(1, min(256, cfg.entries // n**2))
    keys = jax.random.split(jax.random.key(cfg.seed), 4)
    test = draw(keys[0], n, noise, max(64, min(cfg.tasks, 4 * batch)))
    rows = []
    for method in METHODS:
        S, T = widths(method, n, r, steps, keys[1])
        norm = jnp.median(jnp.linalg.norm(test.A[:64] @ S[0], 2, axis=(-2, -1)))
        logs = jnp.full((2, steps), jnp.log(0.5 / norm**2), jnp.float32)
        logs = tuned(n, noise, batch, cfg.train_steps, logs, S, T, keys[2])
        D = jax.jit(answers)(test, logs, S, T)
        D = jnp.concatenate([jnp.zeros_like(D[:, :1]), D], axis=1)
        rows.append(np.median(np.mean(np.square(D - test.D[:, None]), axis=(-2, -1)), axis=0))
    return np.stack(rows)


def run(cfg: Config) -> common.Results:
    models = emergence.Config(runs=cfg.runs, models=cfg.models)
    results: common.Results = {"forms": np.array(FORMS), "methods": np.array(METHODS)}
    usual: list[Pretrained] = []
    for tag in ("CL", "CLn"):
        networks = emergence.shipped(models, tag)
        results[f"{tag}_seeds"] = np.array([r.config.seed for r in networks], int)
        usual += networks
        rows = [measure(r, cfg) for r in common.track(networks, f"E17 {tag}")]
        results |= {f"{tag}_{name}": np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    others = [pretrained.read(study.FOLDER / f"{name}.npz", study.Study) for name in cfg.studies]
    rows = [studied(r, cfg) for r in common.track(usual + others, "E17 settings")]
    results |= {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    results["sizes"] = np.array(cfg.sizes)
    for i, size in enumerate(common.track(cfg.sizes, "solvers")):
        results[f"solvers_{i}"] = solvers(size, cfg)
    return results


PRESETS = {
    "quick": Config(tasks=256, runs=1, sizes=((18, 5, 4, 0.0),), train_steps=50),
    "default": Config(tasks=512, sizes=(*Config.sizes[:2], Config.sizes[3]), train_steps=200, entries=150_000),
    "full": Config(),
}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
