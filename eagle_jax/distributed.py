"""Distributed EAGLE on global arrays: over a mesh axis, or over machines simulated on one device.

Both are thin: they cut A and B into column blocks and call `solve` or `estimate` with an axis name.
"""

import math
import re
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from eagle_jax import accelerated, averaging
from eagle_jax.blocks import as_blocks, as_matrices, check_equal
from eagle_jax.schedules import resolve
from eagle_jax.solution import Method, Solution
from eagle_jax.solve import check_ridge, estimate, solve

_AXIS = "machines"


def solve_sharded(A, B, C, *, mesh: Mesh, axis: str | tuple[str, ...], **options) -> Solution:
    """`solve` of global A and B whose columns are sharded over `axis` of `mesh`; the Solution is replicated.

    Any number of columns: zero columns fill up the last shards. C is replicated. `options` are those of `solve`. Arrays
    that are somewhere else are brought to the mesh, whose axes may be of any type.
    """
    A, B, C = as_blocks(A, B, C)
    return _sharded(solve, (A, B), (C,), mesh, axis, options)


def estimate_sharded(A, B, *, mesh: Mesh, axis: str | tuple[str, ...], **options) -> Solution:
    """`estimate` of global A and B, as `solve_sharded`."""
    A, B = as_matrices(A=A, B=B)
    check_equal("columns", "B", B.shape[1], "A", A.shape[1])
    return _sharded(estimate, (A, B), (), mesh, axis, options)


def solve_workers(A_blocks, B_blocks, C, **options) -> Solution:
    """`solve` by M machines that are simulated on one device.

    A_blocks, B_blocks: M x d x n and M x d' x n, or two sequences of M matrices with any numbers of columns.
    """
    A, B = _stacked(A_blocks, B_blocks)
    (C,) = as_matrices(C=C)
    return _worked(solve, A, B, (C,), options)


def estimate_workers(A_blocks, B_blocks, **options) -> Solution:
    """`estimate` by simulated machines, as `solve_workers`."""
    A, B = _stacked(A_blocks, B_blocks)
    return _worked(estimate, A, B, (), options)


def iterates_workers(A_blocks, B_blocks, C, *, rounds: int, method: Method, schedule="paper") -> jax.Array:
    """D after each of `rounds` rounds, by simulated machines: AVERAGING, PROJECTOR or PRECONDITIONED.

    PRECONDITIONED needs machines of rank d.
    """
    A, B = _stacked(A_blocks, B_blocks)
    (C,) = as_matrices(C=C)
    fixed = resolve(schedule)
    if fixed is None or method == Method.FACTORS:
        raise ValueError(f"schedule={schedule!r}, method={method!r}: expected constant steps and an iterative method")
    return _iterates(A, B, C, rounds, method, fixed)


@partial(jax.jit, static_argnums=(3, 4, 5))
def _iterates(A, B, C, rounds, method, fixed):
    if method == Method.AVERAGING:
        run = partial(averaging.iterates, axis=_AXIS, rounds=rounds, fixed=fixed)
    else:
        run = partial(accelerated.iterates, axis=_AXIS, rounds=rounds, method=method)
    return jax.vmap(run, in_axes=(0, 0, None), axis_name=_AXIS)(A, B, C)[0]


def _sharded(function, sharded, replicated, mesh: Mesh, axis: str | tuple[str, ...], options):
    axes = axis if isinstance(axis, tuple) else (axis,)
    if not axes or not set(axes) <= set(mesh.axis_names):
        raise ValueError(
            f"axis={axis!r} is not an axis of the mesh; expected one of {mesh.axis_names}, or some of them"
        )
    padding = -sharded[0].shape[1] % math.prod(mesh.shape[a] for a in axes)
    sharded = [jnp.pad(x, ((0, 0), (0, padding))) if padding else x for x in sharded]
    if AxisType.Explicit in mesh.axis_types:
        columns, everywhere = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, axes), ()))
        sharded = [jax.sharding.reshard(x, columns) for x in sharded]
        replicated = tuple(jax.sharding.reshard(x, everywhere) for x in replicated)
    arrays, static = _split(options)
    return _run_sharded(function, tuple(sharded), replicated, arrays, mesh, axes, static)


