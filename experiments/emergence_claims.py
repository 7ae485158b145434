"""Verdicts on E1-E16, by rules in code, from the stored results of emergence, restart, transfer and initialisation.

Numbers are means over the shipped seeds. The last layer's a2 is left out wherever it would enter: the loss does not
see it, because nothing reads A and B after that layer.
"""

import numpy as np

from experiments import common
from experiments.verdicts import DIFFERS, NOT_RUN, REFUTED, REPRODUCED, Finding, numbers, verdict

REGIMES = {"U": "U", "D": "D", "CL": "C-L"}
PAPER_FIDELITY = {"U": (2.36, 5.27, 3.70, 2.16), "D": (0.62, 1.40, 1.28, 1.32), "CL": (0.01, 0.02, 0.13, 0.14)}
PAPER_BOUND = 6e-4
PAPER_DIFFERENCE = 0.28
PAPER_FIXED = 3.5e-4


def _count(r: common.Results, tag: str) -> int:
    return int(r[f"{tag}_seeds"].size)


def _missing(r: common.Results, *tags: str) -> Finding | None:
    absent = [tag for tag in tags if _count(r, tag) == 0]
    return Finding(NOT_RUN, f"no trained weights of {', '.join(absent)} are shipped", {}) if absent else None


def _mean(r: common.Results, tag: str, name: str) -> np.ndarray:
    return np.mean(r[f"{tag}_{name}"], axis=0)


def _typical(r: common.Results, tag: str, name: str) -> np.ndarray:
    """Median over runs, for means over tasks: one task on which a network diverges outweighs all others in a mean."""
    return np.median(r[f"{tag}_{name}"], axis=0)


def _diverging(r: common.Results, tag: str) -> str:
    """A remark on runs whose mean test error is above a hundred times the median run's."""
    last = r[f"{tag}_mse_mean"][:, -1]
    count = int(np.sum(~(last <= 100 * np.median(last))))
    return f" ({count} of them diverges on a task)" if count else ""


def _seeds(r: common.Results, *tags: str) -> str:
    return ", ".join(f"{_count(r, tag)} {REGIMES.get(tag, tag)}" for tag in tags) + " runs"


def test_error(r: common.Results) -> Finding:
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found = [], {}
    for tag, label in REGIMES.items():
        mse = _mean(r, tag, "mse")
        found[tag] = {"mse": mse.tolist(), "fall": float(mse[0] / mse[-1])}
        parts.append(f"{label}: {numbers(mse, 2)} ({mse[0] / mse[-1]:.0f}x)")
    falls, last = [f["fall"] for f in found.values()], [f["mse"][-1] for f in found.values()]
    holds = min(falls) >= 10 and max(last) <= 3e-3
    text = f"{'; '.join(parts)}; {_seeds(r, *REGIMES)}"
    return Finding(verdict(holds, DIFFERS if max(falls) >= 10 else REFUTED), text, found)


def block_structure(r: common.Results) -> Finding:
    """Diagonal where the paper says diagonal (U, D), and nothing outside the blocks."""
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found = [], {}
    for tag, label in REGIMES.items():
        QK, VP = (float(r[f"{tag}_{w}_diagonality"][:, :-1].min()) for w in ("QK", "VP"))
        off = float(max(r[f"{tag}_{w}_off_block"][:, :-1].max() for w in ("QK", "VP")))
        found[tag] = {"least_diagonal_QK": QK, "least_diagonal_VP": VP, "most_off_block": off}
        parts.append(f"{label}: on the diagonal at least {QK:.2f} (QK), {VP:.2f} (VP), off-block at most {off:.3f}")
    diagonal = [min(found[t]["least_diagonal_QK"], found[t]["least_diagonal_VP"]) >= 0.9 for t in ("U", "D")]
    blocks = max(f["most_off_block"] for f in found.values()) <= 0.05
    result = verdict(all(diagonal) and blocks, DIFFERS if blocks else REFUTED)
    text = f"shares of ||W||², layers 1-3: {'; '.join(parts)}; {_seeds(r, *REGIMES)}"
    return Finding(result, text, found)


