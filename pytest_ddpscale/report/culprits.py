"""Findings of runs about hosts: which to drain, which to inspect, which may return to service.

`ddpscale culprits` prints them for people, and as tab-separated values for `slurm/drain_failed.sh`, which acts on them
and decides nothing itself. Hosts of ISOLATE causes are drained, the others that a run names are inspected.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.report import digits
from pytest_ddpscale.report.causes import causes, missing_gpus
from pytest_ddpscale.report.words.outcome import outcome_text
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.report.words.verdicts import culprit_text, despite_text, short_name, verdict_word, waiver_text
from pytest_ddpscale.run.coverage import INFERENCE, TRAINING, Coverage
from pytest_ddpscale.run.reason import each_in
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import Lost
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.run_record import ended
from pytest_ddpscale.run.verdicts import Judgement, Verdict, open_judged, read_judged
from pytest_ddpscale.util.listing import first_few, folded
from pytest_ddpscale.util.printable import one_line

Use = Literal["drain", "accepted", "look", "none"]
REASON_PREFIX = "ddpscale: "  # drain_failed.sh recognizes the nodes that it drained by this
MOST_REASON_CHARACTERS = 180
NOBODY = "-"
TSV_HEADER = ("use", "host", "started_unix_s", "run", "reason")
_ALLOW_INCOMPLETE = "--ddp-allow-incomplete"
_LONGEST_RUN = 100
_WORDS: Mapping[Use, str] = {
    "drain": "rejected", "accepted": "accepted", "look": "inspect", "none": "nothing to do",
}  # fmt: skip
# What a later run must say of a host to contradict a finding, and in words.
_AGAINST: Mapping[Use, tuple[Use, str]] = {"drain": ("accepted", "accepts"), "accepted": ("drain", "rejects")}
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
        run: the run directory.
        started_unix_s: when the run began; 0 if nothing follows from it.
        requirements: ids of those that reject the host, or that the run which accepts it met.
    """

    use: Use
    host: str
    evidence: str
    run: Path = Path()
    started_unix_s: int = 0
    requirements: frozenset[str] = frozenset()

    @property
    def reason(self) -> str:
        """For Slurm: ``ddpscale: … [2026-01-31/n7]``, printable ASCII without quotes, at most 180 characters."""
        absolute = self.run.absolute()
        where = f" [{_plain(f'{absolute.parent.name}/{absolute.name}')[-_LONGEST_RUN:]}]"
        room, evidence = MOST_REASON_CHARACTERS - len(REASON_PREFIX) - len(where), _plain(self.evidence)
        return f"{REASON_PREFIX}{evidence if len(evidence) <= room else evidence[: room - 3] + '...'}{where}"


def read_findings(path: Path, *, rehearses: bool = False) -> list[HostFinding]:
    """Findings of a run about its hosts, by its verdicts.

    A rehearsal treats a simulated run as if its machine had been measured, and refuses any other run.

    Raises:
        RunDirectoryError: `path` is neither a run directory nor a directory of verdicts, is broken, or was not judged.
    """
    run, judged = open_judged(path)
    record, judgement = run.read_run(), read_judged(run, judged)
    coverage = judgement.coverage or Coverage()
    is_simulated = judgement.simulated or record.is_simulated(gpu.place.uuid for gpu in coverage.gpus)
    if rehearses and not is_simulated:
        raise OptionError("--rehearse", f"found {path}, a run of a real machine", "simulated runs")
    if not rehearses and (is_simulated or record.is_imported):
        aside = WATERMARK if is_simulated else "imported: measured by another tool, elsewhere"
        return [HostFinding("none", NOBODY, aside, path)]
    tested = {node.host: node.tested_by for node in coverage.nodes if not node.left_out}
    lost, undated = [*_lost(run.read_records(), tested)], list[HostFinding]()
    began, is_finished = int(record.began.timestamp()), rehearses or record.status == "finished"
    if is_finished and judgement.accepts:
        why = "it was resumed, and each session may have had other nodes" if record.resumed else ""
        why = f"{_ALLOW_INCOMPLETE} was given" if _ALLOW_INCOMPLETE in record.argv else why
        findings = _accepted(judgement, [host for host, by in tested.items() if {TRAINING, INFERENCE} & {*by}])
        findings = (
            [HostFinding("none", NOBODY, f"accepted, but {why}: no node returns to service")] if why else findings
        )
    elif is_finished and judgement.outcome == "rejected":
        findings = [*_rejected(judgement, [*tested]), *lost]
    else:
        findings = [*lost, *_accused(replace(judgement, outcome="incomplete"))]
        use: Use = "look" if findings else "none"
        if not is_finished:
            why = f"its status is {record.status}: an unfinished run neither rejects nor accepts a host"
            undated = [HostFinding(use, NOBODY, why, path)]
        else:
            findings.insert(0, HostFinding(use, NOBODY, outcome_text(judgement)))
    return undated + [replace(finding, run=path, started_unix_s=began) for finding in findings]


