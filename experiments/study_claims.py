"""Verdicts on E14 and E17, by rules in code, from the stored results of initialisation and computation_limited."""

import numpy as np

from experiments import common
from experiments.emergence_claims import REGIMES
from experiments.verdicts import NOT_RUN, Finding, holds, numbers, spread_of

KINDS = {"CL": "clean", "CLn": "noisy"}


def initialisation(r: common.Results) -> Finding:
    """Per regime: do sign and scale change the error by half or more, or how many directions of A are conditioned?"""
    verdicts, rows, found, spread, fewest, briefs = {}, [], {}, {}, [], []
    for tag, label in REGIMES.items():
        groups = _groups(r, tag)
        for (sign, std), g in groups.items():
            found[f"{label}, sign {sign:+d}, std {std:g}"] = g
            spread[f"{label}, sign {sign:+d}, std {std:g}"] = r["mse"][g.pop("rows"), -1]
            rows.append([label, f"{sign:+d}", f"{std:g}", g["runs"], f"{g['mse']:.2e}", numbers(g["gap"] * 1e4, 2)])
            rows[-1] += [f"{g['form_QK']:.2f}, {g['form_VP']:.2f}", f"{numbers(g['won'], 2)} of {g['directions']}"]
            fewest.append(g["runs"])
        verdicts |= _effects(label, groups)
        briefs += _brief(label, groups)
    if all(v == NOT_RUN for v in verdicts.values()):
        return Finding(NOT_RUN, "networks of one sign and scale only are shipped", {})
    history = _history(r)
    text = "; ".join(f"{' '.join(map(str, row[:3]))}: error {row[4]}, conditions {row[7]}" for row in rows)
    columns = ["network", "sign", "std", "runs", "test error", "off the algorithm x1e-4", "W_QK, W_VP off the form"]
    caption = "Medians over runs; the last three by layer, of directions in layers 1-3. U, D, C-L as in E4."
    table = {"columns": [*columns, "directions conditioned"], "rows": rows, "caption": caption}
    numbers_of = {k: {n: np.asarray(x).tolist() for n, x in g.items()} for k, g in found.items()}
    brief = "; ".join(briefs)
    measured = f"{text}{'; ' if history else ''}{history}"
    return Finding.of(verdicts, measured, numbers_of | {"table": table}, spread_of(**spread), min(fewest), brief)


def _groups(r: common.Results, tag: str) -> dict:
    """(sign, std) -> medians over that regime's networks."""
    mine, found = r["regime"] == tag, {}
    for sign, std in sorted({(int(s), float(d)) for s, d in zip(r["sign"][mine], r["std"][mine], strict=True)}):
        here = mine & (r["sign"] == sign) & (r["std"] == std)
        middle = lambda name, here=here: np.median(r[name][here], axis=0)  # noqa: E731
        form = {f"form_{w}": float(middle(f"form_{w}")[:-1].mean()) for w in ("QK", "VP")}
        found[sign, std] = {"rows": here, "runs": int(here.sum()), "mse": float(middle("mse")[-1]), **form}
        found[sign, std] |= {"gap": middle("form_median")[1:], "won": middle("VP_rank")[:-1]}
        found[sign, std]["directions"] = int(r["directions"][here][0])
    return found


def _effects(label: str, groups: dict) -> dict[str, str]:
    """Verdicts on what one of the two changes while the other stays."""
    found = {}
    for name, fixed in (("sign", 1), ("scale", 0)):
        pairs = [(groups[a], groups[b]) for a in groups for b in groups if a != b and a[fixed] == b[fixed]]
        changes = [one["mse"] > 1.5 * two["mse"] or bool(np.any(one["won"] != two["won"])) for one, two in pairs]
        if groups:
            found[f"{label} {name}"] = holds(any(changes)) if pairs else NOT_RUN
    return found


def _brief(label: str, groups: dict) -> list[str]:
    """D: error 2.1e-03 to 2.2e-03, 5 of 6 directions (the least of them)"""
    if not groups:
        return []
    errors, won = [g["mse"] for g in groups.values()], min(g["won"].min() for g in groups.values())
    of = next(iter(groups.values()))["directions"]
    return [f"{label}: error {min(errors):.1e} to {max(errors):.1e}, {won:.2g} of {of} directions"]


