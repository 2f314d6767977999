"""A node is described as it is, played GPUs included, and what hangs is left behind."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from pytest_ddpscale import __version__
from pytest_ddpscale.node import survey as survey_module
from pytest_ddpscale.node.addresses import outward_addresses
from pytest_ddpscale.node.agent import SURVEY_LIMIT_S
from pytest_ddpscale.node.processes import Command
from pytest_ddpscale.node.survey import (
    free_bytes,
    infiniband_ports,
    post_mortem,
    survey_command,
    survey_from,
    with_visibility,
)
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.strict_json import decode
from pytest_ddpscale.run.survey_record import InfiniBandPort, Survey, SurveyedGpu
from tests.node.fake_torch import CPU_BUILD, CUDA_BUILD, write_torch
from tests.nvml_stand_in.fixtures import machine, nvml_library_directory
from tests.nvml_stand_in.gpus import ANY_FUNCTION, GPU_IS_LOST
from tests.nvml_stand_in.machine import A100, HANG, UNKNOWN_ERROR, PlayedMachine, node_of, uuid_of
from tests.rows import rows

__all__ = ["machine", "nvml_library_directory"]
TOPOLOGY = "\tGPU0\tGPU1\nGPU0\t X \tNV12"


@pytest.fixture
def node(machine: PlayedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedMachine:
    """A node with a torch, an ``nvidia-smi`` that writes colours, and whatever GPUs are played."""
    tool = tmp_path / "nvidia-smi"
    colourful = TOPOLOGY.replace("GPU0\tGPU1", "\x1b[4mGPU0\tGPU1\x1b[0m")
    tool.write_text(f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == ['topo', '-m']\nprint({colourful!r})\n")
    tool.chmod(0o755)
    for name, value in machine.environment(PATH=f"{tmp_path}:{os.environ['PATH']}").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{write_torch(tmp_path, CUDA_BUILD)}:{os.environ['PYTHONPATH']}")
    return machine


def survey(*, gpus: bool = True) -> Survey:
    """Of this node, as its agent has it made."""
    return outcome(Command(survey_command("n7", *([] if gpus else ["--no-gpu"])), SURVEY_LIMIT_S))


def test_a_node_with_eight_gpus(node: PlayedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    node.play(node_of(A100, 8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    began_s = time.time()
    found = survey()
    assert (found.host, found.problem, found.has_driver, found.driver_problem) == ("n7", "", True, "")
    assert began_s - 1 <= found.unix_s <= time.time() + 1
    assert [gpu.uuid for gpu in found.gpus] == [uuid_of(i) for i in range(8)]
    assert [gpu.index for gpu in found.gpus if gpu.is_visible] == [0, 2]
    assert found.versions == {
        "driver": "570.86.15", "cuda_driver": "12.8", "torch": "2.8.0+cu128", "cuda": "12.8", "nccl": "2.27.3",
        "python": platform.python_version(), "pytest_ddpscale": __version__, "kernel": platform.release(),
    }  # fmt: skip
    assert (found.torch_problem, found.arch_list) == ("", ("sm_80", "sm_90", "compute_120"))
    assert (found.torch_gpus, found.cuda_problem) == (8, "")
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.topology == TOPOLOGY.strip("\n")
    assert found.addresses == outward_addresses(most=None)
    assert set(found.free_bytes) == {"shared_memory", "temporary"}


def test_after_ranks_have_failed_only_the_driver_is_asked(node: PlayedMachine) -> None:
    node.play(node_of(A100, 2, gpu1=replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST})))
    found = outcome(Command(survey_command("n7", "--post-mortem"), SURVEY_LIMIT_S))
    assert (found.host, found.problem, found.torch_problem, found.free_bytes, found.arch_list) == ("n7", "", "", {}, ())
    assert [(gpu.uuid, gpu.local_rank, gpu.problem) for gpu in found.gpus] == [
        (uuid_of(0), 0, ""), ("", None, "GPU is lost"),
    ]  # fmt: skip
    assert found.versions == {"driver": "570.86.15", "cuda_driver": "12.8"}


@rows(
    ("looks", "found"),
    [
        ([",", "Unknown Error,"], ","),
        (["Unknown Error,", ",Timeout"], ","),
        (["Unknown Error,", "Timeout,"], "Timeout,"),
        (["GPU is lost,", ","], "GPU is lost,"),  # for good
    ],
)
def test_after_ranks_have_failed_who_does_not_answer_is_asked_again(looks: list[str], found: str) -> None:
    def gpus(look: str) -> tuple[SurveyedGpu, ...]:
        told = enumerate(look.split(","))
        return tuple(SurveyedGpu(i, "", "", "", "", problem=why, is_lost="lost" in why) for i, why in told)

    surveys = (Survey("n1", 1.0, has_driver=True, gpus=gpus(look)) for look in looks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_module, "_of_driver", lambda _: next(surveys))
        patch.setattr(time, "sleep", lambda _: None)
        assert ",".join(gpu.problem for gpu in post_mortem("n1").gpus) == found


def test_a_driver_that_hangs_after_ranks_have_failed_is_not_waited_for(node: PlayedMachine) -> None:
    node.play(node_of(A100, 2, gpu1=replace(A100, failures={"nvmlDeviceGetName": HANG})))
    found = outcome(Command(survey_command("n7", "--post-mortem"), 1.5))
    assert found.problem.endswith("its last message: about to ask the NVIDIA driver for GPU 1")


def test_on_a_cpu_sku_no_driver_is_asked(node: PlayedMachine) -> None:
    node.play([A100], {"nvmlInit": HANG})
    found = survey(gpus=False)
    assert (found.has_driver, found.gpus, found.topology, found.problem) == (False, (), "", "")
    assert (found.torch_gpus, found.cuda_problem) == (None, "")
    assert (found.versions["driver"], found.versions["torch"]) == (None, "2.8.0+cu128")


def test_a_driver_that_does_not_work_leaves_the_rest_of_the_survey(node: PlayedMachine) -> None:
    node.play([A100], {"nvmlInit": UNKNOWN_ERROR})
    found = survey()
    assert (found.has_driver, found.driver_problem, found.problem) == (True, "Unknown Error", "")
    assert found.versions["torch"] == "2.8.0+cu128"
    assert set(found.free_bytes) == {"shared_memory", "temporary"}


def test_a_drivers_library_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.touch()
    command = [sys.executable, "-m", "pytest_ddpscale.node.survey", "--host=n7", "--post-mortem"]
    done = subprocess.run(
        command, env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, timeout=60, check=True
    )
    found = decode(msgspec.json.Decoder(Survey), done.stdout.splitlines()[-1])
    problem = f"{library} cannot be loaded: damaged, or of another architecture"
    assert (found.has_driver, found.driver_problem, found.problem) == (True, problem, "")


def outcome(command: Command) -> Survey:
    """What comes of it."""
    assert command.is_done(30.0)
    return survey_from(command, "n7")


CUDA = (["2.8.0+cu128", "12.8", "2.27.3"], ("sm_80", "sm_90", "compute_120"), "")


def without_torch(problem: str) -> Any:
    return [None] * 3, (), problem


@rows(
    ("source", "expected"),
    [
        (CPU_BUILD, (["2.8.0+cpu", None, None], (), "")),
        (CUDA_BUILD, CUDA),
        (f"print('a site says hello', end='')\n{CUDA_BUILD}", CUDA),
        (f"import atexit\natexit.register(print, {{}})\n{CUDA_BUILD}", CUDA),
        (f"{CUDA_BUILD}\n_C._cuda_getArchFlags = lambda: None", (CUDA[0], (), "")),
        ("raise ImportError('libcudart.so.12: cannot open shared object file')",
         without_torch("ImportError: libcudart.so.12: cannot open shared object file")),
        ("", without_torch("AttributeError: module 'torch' has no attribute '__version__'")),
        ("import os\nos._exit(134)", without_torch("ended with code 134; its last message: about to import torch")),
        ("import os\nos._exit(0)", without_torch("ended with code 0; its last message: about to import torch")),
        ("import time\ntime.sleep(60)",
         without_torch("was not done within 4 s; its last message: about to import torch")),
    ],
)  # fmt: skip
def test_torch_is_as_it_says_and_whatever_it_does_costs_no_other_fact(
    source: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write_torch(tmp_path, source)))
    found = outcome(Command(survey_command("n7", "--no-gpu"), 4.0 if "sleep" in source else SURVEY_LIMIT_S))
    versions = [found.versions[name] for name in ("torch", "cuda", "nccl")]
    assert (versions, found.arch_list, found.torch_problem) == expected
    assert (found.problem, found.cuda_problem, found.versions["pytest_ddpscale"]) == ("", "", __version__)


@rows(
    ("count", "counted"),
    [
        ("return 2", (2, "")),
        ("import warnings; warnings.warn('Error 802: oh (Triggered internally at a.cpp:1.)'); return 0",
         (0, "Error 802: oh")),
        ("raise SystemExit(3)", (None, "ended with code 3; its last message: about to count GPUs by CUDA")),
        ("import time; time.sleep(60)",
         (None, "was not done within 4 s; its last message: about to count GPUs by CUDA")),
    ],
)  # fmt: skip
def test_gpus_are_counted_by_cuda_and_a_failure_costs_no_other_fact(
    node: PlayedMachine, tmp_path: Path, count: str, counted: tuple[int | None, str]
) -> None:
    node.play([A100])
    write_torch(tmp_path, CUDA_BUILD.replace("return 8", count))
    found = outcome(Command(survey_command("n7"), 4.0 if "sleep" in count else SURVEY_LIMIT_S))
    assert (found.torch_gpus, found.cuda_problem) == counted
    assert (found.versions["torch"], found.torch_problem, len(found.gpus)) == ("2.8.0+cu128", "", 1)


def test_the_torch_that_is_installed_is_asked_without_being_imported_here() -> None:
    was_there = "torch" in sys.modules
    found = survey(gpus=False)
    assert (found.versions["torch"] or "").partition("+")[0] == version("torch").partition("+")[0]
    assert bool(found.versions["cuda"]) == bool(found.arch_list)
    assert ("torch" in sys.modules) is was_there


class TestProcess:
    def test_a_driver_that_hangs_is_named_and_left_behind(self, node: PlayedMachine) -> None:
        node.play([A100], {"nvmlInit": HANG})
        process = Command(survey_command("n7"), 1.5)
        found = outcome(process)
        assert (found.host, found.has_driver, found.versions) == ("n7", False, {})
        assert found.problem == (
            "the survey was not done within 1.5 s; its last message: about to ask the NVIDIA driver"
        )
        assert process._process is not None
        assert process._process.wait(timeout=30) == -9

    def test_it_is_not_waited_for_even_if_it_cannot_be_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As inside a driver."""
        monkeypatch.setattr(os, "killpg", lambda pid, number: None)
        process = Command([sys.executable, "-S", "-c", "import time; time.sleep(60)"], 0.1)
        begun_s = time.monotonic()
        assert outcome(process).problem.startswith("the survey was not done within 0.1 s")
        process.stop()
        assert time.monotonic() - begun_s < 10
        left = process._process
        assert left is not None
        assert left.poll() is None
        left.kill()
        left.wait()

    @rows(
        ("source", "problem"),
        [
            ("import sys; sys.exit('oh')", "the survey ended with code 1; its last message: oh"),
            ("print('[]')", "the survey printed no valid survey"),
            ("print('{\"host\": 3}')", "the survey printed no valid survey"),
            ("print('hello')", "the survey printed no valid survey"),
            ("", "the survey printed no valid survey"),
        ],
    )  # fmt: skip
    def test_one_that_prints_no_survey_is_told(self, source: str, problem: str) -> None:
        found = outcome(Command([sys.executable, "-S", "-c", source], SURVEY_LIMIT_S))
        assert (found.host, found.problem[: len(problem)]) == ("n7", problem)

    def test_one_that_is_longer_than_a_pipe_holds_comes_in_whole(self) -> None:
        whole = Survey("n7", 1.0, topology="x" * 300_000)
        short = line_of(Survey("n7", 1.0, topology="x")).decode().strip()
        source = f"print('a site says hello'); print({short!r}.replace('\"x\"', '\"' + 'x' * 300_000 + '\"'))"
        assert outcome(Command([sys.executable, "-S", "-c", source], SURVEY_LIMIT_S)) == whole

    def test_a_program_that_is_not_there(self) -> None:
        found = outcome(Command(["/no/such/python"], SURVEY_LIMIT_S))
        assert found.problem == "the survey could not be started (No such file or directory)"


