"""The rules that give verdicts, on made-up results."""

import numpy as np
import pytest

from experiments import (
    claims,
    common,
    diversity,
    emergence_claims,
    regime_claims,
    sketching,
    solver_claims,
    study_claims,
    verdicts,
)
from tests.helpers import stopping_results


def initialisation_results(*networks) -> common.Results:
    """(regime, sign, std, error, directions conditioned) of each network."""
    regime, sign, std, error, won = zip(*networks, strict=True)
    layers = {name: np.ones((len(networks), 4)) for name in ("form_QK", "form_VP")}
    r = {"regime": np.array(regime), "sign": np.array(sign), "std": np.array(std), "histories": 0}
    r |= {"mse": np.array(error, float)[:, None] * np.ones(5), "form_median": np.ones((len(networks), 5))}
    return r | layers | {"VP_rank": np.array(won)[:, None] * np.ones(4), "directions": np.full(len(networks), 6)}


def test_initialisation_rule():
    usual = ("D", -1, 0.02, 1.0, 6)
    judged = lambda *more: study_claims.initialisation(initialisation_results(usual, *more))  # noqa: E731
    assert judged().verdict == claims.NOT_RUN
    assert judged(("D", 1, 0.02, 9.0, 6)).parts == {"D sign": "reproduced", "D scale": claims.NOT_RUN}
    assert judged(("D", 1, 0.02, 1.2, 6)).verdict == "refuted"
    lost = judged(("D", -1, 0.1, 1.0, 5), ("D", 1, 0.02, 1.0, 6))
    assert lost.parts == {"D sign": "refuted", "D scale": "reproduced"} and lost.verdict == "in part"
    assert len(judged(("D", 1, 0.02, 1.0, 6)).numbers["table"]["rows"]) == 2


def test_initialisation_rule_says_when_directions_are_won():
    VP = np.full((3, 4, 6), -1.0)
    VP[0, :, -1], VP[1, 1, -1], VP[:, 2, -1] = 0.1, -0.01, 0.0
    history = {"history_0_VP": VP, "history_0_steps": np.array([100, 200, 300]), "history_0_setting": np.array("std=1")}
    r = initialisation_results(("U", 1, 0.1, 1.0, 6), ("U", -1, 0.1, 1.0, 6)) | history | {"histories": 1}
    assert "from step: std=1: 200, 300, never (of 300 steps)" in study_claims.initialisation(r).measured


def read_ahead_results(share=0.99, gap=1e-4, solver=0.5) -> common.Results:
    names = {"later_read": np.full(3, share), "chance": np.ones(3), "own": np.ones(3), "eta_rho": np.ones(4)}
    names |= {"gamma_rho": np.ones(4), "mse": np.full(5, 1e-2), "own_D": np.full(5, 1e-3), "ahead_D": np.full(5, gap)}
    r = {f"CL_{k}": np.stack([v, v]) for k, v in names.items()} | {"CL_seeds": np.arange(2), "CLn_seeds": np.array([])}
    r |= {"study_setting": np.array(["as usual"] * 2), "study_difference": np.ones((2, 3)), "study_mse": np.ones(2)}
    r |= {"study_kappa": np.ones((2, 2)), "study_later": np.ones(2), "sizes": np.ones((1, 4))}
    return r | {"methods": np.array(["paper", "one", "all"]), "solvers_0": np.array([[1, 1.0], [1, 2], [1, solver]])}


@pytest.mark.parametrize(
    ("changes", "refuted"),
    [({}, []), ({"share": 0.8}, ["clean columns"]), ({"gap": 5e-4}, ["clean steps"]), ({"solver": 1.1}, ["solver"])],
    ids=["all", "columns", "steps", "solver"],
)
def test_read_ahead_rule(changes, refuted):
    parts = study_claims.read_ahead(read_ahead_results(**changes)).parts or {}
    assert [name for name, verdict in parts.items() if verdict != "reproduced"] == refuted and len(parts) == 3


def regime_results(**values) -> common.Results:
    """Two seeds of each regime with the same numbers."""
    return {f"{tag}_{k}": np.stack([v, v]) for tag in ("U", "D", "CL") for k, v in values.items()} | {
        f"{tag}_seeds": np.arange(2) for tag in ("U", "D", "CL")
    }


