"""What a run tested, in sentences and tables: which parts of the machine, how long, with which software."""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import combinations, islice

from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.text import count_text
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import RunRecord, in_utc
from pytest_ddpscale.util.listing import by_number, first_few

_MOST_NAMED = 5
_IN_WORDS = {"survey": "survey", "probes": "probes", "training": "training", "pairs": "node pairs"}
# Packages on the first page, with their titles there.
_FOREMOST = {
    "driver": "driver", "cuda": "CUDA", "nccl": "NCCL", "torch": "torch", "pytest_ddpscale": "pytest-ddpscale",
}  # fmt: skip


def tested_text(coverage: Coverage) -> str:
    """``8 of 8 nodes, 64 of 64 GPUs``."""
    tested, gpus = sum(1 for node in coverage.nodes if node.tested_by), len(coverage.gpus)
    gpus_text = f", {gpus - len(coverage.idle_gpus)} of {count_text(gpus, 'GPU')}" if gpus else ""
    return f"{tested} of {count_text(coverage.node_count, 'node')}{gpus_text}"


def took_text(run: RunRecord, coverage: Coverage | None) -> str:
    """``14.6 min, 15.6 GPU-hours``; empty for a run that was not measured from its beginning to its end."""
    if not run.finished_at or run.is_simulated() or run.is_imported or run.resumed:
        return ""
    minutes = (in_utc(run.finished_at) - run.began).total_seconds() / 60
    if minutes < 0:  # the clock was set back
        return ""
    gpus = sum(bool(gpu.tested_by) for gpu in coverage.gpus) if coverage else 0
    return f"{minutes:.1f} min" + (f", {minutes * gpus / 60:.1f} GPU-hours" if gpus else "")


def summary(coverage: Coverage) -> list[str]:
    """Sentences about nodes, GPUs and paths."""
    sentences = [f"Tested: {tested_text(coverage)}."]
    if not coverage.is_on_several_nodes:
        return sentences
    if coverage.unnamed_nodes:
        sentences.append(f"{count_text(coverage.unnamed_nodes, 'node')} never answered.")
    sentences.append(
        f"{count_text(len(coverage.over_all_nodes), 'requirement')} decided by all nodes together."
        if coverage.over_all_nodes
        else "No requirement was decided by all nodes together."
    )
    measured, there_are = len(coverage.paths), count_text(coverage.paths_there_are, "path")
    sentences.append(f"{measured} of {there_are} between nodes measured directly.")
    missing = coverage.paths_there_are - measured
    if missing:
        within = "within the requirements of all nodes together" if coverage.over_all_nodes else "not at all"
        tested = {(path.node, path.other) for path in coverage.paths}
        untested = (pair for pair in combinations(range(len(coverage.nodes)), 2) if pair not in tested)
        paths = [" – ".join(coverage.nodes[at].host for at in pair) for pair in islice(untested, _MOST_NAMED)]
        named = first_few(paths, _MOST_NAMED, count=missing)
        sentences.append(f"The others were tested {within}: {named}." if named else f"The others: {within}.")
    return sentences


def node_rows(coverage: Coverage) -> list[list[str]]:
    """Host, what tested it, how many of its GPUs were tested, and what is missing; incomplete hosts first."""
    idle = {gpu.place for gpu in coverage.idle_gpus}
    rows = []
    for node in coverage.nodes:
        untested = [gpu for gpu in node.gpus if gpu.place in idle]
        tested_by = ", ".join(_IN_WORDS.get(kind, kind) for kind in node.tested_by) or "nothing"
        gpus = f"{len(node.gpus) - len(untested)} of {len(node.gpus)}" if node.gpus else ABSENT
        lacks = f"left out: {node.left_out}" if node.left_out else first_few(list(map(_gpu, untested)), _MOST_NAMED)
        rows.append([node.host, tested_by, gpus, lacks or ABSENT])
    rows.sort(key=lambda row: (row[-1] == ABSENT, by_number(row[0])))
    return rows


def path_rows(coverage: Coverage) -> list[list[str]]:
    """Both nodes, their bandwidth, its ratio to the median of all paths, and the number of rounds; slowest first."""
    hosts = [node.host for node in coverage.nodes]
    rows, median = [], statistics.median([path.gbps for path in coverage.paths] or [0.0])
    for path in sorted(coverage.paths, key=lambda path: (path.gbps, path.node, path.other)):
        ends = f"{hosts[path.node]} – {hosts[path.other]}"
        rows.append([ends, f"{path.gbps:.3g} GB/s", f"{path.gbps / median:.2f}×", str(path.rounds)])
    return rows


def _gpu(gpu: GpuCoverage) -> str:
    return f"{gpu.place.name}: {gpu.problem or 'took no part'}"


def software_versions(run: RunRecord, evidence: Evidence | None) -> dict[str, str]:
    """Version by name, ``570.1``; where nodes differ, ``570.1 (14 nodes), 565.3 (2 nodes)``.

    Versions come from the ranks; from the surveys if the ranks did not report one, or if nodes differ.
    """
    surveys = evidence.surveys.values() if evidence else ()
    found = run.versions | (evidence.versions if evidence else {})
    names = dict.fromkeys(name for survey in surveys for name, version in survey.versions.items() if version)
    for name in names:
        of_nodes = Counter(version for survey in surveys if (version := survey.versions.get(name)))
        if len(of_nodes) > 1:
            counted = (f"{version} ({count_text(count, 'node')})" for version, count in of_nodes.most_common())
            found[name] = ", ".join(counted)
        else:
            found.setdefault(name, next(iter(of_nodes)))
    return found


def software_line(versions: dict[str, str]) -> str:
    """``driver 570.1, CUDA 13.2, torch 2.15.0``; empty if the run recorded none."""
    return ", ".join(f"{title} {versions[name]}" for name, title in _FOREMOST.items() if name in versions)
