"""E1-E13: what the shipped networks compute, measured from their weights.

    python -m experiments.emergence        (every shipped seed, at most 10 per setting)

Paper, 10 seeds per setting: median test error falls 10-50x over 4 layers to about 1e-3 (E1); W_QK = diag(a1 I, 0) and
W_VP = diag(a2 I, a3 I) (E2), on machines only the (C, D) part of W_VP is shared (E7), with narrow heads a rank-5 sketch
S S^T in both, relative difference 0.28 (E8); a1 a2 max||A_l||² about -1, a3/a2 about 1.9 (E3); squared difference of
network and algorithm x1e-4 in layers 1-4: U 2.36 5.27 3.70 2.16, D 0.62 1.40 1.28 1.32, C-L 0.01 0.02 0.13 0.14 (E4);
fixing a3 = 1.92 a2 changes predictions by 3.5e-4 (E5); one head does as well as eight (E6); the same with noise (E9);
2 and 3 levels suffice (E10); spikes of the loss come with large ||A|| (E11); condition numbers fall (E12); the
estimation network is the estimation form (E13).
"""

import dataclasses

import jax
import numpy as np

from eagle_jax import estimation_network, extraction, pretrained, training
from eagle_jax.blocks import Blocks
from eagle_jax.extraction import Extracted, Products
from eagle_jax.pretrained import Pretrained
from eagle_jax.training import TrainConfig
from eagle_jax.transformer import Architecture
from experiments import common

ITEM = "emergence"
BATCH = 1024  # of training: the norms that a network sees at once
PAPER_RATIO = 1.92
LEVELS = (1, 2, 3, 4, 5, 6, 8)
REFERENCES = 64  # random sketches to compare with
BATCHES = 100  # whose largest ||A|| is the usual one


@dataclasses.dataclass(frozen=True)
class Config:
    """`models` is there so that results are not reused once other weights are shipped."""

    tasks: int = 4096
    runs: int = 10
    seed: int = 21
    models: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(pretrained.available()))


PRESETS = {"quick": Config(tasks=256, runs=1), "default": Config(tasks=2048), "full": Config()}

# tag in the results: (regime, heads, variance of the noise, initial standard deviation)
SETTINGS = {
    "U": ("unconstrained", 1, 0.0, TrainConfig.std),
    "D": ("distributed", 1, 0.0, TrainConfig.std),
    "CL": ("computation_limited", 1, 0.0, TrainConfig.std),
    "Un": ("unconstrained", 1, 0.01, 0.1),
    "Dn": ("distributed", 1, 0.01, 0.1),
    "CLn": ("computation_limited", 1, 0.01, 0.1),
    "U8": ("unconstrained", 8, 0.0, 0.1),
    "E": ("estimation", 1, 0.0, 0.1),
}


def shipped(cfg: Config, tag: str) -> list[Pretrained]:
    """The runs of a setting with the paper's sign, by seed."""
    found = [pretrained.read(pretrained.FOLDER / f"{name}.npz") for name in cfg.models]
    wanted = lambda c: (c.architecture.regime, c.architecture.heads, c.noise, c.std) == SETTINGS[tag]  # noqa: E731
    usual = (r for r in found if wanted(r.config) and r.config.architecture.sign == Architecture.sign)
    return sorted(usual, key=lambda r: r.config.seed)[: cfg.runs]


def sample(run: Pretrained, cfg: Config) -> tuple[Blocks, jax.Array, jax.Array]:
    """The same tasks for every run of a setting; not those of training."""
    return training.sample(run.config, common.keys(cfg.seed, cfg.tasks))


# ---- one run ------------------------------------------------------------------------------------------------


def errors(architecture: Architecture, history, wanted) -> np.ndarray:
    """(layers + 1) x tasks: squared error of the read-out."""
    return (
        np.stack([np.mean(np.square(architecture.read_out(z) - wanted), axis=(-2, -1)) for z in history])
        .reshape(len(history), len(wanted), -1)
        .mean(-1)
    )


def conditions(run: Pretrained, history) -> np.ndarray:
    """Median over tasks (and machines) of sigma_1 / sigma_s of A_l; s is the rank of the noiseless tasks."""
    A = extraction.machine_blocks(run.config.architecture, history).A
    s = np.linalg.svd(A, compute_uv=False)
    last = min(run.config.factors, s.shape[-1]) - 1
    return np.median(s[..., 0] / s[..., last], axis=(1, 2))


def conditions_read(extracted: Extracted, history) -> np.ndarray:
    """Median condition number of A_l S_l, the columns that a layer with a sketch reads."""
    A = extraction.machine_blocks(extracted.architecture, history[:-1]).A[:, :, 0]
    s = np.linalg.svd(A @ np.asarray(extracted.S)[:, None], compute_uv=False)
    return np.median(s[..., 0] / s[..., -1], axis=1)


def gaps(name: str, gap: extraction.Gap) -> dict:
    """Mean and median over tasks, per layer."""
    return {
        f"{name}": gap.Z.mean(1),
        f"{name}_median": np.median(gap.Z, axis=1),
        f"{name}_D": gap.D.mean(1),
        f"{name}_D_median": np.median(gap.D, axis=1),
    }


