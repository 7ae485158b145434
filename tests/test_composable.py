"""Batches, ridge and the forward-error estimate."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eps, error, make_case, norm2

import eagle_jax
from eagle_jax import Status

pytestmark = [pytest.mark.usefixtures("cheap_compilation"), pytest.mark.float32_is_slow]


@pytest.mark.slow
def test_leading_dimensions_are_a_batch(x64):
    dtype = np.float64
    cases = [make_case(6, 8, dtype, kappa=k, consistent=False, seed=s) for s, k in enumerate((2.0, 30.0, 400.0))]
    A, B, C = (jnp.stack([getattr(c, name) for c in cases]) for name in "ABC")
    batch = eagle_jax.solve(A, B, C)
    assert batch.status.shape == batch.stats.steps.shape == (3,)
    chex.assert_trees_all_equal(batch, jax.vmap(eagle_jax.solve)(A, B, C))
    grid = eagle_jax.estimate(A[:, None], B[0])  # B broadcasts
    assert grid.value.shape == (3, 1, 3, 6)
    chex.assert_trees_all_close(grid.value[0, 0] @ C[0], batch.value[0], rtol=1e4 * eps(dtype))
    x = eagle_jax.lstsq(A.mT, B[:, 0, :, None])
    chex.assert_trees_all_close(x.value[..., 0], eagle_jax.lstsq(A.mT, B.mT).value[..., 0], rtol=1e3 * eps(dtype))


def test_a_bad_lane_has_its_own_status(x64):
    c = make_case(5, 7, np.float64)
    A = jnp.stack([jnp.asarray(c.A), jnp.full_like(c.A, jnp.nan)])
    solution = eagle_jax.solve(A, c.B, c.C)
    assert solution.status.tolist() == [Status.CONVERGED, Status.NONFINITE]
    good = eagle_jax.solve(jnp.stack([A[0], A[0]]), c.B, c.C)
    chex.assert_trees_all_equal(solution.value[0], good.value[0])


def test_batches_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"leading dimensions of \(2, 3, 4\), \(3, 1, 4\)"):
        eagle_jax.estimate(jnp.ones((2, 3, 4)), jnp.ones((3, 1, 4)))


def test_ridge_is_ridge_regression(dtype, ridge=0.01):
    c = make_case(6, 9, dtype, consistent=False)
    A, B = c.A.astype(float), c.B.astype(float)
    W = B @ A.T @ np.linalg.inv(A @ A.T + ridge * np.eye(6))
    solution = eagle_jax.raise_if_failed(eagle_jax.solve(c.A, c.B, c.C, ridge=ridge))
    assert norm2(solution.value - W @ c.C) <= 1e3 * eps(dtype) * norm2(W) * norm2(c.C)
    x = eagle_jax.lstsq(c.A.T, c.B[0], ridge=ridge).value
    assert norm2(x - W[0]) <= 1e3 * eps(dtype) * norm2(W)


@pytest.mark.slow
def test_ridge_is_differentiable_and_shared_by_machines(x64):
    c = make_case(6, 9, np.float64, consistent=False)

    def size(ridge):
        return jnp.sum(eagle_jax.estimate(c.A, c.B, ridge=ridge).value ** 2)

    slope = jax.grad(size)(0.3)
    assert abs(slope - (size(0.3 + 1e-5) - size(0.3 - 1e-5)) / 2e-5) < 1e-6 * abs(slope)
    A, B = (np.stack(np.split(x, 3, axis=1)) for x in (c.A, c.B))
    together = eagle_jax.raise_if_failed(eagle_jax.estimate_workers(A, B, ridge=0.3)).value
    chex.assert_trees_all_close(together, eagle_jax.estimate(c.A, c.B, ridge=0.3).value, rtol=1e-10)


def test_a_negative_ridge_is_refused():
    with pytest.raises(ValueError, match=r"ridge=-1; expected a number, at least 0"):
        eagle_jax.estimate(jnp.ones((2, 3)), jnp.ones((1, 3)), ridge=-1)


@pytest.mark.parametrize("kappa", [1e1, 1e7])
def test_forward_error_is_of_the_right_size(kappa, x64):
    c = make_case(20, 20, np.float64, kappa=kappa)
    solution = eagle_jax.raise_if_failed(eagle_jax.solve(c.A, c.B, c.C))
    found = error(solution.value, c) / c.scale * norm2(c.A)  # against ||W|| ||C|| would be stricter for this C
    assert found <= 10 * float(solution.forward_error) + 100 * eps(np.float64)
    assert float(solution.forward_error) <= 10 * kappa * 32 * eps(np.float64)


def test_a_factored_batch_takes_a_batch_of_queries(x64):
    cases = [make_case(5, 5, np.float64, kappa=k, seed=s) for s, k in enumerate((2.0, 30.0))]
    A, B, C = (jnp.stack([getattr(c, name) for c in cases]) for name in "ABC")
    factored = eagle_jax.factor(A)
    for D, case in zip(factored.solve(B, C).value, cases, strict=True):
        assert error(D, case) <= 1e-12 * case.scale
    bad = factored.solve(B, C.at[1, 0, 0].set(jnp.nan))
    assert bad.status.tolist() == [Status.CONVERGED, Status.NONFINITE]
    assert jnp.isfinite(bad.value[0]).all() and jnp.isnan(bad.value[1]).all()
    with pytest.raises(ValueError, match="C has 4 rows but A has 5"):
        factored.solve(B, C[:, :4])


def test_machines_take_a_traced_ridge(x64):
    c = make_case(4, 12, np.float64, consistent=False)
    A, B = (x.reshape(len(x), 2, 6).swapaxes(0, 1) for x in (c.A, c.B))
    D = jax.jit(lambda ridge: eagle_jax.solve_workers(A, B, c.C, ridge=ridge).value)(0.3)
    W = c.B @ c.A.T @ np.linalg.inv(c.A @ c.A.T + 0.3 * np.eye(4))
    assert norm2(D - W @ c.C) <= 1e-11 * norm2(W) * norm2(c.C)
    with pytest.raises(ValueError, match="ridge=-1"):
        eagle_jax.solve_workers(A, B, c.C, ridge=-1)


def test_ridge_of_each_lane(x64):
    c = make_case(4, 6, np.float64, consistent=False)
    A, ridges = jnp.stack([c.A, c.A]), jnp.array([0.1, 0.7])
    both = eagle_jax.estimate(A, c.B, ridge=ridges).value
    for W, ridge in zip(both, ridges, strict=True):
        chex.assert_trees_all_close(W, c.B @ c.A.T @ np.linalg.inv(c.A @ c.A.T + ridge * np.eye(4)), rtol=1e-10)
    blocks = jax.device_put((A, jnp.broadcast_to(c.B, (2, *c.B.shape))))
    with jax.transfer_guard("disallow"):
        eagle_jax.estimate(*blocks, ridge=0.1)
    with pytest.raises(ValueError, match=r"ridge=.*in a batch one for each"):
        eagle_jax.estimate(c.A, c.B, ridge=ridges)


def test_a_batch_without_lanes():
    A, B, C = (jnp.zeros((0, *shape)) for shape in ((3, 4), (2, 4), (3, 5)))
    assert eagle_jax.solve(A, B, C).value.shape == (0, 2, 5)
    assert eagle_jax.estimate(A, B).status.shape == (0,)
    assert eagle_jax.lstsq(A.mT, B.mT).value.shape == (0, 3, 2)
    assert eagle_jax.factor(A).solve(B, C).value.shape == (0, 2, 5)
    assert eagle_jax.factor(A[:0, :, :]).rank.shape == (0,)


def test_many_queries_of_one_factorisation_fail_by_lanes(x64):
    c = make_case(4, 4, np.float64)
    B = jnp.stack([c.B, np.nan * c.B, c.B])
    solution = eagle_jax.factor(c.A).solve(B, c.C)
    with pytest.raises(eagle_jax.SolveError, match="1 of 3 lanes failed; the first: NONFINITE"):
        eagle_jax.raise_if_failed(solution)
    one = solution._replace(stats=jax.tree.map(lambda x: x[0], solution.stats))
    with pytest.raises(eagle_jax.SolveError, match="1 of 3 lanes failed"):
        eagle_jax.raise_if_failed(one)


@pytest.mark.parametrize("schedule", ["optimal", "paper"])
def test_an_answer_is_in_range_where_what_leads_to_it_is_not(schedule):
    """W = 1e-40 is no number of float32."""
    for a, b, c, d in ((1e20, 1e-20, 1e20, 1e-20), (1e-20, 1e20, 1e-20, 1e20), (1e30, 1e-5, 1e35, 1.0)):
        A, B, C = (jnp.full((1, 1), x, jnp.float32) for x in (a, b, c))
        found = [eagle_jax.solve(A, B, C, schedule=schedule)]
        if schedule == "optimal":
            found += [eagle_jax.solve(A, jnp.tile(B, (2, 1)), C), eagle_jax.factor(A).solve(B, C)]
        for D, status, _ in found:
            assert status == int(Status.CONVERGED)
            np.testing.assert_allclose(D, d, rtol=1e-5)
