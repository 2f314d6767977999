"""Findings of runs about hosts: which to drain, which to inspect, which may return to service.

`ddpscale culprits` prints them for people, and as tab-separated values for `slurm/drain_failed.sh`, which acts on them
and decides nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from msgspec import structs

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import PROBES
from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.causes import missing_gpus
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import Lost, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.run_record import ended
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Judgement, Verdict, open_judged, read_judged
from pytest_ddpscale.util.listing import first_few

Use = Literal["drain", "accepted", "look", "none"]
Done = tuple[str, str, str]  # kind of record, workload or probe, arm or world size
_LOOKED_AT: Done = ("survey", "", "")
REASON_PREFIX = "ddpscale: "  # drain_failed.sh recognizes the nodes that it drained by this
MOST_REASON_CHARACTERS = 180
NOBODY = "-"
TSV_HEADER = ("use", "host", "started_unix_s", "run", "reason")
_ALLOW_INCOMPLETE = "--ddp-allow-incomplete"
_LEAST_EVIDENCE = 40
# Whom `launch.gang_failure` names for a gang that made no progress.
_HELD_UP = re.compile(
    r"so (?:the gang|it) was ended\. (?:\d+ of \d+ ranks ha\w+ not come up: (.+?)\?|(.+?) (?:is|are|has|have|sent) )"
)
# Slurm cuts a reason at a number of bytes. Characters that a shell or scontrol may read as syntax are removed.
_ASCII = str.maketrans({"×": "x", "−": "-", "–": "-", "…": "...", "≥": "at least", "≤": "at most", "±": "+/-"})
_UNSAFE = frozenset("\"'`\\$|<>")


@dataclass(frozen=True)
class HostFinding:
    """What one run says about one host.

    Attributes:
        use: ``drain``: the run rejects the host. ``accepted``: the run accepts it and waives no failure of it.
            ``look``: a person has to judge. ``none``: nothing follows from the run.
        host: as the run recorded it; ``-`` if no host is meant.
        evidence: why, in one line.
        requirements: ids of the requirements for which the host is rejected; empty unless `use` is ``drain``.
        run: the run directory.
        started_unix_s: when the run began; 0 if nothing follows from it.
    """

    use: Use
    host: str
    evidence: str
    requirements: frozenset[str] = frozenset()
    run: Path = Path()
    started_unix_s: int = 0

    @property
    def reason(self) -> str:
        """For Slurm: ``ddpscale: … [2026-01-31/n7]``, printable ASCII without quotes, at most 180 characters."""
        absolute = self.run.absolute()
        where = f" [{_plain(f'{absolute.parent.name}/{absolute.name}')}]"
        room = MOST_REASON_CHARACTERS - len(REASON_PREFIX)
        where = where if len(where) <= room - _LEAST_EVIDENCE else ""
        evidence = _plain(self.evidence)
        if len(evidence) > room - len(where):
            evidence = evidence[: room - len(where) - 3] + "..."
        return f"{REASON_PREFIX}{evidence}{where}"


@dataclass(frozen=True)
class HostFindings:
    """Everything a run says about its hosts.

    If a run met every requirement it selected, even if it did not select all, `kept` has the ids of the requirements
    that passed, by the hosts that were measured for them.
    """

    findings: tuple[HostFinding, ...]
    started_unix_s: int = 0
    kept: Mapping[str, frozenset[str]] = field(default_factory=dict)


def read_findings(path: Path, *, rehearses: bool = False) -> HostFindings:
    """Findings of a run about its hosts, by its verdicts.

    A rehearsal treats a simulated run as if its machine had been measured, and refuses any other run.

    Raises:
        RunDirectoryError: `path` is neither a run directory nor a directory of verdicts, is broken, or was not judged.
    """
    run, judged = open_judged(path)
    record, judgement, gangs = run.read_run(), read_judged(run, judged), gangs_by_number(run.read_records()).values()
    aside = _set_aside(record, judgement, [place.uuid for gang in gangs for place in gang.places])
    began, why_not = int(record.began.timestamp()), _why_no_return(record)
    if rehearses:
        if aside != WATERMARK:
            raise OptionError("--rehearse", f"found {path}, a run of a real machine", "simulated runs")
        record, aside = structs.replace(record, status="finished"), None
    if aside is not None:
        return _findings(path, 0, [HostFinding("none", NOBODY, aside)])
    done, hosts = _done(run), sorted({host for gang in gangs for host in gang.hosts})
    if record.status != "finished":
        unfinished = f"its status is {record.status}: an unfinished run neither rejects nor accepts a host"
        named = [*_lost(run, hosts), *_accused(replace(judgement, outcome="incomplete"))]
        named = [replace(one, started_unix_s=began) for one in named]
        return _findings(path, 0, _for_a_person(unfinished, named))
    passed = [verdict for verdict in judgement.verdicts if verdict.passed]
    kept = {host: frozenset(one.id for one in passed if _took_part(one, what)) for host, what in done.items()}
    if judgement.accepts:
        # A rank that started but never measured proves nothing about its host; neither does a survey.
        trained = [host for host in hosts if any(kind == "measurement" for kind, *_ in done.get(host, ()))]
        findings = _accepted(judgement, trained)
        if why_not:
            findings = [HostFinding("none", NOBODY, f"accepted, but {why_not}: no node returns to service")]
        return _findings(path, began, findings, {host: kept[host] for host in trained})
    accused, lost = list(_accused(judgement)), list(_lost(run, hosts))
    if judgement.outcome == "rejected":
        # Include hosts on which no rank started.
        return _findings(path, began, [*_rejected(judgement, sorted({*hosts, *done}), accused), *lost])
    findings = _for_a_person(text.outcome_text(judgement), [*lost, *accused])
    return _findings(path, began, findings, kept if judgement.outcome == "partial" else {})


def _accepted(judgement: Judgement, trained: Sequence[str]) -> list[HostFinding]:
    """Every host that trained, except those named by a waived failure: a person decides about them.

    If a waived failure names no host, it may concern any of them, so none is accepted.
    """
    waived = replace(judgement, verdicts=tuple(judgement.waived))
    named = list(_accused(waived))
    unnamed = [verdict.id for verdict in judgement.waived if not verdict.culprits]
    if unnamed:
        why = f"{text.outcome_text(judgement)}: {first_few(unnamed)} failed without naming a host"
        return [HostFinding("look", NOBODY, why), *named]
    failing = {finding.host for finding in named}
    failing |= {host for verdict in judgement.waived for one in verdict.culprits for host in one.hosts}
    fit = [host for host in trained if text.one_line(host) not in failing]
    return [*(HostFinding("accepted", host, text.one_line(judgement.reason)) for host in fit), *named]


def _findings(
    path: Path, began: int, findings: Sequence[HostFinding], kept: Mapping[str, frozenset[str]] | None = None
) -> HostFindings:
    """The findings of a run, each with its directory and start time."""
    dated = (replace(one, run=path, started_unix_s=one.started_unix_s or began) for one in findings)
    return HostFindings(tuple(dated), began, kept or {})


def settled(runs: Sequence[HostFindings]) -> list[HostFinding]:
    """All findings; those that a later run contradicts become findings for a person."""
    return [_held_against(finding, runs) for run in runs for finding in run.findings]


def text_lines(findings: Sequence[HostFinding]) -> Iterator[str]:
    """For people: host, what to do, why, and which run says so."""
    words: dict[Use, str] = {"drain": "rejected", "accepted": "accepted", "look": "inspect", "none": "nothing to do"}
    for finding in findings:
        host = "" if finding.host == NOBODY else f"{text.one_line(finding.host)}: "
        yield f"{host}{words[finding.use]}: {text.one_line(finding.evidence)} [{text.one_line(str(finding.run))}]"


def tsv_lines(findings: Sequence[HostFinding]) -> Iterator[str]:
    """For scripts: a header, then a line for each finding; no field is empty or holds a tab."""
    yield "\t".join(TSV_HEADER)
    for finding in findings:
        fields = (finding.use, finding.host, str(finding.started_unix_s), str(finding.run), finding.reason)
        yield "\t".join(text.one_line(field) or NOBODY for field in fields)


def _set_aside(record: RunRecord, judgement: Judgement, devices: Sequence[str]) -> str | None:
    """Why nothing follows from a run for any host; None if something can."""
    if judgement.simulated or record.is_simulated(devices):
        return WATERMARK
    if record.is_imported:
        return "imported: measured by another tool, elsewhere"
    return None


def _lost(run: RunDirectory, hosts: Sequence[str]) -> Iterator[HostFinding]:
    """Nodes lost during the run, and those whose ranks held up all others: each for a person to judge, whatever the
    verdicts say about it."""
    records = run.read_records()
    why = {host: f"lost: {one.message}" for one in records if isinstance(one, Lost) for host in one.hosts}
    for message in ended(records, "error").values():
        held_up = _HELD_UP.search(message)
        named = (held_up[1] or held_up[2]).replace(",", " ").split() if held_up else ()
        why = {host: message.partition("\n")[0] for host in hosts if host in named} | why
    for host, message in why.items():
        yield HostFinding("look", host, text.one_line(message))


def _for_a_person(why: str, named: list[HostFinding]) -> list[HostFinding]:
    """Findings of a run that neither rejects nor accepts: nothing follows unless it names a host."""
    return [HostFinding("look" if named else "none", NOBODY, why), *named]


def _done(run: RunDirectory) -> dict[str, set[Done]]:
    """What was measured on each host: workloads with arms, probes with world sizes, surveys."""
    done: dict[str, set[Done]] = {}
    records = run.read_records()
    gangs = gangs_by_number(records)
    for record in records:
        if isinstance(record, Survey):
            done.setdefault(record.host, set()).add(_LOOKED_AT)
        elif isinstance(record, Block) and record.study != PAIRS:
            for host in {gangs[record.gang].ranks[rank].place.host for rank in record.each("ranks").tolist()}:
                done.setdefault(host, set()).add(_what(record))
    return done


def _what(block: Block) -> Done:
    if block.study == PROBES:
        name, _, world_size = block.arm.partition("@")
        return "probe", name, world_size or "1"
    return "measurement", block.study.partition("/")[2], block.arm


def _took_part(verdict: Verdict, done: Collection[Done]) -> bool:
    subject = METRICS[verdict.metric].subject
    if subject == "check":  # it passes only if all nodes pass
        return _LOOKED_AT in done
    if subject == "node":  # likewise
        return any(one != _LOOKED_AT for one in done)
    if subject == "probe":
        return ("probe", verdict.workload, str(verdict.world_size)) in done
    metric = METRICS[verdict.metric]
    kind = verdict.one_gpu if verdict.one_gpu and verdict.world_size == 1 else metric.measured
    kinds = (kind, "each") if metric.reads_own_pace else (kind,)  # the second of a compiled model
    arms = (Arm(one, verdict.world_size, placement=verdict.placement).name for one in kinds)
    return any(("measurement", verdict.workload, arm) in done for arm in arms)


def _why_no_return(record: RunRecord) -> str:
    """Why an accepted run returns no node to service; empty if it does."""
    if _ALLOW_INCOMPLETE in record.argv:
        return f"{_ALLOW_INCOMPLETE} was given"
    if record.resumed:
        return "it was resumed, and each session may have had other nodes"
    return ""


def _accused(judgement: Judgement) -> Iterator[HostFinding]:
    """One finding per use of each host that verdicts name, with every piece of evidence once."""
    accused: dict[tuple[str, Use], dict[str, list[Verdict]]] = {}
    missing = missing_gpus(judgement)
    certain = {c.identity for v in judgement.verdicts for c in v.culprits if c.kind == "gpu" and c.is_certain}
    for verdict in judgement.verdicts:
        others = (one for one in missing.get(verdict.id, ()) if one.identity not in certain)
        for culprit in (*verdict.culprits, *others):
            is_its_own = culprit.kind in ("node", "gpu") and culprit.is_certain
            use: Use = "drain" if is_its_own and _rejects(judgement, verdict) else "look"
            host = text.one_line(culprit.host) or NOBODY
            accused.setdefault((host, use), {}).setdefault(text.culprit_text(culprit), []).append(verdict)
    for (host, use), evidence in accused.items():
        if use == "drain":
            rejected_for = frozenset(verdict.id for verdicts in evidence.values() for verdict in verdicts)
            yield HostFinding(use, host, "; ".join(evidence), rejected_for)
            continue
        known = accused.get((host, "drain"), {})
        pieces = [
            f"{said} ({_listed(verdicts)})" for said, verdicts in evidence.items()
            if said not in known or any(verdict.is_waived for verdict in verdicts)
        ]  # fmt: skip
        if pieces:
            yield HostFinding(use, host, "; ".join(pieces))


def _listed(verdicts: Sequence[Verdict]) -> str:
    """What a culprit is named for: the first of many, and every waived one."""
    parts = [f"{text.one_line(one.id)}, {text.waiver_text(one)}" for one in verdicts if one.is_waived]
    others = [one for one in verdicts if not one.is_waived]
    if others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        parts.append(f"{text.verdict_word(others[0])} {text.one_line(others[0].id)}{more}")
    return "; ".join(parts)


def _rejects(judgement: Judgement, verdict: Verdict) -> bool:
    return judgement.outcome == "rejected" and verdict.outcome == "failed" and verdict.blocks()


def _rejected(judgement: Judgement, hosts: Sequence[str], accused: list[HostFinding]) -> list[HostFinding]:
    """Findings of a rejected run. If no host is named, a single host is blamed, but none of several."""
    if any(finding.use == "drain" for finding in accused):
        return accused
    failed = [verdict for verdict in judgement.verdicts if _rejects(judgement, verdict)]
    evidence = text.one_line(judgement.reason)
    if failed:
        first, more = failed[0], len(failed) - 1
        name = f"{first.metric} {text.short_name(first)}"
        evidence = f"{name} {digits.point_text(first)}, bound {digits.bound_text(first)}"
        evidence += f": {despite}" if (despite := text.despite_text(first)) else ""
        evidence += f" and {more} more failed" if more else ""
    if len(hosts) == 1:
        requirements = frozenset(verdict.id for verdict in failed)
        return [HostFinding("drain", hosts[0], evidence, requirements), *accused]
    nobody = f"rejected ({evidence}), but no node or GPU is {'certain to be at fault' if accused else 'named'}"
    return [HostFinding("look", NOBODY, nobody), *accused]


def _held_against(finding: HostFinding, runs: Sequence[HostFindings]) -> HostFinding:
    """The finding, or one for a person if a run that began later contradicts it.

    A later run contradicts a rejection only if it measured the failed requirements and met them.
    """
    for run in runs:
        if run.started_unix_s <= finding.started_unix_s:
            continue
        if finding.use == "drain" and finding.host in run.kept and finding.requirements <= run.kept[finding.host]:
            return replace(finding, use="look", evidence=f"{finding.evidence}; a later run found nothing")
        rejected = {other.host for other in run.findings if other.use == "drain"}
        if finding.use == "accepted" and finding.host in rejected:
            return replace(finding, use="look", evidence=f"{finding.evidence}; a later run rejects it")
    return finding


def _plain(evidence: str) -> str:
    """Printable ASCII in one line, without what a shell or scontrol may read as syntax."""
    known = (one for one in text.one_line(evidence).translate(_ASCII) if one not in _UNSAFE)
    return "".join(one if one.isascii() else "?" for one in known)
