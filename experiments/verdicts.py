"""What a rule returns: a verdict, the sentence with the number, and the numbers."""

from typing import Any, NamedTuple

REPRODUCED, DIFFERS, REFUTED, NOT_RUN = "reproduced", "differs", "refuted", "not run"


class Finding(NamedTuple):
    verdict: str
    measured: str
    numbers: dict[str, Any]


def verdict(holds: bool, otherwise: str) -> str:
    return REPRODUCED if holds else otherwise


def numbers(values, digits: int = 3) -> str:
    return " ".join(f"{float(v):.{digits}g}" for v in values)
