"""What a rule returns: a verdict, the sentence with the number, and the numbers.

A claim about several things (regimes, ranks, machines) has a verdict for each of them, its parts, and `overall` makes
one of these. Verdicts come from `graded`, `at_most` and `holds`, so that a word means the same everywhere.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

REPRODUCED, STRONGER, WEAKER = "reproduced", "stronger", "weaker"
IN_PART, REFUTED, NOT_RUN = "in part", "refuted", "not run"
MEANINGS = {
    REPRODUCED: "it holds, within the rule's bounds",
    STRONGER: "it holds, with more than the paper says",
    WEAKER: "it falls short of the paper's number, in the same direction",
    IN_PART: "some of it holds and some does not",
    REFUTED: "measured to be otherwise",
    NOT_RUN: "no verdict; the reason is given",
}


def holds(does: bool) -> str:
    return REPRODUCED if does else REFUTED


def graded(value: float, low: float, high: float, nothing: float) -> str:
    """The more the better: the paper says `low` to `high`, and `nothing` is no effect at all. NaN is refuted."""
    if value > high:
        return STRONGER
    return REPRODUCED if value >= low else WEAKER if value > nothing else REFUTED


def at_most(value: float, bound: float) -> str:
    """The less the better; up to twice the bound is weaker. NaN is refuted."""
    return REPRODUCED if value <= bound else WEAKER if value <= 2 * bound else REFUTED


def overall(verdicts: Iterable[str]) -> str:
    """What did not run does not count, unless nothing did."""
    ran = set(verdicts) - {NOT_RUN}
    if len(ran) < 2:
        return ran.pop() if ran else NOT_RUN
    if ran & {REFUTED, IN_PART}:
        return IN_PART
    return WEAKER if WEAKER in ran else STRONGER


def in_words(verdict: str, parts: Mapping[str, str]) -> str:
    """in part: U, D reproduced; C-L refuted"""
    named = {v: ", ".join(name for name, part in parts.items() if part == v) for v in MEANINGS}
    said = "; ".join(f"{names} {v}" for v, names in named.items() if names)
    return f"{verdict}: {said}" if set(parts.values()) - {verdict} else verdict


class Finding(NamedTuple):
    """What a rule says. `numbers["table"]`, {"columns": [...], "rows": [[...]], "caption": "..."}, is shown as a table.

    `brief` is `measured` for a table's cell, where that is too long for one.
    """

    verdict: str
    measured: str
    numbers: dict[str, Any]
    # name of a number -> its 10 and 90 % quantiles over runs
    spread: dict[str, list[float]] | None = None
    # problems or networks behind the verdict, where that is not the `runs` of the experiment's config
    runs: int | None = None
    brief: str = ""
    # what the claim is about -> its verdict, where these are several
    parts: dict[str, str] | None = None

    @classmethod
    def of(cls, parts: dict[str, str], measured: str, numbers: dict[str, Any], *rest, **others) -> Self:
        """The finding of a claim about several things."""
        return cls(overall(parts.values()), measured, numbers, *rest, **others, parts=parts)


def numbers(values, digits: int = 3) -> str:
    return " ".join(f"{float(v):.{digits}g}" for v in values)


def listed(values) -> str:
    """1 0.357 1561, and "-" for what was not reached."""
    return " ".join("-" if np.isnan(v) else f"{v:.0f}" if v >= 100 else f"{v:.3g}" for v in np.asarray(values, float))


def spread_of(**values) -> dict[str, list[float]]:
    """10 and 90 % quantiles; infinite where NaN, "not reached", is that frequent. Fewer than three values have none."""
    rows = {name: np.ravel(v) for name, v in values.items() if np.size(v) >= 3}
    rows = {name: np.where(np.isnan(v), np.inf, v) for name, v in rows.items() if np.isfinite(v).any()}
    return {name: np.percentile(v, [10, 90], method="nearest").tolist() for name, v in rows.items()}
