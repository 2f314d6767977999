"""The published numbers of thresholds.yaml against the lines that sources.yaml lists: docs/evidence/README.md.

    python benchmarks/sources.py [THRESHOLDS] --copies DIR
    python benchmarks/sources.py

DIR holds clones, bare or not, as DIR/owner/name. Without DIR only pages of this repository are read. In each case it
checks that margins lead to the bounds, that published ratios follow from the numbers beside them, and the formulas of
provisional rows. A published number agrees within half a unit of its last digit and 2 %, others within 1 %. Exit code 1
if one differs, a line is missing, or a published number is not in the list.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml
from reporting import argument_parser, table

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Requirement

ROOT = Path(__file__).parents[1]
HERE = "this repository"
Files = list[tuple[str, str]]  # path and text
COLUMNS = ("compared", "not stored", "not read")
NOTHING = 5e-5  # what counts as 0
WITHIN = 0.01  # of numbers computed from rounded ones
SPEED = "throughput_per_gpu"
FUNCTIONS = {"mean": mean, "median": median, "min": min, "max": max, "round": round, "int": int, "zip": zip}
Key = tuple[str, str, str, str]  # SKU, metric, workload or probe, world size
Rows = dict[Key, Requirement]


class Wrong(Exception):
    """No line of a source matches."""


@cache
def files_of(copies: Path | None, at: str, path: str) -> Files | None:
    """The file of ``owner/name@commit``, or all that a pattern with * matches; None without a clone of the commit.

    Args:
        copies: folder of clones, bare or not, as owner/name.
        at: repository and commit, or ``this repository``.
        path: in the repository.
    """
    if at == HERE:
        return [(path, (ROOT / path).read_text(encoding="utf-8"))]
    name, _, commit = at.partition("@")
    paths = _git(copies / name, "ls-tree", "-r", "--name-only", "-z", commit) if copies else None
    if copies is None or paths is None:
        return None
    found = (one for one in paths.split("\0") if fnmatch(one, path))
    return [(one, _git(copies / name, "show", f"{commit}:{one}") or "") for one in found]


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails, as in a clone without the commit."""
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def reader(line: str, seen: list[str]) -> Callable[..., float | list[float]]:
    """A function of files, and of a name in place of NAME, that gives the numbers of all lines that match.

    Args:
        line: regular expression with the number as its group.
        seen: collects path, line and number of each match.
    """

    def numbers(files: Files, name: str = "") -> float | list[float]:
        found, wanted = [], re.compile(line.replace("NAME", re.escape(name)), re.MULTILINE)
        for path, text in files:
            for match in wanted.finditer(text):
                found.append(float(match[1].replace(",", "")))
                seen.append(f"{path}:{text.count(chr(10), 0, match.start(1)) + 1} {match[1]}")
        if not found:
            raise Wrong(f"no line {wanted.pattern!r} in {', '.join(path for path, _ in files[:3]) or 'any file'}")
        return found[0] if len(found) == 1 else found

    return numbers


def rows_of(file: ThresholdsFile) -> Rows:
    """All rows of a file but node checks. Raises SystemExit if two differ only in placement or versus."""
    every = [
        (sku, requirement)
        for sku, entry in file.thresholds.skus.items()
        for requirement in entry.requirements
        if not requirement.check
    ]
    rows = {(sku, one.metric, one.subject, str(one.world_size)): one for sku, one in every}
    if len(rows) < len(every):
        raise SystemExit(
            f"{file.path}: rows that differ only in placement or versus; sources.yaml has no way to name them"
        )
    return rows


def value_of(requirement: Requirement) -> float:
    """The published value, or the bound of a row without one."""
    return requirement.bound if requirement.source.measured is None else requirement.source.measured


