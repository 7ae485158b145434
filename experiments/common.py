"""What every experiment shares: runs over seeds, error measures, timing, storage with provenance, flags.

An experiment is a frozen dataclass `Config`, a function `run(cfg)` that returns a flat dict of arrays and
scalars, and `PRESETS` with the configurations "quick", "default" and "full". Nothing here plots.
"""

import ast
import contextlib
import contextvars
import dataclasses
import hashlib
import importlib
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import track as _track

import eagle_jax
from eagle_jax import baselines
from eagle_jax.problems import Problem

ROOT = Path(__file__).resolve().parent.parent
TARGET_MSE = 1e-20
NOT_REACHED = -1
SECONDS_BETWEEN_LINES = 30  # of progress, where the output is no terminal
console = Console(stderr=True)

Results = dict[str, Any]


# ---- measuring ---------------------------------------------------------------------------------------------


# The display around the code that runs now: experiments are the same alone and as one of many.
_display: contextvars.ContextVar[Progress | None] = contextvars.ContextVar("display", default=None)


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """One display for every `track` inside, on a terminal; nothing is drawn elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as display:
        token = _display.set(display)
        try:
            yield display
        finally:
            _display.reset(token)


def _in_lines(items: list, description: str) -> Iterator:
    said = time.monotonic()
    for i, item in enumerate(items):
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            console.print(f"{description}: {i} of {len(items)}", highlight=False, markup=False)
            said = time.monotonic()
        yield item


def track(items: Iterable, description: str) -> Iterator:
    """A progress bar on a terminal, of the surrounding display if there is one; elsewhere a line now and then."""
    items, display = list(items), _display.get()
    if not console.is_terminal:
        yield from _in_lines(items, description)
        return
    if display is None:
        yield from _track(items, description, console=console, transient=True)
        return
    task = display.add_task(description, total=len(items))
    try:
        yield from display.track(items, task_id=task)
    finally:
        display.remove_task(task)


def keys(seed: int, runs: int):
    return jax.random.split(jax.random.key(seed), runs)


def over_runs(build: Callable, measure: Callable, seed: int, runs: int, description: str) -> Any:
    """`measure(build(key))` for each run; the results stacked along a first axis of runs.

    One run at a time: large products already fill the cores, and a batch of them is slower on CPU. The
    solvers below are jitted one by one: settings and experiments of equal shape share their compilation.
    """
    rows = [jax.tree.map(np.asarray, measure(build(key))) for key in track(keys(seed, runs), description)]
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def relative_errors(history, D):
    """||D_l - D||_F / ||D||_F for D_l stacked along the first axis."""
    difference = history - D
    return (difference**2).sum((-2, -1)) ** 0.5 / (D**2).sum((-2, -1)) ** 0.5


def mean_squared_errors(history, D):
    """The paper's error: the mean over the entries of D of their squared errors."""
    return ((history - D) ** 2).mean((-2, -1))


def first_below(errors: np.ndarray, target: float) -> np.ndarray:
    """The number of steps (1-based) to the first error <= target along the last axis, or NOT_REACHED."""
    below = errors <= target
    return np.where(below.any(-1), below.argmax(-1) + 1, NOT_REACHED)


def nan_unless_reached(steps: np.ndarray) -> np.ndarray:
    return np.where(steps == NOT_REACHED, np.nan, steps)


@partial(jax.jit, static_argnums=1)
def paper_history(problem: Problem, steps: int):
    """D after each plain step with eta = 1/3, gamma = 1."""
    return eagle_jax.trajectory(problem.A, problem.B, problem.C, steps=steps, schedule="paper").D


@partial(jax.jit, static_argnums=1)
def gd_history(problem: Problem, steps: int):
    return baselines.gradient_descent(problem.A, problem.B, problem.C, steps=steps).history


@partial(jax.jit, static_argnums=1)
def cg_history(problem: Problem, steps: int):
    return baselines.conjugate_gradients(problem.A, problem.B, problem.C, steps=steps).history


@jax.jit
def direct_solution(problem: Problem):
    return baselines.direct(problem.A, problem.B, problem.C).D


@jax.jit
def optimal_solution(problem: Problem) -> eagle_jax.Solution:
    return eagle_jax.solve(problem.A, problem.B, problem.C)