@pytest.mark.parametrize(
    ("last", "verdict"), [(1e-3, "reproduced"), (4e-3, "weaker"), (3e-2, "refuted")], ids=["1e-3", "4e-3", "3e-2"]
)
def test_test_error_rule_by_regime(last, verdict):
    r = regime_results(mse=np.geomspace(5e-2, last, 5))
    assert emergence_claims.test_error(r).verdict == verdict
    finding = emergence_claims.test_error(r | {"U_mse": np.geomspace(5e-2, 1e-3, 5)[None]})
    assert finding.parts == {"U": "reproduced", "D": verdict, "C-L": verdict}
    assert finding.verdict == {"refuted": "in part"}.get(verdict, verdict)


@pytest.mark.parametrize(("diagonal", "verdict"), [(0.95, "reproduced"), (0.7, "weaker"), (0.3, "refuted")])
def test_structure_rule_asks_c_l_for_its_blocks_only(diagonal, verdict):
    share, off = np.array([diagonal] * 3 + [0.0]), np.array([0.01] * 3 + [1.0])  # the last layer is not read
    r = regime_results(QK_diagonality=share, VP_diagonality=share, QK_off_block=off, VP_off_block=off)
    finding = emergence_claims.block_structure(r)
    in_D = {"refuted": "in part"}.get(verdict, verdict)  # the blocks are there
    assert finding.parts == {"U": in_D, "D": in_D, "C-L": "reproduced"} and finding.verdict == in_D
    leaks = emergence_claims.block_structure(r | {"CL_QK_off_block": np.full((2, 4), 0.2)})
    assert leaks.parts is not None and leaks.parts["C-L"] == "refuted" and leaks.verdict == "in part"


@pytest.mark.parametrize(("last", "verdict"), [(5, "reproduced"), (8, "weaker"), (12, "refuted")])
def test_conditioning_rule(last, verdict):
    kappa = np.array([10.0, 9, 8, last, 1])
    finding = emergence_claims.conditioning(regime_results(kappa=kappa, kappa_read=kappa))
    assert finding.verdict == verdict and finding.parts == dict.fromkeys(("U", "D", "C-L"), verdict)


def noisy_results(**changes) -> common.Results:
    one = np.array([[1.0, 1.0, 1.0, 0.0]])
    names = {"eta_largest": one, "QK_diagonality": one, "VP_diagonality": one, "kappa": one}
    r = {f"{tag}{n}_{k}": v for tag in ("U", "D", "CL") for n in ("", "n") for k, v in names.items()}
    r |= {f"{tag}{n}_seeds": np.arange(1) for tag in ("U", "D", "CL") for n in ("", "n")}
    return r | {f"{tag}n_mse": np.array([[1.0, 0.1]]) for tag in ("U", "D", "CL")} | changes


def test_noise_rule_by_regime():
    assert emergence_claims.noise(noisy_results()).verdict == "reproduced"
    steps = {"Dn_eta_largest": np.full((1, 4), 3.0), "CLn_eta_largest": np.full((1, 4), 0.02)}
    finding = emergence_claims.noise(noisy_results(**steps))
    assert finding.parts == {"U": "reproduced", "D": "weaker", "C-L": "in part"} and finding.verdict == "in part"
    two = emergence_claims.noise(noisy_results(CLn_seeds=np.arange(0)))
    assert two.parts is not None and two.parts["C-L"] == "not run" and two.verdict == "reproduced"


def test_form_rule_by_regime():
    """From the form: lower than trained on in U, higher in D; C-L was not run."""
    gap = np.zeros((2, 4, 5))
    r = {"steps": 9, "U_form_median": gap, "D_form_median": gap}
    for tag, restarted in (("U", 0.9), ("D", 1.1)):
        r[f"{tag}_mse"] = np.repeat(np.array([[1.0, 1.0, restarted, 1.0]])[..., None], 2, axis=0)
    finding = emergence_claims.form_or_accident(r)
    assert finding.parts == {"U": "reproduced", "D": "refuted"} and finding.verdict == "in part"


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        ((1.9, 1.9, 1.9), "reproduced"),
        ((2.5, 1.1, 2.1), "weaker"),
        ((3.9, -2.0, 3.9), "in part"),
        ((3, 3, 3), "in part"),
    ],
)
def test_step_law_rule(ratio, verdict):
    eta, one = np.array([1.0, 1.1, 0.9, 0.0]), np.ones(4)
    r = regime_results(eta_largest=eta, eta_median=eta, gamma_largest=one, eta_rho=one, gamma_rho=np.array([*ratio, 5]))
    assert emergence_claims.step_laws(r).verdict == verdict
    r |= {"CL_eta_largest": np.full((2, 4), 0.1)}  # neither law
    finding = emergence_claims.step_laws(r)
    assert finding.parts is not None and finding.parts["C-L"] == ("refuted" if verdict == "in part" else "in part")


