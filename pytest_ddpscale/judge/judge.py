"""Judge a requirement by the measurements: places, values, estimates, the bound, caveats, culprits, one verdict.

**Bounds between nodes** are also those from the line rates of the ports that their GPUs are nearest to. What is
published between nodes was reached over another network. But each node tells how fast its ports are and which GPUs are
nearest to them, and NCCL reaches 46 to 49 of the 50 GB/s of a port of 400 Gbit/s, NDR or RoCE. So messages between
nodes have to reach 0.7 of that, and an all-reduce over nodes 0.6 of what all GPUs of a node have. All GPUs send at
once: they share ports, PCIe slots, and the port of virtual functions. What the slowest GPU of a node has counts, since
ports of a sound node may differ, of the kind of node that is most frequent: a port that came up slower than those of
other nodes fails. Where ports differ at the same distance a GPU counts with the slowest alone, because another one may
serve storage; and no port is faster than its PCIe link or that of the GPU, nor counts where NCCL_IB_HCA leaves it out.

No port counts if NCCL goes over TCP, or is not known to go over ports at all. All-reduce counts only where GPUs of a
node are joined by NVLink, which carries more than its ports, and where messages are long for so many ranks. A row
that rejects stays as it is: a site sets one that knows its network, such as one with fewer uplinks than ports.

**While measuring** it is decided whether a study needs more rounds. Once a GPU or node is rejected as slower than its
peers, requirements that it slows get no more than the fewest rounds: the run cannot pass, and these rounds show another
slow device or link all the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, compress

import numpy as np

from pytest_ddpscale.judge.answer import OUTCOMES, Answer, add_disagreements, blank_verdict, name_unless_most_fail
from pytest_ddpscale.judge.checks import answer_check, with_telemetry
from pytest_ddpscale.judge.coverage import doubt_variables, gpu_errors_in, lost_connections
from pytest_ddpscale.judge.judged import CAVEATS, Judged
from pytest_ddpscale.judge.links import add_wrong_data, fail_by_pairs, name_probe_culprits
from pytest_ddpscale.judge.metrics import WHOLE, rounds_begun
from pytest_ddpscale.judge.peers import medians_of_others
from pytest_ddpscale.judge.slow import arms_read, name_slow
from pytest_ddpscale.judge.stats import ABSENT, FAILED, OPEN, Estimated
from pytest_ddpscale.judge.uniformity import (
    allow_for_spread,
    answer_probe_uniformity,
    answer_uniformity,
    fail_by_own_node,
)
from pytest_ddpscale.judge.values import groups_of, matching_study, values_of_probe, why_incomplete
from pytest_ddpscale.judge.values import values as values_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import PROBES, Plan, ProbeStudy, Study
from pytest_ddpscale.plan.variables import is_selected
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.record_lines import AnyRecord, OfDevices
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.table import NO_ROUNDS, GrowingColumns, memoized
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, GenerationComparison, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.thresholds.model import Source


def judge(case: AnyCase, evidence: Evidence, confidence: float) -> Verdict:
    """The verdict on one requirement, in codes; ``no_regression`` is judged later, with the history.

    ``passed`` if the whole interval, valid for all rounds together at this confidence, is on the good side of the
    bound, ``failed`` if it is on the bad side, ``inconclusive`` if the bound lies inside, if there are too few rounds
    or if the numbers cannot be trusted (`judged`); ``not_measured`` without data, ``error`` if the study
    broke. Each place is judged (`judged`): with several nodes those that fit a requirement, and all GPUs, groups or
    pairs of a probe. Wrong results fail whatever the speed.
    """
    answer, (study_id, arms) = Answer(blank_verdict(case, confidence)), _arms_for(case, evidence.plan)
    if isinstance(case, Case):
        answer = _of_training(answer, case, evidence)
        # On a CPU launches differ more than rounds do, so the interval of one is too narrow.
        if evidence.plan.device_type == "cpu" and answer.interval is not None:
            answer.flags.append(THIS_LAUNCH_ONLY)
        reference, name = case.reference_samples_per_s, case.requirement.versus
        if reference is not None and name is not None and answer.value is not None:
            own = answer.value * reference
            unit = THROUGHPUT_PER_GPU.unit_of(case.workload.family)
            answer.compared = GenerationComparison(own, reference, name, case.reference_source, unit)
    elif case.probe is not None:
        answer = _of_probe(answer, case, case.probe, evidence)
        if by_ports := bound_by_ports(case, case.probe, evidence):
            other = _of_probe(Answer(blank_verdict(by_ports, confidence)), by_ports, case.probe, evidence)
            is_above = by_ports.requirement.bound > case.requirement.bound
            answer = other if is_above or other.outcome == "failed" else answer
        fail_by_pairs(answer, case.probe, evidence)
        is_alike = not answer.culprits or any(reason.code == "most-fail-alike" for reason in answer.remarks)
        if by_ports and answer.outcome == "failed" and answer.blank.severity == "fail" and is_alike:
            answer.remarks.append(because("by-ports"))
    elif case.requirement.check:
        answer_check(answer, case, evidence)
    doubt_variables(answer, case, evidence)
    if answer.outcome == "failed" and answer.culprits and arms:
        answer.culprits = [*with_telemetry(evidence.telemetry.of_arm(study_id, arms[-1].name), answer.culprits)]
    # An open verdict may be open because --ddp-budget ran out, not because of the machine.
    is_supported = evidence.unsupported.keys().isdisjoint(arm.name for arm in arms)
    if answer.outcome in ("inconclusive", "not_measured") and study_id in evidence.out_of_time and is_supported:
        answer.remarks.append(because("budget-spent"))
    return answer.verdict()


def _arms_for(case: AnyCase, plan: Plan) -> tuple[str, Sequence[Arm]]:
    """Id of the study that answers a requirement, and the arms that are read there, the measured one last; or none."""
    if isinstance(case, NodeCase):
        return (PROBES, [case.probe]) if case.probe else ("", [])
    study = matching_study(plan, case.question)
    return (study.id, arms_read(case.question, study)) if study else ("", [])


def _of_training(answer: Answer, case: Case, evidence: Evidence) -> Answer:
    question, plan = case.question, evidence.plan
    values, study = values_of(evidence, question) / case.constant, matching_study(plan, question)
    if study is None or values.broken:
        return _broken(answer, values.broken, study.id if study else "", evidence)
    rounds_due = _rounds_due(evidence, study.id, {arm.name for arm in arms_read(question, study)})
    if case.requirement.definition.reads_own_pace:
        answer_uniformity(answer, case, study, evidence, rounds_due)
        if answer.outcome != "not_measured":
            add_disagreements(answer, study, evidence)
        return answer
    is_by_node, grouped = plan.layout.judged_by_node(question.arms), groups_of(question, study, evidence)
    planned = plan.nodes if is_by_node else 1
    judged = Judged(answer.blank, case, evidence, values, study.rounds, rounds_due, grouped)
    _judge_places(judged, planned, study)
    measured = [*compress(values.places, judged.codes != ABSENT)]
    why_not = {place: why for place, why in values.missing.items() if place not in measured}
    missing = why_not.get(WHOLE)
    if is_by_node and len(measured) < planned:
        absent = sorted({*evidence.hosts, *why_not}.difference(measured))
        missing = because("nodes-missing", tuple(measured), planned, tuple(absent), tuple(why_not.values()))
    answer = judged.answer(planned, missing)
    if answer.outcome != "not_measured" or is_by_node:
        add_disagreements(answer, study, evidence)
        alike = [OUTCOMES[code] == answer.outcome for code in judged.codes.tolist()]
        name_slow(answer, case, study, evidence, lambda: grouped.at(alike))
    if is_by_node and FAILED in judged.codes:
        # The nodes that fail, unless one on them is named for certain; for ranks that disagree any name will do, and as
        # no bound is involved, all are certain.
        reached, definition, culprits = judged.estimated.values, case.requirement.definition, list[Culprit]()
        named = {culprit.host for culprit in answer.culprits if culprit.is_certain or definition.compares_results}
        count, medians = int((~np.isnan(reached)).sum()) - 1, np.nan_to_num(medians_of_others(reached[np.newaxis])[0])
        for node in np.flatnonzero(judged.codes == FAILED).tolist():
            numbers = float(reached[node]), answer.blank.unit, count, float(medians[node])
            if (host := judged.places[node].host) not in named:
                why = judged.starved(node) or because("node-alone", definition.name, *numbers)
                culprits.append(Culprit("node", (Place(host),), why))
        if definition.compares_results:
            answer.culprits += culprits
        else:
            name_unless_most_fail(answer, culprits, judged.codes, planned, "nodes")
    elif answer.outcome == "failed" and not answer.culprits and (waits := judged.starved(0)):
        (host, *others) = grouped.merged[-1].ranks.by_host
        # Not certain: the bound may be at fault, or the batch.
        answer.culprits = [Culprit("node", (Place(host),), waits, is_certain=False)] * (not others)
    return answer


def _of_probe(answer: Answer, case: NodeCase, probe: Arm, evidence: Evidence) -> Answer:
    values, study = values_of_probe(probe, evidence), evidence.plan.probes
    if values.broken or study is None:
        answer = _broken(answer, values.broken, PROBES, evidence)
    else:
        rounds_due = _rounds_due(evidence, PROBES, {probe.name})
        if case.requirement.definition.compares_places:
            answer_probe_uniformity(answer, case, values, evidence, rounds_due)
        else:
            judged = Judged(answer.blank, case, evidence, values, study.rounds, rounds_due)
            planned = len(evidence.plan.layout.groups_of_round(probe))
            _judge_places(judged, planned)
            answer = judged.answer(planned, why_incomplete(probe, values, evidence))
            limit = getattr(case.peers, KINDS[probe.operation.kind].peers or "computing")
            measured_at = np.flatnonzero(judged.codes != ABSENT)
            places, measured = [judged.places[at] for at in measured_at.tolist()], judged.estimated.values[measured_at]
            name_probe_culprits(answer, probe, places, judged.codes[measured_at], measured, evidence, limit)
            fail_by_own_node(answer, case, values, evidence, rounds_due)
    add_wrong_data(answer, probe, evidence.probed(probe) or NO_ROUNDS)
    return answer


def _broken(answer: Answer, why: Reason | None, study_id: str, evidence: Evidence) -> Answer:
    """The answer on what has no values."""
    assert why is not None
    answer.reasons, answer.flags = [why], ["interrupted"] if why.code == "interrupted" else []
    if why.code == "broke":  # whose errors are the reason
        answer.culprits = gpu_errors_in(evidence, study_id) or lost_connections(evidence, study_id)
        answer.outcome = "error"
    return answer


def _rounds_due(evidence: Evidence, study_id: str, arms: set[str]) -> int:
    """Number of rounds that were begun and timed all these arms."""
    timed = evidence.timed_arms.get(study_id, {})
    begun = rounds_begun(evidence.columns, study_id) | timed.keys()
    return sum(number not in timed or arms <= {*timed[number]} for number in begun)


def _judge_places(judged: Judged, planned: int, study: Study | None = None) -> None:
    """Judge all places by the bound, the spread of GPUs and all doubts.

    Failures are judged again at the confidence that holds for all places together.
    """

    def look(estimated: Estimated) -> None:
        judged.decide(estimated)
        if study is not None:
            allow_for_spread(judged, study)
        for caveat in CAVEATS:
            caveat(judged)

    look(judged.estimated)
    failed, of = judged.codes == FAILED, max(planned, int((judged.codes != ABSENT).sum()))
    if not failed.any() or of == 1:
        return
    reasons = {place: judged.why(place) for place in np.flatnonzero(failed).tolist()}
    confidence = judged.blank.confidence
    look(judged.values.estimated(np.where(failed, 1 - (1 - confidence) / of, confidence), judged.limit))
    for place, reason in reasons.items():
        if judged.codes[place] != FAILED:
            judged.codes[place] = OPEN
            judged.reasons[place] = because("perhaps-chance", reason, of, judged.places[place].noun)


_SHARES = {"send-recv": 0.7, "all-reduce": 0.6}
_LONG_BYTES = 4 * 2**20  # of a message, for each rank that it passes
_DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")  # as nvidia-smi calls them, the nearest first
_LEGEND = re.compile(r"(NIC\d+): (\S+)")
_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}  # of PCIe, by generation


def bound_by_ports(case: NodeCase, probe: Arm, evidence: Evidence) -> NodeCase | None:
    """The requirement, which only warns, with the bound that the ports give it; None if they give none."""
    kind, layout, requirement = probe.operation.kind, evidence.plan.layout, case.requirement
    is_ring, share, whose = kind == "all-reduce", _SHARES.get(kind, 0.0), layout.ranks_per_node
    used = {name for transport in evidence.transports.values() for name in transport.channels_between_nodes}
    is_long = (probe.operation.message_bytes or 0) >= _LONG_BYTES * (probe.world_size if is_ring else 2)
    if requirement.severity == "fail" or not is_long or layout.fits_node(probe) or probe.world_size % whose:
        return None
    if not share or not used or any(name.startswith("NET/Socket") for name in used):
        return None
    gbps = port_gbps(evidence, is_ring) * (whose if is_ring else 1)
    if not gbps:
        return None
    source = Source(reference=f"{share} of {gbps:g} GB/s, the line rate of the ports that carry it")
    bound = round(share * gbps, 6)
    by_ports = replace(requirement, bound=bound, source=source, severity="fail", provisional=False, sound=None)
    return replace(case, requirement=by_ports)


@memoized
def port_gbps(evidence: Evidence, is_ring: bool) -> float:
    """What the slowest GPU of a node, as most nodes are, has of its ports in GB/s; 0 if that is not known.

    It is 0, too, for a ring of GPUs that NVLink does not join.
    """
    chosen = {
        place.host: transport.variables.get("NCCL_IB_HCA", "") for place, transport in evidence.transports.items()
    }
    surveys = evidence.surveys.values()
    nodes = Counter(_gbps_of_gpus(survey, chosen.get(survey.host, ""), is_ring) for survey in surveys)
    most = max(nodes, key=lambda rates: (nodes[rates], rates), default=())
    return most[0] if most else 0.0


def _gbps_of_gpus(survey: Survey, chosen: str, is_ring: bool) -> tuple[float, ...]:
    """What each GPU of a node has of the ports nearest to it while all send, in GB/s, the slowest GPU first."""
    gbps, functions, pcie = dict[str, float](), dict[str, str](), dict[str, float]()
    for port in survey.infiniband:
        if port.state.endswith("ACTIVE") and is_selected(port.device, chosen):
            gbps[port.device] = min(gbps.get(port.device, math.inf), (port.rate_gbps or 0.0) / 8)
            functions[port.device] = port.pci_function or port.device
            pcie[port.device] = (port.pcie_gbps or math.inf) / 8
    # Functions of one adapter share its slot; virtual functions have the ports of their physical one.
    slots = {port: function.partition(".")[0] for port, function in functions.items()}
    of_functions = {function: (slots[port], gbps[port]) for port, function in functions.items()}
    carried = {
        slot: min(pcie[port], sum(rate for where, rate in of_functions.values() if where == slot))
        for port, slot in slots.items()
    }
    of_links = {
        f"GPU{gpu.index}": _LANE_GBPS.get(gpu.pcie_generation_max or 0, math.inf) * (gpu.pcie_width_max or 16)
        for gpu in survey.gpus
        if gpu.local_rank is not None
    }
    names = dict(_LEGEND.findall(survey.topology))
    cells = {(one, names.get(end, end)): cell for (one, end), cell in survey.connections.items()}
    inside = {cell for (one, other), cell in cells.items() if one != other and {one, other} <= of_links.keys()}
    if is_ring and not all(cell.startswith("NV") for cell in inside):
        return ()
    near = dict[str, list[str]]()
    for gpu in of_links:
        at = ([port for port in gbps if cells.get((gpu, port)) == distance] for distance in _DISTANCES)
        near[gpu] = next(filter(None, at), [])
    used = {gpu: {slots[port] for port in ports} for gpu, ports in near.items()}
    users = Counter(chain.from_iterable(used.values()))
    shares = {gpu: sum(carried[slot] / users[slot] for slot in used[gpu]) for gpu in used}
    return tuple(sorted(min(of_links[gpu], shares[gpu], *(gbps[port] for port in near[gpu])) for gpu in used))


class Decider:
    """Reads records as they are written and judges the measurements so far.

    A requirement is judged again while it is open. One that is decided is judged again only before an arm is dropped,
    and if its arms were measured since, because a dropped arm does not come back.
    """

    def __init__(self, plan: Plan, cases: Sequence[AnyCase], confidence: float) -> None:
        self._plan, self._confidence = plan, confidence
        self._cases = defaultdict[str, list[AnyCase]](list)
        self._arms: dict[str, set[str]] = {}  # that a requirement needs, by its id
        for case in cases:
            study_id, arms = _arms_for(case, plan)
            if arms:
                self._cases[study_id].append(case)
                self._arms[case.id] = {arm.name for arm in arms}
        self._gangs: dict[int, GangRecord] = {}
        self._columns = GrowingColumns()
        self._records = defaultdict[str, list[AnyRecord]](list)
        # Number of measurements of a requirement's arms when it was found decided, by its id.
        self._decided: dict[str, int] = {}
        # Whether a GPU or node is certainly slower than its peers, which explains whatever one slow rank slows.
        self._is_explained = False

    def hear(self, record: AnyRecord) -> None:
        """Add a record."""
        self._columns.hear(record)
        if isinstance(record, GangRecord):
            self._gangs[record.gang] = record
        elif not isinstance(record, Block | OfDevices) and hasattr(record, "study"):
            self._records[record.study].append(record)

    def needed_arms(self, study_id: str) -> list[str]:
        """Names of the arms that need more rounds to decide a requirement.

        Empty once the study needs no more rounds.
        """
        plan, columns = self._plan, self._columns.columns()
        rounds = len(rounds_begun(columns, study_id))
        study = next((study for study in plan.timed if study.id == study_id), None)
        if study is None or isinstance(study, PairStudy):
            return []
        arms = [arm.name for arm in study.arms]
        if rounds < (study.swept_rounds if isinstance(study, ProbeStudy) else FEWEST_ROUNDS):
            return arms
        # After a loss nothing can pass, but the nodes that remain can still be judged. Probes and pairs over all do not
        # fit fewer, and requirements on studies do not need them.
        nodes = len({host for arm in columns.of_study(study_id) for host in arm.ranks.by_host})
        if isinstance(study, Study) and study.world_size <= nodes * plan.layout.ranks_per_node and nodes < plan.nodes:
            plan = replace(plan, studies=(study,), nodes=nodes, probes=None, pairs=None)
        records, cases = [*self._gangs.values(), *self._records[study_id]], self._cases[study_id]
        evidence = replace(evidence_of(plan, columns, records), goes_on=True)
        measured = {name: int(arm.present.sum()) for (of, name), arm in columns.arms.items() if of == study_id}

        def needed(cases: Sequence[AnyCase]) -> list[str]:
            names = {name for case in cases for name in self._arms[case.id]}
            return [name for name in arms if name in names]

        if rounds < FEWEST_ROUNDS:  # a probe that some ranks support may still fail on one
            return [name for name in needed(cases) if name in measured or name not in evidence.unsupported]
        count = {case.id: sum(measured.get(name, 0) for name in self._arms[case.id]) for case in cases}
        undecided = [case for case in cases if case.id not in self._decided]
        needed_cases = self._still_open(undecided, evidence)
        if not undecided or needed(needed_cases) != needed(undecided):
            again = [case for case in cases if self._decided.get(case.id, count[case.id]) != count[case.id]]
            needed_cases += self._still_open(again, evidence)
        self._decided |= count
        for case in needed_cases:
            del self._decided[case.id]
        return needed(needed_cases)

    def _still_open(self, cases: Sequence[AnyCase], evidence: Evidence) -> list[AnyCase]:
        """Those that more rounds may decide, and that a slow GPU or node which is named already does not explain.

        A decided requirement stays decided: its arms get no new rounds, so the judge sees the same data again.
        """
        still_open = []
        for case in cases:
            verdict, definition = judge(case, evidence, self._confidence), case.requirement.definition
            is_rejected = verdict.outcome == "failed" and verdict.severity == "fail"
            if definition.reads_own_pace and is_rejected and any(culprit.is_certain for culprit in verdict.culprits):
                self._is_explained = True
            if verdict.is_open:
                # Uniformity may be open because of another one.
                still_open.append((case, definition.slowed_by_one_rank and not definition.reads_own_pace))
        return [case for case, is_slowed in still_open if not (self._is_explained and is_slowed)]
