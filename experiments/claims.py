"""Verdicts on the paper's claims, by rules in code, from stored results only.

    python -m experiments.claims        (reads results/*.npz, writes results/claims.json; seconds)

`ledger.py` has what the paper says. Every rule returns one of: reproduced, differs (true in part, or with another
number), refuted; or "not run" with the reason in place of the measurement, for runs too small to decide. A claim
without stored results, or without a rule, is "not run" as well. A new rule is one more line in CLAIMS.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from rich.table import Table
from rich.text import Text

from experiments import common, suitesparse
from experiments import emergence_claims as emergence
from experiments.ledger import LEDGER, Entry
from experiments.verdicts import DIFFERS, NOT_RUN, REFUTED, REPRODUCED, Finding
from experiments.verdicts import verdict as _verdict

# A relative error that counts as convergence: MSE 1e-20 on entries of size 1.
CONVERGED = 1e-10


@dataclasses.dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    paper: str
    item: str
    figure: str
    rule: Callable[[common.Results], Finding]
    timed: bool = False  # wall time matters: a busy machine is mentioned
    missing: str = ""  # why there are no results, if not only for want of a run


def _spread(**values) -> dict[str, list[float]]:
    return {name: np.nanpercentile(v, [10, 90]).tolist() for name, v in values.items() if np.isfinite(v).any()}


def order(r: common.Results) -> Finding:
    value = float(np.nanmedian(r["order"]))
    low, high = np.nanpercentile(r["order"], [10, 90])
    verdict = _verdict(1.75 <= value <= 2.25, DIFFERS if value > 1.25 else REFUTED)
    text = f"fitted order {value:.2f} (10-90 %: {low:.2f} to {high:.2f})"
    return Finding(verdict, text, {"order": value}, _spread(order=r["order"]))


def log_kappa(r: common.Results) -> Finding:
    slope, theory = float(r["slope_paper"]), float(r["slope_theory"])
    steps = np.median(r["steps_paper"], axis=-1)
    ratios = dict(zip(r["methods"].tolist(), r["seconds_over_lstsq"].T.tolist(), strict=True))
    spans = {
        name: f"{np.nanmin(v):.1f}-{np.nanmax(v):.1f}x" if np.isfinite(v).any() else "not reached"
        for name, v in ratios.items()
    }
    holds = bool((r["steps_paper"] > 0).all()) and abs(slope / theory - 1) < 0.2
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
        f"{spans['paper']}, optimal {spans['optimal']}, CG {spans['cg']}, GD {spans['gd']}"
    )
    spread = _spread(**{f"steps at {k:.0e}": s for k, s in zip(r["kappas"], r["steps_paper"], strict=True)})
    return Finding(_verdict(holds, DIFFERS), text, numbers, spread)


def against_cg(r: common.Results) -> Finding:
    at = int(np.argmin(np.abs(np.log(r["kappas"] / 1e4))))
    ratio = float(np.median(r["cg_over_paper"][at]))
    if np.isnan(ratio):
        return Finding(DIFFERS, "CG did not reach the target within its cap", {"ratio": None})
    text = f"CG takes {ratio:.0f}x the iterations at kappa = {r['kappas'][at]:.0e}"
    holds = 100 / 3 <= ratio <= 300
    spread = _spread(ratio=r["cg_over_paper"][at])
    return Finding(_verdict(holds, DIFFERS if ratio > 1 else REFUTED), text, {"ratio": ratio}, spread)


def _ranks(r: common.Results, prefix: str) -> Finding:
    ranks, n = r[f"{prefix}_ranks"], int(r[f"{prefix}_n"])
    best = r[f"{prefix}_paper"].min(-1)
    eagle, optimal = float(best.max()), float(r[f"{prefix}_optimal"].max())
    cg, low = r[f"{prefix}_cg"], ranks < n
    # Two ways to be unreliable: never there within the cap, or there and gone again.
    rate = float((cg.min(-1) > CONVERGED)[low].mean())
    drift = float((cg[..., -1] > 100 * np.maximum(cg.min(-1), 1e-15))[low].mean())
    verdict = REFUTED if eagle > CONVERGED else _verdict(rate >= 0.5, DIFFERS)
    text = (
        f"n = {n}, ranks {' '.join(map(str, ranks))}: worst error {eagle:.0e} (paper steps), {optimal:.0e} "
        f"(optimal); low-rank CG never converges in {rate:.0%} of the runs (worst {cg.min(-1)[low].max():.0e}) and "
        f"drifts away afterwards in {drift:.0%} (to {cg[..., -1][low].max():.0e})"
    )
    numbers = {"worst_paper": eagle, "worst_optimal": optimal, "cg_never_converges": rate, "cg_drifts": drift}
    return Finding(verdict, text, numbers, _spread(best_error_paper=best), runs=best.shape[-1])


def small_ranks(r: common.Results) -> Finding:
    return _ranks(r, "small")


def large_ranks(r: common.Results) -> Finding:
    finding = _ranks(r, "large")
    n = int(r["large_n"])
    if n >= 1920:
        return finding
    return finding._replace(verdict=NOT_RUN, measured=f"ran at n = {n}; the claim is about n = 1920")


def estimation(r: common.Results) -> Finding:
    gap, order = float(r["estimation_gap_relative"].max()), float(np.nanmedian(r["order_estimation"]))
    text = f"max |W_l C - D_l| / ||D|| = {gap:.0e} over all steps and runs; order {order:.2f}"
    spread = _spread(gap=r["estimation_gap_relative"], order=r["order_estimation"])
    return Finding(_verdict(gap < 1e-12, REFUTED), text, {"gap": gap, "order": order}, spread)


def families(r: common.Results) -> Finding:
    best = r["paper"].min(-1).max(-1)
    worst = dict(zip(r["families"].tolist(), best.tolist(), strict=True))
    verdict = _verdict(bool((best < 1e-8).all()), DIFFERS if (best < 1e-8).any() else REFUTED)
    kappa = np.median(r["kappa"], axis=-1)
    name = max(worst, key=worst.__getitem__)
    text = f"worst best error {worst[name]:.0e} ({name}); median kappa {kappa.min():.0e} to {kappa.max():.0e}"
    spread = _spread(best_error=r["paper"].min(-1))
    return Finding(verdict, text, {"worst_error": worst, "median_kappa": kappa.tolist()}, spread)


def _run_around_one(grid: np.ndarray, good: np.ndarray) -> np.ndarray:
    """The grid points connected to 1 without a bad one between."""
    bad = grid[~good]
    low, high = bad[bad <= 1].max(initial=0.0), bad[bad >= 1].min(initial=np.inf)
    return grid[(grid > low) & (grid < high)]


def step_sizes(r: common.Results) -> Finding:
    inside = (r["grid"] >= 0.2 - 1e-12) & (r["grid"] <= 2 + 1e-12)
    numbers: dict[str, Any] = {"median_headroom": float(np.median(r["headroom"]))}
    holds, parts = [], []
    for name in ("factor", "ratio"):
        best = np.median(r[f"{name}_best"], axis=0)
        good = _run_around_one(r["grid"], best <= CONVERGED)
        holds.append(bool((best[inside] <= CONVERGED).all()))
        steps = np.median(common.nan_unless_reached(r[f"{name}_steps"])[:, inside], axis=0)
        numbers[f"{name}_worst_in_range"] = float(best[inside].max())
        numbers[f"{name}_good_from_to"] = [float(good.min()), float(good.max())] if good.size else None
        span = f"{good.min():.2g} to {good.max():.2g}" if good.size else "nowhere"
        parts.append(
            f"{name}: worst {best[inside].max():.0e} in [0.2, 2], below 1e-10 from {span}, "
            f"{np.nanmin(steps):.0f}-{np.nanmax(steps):.0f} steps"
        )
    parts.append(f"headroom {numbers['median_headroom']:.1f}")
    verdict = _verdict(all(holds), DIFFERS if any(holds) else REFUTED)
    return Finding(verdict, "; ".join(parts), numbers, _spread(headroom=r["headroom"]))


def stopping(r: common.Results) -> Finding:
    parts, numbers, wrong = [], {}, False
    tight = int(np.argmin(r["taus"]))
    for i, name in enumerate(r["matrices"].tolist()):
        steps = float(np.median(r["stop_steps"][i, :, tight]))
        at_stop = float(np.median(r["stop_error"][i, :, tight]))
        solve = float(np.median(r["solve_error"][i]))
        best = float(np.median(r["error"][i].min(-1)))
        wrong |= at_stop > 1e3 * best
        numbers[name] = {
            "stop_step": steps,
            "error_at_stop": at_stop,
            "best_error": best,
            "solve_error": solve,
        }
        parts.append(
            f"{name}: stops at {steps:g} with {at_stop:.0e} at tau = {r['taus'][tight]:.0e} "
            f"(attainable {best:.0e}, solve {solve:.0e})"
        )
    at_stop = {f"{n} error at stop": r["stop_error"][i, :, tight] for i, n in enumerate(r["matrices"].tolist())}
    return Finding(_verdict(not wrong, REFUTED), "; ".join(parts), numbers, _spread(**at_stop))


def stability(r: common.Results) -> Finding:
    """Within a factor of 10 of LAPACK's error, everywhere, with the default schedule."""
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
        parts.append(f"{name}: at most {worst:.1f}x lstsq's error ({place})")
    ratios = [numbers[name]["worst_ratio_to_lstsq"] for name in numbers]
    holds = np.isfinite(median).all() and ratios[0] <= 10
    return Finding(_verdict(bool(holds), DIFFERS), "; ".join(parts), numbers)


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
        steps = np.median(np.argmin(r[eagle], axis=-1) + 1)
        numbers[regime] = {"eagle": float(best), "gd": float(other), "at_step": float(steps)}
        parts.append(f"{regime}: EAGLE {best:.2g} (step {steps:.0f}), GD {other:.2g}")
    alike = all(numbers[k]["eagle"] <= 1.25 * numbers[k]["gd"] for k in pairs)
    useful = all(numbers[k]["eagle"] < final for k in pairs)
    verdict = _verdict(alike and useful, DIFFERS if useful else REFUTED)
    spread = _spread(**{k: np.nanmin(r[eagle], axis=-1) for k, (eagle, _) in pairs.items()})
    return Finding(verdict, f"least error, {'; '.join(parts)}; least squares {final:.2g}", numbers, spread)


