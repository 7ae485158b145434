"""One solve by several processes, each with its own columns of A and B.

    python -m experiments.distributed --local=2 --devices_per_process=2        (2 processes on this machine)
    python -m experiments.distributed --coordinator_address=HOST:PORT --num_processes=N --process_id=K   (rank K of N)
    srun python -m experiments.distributed                (Slurm, Kubernetes, TPU: jax finds the rest by itself)

No process holds all of A, except that rank 0 makes a small problem again to check the answer. The ranks first agree on
the problem; if one of them dies or stalls, the others end with a message and a non-zero code. The first line takes 18 s
of CPU time per process, nearly all of it compilation.
"""

import dataclasses
import faulthandler
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax._src.distributed import global_state  # the key-value store has no public name
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import eagle_jax
from eagle_jax import Method, Solution, Status
from eagle_jax.linalg import matmul
from experiments import common

ITEM = "distributed"
DISAGREED, TIMED_OUT = 2, 124  # exit codes; the second as timeout(1) has it
_GRACE_SECONDS = 5
_SMALL = 2**22  # entries of A up to which rank 0 checks the answer


@dataclasses.dataclass(frozen=True)
class Config:
    """What ranks must agree on. A is d x columns with kappa near 100, B = W A + noise, where W A has entries near 1."""

    d: int = 64
    columns: int = 4096
    noise: float = 0.1
    d_out: int = 2
    n_out: int = 3
    seed: int = 0
    devices_per_process: int = 0  # on CPU; 0 leaves it to jax
    x64: bool = True


@partial(jax.jit, static_argnums=0)
def blocks(cfg: Config, columns):
    """The given columns of A and B, and all of C. A column depends on its number only, not on who makes it."""
    key_A, key_noise, key_W, key_C = jax.random.split(jax.random.key(cfg.seed), 4)
    sizes, dtype = np.geomspace(1, 1e-2, cfg.d), jnp.float64 if cfg.x64 else jnp.float32

    def draw(key, rows):
        drawn = jax.vmap(lambda j: jax.random.normal(jax.random.fold_in(key, j), rows, dtype), out_axes=1)(columns)
        return jnp.where(columns < cfg.columns, drawn, 0)  # zero columns fill up the last devices

    W = jax.random.normal(key_W, (cfg.d_out, cfg.d), dtype) / float(np.linalg.norm(sizes))
    A = draw(key_A, cfg.d) * jnp.asarray(sizes[:, None], dtype)
    B = matmul(W, A) + cfg.noise * draw(key_noise, cfg.d_out)
    return A, B, jax.random.normal(key_C, (cfg.d, cfg.n_out), dtype)


def solve(cfg: Config, mesh: Mesh) -> Solution:
    """Makes this process's part of the global arrays and solves with all the others."""
    (axis,) = mesh.axis_names
    width = cfg.columns + -cfg.columns % mesh.size
    spread, replicated = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, axis), ()))

    def block(index, which):
        return blocks(cfg, jnp.arange(*index[1].indices(width)))[which]

    A = jax.make_array_from_callback((cfg.d, width), spread, partial(block, which=0))
    B = jax.make_array_from_callback((cfg.d_out, width), spread, partial(block, which=1))
    C = np.asarray(blocks(cfg, jnp.arange(0))[2])
    C = jax.make_array_from_callback(C.shape, replicated, C.__getitem__)
    return jax.block_until_ready(eagle_jax.solve_sharded(A, B, C, mesh=mesh, axis=axis))


def report(cfg: Config, mesh: Mesh, solution: Solution, seconds: float) -> dict:
    stats, value = solution.stats, np.asarray(solution.value)
    result = {
        "status": Status(int(solution.status)).name,
        "method": Method(int(stats.method)).name,
        "rounds": int(stats.rounds),
        "floats": float(stats.floats),
        "error": "not checked: the problem is large",
        "backward_error": float(stats.backward_error),
        "processes": jax.process_count(),
        "devices": mesh.size,
        "seconds_with_compilation": round(seconds, 2),
        "value": value.tolist(),
        "config": common.as_json(cfg),
    }
    if cfg.d * cfg.columns <= _SMALL:
        A, B, C = (np.asarray(x, np.float64) for x in blocks(cfg, jnp.arange(cfg.columns)))
        expected = B @ np.linalg.pinv(A) @ C
        result["error"] = float(np.linalg.norm(value - expected) / np.linalg.norm(expected))
    return result


