"""The cost of the telemetry sampler for a training beside it.

    python benchmarks/sampler_overhead.py --json sampler_overhead.json
    python benchmarks/sampler_overhead.py --model resnet50 --batch-size 256 --image-size 224 --block-s 3 --rounds 40

One model trains in short blocks, with the sampler running and with it stopped (SIGSTOP), in random order, balanced over
every two rounds, so other load affects both alike. As in a run, the lines of a block are read at its end, outside of
the timing. The ratio with / without is the geometric mean over the rounds, with its 95 %
Student-t interval.

With GPUs, the first one trains and a sampler reads each of them. Otherwise the CPU trains on all its cores, so the
samplers have no core of their own, and read eight B200 of the tests' stand-in library, built with cc: this counts the
sampler's own work, not a driver's. Its CPU seconds per second are shown beside the ratio: the amount that it can take
from a CPU-bound training, and far less noisy.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.node.survey import visible_gpus
from pytest_ddpscale.suites.engine import geometric_mean_estimate
from pytest_ddpscale.telemetry.windows import POLL_S, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPECTED_RATIO, CONFIDENCE = 0.995, 0.95
PLAYED_GPUS = 8
WARM_S = 3.0


@dataclass(frozen=True)
class Round:
    """One block with the sampler at work, and one without.

    Attributes:
        with_steps_per_s: pace beside the sampler.
        without_steps_per_s: pace while it is stopped.
        sampler_cpu_s: CPU time that the sampler took in the first block.
        with_s: duration of that, in seconds.
    """

    with_steps_per_s: float
    without_steps_per_s: float
    sampler_cpu_s: float
    with_s: float

    @property
    def ratio(self) -> float:
        """Pace with the sampler / pace without."""
        return self.with_steps_per_s / self.without_steps_per_s


@dataclass(frozen=True)
class Overhead:
    """Cost of the sampler.

    Attributes:
        ratio: pace with the sampler / without, over the rounds.
        cpu_s_per_s: CPU time of the sampler per second.
    """

    ratio: Found
    cpu_s_per_s: float


def overhead(rounds: Sequence[Round]) -> Overhead:
    """Both costs. Raises ValueError with fewer than two rounds, which have no spread."""
    ratio = geometric_mean_estimate([one.ratio for one in rounds], CONFIDENCE)
    return Overhead(ratio, sum(one.sampler_cpu_s for one in rounds) / sum(one.with_s for one in rounds))


def orders(rounds: int, seed: int) -> list[tuple[bool, bool]]:
    """For each round, whether the sampler is at work in its two blocks: at random, yet each first in every two."""
    chance = random.Random(seed)
    found: list[tuple[bool, bool]] = []
    while len(found) < rounds:
        first = chance.random() < 0.5
        found += [(first, not first), (not first, first)]
    return found[:rounds]


def cpu_s_of(pid: int) -> float:
    """CPU seconds that a process has taken, by itself and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Beside:
    """Times a training beside the sampler.

    Args:
        samplers: at work, one for each GPU.
        train: does one step, and waits for it.
        block_s: length of a block, in seconds.
    """

    def __init__(self, samplers: Sequence[Sampler], train: Callable[[], None], block_s: float) -> None:
        self._samplers, self._pids = samplers, [one.process.pid for one in samplers if one.process is not None]
        self._train, self._block_s = train, block_s

    def round(self, order: tuple[bool, bool]) -> Round:
        """Time a block with the sampler and one without, in this order."""
        pace: dict[bool, float] = {}
        cpu_s = with_s = 0.0
        for with_sampler in order:
            if not with_sampler:
                self._signal(signal.SIGSTOP)
                pace[False] = self._block()
                self._signal(signal.SIGCONT)
                continue
            before_cpu_s, began_s = sum(map(cpu_s_of, self._pids)), time.perf_counter()
            started_unix_s = time.time()
            pace[True] = self._block()
            told = [sampler.cut(started_unix_s, time.time()) for sampler in self._samplers]
            if why := next(filter(None, (one.unreadable.get("device") for one in told)), ""):
                raise SystemExit(f"nothing was sampled: {why}")
            cpu_s, with_s = sum(map(cpu_s_of, self._pids)) - before_cpu_s, time.perf_counter() - began_s
        return Round(pace[True], pace[False], cpu_s, with_s)

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            os.kill(pid, number)

    def _block(self) -> float:
        """Steps per second."""
        steps, began_s = 0, time.perf_counter()
        while time.perf_counter() - began_s < self._block_s:
            self._train()
            steps += 1
        return steps / (time.perf_counter() - began_s)


