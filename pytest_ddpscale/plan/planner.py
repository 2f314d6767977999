"""Plans the fewest studies that answer all requirements."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from pytest_ddpscale.plan.arm import Arm, OneGpu, Placement
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import Metric
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Scaling, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import Workload

# Fewer rounds never decide: the spread is too uncertain, and on a node of eight GPUs not every GPU has had its turn
# alone.
FEWEST_ROUNDS = 8


@dataclass(frozen=True)
class Pace:
    """How long and how often arms are timed.

    Attributes:
        rounds: largest number of times each arm is timed; a study ends earlier once all its requirements are decided.
        block_s: target length of a timed block, in seconds.
        warmup_s: untimed seconds before the first round of a study.
        uncompared_rounds: a lower limit for probes and for studies without a single-rank arm: they have no ratio with
            the noise of two arms, and a nightly check has five minutes.
        sustained_s: see `Study`, of one study.
    """

    rounds: int
    block_s: float
    warmup_s: float
    uncompared_rounds: int = 16
    sustained_s: float = 0.0


# GPU: a block holds at least two NVML utilization samples (1/6 s to 1 s apart), and ten seconds warm the GPU up. CPU:
# blocks are long enough to average over scheduling noise. At most 32 rounds: with 16 a healthy node is often left
# undecided (docs/decisions.md).
# Two minutes at full load show what heat costs (docs/decisions.md).
PACES: dict[DeviceType, Pace] = {"cuda": Pace(32, 2.0, 10.0, sustained_s=120.0), "cpu": Pace(32, 0.75, 2.0)}
# Block length of one probe in one round; short, since probes need no warm-up and there are many.
PROBE_BLOCKS_S: dict[DeviceType, float] = {"cuda": 0.4, "cpu": 0.1}


@dataclass(frozen=True)
class Question:
    """The measurement that a requirement needs: a metric of training a workload on a number of ranks.

    `one_gpu` says how a single GPU is trained, if the metric times one and leaves that open.
    """

    metric: Metric
    workload: Workload
    world_size: int
    placement: Placement = "packed"
    one_gpu: OneGpu = "alone"

    @property
    def measured(self) -> Arm:
        """The arm whose blocks give the metric's value.

        Raises:
            ValueError: strong scaling without a global batch, or with one that the ranks cannot share evenly; or a
                metric of a folder for a workload with synthetic data.
        """
        metric, batch_size = self.metric, self._batch_size(self.world_size)
        if metric.reads_folder and self.workload.data == "synthetic":
            raise ValueError(f"{metric.name} needs `data: {{folder: PATH}}` in the workload {self.workload.name}")
        if self.world_size == 1 and metric.times_one_gpu(is_of_one=True):
            return Arm(self.one_gpu, 1, batch_size)
        kind = "each" if metric.reads_own_pace and self.workload.compile else metric.measured
        return Arm(kind, self.world_size, batch_size, self.placement)

    @property
    def baseline(self) -> Arm | None:
        """The arm it is compared with, if any. Raises as `measured`."""
        metric = self.metric
        if metric.baseline is None:
            return None
        if metric.baseline == "alone":
            is_open = metric.times_one_gpu(is_of_one=self.world_size == 1)
            return Arm(self.one_gpu if is_open else "alone", 1, self._batch_size(1))
        batch_size = self._batch_size(self.world_size)
        return Arm(metric.baseline, self.world_size, batch_size, self.placement, metric.baseline_variant)

    def _batch_size(self, world_size: int) -> int:
        """Per-GPU batch of an arm of that many ranks."""
        workload, whole = self.workload, self.workload.global_batch_size
        if self.metric.scaling == "weak":
            return workload.batch_size
        if whole is None:
            raise ValueError(f"workload {workload.name} has no global_batch_size, which strong scaling divides")
        if whole % world_size:
            raise ValueError(
                f"global_batch_size {whole} of {workload.name} cannot be shared evenly by {world_size} ranks"
            )
        return whole // world_size

    @property
    def arms(self) -> list[Arm]:
        """All arms it needs, baseline first. Raises as `measured`."""
        return [arm for arm in (self.baseline, self.measured) if arm is not None]


Wanted = dict[tuple[Scaling, Workload], set[Arm]]


def build_plan(
    empty: Plan, questions: Iterable[Question], pace: Pace, probes: Iterable[Arm] = (),
    stretched: Container[Workload] = (),
) -> Plan:  # fmt: skip
    """Plan one study per kind of scaling and workload, with every arm that any question needs.

    The first weak-scaling study, by name, on the most ranks also times all ranks at once without communication (the arm
    ``each``) to find slow ranks, because under DDP all ranks wait for the slowest. On several nodes these are all ranks
    of the gang. This study comes first, because slow ranks must be known before another study can end early. The arm is
    also in the weak-scaling study of each compiled workload, in which ranks cannot time their own forward passes. Weak
    scaling beyond one node is also measured on one node, two, four …, to show where scaling breaks down. With several
    nodes, pairs of them are measured too, because a path that no requirement covers may be the slow one.

    Args:
        empty: a plan without studies, whose `ranks_per_node` is the largest number possible. If every arm fits a node,
            only as many ranks as the largest arm needs are used; with GPU probes or a survey, all GPUs.
        questions: the questions to answer.
        pace: how long and how often arms are timed.
        probes: the probes to run.
        stretched: workloads of which the first is trained in one stretch, if weak scaling trains it on all ranks.

    Raises:
        ValueError: as `Question.measured`, which does not occur for a loaded thresholds file; or an arm or a probe
            needs more ranks than all nodes have.
    """
    probed = tuple(dict.fromkeys(probes))
    arms: Wanted = {}
    for question in questions:
        arms.setdefault((question.metric.scaling, question.workload), set()).update(question.arms)
    planned = [arm for wanted in arms.values() for arm in wanted]
    takes_all = empty.device_type == "cuda" and (empty.survey or len(probed) > 0)
    ranks_per_node, layout = empty.ranks_per_node if takes_all else None, None
    if empty.nodes > 1:
        layout = empty.layout
        if not takes_all and all(map(layout.fits_node, [*planned, *probed])):
            layout = Layout(empty.nodes, _largest([*planned, *probed]))
        ranks_per_node = layout.ranks_per_node
        for (scaling, workload), wanted in arms.items():
            trained = [arm for arm in wanted if arm.placement == "packed" and not arm.infers]
            beyond, size = _largest(arm for arm in trained if not layout.fits_node(arm)), layout.ranks_per_node
            while scaling == "weak" and size < beyond:
                if size > 1:
                    wanted.add(Arm("ddp", size, workload.batch_size))
                size *= 2
    _add_each(arms, layout)
    # Of a node's ranks those take turns that some arm trains together, in whole groups of smaller arms. Others would
    # count as tested although no larger arm shows their slowness, which the turns average away.
    per_node = ranks_per_node or _largest(planned)
    most, sizes = min(_largest(planned), per_node), {arm.world_size for wanted in arms.values() for arm in wanted}
    dealt = [size for size in sizes if size < most and per_node % size == 0]
    turns = next((turns for turns in range(most, 1, -1) if not any(turns % size for size in dealt)), 1)
    uncompared, studies = min(pace.rounds, pace.uncompared_rounds), list[Study]()

    def compared(key: tuple[Scaling, Workload]) -> int:
        return max((arm.world_size for arm in arms[key] if arm.kind == "each"), default=0)

    for scaling, workload in sorted(arms, key=compared, reverse=True):
        wanted = arms[scaling, workload]
        timed = tuple(sorted(wanted, key=lambda arm: (arm.world_size, arm.kind, arm.placement, arm.variant.name)))
        taken = turns if timed[0].world_size < turns else 1
        rounds = pace.rounds if timed[0].world_size == 1 else uncompared
        studies.append(Study(scaling, workload, timed, rounds, pace.block_s, pace.warmup_s, taken))
    for number, study in enumerate(studies):
        tried = [
            replace(study, sustained_s=pace.sustained_s, stretched_ranks=size)
            for size in (per_node, per_node * empty.nodes)
        ]
        long = next((study for study in tried if study.stretched), None)
        if long and study.scaling == "weak" and study.workload in stretched:
            studies[number] = long
            break
    return replace(
        empty,
        studies=tuple(studies),
        ranks_per_node=ranks_per_node,
        pairs=pair_study(empty.device_type) if layout is not None and (studies or probed) else None,
        probes=ProbeStudy(probed, uncompared, PROBE_BLOCKS_S[empty.device_type]) if probed else None,
    )


def _largest(arms: Iterable[Arm]) -> int:
    return max((arm.world_size for arm in arms), default=1)


def _add_each(arms: Wanted, layout: Layout | None) -> None:
    """Add the arm ``each`` to one study: a slow rank is slow in every workload.

    In all other studies each rank times its own forward passes. Where it cannot, because the model is compiled, the arm
    is added too.
    """
    planned = [arm for wanted in arms.values() for arm in wanted]
    sizes = {
        key: _largest(wanted)
        for key, wanted in arms.items()
        if (layout is None or key[0] == "weak") and not all(arm.infers for arm in wanted)
    }
    largest = max(sizes.values(), default=1)
    ranks = _ranks_compared(planned, layout, largest)
    candidates = [key for key, size in sizes.items() if key[0] == "weak" and size == largest]
    is_there = ("each", ranks) in {(arm.kind, arm.world_size) for arm in planned}
    if candidates and not is_there and (layout is not None or ranks > 1):
        # Chosen by name, independently of the order of questions.
        key = min(candidates, key=lambda candidate: candidate[1].name)
        arms[key].add(Arm("each", ranks, key[1].batch_size))
    for (scaling, workload), wanted in arms.items():
        trained = [arm for arm in wanted if not arm.infers]
        if scaling == "weak" and workload.compile and _largest(trained) > 1:
            wanted.add(Arm("each", _ranks_compared(trained, layout, _largest(trained)), workload.batch_size))


def _ranks_compared(arms: Iterable[Arm], layout: Layout | None, largest: int) -> int:
    """Number of ranks that the arm ``each`` compares: those of the largest arm, or of all nodes that train one."""
    if layout is None:
        return largest
    return layout.ranks_per_node if all(map(layout.fits_node, arms)) else layout.world_size