def listed_values(row: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Key and expression of each value of a row of sources.yaml, which has the form of a row of thresholds.yaml."""
    lists = {key: row[key] if isinstance(row.get(key), list) else [row.get(key, "")] for key in ("sku", "of", "probe")}
    for metric in (one for one in row if one not in lists):
        for size, expression in (row[metric] if isinstance(row[metric], dict) else {1: row[metric]}).items():
            for subject in lists["of" if "of" in row else "probe"]:
                yield from (((sku, metric, subject, str(size)), str(expression)) for sku in lists["sku"])


def difference(expression: str, names: Mapping[str, Any], written: float, within: float) -> str:
    """By what an expression differs from a number by more than `within`, or why it cannot be computed; else empty."""
    try:
        number = eval(expression, {"__builtins__": {}, **FUNCTIONS, **names})
        differs = abs(number - written) > within * 1.0001
    except Wrong as wrong:
        return str(wrong)
    except (TypeError, NameError, KeyError, AttributeError, ZeroDivisionError) as error:
        return f"{expression}: {type(error).__name__} {error}"
    return f"found {number:.6g} = {expression}, expected {written:.10g}" if differs else ""


def arithmetic(file: ThresholdsFile, formulas: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Kind of each check, and what is wrong or nothing: of all margins, of ratios, and of the listed formulas."""
    rows = rows_of(file)
    for key, one in rows.items():
        measured, margin = one.source.measured, one.source.margin_pct
        if measured is not None and margin is not None:
            side = 1 if one.definition.upper_bound else -1
            yield _checked("margin", key, f"{measured} * (1 + {side * margin} / 100)", {}, one, one.bound)
        expression = _ratio(rows, key)
        if measured is not None and expression:
            yield _checked("ratio", key, expression, {}, one, measured)
    for key, expression in (one for row in formulas for one in listed_values(row)):
        found = rows.get(key)
        names, written = ({}, 0.0) if found is None else (_names(file, rows, key), value_of(found))
        yield _checked("formula", key, expression, names, found, written)


def _checked(
    kind: str, key: Key, expression: str, names: Mapping[str, Any], requirement: Requirement | None, written: float
) -> tuple[str, str]:
    if requirement is None:
        return kind, f"{' '.join(key)}: {kind}: the thresholds have no such row"
    wrong = difference(expression, names, written, WITHIN * abs(written))
    return kind, f"{requirement.where}: {' '.join(key)}: {kind}: {wrong}" if wrong else ""


def _ratio(rows: Rows, key: Key) -> str:
    """What a published ratio should be by the numbers beside it; empty if it is none, or they are of other sources."""
    sku, metric, subject, size = key
    if metric == "strong_scaling_efficiency":
        speedup = rows.get((sku, "strong_scaling_speedup", subject, size))
        return f"{value_of(speedup)} / {size}" if speedup is not None and size.isdigit() else ""
    over = {"weak_scaling_efficiency": (sku, size), "generation_ratio": (sku, "1")}.get(metric)
    if over is None:
        return ""
    under = (str(rows[key].versus) if metric == "generation_ratio" else sku, "1")
    both = [rows.get((name, SPEED, subject, ranks)) for name, ranks in (over, under)]
    measured = [one and one.source.measured for one in both]
    return "" if None in measured else " / ".join(map(str, measured))


def _names(file: ThresholdsFile, rows: Rows, key: Key) -> dict[str, Any]:
    """What the formula of a row may use: its workload or probe, other rows' values and bounds, the batch, the peak."""
    sku, _, subject, _ = key

    def row(metric: str, subject: str = subject, size: object = 1, of: str = sku) -> Requirement:
        return rows[of, metric, subject, str(size)]

    entry = file.thresholds.skus[sku]
    batch = entry.workloads[subject].batch_size if subject in entry.workloads else None
    numbers = {"value": lambda *key, **more: value_of(row(*key, **more))}
    numbers["bound"] = lambda *key, **more: row(*key, **more).bound
    return {"subject": subject, "batch": batch, "peak": entry.peak, **numbers}


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
    sources, checks = [*source_checks(file, listed, options.copies)], [*arithmetic(file, listed["formulas"])]
    counts = Counter((name, column) for source, _, column, _ in sources if source for name in (source, "all"))
    names = [*dict.fromkeys(source for source, *_ in sources if source), "all"]
    print(table(("source", *COLUMNS), [(name, *(counts[name, one] for one in COLUMNS)) for name in names]))
    if unread := sorted({at for _, at, column, _ in sources if column == "not read"}):
        print("not read, for lack of", f"copies of {', '.join(unread)}" if options.copies else "--copies")
    kinds = Counter(kind for kind, _ in checks)
    print("arithmetic:", ", ".join(f"{kinds[kind]} {kind}s" for kind in ("margin", "ratio", "formula")))
    problems = [wrong for *_, wrong in (*sources, *checks) if wrong]
    print(*problems, f"{len(problems)} problems", sep="\n")
    return min(len(problems), 1)


def source_checks(
    file: ThresholdsFile, listed: Mapping[str, Any], copies: Path | None
) -> Iterator[tuple[str, str, str, str]]:
    """Compares published rows with a list's lines: source, repository, one of `COLUMNS`, what is wrong or nothing."""
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
                yield "", at, "", f"{what}: {file.path} has no such row of this source"
                continue
            seen.clear()
            wrong = difference(expression, lines | files, value_of(one), last_digit(value_of(one)))
            read = f"{'; '.join(seen[:4]) or 'nothing'}{' …' * (len(seen) > 4)}"
            wrong = f"{wrong}; read {read}" if wrong and column != "not read" else ""
            wrong = wrong if _cites(text, at) else "its source cites another commit"
            yield source, at, column, wrong and f"{one.where}: {what}: {wrong}"
    for key, one in left.items():
        yield "", "", "", f"{one.where}: {' '.join(key)}: published, but not in the list"


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
