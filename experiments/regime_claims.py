"""The rules for the distributed and the sketched claims D1-D6 and S1-S4: what stored results say of them."""

import numpy as np

from experiments import common
from experiments.verdicts import NOT_RUN, REFUTED, Finding, at_most, graded, holds, listed, overall, spread_of


def machine_count(r: common.Results) -> Finding:
    # counts x problems
    rounds = common.nan_unless_reached(common.first_below(r["count_errors"], 1e-2))
    median = np.median(rounds, axis=-1)  # NaN, so not within 15, if one problem does not get there
    machines, size, runs = listed(r["counts"]), int(r["large"]), rounds.shape[-1]
    text = f"error 1e-2 after {listed(median)} rounds with M = {machines} (d = n = {size}, alpha = 1)"
    over = median.max() - 15
    text += f": at most {over:g} too many" if over > 0 else ""
    spread = spread_of(**{f"rounds with M = {m}": n for m, n in zip(r["counts"], rounds, strict=True)})
    numbers = {"rounds": rounds.tolist(), "machines": r["counts"].tolist()}
    parts = {f"M = {m}": at_most(n, 15) for m, n in zip(r["counts"], median, strict=True)}
    return Finding.of(parts, text, numbers, spread, runs)


def _exponent(x: np.ndarray, rounds: np.ndarray) -> float:
    """k of rounds ~ x^k, where they are finite; NaN if that is fewer than two."""
    finite = np.isfinite(rounds)
    return float(np.polyfit(np.log(x[finite]), np.log(rounds[finite]), 1)[0]) if finite.sum() > 1 else np.nan


def _linear(exponent: float) -> str:
    """Faster growth than linear is weaker, up to quadratic."""
    return graded(-exponent, -1.25, -0.75, -2)


def _median_rounds(r: common.Results, method: str) -> np.ndarray:
    return np.median(common.nan_unless_reached(r["rounds"])[..., r["methods"].tolist().index(method)], axis=-1)


def inverse_alpha(r: common.Results) -> Finding:
    """By the index, which is alpha in the theorem; the paper's values of alpha exist as ratios of eigenvalues only."""
    rounds, index = _median_rounds(r, "averaging"), np.median(r["index"], axis=-1)
    # ln kappa rounds come first; the growth beyond them is that of 1/alpha in the diversity index.
    slope, by_ratio = (_exponent(1 / x[1:], rounds[1:]) for x in (index, r["alphas"]))
    text = (
        f"{listed(rounds)} rounds to 1e-6 at alpha = {listed(r['alphas'])} (index, the alpha of Theorem 2, "
        f"{listed(index)}): rounds ~ index^-{slope:.2f}, alpha^-{by_ratio:.2f} for alpha < 1; mean projector "
        f"{listed(_median_rounds(r, 'krylov'))}"
    )
    brief = f"{listed(rounds)} rounds at index {listed(index)}: ~ index^-{slope:.2f} (alpha^-{by_ratio:.2f})"
    at = r["methods"].tolist().index("averaging")
    pairs = zip(r["alphas"], common.nan_unless_reached(r["rounds"][..., at]), strict=True)
    spread = spread_of(**{f"rounds at alpha = {alpha:.3g}": n for alpha, n in pairs})
    verdict = overall([holds(bool(np.isfinite(rounds).all())), _linear(slope)])
    numbers = {"rounds": rounds.tolist(), "slope": slope, "slope_by_ratio": by_ratio}
    return Finding(verdict, text, numbers, spread, brief=brief)


