"""Figures of E1-E13, E15 and E16 from stored results; report.py draws them in its style. Nothing is measured here.

A regime has the same colour in every figure, and what is not a regime has none of theirs. Thin lines are single runs,
thick ones their medians.
"""

import warnings
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from experiments import common
from experiments.emergence_claims import PAPER_FIDELITY
from experiments.palette import EXTRACTED, GREY, METHODS
from experiments.palette import NETWORK_NAMES as LABELS
from experiments.palette import NETWORKS as COLOURS

DIVERGING = "RdBu_r"


def shipped(r: common.Results, *tags: str) -> list[str]:
    return [tag for tag in tags if r[f"{tag}_seeds"].size]


def absent(text: str) -> Figure:
    figure, ax = plt.subplots(figsize=(7.2, 1.2))
    ax.axis("off")
    ax.text(0.5, 0.5, f"not run: {text}", ha="center", va="center", color=GREY)
    return figure


def runs(ax: Axes, x, rows: np.ndarray, tag: str, **style) -> None:
    """Each run thin, their median thick: a network may diverge on one task."""
    colour, label = style.pop("color", COLOURS[tag]), style.pop("label", LABELS[tag])
    ax.plot(x, rows.T, color=colour, lw=0.6, alpha=0.5)
    ax.plot(x, _median(rows), color=colour, marker="o", ms=3.5, label=label, **style)


def _median(rows: np.ndarray) -> np.ndarray:
    """Over runs; NaN is a run that has no value there, and where most have none there is no median."""
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
        return np.where(np.isnan(rows).mean(0) > 0.5, np.nan, np.nanmedian(rows, axis=0))


def counted(seeds: np.ndarray) -> str:
    return f"{seeds.size} run{'s' * (seeds.size != 1)}"


def layers(ax: Axes, last: int, first: int = 0) -> None:
    ax.set_xticks(range(first, last + 1))
    ax.set_xlabel("layer")


def plain_ticks(ax: Axes, values, axis: str = "y") -> None:
    """Plain numbers on a logarithmic axis."""
    getattr(ax, f"set_{axis}ticks")(values, [f"{v:g}" for v in values])
    getattr(ax, f"{axis}axis").set_minor_locator(NullLocator())


def _emergence_row(axes, r: common.Results, tags: dict[str, str], **style) -> None:
    """Test error, condition number, abstracted parameters; `tags` maps results to their colour."""
    for source, tag in tags.items():
        label = {"label": f"{LABELS[tag]} ({counted(r[f'{source}_seeds'])})"} | style
        runs(axes[0], range(5), r[f"{source}_mse"], tag, **label)
        runs(axes[1], range(4), r[f"{source}_kappa"][:, :-1], tag, **label)
        runs(axes[2], range(1, 4), r[f"{source}_eta_largest"][:, :-1], tag, **label)
        ratio = r[f"{source}_gamma_rho"][:, :-1] / r[f"{source}_eta_rho"][:, :-1]
        runs(axes[3], range(1, 4), np.where(ratio > 0, ratio, np.nan), tag, **label)
    axes[0].set(yscale="log", title="median test error")
    plain_ticks(axes[0], (0.001, 0.003, 0.01, 0.03))
    axes[1].set(yscale="log", title="condition of $A_\\ell$, median")
    plain_ticks(axes[1], (10, 20, 50, 100))
    axes[2].axhline(1, color=GREY, lw=0.9, ls=":")
    axes[2].set(title="$η = -a_1a_2\\max\\|A_\\ell\\|^2$", ylim=(0, None))
    axes[3].axhline(1.92, color=GREY, lw=0.9, ls=":")
    axes[3].annotate("1.92", (1, 1.92), (8, 3), textcoords="offset points", fontsize=8, color=GREY)
    axes[3].set(yscale="log", title="γ/η", ylim=(0.9, 10))
    plain_ticks(axes[3], (1, 2, 4, 8))
    for ax, first in zip(axes, (0, 0, 1, 1), strict=True):
        layers(ax, 4 if ax is axes[0] else 3, first)


