"""`pytest --gpu-sku=auto` on played GPUs: what survey, sampler, checks and history make of healthy and of bad ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from prometheus_client.parser import text_string_to_metric_families

from pytest_ddpscale.cli import main
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.integration.played_gpus.played_session import (
    HOST,
    EndedSession,
    PlayedSession,
    begin,
    begin_on_cuda,
    has_begun,
)
from tests.nvml_stand_in.gpus import (
    ANY_FUNCTION,
    GPU_IS_LOST,
    HANG,
    HW_SLOWDOWN,
    HW_THERMAL_SLOWDOWN,
    Changing,
    Ecc,
    Gpm,
    Mig,
    NvLink,
    PlayedGpu,
    Process,
    RemappedRows,
)
from tests.nvml_stand_in.machine import A100, B200, PlayedMachine, at_work, node_of, uuid_of
from tests.played_cuda.machine import GPU_BOUND, PlayedCuda
from tests.plugin.site import outcome_in

A_DAY_S = 86_400.0
# The driver's samples come ten times a second, so that their edges are not those of a block.
ENERGY_ERROR = 0.02
# Where nobody asks what telemetry says of a block.
SHORT_BLOCKS = "--ddp-block=0.02s"
TRAINING_AND_CHECKS = ("-k", "test_node_check or test_devices or test_throughput")
GPUS = [(HOST, number, uuid_of(number)) for number in range(8)]
ADDRESSES = [f"00000000:{0x10 + number:02X}:00.0" for number in range(8)]


Begin = Callable[..., tuple[PlayedMachine, PlayedSession]]


@pytest.fixture(scope="module")
def play(nvml_library_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Begin:
    """Begin a session on a machine of some GPUs, with options of pytest and variables of the environment."""

    def started(gpus: list[PlayedGpu], *arguments: str, **more: str) -> tuple[PlayedMachine, PlayedSession]:
        folder = tmp_path_factory.mktemp("played")
        machine = PlayedMachine(nvml_library_directory, folder / "machine.json").play(gpus)
        return machine, begin(folder / "site", machine, *arguments, **more)

    return started


def _working(*gpus: PlayedGpu) -> list[PlayedGpu]:
    """GPUs that rested until now."""
    now_s = time.time()
    return [at_work(gpu, (now_s, now_s + A_DAY_S)) for gpu in gpus]


def why_drained(session: EndedSession, capsys: pytest.CaptureFixture[str]) -> str:
    """What `ddpscale culprits` gives as the reason to drain this host, and no other."""
    assert main(["culprits", "--format=tsv", str(session.run)]) == 0
    ((_, host, *_, reason),) = [
        line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("drain\t")
    ]
    assert host == HOST
    return reason


def _trained(session: PlayedSession, round_number: int) -> bool:
    """Whether a block of that round is over."""
    measured = session.lines("measurements.jsonl")
    trained = (one for one in measured if one["kind"] == "timed" and one["study"] != "probes")
    return any(one["round"] == round_number for one in trained)


@pytest.fixture(scope="module")
def healthy(played_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> EndedSession:
    """Two A100 that work as soon as ranks do, with CUDA and NCCL played as well."""
    folder, gpus = tmp_path_factory.mktemp("played"), [A100, A100]
    with PlayedCuda(played_libraries, folder / "machine", gpus, is_busy_by_itself=False, settings=GPU_BOUND) as machine:
        session = begin_on_cuda(folder / "site", machine)
        session.until(has_begun)
        machine.work()
        return session.ended()


def test_a_healthy_node_is_accepted_by_every_check_and_measurement(healthy: EndedSession) -> None:
    assert healthy.exit_code == 0, healthy.terminal
    assert healthy.verdicts["outcome"] == "accepted"
    assert {one["outcome"] for one in healthy.verdicts["verdicts"]} == {"passed"}
    # Played is NVML, not nvidia-smi, which tells the topology.
    asked = {f"node_check[{name}]" for name in NODE_CHECKS if name != "topology"}
    assert asked < {one["id"] for one in healthy.verdicts["verdicts"]}
    # Played GPUs compute on a CPU that others use as well: that a rank is slow, or at times, is true there.
    noisy = ("slow at times", "look at GPU")
    wide, *others = [note for note in healthy.verdicts["notes"] if not note.startswith(noisy)]
    assert wide.startswith("no bound close to a published training speed"), "a CPU has to pass"
    assert others == []
    assert "ACCEPTED: 20 of 20 requirements passed" in outcome_in(healthy.terminal)


def test_the_run_is_of_the_played_gpus_and_leaves_nothing_behind(healthy: EndedSession) -> None:
    record = healthy.record
    assert (record["status"], record["sku"], record["devices_present"]) == ("finished", "a100-sxm4-80gb", 2)
    (gang,) = gangs_by_number(RunDirectory(healthy.run).read_records()).values()
    assert [(rank.place.index, rank.place.uuid, rank.device_name) for rank in gang.ranks] == [
        (number, uuid_of(number), A100.name) for number in range(2)
    ]
    assert len(healthy.lines("measurements.jsonl", "survey")) == 1
    assert healthy.left_behind == []


def test_each_gpu_has_a_line_of_telemetry_for_every_block(healthy: EndedSession) -> None:
    telemetry = healthy.telemetry
    assert sorted((one.study, one.arm, one.round, one.rank) for one in telemetry) == healthy.timed_blocks
    assert all(one.device == uuid_of(one.rank) for one in telemetry)


def test_telemetry_is_what_the_driver_says_of_working_gpus(healthy: EndedSession) -> None:
    blocks = [one for one in healthy.telemetry if one.study == "weak/tiny"]
    assert len(blocks) == 2 * 2 * FEWEST_ROUNDS  # GPUs, arms, rounds
    seconds = sum(block.ended_unix_s - block.started_unix_s for block in blocks)
    # Of all together: a busy machine reads that of one block early or late.
    energy_j = sum(block.energy_j or 0.0 for block in blocks)
    assert energy_j == pytest.approx(A100.work.power_w * seconds, rel=ENERGY_ERROR)
    for block in blocks:
        assert block.power_w == pytest.approx(A100.work.power_w)
        assert block.sm_clock_mhz == A100.work.sm_clock_mhz
        assert block.idle_power_w == A100.power_w
        assert block.utilization == pytest.approx(0.99)
        assert block.ecc_uncorrected == 0


def test_utilization_and_energy_are_judged_by_telemetry(healthy: EndedSession) -> None:
    assert healthy.verdict("device_utilization")["value"] == pytest.approx(0.99)
    per_joule = healthy.verdict("images_per_joule")["value"]
    throughput = healthy.verdict("throughput_per_gpu")["value"]
    # The slowest GPU's throughput over the power that all of them take; values are means over rounds of ratios.
    assert per_joule == pytest.approx(throughput / A100.work.power_w, rel=0.1)


def test_the_history_has_the_run(healthy: EndedSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", HOST, "--history", str(healthy.site / "history.sqlite"), "--format=json"]) == 0
    (node,) = json.loads(capsys.readouterr().out)
    assert [(run["path"], run["outcome"]) for run in node["runs"]] == [(str(healthy.run), "accepted")]


@pytest.fixture(scope="module")
def going_bad(play: Begin) -> EndedSession:
    """Two B200 that pass the survey: at work one is too hot, the other only waits, and its memory fails."""
    machine, session = play([B200, B200], *TRAINING_AND_CHECKS, link="SHM/direct/direct")
    session.until(has_begun)
    heat = replace(B200.work, power_w=400, sm_clock_mhz=600, clock_event_reasons=HW_SLOWDOWN | HW_THERMAL_SLOWDOWN)
    waiting = replace(B200.work, power_w=215, utilization_pct=100, gpm=Gpm(10))
    working = _working(replace(B200, work=heat), replace(B200, work=waiting))
    machine.play(working)
    session.until(lambda one: _trained(one, 0))
    failing = Ecc(uncorrected_volatile=Changing(0, [(time.time(), 2)]))
    machine.play([working[0], replace(working[1], ecc=failing)])
    return session.ended()


@pytest.mark.lab
def test_a_node_that_goes_bad_at_work_is_rejected(going_bad: EndedSession) -> None:
    assert going_bad.exit_code == 1
    assert going_bad.verdicts["outcome"] == "rejected"
    surveyed = {f"node_check[{name}]" for name, check in NODE_CHECKS.items() if check.reads == "survey"}
    assert {one["outcome"] for one in going_bad.verdicts["verdicts"] if one["id"] in surveyed} == {"passed"}
    said = f"REJECTED: GPU 1 (GPU-00000001…) on {HOST}: 2 new uncorrectable memory errors"
    assert said in outcome_in(going_bad.terminal)
    assert going_bad.left_behind == []


@pytest.mark.lab
@pytest.mark.parametrize(
    ("name", "outcome", "gpus", "evidence"),
    [
        ("ecc_under_load", "failed", GPUS[1:2], "2 new uncorrectable memory errors under load"),
        ("throttling_under_load", "failed", GPUS[0:1], "clocks are throttled: hw_slowdown, hw_thermal_slowdown"),
        ("transport", "failed", GPUS[0:2], "reaches GPUs of its own node through SHM/direct/direct"),
        ("device_utilization", "inconclusive", GPUS[1:2], "215 W of 1000 W"),
    ],
)
def test_each_fault_at_work_names_its_gpu(
    going_bad: EndedSession, name: str, outcome: str, gpus: list[Any], evidence: str
) -> None:
    verdict = going_bad.verdict(name)
    assert verdict["outcome"] == outcome, verdict
    assert going_bad.named(name) == set(gpus)
    assert all(evidence in one["evidence"] for one in verdict["culprits"])
    for _, number, uuid in gpus:
        assert f"  GPU {number} ({uuid}, {ADDRESSES[number]}) on {HOST}" in going_bad.terminal


@pytest.mark.lab
def test_what_is_conspicuous_is_told(going_bad: EndedSession) -> None:
    notes = going_bad.verdicts["notes"]
    for flag, number in (("slow_clock", 0), ("stalled", 1)):
        assert any(note.startswith(f"{flag}: GPU {number} on {HOST}: ") for note in notes), notes


@pytest.mark.lab
def test_its_host_is_to_be_drained(going_bad: EndedSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert "uncorrectable memory errors" in why_drained(going_bad, capsys)


LOST = replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST})
FORGETFUL = replace(A100, ecc=Ecc(uncorrected_volatile=3))
UNFIT = node_of(
    A100,
    gpu1=replace(A100, processes=[Process(4242, 8192)]),
    gpu2=replace(A100, mig=Mig(enabled=True, enabled_after_reset=True)),
    gpu3=replace(A100, pcie=replace(A100.pcie, width=8)),
    gpu4=replace(A100, nvlinks=[*[NvLink()] * 11, NvLink(active=0)]),
    gpu5=replace(A100, remapped_rows=RemappedRows(uncorrectable=1, pending=True)),
    gpu6=replace(A100, clock_event_reasons=HW_THERMAL_SLOWDOWN, temperature_c=95),
    gpu7=LOST,
)


@pytest.fixture(scope="module")
def unfit(play: Begin) -> EndedSession:
    """Eight A100 of which only the first one is as it should be, and a user who wants such nodes left alone."""
    return play(UNFIT, "--ddp-unfit=stop")[1].ended()


def test_nothing_is_launched_on_an_unfit_node(unfit: EndedSession) -> None:
    assert unfit.exit_code == 1
    assert unfit.verdicts["outcome"] == "rejected"
    kinds = [json.loads(line)["kind"] for line in (unfit.run / "measurements.jsonl").read_text().splitlines()]
    assert set(kinds) == {"run", "survey", "study_end"}
    told = " ".join(unfit.terminal.split())
    assert f"{HOST} is unfit: gpus: GPU 7: lost: GPU is lost; processes: GPU 1 ({uuid_of(1)}):" in told
    assert unfit.verdict("throughput_per_gpu")["reason"].startswith(f"nothing was measured: {HOST}: ")
    assert unfit.left_behind == []


@pytest.mark.parametrize(
    ("name", "number", "evidence"),
    [
        ("processes", 1, "foreign process 4242"),
        ("mig", 2, "MIG is enabled"),
        ("pcie", 3, "PCIe has 8 lanes; expected 16"),
        ("nvlink", 4, "11 NVLinks are up; expected 12"),
        ("ecc", 5, "a memory row waits to be remapped"),
        ("throttling", 6, "clocks are throttled at 95 °C: hw_thermal_slowdown"),
        ("gpus", 7, "lost: GPU is lost"),
    ],
)
def test_each_fault_before_the_launch_names_its_gpu(unfit: EndedSession, name: str, number: int, evidence: str) -> None:
    assert unfit.verdict(name)["outcome"] == "failed"
    uuid = None if name == "gpus" else uuid_of(number)  # which a lost GPU does not tell any more
    assert unfit.named(name) == {(HOST, number, uuid)}
    assert evidence in unfit.verdict(name)["culprits"][0]["evidence"]


def test_what_was_not_looked_at_is_no_pass(unfit: EndedSession) -> None:
    passed = {one["id"] for one in unfit.verdicts["verdicts"] if one["outcome"] == "passed"}
    # Of versions and the host's own, nothing is wrong; nothing is trained in bf16.
    assert passed == {f"node_check[{name}]" for name in ("versions", "bf16", "disk")}


def test_a_gpu_of_another_model_is_refused_by_name(play: Begin) -> None:
    session = play(node_of(A100, gpu3=B200))[1].ended()
    assert session.exit_code == 4
    assert "the GPUs are of different SKUs: GPU 0, 1, 2, 4, 5, 6, 7: NVIDIA A100-SXM4-80GB" in session.terminal
    assert "GPU 3: NVIDIA B200" in session.terminal
    assert not session.run.exists()


@pytest.fixture(scope="module")
def dying(play: Begin) -> EndedSession:
    """Two A100 whose driver loses one, and then hangs, while ranks go on."""
    machine, session = play([A100, A100], *TRAINING_AND_CHECKS)
    session.until(has_begun)
    working = _working(A100, A100)
    machine.play(working)
    session.until(lambda one: _trained(one, 0))
    machine.play([working[0], LOST])
    session.until(lambda one: _trained(one, 2))
    machine.play(working, failures={ANY_FUNCTION: HANG})
    return session.ended()


@pytest.mark.lab
def test_a_driver_that_dies_costs_no_training(dying: EndedSession) -> None:
    rounds = {(arm, number, rank) for study, arm, number, rank in dying.timed_blocks if study.startswith("weak/")}
    assert rounds == {
        (arm, number, rank) for arm in ("ddp@2", "each@2") for number in range(FEWEST_ROUNDS) for rank in (0, 1)
    }
    assert dying.verdict("throughput_per_gpu")["outcome"] == "passed"
    assert dying.record["status"] == "finished"
    assert dying.left_behind == []


@pytest.mark.lab
def test_blocks_that_nobody_watched_say_why(dying: EndedSession) -> None:
    telemetry = dying.telemetry
    assert sorted((one.study, one.arm, one.round, one.rank) for one in telemetry) == dying.timed_blocks
    lost = [one for one in telemetry if "GPU is lost" in one.unreadable.get("utilization", "")]
    assert {one.device for one in lost} == {uuid_of(1)}
    silent = [one for one in telemetry if "may hang" in one.unreadable.get("device", "")]
    assert {one.device for one in silent} == {uuid_of(0)}, "a lost GPU is asked nothing more"
    assert 4 in {one.round for one in silent}


@pytest.mark.lab
def test_a_gpu_that_was_lost_is_named_although_ranks_went_on(dying: EndedSession) -> None:
    assert (dying.exit_code, dying.verdicts["outcome"]) == (1, "rejected")
    assert dying.named("gpus") == {GPUS[1]}
    assert dying.verdict("gpus")["culprits"][0]["evidence"] == "lost under load: GPU is lost"


@pytest.mark.lab
def test_what_the_driver_did_not_say_is_no_pass(dying: EndedSession) -> None:
    assert dying.verdict("device_utilization")["outcome"] == "not_measured"
    assert dying.verdict("images_per_joule")["outcome"] == "inconclusive"
    for name in ("ecc_under_load", "throttling_under_load", "pcie_under_load"):
        assert dying.verdict(name)["outcome"] == "not_measured", name
        assert dying.verdict(name)["value"] is None
        assert f"GPU 1 ({uuid_of(1)})" in dying.verdict(name)["reason"]


@pytest.fixture(scope="module")
def crashed(played_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> EndedSession:
    """Two A100 one of which falls off the bus while ranks work, and takes its rank with it."""
    folder, faults = tmp_path_factory.mktemp("played"), ["gpu=1,launch=20,error=719"]
    with PlayedCuda(played_libraries, folder / "machine", [A100, A100], faults=faults, lost_after_fault=[1]) as machine:
        return begin_on_cuda(folder / "site", machine, "-k", "test_node_check").ended()


def test_a_gpu_that_ends_its_rank_is_named(crashed: EndedSession) -> None:
    assert (crashed.exit_code, crashed.verdicts["outcome"]) == (1, "rejected")
    assert crashed.named("gpus") == {GPUS[1]}
    assert crashed.verdict("gpus")["culprits"][0]["evidence"] == "lost after ranks failed: GPU is lost"
    assert f"  GPU 1 ({uuid_of(1)}, {ADDRESSES[1]}) on {HOST}" in crashed.terminal
    assert "CUDA error: unspecified launch failure" in crashed.terminal
    assert [one["survey"]["host"] for one in crashed.lines("measurements.jsonl", "post_mortem")] == [HOST]
    assert crashed.left_behind == []


@pytest.fixture(scope="module")
def half_visible(play: Begin) -> EndedSession:
    """The second half of four A100, whose last one has a memory error; the other half is another tenant's."""
    return play([A100, A100, A100, FORGETFUL], "-k", "test_node_check", CUDA_VISIBLE_DEVICES="2,3")[1].ended()