# ---- one rank ----------------------------------------------------------------------------------------------


class Watchdog:
    """Ends this process when its time is up.

    From a thread and by os._exit: a collective that waits for a rank that will never come cannot be interrupted, and
    an ordinary exit would wait for that rank once more.
    """

    def __init__(self, seconds: int, rank: int | None):
        self.seconds, self.rank, self.doing = seconds, "?" if rank is None else rank, "connecting"
        complaint = f"no end after --timeout_seconds={seconds}; a rank is missing, has stalled or died, or needs longer"
        timer = threading.Timer(seconds, self.leave, (complaint, TIMED_OUT))
        timer.daemon = True
        timer.start()

    def say(self, message: str) -> None:
        print(f"rank {self.rank}, {self.doing}: {message}", file=sys.stderr, flush=True)

    def leave(self, message: str, code: int) -> NoReturn:
        try:
            self.say(message)
            sys.stdout.flush()
        finally:  # even if nobody listens any more
            os._exit(code)


def connect(address: str | None, count: int | None, rank: int | None, seconds: int) -> None:
    """jax.distributed with deadlines. It detects what is None, where it knows the cluster."""
    loopback = (address or "").startswith(("127.0.0.1:", "localhost:"))
    jax.distributed.initialize(
        address,
        count,
        rank,
        initialization_timeout=seconds,
        heartbeat_timeout_seconds=max(5, seconds // 4),
        shutdown_timeout_seconds=seconds,
        coordinator_bind_address=address if loopback else None,  # None: it listens on every interface
    )


def disagreements(mine: dict, seconds: int) -> list[str]:
    """How the ranks' problems differ. To be asked before the first collective, which would hang instead."""
    client = global_state.client
    assert client is not None
    client.key_value_set(f"{ITEM}/{global_state.process_id}", json.dumps(mine))
    client.wait_at_barrier(ITEM, seconds * 1000)
    told = {int(key.rpartition("/")[2]): json.loads(value) for key, value in client.key_value_dir_get(f"{ITEM}/")}
    return [
        f"rank {rank} has {name}={told[rank][name]}, rank 0 has {name}={value}"
        for rank in sorted(told)
        for name, value in told[0].items()
        if told[rank][name] != value
    ]


def run(cfg: Config, watchdog: Watchdog, out: Path, stall_rank: int, die_rank: int) -> int:
    """What a connected rank does; returns its exit code."""
    rank = watchdog.rank = global_state.process_id
    watchdog.doing = "agreeing on the problem"
    versions = {"processes": global_state.num_processes, "jax": jax.__version__, "source": common.source_digest(ITEM)}
    differences = disagreements(common.as_json(cfg) | versions, watchdog.seconds)
    if differences:
        watchdog.say(f"the ranks have different problems: {'; '.join(differences)}")
        return DISAGREED
    watchdog.doing = "solving"
    mesh = jax.make_mesh((jax.device_count(),), ("machines",), axis_types=(AxisType.Auto,))
    if rank == stall_rank:
        time.sleep(2 * watchdog.seconds)
    if rank == die_rank:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.perf_counter()
    solution = solve(cfg, mesh)
    seconds = time.perf_counter() - start
    watchdog.doing = "reporting"
    print(f"rank {rank} of {jax.process_count()}: {jax.local_device_count()} devices, {seconds:.1f} s")
    if rank == 0:
        result = report(cfg, mesh, solution, seconds)
        for name in ("status", "method", "rounds", "floats", "error"):
            print(f"{name}: {result[name]}")
        common.write_report(out / f"{ITEM}.json", result)
    return int(int(solution.status) != Status.CONVERGED)


def run_rank(options: flags.FlagValues) -> int:
    # jax ends a process whose peers are gone by abort(), with a message that should not be buried under stacks.
    faulthandler.disable()
    watchdog = Watchdog(options.timeout_seconds, options.process_id)
    cfg = Config(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Config)})
    jax.config.update("jax_enable_x64", cfg.x64)
    if cfg.devices_per_process:
        jax.config.update("jax_num_cpu_devices", cfg.devices_per_process)
    try:
        connect(options.coordinator_address, options.num_processes, options.process_id, options.timeout_seconds)
        code = run(cfg, watchdog, Path(options.out), options.stall_rank, options.die_rank)
        watchdog.doing = "leaving"
        jax.distributed.shutdown()  # waits for the others: losing the coordinator would end them
        return code
    except Exception as error:
        watchdog.leave(f"{type(error).__name__}: {error}", 1)