def step_laws(r: common.Results) -> Finding:
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found, mean_holds, constant = [], {}, [], []
    for tag, label in REGIMES.items():
        eta = _mean(r, tag, "eta_largest")[:-1]
        ratio = np.mean(r[f"{tag}_gamma_rho"][:, :-1] / r[f"{tag}_eta_rho"][:, :-1], axis=0)
        mean = float(np.mean(ratio))
        found[tag] = {"eta": eta.tolist(), "ratio": ratio.tolist(), "mean_ratio": mean}
        found[tag]["gamma"] = _mean(r, tag, "gamma_largest").tolist()
        found[tag]["eta_by_median_norm"] = _mean(r, tag, "eta_median")[:-1].tolist()
        mean_holds.append(1.7 <= mean <= 2.1 and 0.5 <= float(np.mean(eta)) <= 1.5)
        constant.append(eta.max() / eta.min() < 1.5 and ratio.max() / ratio.min() < 1.5)
        parts.append(f"{label}: eta = {numbers(eta)}, gamma/eta = {numbers(ratio)}, mean {mean:.2f}")
    result = verdict(all(mean_holds) and all(constant), DIFFERS if any(mean_holds) else REFUTED)
    return Finding(result, f"layers 1-3, {'; '.join(parts)}; {_seeds(r, *REGIMES)}", found)


def fidelity(r: common.Results) -> Finding:
    """The paper's bound, 6e-4 in all layers and regimes, for the form it states."""
    if absent := _missing(r, *REGIMES):
        return absent
    parts, found, within = [], {}, []
    for tag, label in REGIMES.items():
        form, general = (_typical(r, tag, name)[1:] * 1e4 for name in ("form", "general"))
        middle, spread = _typical(r, tag, "form_median")[1:] * 1e4, np.std(r[f"{tag}_form"], axis=0)[1:] * 1e4
        found[tag] = {"typical": form.tolist(), "spread": spread.tolist(), "median_task": middle.tolist()}
        found[tag] |= {"general": general.tolist(), "paper": list(PAPER_FIDELITY[tag])}
        within.append(form <= PAPER_BOUND * 1e4)
        parts.append(
            f"{label} {numbers(form)} (median task {numbers(middle)}; matrices for scalars {numbers(general)})"
        )
    result = verdict(bool(np.all(within)), DIFFERS if np.any(within) else REFUTED)
    return Finding(result, f"x1e-4: {'; '.join(parts)}; {_seeds(r, *REGIMES)}", found)


def fixed_ratio(r: common.Results) -> Finding:
    if absent := _missing(r, "U"):
        return absent
    change, middle = (float(_typical(r, "U", name)[-1]) for name in ("fixed_D", "fixed_D_median"))
    own, own_middle = (float(_typical(r, "U", name)[-1]) for name in ("mse_mean", "mse"))
    laws = float(_mean(r, "U", "laws_D_median")[-1])
    holds = change < own and change <= 3 * PAPER_FIXED
    text = (
        f"predictions change by {change:.1e} (median task {middle:.1e}), the network's own error is {own:.1e} "
        f"({own_middle:.1e}); with eta = 1, gamma = 1.92 over max ||A_l||² by {laws:.1e} (median task); "
        f"{_seeds(r, 'U')}{_diverging(r, 'U')}"
    )
    found = {"change": change, "change_median": middle, "own": own, "own_median": own_middle, "laws_median": laws}
    return Finding(verdict(holds, DIFFERS if middle < own_middle else REFUTED), text, found)


def heads(r: common.Results) -> Finding:
    if absent := _missing(r, "U", "U8"):
        return absent
    one, eight = (float(_mean(r, tag, "mse")[-1]) for tag in ("U", "U8"))
    text = f"median test error {one:.2e} with one head, {eight:.2e} with eight; {_seeds(r, 'U', 'U8')}"
    return Finding(verdict(one <= 1.5 * eight, DIFFERS), text, {"one": one, "eight": eight})


