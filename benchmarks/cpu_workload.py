"""The bounds of the SKU ``cpu`` in thresholds.yaml: the median and the range of each requirement over runs.

    for number in 1 2 3 4 5; do pytest --gpu-sku=cpu --ddp-run-dir=OUT/$number; done
    python benchmarks/cpu_workload.py OUT

The medians are the published values of thresholds.yaml.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any


def verdicts_of(folder: Path) -> list[dict[str, Any]]:
    """The verdicts of a run that were measured."""
    judged = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    return [one for one in judged["verdicts"] if one["value"] is not None]


def bounds(out: Path) -> Iterator[str]:
    """Median and range of each requirement's value, in its unit, as Markdown."""
    values: dict[str, list[float]] = {}
    bound: dict[str, str] = {}
    folders = sorted(path.parent for path in out.glob("*/verdicts.json"))
    for folder in folders:
        for one in verdicts_of(folder):
            values.setdefault(one["id"], []).append(one["value"])
            bound[one["id"]] = " ".join(f"{side} {number:g}" for side, number in one["bound"].items())
    yield f"{len(folders)} runs\n"
    yield "| requirement | median | least | most | bound |\n| --- | ---: | ---: | ---: | --- |"
    for name, found in values.items():
        yield f"| {name} | {median(found):.4g} | {min(found):.4g} | {max(found):.4g} | {bound[name]} |"


def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder of run directories")
    print(*bounds(parser.parse_args().out), sep="\n")


if __name__ == "__main__":
    main()
