"""Trial of one batch: a gang of its own trains the study with it and reports its memory, or runs out of it."""

from __future__ import annotations

import math
import re
import secrets
import signal
import statistics
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.launch.gang import Gang
from pytest_ddpscale.launch.gang_state import GangEnd, GangOwner, Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.node.protocol import Task
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import EXPOSED_COMMUNICATION, THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.planner import Pace, Question, build_plan
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.rank_folder import Assignment
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader
from pytest_ddpscale.run.records import StudyEnd, StudyMemory
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.thresholds.cases import cases_for, training_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.util.digits import percent

STEPS_PER_BLOCK = STEPS_BEFORE_TIMING + FEWEST_STEPS_PER_BLOCK
_SHORTEST_BLOCK_S = 0.01  # so that a block has the fewest steps
# Inactive gangs are ended, because many hang when they run out of memory.
LIMITS = Limits(inactivity_s=300.0, startup_s=600.0, total_s=3600.0)
_KILLED = -int(signal.SIGKILL)
# Errors of torch's allocator and of Python, and messages in errors of other types where torch, cuDNN, cuBLAS and NCCL
# allocate memory themselves.
_TYPES = ("OutOfMemoryError", "MemoryError")
_REASONS = re.compile(
    r"can't allocate memory|(?:CUDA|CUDA error:|CUDA driver error:|Triton Error \[CUDA\]:) out of memory"
    r"|Cuda failure \d* ?'out of memory'|Failed to CUDA \w*alloc|_STATUS_ALLOC_FAILED"
    r"|_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED"
    # Of a convolution: no algorithm's workspace fits.
    r"|(?:FIND was unable|GET was unable) to find an engine to execute this computation"
)


@dataclass(frozen=True)
class BatchTrial:
    """Result of one batch, as in JSON.

    Attributes:
        batch: per GPU, in samples.
        fits: whether all ranks trained all steps within their share of the memory.
        why_not: in words; empty if it fits.
        peak_bytes: GPU: bytes in use on the fullest device; CPU: bytes of all ranks together. None if they ran out.
        limit_bytes: total bytes of that memory; None if unknown.
        samples_per_s_per_gpu: with all ranks training together, at the slowest rank's pace; None if they ran out.
    """

    batch: int
    fits: bool
    why_not: str = ""
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    samples_per_s_per_gpu: float | None = None

    @property
    def share(self) -> float | None:
        """Share of the total memory."""
        return self.peak_bytes / self.limit_bytes if self.peak_bytes and self.limit_bytes else None


class _Records(GangOwner):
    """Keeps a trial's records, and neither writes nor judges."""

    def __init__(self) -> None:
        self.records, self._reader = list[AnyRecord](), RecordReader()

    def keep(self, lines: bytes) -> list[AnyRecord]:
        records = [self._reader.read(line) for line in lines.splitlines()]
        self.records += records
        return records


def questions_of(file: ThresholdsFile, sku: str, workload: Workload, ranks: int) -> list[Question]:
    """A run's questions on the workload's weak scaling on a node with `ranks` ranks, and one that trains all of them.

    Every number of ranks that trains together has its own gradient buckets and NCCL buffers, for which the batch has to
    leave memory. Strong scaling splits a batch of its own and does not use this one. What nothing requires is asked for
    two, four … and all ranks, the last also without communication; of a single rank, throughput.
    """
    cases = training_cases(cases_for(file, sku, Layout(1, ranks)))
    questions = [case.question for case in cases if case.workload == workload and case.world_size <= ranks]
    matching = [
        question for question in questions if question.metric.scaling == "weak" and question.placement == "packed"
    ]
    if ranks == 1:
        return matching or [Question(THROUGHPUT_PER_GPU, workload, 1)]
    if not matching:
        sizes = [2**power for power in range(1, ranks.bit_length()) if 2**power < ranks]
        matching = [Question(WEAK_SCALING_EFFICIENCY, workload, size) for size in sizes]
        matching.append(Question(EXPOSED_COMMUNICATION, workload, ranks))
    return [*matching, Question(WEAK_SCALING_EFFICIENCY, workload, ranks)]


