"""Verdicts on E1-E13, E15 and E16, by rules in code, from the stored results of emergence, restart and transfer.

Numbers are medians over the shipped seeds: in a mean, one network that diverges on a task outweighs all others. The
last layer's a2 is left out wherever it would enter: the loss does not see it, because nothing reads A and B after it.
"""

import numpy as np

from experiments import common
from experiments.verdicts import (
    NOT_RUN,
    REFUTED,
    REPRODUCED,
    WEAKER,
    Finding,
    at_most,
    graded,
    holds,
    numbers,
    overall,
    spread_of,
)

REGIMES = {"U": "U", "D": "D", "CL": "C-L"}
NAMES = {"CL": "C-L", "Un": "noisy U", "Dn": "noisy D", "CLn": "noisy C-L", "U8": "8-head U"}
PAPER_FIDELITY = {"U": (2.36, 5.27, 3.70, 2.16), "D": (0.62, 1.40, 1.28, 1.32), "CL": (0.01, 0.02, 0.13, 0.14)}
PAPER_BOUND = 6e-4
PAPER_DIFFERENCE = 0.28
PAPER_FIXED = 3.5e-4


def _count(r: common.Results, tag: str) -> int:
    return int(r[f"{tag}_seeds"].size)


def _missing(r: common.Results, *tags: str) -> Finding | None:
    absent = [tag for tag in tags if _count(r, tag) == 0]
    return Finding(NOT_RUN, f"no trained weights of {', '.join(absent)} are shipped", {}) if absent else None


def _typical(r: common.Results, tag: str, name: str) -> np.ndarray:
    """Median over runs."""
    return np.median(r[f"{tag}_{name}"], axis=0)


def _fewest(r: common.Results, *tags: str) -> int:
    return min(_count(r, tag) for tag in tags)


def _diverging(r: common.Results, tag: str) -> str:
    """A remark on runs whose mean test error is above a hundred times the median run's."""
    last = r[f"{tag}_mse_mean"][:, -1]
    count = int(np.sum(~(last <= 100 * np.median(last))))
    return f" ({count} of them diverges on a task)" if count else ""


def _seeds(r: common.Results, *tags: str) -> str:
    counts = [_count(r, tag) for tag in tags]
    named = ", ".join(f"{n} {NAMES.get(tag, tag)}" for n, tag in zip(counts, tags, strict=True))
    return f"{named} run{'s' * (sum(counts) != 1)}"


def test_error(r: common.Results) -> Finding:
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found, verdicts = [], {}, {}
    for tag, label in REGIMES.items():
        mse = _typical(r, tag, "mse")
        found[tag] = {"mse": mse.tolist(), "fall": float(mse[0] / mse[-1])}
        parts.append(f"{label}: {numbers(mse, 2)} ({mse[0] / mse[-1]:.0f}x)")
        falls, ends = graded(mse[0] / mse[-1], 10, np.inf, 2), graded(1e-3 / mse[-1], 1 / 3, np.inf, 1 / 10)
        verdicts[label] = overall([falls, ends])
    text = f"{'; '.join(parts)}; {_seeds(r, *REGIMES)}"
    brief = "; ".join(f"{REGIMES[t]} {f['fall']:.0f}x, to {f['mse'][-1]:.1e}" for t, f in found.items())
    spread = spread_of(**{f"{REGIMES[t]} after layer 4": r[f"{t}_mse"][:, -1] for t in REGIMES})
    return Finding.of(verdicts, text, found, spread, _fewest(r, *REGIMES), brief)


