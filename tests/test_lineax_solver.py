"""EAGLE inside lineax: what lineax's own tests ask of a solver, against its SVD."""

import doctest
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import Status
from tests import helpers

lineax = pytest.importorskip("lineax")

from eagle_jax import lineax_solver  # noqa: E402
from eagle_jax.lineax_solver import EAGLE  # noqa: E402


@pytest.fixture(autouse=True)
def standard_promotion(cheap_compilation, x64):
    """lineax mixes dtypes inside."""
    with jax.numpy_dtype_promotion("standard"):
        yield


# name: rows, columns, rank
SHAPES = {"square": (5, 5, 5), "wide": (4, 7, 4), "deficient": (7, 5, 3)}


def matrix(rows, columns, rank, seed=0):
    rng = np.random.default_rng([rows, columns, seed])
    return jnp.asarray(helpers.with_spectrum(rng, rows, columns, np.linspace(1, 3, rank)))


def vector(n, seed=0):
    return jnp.asarray(np.random.default_rng([n, seed]).standard_normal(n))


def solve(a, b, solver):
    return lineax.linear_solve(lineax.MatrixLinearOperator(a), b, solver).value


def assert_same(found, expected, tolerance=1e-12):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, atol=tolerance * max(1, np.abs(y).max()))


def test_example():
    with jax.enable_x64(False):
        result = doctest.testmod(lineax_solver)
    assert result.attempted > 3 and result.failed == 0


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=() if name == "deficient" else pytest.mark.slow) for name in SHAPES]
)
def test_value_and_derivatives(shape):
    """Both modes in operator and vector, rank-preserving directions: the pseudo-inverse has no others."""
    rows, columns, rank = SHAPES[shape]
    a, b = matrix(*SHAPES[shape]), vector(rows)
    # The derivative of (I + t P) a (I + t Q).
    P, Q = matrix(rows, rows, rows, seed=1), matrix(columns, columns, columns, seed=2)
    da, db = P @ a + a @ Q, vector(rows, seed=3)
    reference = lineax.SVD() if rank < min(rows, columns) else lineax.AutoLinearSolver(well_posed=None)

    @partial(jax.jit, static_argnums=0)
    def value_jvp_vjp(solver):
        value, push = jax.linearize(lambda a, b: solve(a, b, solver), a, b)
        return value, push(da, db), jax.linear_transpose(push, a, b)(vector(columns, seed=4))

    assert_same(value_jvp_vjp(EAGLE()), value_jvp_vjp(reference), 1e-11)


@pytest.mark.slow
def test_vmap_over_operator_and_vector():
    a = jnp.stack([matrix(*SHAPES["deficient"], seed=s) for s in range(3)])
    b = jnp.stack([vector(7, seed=s) for s in range(3)])
    for axes in ((0, None), (None, 0)):
        arguments = [x if axis == 0 else x[0] for x, axis in zip((a, b), axes, strict=True)]
        found, expected = (
            jax.vmap(lambda a, b, solver=solver: solve(a, b, solver), axes)(*arguments)
            for solver in (EAGLE(), lineax.SVD())
        )
        assert_same(found, expected)


def test_transpose_and_conj_of_a_state():
    operator = lineax.MatrixLinearOperator(matrix(*SHAPES["wide"]))
    solver = EAGLE()
    state = solver.init(operator, {})
    for transformed, expected in (
        (solver.transpose(state, {})[0], solver.init(operator.T, {})),
        (solver.conj(state, {})[0], solver.init(lineax.conj(operator), {})),
        (solver.transpose(solver.transpose(state, {})[0], {})[0], state),
    ):
        np.testing.assert_array_equal(transformed.matrix, expected.matrix)
        assert transformed.structures == expected.structures
    b = vector(7)
    reused = lineax.linear_solve(operator.T, b, solver, state=solver.transpose(state, {})[0]).value
    assert_same(reused, lineax.linear_solve(operator.T, b, lineax.SVD()).value)


def test_pytrees_and_operators_without_a_matrix():
    """in: a dict; out: a tuple; the operator is a function."""
    a = matrix(7, 4, 4)

    def function(x):
        y = a @ jnp.concatenate([x["left"], x["right"].ravel()])
        return y[:3].reshape(3, 1), y[3:]

    given = {"left": jax.ShapeDtypeStruct((2,), a.dtype), "right": jax.ShapeDtypeStruct((1, 2), a.dtype)}
    operator = lineax.FunctionLinearOperator(function, given)
    b = vector(7)
    b = (b[:3].reshape(3, 1), b[3:])
    found, expected = (lineax.linear_solve(operator, b, solver).value for solver in (EAGLE(), lineax.SVD()))
    assert set(found) == {"left", "right"}
    assert_same(found, expected)


def test_failures_are_lineax_results():
    easy, b = matrix(*SHAPES["square"]), vector(5)
    small = 1e-300 * jnp.eye(5)  # the answer is out of range

    def run(a, b, throw=False):
        return lineax.linear_solve(lineax.MatrixLinearOperator(a), b, EAGLE(), throw=throw)

    found = jax.vmap(run)(jnp.stack([easy, easy, small]), jnp.stack([b, b.at[0].set(jnp.nan), 1e10 * b]))
    result, stats = found.result, found.stats
    expected = (lineax.RESULTS.successful, lineax.RESULTS.nonfinite_input, lineax.RESULTS.breakdown)
    for lane, meaning in enumerate(expected):
        assert jax.tree.map(lambda x, lane=lane: x[lane], result) == meaning
    assert stats["status"].tolist() == [Status.CONVERGED, Status.NONFINITE, Status.BREAKDOWN]
    assert stats["backward_error"][0] < 1e-14
    with pytest.raises(Exception, match=r"NaN|finite"):
        run(easy, b.at[0].set(jnp.nan), throw=True)


def test_every_status_has_a_result():
    """One each; INCONSISTENT belongs to machines and sketches."""
    seen = [lineax_solver._result(jnp.asarray(int(s), jnp.int32)) for s in Status if s != Status.INCONSISTENT]
    assert len({int(result._value) for result in seen}) == len(Status) - 1
    assert seen[0] == lineax.RESULTS.successful and seen[2] == lineax.RESULTS.conlim
    assert seen[3] == lineax.RESULTS.stagnation and seen[5] == lineax.RESULTS.breakdown


def test_complex_operators():
    a = matrix(*SHAPES["square"]) + 1j * matrix(*SHAPES["square"], seed=5)
    operator, b = lineax.MatrixLinearOperator(a), vector(5) + 1j * vector(5)[::-1]
    found, expected = (lineax.linear_solve(operator, b, solver).value for solver in (EAGLE(), lineax.SVD()))
    assert_same(found, expected)


def test_without_lineax_the_fix_is_named():
    """And the package itself imports without it."""
    code = (
        "import sys; sys.modules['lineax'] = None; import eagle_jax\n"
        "try:\n    import eagle_jax.lineax_solver\n"
        "except ImportError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert "pip install lineax" in said