def emergence(r: common.Results) -> Figure:
    tags = shipped(r, "U", "D", "CL")
    if not tags:
        return absent("no weights")
    figure, axes = plt.subplots(1, 4, figsize=(7.2, 2.5))
    _emergence_row(axes, r, {tag: tag for tag in tags})
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def noise(r: common.Results) -> Figure:
    tags = [tag for tag in ("U", "D", "CL") if shipped(r, tag) and shipped(r, f"{tag}n")]
    if not tags:
        return absent("no weights of networks trained with noise")
    figure, axes = plt.subplots(1, 4, figsize=(7.2, 2.6))
    _emergence_row(axes, r, {f"{tag}n": tag for tag in tags})
    for tag in tags:
        axes[0].plot(range(5), np.median(r[f"{tag}_mse"], axis=0), color=COLOURS[tag], ls=":", lw=1)
        axes[1].plot(range(4), np.median(r[f"{tag}_kappa"], axis=0)[:-1], color=COLOURS[tag], ls=":", lw=1)
        axes[2].plot(range(1, 4), np.median(r[f"{tag}_eta_largest"], axis=0)[:-1], color=COLOURS[tag], ls=":", lw=1)
    axes[2].set_ylim(-0.5, 2.5)
    axes[3].set_title("γ/η, where η > 0")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle("variance of the noise 0.01; dotted: networks trained without", fontsize=9)
    return figure


# ---- weights ------------------------------------------------------------------------------------------------


def heat_map(ax: Axes, W: np.ndarray, cuts: list[int]) -> None:
    """Zero-centred, with the lines between blocks."""
    size = np.abs(W).max()
    ax.imshow(W, cmap=DIVERGING, vmin=-size, vmax=size, interpolation="nearest")
    for cut in cuts:
        if cut < W.shape[1]:
            ax.axvline(cut - 0.5, color="black", lw=0.5)
        if cut < W.shape[0]:
            ax.axhline(cut - 0.5, color="black", lw=0.5)
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set(visible=True, linewidth=0.5)
    ax.set_xlabel(f"±{size:.2g}", fontsize=7, labelpad=1)


def block_labels(ax: Axes, cuts: list[int], width: int) -> None:
    """A and C above the columns that hold them."""
    edges = [0, *cuts, width]
    names = ("A", "C") * (len(edges) // 2)
    for low, high, name in zip(edges, edges[1:], names, strict=False):
        ax.text((low + high - 1) / 2, -0.8, name, ha="center", va="bottom", fontsize=6, color=GREY)


def _cuts(tag: str) -> list[int]:
    return [6, 8, 14, 16, 22] if tag == "D" else [18]


def _weights(r: common.Results, pick: Callable[[np.ndarray], np.ndarray], title: str) -> Figure:
    tags = shipped(r, "U", "D", "CL")
    if not tags:
        return absent("no weights")
    figure, axes = plt.subplots(2 * len(tags), 4, figsize=(6.0, 3.05 * len(tags)))
    for row, (tag, name) in enumerate((tag, name) for tag in tags for name in ("QK", "VP")):
        stack = pick(r[f"{tag}_{name}"])
        for layer, ax in enumerate(axes[row]):
            W = stack[layer].reshape(-1, stack.shape[-1])  # heads of machines below each other
            cuts = [cut for cut in _cuts(tag) if cut < W.shape[1]]
            heat_map(ax, W, cuts)
            block_labels(ax, cuts, W.shape[1])
            if row == 0:
                ax.set_title(f"layer {layer + 1}", pad=12)
        label = f"$W_{{{name}}}$"
        axes[row, 0].set_ylabel(f"{LABELS[tag]}\n{label}" if name == "QK" else label, fontsize=8)
    figure.suptitle(title, fontsize=9)
    return figure


def weights(r: common.Results) -> Figure:
    return _weights(
        r, lambda x: x[0], "one run; rows are read, columns written; each map has its own scale, 0 is white"
    )


def weights_mean(r: common.Results) -> Figure:
    counts = ", ".join(f"{r[f'{tag}_seeds'].size} {tag.replace('CL', 'C-L')}" for tag in shipped(r, "U", "D", "CL"))
    return _weights(r, lambda x: x.mean(0), f"mean over the runs ({counts}), signs aligned; 0 is white")


def estimation(r: common.Results) -> Figure:
    if not shipped(r, "E"):
        return absent("no weights of the estimation network")
    figure, axes = plt.subplots(3, 4, figsize=(6.0, 3.9), height_ratios=(1, 1, 0.2))
    for row, name in enumerate(("QK", "VP", "bias")):
        for layer, ax in enumerate(axes[row]):
            W = r[f"E_{name}"][0, layer]
            heat_map(ax, W if name == "bias" else W[0], [18] if name != "bias" else [])
            if row == 0:
                ax.set_title(f"layer {layer + 1}")
        axes[row, 0].set_ylabel("$W_B$" if name == "bias" else f"$W_{{{name}}}$")
    for ax in axes[2]:
        ax.axvline(17.5, color="black", lw=0.5)
    median = " ".join(f"{x:.2g}" for x in np.median(r["E_mse"], axis=0))
    title = f"one run; rows of $W_B$: data tokens, answer token; median test error of W by layer: {median}"
    figure.suptitle(title, fontsize=8)
    return figure


# ---- laws, fidelity, simplification -------------------------------------------------------------------------


def scaling(r: common.Results) -> Figure:
    tags = shipped(r, "U", "D", "CL")
    if not tags:
        return absent("no weights")
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.8))
    for tag in tags:
        for ax, name, last in ((axes[0], "eta", 3), (axes[1], "gamma", 4)):
            x = range(1, last + 1)
            runs(ax, x, r[f"{tag}_{name}_largest"][:, :last], tag)
            ax.plot(x, np.median(r[f"{tag}_{name}_median"], axis=0)[:last], color=COLOURS[tag], ls="--", lw=1)
    for ax, level, name in ((axes[0], 1, "η"), (axes[1], 1.92, "γ")):
        ax.axhline(level, color=GREY, lw=0.9, ls=":")
        ax.set(
            yscale="log", ylim=(0.05, 30), title=f"{name} = step size times $\\|A_\\ell\\|^2$; dotted: paper's {level}"
        )
        layers(ax, 3 if name == "η" else 4, 1)
    handles, labels = axes[0].get_legend_handles_labels()
    handles += [Line2D([], [], color="black"), Line2D([], [], color="black", ls="--", lw=1)]
    figure.legend(handles, [*labels, "largest norm of a batch", "median norm"], loc="outside lower center", ncols=5)
    return figure