def messages(r: common.Results) -> Finding:
    if absent := _missing(r, "D"):
        return absent
    foreign, factor = r["D_foreign_AB"][:, :-1], r["D_factor_ratio"]
    ranks = r["D_VP_rank"][:, :-1]
    holds = foreign.max() <= 0.1 and np.abs(factor - 1).max() <= 0.1
    text = (
        f"what reaches other machines' (A, B) is at most {foreign.max():.3f} of the own block (layers 1-3), their "
        f"(C, D) factor is {factor.min():.2f} to {factor.max():.2f} of the own one; the own n x n block has rank "
        f"{numbers(ranks.mean(0))} of 6; {_seeds(r, 'D')}"
    )
    found = {"foreign_AB": float(foreign.max()), "factor": [float(factor.min()), float(factor.max())]}
    return Finding(verdict(bool(holds), REFUTED), text, found | {"rank": ranks.mean(0).tolist()})


def _distance_to_identity(blocks: np.ndarray) -> float:
    """||mean - c I|| / ||mean|| of a stack of matrices."""
    mean = blocks.reshape(-1, *blocks.shape[-2:]).mean(0)
    c = np.trace(mean) / len(mean)
    return float(np.linalg.norm(mean - c * np.eye(len(mean))) / np.linalg.norm(mean))


def sketch(r: common.Results) -> Finding:
    if absent := _missing(r, "CL"):
        return absent
    ranks = [_mean(r, "CL", f"{w}_rank")[:-1] for w in ("QK", "VP")]
    difference, own, next_ = (_mean(r, "CL", name) for name in ("difference", "own", "next"))
    top = np.sort(np.linalg.eigvalsh(r["CL_unit"]), axis=-1)[..., -5:]
    unit = r["CL_unit"].reshape(-1, *r["CL_unit"].shape[-2:])
    ours, chance = _distance_to_identity(unit), _distance_to_identity(r["random_sketch"][: len(unit)])
    low_rank = all(np.all(k <= 5) for k in ranks)
    holds = low_rank and difference[:-1].max() <= 2 * PAPER_DIFFERENCE
    text = (
        f"ranks {numbers(ranks[0])} (QK), {numbers(ranks[1])} (VP); relative difference {numbers(difference[:-1])}; "
        f"QK's five eigenvalues over their mean {top.min():.2f} to {top.max():.2f} (S S^T: 1); VP is off a multiple of "
        f"I by {numbers(next_)} on the columns that the next layer reads, by {numbers(own)} on those its own does; "
        f"QK's mean over runs and layers is off a multiple of I by {ours:.2f} (random sketches: {chance:.2f}); "
        f"{_seeds(r, 'CL')}"
    )
    found = {"difference": difference.tolist(), "own": own.tolist(), "next": next_.tolist()}
    found |= {"eigenvalues": [float(top.min()), float(top.max())], "mean_off_identity": [ours, chance]}
    return Finding(verdict(holds, DIFFERS if low_rank else REFUTED), text, found)


def noise(r: common.Results) -> Finding:
    present = [tag for tag in REGIMES if _count(r, tag) and _count(r, f"{tag}n")]
    if not present:
        return Finding(NOT_RUN, "no trained weights with noise are shipped", {})
    parts, found, alike = [], {}, []
    for tag in present:
        eta, clean = (_mean(r, t, "eta_largest")[:-1] for t in (f"{tag}n", tag))
        mse, kappa = _mean(r, f"{tag}n", "mse"), _mean(r, f"{tag}n", "kappa")
        found[tag] = {"mse": mse.tolist(), "kappa": kappa.tolist(), "eta": eta.tolist(), "clean_eta": clean.tolist()}
        alike.append(bool(mse[-1] < mse[0] / 2 and np.all(np.abs(eta / clean - 1) < 0.5)))
        parts.append(f"{REGIMES[tag]}: error {numbers(mse, 2)}, eta {numbers(eta)} (without noise {numbers(clean)})")
    result = verdict(all(alike), DIFFERS if any(alike) else REFUTED)
    text = f"{'; '.join(parts)}; {_seeds(r, *(f'{t}n' for t in present))}"
    return Finding(result, text + ("" if len(present) == 3 else "; the other regimes are not shipped yet"), found)


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
    holds = paper < own < few[1]
    return Finding(verdict(holds, DIFFERS if paper < 2 * own else REFUTED), text, {"levels": few, "own": own})


