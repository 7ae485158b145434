"""Each experiment run tiny: shapes, one property that matters; and what becomes of stored results."""

import dataclasses
import html
import importlib
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags

import eagle_jax
from eagle_jax import training
from experiments import (
    claims,
    common,
    computation_limited,
    convergence,
    diversity,
    early_stopping,
    emergence,
    emergence_claims,
    error_map,
    families,
    initialisation,
    kappa_sweep,
    ledger,
    page,
    ranks,
    report,
    reproduce,
    restart,
    sketching,
    step_sizes,
    stopping,
    study,
    transfer,
)
from tests.helpers import stopping_results

# One worker runs all of them: `tiny` keeps what it has run, and the last test wants everything.
pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group("experiments")]

STEPS, FIRST_ORDER = 24, 60
TINY = {
    "convergence": convergence.Config(n=12, runs=2, steps=STEPS, first_order_steps=FIRST_ORDER),
    "kappa_sweep": kappa_sweep.Config(
        n=12, runs=2, kappas=(1e1, 1e2), paper_cap=STEPS, cg_cap=FIRST_ORDER, gd_cap=FIRST_ORDER, repeats=1
    ),
    "ranks": ranks.Config(
        n=12,
        ranks=(3, 12),
        runs=2,
        steps=STEPS,
        cg_steps=FIRST_ORDER,
        repeats=1,
        large_n=12,
        large_ranks=(6,),
        large_runs=1,
    ),
    "families": families.Config(n=12, rank=12, runs=2, steps=STEPS, cg_steps=FIRST_ORDER),
    "step_sizes": step_sizes.Config(n=12, runs=2, grid=4, batch=16, batches=2, emergent_n=12, emergent_kappas=(1e1,)),
    "stopping": stopping.Config(gapped_n=12, kahan_n=12, runs=2),
    "error_map": error_map.Config(n=12, exponents=(0, 4), runs=2),
    "early_stopping": early_stopping.Config(
        n=12, runs=1, width=3, steps=STEPS, sketched_steps=FIRST_ORDER, gd_steps=FIRST_ORDER
    ),
    "sketching": sketching.Config(
        n=12,
        widths=(3, 6, 12),
        kappas=(1e1, 1e2),
        steps=FIRST_ORDER,
        sgd_steps=FIRST_ORDER,
        cg_steps=FIRST_ORDER,
        timed_steps=2,
        repeats=1,
        runs=1,
    ),
    "diversity": diversity.Config(
        d=12,
        n=4,
        alphas=(1.0, 0.5, 0.1),
        caps=(600, 60, 60, 600),
        large=12,
        counts=(1, 2),
        large_runs=2,
        freeze_alphas=(0.1,),
        repeats=1,
        runs=1,
    ),
    "emergence": emergence.Config(tasks=32, runs=1),
    "transfer": transfer.Config(tasks=16, runs=1, long_n=12),
    "restart": restart.Config(steps=2, tune_steps=2, batch=16, tasks=32, regimes=("CL",), runs=1),
    "initialisation": initialisation.Config(tasks=32, runs=1),
    "computation_limited": computation_limited.Config(
        tasks=32, runs=1, sizes=((8, 3, 2, 0.0),), train_steps=2, entries=300, studies=study.shipped()[:1]
    ),
}


