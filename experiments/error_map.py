"""N11: forward error over condition number, precision and schedule, beside LAPACK.

    python -m experiments.error_map

Paper: nothing beyond kappa = 1e5 and one precision was tested. Here kappa = 1e0..1e16, float32 and float64,
n = 100: relative forward errors of `solve` (D, with C = A Y as in the paper's data) and of `estimate` (W),
their status, and the errors of LAPACK's gelsd in the same precision, with the same cut-off, on the same rounded data.
(`numpy.linalg.lstsq` computes float32 data in float64.)
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import eagle_jax
from eagle_jax import problems
from experiments import common

ITEM = "error_map"
DTYPES = ("float32", "float64")
SCHEDULES = ("optimal", "paper")
METHODS = (*SCHEDULES, "lstsq")


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 100
    exponents: tuple[int, ...] = tuple(range(0, 17))
    runs: int = 50
    seed: int = 6


PRESETS = {
    "quick": Config(runs=2, exponents=tuple(range(0, 17, 2))),
    "default": Config(runs=5),
    "full": Config(runs=50),
}


def _problem(key, n: int, kappa: float):
    """A, B, C, W, D in float64."""
    key_A, key_W, key_Y = jax.random.split(key, 3)
    A = problems.conditioned(key_A, n=n, d=n, kappa=kappa).A
    W = jax.random.normal(key_W, (2, n), A.dtype) / n**0.5
    C = A @ jax.random.normal(key_Y, (n, 2), A.dtype) / n**0.5
    return A, W @ A, C, W, W @ C


def _errors(A, B, C, W, D, dtype: str):
    """(solve, estimate) errors of METHODS and the status of SCHEDULES, for one problem in one precision."""
    A, B, C = (np.asarray(x).astype(dtype) for x in (A, B, C))
    W, D = np.asarray(W), np.asarray(D)
    errors, status = np.empty((2, len(METHODS))), np.empty((2, len(SCHEDULES)), np.int64)
    for i, schedule in enumerate(SCHEDULES):
        blocks = [jnp.asarray(x) for x in (A, B, C)]
        solved = eagle_jax.solve(*blocks, schedule=schedule)
        estimated = eagle_jax.estimate(*blocks[:2], schedule=schedule)
        errors[0, i] = common.relative_errors(np.asarray(solved.value, np.float64), D)
        errors[1, i] = common.relative_errors(np.asarray(estimated.value, np.float64), W)
        status[:, i] = int(solved.status), int(estimated.status)
    found = scipy.linalg.lstsq(A.T, B.T, cond=np.finfo(dtype).eps * max(A.shape), lapack_driver="gelsd")
    assert found is not None
    W_lstsq = found[0].T
    errors[0, -1] = common.relative_errors((W_lstsq @ C).astype(np.float64), D)
    errors[1, -1] = common.relative_errors(W_lstsq.astype(np.float64), W)
    return errors, status


def run(cfg: Config) -> common.Results:
    """error: kappas x dtypes x runs x (solve, estimate) x METHODS; status likewise with SCHEDULES."""
    errors, status = [], []
    for exponent in common.track(cfg.exponents, "N11 error map"):
        data = [_problem(key, cfg.n, 10.0**exponent) for key in common.keys(cfg.seed, cfg.runs)]
        cells = [[_errors(*problem, dtype) for problem in data] for dtype in DTYPES]
        errors.append([[cell[0] for cell in row] for row in cells])
        status.append([[cell[1] for cell in row] for row in cells])
    return {
        "kappas": 10.0 ** np.array(cfg.exponents),
        "dtypes": np.array(DTYPES),
        "methods": np.array(METHODS),
        "forms": np.array(["solve", "estimate"]),
        "error": np.array(errors),
        "status": np.array(status),
    }


def main() -> None:
    common.launch(ITEM, run, PRESETS)


if __name__ == "__main__":
    main()
