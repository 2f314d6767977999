"""The reasons have the bits of nvml.h."""

from __future__ import annotations

import re

import pynvml

from pytest_ddpscale.telemetry.nvml import REASONS, reasons_of


def test_every_bit_that_nvidia_ml_py_knows_has_its_name() -> None:
    known = {
        value: name.partition("Reason")[2]
        for name, value in vars(pynvml).items()
        if re.match(r"nvmlClocks(Event|Throttle)Reason(?!None|All|UserDefined)", name)
    }
    named = {bit: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for bit, name in known.items()}
    assert named == {bit: reason for bit, reason in REASONS.items() if bit in known}  # older releases know fewer


def test_a_mask_is_named_from_its_lowest_bit_and_nothing_in_it_is_lost() -> None:
    assert reasons_of(0) == ()
    assert reasons_of(0x48) == ("hw_slowdown", "hw_thermal_slowdown")
    assert reasons_of(0x1 | 1 << 40) == ("gpu_idle", "unknown_0x10000000000")
