"""Derivatives of D = B A⁺ C: against the pseudo-inverse's own, against finite differences, and what they cost."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_case

import eagle_jax
from eagle_jax import Sketch

pytestmark = pytest.mark.usefixtures("cheap_compilation")

SHAPES = {
    "wide": (5, 8, {"consistent": False}),
    "tall": (8, 5, {"consistent": False}),
    "square": (6, 6, {}),
    "deficient": (7, 8, {"rank": 4, "consistent": False}),
}


def blocks(name):
    d, n, options = SHAPES[name]
    c = make_case(d, n, np.float64, **options)
    return [jnp.asarray(x) for x in (c.A, c.B, c.C)]


def tangents(name, seed=1):
    """Of constant rank: the rank-deficient A moves within the matrices of its rank."""
    A, B, C = blocks(name)
    rng = np.random.default_rng(seed)
    dA, dB, dC = (jnp.asarray(rng.standard_normal(x.shape)) for x in (A, B, C))
    if name == "deficient":
        P, Q = A @ np.linalg.pinv(A), np.linalg.pinv(A) @ A
        dA = dA - (jnp.eye(7) - P) @ dA @ (jnp.eye(8) - Q)
    return [dA, dB, dC]


def value(A, B, C, **options):
    return eagle_jax.solve(A, B, C, **options).value


def exact(A, B, C, rank=None):
    """B A⁺ C through an SVD of the right rank: the closed formula for constant rank."""
    return B @ jnp.linalg.pinv(A, rtol=1e-10) @ C


@pytest.mark.parametrize(
    "name", ["deficient", *(pytest.param(n, marks=pytest.mark.slow) for n in ("wide", "tall", "square"))]
)
def test_forward_mode_is_the_pseudo_inverses(name, x64):
    primals, moved = blocks(name), tangents(name)
    ours, theirs = jax.jvp(value, primals, moved), jax.jvp(exact, primals, moved)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["tall", pytest.param("deficient", marks=pytest.mark.slow)])
def test_reverse_mode_is_the_transpose_of_forward_mode(name, x64):
    primals, moved = blocks(name), tangents(name)
    D, pull = jax.vjp(value, *primals)
    cotangent = jnp.asarray(np.random.default_rng(3).standard_normal(D.shape))
    forward = jax.jvp(value, primals, moved)[1]
    inner = sum(jnp.vdot(g, t) for g, t in zip(pull(cotangent), moved, strict=True))
    chex.assert_trees_all_close(inner, jnp.vdot(cotangent, forward), rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide", "deficient"])
def test_finite_differences_at_constant_rank(name, x64):
    A, B, C = blocks(name)
    _, dB, dC = tangents(name)
    rng = np.random.default_rng(4)
    left, right = (jnp.asarray(rng.standard_normal((m, m))) for m in A.shape)

    def along(t):
        L, R = (jnp.eye(len(x)) + t * x for x in (left, right))
        return value(L @ A @ R, B + t * dB, C + t * dC)  # L A R has A's rank

    slope = jax.jvp(along, (0.0,), (1.0,))[1]
    h = 1e-5
    chex.assert_trees_all_close(slope, (along(h) - along(-h)) / (2 * h), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["wide", pytest.param("tall", marks=pytest.mark.slow)])
def test_second_derivatives(name, x64):
    primals, moved = blocks(name), tuple(tangents(name))
    cotangent = jnp.ones((3, 2))

    def hessian_times(function):
        gradient = jax.grad(lambda x: jnp.vdot(cotangent, jnp.sin(function(*x))))
        return jax.jvp(gradient, (tuple(primals),), (moved,))[1]

    chex.assert_trees_all_close(hessian_times(value), hessian_times(exact), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_estimate_lstsq_and_every_schedule(x64):
    A, B, C = blocks("wide")
    wanted = jax.grad(lambda A: jnp.sum(jnp.sin(B @ jnp.linalg.pinv(A))))(A)
    found = jax.grad(lambda A: jnp.sum(jnp.sin(eagle_jax.estimate(A, B).value)))(A)
    chex.assert_trees_all_close(found, wanted, rtol=1e-11)
    x = jax.grad(lambda a: jnp.sum(jnp.sin(eagle_jax.lstsq(a, B[0]).value)))(A.T)
    y = jax.grad(lambda a: jnp.sum(jnp.sin(jnp.linalg.lstsq(a, B[0])[0])))(A.T)
    chex.assert_trees_all_close(x, y, rtol=1e-10)
    wanted = jax.grad(lambda A: jnp.sum(exact(A, B, C)))(A)
    for options in ({"schedule": "paper"}, {"sketch": Sketch(4, jax.random.key(0))}):
        found = jax.grad(lambda A, options=options: jnp.sum(value(A, B, C, **options)))(A)
        chex.assert_trees_all_close(found, wanted, rtol=1e-10)


@pytest.mark.slow
def test_gradients_under_jit_and_vmap(x64):
    A, B, C = blocks("square")
    gradient = jax.grad(lambda A: jnp.sum(value(A, B, C)))
    many = jax.jit(jax.vmap(gradient))(jnp.stack([A, 2 * A]))
    chex.assert_trees_all_close(many[0], gradient(A), rtol=1e-10)
    chex.assert_trees_all_close(many[1], gradient(2 * A), rtol=1e-10)


@pytest.mark.slow
def test_sharded_gradients_are_those_of_one_machine(x64):
    A, B, C = blocks("wide")
    mesh = jax.make_mesh((2,), ("m",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))

    def loss(solve, blocks):
        return jnp.sum(jnp.sin(solve(*blocks).value))

    shards = partial(eagle_jax.solve_sharded, mesh=mesh, axis="m")
    found = jax.grad(partial(loss, shards))((A, B, C))
    chex.assert_trees_all_close(found, jax.grad(partial(loss, eagle_jax.solve))((A, B, C)), rtol=1e-9, atol=1e-11)


def test_memory_does_not_grow_with_steps():
    A, B, C = (jnp.ones(s, jnp.float32) for s in ((24, 24), (2, 24), (24, 2)))

    def temporary(steps):
        gradient = jax.grad(lambda A: jnp.sum(value(A, B, C, schedule="paper", max_steps=steps)))
        return jax.jit(gradient).lower(A).compile().memory_analysis().temp_size_in_bytes  # pyright: ignore

    assert temporary(1000) <= 1.01 * temporary(10)


def test_a_derivative_that_cannot_be_had_is_nan_and_not_wrong():
    A, B, C = (jnp.full(s, jnp.nan, jnp.float32) for s in ((4, 4), (1, 4), (4, 1)))
    assert np.isnan(jax.grad(lambda A: jnp.sum(value(A, B, C)))(A)).all()