def block_structure(r: common.Results) -> Finding:
    """Diagonal where the paper says diagonal (U, D), and nothing outside the blocks."""
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found, verdicts = [], {}, {}
    for tag, label in REGIMES.items():
        QK, VP = (float(r[f"{tag}_{w}_diagonality"][:, :-1].min()) for w in ("QK", "VP"))
        off = float(max(r[f"{tag}_{w}_off_block"][:, :-1].max() for w in ("QK", "VP")))
        found[tag] = {"least_diagonal_QK": QK, "least_diagonal_VP": VP, "most_off_block": off}
        parts.append(f"{label}: on the diagonal at least {QK:.2f} (QK), {VP:.2f} (VP), off-block at most {off:.3f}")
        diagonal = [] if tag == "CL" else [graded(min(QK, VP), 0.9, np.inf, 0.5)]  # C-L's blocks are sketches
        verdicts[label] = overall([at_most(off, 0.05), *diagonal])
    text = f"shares of ||W||², layers 1-3: {'; '.join(parts)}; {_seeds(r, *REGIMES)}"
    least = {t: min(f["least_diagonal_QK"], f["least_diagonal_VP"]) for t, f in found.items()}
    brief = "on the diagonal at least " + ", ".join(f"{x:.2f} of ||W||² ({REGIMES[t]})" for t, x in least.items())
    shares = {f"{REGIMES[t]} {w} diagonal": r[f"{t}_{w}_diagonality"][:, :-1] for t in REGIMES for w in ("QK", "VP")}
    return Finding.of(verdicts, text, found, spread_of(**shares), _fewest(r, *REGIMES), brief)


def _law(values: np.ndarray, low: float, high: float) -> str:
    """Constant over layers, and its mean between the two."""
    if not (low <= np.mean(values) <= high and values.min() > 0):
        return REFUTED
    return REPRODUCED if values.max() / values.min() < 1.5 else WEAKER


def step_laws(r: common.Results) -> Finding:
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found, ratios, verdicts = [], {}, {}, {}
    for tag, label in REGIMES.items():
        eta = _typical(r, tag, "eta_largest")[:-1]
        ratios[tag] = r[f"{tag}_gamma_rho"][:, :-1] / r[f"{tag}_eta_rho"][:, :-1]
        ratio = np.median(ratios[tag], axis=0)
        mean = float(np.mean(ratio))
        found[tag] = {"eta": eta.tolist(), "ratio": ratio.tolist(), "mean_ratio": mean}
        found[tag]["gamma"] = _typical(r, tag, "gamma_largest").tolist()
        found[tag]["eta_by_median_norm"] = _typical(r, tag, "eta_median")[:-1].tolist()
        verdicts[label] = overall([_law(eta, 0.5, 1.5), _law(ratio, 1.7, 2.1)])
        parts.append(f"{label}: eta = {numbers(eta)}, gamma/eta = {numbers(ratio)}, mean {mean:.2f}")
    text = f"layers 1-3, {'; '.join(parts)}; {_seeds(r, *REGIMES)}"
    brief = "gamma/eta in layers 1-3: " + "; ".join(f"{REGIMES[t]} {numbers(f['ratio'], 2)}" for t, f in found.items())
    spread = spread_of(**{f"{REGIMES[t]} gamma/eta, mean over layers": x.mean(1) for t, x in ratios.items()})
    return Finding.of(verdicts, text, found, spread, _fewest(r, *REGIMES), brief)


def fidelity(r: common.Results) -> Finding:
    """The paper's bound, 6e-4 in all layers and regimes, for the form it states."""
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found, verdicts = [], {}, {}
    for tag, label in REGIMES.items():
        form, general = (_typical(r, tag, name)[1:] * 1e4 for name in ("form", "general"))
        middle = _typical(r, tag, "form_median")[1:] * 1e4
        found[tag] = {"typical": form.tolist(), "median_task": middle.tolist()}
        found[tag] |= {"general": general.tolist(), "paper": list(PAPER_FIDELITY[tag])}
        verdicts[label] = overall(at_most(x, PAPER_BOUND * 1e4) for x in form)
        parts.append(f"{label} below 6e-4 after {int((form <= PAPER_BOUND * 1e4).sum())} of 4 layers")
    text = f"{'; '.join(parts)}; {_seeds(r, *REGIMES)}"
    brief = "x1e-4: " + "; ".join(f"{REGIMES[t]} {numbers(f['typical'], 2)}" for t, f in found.items())
    layers = {f"x1e-4, {REGIMES[t]}, layer {i}": r[f"{t}_form"][:, i] * 1e4 for t in REGIMES for i in range(1, 5)}
    columns = ["network", *(f"layer {i}" for i in range(1, 5))]
    rows = []
    for t, f in found.items():
        rows.append([f"{REGIMES[t]}, paper", *f["paper"]])
        rows.append([f"{REGIMES[t]}, mean task", *(f"{x:.3g}" for x in f["typical"])])
        rows.append([f"{REGIMES[t]}, median task", *(f"{x:.3g}" for x in f["median_task"])])
        rows.append([f"{REGIMES[t]}, matrices for scalars", *(f"{x:.3g}" for x in f["general"])])
    caption = "Squared difference of network and algorithm per entry of Z, x1e-4; ours are medians over runs."
    found["table"] = {"columns": columns, "rows": rows, "caption": caption}
    return Finding.of(verdicts, text, found, spread_of(**layers), _fewest(r, *REGIMES), brief)