def settled(findings: Sequence[HostFinding]) -> list[HostFinding]:
    """All findings; a host that a run rejects and a later one accepts, or the reverse, is for a person.

    A run that accepts contradicts only a rejection by requirements that it met.
    """
    findings_left, of_host = list[HostFinding](), defaultdict[tuple[str, Use], list[HostFinding]](list)
    for finding in findings:
        of_host[finding.host, finding.use].append(finding)
    for finding in findings:
        other, does = _AGAINST.get(finding.use, (finding.use, ""))
        doubt = f"{finding.evidence}; a later run {does} it"
        later = (after for after in of_host[finding.host, other] if after.started_unix_s > finding.started_unix_s)
        is_doubted = does and any(
            finding.use == "accepted" or finding.requirements <= after.requirements for after in later
        )
        findings_left.append(replace(finding, use="look", evidence=doubt) if is_doubted else finding)
    return findings_left


def text_lines(findings: Sequence[HostFinding]) -> Iterator[str]:
    """For people: host, what to do, why, and which run says so; once for a host that the same run rejects,
    and for nodes of which the same is said."""
    drained = {(finding.host, finding.run): [finding.evidence] for finding in findings if finding.use == "drain"}
    alike = defaultdict[str, list[str]](list)

    def is_repeated(finding: HostFinding) -> bool:
        return finding.use == "look" and (finding.host, finding.run) in drained

    for finding in filter(is_repeated, findings):
        drained[finding.host, finding.run].append(finding.evidence)
    for finding in itertools.filterfalse(is_repeated, findings):
        evidence = "; also ".join(drained.get((finding.host, finding.run), [finding.evidence]))
        alike[f"{_WORDS[finding.use]}: {one_line(evidence)} [{one_line(str(finding.run))}]"].append(finding.host)
    for text, hosts in alike.items():
        named = ", ".join(folded([one_line(host) for host in hosts if host != NOBODY]))
        yield f"{named}: {text}" if named else text


def tsv_lines(findings: Sequence[HostFinding]) -> Iterator[str]:
    """For scripts: a header, then a line for each finding; no field is empty or holds a tab."""
    yield "\t".join(TSV_HEADER)
    for finding in findings:
        fields = (finding.use, finding.host, str(finding.started_unix_s), str(finding.run), finding.reason)
        yield "\t".join(one_line(field) or NOBODY for field in fields)


def _accepted(judgement: Judgement, trained: Sequence[str]) -> list[HostFinding]:
    """Every host that trained, except those named by a waived failure: a person decides about them.

    If a waived failure names no host, it may concern any of them, so none is accepted.
    """
    named = [*_accused(replace(judgement, verdicts=tuple(judgement.waived)))]
    unnamed = [verdict.id for verdict in judgement.waived if not verdict.culprits]
    if unnamed:
        why = f"{outcome_text(judgement)}: {first_few(unnamed)} failed without naming a host"
        return [HostFinding("look", NOBODY, why), *named]
    failing = {host for verdict in judgement.waived for culprit in verdict.culprits for host in culprit.hosts}
    why, met = one_line(judgement.reason), frozenset(verdict.id for verdict in judgement.verdicts if verdict.passed)
    fit = [HostFinding("accepted", host, why, requirements=met) for host in trained if host not in failing]
    return [*fit, *named]