@pytest.fixture(scope="module", autouse=True)
def fast_compilation():
    """Nearly all the time here is compilation, of programs that then run for microseconds."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def tiny():
    """Results by item, each computed once, on first use."""
    stored = {}

    def get(module):
        if module.ITEM not in stored:
            # optax counts steps in integers and raises floats to them
            promotion = "standard" if module in (restart, computation_limited) else "strict"
            with jax.numpy_dtype_promotion(promotion):
                stored[module.ITEM] = module.run(TINY[module.ITEM])
        return stored[module.ITEM]

    return get


def test_early_stopping(tiny):
    r = tiny(early_stopping)
    assert r["distributed_averaging"].shape == (1, 10 * STEPS) and r["centralised_gd"].shape == (1, FIRST_ORDER)
    assert r["centralised_paper"].min() <= 1.5 * r["lstsq"].min()


def test_diversity(tiny):
    r = tiny(diversity)
    averaging, krylov, cg, _ = np.moveaxis(r["rounds"][:, 0], -1, 0)
    assert (averaging > 0).all() and (krylov > 0).all() and (cg > 0).all()
    assert (krylov < averaging).all() and averaging[-1] > averaging[0]
    assert r["floats"].tolist() == r["floats_expected"].tolist() and r["count_errors"].shape == (2, 2, 23)
    assert r["freeze_gap"].max() < 1e-12 and (r["freeze_rounds"][:, 0] == r["freeze_rounds"][:, 1]).all()


def test_emergence(tiny):
    """Shipped weights: the error falls, the form is near, and clustering to one value destroys what two keep."""
    r = tiny(emergence)
    for tag in ("U", "D", "CL"):
        mse = r[f"{tag}_mse"]
        assert mse.shape == (1, 5) and (np.diff(mse) < 0).all()
        assert r[f"{tag}_form"].shape == (1, 5) and (r[f"{tag}_form"][:, 0] == 0).all()
        assert (r[f"{tag}_general_median"][:, 1:4] < r[f"{tag}_form_median"][:, 1:4]).all()
    assert r["U_levels_median"][0, 0] > 10 * r["U_levels_median"][0, 1]
    assert r["D_QK"].shape == (1, 4, 1, 8, 8) and r["D_VP"].shape == (1, 4, 3, 8, 24)
    assert (r["CL_QK_rank"] == 5).all() and (r["U_QK_rank"] == 18).all()


def test_settings_without_weights_are_not_run():
    r = emergence.run(emergence.Config(tasks=8, models=()))
    rules = [c.rule for c in claims.CLAIMS if c.item == "emergence"]
    assert {rule(r).verdict for rule in rules} == {claims.NOT_RUN}
    assert "no trained weights" in emergence_claims.heads(r).measured


@pytest.mark.slow
def test_transfer(tiny):
    r = tiny(transfer)
    network, schedule, scaled, paper = np.moveaxis(r["factor"][0], -1, 0)
    usual = np.flatnonzero(r["factor_values"] == 1)
    np.testing.assert_allclose(network[usual], schedule[usual], rtol=0.5)
    np.testing.assert_allclose(scaled, scaled[0], rtol=1e-2)  # scaling undoes the factor
    np.testing.assert_allclose(paper, paper[0], rtol=1e-2)
    assert schedule[-1] > 1e3 and np.isnan(r["n"][0, r["n_values"] != 18, 0]).all()


def test_the_papers_constants_as_absolute_steps():
    """On A of norm 1 transfer.PAPER is trajectory's "paper"."""
    blocks = transfer.normed(transfer.tasks(2, 0, 1.0, 18, 10, 0.7), 1.0)
    A, B, C = (x[0].astype("float64") for x in blocks[:3])
    by_list = eagle_jax.trajectory(A, B, C, schedule=transfer.PAPER).D
    np.testing.assert_allclose(by_list, eagle_jax.trajectory(A, B, C, steps=4, schedule="paper").D, rtol=1e-5)


@pytest.mark.slow
def test_restart(tiny):
    r = tiny(restart)
    assert r["starts"].tolist() == ["trained", "continued", "restarted", "tuned"]
    assert np.isfinite(r["CL_mse"]).all() and r["CL_mse"].shape == (1, 4, 5)
    assert r["CL_form_median"][0, 3].max() < 1e-9  # a tuned schedule is its own form
    assert r["CL_difference"][0, 3].max() < 1e-3 < r["CL_difference"][0, 0].min()


@pytest.mark.slow
def test_computation_limited(tiny):
    r = tiny(computation_limited)
    assert r["CL_later_read"].shape == (1, 3) and (r["CL_later_read"] > r["CL_chance"]).all()
    assert r["CL_ahead_D"][0, -1] < r["CL_own_D"][0, -1] and r["CL_general_D"][0, -1] < r["CL_flat_D"][0, -1]
    assert r["study_setting"].tolist()[0] == "as usual" and r["solvers_0"].shape == (5, 3)


def test_initialisation(tiny):
    r = tiny(initialisation)
    assert r["mse"].shape == (len(r["sign"]), 5) and set(r["std"]) >= {0.1}


def test_convergence(tiny):
    r = tiny(convergence)
    assert r["eagle"].shape == (2, STEPS) and r["gd"].shape == r["cg"].shape == (2, FIRST_ORDER)
    assert r["eagle"][:, -1].max() < 1e-12 < r["gd"][:, -1].min()
    assert r["estimation_gap_relative"].max() < 1e-12


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_fitted_order_recovers_the_order(p):
    errors = [2e-2]
    while errors[-1] > 1e-12:
        errors.append(errors[-1] ** p * (0.1 if p == 1 else 1.0))
    assert convergence.fitted_order(np.array(errors)) == pytest.approx(p, abs=0.01)


def test_kappa_sweep(tiny):
    r = tiny(kappa_sweep)
    assert r["steps_paper"].shape == r["steps_cg"].shape == (2, 2)
    assert (r["steps_paper"] >= r["theory_lower"][:, None] - 1).all()
    assert (r["steps_paper"][1] > r["steps_paper"][0]).all()
    assert (r["steps_gd"] == common.NOT_REACHED).all() and np.isnan(r["seconds"][:, 3]).all()


