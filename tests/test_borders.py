"""The borders of CONTRIBUTING.md, held by reading every import of the package."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pytest_ddpscale"
EVERYBODY = {"errors", "removed", "util", ""}  # "" is the package itself, for its version
ALLOWED: dict[str, set[str]] = {
    "util": set(),
    "errors": set(),
    "removed": set(),
    "families": set(),
    "plan": {"families"},
    "settings": {"plan"},
    "thresholds": {"families", "plan"},
    "run": {"families", "plan", "thresholds"},
    "telemetry": {"run"},
    "sku": {"plan", "run", "thresholds"},
    "node": {"run", "telemetry"},
    "launch": {"plan", "run", "node", "settings"},
    "worker": {"datasets", "families", "plan", "run", "telemetry"},
    "judge": {"plan", "run", "thresholds"},
    "history": {"plan", "run", "thresholds", "judge"},
    "calibrate": {"settings", "report", "plan", "run", "thresholds", "judge", "history"},
    "report": {"families", "plan", "run", "judge", "history"},
    "compare": {"settings", "plan", "run", "judge", "history", "report", "suites"},
    "find_batch": {"settings", "plan", "run", "thresholds", "node", "launch", "report", "suites"},
    "datasets": {"families", "settings", "plan", "run"},
    "simulate": {"families", "settings", "plan", "run", "thresholds", "judge"},
}
TOP = {"session", "plugin", "cli", "suites"}
LOOSE = {"cli", "settings", "errors", "removed"}
THIRD_PARTY: dict[str, set[str]] = {
    "pytest": {"plugin"},
    "pytest_jsonreport": {"plugin"},
    "torch": {"datasets", "families", "node", "worker"},
    "torchvision": {"datasets", "families", "worker"},
    "pydantic": {"thresholds"},
    "yaml": {"thresholds"},
    "matplotlib": {"report"},
    "PIL": {"datasets"},
    "psutil": {"find_batch", "node", "worker"},
    "pynvml": {"telemetry"},
}


def part_of(module: Path) -> str:
    relative = module.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def nodes_of(module: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))


@cache
def imports(module: Path) -> set[str]:
    found: set[str] = set()
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_imports_go_one_way() -> None:
    others = {
        (str(module.relative_to(PACKAGE)), own)
        for module in MODULES
        for name in imports(module)
        if name.startswith("pytest_ddpscale")
        if (own := name.partition(".")[2].partition(".")[0]) != part_of(module)
        if part_of(module) not in TOP and own not in ALLOWED[part_of(module)] | EVERYBODY
    }
    assert others == set()


# What else may name a scheduler: options, which a user types, sentences, and files that `ddpscale init` copies.
MAY_NAME_SLURM = {
    "launch/slurm.py",
    "settings.py",
    "cli.py",
    "util/packaged.py",
    "report/culprits.py",
    "report/words/gangs.py",
}


def test_only_its_launcher_knows_a_scheduler() -> None:
    words = re.compile("slurm|srun|scontrol|sbatch|salloc", re.IGNORECASE)
    naming = {str(module.relative_to(PACKAGE)) for module in MODULES if words.search(module.read_text("utf-8"))}
    assert naming <= MAY_NAME_SLURM


def test_each_dependency_is_used_where_it_belongs() -> None:
    for module in MODULES:
        for library in {name.partition(".")[0] for name in imports(module)} & set(THIRD_PARTY):
            assert part_of(module) in THIRD_PARTY[library], f"{library} is imported by {module}"


def test_inside_a_package_each_module_and_each_public_class_has_a_name_of_its_own() -> None:
    modules = Counter((part_of(module), module.stem) for module in MODULES if not module.stem.startswith("__"))
    classes = Counter(
        (part_of(module), node.name)
        for module in MODULES
        for node in nodes_of(module)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, number in (modules + classes).items() if number > 1] == []


def test_nothing_is_loose_at_the_root() -> None:
    assert {module.stem for module in MODULES if module.parent == PACKAGE} == LOOSE


def test_every_part_has_a_rule() -> None:
    parts = {part_of(module) for module in MODULES}
    assert parts <= set(ALLOWED) | TOP


def test_warnings_are_errors_for_the_project_alone() -> None:
    """pyproject.toml is the product's configuration too, beside plugins whose warnings are not ours."""
    with pytest.raises(UserWarning):
        warnings.warn("a test may not warn", stacklevel=1)
    assert "filterwarnings" not in (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
