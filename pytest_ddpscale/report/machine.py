"""What was tested, and what is wrong with each node: nodes, devices, software."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.words.verdicts import culprit_name, culprit_text, verdict_word
from pytest_ddpscale.run.coverage import INFERENCE, PROBES, TRAINING, Coverage, NodeCoverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.run_json import RunRecord, in_utc
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Culprit, Judgement, Verdict
from pytest_ddpscale.util.document import Block, Closed, Line, Listing, Note, Table, first_rows
from pytest_ddpscale.util.listing import by_number, count_text, first_few, first_nodes

ALL_ROWS_UP_TO = 64
_MOST_NAMED = 5
_MOST_TOPOLOGIES = 10
_Findings = list[tuple[Verdict, Culprit]]
_UNKNOWN = ("", ABSENT, ABSENT)  # what a node was tested by
_TITLES = ("Node", "Requirements", "Tested by", "Devices tested")
_OF_NODES = "Nodes with a failure, a suspicion or an untested part, the worst first, with their requirements"
# Packages on the first page, with their titles there.
_FOREMOST = {
    "driver": "driver", "cuda": "CUDA", "nccl": "NCCL", "torch": "torch", "pytest_ddpscale": "pytest-ddpscale",
}  # fmt: skip


def machine_blocks(judgement: Judgement, evidence: Evidence) -> Iterator[Block]:
    """A table of the nodes that something is wrong with, all others, and how GPUs are connected."""
    coverage = judgement.coverage or Coverage()
    missed = [verdict for verdict in judgement.verdicts if not verdict.passed]
    idle = {gpu.place for gpu in coverage.idle_gpus}
    tested = {node.host: _tested(node, idle) for node in coverage.nodes}
    named: dict[str, _Findings] = {host: [] for host, (lacks, *_) in tested.items() if lacks}
    for verdict in missed:
        for culprit in verdict.accused:
            for host in culprit.hosts:
                named.setdefault(host, []).append((verdict, culprit))
    known = {*(tested if judgement.coverage else evidence.hosts), *named}
    troubled = sorted(named, key=lambda host: (-sum(culprit.is_certain for _, culprit in named[host]), by_number(host)))
    rows = [(host, _findings_text(named[host]), *tested.get(host, _UNKNOWN)[1:]) for host in troubled]
    shown = first_rows(Table(_TITLES, rows, _OF_NODES, style="nodes"), ALL_ROWS_UP_TO)
    notes = ([tested.get(host, _UNKNOWN)[0], *_remarks(named[host])] for host in troubled[:ALL_ROWS_UP_TO])
    yield shown._replace(below={number: Note(lines) for number, lines in enumerate(notes, 1)})
    if sound := known - named.keys():
        who = count_text(len(sound), "other node" if named else "node")
        text = f"{who}: {'named by no failure' if missed else 'all requirements met'}"
        yield Closed(text, [Line(first_nodes(sound, ALL_ROWS_UP_TO))])
    if coverage.unnamed_nodes:
        yield Line(f"{count_text(coverage.unnamed_nodes, 'further node')} never answered.")
    together = ", ".join(coverage.over_all_nodes)
    yield Line(f"Decided by all nodes together: {together}." if together else "")
    for number, (names, matrix) in enumerate(topologies(evidence.surveys.values())):
        yield Closed(f"Topology{', differs from most nodes' * bool(number)}: {names}", [Listing(matrix)])


def _tested(node: NodeCoverage, idle: Collection[Place]) -> tuple[str, str, str]:
    """What was not tested on a node, what it was tested by, and how many of its GPUs were."""
    untested = [gpu for gpu in node.gpus if gpu.place in idle]
    gpus = f"{len(node.gpus) - len(untested)} of {len(node.gpus)}" if node.gpus else ABSENT
    tested_by = ", ".join(node.tested_by).replace("pairs", "node pairs") or "nothing"
    names = first_few([f"{gpu.place.name}: {gpu.problem or 'took no part'}" for gpu in untested], _MOST_NAMED)
    lacks = f"left out: {node.left_out}" if node.left_out else f"not tested: {names}" if names else ""
    measured = {PROBES, TRAINING, INFERENCE} & set(node.tested_by)
    return lacks or ("" if measured else "no measurement"), tested_by, gpus


def _findings_text(findings: _Findings) -> str:
    """``7 failed, 2 suspected``: requirements that name the node, each by the worst that is said."""
    words: dict[str, str] = {}
    for verdict, culprit in sorted(findings, key=lambda finding: not finding[1].is_certain):
        is_fault = culprit.is_certain and verdict.outcome in ("failed", "error")
        words.setdefault(verdict.id, verdict_word(verdict) if is_fault else "suspected")
    return ", ".join(f"{number} {word}" for word, number in Counter(words.values()).items()) or ABSENT


def _remarks(findings: _Findings) -> list[str]:
    """One line for each named GPU, link or node, the certain ones first."""
    seen: dict[str, str] = {}
    for _, culprit in sorted(findings, key=lambda finding: not finding[1].is_certain):
        doubt = "" if culprit.is_certain else "suspected: "
        seen.setdefault(culprit_name(culprit, full_uuid=True), doubt + culprit_text(culprit))
    remarks = [*seen.values()]
    more = [f"{len(remarks) - _MOST_NAMED} more: culprits.csv lists all"]
    return remarks[:_MOST_NAMED] + more * bool(remarks[_MOST_NAMED:])


def topologies(surveys: Iterable[Survey]) -> list[tuple[str, str]]:
    """Hosts that share an `nvidia-smi topo -m`, and that; the most common first."""
    hosts = defaultdict[str, list[str]](list)
    for survey in surveys:
        if survey.topology:
            hosts[survey.topology].append(survey.host)
    ordered = sorted(hosts.items(), key=lambda one: -len(one[1]))
    return [(first_nodes(names, 8), matrix) for matrix, names in ordered[:_MOST_TOPOLOGIES]]


def hosts_table(evidence: Evidence) -> Table:
    """The devices of each host, with their clock and temperature at the end of a stretch of training."""
    hosts = sorted(ranks_by_host(evidence.gangs).items(), key=lambda one: by_number(one[0]))
    gangs = {gang.gang: gang.places for gang in evidence.gangs}
    hot = {
        gangs[record.gang][
            stretch.rank
        ].identity: f" ({stretch.sm_clock_mhz or 0:.0f} MHz, {stretch.temperature_c or 0:.0f} °C)"
        for record in evidence.sustained.values()
        for stretch in record.ranks
        if stretch.sm_clock_mhz or stretch.temperature_c
    }
    rows = [
        (
            host,
            "; ".join(
                f"{rank.place.name}: {rank.device_name}{hot.get(rank.place.identity, '')}" for rank in ranks[:16]
            ),
        )
        for host, ranks in hosts
    ]
    return first_rows(Table(("Host", "Devices"), rows), ALL_ROWS_UP_TO, "measurements.jsonl")


def tested_text(coverage: Coverage) -> str:
    """``8 of 8 nodes, 64 of 64 GPUs, 28 of 28 node pairs``."""
    tested, gpus = sum(bool(node.tested_by) for node in coverage.nodes), len(coverage.gpus)
    counts = [(tested, coverage.node_count, "node")]
    counts += [(gpus - len(coverage.idle_gpus), gpus, "GPU")] * bool(gpus)
    counts += [(len(coverage.paths), coverage.paths_there_are, "node pair")] * coverage.is_on_several_nodes
    return ", ".join(f"{some} of {count_text(all_, noun)}" for some, all_, noun in counts)


def took_text(run: RunRecord, coverage: Coverage | None) -> str:
    """``14.6 min, 15.6 GPU-hours``; empty for a run that was not measured from its beginning to its end."""
    if not run.finished_at or run.is_simulated() or run.is_imported or run.resumed:
        return ""
    minutes = max((in_utc(run.finished_at) - run.began).total_seconds() / 60, 0.0)  # the clock may be set back
    gpus = sum(bool(gpu.tested_by) for gpu in coverage.gpus) if coverage else 0
    return f"{minutes:.1f} min" + (f", {minutes * gpus / 60:.1f} GPU-hours" if gpus else "")


def software_versions(run: RunRecord, evidence: Evidence) -> dict[str, str]:
    """Version by name, ``570.1``; where nodes differ, ``570.1 (14 nodes), 565.3 (2 nodes)``.

    Versions come from the ranks; from the surveys if the ranks did not report one, or if nodes differ.
    """
    surveys = evidence.surveys.values()
    versions = run.versions | evidence.versions
    names = dict.fromkeys(name for survey in surveys for name, version in survey.versions.items() if version)
    for name in names:
        of_nodes = Counter(version for survey in surveys if (version := survey.versions.get(name)))
        if len(of_nodes) > 1:
            counted = (f"{version} ({count_text(count, 'node')})" for version, count in of_nodes.most_common())
            versions[name] = ", ".join(counted)
        else:
            versions.setdefault(name, next(iter(of_nodes)))
    return versions


def software_line(versions: dict[str, str]) -> str:
    """``driver 570.1, CUDA 13.2, torch 2.15.0``; empty if the run recorded none."""
    return ", ".join(f"{title} {versions[name]}" for name, title in _FOREMOST.items() if name in versions)
