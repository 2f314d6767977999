"""Which probes a sweep over message sizes is made of."""

from __future__ import annotations

import msgspec
import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.collective_sweep import (
    GIB,
    KIB,
    MIB,
    PAIR_BYTES,
    message_sizes,
    size_text,
    sweep_probes,
    sweep_study,
)
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES, probe_size
from pytest_ddpscale.plan.study import ProbeStudy
from tests.builders.json_types import as_json
from tests.rows import rows

TO_1_MIB = (KIB, 32 * KIB, MIB)


def test_sizes_go_from_the_first_to_the_last_by_a_factor() -> None:
    assert message_sizes(KIB, GIB) == tuple(KIB * 4**i for i in range(11))
    assert message_sizes(KIB, 8 * KIB, 2) == (KIB, 2 * KIB, 4 * KIB, 8 * KIB)


def test_the_last_size_is_there_also_where_the_factor_misses_it() -> None:
    assert message_sizes(KIB, 10 * KIB) == (KIB, 4 * KIB, 10 * KIB)
    assert message_sizes(MIB, MIB) == (MIB,)


@rows(("first", "last", "factor"), [(0, KIB, 4), (2 * KIB, KIB, 4), (KIB, MIB, 1)])
def test_sizes_that_never_arrive_are_refused(first: int, last: int, factor: int) -> None:
    with pytest.raises(ValueError, match=f"found {first} to {last} bytes by {factor}; expected ascending sizes"):
        message_sizes(first, last, factor)


@rows("size", message_sizes(KIB, 8 * GIB, 2))
def test_a_size_is_what_its_probe_sends(size: int) -> None:
    assert Arm(f"broadcast-{probe_size(size)}", 2).operation.message_bytes == size


def test_a_size_reads_in_its_largest_unit() -> None:
    assert [size_text(size) for size in (KIB, 1536 * KIB, 32 * MIB, GIB)] == ["1 KiB", "1536 KiB", "32 MiB", "1 GiB"]


@rows("size", [1, 1023, 1025, 10_000 * GIB])
def test_a_size_that_no_probe_has_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes; expected 1 to 9999 whole KiB"):
        probe_size(size)


def test_ranks_are_those_of_a_node_and_those_of_all_nodes() -> None:
    layouts = [Layout(*it) for it in ((1, 8), (4, 8), (4, 1), (1, 1))]
    found = [{probe.world_size for probe in sweep_probes(layout, "cpu", (KIB,))} for layout in layouts]
    assert found == [{8}, {8, 32}, {4}, set()]


def test_a_sweep_has_each_operation_size_and_group_once_and_pairs_of_one_size() -> None:
    probes = sweep_probes(Layout(2, 2), "cpu", TO_1_MIB)
    assert len(set(probes)) == len(probes) == 2 * (len(COLLECTIVES) * len(TO_1_MIB) + 1)
    assert {(p.operation.kind, p.world_size, p.operation.message_bytes) for p in probes} == {
        (kind, world_size, size) for kind in COLLECTIVES for world_size in (2, 4) for size in TO_1_MIB
    } | {("send-recv", 2, MIB), ("send-recv", 4, MIB)}


def test_small_messages_come_first_so_that_they_foretell_how_long_large_ones_take() -> None:
    probes = sweep_probes(Layout(1, 8), "cuda", message_sizes(KIB, GIB))
    for kind in COLLECTIVES:
        sizes = [probe.operation.message_bytes or 0 for probe in probes if probe.operation.kind == kind]
        assert sizes == sorted(sizes)


def test_pairs_send_no_more_than_fills_a_link() -> None:
    [pair] = [p for p in sweep_probes(Layout(1, 8), "cuda", message_sizes(KIB, GIB)) if p.operation.kind == "send-recv"]
    assert pair.operation.message_bytes == PAIR_BYTES["cuda"]


def test_only_operations_that_were_asked_for_are_swept() -> None:
    probes = sweep_probes(Layout(1, 2), "cpu", (KIB,), ["broadcast"])
    assert [probe.name for probe in probes] == ["broadcast-1kib@2", "send-recv-1kib@2"]


def test_what_is_bounded_is_swept_too_in_its_place() -> None:
    bounded = [Arm("broadcast-2mib", 2), Arm("broadcast-1kib", 2), Arm("send-recv-4mib", 2)]
    probes = sweep_probes(Layout(1, 2), "cpu", (KIB, 4 * MIB), ["broadcast"], bounded)
    assert [probe.kind for probe in probes] == ["broadcast-1kib", "broadcast-2mib", "broadcast-4mib", "send-recv-4mib"]


def test_a_study_has_the_pace_of_its_device_unless_another_is_asked_for() -> None:
    probe = Arm("all-reduce-1gib", 2)
    on_cpu, on_gpu = sweep_study([probe], "cpu", 8), sweep_study([probe], "cuda", 8)
    assert [(one.block_s, one.iteration_limit_s) for one in (on_cpu, on_gpu)] == [(0.03, 0.1), (0.1, 2.0)]
    assert sweep_study([probe], "cpu", 12, 0.5, 5.0) == ProbeStudy((probe,), 12, 0.5, 5.0, (), 12)


def test_what_is_bounded_is_measured_however_long_it_takes() -> None:
    probe, bounded = Arm("all-reduce-1gib", 2), Arm("all-reduce-25mib", 2)
    study = sweep_study([bounded, probe], "cpu", 8, bounded=[bounded])
    assert [study.limit_s(one) for one in (probe, bounded)] == [0.1, None]
    assert (study.swept_rounds, study.rounds) == (8, 16), "so that a bound can be decided that eight rounds leave open"
    assert msgspec.convert(as_json(study), ProbeStudy) == study