def test_ranks(tiny):
    r = tiny(ranks)
    assert r["small_paper"].shape == (2, 2, STEPS) and r["large_cg"].shape == (1, 1, FIRST_ORDER)
    assert max(r["small_paper"].min(-1).max(), r["small_optimal"].max(), r["large_optimal"].max()) < 1e-11


def test_families(tiny):
    r = tiny(families)
    assert r["paper"].shape == (6, 2, STEPS)
    dense = r["families"] != "rademacher"  # at n = 12 the sparse factors are mostly empty, and D is 0
    assert r["optimal"][dense].max() < 1e-8 and r["lstsq"][dense].max() < 1e-8


def test_step_sizes(tiny):
    r = tiny(step_sizes)
    at_one = np.flatnonzero(r["grid"] == 1.0)
    assert r["factor_best"].shape == (2, r["grid"].size)
    assert r["factor_best"][:, at_one].max() < 1e-12 < r["factor_best"][:, 0].min()
    assert (r["headroom"] >= 1).all() and r["emergent_error"].max() < 1e-10


def test_stopping(tiny):
    r = tiny(stopping)
    assert r["stop_error"].shape == (2, 2, 5)
    # the gap: the change vanishes at once while the answer still misses a direction
    assert (r["stop_steps"][0] == 2).all() and r["stop_error"][0].min() > 1e4 * r["solve_error"][0].max()


@pytest.mark.slow
def test_error_map(tiny):
    r = tiny(error_map)
    assert r["error"].shape == (2, 2, 2, 2, 3) and r["status"].shape == (2, 2, 2, 2, 2)
    assert r["error"][:, 1].max() < 1e-10 and (r["error"][0, 0] > r["error"][0, 1]).all()


LONG = {"error_map", "restart", "transfer", "sketching", "computation_limited"}  # what takes longest, even tiny


