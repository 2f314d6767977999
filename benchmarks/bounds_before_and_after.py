"""Every bound of the first form of thresholds.yaml beside today's, as Markdown.

    python benchmarks/bounds_before_and_after.py > docs/evidence/bounds.md

tests/data/first_form_bounds.csv has the bounds of the first form; tests/thresholds checks that no bound moved by more
than rounding.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement

ROOT = Path(__file__).parents[1]
Key = tuple[str, ...]


def main() -> None:
    """Print the list."""
    with (ROOT / "tests" / "data" / "first_form_bounds.csv").open(encoding="utf-8", newline="") as file:
        before = {_key_of_row(row): row for row in csv.DictReader(file)}
    skus = load_thresholds(ROOT / "thresholds.yaml").thresholds.skus
    after = {_key(name, one): one for name, sku in skus.items() for one in sku.requirements}
    moved = [(key, float(row["bound"]), after[key].bound) for key, row in before.items() if key in after]
    moved = [(key, old, new) for key, old, new in moved if old != new]
    print("# Bounds before and after the second form of thresholds.yaml\n")
    print("Made by `python benchmarks/bounds_before_and_after.py`.\n")
    print(
        f"{len(before)} requirements before, {len(after)} now: {len(before.keys() - after.keys())} gone, "
        f"{len(after.keys() - before.keys())} new, {len(moved)} bounds moved. Moved bounds had been rounded by hand; "
        "now they are the published value less its margin. Only rank_uniformity was tightened: "
        "[stragglers.md](stragglers.md).\n"
    )
    print("## Moved\n\n| SKU | Requirement | Before | Now | By |\n| --- | --- | ---: | ---: | ---: |")
    for key, old, new in moved:
        print(f"| {key[0]} | {after[key]} | {old:g} | {new:g} | {new / old - 1:+.2%} |")
    print("\n## New\n\n| SKU | Requirement | Bound | Severity |\n| --- | --- | ---: | --- |")
    for line in _new(before, after):
        print(line)


def _new(before: dict[Key, dict[str, str]], after: dict[Key, Requirement]) -> Iterator[str]:
    for key, one in after.items():
        if key not in before:
            yield f"| {key[0]} | {one} | {one.bound:g} | {one.severity}{', provisional' if one.provisional else ''} |"


def _key_of_row(row: dict[str, str]) -> Key:
    return tuple(row[name] for name in ("sku", "metric", "subject", "world_size", "placement", "versus", "severity"))


def _key(sku: str, one: Requirement) -> Key:
    return (sku, one.metric, one.subject, str(one.world_size), one.placement, one.versus or "", one.severity)


if __name__ == "__main__":
    main()
