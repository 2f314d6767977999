"""Whether ranks measure the speed of a bare DistributedDataParallel loop: docs/evidence (h200, CPU), docs/decisions.

    python benchmarks/fidelity.py --device cpu --json fidelity.json
    python benchmarks/fidelity.py --device cuda --model resnet50 --batch-size 128 --image-size 224 --precision fp16 \
        --memory-format channels_last --num-classes 1000 --launches 1 --rounds 100 --block-steps 10 --json fidelity.json

In the same ranks, short blocks of two loops alternate: that of `bare_ddp.py`, set up once, and the worker's
`StudyArms.time_block`. They are timed for one rank alone under DDP and for all ranks. The two blocks of a pair
are adjacent and in random order, balanced over every two rounds, so other load affects both alike. The ratio
worker / bare is the mean of the pairs' log-ratios, with its 95 % Student-t interval; the median beside it shows whether
a few disturbed pairs dominate the mean.

On a CPU, two equal models in one process differ by some per cent in speed, depending on memory placement, for as long
as the process lives. So everything is repeated in several launches, in which either loop is set up first in turn, and
the ratio of each launch is shown too: if these differ by more than the width of the interval, it is too narrow.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.families.image import ImageFamily, MemoryFormat
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.node.processes import GANG_VARIABLE, stop_gang
from pytest_ddpscale.node.survey import visible_gpus
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.engine import geometric_mean_estimate

Loop = Literal["bare", "worker"]
# Of each round, by loop.
BlockSeconds = Mapping[Loop, Sequence[float]]
LOOPS: tuple[Loop, Loop] = ("bare", "worker")
TOLERANCE, CONFIDENCE = 0.02, 0.95
RANK_SCRIPT = Path(__file__).with_name("fidelity_rank.py")


@dataclass(frozen=True)
class Job:
    """The ranks' job, stored in job.json.

    Attributes:
        device_type: ``cuda`` (NCCL) or ``cpu`` (gloo).
        ranks: on this machine.
        rounds: pairs of blocks for each world size.
        block_steps: timed steps in a block.
        seed: of the order of the blocks.
        first_built: the loop whose model is made first.
        model: a torchvision classification model.
        batch_size: images per rank.
        image_size: height and width, in pixels.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        memory_format: ``channels_last`` or ``contiguous``.
        num_classes: size of the classification head.
    """

    device_type: DeviceType
    ranks: int
    rounds: int
    block_steps: int
    seed: int
    first_built: Loop
    model: str
    batch_size: int
    image_size: int
    precision: Precision
    memory_format: MemoryFormat
    num_classes: int

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """One rank, and all of them."""
        return tuple(sorted({1, self.ranks}))

    @property
    def study(self) -> Study:
        """The same training as the worker is told it."""
        workload = Workload(
            "fidelity",
            ImageFamily(
                self.model, image_size=self.image_size, memory_format=self.memory_format, num_classes=self.num_classes
            ),
            self.precision,
            self.batch_size,
        )
        arms = tuple(Arm("ddp", size, self.batch_size) for size in self.world_sizes)
        # Rounds and block length are ours to keep: StudyArms only times what it is told to.
        return Study("weak", workload, arms, self.rounds, block_s=1.0, warmup_s=0.0)

    @property
    def building_order(self) -> tuple[Loop, ...]:
        """In which order the loops are set up."""
        return LOOPS if self.first_built == LOOPS[0] else LOOPS[::-1]

    def launch(self, number: int) -> Job:
        """The job of a launch, counted from 0: another order of the blocks, and the other loop set up first."""
        return replace(self, seed=self.seed + number, first_built=LOOPS[number % 2])

    def orders(self, world_size: int) -> list[tuple[Loop, ...]]:
        """For each round, which loop goes first: at random, yet each once in every two rounds."""
        chance = random.Random(f"{self.seed}/{world_size}")
        orders: list[tuple[Loop, ...]] = []
        while len(orders) < self.rounds:
            first = chance.choice((LOOPS, LOOPS[::-1]))
            orders += [first, first[::-1]]
        return orders[: self.rounds]


@dataclass(frozen=True)
class Agreement:
    """Both loops in one world size.

    Attributes:
        world_size: ranks that trained together.
        samples_per_s: median of all ranks together, by loop.
        ratio: worker / bare, geometric mean over the pairs, with its 95 % interval.
        median_ratio: median over the pairs.
        ratio_by_launch: geometric mean over the pairs of each launch.
        pairs: how many.
    """

    world_size: int
    samples_per_s: Mapping[Loop, float]
    ratio: Found
    median_ratio: float
    ratio_by_launch: Sequence[float]
    pairs: int

    def as_json(self) -> dict[str, Any]:
        """The agreement as JSON types."""
        return asdict(self) | {"within_tolerance": abs(self.ratio.value - 1) <= TOLERANCE}


def agreement(job: Job, world_size: int, launches: Sequence[BlockSeconds]) -> Agreement:
    """Compare the loops.

    Args:
        job: what was trained.
        world_size: by how many ranks.
        launches: seconds of each round's block, by loop, for each launch.
    """
    images = job.batch_size * job.block_steps * world_size
    samples_per_s: dict[Loop, float] = {
        loop: images / statistics.median(block_s for seconds in launches for block_s in seconds[loop]) for loop in LOOPS
    }
    ratios = [
        [bare_s / worker_s for bare_s, worker_s in zip(seconds["bare"], seconds["worker"], strict=True)]
        for seconds in launches
    ]
    pairs = [ratio for launch in ratios for ratio in launch]
    return Agreement(
        world_size,
        samples_per_s,
        ratio=geometric_mean_estimate(pairs, CONFIDENCE),
        median_ratio=statistics.median(pairs),
        ratio_by_launch=[statistics.geometric_mean(launch) for launch in ratios],
        pairs=len(pairs),
    )


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of the slowest rank in each round."""
    return [max(block) for block in zip(*by_rank, strict=True)]