def _small_change(change: float, own: float) -> str:
    """The paper's, within a factor of 3, and below the network's own error."""
    if not change < own:
        return REFUTED
    return REPRODUCED if change <= 3 * PAPER_FIXED else WEAKER


def fixed_ratio(r: common.Results) -> Finding:
    if absent := _missing(r, "U"):
        return absent
    change, middle = (float(_typical(r, "U", name)[-1]) for name in ("fixed_D", "fixed_D_median"))
    own, own_middle = (float(_typical(r, "U", name)[-1]) for name in ("mse_mean", "mse"))
    laws = float(_typical(r, "U", "laws_D_median")[-1])
    parts = {"mean task": _small_change(change, own), "median task": _small_change(middle, own_middle)}
    text = (
        f"predictions change by {change:.1e} (median task {middle:.1e}), the network's own error is {own:.1e} "
        f"({own_middle:.1e}); with eta = 1, gamma = 1.92 over max ||A_l||² by {laws:.1e} (median task); "
        f"{_seeds(r, 'U')}{_diverging(r, 'U')}"
    )
    found = {"change": change, "change_median": middle, "own": own, "own_median": own_middle, "laws_median": laws}
    spread = spread_of(change=r["U_fixed_D"][:, -1], own_error=r["U_mse_mean"][:, -1])
    brief = f"{change:.1e} (median task {middle:.1e}), own error {own:.1e} ({own_middle:.1e})"
    return Finding.of(parts, text, found, spread, _count(r, "U"), brief)


def heads(r: common.Results) -> Finding:
    if absent := _missing(r, "U", "U8"):
        return absent
    one, eight = (float(_typical(r, tag, "mse")[-1]) for tag in ("U", "U8"))
    if not np.isfinite(one + eight):
        return Finding(NOT_RUN, f"median test error {one:.2e} with one head, {eight:.2e} with eight", {})
    text = f"median test error {one:.2e} with one head, {eight:.2e} with eight; {_seeds(r, 'U', 'U8')}"
    spread = spread_of(one_head=r["U_mse"][:, -1], eight_heads=r["U8_mse"][:, -1])
    found = {"one": one, "eight": eight}
    brief = f"{one:.2e} with one head, {eight:.2e} with eight"
    effect = at_most(max(one / eight, eight / one), 1.5)
    return Finding(effect, text, found, spread, _fewest(r, "U", "U8"), brief)


