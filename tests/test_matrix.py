"""Every driver, with its derivatives, under every transformation of JAX: one tiny shape, one program a cell.

Strict promotion is on in all tests (conftest.py).
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_case
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import eagle_jax

pytestmark = [pytest.mark.usefixtures("cheap_compilation", "x64")]

DRIVERS = {
    "solve": lambda A, B, C: eagle_jax.solve(A, B, C).value,
    "estimate": lambda A, B, C: eagle_jax.estimate(A, B).value,
    "lstsq": lambda A, B, C: eagle_jax.lstsq(A.mT, B.mT).value,
    "factor": lambda A, B, C: eagle_jax.factor(A).solve(B, C).value,
}
EXACT = {
    "solve": lambda A, B, C: B @ jnp.linalg.pinv(A) @ C,
    "estimate": lambda A, B, C: B @ jnp.linalg.pinv(A),
    "lstsq": lambda A, B, C: (B @ jnp.linalg.pinv(A)).mT,
    "factor": lambda A, B, C: B @ jnp.linalg.pinv(A) @ C,
}


def everything(function):
    """value, gradient, jvp, and the Hessian times a vector, of the blocks."""

    def g(A, B, C):
        blocks, moved = (A, B, C), (jnp.cos(A), jnp.cos(B), jnp.cos(C))
        gradient = jax.grad(lambda *blocks: jnp.sum(jnp.sin(function(*blocks))), argnums=(0, 1))
        value, along = jax.jvp(function, blocks, moved)
        return value, gradient(*blocks), along, jax.jvp(gradient, blocks, moved)[1]

    return g


def blocks():
    cases = [make_case(3, 4, np.float64, kappa=k, consistent=False, seed=s, rows=1) for s, k in enumerate((2.0, 9.0))]
    return [jnp.stack([jnp.asarray(getattr(c, name)) for c in cases]) for name in "ABC"]


def mesh(kind, *names):
    return jax.make_mesh((2,) * len(names), names, (kind,) * len(names), devices=jax.devices()[: 2 ** len(names)])


def sharded(g, *names):
    split = jax.shard_map(jax.vmap(g), mesh=mesh(AxisType.Auto, *names), in_specs=P("x"), out_specs=P("x"))
    return jax.jit(split)


def explicit(g):
    def call(*arrays):
        m = mesh(AxisType.Explicit, "x")
        with jax.set_mesh(m):
            return jax.jit(jax.vmap(g))(*(jax.device_put(x, NamedSharding(m, P("x"))) for x in arrays))

    return call


def exported(g):
    def call(*arrays):
        (b,) = jax.export.symbolic_shape("b")
        shapes = [jax.ShapeDtypeStruct((b, *x.shape[1:]), x.dtype) for x in arrays]
        return jax.export.export(jax.jit(jax.vmap(g)))(*shapes).call(*arrays)

    return call


def debugged(g):
    def call(*arrays):
        with jax.debug_nans(True):
            return jax.jit(jax.vmap(g))(*arrays)

    return call


def eager(g):
    return lambda *arrays: jax.tree.map(lambda *x: jnp.stack(x), *(g(*lane) for lane in zip(*arrays, strict=True)))


MODES = {
    "eager": eager,
    "vmap": lambda g: jax.jit(jax.vmap(g)),
    "batch": None,  # leading dimensions, instead of vmap
    "shard_map": lambda g: sharded(g, "x"),
    "shard_map 2-D": lambda g: sharded(g, "x", "y"),
    "explicit": explicit,
    "export": exported,
    "scan": lambda g: jax.jit(lambda *arrays: jax.lax.map(lambda b: g(*b), arrays)),
    "remat": lambda g: jax.jit(jax.vmap(jax.checkpoint(g))),
    "debug_nans": debugged,
}
SLOW = {"eager", "batch", "explicit", "export", "scan", "remat", "debug_nans", "shard_map 2-D"}


def cells():
    for driver in DRIVERS:
        for mode in MODES:
            marks = [pytest.mark.slow] if driver != "solve" or mode in SLOW else []
            if (driver, mode) == ("factor", "explicit"):
                reason = "queries of a stored factor are mapped without the mesh: use shard_map"
                marks.append(pytest.mark.xfail(strict=True, raises=ValueError, reason=reason))
            yield pytest.param(driver, mode, marks=marks, id=f"{driver}-{mode}")


@pytest.mark.parametrize(("driver", "mode"), list(cells()))
def test_cell(driver, mode):
    arrays = blocks()
    expected = jax.jit(jax.vmap(everything(EXACT[driver])))(*arrays)
    if mode == "batch":
        found = jax.jit(everything(DRIVERS[driver]))(*arrays)
    else:
        found = MODES[mode](everything(DRIVERS[driver]))(*arrays)
    chex.assert_trees_all_close(found, expected, rtol=1e-9, atol=1e-9)