def run_ranks(job: Job) -> dict[int, BlockSeconds]:
    """Start the ranks and wait for them.

    Returns:
        Seconds of each round's block, by world size and loop.

    Raises:
        SystemExit: the ranks failed; their output has been shown.
    """
    with tempfile.TemporaryDirectory(prefix="fidelity-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
        _launch(job, folder)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(job.ranks)]
    return {
        size: {loop: slowest([rank[str(size)][loop] for rank in ranks[:size]]) for loop in LOOPS}
        for size in job.world_sizes
    }


def _launch(job: Job, folder: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
    command = [*torchrun, f"--nproc-per-node={job.ranks}", str(RANK_SCRIPT), str(folder)]
    gang_id = uuid.uuid4().hex
    environment = {
        "GLOO_SOCKET_IFNAME": "lo",
        **worker_environment(os.environ, job.device_type),
        GANG_VARIABLE: gang_id,
        **as_an_agent_would(),
    }
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        exit_code = process.wait()
    finally:
        stop_gang([process], gang_id, grace_s=10.0)
    if exit_code:
        raise SystemExit(f"the ranks failed with exit code {exit_code}; their output is above")


def as_an_agent_would() -> dict[str, str]:
    """What `worker.control.connect` wants to be told: one node, and where rank 0 hosts the store."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {"DDPSCALE_NODES": "1", "DDPSCALE_NODE_INDEX": "0", "DDPSCALE_STORE": f"127.0.0.1:{port}"}


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--ranks", type=positive_int, help="default: one for each GPU; 2 on CPU")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=positive_int, default=16, help="images per rank (%(default)s)")
    parser.add_argument("--image-size", type=positive_int, default=64)
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp32")
    parser.add_argument("--memory-format", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--num-classes", type=positive_int, default=100)
    parser.add_argument("--rounds", type=positive_int, default=30, help="pairs in each launch (%(default)s)")
    parser.add_argument("--launches", type=positive_int, default=4, help="(%(default)s)")
    parser.add_argument("--block-steps", type=positive_int, default=3, help="timed steps in a block (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of the blocks")
    return parser.parse_args()


def job_from(arguments: argparse.Namespace) -> Job:
    """The job of the command line.

    Raises:
        SystemExit: it asks for a GPU and there is none, or for more ranks than GPUs.
    """
    gpus = 0 if arguments.device == "cpu" else len(visible_gpus())
    if arguments.device == "cuda" and not gpus:
        raise SystemExit("--device cuda: NVML sees no GPU here; expected at least one, or --device cpu")
    ranks = arguments.ranks or gpus or 2
    if gpus and ranks > gpus:
        raise SystemExit(f"--ranks {ranks}: {gpus} GPUs are visible; expected no more ranks than GPUs")
    values = {name: getattr(arguments, name) for name in Job.__dataclass_fields__ if name in arguments}
    return Job(**values | {"device_type": "cuda" if gpus else "cpu", "ranks": ranks, "first_built": LOOPS[0]})


def agreement_table(found: Sequence[Agreement]) -> str:
    """One line for each world size."""
    header = ("arm", "pairs", "bare img/s", "worker img/s", "worker/bare", "95 % interval", "median", "each launch")
    rows = [
        (
            f"ddp@{a.world_size}",
            str(a.pairs),
            f"{a.samples_per_s['bare']:.1f}",
            f"{a.samples_per_s['worker']:.1f}",
            f"{a.ratio.value:.4f}",
            " … ".join(f"{end:.4f}" for end in a.ratio.interval or ()),
            f"{a.median_ratio:.4f}",
            " ".join(f"{ratio:.3f}" for ratio in a.ratio_by_launch),
        )
        for a in found
    ]
    return table(header, rows)


def main() -> int:
    """Run the script. Returns its exit code."""
    arguments = parse_arguments()
    if arguments.rounds < 2:
        raise SystemExit("--rounds 1: expected at least 2, as one pair has no spread")
    job = job_from(arguments)
    launches = []
    for number in range(arguments.launches):
        launches.append(run_ranks(job.launch(number)))
        print(f"launch {number + 1} of {arguments.launches} is done", file=sys.stderr, flush=True)
    found = [agreement(job, size, [launch[size] for launch in launches]) for size in job.world_sizes]
    print(agreement_table(found))
    print(f"expected: worker/bare within {TOLERANCE:.0%} of 1")
    result = {"job": asdict(job), "tolerance": TOLERANCE, "agreements": [a.as_json() for a in found]}
    keep(arguments.json, "fidelity", result | {"block_s_by_launch": launches})
    return 0


if __name__ == "__main__":
    sys.exit(main())
