"""`condition_dtype`: A is conditioned in a lower precision than the answer has."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eps, make_case, norm2, pinv

import eagle_jax
from eagle_jax import Status, engine

pytestmark = pytest.mark.usefixtures("cheap_compilation")

# (d, n), whether B = W A
PROBLEMS = {
    "square": ((70, 70), True),
    "tall": ((100, 70), True),
    "wide": ((70, 100), True),
    "wide, noisy": ((70, 100), False),
    "by its Gram matrix, noisy": ((64, 200), False),
    "small": ((9, 9), True),
    "small, noisy": ((9, 13), False),
}


def rtol(dtype) -> float:
    return 32 * eps(dtype)


def first_stage(monkeypatch, case, dtype):
    """What conditioning in the low precision answers by itself."""
    monkeypatch.setattr(engine, "_first_certified", lambda stages, A, rhs: stages[0](A, rhs))
    A, B = jnp.asarray(case.A), jnp.asarray(case.B)
    return engine.least_squares(A, B, rtol(A.dtype), max(A.shape) * eps(A.dtype), None, jnp.dtype(dtype))


@pytest.mark.parametrize(("shape", "consistent"), PROBLEMS.values(), ids=PROBLEMS)
def test_float32_steps_give_a_float64_answer(x64, monkeypatch, shape, consistent):
    case = make_case(shape[0], shape[1], np.float64, kappa=30.0, consistent=consistent)
    W, status, stats = first_stage(monkeypatch, case, jnp.float32)
    assert status == int(Status.CONVERGED) and stats.backward_error <= rtol(float)
    expected = case.B @ pinv(case.A)
    assert norm2(W - expected) <= 1e-13 * case.kappa * norm2(expected)


def test_bfloat16_steps_give_a_float32_answer(monkeypatch):
    case = make_case(12, 12, np.float32, kappa=3.0)
    W, status, _ = first_stage(monkeypatch, case, jnp.bfloat16)
    assert status == int(Status.CONVERGED)
    expected = case.B @ pinv(case.A)
    assert norm2(W - expected) <= 100 * eps(np.float32) * norm2(expected)


@pytest.mark.parametrize("kappa", [1e4, 1e6, 1e8, 1e10])
@pytest.mark.parametrize("consistent", [True, False])
def test_what_the_low_precision_cannot_see_it_does_not_answer(x64, monkeypatch, kappa, consistent):
    """CONVERGED, or left to the fallback: never CONVERGED on a worse answer than the backward error allows."""
    case = make_case(70, 100, np.float64, kappa=kappa, consistent=consistent)
    W, status, _ = first_stage(monkeypatch, case, jnp.float32)
    if kappa >= 1e8:
        assert status != int(Status.CONVERGED)
    if status == int(Status.CONVERGED):
        expected, residual = case.B @ pinv(case.A), norm2(case.B - case.B @ pinv(case.A) @ case.A)
        allowed = rtol(float) * kappa * (norm2(expected) + kappa * residual)
        assert norm2(W - expected) <= allowed


@pytest.mark.parametrize("rank", [20, pytest.param(None, marks=pytest.mark.slow)], ids=["deficient", "ill-conditioned"])
def test_the_fallback_answers(x64, rank):
    case = make_case(70, 80, np.float64, kappa=1e2 if rank else 1e9, rank=rank)
    solution = eagle_jax.estimate(case.A, case.B, condition_dtype=jnp.float32)
    chex.assert_trees_all_equal(solution, eagle_jax.estimate(case.A, case.B))
    assert solution.status == int(Status.CONVERGED)
    expected = case.B @ pinv(case.A, rank)
    assert norm2(solution.value - expected) <= 100 * eps(float) * case.kappa * norm2(expected)


@pytest.mark.slow
def test_lanes(x64):
    cases = [make_case(9, 9, np.float64, kappa=kappa, seed=3) for kappa in (5.0, 1e10)]
    A, B = (jnp.stack([getattr(c, name) for c in cases]) for name in "AB")
    solution = eagle_jax.estimate(A, B, condition_dtype=jnp.float32)
    assert (solution.status == int(Status.CONVERGED)).all()
    for W, case in zip(solution.value, cases, strict=True):
        expected = case.B @ pinv(case.A)
        assert norm2(W - expected) <= 1e-13 * case.kappa * norm2(expected)


@pytest.mark.slow
def test_derivatives(x64):
    case = make_case(9, 9, np.float64, kappa=5.0)
    mixed, whole = (
        jax.grad(lambda A, c=c: jnp.sum(eagle_jax.estimate(A, case.B, condition_dtype=c).value ** 2))(
            jnp.asarray(case.A)
        )
        for c in (jnp.float32, None)
    )
    np.testing.assert_allclose(mixed, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"condition_dtype": int}, "condition_dtype=int64; expected a floating type"),
        ({"condition_dtype": "nonsense"}, "condition_dtype='nonsense'; expected a floating type"),
        ({"ridge": "x"}, "ridge=x; expected a number"),
        (
            {"condition_dtype": jnp.float64},
            "condition_dtype=float64; expected a floating type no wider than .* float32",
        ),
        ({"condition_dtype": jnp.bfloat16, "schedule": "paper"}, "condition_dtype=bfloat16 with schedule='paper'"),
        ({"condition_dtype": jnp.bfloat16, "max_steps": 3}, "max_steps=3"),
        ({"condition_dtype": jnp.bfloat16, "sketch": eagle_jax.Sketch(1, jax.random.key(0))}, "with a sketch"),
    ],
)
def test_arguments_are_checked(x64, options, message):
    A = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=message):
        eagle_jax.estimate(A, A, **options)


def test_the_datas_own_precision_is_the_default(x64):
    case = make_case(6, 6, np.float64)
    same = eagle_jax.estimate(case.A, case.B, condition_dtype=jnp.float64)
    chex.assert_trees_all_equal(same, eagle_jax.estimate(case.A, case.B))


@pytest.mark.parametrize("kappa", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("shape", [(60, 90), (70, 80)], ids=str)
def test_noise_does_not_stall_the_default(x64, shape, kappa):
    """An early iterate that looked stationary used to keep better ones out from kappa = 1e4 on."""
    for seed in range(2):
        case = make_case(shape[0], shape[1], np.float64, kappa=kappa, consistent=False, seed=seed)
        W, status, _ = eagle_jax.estimate(case.A, case.B)
        assert status == int(Status.CONVERGED)
        expected = case.B @ pinv(case.A)
        assert norm2(W - expected) <= 100 * eps(float) * kappa * norm2(expected)
