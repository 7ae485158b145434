"""The rules for the centralised claims N1-N11 and for R1: what stored results say of them."""

from typing import Any

import numpy as np

from experiments import common, suitesparse
from experiments.palette import METHOD_NAMES
from experiments.verdicts import NOT_RUN, REFUTED, Finding, at_most, graded, holds, listed, overall, spread_of

# A relative error that counts as convergence: MSE 1e-20 on entries of size 1.
CONVERGED = 1e-10


def order(r: common.Results) -> Finding:
    if not np.isfinite(r["order"]).any():
        return Finding(NOT_RUN, "no run has errors that an order can be fitted to", {})
    value = float(np.nanmedian(r["order"]))
    low, high = np.nanpercentile(r["order"], [10, 90])
    text = f"fitted order {value:.2f} (10-90 %: {low:.2f} to {high:.2f})"
    return Finding(graded(value, 1.75, 2.25, 1.25), text, {"order": value}, spread_of(order=r["order"]))


def log_kappa(r: common.Results) -> Finding:
    slope, theory = float(r["slope_paper"]), float(r["slope_theory"])
    steps = np.median(r["steps_paper"], axis=-1)
    ratios = dict(zip(r["methods"].tolist(), r["seconds_over_lstsq"].T.tolist(), strict=True))
    spans = {
        name: f"{np.nanmin(v):.1f}-{np.nanmax(v):.1f}x" if np.isfinite(v).any() else "not reached"
        for name, v in ratios.items()
    }
    everywhere = holds(bool((r["steps_paper"] > 0).all()))
    verdict = overall([everywhere, graded(theory / slope, 1 / 1.2, 1 / 0.8, 0.5)])
    numbers = {
        "kappas": r["kappas"].tolist(),
        "median_steps": steps.tolist(),
        "steps_per_ln_kappa": slope,
        "theory_steps_per_ln_kappa": theory,
        "seconds_over_lstsq": {k: [None if np.isnan(x) else x for x in v] for k, v in ratios.items()},
    }
    path = " ".join(f"{s:g}" for s in steps)
    text = (
        f"{path} steps, {slope:.2f} per ln kappa (theory {theory:.2f}); time over lstsq: paper steps "
        f"{spans['paper']}, block LQ {spans['optimal']}, CG {spans['cg']}, GD {spans['gd']}"
    )
    spread = spread_of(**{f"steps at {k:.0e}": s for k, s in zip(r["kappas"], r["steps_paper"], strict=True)})
    kappas = " ".join(f"1e{np.log10(k):.0f}" for k in r["kappas"])
    brief = f"{path} steps at kappa = {kappas}, {slope:.2f} per ln kappa (theory {theory:.2f})"
    return Finding(verdict, text, numbers, spread, brief=brief)


def against_cg(r: common.Results) -> Finding:
    """Where CG is cut off, its cap counts: a lower bound."""
    at = int(np.argmin(np.abs(np.log(r["kappas"] / 1e4))))
    ours, cg = common.nan_unless_reached(r["steps_paper"][at]), r["steps_cg"][at]
    cut = cg == common.NOT_REACHED
    ratios = np.where(cut, r["cg_cap"], cg) / ours
    ratio = float(np.median(ratios))
    if np.isnan(ratio):
        return Finding(NOT_RUN, "some runs of EAGLE did not reach the target within their cap", {})
    bound = "at least " if cut.any() else ""
    text = f"CG takes {bound}{ratio:.0f}x the iterations at kappa = {r['kappas'][at]:.0e}"
    if cut.any() and ratio <= 300:
        return Finding(NOT_RUN, f"{text}: CG was cut off", {"ratio": ratio})
    return Finding(graded(ratio, 100 / 3, 300, 1), text, {"ratio": ratio}, spread_of(ratio=ratios))


