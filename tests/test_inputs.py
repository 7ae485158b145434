"""Bad input fails before tracing, with a message that names the argument and the remedy."""

import warnings

import jax
import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax import Solution, Stats, Status, raise_if_failed

F32 = np.float32


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


A, B, C = ones(4, 3), ones(2, 3), ones(4, 1)


@pytest.mark.parametrize(
    ("blocks", "kind", "message"),
    [
        ((A, ones(2, 5), C), ValueError, "B has 5 columns but A has 3"),
        ((A, B, ones(5, 1)), ValueError, "C has 5 rows but A has 4"),
        ((ones(4), B, C), ValueError, r"A has shape \(4,\); expected a matrix"),
        ((A.astype(int), B, C), TypeError, "A is int64; expected float32, float64, complex64 or complex128"),
        ((A, B.astype(bool), C), TypeError, "B is bool; expected float32, float64, complex64 or complex128"),
        ((A, B, C.astype(np.complex64)), TypeError, "C is complex64 but A is float(32|64); cast one"),
        (
            (A.astype(np.float16), B, C),
            TypeError,
            "A is float16; expected float32, .*astype",
        ),
        ((jnp.asarray(A, jnp.bfloat16), B, C), TypeError, "A is bfloat16; expected"),
        (([[1, 2], [3, 4]], B, C), TypeError, "A is int64; expected"),
        (
            (A.astype(np.float64), B, C),
            TypeError,
            "A is float64 but JAX's 64-bit mode is off.*jax_enable_x64",
        ),
    ],
)
def test_solve_names_the_offending_block(blocks, kind, message):
    with pytest.raises(kind, match=message):
        eagle_jax.solve(*blocks)
    with pytest.raises(kind, match=message):
        eagle_jax.trajectory(*blocks, steps=1)


def test_batches():
    with pytest.raises(ValueError, match=r"the leading dimensions of .* do not broadcast"):
        eagle_jax.solve(ones(2, 4, 3), B, ones(3, 4, 1))
    with pytest.raises(ValueError, match=r"A has shape \(2, 4, 3\); expected a matrix .* use jax.vmap"):
        eagle_jax.trajectory(ones(2, 4, 3), B, C, steps=1)


def test_mixed_dtypes(x64):
    with pytest.raises(TypeError, match="B is float32 but A is float64; cast one of them"):
        eagle_jax.solve(A.astype(float), B, C.astype(float))


def test_the_other_drivers_check_too():
    with pytest.raises(ValueError, match="B has 5 columns but A has 3"):
        eagle_jax.estimate(A, ones(2, 5))
    with pytest.raises(ValueError, match="B has 5 columns but A has 3"):
        eagle_jax.factor(A).estimate(ones(2, 5))
    with pytest.raises(ValueError, match="b has 3 rows but a has 4"):
        eagle_jax.lstsq(A, ones(3))
    with pytest.raises(ValueError, match="b has 1 rows but a has 4"):
        eagle_jax.lstsq(A, ones(4, 1, 1))
    with pytest.raises(ValueError, match="C has 5 rows but A has 4"):
        eagle_jax.factor(A).solve(B, ones(5, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rtol": 0.0}, "rtol=0.0; expected a number between float32's eps=1.2e-07 and 1"),
        ({"rtol": -1e-3}, "rtol=-0.001"),
        ({"rtol": float("nan")}, "rtol=nan"),
        ({"rtol": 1.0}, "rtol=1.0"),
        ({"rcond": -1.0}, "rcond=-1.0; expected a number from 0 to less than 1"),
        ({"rcond": 2}, "rcond=2"),
        ({"max_steps": 0}, "max_steps=0; expected a positive integer"),
        ({"max_steps": 2.5}, "max_steps=2.5; expected a positive integer"),
        ({"max_steps": True}, "max_steps=True; expected a positive integer"),
        (
            {"schedule": "fast"},
            r"schedule='fast' is not known; use one of \['optimal', 'paper', 'emergent'\]",
        ),
        ({"schedule": (0.3,)}, "neither a name .* nor a pair"),
        ({"schedule": (0.3, "x")}, "neither a name .* nor a pair"),
        ({"schedule": None}, "neither a name .* nor a pair"),
        ({"schedule": (-0.3, 1.0)}, "needs eta > 0, gamma > 0"),
        ({"schedule": (0.3, 0.0)}, "needs eta > 0, gamma > 0"),
        ({"schedule": (0.3, float("nan"))}, "needs eta > 0, gamma > 0"),
    ],
)
def test_settings_say_what_is_accepted(settings, message):
    for call in (lambda **s: eagle_jax.solve(A, B, C, **s), lambda **s: eagle_jax.lstsq(A, ones(4), **s)):
        with pytest.raises(ValueError, match=message):
            call(**settings)