def training(model_name: str, batch_size: int, image_size: int, on_gpu: bool) -> Callable[[], None]:
    """A function that does one step of training, and returns when it is done."""
    import torch
    import torchvision

    device = torch.device("cuda" if on_gpu else "cpu")
    model = torchvision.models.get_model(model_name, num_classes=100).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    labels = torch.randint(100, (batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()

    return step


@contextmanager
def played_node() -> Iterator[list[str]]:
    """UUIDs of eight busy B200 of the stand-in library, which processes that are started see from now on."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from tests.nvml_stand_in.machine import B200, PlayedMachine, at_work, build_library, node_of, uuid_of

    with tempfile.TemporaryDirectory(prefix="sampler-overhead-") as name:
        folder = Path(name)
        machine = PlayedMachine(build_library(folder), folder / "machine.json").play(
            node_of(at_work(B200), PLAYED_GPUS)
        )
        os.environ.update(machine.environment())
        yield [uuid_of(i) for i in range(PLAYED_GPUS)]


def measure(arguments: argparse.Namespace, uuids: list[str]) -> list[Round]:
    """All rounds. Raises SystemExit if nothing is sampled."""
    train = training(arguments.model, arguments.batch_size, arguments.image_size, bool(uuids))
    ends_s = time.perf_counter() + WARM_S
    while time.perf_counter() < ends_s:
        train()
    with (
        nullcontext(uuids) if uuids else played_node() as read,
        tempfile.TemporaryDirectory(prefix="sampler-overhead-") as folder,
        ExitStack() as running,
    ):
        opened = (Sampler(uuid, Path(folder, uuid), arguments.poll_s) for uuid in read)
        samplers = [running.enter_context(closing(one)) for one in opened]
        for sampler in samplers:
            sampler.wait_for_first_poll(60)
        beside = Beside(samplers, train, arguments.block_s)
        return [beside.round(order) for order in orders(arguments.rounds, arguments.seed)]


def result_table(found: Overhead, rounds: Sequence[Round], trained_on: str) -> str:
    """One line."""
    ends = " … ".join(f"{end:.4f}" for end in found.ratio.interval or ())
    row = (trained_on, str(len(rounds)), f"{found.ratio.value:.4f}", ends,
           f"{found.cpu_s_per_s:.4f}")  # fmt: skip
    return table(("trained on", "rounds", "with/without", "95 % interval", "sampler CPU s/s"), [row])


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=positive_int, default=16)
    parser.add_argument("--image-size", type=positive_int, default=64)
    parser.add_argument("--rounds", type=positive_int, default=30, help="(%(default)s)")
    parser.add_argument("--block-s", type=float, default=2.0, help="length of a block (%(default)s)")
    parser.add_argument("--poll-s", type=float, default=POLL_S, help="seconds between two polls (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of the blocks")
    return parser.parse_args()


def main() -> int:
    """Run the script. Returns its exit code."""
    arguments = parse_arguments()
    if arguments.rounds < 2:
        raise SystemExit("--rounds 1: expected at least 2, as one round has no spread")
    uuids = [gpu.uuid for gpu in visible_gpus()]
    rounds = measure(arguments, uuids)
    found = overhead(rounds)
    trained_on = "GPU" if uuids else "CPU"
    print(result_table(found, rounds, trained_on))
    print(f"expected: at least {EXPECTED_RATIO:g} with / without")
    settings: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name != "json"}
    result = {
        "settings": settings,
        "trained_on": trained_on,
        "sampled_gpus": len(uuids) or PLAYED_GPUS,
        "driver": "real" if uuids else "stand-in",
        "expected_ratio": EXPECTED_RATIO,
        **asdict(found),
        "rounds": [asdict(one) for one in rounds],
    }
    keep(arguments.json, "sampler_overhead", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
