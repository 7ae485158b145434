"""Random problems dealt out to machines against an SVD, as `experiments.hunt`: what converges wrong, what is flagged.

    python -m experiments.hunt_machines [--cases=1000]

Equal, uneven, missing, scaled and rank-deficient blocks of columns; W = B A⁺, and D = B A⁺ C with fewer columns in C
than rows in B, which goes by A⁺ C. The rank is that of the factors, where these were used.
"""

import itertools
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from absl import app, flags

import eagle_jax
from experiments import common, hunt

# d, n, machines
SHAPES = ((10, 12, 2), (4, 4, 2), (26, 20, 2), (10, 6, 3), (20, 26, 3), (40, 30, 3), (60, 90, 3), (9, 64, 8))
BLOCKS = ("equal", "uneven", "empty", "scaled", "deficient")


class Dealt(NamedTuple):
    A: np.ndarray  # machines x d x n, zero columns fill up
    B: np.ndarray
    C: np.ndarray
    estimate: hunt.Case
    solve: hunt.Case


def deal(rng, d: int, n: int, machines: int, dtype: str, rcond: float | None) -> Dealt | None:
    """None where a singular value is near the cut."""
    eps = float(np.finfo(dtype).eps)
    k = min(d, n) if rng.random() < 0.4 else int(rng.integers(1, min(d, n) + 1))
    kappa = 10 ** rng.uniform(0, -np.log10(eps * max(d, n)) - 2)
    s, spectrum = hunt.spectrum(rng, k, kappa)
    U, V = (np.linalg.qr(rng.standard_normal((m, k)))[0] for m in (d, n))
    blocks, consistent = str(rng.choice(BLOCKS)), rng.random() < 0.5
    cuts = np.linspace(0, n, machines + 1).astype(int)[1:-1]
    if blocks in ("uneven", "empty"):
        cuts = np.sort(rng.integers(0, n + 1, machines - 1))
        cuts[0] = 0 if blocks == "empty" else cuts[0]
    cuts = np.r_[0, cuts, n]
    owner = np.repeat(np.arange(machines), np.diff(cuts))
    if blocks == "deficient":  # each machine sees some of the directions
        V = rng.standard_normal((n, k)) * (owner[:, None] == rng.integers(0, machines, k)) / n**0.5
    A = 2.0 ** rng.integers(-60, 60) * (U * s) @ V.T
    if blocks == "scaled":
        A = A * 2.0 ** -rng.integers(0, 12, machines)[owner]
    A = A.astype(dtype)
    B = (rng.standard_normal((3, d)) @ A if consistent else rng.standard_normal((3, n))).astype(dtype)
    C = (A @ rng.standard_normal((n, 2)) if consistent else rng.standard_normal((d, 2))).astype(dtype)
    U, s, Vh = np.linalg.svd(A.astype(float), full_matrices=False)
    cut = (eps * max(d, n) if rcond is None else rcond) * s[0]
    rank = int((s > cut).sum())
    if rank == 0 or np.any(np.abs(s / cut - 1) < 0.01):
        return None
    inverse = (Vh[:rank].T / s[:rank]) @ U[:, :rank].T
    W, Y, kappa = B @ inverse, inverse @ C, s[0] / s[rank - 1]
    about = f"{d}x{n} on {machines}, {blocks}, {dtype} {spectrum} rank {rank} kappa {kappa:.0e} rcond {rcond}"
    about += f" consistent {consistent}"

    def case(what: str, X, rest, value, size) -> hunt.Case:
        bound = 100 * eps * kappa * (1 + kappa * np.linalg.norm(rest) / max(s[0] * np.linalg.norm(X), 1e-300))
        if rcond is not None and rank < len(s):
            bound /= 1 - s[rank] / s[rank - 1]
        return hunt.Case(A, B, value, rank, kappa, bound * size, graded=False, about=f"{what} {about}")

    size = np.linalg.norm(B.astype(float)) * np.linalg.norm(Y) / np.linalg.norm(B @ Y)
    cases = case("W", W, B - W @ A, W, 1.0), case("D", Y, C - A @ Y, B @ Y, size)
    dealt = np.zeros((2, machines, max(d, 3), n), dtype)
    for u, (start, end) in enumerate(itertools.pairwise(cuts)):
        dealt[0, u, :d, : end - start], dealt[1, u, :3, : end - start] = A[:, start:end], B[:, start:end]
    return Dealt(dealt[0, :, :d], dealt[1, :, :3], C, *cases)


@partial(jax.jit, static_argnums=3)
def answers(A, B, C, rcond):
    def one(A, B, C):
        return eagle_jax.estimate_workers(A, B, rcond=rcond), eagle_jax.solve_workers(A, B, C, rcond=rcond)

    return jax.vmap(one)(A, B, C)


def run(cases: int, seed: int = 0, shapes=SHAPES, dtypes=("float32", "float64"), rconds=(None, 1e-3)) -> hunt.Tally:
    """Every program takes as many cases as the others; half of them are estimates."""
    rng, tally = np.random.default_rng(seed), hunt.Tally()
    turns = [(shape, dtype, rcond) for shape in shapes for dtype in dtypes for rcond in rconds]
    for turn, ((d, n, machines), dtype, rcond) in enumerate(turns):
        drawn = []
        while 2 * len(drawn) < -(-(cases - tally.cases) // (len(turns) - turn)):
            dealt = deal(rng, d, n, machines, dtype, rcond)
            drawn += [dealt] if dealt is not None else []
        if not drawn:
            continue
        blocks = (np.stack([getattr(each, name) for each in drawn]) for name in "ABC")
        for solution, kind in zip(answers(*blocks, rcond), ("estimate", "solve"), strict=True):
            stats = solution.stats
            known = [getattr(each, kind) for each in drawn]
            ranks = np.where(stats.rank < 0, [case.rank for case in known], stats.rank)
            found = zip(known, np.asarray(solution.value), np.asarray(solution.status), ranks, strict=True)
            for case, value, status, rank in found:
                hunt.judge(tally, case, value, status, rank)
        if len(turns) > 8:
            jax.clear_caches()
    return tally


def main(argv):
    common.begin(argv)
    jax.config.update("jax_enable_x64", True)
    tally = run(_CASES.value, _SEED.value)
    print(hunt.report(tally))
    raise SystemExit(bool(tally.silent or tally.flagged or tally.ranks))


if __name__ == "__main__":
    _CASES = flags.DEFINE_integer("cases", 1_000, "how many problems")
    _SEED = flags.DEFINE_integer("seed", 0, "of the random numbers")
    app.run(main)