def against_distributed_gd(r: common.Results) -> Finding:
    """Where GD is cut off, its cap counts: a lower bound."""
    at = r["methods"].tolist().index("gd")
    gd, cap = r["rounds"][..., at], int(r["caps"][at])
    cut = gd == common.NOT_REACHED
    ours = common.nan_unless_reached(r["rounds"][..., r["methods"].tolist().index("averaging")])
    ratios = np.where(cut, cap, gd) / ours
    ratio = np.median(ratios, axis=-1)
    bound = "at least " if cut.any() else ""
    text = brief = f"GD / EAGLE rounds to 1e-6: {bound}{listed(ratio)} at alpha = {listed(r['alphas'])}"
    text += f"; lower bounds in {int(cut.sum())} of {cut.size} runs, where GD was cut off at {cap}" if cut.any() else ""
    parts = {
        f"alpha = {alpha:.3g}": NOT_RUN if np.isnan(x) or (c.any() and x <= 100) else graded(x, 10, 100, 1)
        for alpha, x, c in zip(r["alphas"], ratio, cut, strict=True)
    }
    spread = spread_of(**{f"ratio at alpha = {alpha:.3g}": x for alpha, x in zip(r["alphas"], ratios, strict=True)})
    return Finding.of(parts, text, {"ratio": ratio.tolist(), "cut_off": int(cut.sum())}, spread, brief=brief)


def floats_per_round(r: common.Results) -> Finding:
    """The compiled program's count, at every size."""
    sent, expected = r["floats"].tolist(), r["floats_expected"].tolist()
    text = f"{listed(sent)} floats a round, (d + d') n' = {listed(expected)}"
    columns = ["d", "d'", "n'", "floats a round in the program", "(d + d') n'"]
    rows = [[*size, n, m] for size, n, m in zip(r["floats_sizes"].tolist(), sent, expected, strict=True)]
    numbers = {"floats": sent, "table": {"columns": columns, "rows": rows}}
    return Finding(holds(sent == expected), text, numbers, runs=len(sent))


def freezing(r: common.Results) -> Finding:
    """The same rounds and less time at the paper's alpha of 0.1; the other alphas are in the table."""
    # alphas x (not frozen, frozen) x repeats
    ratios = r["freeze_seconds"][:, 1] / r["freeze_seconds"][:, 0]
    ratio = r["freeze_seconds"][:, 1].min(-1) / r["freeze_seconds"][:, 0].min(-1)
    at = int(np.argmin(np.abs(r["freeze_alphas"] - 0.1)))
    none, freeze = r["freeze_rounds"][at].tolist()
    parts = {"same rounds": holds(none == freeze), "less time": graded(1 / ratio[at], 1 / 0.9, np.inf, 1)}
    text = f"{none} and {freeze} rounds, time {ratio[at]:.2f}x (alpha = {r['freeze_alphas'][at]:.3g})"
    columns = ["alpha", "rounds", "rounds, frozen", "time, frozen / not", "relative difference of D"]
    facts = zip(r["freeze_alphas"], r["freeze_rounds"].tolist(), ratio, r["freeze_gap"], strict=True)
    rows = [[f"{alpha:.3g}", *rounds, f"{x:.2f}", f"{gap:.0e}"] for alpha, rounds, x, gap in facts]
    numbers = {"ratio": float(ratio[at]), "rounds": [none, freeze], "table": {"columns": columns, "rows": rows}}
    return Finding.of(parts, text, numbers, spread_of(**{"ratio of times, over repeats": ratios[at]}), runs=1)


def cg_unavailable(r: common.Results) -> Finding:
    """One alpha at which CG gets there refutes it; CG cut off everywhere decides nothing."""
    cg, eagle, krylov = (_median_rounds(r, m) for m in ("cg", "averaging", "krylov"))
    verdict = REFUTED if np.isfinite(cg).any() else NOT_RUN
    text = (
        f"matrix-free CG, one d x d' sum a round, takes {listed(cg)} rounds to 1e-6 at alpha = {listed(r['alphas'])}; "
        f"averaging {listed(eagle)}, mean projector {listed(krylov)}"
    )
    numbers = {"cg": cg.tolist(), "averaging": eagle.tolist(), "krylov": krylov.tolist()}
    at = r["methods"].tolist().index("cg")
    pairs = zip(r["alphas"], common.nan_unless_reached(r["rounds"][..., at]), strict=True)
    spread = spread_of(**{f"CG's rounds at alpha = {alpha:.3g}": n for alpha, n in pairs})
    brief = f"CG without forming A Aᵀ: {listed(cg)} rounds, averaging {listed(eagle)}"
    return Finding(verdict, text, numbers, spread, brief=brief)


