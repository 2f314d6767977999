"""An ordinary DistributedDataParallel loop: the reference of the speed ratios in docs/evidence (h200, CPU).

    torchrun --nproc-per-node=2 benchmarks/bare_ddp.py --model resnet18 --batch-size 16 --image-size 64
    torchrun --nproc-per-node=8 benchmarks/bare_ddp.py --precision fp16 --memory-format channels_last

Synthetic data on the device, a fixed number of steps, one wall-clock time around them. It imports nothing of
pytest_ddpscale, so the comparison is independent.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Options:
    """What to train.

    Attributes:
        model: a torchvision classification model.
        batch_size: images per rank.
        image_size: height and width, in pixels.
        precision: ``fp32``, ``fp16`` (autocast with GradScaler) or ``bf16`` (autocast).
        memory_format: ``channels_last`` or ``contiguous``.
        num_classes: size of the classification head.
    """

    model: str
    batch_size: int
    image_size: int
    precision: str
    memory_format: str
    num_classes: int


class BareLoop:
    """Model, data and optimizer of one rank.

    Args:
        options: what to train.
        device: where; with CUDA the current device.
        group: ranks that average their gradients; None for all.
    """

    def __init__(self, options: Options, device: torch.device, group: dist.ProcessGroup | None = None) -> None:
        self.options = options
        self.device = device
        torch.manual_seed(0)
        model = torchvision.models.get_model(options.model, weights=None, **_model_options(options)).to(device)
        if options.memory_format == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        ids = [device.index] if device.type == "cuda" else None
        self.model = DistributedDataParallel(model, device_ids=ids, process_group=group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.loss_function = nn.CrossEntropyLoss()
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "fp16")

    def train(self, steps: int, warm_steps: int = 0) -> float:
        """Train on one new random batch, over and over.

        Args:
            steps: timed.
            warm_steps: before them, not timed.

        Returns:
            Seconds for the timed steps.
        """
        images, labels = self._batch()
        for _ in range(warm_steps):
            self._step(images, labels)
        self._wait_for_device()
        began = time.perf_counter()
        for _ in range(steps):
            self._step(images, labels)
        self._wait_for_device()
        return time.perf_counter() - began

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        o = self.options
        images = torch.randn(o.batch_size, 3, o.image_size, o.image_size, device=self.device)
        if o.memory_format == "channels_last":
            images = images.to(memory_format=torch.channels_last)
        return images, torch.randint(0, o.num_classes, (o.batch_size,), device=self.device)

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        with self._autocast():
            loss = self.loss_function(self.model(images), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.options.precision)
        return torch.autocast(self.device.type, dtype=dtype) if dtype else nullcontext()

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _model_options(options: Options) -> dict[str, int]:
    named = {"num_classes": options.num_classes}
    return named | {"image_size": options.image_size} if options.model.startswith("vit_") else named


def join(device_type: str) -> torch.device:
    """Join the ranks that torchrun started, by NCCL or gloo. Returns this rank's device."""
    if device_type == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    dist.init_process_group("nccl")
    return device


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp32")
    parser.add_argument("--memory-format", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warm-steps", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    return parser.parse_args()


def report(arguments: argparse.Namespace, options: Options, seconds: float) -> None:
    """Print the result, and write it to the file if one is given."""
    ranks = dist.get_world_size()
    samples_per_s = options.batch_size * arguments.steps / seconds
    print(f"{'ranks':>5}  {'steps':>5}  {'seconds':>8}  {'img/s/rank':>10}  {'img/s':>10}")
    print(f"{ranks:5}  {arguments.steps:5}  {seconds:8.3f}  {samples_per_s:10.1f}  {samples_per_s * ranks:10.1f}")
    if arguments.json:
        result = {"benchmark": "bare_ddp", "ranks": ranks, "steps": arguments.steps, "seconds": seconds}
        result |= {"samples_per_s_per_rank": samples_per_s, "options": vars(options)}
        arguments.json.write_text(json.dumps(result) + "\n", encoding="utf-8")


def main() -> None:
    """Run one rank."""
    arguments = parse_arguments()
    if "RANK" not in os.environ:
        raise SystemExit("RANK is not set: start this script with torchrun, as its --help shows")
    use_cuda = arguments.device == "cuda" or (arguments.device == "auto" and torch.cuda.is_available())
    device = join("cuda" if use_cuda else "cpu")
    options = Options(**{name: getattr(arguments, name) for name in Options.__dataclass_fields__})
    seconds = BareLoop(options, device).train(arguments.steps, arguments.warm_steps)
    if dist.get_rank() == 0:
        report(arguments, options, seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
