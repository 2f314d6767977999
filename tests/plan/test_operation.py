"""A probe's name says all that it does."""

from __future__ import annotations

import msgspec
import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import operation, operation_of, probe_size, size_text
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.strict_json import read_as
from tests.builders.json_types import as_json
from tests.rows import rows

KIB, MIB, GIB = 2**10, 2**20, 2**30
STUDY = ProbeStudy((Arm("matmul-bf16"), Arm("all-reduce-32mib", 8), Arm("all-reduce-32mib", 4)), 16, 0.5)


@rows(
    ("name", "world_size", "kind", "precision", "message_bytes"),
    [
        ("matmul-fp32", 1, "matmul", "fp32", None),
        ("matmul-fp8", 1, "matmul", "fp8", None),
        ("memory-copy", 1, "memory-copy", None, None),
        ("host-to-device", 1, "host-to-device", None, None),
        ("device-to-host", 1, "device-to-host", None, None),
        ("all-reduce-32mib", 8, "all-reduce", None, 32 * 2**20),
        ("all-gather-1gib", 2, "all-gather", None, 2**30),
        ("reduce-scatter-25mib", 4, "reduce-scatter", None, 25 * 2**20),
        ("broadcast-4kib", 2, "broadcast", None, 4096),
        ("reduce-1gib", 2, "reduce", None, 2**30),
        ("all-to-all-1mib", 8, "all-to-all", None, 2**20),
        ("send-recv-9999kib", 2, "send-recv", None, 9999 * 2**10),
    ],
)
def test_a_name_tells_kind_precision_and_size(
    name: str, world_size: int, kind: str, precision: str | None, message_bytes: int | None
) -> None:
    found = Arm(name, world_size).operation
    assert (found.kind, found.precision, found.message_bytes) == (kind, precision, message_bytes)


@rows(
    "name",
    ["", "matmul", "matmul-int8", "matmul-bf16-", "matmul-bf16-010240", "matmul-bf16-10240x1", "memory-copy-10240",
     "memory-copy-1gib", "all-reduce", "all-reduce-0mib", "all-reduce-032mib",
     "all-reduce-10000mib", "all-reduce-1.5mib", "all-reduce-32mb", "All-Reduce-32mib", "send-recv-1mib\n"],
)  # fmt: skip
def test_another_name_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown probe .*; expected matmul-.*send-recv with a message size"):
        operation(name)


@rows(
    ("name", "precision", "rows", "flops"),
    [
        ("matmul-bf16", "bf16", None, None),
        ("matmul-bf16-10240", "bf16", 10240, 2.0 * 10240**3),
        ("matmul-fp8-8192", "fp8", 8192, 2.0 * 8192**3),
        ("matmul-fp32-512", "fp32", 512, 2.0 * 512**3),
        ("matmul-fp16-65536", "fp16", 65536, 2.0 * 65536**3),
        ("all-reduce-16gib", None, None, None),
    ],
)
def test_a_matrix_product_may_name_its_size(
    name: str, precision: str | None, rows: int | None, flops: float | None
) -> None:
    found = operation(name)
    assert (found.precision, found.rows, found.named_flops) == (precision, rows, flops)


@rows(
    ("rows", "near"), [(496, 512), (1, 512), (1000, 992), (10250, 10256), (65552, 65536), (10**9, 65536)],
)  # fmt: skip
def test_a_matrix_size_that_cannot_be_is_refused_with_one_near_it(rows: int, near: int) -> None:
    assert operation_of(f"matmul-bf16-{rows}") is None
    with pytest.raises(ValueError) as refused:
        operation(f"matmul-bf16-{rows}")
    assert str(refused.value) == (
        f"matmul-bf16-{rows} has matrices of {rows} rows and columns; expected a multiple of 16 from 512 to 65536. "
        f"Write matmul-bf16-{near}, or matmul-bf16 for the default size"
    )


@rows("world_size", [0, -1])
def test_a_world_size_is_a_whole_number_from_1_up(world_size: int) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 up"):
        Arm("all-reduce-1mib", world_size)


def test_one_device_does_not_communicate() -> None:
    with pytest.raises(ValueError, match="runs on one device"):
        Arm("matmul-bf16", 2)


def test_who_communicates_is_not_alone() -> None:
    with pytest.raises(ValueError, match="needs at least 2 ranks"):
        Arm("send-recv-1mib")


def test_an_id_tells_world_sizes_apart() -> None:
    assert [probe.name for probe in STUDY.arms] == ["matmul-bf16", "all-reduce-32mib@8", "all-reduce-32mib@4"]
    sizes = "matmul-bf16", "matmul-bf16-8192", "matmul-bf16-10240"
    assert [probe.name for probe in ProbeStudy(tuple(map(Arm, sizes)), 16, 0.5).arms] == list(sizes)


def test_a_study_needs_the_ranks_of_its_largest_probe() -> None:
    assert STUDY.world_size == 8
    assert ProbeStudy((), 1, 1.0).world_size == 0


def test_a_study_survives_json() -> None:
    data = as_json(STUDY)
    assert data["id"] == "probes"
    assert msgspec.convert(data, ProbeStudy) == STUDY


@rows(
    ("key", "value", "message"),
    [
        ("rounds", 0, "rounds"),
        ("rounds", 1.0, "rounds"),
        ("block_s", 0, "block_s"),
        ("block_s", "1", "block_s"),
        ("iteration_limit_s", 0.0, "iteration_limit_s"),
        ("block_s", float("nan"), "block_s"),
        ("arms", [as_json(Arm("matmul-bf16"))] * 2, "twice"),
        ("arms", [as_json(Arm("ddp", 2, 8))], "ddp@2 is among the probes"),
        ("arms", [as_json(Arm("matmul-bf16")) | {"kind": "sleep"}], "unknown arm 'sleep'"),
        ("arms", [as_json(Arm("matmul-bf16")) | {"batch_size": 2}], "matmul-bf16 has a batch"),
    ],
)
def test_an_impossible_study_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_as(ProbeStudy, as_json(STUDY) | {key: value})


@rows("size", [KIB * 2**power for power in range(24)])
def test_a_size_is_what_its_probe_sends(size: int) -> None:
    assert Arm(f"broadcast-{probe_size(size)}", 2).operation.message_bytes == size


def test_a_size_reads_in_its_largest_unit() -> None:
    assert [size_text(size) for size in (KIB, 1536 * KIB, 32 * MIB, GIB)] == ["1 KiB", "1536 KiB", "32 MiB", "1 GiB"]


@rows("size", [1, 1023, 1025, 10_000 * GIB])
def test_a_size_that_no_probe_has_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes; expected 1 to 9999 whole KiB"):
        probe_size(size)