def machine_count(r: common.Results) -> Finding:
    rounds = common.first_below(r["count_errors"], 1e-2)
    verdict = _verdict(bool((rounds > 0).all() and (rounds <= 15).all()), DIFFERS)
    text = (
        f"error 1e-2 after {_list(rounds)} rounds with M = {_list(r['counts'])} (d = n = {int(r['large'])}, alpha = 1)"
    )
    return Finding(verdict, text, {"rounds": rounds.tolist(), "machines": r["counts"].tolist()}, runs=1)


def _median_rounds(r: common.Results, method: str) -> np.ndarray:
    return np.median(common.nan_unless_reached(r["rounds"])[..., r["methods"].tolist().index(method)], axis=-1)


def _list(values) -> str:
    """1 0.357 1561, and "-" for what was not reached."""
    return " ".join("-" if np.isnan(v) else f"{v:.0f}" if v >= 100 else f"{v:.3g}" for v in np.asarray(values, float))


def inverse_alpha(r: common.Results) -> Finding:
    rounds, index = _median_rounds(r, "averaging"), np.median(r["index"], axis=-1)
    # ln kappa rounds come first; the growth beyond them is that of 1/alpha in the diversity index.
    slope = float(np.polyfit(np.log(1 / index[1:]), np.log(rounds[1:]), 1)[0])
    text = (
        f"{_list(rounds)} rounds to 1e-6 at alpha = {_list(r['alphas'])} (index {_list(index)}): "
        f"rounds ~ index^-{slope:.2f} for alpha < 1; krylov {_list(_median_rounds(r, 'krylov'))}"
    )
    at = r["methods"].tolist().index("averaging")
    pairs = zip(r["alphas"], common.nan_unless_reached(r["rounds"][..., at]), strict=True)
    spread = _spread(**{f"rounds at alpha = {alpha:.3g}": n for alpha, n in pairs})
    verdict = _verdict(0.75 <= slope <= 1.25, DIFFERS)
    return Finding(verdict, text, {"rounds": rounds.tolist(), "slope": slope}, spread)