def gpu(index: int, uuid: str | None = None, **fields: Any) -> SurveyedGpu:
    return SurveyedGpu(index, uuid_of(index) if uuid is None else uuid, A100.name, "", "20b2", **fields)


@rows(
    ("visible_devices", "visible"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [0, 2]),
        (uuid_of(1), [1, 2]),  # the third says no UUID, so that it cannot be ruled out
        ("MIG-1", []),
    ],
)
def test_what_cuda_visible_devices_lets_ranks_use(visible_devices: str | None, visible: list[int]) -> None:
    gpus = (gpu(0), gpu(1), gpu(2, uuid="", problem="GPU is lost"))
    assert [found.index for found in with_visibility(gpus, visible_devices) if found.is_visible] == visible


def test_a_gpu_that_a_cgroup_withholds_has_no_number_of_cudas() -> None:
    gpus = (gpu(0, uuid="", is_visible=False), gpu(1), gpu(2))
    for visible_devices, visible in ((None, [1, 2]), ("0", [1]), ("0,1", [1, 2]), (uuid_of(2), [2])):
        found = with_visibility(gpus, visible_devices)
        assert [one.index for one in found if one.is_visible] == visible
        assert [one.local_rank for one in found if one.is_visible] == list(range(len(visible)))
        unsaid = [structs.replace(one, is_visible=True, local_rank=None) for one in found]
        assert unsaid == [structs.replace(gpu, is_visible=True) for gpu in gpus]