def trial_plan(empty: Plan, questions: Iterable[Question], batch: int, steps: int) -> Plan:
    """One study of all arms, each with at least `steps` steps.

    Args:
        empty: a plan without studies, of one node.
        questions: of one workload.
        batch: per GPU, in samples.
        steps: of each arm, including warm-up.
    """
    rounds = max(1, math.ceil(steps / STEPS_PER_BLOCK) - 1)
    pace = Pace(rounds, _SHORTEST_BLOCK_S, 0.0, rounds)
    resized = [replace(question, workload=replace(question.workload, batch_size=batch)) for question in questions]
    return build_plan(empty, resized, pace)


def try_batch(plan: Plan, launch: Launch, fraction: float, limit_bytes: int | None, log: Path) -> BatchTrial:
    """Train the one study of a plan in fresh processes.

    Args:
        plan: of `trial_plan`.
        launch: starts gangs on this machine.
        fraction: of the memory that ranks may use.
        limit_bytes: memory that all ranks share; None if each has a device of its own, or if it is unknown.
        log: of the gang; the folder of that name without suffix gets its ranks' logs.

    Raises:
        GangError: the gang ended for another reason than memory, or was interrupted.
    """
    [study] = plan.studies
    batch, heard, launch = study.workload.batch_size, _Records(), replace(launch, gang_id=uuid.uuid4().hex)
    assignment = Assignment(
        plan=msgspec.Raw(strict_json(plan).encode()), studies=plan.study_ids, timeout_s=LIMITS.timeout_s,
        startup_timeout_s=LIMITS.startup_timeout_s, tries_memory=True, secret=secrets.token_hex(),
    )  # fmt: skip
    task = Task(
        gang_id=launch.gang_id, nodes=1, ranks_per_node=plan.layout.ranks_per_node, assignment=assignment,
        has_gpus=plan.device_type == "cuda", beat_s=1.0,
    )  # fmt: skip
    end = Gang(task, launch, LIMITS, log, heard).run()
    memory = [record.ranks for record in heard.records if isinstance(record, StudyMemory)]
    has_ended = any(isinstance(record, StudyEnd) and record.reason == "rounds" for record in heard.records)
    if end.exit_code != 0 or not has_ended or not memory:
        why = "" if end.interrupted else why_out_of_memory(end)
        if not why:
            reason = say(end.interrupted or end.why or "the gang ended early for an unknown reason")
            where = f"{study.workload.name} with {batch} {plan.samples} per {plan.device}"
            raise GangError(where, f"the search stopped for a reason other than memory: {reason.rstrip('.')}")
        return BatchTrial(batch, fits=False, why_not=why)
    ranks = memory[-1]
    fullest = max(ranks, key=lambda rank: rank.own_bytes / (rank.total_bytes or 1))
    used, limit_bytes = fullest.own_bytes, fullest.total_bytes or limit_bytes
    if fullest.total_bytes is None:  # a CPU, whose ranks share the pages of libraries
        used = sum(rank.own_bytes for rank in ranks) + max(rank.shared_bytes for rank in ranks)
    # The arm with most ranks, at the slowest rank's pace.
    largest = max(study.arms, key=lambda arm: (arm.kind in ("alone", "ddp"), arm.world_size, arm.kind))
    blocks = (record for record in heard.records if isinstance(record, Block) and record.arm == largest.name)
    rates = [float(np.min(block.per_second)) for block in blocks]
    trial = BatchTrial(batch, True, "", used, limit_bytes, statistics.median(rates) if rates else None)
    if trial.share is not None and trial.share > fraction:
        return replace(trial, fits=False, why_not=f"more than {percent(fraction)} of the memory")
    return trial


def why_out_of_memory(end: GangEnd) -> str:
    """The sign of a lack of memory, in words; empty if the gang ended otherwise.

    One rank is enough, because all others end with it. A killed rank counts as out of memory even if the kernel did not
    report it, because services that watch memory also kill.
    """
    for failure in end.failures:
        if failure.type in _TYPES or _REASONS.search(failure.message):
            return f"{failure.type} on rank {failure.rank} in {failure.phase}"
    codes = (_KILLED, None) if end.oom_kills else (_KILLED,)  # of a rank that the kernel ended it may be unknown
    killed = [rank.name for rank in end.rank_ends if rank.exit_code in codes]
    if killed and end.oom_kills:
        return f"the kernel ended {killed[0]} for lack of memory"
    return f"{killed[0]} was killed by SIGKILL" if killed else ""
