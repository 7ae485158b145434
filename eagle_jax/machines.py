"""What a machine can ask of its peers: the machines on named axes of shard_map or vmap."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from eagle_jax.linalg import varying_axes

ACCELERATIONS = ("none", "freeze", "krylov", "auto")
# What a solve may take when no limit is given.
MOST_ROUNDS = 10_000


class Peers(NamedTuple):
    """The machines on one or more named axes of shard_map or vmap."""

    axes: tuple

    @classmethod
    def on(cls, axis_name) -> "Peers":
        return cls(axis_name if isinstance(axis_name, tuple) else (axis_name,))

    @property
    def count(self) -> int:
        return math.prod(map(lax.axis_size, self.axes))

    def sum(self, x) -> jax.Array:
        return lax.psum(x, self.axes)

    def sums(self, *parts) -> list[jax.Array]:
        """Sums of matrices with equally many rows, in one collective."""
        ends = np.cumsum([x.shape[-1] for x in parts])[:-1]
        return jnp.split(self.sum(jnp.concatenate(parts, axis=-1)), ends, axis=-1)

    def mean(self, x):
        return self.sum(x) / self.count

    def most(self, x):
        """The maxima."""
        return lax.pmax(x, self.axes)

    def largest(self, *scalars):
        return self.most(jnp.stack(scalars))

    def all(self, flag):
        return lax.pmin(flag.astype(jnp.int32), self.axes) > 0

    def gather(self, x, axis):
        """All x along one of the axes, the same on all of its machines; typed so, where types tell (shard_map)."""
        typed = axis in varying_axes(x)
        return lax.all_gather(x, axis, to="invarying" if typed else "varying")

    def fold(self, key):
        """A key of this machine's own."""
        for axis in self.axes:
            key = jax.random.fold_in(key, lax.axis_index(axis))
        return key


class Alone(NamedTuple):
    """What `Peers` does, for one machine without peers."""

    def sum(self, x):
        return x

    def mean(self, x):
        return x

    def most(self, x):
        return x

    def largest(self, *scalars):
        return jnp.stack(scalars)

    def fold(self, key):
        return key


def with_axes(function, axes, *arguments):
    """function(*arguments), axes ((name, size), ...) known to it.

    JAX does not tell the loops and branches in the rule of a custom_jvp of the axes of the vmap that it is under.
    """
    try:
        for name, _ in axes:
            lax.axis_size(name)
        return function(*arguments)
    except NameError:
        pass
    program, shape = jax.make_jaxpr(function, axis_env=list(axes), return_shape=True)(*arguments)
    found = jaxpr_as_fun(program)(*jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), found)
