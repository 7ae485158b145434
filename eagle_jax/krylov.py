"""Conjugate residuals on rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.linalg import safe_divide, varying_like
from eagle_jax.spectral import rows

# A fresh residual is due after a reduction by that.
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
    return varying_like(Krylov(jnp.zeros_like(r), r, r, rE, rE, energy), rE)


def krylov_step(multiply, state: Krylov, blind) -> Krylov:
    """One conjugate-residual iteration, a row at a time."""
    z, r, p, rE, pE, energy = state
    size = rows(pE, pE)
    alpha = jnp.where(size > blind**2 * rows(p, p), safe_divide(energy, size), 0)
    z, r = z + alpha * p, r - alpha * pE
    rE, fresh = multiply(r)
    beta = safe_divide(fresh, energy)
    return Krylov(z, r, r + beta * p, rE, rE + beta * pE, fresh)
