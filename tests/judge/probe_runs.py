"""Runs of probes in one line each; see `runs` for the words that are not here.

    matmul-bf16:100@1 2x8 slow=*1.3/3:4-

asks for a probe with a bound, of two nodes of eight GPUs that reach 120 all; GPU 3 takes longer by 1.3 from round 4 on.
Of pairs of GPUs `1,6` is the one between these two, and `0-3,n1` are those between any of these and any of that node.

    PROBE:BOUND@WORLD            asked; with `+` before it only measured as well
    PROBE:peers@WORLD            asked in comparison with peers, which may differ by `limit`
    limit= peak=                 of peers of any kind; what the hardware can reach
    unplanned, unsupported       nobody planned what is asked, or GPUs cannot do it
    interrupted                  the study
    lanes/3                      a slot with half of its lanes
    pcie=4                       generation of the links of all GPUs
    topology=NAME                of all nodes, by topologies.txt
    port=400                     Gbit/s of each adapter there, 400,100 of its two ports; of a node: port=200/n1;
                                 `tcp`: they are not used; port=200/3: adapter 3 of each node
    slot=252                     Gbit/s of a PCIe slot, which each two adapters share as functions of one
    virtual                      adapters 1, 3 … are virtual functions of those before
    wrong                        data
    dropped                      a round without what is asked, because that is decided
    FIELD=VALUE FIELD=*FACTOR    of what was measured, such as seconds=0.01, of 10 iterations, or work=6e7
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pytest_ddpscale.judge.links import unasked_wrong_data
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.survey_record import InfiniBandPort, Survey, SurveyedGpu
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.model import PeerLimits
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import measure_probe, probe_case, probe_evidence, probe_plan, steady
from tests.judge.checks import TOPOLOGIES
from tests.judge.runs import Change, Run

USUAL = 120.0  # TFLOPS or GB/s
NO_FIELDS = {"lost", "dropped", "link", "stall", "port", "slot", "lanes", "pcie"}


def run_of(line: str) -> Run:
    """Of a probe, whose name has a hyphen, or of training."""
    return ProbeRun(line) if re.search(r"(^| )\w+-[\w-]+:", line) else Run(line)


class ProbeRun(Run):
    """What a line says."""

    FLAGS = Run.FLAGS | {"unplanned", "unsupported", "interrupted", "tcp", "virtual"}

    def judged(self) -> tuple[NodeCase, Evidence]:
        """What is asked first, and what was measured."""
        probes = [Arm(one[2], int(one[4])) for one in [*self.asked, *self.measured_as_well]]
        limit, bound = self.option["limit"], self.asked[0][3]
        case = probe_case(probes[0], 1.0, peak=self.option["peak"], peers=PeerLimits(*[limit] * 5))
        asks: dict[str, Any] = (
            {"metric": "probe_uniformity", "bound": 1 + limit} if bound == "peers" else {"bound": float(bound)}
        )
        asks["severity"] = "warn" if self.asked[0][6] else "fail"
        case = replace(case, requirement=replace(case.requirement, **asks))
        case = replace(case, environment=self.purpose)
        return case, self._probed(probes[0], probes["unplanned" in self.flags :])

    def _further(self, case: NodeCase, evidence: Evidence, verdict: Verdict) -> list[Reason]:
        assert case.probe is not None
        return unasked_wrong_data(evidence, {case.probe.name})

    def _probed(self, asked: Arm, planned: Sequence[Arm]) -> Evidence:
        plan = probe_plan(*planned, nodes=self.nodes, ranks_per_node=self.per_node, device_type=self.device_type)
        dropped = [change for change in self.changes if change.what == "dropped"]
        rounds = range(self.option["rounds"])
        timed = dict.fromkeys((n for n in rounds if any(one.is_at(n, 0, "all", asked.name) for one in dropped)), ())
        evidence = probe_evidence(
            plan if planned else replace(plan, probes=None),
            [one for probe in planned for one in self._reported(plan, probe)],
            errors={PROBES: "rank 1 died"} if "error" in self.flags else {},
            interrupted={PROBES: "by the user"} if "interrupted" in self.flags else {},
            unsupported={asked.name: "too old"} if "unsupported" in self.flags else {},
            out_of_time={PROBES} if "out-of-time" in self.flags else set(),
            hosts=[f"n{node}" for node in range(self.nodes)],
            timed_arms={PROBES: timed},
            surveys={f"n{node}": self._survey(node) for node in range(self.nodes)},
            transports={
                place: msgspec.structs.replace(one, channels_between_nodes={self._network: 1})
                for place, one in self.transports().items()
            },
        )
        return self.with_pairs(evidence)

    @property
    def _network(self) -> str:
        return "NET/Socket" if "tcp" in self.flags else "NET/IB/GDRDMA"

    def _survey(self, node: int) -> Survey:
        topology = TOPOLOGIES[self.option["topology"]]
        few = [change for change in self.changes if change.what == "lanes"]
        lanes = [8 if any(one.is_at(0, i) for one in few) else 16 for i in range(self.per_node)]
        gen = next((change.values[0] for change in self.changes if change.what == "pcie"), None)
        gpus = (
            SurveyedGpu(i, f"GPU-{i}", "", "", "", local_rank=i, pcie_width=n, pcie_generation_max=gen)
            for i, n in enumerate(lanes)
        )
        slot = next((change.values[0] for change in self.changes if change.what == "slot"), None)
        ports = list[InfiniBandPort]()
        for i in range(8):
            of_ports = [
                change for change in self.changes if change.what == "port" and change.is_at(0, i, "all", f"n{node}")
            ]
            function = f"0000:{i // 2:02x}:00.{0 if 'virtual' in self.flags else i % 2}" if slot else ""
            ports += (
                InfiniBandPort(f"mlx5_{i}", number, "ACTIVE", "InfiniBand", rate, function, slot)
                for number, rate in enumerate(of_ports[-1].values if of_ports else (), 1)
            )
        return Survey(f"n{node}", 0.0, gpus=(*gpus,), infiniband=(*ports,), topology=topology)

    def _reported(self, plan: Plan, probe: Arm) -> Iterator[ProbeMeasurement]:
        for one in measure_probe(plan, probe, steady(USUAL), self.option["rounds"]):
            there = [change for change in self.changes if self._is_there(change, probe, one)]
            slower = self._usual[one.rank] * math.exp(self.option["noise"] * self._chance.standard_normal())
            one = replace(one, seconds=one.seconds * slower)
            for change in there:
                if change.what == "wrong":
                    one = replace(one, is_correct=False)
                elif change.what not in NO_FIELDS:
                    name = "seconds" if change.what == "slow" else change.what
                    one = replace(one, **{name: change.of(getattr(one, name), one.round)})
            if not {"lost", "dropped"}.intersection(change.what for change in there):
                yield one

    def _is_there(self, change: Change, probe: Arm, one: ProbeMeasurement) -> bool:
        if one.peer_rank is not None:
            return change.is_between(one.round, (one.rank, one.peer_rank), self.per_node, probe.name)
        return change.is_at(one.round, one.rank, "all", f"n{one.rank // self.per_node}", probe.name)
