"""How good an answer is, measured on the data the caller gave."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.spectral import norm, safe_divide
from eagle_jax.update import matmul


class Errors(NamedTuple):
    backward: jax.Array
    merit: jax.Array


def backward_error(M, rhs, X, size, minimum_norm):
    """(Errors, R, R M^T or R M) of the rows X.

    The backward error is the largest over the rows of min(||R||/(||M|| ||X|| + ||rhs||), ||R M^T||/(||M|| ||R||)).
    Either one small means that X solves a problem that close to the given one exactly: LSQR's two stopping tests.
    `merit` leaves ||X|| out of it. It ranks iterates: with ||X|| in the denominator, an X full of amplified null-space
    noise would look like an improvement.
    """
    R = rhs - matmul(X, M.T if minimum_norm else M)
    gradient = matmul(R, M if minimum_norm else M.T)
    size_R = norm(R, -1)
    stationary = safe_divide(norm(gradient, -1), size * size_R)
    relative = safe_divide(size_R, size * norm(X, -1) + norm(rhs, -1))
    absolute = safe_divide(size_R, norm(rhs, -1))
    errors = Errors(worst(jnp.minimum(relative, stationary)), worst(jnp.minimum(absolute, stationary)))
    return errors, R, gradient


def worst(x):
    return jnp.max(x, initial=0)


def settled(errors: Errors, stationary, growth, rtol):
    """Whether rounding, and not the iteration, is what keeps `errors.backward` above rtol.

    For inconsistent data, rounding of the residual that the Updates have amplified keeps it near eps * growth, which
    is as good as the conditioning of least squares allows. `stationary` is the same test in the conditioned problem,
    where it is stricter by a factor of growth; so it decides, with some of that factor to spare.
    """
    return (stationary <= rtol * jnp.minimum(growth, 8)) & (errors.backward <= rtol * growth)