def _history(r: common.Results) -> str:
    """When layers 1-3 condition all directions: W_VP's eigenvalues are all below a tenth of the most negative one."""
    parts = []
    for i in range(int(r["histories"])):
        VP, steps = r[f"history_{i}_VP"][:, :-1], r[f"history_{i}_steps"]
        all_won = VP[..., -1] < 0.1 * VP[..., 0]
        when = [f"{steps[np.argmax(won)]}" if won.any() else "never" for won in all_won.T]
        parts.append(f"{r[f'history_{i}_setting']}: {', '.join(when)} (of {steps[-1]} steps)")
    return f"distributed, all directions conditioned in layers 1-3 from step: {'; '.join(parts)}" if parts else ""


def _present(r: common.Results) -> list[str]:
    return [tag for tag in KINDS if r[f"{tag}_seeds"].size]


def read_ahead(r: common.Results) -> Finding:
    """W_VP reads what later layers read; the algorithm that says so follows the network, and solves no worse."""
    if not (present := _present(r)):
        return Finding(NOT_RUN, "no trained weights of the computation-limited network are shipped", {})
    verdicts, parts, found, spread = {}, [], {}, {}
    for tag in present:
        kind, middle = KINDS[tag], lambda name, tag=tag: np.median(r[f"{tag}_{name}"], axis=0)
        share, chance, own = middle("later_read"), middle("chance"), middle("own")
        ahead, paper, error = (float(middle(name)[-1]) for name in ("ahead_D", "own_D", "mse"))
        verdicts[f"{kind} columns"] = holds(bool(share.min() >= 0.9))
        verdicts[f"{kind} steps"] = holds(ahead <= error / 10 and ahead <= paper / 3)
        ratio = middle("eta_rho")[:-1] / middle("gamma_rho")[:-1]
        found[kind] = {"share": share.tolist(), "own": own.tolist(), "chance": chance.tolist()}
        found[kind] |= {"gap": ahead, "gap_of_paper_form": paper, "error": error, "eta_over_gamma": ratio.tolist()}
        spread[f"{kind}: share, least of the layers"] = r[f"{tag}_later_read"].min(1)
        parts.append(
            f"{kind}, {r[f'{tag}_seeds'].size} runs: {numbers(share)} of W_VP's energy reads what later layers read "
            f"(random: {numbers(chance, 2)}), {numbers(own, 2)} what its own does; eta/gamma {numbers(ratio, 2)}; D "
            f"differs from the network's by {ahead:.1e}, with the paper's form by {paper:.1e}; own error {error:.1e}"
        )
    gains = _gains(r)
    verdicts["solver"] = holds(bool(np.all(gains <= 1.05) and gains.min() <= 0.9))
    found["error_over_papers"] = gains.tolist()
    parts.append(
        f"as a solver, error over that of the paper's form, fresh S or one S, at the same r: {numbers(gains, 2)}"
    )
    found["table"] = settings(r)
    shares = ", ".join(f"{min(found[KINDS[t]]['share']):.2f}" for t in present)
    gaps = ", ".join(f"{found[KINDS[t]]['gap']:.1e}" for t in present)
    brief = f"least share {shares} ({', '.join(KINDS[t] for t in present)}); off the network by {gaps}; solver's error "
    brief += f"{gains.min():.2f} to {gains.max():.2f} of the paper's form"
    runs = min(int(r[f"{tag}_seeds"].size) for tag in present)
    return Finding.of(verdicts, "; ".join(parts), found, spread_of(**spread), runs, brief)


def _gains(r: common.Results) -> np.ndarray:
    """For each size, the final error with all columns conditioned over the paper's form's, the better of its two S."""
    at = {name: i for i, name in enumerate(r["methods"].tolist())}
    ends = np.stack([r[f"solvers_{i}"][:, -1] for i in range(len(r["sizes"]))])
    return ends[:, at["all"]] / np.minimum(ends[:, at["paper"]], ends[:, at["one"]])


def settings(r: common.Results) -> dict:
    """One row for each setting of the training: medians over its seeds."""
    names = r["study_setting"].tolist()
    rows = []
    for name in sorted(set(names), key=names.index):
        here = r["study_setting"] == name
        low, middle, high = np.median(r["study_difference"][here], axis=0)
        first, last = np.median(r["study_kappa"][here], axis=0)
        error, share = np.median(r["study_mse"][here]), np.median(r["study_later"][here])
        row = [name, int(here.sum()), f"{middle:.2f} ({low:.2f}-{high:.2f})", f"{first:.3g} to {last:.3g}"]
        rows.append([*row, f"{error:.2e}", f"{share:.2f}"])
    columns = ["training", "runs", "W_QK and W_VP apart", "kappa of A", "test error", "reads what later layers read"]
    caption = "Layers but the last: median (least to largest); kappa at the first and at the last layer's input."
    return {"columns": columns, "rows": rows, "caption": caption}
