"""What eagle_jax and its neighbours can do, found out by doing it: least squares min ||A x - b|| in float64.

    python -m experiments.neighbours

Every entry is a call that is made: a relative error, or what came instead. A word is
what the library returned or raised. "-": it has no such option. matfree's LSMR is asked for full accuracy.
"""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import lineax
import matfree.lstsq
import numpy as np
from absl import app, flags

import eagle_jax
from experiments import common

_TINY = float(jnp.finfo(jnp.float64).eps)
_lsmr = matfree.lstsq.lsmr(atol=_TINY, btol=_TINY, ctol=_TINY, maxiter=10_000)


def _lineax(solver):
    return lambda A, b: lineax.linear_solve(lineax.MatrixLinearOperator(A), b, solver, throw=False)


# (A, b) -> x
SOLVERS: dict[str, Callable] = {
    "eagle_jax": lambda A, b: eagle_jax.lstsq(A, b).value,
    "jnp.linalg.lstsq": lambda A, b: jnp.linalg.lstsq(A, b)[0],
    "lineax QR": lambda A, b: _lineax(lineax.QR())(A, b).value,
    "lineax SVD": lambda A, b: _lineax(lineax.SVD())(A, b).value,
    "matfree LSMR": lambda A, b: _lsmr(lambda u: A.T @ u, b)[0],
}
# (A, b) -> did it work, as the library says inside of jit
VERDICTS: dict[str, Callable] = {
    "eagle_jax": lambda A, b: eagle_jax.lstsq(A, b).status == int(eagle_jax.Status.CONVERGED),
    "lineax QR": lambda A, b: _lineax(lineax.QR())(A, b).result == RESULTS.successful,
    "lineax SVD": lambda A, b: _lineax(lineax.SVD())(A, b).result == RESULTS.successful,
    "matfree LSMR": lambda A, b: _lsmr(lambda u: A.T @ u, b)[1]["success"],
}
RESULTS = lineax.RESULTS


def matrix(m: int, k: int, rank: int, kappa: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((size, rank)))[0] for size in (m, k))
    return (U * np.geomspace(1, 1 / kappa, rank)) @ V.T