def spikes(r: common.Results) -> Finding:
    present = [tag for tag in REGIMES if _count(r, tag)]
    if not present:
        return Finding(NOT_RUN, "no trained weights are shipped", {})
    parts, found = [], {}
    for tag in present:
        share = float(np.mean(r[f"{tag}_spike_norm"] > 1))
        rate = float(np.mean(r[f"{tag}_spikes"] / r[f"{tag}_steps"]))
        last = float(np.median(r[f"{tag}_loss_median"][:, -50:]))
        found[tag] = {"share_above_usual": share, "spikes_per_step": rate, "final_loss": last}
        parts.append(
            f"{REGIMES[tag]}: loss {last:.1e}, {rate:.0%} of steps spike, {share:.0%} of them above the usual norm"
        )
    holds = min(f["share_above_usual"] for f in found.values()) >= 0.75
    text = f"largest ||A|| of a batch against its median (50 % by chance). {'; '.join(parts)}; {_seeds(r, *present)}"
    return Finding(verdict(holds, DIFFERS), text, found)


def conditioning(r: common.Results) -> Finding:
    """Up to the last layer's input: what comes after is not read."""
    if absent := _missing(r, *REGIMES):
        return absent
    found = {tag: _mean(r, tag, "kappa")[:-1] for tag in REGIMES}
    falls = {tag: float(k[0] / k[-1]) for tag, k in found.items()}
    parts = [f"{label} {numbers(found[tag])}" for tag, label in REGIMES.items()]
    result = verdict(min(falls.values()) >= 2, DIFFERS if max(falls.values()) >= 2 else REFUTED)
    text = (
        f"median sigma_1/sigma_10 of A_0..A_3 (sigma_6 on machines): {'; '.join(parts)}; "
        f"of A_l S_l in C-L {numbers(_mean(r, 'CL', 'kappa_read'))}; {_seeds(r, *REGIMES)}"
    )
    return Finding(result, text, {"falls": falls})


def estimation(r: common.Results) -> Finding:
    if absent := _missing(r, "E"):
        return absent
    form, residual = _mean(r, "E", "form_D_median")[1:], _mean(r, "E", "residuals")
    a1, a2, a3 = _mean(r, "E", "alphas").T
    beta, mse = _mean(r, "E", "beta") / a1, _mean(r, "E", "mse")
    shaped = residual[:, 0].max() <= 0.25 and residual[:, 1].max() <= 0.25 and np.abs(a3 / a2 - 1)[:-1].max() <= 0.1
    follows = bool(np.all(form < mse[1:] / 4)) and np.abs(beta[1:] - 1).max() <= 0.25
    text = (
        f"W_QK, W_VP off diag(a1 I, 0), diag(a2 I, a3) by at most {residual[:, 0].max():.2f}, "
        f"{residual[:, 1].max():.2f}; a3/a2 = {numbers((a3 / a2)[:-1])}, beta/a1 = {numbers(beta)} (1 in Update, free "
        f"in layer 1); W differs from Update's by {numbers(form * 1e4)} x1e-4 (median task), its error is "
        f"{numbers(mse[1:] * 1e4)} x1e-4; {_seeds(r, 'E')}"
    )
    found = {"beta_over_a1": beta.tolist(), "W_gap": form.tolist(), "mse": mse.tolist()}
    return Finding(verdict(bool(shaped) and follows, DIFFERS if shaped else REFUTED), text, found)