@pytest.mark.parametrize(("worst", "verdict"), [(5e-4, "reproduced"), (7e-4, "weaker"), (2e-3, "in part")])
def test_fidelity_rule(worst, verdict):
    form = np.array([0, 1e-4, 1e-4, worst, 1e-4])
    r = regime_results(form=form, form_median=form, general=form)
    assert emergence_claims.fidelity(r).verdict == verdict
    one_diverges = r | {"U_form": np.stack([form, form, 1e9 * form])}
    assert emergence_claims.fidelity(one_diverges).verdict == verdict
    only_U = r | {f"{tag}_form": np.ones((2, 5)) for tag in ("D", "CL")}
    assert emergence_claims.fidelity(only_U).parts == {"U": verdict, "D": "refuted", "C-L": "refuted"}


@pytest.mark.parametrize(("foreign", "verdict"), [(0.05, "reproduced"), (0.15, "weaker"), (0.5, "in part")])
def test_message_rule(foreign, verdict):
    leaks = np.array([foreign, 0, 0, 1.0])  # the last layer's (A, B) is not read
    r = regime_results(foreign_AB=leaks, factor_ratio=np.ones(4), VP_rank=np.full(4, 6), VP_spectrum=np.ones((4, 6)))
    assert emergence_claims.messages(r).verdict == verdict


@pytest.mark.parametrize(("slow", "verdict"), [(0, "reproduced"), (1, "reproduced"), (2, "weaker")])
def test_machine_count_rule(slow, verdict):
    """15 rounds for M = 1; `slow` of three problems with M = 3 take 16: a miss by one round."""
    errors = np.ones((2, 3, 20))
    errors[..., 14:] = 1e-3
    errors[1, :slow, 14] = 1
    r = {"count_errors": errors, "counts": np.array([1, 3]), "large": 1000}
    finding = regime_claims.machine_count(r)
    assert finding.verdict == verdict and finding.runs == 3
    assert finding.parts == {"M = 1": "reproduced", "M = 3": verdict}
    assert ("at most 1 too many" in finding.measured) == (slow == 2)
    errors[0, 0] = 1  # never there
    assert regime_claims.machine_count(r).verdict == "in part"


def sketch_results(**changes) -> common.Results:
    """Three methods and two baselines at two widths; everybody takes 10 rounds of a second."""
    r = {"n": 8, "widths": np.array([4, 8]), "kappas": np.array([1e2, 1e4]), "targets": np.array([1e-2, 1e-6])}
    r |= {"methods": np.array(sketching.METHODS), "drawn_plain": np.array([1, 99])}
    r |= {"drawn_sketch_cg": np.array([1, 99]), "drawn_sgd": np.array([1, 99])}
    r |= {"step_seconds": np.ones((5, 2)), "step_repeats": np.ones((5, 2, 3))}
    return r | {f"rounds_{i}": np.full((3, 5, 2, 2), 10) for i in range(2)} | changes


def test_sketch_rules_need_times_and_somebody_to_compare_with():
    spoilt = np.ones((5, 2))
    spoilt[1, 0] = np.nan
    for rule in (regime_claims.sketch_step_time, regime_claims.against_sgd, regime_claims.against_sketch_cg):
        assert rule(sketch_results(step_seconds=spoilt)).verdict == claims.NOT_RUN
    assert regime_claims.against_sketch_cg(sketch_results()).verdict == "refuted"  # equal times are not a third
    rounds = np.full((3, 5, 2, 2), 10)
    rounds[:, 4] = common.NOT_REACHED
    for cap, verdict in ((99, "reproduced"), (12, claims.NOT_RUN)):  # cut off after ten times our time, after 1.2
        cut = sketch_results(rounds_1=rounds, drawn_sketch_cg=np.array([1, cap]))
        finding = regime_claims.against_sketch_cg(cut)
        assert finding.verdict == verdict and "sketch-and-CG nowhere" in finding.measured
    no_sgd = np.full((3, 5, 2, 2), 10)
    no_sgd[:, 3] = common.NOT_REACHED
    for cap, verdict in ((99, "reproduced"), (9, claims.NOT_RUN)):
        against = regime_claims.against_sgd(sketch_results(rounds_0=no_sgd, drawn_sgd=np.array([1, cap])))
        assert against.verdict == verdict and "cut off" in against.measured
    rounds[:, 0, 0] = common.NOT_REACHED  # nor do we, at the smaller width
    assert regime_claims.against_sketch_cg(sketch_results(rounds_1=rounds)).verdict == claims.NOT_RUN


