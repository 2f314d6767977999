"""Node checks: what is asked of a node whatever its speed, and the answer over all nodes.

`plan.node_check` names and describes each check; `check_rules` and `devices` find what a node lacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.check_rules import PREVENTING, Finding, find_surveyed, find_transports
from pytest_ddpscale.judge.devices import find_under_load
from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.survey_record import STUDY_ID, Survey
from pytest_ddpscale.run.table import Columns, once
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, expected_by

_MOST_NAMED = 3
_FIND = {"survey": find_surveyed, "transport": find_transports, "telemetry": find_under_load}


def answer_check(answer: Answer, case: NodeCase, evidence: Evidence) -> Answer:
    """The answer on one check, from the blank one; its value is the share of nodes that pass.

    ``passed`` if every planned node passes, ``failed`` if any has a fault, else ``not_measured``; also ``not_measured``
    if the check needs a GPU and ranks train on CPUs.
    """
    check, plan = NODE_CHECKS[case.requirement.check], evidence.plan
    if not check.on_cpu and plan.device_type == "cpu":
        answer.reasons = [because("without-gpu", check.title)]
        return answer
    found = _found(case, evidence)
    hosts, untold = {one.place.host for one in found}, [one.said for one in found if one.kind == "no"]
    planned, broken = max(plan.nodes, len(hosts | {*evidence.hosts})), {**evidence.interrupted, **evidence.errors}
    answer.remarks = [one.said for one in found if one.kind == "note"]
    if planned > len(hosts):
        untold.append(because("no-report", planned - len(hosts), planned))
    if check.reads == "telemetry" and (unended := sorted(broken.keys() - {PAIRS, STUDY_ID})):
        untold.append(because("no-end", tuple(unended)))
    missing = because("missing-data", tuple(untold[:_MOST_NAMED]), len(untold), broken.get(STUDY_ID, ""))
    faults, doubts = _accused(found, planned)
    if untold and not faults:
        answer.reasons = [missing]
        return answer
    share = len(hosts - {one.place.host for one in found if one.kind not in ("note", "looked")}) / planned
    answer.value, answer.interval, answer.rounds = share, (share, share), 1
    answer.outcome, answer.reasons = "passed", [because("as-expected", planned)]
    if faults:
        failed, told = len({one.place.host for one, _ in faults}), tuple(one.said for one, _ in faults[:_MOST_NAMED])
        answer.outcome, answer.reasons = "failed", [because("not-as-expected", failed, planned, told, len(faults))]
    for one, is_certain in faults:
        answer.culprits.append(Culprit("gpu" if one.gpu else "node", (one.place,), one.why, is_certain))
    if untold:
        answer.flags = [PARTLY_KNOWN]
        answer.remarks.append(because("also", missing))
    answer.remarks += doubts
    return answer


@once
def _facts(evidence: Evidence, reads: str, expected: NodeExpectation) -> list[Finding]:
    """All that checks find in this source, host by host."""
    found = dict[Finding, None]()
    for at, check, code, *args in _FIND[reads](evidence, expected):
        found[Finding(at if isinstance(at, Place) else Place(at), check, because(code, *args))] = None
    return sorted(found, key=lambda one: one.place.host)


def _found(case: NodeCase, evidence: Evidence) -> list[Finding]:
    check, expected = NODE_CHECKS[case.requirement.check], expected_by(evidence.plan, case.expected)
    return [one for one in _facts(evidence, check.reads, expected) if one.check in ("", check.name)]


def _accused(found: Sequence[Finding], planned: int) -> tuple[list[tuple[Finding, bool]], list[Reason]]:
    """Faults and whether each is certain, and doubts that arise if most nodes or most GPUs fail: the expectation, or
    something that they share, may be at fault.

    A node where only some GPUs fail has the others to compare with. With one node there is nothing to compare with, so
    a mismatch is the node's fault.
    """
    faults = [one for one in found if one.kind not in ("no", "note", "looked")]
    by, gpus = defaultdict[str, set[str]](set), len({one.place for one in faults if one.kind == "gpus"})
    for one in faults:
        by["nodes" if one.kind == "unclear" else one.kind].add(one.place.host)
    looked, doubts = sum(one.why.args[0] for one in found if one.kind == "looked"), dict[str, Reason]()
    for whose, are_many in {"outside": True, "nodes": planned > 1, "gpus": 2 * gpus > looked}.items():
        if are_many and 2 * len(by[whose]) > planned:
            doubts[whose] = because(f"most-{whose}-fail", len(by[whose]), planned, gpus)
    return [(one, one.kind not in ("unclear", *doubts)) for one in faults], list(doubts.values())


def unfit_nodes(
    cases: Iterable[AnyCase], plan: Plan, surveys: Mapping[str, Survey], day: date, *, hopeless: bool = False
) -> dict[str, Reason]:
    """Reasons, by host, to launch nothing on it: it certainly fails a check of severity ``fail``, or its survey failed.

    A node whose fault is uncertain stays if ranks can run there: most nodes fail too, or it is unclear which of several
    is wrong. A check that is waived on this day, in UTC, excludes no node.

    Args:
        cases: of the run.
        plan: of the run.
        surveys: by host.
        day: today.
        hopeless: leave out all reasons but those for which no rank can run there.
    """
    evidence, reasons = Evidence(plan, Columns(), {}, surveys=surveys), defaultdict[str, dict[Reason, None]](dict)
    for case in cases:
        asked = case.requirement
        if not isinstance(case, NodeCase) or not asked.check or NODE_CHECKS[asked.check].reads != "survey":
            continue
        if asked.severity != "fail" or (asked.waiver and asked.waiver.holds_on(day)):
            continue
        found = _found(case, evidence)
        for one, is_certain in _accused(found, max(plan.nodes, len({one.place.host for one in found})))[0]:
            # The plan may use only the first GPUs of a node.
            is_used = (one.place.local_rank or 0) < plan.layout.ranks_per_node
            if (one.why.code in PREVENTING and is_used) or (is_certain and not hopeless):
                reasons[one.place.host][because("of-check", asked.check, one.gpu, one.why)] = None
        for survey in () if hopeless else surveys.values():
            if survey.problem:
                reasons[survey.host][because("no-survey", survey.problem)] = None
    return {host: because("all", *reasons[host]) for host in sorted(reasons)}