def initialisation(r: common.Results) -> Finding:
    groups = sorted({(int(s), float(d)) for s, d in zip(r["sign"], r["std"], strict=True)})
    if len(groups) < 2:
        return Finding(NOT_RUN, f"only {groups or 'no network'} (sign, std) is shipped", {})
    parts, found = [], {}
    for sign, std in groups:
        here = (r["sign"] == sign) & (r["std"] == std)
        mse, form = np.mean(r["mse"][here, -1]), np.mean(r["form_QK"][here])
        found[f"sign {sign:+d}, std {std:g}"] = {"mse": float(mse), "form_QK": float(form), "runs": int(here.sum())}
        runs = f"{here.sum()} run" if here.sum() == 1 else f"{here.sum()} runs"
        parts.append(f"sign {sign:+d}, std {std:g}: error {mse:.1e}, W_QK off the form by {form:.2f}, {runs}")
    errors = [f["mse"] for f in found.values()]
    return Finding(verdict(max(errors) > 1.5 * min(errors), REFUTED), "; ".join(parts), found)


def algorithm_or_table(r: common.Results) -> Finding:
    """An algorithm, if with ||A|| taken out the four steps do as well as on their own tasks wherever n >= rank."""
    if r["seeds"].size == 0:
        return Finding(NOT_RUN, "no trained unconstrained weights are shipped", {})
    at = {name: i for i, name in enumerate(r["methods"].tolist())}
    usual = float(np.mean(r["factor"][:, r["factor_values"] == 1, at["schedule"]]))
    within = r["factor_values"][np.mean(r["factor"][..., at["schedule"]], axis=0) <= 2 * usual]
    big = r["n_values"] >= 18
    sizes = np.mean(r["n"][:, big], axis=0)
    spectra = np.concatenate([np.mean(r[name], axis=0) for name in ("s", "decay")])
    wins = np.concatenate([sizes, spectra])
    holds = max(sizes[:, at["scaled"]].max(), spectra[:, at["scaled"]].max()) <= 2 * usual
    better = float(np.mean(wins[:, at["scaled"]] < wins[:, at["paper"]]))
    text = (
        f"error {usual:.2f} on its own tasks, below twice that for ||A|| times {within.min():g} to {within.max():g} "
        f"(slower below, divergent above); with ||A|| scaled to training's it is at most "
        f"{sizes[:, at['scaled']].max():.2f} for n = 18 to {r['n_values'].max():g} and "
        f"{spectra[:, at['scaled']].max():.2f} for ranks 1 to 18 and decays 0.3 to 1; "
        f"better than four steps of the paper's constants in {better:.0%}; {r['seeds'].size} runs"
    )
    found = {"usual": usual, "factors": [float(within.min()), float(within.max())], "better_than_paper": better}
    return Finding(verdict(holds, DIFFERS), text, found)


def form_or_accident(r: common.Results) -> Finding:
    """Reproduced if in every regime the paper's form, trained on, is at least as good as the trained network."""
    present = [tag for tag in REGIMES if f"{tag}_mse" in r]
    if not present:
        return Finding(NOT_RUN, "no trained weights are shipped", {})
    parts, found, good = [], {}, []
    for tag in present:
        trained, continued, restarted, tuned = r[f"{tag}_mse_mean"][:, -1]
        found[tag] = {"trained": trained, "continued": continued, "restarted": restarted, "tuned": tuned}
        found[tag]["form_gap"] = r[f"{tag}_form_median"][2, 1:].tolist()
        good.append(restarted <= 1.02 * min(trained, continued))
        gap = numbers(r[f"{tag}_form_median"][2, 1:] * 1e4)
        parts.append(
            f"{REGIMES[tag]}: {trained:.2e}, trained on {continued:.2e}, from the form {restarted:.2e} (then off the "
            f"form by {gap} x1e-4), step sizes alone {tuned:.2e}"
        )
    found = {tag: {k: np.asarray(v).tolist() for k, v in f.items()} for tag, f in found.items()}
    text = f"mean test error after {int(r['steps'])} steps. {'; '.join(parts)}"
    return Finding(REPRODUCED if all(good) else DIFFERS if any(good) else REFUTED, text, found)