def messages(r: common.Results) -> Finding:
    if absent := _missing(r, "D"):
        return absent
    foreign, factor = r["D_foreign_AB"][:, :-1], r["D_factor_ratio"]
    ranks = r["D_VP_rank"][:, :-1]
    parts = {"(C, D) only": at_most(foreign.max(), 0.1), "same factor": at_most(np.abs(factor - 1).max(), 0.1)}
    text = (
        f"what reaches other machines' (A, B) is at most {foreign.max():.3f} of the own block (layers 1-3), their "
        f"(C, D) factor is {factor.min():.2f} to {factor.max():.2f} of the own one; the own n x n block has rank "
        f"{numbers(ranks.mean(0))} of {r['D_VP_spectrum'].shape[-1]}; {_seeds(r, 'D')}"
    )
    found = {"foreign_AB": float(foreign.max()), "factor": [float(factor.min()), float(factor.max())]}
    found |= {"rank": ranks.mean(0).tolist()}
    spread = spread_of(share_of_A_and_B=foreign, factor_of_C_and_D=factor)
    brief = f"(A, B) at most {foreign.max():.3f} of the own block, (C, D) {factor.min():.2f} to {factor.max():.2f}"
    return Finding.of(parts, text, found, spread, _count(r, "D"), brief)


def _distance_to_identity(blocks: np.ndarray) -> float:
    """||mean - c I|| / ||mean|| of a stack of matrices."""
    mean = blocks.reshape(-1, *blocks.shape[-2:]).mean(0)
    c = np.trace(mean) / len(mean)
    return float(np.linalg.norm(mean - c * np.eye(len(mean))) / np.linalg.norm(mean))


def sketch(r: common.Results) -> Finding:
    if absent := _missing(r, "CL"):
        return absent
    ranks = [_typical(r, "CL", f"{w}_rank")[:-1] for w in ("QK", "VP")]
    difference, own, next_ = (_typical(r, "CL", name) for name in ("difference", "own", "next"))
    top = np.sort(np.linalg.eigvalsh(r["CL_unit"]), axis=-1)[..., -5:]
    unit = r["CL_unit"].reshape(-1, *r["CL_unit"].shape[-2:])
    ours, chance = _distance_to_identity(unit), _distance_to_identity(r["random_sketch"][: len(unit)])
    low_rank = all(np.all(k <= 5) for k in ranks)
    parts = {"rank": holds(low_rank), "QK and VP alike": at_most(difference[:-1].max(), 1.5 * PAPER_DIFFERENCE)}
    text = (
        f"ranks {numbers(ranks[0])} (QK), {numbers(ranks[1])} (VP); relative difference {numbers(difference[:-1])}; "
        f"QK's five eigenvalues over their mean {top.min():.2f} to {top.max():.2f} (S S^T: 1); VP is off a multiple of "
        f"I by {numbers(next_)} on the columns that the next layer reads, by {numbers(own)} on those its own does; "
        f"QK's mean over runs and layers is off a multiple of I by {ours:.2f} (random sketches: {chance:.2f}); "
        f"{_seeds(r, 'CL')}"
    )
    found = {"difference": difference.tolist(), "own": own.tolist(), "next": next_.tolist()}
    found |= {"eigenvalues": [float(top.min()), float(top.max())], "mean_off_identity": [ours, chance]}
    spread = spread_of(**{f"difference in layer {i}": x for i, x in enumerate(r["CL_difference"][:, :-1].T, 1)})
    brief = f"rank 5; {numbers(difference[:-1])} apart; W_VP fits what the next layer reads"
    brief = brief if low_rank and np.all(next_ < own) else ""
    return Finding.of(parts, text, found, spread, _count(r, "CL"), brief)