def _ranks(r: common.Results, prefix: str) -> Finding:
    ranks, n = r[f"{prefix}_ranks"], int(r[f"{prefix}_n"])
    best, cg = (np.fmin.reduce(r[f"{prefix}_{method}"], axis=-1) for method in ("paper", "cg"))  # NaN if all are
    eagle, optimal = float(best.max()), float(r[f"{prefix}_optimal"].max())
    last, low = r[f"{prefix}_cg"][..., -1], ranks < n
    # Two ways to be unreliable: never there within the cap, or there and gone again.
    rate = float((~(cg <= CONVERGED))[low].mean())
    drift = float((~(last <= 100 * np.maximum(cg, 1e-15)))[low].mean())
    parts = {"EAGLE": holds(eagle <= CONVERGED), "the remark on CG": graded(rate, 0.5, 1, 0)}
    text = (
        f"n = {n}, ranks {' '.join(map(str, ranks))}: worst error {eagle:.0e} (paper steps), {optimal:.0e} "
        f"(block LQ); on low rank, CG reaches {CONVERGED:.0e} in {1 - rate:.0%} of the runs (worst "
        f"{cg[low].max():.0e}) and drifts away afterwards in {drift:.0%} (to {last[low].max():.0e})"
    )
    numbers = {"worst_paper": eagle, "worst_optimal": optimal, "cg_never_converges": rate, "cg_drifts": drift}
    brief = f"worst error {eagle:.0e}; on low rank, CG gets there in {1 - rate:.0%}, and leaves again in {drift:.0%}"
    errors = zip(ranks, best, strict=True)
    spread = spread_of(**{f"paper steps' least error, rank {k}": e for k, e in errors})
    return Finding.of(parts, text, numbers, spread, runs=best.shape[-1], brief=brief)


def small_ranks(r: common.Results) -> Finding:
    return _ranks(r, "small")


def large_ranks(r: common.Results) -> Finding:
    return _ranks(r, "large")


def estimation(r: common.Results) -> Finding:
    gap, order = float(r["estimation_gap_relative"].max()), float(np.nanmedian(r["order_estimation"]))
    text = f"max |W_l C - D_l| / ||D|| = {gap:.0e} over all steps and runs; order {order:.2f}"
    spread = spread_of(gap=r["estimation_gap_relative"], order=r["order_estimation"])
    return Finding(holds(gap < 1e-12), text, {"gap": gap, "order": order}, spread)


def families(r: common.Results) -> Finding:
    best = r["paper"].min(-1).max(-1)
    worst = dict(zip(r["families"].tolist(), best.tolist(), strict=True))
    parts = {family.replace("_", " "): holds(error < 1e-8) for family, error in worst.items()}
    kappa = np.median(r["kappa"], axis=-1)
    name = max(worst, key=worst.__getitem__)
    text = (
        f"least error at most {worst[name]:.0e} ({name.replace('_', ' ')}), "
        f"median kappa {kappa.min():.0e} to {kappa.max():.0e}"
    )
    pairs = zip(r["families"].tolist(), r["paper"].min(-1), strict=True)
    spread = spread_of(**{f"least error, {family.replace('_', ' ')}": e for family, e in pairs})
    return Finding.of(parts, text, {"worst_error": worst, "median_kappa": kappa.tolist()}, spread)


def _run_around_one(grid: np.ndarray, good: np.ndarray) -> np.ndarray:
    """The grid points connected to 1 without a bad one between."""
    bad = grid[~good]
    low, high = bad[bad <= 1].max(initial=0.0), bad[bad >= 1].min(initial=np.inf)
    return grid[(grid > low) & (grid < high)]


def step_sizes(r: common.Results) -> Finding:
    inside = (r["grid"] >= 0.2 - 1e-12) & (r["grid"] <= 2 + 1e-12)
    numbers: dict[str, Any] = {"median_headroom": float(np.median(r["headroom"]))}
    verdicts, parts, slowest = {}, [], []
    for name in ("factor", "ratio"):
        best = np.quantile(r[f"{name}_best"], 0.9, axis=0)  # nearly all runs, not half of them
        good = _run_around_one(r["grid"], best <= CONVERGED)
        verdicts[name] = holds(bool((best[inside] <= CONVERGED).all()))
        steps = np.median(common.nan_unless_reached(r[f"{name}_steps"])[:, inside], axis=0)
        slowest.append(np.nanmax(steps))
        numbers[f"{name}_worst_in_range"] = float(best[inside].max())
        numbers[f"{name}_good_from_to"] = [float(good.min()), float(good.max())] if good.size else None
        span = f"{good.min():.2g} to {good.max():.2g}" if good.size else "nowhere"
        parts.append(
            f"{name}: worst {best[inside].max():.0e} in [0.2, 2], below 1e-10 from {span}, "
            f"{np.nanmin(steps):.0f}-{np.nanmax(steps):.0f} steps"
        )
    parts.append(f"in a training batch the largest ||A||² is {numbers['median_headroom']:.1f} times the median")
    worst = max(numbers["factor_worst_in_range"], numbers["ratio_worst_in_range"])
    at_one = float(np.median(common.nan_unless_reached(r["factor_steps"])[:, np.argmin(np.abs(r["grid"] - 1))]))
    numbers |= {"steps_at_1": at_one, "most_steps_in_range": float(max(slowest))}
    brief = f"error at most {worst:.0e} in [0.2, 2], though up to {max(slowest):.0f} steps for {at_one:.0f} at 1"
    spread = spread_of(
        **{f"least error, {name} in [0.2, 2]": r[f"{name}_best"][:, inside] for name in ("factor", "ratio")}
    )
    return Finding.of(verdicts, "; ".join(parts), numbers, spread, brief=brief)