def against_distributed_gd(r: common.Results) -> Finding:
    """Where GD is cut off, its cap counts: a lower bound."""
    at = r["methods"].tolist().index("gd")
    gd, cap = r["rounds"][..., at], int(r["caps"][at])
    cut = gd == common.NOT_REACHED
    ratio = np.median(np.where(cut, cap, gd), axis=-1) / _median_rounds(r, "averaging")
    text = f"GD / EAGLE rounds to 1e-6: {_list(ratio)} at alpha = {_list(r['alphas'])}"
    text += f"; lower bounds in {int(cut.sum())} of {cut.size} runs, where GD was cut off at {cap}" if cut.any() else ""
    within = bool(((ratio >= 10) & (ratio <= 100)).all()) and not cut.any()
    verdict = _verdict(within, DIFFERS if (ratio > 1).all() else REFUTED)
    return Finding(verdict, text, {"ratio": ratio.tolist(), "cut_off": int(cut.sum())})


def floats_per_round(r: common.Results) -> Finding:
    sent, expected = int(r["floats"]), int(r["floats_expected"])
    text = f"{sent} floats a round, (d + d') n' = {expected}"
    return Finding(_verdict(sent == expected, REFUTED), text, {"floats": sent}, runs=1)


def freezing(r: common.Results) -> Finding:
    ratio, (none, freeze) = float(r["freeze_seconds_ratio"]), r["freeze_rounds"].tolist()
    verdict = _verdict(none == freeze and ratio < 0.9, DIFFERS if none == freeze else REFUTED)
    text = f"{none} and {freeze} rounds, time {ratio:.2f}x"
    return Finding(verdict, text, {"ratio": ratio, "rounds": [none, freeze]}, runs=1)