def noise(r: common.Results) -> Finding:
    present = [tag for tag in REGIMES if _count(r, tag) and _count(r, f"{tag}n")]
    if not present:
        return Finding(NOT_RUN, "no trained weights with noise are shipped", {})
    parts, found, verdicts = [], {}, {REGIMES[tag]: NOT_RUN for tag in REGIMES}
    for tag in present:
        eta, clean = (_typical(r, t, "eta_largest")[:-1] for t in (f"{tag}n", tag))
        mse, kappa = _typical(r, f"{tag}n", "mse"), _typical(r, f"{tag}n", "kappa")
        found[tag] = {"mse": mse.tolist(), "kappa": kappa.tolist(), "eta": eta.tolist(), "clean_eta": clean.tolist()}
        diagonal = [min(_typical(r, t, f"{w}_diagonality")[:-1].min() for w in ("QK", "VP")) for t in (f"{tag}n", tag)]
        found[tag]["least_diagonal"], found[tag]["clean_least_diagonal"] = map(float, diagonal)
        falls, same_form = holds(mse[-1] < mse[0] / 2), graded(diagonal[0] / diagonal[1], 0.9, np.inf, 0.5)
        factor = np.maximum(eta / clean, clean / eta).max() if min(eta.min(), clean.min()) > 0 else np.inf
        verdicts[REGIMES[tag]] = overall([falls, at_most(factor, 2), same_form])
        parts.append(
            f"{REGIMES[tag]}: error {numbers(mse, 2)}, eta {numbers(eta)} (without noise {numbers(clean)}), on the "
            f"diagonal at least {diagonal[0]:.2f} of ||W||² ({diagonal[1]:.2f})"
        )
    noisy = [f"{tag}n" for tag in present]
    text = f"{'; '.join(parts)}; {_seeds(r, *noisy)}"
    text += "" if len(present) == 3 else "; the other regimes are not shipped yet"
    brief = "eta in layers 1-3: " + "; ".join(
        f"{REGIMES[t]} {numbers(f['eta'], 2)} (clean {numbers(f['clean_eta'], 2)})" for t, f in found.items()
    )
    spread = spread_of(**{f"{REGIMES[t]} after layer 4": r[f"{t}n_mse"][:, -1] for t in present})
    return Finding.of(verdicts, text, found, spread, _fewest(r, *noisy), brief)


def levels(r: common.Results) -> Finding:
    if absent := _missing(r, "U"):
        return absent
    own, curve = float(_typical(r, "U", "mse_mean")[-1]), _typical(r, "U", "levels_mean")
    sparse, paper = (float(_typical(r, "U", name)) for name in ("sparse_mean", "clustered_mean"))
    few = dict(zip(r["levels"].tolist(), curve.tolist(), strict=True))
    text = (
        f"predictions change by {sparse:.1e} when sparsified, {paper:.1e} with 2 and 3 values; with one value "
        f"{few[1]:.1e}, two {few[2]:.1e}, eight {few[8]:.1e}; the network's own error {own:.1e}; {_seeds(r, 'U')}"
        f"{_diverging(r, 'U')}"
    )
    parts = {"2 and 3 values do": at_most(paper / own, 1), "one does not": holds(own < few[1])}
    spread = spread_of(change=r["U_clustered_mean"], own_error=r["U_mse_mean"][:, -1])
    brief = f"2 and 3 values change predictions by {paper:.1e}, own error {own:.1e}"
    return Finding.of(parts, text, {"levels": few, "own": own}, spread, _count(r, "U"), brief)


def spikes(r: common.Results) -> Finding:
    """A spike is a loss above 10 times the median around it; untypically large, a norm above nine in ten batches'."""
    present = [tag for tag in REGIMES if _count(r, tag) and r[f"{tag}_spike_norm"].size]
    if not present:
        return Finding(NOT_RUN, "no trained weights are shipped, or no training loss has spiked", {})
    large, parts, found, spread = float(np.quantile(r["batch_norms"], 0.9)), [], {}, {}
    for tag in present:
        above = r[f"{tag}_spike_norm"] > large
        share, rate = float(np.mean(above)), float(np.mean(r[f"{tag}_spikes"] / r[f"{tag}_steps"]))
        last = float(np.median(r[f"{tag}_loss_median"][:, -50:]))
        found[tag] = {"share_of_large_norms": share, "spikes_per_step": rate, "final_loss": last}
        by_run = [x.mean() for x in np.split(above, np.cumsum(r[f"{tag}_spikes"])[:-1]) if x.size]
        spread[f"share in {REGIMES[tag]}"] = np.array(by_run)
        parts.append(f"{REGIMES[tag]}: {share:.0%} of the spikes, which are {rate:.0%} of the steps; loss {last:.1e}")
    verdicts = {REGIMES[t]: graded(f["share_of_large_norms"], 0.5, 1, 0.1) for t, f in found.items()}
    text = (
        f"the batch's largest ||A|| is above {large:.2f} times the median, as in 10 % of all batches, in "
        f"{'; '.join(parts)}; {_seeds(r, *present)}"
    )
    shares = ", ".join(f"{f['share_of_large_norms']:.0%} ({REGIMES[t]})" for t, f in found.items())
    brief = f"{shares} of the spikes have an ||A|| that 10 % of all batches have"
    return Finding.of(verdicts, text, found, spread_of(**spread), _fewest(r, *present), brief)