def fidelity(r: common.Results) -> Figure:
    tags = shipped(r, "U", "D", "CL")
    if not tags:
        return absent("no weights")
    figure, axes = plt.subplots(1, len(tags), figsize=(7.2, 2.8), sharey=True, squeeze=False)
    x = np.arange(1, 5)
    for ax, tag in zip(axes[0], tags, strict=True):
        runs(ax, x, r[f"{tag}_form_median"][:, 1:], tag, label="the paper's form, median task")
        ax.plot(x, np.median(r[f"{tag}_form"], axis=0)[1:], color=COLOURS[tag], ls="--", lw=1, label="mean task")
        runs(ax, x, r[f"{tag}_general"][:, 1:], tag, label="matrices for scalars, mean task", mfc="white", lw=1)
        ax.plot(x, np.array(PAPER_FIDELITY[tag]) * 1e-4, "x", color="black", ms=5, label="paper")
        ax.plot(x, np.median(r[f"{tag}_mse"], axis=0)[1:], color=GREY, ls=":", label="the network's test error")
        ax.set(yscale="log", title=f"{LABELS[tag]}, {counted(r[f'{tag}_seeds'])}", ylim=(3e-7, 0.1))
        layers(ax, 4, 1)
        last = np.median(r[f"{tag}_form"], axis=0)[-1]
        if last > 0.1:
            ax.annotate(f"mean task: to {last:.0e}", (1, 0.09), ha="left", va="top", fontsize=7, color=COLOURS[tag])
    axes[0, 0].set_ylabel("squared difference per entry of Z")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def fixed_ratio(r: common.Results) -> Figure:
    if not shipped(r, "U"):
        return absent("no weights")
    figure, ax = plt.subplots(figsize=(4.4, 2.9))
    x = range(1, 5)
    runs(ax, x, r["U_fixed_D_median"][:, 1:], "U", label="γ = 1.92 η")
    runs(
        ax,
        x,
        r["U_laws_D_median"][:, 1:],
        "U",
        color=EXTRACTED,
        label="η = 1, γ = 1.92, over $\\max\\|A_\\ell\\|^2$",
    )
    ax.plot(x, np.median(r["U_mse"], axis=0)[1:], color="black", ls=":", label="the network's test error")
    ax.plot(4, 3.5e-4, "x", color="black", ms=6)
    ax.annotate("paper", (4, 3.5e-4), (7, -3), textcoords="offset points", ha="left", fontsize=8)
    ax.set(yscale="log", ylabel="squared change of D, median task", xlim=(0.8, 4.6))
    layers(ax, 4, 1)
    ax.legend(fontsize=8)
    return figure


