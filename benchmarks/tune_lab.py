"""Plant settings that gain or lose, and check whether `ddpscale tune` finds them and their size.

    python benchmarks/tune_lab.py link OUT       # accumulation over a link of 200 Mbit/s
    python benchmarks/tune_lab.py buckets OUT    # small buckets, each message 5 ms late (slow_sends.c)
    python benchmarks/tune_lab.py threads OUT    # more OpenMP threads than cores
    python benchmarks/tune_lab.py nothing OUT    # twenty runs of settings that are torch's defaults

Each experiment runs in its own network namespace, with two ranks on this machine; needs root, ip and tc. `link` then
measures the recommended setting like a suite and prints both gains side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

SLOW_LINK = (
    "tc qdisc add dev lo root tbf rate 200mbit burst 1mbit latency 400ms"  # burst above 64 KiB, as lo has such packets
)
LATENCY_US = 5000
WORKLOAD = ("--precision=fp32", "--image-size=64", "--batch=4")
# 5 MB of gradients take a fifth of a second over that link; 45 MB are several buckets.
SMALL, LARGE = "--model=squeezenet1_1", "--model=resnet18"
SHORT_BLOCKS = "--ddp-block=0.1s"
# Busy-waiting threads block the cores for whole time slices: eight rounds take minutes.
SLEEPING_THREADS = {"OMP_WAIT_POLICY": "passive"}
# torch's default, given explicitly, and a variable that gloo does not read.
NOTHING = "bucket_cap_mb=25 NCCL_ALGO=Ring"
RUNS_OF_NOTHING = 20


def slow_sends(folder: Path) -> dict[str, str]:
    """A library that delays every message of ranks, built here with cc."""
    library = (folder / "slow_sends.so").resolve()
    source = Path(__file__).with_name("slow_sends.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SLOW_SENDS_US": str(LATENCY_US)}


def tune(
    out: Path, tried: str, shape: str, *more: str, environment: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, object]]:
    """One run in a network namespace whose loopback is shaped so. Returns suite.json's settings by name."""
    ddpscale = str(Path(sys.executable).with_name("ddpscale"))
    ranks = ("--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-pass-env=SLOW_SENDS_US")
    command = [ddpscale, "tune", *ranks, *WORKLOAD, f"--try={tried}", f"--ddp-run-dir={out}", *more]
    script = f'ip link set lo up && {shape or "true"} && exec "$@"'
    done = subprocess.run(["unshare", "--net", "sh", "-c", script, "sh", *command], check=False, text=True,
                          env={**os.environ, **environment})  # fmt: skip
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    found = json.loads((out / "suite.json").read_text(encoding="utf-8"))
    return {one["setting"]: one for one in found["tables"]["tune"]}


def say(name: str, one: dict[str, object]) -> None:
    """One line."""
    first, further = one["first_launch"], one["further_launches"]
    print(f"{name:<28} {one['says']!s:<22} first {_limits(first)}   further {_limits(further)}", flush=True)


def _limits(of: object) -> str:
    if not isinstance(of, dict):
        return "not measured so"
    low, high = of["interval"] or (float("nan"), float("nan"))
    return f"{of['value']:.3f}x ({low:.3f} ... {high:.3f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("link", "buckets", "threads", "nothing"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=RUNS_OF_NOTHING, help="runs of `nothing`; default: %(default)s")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "link":
        for name, one in tune(given.out / "tune", "accumulation_steps=4", SLOW_LINK, SMALL).items():
            say(name, one)
        for name, one in tune(given.out / "again", "accumulation_steps=4", SLOW_LINK, SMALL).items():
            say(f"{name}, a run of its own", one)
    elif given.what == "buckets":
        for name, one in tune(
            given.out / "tune", "bucket_cap_mb=1,100", "", LARGE, environment=slow_sends(given.out)
        ).items():
            say(name, one)
    elif given.what == "threads":
        found = tune(given.out / "tune", "OMP_NUM_THREADS=2", "", SMALL, SHORT_BLOCKS, environment=SLEEPING_THREADS)
        for name, one in found.items():
            say(name, one)
    else:
        recommended = 0
        for number in range(given.runs):
            found = tune(given.out / f"run-{number}", NOTHING, "", SMALL, SHORT_BLOCKS)
            said = [name for name, one in found.items() if one["says"] == "faster"]
            recommended += bool(said)
            print(f"run {number}: {', '.join(said) or 'nothing recommended'}", flush=True)
        print(f"{recommended} of {given.runs} runs recommended a setting without effect")


if __name__ == "__main__":
    main()
