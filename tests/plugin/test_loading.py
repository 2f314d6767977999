"""What the plugin costs those who do not measure: nothing heavy is imported."""

from __future__ import annotations

import json

import pytest

from tests.plugin.site import Site

HEAVY = {
    *("torch", "torchvision", "numpy", "msgspec", "pydantic", "yaml"),
    *("matplotlib", "prometheus_client", "rich", "pynvml", "psutil"),
}
HEAVY_FOR_PLANNING = {"torch", "torchvision", "matplotlib", "prometheus_client"}


def imported(site: Site, *arguments: str) -> set[str]:
    """Names of the top-level modules that are loaded after ``pytest ARGUMENTS``."""
    code = (
        "import json, sys, pytest\n"
        f"code = pytest.main({[*arguments]!r})\n"
        "print()\n"
        "print(json.dumps({'code': int(code), 'modules': sorted({name.partition('.')[0] for name in sys.modules})}))\n"
    )
    result = site.python(code)
    found = json.loads(result.outlines[-1])
    assert found["code"] == 0, result.outlines
    assert "pytest_ddpscale" in found["modules"]
    return set(found["modules"])


def test_the_plugin_alone_imports_nothing_heavy(site: Site) -> None:
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import pytest_ddpscale.plugin\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('pytest_ddpscale')))\n"
    )
    result = site.python(code)
    assert result.ret == 0
    others = set(json.loads(result.outlines[-1].replace("'", '"')))
    assert not {name.partition(".")[0] for name in others} & HEAVY


def test_collecting_other_tests_imports_nothing_heavy(site: Site) -> None:
    site.write("test_other.py", "def test_other():\n    pass\n")
    assert not imported(site, "--collect-only", "test_other.py") & HEAVY


def test_running_other_tests_imports_nothing_heavy(site: Site) -> None:
    site.write("test_other.py", "def test_other():\n    pass\n")
    assert not imported(site, "test_other.py") & HEAVY


@pytest.mark.parametrize("sku", ["b200", "cpu"])
def test_planning_imports_neither_torch_nor_what_draws_reports(site: Site, sku: str) -> None:
    site.thresholds.unlink()
    modules = imported(site, "--collect-only", f"--gpu-sku={sku}", "acceptance")
    assert not modules & HEAVY_FOR_PLANNING
    assert {"pydantic", "yaml"} <= modules, "thresholds were read, so this test looks at the right process"


def test_judging_imports_no_torch(site: Site) -> None:
    site.measured()
    assert "torch" not in imported(site, "--ddp-judge=measured")
