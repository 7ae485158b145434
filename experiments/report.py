"""Figures from stored results, PNG (200 dpi) and PDF. Nothing is measured here.

    python -m experiments.report        (reads results/*.npz, writes results/figures; seconds)

Lines are medians over runs, bands 10 to 90 %. A method has the same colour in every figure.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments import common, emergence_report, study_report
from experiments.palette import METHOD_NAMES as LABELS
from experiments.palette import METHODS as COLOURS
from experiments.solver_claims import GAPS

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "figure.constrained_layout.use": True,
}
# Errors below this are drawn on it: a logarithmic axis has no zero.
FLOOR = 1e-17


def band(ax: Axes, x, rows: np.ndarray, method: str, **style) -> np.ndarray:
    """Median and 10-90 % band over the first axis of `rows`; the median."""
    # NaN is "not reached": more than any number, so a median of it is not drawn.
    rows = np.where(np.isnan(rows), np.inf, np.clip(rows, FLOOR, None))
    low, high = np.percentile(rows, [10, 90], axis=0, method="nearest")
    middle = np.median(rows, axis=0)
    colour = COLOURS[method]
    ax.plot(x, middle, color=colour, label=style.pop("label", LABELS[method]), **style)
    ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    return middle


def name_line(ax: Axes, x, y, method: str, offset=(5, 0), **style) -> None:
    """The method's name in its colour, beside the point (x, y)."""
    place: dict[str, Any] = {"fontsize": 8, "ha": "left", "va": "center", "textcoords": "offset points"}
    ax.annotate(style.pop("label", LABELS[method]), (x, y), offset, color=COLOURS[method], **(place | style))


def name_ends(ax: Axes, x: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    """Names at the right ends of curves."""
    for method, y in curves.items():
        reached = np.flatnonzero(np.isfinite(y))
        if reached.size:
            name_line(ax, x[reached[-1]], y[reached[-1]], method)


def power(x: float) -> str:
    """1e2 as 10², for titles; other numbers as they are."""
    exponent = np.log10(x)
    return f"$10^{{{exponent:.0f}}}$" if np.isclose(exponent, round(exponent)) else f"{x:.0e}"


def steps_axis(errors: np.ndarray) -> np.ndarray:
    return np.arange(1, errors.shape[-1] + 1)


def convergence(r: common.Results) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), width_ratios=(1.4, 1))
    for method, name in (("gd", "gd"), ("cg", "cg"), ("paper", "eagle")):
        band(left, steps_axis(r[name]), r[name], method)
    x, estimate = steps_axis(r["estimation"]), np.median(r["estimation"], axis=0)
    left.plot(x, estimate, "o", ms=3, mfc="none", color=COLOURS["estimation"], label=LABELS["estimation"])
    left.set(xscale="log", yscale="log", xlabel="iteration", ylabel="relative error of D", ylim=(1e-16, 3))
    for method, name, offset in (("gd", "gd", (0, -8)), ("cg", "cg", (-4, -4)), ("paper", "eagle", (-4, 0))):
        middle = np.median(r[name], axis=0)
        at = middle.size // 3 if method == "gd" else int(np.argmax(middle < 1e-6))
        name_line(left, at + 1, middle[at], method, offset, ha="center" if method == "gd" else "right")
    name_line(left, x[-1], estimate[-1], "estimation", (5, 0))
    now, then = r["eagle"][:, :-1].ravel(), r["eagle"][:, 1:].ravel()
    right.loglog(now, then, ".", ms=4, color=COLOURS["paper"], alpha=0.5)
    line = np.array([1e-8, 1.0])
    right.loglog(line, line, color="#999999", lw=0.9, ls=":")
    right.loglog(line, 30 * line**2, color="#222222", lw=0.9, ls="--")
    right.annotate("slope 1", (1e-7, 1e-7), (3e-8, 1e-6), color="#777777", ha="left", va="bottom", fontsize=8)
    right.annotate("slope 2", (1e-6, 3e-11), (2e-6, 3e-12), ha="left", fontsize=8)
    right.set(xlim=(1e-9, 2), ylim=(1e-16, 3), xlabel="error at step l", ylabel="error at step l+1")
    right.set_title(f"fitted order {np.nanmedian(r['order']):.2f}")
    return figure


