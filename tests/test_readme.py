"""The README's example runs and prints what it says."""

import doctest
import pathlib


def test_readme_example():
    readme = pathlib.Path(__file__).parent.parent / "README.md"
    result = doctest.testfile(str(readme), module_relative=False)
    assert result.attempted > 5 and result.failed == 0
