"""The ledger is complete and every record of claims.json says the same kind of things."""

import json

import numpy as np
import pytest

from experiments import claims, common, ledger, stopping
from tests.helpers import stopping_results

# The statements to be judged: E1-E14 and so on. A statement leaves the ledger only by leaving this line.
COUNTS = {"E": 17, "N": 11, "D": 6, "S": 4, "R": 1}


def test_no_id_is_missing():
    wanted = [f"{letter}{i}" for letter, count in COUNTS.items() for i in range(1, count + 1)]
    assert [entry.id for entry in ledger.LEDGER] == wanted
    assert list(ledger.GROUPS) == list(COUNTS) and {ledger.group(id) for id in wanted} == set(COUNTS)


def test_rules_are_about_entries_of_the_ledger_once():
    ids = [claim.id for claim in claims.CLAIMS]
    assert len(set(ids)) == len(ids) and set(ids) <= {entry.id for entry in ledger.LEDGER}


def test_records_have_every_field_and_strict_json(tmp_path):
    results = stopping_results() | {"solve_error": np.full((2, 3), np.nan)}
    common.save(tmp_path, "stopping", stopping.Config(runs=3), results, 12.0, "the command", "digest")
    path, _ = claims.write(tmp_path)
    records = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # NaN is not JSON
    (judged,) = [r for r in records if r["verdict"] != claims.NOT_RUN]
    assert judged["id"] == "N10" and judged["verdict"] == claims.REFUTED
    assert judged["rule"] == "experiments/solver_claims.py:stopping" and "def stopping" in judged["rule_source"]
    assert judged["numbers"]["gapped"]["solve_error"] is None
    assert judged["spread"]["Kahan(60), error at stop"] == [0.5, 0.5]
    assert (judged["runs"], judged["run_command"], judged["wall_seconds"]) == (3, "the command", 12.0)
    common_fields = set.intersection(*(set(r) for r in records))
    assert common_fields >= {"id", "where", "says", "paper", "measured", "verdict", "reason", "rule", "figure", "runs"}
