"""The pages say what is there: examples run, commands and files exist, the reproduction table is the ledger's."""

import doctest
import pathlib
import re

import pytest

from experiments import claims, common, ledger, readme, stopping
from tests.helpers import stopping_results

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "BUILD.md", "ERRATA.md")}
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table row, headings left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if "---" not in line]


def test_readme_example(cheap_compilation):
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted > 5 and result.failed == 0


@pytest.mark.parametrize("name", PAGES)
def test_commands_files_and_tests_exist(name):
    text = PAGES[name]
    for module in re.findall(r"python -m experiments\.(\w+(?:\.\w+)?)", text):
        source = (ROOT / "experiments" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert '__name__ == "__main__"' in source, module
    assert {
        target
        for target in re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", text, re.MULTILINE)
        for target in target
        if target
    } <= set(TARGETS)
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link
    for file, test in re.findall(r"`(tests/\w+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_module_map_is_complete():
    section = PAGES["README.md"].split("## Modules")[1].split("`experiments/`")[0]
    modules = {path.name for path in (ROOT / "eagle_jax").glob("*.py")} - {"__init__.py"}
    named = re.findall(r"`(\w+\.py)`", section)
    assert sorted(named) == sorted(modules)


def test_reproduction_table_is_the_ledgers(tmp_path):
    """Run `python -m experiments.readme` after a new rule; the measured columns come from a stored run."""
    rows = table_rows(readme.parts(PAGES["README.md"])[1])
    fresh = table_rows(readme.table(claims.judge(tmp_path)))
    fixed = [readme.COLUMNS.index(name) for name in ("claim", "command", "paper")]
    assert [[row[i] for i in fixed] for row in rows] == [[row[i] for i in fixed] for row in fresh]
    assert {row[-1].split(":")[0] for row in rows[1:]} <= set(claims.STYLES)


def test_rewriting_the_table_keeps_the_rest(tmp_path):
    text = PAGES["README.md"]
    again = readme.rewritten(text, claims.judge(tmp_path))
    assert readme.parts(again)[::2] == readme.parts(text)[::2]
    assert readme.rewritten(again, claims.judge(tmp_path)) == again and again.count("| not run |") == len(ledger.LEDGER)


def test_errata_have_the_verdicts_of_the_table(tmp_path):
    """`python -m experiments.readme` writes both."""
    rows = table_rows(readme.parts(PAGES["README.md"])[1])[1:]
    records = [{"id": row[0].split(":")[0], "in_words": row[-1]} for row in rows]
    assert readme.with_verdicts(PAGES["ERRATA.md"], records) == PAGES["ERRATA.md"]
    made = "| E2, E3 | ? | text |\n| N3 || x |\n| D1, D2 | | y |\n| Fig. 19 | rank 940 | 960 |\n"
    said = [{"id": id, "in_words": w} for id, w in (("E2", "refuted"), ("E3", "weaker: U; D"), ("N3", "stronger"))]
    said += [{"id": id, "in_words": "in part"} for id in ("D1", "D2")]
    first, second, third, last = readme.with_verdicts(made, said).splitlines()
    assert first == "| E2, E3 | E2 refuted. E3 weaker: U; D | text |" and second == "| N3 | stronger | x |"
    assert third == "| D1, D2 | in part | y |" and last == "| Fig. 19 | rank 940 | 960 |"


def test_only_a_whole_default_run_of_this_code_becomes_the_table(tmp_path):
    cfg, digest = stopping.Config(runs=3), common.source_digest("stopping")
    items = {claim.item for claim in claims.CLAIMS} - {"suitesparse"}
    for preset, source, fit in (("default", digest, True), ("quick", digest, False), ("default", "other", False)):
        common.save(tmp_path, "stopping", cfg, stopping_results(), 0.1, "a command", source, preset=preset)
        records = claims.judge(tmp_path)
        assert ("stopping" not in readme.unfit(records)) == fit and items - {"stopping"} <= set(readme.unfit(records))
        assert claims.is_quick(records) == (preset == "quick")


def test_errata_have_every_claim_that_is_contradicted():
    listed = {id for row in table_rows(PAGES["ERRATA.md"]) for id in re.findall(r"\b[ENDSR]\d+\b", row[0])}
    assert listed <= {entry.id for entry in ledger.LEDGER}
    rows = table_rows(readme.parts(PAGES["README.md"])[1])[1:]
    contradicted = {row[0].split(":")[0] for row in rows if row[-1] not in (claims.REPRODUCED, claims.NOT_RUN)}
    assert contradicted and contradicted <= listed
