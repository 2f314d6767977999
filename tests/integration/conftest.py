from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gpu_run import gpu, gpu_run, sku

__all__ = ["gpu", "gpu_run", "sku"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try once more what failed: real ranks are timed here, on machines of which others take a share at any moment.

    A defect fails both times, and what passed only the second time is listed as rerun.
    """
    if not config.pluginmanager.hasplugin("rerunfailures"):  # on a GPU node it may be missing
        return
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.flaky(reruns=1))
