"""A site for each test, out of reach of the variables and devices of the machine it runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.prepared import PreparedPytest
from tests.plugin.site import Site


@pytest.fixture(scope="session")
def matplotlib_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of fonts that all processes share; each would build its own in the home that pytester gives it."""
    return tmp_path_factory.mktemp("matplotlib")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, matplotlib_cache: Path) -> Iterator[PreparedPytest]:
    """What starts pytest for all sites."""
    server = PreparedPytest(tmp_path_factory.mktemp("byte-code"), matplotlib_cache)
    yield server
    server.close()


@pytest.fixture
def site(
    pytester: pytest.Pytester, prepared: PreparedPytest, monkeypatch: pytest.MonkeyPatch, matplotlib_cache: Path
) -> Site:
    """A project with acceptance tests and thresholds, on a machine without a GPU."""
    for name in [name for name in os.environ if name.startswith("DDPSCALE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("MPLCONFIGDIR", str(matplotlib_cache))
    monkeypatch.setenv("COLUMNS", "120")
    return Site(pytester, prepared)