def test_trajectory_follows_plain_steps_only():
    with pytest.raises(ValueError, match='use schedule="paper", "emergent" or'):
        eagle_jax.trajectory(A, B, C, steps=2, schedule="optimal")


def solution(*statuses):
    status = np.array(statuses[0] if len(statuses) == 1 else statuses, np.int32)
    number = np.full(status.shape, 0.25, F32)
    return Solution(number, status, Stats(status, number, number, number, status))  # type: ignore[arg-type]


def test_raise_if_failed_returns_what_converged():
    for good in (solution(Status.CONVERGED), solution(Status.CONVERGED, Status.CONVERGED)):
        assert raise_if_failed(good) is good


@pytest.mark.parametrize("status", list(Status)[1:])
def test_raise_if_failed_says_why(status):
    with pytest.raises(eagle_jax.SolveError, match=f"^{status.name}: .*backward error 2.5e-01") as caught:
        raise_if_failed(solution(status))
    assert status.message in str(caught.value)


def test_raise_if_failed_counts_lanes():
    with pytest.raises(eagle_jax.SolveError, match="2 of 3 lanes failed; the first: STAGNATED"):
        raise_if_failed(solution(Status.CONVERGED, Status.STAGNATED, Status.NONFINITE))


def test_raise_if_failed_refuses_tracers():
    with pytest.raises(TypeError, match="call raise_if_failed on the result"):
        jax.jit(lambda s: raise_if_failed(s))(solution(Status.CONVERGED))


def test_the_broken_jaxlib_is_named():
    with pytest.warns(RuntimeWarning, match=r"jaxlib 0\.10\.2 computes wrong numbers"):
        eagle_jax._warn_if_jaxlib_is_wrong("0.10.2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eagle_jax._warn_if_jaxlib_is_wrong("0.10.1")


def test_the_condition_number_of_nan_is_nan():
    A = jnp.array([[1.0, jnp.nan], [0.0, 1.0]])
    assert jnp.isnan(eagle_jax.condition_number(A)) and eagle_jax.condition_number(jnp.zeros((2, 2))) == 1


def test_numpys_integers_are_integers_and_traced_settings_are_named():
    A = jnp.eye(2)
    assert eagle_jax.solve(A, A, A, max_steps=np.int64(30), schedule="paper").status == int(Status.CONVERGED)
    for name in ("rtol", "rcond"):
        with pytest.raises(TypeError, match=f"{name} is traced"):
            jax.jit(lambda x, name=name: eagle_jax.solve(A, A, A, **{name: x}).value)(1e-3)


def test_lists_have_jaxs_precision():
    x = eagle_jax.lstsq([[1.0, 0.0], [0.0, 2.0]], [1.0, 4.0]).value
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, [1, 2], rtol=1e-6)


def test_what_only_holds_an_array_is_named_with_the_way_out():
    pandas, sparse = pytest.importorskip("pandas"), pytest.importorskip("scipy.sparse")
    for block, fix in (
        (pandas.DataFrame(A), r"A is a pandas DataFrame.*A\.to_numpy\(\)"),
        (sparse.csr_matrix(A), r"A is a scipy csr_matrix.*A\.toarray\(\)"),
        (jax.experimental.sparse.BCOO.fromdense(jnp.asarray(A)), r"A is a jax BCOO.*A\.todense\(\)"),
    ):
        with pytest.raises(TypeError, match=fix):
            eagle_jax.solve(block, B, C)
        with pytest.raises(TypeError, match=fix.replace("A is", "a is").replace("A\\.", "a\\.")):
            eagle_jax.lstsq(block, ones(4))


def test_b_is_a_vector_only_if_it_has_one_dimension():
    """As in numpy 2: a batch of vectors is b[..., None]."""
    a = jnp.stack([jnp.eye(4, 3), 2 * jnp.eye(4, 3), 4 * jnp.eye(4, 3), 8 * jnp.eye(4, 3)])
    b = jnp.arange(16.0).reshape(4, 4)
    assert eagle_jax.lstsq(a, b).value.shape == (4, 3, 4)
    assert eagle_jax.lstsq(a, b[..., None]).value.shape == (4, 3, 1)
    assert eagle_jax.lstsq(a, b[0]).value.shape == (4, 3)
    assert eagle_jax.factor(a.mT).lstsq(b[0]).value.shape == (4, 3)
    with pytest.raises(ValueError, match=r"b has 2 rows but a has 4.*a batch of vectors is b\[..., None\]"):
        eagle_jax.lstsq(a[:2], b[:2])


def test_options_that_nobody_reads_are_refused():
    with pytest.raises(ValueError, match="acceleration='krylov' without axis_name"):
        eagle_jax.solve(A, B, C, acceleration="krylov")
    with pytest.raises(TypeError, match=r"rcond=\[0.1\]; expected a number"):
        eagle_jax.solve(A, B, C, rcond=[0.1])