def kappa_sweep(r: common.Results) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0))
    kappas, methods = r["kappas"], r["methods"].tolist()
    medians = {}
    for method in ("cg", "paper"):
        steps = common.nan_unless_reached(r[f"steps_{method}"]).T
        medians[method] = band(left, kappas, steps, method, marker="o", ms=3)
    gd = common.nan_unless_reached(r["steps_gd"])
    left.plot(kappas, gd, "s", ms=4, color=COLOURS["gd"], label="GD" if np.isfinite(gd).any() else None)
    left.plot(kappas, r["theory_exact"], "--", color="#222222", lw=0.9, label="theory, exact recursion")
    left.plot(kappas, r["theory_lower"], ":", color="#222222", lw=0.9, label="theory, lower bound")
    left.set(xscale="log", yscale="log", xlabel="κ(A)", ylabel="iterations to MSE 1e-20")
    name_ends(left, kappas, medians)
    for method in ("cg", "gd", "paper", "optimal", "lstsq"):
        ratio = r["seconds_over_lstsq"][:, methods.index(method)]
        if np.isfinite(ratio).any():
            style = {"marker": "s" if method == "gd" else "o", "ms": 3, "color": COLOURS[method]}
            right.plot(kappas, ratio, **style)
    right.set(xscale="log", yscale="log", xlabel="κ(A)", ylabel="time to MSE 1e-20 / lstsq")
    name_ends(right, kappas, dict(zip(methods, r["seconds_over_lstsq"].T, strict=True)))
    handles, labels = _merged(left)
    theory = [i for i, label in enumerate(labels) if label.startswith("theory")]
    figure.legend([handles[i] for i in theory], [labels[i] for i in theory], loc="outside lower left", ncols=2)
    missed = {m: kappas[np.isnan(r["seconds_over_lstsq"][:, methods.index(m)])] for m in ("gd", "cg")}
    notes = [f"{LABELS[m]} from κ = {power(x.min())} on" for m, x in missed.items() if x.size]
    if notes:
        right.set_title(f"not reached: {', '.join(notes)}", fontsize=8, color="#666666")
    return figure


def _merged(*axes: Axes) -> tuple[list, list]:
    """Legend handles of several axes, each label once."""
    found = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def _small_multiples(r: common.Results, titles: list[str], prefix: str, columns: int) -> Figure:
    """Error against iteration, one panel per setting; the answer of solve() as a level."""
    rows = -(-len(titles) // columns)
    size = (7.2, 2.1 * rows + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for ax, i in zip(axes.flat, range(len(titles)), strict=False):
        for method in ("cg", "paper"):
            errors = r[f"{prefix}{method}"][i]
            band(ax, steps_axis(errors), errors, method)
        level = np.clip(np.median(r[f"{prefix}optimal"][i]), FLOOR, None)
        ax.axhline(level, color=COLOURS["optimal"], ls="--", lw=1.1, label=LABELS["optimal"] + ", final error")
        ax.set_title(titles[i])
        ax.set(xscale="log", yscale="log", ylim=(FLOOR, 1e3))
    for ax in axes[-1]:
        ax.set_xlabel("iteration")
    for ax in axes[:, 0]:
        ax.set_ylabel("relative error of D")
    figure.legend(*_merged(axes[0, 0]), loc="outside lower center", ncols=3)
    return figure


def small_ranks(r: common.Results) -> Figure:
    return _small_multiples(r, [f"rank {k} of {r['small_n']}" for k in r["small_ranks"]], "small_", 4)


def large_ranks(r: common.Results) -> Figure:
    return _small_multiples(r, [f"rank {k} of {r['large_n']}" for k in r["large_ranks"]], "large_", 4)


def families(r: common.Results) -> Figure:
    names = r["families"].tolist()
    titles = [f"{n.replace('_', ' ')}, κ = {np.median(k):.0e}" for n, k in zip(names, r["kappa"], strict=True)]
    return _small_multiples(r, titles, "", 3)


def step_sizes(r: common.Results) -> Figure:
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 4.2), sharex=True, sharey="row", height_ratios=(1.5, 1))
    labels = {"factor": "common factor on η and γ", "ratio": "factor on γ/η"}
    for (best, steps), (name, label) in zip(axes.T, labels.items(), strict=True):
        for ax in (best, steps):
            ax.axvspan(0.2, 2, color="#F2F2F2", zorder=0)
        band(best, r["grid"], r[f"{name}_best"], "paper", marker="o", ms=2.5)
        band(steps, r["grid"], common.nan_unless_reached(r[f"{name}_steps"]), "paper", marker="o", ms=2.5)
        best.set(xscale="log", yscale="log", ylim=(1e-16, 10))
        steps.set(yscale="log", xlabel=label)
        emergence_report.plain_ticks(steps, (20, 50, 100, 200))
        best.text(0.63, 1.2, "paper: [0.2, 2]", ha="center", fontsize=8, color="#666666")
    axes[0, 0].set_ylabel("best relative error\nin 200 steps")
    axes[1, 0].set_ylabel("steps to 1e-10")
    return figure


