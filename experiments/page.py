"""results/report.html: one page with everything, for a colleague. No network, no script, no framework.

    python -m experiments.page        (reads results/claims.json and results/figures; seconds)

Figures are inside as PNG; their PDF versions stay beside the page. Style changes need no new run.
"""

import base64
import json
import struct
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from experiments import claims, common, report
from experiments.ledger import GROUPS, group
from experiments.verdicts import MEANINGS

Record = dict[str, Any]
PAPER = "Linear Transformers Implicitly Discover Unified Numerical Algorithms"

CSS = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --page: #fff; --card: #f6f8fa; --line: #d8dee4;
  --link: #0757ad; --holds: #116329; --partly: #7a4b00; --refuted: #a40e26; --not-run: #59636e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9da7b1; --page: #0d1117; --card: #161b22; --line: #343b44;
    --link: #6cb0ff; --holds: #56d364; --partly: #e3b341; --refuted: #ff8e8a; --not-run: #9da7b1; }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 3.4rem; }
body { margin: 0 auto; padding: 0 1.2rem 4rem; max-width: 66rem; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 1.6rem 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.3rem; margin: 3rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 0; display: inline; }
p { margin: .5rem 0; } a { color: var(--link); } .soft { color: var(--soft); font-size: .92rem; }
nav { position: sticky; top: 0; z-index: 1; background: var(--page); border-bottom: 1px solid var(--line);
  margin: 0 -1.2rem; padding: .55rem 1.2rem; display: flex; gap: 1.1rem; overflow-x: auto; font-size: .92rem; }
nav a { text-decoration: none; white-space: nowrap; }
.tiles { display: flex; gap: .6rem; flex-wrap: wrap; margin: 1.2rem 0; padding: 0; list-style: none; }
.tiles li { flex: 1 1 9rem; padding: .6rem .8rem; }
.tiles li, article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tiles b { display: block; font-size: 1.6rem; line-height: 1.2; } .tiles span { font-size: .85rem; color: var(--soft); }
.badge { font-size: .82rem; font-weight: 600; white-space: nowrap; color: var(--colour); border: 1px solid currentColor;
  border-radius: 1rem; padding: .05rem .6rem; }
