"""The cost of the telemetry sampler for a training beside it: docs/evidence/README.md.

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
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from reporting import arguments, keep, orders, table

from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.node.survey import visible_gpus
from pytest_ddpscale.suites.engine import geometric_mean_estimate
from pytest_ddpscale.telemetry.windows import POLL_S, Sampler

EXPECTED_RATIO, CONFIDENCE = 0.995, 0.95
PLAYED_GPUS, WARM_S = 8, 3.0
WAYS = ("with", "without")


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


def overhead(rounds: Sequence[Round]) -> tuple[Estimate, float]:
    """Pace with the sampler / without, and its CPU time per second. Raises ValueError with fewer than two rounds."""
    ratio = geometric_mean_estimate([one.with_steps_per_s / one.without_steps_per_s for one in rounds], CONFIDENCE)
    return ratio, sum(one.sampler_cpu_s for one in rounds) / sum(one.with_s for one in rounds)


def cpu_s_of(pids: Sequence[int]) -> float:
    """CPU seconds that processes have taken, by themselves and in the kernel."""
    stats = [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in stats) / os.sysconf("SC_CLK_TCK")


def measured(order: Sequence[str], samplers: Sequence[Sampler], train: Callable[[], None], block_s: float) -> Round:
    """Time a block with the samplers and one without, in this order."""
    pids = [one.process.pid for one in samplers if one.process is not None]

    def send(number: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    def pace() -> float:
        """Steps per second."""
        steps, began_s = 0, time.perf_counter()
        while time.perf_counter() - began_s < block_s:
            train()
            steps += 1
        return steps / (time.perf_counter() - began_s)

    for way in order:
        if way == "without":
            send(signal.SIGSTOP)
            without = pace()
            send(signal.SIGCONT)
            continue
        before_cpu_s, began_s, started_unix_s = cpu_s_of(pids), time.perf_counter(), time.time()
        beside = pace()
        told = [sampler.cut(started_unix_s, time.time()) for sampler in samplers]
        cpu_s, with_s = cpu_s_of(pids) - before_cpu_s, time.perf_counter() - began_s
        if why := next(filter(None, (one.unreadable.get("device") for one in told)), ""):
            raise SystemExit(f"nothing was sampled: {why}")
    return Round(beside, without, cpu_s, with_s)


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
        machine = PlayedMachine(build_library(Path(name)), Path(name) / "machine.json")
        os.environ.update(machine.play(node_of(at_work(B200), PLAYED_GPUS)).environment())
        yield [uuid_of(i) for i in range(PLAYED_GPUS)]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    return arguments(
        __doc__,
        json=(Path, "write the result to this file"),
        model=("resnet18", "of torchvision"),
        batch_size=(16, "images"),
        image_size=(64, "pixels"),
        rounds=(30, "of two blocks, at least 2"),
        block_s=(2.0, "length of a block"),
        poll_s=(POLL_S, "seconds between two polls"),
        seed=(0, "of the order of the blocks"),
    )


def main() -> int:
    """Run the script. Returns its exit code."""
    given = parse_arguments()
    uuids = [gpu.uuid for gpu in visible_gpus()]
    train = training(given.model, given.batch_size, given.image_size, bool(uuids))
    ends_s = time.perf_counter() + WARM_S
    while time.perf_counter() < ends_s:
        train()
    with (
        nullcontext(uuids) if uuids else played_node() as read,
        tempfile.TemporaryDirectory(prefix="sampler-overhead-") as folder,
        ExitStack() as running,
    ):
        opened = (Sampler(uuid, Path(folder, uuid), given.poll_s) for uuid in read)
        samplers = [running.enter_context(closing(one)) for one in opened]
        for sampler in samplers:
            sampler.wait_for_first_poll(60)
        order = orders(WAYS, given.rounds, given.seed)
        rounds = [measured(one, samplers, train, given.block_s) for one in order]
    ratio, cpu_s_per_s = overhead(rounds)
    trained_on, ends = "GPU" if uuids else "CPU", " … ".join(f"{end:.4f}" for end in ratio.interval or ())
    header = ("trained on", "rounds", "with/without", "95 % interval", "sampler CPU s/s")
    print(table(header, [(trained_on, len(rounds), f"{ratio.value:.4f}", ends, f"{cpu_s_per_s:.4f}")]))
    print(f"expected: at least {EXPECTED_RATIO:g} with / without")
    result = {
        "settings": vars(given) | {"json": None}, "trained_on": trained_on, "sampled_gpus": len(read),
        "ratio": ratio._asdict(), "cpu_s_per_s": cpu_s_per_s, "rounds": [asdict(one) for one in rounds],
    }  # fmt: skip
    keep(given.json, "sampler_overhead", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
