"""The reproduction table of README.md and the verdicts in ERRATA.md, from results/claims.json.

python -m experiments.readme        (rewrites what is between the two markers, and a column; seconds)
"""

import json
import re
from pathlib import Path
from typing import Any

from absl import app

from experiments import claims, common

PATH, ERRATA = common.ROOT / "README.md", common.ROOT / "ERRATA.md"
BEGIN, END = "<!-- claims: python -m experiments.readme -->", "<!-- end of claims -->"
COLUMNS = ("claim", "command", "minutes", "paper", "ours", "verdict")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def row(record: dict[str, Any]) -> tuple[str, ...]:
    command = f"`{record['command']}`" if record["command"] else ""
    seconds = record["wall_seconds"]
    minutes = "" if seconds is None else f"{seconds / 60:.1f}"
    paper = ", ".join(filter(None, (record["paper"], record["where"])))
    ours = record["brief"] or record["reason"]
    return f"{record['id']}: {record['statement']}", command, minutes, paper, ours, record["in_words"]


def table(records: list[dict[str, Any]]) -> str:
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(map(row, records))]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def parts(text: str) -> tuple[str, str, str]:
    """What is before the table, the table, and what is after it."""
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside.strip("\n"), after


def rewritten(text: str, records: list[dict[str, Any]]) -> str:
    before, _, after = parts(text)
    return f"{before}{BEGIN}\n{table(records)}\n{END}{after}"


def with_verdicts(errata: str, records: list[dict[str, Any]]) -> str:
    """The second cell of every row of ERRATA.md that is about claims: their verdicts."""
    in_words = {r["id"]: r["in_words"] for r in records}

    def cells(row: re.Match) -> str:
        said = {id: in_words[id] for id in row[1].split(", ")}
        alike = len(set(said.values())) == 1
        verdicts = next(iter(said.values())) if alike else ". ".join(f"{id} {words}" for id, words in said.items())
        return f"| {row[1]} | {verdicts} |"

    return re.sub(r"^\| ([ENDSR]\d+(?:, [ENDSR]\d+)*) \|[^|]*\|", cells, errata, flags=re.MULTILINE)


def unfit(records: list[dict[str, Any]]) -> list[str]:
    """Experiments without results of the default preset and this code; R1 needs matrices that few have."""
    return sorted({r["item"] for r in records if r["id"] != "R1" and (r["preset"] != "default" or r["stale"])})


def main() -> None:
    def write(out: Path) -> None:
        path, _ = claims.write(out)
        records = json.loads(path.read_text(encoding="utf-8"))
        if items := unfit(records):
            raise app.UsageError(f"{', '.join(items)} in {out}: expected results of the default preset and this code")
        PATH.write_text(rewritten(PATH.read_text(encoding="utf-8"), records), encoding="utf-8")
        ERRATA.write_text(with_verdicts(ERRATA.read_text(encoding="utf-8"), records), encoding="utf-8")
        common.console.print(f"wrote {PATH} and {ERRATA}")

    common.command(write)


if __name__ == "__main__":
    main()
