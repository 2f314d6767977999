"""A session asks for what fits, measures it once, and never concludes more than it knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale import devices
from pytest_ddpscale import session as session_module
from pytest_ddpscale.cluster import Cluster
from pytest_ddpscale.errors import OptionError, RunDirectoryError, SkuError
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.packaged import packaged
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.pair_record import PairMeasurement
from pytest_ddpscale.results.records import Measurement, StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.session import AcceptanceSession, Site, open_session
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.sku.detection import Gpu

THRESHOLDS = """\
schema_version: 1
skus:
  cpu:
    description: any CPU
    aliases: [laptop]
    detect: {device: cpu}
    workloads: &workloads
      r: {model: resnet18, precision: fp32, batch_size: 4, image_size: 32, global_batch_size: 8}
    requirements: &requirements
      - {metric: throughput_per_gpu, workload: r, world_size: 1, at_least: 50, source: &source {measured: 99, reference: a paper, reasoning: made up for a test}}
      - {metric: weak_scaling_efficiency, workload: r, world_size: 2, at_least: 0.5, source: *source}
      - {metric: strong_scaling_speedup, workload: r, world_size: 8, at_least: 2, source: *source}
  gpu:
    description: some GPU
    aliases: [g]
    detect: {name: '^G$'}
    workloads: *workloads
    requirements: *requirements
"""  # noqa: E501 - one requirement, one line
IDS = ["throughput_per_gpu[r-1rank]", "weak_scaling_efficiency[r-2rank]", "strong_scaling_speedup[r-8rank]"]
IMG_PER_S = 100.0


def nothing(record: dict[str, Any]) -> None:
    """A listener that shows no progress."""


class InstantGang:
    """In place of the supervisor: measures a plan at once, at a pace of its own choosing."""

    launches: list[InstantGang] = []  # noqa: RUF012 (each test has a list of its own)
    breaks = ""
    ends = True
    rounds: int | None = None

    def __init__(
        self, launcher: object, run: RunDirectory, limits: Limits, listener: object, *, isolate: bool, judge: object
    ) -> None:
        self.run, self.limits, self.isolate, self.judge = run, limits, isolate, judge
        self.launches.append(self)

    def measure(self, plan: Plan) -> None:
        self.plan = plan
        for study in plan.studies:
            for number in range(study.rounds if self.rounds is None else self.rounds):
                for arm in study.arms:
                    for rank in range(arm.world_size):
                        block_s = arm.batch_size * 10 / IMG_PER_S
                        one = Measurement(
                            study.id, arm.name, number, rank, rank, "here", "cpu", arm.batch_size, 10, block_s, 1.7e9
                        )
                        self.run.append_record(one.as_json())
            if self.ends:
                reason = "error" if self.breaks else "rounds"
                self.run.append_record(StudyEnd(study.id, reason, self.breaks).as_json())


Open = Callable[..., AcceptanceSession]


@pytest.fixture
def gangs(monkeypatch: pytest.MonkeyPatch) -> list[InstantGang]:
    """Every launch of the test."""
    launches: list[InstantGang] = []
    monkeypatch.setattr(InstantGang, "launches", launches)
    monkeypatch.setattr(session_module, "Supervisor", InstantGang)
    return launches


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Decide what NVML finds; by default there is no driver."""

    def has(*gpus: Gpu, driver: bool) -> None:
        monkeypatch.setattr(devices, "visible_gpus", lambda: list(gpus))
        monkeypatch.setattr(devices, "has_driver", lambda: driver)

    has(driver=False)
    return has


@pytest.fixture
def opened(tmp_path: Path, machine: Callable[..., None]) -> Open:
    """Open a session, on the CPU with two ranks unless options say otherwise."""
    path = tmp_path / "thresholds.yaml"
    path.write_text(THRESHOLDS, encoding="utf-8")

    def open_it(collect_only: bool = False, **options: Any) -> AcceptanceSession:
        if options.get("gpu_sku", "cpu") == "cpu":
            options = {"ddp_gpus_per_node": "2", "ddp_rounds": "5", **options}
        options.setdefault("gpu_sku", "cpu")
        options.setdefault("ddp_run_dir", str(tmp_path / "run"))
        return open_session(
            Site(settings_from(options, {}, {}), tmp_path, tmp_path, ("pytest",), collect_only=collect_only)
        )

    return open_it


def gpu(index: int, name: str = "G") -> Gpu:
    return Gpu(index, f"GPU-{index}", name, "20b2", 80.0)


