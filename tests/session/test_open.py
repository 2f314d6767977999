"""Which devices, which SKU and which thresholds a session is about."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.node.survey import GpusHere
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.session import open as opening
from pytest_ddpscale.session.open import THIS_MACHINE, Machine
from tests.builders.json_types import as_json, read_as
from tests.builders.sessions import THRESHOLDS, Open, gpu, measured_run

WITH_CHECK = THRESHOLDS.replace("'^G$'}", "'^G$'}\n    requirements: [{check: gpus, severity: fail}]")


class TestDevices:
    def test_on_gpu_all_are_used_or_as_many_as_asked_for(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0), gpu(1), gpu(2))
        assert opened(gpu_sku="gpu").source.machine.devices == 3
        assert opened(gpu_sku="auto", ddp_gpus_per_node="2").source.machine.devices == 2

    def test_a_laptop_that_only_plans_knows_no_gpus_but_may_be_told(self, opened: Open) -> None:
        assert opened(gpu_sku="gpu", collect_only=True).source.machine.devices is None
        assert opened(gpu_sku="gpu", collect_only=True, ddp_gpus_per_node="8").source.machine.devices == 8
        assert opened(gpu_sku="gpu", collect_only=True, ddp_world_sizes="1024").source.machine.devices is None

    def test_a_judged_run_needs_no_device(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old"))
        assert opened(gpu_sku="auto", ddp_judge=judge, ddp_world_sizes="1024").source.machine.devices is None

    def test_without_torch_nothing_starts_here(
        self, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judge = str(measured_run(tmp_path / "old"))
        monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
        with pytest.raises(OptionError, match=r"torch not installed; expected PyTorch.*--ddp-judge=RUN_DIR"):
            opened(gpu_sku="cpu")
        assert opened(gpu_sku="cpu", collect_only=True).source.plan is None
        assert opened(gpu_sku="auto", ddp_judge=judge).source.machine.devices is None
        elsewhere = opened(gpu_sku="gpu", ddp_hosts="n1,n2", ddp_gpus_per_node="2")
        assert elsewhere.source.machine.cluster.is_elsewhere


class TestWorldSizesInWords:
    """How many ranks `node` and `all` are depends on where they are measured."""

    ROWS = "".join(
        f"      - {{weak_scaling_efficiency: {{{size}: 0.97}}, of: r, published: paper, bound: 0.5, because: made up}}"
        "\n"
        for size in ("node", "2 nodes", "all")
    )

    @pytest.fixture
    def sizes(self, opened: Open, tmp_path: Path) -> Callable[..., dict[str, int]]:
        """World sizes of the cases that a session opens, by name."""
        text = THRESHOLDS.replace("    requirements: []\n", f"    requirements:\n{self.ROWS}")
        (tmp_path / "thresholds.yaml").write_text(text, encoding="utf-8")

        def of(**options: Any) -> dict[str, int]:
            return {case.name: case.world_size for case in opened(**options).source.cases if "-" in case.name[1:]}

        return of

    @pytest.fixture
    def in_words(self, sizes: Callable[..., dict[str, int]]) -> Callable[..., dict[str, int]]:
        return lambda **options: {name: size for name, size in sizes(**options).items() if "rank" not in name}

    def test_on_one_node_there_is_only_the_node(self, in_words: Callable[..., dict[str, int]]) -> None:
        assert in_words(ddp_gpus_per_node="4") == {"r-node": 4}
        assert in_words(ddp_gpus_per_node="1") == {}, "one rank scales to nothing"

    def test_where_nodes_are_only_planned_for_they_count_as_well(self, in_words: Callable[..., dict[str, int]]) -> None:
        planned = in_words(collect_only=True, ddp_nodes="3", ddp_gpus_per_node="4")
        assert planned == {"r-node": 4, "r-2nodes": 8, "r-all": 12}

    def test_of_nodes_that_nobody_can_look_at_it_is_said_or_usual(
        self, opened: Open, tmp_path: Path, in_words: Callable[..., dict[str, int]]
    ) -> None:
        planned = {"collect_only": True, "ddp_nodes": "16", "ddp_gpus_per_node": None}
        assert in_words(**planned) == {"r-node": 8, "r-2nodes": 16, "r-all": 128}
        said = (
            (tmp_path / "thresholds.yaml")
            .read_text(encoding="utf-8")
            .replace("{device: cpu}\n", "{device: cpu}\n    node: {gpus: 4, published: paper}\n")
        )
        (tmp_path / "thresholds.yaml").write_text(said, encoding="utf-8")
        session = opened(**planned)
        assert {case.name: case.world_size for case in session.source.cases}["r-all"] == 64
        session.source.select(session.source.cases)
        assert session.source.plan is not None
        assert (session.source.plan.nodes, session.source.plan.layout.world_size) == (16, 64)

    def test_an_earlier_run_says_how_many_devices_its_nodes_had(
        self, tmp_path: Path, in_words: Callable[..., dict[str, int]]
    ) -> None:
        run = measured_run(tmp_path / "old", "cpu")
        judge = {"gpu_sku": "auto", "ddp_judge": str(run)}
        assert in_words(**judge) == {}
        record = parse_strict_json((run / "run.json").read_text(encoding="utf-8"))
        (run / "run.json").write_text(json.dumps(record | {"devices_present": 6}), encoding="utf-8")
        assert in_words(**judge) == {"r-node": 6}
        plan = parse_strict_json((run / "plan.json").read_text(encoding="utf-8"))
        (run / "plan.json").write_text(json.dumps(plan | {"nodes": 3, "ranks_per_node": 2}), encoding="utf-8")
        assert in_words(**judge) == {"r-node": 2, "r-2nodes": 4, "r-all": 6}


class TestSku:
    def test_auto_finds_the_gpus(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0))
        session = opened(gpu_sku="auto")
        assert (session.sku, session.subject.device_type, session.source.machine.devices) == ("gpu", "cuda", 1)

    @pytest.mark.parametrize("collect_only", [False, True])
    def test_a_node_without_gpus_is_never_judged_as_a_cpu(self, opened: Open, collect_only: bool) -> None:
        with pytest.raises(
            SkuError, match=r"^--gpu-sku=auto: no NVIDIA GPU is visible here.*; expected at least one GPU"
        ):
            opened(gpu_sku="auto", collect_only=collect_only)
        assert opened(gpu_sku="laptop", collect_only=collect_only).sku == "cpu"

    def test_gpus_of_another_sku_are_refused(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0, name="H"))
        with pytest.raises(SkuError, match=r"^--gpu-sku=gpu: the GPUs here are not gpu"):
            opened(gpu_sku="g")

    @pytest.mark.parametrize(("sku", "collect_only"), [("cpu", False), ("cpu", True), ("gpu", True)])
    def test_a_broken_driver_stops_neither_planning_nor_the_cpu(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch, sku: str, collect_only: bool
    ) -> None:
        def broken() -> GpusHere:
            raise AssertionError("NVML was asked")

        monkeypatch.setattr(opening, "gpus_here", broken)
        assert opened(gpu_sku=sku, collect_only=collect_only).sku == sku

    def test_a_judged_run_is_judged_as_what_it_was_measured_on(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old", "gpu"))
        for asked in ("auto", "gpu", "g"):
            assert opened(gpu_sku=asked, ddp_judge=judge).sku == "gpu"

    def test_a_judged_run_is_not_judged_as_another_sku(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old", "gpu"))
        with pytest.raises(SkuError, match=r"found cpu, but .*/old was measured on gpu; expected gpu\."):
            opened(ddp_judge=judge)

    def test_a_judged_run_of_an_unknown_sku_is_refused(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old", "h100"))
        for asked in ("auto", "cpu"):
            with pytest.raises(SkuError, match="h100"):
                opened(gpu_sku=asked, ddp_judge=judge)


class TestSilentGpus:
    """A driver that lists a GPU which does not answer."""

    @pytest.fixture
    def silent(self, machine: Callable[..., None]) -> Callable[..., SkuError]:
        """Has GPU 1 fall silent beside those that answer."""
        error = SkuError("GPU 1", "GPU is lost", "a GPU that answers")

        def falls_silent(*answering: SurveyedGpu) -> SkuError:
            machine(*answering, silent=[error])
            return error

        return falls_silent

    @pytest.mark.parametrize("sku", ["gpu", "auto"])
    def test_end_the_session_where_no_check_would_tell(
        self, opened: Open, silent: Callable[..., SkuError], sku: str
    ) -> None:
        error = silent(gpu(0), gpu(2))
        with pytest.raises(SkuError) as raised:
            opened(gpu_sku=sku)
        assert raised.value is error

    @pytest.mark.parametrize("sku", ["gpu", "auto"])
    def test_are_left_to_the_check_of_gpus_where_there_is_one(
        self, opened: Open, silent: Callable[..., SkuError], tmp_path: Path, sku: str
    ) -> None:
        with_check = tmp_path / "with_check.yaml"
        with_check.write_text(WITH_CHECK, encoding="utf-8")
        silent(gpu(0), gpu(2))
        session = opened(gpu_sku=sku, thresholds=str(with_check))
        assert session.source.machine.devices == 2
        assert session.source.cases[0].id == "node_check[gpus]"
        session.source.select(session.source.cases[:1])
        assert session.source.plan is not None
        assert session.source.plan.survey

    @pytest.mark.parametrize(("memory_gib", "there"), [("", 3), (", memory_gib: 80", 2)])
    def test_are_those_without_memory_whose_sku_has_memory(
        self, opened: Open, machine: Callable[..., None], tmp_path: Path, memory_gib: str, there: int
    ) -> None:
        """A GPU that works in the host's memory has none of its own; of another it is a fault."""
        with_check = tmp_path / "with_check.yaml"
        with_check.write_text(WITH_CHECK.replace("'^G$'", f"'^G$'{memory_gib}"), encoding="utf-8")
        machine(gpu(0), gpu(1), replace(gpu(2), memory_bytes=None))
        found = opened(gpu_sku="auto", thresholds=str(with_check)).source.machine
        assert (found.devices, len(found.silent)) == (there, 3 - there)

    def test_end_the_session_where_no_other_gpu_answers(
        self, opened: Open, silent: Callable[..., SkuError], tmp_path: Path
    ) -> None:
        with_check = tmp_path / "with_check.yaml"
        with_check.write_text(WITH_CHECK, encoding="utf-8")
        error = silent()
        with pytest.raises(SkuError) as raised:
            opened(gpu_sku="auto", thresholds=str(with_check))
        assert raised.value is error

    @pytest.mark.parametrize("lists_none", [False, True])
    def test_leave_a_machine_without_gpus_to_the_check_where_its_sku_is_named(
        self, opened: Open, silent: Callable[..., SkuError], machine: Callable[..., None], tmp_path: Path,
        lists_none: bool,
    ) -> None:  # fmt: skip
        with_check = tmp_path / "with_check.yaml"
        with_check.write_text(WITH_CHECK, encoding="utf-8")
        silent()
        if lists_none:
            machine(why_none="the driver lists none", is_fault=True)
        session = opened(gpu_sku="gpu", thresholds=str(with_check), ddp_world_sizes="1,4")
        found = session.source.machine
        assert (found.devices, found.lacks_gpus) == (4, True)
        assert found.silent == ("the driver lists none" if lists_none else "GPU 1: GPU is lost",)
        session.source.select(session.source.cases[:1])
        assert session.source.plan is not None
        assert (session.source.plan.survey, session.source.plan.ranks_per_node) == (True, 4)
        session.source.select(session.source.cases[1:])
        with pytest.raises(SkuError, match=r"only node_check\[gpus\] can be judged"):
            session.source.open_run()
        assert not (tmp_path / "run").exists()

    def test_are_no_matter_of_a_cpu(self, opened: Open, silent: Callable[..., SkuError]) -> None:
        silent()
        assert opened().sku == "cpu"