def test_sketch_rules_by_the_papers_two_sketches():
    """Columns take n/r times the rounds, orthogonal sketches (n/r)^k; steps on columns are as fast as the paper's."""
    for k, verdict in ((1, "reproduced"), (1.9, "weaker"), (3, "refuted")):
        rounds = np.full((3, 5, 2, 2), 10)
        rounds[:, 1, 0], rounds[:, 0, 0] = 20, round(10 * 2**k)
        finding = regime_claims.sketch_rounds(sketch_results(rounds_0=rounds))
        assert finding.parts == {"orthogonal sketches": verdict, "columns": "reproduced"}
    seconds = np.ones((5, 2))
    seconds[0, 0], seconds[1, 0] = 0.7, 0.2
    finding = regime_claims.sketch_step_time(sketch_results(step_seconds=seconds))
    assert finding.parts == {"orthogonal sketches": "weaker", "columns": "reproduced"} and finding.verdict == "weaker"
    seconds[:] = np.array([2, 0.5, 1, 1, 1])[:, None]  # orthogonal sketches are slower than SGD
    finding = regime_claims.against_sgd(sketch_results(step_seconds=seconds))
    assert finding.parts == {"orthogonal sketches": "refuted", "columns": "reproduced"} and finding.verdict == "in part"


def rank_results(eagle: float, cg_last: float) -> common.Results:
    cg = np.full((2, 3, 5), cg_last)
    ranks, n, best = np.array([4, 8]), np.array(8), np.full((2, 3), 1e-14)
    return {
        "small_ranks": ranks,
        "small_n": n,
        "small_paper": np.full((2, 3, 5), eagle),
        "small_cg": cg,
        "small_optimal": best,
    }


@pytest.mark.parametrize(
    ("eagle", "cg_last", "verdict"),
    [
        (1e-14, 1.0, "reproduced"),
        (1e-14, 1e-13, "in part"),
        (1e-3, 1e-13, "refuted"),
        (np.nan, 1.0, "in part"),
        (1e-14, np.nan, "reproduced"),
    ],
)
def test_rank_rule(eagle, cg_last, verdict):
    finding = solver_claims.small_ranks(rank_results(eagle, cg_last))
    assert finding.verdict == verdict
    about_cg = "refuted" if cg_last == 1e-13 else "reproduced"
    assert finding.parts == {"EAGLE": "reproduced" if eagle == 1e-14 else "refuted", "the remark on CG": about_cg}


@pytest.mark.parametrize(("order", "verdict"), [(2.0, "reproduced"), (1.5, "weaker"), (1.0, "refuted")])
def test_order_rule(order, verdict):
    assert solver_claims.order({"order": np.array([order, np.nan, order])}).verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(120.0, "reproduced"), (450.0, "stronger"), (5.0, "weaker"), (0.5, "refuted")]
)
def test_cg_rule(ratio, verdict):
    results = {"kappas": np.array([1e2, 1e4]), "steps_paper": np.full((2, 3), 20), "cg_cap": 10**5}
    results["steps_cg"] = np.array([[20] * 3, [ratio * 20] * 3])
    assert solver_claims.against_cg(results).verdict == verdict


def test_what_was_cut_off_is_a_bound_or_decides_nothing():
    missed = common.NOT_REACHED
    r = {"kappas": np.array([1e4]), "steps_paper": np.full((1, 3), 20), "steps_cg": np.array([[400, missed, missed]])}
    assert solver_claims.against_cg(r | {"cg_cap": 4000}).verdict == claims.NOT_RUN
    finding = solver_claims.against_cg(r | {"cg_cap": 10**5})
    assert finding.verdict == "stronger" and "at least 5000x" in finding.measured
    assert solver_claims.against_cg(r | {"cg_cap": 10**5, "steps_paper": np.full((1, 3), missed)}).verdict == "not run"
    # alphas x runs x methods
    rounds = np.stack([np.full((3, 2, 1), n) for n in (10, 3, missed, missed)], axis=2)[..., 0]
    d = {"rounds": rounds, "methods": np.array(diversity.METHODS), "alphas": np.array([1.0, 0.5, 0.1])}
    d |= {"index": np.array([[1.0, 1.0], [0.5, 0.5], [0.1, 0.1]])}
    for cap, verdict in ((500, claims.NOT_RUN), (5000, "stronger")):
        assert regime_claims.against_distributed_gd(d | {"caps": np.array([9, 9, 9, cap])}).verdict == verdict
    gd = rounds.copy()
    gd[1:, :, 3] = [[300, 300], [60, 60]]  # 30x and 6x as many; where it was cut off at 90, at least 9x
    finding = regime_claims.against_distributed_gd(d | {"rounds": gd, "caps": np.array([9, 9, 9, 90])})
    assert finding.parts == {"alpha = 1": "not run", "alpha = 0.5": "reproduced", "alpha = 0.1": "weaker"}
    assert finding.verdict == "weaker"
    assert regime_claims.cg_unavailable(d).verdict == claims.NOT_RUN
    none = d | {"rounds": np.full_like(rounds, missed)}
    assert regime_claims.inverse_alpha(none).verdict == "refuted"
    with_cg = rounds.copy()
    with_cg[0, :, 2] = 40
    assert regime_claims.cg_unavailable(d | {"rounds": with_cg}).verdict == "refuted"


