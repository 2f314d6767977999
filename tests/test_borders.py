"""The borders of docs/design.md, held by reading every import of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pytest_ddpscale"
EVERYBODY = {"errors", "packaged", "orphans", "masking", ""}  # "" is the package itself, for its version
ALLOWED: dict[str, set[str]] = {
    "plan": set(),
    "telemetry": {"results"},
    "thresholds": {"plan"},
    "results": {"plan", "thresholds"},
    "sku": {"thresholds", "settings", "plan"},
    "metrics": {"plan", "results"},
    "verdict": {"plan", "results", "thresholds", "metrics"},
    "history": {"plan", "results", "thresholds", "metrics", "verdict"},
    "report": {"plan", "results", "metrics", "verdict", "history"},
    "simulate": {"plan", "results", "thresholds", "verdict", "metrics"},
    "launch": {"plan", "results", "node"},
    "node": {"results", "sku", "telemetry"},
    "worker": {"plan", "results", "telemetry"},
    "settings": {"plan"},
    "errors": set(),
    "packaged": set(),
    "orphans": set(),
    "masking": set(),
}
TOP = {
    "plugin",
    "fixtures",
    "session",
    "opening",
    "planning",
    "admission",
    "interim",
    "unjudged",
    "past",
    "cluster",
    "devices",
    "resuming",
    "cli",
}
THIRD_PARTY: dict[str, set[str]] = {
    "pytest": {"plugin", "fixtures"},
    "pytest_jsonreport": {"plugin"},
    "torch": {"worker"},
    "torchvision": {"worker"},
    "pydantic": {"thresholds"},
    "yaml": {"thresholds"},
    "jinja2": {"report"},
    "matplotlib": {"report"},
    "psutil": {"node"},
    "pynvml": {"sku", "telemetry"},
}


def part_of(module: Path) -> str:
    relative = module.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(module: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_go_one_way(module: Path) -> None:
    part = part_of(module)
    if part in TOP:
        return
    own = {name.partition(".")[2].partition(".")[0] for name in imports(module) if name.startswith("pytest_ddpscale")}
    assert own <= ALLOWED[part] | EVERYBODY | {part}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_each_dependency_is_used_where_it_belongs(module: Path) -> None:
    for name in imports(module):
        library = name.partition(".")[0]
        if library in THIRD_PARTY:
            assert part_of(module) in THIRD_PARTY[library], f"{library} is imported by {module}"


def test_every_part_has_a_rule() -> None:
    parts = {part_of(module) for module in MODULES}
    assert parts <= set(ALLOWED) | TOP
