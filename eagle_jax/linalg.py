"""Products, adjoints, norms and exact scaling of real and complex matrices. Knows nothing of EAGLE."""

import jax
import jax.numpy as jnp
from jax import lax


def matmul(a, b):
    """a @ b in full working precision: accelerator defaults are too coarse for a second-order method."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def adjoint(x):
    return x.conj().mT


def square(x):
    """|x|², entry by entry."""
    return jnp.real(x * x.conj())


def times(x, scale):
    """x scaled by real numbers."""
    return x * jnp.asarray(scale, x.dtype)


def times_powers(x, up, down):
    """x times the powers of two `up` and over those `down`, exact wherever the result is in range.

    Products of the powers themselves may be out of it, so their exponents are added, and applied in thirds.
    """
    total = sum(map(_exponent, up)) - sum(map(_exponent, down))
    third = total // 3
    for e in (third, third, total - 2 * third):
        x = times(x, _power(e, real_dtype(x.dtype)))
    return x


def _exponent(x):
    """The e with 2^e <= x < 2^(e+1), of positive normal numbers, as an integer of x's width."""
    info = jnp.finfo(x.dtype)
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"int{info.bits}"))
    return (bits >> info.nmant) + int(info.minexp - 1)


def _power(e, dtype):
    """2^e, or the nearest power of two that has an inverse."""
    info = jnp.finfo(dtype)
    e = jnp.clip(e, int(info.minexp), -int(info.minexp))
    return lax.bitcast_convert_type((e - int(info.minexp - 1)) << info.nmant, dtype)


def norm(x, axis=None, keepdims=False):
    return jnp.sqrt(jnp.sum(square(x), axis=axis, keepdims=keepdims))


def lengths(A):
    """Of A's rows. By a product, since XLA's CPU backend adds along rows one number after the other."""
    return jnp.sqrt(matmul(square(A), jnp.ones((A.shape[1], 1), real_dtype(A.dtype)))[:, 0])


def safe_divide(a, b):
    """a / b, and 0 where b is not positive."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def worst(x):
    return jnp.max(x, initial=0)


def real_dtype(dtype):
    return jnp.finfo(dtype).dtype


def epsilon(dtype) -> float:
    return float(jnp.finfo(dtype).eps)


def power_of_two(size):
    """The power of two that brings `size` into [0.5, 1): scaling by it is exact. 1 for 0, NaN for NaN and Inf."""
    tiny = jnp.finfo(size.dtype).tiny
    scale = jnp.where(size < tiny, 1, _power(-1 - _exponent(size), size.dtype))
    return jnp.where(jnp.isfinite(size), scale, jnp.nan)


def varying_like(tree, *like):
    """`tree` unchanged, but typed as varying over the mesh axes that `like` varies over.

    A loop's carry must start as it goes on.
    """
    axes = frozenset().union(*map(varying_axes, jax.tree.leaves(like)))

    def cast(x):
        missing = tuple(axes - varying_axes(x))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def varying_axes(x) -> frozenset:
    return jax.typeof(x).manual_axis_type.varying


def numbers(count: int):
    """0, 1, ..., count - 1."""
    return jnp.arange(count, dtype=jnp.int32)


def repeat(count, step, start):
    """step(i, carry) for i = 0, ..., count - 1; counted in 32 bits, as all indices here."""
    return lax.fori_loop(jnp.int32(0), jnp.asarray(count, jnp.int32), step, start)


def put(x, block, *start):
    """x with `block` at `start`, which may be traced."""
    return lax.dynamic_update_slice(x, block, _indices(start), allow_negative_indices=False)


def get(x, shape, *start):
    """The block of that shape at `start`, which may be traced."""
    return lax.dynamic_slice(x, _indices(start), shape, allow_negative_indices=False)


def _indices(start):
    return [jnp.asarray(i, jnp.int32) for i in start]