def cg_unavailable(r: common.Results) -> Finding:
    cg, eagle, krylov = (_median_rounds(r, m) for m in ("cg", "averaging", "krylov"))
    verdict = _verdict(not np.isfinite(cg).any(), REFUTED)
    text = (
        f"matrix-free CG, one d x d' sum a round, takes {_list(cg)} rounds to 1e-6 at alpha = {_list(r['alphas'])}; "
        f"averaging {_list(eagle)}, krylov {_list(krylov)}"
    )
    return Finding(verdict, text, {"cg": cg.tolist(), "averaging": eagle.tolist(), "krylov": krylov.tolist()})


def _sketched_rounds(r: common.Results, method: str, target: float, kappa: float) -> np.ndarray:
    """Median rounds by width; NaN where more than half of the runs do not get there."""
    at, which = r["kappas"].tolist().index(kappa), r["targets"].tolist().index(target)
    rounds = common.nan_unless_reached(r[f"rounds_{at}"])[:, r["methods"].tolist().index(method), :, which]
    return np.median(np.where(np.isnan(rounds), np.inf, rounds), axis=0)


def _sketched_seconds(r: common.Results, method: str, target: float, kappa: float) -> np.ndarray:
    return _sketched_rounds(r, method, target, kappa) * r["step_seconds"][r["methods"].tolist().index(method)]


def _over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b; NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return a / b


def sketch_rounds(r: common.Results) -> Finding:
    parts, slopes = [], {}
    ratio = r["n"] / r["widths"]
    for method in ("plain", "columns", "deflation"):
        rounds = _sketched_rounds(r, method, 1e-2, r["kappas"][0])
        reached = np.isfinite(rounds)
        slopes[method] = float(np.polyfit(np.log(ratio[reached]), np.log(rounds[reached]), 1)[0])
        parts.append(f"{method} {_list(rounds)} (~ (n/r)^{slopes[method]:.1f})")
    reached = np.isfinite(_sketched_rounds(r, "plain", 1e-2, r["kappas"][0])).all()
    verdict = _verdict(bool(reached) and 0.75 <= slopes["plain"] <= 1.25, DIFFERS if reached else REFUTED)
    text = f"rounds to 1e-2 at r = {_list(r['widths'])}, kappa = {r['kappas'][0]:.0e}: {'; '.join(parts)}"
    text += "" if reached else f" (inf: more than {r['drawn_plain'][-1]})"
    return Finding(verdict, text, {"exponent": slopes})


def sketch_step_time(r: common.Results) -> Finding:
    methods = r["methods"].tolist()
    ratios = {m: (r["step_seconds"][methods.index(m)] / r["step_seconds"][0, -1]).tolist() for m in methods[:3]}
    gain = 1 / ratios["plain"][0]
    text = "; ".join(f"{m} {_list(v)}" for m, v in ratios.items())
    text = f"time of a step over the unsketched one at r = {_list(r['widths'])}: {text}; r = n/8 is {gain:.1f}x faster"
    return Finding(_verdict(2.8 <= gain <= 6.3, DIFFERS if gain > 1 else REFUTED), text, {"ratios": ratios})