class TestFewerGpusThanAsked:
    @pytest.mark.parametrize("asked", [{"ddp_gpus_per_node": "8"}, {"ddp_world_sizes": "1,2,8"}])
    def test_are_a_fault_of_the_node_where_a_check_tells(
        self, opened: Open, machine: Callable[..., None], tmp_path: Path, asked: dict[str, str]
    ) -> None:
        machine(gpu(0), gpu(1))
        (tmp_path / "with_check.yaml").write_text(WITH_CHECK, encoding="utf-8")
        session = opened(gpu_sku="gpu", thresholds=str(tmp_path / "with_check.yaml"), **asked)
        assert (session.source.machine.devices, session.source.machine.gpus_asked) == (2, 8)
        told = ("2 GPUs are visible here, 8 were requested",)
        assert session.source.machine.silent == told, "so that the run cannot be accepted"
        session.source.select(session.source.cases[:1])
        assert session.source.plan is not None
        assert session.source.plan.gpus_asked == 8
        assert read_as(Plan, as_json(session.source.plan)) == session.source.plan

    def test_are_a_slip_where_no_check_would_tell(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0), gpu(1))
        with pytest.raises(OptionError, match=r"--ddp-gpus-per-node: found 8, but 2 GPUs are visible"):
            opened(gpu_sku="gpu", ddp_gpus_per_node="8")

    def test_are_no_matter_if_nobody_asks_for_more(
        self, opened: Open, machine: Callable[..., None], tmp_path: Path
    ) -> None:
        machine(gpu(0), gpu(1))
        (tmp_path / "with_check.yaml").write_text(WITH_CHECK, encoding="utf-8")
        session = opened(gpu_sku="gpu", thresholds=str(tmp_path / "with_check.yaml"), ddp_gpus_per_node="1")
        assert session.source.machine == Machine(THIS_MACHINE, 1)