GAPS = {"gapped": "singular values 1 (39 times), 1e-8", "kahan": "Kahan(60)"}


def stopping(r: common.Results) -> Finding:
    parts, numbers, verdicts = [], {}, {}
    tight = int(np.argmin(r["taus"]))
    for i, name in enumerate(r["matrices"].tolist()):
        steps = float(np.median(r["stop_steps"][i, :, tight]))
        stop_error = r["stop_error"][i, :, tight]  # NaN in a run that never stops
        at_stop = float(np.median(np.where(np.isnan(stop_error), np.inf, stop_error)))
        solve = float(np.median(r["solve_error"][i]))
        best = float(np.median(r["error"][i].min(-1)))
        verdicts[GAPS[name]] = holds(at_stop <= 1e3 * best)
        numbers[name] = {
            "stop_step": steps,
            "error_at_stop": at_stop,
            "best_error": best,
            "solve_error": solve,
        }
        parts.append(
            f"{GAPS[name]}: stops at {steps:g} with {at_stop:.0e} at tau = {r['taus'][tight]:.0e} "
            f"(least error of all steps {best:.0e}, of solve {solve:.0e})"
        )
    at_stop = {f"{GAPS[n]}, error at stop": r["stop_error"][i, :, tight] for i, n in enumerate(r["matrices"].tolist())}
    brief = ", ".join(f"{GAPS[n]}: stops with error {found['error_at_stop']:.0e}" for n, found in numbers.items())
    return Finding.of(verdicts, "; ".join(parts), numbers, spread_of(**at_stop), brief=brief)


def stability(r: common.Results) -> Finding:
    """Within a factor of 10 of LAPACK's error, everywhere."""
    # kappas x dtypes x forms x methods
    median = np.median(r["error"], axis=2)
    eps = np.array([np.finfo(name).eps for name in r["dtypes"].tolist()])[None, :, None, None]
    ratio = np.maximum(median[..., :-1], 10 * eps) / np.maximum(median[..., -1:], 10 * eps)
    numbers, parts = {}, []
    for i, name in enumerate(r["methods"].tolist()[:-1]):
        k, t, f = np.unravel_index(int(np.nanargmax(ratio[..., i])), ratio.shape[:-1])
        worst = float(ratio[k, t, f, i])
        place = f"{r['forms'][f]}, {r['dtypes'][t]}, kappa = {r['kappas'][k]:.0e}"
        numbers[name] = {"worst_ratio_to_lstsq": worst, "at": place}
        parts.append(f"{METHOD_NAMES[name]}: at most {worst:.1f}x lstsq's error ({place})")
    ratios = [numbers[name]["worst_ratio_to_lstsq"] for name in numbers]
    finite = bool(np.isfinite(median).all())
    verdicts = {METHOD_NAMES[m]: holds(finite and x <= 10) for m, x in zip(numbers, ratios, strict=True)}
    place = f"{r['dtypes'][-1]}, kappa = {r['kappas'][-1]:.0e}"
    cases = [(f, i, name) for f in range(len(r["forms"])) for i, name in enumerate(r["methods"].tolist())]
    spread = spread_of(
        **{f"{METHOD_NAMES[name]}: {r['forms'][f]}, {place}": r["error"][-1, -1, :, f, i] for f, i, name in cases}
    )
    bounds = zip(numbers, ratios, strict=True)
    brief = ", ".join(f"{METHOD_NAMES[name]} at most {x:.0f}x lstsq's error" for name, x in bounds)
    return Finding.of(verdicts, "; ".join(parts), numbers, spread, brief=brief)


