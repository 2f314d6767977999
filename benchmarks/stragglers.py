"""Whether a slow rank is named, and no other: real ranks on this machine's CPU, with real faults.

    python benchmarks/stragglers.py --json stragglers.json
    python benchmarks/stragglers.py --undisturbed 20 --disturbed 5

Two gloo ranks, each pinned to a share of the cores, train in the arms of a weak-scaling study, round by round; in the
arm ``each`` both train alone at the same time. There are runs without a fault, runs with a rank that sleeps for a fifth
of each step, and runs with a busy process on one rank's core. Each fault hits rank 0 and rank 1 in turn. A run is right
if exactly the rank with the fault is named, and no rank without a fault. Needs an idle machine: any other process on
one core is a busy neighbour too, and is reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.launch.torchrun import launch_here
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import Pace, Question, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.run_record import now_iso
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.thresholds.model import PeerLimits, Requirement, Source

RANKS = 2
WORKLOAD = Workload("small", ImageFamily("resnet18", 64, "contiguous", num_classes=10), "fp32", 16)
# By which a rank may be slower than its peer: two ranks on one CPU share caches, power and neighbours.
LIMIT = 0.1
PACE = Pace(rounds=10, block_s=0.5, warmup_s=0.5)
# A rank that works 1 and sleeps 0.25 sleeps a fifth of its step.
SLEEP_PER_WORK = 0.25
FAULTS = ("none", "sleeps a fifth of a step", "busy neighbour on its core")


@dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
        fault: one of `FAULTS`.
        slow_rank: which has it; None without a fault.
        named: ranks that were named.
        evidence: about the first one named.
    """

    fault: str
    slow_rank: int | None
    named: tuple[int, ...]
    evidence: str

    @property
    def right(self) -> bool:
        """Whether exactly the rank with the fault was named."""
        return self.named == (() if self.slow_rank is None else (self.slow_rank,))


def sleepy_launch(launch: Launch, slow_rank: int, sleep_per_work: float = SLEEP_PER_WORK) -> Launch:
    """A launch, with a worker of which one rank sleeps in each step."""
    fault = {"SLOW_RANK": str(slow_rank), "SLOW_SHARE": str(sleep_per_work)}
    site = os.pathsep.join(filter(None, [str(Path(__file__).with_name("slow_site")), os.environ.get("PYTHONPATH")]))
    return replace(launch, environment={**launch.environment, **fault, "PYTHONPATH": site})


@contextmanager
def busy_neighbour(slow_rank: int) -> Iterator[None]:
    """A busy process on the first core of a rank."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[slow_rank * (len(cores) // RANKS)]
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def judged_pair(run_path: Path, launch: Launch, pace: Pace, workload: Workload = WORKLOAD) -> Verdict:
    """The verdict on two ranks that train the same."""
    questions = [Question(METRICS[name], workload, RANKS) for name in ("weak_scaling_efficiency",)]
    plan = build_plan(Plan("cpu", "cpu", ()), questions, pace)
    run = RunDirectory.create(run_path)
    run.write_json(run.plan_json, plan)
    run.write_json(run.run_json, RunRecord(sku="cpu", status="finished", started_at=now_iso()))
    Supervisor(launch, run, Limits(inactivity_s=120)).measure(plan)
    source = Source(measured=1.0, margin_pct=2.0, reference="equal ranks")
    line = Requirement("weak_scaling_efficiency", 1.0, source, workload=workload.name, world_size=RANKS)
    peers = PeerLimits(computing=LIMIT)
    case = Case(line, 2, workload, "small-2rank", "", floor_samples_per_s=1.0, peers=peers)
    return judge(case, read_evidence(run), 0.95)


def one_run(fault: str, slow_rank: int | None, pace: Pace = PACE, workload: Workload = WORKLOAD) -> Outcome:
    """Measure two ranks once, with or without a fault."""
    launch = launch_here("cpu")
    if fault == FAULTS[1] and slow_rank is not None:
        launch = sleepy_launch(launch, slow_rank)
    neighbour: AbstractContextManager[None] = nullcontext()
    if fault == FAULTS[2] and slow_rank is not None:
        neighbour = busy_neighbour(slow_rank)
    with tempfile.TemporaryDirectory(prefix="stragglers-") as folder, neighbour:
        verdict = judged_pair(Path(folder) / "run", launch, pace, workload)
    named = tuple(culprit.gpu_index for culprit in verdict.culprits if culprit.gpu_index is not None)
    return Outcome(fault, slow_rank, named, verdict.culprits[0].evidence if verdict.culprits else verdict.reason)


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table."""
    rows = []
    for fault in FAULTS:
        runs = [outcome for outcome in outcomes if outcome.fault == fault]
        if runs:
            right = sum(outcome.right for outcome in runs)
            rows.append((fault, str(len(runs)), str(right), runs[0].evidence))
    print(table(("fault", "runs", "right", "evidence of the first"), rows))


def main() -> int:
    """Run the script. Returns its exit code: 1 if somebody was named wrongly, or not named."""
    parser = argument_parser(__doc__)
    parser.add_argument("--undisturbed", type=positive_int, default=20, help="runs without a fault (%(default)s)")
    parser.add_argument(
        "--disturbed", type=positive_int, default=2, help="runs with each fault in each rank (%(default)s)"
    )
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < RANKS:
        raise SystemExit(f"{len(os.sched_getaffinity(0))} usable core; expected {RANKS}: a rank needs one of its own")
    wanted: list[tuple[str, int | None]] = [(FAULTS[0], None)] * arguments.undisturbed
    wanted += [(fault, rank) for fault in FAULTS[1:] for rank in range(RANKS) for _ in range(arguments.disturbed)]
    outcomes = []
    for number, (fault, rank) in enumerate(wanted, start=1):
        outcomes.append(one_run(fault, rank))
        print(f"{number} of {len(wanted)}: {asdict(outcomes[-1])}", file=sys.stderr, flush=True)
    show(outcomes)
    keep(arguments.json, "stragglers", {"outcomes": [asdict(outcome) for outcome in outcomes]})
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
