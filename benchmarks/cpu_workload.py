"""The bounds of the SKU ``cpu`` in thresholds.yaml: the median and the range of each requirement over runs.

    for number in 1 2 3 4 5; do pytest --gpu-sku=cpu --ddp-run-dir=OUT/$number; done
    python benchmarks/cpu_workload.py OUT

The medians are the published values of thresholds.yaml; docs/evidence/cpu-two-cores.md has them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median

from reporting import argument_parser, table


def main() -> None:
    """Print."""
    parser = argument_parser(__doc__)
    parser.add_argument("out", type=Path, help="folder of run directories")
    values = defaultdict[tuple[str, str], list[float]](list)
    for file in sorted(parser.parse_args().out.glob("*/verdicts.json")):
        for one in json.loads(file.read_text(encoding="utf-8"))["verdicts"]:
            bound = " ".join(f"{side} {number:g}" for side, number in one["bound"].items())
            values[one["id"], bound] += [] if one["value"] is None else [one["value"]]
    measured = {key: found for key, found in values.items() if found}
    rows = [
        (name, len(found), f"{median(found):.4g}", f"{min(found):.4g}", f"{max(found):.4g}", bound)
        for (name, bound), found in measured.items()
    ]
    print(table(("requirement", "runs", "median", "least", "most", "bound"), rows))


if __name__ == "__main__":
    main()