# ---- several ranks on this machine -------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(rank: int, count: int, port: int, arguments: list[str]) -> subprocess.Popen:
    """One rank as a process of its own, on loopback; on CPU, since processes cannot share an accelerator."""
    place = [f"--coordinator_address=127.0.0.1:{port}", f"--num_processes={count}", f"--process_id={rank}"]
    return subprocess.Popen(
        [sys.executable, "-um", f"experiments.{ITEM}", *arguments, "--local=0", *place],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def follow(rank: int, process: subprocess.Popen, ended: queue.Queue) -> None:
    for line in process.stdout or ():
        print(f"[{rank}] {line}", end="", flush=True)
    ended.put((rank, process.wait()))


def launch(count: int, arguments: list[str], seconds: int) -> int:
    """Runs `count` ranks to their end and returns the first non-zero exit code. Leaves no process behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    port, deadline, code = free_port(), time.monotonic() + seconds + _GRACE_SECONDS, 0
    processes, readers, ended = [], [], queue.Queue()
    try:
        for rank in range(count):
            processes.append(start(rank, count, port, arguments))
            readers.append(threading.Thread(target=follow, args=(rank, processes[-1], ended), daemon=True))
            readers[-1].start()
        for _ in processes:
            rank, last = ended.get(timeout=max(0, deadline - time.monotonic()))
            if last and not code:
                code = last
                print(f"rank {rank} ended with code {code}; the others have {_GRACE_SECONDS} s", flush=True)
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    except queue.Empty:
        print("killing the ranks that have not ended", flush=True)
        code = code or TIMED_OUT
    finally:
        for process in processes:
            process.kill()
    for reader in readers:
        reader.join()
    return code if code >= 0 else 128 - code  # as a shell does: 137 for -9


def define_flags() -> None:
    """Not at import: other experiments have flags of the same names, and one test process imports several."""
    common.define_out_flag()
    flags.DEFINE_integer("local", 0, "start that many processes on this machine", lower_bound=0)
    flags.DEFINE_string("coordinator_address", None, "host:port of rank 0")
    flags.DEFINE_integer("num_processes", None, "how many ranks there are", lower_bound=1)
    flags.DEFINE_integer("process_id", None, "which of them this is", lower_bound=0)
    flags.DEFINE_integer("timeout_seconds", 120, "for the whole run, after which a rank gives up", lower_bound=8)
    for field in dataclasses.fields(Config):
        define = {int: flags.DEFINE_integer, float: flags.DEFINE_float, bool: flags.DEFINE_bool}[type(field.default)]
        define(field.name, field.default, "see Config")
    flags.DEFINE_integer("stall_rank", -1, "for tests: this rank stops before it solves")
    flags.DEFINE_integer("die_rank", -1, "for tests: this rank is killed before it solves")


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    options = flags.FLAGS
    return launch(options.local, sys.argv[1:], options.timeout_seconds) if options.local else run_rank(options)


if __name__ == "__main__":
    define_flags()
    app.run(main)