@pytest.mark.parametrize("left_out", [LONG, pytest.param(set(), marks=pytest.mark.slow)], ids=["most", "all"])
def test_results_survive_storage_and_become_verdicts_and_figures(left_out, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FORMATS", {"png": {"dpi": 30}})
    modules = [module for module in reproduce.EXPERIMENTS if module.ITEM not in left_out]
    for module in modules:
        common.save(tmp_path, module.ITEM, TINY[module.ITEM], tiny(module), 0.1, "test", "digest")
    loaded, about = common.load(tmp_path, "stopping")
    np.testing.assert_array_equal(loaded["error"], tiny(stopping)["error"])
    assert about["versions"]["numpy"] == np.__version__ and about["config"]["runs"] == 2
    path, _ = claims.write(tmp_path)
    records = json.loads(path.read_text(encoding="utf-8"))
    assert [r["id"] for r in records] == [entry.id for entry in ledger.LEDGER]
    not_run = {r["id"] for r in records if r["verdict"] == claims.NOT_RUN}
    # some claims are about a size, which a smaller run cannot decide; E claims need networks that may not be shipped
    run = {module.ITEM for module in modules}
    unrun = {c.id for c in claims.CLAIMS if c.item not in run or c.least}
    assert unrun <= not_run <= {*unrun, "E6", "E9", "E13", "E14", "D3"}  # GD is cut off
    judged = [r for r in records if r["verdict"] != claims.NOT_RUN]
    assert all(r["brief"] and len(r["brief"]) <= 160 and r["runs"] for r in judged)
    written = report.draw_all(tmp_path)
    assert {p.stem for p in written} == {c.figure for c in claims.CLAIMS if c.item in run and c.figure}
    assert set(report.CAPTIONS) == set(report.FIGURES)


def test_modules_define_flags_only_when_run():
    """Two of them in one process would clash otherwise: every benchmark has its own --out."""
    names = [path.stem for path in Path(common.__file__).parent.glob("*.py")]
    for name in names:
        importlib.import_module(f"experiments.{name}")
    assert not [module for module in flags.FLAGS.flags_by_module_dict() if module.startswith("experiments.")]


def test_results_do_not_depend_on_rules_and_figures():
    for module in reproduce.EXPERIMENTS:
        sources = common._with_imports(module.ITEM, set())
        assert "common" in sources and not {"claims", "report", "page", "palette", "solver_claims"} & sources


def test_only_the_same_config_and_source_count_as_done(tmp_path):
    cfg = stopping.Config(runs=1)
    assert not common.is_current(tmp_path, "stopping", cfg)
    common.save(tmp_path, "stopping", cfg, {"x": 1.0}, 0.1, "test", common.source_digest("stopping"))
    assert common.is_current(tmp_path, "stopping", cfg)
    assert not common.is_current(tmp_path, "stopping", dataclasses.replace(cfg, runs=2))
    common.save(tmp_path, "stopping", cfg, {"x": 1.0}, 0.1, "test", "of another source")
    assert not common.is_current(tmp_path, "stopping", cfg)


@pytest.mark.parametrize("suffix", ["npz", "json"])
def test_half_a_file_counts_as_none(suffix, tmp_path):
    cfg = stopping.Config(runs=2)
    common.save(tmp_path, "stopping", cfg, stopping_results(), 0.1, "test", common.source_digest("stopping"))
    assert common.is_current(tmp_path, "stopping", cfg)
    path = tmp_path / f"stopping.{suffix}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert not common.is_current(tmp_path, "stopping", cfg) and report.draw_all(tmp_path) == []
    (record,) = [r for r in claims.judge(tmp_path) if r["id"] == "N10"]
    assert record["verdict"] == claims.NOT_RUN and "run python -m experiments.stopping" in record["reason"]


def test_times_beside_other_programs_are_not_judged(tmp_path):
    """D5 is about time, D4 of the same item is not."""
    results = {"freeze_rounds": [[9, 9]], "freeze_seconds": [[[2.0, 3.0], [1.0, 1.2]]], "freeze_alphas": [0.1]}
    results |= {"freeze_gap": [0.0], "floats": [12], "floats_expected": [12], "floats_sizes": [[4, 2, 2]]}
    for elsewhere, verdict in ((0.1, "reproduced"), (1.0, claims.NOT_RUN)):
        common.save(tmp_path, "diversity", diversity.Config(), results, 0.1, "test", "digest", elsewhere)
        found = {r["id"]: r["verdict"] for r in claims.judge(tmp_path)}
        assert found["D5"] == verdict and found["D4"] == "reproduced"


def test_objects_are_not_stored(tmp_path):
    with pytest.raises(TypeError, match="bad"):
        common.save(tmp_path, "stopping", stopping.Config(), {"bad": np.array([None])}, 0.1, "test", "digest")


def test_claims_without_results_are_not_run_with_a_reason(tmp_path):
    records = claims.judge(tmp_path)
    assert {r["verdict"] for r in records} == {claims.NOT_RUN} and all(r["reason"] for r in records)


def test_results_of_other_code_are_not_judged(tmp_path):
    common.save(tmp_path, "convergence", TINY["convergence"], {"old": 1.0}, 0.1, "test", "digest")
    (record,) = [r for r in claims.judge(tmp_path) if r["id"] == "N1"]
    assert record["verdict"] == claims.NOT_RUN and "order" in record["reason"] and record["stale"]
    page.write(tmp_path.joinpath(claims.write(tmp_path)[0]).parent)
    assert html.escape(claims.STALE) in (tmp_path / "report.html").read_text(encoding="utf-8")
    # the figure cannot be drawn either, and takes its older version along
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "n1_convergence.png").touch()
    assert report.draw_all(tmp_path) == [] and not (tmp_path / "figures" / "n1_convergence.png").exists()


def test_arrays_of_another_run_are_no_results(tmp_path):
    """As after a kill between the two files."""
    cfg = stopping.Config(runs=2)
    for value in (1.0, 2.0):
        common.save(tmp_path / f"{value}", "stopping", cfg, {"x": value}, 0.1, "test", "digest")
        assert common.stored(tmp_path / f"{value}", "stopping")
    (tmp_path / "1.0" / "stopping.npz").replace(tmp_path / "2.0" / "stopping.npz")
    assert not common.stored(tmp_path / "2.0", "stopping")


def test_a_figure_older_than_its_results_is_not_shown(tmp_path):
    common.save(tmp_path, "stopping", stopping.Config(runs=2), stopping_results(), 0.1, "test", "digest")
    report.draw_all(tmp_path)
    shown = lambda: next(r for r in claims.judge(tmp_path) if r["id"] == "N10")["figure"]  # noqa: E731
    assert shown() == "figures/n10_stopping.png"
    os.utime(tmp_path / "figures" / "n10_stopping.png", (0, 0))
    assert shown() is None


def test_a_batch_that_overflows_does_not_spoil_tuned_steps(cheap_compilation):
    config = training.TrainConfig(batch=4)
    start = jnp.full((2, config.architecture.layers), 30, jnp.float32)  # logarithms
    keys = jax.random.split(jax.random.key(0), 2)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_array_equal(restart._tuned_logs(config, start, None, keys), start)
        assert (restart._tuned_logs(config, start - 34, None, keys) != start - 34).any()
