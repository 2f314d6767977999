"""Studies: what workers time in rounds, as stored in plan.json."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from pytest_ddpscale.plan.arm import USUAL, Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.plan.words import DeviceType, refuse_below_one
from pytest_ddpscale.plan.workload import Workload

Scaling = Literal["weak", "strong"]

PLAN_SCHEMA_VERSION: Literal[7] = 7
PROBES: Literal["probes"] = "probes"  # id of the study
# Untimed steps of each block, which fill caches and queues. One-time work, such as DDP rebuilding its buckets in its
# second step, is done in the warm-up.
STEPS_BEFORE_TIMING = 1
FEWEST_STEPS_PER_BLOCK = 3
# The end of a stretch of training that is compared with the rounds after it.
SUSTAINED_S = 30.0
MOST_LAUNCHES = 10
MOST_PROFILED_STEPS = 100  # of an arm
MOST_RANKS = 10**6  # of a gang: more than any machine has, and few enough to list


@dataclass(frozen=True)
class Study:
    """One question asked of one workload: its arms are timed in interleaved rounds.

    Attributes:
        scaling: ``weak`` keeps the per-GPU batch, ``strong`` keeps the global batch.
        rounds: largest number of times that each arm is timed.
        block_s: target length of a timed block, in seconds.
        warmup_s: untimed training before the first round, in seconds.
        turns: how many ranks of each node take turns, round by round, in arms of fewer ranks: as many as a
            requirement trains at once.
        sustained_s: seconds that `stretched` is trained in one stretch before the first round; 0 for none.
        stretched_ranks: how many train it together; those of a node, on all nodes at once, or of all nodes.
        launch: the launch of the plan in which it is measured, from 1.
        environment: extra variables of its ranks, which therefore need their own gang.
        id: ``weak/resnet152-fp16``, in a later launch ``weak/resnet152-fp16/launch-2``; unique in a plan.
    """

    scaling: Scaling
    workload: Workload
    arms: tuple[Arm, ...]
    rounds: int
    block_s: float
    warmup_s: float
    turns: int = 1
    sustained_s: float = 0.0
    stretched_ranks: int = 0
    launch: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        refuse_below_one(self, "a study", "rounds", "turns", "launch")
        for arm in self.arms:
            arm.variant.refuse_data_of(self.workload)
            if arm.is_probe:
                raise ValueError(f"{arm.name} is an arm of a study of {self.workload.name}; expected training")
        suffix = f"/launch-{self.launch}" if self.launch > 1 else ""
        object.__setattr__(self, "id", f"{self.scaling}/{self.workload.name}{suffix}")

    @property
    def world_size(self) -> int:
        """The most ranks any arm needs."""
        return max((max(arm.world_size, self.turns) for arm in self.arms), default=0)

    @property
    def stretched(self) -> Arm | None:
        """The arm that is trained in one stretch; None if there is no stretch."""
        usual = (arm for arm in self.arms if arm.kind == "ddp" and arm.placement == "packed" and arm.variant == USUAL)
        return next((arm for arm in usual if arm.world_size == self.stretched_ranks and self.sustained_s), None)

    def turn(self, seed: int, number: int) -> int:
        """Local rank, the same on every node, whose turn it is in round `number`: the group that contains it trains
        the arms with fewer ranks than a node has (`Layout.groups`).

        All ranks of a node take turns, so that no single rank is the reference, in a random order that is redrawn after
        every rank has had its turn. It is drawn by digests, so that judging finds the same order in any Python version.
        """
        cycle, place = divmod(number, self.turns)

        def lot(rank: int) -> bytes:
            return hashlib.sha256(f"{seed}/{self.id}/{cycle}/{rank}".encode()).digest()

        return sorted(range(self.turns), key=lot)[place]

    def ranks(self, arms: Iterable[Arm], layout: Layout) -> tuple[int, ...]:
        """All ranks that train any of these arms in any round, in ascending order. Raises as `Layout.groups`."""
        return tuple(sorted({rank for turn in range(self.turns) for rank in layout.ranks(arms, turn)}))


@dataclass(frozen=True)
class ProbeStudy:
    """All probes of a run, in interleaved rounds.

    Attributes:
        arms: the probes, each timed once in every round, in an order drawn for that round.
        rounds: largest number of rounds.
        block_s: target seconds of one probe in one round.
        iteration_limit_s: a probe whose single iteration takes longer is skipped, and larger messages of its kind with
            it; None for no limit.
        without_limit: names of probes without that limit, because a requirement needs them.
        swept_rounds: number of rounds in which all probes are timed, with or without a requirement.
    """

    arms: tuple[Arm, ...]
    rounds: int
    block_s: float
    iteration_limit_s: float | None = None
    without_limit: tuple[str, ...] = ()
    swept_rounds: int = 0
    id: Literal["probes"] = PROBES

    launch: ClassVar[int] = 1

    def __post_init__(self) -> None:
        refuse_below_one(self, "the probes", "rounds")
        for name in ("block_s", "iteration_limit_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} of the probes is {seconds!r}; expected seconds")
        if len({arm.name for arm in self.arms}) != len(self.arms):
            raise ValueError("a probe is listed twice")
        for arm in self.arms:
            if not arm.is_probe:
                raise ValueError(f"{arm.name} is among the probes; expected one that trains nothing")

    def limit_s(self, arm: Arm) -> float | None:
        """How long one iteration of a probe may take; None without a limit."""
        return None if arm.name in self.without_limit else self.iteration_limit_s

    @property
    def world_size(self) -> int:
        """The most ranks that any probe needs."""
        return max((arm.world_size for arm in self.arms), default=0)


# Whatever is timed in rounds; each has an id and arms.
AnyStudy: TypeAlias = Study | ProbeStudy | PairStudy


@dataclass(frozen=True)
class Plan:
    """All studies of a run, for one SKU.

    Attributes:
        sku: canonical name, for example ``a100-sxm4-80gb``.
        device_type: ``cuda`` (NCCL) or ``cpu`` (gloo).
        seed: seed of the random order of arms in each round.
        nodes: number of nodes of the gang.
        ranks_per_node: ranks per node of the gang; None on one node, which has as many as the largest arm needs.
        pairs: how to measure pairs of nodes, if they are measured.
        probes: probes without training, measured first, if any.
        survey: whether to survey each node before launching anything on it.
        gpus_asked: requested GPUs per node, if more than there are; otherwise None.
        launches: how many a suite plans, each by a gang of new processes; an acceptance run has one.
        training_runs: whole runs over data sets, each by its own gang.
        requirements: compiled from the thresholds (`thresholds.cases`); they decide while the plan is measured.
        schema_version: of plan.json.
    """

    sku: str
    device_type: DeviceType
    studies: tuple[Study, ...]
    seed: int = 0
    nodes: int = 1
    ranks_per_node: int | None = None
    pairs: PairStudy | None = None
    probes: ProbeStudy | None = None
    survey: bool = False
    gpus_asked: int | None = None
    launches: int = 1
    training_runs: tuple[TrainingRun, ...] = ()
    requirements: tuple[dict[str, Any], ...] = ()
    schema_version: Literal[7] = PLAN_SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.ranks_per_node is None:
            if self.nodes != 1:
                raise ValueError(f"a plan for {self.nodes!r} nodes does not say how many ranks each has")
        elif self._most_ranks > Layout(self.nodes, self.ranks_per_node).world_size:
            raise ValueError(f"a plan for {self.nodes} x {self.ranks_per_node} ranks needs {self._most_ranks}")
        if self.layout.world_size > MOST_RANKS:
            raise ValueError(f"a plan is for {self.layout.world_size} ranks; expected at most {MOST_RANKS}")
        if not 1 <= self.launches <= MOST_LAUNCHES:
            raise ValueError(f"a plan is for {self.launches!r} launches; expected 1 to {MOST_LAUNCHES}")
        latest = max((study.launch for study in (*self.timed, *self.training_runs)), default=1)
        if latest > self.launches:
            raise ValueError(f"a plan for {self.launches!r} launches has a study in launch {latest}")

    @property
    def world_size(self) -> int:
        """Ranks of one gang for all studies, on all nodes; 0 for an empty plan."""
        return self.layout.world_size if self.study_ids else 0

    @property
    def device(self) -> str:
        """What a rank has one of, for headings: GPU; on a CPU ``rank``."""
        return "GPU" if self.device_type == "cuda" else "rank"

    @property
    def unit(self) -> str:
        """Unit of the samples that are trained, for headings; of several families joined by ``or``."""
        return self._of_families("unit")

    @property
    def samples(self) -> str:
        """The samples that are trained, for headings; of several families joined by ``or``."""
        return self._of_families("samples")

    def _of_families(self, name: str) -> str:
        return " or ".join(dict.fromkeys(getattr(study.workload.family, name) for study in self._trained))

    @property
    def _trained(self) -> list[Study | TrainingRun]:
        return [*self.studies, *self.training_runs]

    @property
    def layout(self) -> Layout:
        """How the gang's ranks are numbered over the nodes."""
        return Layout(self.nodes, self.ranks_per_node or max(self._most_ranks, 1))

    @property
    def _most_ranks(self) -> int:
        return max([study.world_size for study in self._trained] + [self.probes.world_size if self.probes else 0])

    def joined(self, other: Plan) -> Plan:
        """This plan with the studies of another one on the same nodes, measured by another launch."""
        return replace(
            self,
            studies=(*self.studies, *other.studies),
            ranks_per_node=max(self.layout.ranks_per_node, other.layout.ranks_per_node),
            pairs=self.pairs or other.pairs,
            probes=self.probes or other.probes,
            training_runs=(*self.training_runs, *other.training_runs),
        )

    def part(self, ids: Collection[str]) -> Plan:
        """The plan of some of its studies, for the same ranks."""

        def has(study: Any) -> bool:
            return study is not None and study.id in ids

        return replace(
            self, studies=tuple(filter(has, self.studies)), training_runs=tuple(filter(has, self.training_runs)),
            pairs=self.pairs if has(self.pairs) else None, probes=self.probes if has(self.probes) else None,
            ranks_per_node=self.layout.ranks_per_node,
        )  # fmt: skip

    @property
    def study_ids(self) -> tuple[str, ...]:
        """Ids of all studies, in the order of measurement."""
        runs = sorted(self.training_runs, key=lambda run: run.launch)
        return tuple(study.id for study in (*sorted(self.timed, key=lambda study: study.launch), *runs))

    @property
    def timed(self) -> tuple[AnyStudy, ...]:
        """All that is timed in rounds, probes first and pairs last."""
        return tuple(study for study in (self.probes, *self.studies, self.pairs) if study is not None)

    @cached_property
    def _by_id(self) -> dict[str, AnyStudy | TrainingRun]:
        return {study.id: study for study in (*self.timed, *self.training_runs)}

    def study(self, study_id: str) -> Study | None:
        """The study of that id, or None."""
        return study if isinstance(study := self._by_id.get(study_id), Study) else None

    def training_run(self, study_id: str) -> TrainingRun | None:
        """The whole run of that id, or None."""
        return run if isinstance(run := self._by_id.get(study_id), TrainingRun) else None

    def arm(self, study_id: str, name: str) -> Arm | None:
        """The arm of that name in any study, the probes or the pairs; None if there is none."""
        return next((arm for arm in getattr(self._by_id.get(study_id), "arms", ()) if arm.name == name), None)

    def launch_of(self, study_id: str) -> int:
        """The launch in which a study, the probes or the pairs are measured, from 1."""
        return self._by_id[study_id].launch if study_id in self._by_id else 1

    def environment_of(self, study_id: str) -> dict[str, str]:
        """Extra environment variables of the ranks that measure it."""
        return dict(getattr(self._by_id.get(study_id), "environment", ()))

    def layout_of(self, study_id: str) -> Layout:
        """Layout of the gang that measures it; a whole run has a gang of its own size."""
        return getattr(self._by_id.get(study_id), "layout", self.layout)

    def fits_nodes(self, study_id: str) -> bool:
        """Whether each node measures that study by itself, so that the others can do so after a node is lost."""
        study = self._by_id.get(study_id)
        if isinstance(study, TrainingRun):
            return study.nodes == 1
        return isinstance(study, Study | ProbeStudy) and all(map(self.layout.fits_node, study.arms))
