"""Tests that ask for more than the lowest version of a package that pyproject.toml allows."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def since(package: str, first: str, what: str) -> pytest.MarkDecorator:
    """Skips a test where an older version of a package is installed.

    Args:
        package: its distribution.
        first: version that does what the test asks for.
        what: that is.
    """
    found = version(package)
    return pytest.mark.skipif(Version(found) < Version(first), reason=f"{package} {found}: {what} from {first} on")