def measured_run(path: Path, sku: str = "cpu") -> Path:
    """A run directory without any measurement."""
    run = RunDirectory.create(path)
    run.write_json(run.run_json, {"schema_version": 1, "sku": sku, "notes": ["imported"]})
    run.write_json(run.plan_json, Plan("cpu", "cpu", ()).as_json())
    return path


class TestDevices:
    def test_on_cpu_as_many_ranks_as_asked_for_may_share_the_cores(self, opened: Open) -> None:
        assert opened(ddp_gpus_per_node="64").devices == 64

    def test_on_cpu_there_is_a_rank_for_each_core(self, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 5})
        assert opened(ddp_gpus_per_node=None).devices == 3

    def test_on_gpu_all_are_used_or_as_many_as_asked_for(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0), gpu(1), gpu(2), driver=True)
        assert opened(gpu_sku="gpu").devices == 3
        assert opened(gpu_sku="auto", ddp_gpus_per_node="2").devices == 2

    def test_more_gpus_than_there_are_is_refused(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0), gpu(1), driver=True)
        with pytest.raises(OptionError) as raised:
            opened(gpu_sku="g", ddp_gpus_per_node="8")
        assert str(raised.value) == "--ddp-gpus-per-node: found 8, but 2 GPUs are visible; expected at most 2."

    def test_world_sizes_that_do_not_fit_are_refused(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0), gpu(1), driver=True)
        with pytest.raises(OptionError) as raised:
            opened(gpu_sku="gpu", ddp_world_sizes="1,2,4,8")
        assert str(raised.value) == "--ddp-world-sizes: found 8, but 2 GPUs are visible; expected at most 2."
        assert opened(gpu_sku="gpu", ddp_world_sizes="1,2").devices == 2

    def test_on_cpu_the_way_out_is_said(self, opened: Open) -> None:
        with pytest.raises(OptionError, match=r"On CPU, --ddp-gpus-per-node=8 lets ranks share cores\.$"):
            opened(ddp_world_sizes="2,8")

    def test_a_laptop_that_only_plans_knows_no_gpus_but_may_be_told(self, opened: Open) -> None:
        assert opened(gpu_sku="gpu", collect_only=True).devices is None
        assert opened(gpu_sku="gpu", collect_only=True, ddp_gpus_per_node="8").devices == 8
        assert opened(gpu_sku="gpu", collect_only=True, ddp_world_sizes="1024").devices is None

    def test_a_judged_run_needs_no_device(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old"))
        assert opened(gpu_sku="auto", ddp_judge=judge, ddp_world_sizes="1024").devices is None


class TestSku:
    def test_without_a_driver_auto_is_the_cpu(self, opened: Open) -> None:
        assert opened(gpu_sku="auto").sku == "cpu"

    def test_auto_finds_the_gpus(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0), driver=True)
        session = opened(gpu_sku="auto")
        assert (session.sku, session.device_type, session.devices) == ("gpu", "cuda", 1)

    def test_a_driver_without_a_gpu_is_no_reason_to_accept_the_cpu(
        self, opened: Open, machine: Callable[..., None]
    ) -> None:
        machine(driver=True)
        with pytest.raises(SkuError, match="an NVIDIA driver is loaded, but no GPU is visible; expected at least one"):
            opened(gpu_sku="auto")
        assert opened(gpu_sku="laptop").sku == "cpu"

    def test_gpus_of_another_sku_are_refused(self, opened: Open, machine: Callable[..., None]) -> None:
        machine(gpu(0, name="H"), driver=True)
        with pytest.raises(SkuError, match=r"^--gpu-sku=gpu: gpu is a SKU the GPUs are not"):
            opened(gpu_sku="g")

    @pytest.mark.parametrize(("sku", "collect_only"), [("cpu", False), ("cpu", True), ("gpu", True)])
    def test_a_broken_driver_stops_neither_planning_nor_the_cpu(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch, sku: str, collect_only: bool
    ) -> None:
        def broken() -> list[Gpu]:
            raise AssertionError("NVML was asked")

        monkeypatch.setattr(devices, "visible_gpus", broken)
        assert opened(gpu_sku=sku, collect_only=collect_only).sku == sku

    def test_a_judged_run_is_judged_as_what_it_was_measured_on(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old", "gpu"))
        for asked in ("auto", "gpu", "g"):
            assert opened(gpu_sku=asked, ddp_judge=judge).sku == "gpu"

    def test_a_judged_run_is_not_judged_as_another_sku(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old", "gpu"))
        with pytest.raises(SkuError, match=r"cpu is asked for, but .*/old was measured on gpu; expected gpu\."):
            opened(ddp_judge=judge)

    def test_a_judged_run_of_an_unknown_sku_is_refused(self, opened: Open, tmp_path: Path) -> None:
        judge = str(measured_run(tmp_path / "old", "h100"))
        for asked in ("auto", "cpu"):
            with pytest.raises(SkuError, match="h100"):
                opened(gpu_sku=asked, ddp_judge=judge)

    @pytest.mark.parametrize("sku", [None, 7, ["cpu"]])
    def test_a_judged_run_that_names_no_sku_is_broken(self, opened: Open, tmp_path: Path, sku: Any) -> None:
        judge = str(measured_run(tmp_path / "old", sku))
        with pytest.raises(RunDirectoryError, match="names no SKU"):
            opened(gpu_sku="auto", ddp_judge=judge)

    def test_no_run_to_judge_is_refused(self, opened: Open, tmp_path: Path) -> None:
        with pytest.raises(RunDirectoryError, match=r"has no run\.json"):
            opened(ddp_judge=str(tmp_path / "nowhere"))


class TestThresholds:
    def test_the_file_named_comes_before_the_one_beside_and_that_before_the_packaged_one(
        self, opened: Open, tmp_path: Path
    ) -> None:
        other = tmp_path / "other.yaml"
        other.write_text(THRESHOLDS, encoding="utf-8")
        assert opened(thresholds=str(other)).thresholds.path == other
        assert opened().thresholds.path == tmp_path / "thresholds.yaml"
        (tmp_path / "thresholds.yaml").unlink()
        assert opened().thresholds.path == packaged("thresholds.yaml")


class TestPlanning:
    def test_only_what_is_selected_and_fits_is_planned(self, opened: Open) -> None:
        session = opened(ddp_block="7s")
        session.select(session.cases)
        assert session.plan is not None
        assert [study.id for study in session.plan.studies] == ["weak/r"], "8 ranks do not fit"
        assert [arm.name for arm in session.plan.studies[0].arms] == ["alone", "ddp@2", "each@2"]
        assert (session.plan.studies[0].rounds, session.plan.studies[0].block_s) == (5, 7.0)
        session.select(session.cases[:1])
        assert [arm.name for arm in session.plan.studies[0].arms] == ["alone"]

    def test_a_laptop_that_only_plans_plans_everything(self, opened: Open) -> None:
        session = opened(gpu_sku="gpu", collect_only=True)
        session.select(session.cases)
        assert session.plan is not None
        assert [study.id for study in session.plan.studies] == ["weak/r", "strong/r"]
        assert session.plan.device_type == "cuda"

    def test_nothing_is_written_or_measured_by_planning(
        self, opened: Open, tmp_path: Path, gangs: list[InstantGang]
    ) -> None:
        session = opened()
        session.select(session.cases)
        assert [path.name for path in tmp_path.iterdir()] == ["thresholds.yaml"]
        assert gangs == []


@pytest.fixture
def measuring(opened: Open, gangs: list[InstantGang]) -> AcceptanceSession:
    """A session about to measure everything, on two ranks."""
    session = opened()
    session.select(session.cases)
    session.open_run()
    return session


class TestMeasuring:
    def test_what_is_about_to_happen_is_on_disk_first(self, measuring: AcceptanceSession) -> None:
        assert measuring.run is not None
        assert measuring.run.read_plan() == measuring.plan
        assert measuring.run.read_run()["status"] == "running"
        assert measuring.needs_measuring()

    def test_one_launch_answers_everything_planned(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        verdicts = [measuring.judge(case, nothing) for case in measuring.cases[:2]]
        assert [verdict.outcome for verdict in verdicts] == ["passed", "passed"]
        assert [verdict.value for verdict in verdicts] == pytest.approx([IMG_PER_S, 1.0])
        assert len(gangs) == 1
        assert not measuring.needs_measuring()

    def test_a_verdict_once_given_stays(self, measuring: AcceptanceSession) -> None:
        first = measuring.judge(measuring.cases[0], nothing)
        assert measuring.judge(measuring.cases[0], nothing) is first

    def test_what_needs_more_ranks_than_there_are_is_not_measured_nor_launched(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        verdict = measuring.judge(measuring.cases[2], nothing)
        assert (verdict.outcome, verdict.reason) == ("not_measured", "needs 8 ranks; 2 can be used here")
        assert gangs == []

    def test_a_study_that_breaks_is_an_error(
        self, measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(InstantGang, "breaks", "rank 1 on here failed in warm-up: no memory")
        verdict = measuring.judge(measuring.cases[0], nothing)
        assert (verdict.outcome, verdict.reason) == ("error", "rank 1 on here failed in warm-up: no memory")

    def test_limits_and_isolation_are_passed_on(self, opened: Open, gangs: list[InstantGang]) -> None:
        session = opened(ddp_budget="10m", ddp_inactivity_limit="90s", ddp_isolate=True)
        session.select(session.cases)
        session.open_run()
        session.judge(session.cases[0], nothing)
        limits = gangs[0].limits
        assert (limits.budget_s, limits.inactivity_s, limits.startup_s, gangs[0].isolate) == (600.0, 90.0, 90.0, True)
        assert limits.total_s is not None, "the plan gives one"
        assert limits.total_s > 90.0

    def test_a_question_outside_the_plan_is_measured_by_a_further_launch(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        measuring.judge(measuring.cases[0], nothing)
        for _ in range(2):
            samples = measuring.samples("strong_scaling_speedup", "r", 2, nothing)
            assert samples == pytest.approx([2.0] * 5)
        assert [study.id for gang in gangs for study in gang.plan.studies] == ["weak/r", "strong/r-extra1"]
        assert measuring.run is not None
        assert [study.id for study in measuring.run.read_plan().studies] == ["weak/r", "strong/r-extra1"]
        assert measuring.judge(measuring.cases[1], nothing).passed

    def test_a_further_launch_searches_for_slow_links_unless_they_were_measured(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        measuring.judge(measuring.cases[0], nothing)
        assert measuring.run is not None
        measuring.cluster, measuring.devices = Cluster(nodes=3), 6
        measuring.samples("weak_scaling_efficiency", "r", 6, nothing)
        assert gangs[-1].plan.pairs is not None
        assert measuring.run.read_plan().pairs == gangs[-1].plan.pairs, "ranks read it there"
        found = PairMeasurement("pairs", 0, (0, 2), ("a", "b"), (0, 0), ("cpu", "cpu"), 4, 1, 1.0)
        measuring.run.append_record(found.as_json())
        measuring.samples("weak_scaling_efficiency", "r", 5, nothing)
        measuring.samples("weak_scaling_efficiency", "r", 3, nothing)
        assert [gang.plan.pairs is None for gang in gangs] == [True, False, False, True]

    def test_a_question_that_makes_no_sense_is_refused(self, measuring: AcceptanceSession) -> None:
        for question, complaint in {
            ("speed", "r", 1): "found metric 'speed'; expected one of throughput_per_gpu",
            ("generation_ratio", "r", 1): "found metric 'generation_ratio'; expected one of",
            ("throughput_per_gpu", "s", 1): "found workload 's'; expected one of r",
            ("throughput_per_gpu", "r", 3): "found world size 3; expected at most 2",
        }.items():
            with pytest.raises(OptionError, match=complaint):
                measuring.samples(*question, nothing)


class TestConclusion:
    def test_verdicts_come_in_the_order_of_the_file(self, measuring: AcceptanceSession) -> None:
        for case in reversed(measuring.cases):
            measuring.judge(case, nothing)
        judgement = measuring.conclude(interrupted=False, spoiled=())
        assert [verdict.id for verdict in judgement.verdicts] == IDS
        assert (judgement.sku, judgement.outcome, judgement.notes) == ("cpu", "incomplete", ())
        assert judgement.reason == f"1 of 3 requirements were not measured: {IDS[2]}"

    def test_a_selection_that_passes_is_partial(self, opened: Open, gangs: list[InstantGang]) -> None:
        session = opened()
        session.select(session.cases[:2])
        session.open_run()
        session.judge(session.cases[0], nothing)
        judgement = session.conclude(interrupted=False, spoiled=())
        assert (judgement.outcome, len(judgement.verdicts)) == ("partial", 2)

    def test_all_that_passes_is_accepted(self, opened: Open, gangs: list[InstantGang]) -> None:
        assert self.conclude_all(opened).outcome == "accepted"

    @pytest.mark.parametrize("spoiled", [["test_x[r-1rank]"], ["test_x", "test_y"]])
    def test_a_spoiled_item_accepts_nothing(self, opened: Open, gangs: list[InstantGang], spoiled: list[str]) -> None:
        judgement = self.conclude_all(opened, spoiled=spoiled)
        assert judgement.outcome == "incomplete"
        assert judgement.reason.startswith(f"{len(spoiled)} test item")
        assert judgement.reason.endswith(", ".join(spoiled))

    def test_a_spoiled_item_leaves_no_selection_partial(self, measuring: AcceptanceSession) -> None:
        measuring.selected = measuring.cases[:2]
        for case in measuring.selected:
            assert measuring.judge(case, nothing).passed
        outcomes = [measuring.conclude(interrupted=False, spoiled=s).outcome for s in ([], ["test_x"])]
        assert outcomes == ["partial", "incomplete"]

    def test_a_spoiled_item_does_not_soften_a_rejection(self, opened: Open, gangs: list[InstantGang]) -> None:
        session = self.session_of_eight(opened)
        failed = replace(session.judge(session.cases[0], nothing), outcome="failed")
        session.verdicts[failed.id] = failed
        judgement = session.conclude(interrupted=False, spoiled=["test_x"])
        assert (judgement.outcome, judgement.reason) == ("rejected", f"1 of 3 requirements failed: {IDS[0]}")

    def test_an_interrupted_session_accepts_nothing(self, opened: Open, gangs: list[InstantGang]) -> None:
        assert self.conclude_all(opened, interrupted=True).outcome == "incomplete"

    def conclude_all(self, opened: Open, *, interrupted: bool = False, spoiled: Any = ()) -> Any:
        """What a session comes to in which all three requirements pass."""
        session = self.session_of_eight(opened)
        for case in session.cases:
            assert session.judge(case, nothing).passed
        return session.conclude(interrupted=interrupted, spoiled=spoiled)

    def session_of_eight(self, opened: Open) -> AcceptanceSession:
        session = opened(ddp_gpus_per_node="8")
        session.select(session.cases)
        session.open_run()
        return session


class TestLateVerdicts:
    def test_a_case_whose_test_never_asked_is_judged_by_what_was_measured(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        measuring.judge(measuring.cases[0], nothing)
        late = measuring.conclude(interrupted=False, spoiled=()).verdicts[1]
        assert (late.id, late.outcome) == (IDS[1], "passed")
        assert len(gangs) == 1

    @pytest.mark.parametrize(
        ("interrupted", "reason"), [(True, "the session was interrupted"), (False, "its test did not ask")]
    )
    def test_without_any_measurement_nothing_is_known(
        self, measuring: AcceptanceSession, gangs: list[InstantGang], interrupted: bool, reason: str
    ) -> None:
        judgement = measuring.conclude(interrupted=interrupted, spoiled=())
        assert {(verdict.outcome, verdict.reason) for verdict in judgement.verdicts} == {("not_measured", reason)}
        assert judgement.outcome == "incomplete"
        assert gangs == [], "concluding measures nothing"

    def test_a_study_without_an_end_passes_nothing_however_good_its_rounds_were(
        self, measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What ended it may be the very fault that was looked for."""

        def interrupted(gang: InstantGang, plan: Plan) -> None:
            measure(gang, plan)
            raise KeyboardInterrupt

        measure = InstantGang.measure
        monkeypatch.setattr(InstantGang, "ends", False)
        monkeypatch.setattr(InstantGang, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measuring.judge(measuring.cases[0], nothing)
        judgement = measuring.conclude(interrupted=True, spoiled=())
        assert [verdict.outcome for verdict in judgement.verdicts] == ["error", "error", "not_measured"]
        assert judgement.outcome == "incomplete"


class TestJudging:
    @pytest.fixture
    def old(self, measuring: AcceptanceSession) -> RunDirectory:
        """A run that was measured in full."""
        measuring.judge(measuring.cases[0], nothing)
        measuring.close_run("finished")
        measuring.release_run()
        assert measuring.run is not None
        return measuring.run

    def judged(self, opened: Open, old: RunDirectory, **options: Any) -> AcceptanceSession:
        session = opened(gpu_sku="auto", ddp_judge=str(old.path), ddp_run_dir=None, **options)
        session.select(session.cases)
        session.open_run()
        return session

    def test_verdicts_come_from_what_is_there_and_nothing_is_launched(
        self, opened: Open, old: RunDirectory, gangs: list[InstantGang]
    ) -> None:
        session = self.judged(opened, old)
        verdicts = [session.judge(case, nothing) for case in session.cases]
        assert [verdict.outcome for verdict in verdicts] == ["passed", "passed", "not_measured"]
        assert verdicts[2].reason == "strong scaling of r was not measured in this run"
        assert session.samples("strong_scaling_speedup", "r", 2, nothing) == []
        assert len(gangs) == 1, "the one that measured it"

    def test_the_old_record_stays_and_the_judgement_says_what_it_is(self, opened: Open, old: RunDirectory) -> None:
        record = old.run_json.read_bytes()
        session = self.judged(opened, old)
        session.close_run("finished")
        assert old.run_json.read_bytes() == record
        notes = session.conclude(interrupted=False, spoiled=()).notes
        assert notes == (f"judged from {old.path}, nothing was measured",)

    def test_notes_of_the_old_run_are_kept(self, opened: Open, tmp_path: Path) -> None:
        session = self.judged(opened, RunDirectory(measured_run(tmp_path / "imported")))
        assert session.conclude(interrupted=False, spoiled=()).notes[1:] == ("imported",)

    def test_a_simulated_run_accepts_nothing(self, opened: Open, old: RunDirectory) -> None:
        record = old.read_run()
        marks: list[dict[str, Any]] = [
            {"simulated": True},
            {"simulated": "true"},
            {"status": "simulated"},
            {"simulation": {}},
        ]
        for mark, expected in (({}, "accepted"), *((mark, "incomplete") for mark in marks)):
            old.write_json(old.run_json, record | mark)
            session = self.judged(opened, old)
            session.cases = session.cases[:2]
            for case in session.cases:
                session.judge(case, nothing)
            session.selected = session.cases
            judgement = session.conclude(interrupted=False, spoiled=())
            assert judgement.outcome == expected, judgement.reason
        assert judgement.reason.startswith("simulated: no machine was measured")
        assert "SIMULATED: no machine was measured" in judgement.notes

    def test_verdicts_that_somebody_may_have_signed_are_never_overwritten(
        self, opened: Open, old: RunDirectory
    ) -> None:
        first = self.judged(opened, old)
        assert first.run == old, "no verdicts are there yet"
        first.release_run()
        old.write_json(old.verdicts_json, {})
        names = []
        for _ in range(2):
            session = self.judged(opened, old)
            assert session.run is not None
            session.run.write_json(session.run.verdicts_json, {})
            names.append(session.run.path)
        assert names == [old.path / "judged-1", old.path / "judged-2"]

    def test_verdicts_go_where_they_are_asked_to(self, opened: Open, old: RunDirectory, tmp_path: Path) -> None:
        session = opened(gpu_sku="auto", ddp_judge=str(old.path), ddp_run_dir=str(tmp_path / "verdicts"))
        session.select(session.cases)
        session.open_run()
        assert session.run == RunDirectory(tmp_path / "verdicts")

    def test_other_thresholds_give_other_verdicts(self, opened: Open, old: RunDirectory, tmp_path: Path) -> None:
        strict = tmp_path / "strict.yaml"
        strict.write_text(THRESHOLDS.replace("at_least: 50", "at_least: 500"), encoding="utf-8")
        session = self.judged(opened, old, thresholds=str(strict))
        assert session.judge(session.cases[0], nothing).outcome == "failed"

    def test_a_broken_line_is_refused_before_any_item_runs(self, opened: Open, old: RunDirectory) -> None:
        lines = old.measurements_jsonl.read_text(encoding="utf-8").splitlines(keepends=True)
        lines[2] = json.dumps({"kind": "measurement"}) + "\n"
        old.measurements_jsonl.write_text("".join(lines), encoding="utf-8")
        with pytest.raises(RunDirectoryError, match="line 3 is no measurement"):
            self.judged(opened, old)


def test_gpus_that_took_no_part_are_not_accepted(
    opened: Open, gangs: list[InstantGang], machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen GPUs, requirements for eight: nothing is known of the other eight."""
    machine(*[Gpu(i, f"GPU-{i}", "G", "20b2", 80.0) for i in range(16)], driver=True)
    monkeypatch.setattr(session_module, "conclude", lambda *arguments: ("accepted", "3 of 3 requirements passed"))
    session = opened(gpu_sku="gpu")
    session.select(session.cases)
    session.open_run()
    judgement = session.conclude(interrupted=False, spoiled=())
    assert judgement.outcome == "partial"
    assert "8 of 16 GPUs took no part" in judgement.reason
