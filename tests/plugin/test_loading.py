"""What the plugin costs those who do not measure: nothing heavy is imported."""

from __future__ import annotations

import json
import sys

import pytest

from tests.plugin.site import Site
from tests.rows import rows

TORCH = {"torch"}
PLANNING = {"torchvision", "matplotlib", "prometheus_client"} | TORCH
HEAVY = {"numpy", "msgspec", "pydantic", "yaml", "rich", "pynvml", "psutil"} | PLANNING
CODE = """\
import json, sys, pytest
code = pytest.main({})
print()
print(json.dumps([int(code), sorted({{name.partition(".")[0] for name in sys.modules}})]))
"""


@rows(
    ("arguments", "heavy"),
    [(["other"], HEAVY), (["--ddp-judge=measured"], TORCH), (["--co", "--gpu-sku=b200", "acceptance"], PLANNING)],
)
def test_nothing_heavy_is_imported(
    site: Site, pytester: pytest.Pytester, arguments: list[str], heavy: set[str]
) -> None:
    site.reset()
    site.write("other/test_other.py", "def test_other(): pass")
    site.measured()
    if "--co" in arguments:
        site.thresholds.unlink()
    code, modules = json.loads(pytester.run(sys.executable, "-c", CODE.format(arguments), timeout=120).outlines[-1])
    assert (code, "pytest_ddpscale" in modules, {*modules} & heavy) == (0, True, set())
    assert ({"pydantic", "yaml"} <= {*modules}) == (heavy is not HEAVY), "thresholds were read"
