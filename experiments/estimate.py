"""How long experiments will take: from models of their work, scaled by what this machine took before.

SECONDS are of 2 CPU cores with nothing else to do: what a short run of each preset took, a start (compilation, mostly)
and the work after it. Where results of an experiment are stored, from any preset, its model is scaled to their time;
the others by the median of these scales.
"""

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SECONDS: dict[str, Callable[[Any], float]] = {
    "convergence": lambda c: 5 + 0.1 * c.runs,
    "kappa_sweep": lambda c: 8 + len(c.kappas) * (6e-6 * c.runs * c.cg_cap + 1e-4 * c.gd_cap),
    "ranks": lambda c: 15 + 0.5 * c.runs + 45 * c.large_runs * (c.large_n / 1920) ** 3,
    "families": lambda c: 8 + 8e-4 * c.runs * c.cg_steps,
    "step_sizes": lambda c: 8 + 0.2 * c.runs,
    "stopping": lambda c: 8 + 0.2 * c.runs,
    "error_map": lambda c: 6 + 0.35 * c.runs * len(c.exponents),
    "early_stopping": lambda c: 8 + 8e-4 * c.runs * c.gd_steps,
    "diversity": lambda c: 30 + 1.4e-4 * c.runs * len(c.alphas) * sum(c.caps) + 1.5e-8 * c.large_runs * c.large**3,
    "sketching": lambda c: 88 + c.runs * len(c.kappas) * (9e-3 * c.steps + 5e-5 * c.sgd_steps + 5e-4 * c.cg_steps),
    "emergence": lambda c: 25 + 2e-3 * c.runs * c.tasks,
    "computation_limited": lambda c: (
        40 + 1e-7 * c.train_steps * sum(steps * min(256 * n**2, c.entries) for n, _, steps, _ in c.sizes)
    ),
    "initialisation": lambda c: 10 + 4e-3 * c.runs * c.tasks,
    "transfer": lambda c: 10 + 2.7e-2 * c.runs * c.tasks,
    "restart": lambda c: 60 + c.runs * len(c.regimes) * (0.016 * c.steps + 0.03 * c.tune_steps + 0.01 * c.tasks),
    "suitesparse": lambda c: 60.0 * max(len(c.matrices), 1),
}


def scales(out: Path) -> dict[str, float]:
    """Measured over modelled time of what is stored in `out` or its folder for quick looks."""
    found = {}
    for item, seconds in SECONDS.items():
        for path in (out / "quick" / f"{item}.json", out / f"{item}.json"):
            try:
                about = json.loads(path.read_text(encoding="utf-8"))
                found[item] = about["wall_seconds"] / seconds(SimpleNamespace(**about["config"]))
            except (OSError, ValueError, KeyError, AttributeError):  # none, or of a configuration with other fields
                continue
    return found


def seconds(wanted: Mapping[str, Any], out: Path) -> dict[str, float]:
    """Item -> seconds, for the configurations in `wanted` that have a model."""
    measured = scales(out)
    usual = statistics.median(measured.values()) if measured else 1.0
    return {item: SECONDS[item](cfg) * measured.get(item, usual) for item, cfg in wanted.items() if item in SECONDS}


def spoken(duration: float) -> str:
    """90 s, 12 min, 3.5 h."""
    if duration < 100:
        return f"{duration:.0f} s"
    return f"{duration / 60:.0f} min" if duration < 6000 else f"{duration / 3600:.1f} h"
