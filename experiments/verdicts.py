"""What a rule returns: a verdict, the sentence with the number, and the numbers."""

from typing import Any, NamedTuple

import numpy as np

REPRODUCED, DIFFERS, REFUTED, NOT_RUN = "reproduced", "differs", "refuted", "not run"


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


def verdict(holds: bool, otherwise: str) -> str:
    return REPRODUCED if holds else otherwise


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