@rows(
    ("visible_devices", "ranks"),
    [(None, [0, 1, 2, 3]), ("3,1", [None, 1, None, 0]), (f"{uuid_of(1)},{uuid_of(0)}", [1, 0, None, None])],
)
def test_local_ranks_are_in_the_order_of_cuda_visible_devices(
    visible_devices: str | None, ranks: list[int | None]
) -> None:
    found = with_visibility(tuple(map(gpu, range(4))), visible_devices)
    assert [one.local_rank for one in found] == ranks


@rows(
    ("visible_devices", "ranks", "visible"),
    [
        (None, [0, 1, None, 2], [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, None, 2], [0, 1, 2, 3]),  # CUDA has no fourth device
        ("2,3", [None, None, None, 0], [2, 3]),  # its device 2 is GPU 3
        ("3", [None, None, None, None], []),
        (f"{uuid_of(3)},{uuid_of(0)}", [1, None, None, 0], [0, 2, 3]),
    ],
)
def test_cuda_does_not_list_a_lost_gpu_so_those_after_it_move_up(
    visible_devices: str | None, ranks: list[int | None], visible: list[int]
) -> None:
    gpus = (gpu(0), gpu(1), gpu(2, uuid="", problem="GPU is lost", is_lost=True), gpu(3))
    found = with_visibility(gpus, visible_devices)
    assert [one.local_rank for one in found] == ranks
    assert [one.index for one in found if one.is_visible] == visible


