"""Only modules that nothing else loads are charged to the plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.scripts import benchmark

plugin_load = benchmark("plugin_load")

IMPORTTIME = """\
import time: self [us] | cumulative | imported package
import time:       134 |        134 |   _io
import time:      1500 |       1634 | pytest_ddpscale.settings
a warning that is no import time:  5 | 6
"""


def _starts(*starts: tuple[float, dict[str, int]]) -> list[Any]:
    return [plugin_load.Start(cpu_ms, self_us) for cpu_ms, self_us in starts]


def test_self_times_are_read_and_the_heading_is_not() -> None:
    assert plugin_load.self_times_us(IMPORTTIME) == {"_io": 134, "pytest_ddpscale.settings": 1500}


def test_a_module_that_is_loaded_anyway_is_not_the_plugins() -> None:
    with_plugin = _starts((0, {"os": 900, "ours": 1000}), (0, {"os": 900, "ours": 3000}))
    without = _starts((0, {"os": 900}), (0, {"os": 900}))
    assert plugin_load.added_by_module_ms(with_plugin, without) == {"ours": 2.0}


def test_the_sum_of_each_start_is_taken_before_the_median() -> None:
    with_plugin = _starts(*((0, {"a": a, "b": 10_000 - a}) for a in (0, 1000, 10_000)))
    assert plugin_load.added_import_ms(with_plugin, _starts((0, {}))) == 10.0


def test_cpu_times_are_compared_start_by_start() -> None:
    with_plugin = _starts((110, {}), (215, {}), (330, {}))
    without = _starts((100, {}), (200, {}), (300, {}))
    assert plugin_load.added_cpu_ms(with_plugin, without) == 15
    assert plugin_load.added_to_fastest_ms(with_plugin, without) == 10


def test_starts_are_as_a_user_has_them(tmp_path: Path) -> None:
    inherited = {"PATH": "/bin", "PYTEST_ADDOPTS": "-x", "DDPSCALE_GPU_SKU": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    assert plugin_load.user_environment(inherited, tmp_path) == {"PATH": "/bin", "PYTHONPYCACHEPREFIX": str(tmp_path)}
