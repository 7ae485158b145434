"""The rules that give verdicts, on made-up results."""

import numpy as np
import pytest

from experiments import claims, common, diversity, emergence_claims, regime_claims, sketching, solver_claims, verdicts
from tests.helpers import stopping_results


def test_initialisation_rule():
    r = {"sign": np.array([-1, 1]), "std": np.array([0.1, 0.1]), "form_QK": np.ones((2, 4))}
    assert emergence_claims.initialisation(r | {"mse": np.array([[1.0], [9.0]])}).verdict == "differs"
    four = {"sign": np.array([-1, 1, -1, 1]), "std": np.array([0.1, 0.1, 1.0, 1.0]), "form_QK": np.ones((4, 4))}
    for errors, verdict in (((1, 2, 2, 4), "reproduced"), ((1, 2, 1, 2), "differs"), ((1, 1, 1, 1), "refuted")):
        assert emergence_claims.initialisation(four | {"mse": np.array(errors, float)[:, None]}).verdict == verdict
    assert emergence_claims.initialisation(r | {"mse": np.array([[1.0], [1.0]])}).verdict == "refuted"
    one = {k: v[:1] for k, v in r.items()} | {"mse": np.ones((1, 5))}
    assert emergence_claims.initialisation(one).verdict == claims.NOT_RUN


def regime_results(**values) -> common.Results:
    """Two seeds of each regime with the same numbers."""
    return {f"{tag}_{k}": np.stack([v, v]) for tag in ("U", "D", "CL") for k, v in values.items()} | {
        f"{tag}_seeds": np.arange(2) for tag in ("U", "D", "CL")
    }


@pytest.mark.parametrize(
    ("last", "verdict"), [(1e-3, "reproduced"), (4e-3, "differs"), (3e-2, "refuted")], ids=["1e-3", "4e-3", "3e-2"]
)
def test_test_error_rule(last, verdict):
    r = regime_results(mse=np.geomspace(5e-2, last, 5))
    assert emergence_claims.test_error(r).verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        ((1.9, 1.9, 1.9), "reproduced"),
        ((2.5, 1.1, 2.1), "differs"),
        ((3.9, -2.0, 3.9), "differs"),
        ((3, 3, 3), "refuted"),
    ],
)
def test_step_law_rule(ratio, verdict):
    eta, one = np.array([1.0, 1.1, 0.9, 0.0]), np.ones(4)
    r = regime_results(eta_largest=eta, eta_median=eta, gamma_largest=one, eta_rho=one, gamma_rho=np.array([*ratio, 5]))
    assert emergence_claims.step_laws(r).verdict == verdict


@pytest.mark.parametrize(("worst", "verdict"), [(5e-4, "reproduced"), (2e-3, "differs")])
def test_fidelity_rule(worst, verdict):
    form = np.array([0, 1e-4, 1e-4, worst, 1e-4])
    r = regime_results(form=form, form_median=form, general=form)
    assert emergence_claims.fidelity(r).verdict == verdict
    one_diverges = r | {"U_form": np.stack([form, form, 1e9 * form])}
    assert emergence_claims.fidelity(one_diverges).verdict == verdict


@pytest.mark.parametrize(("foreign", "verdict"), [(0.05, "reproduced"), (0.5, "refuted")])
def test_message_rule(foreign, verdict):
    leaks = np.array([foreign, 0, 0, 1.0])  # the last layer's (A, B) is not read
    r = regime_results(foreign_AB=leaks, factor_ratio=np.ones(4), VP_rank=np.full(4, 6), VP_spectrum=np.ones((4, 6)))
    assert emergence_claims.messages(r).verdict == verdict