def stopping(r: common.Results) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.8), sharey=True)
    tight = int(np.argmin(r["taus"]))
    for i, (ax, name) in enumerate(zip(axes, r["matrices"].tolist(), strict=True)):
        x = steps_axis(r["error"])
        band(ax, x, r["error"][i], "paper", label="error of D")
        band(ax, x, r["change"][i], "paper", label="change of D in the step", ls=":")
        solve = np.clip(np.median(r["solve_error"][i]), FLOOR, None)
        ax.axhline(solve, color=COLOURS["optimal"], ls="--", lw=1.1, label=LABELS["optimal"] + ", error")
        stop = np.median(r["stop_steps"][i, :, tight]), np.median(r["stop_error"][i, :, tight])
        ax.plot(*stop, "o", color="#B22222", ms=6, label=f"stop at change < {r['taus'][tight]:.0e}")
        ax.annotate(f"{stop[1]:.0e} at step {stop[0]:g}", stop, (8, 4), textcoords="offset points", fontsize=8)
        ax.set(yscale="log", ylim=(FLOOR, 1e2), xlabel="iteration", title=GAPS[name])
    axes[0].set_ylabel("relative to ‖D‖")
    figure.legend(*_merged(axes[0]), loc="outside lower center", ncols=4)
    return figure


def error_map(r: common.Results) -> Figure:
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 4.8), sharex=True, sharey="row")
    forms = {"solve": "solve: error of D", "estimate": "estimate: error of W"}
    for t, dtype in enumerate(r["dtypes"].tolist()):
        for f, form in enumerate(r["forms"].tolist()):
            ax = axes[t, f]
            for m, method in enumerate(r["methods"].tolist()):
                errors = r["error"][:, t, :, f, m].T
                band(ax, r["kappas"], errors, method, ls="--" if method == "lstsq" else "-")
                if method != "lstsq":
                    unsure = (r["status"][:, t, :, f, m] != 0).mean(-1) >= 0.5
                    level = np.median(errors, axis=0)
                    style = {"ms": 5, "mfc": "white", "color": COLOURS[method], "ls": "none"}
                    ax.plot(r["kappas"][unsure], level[unsure], "o", **style)
            ax.axvline(1 / np.finfo(dtype).eps, color="#999999", lw=0.8, ls=":")
            ax.set(xscale="log", yscale="log", title=f"{forms[form]}, {dtype}")
    for ax in axes[:, 0]:
        ax.set_ylabel("relative forward error")
    for ax in axes[-1]:
        ax.set_xlabel("κ(A)   (dotted: 1/eps)")
    handles, labels = _merged(*axes.flat)
    circle = Line2D([], [], marker="o", ms=5, mfc="white", color="#666666", ls="none")
    figure.legend([*handles, circle], [*labels, "status is not CONVERGED"], loc="outside lower center", ncols=4)
    return figure


def early_stopping(r: common.Results) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.9), sharey=True)
    panels = (
        ("centralised", (("paper", "paper"), ("gd", "gd"))),
        ("distributed", (("averaging", "averaging"), ("gd", "gd"))),
        ("sketched", (("columns", "columns"), ("sgd", "sgd"))),
    )
    for ax, (regime, methods) in zip(axes, panels, strict=True):
        for name, method in methods:
            errors = r[f"{regime}_{name}"]
            band(ax, steps_axis(errors), errors, method)
        level = float(np.median(r["lstsq"]))
        ax.axhline(level, color=COLOURS["lstsq"], lw=0.9, ls="--", label="least squares")
        ax.set(xscale="log", yscale="log", xlabel="iteration" if regime == "centralised" else "round", title=regime)
    axes[0].set_ylabel("relative error of the clean D")
    names = {"paper": "EAGLE, paper steps; averaged", "columns": LABELS["columns"], "gd": "GD, SGD"}
    handles = [Line2D([], [], color=COLOURS[method]) for method in names]
    handles.append(Line2D([], [], color=COLOURS["lstsq"], lw=0.9, ls="--"))
    figure.legend(handles, [*names.values(), "least squares"], loc="outside lower center", ncols=4)
    return figure