# The paper's two sketches: its text's, and what its later version says that it ran.
PAPERS = {"plain": "orthogonal sketches", "columns": "columns"}


def _sketched_rounds(r: common.Results, method: str, target: float, kappa: float) -> np.ndarray:
    """Median rounds by width; NaN where more than half of the runs do not get there."""
    at, which = r["kappas"].tolist().index(kappa), r["targets"].tolist().index(target)
    rounds = common.nan_unless_reached(r[f"rounds_{at}"])[:, r["methods"].tolist().index(method), :, which]
    return np.median(np.where(np.isnan(rounds), np.inf, rounds), axis=0)


def _sketched_seconds(r: common.Results, method: str, target: float, kappa: float) -> np.ndarray:
    return _sketched_rounds(r, method, target, kappa) * r["step_seconds"][r["methods"].tolist().index(method)]


def _seconds_so_far(r: common.Results, method: str, target: float, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """Seconds by width, and where the method was cut off: there they are a lower bound."""
    rounds = _sketched_rounds(r, method, target, kappa)
    cut = ~np.isfinite(rounds)
    seconds = np.where(cut, r[f"drawn_{method}"][-1], rounds) * r["step_seconds"][r["methods"].tolist().index(method)]
    return seconds, cut


def _untimed(r: common.Results) -> Finding | None:
    """A busy moment may have spoilt the time of a step (`sketching.step_seconds`)."""
    if np.isfinite(r["step_seconds"]).all():
        return None
    return Finding(NOT_RUN, "some steps could not be timed on the busy machine; run it again", {})


def _rounds_spread(r: common.Results, method: str, target: float, kappa: float) -> dict[str, list[float]]:
    """Of the rounds by width, over the runs that get there."""
    at, which = r["kappas"].tolist().index(kappa), r["targets"].tolist().index(target)
    rounds = common.nan_unless_reached(r[f"rounds_{at}"])[:, r["methods"].tolist().index(method), :, which]
    return spread_of(**{f"{method} rounds at r = {w}": n for w, n in zip(r["widths"], rounds.T, strict=True)})


def sketch_rounds(r: common.Results) -> Finding:
    parts, slopes, sketched_only = [], {}, {}
    ratio = r["n"] / r["widths"]
    for method in ("plain", "columns", "deflation"):
        rounds = _sketched_rounds(r, method, 1e-2, r["kappas"][0])
        slopes[method] = _exponent(ratio, rounds)
        sketched_only[method] = _exponent(ratio[ratio > 1], rounds[ratio > 1])  # r = n is not sketched
        parts.append(f"{method} {listed(rounds)} (~ (n/r)^{slopes[method]:.1f}, r < n: {sketched_only[method]:.1f})")
    there = {m: bool(np.isfinite(_sketched_rounds(r, m, 1e-2, r["kappas"][0])).all()) for m in PAPERS}
    verdicts = {name: _linear(slopes[m]) if there[m] else REFUTED for m, name in PAPERS.items()}
    text = f"rounds to 1e-2 at r = {listed(r['widths'])}, kappa = {r['kappas'][0]:.0e}: {'; '.join(parts)}"
    text += "" if all(there.values()) else f" (inf: more than {r['drawn_plain'][-1]})"
    powers = (f"{m} k = {k:.1f} ({sketched_only[m]:.1f} without r = n)" for m, k in slopes.items())
    brief = f"rounds ~ (n/r)^k: {', '.join(powers)}"
    spread = _rounds_spread(r, "plain", 1e-2, r["kappas"][0])
    return Finding.of(verdicts, text, {"exponent": slopes, "exponent_below_n": sketched_only}, spread, brief=brief)


def sketch_step_time(r: common.Results) -> Finding:
    if spoilt := _untimed(r):
        return spoilt
    methods = r["methods"].tolist()
    ratios = {m: (r["step_seconds"][methods.index(m)] / r["step_seconds"][0, -1]).tolist() for m in methods[:3]}
    gains = {m: 1 / ratios[m][0] for m in PAPERS}
    text = "; ".join(f"{m} {listed(v)}" for m, v in ratios.items())
    text = (
        f"time of a step over the unsketched one at r = {listed(r['widths'])}: {text}; r = n/8 is "
        f"{gains['plain']:.1f}x as fast"
    )
    brief = f"{gains['plain']:.1f}x as fast at r = n/8; on columns {gains['columns']:.1f}x"
    parts = {name: graded(gains[m], 2.8, 6.3, 1) for m, name in PAPERS.items()}
    repeats = {m: r["step_repeats"][0, -1] / r["step_repeats"][methods.index(m), 0] for m in ("plain", "columns")}
    spread = spread_of(**{f"{m}, times as fast at r = n/8, over repeats": x for m, x in repeats.items()})
    return Finding.of(parts, text, {"ratios": ratios}, spread, runs=1, brief=brief)


def against_sgd(r: common.Results) -> Finding:
    if spoilt := _untimed(r):
        return spoilt
    wide = r["widths"] >= r["n"] / 4
    kappa = r["kappas"][0]
    sgd, cut = _seconds_so_far(r, "sgd", 1e-2, kappa)
    gain = {m: sgd / _sketched_seconds(r, m, 1e-2, kappa) for m in ("plain", "columns", "deflation")}
    text = "; ".join(f"{m} {listed(v)}" for m, v in gain.items())
    text = f"SGD's time to 1e-2 over EAGLE's at r = {listed(r['widths'])}: {text}"
    text += f"; at least, at r = {listed(r['widths'][cut])}, where SGD was cut off" if cut.any() else ""
    parts = {}
    for m, name in PAPERS.items():
        slower = wide & ~(gain[m] > 1)
        parts[name] = NOT_RUN if slower.any() and cut[slower].all() else holds(not slower.any())
    at = int(np.argmin(np.abs(r["n"] / r["widths"] - 4)))
    quarter = ", ".join(f"{m} {listed(v[[at]])}x" for m, v in gain.items())
    spread = _rounds_spread(r, "plain", 1e-2, kappa)
    numbers = {m: v.tolist() for m, v in gain.items()}
    return Finding.of(parts, text, numbers, spread, brief=f"SGD's time over ours at r = n/4: {quarter}")


def against_sketch_cg(r: common.Results) -> Finding:
    """A third or less, with a tolerance of half, at r < n. Where sketch-and-CG is cut off, its time is a bound."""
    if spoilt := _untimed(r):
        return spoilt
    kappa, cap, steps = r["kappas"][-1], int(r["drawn_sketch_cg"][-1]), int(r["drawn_plain"][-1])
    cg, cut = _seconds_so_far(r, "sketch_cg", 1e-6, kappa)
    ours = {m: _sketched_seconds(r, m, 1e-6, kappa) for m in ("plain", "columns", "deflation")}
    part = {m: seconds / cg for m, seconds in ours.items()}
    there = {m: r["widths"][np.isfinite(seconds)] for m, seconds in ours.items()} | {"sketch-and-CG": r["widths"][~cut]}
    where = "; ".join(f"{m} at r = {listed(w)}" if w.size else f"{m} nowhere" for m, w in there.items())
    shares = ", ".join(
        f"{'less than ' * bool(c)}{x:.2g} at r = {w}"
        for w, x, c in zip(r["widths"], part["plain"], cut, strict=True)
        if np.isfinite(x)
    )
    text = f"1e-6 at kappa = {kappa:.0e} is reached by {where} (within {steps} rounds, sketch-and-CG {cap}); "
    text += f"time over sketch-and-CG's: {shares}" if shares else "no time to compare"
    parts = {
        f"r = {w}": NOT_RUN if c and not x <= 0.5 else graded(1 / x, 2, np.inf, 1)
        for w, x, c in zip(r["widths"], part["plain"], cut, strict=True)
        if w < r["n"]
    }
    numbers = {m: [float(x) if np.isfinite(x) else None for x in v] for m, v in part.items()}
    brief = f"time over sketch-and-CG's to 1e-6: {shares or 'none'}"
    brief += "" if np.isfinite(part["plain"]).all() else f"; not reached in {steps} rounds elsewhere"
    return Finding.of(parts, text, numbers, _rounds_spread(r, "deflation", 1e-6, kappa), brief=brief)