.reproduced, .stronger { --colour: var(--holds); } .weaker, .in-part { --colour: var(--partly); }
.refuted { --colour: var(--refuted); } .not-run { --colour: var(--not-run); }
.tiles b { color: var(--colour); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } thead th { color: var(--soft); } caption { text-align: left; color: var(--soft); }
.wide { overflow-x: auto; margin: .8rem 0; } .wide td, .wide th { white-space: nowrap; }
article { margin: 1.6rem 0; padding: 1rem 1.2rem; }
article header { display: flex; gap: .6rem; align-items: baseline; justify-content: space-between; flex-wrap: wrap; }
dl { display: grid; grid-template-columns: 6.5rem 1fr; gap: .25rem .8rem; margin: .8rem 0 0; }
dt { color: var(--soft); font-size: .92rem; } dd { margin: 0; } dl.terms { grid-template-columns: 11rem 1fr; }
figure { margin: 1rem 0 0; padding: .6rem; background: #fff; border-radius: 6px; border: 1px solid var(--line); }
figcaption { margin-top: .4rem; color: #59636e; font-size: .88rem; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
code, pre { font: .86em/1.45 ui-monospace, monospace; } pre { overflow-x: auto; margin: .5rem 0; }
details { margin-top: .7rem; } summary { cursor: pointer; }
@media (max-width: 40rem) {
  dl, dl.terms { grid-template-columns: 1fr; gap: 0; } dt { margin-top: .5rem; }
  .stack thead { display: none; } .stack, .stack tbody, .stack tr, .stack td, .stack th { display: block; }
  .stack tr { padding: .6rem 0; border-bottom: 1px solid var(--line); }
  .stack td, .stack th { border: 0; padding: .1rem 0; }
  .stack td[data-label]:not(:empty)::before { content: attr(data-label) ": "; color: var(--soft); }
  article { padding: .8rem; } figure { padding: .2rem; overflow-x: auto; }
  figure img { max-width: none; width: 36rem; } figure.small img { max-width: 100%; width: auto; }
  .wide tbody th { position: sticky; left: 0; background: var(--card); }
}
@media print {
  :root { color-scheme: light; --text: #000; --soft: #444; --page: #fff; --card: #fff; --line: #bbb; --link: #000;
    --holds: #116329; --partly: #7a4b00; --refuted: #a40e26; --not-run: #444; }
  body { font-size: 10pt; max-width: none; padding: 0; } nav, .up { display: none; } h2 { break-after: avoid; }
  article, figure, tr, .tiles li { break-inside: avoid; } .wide { overflow: visible; } .wide table { font-size: 7pt; }
  details { display: none; } figure img { max-height: 7.5cm; } figure.square img { max-height: 11cm; }
  figure.tall img { max-height: 19cm; }
}
"""


TERMS = {
    "A, B, C, D": "the blocks of a matrix [[A, C], [B, D]]; D is hidden, and wanted is B A⁺ C. "
    "A is d × n, D is d′ × n′, κ is the condition number of A.",
    "Update, η, γ": "one step of the paper's algorithm: A and B are conditioned with step size η, C and D moved with "
    "γ, both scaled by ρ = 1/‖A‖². The paper's constants are η = 1/3, γ = 1; its networks have η = 1, γ = 1.92 over "
    "the largest ‖A‖² of a batch.",
    "U, D, C-L, E": "the networks: unconstrained, distributed over machines, computation-limited (narrow heads), "
    "and the one that estimates W = B A⁺. Elsewhere D is the block.",
    "test error": "mean squared error of the predicted block. Median task: the median over tasks; mean task: the mean, "
    "which a single task can dominate.",
    "W_QK, W_VP": "products of a layer's query and key, value and projection weights. The paper's form is "
    "W_QK = diag(a1 I, 0), W_VP = diag(a2 I, a3 I); then the layer is an Update with η ρ = −a1 a2, γ ρ = −a1 a3.",
    "off the form": "‖W − form‖ / ‖W‖ for the nearest matrix of that form.",
    "matrices for scalars": "the same form with a general matrix in place of each multiple of I.",
    "α, diversity": "how different the machines' column spaces are: 1 if all are alike or all are orthogonal. It is "
    "the smallest positive eigenvalue of the mean projector over the largest, which fits the paper's values; the index "
    "is that eigenvalue itself, the α of Theorem 2.",
    "averaging, mean projector": "the paper's way to combine machines, and ours: conjugate residuals on the mean "
    "of their projectors.",
    "plain, columns, deflation": "sketched steps with a fresh random sketch each (the paper's), with columns that take "
    "turns, and our default, which uses each sketch up.",
    "block LQ": "our default solver: a factorisation by blocks of rows, made of matrix products, whose time does not "
    "depend on κ.",
    "lstsq, CG, GD, SGD, LSMR": "what a user would take instead: LAPACK's SVD, conjugate gradients, (stochastic) "
    "gradient descent, a Krylov method for sparse matrices.",
}


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]], kind: str, caption: str = "") -> str:
    """Cells are HTML already. `kind` "stack" becomes a list on a phone, "wide" scrolls inside its own frame."""
    columns = list(columns)
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = ""
    for row in rows:
        first, *rest = row
        cells = zip(columns[1:], rest, strict=True)
        body += f'<tr><th scope="row">{first}</th>'
        body += "".join(f'<td data-label="{name}">{cell}</td>' for name, cell in cells) + "</tr>\n"
    caption = f"<caption>{caption}</caption>" if caption else ""
    inside = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    return f'<div class="{kind}">{inside}</div>'


def badge(verdict: str) -> str:
    return f'<span class="badge {verdict.replace(" ", "-")}">{verdict}</span>'


def parts(record: Record) -> str:
    """What follows the badge: "U, D reproduced; C-L refuted"."""
    _, _, said = record["in_words"].partition(": ")
    return escape(said)


def ours(record: Record) -> str:
    return escape(record["measured"] or record["reason"])


def tiles(records: list[Record]) -> str:
    cells = ""
    for verdict, meaning in MEANINGS.items():
        count = sum(r["verdict"] == verdict for r in records)
        cells += f'<li class="{verdict.replace(" ", "-")}"><b>{count}</b>{verdict}<br><span>{meaning}</span></li>'
    return f'<ul class="tiles">{cells}</ul>'


def summary(records: list[Record]) -> str:
    rows = []
    for r in records:
        link = f'<a href="#{r["id"]}">{r["id"]}</a>'
        paper = f"{escape(r['paper'])} <span class=soft>{escape(r['where'])}</span>"
        verdict = f"{badge(r['verdict'])} <span class=soft>{parts(r)}</span>"
        rows.append((link, verdict, escape(r["statement"]), paper, escape(r["brief"]) or ours(r)))
    return table(("claim", "verdict", "statement", "paper", "ours"), rows, "stack")


def spread(record: Record) -> str:
    number = lambda x: "not reached" if x is None else f"{x:.3g}"  # noqa: E731  JSON has no infinity
    named = {name.replace("_", " "): limits for name, limits in record["spread"].items()}
    return "; ".join(f"{escape(name)}: {number(low)} to {number(high)}" for name, (low, high) in named.items())


def inlined(path: Path) -> str:
    caption, data = escape(report.CAPTIONS.get(path.stem, path.stem), quote=True), path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])  # a PNG begins with a signature and this header
    kinds = {"tall": height > width, "square": 0.6 * width < height <= width, "small": width < 1000}
    kind = f' class="{" ".join(name for name, holds in kinds.items() if holds)}"'
    image = f'<img alt="{caption}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
    return f"<figure{kind}>{image}<figcaption>{caption}</figcaption></figure>"


def figure(record: Record, out: Path, shown: dict[str, str]) -> str:
    """The figure, or a link to the claim that has it already (`shown`: figure -> id)."""
    name = record["figure"]
    if not name or not record["runs"] or not (out / name).exists():
        return ""
    if name in shown:
        return f'<p class="soft">Figure: see <a href="#{shown[name]}">{shown[name]}</a>.</p>'
    shown[name] = record["id"]
    return inlined(out / name)


def facts(record: Record) -> list[tuple[str, str]]:
    """What is known about a claim, label and HTML."""
    where = f"<span class=soft>{escape(record['where'])}.</span> "
    found = [("paper", where + escape(record["says"]))]
    if parts(record):
        found.append(("parts", parts(record)))
    found.append(("ours" if record["measured"] else "not run", ours(record)))
    if record["spread"]:
        found.append(("10–90 %", spread(record)))
    if record["runs"]:
        found.append(("runs", f"{record['runs']}, experiment of {record['wall_seconds']:.0f} s"))
    if record["stale"]:
        found.append(("note", claims.STALE))
    if record["command"]:
        found.append(("command", f"<code>{escape(record['command'])}</code>"))
    return found


def article(record: Record, out: Path, shown: dict[str, str]) -> str:
    head = f"<header><h3>{record['id']} · {escape(record['statement'])}</h3>"
    head += f"{badge(record['verdict'])}</header>"
    body = "<dl>" + "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in facts(record)) + "</dl>"
    body += figure(record, out, shown)
    cells = record["numbers"].get("table")
    if cells:
        rows = [[escape(str(cell)) for cell in row] for row in cells["rows"]]
        caption = escape(cells.get("caption", ""))
        body += table([escape(name) for name in cells["columns"]], rows, "wide", caption)
    if record["rule"]:
        code = escape(record["rule_source"])
        body += f'<details class="soft"><summary>rule: {escape(record["rule"])}</summary><pre>{code}</pre></details>'
    return f'<article id="{record["id"]}">{head}{body}</article>\n'


def unjudged(records: list[Record]) -> str:
    """Statements without a rule, in one table: there is nothing else to say about them."""
    rows = [
        (f'<span id="{r["id"]}">{r["id"]}</span>', badge(r["verdict"]), escape(r["says"]), escape(r["where"]), ours(r))
        for r in records
    ]
    return table(("claim", "verdict", "statement", "paper", "reason"), rows, "stack") if rows else ""


def sections(records: list[Record], out: Path) -> str:
    parts, shown = [], {}
    for letter, (_, title) in GROUPS.items():
        members = [r for r in records if group(r["id"]) == letter]
        parts.append(f'<section><h2 id="{letter}">{title}</h2>')
        parts += [article(r, out, shown) for r in members if r["rule"]]
        parts.append(unjudged([r for r in members if not r["rule"]]))
        parts.append('<p class="up soft"><a href="#summary">Back to the table</a></p></section>')
    return "\n".join(parts)


def runs(records: list[Record]) -> str:
    """One row per experiment that was run: where its numbers come from. What all have in common is said once."""
    found = {r["item"]: r for r in records if r["wall_seconds"] is not None}
    columns: dict[str, list[str]] = {
        "experiment": list(found),
        "wall time": [f"{r['wall_seconds']:.0f} s" for r in found.values()],
        "date": [r["date"] for r in found.values()],
        "cores busy elsewhere": [f"{max(r['cores_busy_elsewhere'] or 0, 0):.1f}" for r in found.values()],
        "command": [r["run_command"] for r in found.values()],
        "machine": [f"{r['processor'] or r['device']}, {r['cores']} cores" for r in found.values()],
        "versions": [" ".join(f"{name} {v}" for name, v in r["versions"].items()) for r in found.values()],
        "revision": [r["git_revision"][:10] for r in found.values()],
    }
    alike = [name for name, cells in list(columns.items())[4:] if len(set(cells)) == 1]
    said = "".join(f"<br>{name}: {escape(columns.pop(name)[0])}" for name in alike)
    total = sum(r["wall_seconds"] for r in found.values())
    about = "Experiments that measure no time run side by side, and are busy cores to each other."
    rows = [map(escape, row) for row in zip(*columns.values(), strict=True)]
    head = f"<p>{len(found)} experiments, {total / 60:.1f} minutes in all. {about}{said}</p>"
    return head + table(columns, rows, "stack")


def render(records: list[Record], out: Path) -> str:
    links = {
        "summary": "Summary",
        "terms": "Terms",
        **{letter: short for letter, (short, _) in GROUPS.items()},
        "runs": "Runs",
    }
    nav = "".join(f'<a href="#{target}">{title}</a>' for target, title in links.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Reproduction report: {PAPER}</title>
<style>{CSS}</style>
</head>
<body>
<h1>{PAPER}: a reproduction</h1>
<p class="soft">Lutz, Gangrade, Daneshmand, Saligrama, 2025. Measured with eagle_jax.
Every verdict comes from a rule in code, on screen below each claim; where the paper is contradicted, ERRATA.md of the
repository says so. "10–90 %" are quantiles over runs, of three or more. Thick lines in figures are medians over runs,
bands 10 to 90 %, thin lines single runs, unless the caption says otherwise.</p>
<nav aria-label="Sections">{nav}</nav>
<main>
{f'<p role="note"><b>{claims.QUICK}</b></p>' if claims.is_quick(records) else ""}
{tiles(records)}
<h2 id="summary">Summary</h2>
{summary(records)}
<h2 id="terms">What the letters mean</h2>
<dl class="terms">{"".join(f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in TERMS.items())}</dl>
{sections(records, out)}
<h2 id="runs">How it was run</h2>
{runs(records)}
</main>
</body>
</html>
"""


def write(out: Path) -> Path:
    records = json.loads((out / "claims.json").read_text(encoding="utf-8"))
    path = out / "report.html"
    path.write_text(render(records, out), encoding="utf-8")
    return path


def main() -> None:
    def write_page(out: Path) -> None:
        claims.write(out)
        common.console.print(f"wrote {write(out)}")

    common.command(write_page)


if __name__ == "__main__":
    main()