def _rejected(judgement: Judgement, hosts: Sequence[str]) -> list[HostFinding]:
    """Findings of a rejected run. If no host is named, a single host is blamed, but none of several."""
    accused = [*_accused(judgement)]
    if any(finding.use == "drain" for finding in accused):
        return accused
    failed, evidence = [verdict for verdict in judgement.verdicts if _rejects(verdict)], one_line(judgement.reason)
    if failed:
        first, more = failed[0], len(failed) - 1
        name, despite = f"{first.metric} {short_name(first)}", despite_text(first)
        evidence = f"{name} {digits.point_text(first)}, bound {digits.bound_text(first)}"
        evidence += f": {despite}" if despite else ""
        evidence += f" and {more} more failed" if more else ""
    if len(hosts) == 1:
        missed = frozenset(verdict.id for verdict in failed)
        return [HostFinding("drain", hosts[0], evidence, requirements=missed), *accused]
    nobody = f"rejected ({evidence}), but no node or GPU is {'certain to be at fault' if accused else 'named'}"
    return [HostFinding("look", NOBODY, nobody), *accused]


def _accused(judgement: Judgement) -> Iterator[HostFinding]:
    """One finding per use of each host that verdicts name, with every piece of evidence once."""
    accused: dict[tuple[str, Use], dict[str, list[Verdict]]] = {}
    isolated = {
        culprit.host for cause in causes(judgement) if cause.category == "ISOLATE" for culprit in cause.culprits
    }
    missing = missing_gpus(judgement)
    certain = {c.identity for v in judgement.verdicts for c in v.culprits if c.kind == "gpu" and c.is_certain}
    for verdict in judgement.verdicts:
        others = (culprit for culprit in missing.get(verdict.id, ()) if culprit.identity not in certain)
        for culprit in (*verdict.accused, *others):
            is_its_own = culprit.kind != "link" and culprit.is_certain and culprit.host in isolated
            use: Use = "drain" if is_its_own and _rejects(verdict) else "look"
            host = one_line(culprit.host) or NOBODY
            accused.setdefault((host, use), {}).setdefault(culprit_text(culprit), []).append(verdict)
    for (host, use), evidence in accused.items():
        pieces = [*evidence]
        if use == "look":
            known = accused.get((host, "drain"), {})
            pieces = [
                f"{sentence} ({_listed(verdicts)})" for sentence, verdicts in evidence.items()
                if sentence not in known or any(verdict.is_waived for verdict in verdicts)
            ]  # fmt: skip
        if pieces:
            named_by = frozenset(verdict.id for verdicts in evidence.values() for verdict in verdicts)
            yield HostFinding(use, host, "; ".join(pieces), requirements=named_by)


def _listed(verdicts: Sequence[Verdict]) -> str:
    """What a culprit is named for: the first of many, and every waived one."""
    parts = [f"{one_line(verdict.id)}, {waiver_text(verdict)}" for verdict in verdicts if verdict.is_waived]
    others = [f"{verdict_word(verdict)} {one_line(verdict.id)}" for verdict in verdicts if not verdict.is_waived]
    return "; ".join([*parts, *filter(None, [first_few(others, 1)])])


def _rejects(verdict: Verdict) -> bool:
    return verdict.outcome == "failed" and verdict.blocks()


def _lost(records: Sequence[AnyRecord], hosts: Collection[str]) -> Iterator[HostFinding]:
    """Nodes lost during the run, and those whose ranks held up all others: each for a person to judge, whatever the
    verdicts say about it."""
    why = {
        host: f"lost: {say(record.message)}" for record in records if isinstance(record, Lost) for host in record.hosts
    }
    for reason in ended(records, "error").values():
        stuck = (why.args[0][:3] for why in each_in(reason) if why.code.startswith("stuck-"))  # as its sentence says
        named = {name.rpartition(" ")[2] for names in stuck for name in names}
        why = {host: say(reason).partition("\n")[0] for host in hosts if host in named} | why
    for host, message in why.items():
        yield HostFinding("look", host, one_line(message))


def _plain(evidence: str) -> str:
    """Printable ASCII in one line, without what a shell or scontrol may read as syntax."""
    known = (character for character in one_line(evidence).translate(_ASCII) if character not in _UNSAFE)
    return "".join(character if character.isascii() else "?" for character in known)
