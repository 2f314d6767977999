"""The GPUs that CUDA will see, on played machines: a line of detected.txt each.

    A100 2xV100/1234 A100:FUNCTION=ERROR :FUNCTION=ERROR | 0,2 | 0, 2; silent GPU 3

Models, with another PCI device id, an error of one or of all GPUs; CUDA_VISIBLE_DEVICES, or unset; indices, or names,
PCI device ids and GiB; words of what is said: of silent GPUs, of why there is none, of a refusal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.node.survey import visible_ordinals
from tests.nvml_stand_in import machine as stand_in
from tests.nvml_stand_in.machine import PlayedGpu, PlayedMachine, machine_text
from tests.tables import each_block, missed

TABLE = Path(__file__).with_name("detected.txt")
LOOK = """
import json, os, sys, time, pynvml
from pathlib import Path
from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.node.survey import post_mortem
from pytest_ddpscale.session.open import gpus_of
time.sleep = lambda s: None
for machine, visible in json.loads(sys.argv[1]):
    Path(os.environ["NVML_STAND_IN"]).write_text(machine)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ |= {} if visible == "unset" else {"CUDA_VISIBLE_DEVICES": visible}
    try:
        here = gpus_of(post_mortem("node"), os.environ.get("CUDA_VISIBLE_DEVICES", ""), ())
        why = "; ".join(f"silent {error}" for error in here.silent) or here.why_none + " fault" * here.is_fault
        told = [[g.index, f"{g.name}/{g.pci_device_id}/{(g.memory_bytes or 0) / 2**30:.2f}"] for g in here.gpus]
        print(json.dumps([told or "none", why]))
    except SkuError as error:
        print(json.dumps(["refused", str(error)]))
    assert pynvml._nvmlLib_refcount == 0, "NVML was not shut down"
"""


@each_block(TABLE)
def test_which_gpus_a_program_sees(block: str, machine: PlayedMachine) -> None:
    rows = [line.split("|") for line in block.splitlines() if not line.startswith("#")]
    asked = [(_played(gpus), visible.strip()) for gpus, visible, _ in rows]
    said = machine.run_python(LOOK, json.dumps(asked)).splitlines()
    wrong = [f"{row}: {line}" for row, line in zip(rows, said, strict=True) if not _is_so(row[2], *json.loads(line))]
    assert wrong == []


def _is_so(expected: str, gpus: Any, why: str) -> bool:
    asked, _, words = expected.strip().partition("; ")
    if not isinstance(gpus, str):
        gpus = ", ".join(f"{index} {described}" if "/" in asked else f"{index}" for index, described in gpus)
    return bool(gpus == asked and bool(words) == bool(why) and not missed(words, why))


def _played(words: str) -> str:
    gpus, failures = list[PlayedGpu](), dict[str, int]()
    for word in words.split():
        described, _, failure = word.partition(":")
        function, _, error = failure.partition("=")
        failing = {function: getattr(stand_in, error)} if failure else {}
        count, _, model = described.rpartition("x")
        gpus += [_model(model, failing)] * int(count or 1) if described else []
        failures |= {} if described else failing
    return machine_text(gpus, failures, "570.86.15")


def _model(text: str, failures: dict[str, int]) -> PlayedGpu:
    name, _, pci_device_id = text.partition("/")
    model: PlayedGpu = getattr(stand_in, name)
    return replace(model, failures=failures, pci_device_id=pci_device_id or model.pci_device_id)


def test_no_gpus_without_the_library(machine: PlayedMachine) -> None:
    # An empty file of the library's name is found first and cannot be loaded, whatever driver this machine has.
    (machine.file.parent / "libnvidia-ml.so.1").touch()
    program = [sys.executable, "-c", LOOK, json.dumps([("", "unset")])]
    environ = machine.environment(LD_LIBRARY_PATH=str(machine.file.parent))
    said = subprocess.check_output(program, env=environ, text=True, timeout=60)
    assert json.loads(said)[0] == "none"


@given(st.text(alphabet="0123,-+ xGPU-ab", max_size=20))
def test_whatever_cuda_visible_devices_says_each_device_shows_at_most_once(visible: str) -> None:
    ordinals = visible_ordinals(visible, ["GPU-aa11", "GPU-aa22", "GPU-bb33"])
    assert len(set(ordinals)) == len(ordinals)
    assert set(ordinals) <= {0, 1, 2}
