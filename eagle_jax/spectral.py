"""Norm bounds, condition numbers, and how different the machines' column spaces are."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.linalg import matmul, norm, varying_like

_PROBES = 4
_POWER_STEPS = 24
# P(a standard normal is below 1e-3 in size) < 8e-4; for all four probes at once that is below 1e-12.
_LEAST_OVERLAP = 1e-3


def rows(x, y):
    """Inner products of corresponding rows, as a column."""
    return jnp.sum(x * y, axis=-1, keepdims=True)


def energy_bound(E):
    """Upper bound on the largest eigenvalue of the positive semidefinite E.

    The Frobenius norm always holds. For large E it is loose by up to d^(1/2), so four fixed random probes w are
    multiplied by E k times: E's top eigenvalue is at most (||w E^k|| / |<w, v>|)^(1/k), and some probe has an overlap
    |<w, v>| > 1e-3 with the top eigenvector v, but for a chance below 1e-12.
    """
    frobenius = norm(E)
    if E.shape[-1] < 64:
        return frobenius
    unit = jnp.where(frobenius > 0, frobenius, 1)
    probes = np.random.default_rng(0).standard_normal((_PROBES, E.shape[-1]))

    def multiply(_, carry):
        w, log_size = carry
        w = matmul(w, E) / unit
        size = norm(w, axis=-1, keepdims=True)
        size = jnp.where(size > 0, size, 1)
        return w / size, log_size + jnp.log(size)

    start = jnp.asarray(probes, E.dtype)
    carry = varying_like((start, jnp.zeros((_PROBES, 1), E.dtype)), E)
    _, log_size = jax.lax.fori_loop(0, _POWER_STEPS, multiply, carry)
    ratio = jnp.exp((jnp.max(log_size) - math.log(_LEAST_OVERLAP)) / _POWER_STEPS)
    return frobenius * jnp.minimum(ratio, 1).astype(E.dtype)


def sharp_energy_bound(E):
    """`energy_bound`, but within 30 % of the largest eigenvalue for small E too: (||E^8||_F)^(1/8)."""
    if E.shape[-1] >= 64:
        return energy_bound(E)
    size = norm(E)
    power = E / jnp.where(size > 0, size, 1)
    for _ in range(3):
        power = matmul(power, power)
    return size * norm(power) ** 0.125


def condition_number(A, rcond=None):
    """||A||_2 over the smallest singular value above rcond*||A||_2 (default: eps*max(shape)); 1 for A = 0, NaN for
    NaN.
    """
    rcond = jnp.finfo(A.dtype).eps * max(A.shape[-2:]) if rcond is None else rcond
    return condition_of(jnp.linalg.svd(A, compute_uv=False), rcond)


def condition_of(s, rcond):
    """The same from the singular values, largest first."""
    cut = rcond * s[..., :1]
    least = jnp.min(jnp.where(s > cut, s, jnp.inf), axis=-1)
    return jnp.where(jnp.isfinite(least) | jnp.isnan(s[..., 0]), s[..., 0] / least, 1)


def diversity_index(A_blocks):
    """alpha: the smallest positive eigenvalue of the mean projector on the machines' ranges.

    A_blocks: M x d x n, one column block per machine. 1 when every machine sees the joint range; 1/M when some
    direction is seen by one machine only; smaller when no machine sees it well.
    """

    def projector(A):
        U, s, _ = jnp.linalg.svd(A, full_matrices=False)
        keep = s > jnp.finfo(A.dtype).eps * max(A.shape) * s[0]
        U = jnp.where(keep, U, 0)
        return matmul(U, U.T)

    eigenvalues = jnp.linalg.eigvalsh(jnp.mean(jax.vmap(projector)(A_blocks), axis=0))
    positive = eigenvalues > jnp.finfo(A_blocks.dtype).eps * A_blocks.shape[1] * 10
    return jnp.min(jnp.where(positive, eigenvalues, jnp.inf))
