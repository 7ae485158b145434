"""How good an answer is, measured on the data the caller gave."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.linalg import matmul, norm, safe_divide, varying_like, worst


class Errors(NamedTuple):
    backward: jax.Array
    merit: jax.Array


def backward_error(M, rhs, X, size, minimum_norm, *, projected=None, consistent=False):
    """(Errors, R, gradient) of the rows X, R = rhs - X M (or rhs - X M^T) and gradient = R M^T (or R M).

    The backward error is the largest over the rows of the smallest of
        ||R|| / (||M|| ||X|| + ||rhs||),   ||gradient|| / (||M|| ||R||),   ||P R|| / (||M|| ||X|| + ||rhs||),
    P the projector on what M reaches of R. Each of them small means that X solves a problem that close to the given one
    exactly; the first two are LSQR's stopping tests, the third perturbs rhs by P R and needs `projected`, a function
    (R, gradient) -> norms of P R that is inf where it cannot be had. If `consistent`, only the first counts.
    `merit` leaves ||X|| out of it. It ranks iterates: with ||X|| in the denominator, an X full of amplified
    null-space noise would look like an improvement.
    """
    R = rhs - matmul(X, M.T if minimum_norm else M)
    gradient = matmul(R, M) if minimum_norm else times_transpose(R, M)
    size_PR = jnp.inf if projected is None else projected(R, gradient)
    size_gradient = jnp.inf if consistent else norm(gradient, -1)
    errors = judge(size, norm(X, -1), norm(rhs, -1), norm(R, -1), size_gradient, size_PR)
    return errors, R, gradient


def judge(size, size_X, size_rhs, size_R, size_gradient, size_PR) -> Errors:
    """The errors of `backward_error` from the norms in it, one per row."""
    stationary = safe_divide(size_gradient, size * size_R)
    left = jnp.minimum(size_R, size_PR)
    relative = safe_divide(left, size * size_X + size_rhs)
    absolute = safe_divide(left, size_rhs)
    return Errors(worst(jnp.minimum(relative, stationary)), worst(jnp.minimum(absolute, stationary)))


_CHUNK = 1024
_LONG = 16 * _CHUNK


def times_transpose(R, M):
    """R M^T. For few rows R and a long M in column chunks: XLA's CPU backend would repack all of M, which
    costs more than reading it.
    """
    length = M.shape[1]
    if length < _LONG or R.shape[0] > 16:
        return matmul(R, M.T)
    whole = length // _CHUNK * _CHUNK

    def add(i, total):
        part = partial(jax.lax.dynamic_slice_in_dim, start_index=i * _CHUNK, slice_size=_CHUNK, axis=1)
        return total + matmul(part(R), part(M).T)

    rest = matmul(R[:, whole:], M[:, whole:].T)
    return jax.lax.fori_loop(0, whole // _CHUNK, add, varying_like(rest, R[0, 0] + M[0, 0]))


def settled(errors: Errors, stationary, growth, rtol):
    """Whether rounding, and not the iteration, is what keeps `errors.backward` above rtol.

    For inconsistent data, rounding of the residual that the Updates have amplified keeps it near eps * growth, which
    is as good as the conditioning of least squares allows. `stationary` is the same test in the conditioned problem,
    where it is stricter by a factor of growth; so it decides, with some of that factor to spare.
    """
    return (stationary <= rtol * jnp.minimum(growth, 8)) & (errors.backward <= rtol * growth)