def test_a_rule_that_never_stops_does_not_suffice():
    r = stopping_results()
    r["stop_error"] = np.full_like(r["stop_error"], np.nan)
    assert solver_claims.stopping(r).verdict == "refuted"


@pytest.mark.parametrize(
    ("large", "verdict"), [((6, 5, 5), "reproduced"), ((6, 4, 2), "weaker"), ((6, 4, 1), "in part")]
)
def test_spike_rule(large, verdict):
    """`large` of ten spikes, by regime, have a norm that one batch in ten has; a second run has none."""
    r = {"batch_norms": np.linspace(0.9, 1.1, 101)}
    for tag, count in zip(("U", "D", "CL"), large, strict=True):
        norms = np.where(np.arange(10) < count, 1.2, 1.0)
        r |= {f"{tag}_spike_norm": norms, f"{tag}_spikes": np.array([10, 0]), f"{tag}_steps": np.full(2, 100)}
        r |= {f"{tag}_seeds": np.arange(2), f"{tag}_loss_median": np.ones((2, 60))}
    finding = emergence_claims.spikes(r)
    assert finding.verdict == verdict and finding.numbers["U"]["share_of_large_norms"] == 0.6


def test_grades():
    assert [verdicts.graded(x, 10, 100, 1) for x in (101, 100, 10, 9, 1, np.nan)] == [
        "stronger",
        *["reproduced"] * 2,
        "weaker",
        *["refuted"] * 2,
    ]
    assert [verdicts.at_most(x, 15) for x in (15, 16, 31, np.nan)] == ["reproduced", "weaker", "refuted", "refuted"]


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "stronger"], "stronger"),
        (["stronger", "weaker", "reproduced"], "weaker"),
        (["stronger", "refuted"], "in part"),
        (["weaker", "in part"], "in part"),
        (["refuted", "refuted"], "refuted"),
        (["refuted", "not run"], "refuted"),
        (["not run"], "not run"),
        ([], "not run"),
    ],
)
def test_overall_verdict(parts, verdict):
    assert verdicts.overall(parts) == verdict
    assert verdicts.Finding.of({str(i): part for i, part in enumerate(parts)}, "text", {}).verdict == verdict


def test_parts_in_words():
    said = verdicts.in_words("in part", {"U": "reproduced", "C-L": "refuted", "D": "reproduced"})
    assert said == "in part: U, D reproduced; C-L refuted"
    assert verdicts.in_words("weaker", {"U": "weaker", "D": "weaker"}) == "weaker" == verdicts.in_words("weaker", {})


def test_spreads_need_three_runs_and_know_what_was_not_reached():
    assert verdicts.spread_of(few=[1.0, 2.0], none=[np.nan] * 3) == {}
    assert verdicts.spread_of(x=[1.0, 2.0, 3.0, np.nan]) == {"x": [1.0, np.inf]}


@pytest.mark.parametrize(("excess", "verdict"), [(2.0, "reproduced"), (50.0, "in part")])
def test_stability_rule(excess, verdict):
    error = np.full((1, 2, 3, 2, 3), 1e-3)
    error[..., 0] *= excess
    names = {
        "dtypes": ["float32", "float64"],
        "methods": ["optimal", "paper", "lstsq"],
        "forms": ["solve", "estimate"],
    }
    results = {"kappas": np.array([1e2]), "error": error} | {k: np.array(v) for k, v in names.items()}
    assert solver_claims.stability(results).verdict == verdict