@pytest.mark.parametrize(("slow", "verdict"), [(0, "reproduced"), (1, "reproduced"), (2, "differs")])
def test_machine_count_rule(slow, verdict):
    """15 rounds for M = 1; `slow` of three problems with M = 3 take 16."""
    errors = np.ones((2, 3, 20))
    errors[..., 14:] = 1e-3
    errors[1, :slow, 14] = 1
    r = {"count_errors": errors, "counts": np.array([1, 3]), "large": 1000}
    finding = regime_claims.machine_count(r)
    assert finding.verdict == verdict and finding.runs == 3
    errors[0, 0] = 1  # never there
    assert regime_claims.machine_count(r).verdict == "differs"


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
    assert regime_claims.against_sketch_cg(sketch_results(rounds_1=rounds)).verdict == "differs"


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
        (1e-14, 1e-13, "differs"),
        (1e-3, 1.0, "refuted"),
        (np.nan, 1.0, "refuted"),
        (1e-14, np.nan, "reproduced"),
    ],
)
def test_rank_rule(eagle, cg_last, verdict):
    assert solver_claims.small_ranks(rank_results(eagle, cg_last)).verdict == verdict


@pytest.mark.parametrize(("order", "verdict"), [(2.0, "reproduced"), (1.5, "differs"), (1.0, "refuted")])
def test_order_rule(order, verdict):
    assert solver_claims.order({"order": np.array([order, np.nan, order])}).verdict == verdict


@pytest.mark.parametrize(("ratio", "verdict"), [(120.0, "reproduced"), (450.0, "differs"), (0.5, "refuted")])
def test_cg_rule(ratio, verdict):
    results = {"kappas": np.array([1e2, 1e4]), "steps_paper": np.full((2, 3), 20), "cg_cap": 10**5}
    results["steps_cg"] = np.array([[20] * 3, [ratio * 20] * 3])
    assert solver_claims.against_cg(results).verdict == verdict


def test_what_was_cut_off_is_a_bound_or_decides_nothing():
    missed = common.NOT_REACHED
    r = {"kappas": np.array([1e4]), "steps_paper": np.full((1, 3), 20), "steps_cg": np.array([[400, missed, missed]])}
    assert solver_claims.against_cg(r | {"cg_cap": 4000}).verdict == claims.NOT_RUN
    finding = solver_claims.against_cg(r | {"cg_cap": 10**5})
    assert finding.verdict == "differs" and "at least 5000x" in finding.measured
    assert solver_claims.against_cg(r | {"cg_cap": 10**5, "steps_paper": np.full((1, 3), missed)}).verdict == "not run"
    # alphas x runs x methods
    rounds = np.stack([np.full((3, 2, 1), n) for n in (10, 3, missed, missed)], axis=2)[..., 0]
    d = {"rounds": rounds, "methods": np.array(diversity.METHODS), "alphas": np.array([1.0, 0.5, 0.1])}
    d |= {"index": np.array([[1.0, 1.0], [0.5, 0.5], [0.1, 0.1]])}
    for cap, verdict in ((500, claims.NOT_RUN), (5000, "differs")):
        assert regime_claims.against_distributed_gd(d | {"caps": np.array([9, 9, 9, cap])}).verdict == verdict
    assert regime_claims.cg_unavailable(d).verdict == claims.NOT_RUN
    none = d | {"rounds": np.full_like(rounds, missed)}
    assert regime_claims.inverse_alpha(none).verdict == "differs"
    with_cg = rounds.copy()
    with_cg[0, :, 2] = 40
    assert regime_claims.cg_unavailable(d | {"rounds": with_cg}).verdict == "refuted"


def test_a_rule_that_never_stops_does_not_suffice():
    r = stopping_results()
    r["stop_error"] = np.full_like(r["stop_error"], np.nan)
    assert solver_claims.stopping(r).verdict == "refuted"


@pytest.mark.parametrize(
    ("large", "verdict"), [((6, 5, 5), "reproduced"), ((6, 4, 2), "differs"), ((6, 4, 1), "refuted")]
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


def test_spreads_need_three_runs_and_know_what_was_not_reached():
    assert verdicts.spread_of(few=[1.0, 2.0], none=[np.nan] * 3) == {}
    assert verdicts.spread_of(x=[1.0, 2.0, 3.0, np.nan]) == {"x": [1.0, np.inf]}


@pytest.mark.parametrize(("excess", "verdict"), [(2.0, "reproduced"), (50.0, "differs")])
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