def _split(options):
    """Options that may be traced, and the others, hashable."""
    arrays = {name: options.pop(name) for name in ("sketch", "ridge") if name in options}
    if "ridge" in arrays:
        check_ridge(arrays["ridge"])
    return arrays, tuple(sorted(options.items()))


@partial(jax.jit, static_argnums=(0, 4, 5, 6))
def _run_sharded(function, sharded, replicated, arrays, mesh: Mesh, axes: tuple[str, ...], static):
    columns, everywhere = PartitionSpec(None, axes), PartitionSpec()

    def run(sharded, replicated, arrays):
        return function(*sharded, *replicated, axis_name=axes, **arrays, **dict(static))

    specs = (columns, everywhere, everywhere)
    return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=everywhere)(sharded, replicated, arrays)


def _worked(function, A, B, replicated, options):
    return _run_workers(function, A, B, replicated, *_split(options))


@partial(jax.jit, static_argnums=(0, 5))
def _run_workers(function, A, B, replicated, arrays, static):
    def run(A, B):
        return function(A, B, *replicated, axis_name=_AXIS, **arrays, **dict(static))

    solution = jax.vmap(run, axis_name=_AXIS)(A, B)
    return jax.tree.map(lambda x: x[0], solution)


def _stacked(A_blocks, B_blocks):
    if len(A_blocks) != len(B_blocks) or len(A_blocks) == 0:
        raise ValueError(
            f"A_blocks has {len(A_blocks)} machines and B_blocks {len(B_blocks)}; they must agree and be at least 1"
        )
    pairs = [as_matrices(A=A, B=B) for A, B in zip(A_blocks, B_blocks, strict=True)]
    for u, (A, B) in enumerate(pairs):
        check_equal("columns", f"B_blocks[{u}]", B.shape[1], f"A_blocks[{u}]", A.shape[1])
        check_equal("rows", f"A_blocks[{u}]", A.shape[0], "A_blocks[0]", pairs[0][0].shape[0])
        check_equal("rows", f"B_blocks[{u}]", B.shape[0], "B_blocks[0]", pairs[0][1].shape[0])
    most = max(A.shape[1] for A, _ in pairs)
    A, B = ([jnp.pad(p[i], ((0, 0), (0, most - p[i].shape[1]))) for p in pairs] for i in (0, 1))
    return jnp.stack(A), jnp.stack(B)


class Collective(NamedTuple):
    """One collective of a compiled program; floats are what each machine contributes."""

    kind: str
    floats: int
    bytes: int


class Ledger(NamedTuple):
    """Collectives outside of loops, and those of one trip of each loop that has any, in the program's order."""

    once: list[Collective]
    loops: list[list[Collective]]


_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (.+?) ({_KINDS})(?:-start)?\((.*)")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\]<=)")
_SHAPE = re.compile(r"\b(f16|bf16|f32|f64|s32|s64|u32|u64|pred)\[([\d,]*)\]")
_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "s32": 4, "s64": 8, "u32": 4, "u64": 8, "pred": 1}


def ledger(compiled) -> Ledger:
    """Reads what crosses machines out of a compiled program: `ledger(jax.jit(f).lower(...).compile())`."""
    text = compiled.as_text()
    bodies = set(re.findall(r"\bbody=%?([\w.\-]+)", text))
    once, loops = [], []
    for block in re.split(r"\n(?=(?:ENTRY )?%?[\w.\-]+ [^\n]*\{\n)", text):
        name = re.match(r"(?:ENTRY )?%?([\w.\-]+)", block.strip())
        found = [_collective(m) for m in _COLLECTIVE.finditer(block)]
        if name and name.group(1) in bodies and found:
            loops.append(found)
        else:
            once.extend(found)
    return Ledger(once, loops)


def _collective(match) -> Collective:
    result, kind, rest = match.groups()
    groups = _GROUPS.search(rest)
    # What is gathered has a part of every machine in it.
    parts = 1
    if kind == "all-gather" and groups:
        parts = len(groups[1].split(",")) if groups[1] else int(groups[2])
    sizes = [(dtype, _product(sizes) // parts) for dtype, sizes in _SHAPE.findall(result)]
    return Collective(kind, sum(n for _, n in sizes), sum(_BYTES[dtype] * n for dtype, n in sizes))


def _product(sizes: str) -> int:
    result = 1
    for size in filter(None, sizes.split(",")):
        result *= int(size)
    return result
