"""Conjugate residuals on rows, with a pace rule that ends them where an Update would pay better."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.certificate import worst
from eagle_jax.spectral import rows, safe_divide, vary
from eagle_jax.update import matmul

# The pace is judged that many iterations at a time; the caller restarts on a fresh residual after a reduction by
# DEEPEST.
_CHUNK = 8
DEEPEST = 1e-12


class Krylov(NamedTuple):
    z: jax.Array
    r: jax.Array
    p: jax.Array
    rE: jax.Array
    pE: jax.Array
    energy: jax.Array  # <r E, r>


def krylov_start(multiply, r) -> Krylov:
    rE, energy = multiply(r)
    return vary(Krylov(jnp.zeros_like(r), r, r, rE, rE, energy), rE)


def krylov_step(multiply, state: Krylov, blind) -> Krylov:
    """One conjugate-residual iteration, a row at a time."""
    z, r, p, rE, pE, energy = state
    size = rows(pE, pE)
    alpha = jnp.where(size > blind**2 * rows(p, p), safe_divide(energy, size), 0)
    z, r = z + alpha * p, r - alpha * pE
    rE, fresh = multiply(r)
    beta = safe_divide(fresh, energy)
    return Krylov(z, r, r + beta * p, rE, rE + beta * pE, fresh)


def conjugate_residuals(multiply, r, needed, budget, blind):
    """Rows z with z E ~ r. Returns (Krylov state, iterations, slow); multiply(r) = (r E, <r E, r>).

    Conjugate residuals and not conjugate gradients: r may have a part in the null space of E, which minimising the
    residual leaves alone. Stops when the energy <r E, r> has fallen by `needed`, or when its pace predicts more than
    `budget` iterations (`slow`); if `needed` is None, after `budget` iterations. Directions that E shrinks by more than
    `blind` are rounding noise to it; dividing by that would fill z with noise, so they are left out.
    """
    state = krylov_start(multiply, r)
    energy0 = state.energy

    def iterate(state):
        return krylov_step(multiply, state, blind)

    if needed is None:
        state = lax.fori_loop(0, budget, lambda _, state: iterate(state), state)
        return state, jnp.asarray(budget, jnp.int32), jnp.asarray(False)

    drop = jnp.maximum(needed, DEEPEST).astype(r.dtype)

    def reduction(state):
        return jnp.sqrt(worst(safe_divide(state.energy, energy0)))

    def more(carry):
        _, i, before, now = carry
        pace = jnp.minimum(jnp.log(now / before), -1e-6) / _CHUNK
        predicted = i.astype(r.dtype) + jnp.log(needed / now) / pace
        return (now > drop) & (i < budget) & ((i < 2 * _CHUNK) | (predicted < budget))

    def chunk(carry):
        state, i, _, before = carry
        state = lax.fori_loop(0, _CHUNK, lambda _, state: iterate(state), state)
        return state, i + _CHUNK, before, reduction(state)

    one = jnp.ones((), r.dtype)
    carry = vary((state, jnp.asarray(0, jnp.int32), one, one), state.rE)
    state, i, _, now = lax.while_loop(more, chunk, carry)
    return state, i, now > drop


def by_energy(E):
    """r -> (r E, <r E, r>), one small product."""

    def multiply(r):
        rE = matmul(r, E)
        return rE, jnp.maximum(rows(r, rE), 0)

    return multiply


def by_factor(M):
    """The same through M: <r E, r> = ||r M||^2 stays accurate when r is mostly in the null space of E = M M^T."""

    def multiply(r):
        rM = matmul(r, M)
        return matmul(rM, M.T), rows(rM, rM)

    return multiply