def machines(r: common.Results) -> Figure:
    figure, ax = plt.subplots(figsize=(3.8, 2.9))
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(r["counts"])))
    for count, errors, colour in zip(r["counts"], np.clip(r["count_errors"], FLOOR, None), shades, strict=True):
        x = steps_axis(errors)
        ax.plot(x, np.median(errors, axis=0), color=colour, label=f"M = {count}")
        ax.fill_between(x, errors.min(0), errors.max(0), color=colour, alpha=0.18, linewidth=0)
    ax.axhline(1e-2, color="#999999", lw=0.9, ls=":")
    ax.axvline(15, color="#999999", lw=0.9, ls=":")
    ax.annotate("paper: 15 rounds\nto 1e-2", (15, 1e-2), (15.4, 0.03), fontsize=8, color="#666666")
    size, runs = int(r["large"]), r["count_errors"].shape[1]
    ax.set(yscale="log", xlabel="round", ylabel="relative error of D", ylim=(FLOOR, 3))
    ax.set_title(f"d = n = {size}, {runs} problem{'s' * (runs != 1)} each (band: all)")
    ax.legend()
    return figure


def alpha_sweep(r: common.Results) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.9), width_ratios=(1, 1, 1.1))
    methods, alphas = r["methods"].tolist(), r["alphas"]
    for ax, at in zip(axes[:2], (-2, -1), strict=True):
        for method, errors in zip(methods, r["curves"][at], strict=True):
            ax.plot(steps_axis(errors), np.clip(errors, FLOOR, 1e3), color=COLOURS[method], label=LABELS[method])
        ax.set(xscale="log", yscale="log", ylim=(FLOOR, 10), xlabel="round", title=f"α = 1/{1 / alphas[at]:.3g}")
    axes[0].set_ylabel("relative error of D")
    rounds = common.nan_unless_reached(r["rounds"])
    for i, method in enumerate(methods):
        reached = np.isfinite(rounds[..., i]).all(-1)
        x, y = 1 / alphas[reached], rounds[reached, :, i]
        if x.size:
            axes[2].plot(x, np.median(y, axis=-1), "o-", ms=3, color=COLOURS[method])
            axes[2].fill_between(x, y.min(-1), y.max(-1), color=COLOURS[method], alpha=0.18, linewidth=0)
    axes[2].set(xscale="log", yscale="log", xlabel="1/α", title="rounds to 1e-6 (band: all runs)")
    figure.legend(*_merged(axes[0]), loc="outside lower center", ncols=4)
    return figure


