"""Entry point of one rank, ``torchrun … -m pytest_ddpscale.worker``; its node's agent has written its assignment."""

from __future__ import annotations

import time

STARTED_UNIX_S = time.time()  # before torch is imported, because the import is part of the reported start-up

import faulthandler  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402

# NVIDIA's libraries and torch read these variables when they are loaded; containers set them.
for _name in ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"):
    if _name in os.environ:
        print(f"{_name}={os.environ.pop(_name)} is ignored: fp32 is computed in full", flush=True)

# Imported objects stay alive; garbage collection would take a fifth of the import time.
_collects_garbage = gc.isenabled()
gc.disable()

import msgspec  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402

from pytest_ddpscale import __version__  # noqa: E402
from pytest_ddpscale.families import read_family  # noqa: E402
from pytest_ddpscale.plan.study import Plan  # noqa: E402
from pytest_ddpscale.run.place import CPU, Place  # noqa: E402
from pytest_ddpscale.run.rank_folder import FINISHED, LOGS, STATUS_VARIABLE, Assignment, RecordSink, read_message  # noqa: E402
from pytest_ddpscale.run.records import Rank  # noqa: E402
from pytest_ddpscale.run.strict_json import parse_strict_json  # noqa: E402
from pytest_ddpscale.telemetry.windows import Sampler  # noqa: E402
from pytest_ddpscale.util.masking import masked_environment  # noqa: E402
from pytest_ddpscale.util.orphans import die_with_parent  # noqa: E402
from pytest_ddpscale.worker.context import RankContext, RankProgress  # noqa: E402
from pytest_ddpscale.worker.control import Control, connect, host_name  # noqa: E402
from pytest_ddpscale.worker.device import Device, be_ended_first, open_device  # noqa: E402
from pytest_ddpscale.worker.numa import Binding, allowed_cores, bind_to_gpu, pin_to_cores  # noqa: E402
from pytest_ddpscale.worker.rank import GangMember  # noqa: E402
from pytest_ddpscale.worker.transport import transport_environment  # noqa: E402

if _collects_garbage:
    gc.enable()
IMPORTED_UNIX_S = time.time()
# For how long a rank stays after an error of its GPU: torchrun ends all others when it exits, and if the software is at
# fault they fail as well, a moment later, and must be able to say so. Longer than the supervisor collects reports.
PEERS_FAIL_WITHIN_S = 5.0
_OF_A_GPU = ("CUDA error", "Cuda failure", "EXECUTION_FAILED", "Triton Error")
_RECORDED = (
    "OMP_",
    "NCCL_",
    "GLOO_",
    "UCX_",
    "FI_",
    "CUDA_",
    "TORCH_",
    "PYTORCH_",
    "CUDNN_",
    "CUBLAS_",
    "CUBLASLT_",
    "GLIBC_TUNABLES",
)


def rank_record(control: Control, device: Device, binding: Binding) -> Rank:
    """Place, versions and start-up times of this rank."""
    cuda = torch.version.cuda if torch.cuda.is_available() else None
    index = control.local_rank if device.id == CPU else binding.gpu.index if binding.gpu else None
    return Rank(
        place=Place(host_name(), control.local_rank, device.id, index, binding.gpu.bus_id if binding.gpu else ""),
        device_name=device.name,
        pid=os.getpid(),
        import_s=IMPORTED_UNIX_S - STARTED_UNIX_S,
        rendezvous_s=max(0.0, time.time() - IMPORTED_UNIX_S),  # a clock may be set back
        numa_note=binding.note,
        versions={
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "torchvision": str(torchvision.__version__),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
            "cudnn": str(torch.backends.cudnn.version()) if cuda else None,
            "pytest_ddpscale": __version__,
        },
        environment={} if control.rank else recorded(os.environ),
    )


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that change the speed of training or communication, secrets masked."""
    return masked_environment({name: environ[name] for name in sorted(environ) if name.startswith(_RECORDED)})


def run(folder: Path, progress: RankProgress) -> None:
    """Join the gang and run the studies of the assignment in the folder of the node's agent."""
    assignment = read_message(folder, Assignment)
    assert assignment is not None  # the agent left it before it started this process
    plan = msgspec.convert(parse_strict_json(bytes(assignment.plan)), Plan, dec_hook=read_family)
    if assignment.tries_memory:
        be_ended_first()
    timeout = timedelta(seconds=assignment.timeout_s)
    control = connect(timedelta(seconds=assignment.startup_timeout_s), assignment.secret)
    progress.rank = control.rank
    progress.phase = "joining the gang"
    on_host = int(os.environ["LOCAL_WORLD_SIZE"])
    loader_cores = allowed_cores()
    if plan.device_type == "cpu":
        pin_to_cores(control.local_rank, on_host)
    else:  # before NCCL starts, because it reads the environment once
        # NCCL's messages go to memory on the node, because only this process reads them, unless the user wants them.
        os.environ.update(transport_environment(folder, folder / LOGS / "run", control.rank, os.environ))
    device = open_device(plan.device_type, control.local_rank)
    device.on_step = progress.count_step
    binding = bind_to_gpu(device.id, on_host) if plan.device_type == "cuda" else Binding()
    if plan.device_type == "cuda":
        progress.device, progress.gpu_index = device.id, binding.gpu.index if binding.gpu else None
        loader_cores = allowed_cores()  # of its NUMA node, whose memory they fill
    sink = RecordSink(folder)
    lines = folder / f"gpu-{control.local_rank}.jsonl"
    sampler = Sampler(device.id, lines) if plan.device_type == "cuda" else None
    context = RankContext(
        device, control, progress, sink, sampler, timeout,
        assignment.deadline_unix_s, assignment.gang, assignment.steered, assignment.tries_memory,
        assignment.profile_steps, assignment.nvtx, loader_cores, assignment.launched_unix_s,
    )  # fmt: skip
    gang = GangMember(plan, context)
    gang.announce(rank_record(control, device, binding))
    control.store.set_timeout(timeout)
    with gang.process_group():
        for study_id in assignment.studies:
            gang.run_study(study_id)
    progress.phase = "leaving"
    control.leave()


def main() -> int:
    """Run the rank. Returns the exit code: 0, or 1 after a failure that was reported."""
    folder = os.environ.get(STATUS_VARIABLE)
    if not folder:
        raise SystemExit(f"{STATUS_VARIABLE} is not set: the worker has to be started under an agent")
    die_with_parent()
    # torchrun ends ranks by SIGTERM; their stacks are then in their logs.
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    progress = RankProgress(Path(folder), int(os.environ.get("LOCAL_RANK", "0")))
    try:
        run(Path(folder), progress)
    except Exception as error:
        traceback.print_exc()
        progress.tell_failure(error)
        if any(text in str(error) for text in _OF_A_GPU):
            time.sleep(PEERS_FAIL_WITHIN_S)
        return 1
    progress.phase = FINISHED
    return 0


if __name__ == "__main__":
    sys.exit(main())