def heads(r: common.Results) -> Figure:
    if not shipped(r, "U8"):
        return absent("no weights of the network with 8 heads")
    figure, ax = plt.subplots(figsize=(3.8, 2.7))
    runs(ax, range(5), r["U_mse"], "U", label=f"1 head, {counted(r['U_seeds'])}")
    runs(ax, range(5), r["U8_mse"], "U8", label=f"8 heads, {counted(r['U8_seeds'])}")
    ax.set(yscale="log", ylabel="median test error")
    layers(ax, 4)
    ax.legend()
    return figure


def levels(r: common.Results) -> Figure:
    if not shipped(r, "U"):
        return absent("no weights")
    figure, ax = plt.subplots(figsize=(4.4, 2.9))
    runs(ax, r["levels"], r["U_levels_mean"], "U", label="so many values in both matrices")
    ax.plot(
        2.5,
        np.median(r["U_clustered_mean"]),
        "s",
        color=EXTRACTED,
        ms=6,
        label="2 in $W_{QK}$, 3 in $W_{VP}$ (as in the paper)",
    )
    ax.axhline(np.median(r["U_sparse_mean"]), color=EXTRACTED, lw=1, ls="--", label="sparsified only")
    ax.axhline(np.median(r["U_mse_mean"], axis=0)[-1], color="black", lw=1, ls=":", label="the network's own error")
    ax.set(yscale="log", xlabel="number of values, 0 included", ylabel="squared change of the prediction")
    ax.set_ylim(1e-4, 1)
    above = int(np.sum(r["U_levels_mean"].min(1) > 1))
    if above:
        ax.set_title(f"{counted(r['U_seeds'])}, of which {above} diverges on a task and is above", fontsize=8)
    ax.legend(fontsize=8)
    return figure


def sketch(r: common.Results) -> Figure:
    if not shipped(r, "CL"):
        return absent("no weights of the computation-limited network")
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.7))
    ours, reference = r["CL_unit"].reshape(-1, 18, 18), r["random_sketch"]
    off = ~np.eye(18, dtype=bool)
    pairs = (
        (axes[0], np.linalg.eigvalsh(ours), np.linalg.eigvalsh(reference), (-0.5, 8), "eigenvalue"),
        (axes[1], ours[:, off], reference[:, off], (-1.5, 1.5), "entry off the diagonal"),
    )
    for ax, mine, random, span, title in pairs:
        outside = int(np.sum((mine < span[0]) | (mine > span[1])))
        style = {"bins": 41, "range": span, "density": True}
        ax.hist(random.ravel(), color="#BBBBBB", label="$SS^T$, random $S$", **style)
        ax.hist(
            mine.ravel(), histtype="step", color=COLOURS["CL"], lw=1.6, label="$W_{QK}$, mean eigenvalue 1", **style
        )
        ax.set(xlabel=title, yscale="log", ylabel="density" if ax is axes[0] else "")
        ax.set_title("leading block of $W_{QK}$" + (f"\n({outside} of {mine.size} outside)" if outside else ""))
    x = np.arange(1, 4)
    runs(axes[2], x, r["CL_own"], "CL", color=EXTRACTED, label="on columns that its own layer reads")
    runs(axes[2], x, r["CL_next"], "CL", label="on columns that the next layer reads")
    axes[2].set(title="$W_{VP}$ off a multiple of $I$", ylim=(0, 1))
    layers(axes[2], 3, 1)
    (handles, labels), (more, names) = (ax.get_legend_handles_labels() for ax in (axes[0], axes[2]))
    figure.legend(handles + more, labels + names, loc="outside lower center", ncols=2)
    return figure


