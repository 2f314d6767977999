"""Trial of one batch: a gang of its own trains the study with it and reports its memory, or runs out of it."""

from __future__ import annotations

import secrets
import statistics
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.find_batch.memory_limit import MemoryCgroup, MemoryLimit
from pytest_ddpscale.find_batch.out_of_memory import why_out_of_memory
from pytest_ddpscale.launch.gang import Gang
from pytest_ddpscale.launch.gang_state import GangEnd, GangOwner, Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.node.protocol import Task
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.rank_folder import Assignment
from pytest_ddpscale.run.record_lines import AnyRecord, Notice, RecordReader
from pytest_ddpscale.run.records import RankMemory, StudyEnd, StudyMemory
from pytest_ddpscale.run.strict_json import strict_json

# Inactive gangs are ended, because many hang when they run out of memory.
LIMITS = Limits(inactivity_s=300.0, startup_s=600.0, total_s=3600.0)


@dataclass(frozen=True)
class BatchTrial:
    """Result of one batch.

    Attributes:
        batch: per GPU, in samples.
        fits: whether all ranks trained all steps within their share of the memory.
        why_not: in words; empty if it fits.
        peak_bytes: GPU: bytes in use on the fullest device; CPU: bytes of all ranks together. None if they ran out.
        limit_bytes: total bytes of that memory; None if unknown.
        samples_per_s: of each GPU with all ranks training together, at the slowest rank's pace; None if they ran out.
    """

    batch: int
    fits: bool
    why_not: str = ""
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    samples_per_s: float | None = None

    @property
    def share(self) -> float | None:
        """Share of the total memory."""
        return self.peak_bytes / self.limit_bytes if self.peak_bytes and self.limit_bytes else None


@dataclass(frozen=True)
class MemoryBounds:
    """Memory that ranks may use.

    Attributes:
        fraction: of the total memory.
        together: memory that all ranks share; None if each has a device of its own.
        cgroup: memory cgroup in which the kernel counts OOM kills; None without one.
    """

    fraction: float
    together: MemoryLimit | None = None
    cgroup: MemoryCgroup | None = None

    @property
    def oom_kills(self) -> int | None:
        """Processes that the kernel has killed for lack of memory so far; None if unknown."""
        return self.cgroup.oom_kills if self.cgroup else None

    def peak(self, ranks: Sequence[RankMemory]) -> tuple[int, int | None]:
        """Bytes used and total bytes, on the fullest device or of all ranks together."""
        if self.together is not None or any(rank.total_bytes is None for rank in ranks):
            # Ranks share the pages of libraries.
            taken = sum(rank.own_bytes for rank in ranks) + max(rank.shared_bytes for rank in ranks)
            return taken, self.together.limit_bytes if self.together else None
        fullest = max(ranks, key=lambda rank: rank.own_bytes / (rank.total_bytes or 1))
        return fullest.own_bytes, fullest.total_bytes


@dataclass
class _TrialOwner(GangOwner):
    """Owner of a trial's gang: keeps blocks, ends and memory, and neither writes nor judges."""

    blocks: list[Block] = field(default_factory=list)
    ends: list[StudyEnd] = field(default_factory=list)
    memory: StudyMemory | None = None
    _reader: RecordReader = field(default_factory=RecordReader)

    def keep(self, lines: bytes) -> list[AnyRecord]:
        return [self._reader.read(line) for line in lines.splitlines()]

    def hear(self, record: AnyRecord | Notice) -> None:
        if isinstance(record, Block):
            self.blocks.append(record)
        elif isinstance(record, StudyEnd):
            self.ends.append(record)
        elif isinstance(record, StudyMemory):
            self.memory = record


def try_batch(plan: Plan, launch: Launch, bounds: MemoryBounds, log: Path) -> BatchTrial:
    """Train the one study of a plan in fresh processes.

    Args:
        plan: of `trial_plan`.
        launch: starts gangs on this machine.
        bounds: memory that ranks may use.
        log: of the gang; the folder of that name without suffix gets its ranks' logs.

    Raises:
        GangError: the gang ended for another reason than memory, or was interrupted.
    """
    [study] = plan.studies
    heard = _TrialOwner()
    kills_before = bounds.oom_kills
    launch = replace(launch, gang_id=uuid.uuid4().hex)
    end = Gang(_task(plan, launch.gang_id, LIMITS), launch, LIMITS, log, heard).run()
    kills_after = bounds.oom_kills
    kills = None if kills_before is None or kills_after is None else kills_after - kills_before
    batch = study.workload.batch_size
    has_trained = end.exit_code == 0 and any(one.reason == "rounds" for one in heard.ends)
    if not has_trained or heard.memory is None:
        return BatchTrial(batch, fits=False, why_not=_why_not(end, kills, study))
    peak, limit = bounds.peak(heard.memory.ranks)
    trial = BatchTrial(batch, True, "", peak, limit, throughput(heard.blocks, study))
    if trial.share is not None and trial.share > bounds.fraction:
        return replace(trial, fits=False, why_not=f"more than {percent(bounds.fraction)} of the memory")
    return trial


def throughput(blocks: Sequence[Block], study: Study) -> float | None:
    """Samples per second of each GPU in the arm with most ranks: median over rounds, at the slowest rank's pace."""
    of_study = [arm for arm in study.arms if arm.kind in ("ddp", "alone")]
    largest = max(of_study, key=lambda arm: (arm.world_size, arm.kind == "ddp"))
    rates = [float(np.min(block.per_second)) for block in blocks if block.arm == largest.name]
    return statistics.median(rates) if rates else None


def _why_not(end: GangEnd, kills: int | None, study: Study) -> str:
    why = "" if end.interrupted else why_out_of_memory(end, kills)
    if why:
        return why
    found = end.interrupted or end.why or "the gang ended early for an unknown reason"
    where = f"{study.workload.name} with {study.workload.batch_size} {study.workload.family.samples} per rank"
    raise GangError(where, f"the search stopped for a reason other than memory: {found.rstrip('.')}")


def _task(plan: Plan, gang_id: str, limits: Limits) -> Task:
    assignment = Assignment(
        plan=msgspec.Raw(strict_json(plan).encode()),
        studies=plan.study_ids,
        timeout_s=limits.timeout_s,
        startup_timeout_s=limits.startup_timeout_s,
        tries_memory=True,
        secret=secrets.token_hex(),
    )
    return Task(
        gang_id=gang_id, nodes=1, ranks_per_node=plan.layout.ranks_per_node, assignment=assignment,
        has_gpus=plan.device_type == "cuda", beat_s=1.0,
    )  # fmt: skip


def percent(share: float) -> str:
    """A share of memory in per cent."""
    return f"{100 * share:.3g} %"


def fastest(trials: Iterable[BatchTrial]) -> BatchTrial | None:
    """The fitting batch with the highest throughput; None if none fits."""
    fitting = [trial for trial in trials if trial.fits and trial.samples_per_s is not None]
    return max(fitting, key=lambda trial: trial.samples_per_s or 0.0, default=None)
