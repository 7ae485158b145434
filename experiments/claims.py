"""Verdicts on the paper's claims, by rules in code, from stored results only.

    python -m experiments.claims        (reads results/*.npz, writes results/claims.json; seconds)

`ledger.py` has what the paper says, `verdicts.py` the words. A run too small to decide, a claim without stored results
and one without a rule are "not run", with the reason in place of the measurement. A new rule, in one of the modules
*_claims, is one more line in CLAIMS.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from experiments import common, suitesparse
from experiments import emergence_claims as emergence
from experiments import regime_claims as regimes
from experiments import solver_claims as solver
from experiments import study_claims as study
from experiments.ledger import LEDGER, Entry
from experiments.verdicts import IN_PART, NOT_RUN, REFUTED, REPRODUCED, STRONGER, WEAKER, Finding, in_words


@dataclasses.dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    paper: str
    item: str
    figure: str
    rule: Callable[[common.Results], Finding]
    timed: bool = False  # the verdict is about wall time: none if other programs ran meanwhile
    least: tuple[str, int] | None = None  # (field of the configuration, the size that the claim is about)
    missing: str = ""  # why there are no results, if not only for want of a run
    flags: str = ""  # what its command needs beside its name


_TABLE = "U 2.36 5.27 3.70 2.16, D 0.62 1.40 1.28 1.32, C-L 0.01 0.02 0.13 0.14 x1e-4"
EMERGENCE = tuple(
    Claim(id, statement, paper, item, figure, rule)
    for item, claims in {
        "emergence": (
            ("E1", "test error falls over 4 layers", "10-50x, to 1e-3", "e1_emergence", emergence.test_error),
            ("E2", "block structure of W_QK, W_VP", "multiples of I", "e2_weights", emergence.block_structure),
            ("E3", "a1 a2 max||A||² and a3/a2 constant", "1 and 1.9", "e3_scaling", emergence.step_laws),
            ("E4", "network = algorithm, by layer", _TABLE, "e4_fidelity", emergence.fidelity),
            ("E5", "gamma = 1.92 eta suffices", "3.5e-4 < 1e-3", "e5_fixed_ratio", emergence.fixed_ratio),
            ("E6", "one head does as well as eight", "little effect", "e6_heads", emergence.heads),
            ("E7", "machines share (C, D) only", "same factor", "e7_weights_mean", emergence.messages),
            ("E8", "rank 5, QK and VP alike: a sketch", "0.28", "e8_sketch", emergence.sketch),
            ("E9", "the same with noise 0.01", "closely aligned", "e9_noise", emergence.noise),
            ("E10", "2 and 3 values suffice", "below its error", "e10_levels", emergence.levels),
            ("E11", "loss spikes come with large ||A||", "typically", "e11_training", emergence.spikes),
            ("E12", "condition number of A falls", "in every regime", "e1_emergence", emergence.conditioning),
            ("E13", "estimation network = its form", "its updates", "e13_estimation", emergence.estimation),
        ),
        "initialisation": (
            ("E14", "sign and std decide what emerges", "ours", "e14_initialisation", study.initialisation),
        ),
        "transfer": (("E15", "an algorithm, not a table", "ours", "e15_transfer", emergence.algorithm_or_table),),
        "computation_limited": (
            ("E17", "C-L conditions what later layers read", "ours", "e17_computation_limited", study.read_ahead),
        ),
        "restart": (("E16", "the form is what training wants", "ours", "e16_restart", emergence.form_or_accident),),
    }.items()
    for id, statement, paper, figure, rule in claims
)
CLAIMS = (
    Claim("N1", "quadratic convergence", "slope about 2", "convergence", "n1_convergence", solver.order),
    Claim("N2", "iterations grow like log kappa", "log kappa", "kappa_sweep", "n2_kappa_sweep", solver.log_kappa),
    Claim(
        "N3", "fewer iterations than CG, kappa=1e4", "about 100x", "kappa_sweep", "n2_kappa_sweep", solver.against_cg
    ),
    Claim("N4", "converges at every rank; CG unreliable", "CG omitted", "ranks", "n4_ranks", solver.small_ranks),
    Claim("N5", "estimation form identical", "W_l C = D_l", "convergence", "n1_convergence", solver.estimation),
    Claim("N6", "converges on six data families", "all six", "families", "n6_families", solver.families),
    Claim(
        "N7",
        "the same at n = 1920",
        "CG omitted",
        "ranks",
        "n7_ranks_large",
        solver.large_ranks,
        least=("large_n", 1920),
    ),
    Claim(
        "N8",
        "early stopping regularises as GD",
        "as GD",
        "early_stopping",
        "n8_noise",
        solver.early_stopping,
        least=("n", 240),
    ),
    Claim("N9", "step sizes in [0.2, 2] hardly matter", "[0.2, 2]", "step_sizes", "n9_step_sizes", solver.step_sizes),
    Claim("N10", "stopping on ||D_l - D_(l-1)|| suffices", "no number", "stopping", "n10_stopping", solver.stopping),
    Claim("N11", "stable for any kappa", "untested from 1e8 on", "error_map", "n11_error_map", solver.stability),
    Claim(
        "D1",
        "1e-2 in <= 15 rounds for any M",
        "<= 15 rounds",
        "diversity",
        "d1_machines",
        regimes.machine_count,
        least=("large", 1000),
    ),
    Claim("D2", "rounds grow like 1/alpha", "linear", "diversity", "d2_alpha", regimes.inverse_alpha),
    Claim("D3", "GD needs more rounds", "10-100x", "diversity", "d2_alpha", regimes.against_distributed_gd),
    Claim("D4", "floats per round", "(d+d')n'", "diversity", "d5_freezing", regimes.floats_per_round),
    Claim(
        "D5",
        "freezing A, B: same rounds, less time",
        "less time",
        "diversity",
        "d5_freezing",
        regimes.freezing,
        timed=True,
    ),
    Claim("D6", "CG is unavailable to machines", "no number", "diversity", "d2_alpha", regimes.cg_unavailable),
    *(
        Claim(id, statement, paper, "sketching", figure, rule, timed, least=("n", 240))
        for id, statement, paper, figure, rule, timed in (
            ("S1", "rounds grow like n/r", "linear", "s1_sketches", regimes.sketch_rounds, False),
            ("S2", "time per step by r", "4.2x at n/8", "s2_times", regimes.sketch_step_time, True),
            ("S3", "faster than SGD for r >= n/4", "2.5x at n/4", "s2_times", regimes.against_sgd, True),
            ("S4", "a third of sketch-and-CG's time", "1/3", "s2_times", regimes.against_sketch_cg, True),
        )
    ),
    Claim(
        "R1",
        "SuiteSparse matrices, time to 1e-3 ‖B‖²",
        "table (v2)",
        "suitesparse",
        "r1_suitesparse",
        solver.real_matrices,
        timed=True,
        flags=" --matrix_dir=FOLDER",
        missing=f"needs --matrix_dir, a folder with {', '.join(f'{name}.mtx' for name in suitesparse.WANTED)}; "
        "--download fetches them",
    ),
    *EMERGENCE,
)


# More than this share of a core taken by other programs, and times are not compared.
BUSY = 0.25


def _about_run(about: dict[str, Any]) -> dict[str, Any]:
    """What a number depends on beside the rule."""
    names = ("preset", "config", "date", "wall_seconds", "versions", "device", "processor", "cores", "load_average")
    found = {name: about.get(name) for name in (*names, "cores_busy_elsewhere", "git_revision")}
    stale = about["source_digest"] != common.source_digest(about["item"])
    return {"runs": about["config"].get("runs"), "run_command": about["command"], "stale": stale} | found


def _undecided(claim: Claim, about: dict[str, Any]) -> str:
    """Why these results cannot decide the claim, if so."""
    if claim.least and about["config"][claim.least[0]] < claim.least[1]:
        name, size = claim.least
        return f"ran with {name} = {about['config'][name]}; the claim is about {size}"
    busy = about["cores_busy_elsewhere"]
    if claim.timed and not busy <= BUSY:  # NaN where nobody tells
        return f"other programs used {busy:.1f} of {about['cores']} cores while it was timed; run it again"
    return ""


def _figure(claim: Claim, out: Path) -> str | None:
    """Its file, if it has been drawn since the results were stored."""
    path, results = out / "figures" / f"{claim.figure}.png", out / f"{claim.item}.npz"
    drawn = path.exists() and results.exists() and path.stat().st_mtime >= results.stat().st_mtime
    return f"figures/{path.name}" if drawn else None


def _judged(claim: Claim, out: Path) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(claim, name) for name in ("statement", "paper", "item")}
    record["command"] = f"python -m experiments.{claim.item}" + claim.flags
    record["figure"] = _figure(claim, out)
    source = Path(inspect.getsourcefile(claim.rule) or "").relative_to(common.ROOT)
    record["rule"] = f"{source}:{claim.rule.__name__}"
    record["rule_source"] = inspect.getsource(claim.rule)
    if not common.stored(out, claim.item):
        return record | {"verdict": NOT_RUN, "reason": claim.missing or f"no results; run {record['command']}"}
    results, about = common.load(out, claim.item)
    record |= _about_run(about)
    try:
        finding = claim.rule(results)
    except Exception as error:  # results of other code, or degenerate ones: no reason to lose the other verdicts
        cause = f"{type(error).__name__}: {error}"
        return record | {"verdict": NOT_RUN, "reason": f"stored results cannot be judged ({cause}); run it again"}
    if reason := _undecided(claim, about):
        measured = f"{reason} (there: {finding.measured})"
        finding = finding._replace(verdict=NOT_RUN, measured=measured, brief=reason, parts=None)
    record |= {name: value for name, value in finding._asdict().items() if value is not None}
    record["brief"] = finding.brief or finding.measured
    record["in_words"] = in_words(finding.verdict, finding.parts or {})
    if record["verdict"] == NOT_RUN:
        record["reason"] = record.pop("measured")
    return record


def _unjudged(entry: Entry) -> dict[str, Any]:
    return {"statement": entry.says, "verdict": NOT_RUN, "reason": "no experiment judges it yet"}


def is_quick(records: list[dict[str, Any]]) -> bool:
    return any(r["preset"] == "quick" for r in records)


STALE = "results of other code than this; make reproduce runs them again."
QUICK = "Results of the quick preset: small sizes and few runs, for a first look. Other presets may judge otherwise."


def judge(out: Path) -> list[dict[str, Any]]:
    """One JSON-ready record per entry of the ledger, in its order."""
    rules = {claim.id: claim for claim in CLAIMS}
    # Every record has these, so that readers need not ask.
    empty = {"paper": "", "item": "", "command": "", "figure": None, "rule": "", "rule_source": "", "runs": None}
    empty |= {
        "run_command": "",
        "measured": "",
        "brief": "",
        "reason": "",
        "numbers": {},
        "parts": {},
        "in_words": NOT_RUN,
        "spread": {},
        "wall_seconds": None,
        "preset": "",
        "stale": False,
    }
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


STYLES = {
    REPRODUCED: "green",
    STRONGER: "bold green",
    WEAKER: "yellow",
    IN_PART: "yellow",
    REFUTED: "red",
    NOT_RUN: "dim",
}


def print_table(records: list[dict[str, Any]]) -> None:
    table = Table("claim", "verdict", "statement", "paper", "ours")
    for r in records:
        ours, verdict = r["brief"] or r["reason"], Text(r["in_words"], STYLES[r["verdict"]])
        table.add_row(r["id"], verdict, *map(Text, (r["statement"], r["paper"], ours)))
    common.console.print(table)
    counts = {name: sum(r["verdict"] == name for r in records) for name in STYLES}
    common.console.print(", ".join(f"{n} {name}" for name, n in counts.items()), highlight=False)
    if is_quick(records):
        common.console.print(QUICK)
    if stale := sorted({r["item"] for r in records if r["stale"]}):
        common.console.print(f"{', '.join(stale)}: {STALE}")


def print_verdicts(out: Path, item: str) -> None:
    """A line for each claim of one experiment."""
    for r in (r for r in judge(out) if r["item"] == item):
        line = Text.assemble(f"{r['id']} ", (r["in_words"], STYLES[r["verdict"]]), f". {r['measured'] or r['reason']}")
        common.console.print(line, soft_wrap=True)


def main() -> None:
    def write_and_print(out: Path) -> None:
        path, records = write(out)
        print_table(records)
        common.console.print(f"wrote {path}")

    common.command(write_and_print)


if __name__ == "__main__":
    main()