def conditioning(r: common.Results) -> Finding:
    """Up to the last layer's input: what comes after is not read."""
    if absent := _missing(r, *REGIMES):
        return absent
    found = {tag: _typical(r, tag, "kappa")[:-1] for tag in REGIMES}
    falls = {tag: float(k[0] / k[-1]) for tag, k in found.items()}
    parts = [f"{label} {numbers(found[tag])}" for tag, label in REGIMES.items()]
    verdicts = {REGIMES[tag]: graded(fall, 2, np.inf, 1.1) for tag, fall in falls.items()}
    text = (
        f"median sigma_1/sigma_10 of A_0..A_3 (sigma_6 on machines): {'; '.join(parts)}; "
        f"of A_l S_l in C-L {numbers(_typical(r, 'CL', 'kappa_read'))}; {_seeds(r, *REGIMES)}"
    )
    spread = spread_of(**{f"{REGIMES[t]} before layer 4": r[f"{t}_kappa"][:, 3] for t in REGIMES})
    brief = "from layer 1 to 4: " + "; ".join(f"{REGIMES[t]} {k[0]:.3g} to {k[-1]:.3g}" for t, k in found.items())
    return Finding.of(verdicts, text, {"falls": falls}, spread, _fewest(r, *REGIMES), brief)


def estimation(r: common.Results) -> Finding:
    if absent := _missing(r, "E"):
        return absent
    form, residual = _typical(r, "E", "form_D_median")[1:], _typical(r, "E", "residuals")
    a1, a2, a3 = _typical(r, "E", "alphas").T
    beta, mse = _typical(r, "E", "beta") / a1, _typical(r, "E", "mse")
    shaped = residual[:, 0].max() <= 0.25 and residual[:, 1].max() <= 0.25 and np.abs(a3 / a2 - 1)[:-1].max() <= 0.1
    follows = bool(np.all(form < mse[1:] / 4)) and np.abs(beta[1:] - 1).max() <= 0.25
    text = (
        f"W_QK, W_VP off diag(a1 I, 0), diag(a2 I, a3) by at most {residual[:, 0].max():.2f}, "
        f"{residual[:, 1].max():.2f}; a3/a2 = {numbers((a3 / a2)[:-1])}, beta/a1 = {numbers(beta)} (1 in Update, free "
        f"in layer 1); W differs from Update's by {numbers(form * 1e4)} x1e-4 (median task), its error is "
        f"{numbers(mse[1:] * 1e4)} x1e-4; {_seeds(r, 'E')}"
    )
    found = {"beta_over_a1": beta.tolist(), "W_gap": form.tolist(), "mse": mse.tolist()}
    spread = spread_of(error=r["E_mse"][:, -1], gap=r["E_form_D_median"][:, -1])
    brief = (
        f"off the form by at most {residual[:, :2].max():.2f}; gap to Update {form[-1]:.1e}, own error {mse[-1]:.1e}"
    )
    parts = {"the form": holds(bool(shaped)), "the steps": holds(follows)}
    return Finding.of(parts, text, found, spread, _count(r, "E"), brief)