def vector(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


def exact(A, b):
    """A of full column rank: QR by Gram-Schmidt, twice, in extended precision."""
    Q, R = np.zeros(A.shape, np.longdouble), np.zeros((A.shape[1],) * 2, np.longdouble)
    for j, column in enumerate(A.T.astype(np.longdouble)):
        for _ in range(2):
            along = Q.T @ column
            column, R[:, j] = column - Q @ along, R[:, j] + along
        R[j, j] = np.sqrt(column @ column)
        Q[:, j] = column / R[j, j]
    x = Q.T @ b.astype(np.longdouble)
    for j in reversed(range(len(x))):
        x[j] = (x[j] - R[j, j + 1 :] @ x[j + 1 :]) / R[j, j]
    return x.astype(np.float64)


def relative(found, wanted) -> str:
    found, wanted = np.asarray(found), np.asarray(wanted)
    if not np.isfinite(found).all():
        return "NaN"
    return f"{np.linalg.norm(found - wanted) / np.linalg.norm(wanted):.0e}"


def value(solve, A, b, wanted) -> str:
    return relative(jax.jit(solve)(A, b), wanted)


def factored(m, k, rank, kappa):
    """(L, R) with A = L R of that rank: moving them keeps the rank, and (L R)^+ = R^+ L^+ can be differentiated."""
    A = matrix(m, k, rank, kappa)
    U, s, V = np.linalg.svd(A, full_matrices=False)
    return U[:, :rank] * s[:rank], V[:rank]


def _by_factors(L, R, b):
    return R.T @ jnp.linalg.solve(R @ R.T, jnp.linalg.solve(L.T @ L, L.T @ b))


def first_derivative(solve, L, R, b) -> str:
    loss = lambda answer: lambda L, R: jnp.sum(jnp.sin(answer(L, R)))  # noqa: E731
    found = jax.jit(jax.grad(loss(lambda L, R: solve(L @ R, b))))(L, R)
    return relative(found, jax.grad(loss(lambda L, R: _by_factors(L, R, b)))(L, R))


def second_derivative(solve, L, R, b) -> str:
    direction = np.ones_like(L)

    def curvature(answer):
        loss = lambda L: jnp.sum(jnp.sin(answer(L, R)))  # noqa: E731
        return jax.jit(jax.grad(lambda L: jnp.vdot(jax.grad(loss)(L), direction)))(L)

    return relative(curvature(lambda L, R: solve(L @ R, b)), curvature(lambda L, R: _by_factors(L, R, b)))


def sick_lane(solve, A, b) -> str:
    batch = np.stack([A, np.full_like(A, np.nan), 2 * A])
    x = jax.jit(jax.vmap(solve, in_axes=(0, None)))(batch, b)
    wanted = np.linalg.lstsq(A, b, rcond=None)[0]
    return relative(x[np.array([0, 2])], np.stack([wanted, wanted / 2]))


def leading_dimensions(solve, A, b) -> str:
    x = solve(np.stack([A, 2 * A]), np.stack([b, b]))
    wanted = np.linalg.lstsq(A, b, rcond=None)[0]
    return relative(x, np.stack([wanted, wanted / 2]))


def failure(verdict, A, b) -> str:
    return "silent" if bool(jax.jit(verdict)(np.full_like(A, np.nan), b)) else "reported"


def library_calls(solve, A, b) -> str:
    """LAPACK and BLAS routines in the compiled program: what an accelerator needs a replacement for."""
    text = jax.jit(solve).lower(A, b).compile().as_text() or ""
    calls = {part.split('"')[0] for part in text.split('custom_call_target="')[1:]}
    routines = sorted(call.removesuffix("_ffi") for call in calls if call.startswith("lapack"))
    return ", ".join(routines) or "none"


def attempt(check: Callable, function: Callable | None, *arguments) -> str:
    if function is None:
        return "-"
    try:
        return check(function, *arguments)
    except Exception as error:  # whatever a library raises is the entry
        return type(error).__name__


def rows() -> dict[str, dict[str, str]]:
    tall, deficient = matrix(60, 20, 20, 1e2), matrix(60, 20, 12, 1e2)
    hard, b = matrix(60, 20, 20, 1e8), vector(60)
    exactly, wavy = exact(tall, b), tall + 1j * tall[::-1]
    full, low = factored(12, 6, 6, 10.0), factored(12, 6, 3, 10.0)
    ridge: dict[str, Callable] = {
        "eagle_jax": lambda A, b: eagle_jax.lstsq(A, b, ridge=0.5).value,
        "matfree LSMR": lambda A, b: _lsmr(lambda u: A.T @ u, b, damp=0.5**0.5)[0],
    }
    sharded: dict[str, Callable] = {
        "eagle_jax": lambda A, b: eagle_jax.solve_workers(
            A.T.reshape(20, 4, 15).swapaxes(0, 1), b.reshape(1, 4, 15).swapaxes(0, 1), np.eye(20)
        ).value[0],
    }

    kernel: dict[str, Callable] = {
        "eagle_jax": lambda X, v: eagle_jax.nystrom(polynomial, X, landmarks=X[::4]).matvec(v),
    }
    points, weights = vector(40)[:, None], vector(40, seed=2)

    def ridge_value(solve, A, b):
        return relative(solve(A, b), np.linalg.solve(A.T @ A + 0.5 * np.eye(20), A.T @ b))

    def each(check, functions, *arguments):
        return {name: attempt(check, functions.get(name), *arguments) for name in SOLVERS}

    return {
        "full rank, kappa 1e2": each(value, SOLVERS, tall, b, exactly),
        "full rank, kappa 1e8": each(value, SOLVERS, hard, b, exact(hard, b)),
        "deficient rank, minimum norm": each(
            value, SOLVERS, deficient, b, np.linalg.lstsq(deficient, b, rcond=1e-12)[0]
        ),
        "gradient, full rank": each(first_derivative, SOLVERS, *full, vector(12)),
        "gradient, deficient rank": each(first_derivative, SOLVERS, *low, vector(12)),
        "second derivative, full rank": each(second_derivative, SOLVERS, *full, vector(12)),
        "second derivative, deficient rank": each(second_derivative, SOLVERS, *low, vector(12)),
        "vmap beside a lane of NaN": each(sick_lane, SOLVERS, tall, b),
        "leading batch dimensions": each(leading_dimensions, SOLVERS, tall, b),
        "NaN in A, inside jit": each(failure, VERDICTS, tall, b),
        "ridge": each(ridge_value, ridge, tall, b),
        "rows of A on 4 machines": each(value, sharded, tall, b, exactly),
        "complex A": each(value, SOLVERS, wavy, b.astype(complex), np.linalg.lstsq(wavy, b, rcond=None)[0]),
        "kernel matrix of rank 4, Nyström": each(
            value, kernel, points, weights, np.asarray(polynomial(points, points)) @ weights
        ),
        "LAPACK routines called": each(library_calls, SOLVERS, tall, b),
    }


def polynomial(X, Y):
    return (1 + X @ Y.T) ** 3


def table(found: dict[str, dict[str, str]]) -> str:
    lines = ["| | " + " | ".join(SOLVERS) + " |", "|---" * (len(SOLVERS) + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(entries.values()) + " |" for row, entries in found.items()]
    return "\n".join(lines)


def main(_):
    jax.config.update("jax_enable_x64", True)
    found = rows()
    print(table(found))
    common.write_report(pathlib.Path(_OUT.value) / "neighbours.json", {"rows": found})


if __name__ == "__main__":
    _OUT = flags.DEFINE_string("out", "results", "folder for neighbours.json")
    app.run(main)
