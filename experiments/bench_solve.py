"""Time of eagle_jax against what a user would pick instead: same data, same accuracy target, one process.

    python -m experiments.bench_solve            # all sections
    python -m experiments.bench_solve --section=square

Every method of a problem is run in turn, again and again, and the table shows the median over the rounds of the ratio
to jnp.linalg.lstsq in the same round, so that a busy machine disturbs all of them alike. Relative errors are
against the known answer (block completion) or against numpy's lstsq in float64. An error above the target is marked.
"""

import dataclasses
import pathlib
import time

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.linalg
from absl import app, flags

import eagle_jax
from eagle_jax import problems
from experiments import common


@dataclasses.dataclass(frozen=True)
class Row:
    problem: str
    method: str
    ratio: float
    milliseconds: float
    error: float
    target: float


def race(problem, methods, arguments, error, target, rounds) -> list[Row]:
    """Runs all methods in turn `rounds` times; ratios are to the first method, round by round."""
    answers = {name: jax.block_until_ready(f(*arguments)) for name, f in methods.items()}
    times = {name: [] for name in methods}
    for _ in range(rounds):
        for name, f in methods.items():
            start = time.perf_counter()
            jax.block_until_ready(f(*arguments))
            times[name].append(time.perf_counter() - start)
    base = np.array(next(iter(times.values())))
    return [
        Row(problem, name, float(np.median(np.array(t) / base)), 1e3 * min(t), error(answers[name]), target)
        for name, t in times.items()
    ]


def _lineax(solver):
    def run(A, B):
        operator = lx.MatrixLinearOperator(A.T)
        return jax.vmap(lambda b: lx.linear_solve(operator, b, solver, throw=False).value)(B)

    return jax.jit(run)


def _lineax_cg(A, B):
    operator = lx.MatrixLinearOperator(A @ A.T, lx.positive_semidefinite_tag)
    solver = lx.CG(rtol=1e-12, atol=0.0, max_steps=4 * A.shape[0])
    return jax.vmap(lambda b: lx.linear_solve(operator, A @ b, solver, throw=False).value)(B)


def _cholesky(A, B):
    factor = jax.scipy.linalg.cho_factor(A @ A.T)
    return jax.scipy.linalg.cho_solve(factor, A @ B.T).T


def competitors(rtol=None):
    """Methods (A, B) -> W. The first is the yardstick."""
    return {
        "jnp.linalg.lstsq (SVD)": jax.jit(lambda A, B: jnp.linalg.lstsq(A.T, B.T)[0].T),
        "eagle_jax": jax.jit(lambda A, B: eagle_jax.estimate(A, B, rtol=rtol).value),
        "eagle_jax paper steps": jax.jit(lambda A, B: eagle_jax.estimate(A, B, schedule="paper").value),
        "numpy lstsq (gelsd)": lambda A, B: np.linalg.lstsq(np.asarray(A).T, np.asarray(B).T, rcond=None)[0].T,
        "scipy lstsq (gelsy)": lambda A, B: _gelsy(np.asarray(A), np.asarray(B)),
        "lineax QR": _lineax(lx.QR()),
        "lineax SVD": _lineax(lx.SVD()),
        "lineax CG": jax.jit(_lineax_cg),
        "Gram + Cholesky": jax.jit(_cholesky),
    }


def _products(steps: int):
    """The two products of each Update and nothing else: what no implementation of the same steps can go below."""

    def run(A, B):
        def body(_, M):
            return M - 0.1 * (M @ M.T) @ M

        return jax.lax.fori_loop(0, steps, body, A)[: B.shape[0]]

    return jax.jit(run)


def _gelsy(A, B):
    solution = scipy.linalg.lstsq(A.T, B.T, lapack_driver="gelsy")
    return solution[0].T if solution is not None else None


