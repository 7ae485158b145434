"""S1-S4: the computation-limited regime. Rounds and time by r, against SGD and sketch-and-CG.

    python -m experiments.sketching

Paper, at n = d = 240: rounds grow like n/r; 21, 16, 7 and 5 ms a step at r = 240, 120, 60, 30; faster than SGD from
r = n/4 on (a later version: 2.5x to an error of 1e-2 at r = n/4); a third of sketch-and-CG's time to 1e-6 at
kappa = 1e4. r = n is the unsketched iteration. "plain" is the paper's step with a fresh orthogonal sketch, "columns"
the same step on columns that take turns, "deflation" is eagle_jax's default. A time is rounds times the time of a step,
the least of several, with nothing but the step in the loop.
"""

import dataclasses
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eagle_jax import PAPER, Sketch, baselines, plain, problems, sketched
from eagle_jax.machines import Alone
from experiments import common

ITEM = "sketching"
METHODS = ("plain", "columns", "deflation", "sgd", "sketch_cg")
TARGETS = (1e-2, 1e-6)


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 240
    widths: tuple[int, ...] = (30, 60, 120, 240)
    kappas: tuple[float, ...] = (1e2, 1e4)
    steps: int = 4_000  # of the plain iterations
    sgd_steps: int = 100_000
    cg_steps: int = 4_000
    timed_steps: int = 40
    repeats: int = 5
    runs: int = 50
    seed: int = 13


PRESETS = {
    "quick": Config(n=48, widths=(6, 12, 24, 48), steps=800, sgd_steps=4_000, cg_steps=400, repeats=2, runs=2),
    "default": Config(steps=800, sgd_steps=6_000, cg_steps=800, timed_steps=20, repeats=3, runs=2),
    "full": Config(sgd_steps=20_000),
}


def _sketch(method: str, r: int, key) -> Sketch:
    return Sketch(r, key, "columns" if method in ("columns", "sgd") else "orthogonal")


def _iteration(method: str, problem: problems.Problem, sketch: Sketch):
    """(start, step, D): step(iterate) -> iterate, D(iterate)."""
    A, B, C, _ = problem
    if method == "deflation":
        start = sketched.deflation_start(A, B, C)
        return start, partial(sketched.deflate, n=A.shape[1], sketch=sketch), lambda it: it.Y[:, A.shape[1] :]
    if sketch.r == A.shape[1]:
        return plain.scaled_state(A, B, C), partial(plain.step, fixed=PAPER), lambda state: state.D
    step = partial(sketched.advance, sketch=sketch, fixed=PAPER, peers=Alone())
    return sketched.plain_start(A, B, C), step, lambda it: it.state.D


@partial(jax.jit, static_argnums=(0, 3, 4))
def iterates(method: str, problem: problems.Problem, key, r: int, cap: int, steps=None):
    """D after each step, cap x d' x n'. `steps` (traced; cap, if None) stops ours, not the baselines, earlier or later.

    Later steps are not kept: it is the means to time a loop without another compilation.
    """
    sketch = _sketch(method, r, key)
    if method in baselines.SKETCHED:
        return baselines.SKETCHED[method](*problem[:3], sketch=sketch, steps=cap).history
    start, advance, value = _iteration(method, problem, sketch)

    def step(i, carry):
        iterate, history = carry
        iterate = advance(iterate)
        return iterate, history.at[i].set(value(iterate), mode="drop")

    D = value(start)
    return lax.fori_loop(0, cap if steps is None else steps, step, (start, jnp.zeros((cap, *D.shape), D.dtype)))[1]


def step_seconds(problem: problems.Problem, widths, caps: dict[str, int], steps: int, repeats: int) -> tuple:
    """Seconds of one step, methods x widths (the least) and methods x widths x repeats, all of them interleaved.

    Ours from the difference of 1 and 1 + steps of them, which leaves the start out; the baselines', who start with
    zeros, from `cap` steps. NaN where a busy moment made the shorter run the longer one.
    """
    key = jax.random.key(0)
    lengths = {m: (cap,) if m in baselines.SKETCHED else (1, 1 + steps) for m, cap in caps.items()}
    names = [(m, r, k) for m in caps for r in widths for k in lengths[m]]
    jobs = {(m, r, k): partial(iterates, m, problem, key, r, caps[m], k) for m, r, k in names}
    times = {name: [] for name in jobs}
    for job in jobs.values():
        jax.block_until_ready(job())
    for _ in common.track(range(repeats), "step times"):
        for name, job in jobs.items():
            start = time.perf_counter()
            jax.block_until_ready(job())
            times[name].append(time.perf_counter() - start)

    def step(m, r, pick):
        *short, long = lengths[m]
        seconds = pick(times[m, r, long]) - sum(pick(times[m, r, k]) for k in short)
        return np.where(seconds > 0, seconds / (long - sum(short)), np.nan)

    return tuple(np.array([[step(m, r, pick) for r in widths] for m in caps]) for pick in (np.min, np.array))


def build(cfg: Config, kappa: float, key) -> tuple:
    keys = jax.random.split(key)
    return problems.conditioned(keys[0], n=cfg.n, d=cfg.n, kappa=kappa, dtype=jnp.float64), keys[1]


def caps(cfg: Config) -> dict[str, int]:
    most = cfg.steps, cfg.steps, 2 * cfg.n // min(cfg.widths), cfg.sgd_steps, cfg.cg_steps
    return dict(zip(METHODS, most, strict=True))


def measure(cfg: Config, case: tuple) -> dict:
    """Errors along the way, method -> widths x drawn rounds; and rounds to the targets, methods x widths x targets."""
    problem, key = case
    curves, rounds = {}, []
    for method, cap in caps(cfg).items():
        errors = [
            np.asarray(common.relative_errors(iterates(method, problem, key, r, cap, cap), problem.D))
            for r in cfg.widths
        ]
        rounds.append([[common.first_below(e, target) for target in TARGETS] for e in errors])
        curves[method] = np.stack(errors)[:, _thin(cap) - 1]
    return curves | {"rounds": np.array(rounds)}


def _thin(steps: int) -> np.ndarray:
    """The rounds that are drawn: all of the first 100, then 200 on a logarithmic scale."""
    return np.unique(np.r_[1 : min(steps, 100) + 1, np.geomspace(1, steps, 300).astype(int)])


def run(cfg: Config) -> common.Results:
    results: common.Results = {
        "n": cfg.n, "widths": np.array(cfg.widths), "kappas": np.array(cfg.kappas), "methods": np.array(METHODS),
        "targets": np.array(TARGETS),
    }  # fmt: skip
    results |= {f"drawn_{method}": _thin(cap) for method, cap in caps(cfg).items()}
    for i, kappa in enumerate(cfg.kappas):
        found = common.over_runs(partial(build, cfg, kappa), partial(measure, cfg), cfg.seed, cfg.runs, f"S1, {kappa}")
        results |= {f"{name}_{i}": value for name, value in found.items()}
    problem, _ = build(cfg, cfg.kappas[0], common.keys(cfg.seed, 1)[0])
    timed = step_seconds(problem, cfg.widths, caps(cfg), cfg.timed_steps, cfg.repeats)
    return results | dict(zip(("step_seconds", "step_repeats"), timed, strict=True))


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
