"""The block matrix X = [[A, C], [B, D]] and the checks that can be made before tracing."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

_SUPPORTED = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
_WIDE = {np.dtype("float64"): "float32", np.dtype("complex128"): "complex64"}


class Blocks(NamedTuple):
    """A: d x n, B: d' x n, C: d x n', D: d' x n'; D is the hidden block."""

    A: jax.Array
    B: jax.Array
    C: jax.Array
    D: jax.Array

    @classmethod
    def split(cls, X, d: int, n: int) -> "Blocks":
        """Cuts X after d rows and n columns."""
        return cls(X[..., :d, :n], X[..., d:, :n], X[..., :d, n:], X[..., d:, n:])

    def join(self) -> jax.Array:
        return jnp.concatenate([jnp.concatenate([self.A, self.C], -1), jnp.concatenate([self.B, self.D], -1)], -2)

    def mask(self) -> "Blocks":
        """The solver's view: D set to 0."""
        return self._replace(D=jnp.zeros_like(self.D))


def as_matrices(*, batched: bool = False, **named) -> list[jax.Array]:
    """Each argument as a float matrix, all of one dtype; raises TypeError/ValueError naming the offender."""
    arrays = [_as_float(name, value) for name, value in named.items()]
    for name, x in zip(named, arrays, strict=True):
        if x.ndim < 2:
            raise ValueError(f"{name} has shape {x.shape}; expected a matrix (2 dimensions)")
        if x.ndim > 2 and not batched:
            raise ValueError(f"{name} has shape {x.shape}; expected a matrix (2 dimensions). For a batch, use jax.vmap")
    first = next(iter(named))
    for name, x in zip(named, arrays, strict=True):
        if x.dtype != arrays[0].dtype:
            raise TypeError(
                f"{name} is {x.dtype} but {first} is {arrays[0].dtype}; cast one of them so that all dtypes agree"
            )
    return arrays


_DENSE = {"pandas": "{}.to_numpy()", "scipy": "{}.toarray()", "jax": "{}.todense()"}


def as_array(name: str, value):
    """value as an array; what only holds one, or a sparse one, is refused with the way out."""
    package = type(value).__module__.split(".")[0]
    if package in _DENSE and not isinstance(value, jax.Array | jax.core.Tracer):
        fix = _DENSE[package].format(name)
        raise TypeError(f"{name} is a {package} {type(value).__name__}; expected a dense array, for example {fix}")
    if hasattr(value, "dtype"):
        return value
    value = np.asarray(value)
    # Numbers that no array has given a precision: JAX's.
    wide = value.dtype in _WIDE and not jax.config.read("jax_enable_x64")
    return value.astype(_WIDE[value.dtype]) if wide else value


def _as_float(name, value) -> jax.Array:
    value = as_array(name, value)
    dtype = np.dtype(value.dtype)
    if dtype not in _SUPPORTED:
        raise TypeError(
            f"{name} is {dtype}; expected float32, float64, complex64 or complex128. Cast it, for example "
            f"{name}.astype('float32')"
        )
    if dtype in _WIDE and not jax.config.read("jax_enable_x64"):
        raise TypeError(
            f"{name} is {dtype} but JAX's 64-bit mode is off, so it would silently become {_WIDE[dtype]}; call "
            f"jax.config.update('jax_enable_x64', True) first, or cast {name} to {_WIDE[dtype]}"
        )
    return jnp.asarray(value)


def as_count(name: str, value, expected: str = "a positive integer", most: float = np.inf) -> int:
    """value as an int; numpy's integers will do, True and 2.5 will not."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise ValueError(f"{name}={value}; expected {expected}")
    return int(value)


def as_static(name: str, value) -> float:
    """value as a float; what is traced is refused by name."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is traced, but decides what is compiled; give a Python number, under jit as a static argument"
        )
    if np.ndim(value) or isinstance(value, str | bool | np.bool_):
        raise TypeError(f"{name}={value!r}; expected a number")
    return float(value)


def check_equal(what: str, left: str, left_size: int, right: str, right_size: int) -> None:
    if left_size != right_size:
        raise ValueError(
            f"{left} has {left_size} {what} but {right} has {right_size}; they must agree "
            "(A: d x n, B: d' x n, C: d x n')"
        )


def as_blocks(A, B, C, *, batched: bool = False) -> list[jax.Array]:
    """A, B and C as `as_matrices` makes them, of fitting shapes."""
    A, B, C = as_matrices(A=A, B=B, C=C, batched=batched)
    check_equal("columns", "B", B.shape[-1], "A", A.shape[-1])
    check_equal("rows", "C", C.shape[-2], "A", A.shape[-2])
    return [A, B, C]


def lanes(function, *arrays):
    """function(*arrays) for matrices, mapped over leading dimensions, which broadcast; None is passed on.

    What is inside chooses its own shardings, also where those of the arrays are part of their types.
    """
    present = [x for x in arrays if x is not None]
    types = sorted(map(jax.typeof, present), key=lambda t: (AxisType.Explicit in t.sharding.mesh.axis_types, t.ndim))
    mesh, spec = types[-1].sharding.mesh, types[-1].sharding.spec
    if AxisType.Explicit in mesh.axis_types:
        out = NamedSharding(mesh, PartitionSpec(*spec[: types[-1].ndim - 2]))
        inside: Any = jax.sharding.auto_axes(partial(lanes, function), axes=mesh.axis_names, out_sharding=out)
        return inside(*arrays)
    try:
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in present))
    except ValueError as error:
        shapes = ", ".join(str(x.shape) for x in present)
        raise ValueError(f"the leading dimensions of {shapes} do not broadcast; give all of them one batch") from error
    arrays = [None if x is None else jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in arrays]
    return mapped(function, batch, arrays, 0)


def mapped(function, batch, arguments, in_axes):
    """function, mapped over as many leading dimensions as the batch has; one without lanes gives empty arrays."""
    for _ in batch:
        function = jax.vmap(function, in_axes=in_axes)
    if 0 not in batch:
        return function(*arguments)
    one = lambda shape: [n or 1 for n in shape[: len(batch)]] + list(shape[len(batch) :])  # noqa: E731
    whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct(one(x.shape), x.dtype), tuple(arguments))
    return jax.tree.map(
        lambda x: jnp.zeros((*batch, *x.shape[len(batch) :]), x.dtype), jax.eval_shape(function, *whole)
    )
