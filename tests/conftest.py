"""One environment for every test: 8 virtual CPU devices, strict promotion, x64 only where asked for."""

import os
import shutil
import tempfile

# Under pytest-xdist every worker would open a BLAS pool as wide as the machine; one thread each is enough.
# It has to be said before numpy is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

import hypothesis
import jax
import jax.numpy as jnp
import pytest

# Before the first computation: afterwards the backend is fixed and these updates raise.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Most of the time goes into compiling, and xdist's workers, which inherit this variable, compile the same programs.
_OWNER = "EAGLE_JAX_TEST_CACHE" not in os.environ
if _OWNER:
    os.environ["EAGLE_JAX_TEST_CACHE"] = tempfile.mkdtemp(prefix="eagle_jax_")
_CACHE = os.environ["EAGLE_JAX_TEST_CACHE"]
jax.config.update("jax_compilation_cache_dir", _CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def pytest_sessionfinish():
    if _OWNER:
        shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Modules marked `float32_is_slow` leave their float32 cases to `make test-slow`."""
    for item in items:
        if item.get_closest_marker("float32_is_slow") and "float32" in item.name:
            item.add_marker(pytest.mark.slow)


# deadline: a first call compiles. The health check: `x64` and `dtype` set the same state for every example.
hypothesis.settings.register_profile(
    "eagle_jax",
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("eagle_jax")


@pytest.fixture(scope="module", autouse=True)
def _programs_are_freed():
    """A compiled program is many small mappings of memory, of which a process may have 65 530."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """Enable 64-bit types during the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=[jnp.float32, jnp.float64], ids=["float32", "float64"])
def dtype(request):
    """Run the test in float32 with x64 off, and in float64 with x64 on; yields the dtype."""
    with jax.enable_x64(request.param == jnp.float64):
        yield request.param


@pytest.fixture
def cheap_compilation():
    """These tests compile many small programs and run each once: optimising them takes four times as long."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