def against_sgd(r: common.Results) -> Finding:
    wide = r["widths"] >= r["n"] / 4
    kappa = r["kappas"][0]
    sgd = _sketched_seconds(r, "sgd", 1e-2, kappa)
    gain = {m: _over(sgd, _sketched_seconds(r, m, 1e-2, kappa)) for m in ("plain", "columns", "deflation")}
    text = "; ".join(f"{m} {_list(v)}" for m, v in gain.items())
    holds = bool((gain["plain"][wide] > 1).all())
    text = f"SGD's time to 1e-2 over EAGLE's at r = {_list(r['widths'])}: {text}"
    verdict = _verdict(holds, DIFFERS if (gain["deflation"][wide] > 1).all() else REFUTED)
    return Finding(verdict, text, {m: v.tolist() for m, v in gain.items()})


def against_sketch_cg(r: common.Results) -> Finding:
    kappa = r["kappas"][-1]
    cg = _sketched_seconds(r, "sketch_cg", 1e-6, kappa)
    part = {m: _over(_sketched_seconds(r, m, 1e-6, kappa), cg) for m in ("plain", "columns", "deflation")}
    numbers = {m: [None if np.isnan(x) else float(x) for x in v] for m, v in part.items()}
    text = "; ".join(f"{m} {_list(v)}" for m, v in part.items())
    text = f"EAGLE's time to 1e-6 over sketch-and-CG's at kappa = {kappa:.0e}, r = {_list(r['widths'])}: {text}"
    text += " (0: sketch-and-CG does not get there, nan: neither does)"
    middle = float(np.nanmedian(part["plain"][:-1])) if np.isfinite(part["plain"][:-1]).any() else np.inf
    return Finding(_verdict(middle <= 0.5, DIFFERS if middle < 1 else REFUTED), text, numbers)


def real_matrices(r: common.Results) -> Finding:
    """EAGLE, with the better of its two step rules, meets the paper's residual everywhere and is fastest on most.

    The table has times over the SVD's; "full" is ten times the SVD's own residual.
    """
    names, methods = r["names"].tolist(), r["methods"].tolist()
    # matrices x targets x methods
    ratio = r["seconds"] / r["seconds"][..., [methods.index("lstsq")]]
    eagle = np.fmin(ratio[..., methods.index("optimal")], ratio[..., methods.index("paper")])[:, 0]
    met, fastest = np.isfinite(eagle), eagle <= np.nanmin(ratio[:, 0], axis=-1)
    columns = ["matrix", "size", "rank", "κ(A)", *(f"{m}, 1e-3" for m in methods[:-1])]
    columns += [*(f"{m}, full" for m in methods[:-1]), "error of D"]
    rows = []
    for i, name in enumerate(names):
        size = "×".join(str(n) for n in r["shapes"][i])
        cells = [_list([x]) if np.isfinite(x) else "missed" for target in ratio[i] for x in target[:-1]]
        error = r["error"][i, 1, methods.index("optimal")]
        rows.append([name, size, int(r["rank"][i]), f"{r['kappa'][i]:.0e}", *cells])
        rows[-1].append(f"{error:.0e}" if np.isfinite(error) else "no D")
    numbers = {"table": {"columns": columns, "rows": rows}, "skipped": r["skipped"].tolist()}
    text = (
        f"{len(names)} matrices EAGLE meets 1e-3 on {met.sum()} and is the fastest on {fastest.sum()}; "
        f"its median time is {np.nanmedian(eagle):.2g}x the SVD's"
    )
    if not set(names) & set(suitesparse.WANTED):
        wanted = ", ".join(suitesparse.WANTED)
        reason = f"none of the paper's matrices ({wanted}) was there; on {text}"
        return Finding(NOT_RUN, reason, numbers, runs=len(names))
    verdict = REFUTED if not met.all() else _verdict(fastest.mean() > 0.5, DIFFERS)
    return Finding(verdict, f"of {text}", numbers, runs=len(names))


