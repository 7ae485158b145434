"""Figures of E14 and E17 from stored results; report.py draws them in its style."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import common
from experiments.emergence_report import COLOURS, LABELS, absent, layers, plain_ticks, runs
from experiments.palette import EXTRACTED, GREY, METHODS, NETWORKS

KINDS = {"CL": "without noise", "CLn": "noise 0.01"}
FORMS = {
    "own": ("the paper's: $T=S$", METHODS["paper"]),
    "flat": ("$S, T$ orthonormal", GREY),
    "ahead": ("$S, T$ as read", EXTRACTED),
    "general": ("two free matrices", "black"),
}
SOLVERS = {
    "paper": ("its own $r$ columns (paper)", METHODS["paper"]),
    "one": ("its own, the same in every step", METHODS["columns"]),
    "next": ("the $r$ columns read next", EXTRACTED),
    "others": ("all that are not read now", METHODS["deflation"]),
    "all": ("all", METHODS["emergent"]),
}


def _shares(ax: Axes, r: common.Results, tag: str) -> None:
    x = range(1, r[f"{tag}_own"].shape[1] + 1)
    runs(ax, x, r[f"{tag}_later_read"], "CL", label="of later layers")
    runs(ax, x, r[f"{tag}_own"], "CL", color=METHODS["paper"], label="of its own layer")
    ax.plot(x, np.median(r[f"{tag}_chance"], axis=0), color=GREY, ls=":", label="of later layers, by chance")
    ax.set(ylim=(0, 1.05), title=f"$W_{{VP}}$ acts on reads …\n{KINDS[tag]}")
    layers(ax, len(x), 1)


def _fidelity(ax: Axes, r: common.Results, tag: str) -> None:
    x = range(1, r[f"{tag}_mse"].shape[1])
    for name, (label, colour) in FORMS.items():
        ax.plot(x, np.median(r[f"{tag}_{name}_D"], axis=0)[1:], color=colour, marker="o", ms=3, label=label)
    ax.plot(x, np.median(r[f"{tag}_mse"], axis=0)[1:], color=NETWORKS["CL"], ls=":", label="the network's test error")
    ax.set(yscale="log", title=f"D off the network's\n{KINDS[tag]}")
    layers(ax, len(x), 1)


def _solver(ax: Axes, r: common.Results, i: int) -> None:
    n, size, steps, noise = r["sizes"][i]
    for name, row in zip(r["methods"].tolist(), r[f"solvers_{i}"], strict=True):
        label, colour = SOLVERS[name]
        ax.plot(range(int(steps) + 1), row, color=colour, marker="o", ms=2.5, lw=1.2, label=label)
    title = f"n = {n:.0f}, r = {size:.0f}" + (f", noise {noise:g}" if noise else "")
    ax.set(yscale="log", title=title, xlabel="step", ylim=(0.4 * r[f"solvers_{i}"][:, -1].min(), 0.2))
    plain_ticks(ax, (0.01, 0.03, 0.1))


def computation_limited(r: common.Results) -> Figure:
    tags = [tag for tag in KINDS if r[f"{tag}_seeds"].size]
    if not tags:
        return absent("no weights of the computation-limited network")
    count = min(4, len(r["sizes"]))
    figure = plt.figure(figsize=(7.2, 6.4))
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1), squeeze=False)[:, 0]
    above = top.subplots(1, 2 * len(tags), squeeze=False)[0]
    for i, tag in enumerate(tags):
        _shares(above[i], r, tag)
        _fidelity(above[len(tags) + i], r, tag)
    (handles, labels), (more, names) = (ax.get_legend_handles_labels() for ax in (above[0], above[-1]))
    top.legend(handles + more, labels + names, loc="outside lower center", ncols=3, fontsize=7)
    below = bottom.subplots(1, count, squeeze=False)[0]
    for i, ax in enumerate(below):
        _solver(ax, r, i)
    below[0].set_ylabel("test error, trained step sizes")
    bottom.suptitle("solvers that read r columns a step and condition …", fontsize=9)
    bottom.legend(*below[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)
    return figure


def initialisation(r: common.Results) -> Figure:
    present = [tag for tag in ("U", "D", "CL") if np.any(r["regime"] == tag)]
    if not present:
        return absent("no weights")
    figure, axes = plt.subplots(2, 3, figsize=(7.2, 5.0), squeeze=False)
    colours = {(-1, 0.02): METHODS["paper"], (-1, 0.1): METHODS["optimal"], (1, 0.02): METHODS["columns"]}
    for ax, tag in zip(axes[0], present, strict=False):
        mine = r["regime"] == tag
        for sign, std in sorted({(int(s), float(d)) for s, d in zip(r["sign"][mine], r["std"][mine], strict=True)}):
            here = mine & (r["sign"] == sign) & (r["std"] == std)
            colour = colours.get((sign, std), METHODS["lsmr"])
            runs(ax, range(5), r["mse"][here], tag, color=colour, label=f"sign {sign:+d}, std {std:g}")
        ax.set(yscale="log", title=f"{LABELS[tag]}: test error")
        plain_ticks(ax, (0.001, 0.003, 0.01, 0.03))
        layers(ax, 4)
    for i, ax in enumerate(axes[1]):
        if i >= int(r["histories"]):
            ax.axis("off")
            continue
        VP = r[f"history_{i}_VP"][:, 1]
        ax.plot(r[f"history_{i}_steps"], -VP / np.abs(VP[-1]).max(), color=COLOURS["D"], lw=1)
        ax.axhline(0, color=GREY, lw=0.6)
        ax.set(xlabel="training step", title=f"distributed, layer 2:\n{r[f'history_{i}_setting']}", ylim=(-0.15, 1.3))
        ax.set_xlim(0, 10_000)
        ax.set_xticks([0, 5000, 10000], ["0", "5k", "10k"])
    axes[1, 0].set_ylabel("eigenvalues of $-W_{VP}$'s own block")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


FIGURES = {
    "e14_initialisation": ("initialisation", initialisation),
    "e17_computation_limited": ("computation_limited", computation_limited),
}
CAPTIONS = {
    "e14_initialisation": (
        "Test error by layer, for both signs and two scales. Below: how the directions of A that layer 2 of a "
        "distributed network conditions are won, one after the other; over the largest at the end."
    ),
    "e17_computation_limited": (
        "Above: how much of W_VP's energy reads columns that later layers, or its own, read; and how far algorithms "
        "are from the network's D, median task. Below: error by step of solvers with trained step sizes, on training "
        "tasks of several sizes."
    ),
}
