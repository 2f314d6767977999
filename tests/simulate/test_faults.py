"""What each fault changes in a run without noise, on four nodes of four: a line of faults.txt.

ARM [forward|right] PLACES: RATIO      to the same run without it: of the time of ranks or pairs, of their own pace in
                                       forward passes, of right results; one for each round unless all are the same

A rank that is not there has –.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import SeededSteps
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import parse_faults
from pytest_ddpscale.simulate.writing import records
from tests.builders.clusters import a100, quiet, weak_study
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("faults.txt")
CLUSTER = a100(16, gpus_per_node=4)
ARMS = Arm("each", 4, 512), Arm("ddp", 4, 512), Arm("ddp", 16, 512), Arm("infer", 4, 512)
SENDING = Arm("send-recv-256mib", 4), Arm("all-reduce-32mib", 4), Arm("all-reduce-1gib", 12)
PROBES = ProbeStudy(
    (*map(Arm, ("matmul-fp16", "matmul-fp16-10240", "memory-copy", "host-to-device")), *SENDING), 3, 0.5
)
STUDY = replace(weak_study(ARMS[0], rounds=5), arms=ARMS)
PLAN = Plan("a100", "cuda", (STUDY,), nodes=4, ranks_per_node=4, probes=PROBES, pairs=CLUSTER.plan().pairs)
# Collectives of several nodes need 20 of the 240 GB/s inside a node.
QUIET = replace(quiet(CLUSTER), probes=dict.fromkeys(PROBES.arms, 20.0))


@cache
def measured(*typed: str) -> dict[tuple[str, str, int], float]:
    """By what, place and round."""
    found = dict[tuple[str, str, int], float]()
    run = SimulatedRun(PLAN, QUIET, parse_faults(typed, PLAN.layout), 0)
    for record in records(run, CLUSTER):
        if isinstance(record, SeededSteps):
            found |= {("seeded right", str(it.rank), 0): it.checksum == record.ranks[0].checksum for it in record.ranks}
        if not isinstance(record, Block):
            continue
        ranks, groups, digests = map(record.each, ("ranks", "groups", "digest"))
        values = {
            record.arm: record.each("seconds") / record.each("count"),
            f"{record.arm} forward": record.each("forward_s"),
            f"{record.arm} right": (record.each("is_correct") != 0) & (digests == digests[groups.searchsorted(groups)]),
        }
        for rank, group, *of_rank in zip(ranks, groups, *values.values(), strict=True):
            of_group = ranks[groups == group]
            place = ",".join(map(str, of_group if len(of_group) == 2 else [rank]))
            found |= {(what, place, record.round): value for what, value in zip(values, of_rank, strict=True)}
    return found


def told(line: str) -> Iterator[str]:
    sound, faulty = measured(), measured(*line.split())
    ratios = defaultdict[tuple[str, str], list[str]](list)
    for key, value in sound.items():
        if value == value:  # other than NaN
            ratios[key[:2]].append(f"{faulty[key] / value:.4g}" if key in faulty else "–")
    places = defaultdict[tuple[str, str], list[str]](list)
    for (what, place), of_rounds in ratios.items():
        places[what, " ".join(of_rounds if len({*of_rounds}) > 1 else of_rounds[:1])].append(place)
    alike = defaultdict[str, list[str]](list)
    for (what, ratio), at in places.items():
        everywhere = len(at) == sum(one == what for one, _ in ratios)
        if ratio != "1":
            alike[f"{'all' if everywhere else ' '.join(at)}: {ratio}"].append(what)
    yield from (f"{', '.join(sorted(whats))} {line}" for line, whats in sorted(alike.items()))
    yield from sorted(
        f"only now {' '.join(new)}" for new in {key[:2] for key in faulty} - ratios.keys() if "forward" not in new[0]
    )


@each_block(TABLE)
def test_it_changes(block: str) -> None:
    assert_approved(TABLE, block, told)
