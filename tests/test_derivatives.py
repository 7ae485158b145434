"""Derivatives of D = B A⁺ C: against the pseudo-inverse's own, against finite differences, and what they cost."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import mpmath
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


# ---- against 60 digits ---------------------------------------------------------------------------------------------


def many_digits(x):
    return mpmath.matrix([[mpmath.mpmathify(complex(v) if np.iscomplexobj(x) else float(v)) for v in row] for row in x])


def few_digits(M):
    return np.array([[complex(M[i, j]) for j in range(M.cols)] for i in range(M.rows)])


def differences(P, T, rank):
    """The first derivative of B A+ C along T[0], the second along both, and kappa; A+ of that rank."""
    with mpmath.workdps(60):
        P, T = [many_digits(x) for x in P], [[many_digits(x) for x in t] for t in T]
        h, kappa = mpmath.mpf(10) ** -15, []

        def at(s, t):
            A, B, C = (p + s * h * x + t * h * y for p, x, y in zip(P, *T, strict=True))
            U, S, V = mpmath.svd(A)
            kappa.append(S[0] / S[rank - 1])
            inverse = mpmath.diag([1 / S[i] for i in range(rank)])
            return B * V[:rank, :].transpose_conj() * inverse * U[:, :rank].transpose_conj() * C

        first = (at(1, 0) - at(-1, 0)) / (2 * h)
        second = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / (4 * h * h)
        return few_digits(first), few_digits(second), float(kappa[0])


# name: d, n, singular values, rcond
SPECTRA = {
    "square 1e4": (8, 8, np.geomspace(1, 1e-4, 8), None),
    "square 1e8": (8, 8, np.geomspace(1, 1e-8, 8), None),
    "square 1e10": (8, 8, np.geomspace(1, 1e-10, 8), None),
    "wide 1e4": (3, 6, np.geomspace(1, 1e-4, 3), None),
    "wide 1e9": (3, 6, np.geomspace(1, 1e-9, 3), None),
    "tall 1e4": (6, 3, np.geomspace(1, 1e-4, 3), None),
    "tall 1e9": (6, 3, np.geomspace(1, 1e-9, 3), None),
    "wide, truncated": (5, 6, [1, 0.5, 0.1, 0.03, 0.01], 0.06),
    "tall, truncated": (6, 5, [1, 0.5, 0.1, 0.03, 0.01], 0.06),
    "square, hardly any gap": (5, 5, [1, 0.5, 0.1, 0.095, 0.01], 0.0975),
}
FAST = {("square 1e4", np.float32), ("square 1e10", np.float64), ("tall, truncated", np.float64)}


def digits_cases():
    for name, (_, _, s, _) in SPECTRA.items():
        for dtype in (np.float32, np.float64, np.complex64, np.complex128):
            if s[-1] * 1e-2 > np.finfo(dtype).eps:
                marks = [] if (name, dtype) in FAST else [pytest.mark.slow]
                yield pytest.param(name, dtype, marks=marks, id=f"{name}-{np.dtype(dtype)}")


@pytest.mark.parametrize(("name", "dtype"), list(digits_cases()))
def test_derivatives_lose_what_conditioning_takes_and_no_more(name, dtype, x64):
    """Along random changes of A, B and C: within 100 eps kappa, over the gap where rcond leaves a small one."""
    d, n, s, rcond = SPECTRA[name]
    rng = np.random.default_rng([d, n])

    def normal(*shape):
        x = rng.standard_normal(shape)
        return x + 1j * rng.standard_normal(shape) if np.issubdtype(dtype, np.complexfloating) else x

    U, V = (np.linalg.qr(normal(m, len(s)))[0] for m in (d, n))
    A = ((U * s) @ V.conj().T).astype(dtype)
    rank = len(s) if rcond is None else int(np.sum(np.asarray(s) > rcond))
    gap = 1.0 if rcond is None else 1 - s[rank] / s[rank - 1]
    for B, C in ((normal(2, d) @ A, A @ normal(n, 2)), (normal(2, n), normal(d, 2))):  # with and without an exact W
        P = A, B.astype(dtype), C.astype(dtype)
        T = [tuple(normal(*x.shape).astype(dtype) for x in P) for _ in range(2)]
        first, second, kappa = differences(P, T, rank)

        @jax.jit
        def both(P, x, y):
            along = lambda P: jax.jvp(lambda P: eagle_jax.solve(*P, rcond=rcond).value, (P,), (x,))[1]  # noqa: E731
            return jax.jvp(along, (P,), (y,))

        for found, expected, order in zip(both(P, *T), (first, second), (1, 2), strict=True):
            error = np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)
            assert error <= 100 * np.finfo(dtype).eps * kappa / gap**order, (order, error)


def test_the_gradient_where_A_is_not_finite_is_nan(x64):
    """Not 0, which a select would give in reverse."""
    A, B, C = blocks("wide")
    for gradient in jax.grad(lambda *blocks: jnp.sum(value(*blocks)), argnums=(0, 1, 2))(A.at[0, 0].set(jnp.inf), B, C):
        assert np.isnan(gradient).all()
