"""A site for each test, out of reach of the variables and devices of the machine it runs on."""

from __future__ import annotations

import os

import pytest

from tests.forks.start import address
from tests.plugin.site import Site


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all processes share: a cache of fonts, which each would build in its home, and byte code."""
    address("", "light")  # starts at home
    return str(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def site(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, shared: str) -> Site:
    """A project with acceptance tests and thresholds, on a machine without a GPU."""
    for name in [name for name in os.environ if name.startswith("DDPSCALE_")]:
        monkeypatch.delenv(name)
    for name in ("CI", "BUILD_NUMBER"):  # with which pytest's short summary is not cut
        monkeypatch.delenv(name, raising=False)
    given = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120", "MPLCONFIGDIR": shared, "TESTS_BYTE_CODE": shared}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return Site(pytester)