def loss(r: common.Results) -> Figure:
    tags = shipped(r, "U", "D", "CL")
    if not tags:
        return absent("no weights")
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), width_ratios=(1.5, 1))
    for tag in tags:
        rows = r[f"{tag}_loss_median"]
        steps = np.arange(rows.shape[1]) * r[f"{tag}_steps"][0] / rows.shape[1]
        if tag == tags[0]:
            top = np.nan_to_num(r[f"{tag}_loss_largest"][0], nan=1e30, posinf=1e30)
            left.plot(steps, np.clip(top, 1e-4, 1e6), color="#CCCCCC", lw=0.4)
        left.plot(steps, np.median(rows, axis=0), color=COLOURS[tag], lw=1.2, label=LABELS[tag])
        right.hist(r[f"{tag}_spike_norm"], bins=40, range=(0.8, 1.6), density=True, histtype="step", color=COLOURS[tag])
    left.set(
        yscale="log",
        xlabel="step",
        ylabel="loss",
        ylim=(1e-3, 1e3),
        title="median of 20 steps and of runs; grey: largest, one run",
    )
    left.set_xticks([0, 5000, 10000, 15000, 20000], ["0", "5k", "10k", "15k", "20k"])
    right.hist(r["batch_norms"], bins=40, range=(0.8, 1.6), density=True, color="#DDDDDD", zorder=0)
    right.axvline(np.quantile(r["batch_norms"], 0.9), color=GREY, lw=0.9, ls=":")
    right.set(xlabel="largest ‖A‖ of the batch / its median", ylabel="density")
    right.set_title("steps that spiked; grey: all batches,\ndotted: their 90 % quantile")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


# ---- ours ---------------------------------------------------------------------------------------------------


METHOD_STYLE = {
    "network": {"color": "black", "ls": ":", "marker": "s", "label": "network"},
    "schedule": {"color": EXTRACTED, "ls": "-", "marker": "o", "label": "its four steps"},
    "scaled": {"color": COLOURS["U"], "ls": "-", "marker": "o", "label": "the same, ‖A‖ as in training"},
    "paper": {"color": METHODS["paper"], "ls": "--", "marker": None, "label": "paper's constants, four steps"},
}


def transfer(r: common.Results) -> Figure:
    if r["seeds"].size == 0:
        return absent("no weights")
    figure, axes = plt.subplots(1, 5, figsize=(8.0, 2.8), width_ratios=(1, 1, 1, 1, 1.15))
    titles = {"factor": "‖A‖ times", "n": "size n = d", "s": "rank", "decay": "spectral decay"}
    ticks = {"factor": (0.125, 0.5, 1, 2, 4), "n": (6, 18, 48, 144), "s": (1, 5, 10, 18), "decay": (0.3, 0.5, 0.7, 1)}
    usual = {"factor": 1, "n": 18, "s": 10, "decay": 0.7}
    for ax, (name, title) in zip(axes, titles.items(), strict=False):
        ax.axvline(usual[name], color="#DDDDDD", lw=4, zorder=0)
        for i, method in enumerate(r["methods"].tolist()):
            error = np.clip(np.median(r[name][..., i], axis=0), 1e-3, 30)
            ax.plot(r[f"{name}_values"], error, ms=2.5, lw=1.2, **METHOD_STYLE[method])
        ax.set(yscale="log", ylim=(4e-3, 10), title=title, xscale="log" if name in ("factor", "n") else "linear")
        plain_ticks(ax, ticks[name], "x")
        if ax is not axes[0]:
            ax.set_yticklabels([])
        ax.axhline(1, color=GREY, lw=0.5)
    axes[0].set_ylabel("relative error of D, median task")
    long = axes[4]
    for name, colour in (("emergent", METHODS["emergent"]), ("paper", METHODS["paper"]), ("schedule", EXTRACTED)):
        error = np.clip(r[f"long_{name}"], 1e-16, None)
        long.plot(np.arange(1, len(error) + 1), error, color=colour, ls="--" if name == "paper" else "-")
    long.annotate("η = 1, γ = 1.92", (39, 3e-2), color=METHODS["emergent"], fontsize=7, ha="right")
    long.annotate("η = 1/3, γ = 1", (18, 1e-13), color=METHODS["paper"], fontsize=7, ha="left")
    long.set(yscale="log", title="step, κ = 100", ylabel="relative error of D")
    long.yaxis.tick_right()
    long.yaxis.set_label_position("right")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def restart(r: common.Results) -> Figure:
    tags = [tag for tag in ("U", "D", "CL") if f"{tag}_mse" in r]
    if not tags:
        return absent("no weights")
    figure, axes = plt.subplots(1, len(tags), figsize=(7.2, 2.6), squeeze=False)
    names = {
        "trained": "as trained",
        "continued": "trained on",
        "restarted": "from the form",
        "tuned": "step sizes only",
    }
    shades = lambda tag: ("#BBBBBB", GREY, COLOURS[tag], EXTRACTED)  # noqa: E731
    for ax, tag in zip(axes[0], tags, strict=True):
        rows = r[f"{tag}_mse"][..., -1] * 1e3
        errors = np.median(rows, axis=0)
        ax.bar(range(4), errors, color=shades(tag), width=0.7)
        if len(rows) > 1:
            ax.plot(range(4), rows.T, "o", color="black", ms=2.5)
        ax.set_ylim(0, 1.12 * rows.max())
        for i, (value, top) in enumerate(zip(errors, rows.max(0), strict=True)):
            place = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
            ax.annotate(f"{value:.2f}", (i, top), (0, 2), fontsize=8, **place)
        ax.set_xticks(range(4), list(names.values()), rotation=30, ha="right", fontsize=7)
        ax.set_title(LABELS[tag])
        ax.grid(axis="x", visible=False)
    axes[0, 0].set_ylabel("median test error × 1000")
    count = len(r[f"{tags[0]}_mse"])
    dots = f"; median of {count} runs, which are the dots" if count > 1 else ""
    figure.suptitle(f"{int(r['steps'])} more steps of training{dots}", fontsize=9)
    return figure