def test_ports_of_adapters_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    def port(device: str, number: str, **files: str) -> None:
        folder = tmp_path / device / "ports" / number
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")

    port("mlx5_0", "1", state="4: ACTIVE", link_layer="InfiniBand", rate="200 Gb/sec (4X HDR)")
    port("mlx5_1", "1", state="1: DOWN", link_layer="Ethernet", rate="2.5 Gb/sec (1X SDR)")
    port("mlx5_1", "2", state="4: ACTIVE", rate="unknown")
    for device, driver, vendor in [
        ("rdmap0s6", "efa", "0x0000"),
        ("rdmap0s7", "", "0x1d0f"),
        ("rxe0", "e1000", "0x8086"),
    ]:
        port(device, "1", state="4: ACTIVE", link_layer="Unknown", rate="100 Gb/sec (4X EDR)")
        (tmp_path / device / "device").mkdir()
        (tmp_path / device / "device" / "vendor").write_text(f"{vendor}\n")
        if driver:
            (tmp_path / device / "device" / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    assert infiniband_ports(tmp_path) == (
        InfiniBandPort("mlx5_0", 1, "ACTIVE", "InfiniBand", 200.0),
        InfiniBandPort("mlx5_1", 1, "DOWN", "Ethernet", 2.5),
        InfiniBandPort("mlx5_1", 2, "ACTIVE", ""),
        InfiniBandPort("rdmap0s6", 1, "ACTIVE", "EFA", 100.0),
        InfiniBandPort("rdmap0s7", 1, "ACTIVE", "EFA", 100.0),
        InfiniBandPort("rxe0", 1, "ACTIVE", "Unknown", 100.0),
    )
    assert infiniband_ports(tmp_path / "none") == ()


def test_functions_of_an_adapter_tell_their_slot_and_virtual_ones_their_physical_one(tmp_path: Path) -> None:
    adapters, slot = tmp_path / "class", tmp_path / "0000:3a:00.0"
    speeds = {slot: ("16.0 GT/s PCIe", "16"), slot / "0000:3b:00.0": ("32.0 GT/s PCIe", "16")}
    speeds |= {slot / "0000:3b:00.1": ("Unknown", "255"), slot / "0000:3b:00.2": ("2.5 GT/s PCIe", "0")}
    for function, (speed, width) in speeds.items():
        function.mkdir()
        (function / "max_link_speed").write_text(f"{speed}\n")
        (function / "max_link_width").write_text(f"{width}\n")
    (slot / "0000:3b:00.2" / "physfn").symlink_to("../0000:3b:00.0")
    for number in range(3):
        (adapters / f"mlx5_{number}/ports/1").mkdir(parents=True)
        (adapters / f"mlx5_{number}/device").symlink_to(slot / f"0000:3b:00.{number}")
    found = infiniband_ports(adapters)
    assert [port.pci_function for port in found] == ["0000:3b:00.0", "0000:3b:00.1", "0000:3b:00.0"]
    assert [port.pcie_gbps for port in found] == pytest.approx([16 * 16 * 128 / 130] * 3)


def test_free_space_is_what_df_says() -> None:
    folder = tempfile.gettempdir()
    df = subprocess.run(["df", "-B1", "--output=avail", folder], capture_output=True, text=True, check=True).stdout
    assert free_bytes()["temporary"] == pytest.approx(int(df.splitlines()[1]), rel=0.05)
