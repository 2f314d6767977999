"""Which devices, which SKU and which thresholds a session is about."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.errors import BadInput, OptionError, SkuError
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.session import open as opening
from pytest_ddpscale.session.open import THIS_MACHINE
from tests.approved import assert_approved, masked
from tests.builders.json_types import as_json, read_as
from tests.builders.sessions import THRESHOLDS, Open, gpu, measured_run

WITH_CHECK = THRESHOLDS.replace("'^G$'}", "'^G$'}\n    requirements: [{check: gpus, severity: fail}]")
CHECKED = {"thresholds": "checked.yaml"}
GPUS = [gpu(0), gpu(1), gpu(2)]
# Besides GPUs that answer, one that the driver lists and that does not.
LOST = {"silent": [SkuError("GPU 1", "GPU is lost", "a GPU that answers")]}
MACHINES: dict[str, tuple[Sequence[Any], dict[str, Any]]] = {
    "3 GPUs": (GPUS, {}), "2 GPUs": (GPUS[:2], {}), "1 GPU": (GPUS[:1], {}), "another GPU": ([gpu(0, name="H")], {}),
    "no GPU": ([], {}), "GPU 1 of 3 lost": (GPUS[::2], LOST), "GPU 1 lost": ([], LOST),
    # A GPU that works in the host's memory has none of its own; of another it is a fault.
    "GPU 2 has no memory": ([*GPUS[:2], replace(gpu(2), memory_bytes=None)], {}),
    "driver lists none": ([], {"why_none": "the driver lists none", "is_fault": True}),
}  # fmt: skip
CHECK = "thresholds=checked.yaml"
ASKED = {
    # All that are here are used, or as many as asked for; a laptop that only plans knows none but may be told.
    "3 GPUs": ("gpu_sku=gpu", "gpu_sku=auto ddp_gpus_per_node=2"),
    "1 GPU": ("gpu_sku=auto",),
    # A node without GPUs is never judged as a CPU. An earlier run needs no device, and is judged as what it was
    # measured on. A named SKU whose check rejects a machine without GPUs is judged by it.
    "no GPU": (
        "gpu_sku=gpu collect_only", "gpu_sku=gpu collect_only ddp_gpus_per_node=8",
        "gpu_sku=gpu collect_only ddp_world_sizes=1024", "gpu_sku=gpu ddp_hosts=@hosts", "gpu_sku=auto",
        "gpu_sku=auto collect_only", "gpu_sku=laptop", "gpu_sku=laptop collect_only",
        "gpu_sku=auto ddp_judge=of-cpu ddp_world_sizes=1024", "gpu_sku=auto ddp_judge=of-gpu",
        "gpu_sku=gpu ddp_judge=of-gpu", "gpu_sku=g ddp_judge=of-gpu", "gpu_sku=cpu ddp_judge=of-gpu",
        "gpu_sku=auto ddp_judge=of-h100", "gpu_sku=cpu ddp_judge=of-h100", f"gpu_sku=gpu {CHECK}",
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
    texts = {"checked.yaml": WITH_CHECK, "80gib.yaml": WITH_CHECK.replace("'^G$'", "'^G$', memory_gib: 80")}
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("hosts").write_text("n1 slots=3\nn2 slots=3\n", encoding="utf-8")
    for sku in ("cpu", "gpu", "h100"):
        measured_run(Path(f"of-{sku}"), sku)


def test_sku_and_devices_follow_from_options_and_from_what_is_here(
    files: None, opened: Open, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = list[str]()
    for name, every in ASKED.items():
        if name in MACHINES:
            gpus, driver = MACHINES[name]
            machine(*gpus, **driver)
        else:
            monkeypatch.setattr(opening, "gpus_here", lambda: pytest.fail("NVML was asked"))
        for words in every:
            options: dict[str, Any] = {
                key: value or True for key, _, value in (one.partition("=") for one in words.split())
            }
            try:
                session = opened(**options)
                found = session.source.machine
                at = "" if found.cluster == THIS_MACHINE else f" of {found.cluster}"
                told = f"{session.sku}, {session.subject.device_type}: {found.devices} devices{at}, "
                told += f"asked {found.gpus_asked}, silent {[*found.silent]}, lacks GPUs: {found.lacks_gpus}"
            except BadInput as error:
                told = str(error)
            said.append(f"{name}, {words}: {told}")
    assert_approved("machines.txt", masked("\n".join(said).replace(f" of {platform.node()}:", " of HERE:"), tmp_path))


def test_missing_gpus_are_left_to_their_check(files: None, opened: Open, machine: Callable[..., None]) -> None:
    machine(*GPUS[:2])
    source = opened(gpu_sku="gpu", ddp_gpus_per_node="8", **CHECKED).source
    assert source.cases[0].id == "node_check[gpus]"
    source.select(source.cases[:1])
    assert source.plan is not None
    assert (source.plan.survey, source.plan.gpus_asked) == (True, 8)
    assert read_as(Plan, as_json(source.plan)) == source.plan


def test_a_machine_without_gpus_is_judged_by_their_check_only(
    files: None, opened: Open, machine: Callable[..., None]
) -> None:
    machine(**LOST)
    source = opened(gpu_sku="gpu", ddp_world_sizes="1,4", **CHECKED).source
    source.select(source.cases[1:])
    with pytest.raises(SkuError, match=r"only node_check\[gpus\] can be judged"):
        source.open_run()
    assert not Path("run").exists()
    source.select(source.cases[:1])
    source.open_run()
    assert source.plan is not None
    assert (source.plan.survey, source.plan.ranks_per_node) == (True, 4)
    assert source.measured_run.read_run().devices_present == 0


def test_without_torch_nothing_starts_here(files: None, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(OptionError, match=r"torch not installed; expected PyTorch.*--ddp-judge=RUN_DIR"):
        opened(gpu_sku="cpu")
    assert opened(gpu_sku="cpu", collect_only=True).source.plan is None
    assert opened(gpu_sku="auto", ddp_judge="of-cpu").source.machine.devices is None
    elsewhere = opened(gpu_sku="gpu", ddp_hosts="n1,n2", ddp_gpus_per_node="2")
    assert elsewhere.source.machine.cluster.is_elsewhere


class TestWorldSizesInWords:
    """How many ranks `node` and `all` are depends on where they are measured."""

    ROWS = "".join(
        f"      - {{weak_scaling_efficiency: {{{size}: 0.97}}, of: r, published: paper, bound: 0.5, because: so}}\n"
        for size in ("node", "2 nodes", "all")
    )
    OF_FOUR = "{device: cpu}\n    node: {gpus: 4, published: paper}\n"
    PLANNED = {"collect_only": True, "ddp_nodes": "16", "ddp_gpus_per_node": None}  # noqa: RUF012

    def sizes(self, opened: Open, tmp_path: Path, node: str = "{device: cpu}\n", **options: Any) -> dict[str, int]:
        """World sizes of the cases that a session opens, by name."""
        text = THRESHOLDS.replace("    requirements: []\n", f"    requirements:\n{self.ROWS}")
        (tmp_path / "thresholds.yaml").write_text(text.replace("{device: cpu}\n", node), encoding="utf-8")
        source = opened(**options).source
        if options == self.PLANNED:
            source.select(source.cases)
            assert source.plan is not None
            assert source.plan.layout.world_size == {case.name: case.world_size for case in source.cases}["r-all"]
        return {case.name: case.world_size for case in source.cases if "-" in case.name[1:] and "rank" not in case.name}

    def test_are_of_the_nodes_to_measure(self, opened: Open, tmp_path: Path) -> None:
        """Of nodes that are only planned for, too; of those that nobody can look at it is said, or usual."""
        of_three = {"collect_only": True, "ddp_nodes": "3", "ddp_gpus_per_node": "4"}
        asked: Sequence[dict[str, Any]] = (
            {"ddp_gpus_per_node": "4"}, {"ddp_gpus_per_node": "1"}, of_three, self.PLANNED,
            {**self.PLANNED, "node": self.OF_FOUR},
        )  # fmt: skip
        found = [[*self.sizes(opened, tmp_path, **options).values()] for options in asked]
        assert found == [[4], [], [4, 8, 12], [8, 16, 128], [4, 8, 64]]  # one rank scales to nothing

    def test_of_an_earlier_run_are_of_the_devices_that_its_nodes_had(self, opened: Open, tmp_path: Path) -> None:
        run = measured_run(tmp_path / "old", "cpu")
        for file, changes, expected in (
            ("run.json", {}, {}),
            ("run.json", {"devices_present": 6}, {"r-node": 6}),
            ("plan.json", {"nodes": 3, "ranks_per_node": 2}, {"r-node": 2, "r-2nodes": 4, "r-all": 6}),
        ):
            said = parse_strict_json((run / file).read_text(encoding="utf-8"))
            (run / file).write_text(json.dumps(said | changes), encoding="utf-8")
            assert self.sizes(opened, tmp_path, gpu_sku="auto", ddp_judge=str(run)) == expected