FIGURES: dict[str, tuple[str, Callable[[common.Results], Figure]]] = {
    "e1_emergence": ("emergence", emergence),
    "e2_weights": ("emergence", weights),
    "e3_scaling": ("emergence", scaling),
    "e4_fidelity": ("emergence", fidelity),
    "e5_fixed_ratio": ("emergence", fixed_ratio),
    "e6_heads": ("emergence", heads),
    "e7_weights_mean": ("emergence", weights_mean),
    "e8_sketch": ("emergence", sketch),
    "e9_noise": ("emergence", noise),
    "e10_levels": ("emergence", levels),
    "e11_training": ("emergence", loss),
    "e13_estimation": ("emergence", estimation),
    "e15_transfer": ("transfer", transfer),
    "e16_restart": ("restart", restart),
}

CAPTIONS = {
    "e1_emergence": (
        "By layer: test error, condition number of A (first over tenth singular value, sixth on machines), and the "
        "step sizes read from the weights. Some thin lines leave the axes."
    ),
    "e2_weights": "The products W_QK and W_VP of one run, layer by layer, as heat maps; lines separate the blocks.",
    "e3_scaling": (
        "Step sizes times the squared norm of A, largest of a batch (solid) and median (dashed), by layer. Some "
        "thin lines leave the axes."
    ),
    "e4_fidelity": (
        "Squared difference between network and extracted algorithm after each layer; crosses: the paper's Table 1, "
        "which does not say whether it has the mean or the median task."
    ),
    "e5_fixed_ratio": "How much predictions change when the ratio of the step sizes, or both of them, are fixed.",
    "e6_heads": "Test error by layer of networks trained with one head and with eight.",
    "e7_weights_mean": "The products W_QK and W_VP averaged over runs; lines separate the blocks of the machines.",
    "e8_sketch": (
        "Eigenvalues and entries of W_QK's leading block against random sketches, all layers and runs; how far W_VP "
        "is from conditioning the columns that its own layer, or the next one, reads."
    ),
    "e9_noise": "As in E1, for networks trained on noisy data.",
    "e10_levels": "Change of the prediction when the weights are reduced to a few values.",
    "e11_training": (
        "Training loss, and the largest norm of A in the batches of the steps whose loss was above ten times the "
        "median around them."
    ),
    "e13_estimation": "The products and the query bias of an estimation network as heat maps.",
    "e15_transfer": (
        "Four extracted steps on problems the network never saw, against the paper's constants; grey bar: as in "
        "training; an error of 1 is that of predicting 0. The network itself exists at n = 18 only. Last: many "
        "steps."
    ),
    "e16_restart": (
        "Test error of networks as trained, trained on, trained from the paper's form, and of steps alone."
    ),
}