def structure(p: Products, architecture: Architecture) -> dict:
    """Matrix properties of W_QK and of W_VP's own block, per layer; heads averaged."""
    n, found = architecture.width - architecture.n_out, {}
    for name, stack in (("QK", p.QK), ("VP", extraction.own_blocks(p, architecture))):
        rows = [[extraction.properties(W, n) for W in layer] for layer in stack]
        for field in ("diagonality", "off_block", "rank", "spectrum"):
            found[f"{name}_{field}"] = np.array([np.mean([getattr(x, field) for x in row], axis=0) for row in rows])
    return found


def messages(p: Products, architecture: Architecture) -> dict:
    """What goes to other machines: norms of their blocks over those of the own one, per layer."""
    M, n = architecture.blocks, architecture.width - architecture.n_out
    blocks, own = extraction.blocks_of(p.VP, architecture), extraction.own_blocks(p, architecture)
    foreign = np.stack([blocks[:, u, v] for u in range(M) for v in range(M) if u != v], axis=1)
    norm = lambda W: np.sqrt(np.mean(np.sum(W**2, axis=(-2, -1)), axis=1))  # noqa: E731
    factor = lambda W: np.trace(W[..., n:, n:], axis1=-2, axis2=-1).mean(1) / architecture.n_out  # noqa: E731
    return {
        "foreign_AB": norm(foreign[..., :n, :n]) / norm(own[..., :n, :n]),
        "foreign_CD": norm(foreign[..., n:, n:]) / norm(own[..., n:, n:]),
        "factor_ratio": factor(foreign) / factor(own),
    }


def sketching(p: Products, architecture: Architecture) -> dict:
    """E8, of the leading blocks scaled to mean eigenvalue 1 (QK) or spectral norm 1 (the relative difference)."""
    n, r = architecture.width - architecture.n_out, architecture.rank
    Q, V = p.QK[:, 0, :n, :n], p.VP[:, 0, :n, :n]
    symmetric = (Q + Q.swapaxes(-1, -2)) / 2
    unit = symmetric * r / np.trace(symmetric, axis1=-2, axis2=-1)[:, None, None]
    ahead = extraction.look_ahead(p, architecture)
    return {
        "difference": np.array([extraction.relative_difference(q, v) for q, v in zip(Q, V, strict=True)]),
        "unit": unit,
        "asymmetry": np.linalg.norm(Q - symmetric, axis=(1, 2)) / np.linalg.norm(Q, axis=(1, 2)),
        "own": ahead.own,
        "next": ahead.next,
        "read": ahead.read,
    }


def with_ratio(extracted: Extracted, ratio: float) -> Extracted:
    """a3 = ratio a2 (gamma = ratio eta) but in the last layer, whose a2 the loss does not see."""
    alphas = extracted.alphas.copy()
    alphas[:-1, :, 2] = ratio * alphas[:-1, :, 1] / extracted.architecture.blocks
    return extracted._replace(alphas=alphas)


def by_laws(extracted: Extracted, norms: np.ndarray) -> Extracted:
    """No fitted number at all: a1 a2 = -1/max||A_l||², a1 a3 = -1.92/max||A_l||²."""
    unit = extraction.scaling(extracted._replace(alphas=np.ones_like(extracted.alphas)), norms, BATCH).eta_largest
    rho = 1 / np.abs(unit)
    M, heads = extracted.architecture.blocks, extracted.alphas.shape[1]
    a = np.stack([np.ones_like(rho), -rho / heads, -PAPER_RATIO * rho / heads / M], axis=-1)
    return extracted._replace(alphas=np.repeat(a[:, None], heads, axis=1))


def levels_curve(p: Products, architecture: Architecture, history, Z) -> dict:
    """Squared change of the prediction by sparsifying, and by clustering to so many values: E10."""
    stages = {"sparse": extraction.sparse(p), "paper": extraction.clustered(p)}
    stages |= {f"{k}": extraction.clustered(p, (k, k)) for k in LEVELS}
    found = {}
    for name, q in stages.items():
        gap = extraction.gap(architecture, history, architecture.activations(extraction.as_weights(q), Z))
        found[name] = gap.D[-1]
    curve = np.stack([found[f"{k}"] for k in LEVELS])
    return {
        "levels_mean": curve.mean(-1),
        "levels_median": np.median(curve, axis=-1),
        "sparse_mean": found["sparse"].mean(),
        "sparse_median": np.median(found["sparse"]),
        "clustered_mean": found["paper"].mean(),
        "clustered_median": np.median(found["paper"]),
    }