_TABLE = "U 2.36 5.27 3.70 2.16, D 0.62 1.40 1.28 1.32, C-L 0.01 0.02 0.13 0.14 x1e-4"
EMERGENCE = tuple(
    Claim(id, statement, paper, item, figure, rule)
    for item, claims in {
        "emergence": (
            ("E1", "test error falls over 4 layers", "10-50x, to 1e-3", "e1_emergence", emergence.test_error),
            ("E2", "block structure of W_QK, W_VP", "", "e2_weights", emergence.block_structure),
            ("E3", "a1 a2 max||A||² and a3/a2 constant", "1 and 1.9", "e3_scaling", emergence.step_laws),
            ("E4", "network = algorithm, by layer", _TABLE, "e4_fidelity", emergence.fidelity),
            ("E5", "gamma = 1.92 eta suffices", "3.5e-4 < 1e-3", "e5_fixed_ratio", emergence.fixed_ratio),
            ("E6", "one head does as well as eight", "little effect", "e6_heads", emergence.heads),
            ("E7", "machines share (C, D) only", "same factor", "e7_weights_mean", emergence.messages),
            ("E8", "rank 5, QK and VP alike: a sketch", "0.28", "e8_sketch", emergence.sketch),
            ("E9", "the same with noise 0.01", "", "e9_noise", emergence.noise),
            ("E10", "2 and 3 values suffice", "below its error", "e10_levels", emergence.levels),
            ("E11", "loss spikes come with large ||A||", "typically", "e11_training", emergence.spikes),
            ("E12", "condition number falls", "", "e1_emergence", emergence.conditioning),
            ("E13", "estimation network = its form", "", "e13_estimation", emergence.estimation),
        ),
        "initialisation": (
            ("E14", "sign and std decide what emerges", "ours", "e14_initialisation", emergence.initialisation),
        ),
        "transfer": (("E15", "an algorithm, not a table", "ours", "e15_transfer", emergence.algorithm_or_table),),
        "restart": (("E16", "the form is what training wants", "ours", "e16_restart", emergence.form_or_accident),),
    }.items()
    for id, statement, paper, figure, rule in claims
)
CLAIMS = (
    Claim("N1", "quadratic convergence", "slope about 2", "convergence", "n1_convergence", order),
    Claim("N2", "iterations grow like log kappa", "", "kappa_sweep", "n2_kappa_sweep", log_kappa, timed=True),
    Claim("N3", "fewer iterations than CG, kappa=1e4", "about 100x", "kappa_sweep", "n2_kappa_sweep", against_cg),
    Claim("N4", "converges at every rank; CG unreliable", "", "ranks", "n4_ranks", small_ranks),
    Claim("N5", "estimation form identical", "W_l C = D_l", "convergence", "n1_convergence", estimation),
    Claim("N6", "converges on six data families", "", "families", "n6_families", families),
    Claim("N7", "the same at n = 1920", "", "ranks", "n7_ranks_large", large_ranks),
    Claim("N8", "early stopping regularises as GD", "", "early_stopping", "n8_noise", early_stopping),
    Claim("N9", "step sizes in [0.2, 2] hardly matter", "[0.2, 2]", "step_sizes", "n9_step_sizes", step_sizes),
    Claim("N10", "stopping on ||D_l - D_(l-1)|| suffices", "no number", "stopping", "n10_stopping", stopping),
    Claim("N11", "stable for any kappa", "tested to 1e5", "error_map", "n11_error_map", stability),
    Claim("D1", "1e-2 in <= 15 rounds for any M", "<= 15 rounds", "diversity", "d1_machines", machine_count),
    Claim("D2", "rounds grow like 1/alpha", "", "diversity", "d2_alpha", inverse_alpha),
    Claim("D3", "GD needs more rounds", "10-100x", "diversity", "d2_alpha", against_distributed_gd),
    Claim("D4", "floats per round", "(d+d')n'", "diversity", "", floats_per_round),
    Claim("D5", "freezing A, B: same rounds, less time", "", "diversity", "", freezing, timed=True),
    Claim("D6", "CG is unavailable to machines", "no number", "diversity", "d2_alpha", cg_unavailable),
    Claim("S1", "rounds grow like n/r", "", "sketching", "s1_sketches", sketch_rounds),
    Claim("S2", "time per step by r", "4.2x at n/8", "sketching", "s2_times", sketch_step_time, timed=True),
    Claim("S3", "faster than SGD for r >= n/4", "2.5x at n/4", "sketching", "s2_times", against_sgd, timed=True),
    Claim("S4", "a third of sketch-and-CG's time", "1/3", "sketching", "s2_times", against_sketch_cg, timed=True),
    Claim(
        "R1",
        "SuiteSparse matrices, time to 1e-3 ‖B‖²",
        "table (v2)",
        "suitesparse",
        "r1_suitesparse",
        real_matrices,
        timed=True,
        missing=f"needs --matrix_dir, a folder with {', '.join(f'{name}.mtx' for name in suitesparse.WANTED)}",
    ),
    *EMERGENCE,
)