def early_stopping(r: common.Results) -> Finding:
    final = float(np.median(r["lstsq"]))
    pairs = {
        "centralised": ("centralised_paper", "centralised_gd"),
        "distributed": ("distributed_averaging", "distributed_gd"),
        "sketched": ("sketched_columns", "sketched_sgd"),
    }
    numbers: dict[str, Any] = {"least_squares": final}
    parts = []
    for regime, (eagle, gd) in pairs.items():
        best, other = (np.median(np.nanmin(r[name], axis=-1)) for name in (eagle, gd))
        steps = np.median(np.nanargmin(r[eagle], axis=-1) + 1)
        numbers[regime] = {"eagle": float(best), "gd": float(other), "at_step": float(steps)}
        parts.append(f"{regime}: EAGLE {best:.2g} (step {steps:.0f}), {gd.split('_')[1].upper()} {other:.2g}")
    useful = {k: holds(numbers[k]["eagle"] < final) for k in pairs}
    verdicts = {k: overall([useful[k], at_most(numbers[k]["eagle"] / numbers[k]["gd"], 1.25)]) for k in pairs}
    spread = spread_of(**{k: np.nanmin(r[eagle], axis=-1) for k, (eagle, _) in pairs.items()})
    text = f"least error, each run at its own best step, {'; '.join(parts)}; least squares {final:.2g}"
    pairs_of = ", ".join(f"{numbers[k]['eagle']:.2g} / {numbers[k]['gd']:.2g}" for k in pairs)
    brief = f"error at each run's best step, EAGLE / (S)GD: {pairs_of}; least squares {final:.2g}"
    return Finding.of(verdicts, text, numbers, spread, brief=brief)


EXCEPT = {("pf2177", "cg")}  # where the paper's table has a faster method than EAGLE


def _against_rivals(r: common.Results, method: str) -> list[str]:
    """Of each matrix: the residual is met, and sooner than by each rival."""
    methods = r["methods"].tolist()
    found = []
    for name, seconds in zip(r["names"].tolist(), r["seconds"][:, 0], strict=True):
        ours = seconds[methods.index(method)]
        rivals = [m for m in ("lstsq", "lsmr", "cg") if (name, m) not in EXCEPT]
        sooner = (holds(not seconds[methods.index(m)] <= ours) for m in rivals)  # NaN is "missed"
        found.append(overall(sooner) if np.isfinite(ours) else REFUTED)
    return found


def real_matrices(r: common.Results) -> Finding:
    """On every one of the paper's matrices that is there EAGLE meets the residual sooner than the methods that the
    paper's table has it beat. Other matrices are in the table of results only.
    """
    names, methods = r["names"].tolist(), r["methods"].tolist()
    ratio = r["seconds"] / r["seconds"][..., [methods.index("lstsq")]]  # matrices x targets x methods
    papers = np.isin(names, suitesparse.WANTED)
    said = f"; left out: {', '.join(r['skipped'].tolist())}" if r["skipped"].size else ""
    by_method = {m: _against_rivals(r, m) for m in ("paper", "optimal")}
    numbers = {"table": _matrix_table(r, ratio, by_method), "skipped": r["skipped"].tolist()}
    if not papers.any():
        missing = ", ".join(suitesparse.WANTED)
        return Finding(NOT_RUN, f"none of the paper's matrices ran ({missing}){said}", numbers, runs=len(names))
    parts = {METHOD_NAMES[m]: overall(np.array(v)[papers].tolist()) for m, v in by_method.items()}
    shown = (*by_method, "cg", "lsmr")
    ours = ratio[papers, 0][:, [methods.index(m) for m in shown]]
    pairs = zip(np.array(names)[papers], ours, strict=True)
    times = "; ".join(f"{name} {' / '.join(listed([x]) for x in pair)}" for name, pair in pairs)
    count = f"{papers.sum()} of the paper's {len(suitesparse.WANTED)} matrices"
    brief = f"{count}; time over the SVD's, paper's steps / default / CG / LSMR: {times}"
    spread = spread_of(**{f"{METHOD_NAMES[m]}, time over the SVD's": x for m, x in zip(shown, ours.T, strict=True)})
    return Finding.of(parts, brief + said, numbers, spread, runs=int(papers.sum()), brief=brief)


def _matrix_table(r: common.Results, ratio: np.ndarray, by_method: dict[str, list[str]]) -> dict[str, Any]:
    methods = r["methods"].tolist()
    columns = ["matrix", "size", "rank", "κ(A)", *(METHOD_NAMES[m] for m in methods[:-1]), "error of D"]
    columns += [f"{METHOD_NAMES[m]}: verdict" for m in by_method]
    rows = []
    for i, name in enumerate(r["names"].tolist()):
        times = [[listed([x]) if np.isfinite(x) else "missed" for x in target[:-1]] for target in ratio[i]]
        error = r["error"][i, 1, methods.index("optimal")]
        size, kappa = "×".join(map(str, r["shapes"][i])), f"{r['kappa'][i]:.0e}"
        rows.append([name, size, int(r["rank"][i]), kappa, *map(" / ".join, zip(*times, strict=True))])
        rows[-1].append(f"{error:.0e}" if np.isfinite(error) else "no D")
        rows[-1] += [verdicts[i] for verdicts in by_method.values()]
    caption = "Time over the SVD's to 1e-3 ‖B‖² / to ten times the SVD's own residual."
    return {"columns": columns, "rows": rows, "caption": caption}