def freezing(r: common.Results) -> Figure:
    figure, (rounds, times, floats) = plt.subplots(1, 3, figsize=(7.2, 2.6))
    x = 1 / r["freeze_alphas"]
    rounds.plot(
        x, r["freeze_rounds"][:, 0], "o-", ms=4, color=COLOURS["averaging"], label="A, B updated in every round"
    )
    rounds.plot(x, r["freeze_rounds"][:, 1], "x", ms=6, color="#222222", label="frozen once conditioned")
    rounds.set(xscale="log", yscale="log", xlabel="1/α", title="rounds to 1e-10")
    ratio = r["freeze_seconds"][:, 1] / r["freeze_seconds"][:, 0]
    times.plot(x, np.median(ratio, axis=-1), "o-", ms=4, color=COLOURS["averaging"])
    times.fill_between(x, ratio.min(-1), ratio.max(-1), color=COLOURS["averaging"], alpha=0.18, linewidth=0)
    times.set(xscale="log", xlabel="1/α", ylim=(0, 1.05), title="time, frozen / not\n(band: all repeats)")
    top = 1.15 * float(r["floats_expected"].max())
    floats.plot([0, top], [0, top], color="#999999", lw=0.9, ls=":")
    floats.plot(r["floats_expected"], r["floats"], "o", ms=5, color=COLOURS["averaging"])
    floats.set(xlabel="(d + d′) n′", xlim=(0, top), ylim=(0, top), title="floats a round\nin the compiled program")
    for ax in (rounds, times):
        emergence_report.plain_ticks(ax, np.round(x, 1), "x")
    emergence_report.plain_ticks(rounds, (100, 200, 500))
    figure.legend(*rounds.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def sketches(r: common.Results) -> Figure:
    figure, axes = plt.subplots(1, len(r["widths"]), figsize=(7.2, 2.8), sharey=True)
    for i, (ax, width) in enumerate(zip(axes, r["widths"], strict=True)):
        for method in reversed(r["methods"].tolist()):
            band(ax, r[f"drawn_{method}"], r[f"{method}_0"][:, i], method)
        part = round(int(r["n"]) / width)
        title = f"r = {width} = n/{part}" if part > 1 else f"r = {width} = n"
        ax.set(xscale="log", yscale="log", ylim=(FLOOR, 3), xlabel="round", title=title)
    axes[0].set_ylabel("relative error of D")
    figure.legend(*_merged(axes[0]), loc="outside lower center", ncols=3)
    return figure


def sketch_times(r: common.Results) -> Figure:
    methods, widths = r["methods"].tolist(), r["widths"]
    unsketched = r["step_seconds"][0, -1]
    if np.isnan(unsketched):
        return emergence_report.absent("the unsketched step could not be timed on the busy machine")
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.8))
    for method in ("plain", "columns", "deflation"):
        ratio = r["step_seconds"][methods.index(method)] / unsketched
        axes[0].plot(widths, ratio, "o-", ms=3, color=COLOURS[method], label=LABELS[method])
    paper = {8: 5, 4: 7, 2: 16, 1: 21}  # milliseconds by n/r
    there = [w for w in widths if int(r["n"]) / w in paper]
    axes[0].plot(
        there, [paper[int(r["n"]) // w] / 21 for w in there], "x--", ms=4, lw=0.9, color="#222222", label="paper"
    )
    axes[0].set(xscale="log", yscale="log", xlabel="r", title="time of a step / unsketched")
    for ax, kappa, target in ((axes[1], 0, 0), (axes[2], -1, 1)):
        at = range(len(r["kappas"]))[kappa]
        rounds = common.nan_unless_reached(r[f"rounds_{at}"])[..., target]
        for i, method in enumerate(methods):
            median = np.median(np.where(np.isnan(rounds[:, i]), np.inf, rounds[:, i]), axis=0)
            seconds = np.where(np.isfinite(median), median, np.nan) * r["step_seconds"][i]
            if np.isfinite(seconds).any():
                ax.plot(widths, seconds / unsketched, "o-", ms=3, color=COLOURS[method], label=LABELS[method])
        ax.set(xscale="log", yscale="log", xlabel="r")
        ax.set_title(f"time to {power(r['targets'][target])}, κ = {power(r['kappas'][kappa])}\n(unsketched steps)")
    for ax in axes:
        ax.set_xticks(widths, [str(w) for w in widths])
        ax.minorticks_off()
    figure.legend(*_merged(*axes), loc="outside lower center", ncols=3)
    return figure


def suitesparse(r: common.Results) -> Figure:
    """Times over the SVD's, one row per matrix; a method that missed the target has no point."""
    names, methods = r["names"].tolist(), r["methods"].tolist()
    size = (7.2, 1.3 + 0.28 * len(names))
    figure, axes = plt.subplots(1, 2, figsize=size, sharey=True, sharex=True)
    rows = np.arange(len(names))[::-1]
    labels = [f"{n}, rank {k}, κ = {c:.0e}" for n, k, c in zip(names, r["rank"], r["kappa"], strict=True)]
    for t, (ax, title) in enumerate(zip(axes, ("to ‖WA − B‖² = 1e-3 ‖B‖²", "to full accuracy"), strict=True)):
        ratio = r["seconds"][:, t] / r["seconds"][:, t, [methods.index("lstsq")]]
        ax.axvline(1, color=COLOURS["lstsq"], lw=1, label=LABELS["lstsq"])
        for method in methods[:-1]:
            y = ratio[:, methods.index(method)]
            ax.plot(y, rows, "o", ms=5, color=COLOURS[method], label=LABELS[method])
        ax.set(xscale="log", xlabel="time / SVD's time", title=title)
        ax.set_yticks(rows, labels)
    figure.legend(*_merged(axes[0]), loc="outside lower center", ncols=5)
    return figure


FIGURES: dict[str, tuple[str, Callable[[common.Results], Figure]]] = {
    "n1_convergence": ("convergence", convergence),
    "n2_kappa_sweep": ("kappa_sweep", kappa_sweep),
    "n4_ranks": ("ranks", small_ranks),
    "n7_ranks_large": ("ranks", large_ranks),
    "n6_families": ("families", families),
    "n8_noise": ("early_stopping", early_stopping),
    "n9_step_sizes": ("step_sizes", step_sizes),
    "n10_stopping": ("stopping", stopping),
    "n11_error_map": ("error_map", error_map),
    "d1_machines": ("diversity", machines),
    "d2_alpha": ("diversity", alpha_sweep),
    "d5_freezing": ("diversity", freezing),
    "s1_sketches": ("sketching", sketches),
    "s2_times": ("sketching", sketch_times),
    "r1_suitesparse": ("suitesparse", suitesparse),
    **emergence_report.FIGURES,
    **study_report.FIGURES,
}


CAPTIONS = {
    "n1_convergence": "Error of D against the iteration, and each error against the one before it; all runs as dots.",
    "n2_kappa_sweep": "Iterations and time to a mean squared error of 1e-20 against the condition number of A.",
    "n4_ranks": "Error of D against the iteration at four ranks.",
    "n7_ranks_large": "Error of D against the iteration at four ranks of larger matrices.",
    "n6_families": "Error of D against the iteration for six families of random matrices.",
    "n8_noise": (
        "Error of the noiseless D against the iteration on noisy data: it falls, then rises towards that of least "
        "squares, which EAGLE reaches within the figure, but not among machines."
    ),
    "n9_step_sizes": (
        "Best error in 200 steps, and steps to an error of 1e-10, when both step sizes, or their ratio, are "
        "multiplied by a factor."
    ),
    "n10_stopping": "Error and change of D by step, and where the rule on the change stops, for two matrices.",
    "n11_error_map": "Forward error against the condition number in float32 and float64, for D and for W.",
    "d1_machines": "Error of D against the round of communication for several numbers of machines.",
    "d2_alpha": (
        "Error of D by round at two diversities (one problem each), and rounds to 1e-6 against 1/alpha; no point "
        "where a run does not get there."
    ),
    "d5_freezing": "Freezing A and B: rounds and time against 1/alpha; and what a round sends, at three sizes.",
    "s1_sketches": (
        "Error of D against the round for four widths r of the sketch, at the smaller kappa. Curves go on after the "
        "solver would stop."
    ),
    "s2_times": "Time of a step, and time to two accuracies, by the width r of the sketch; unit: an unsketched step.",
    "r1_suitesparse": "Time over that of the SVD to two residuals, one row per matrix; no point where it was missed.",
    **emergence_report.CAPTIONS,
    **study_report.CAPTIONS,
}
FORMATS = {"png": {"dpi": 200}, "pdf": {}}


def draw(out: Path, name: str) -> Path | None:
    """None, with a word on the cause, if the stored results do not make this figure."""
    item, figure_of = FIGURES[name]
    paths = {suffix: out / "figures" / f"{name}.{suffix}" for suffix in FORMATS}
    try:
        with plt.rc_context(STYLE):
            figure = figure_of(common.load(out, item)[0])
            for suffix, options in FORMATS.items():
                figure.savefig(paths[suffix], **options)
    except Exception as error:  # results of other code, or degenerate ones: the other figures are still wanted
        for path in paths.values():
            path.unlink(missing_ok=True)
        print(f"figure {name} cannot be drawn ({type(error).__name__}: {error}); run {item} again", file=sys.stderr)
        return None
    finally:
        plt.close("all")
    return paths["png"]


def draw_all(out: Path, apply: Callable[..., Iterable[Path | None]] = map) -> list[Path]:
    """Every figure whose results are stored; `apply` may be the map of a pool of processes."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    stored = {item for item in {item for item, _ in FIGURES.values()} if common.stored(out, item)}
    names = [name for name, (item, _) in FIGURES.items() if item in stored]
    return [path for path in apply(partial(draw, out), names) if path]


def main() -> None:
    def draw_and_print(out: Path) -> None:
        for path in draw_all(out):
            common.console.print(f"wrote {path}")

    common.command(draw_and_print)


if __name__ == "__main__":
    main()