def algorithm_or_table(r: common.Results) -> Finding:
    """An algorithm, if with ||A|| taken out the four steps do as well as on their own tasks wherever n >= rank."""
    if r["seeds"].size == 0:
        return Finding(NOT_RUN, "no trained unconstrained weights are shipped", {})
    at = {name: i for i, name in enumerate(r["methods"].tolist())}
    usual = float(np.mean(r["factor"][:, r["factor_values"] == 1, at["schedule"]]))
    beyond = np.mean(r["factor"][..., at["schedule"]], axis=0)[[0, -1]]
    within = r["factor_values"][np.mean(r["factor"][..., at["schedule"]], axis=0) <= 2 * usual]
    big = r["n_values"] >= 18
    sizes = np.mean(r["n"][:, big], axis=0)
    spectra = np.concatenate([np.mean(r[name], axis=0) for name in ("s", "decay")])
    wins = np.concatenate([sizes, spectra])
    worst = {"sizes": sizes[:, at["scaled"]].max(), "spectra": spectra[:, at["scaled"]].max()}
    verdicts = {name: at_most(error, 2 * usual) if usual < np.inf else REFUTED for name, error in worst.items()}
    better = float(np.mean(wins[:, at["scaled"]] < wins[:, at["paper"]]))
    text = (
        f"error {usual:.2f} on its own tasks, below twice that for ||A|| times {within.min():g} to {within.max():g} "
        f"({beyond[0]:.2g} at {r['factor_values'].min():g}, {beyond[1]:.2g} at {r['factor_values'].max():g}); with "
        f"||A|| scaled to training's it is at most "
        f"{sizes[:, at['scaled']].max():.2f} for n = 18 to {r['n_values'].max():g} and "
        f"{spectra[:, at['scaled']].max():.2f} for ranks {r['s_values'].min():g} to {r['s_values'].max():g} and "
        f"decays {r['decay_values'].min():g} to {r['decay_values'].max():g}; "
        f"better than four steps of the paper's constants in {better:.0%}; {r['seeds'].size} runs"
    )
    found = {"usual": usual, "factors": [float(within.min()), float(within.max())], "better_than_paper": better}
    at_home = r["factor"][:, r["factor_values"] == 1, at["schedule"]]
    brief = (
        f"relative error at most {wins[:, at['scaled']].max():.2f} for other sizes, ranks, spectra (||A|| as in "
        f"training), {usual:.2f} on its own tasks"
    )
    return Finding.of(verdicts, text, found, spread_of(at_home=at_home), int(r["seeds"].size), brief)


def form_or_accident(r: common.Results) -> Finding:
    """Whether the paper's form, trained on, is at least as good as the trained network."""
    present = [tag for tag in REGIMES if f"{tag}_mse" in r]
    if not present:
        return Finding(NOT_RUN, "no trained weights are shipped", {})
    parts, found, verdicts, spread = [], {}, {}, {}
    for tag in present:
        # runs x starts, of the median task: one task can dominate the mean
        errors = r[f"{tag}_mse"][..., -1]
        trained, continued, restarted, tuned = np.median(errors, axis=0)
        found[tag] = {"trained": trained, "continued": continued, "restarted": restarted, "tuned": tuned}
        gap = np.median(r[f"{tag}_form_median"][:, 2, 1:], axis=0)
        found[tag]["form_gap"] = gap
        verdicts[REGIMES[tag]] = holds(restarted <= 1.02 * min(trained, continued))
        spread[f"{REGIMES[tag]}, from the form / trained on"] = errors[:, 2] / errors[:, 1]
        parts.append(
            f"{REGIMES[tag]}: {trained:.2e}, trained on {continued:.2e}, from the form {restarted:.2e} (then off the "
            f"form by {numbers(gap * 1e4)} x1e-4), step sizes alone {tuned:.2e}"
        )
    found = {tag: {k: np.asarray(v).tolist() for k, v in f.items()} for tag, f in found.items()}
    text = f"median test error after {int(r['steps'])} steps. {'; '.join(parts)}"
    three = ("restarted", "continued", "tuned")
    ends = (f"{REGIMES[t]} {numbers([f[x] * 1e3 for x in three])}" for t, f in found.items())
    runs = min(len(r[f"{tag}_mse"]) for tag in present)
    brief = f"x1e-3, from the form / trained on / step sizes alone: {'; '.join(ends)}"
    return Finding.of(verdicts, text, found, spread_of(**spread), runs, brief)
