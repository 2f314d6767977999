"""The published numbers of thresholds.yaml against the lines that hold them, as benchmarks/sources.yaml lists them.

    python benchmarks/sources.py [THRESHOLDS] --copies DIR
    python benchmarks/sources.py

DIR holds clones, bare or not, as DIR/owner+name/repo, DIR/owner+name or DIR/owner/name; files of commits that a clone
lacks as DIR/owner+name@COMMIT/PATH. Without DIR only pages of this repository are read. In each case it checks that
margins lead to the bounds, that published ratios follow from the numbers beside them, and the formulas of provisional
rows. A published number agrees within half a unit of its last digit and 2 %, others within 1 %. Exit code 1 if one
differs, a line is missing, or a published number is not in the list.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from cited_files import ROOT, Wrong, files_of, reader
from reporting import argument_parser, keep, table
from threshold_arithmetic import arithmetic, compare, listed_values, rows_of, value_of

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds

COLUMNS = ("compared", "not stored", "not read")
NOTHING = 5e-5  # what counts as 0


def main() -> int:
    """Check and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("thresholds", type=Path, nargs="?", default=ROOT / "thresholds.yaml", metavar="THRESHOLDS")
    parser.add_argument("--copies", type=Path, metavar="DIR", help="clones of the cited repositories")
    parser.add_argument("--list", type=Path, default=ROOT / "benchmarks/sources.yaml", metavar="FILE",
                        help="the lines that hold the numbers; default: benchmarks/sources.yaml")  # fmt: skip
    options = parser.parse_args()
    if options.copies is not None and not options.copies.is_dir():
        parser.error(f"--copies: {options.copies} is no folder; expected one with clones of the cited repositories")
    try:
        file = load_thresholds(options.thresholds)
    except BadInput as error:
        parser.error(str(error))
    listed = yaml.safe_load(options.list.read_text(encoding="utf-8"))
    counts: dict[str, Counter[str]] = {}
    problems = [*source_problems(file, listed, options.copies, counts)]
    checks = list(arithmetic(file, listed["formulas"]))
    problems += [wrong for _, wrong in checks if wrong]
    if options.copies is None:
        print("no --copies: sources were not read; arithmetic, and pages of this repository, only")
    total = sum(counts.values(), Counter[str]())
    rows = [(name, *(str(found[one]) for one in COLUMNS)) for name, found in (*counts.items(), ("all", total))]
    print(table(("source", *COLUMNS), rows))
    kinds = Counter(kind for kind, _ in checks)
    if options.copies is not None and (unread := sorted(unread_copies(listed, options.copies))):
        print(f"not read: {options.copies} has no copy of {', '.join(unread)}")
    print("arithmetic:", ", ".join(f"{kinds[kind]} {kind}s" for kind in ("margin", "ratio", "formula")))
    print(*problems, f"{len(problems)} problems", sep="\n")
    keep(options.json, "sources", {"counts": counts, "arithmetic": kinds, "problems": problems})
    return min(len(problems), 1)


def source_problems(
    file: ThresholdsFile, listed: Mapping[str, Any], copies: Path | None, counts: dict[str, Counter[str]]
) -> Iterator[str]:
    """Compares published rows with the lines of a list, and counts them by source and outcome."""
    names = {" ".join(text.split()): name for layer in file.layers for name, text in layer.form.sources.items()}
    left = {key: one for key, one in rows_of(file).items() if one.source.reference}
    for block in listed["sources"]:
        source, at, seen = block["source"], block.get("at", ""), list[str]()
        files = {name: files_of(copies, at, path) for name, path in block.get("files", {}).items()}
        lines = {name: reader(line, seen) for name, line in (listed["lines"] | block.get("lines", {})).items()}
        column = "not stored" if "unstored" in block else "not read" if None in files.values() else "compared"
        for key, expression in (one for row in block["rows"] for one in listed_values(row)):
            one, what = left.pop(key, None), f"{' '.join(key)}: {source}, {at or block['unstored']}"
            text = "" if one is None else " ".join(str(one.source.reference).split())
            if one is None or names.get(text) != source:
                yield f"{what}: {file.path} has no such row of this source"
                continue
            counts.setdefault(source, Counter())[column] += 1
            if not _cites(text, at):
                yield f"{one.where}: {what}: its source cites another commit"
            seen.clear()
            try:
                if column != "not read":
                    compare(expression, {**lines, **files}, value_of(one), last_digit(value_of(one)))
            except Wrong as wrong:
                yield f"{one.where}: {what}: {wrong}; read {'; '.join(seen[:4]) or 'nothing'}{' …' * (len(seen) > 4)}"
    yield from (f"{one.where}: {' '.join(key)}: published, but not in the list" for key, one in left.items())


def unread_copies(listed: Mapping[str, Any], copies: Path) -> set[str]:
    """Repositories and commits of the list that a folder has no copy of."""
    files = ((block["at"], path) for block in listed["sources"] for path in block.get("files", {}).values())
    return {at for at, path in files if files_of(copies, at, path) is None}


def last_digit(written: float) -> float:
    """Half a unit of the last digit of a number; at most 2 % of it, as YAML keeps no trailing zeros."""
    digits = len(f"{written:.10g}".partition(".")[2])
    return min(0.5 * 10.0**-digits, 0.02 * abs(written) or NOTHING)


def _cites(text: str, at: str) -> bool:
    """Whether a source's text names the repository and, where it names commits of it, this one."""
    name, _, commit = at.partition("@")
    cited = re.findall(rf"{re.escape(name)}@([0-9a-f]+)", text)
    return not commit or (name in text and (not cited or any(commit.startswith(one) for one in cited)))


if __name__ == "__main__":
    sys.exit(main())
