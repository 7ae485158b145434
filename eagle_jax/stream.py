"""Least squares on columns that arrive in chunks and are never together in memory.

    state = eagle_jax.stream(64, 1)
    for A_i, B_i in chunks:                      # 64 x any width, 1 x the same
        state = state.update(A_i, B_i)
    W = eagle_jax.raise_if_failed(state.estimate()).value

The state is a factor F of all columns so far (F Fᴴ = A Aᴴ) and B's coefficients G in the same basis: [F, A_i] = F' P_i,
G' = [G, B_i] P_iᴴ by block LQ. Nothing is squared, so condition numbers up to 1/eps keep the digits that they have in
memory. Merging is associative up to rounding: files, processes and machines may each read their own chunks.
"""

import dataclasses
from functools import partial

import jax
import jax.core
import jax.numpy as jnp

from eagle_jax.blocks import as_blocks, as_count, as_matrices, check_equal
from eagle_jax.linalg import adjoint, lengths, matmul, norm, real_dtype, safe_divide, times, worst
from eagle_jax.methods import gram
from eagle_jax.methods.factor import Factor, equilibrated
from eagle_jax.solution import Solution
from eagle_jax.solve import applied, checked_tolerances, solution_of

_MOST = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stream:
    """What is known of the columns so far; made by `stream`. A pytree of O(d² + d d') floats: scan, vmap, store it.

    Attributes:
      F, G: W F ~ G has the solutions of W A ~ B.
      columns: how many there have been; counting stops at 2³¹ - 1.
      chunks: how many.
      bad: the number of the first chunk with NaN or Inf, from 0; -1 if there was none. Bad chunks are left out of F and
        G, and the status of every answer is NONFINITE from then on; `without_bad` answers by the others.
    """

    F: jax.Array
    G: jax.Array
    columns: jax.Array
    chunks: jax.Array
    bad: jax.Array

    def update(self, A, B) -> "Stream":
        """The state after these columns; A: d x any width, B: d' x the same."""
        return _update(self, *self.checked(A, B))

    def checked(self, A, B) -> list[jax.Array]:
        A, B = as_matrices(A=A, B=B)
        check_equal("columns", "B", B.shape[1], "A", A.shape[1])
        for name, x, rows in (("A", A, len(self.F)), ("B", B, len(self.G))):
            if len(x) != rows or x.dtype != self.F.dtype:
                raise ValueError(
                    f"{name} is {x.dtype} {x.shape}; expected {self.F.dtype} with {rows} rows, which is what "
                    "stream(d, d_out, dtype) was told"
                )
        return [A, B]

    def merge(self, other: "Stream") -> "Stream":
        """The state after both streams' columns; a bad chunk of the other is numbered on from this one's chunks."""
        for name in ("F", "G"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                raise ValueError(
                    f"other.{name} is {theirs.dtype} {theirs.shape} but this stream's is {mine.dtype} {mine.shape}; "
                    "merge streams made with the same d, d_out and dtype"
                )
        return _merge(self, other)

    def estimate(self, *, rtol=None, rcond=None) -> Solution:
        """W = B A⁺ of all columns so far. Options as in `eagle_jax.solve`; the backward error is that in F and G."""
        return _estimate(self, *checked_tolerances(self.F, rtol, rcond))

    def solve(self, C, *, rtol=None, rcond=None) -> Solution:
        """D = B A⁺ C of all columns so far."""
        _, _, C = as_blocks(self.F, self.G, C)
        return applied(self.estimate(rtol=rtol, rcond=rcond), C)

    def without_bad(self) -> "Stream":
        """The state that answers by the chunks without NaN and Inf."""
        return dataclasses.replace(self, bad=jnp.full_like(self.bad, -1))

    def second_pass(self, W=None, *, rcond=None) -> "SecondPass":
        """For reading the same chunks again: measures W, by default estimate's, on the whole data, and corrects it."""
        _, rcond = checked_tolerances(self.F, None, rcond)
        factor = jax.jit(_factor, static_argnums=1)(self, rcond)
        if W is None:
            W = self.estimate(rcond=rcond).value
        d_out, d = W.shape
        squares_A, squares_B = (jnp.zeros(k, real_dtype(W.dtype)) for k in (d, d_out))
        return SecondPass(self, factor, W, jnp.zeros_like(W), squares_A, squares_B, jnp.zeros_like(self.columns))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SecondPass:
    """Sums over the chunks read again: of R Aᴴ with R = B - W A, and of the squares of the rows of A and B."""

    stream: Stream
    factor: Factor
    W: jax.Array
    gradient: jax.Array
    squares_A: jax.Array
    squares_B: jax.Array
    columns: jax.Array

    def update(self, A, B) -> "SecondPass":
        A, B = self.stream.checked(A, B)
        return _read_again(self, A, B)

    def merge(self, other: "SecondPass") -> "SecondPass":
        """Of two readers of different chunks, with the same W."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("gradient", "squares_A", "squares_B")}
        return dataclasses.replace(self, **sums, columns=_added(self.columns, other.columns))

    def solution(self, *, rtol=None) -> Solution:
        """W corrected by what A still explains of B - W A. The status and the backward error are those of W before
        that, on the data itself; a further pass from the value says what it has become.

        All of the stream's chunks have to be read again; where it is traced how many were, the backward error is inf.
        """
        rtol, _ = checked_tolerances(self.W, rtol, None)
        counts = self.columns, self.stream.columns
        if not any(isinstance(x, jax.core.Tracer) for x in counts) and int(counts[0]) != int(counts[1]):
            raise ValueError(
                f"{counts[0]} columns were read in the second pass but {counts[1]} in the first; read the same chunks"
            )
        return _corrected(self, rtol)


def stream(d: int, d_out: int, dtype=None) -> Stream:
    """An empty stream for A with d rows and B with d_out; dtype: of the chunks, float32 by default."""
    d, d_out = as_count("d", d), as_count("d_out", d_out)
    (like,) = as_matrices(dtype=jnp.zeros((1, 1), dtype or jnp.float32))
    zero = jnp.zeros((), jnp.int32)
    columns = gram.width(d, like.dtype)
    F, G = (jnp.zeros((rows, columns), like.dtype) for rows in (d, d_out))
    return Stream(F, G, zero, zero, zero - 1)


def _added(count, more):
    return jnp.minimum(count, _MOST - more) + more


@jax.jit
def _update(state: Stream, A, B) -> Stream:
    finite = jnp.all(jnp.isfinite(A)) & jnp.all(jnp.isfinite(B))
    A, B = (jnp.where(finite, x, 0) for x in (A, B))
    F, G = _joined(state.F, state.G, A, B)
    return Stream(
        F=F,
        G=G,
        columns=jnp.where(finite, _added(state.columns, jnp.int32(A.shape[1])), state.columns),
        chunks=state.chunks + 1,
        bad=jnp.where((state.bad < 0) & ~finite, state.chunks, state.bad),
    )


def _joined(F, G, A, B):
    """[F, A] and [G, B] in F's and G's shapes, the rows scaled to equal lengths for the merge."""
    unit, s, both = equilibrated(jnp.concatenate([F, A], 1))
    F, A = jnp.split(both, [F.shape[1]], axis=1)
    F, G = gram.compressed(A, B, (F, G))
    return times(times(F, 1 / s[:, None]), 1 / unit), G


@jax.jit
def _merge(one: Stream, two: Stream) -> Stream:
    F, G = _joined(one.F, one.G, two.F, two.G)
    theirs = jnp.where(two.bad < 0, -1, one.chunks + two.bad)
    return Stream(
        F=F,
        G=G,
        columns=_added(one.columns, two.columns),
        chunks=one.chunks + two.chunks,
        bad=jnp.where(one.bad < 0, theirs, one.bad),
    )


def _factor(state: Stream, rcond) -> Factor:
    return Factor.of(state.F, rcond, state.columns.astype(real_dtype(state.F.dtype)))


@partial(jax.jit, static_argnums=(1, 2))
def _estimate(state: Stream, rtol: float, rcond: float | None) -> Solution:
    answer = _factor(state, rcond).estimate(state.G, rtol)
    return solution_of(answer.value, answer, state.bad < 0, rtol)


@jax.jit
def _read_again(p: SecondPass, A, B) -> SecondPass:
    gradient, _ = gram.gradient(A, B, p.W)
    return dataclasses.replace(
        p,
        gradient=p.gradient + gradient,
        squares_A=p.squares_A + jnp.square(lengths(A)),
        squares_B=p.squares_B + jnp.square(lengths(B)),
        columns=_added(p.columns, jnp.int32(A.shape[1])),
    )


@partial(jax.jit, static_argnums=1)
def _corrected(p: SecondPass, rtol: float) -> Solution:
    """W + R A⁺ with R A⁺ = (R Aᴴ) F⁺ᴴ F⁺: the first of these has the length of what A explains of R."""
    explained = adjoint(p.factor.right(adjoint(p.gradient), rtol).value)
    correction = p.factor.estimate(explained, rtol)
    size = matmul(jnp.abs(p.W), jnp.sqrt(p.squares_A)[:, None])[:, 0] + jnp.sqrt(p.squares_B)
    error = jnp.where(p.columns == p.stream.columns, worst(safe_divide(norm(explained, 1), size)), jnp.inf)
    return solution_of(p.W + correction.value, correction._replace(error=error), p.stream.bad < 0, rtol)