def interleaved_seconds(functions: Mapping[str, Callable], problem: Problem, repeats: int) -> dict[str, float]:
    """Least wall time of each jitted function; interleaved, so that a busy moment hits all of them alike."""
    for f in functions.values():
        jax.block_until_ready(f(problem))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, f in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(f(problem))
            times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


# ---- storage -----------------------------------------------------------------------------------------------


def source_digest(item: str) -> str:
    """Changes when the library, the experiment, what it imports or the weights it uses do."""
    sources = sorted(_with_imports(item, set()))
    paths = [*sorted((ROOT / "eagle_jax").glob("*.py")), *(ROOT / "experiments" / f"{name}.py" for name in sources)]
    if any("pretrained" in path.read_text(encoding="utf-8") for path in paths[-len(sources) :]):
        paths += sorted((ROOT / "eagle_jax" / "pretrained").rglob("*.npz"))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _with_imports(item: str, found: set[str]) -> set[str]:
    """The experiment and the modules of this package that it imports, directly or not."""
    if item not in found:
        found.add(item)
        tree = ast.parse((ROOT / "experiments" / f"{item}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "experiments":
                for alias in node.names:
                    _with_imports(alias.name, found)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments."):
                _with_imports(str(node.module).removeprefix("experiments."), found)
    return found


def git_revision() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def as_json(cfg: Any) -> dict[str, Any]:
    """The config as it reads back from a JSON file (tuples become lists)."""
    return json.loads(json.dumps(dataclasses.asdict(cfg)))


def processor() -> str:
    """The CPU's name, as Linux tells it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def provenance() -> dict[str, Any]:
    """What a number depends on beside the config: versions, device, load, revision."""
    return {
        "versions": {
            "jax": jax.__version__,
            "jaxlib": jaxlib.version.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": str(jax.devices()[0].device_kind),
        "processor": processor(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "git_revision": git_revision(),
    }


def write_report(path: Path, result: dict) -> None:
    """One JSON file with the versions it was made by; says where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**result, "provenance": provenance()}, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def cpu_seconds_elsewhere() -> float:
    """CPU time that everything but this process has used since boot, in seconds; NaN where Linux does not tell."""
    try:
        cpu = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
    except OSError:
        return float("nan")
    user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, cpu)
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def save(
    out: Path,
    item: str,
    cfg: Any,
    results: Results,
    wall_seconds: float,
    command: str,
    digest: str,
    elsewhere: float = 0,
    preset: str = "",
) -> None:
    """`elsewhere`: how many cores other programs used meanwhile. A file is whole or not there, and knows its other."""
    arrays = {name: np.asarray(value) for name, value in results.items()}
    bad = [name for name, value in arrays.items() if value.dtype.hasobject]
    if bad:
        raise TypeError(f"results {bad} of {item} are not plain arrays, numbers or strings")
    about = {
        "item": item,
        "command": command,
        "preset": preset,
        "config": as_json(cfg),
        "seed": cfg.seed,
        **provenance(),
        "cores_busy_elsewhere": round(elsewhere, 2),
        "source_digest": digest,
        "wall_seconds": round(wall_seconds, 2),
        "arrays": {name: {"shape": value.shape, "dtype": str(value.dtype)} for name, value in arrays.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / f".{item}.{os.getpid()}.unfinished"
    with unfinished.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    about["arrays_sha256"] = sha256(unfinished)
    unfinished.replace(out / f"{item}.npz")
    unfinished.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(out / f"{item}.json")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(out: Path, item: str) -> tuple[Results, dict[str, Any]]:
    about = json.loads((out / f"{item}.json").read_text(encoding="utf-8"))
    with np.load(out / f"{item}.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}, about


def stored(out: Path, item: str) -> bool:
    """Whether there are results, and both files are of the same run."""
    try:
        about = json.loads((out / f"{item}.json").read_text(encoding="utf-8"))
        return about["arrays_sha256"] == sha256(out / f"{item}.npz")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_current(out: Path, item: str, cfg: Any) -> bool:
    """Whether the stored results come from this config and this source."""
    if not stored(out, item):
        return False
    about = json.loads((out / f"{item}.json").read_text(encoding="utf-8"))
    return about["config"] == as_json(cfg) and about["source_digest"] == source_digest(item)


def run_and_save(out: Path, item: str, run: Callable[[Any], Results], cfg: Any, command: str, preset: str) -> float:
    # taken first: the source may be edited while the run goes on
    digest = source_digest(item)
    start, elsewhere = time.perf_counter(), cpu_seconds_elsewhere()
    results = run(cfg)
    wall = time.perf_counter() - start
    save(out, item, cfg, results, wall, command, digest, (cpu_seconds_elsewhere() - elsewhere) / wall, preset)
    return wall


# ---- command line ------------------------------------------------------------------------------------------


def define_out_flag() -> None:
    flags.DEFINE_string("out", "results", "Folder for raw results and figures; results/quick for the quick preset.")


def out_folder(preset: str = "default") -> Path:
    """--out, made now: a folder that cannot be written is no surprise after the work. A quick look has its own."""
    given = flags.FLAGS["out"].present
    out = Path(flags.FLAGS.out, "quick") if preset == "quick" and not given else Path(flags.FLAGS.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".unfinished").touch()
        (out / ".unfinished").unlink()
    except OSError as error:
        raise app.UsageError(f"--out={flags.FLAGS.out}; expected a folder that can be written ({error})") from None
    return out


def begin(argv: list[str]) -> None:
    """What every command does first: no arguments but flags, and no word from JAX on the backends it has not found."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}; flags begin with --, see --help")
    logging.getLogger("jax").setLevel(logging.WARNING)
    sys.excepthook = _last_words


def _last_words(kind, error, trace) -> None:
    """Who interrupts a command knows where it was."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def command(act: Callable[[Path], None]) -> None:
    """The command line of what reads stored results: --out, and no more."""
    define_out_flag()

    def main(argv: list[str]) -> None:
        begin(argv)
        out = Path(flags.FLAGS.out)
        if not any(out.glob("*.npz")):
            raise app.UsageError(f"--out={out} has no results; expected a folder that an experiment has written to")
        act(out_folder())

    show_in_help()
    app.run(main)


def show_in_help() -> None:
    """absl's --help lists the flags of the main module only; these are defined here and in other experiments."""
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module.startswith("experiments."):
            for flag in defined:
                flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)


def configured(cfg: Any, **given: Any) -> Any:
    """The configuration with these values; what it finds wrong with them is the user's to mend."""
    try:
        return dataclasses.replace(cfg, **given)
    except (OSError, ValueError) as error:
        raise app.UsageError(str(error)) from None


def launch(
    item: str,
    run: Callable[[Any], Results],
    presets: Mapping[str, Any],
    needed: tuple[str, ...] = (),
    instead: Callable[[], bool] = lambda: False,
) -> None:
    """The command line of one experiment, which ends with its verdicts; `needed` are flags without a default.
    `instead` may do something else that the flags ask for, and says so.
    """
    define_out_flag()
    flags.DEFINE_enum("preset", "default", list(presets), "How much to run.")
    flags.DEFINE_integer("runs", None, "Independent problems per setting, in place of the preset's.", lower_bound=1)
    flags.DEFINE_integer("seed", None, "Seed of the first key, in place of the preset's.")

    def main(argv: list[str]) -> None:
        begin(argv)
        if instead():
            return
        out = out_folder(flags.FLAGS.preset)
        jax.config.update("jax_enable_x64", True)
        cfg = presets[flags.FLAGS.preset]
        given = {name: flags.FLAGS[name].value for name in ("runs", "seed") if flags.FLAGS[name].present}
        given |= {name: flags.FLAGS[name].value for name in needed}
        if missing := [f"--{name}: {flags.FLAGS[name].help}" for name in needed if given[name] is None]:
            raise app.UsageError(f"this experiment needs {'; '.join(missing)}")
        cfg = configured(cfg, **given)
        command = f"python -m experiments.{item} " + " ".join(sys.argv[1:])
        wall = run_and_save(out, item, run, cfg, command.strip(), flags.FLAGS.preset)
        # By name, since results do not depend on the rules (`source_digest`), and the rules import this module.
        importlib.import_module("experiments.claims").print_verdicts(out, item)
        console.print(f"{item}: {wall:.1f} s, wrote {out / item}.npz and .json; make report draws its figures")

    show_in_help()
    app.run(main)
