"""What a rule returns: a verdict, the sentence with the number, and the numbers."""

from typing import Any, NamedTuple

REPRODUCED, DIFFERS, REFUTED, NOT_RUN = "reproduced", "differs", "refuted", "not run"


class Finding(NamedTuple):
    """What a rule says. `numbers["table"]`, {"columns": [...], "rows": [[...]]}, is shown as a table in the report."""

    verdict: str
    measured: str
    numbers: dict[str, Any]
    # name of a number -> its 10 and 90 % quantiles over runs
    spread: dict[str, list[float]] | None = None
    # problems or networks behind the verdict, where that is not the `runs` of the experiment's config
    runs: int | None = None


def verdict(holds: bool, otherwise: str) -> str:
    return REPRODUCED if holds else otherwise


def numbers(values, digits: int = 3) -> str:
    return " ".join(f"{float(v):.{digits}g}" for v in values)