def algorithms(run: Pretrained, extracted: Extracted, history, blocks: Blocks, norms) -> dict:
    """The network against what was read from it: the paper's form, the general form, and fixed laws."""
    architecture, Z = run.config.architecture, history[0]
    p = extraction.products(run.weights)
    one = extraction.algorithm(extracted, blocks)
    general = architecture.activations(extraction.as_weights(extraction.two_sketches(p, architecture)), Z)
    fixed = extraction.algorithm(with_ratio(extracted, PAPER_RATIO), blocks)
    laws = extraction.algorithm(by_laws(extracted, norms), blocks)
    found = gaps("form", extraction.gap(architecture, history, one))
    found |= gaps("general", extraction.gap(architecture, history, general))
    found |= gaps("fixed", extraction.gap(architecture, one, fixed))
    return found | gaps("laws", extraction.gap(architecture, one, laws))


def measure(run: Pretrained, cfg: Config) -> dict:
    """Everything about one network that completes D."""
    architecture = run.config.architecture
    blocks, Z, wanted = sample(run, cfg)
    history = architecture.activations(run.weights, Z)
    p, extracted = extraction.products(run.weights), extraction.extract(run.weights, architecture)
    norms = extraction.norms_of(extracted, np.asarray(history))
    squares = errors(architecture, history, wanted)
    found = {"mse": np.median(squares, axis=1), "mse_mean": squares.mean(1), "kappa": conditions(run, history)}
    found |= {"QK": p.QK, "VP": p.VP, "eta_rho": extracted.eta_rho, "gamma_rho": extracted.gamma_rho}
    found |= extraction.scaling(extracted, norms, BATCH)._asdict()
    found |= extracted.residuals._asdict() | structure(p, architecture)
    if architecture.heads > 1:
        return found
    found |= algorithms(run, extracted, history, blocks, norms)
    if architecture.regime == "unconstrained":
        found |= levels_curve(p, architecture, history, Z)
    if architecture.regime == "distributed":
        found |= messages(p, architecture)
    if architecture.regime == "computation_limited":
        found |= sketching(p, architecture) | {"kappa_read": conditions_read(extracted, history)}
    return found


def measure_estimation(run: Pretrained, cfg: Config) -> dict:
    architecture = run.config.architecture
    blocks, Z, wanted = sample(run, cfg)
    history = architecture.activations(run.weights, Z)
    squares = errors(architecture, history, wanted)
    p, extracted = extraction.products(run.weights), estimation_network.extract(run.weights, architecture)
    norms = np.linalg.norm(np.asarray(history[:-1, :, : architecture.n, : architecture.d]), ord=2, axis=(-2, -1))
    found = {"mse": np.median(squares, axis=1), "mse_mean": squares.mean(1), "QK": p.QK, "VP": p.VP, "bias": p.bias}
    found |= {"alphas": extracted.alphas, "beta": extracted.beta, "residuals": extracted.residuals}
    found |= {"eta_median": extracted.eta_rho * np.median(norms, axis=1) ** 2}
    found |= {"eta_largest": extracted.eta_rho * norms.max(1) ** 2}
    return found | gaps("form", estimation_network.fidelity(run.weights, extracted, blocks))


# ---- all runs -----------------------------------------------------------------------------------------------


def training_record(runs: list[Pretrained]) -> dict:
    """E11: the loss (median and largest of every 20 steps), and the largest ||A|| of the batches that spiked."""
    spikes = [[(s["step"], s["loss"] / s["median"], s["norm"]) for s in r.metrics["spikes"]] for r in runs]
    flat = np.array([row for rows in spikes for row in rows]).reshape(-1, 3)
    usual = np.repeat([r.metrics["usual largest norm"] for r in runs], [len(rows) for rows in spikes])
    return {
        "loss_median": np.stack([r.loss[0] for r in runs]),
        "loss_largest": np.stack([r.loss[1] for r in runs]),
        "spike_step": flat[:, 0],
        "spike_height": flat[:, 1],
        "spike_norm": flat[:, 2] / usual,
        "spikes": np.array([len(rows) for rows in spikes]),
        "steps": np.array([r.config.steps for r in runs]),
    }


def largest_norms(run: Pretrained) -> np.ndarray:
    """Largest ||A|| of batches that training has not seen, over its median there; the same for all noiseless tasks."""
    key = training.init(run.config).key
    norms = [training.largest_norm(run.config, key, run.config.steps + i) for i in range(BATCHES)]
    return np.array(norms) / run.metrics["usual largest norm"]


def run(cfg: Config) -> common.Results:
    results: common.Results = {"levels": np.array(LEVELS), "batch": min(BATCH, cfg.tasks)}
    for tag in SETTINGS:
        runs = shipped(cfg, tag)
        results[f"{tag}_seeds"] = np.array([r.config.seed for r in runs], int)
        if not runs:
            continue
        one = measure_estimation if tag == "E" else measure
        rows = [one(r, cfg) for r in common.track(runs, f"{tag}: {len(runs)} runs")]
        found = {name: np.stack([row[name] for row in rows]) for name in rows[0]} | training_record(runs)
        results |= {f"{tag}_{name}": value for name, value in found.items()}
        if "batch_norms" not in results and runs[0].config.noise == 0:
            results["batch_norms"] = largest_norms(runs[0])
    reference = extraction.random_projectors(cfg.seed, 18, 5, REFERENCES)
    return results | {"random_sketch": reference}


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