def square(rounds):
    rows = []
    for n, kappa, rank in (
        (240, 1e2, None),
        (240, 1e3, None),
        (240, 1e5, None),
        (240, 1e2, 60),
        (1000, 1e2, None),
        (1000, 1e4, None),
    ):
        problem = problems.conditioned(jax.random.key(0), n=n, d=n, kappa=kappa, rank=rank, dtype=jnp.float64)
        A, B, C, D = (jnp.asarray(x) for x in problem)
        rtol = max(0.1 * 1e-10 / kappa, 32 * float(jnp.finfo(jnp.float64).eps))
        methods = competitors(rtol)
        methods["eagle_jax's products alone"] = _products(int(eagle_jax.estimate(A, B, rtol=rtol).stats.steps))
        if rank is not None:
            methods = {k: f for k, f in methods.items() if k not in ("lineax QR", "Gram + Cholesky")}

        def error(W, C=C, D=D):
            return float(jnp.linalg.norm(jnp.asarray(W) @ C - D) / jnp.linalg.norm(D))

        name = f"{n}x{n}, kappa {kappa:.0e}" + (f", rank {rank}" if rank else "")
        rows += race(name, methods, (A, B), error, 1e-10, rounds if n < 500 else max(3, rounds // 3))
    return rows


def tall(rounds):
    d, n, kappa = 256, 100_000, 1e3
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.standard_normal((d, d)))[0], np.linalg.qr(rng.standard_normal((n, d)))[0]
    A = (U * np.geomspace(1, 1 / kappa, d)) @ V.T
    B = rng.standard_normal((2, d)) @ A + 0.1 * rng.standard_normal((2, n)) / np.sqrt(n)
    reference = np.linalg.lstsq(A.T, B.T, rcond=None)[0].T
    methods = competitors()
    keep = ("jnp.linalg.lstsq (SVD)", "eagle_jax", "numpy lstsq (gelsd)", "lineax QR", "Gram + Cholesky")

    def error(W):
        return float(np.linalg.norm(np.asarray(W) - reference) / np.linalg.norm(reference))

    methods = {k: methods[k] for k in keep}
    return race("256x100000, noisy", methods, (jnp.asarray(A), jnp.asarray(B)), error, 1e-11, max(3, rounds // 3))


def batch(rounds):
    rows = []
    for dtype, target in ((jnp.float32, 1e-3), (jnp.float64, 1e-10)):
        for name, make in (
            ("training tasks", lambda key, dtype=dtype: problems.training_task(key, dtype=dtype)),
            ("kappa 1e2", lambda key, dtype=dtype: problems.conditioned(key, n=18, d=18, kappa=1e2, dtype=dtype)),
        ):
            A, B, C, D = jax.vmap(make)(jax.random.split(jax.random.key(1), 1024))
            cut = 20 * float(jnp.finfo(dtype).eps)
            methods = {
                "jnp.linalg.lstsq (SVD)": jax.jit(
                    jax.vmap(lambda A, B, cut=cut: jnp.linalg.lstsq(A.T, B.T, rcond=cut)[0].T)
                ),
                "eagle_jax": jax.jit(jax.vmap(lambda A, B: eagle_jax.estimate(A, B).value)),
                "eagle_jax paper steps": jax.jit(
                    jax.vmap(lambda A, B: eagle_jax.estimate(A, B, schedule="paper").value)
                ),
            }

            def error(W, C=C, D=D):
                axes = (-2, -1)
                return float(jnp.median(jnp.linalg.norm(W @ C - D, axis=axes) / jnp.linalg.norm(D, axis=axes)))

            title = f"1024 x 18x18 {jnp.dtype(dtype).name}, {name}"
            rows += race(title, methods, (A, B), error, target, rounds)
    return rows


def precision(rounds):
    """float64 answers with A conditioned in float32, beside the default: where that pays."""
    rows = []
    for d, n, noisy in (
        (240, 240, False),
        (240, 360, True),
        (1000, 1000, False),
        (1000, 1500, True),
        (256, 20_000, True),
    ):
        for kappa in (1e1, 1e2, 1e3, 1e4, 1e6):
            problem = problems.conditioned(jax.random.key(0), n=n, d=d, kappa=kappa, dtype=jnp.float64)
            A, B = jnp.asarray(problem.A), jnp.asarray(problem.B)
            B = B + noisy * jax.random.normal(jax.random.key(1), B.shape, B.dtype)
            reference = np.linalg.lstsq(A.T, B.T, rcond=None)[0].T

            def error(W, reference=reference):
                return float(np.linalg.norm(np.asarray(W) - reference) / np.linalg.norm(reference))

            methods = {
                "jnp.linalg.lstsq (SVD)": competitors()["jnp.linalg.lstsq (SVD)"],
                "eagle_jax": jax.jit(lambda A, B: eagle_jax.estimate(A, B).value),
            }
            name = f"{d}x{n}, kappa {kappa:.0e}" + (", noisy" if noisy else "")
            times = rounds if d < 500 else max(3, rounds // 3)
            rows += race(name, methods, (A, B), error, 1e-14 * kappa**2, times)
    return rows


def memory():
    """Bytes that the compiled program needs beside its arguments, over the bytes of the arguments."""
    rows = []
    for d, n in ((1000, 1000), (256, 20_000), (2000, 500)):
        A, B = jax.ShapeDtypeStruct((d, n), jnp.float64), jax.ShapeDtypeStruct((2, n), jnp.float64)
        usage = jax.jit(eagle_jax.estimate).lower(A, B).compile().memory_analysis()
        assert usage is not None
        extra = usage.temp_size_in_bytes + usage.output_size_in_bytes
        rows.append({"shape": f"{d}x{n}", "extra over inputs": extra / usage.argument_size_in_bytes})
    return rows


def main(_):
    jax.config.update("jax_enable_x64", True)
    sections = {"square": square, "tall": tall, "batch": batch, "precision": precision}
    chosen = list(sections) if _SECTION.value == "all" else [s for s in sections if s == _SECTION.value]
    rows = []
    for name in chosen:
        for row in sections[name](_ROUNDS.value):
            rows.append(row)
            late = "" if row.error <= row.target else "  (misses the target)"
            accuracy = "no answer" if "alone" in row.method else f"error {row.error:.1e}{late}"
            print(
                f"{row.problem:38s} {row.method:26s} {row.ratio:7.2f}x {row.milliseconds:9.1f} ms  {accuracy}",
                flush=True,
            )
    result = {"rows": [dataclasses.asdict(r) for r in rows]}
    if _SECTION.value in ("all", "memory"):
        result["memory"] = memory()
        for row in result["memory"]:
            print(f"memory {row['shape']:12s} {row['extra over inputs']:.2f} times the inputs, beside them")
    common.write_report(pathlib.Path(_OUT.value) / "bench_solve.json", result)


if __name__ == "__main__":
    _SECTION = flags.DEFINE_enum(
        "section", "all", ["all", "square", "tall", "batch", "precision", "memory"], "what to run"
    )
    _ROUNDS = flags.DEFINE_integer("rounds", 9, "how often each method is run")
    _OUT = flags.DEFINE_string("out", "results", "folder for bench_solve.json")
    app.run(main)