def _about_run(about: dict[str, Any]) -> dict[str, Any]:
    """What a number depends on beside the rule."""
    names = ("command", "config", "date", "wall_seconds", "versions", "device", "processor", "cores", "load_average")
    return {"runs": about["config"].get("runs")} | {name: about.get(name) for name in (*names, "git_revision")}


def _judged(claim: Claim, out: Path) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(claim, name) for name in ("statement", "paper", "item")}
    record["command"] = f"python -m experiments.{claim.item}"
    record["figure"] = f"figures/{claim.figure}.png" if claim.figure else None
    source = Path(inspect.getsourcefile(claim.rule) or "").relative_to(common.ROOT)
    record["rule"] = f"{source}:{claim.rule.__name__}"
    record["rule_source"] = inspect.getsource(claim.rule)
    if not common.stored(out, claim.item):
        return record | {"verdict": NOT_RUN, "reason": claim.missing or f"no results; run {record['command']}"}
    results, about = common.load(out, claim.item)
    try:
        finding = claim.rule(results)
    except KeyError as error:
        return record | {"verdict": NOT_RUN, "reason": f"stored results of other code lack {error}; run it again"}
    record |= _about_run(about) | {name: value for name, value in finding._asdict().items() if value is not None}
    if record["verdict"] == NOT_RUN:
        record["reason"] = record.pop("measured")
    elif claim.timed and about["load_average"] > about["cores"]:
        load = f"load {about['load_average']:.0f} on {about['cores']} cores"
        record["measured"] += f" (times not meaningful: busy machine, {load})"
    return record


def _unjudged(entry: Entry) -> dict[str, Any]:
    return {"statement": entry.says, "verdict": NOT_RUN, "reason": "no experiment judges it yet"}


def judge(out: Path) -> list[dict[str, Any]]:
    """One JSON-ready record per entry of the ledger, in its order."""
    rules = {claim.id: claim for claim in CLAIMS}
    # Every record has these, so that readers need not ask.
    empty = {"paper": "", "item": "", "command": "", "figure": None, "rule": "", "rule_source": "", "runs": None}
    empty |= {"measured": "", "reason": "", "numbers": {}, "spread": {}, "wall_seconds": None}
    records = []
    for entry in LEDGER:
        record = _judged(rules[entry.id], out) if entry.id in rules else _unjudged(entry)
        records.append({"id": entry.id, "where": entry.where, "says": entry.says} | empty | record)
    return records


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {name: _without_nan(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def as_json(records: list[dict[str, Any]]) -> str:
    return json.dumps(_without_nan(records), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(out: Path) -> tuple[Path, list[dict[str, Any]]]:
    records = judge(out)
    path = out / "claims.json"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(records), encoding="utf-8")
    return path, records


STYLES = {REPRODUCED: "green", DIFFERS: "yellow", REFUTED: "red", NOT_RUN: "dim"}


def print_table(records: list[dict[str, Any]]) -> None:
    table = Table("claim", "verdict", "statement", "paper", "ours")
    for r in records:
        ours = r["measured"] or r["reason"]
        table.add_row(r["id"], Text(r["verdict"], STYLES[r["verdict"]]), *map(Text, (r["statement"], r["paper"], ours)))
    common.console.print(table)
    counts = {name: sum(r["verdict"] == name for r in records) for name in STYLES}
    common.console.print(", ".join(f"{n} {name}" for name, n in counts.items()), highlight=False)


def main() -> None:
    common.define_out_flag()

    def write_and_print(argv: list[str]) -> None:
        del argv
        path, records = write(Path(flags.FLAGS.out))
        print_table(records)
        common.console.print(f"wrote {path}")

    app.run(write_and_print)


if __name__ == "__main__":
    main()
