"""Entry point of one rank: ``torchrun … -m pytest_ddpscale.worker --run-dir DIR --studies IDS``."""

from __future__ import annotations

import time

STARTED_UNIX_S = time.time()  # before torch is imported: the import is part of the start-up that is reported

import argparse  # noqa: E402
import faulthandler  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from dataclasses import asdict  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402

# NVIDIA's libraries and torch read these when they are loaded; containers set them.
for _name in ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"):
    if _name in os.environ:
        print(f"{_name}={os.environ.pop(_name)} is ignored: fp32 is computed in full", flush=True)

import torch  # noqa: E402
import torchvision  # noqa: E402

from pytest_ddpscale import __version__  # noqa: E402
from pytest_ddpscale.results.rank_status import FINISHED, STATUS_VARIABLE  # noqa: E402
from pytest_ddpscale.results.run_directory import RunDirectory, write_atomically  # noqa: E402
from pytest_ddpscale.util.masking import masked_environment, masked_text  # noqa: E402
from pytest_ddpscale.util.orphans import die_with_parent  # noqa: E402
from pytest_ddpscale.worker.control import Control, connect, rank_of  # noqa: E402
from pytest_ddpscale.worker.device import open_device  # noqa: E402
from pytest_ddpscale.worker.host_name import host_name  # noqa: E402
from pytest_ddpscale.worker.numa import Binding, bind_to_gpu  # noqa: E402
from pytest_ddpscale.worker.pinning import pin_to_cores  # noqa: E402
from pytest_ddpscale.worker.rank import GangMember  # noqa: E402
from pytest_ddpscale.worker.rank_progress import RankProgress, rank_progress_of  # noqa: E402
from pytest_ddpscale.worker.transport import transport_environment  # noqa: E402

IMPORTED_UNIX_S = time.time()
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


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The worker's own command line; the supervisor is its only caller."""
    parser = argparse.ArgumentParser(prog="pytest_ddpscale.worker")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--studies", required=True, help="comma-separated ids, in order")
    parser.add_argument("--version", required=True, help="of the supervisor: ranks of another version refuse")
    parser.add_argument("--deadline-unix-s", type=float, default=None, help="no round starts after it")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="limit for one wait or collective")
    parser.add_argument("--steered", action="store_true", help="wait after each round for the supervisor's word")
    return parser.parse_args(argv)


def startup_record(control: Control, device_id: str, device_name: str, binding: Binding) -> dict[str, object]:
    """Who this rank is, and how long it took to get here."""
    cuda = torch.version.cuda
    return {
        "kind": "startup",
        "rank": control.rank,
        "local_rank": control.local_rank,
        "world_size": control.world_size,
        "host": host_name(),
        "pid": os.getpid(),
        "device": device_id,
        "device_name": device_name,
        "import_s": IMPORTED_UNIX_S - STARTED_UNIX_S,
        "rendezvous_s": time.time() - IMPORTED_UNIX_S,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "numa": asdict(binding),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "cuda": cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda and torch.cuda.is_available() else None,
            "cudnn": torch.backends.cudnn.version() if cuda and torch.cuda.is_available() else None,
            "pytest_ddpscale": __version__,
        },
        "environment": recorded(os.environ),
    }


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment changes how fast ranks train or talk."""
    return masked_environment({name: environ[name] for name in sorted(environ) if name.startswith(_RECORDED)})


def run(arguments: argparse.Namespace, progress: RankProgress) -> None:
    """Join the gang and work through the studies."""
    if arguments.version != __version__:
        raise RuntimeError(f"this rank runs pytest-ddpscale {__version__}, its supervisor {arguments.version}")
    directory = RunDirectory(arguments.run_dir)
    plan = directory.read_plan()
    control = connect(timedelta(seconds=arguments.timeout_s))
    progress.rank = control.rank
    progress.phase = "joining the gang"
    on_host = int(os.environ["LOCAL_WORLD_SIZE"])
    if plan.device_type == "cpu":
        pin_to_cores(control.local_rank, on_host)
    else:  # before NCCL starts, which reads it once
        os.environ.update(transport_environment(_nccl_logs(), directory.logs, control.rank, os.environ))
    device = open_device(plan.device_type, control.local_rank)
    device.on_step = progress.count_step
    binding = bind_to_gpu(device.id, on_host) if plan.device_type == "cuda" else Binding()
    gang = GangMember(plan, control, device, directory, progress, arguments.deadline_unix_s, steered=arguments.steered)
    gang.announce(startup_record(control, device.id, device.name, binding))
    timeout = timedelta(seconds=arguments.timeout_s)
    with gang.process_group(timeout):
        for study_id in arguments.studies.split(","):
            if plan.pairs is not None and study_id == plan.pairs.id:
                gang.run_pairs(plan.pairs, timeout)
                continue
            if plan.probes is not None and study_id == plan.probes.id:
                gang.run_probes(plan.probes, timeout)
                continue
            study = plan.study(study_id)
            if study is None:
                raise RuntimeError(f"plan.json has no study {study_id}")
            gang.run_study(study, timeout)
    progress.phase = "leaving"
    control.leave()


def _nccl_logs() -> Path:
    """Where NCCL's messages go: to the node's memory, as nobody reads them but this process."""
    agents = os.environ.get(STATUS_VARIABLE)
    return Path(agents) if agents else Path(tempfile.gettempdir())


def report_failure(run_dir: Path, error: BaseException, progress: RankProgress) -> None:
    """Tell the node's agent who failed, where and with what, or leave it in a file: a killed log may not say."""
    rank = progress.rank if progress.rank >= 0 else rank_of(os.environ)
    report = {
        "rank": rank,
        "host": host_name(),
        "study": progress.study,
        "arm": progress.arm,
        "round": progress.round,
        "phase": progress.phase,
        "type": type(error).__name__,
        "message": masked_text(str(error)),
        "unix_s": time.time(),
    }
    if progress.tell_failure(report):
        return
    name = f"rank-{rank}.error.json"
    write_atomically(run_dir / "logs" / name, json.dumps(report, ensure_ascii=False) + "\n")


def main() -> int:
    """Run the rank. Returns the exit code: 0, or 1 after a failure that was reported."""
    arguments = parse_arguments(sys.argv[1:])
    die_with_parent()
    # torchrun ends ranks by SIGTERM: where they were is then in their log.
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    progress = rank_progress_of(os.environ)
    try:
        run(arguments, progress)
    except Exception as error:
        traceback.print_exc()
        report_failure(arguments.run_dir, error, progress)
        return 1
    progress.phase = FINISHED
    return 0


if __name__ == "__main__":
    sys.exit(main())
