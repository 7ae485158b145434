"""Columns in chunks: the answers of all of them together, whatever the chunks were."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax import Status, stream

WIDTHS = (30, 0, 1, 47, 122)  # 200 columns


def made(dtype, kappa, rank=6):
    d, n, rng = 6, sum(WIDTHS), np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((m, rank)))[0] for m in (d, n))
    return ((U * np.geomspace(1, 1 / kappa, rank)) @ V.T).astype(dtype), rng.standard_normal((2, n)).astype(dtype)


def fed(state, A, B, widths=WIDTHS):
    ends = np.cumsum(widths)
    for start, end in zip(ends - widths, ends, strict=True):
        state = state.update(A[:, start:end], B[:, start:end])
    return state


def expected(A, B, rank):
    U, s, Vt = np.linalg.svd(A.astype(float), full_matrices=False)
    return (B.astype(float) @ Vt[:rank].T / s[:rank]) @ U[:, :rank].T


def off(W, X):
    return np.linalg.norm(np.asarray(W, float) - X) / np.linalg.norm(X)


@pytest.mark.parametrize(
    ("dtype", "kappa", "rank"),
    [(np.float64, 1e2, 6), (np.float64, 1e10, 6), (np.float64, 1e3, 4), (np.float32, 1e3, 6)],
)
def test_chunks_give_the_answer_of_the_whole(x64, dtype, kappa, rank):
    """A Gram matrix would have no digit left at 1e10."""
    A, B = made(dtype, kappa, rank)
    state = fed(stream(6, 2, dtype), A, B)
    W, status, stats = state.estimate()
    assert status == int(Status.CONVERGED) and stats.rank == rank
    assert (int(state.columns), int(state.chunks), int(state.bad)) == (200, len(WIDTHS), -1)
    bound = 30 * np.finfo(dtype).eps * kappa * (1 + kappa * np.linalg.norm(B) / np.linalg.norm(expected(A, B, rank)))
    assert off(W, expected(A, B, rank)) <= bound
    C = np.ones((6, 1), dtype)
    np.testing.assert_allclose(state.solve(C).value, W @ C, rtol=1e-4)


def test_rows_of_any_size_keep_their_digits(x64):
    A, B = made(np.float64, 1e2)
    grades = np.geomspace(1, 1e-12, 6)[:, None]
    W = fed(stream(6, 2, np.float64), grades * A, B).estimate().value
    assert off(W * grades.T, expected(A, B, 6)) <= 1e-11


def test_merging_is_the_same_as_reading_on(x64):
    A, B = made(np.float64, 1e3)
    empty = stream(6, 2, np.float64)
    parts = [fed(empty, A[:, a : a + 50], B[:, a : a + 50], (20, 30)) for a in range(0, 200, 50)]
    left = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3])
    right = parts[0].merge(parts[1].merge(parts[2].merge(parts[3]))).merge(empty)
    for state in (left, right):
        assert int(state.columns) == 200 and int(state.chunks) == 8
        assert off(state.estimate().value, expected(A, B, 6)) <= 1e-11
        np.testing.assert_allclose(state.F @ state.F.T, A @ A.T, atol=1e-14)


def test_a_chunk_with_nan_is_named_and_left_out(x64):
    A, B = made(np.float64, 1e2)
    dirty = A.copy()
    dirty[2, 31] = np.nan
    good = np.r_[0:30, 78:200]  # all but the chunk of 47 columns and the one before it, which is the bad one
    state = fed(
        stream(6, 2, np.float64), np.delete(dirty, np.s_[31:78], 1), np.delete(B, np.s_[31:78], 1), (30, 1, 122)
    )
    assert int(state.bad) == -1
    state = fed(stream(6, 2, np.float64), dirty, B, (30, 48, 122))
    W, status, _ = state.estimate()
    assert int(state.bad) == 1 and status == int(Status.NONFINITE) and np.all(np.isnan(W))
    solution = eagle_jax.raise_if_failed(state.without_bad().estimate())
    assert off(solution.value, expected(A[:, good], B[:, good], 6)) <= 1e-12
    first = fed(stream(6, 2, np.float64), A, B)
    assert int(first.merge(state).bad) == len(WIDTHS) + 1


def test_a_stream_is_a_pytree(x64):
    A, B = made(np.float64, 1e2)
    chunks = tuple(jnp.asarray(x).reshape(len(x), 10, 20).swapaxes(0, 1) for x in (A, B))
    empty = stream(6, 2, np.float64)
    scanned, _ = jax.lax.scan(lambda state, chunk: (state.update(*chunk), None), empty, chunks)
    one_by_one = fed(empty, A, B, (20,) * 10)
    chex.assert_trees_all_close(scanned, one_by_one, rtol=1e-13)
    leaves, tree = jax.tree.flatten(one_by_one)
    stored = jax.tree.unflatten(tree, [np.asarray(leaf) for leaf in leaves])  # bit for bit
    more = A[:, :20], B[:, :20]
    chex.assert_trees_all_equal(stored.update(*more), one_by_one.update(*more))
    both = jax.vmap(lambda A, B: stream(6, 2, np.float64).update(A, B).estimate().value)(*chunks)
    assert off(both[3], expected(A[:, 60:80], B[:, 60:80], 6)) <= 1e-11


def test_a_second_pass_measures_the_whole_data(x64):
    A, B = made(np.float64, 1e2)
    state = fed(stream(6, 2, np.float64), A, B)
    exact = expected(A, B, 6)
    again = fed(state.second_pass(exact + 1e-6), A, B)
    W, status, stats = again.solution()
    assert status == int(Status.STAGNATED) and 1e-9 < stats.backward_error < 1e-5  # of what was given
    assert off(W, exact) <= 1e-12
    halves = state.second_pass(), state.second_pass()
    halves = fed(halves[0], A[:, :80], B[:, :80], (30, 50)), fed(halves[1], A[:, 80:], B[:, 80:], (120,))
    with pytest.raises(ValueError, match="80 columns were read in the second pass but 200"):
        halves[0].solution()
    assert np.isinf(jax.jit(lambda p: p.solution())(halves[0]).stats.backward_error)
    W, status, stats = halves[0].merge(halves[1]).solution()
    assert status == int(Status.CONVERGED) and off(W, exact) <= 1e-12


def test_an_empty_stream_knows_zero(x64):
    W, status, stats = stream(3, 1).estimate()
    assert status == int(Status.CONVERGED) and stats.rank == 0 and not np.any(W)


def test_what_does_not_fit_is_refused(x64):
    state = stream(3, 1)
    with pytest.raises(ValueError, match=r"A is float32 \(4, 5\); expected float32 with 3 rows"):
        state.update(np.zeros((4, 5), "f"), np.zeros((1, 5), "f"))
    with pytest.raises(ValueError, match="B has 4 columns but A has 5"):
        state.update(np.zeros((3, 5), "f"), np.zeros((1, 4), "f"))
    with pytest.raises(ValueError, match=r"other\.F is float32"):
        state.merge(stream(4, 1))
    with pytest.raises(ValueError, match="d=0; expected a positive integer"):
        stream(0, 1)
    with pytest.raises(TypeError, match="float16"):
        stream(2, 1, jnp.float16)
