"""Which devices, which SKU and which thresholds a session is about."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.errors import BadInput, OptionError, SkuError
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.session import open as opening
from pytest_ddpscale.session.open import THIS_MACHINE, Machine
from tests.builders.json_types import as_json, read_as
from tests.builders.sessions import THRESHOLDS, Open, gpu, measured_run
from tests.rows import rows

WITH_CHECK = THRESHOLDS.replace("'^G$'}", "'^G$'}\n    requirements: [{check: gpus, severity: fail}]")
CHECKED, OF_80_GIB = {"thresholds": "checked.yaml"}, {"thresholds": "80gib.yaml"}
GPUS = [gpu(0), gpu(1), gpu(2)]
# A GPU that works in the host's memory has none of its own; of another it is a fault.
WITHOUT_MEMORY = [*GPUS[:2], replace(gpu(2), memory_bytes=None)]
NONE_VISIBLE = r"^--gpu-sku=auto: no NVIDIA GPU is visible here.*; expected at least one GPU"
# Besides GPUs that answer: one that the driver lists and that does not; a driver that lists none; nobody may ask.
LOST = {"silent": [SkuError("GPU 1", "GPU is lost", "a GPU that answers")]}
LISTS_NONE: dict[str, Any] = {"why_none": "the driver lists none", "is_fault": True}
BROKEN: dict[str, Any] = {"broken": True}
ONE_LOST = "GPU 1: GPU is lost"
IS_LOST, FEWER = f"^{ONE_LOST}; expected a GPU that answers", ("2 GPUs are visible here, 8 were requested",)


def _of(devices: int | None, *silent: str, asked: int | None = None, lacks_gpus: bool = False) -> Machine:
    return Machine(THIS_MACHINE, devices, asked, silent, lacks_gpus)


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


@rows(
    ("gpus", "driver", "options", "expected"),
    [
        # All that are here are used, or as many as asked for; a laptop that only plans knows none but may be told.
        (GPUS, {}, {"gpu_sku": "gpu"}, ("gpu", _of(3))),
        (GPUS, {}, {"gpu_sku": "auto", "ddp_gpus_per_node": "2"}, ("gpu", _of(2))),
        (GPUS[:1], {}, {"gpu_sku": "auto"}, ("gpu", _of(1))),
        ([], {}, {"gpu_sku": "gpu", "collect_only": True}, ("gpu", _of(None))),
        ([], {}, {"gpu_sku": "gpu", "collect_only": True, "ddp_gpus_per_node": "8"}, ("gpu", _of(8))),
        ([], {}, {"gpu_sku": "gpu", "collect_only": True, "ddp_world_sizes": "1024"}, ("gpu", _of(None))),
        (
            [], {}, {"gpu_sku": "gpu", "ddp_hosts": "@hosts"},
            ("gpu", Machine(Cluster(2, ("n1", "n2"), "ssh", is_elsewhere=True, slots=3), 6)),
        ),
        # A node without GPUs is never judged as a CPU.
        ([], {}, {"gpu_sku": "auto"}, NONE_VISIBLE),
        ([], {}, {"gpu_sku": "auto", "collect_only": True}, NONE_VISIBLE),
        ([], {}, {"gpu_sku": "laptop"}, ("cpu", _of(2))),
        ([], {}, {"gpu_sku": "laptop", "collect_only": True}, ("cpu", _of(2))),
        ([gpu(0, name="H")], {}, {"gpu_sku": "g"}, r"^--gpu-sku=gpu: the GPUs here are not gpu"),
        # A broken driver stops neither planning nor the CPU.
        ([], BROKEN, {"gpu_sku": "cpu"}, ("cpu", _of(2))),
        ([], BROKEN, {"gpu_sku": "cpu", "collect_only": True}, ("cpu", _of(2))),
        ([], BROKEN, {"gpu_sku": "gpu", "collect_only": True}, ("gpu", _of(None))),
        ([], LOST, {"gpu_sku": "cpu"}, ("cpu", _of(2))),
        # An earlier run needs no device, and is judged as what it was measured on.
        ([], {}, {"gpu_sku": "auto", "ddp_judge": "of-cpu", "ddp_world_sizes": "1024"}, ("cpu", _of(None))),
        *(([], {}, {"gpu_sku": one, "ddp_judge": "of-gpu"}, ("gpu", _of(None))) for one in ("auto", "gpu", "g")),
        ([], {}, {"gpu_sku": "cpu", "ddp_judge": "of-gpu"}, r"cpu, but of-gpu was measured on gpu; expected gpu\."),
        *(([], {}, {"gpu_sku": one, "ddp_judge": "of-h100"}, "h100") for one in ("auto", "cpu")),
        # GPUs that do not answer end a session where no check would tell, or where no other GPU answers.
        *((GPUS[::2], LOST, {"gpu_sku": one}, IS_LOST) for one in ("gpu", "auto")),
        *((GPUS[::2], LOST, {"gpu_sku": one, **CHECKED}, ("gpu", _of(2, ONE_LOST))) for one in ("gpu", "auto")),
        (WITHOUT_MEMORY, {}, {"gpu_sku": "auto", **CHECKED}, ("gpu", _of(3))),
        ([], LOST, {"gpu_sku": "auto", **CHECKED}, IS_LOST),
        ([], LOST, {"gpu_sku": "gpu"}, IS_LOST),
        # A named SKU whose check rejects a machine without GPUs is judged by it.
        *(
            ([], driver, {"gpu_sku": "gpu", "ddp_world_sizes": "1,4", **CHECKED}, ("gpu", _of(4, why, lacks_gpus=True)))
            for driver, why in ((LOST, ONE_LOST), (LISTS_NONE, "the driver lists none"))
        ),
        ([], LOST, {"gpu_sku": "gpu", **CHECKED}, ("gpu", _of(8, ONE_LOST, lacks_gpus=True))),
        ([], {}, {"gpu_sku": "gpu", **CHECKED}, "no NVIDIA GPU is visible here"),
        ([], LISTS_NONE, {"gpu_sku": "gpu"}, "no NVIDIA GPU is visible here: the driver lists none"),
        # Fewer than asked for are a fault of the node where a check tells, else a slip.
        *(
            (GPUS[:2], {}, {"gpu_sku": "gpu", **asked, **CHECKED}, ("gpu", _of(2, *FEWER, asked=8)))
            for asked in ({"ddp_gpus_per_node": "8"}, {"ddp_world_sizes": "1,2,8"})
        ),
        (GPUS[:2], {}, {"gpu_sku": "gpu", "ddp_gpus_per_node": "8"}, "^--ddp-gpus-per-node: found 8, but 2 GPUs"),
        (GPUS[:2], {}, {"gpu_sku": "gpu", "ddp_gpus_per_node": "1", **CHECKED}, ("gpu", _of(1))),
    ],
)  # fmt: skip
def test_sku_and_devices_follow_from_options_and_from_what_is_here(
    files: None, opened: Open, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, gpus: Sequence[Any],
    driver: dict[str, Any], options: dict[str, Any], expected: Any,
) -> None:  # fmt: skip
    if driver is BROKEN:
        monkeypatch.setattr(opening, "gpus_here", lambda: pytest.fail("NVML was asked"))
    else:
        machine(*gpus, **driver)
    if isinstance(expected, str):
        with pytest.raises(BadInput, match=expected):
            opened(**options)
        return
    session = opened(**options)
    assert (session.sku, session.source.machine) == expected
    assert session.subject.device_type == ("cpu" if session.sku == "cpu" else "cuda")


def test_gpus_without_memory_whose_sku_has_memory_do_not_answer(
    files: None, opened: Open, machine: Callable[..., None]
) -> None:
    machine(*WITHOUT_MEMORY)
    found = opened(gpu_sku="auto", **OF_80_GIB).source.machine
    assert (found.devices, len(found.silent)) == (2, 1)


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

    @rows(
        ("options", "expected"),
        [
            ({"ddp_gpus_per_node": "4"}, {"r-node": 4}),
            ({"ddp_gpus_per_node": "1"}, {}),  # one rank scales to nothing
            # Nodes that are only planned for count as well; of those that nobody can look at it is said, or usual.
            (
                {"collect_only": True, "ddp_nodes": "3", "ddp_gpus_per_node": "4"},
                {"r-node": 4, "r-2nodes": 8, "r-all": 12},
            ),
            (PLANNED, {"r-node": 8, "r-2nodes": 16, "r-all": 128}),
            ({**PLANNED, "node": OF_FOUR}, {"r-node": 4, "r-2nodes": 8, "r-all": 64}),
        ],
    )
    def test_are_of_the_nodes_to_measure(
        self, opened: Open, tmp_path: Path, options: dict[str, Any], expected: dict[str, int]
    ) -> None:
        assert self.sizes(opened, tmp_path, **options) == expected

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
