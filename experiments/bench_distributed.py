"""Rounds and floats to a given error: distributed EAGLE against GD, CG and an all-reduce of the Gram matrix.

    python -m experiments.bench_distributed [--d=240] [--out=results]

Simulated machines; what counts is communication, which does not depend on where they are. Floats are those each machine
contributes. The second table is the default solver on noisy data, where averaging has no right answer.
"""

import pathlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import eagle_jax
from eagle_jax import Method, Status, problems, theory
from experiments import common, diversity

_ALPHAS = (1.0, 0.35, 0.1, 0.012)
_CAPS = {"averaging": 4_000, "krylov": 600, "cg": 4_000, "gd": 40_000}
_OUTPUTS = 2  # d' and n'
_RCOND = 1e-12  # any given one is for the factors


def consistent_rows(d: int) -> list[dict]:
    """Rounds to 1e-6 with M = 3 and kappa_max = 1e3; alpha is the diversity index."""
    rows = []
    for alpha in _ALPHAS:
        problem = problems.distributed(
            jax.random.key(0), machines=3, d=d, n=d // 3 * 2, kappa_max=1e3, alpha=alpha, dtype=jnp.float64
        )
        rounds = {name: diversity.rounds_to(problem, name, cap) for name, cap in _CAPS.items()}
        plain = {a: eagle_jax.solve_workers(*problem[:3], acceleration=a, rtol=1e-8) for a in ("none", "freeze")}
        solution = eagle_jax.solve_workers(*problem[:3], rtol=1e-8)
        factors = eagle_jax.solve_workers(*problem[:3], rcond=_RCOND)
        rows.append(
            {
                "alpha": alpha,
                "rounds": rounds,
                "predicted": {
                    name: theory.predicted_rounds(1e3, alpha, diversity.TARGET, acceleration=acceleration)
                    for name, acceleration in (("averaging", "none"), ("krylov", "krylov"))
                },
                "floats": {name: _floats(name, k, d) for name, k in rounds.items()} | {"gram": _floats("gram", 1, d)},
                "frozen rounds / plain rounds": int(plain["freeze"].stats.rounds) / int(plain["none"].stats.rounds),
                "auto": _described(solution, problem.D),
                "factors": _described(factors, problem.D),
            }
        )
    return rows


def _floats(name: str, rounds: int, d: int) -> int:
    if rounds == common.NOT_REACHED:
        return common.NOT_REACHED
    if name == "gram":
        return d * (d + 1) // 2 + _OUTPUTS * d
    return rounds * _OUTPUTS * (d + _OUTPUTS if name == "averaging" else d)


def _described(solution, D) -> dict:
    error = float(jnp.linalg.norm(solution.value - D) / jnp.linalg.norm(D))
    return {
        "method": Method(int(solution.stats.method)).name,
        "rounds": int(solution.stats.rounds),
        "floats": int(solution.stats.floats),
        "error": error,
        "status": Status(int(solution.status)).name,
    }


def noisy_problem(d: int = 120, machines: int = 4, columns: int = 600, kappa: float = 1e3, noise: float = 0.1):
    """iid shards with covariance of condition kappa^2, B = W A with noise; D is the least-squares answer."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = (Q * np.geomspace(1, 1 / kappa, d)) @ rng.standard_normal((machines, d, columns)) / columns**0.5
    B = rng.standard_normal((_OUTPUTS, d)) @ A
    B = B + noise * B.std() * rng.standard_normal(B.shape)
    C = A[0] @ rng.standard_normal((columns, _OUTPUTS))
    whole = np.concatenate(list(A), axis=1)
    D = np.concatenate(list(B), axis=1) @ np.linalg.pinv(whole) @ C
    return problems.Problem(*(jnp.asarray(x) for x in (A, B, C, D)))


def noisy_rows() -> list[dict]:
    problem = noisy_problem()
    methods = partial(diversity.rounds_to, problem, target=1e-8)
    rounds = {name: methods(name, cap) for name, cap in (("preconditioned", 100), ("cg", 8_000))}
    answers = {a: eagle_jax.solve_workers(*problem[:3], acceleration=a) for a in ("freeze", "krylov", "auto")}
    return [{"rounds to 1e-8": rounds} | {name: _described(s, problem.D) for name, s in answers.items()}]


def _cell(rounds: int, floats: int) -> str:
    return "beyond the cap" if rounds == common.NOT_REACHED else f"{rounds} ({floats / 1e3:.1f})"


def main(_):
    jax.config.update("jax_enable_x64", True)
    rows = consistent_rows(_D.value)
    print(f"d = {_D.value}, M = 3, kappa_max = 1e3, d' = n' = 2: rounds (thousand floats) to 1e-6")
    print(f"{'alpha':>7s}" + "".join(f"{name:>16s}" for name in (*_CAPS, "gram")) + "   auto (1e-8); factors")
    for row in rows:
        cells = [_cell(row["rounds"].get(n, 1), row["floats"][n]) for n in (*_CAPS, "gram")]
        ends = (row["auto"], row["factors"])
        end = "; ".join(f"{e['method']}, {e['rounds']} ({e['floats'] / 1e3:.1f}), error {e['error']:.0e}" for e in ends)
        print(f"{row['alpha']:7.3g}" + "".join(f"{cell:>16s}" for cell in cells) + "   " + end)
        print("predicted" + "".join(f"{row['predicted'][name]:>14.0f}  " for name in ("averaging", "krylov")))
    noisy = noisy_rows()
    print("10 % noise, d = 120, 4 machines of 600 iid columns, kappa(E) = 1e6:")
    for name, value in noisy[0].items():
        print(f"  {name}: {value}")
    common.write_report(pathlib.Path(_OUT.value) / "bench_distributed.json", {"consistent": rows, "noisy": noisy})


if __name__ == "__main__":
    _D = flags.DEFINE_integer("d", 240, "rows of A")
    _OUT = flags.DEFINE_string("out", "results", "folder for bench_distributed.json")
    app.run(main)