def test_a_gpu_is_called_as_nvidia_smi_calls_it(half_visible: EndedSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert half_visible.exit_code == 1
    named = f"GPU 3 (GPU-00000003…, local rank 1) on {HOST}"
    assert f"REJECTED: {named}: 3 uncorrectable memory errors" in outcome_in(half_visible.terminal)
    assert f"  GPU 3 ({uuid_of(3)}, {ADDRESSES[3]}, local rank 1) on {HOST}" in half_visible.terminal
    assert half_visible.named("ecc") == {GPUS[3]}
    (gang,) = gangs_by_number(RunDirectory(half_visible.run).read_records()).values()
    assert gang.places == [Place(HOST, 0, uuid_of(2), 2, ADDRESSES[2]), Place(HOST, 1, uuid_of(3), 3, ADDRESSES[3])]
    metrics = text_string_to_metric_families((half_visible.run / "metrics.prom").read_text(encoding="utf-8"))
    labels = [sample.labels for family in metrics for sample in family.samples if sample.labels.get("gpu") == "3"]
    assert {one["uuid"] for one in labels} == {uuid_of(3)}
    assert "GPU 1" not in half_visible.terminal
    assert main(["culprits", str(half_visible.run)]) == 0
    assert named in capsys.readouterr().out


@pytest.fixture(scope="module")
def one_lost(play: Begin) -> EndedSession:
    """Three A100 of which CUDA lists two, since the second one is lost; the last one has a memory error."""
    return play([A100, LOST, FORGETFUL], *TRAINING_AND_CHECKS, SHORT_BLOCKS)[1].ended()


def test_a_lost_gpu_moves_no_finding_to_another_one(one_lost: EndedSession) -> None:
    assert (one_lost.exit_code, one_lost.verdicts["outcome"]) == (1, "rejected")
    assert one_lost.named("ecc") == {GPUS[2]}
    assert one_lost.named("gpus") == {(HOST, 1, None)}
    (node,) = one_lost.verdicts["coverage"]["nodes"]
    gpus = [(convert(one["place"], Place), bool(one["problem"])) for one in node["gpus"]]
    assert [(gpu.index, gpu.uuid, gpu.local_rank, is_silent) for gpu, is_silent in gpus] == [
        (0, uuid_of(0), 0, False), (2, uuid_of(2), 1, False), (1, "", None, True),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def failing(play: Begin, tmp_path_factory: pytest.TempPathFactory) -> EndedSession:
    """Two A100 of four, on one of which every training fails while NVML finds nothing wrong."""
    text = Path(__file__).with_name("thresholds.yaml").read_text(encoding="utf-8")
    lines = [one for one in text.splitlines() if "tiny: {" in one or "throughput_per_gpu" in one]
    for name in ("small", "short"):  # to train in further gangs
        for line in lines:
            text = text.replace(line, f"{line}\n{line.replace('tiny', name)}", 1)
        text = text.replace("batch: {tiny: 4", f"batch: {{tiny: 4, {name}: 4")
    (thresholds := tmp_path_factory.mktemp("asked") / "three.yaml").write_text(text, encoding="utf-8")
    options = (*TRAINING_AND_CHECKS, f"--thresholds={thresholds}")
    return play([A100] * 4, *options, CUDA_VISIBLE_DEVICES="2,3", PLAYED_ERROR=uuid_of(3))[1].ended()


def test_a_gpu_whose_errors_end_its_ranks_in_two_gangs_is_rejected_and_drained(
    failing: EndedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (failing.exit_code, failing.verdicts["outcome"]) == (1, "rejected"), failing.terminal
    assert failing.named("gpus") == failing.named("device_utilization") == {GPUS[3]}
    headline = outcome_in(failing.terminal)
    assert headline.startswith(
        f"REJECTED: GPU 3 (GPU-00000003…, local rank 1) on {HOST}: CUDA error: unspecified launch failure ended its "
        "rank in 3 gangs"
    )
    assert f"`dmesg | grep -i xid` on {HOST}" in headline
    assert "GPU 3 (GPU-00000003..." in why_drained(failing, capsys)
    assert failing.left_behind == []


@pytest.mark.parametrize(
    ("gpus", "culprits", "said"),
    [
        ([], {(HOST, None, None)}, "0 GPUs are visible; expected 2: the driver finds no GPU"),
        ([LOST] * 2, {(HOST, 0, None), (HOST, 1, None)}, "GPU 0: lost: GPU is lost"),
    ],
    ids=["none is listed", "all are lost"],
)
def test_a_node_without_a_gpu_is_rejected_where_its_sku_is_named(
    play: Begin, capsys: pytest.CaptureFixture[str], gpus: list[PlayedGpu], culprits: set[Any], said: str
) -> None:
    session = play(gpus, "--gpu-sku=a100-sxm4-80gb", "--ddp-world-sizes=1,2")[1].ended()
    assert (session.exit_code, session.verdicts["outcome"]) == (1, "rejected"), session.terminal
    assert said in session.verdict("gpus")["reason"]
    assert session.named("gpus") == culprits
    assert session.record["devices_present"] == 0
    assert (session.run / "report.html").exists()
    assert why_drained(session, capsys)


def test_a_node_without_a_gpu_is_refused_where_its_sku_is_to_be_found(play: Begin) -> None:
    session = play([])[1].ended()
    assert session.exit_code == 4
    assert "the NVIDIA driver is loaded and lists no GPU: look for Xid messages with `dmesg`" in session.terminal
    assert not session.run.exists()
