"""Which devices, which SKU and which thresholds a session is about."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.errors import BadInput, OptionError, SkuError
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.session import open as opening
from tests.approved import assert_approved, masked
from tests.builders.sessions import THRESHOLDS, Open, gpu, measured_run
from tests.session.conftest import LOST, WITH_CHECK

IN_WORDS = THRESHOLDS.replace("    requirements: []\n", "    requirements:\n" + "".join(
    f"      - {{weak_scaling_efficiency: {{{size}: 0.97}}, of: r, published: paper, bound: 0.5, because: so}}\n"
    for size in ("node", "2 nodes", "all")
))  # fmt: skip
GPUS = [gpu(0), gpu(1), gpu(2)]
MACHINES: dict[str, Sequence[SurveyedGpu]] = {
    "3 GPUs": GPUS, "2 GPUs": GPUS[:2], "1 GPU": GPUS[:1], "another GPU": [gpu(0, name="H")],
    "GPU 1 of 3 lost": [GPUS[0], LOST, GPUS[2]], "GPU 1 lost": [LOST],
    "no GPU": [], "ranks in words": [], "driver lists none": [],
    # A GPU that works in the host's memory has none of its own; of another it is a fault.
    "GPU 2 has no memory": [
        *GPUS[:2], replace(gpu(2), memory_bytes=None, unreadable={"memory_bytes": "Not Supported"}),
    ],
}  # fmt: skip
CHECK, WORDS = "thresholds=checked.yaml", "thresholds=words.yaml"
PLANNED = "collect_only ddp_nodes=16 ddp_gpus_per_node="
ASKED = {
    # All that are here are used, or as many as asked for; a laptop that only plans knows none but may be told.
    "3 GPUs": ("gpu_sku=gpu", "gpu_sku=auto ddp_gpus_per_node=2"),
    "1 GPU": ("gpu_sku=auto",),
    # A node without GPUs is never judged as a CPU. An earlier run needs no device, and is judged as what it was
    # measured on. A named SKU whose check rejects a machine without GPUs is judged by it.
    "no GPU": (
        "gpu_sku=gpu collect_only", "gpu_sku=gpu collect_only ddp_gpus_per_node=8",
        "gpu_sku=gpu collect_only ddp_world_sizes=1024", "gpu_sku=gpu ddp_hosts=@hosts", "gpu_sku=auto",
        "gpu_sku=auto ddp_hosts=@hosts",
        "gpu_sku=auto collect_only", "gpu_sku=laptop", "gpu_sku=laptop collect_only",
        "gpu_sku=auto ddp_judge=of-cpu ddp_world_sizes=1024", "gpu_sku=auto ddp_judge=of-gpu",
        "gpu_sku=gpu ddp_judge=of-gpu", "gpu_sku=g ddp_judge=of-gpu", "gpu_sku=cpu ddp_judge=of-gpu",
        "gpu_sku=auto ddp_judge=of-h100", "gpu_sku=cpu ddp_judge=of-h100", f"gpu_sku=gpu {CHECK}",
    ),
    # How many ranks `node` and `all` are depends on where they are measured; of nodes that nobody can look at it is
    # said, or usual, and of an earlier run it follows from the devices that its nodes had.
    "ranks in words": (
        f"{WORDS} ddp_gpus_per_node=4", f"{WORDS} ddp_gpus_per_node=1",
        f"{WORDS} collect_only ddp_nodes=3 ddp_gpus_per_node=4", f"{WORDS} {PLANNED}",
        f"thresholds=of-4.yaml {PLANNED}",
        *(f"{WORDS} gpu_sku=auto ddp_judge=of-{run}" for run in ("cpu", "six", "three")),
    ),
    "another GPU": ("gpu_sku=g",),
    # A broken driver stops neither planning nor the CPU.
    "broken driver": ("gpu_sku=cpu", "gpu_sku=cpu collect_only", "gpu_sku=gpu collect_only"),
    # GPUs that do not answer end a session where no check would tell, or where no other GPU answers.
    "GPU 1 of 3 lost": ("gpu_sku=gpu", "gpu_sku=auto", f"gpu_sku=gpu {CHECK}", f"gpu_sku=auto {CHECK}"),
    "GPU 2 has no memory": (f"gpu_sku=auto {CHECK}", "gpu_sku=auto thresholds=80gib.yaml"),
    "GPU 1 lost": (
        "gpu_sku=cpu", f"gpu_sku=auto {CHECK}", "gpu_sku=gpu", f"gpu_sku=gpu ddp_world_sizes=1,4 {CHECK}",
        f"gpu_sku=gpu {CHECK}",
    ),
    "driver lists none": (f"gpu_sku=gpu ddp_world_sizes=1,4 {CHECK}", "gpu_sku=gpu"),
    # Fewer than asked for are a fault of the node where a check tells, else a slip.
    "2 GPUs": (
        f"gpu_sku=gpu ddp_gpus_per_node=8 {CHECK}", f"gpu_sku=gpu ddp_world_sizes=1,2,8 {CHECK}",
        "gpu_sku=gpu ddp_gpus_per_node=8", f"gpu_sku=gpu ddp_gpus_per_node=1 {CHECK}",
    ),
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds that check GPUs, and earlier runs of three SKUs."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "checked": WITH_CHECK, "80gib": WITH_CHECK.replace("'^G$'", "'^G$', memory_gib: 80"), "words": IN_WORDS,
        "of-4": IN_WORDS.replace("{device: cpu}\n", "{device: cpu}\n    node: {gpus: 4, published: paper}\n"),
    }  # fmt: skip
    for name, text in texts.items():
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    Path("hosts").write_text("n1 slots=3\nn2 slots=3\n", encoding="utf-8")
    for sku in ("cpu", "gpu", "h100"):
        measured_run(Path(f"of-{sku}"), sku)
    RunDirectory.open(measured_run(Path("of-six"))).note(devices_present=6)
    three = RunDirectory.open(measured_run(Path("of-three")))
    three.write_json(three.plan_json, Plan("cpu", "cpu", (), nodes=3, ranks_per_node=2))


def test_sku_and_devices_follow_from_options_and_from_what_is_here(
    files: None, opened: Open, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = list[str]()
    for name, every in ASKED.items():
        if name in MACHINES:
            machine(*MACHINES[name], has_driver="driver" in name)
        else:
            monkeypatch.setattr(opening, "gpus_here", lambda skus: pytest.fail("NVML was asked"))
        for words in every:
            parts = (word.partition("=") for word in words.split())
            options: dict[str, Any] = {key: value or (None if sign else True) for key, sign, value in parts}
            try:
                session = opened(**options)
                told = f"{session.sku}, {session.subject.device_type}, {session.source.machine}"
                sizes = {case.name: case.world_size for case in session.source.cases if "rank" not in case.name}
                if "thresholds" in words:  # missing GPUs are left to their check
                    session.source.select(session.source.cases if "words" in name else session.source.cases[:1])
                    plan = session.source.plan
                    told += f", {sizes}, planned for {plan.layout.world_size}, survey: {plan.survey} {plan.gpus_asked}"
            except BadInput as error:
                told = str(error)
            said.append(f"{name}, {words}: {told}")
    assert_approved("machines.txt", masked("\n".join(said), tmp_path))


def test_a_machine_without_gpus_is_judged_by_their_check_only(
    files: None, opened: Open, machine: Callable[..., None]
) -> None:
    machine(LOST)
    source = opened(gpu_sku="gpu", thresholds="checked.yaml").source
    source.select(source.cases[1:])
    with pytest.raises(SkuError, match=r"only node_check\[gpus\] can be judged"):
        source.open_run()
    assert not Path("run").exists()
    source.select(source.cases[:1])
    source.open_run()
    assert source.measured_run.read_run().devices_present == 0


def test_without_torch_nothing_starts_here(files: None, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(OptionError, match=r"torch not installed; expected PyTorch.*--ddp-judge=RUN_DIR"):
        opened(gpu_sku="cpu")
    assert opened(gpu_sku="cpu", collect_only=True).source.selected == []
    assert opened(gpu_sku="auto", ddp_judge="of-cpu").source.machine.devices is None
    elsewhere = opened(gpu_sku="gpu", ddp_hosts="n1,n2", ddp_gpus_per_node="2")
    assert elsewhere.source.machine.cluster.is_elsewhere
