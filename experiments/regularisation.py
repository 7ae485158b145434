"""Early stopping with cross-validation against ridge, on real data: test errors over random splits.

    python -m experiments.regularisation            # 100 splits; 7 minutes of CPU time

The data ships with scikit-learn: diabetes (442 patients, 10 features) and linnerud (20 athletes, 3 features and
3 targets), with all polynomial features up to a degree, which makes A ill-conditioned and, by its binary feature,
diabetes rank-deficient. Errors are ‖B - W A‖ / ‖B‖ on the held-out quarter, after centring by the training data: 1 is
the error of its mean. The oracle stops where the test error is least, which nobody can know.
"""

import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import eagle_jax
from experiments import common

# data set, degree
PROBLEMS = (("diabetes", 1), ("diabetes", 2), ("diabetes", 3), ("linnerud", 1), ("linnerud", 2))
STEPS, PROBES = 40, 16
# What the steps cover: singular values down to 1.5^-40 ‖A‖, squared; as fine as the steps.
PENALTIES = 1.5 ** (-2.0 * np.arange(1, STEPS + 1))
HELD_OUT = 0.25


class Split(NamedTuple):
    """Training (A, B) and test (C, D) columns, centred and scaled by the training columns."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets, a row for each observation."""
    from sklearn import datasets

    X, Y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return np.asarray(X, np.float64), np.asarray(Y, np.float64).reshape(len(X), -1)


def split(X: np.ndarray, Y: np.ndarray, degree: int, rng: np.random.Generator) -> Split:
    from sklearn.preprocessing import PolynomialFeatures

    order = rng.permutation(len(X))
    test, train = np.split(order, [round(HELD_OUT * len(X))])

    def scaled(Z):
        spread = Z[train].std(0)
        return (Z - Z[train].mean(0)) / np.where(spread > 1e-12, spread, 1)

    X, Y = scaled(PolynomialFeatures(degree, include_bias=False).fit_transform(scaled(X))), scaled(Y)
    return Split(X[train].T, Y[train].T, X[test].T, Y[test].T)


@jax.jit
def eagle_errors(data: Split, key) -> dict[str, jax.Array]:
    """Test errors, and where the path was stopped."""
    A, B, C, D = data
    error = lambda W: jnp.linalg.norm(W @ C - D, axis=(-2, -1)) / jnp.linalg.norm(D)  # noqa: E731
    exact = eagle_jax.stopping_path(A, B, steps=STEPS)
    probed = eagle_jax.stopping_path(A, B, steps=STEPS, key=key, probes=PROBES)
    along = error(exact.W)
    return {
        "lstsq": error(eagle_jax.estimate(A, B).value),
        "EAGLE, GCV": along[exact.best],
        f"EAGLE, GCV, {PROBES} probes": along[probed.best],
        "EAGLE, oracle": jnp.min(along),
        "step": exact.best + 1,
        "dof": exact.dof[exact.best],
        "kappa": eagle_jax.condition_number(A),
    }


def ridge_error(data: Split) -> float:
    from sklearn.linear_model import RidgeCV

    A, B, C, D = data
    model = RidgeCV(alphas=np.linalg.norm(A, 2) ** 2 * PENALTIES).fit(A.T, B.T)
    return float(np.linalg.norm(np.reshape(model.predict(C.T), D.T.shape) - D.T) / np.linalg.norm(D))


def run(name: str, degree: int, splits: int, seed: int) -> dict:
    """One data set: for each quantity the values over the splits."""
    X, Y = load(name)
    rng = np.random.default_rng(seed)
    rows = []
    for key in common.track(common.keys(seed, splits), f"{name}, degree {degree}"):
        data = split(X, Y, degree, rng)
        found = {k: float(v) for k, v in eagle_errors(jax.tree.map(jnp.asarray, data), key).items()}
        rows.append({**found, "RidgeCV": ridge_error(data), "shape": data.A.shape})
    return {
        "problem": f"{name}, degree {degree}",
        "shape": rows[0].pop("shape"),
        **{k: [row[k] for row in rows] for k in rows[0]},
    }


def table(results: list[dict]) -> str:
    """Medians, and the 10 % and 90 % quantiles."""
    methods = ["lstsq", "RidgeCV", *(k for k in results[0] if k.startswith("EAGLE"))]
    columns = ["data", "d x n", "kappa", *methods, "stopped at", "dof"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for r in results:
        cells = []
        for k in methods:
            low, middle, high = np.quantile(r[k], [0.1, 0.5, 0.9])
            cells.append(f"{middle:.3g} ({low:.3g} to {high:.3g})")
        step, dof, kappa = (np.median(r[k]) for k in ("step", "dof", "kappa"))
        start = f"| {r['problem']} | {r['shape'][0]} x {r['shape'][1]} | {kappa:.0e} | "
        lines.append(start + " | ".join(cells) + f" | {step:.0f} | {dof:.1f} |")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise SystemExit("experiments.regularisation needs scikit-learn: pip install scikit-learn") from None
    jax.config.update("jax_enable_x64", True)
    results = [run(name, degree, _SPLITS.value, _SEED.value) for name, degree in PROBLEMS]
    print(table(results))
    report = {"splits": _SPLITS.value, "seed": _SEED.value, "problems": results}
    common.write_report(pathlib.Path(_OUT.value) / "regularisation.json", report)


if __name__ == "__main__":
    _SPLITS = flags.DEFINE_integer("splits", 100, "random splits of each data set", lower_bound=1)
    _SEED = flags.DEFINE_integer("seed", 0, "of the splits")
    _OUT = flags.DEFINE_string("out", "results", "folder for regularisation.json")
    app.run(main)
