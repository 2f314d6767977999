"""Whether hostile thresholds, options, environments and run directories are refused with a message, and quickly.

    python benchmarks/hostile_inputs.py [--every N] [--first K] [--markdown FILE] [--json FILE]

Each case runs the real command in its own forked process: `ddpscale thresholds check`, or `pytest` with the thresholds
of a CPU or of an imaginary GPU; nothing is measured. A case has to be refused (exit code 4, or that of pytest's own
parser; a message with the line or the option, no traceback, under 2 s of CPU time), or accepted because it is sound.
"""

# ruff: noqa: E501 - tables of inputs are easier to read in few lines
from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import re
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from reporting import argument_parser, keep, positive_int, table

REFUSAL = 4
MOST_CPU_S = 2.0
HANG_S = 300.0  # of wall time: generous, as other work may share the cores
OUTCOMES = ("refused", "accepted rightly", "wrong pass", "wrong refusal", "traceback", "hang", "slow", "mute")
SOUND = """\
schema_version: 2
sources: {paper: a paper}
margins: {throughput_per_gpu: 50 %}
workloads:
  r: {model: resnet18, precision: fp16}
  c: {model: resnet18, precision: fp32, image_size: 32}
families:
  small:
    - {step_time_p95: {1: 5000}, of: c, provisional: a laptop of any age}
skus:
  gpu:
    description: a GPU
    aliases: [alias]
    detect: {name: '^GPU$', pci_device_ids: ['00a1'], memory_gib: 80}
    batch: {r: {per_gpu: 16, global: 64}}
    requirements:
      - {weak_scaling_efficiency: {8: 0.95}, of: r, published: paper, bound: 0.9, because: rounded down well}
  cpu:
    description: any CPU
    detect: {device: cpu}
    families: [small]
    batch: {c: 4}
    requirements:
      - {throughput_per_gpu: {1: 2}, of: c, published: paper}
"""
ACCEPTANCE = """\
import pytest

@pytest.mark.requirement("throughput_per_gpu")
def test_throughput_per_gpu(requirement):
    assert requirement
"""


@dataclass(frozen=True)
class Case:
    """One input.

    Attributes:
        family: what kind of input.
        name: which.
        arguments: of ``ddpscale`` if they begin with ``thresholds``, else of ``pytest``.
        text: of thresholds.yaml.
        environment: variables beside the usual ones.
        prepare: what else to do in the folder before.
        sound: whether it has to be accepted.
        says: what a refusal has to name, as a regular expression.
    """

    family: str
    name: str
    arguments: tuple[str, ...]
    text: str | bytes = SOUND
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], None] = lambda folder: None
    sound: bool = False
    says: str = r"thresholds\.yaml:\d+: "


CHECK = ("thresholds", "check", "thresholds.yaml")
PLAN = ("--collect-only", "-q", "-p", "no:cacheprovider", "test_it.py")
JUDGE = ("-q", "-p", "no:cacheprovider", "test_it.py")


def _changed(old: str, new: str) -> str:
    assert SOUND.count(old) >= 1, old
    return SOUND.replace(old, new, 1)


def _files() -> Iterator[Case]:
    """Files that are not YAML, or too large."""
    texts: dict[str, str | bytes] = {
        "empty": "", "comment": "# nothing\n", "sentence": "hello\n", "null": "null\n", "list": "[1]\n", "number": "3\n",
        "tab": SOUND.replace("    desc", "\tdesc", 1), "two documents": SOUND + "---\na: 1\n", "bell": SOUND + "#\a\n",
        "null character": SOUND + "\0", "not UTF-8": SOUND.encode() + b"\xff", "UTF-16": SOUND.encode("utf-16"),
        "open bracket": SOUND + "x: [", "unknown alias": SOUND + "x: *nobody\n", "tag of Python": SOUND + "x: !!python/object:os.system {}\n",
        "400 KB of comment": SOUND + "#" * 410_000, "50 MB": SOUND + "#" * 50_000_000, "60000 items": SOUND + "x: [" + "a," * 60_000 + "]\n",
        "2000 keys of a list": SOUND + "".join(f"k{i}: [1]\n" for i in range(2000)), "long text": _changed("a GPU", "x" * 9000),
        "list as key": "? [a]\n: 1\n" + SOUND, "mapping as key": "? {a: 1}\n: 1\n" + SOUND, "date": _changed("a GPU", "2026-02-30"),
        "merge of a number": SOUND + "x: {<<: 3}\n", "self-containing list": SOUND + "x: &a [*a]\n", "self-containing mapping": SOUND + "x: &a {b: *a}\n",
        "self-merging": SOUND + "x: &a {<<: *a}\n", "bool tag": SOUND + "x: !!bool maybe\n", "binary": SOUND + "x: !!binary '%'\n",
    }  # fmt: skip
    for depth in (41, 300, 5000, 100_000):
        texts |= {f"{depth} brackets": SOUND + "x: " + "[" * depth, f"{depth} braces": SOUND + "x: " + "{a: " * depth}
        texts[f"{depth} dashes"] = SOUND + "x:\n  " + "- " * depth + "a\n"
    for kind in ("list", "mapping", "merge", "key"):
        for levels in (7, 9, 12, 30):
            texts[f"aliases, {kind}, {levels} levels"] = _bomb(levels, kind)
    for name, text in texts.items():
        yield Case("file", name, CHECK, text)
    yield Case("file", "as it should be", CHECK, sound=True)
    yield Case("file", "byte order mark", CHECK, "\N{BOM}" + SOUND, sound=True)
    for path in ("/dev/zero", "/dev/urandom", "/dev/stdin", "pipe", ".", "nowhere.yaml", "x" * 5000, "a" * 300):
        for arguments in (("thresholds", "check", path), (*PLAN, "--gpu-sku=cpu", f"--thresholds={path}")):
            yield Case(
                "file", f"{path[:20]} by {arguments[0]}", arguments, prepare=_make_pipe, says=re.escape(path[:200])
            )


def _make_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _bomb(levels: int, kind: str) -> str:
    lines = ["a0: &a0 [x, x]" if kind in ("list", "key") else "a0: &a0 {x: 1}"]
    for level in range(1, levels):
        aliases = [f"*a{level - 1}"] * 9
        inside = ", ".join(f"k{i}: {alias}" for i, alias in enumerate(aliases))
        merged = f"{{<<: [{', '.join(aliases)}]}}"
        body = {"mapping": f"{{{inside}}}", "merge": merged}.get(kind, f"[{', '.join(aliases)}]")
        lines.append(f"a{level}: &a{level} {body}")
    if kind == "key":
        lines.append(f"? *a{levels - 1}\n: 1")
    return "\n".join([*lines, SOUND])


def _values() -> Iterator[Case]:
    """Sound files with one value that is not."""
    numbers = ("0", "-1", "1.5", "1e3", "0x10", "010", "1_000", "1:30", ".inf", ".nan", "true", "null", "'8'", "[8]",
               "1000000000", "1000000000000000000000", "9" * 500, "9" * 5000, "''", "eight")  # fmt: skip
    for place, key, sound in (
        ("8: 0.95", "{}: 0.95", ()),
        ("per_gpu: 16", "per_gpu: {}", ()),
        ("global: 64", "global: {}", ("null",)),
    ):
        for number in numbers:
            if number not in sound:
                yield Case("number", key.format(number[:24]), CHECK, _changed(place, key.format(number)))
    for number in (*numbers, "95", "1.2", "1.0e+300", "0.0000000001", "-0.9"):
        if number not in ("1.5", "null"):
            yield Case("bound", f"bound: {number[:24]}", CHECK, _changed("bound: 0.9", f"bound: {number}"))
        if number != "0.0000000001":
            yield Case("bound", f"published {number[:24]}", CHECK, _changed("{8: 0.95}", f"{{8: {number}}}"))
        if number not in ("1.5", "95", "1.2", "1000000000", "1e3", "'8'"):
            yield Case("bound", f"a value of {number[:24]}", CHECK, _changed("{1: 5000}", f"{{1: {number}}}"))
    for metric, bound in (
        ("device_utilization", "1.01"), ("model_flops_utilization", "1.2"), ("strong_scaling_efficiency", "1.2"),
        ("strong_scaling_speedup", "9"), ("rank_uniformity", "0.9"), ("rank_uniformity", "100000"), ("step_time_p95", "1.0e+9"),
        ("step_time_p95", "0.0001"), ("peak_memory_gib", "1.0e+6"), ("step_time_cv", "1"), ("memory_spread", "5"),
        ("exposed_communication", "1"), ("replica_agreement", "0.5"), ("throughput_per_gpu", "1.0e+9"),
        ("throughput_per_gpu", "0.00000001"), ("images_per_joule", "1.0e+9"), ("nothing", "1"), ("ddp_overhead", "0.1"),
    ):  # fmt: skip
        text = _changed("bound: 0.9", f"bound: {bound}").replace("weak_scaling_efficiency", metric)
        yield Case("bound", f"{metric}, {bound}", CHECK, text)


def _rows() -> Iterator[Case]:
    """Rows, families and files that extend others, which ask for nothing, for too much, or for each other."""
    weak = "{weak_scaling_efficiency: {8: 0.95}, of: r, published: paper, bound: 0.9, because: rounded down well}"
    sizes = ", ".join(f"{size}: 0.9" for size in range(2, 400))
    rows = {
        "text": "hello", "number": "3", "list": "[1]", "null": "null", "nothing": "{}", "no metric": "{of: r, published: paper}",
        "no subject": weak.replace("of: r, ", ""), "no names": weak.replace("of: r", "of: []"), "a name twice": weak.replace("of: r", "of: [r, r]"),
        "two kinds of names": weak.replace("of: r", "of: r, probe: memory-copy"), "no values": weak.replace("{8: 0.95}", "{}"),
        "values of no names": weak.replace("{8: 0.95}, of: r", "{8: {}}"), "a value alone": weak.replace("{8: 0.95}", "0.95"),
        "a list of values": weak.replace("{8: 0.95}", "[0.95]"), "no source": weak.replace("published: paper", "published: nobody"),
        "nobody": weak.replace("published: paper, ", ""), "both": weak.replace("paper", "paper, provisional: a guess"),
        "no reason": weak.replace(", because: rounded down well", ""), "a margin too": weak.replace("bound", "margin: 5 %, bound"),
        "half a margin": weak.replace("bound: 0.9", "margin: 0.5"), "a margin of all": weak.replace("bound: 0.9", "margin: 100 %"),
        "unknown margin": weak.replace("bound: 0.9", "margin: wide"), "unknown key": weak.replace("of: r", "of: r, x: 1"),
        "unknown check": "{check: ram, severity: fail}", "no checks": "{check: [], severity: fail}", "no severity": "{check: ecc}",
        "a check and a metric": "{check: ecc, severity: fail, no_regression: 1}", "of itself": weak.replace("of: r", "of: r, versus: gpu"),
        "200000 values": weak.replace("8: 0.95", sizes).replace("of: r", f"of: [{', '.join(['r'] * 500)}]").replace("bound: 0.9", "margin: 5 %"),
        "600 world sizes": weak.replace("8: 0.95", ", ".join(f"{size}: 0.9" for size in range(2, 602))).replace("bound: 0.9", "margin: 5 %"),
    }  # fmt: skip
    for name, row in rows.items():
        yield Case("row", name, CHECK, _changed(weak, row))
        yield Case("row", f"{name}, in a family", CHECK, _changed("skus:\n", f"  f:\n    - {row}\nskus:\n"))
    family = "".join(
        f"    - {{matmul_tflops: 5, probe: matmul-fp{n}, provisional: a guess}}\n" for n in (8, 16, 32) * 160
    )
    many = "".join(f"  s{i}: {{description: x, detect: {{name: '^X{i}$'}}, families: [f]}}\n" for i in range(150))
    shared = _changed("skus:\n", f"  f:\n{family}skus:\n")
    yield Case("row", "150 SKUs of a family of twins", CHECK, shared + many)
    yield Case(
        "row", "a family 50 times", CHECK, _changed("families: [small]", f"families: [{', '.join(['small'] * 50)}]")
    )
    yield Case(
        "row", "a family 5000 times", CHECK, _changed("families: [small]", f"families: [{', '.join(['small'] * 5000)}]")
    )
    for extends in (
        "thresholds.yaml",
        "/dev/zero",
        "pipe",
        ".",
        "nowhere.yaml",
        "packged",
        "''",
        "null",
        "3",
        "[packaged]",
        '"a\\0b"',
        "x" * 3000,
    ):
        text = f"schema_version: 2\nextends: {extends}\n"
        yield Case(
            "extension",
            extends[:24],
            CHECK,
            text,
            prepare=_make_pipe,
            says=r"thresholds\.yaml:2: extends",
        )
    for section in (
        "",
        "cpu: {}",
        "cpu: {description: ours}",
        "cpu: {requirements: null}",
        "cpu: {change: [{no_regression: any, severity: off, who: A. Name, why: too noisy here}]}",
    ):
        yield Case(
            "extension",
            f"sound: {section}",
            CHECK,
            f"schema_version: 2\nextends: packaged\nskus: {{{section}}}\n",
            sound=True,
        )
    for section in ("cpu: 3", "cpu: {remove: 3}", "cpu: {remove: [{no_regression: any}]}", "cpu: {waivers: []}", "cpu: {change: 3}",
                    "cpu: {change: [{}]}", "cpu: {change: [{check: ecc}]}", "cpu: {batch: 3}", "cpu: {checks: [gpus]}", "new: {}",
                    "cpu: {detect: null}"):  # fmt: skip
        yield Case("extension", section, CHECK, f"schema_version: 2\nextends: packaged\nskus: {{{section}}}\n")


def _changes() -> Iterator[Case]:
    """Changes that a site may not make, or does not say well."""
    gpu, signed = "resnet152-fp16", "who: A. Name, why: fans are ordered"
    row, check = f"{{device_utilization: [8], of: {gpu}", "{check: nvlink"
    rows = (
        f"{row}}}", f"{row}, severity: warn}}", f"{row}, severity: warn, who: A. Name}}", f"{row}, severity: warn, why: it is so}}",
        f"{row}, severity: info, {signed}}}", f"{row}, severity: on, {signed}}}", f"{row}, {signed}}}", f"{row}, because: so, {signed}}}",
        f"{row}, severity: warn, who: '-', why: it is so}}", f"{row}, severity: warn, who: '', why: it is so}}", f"{row}, severity: warn, who: 3, why: it is so}}",
        f"{row}, severity: warn, who: A. Name, why: '...'}}", f"{row}, severity: warn, who: A. Name, why: 4711}}", f"{row}, severity: warn, who: A. Name, why: '?'}}",
        f"{row}, bound: many, {signed}}}", f"{row}, bound: -1, {signed}}}", f"{row}, bound: 95, {signed}}}", f"{row}, bound: .nan, {signed}}}",
        f"{row}, bound: {{4: 0.9}}, {signed}}}", f"{row}, bound: {{}}, {signed}}}", f"{row}, bound: 0.9, severity: off, {signed}}}",
        f"{row}, until: 2099-01-01, {signed}}}", f"{row}, severity: warn, until: 2099-01-01, {signed}}}", f"{row}, severity: warn, until: 9999-12-31, {signed}}}",
        f"{row}, severity: warn, until: soon, {signed}}}", f"{row}, severity: warn, until: '2026-12-31', {signed}}}", f"{row}, severity: warn, until: 2026-13-01, {signed}}}",
        f"{row}, severity: off, until: 2026-12-31, {signed}}}", f"{row}, severity: warn, bound: 0.5, until: 2026-12-31, {signed}}}",
        f"{row}, severity: off, {signed}, x: 1}}", f"{{device_utilization: {{8: 0.9}}, of: {gpu}, {signed}}}", f"{{device_utilization: 0.9, of: {gpu}, {signed}}}",
        f"{{device_utilization: [], of: {gpu}, severity: off, {signed}}}", f"{{device_utilization: [999], of: {gpu}, severity: off, {signed}}}",
        f"{{device_utilization: [8], of: nothing, severity: off, {signed}}}", f"{{device_utilisation: [8], of: {gpu}, severity: off, {signed}}}",
        f"{{device_utilization: [8], severity: off, {signed}}}", f"{{severity: off, {signed}}}", "3", "[]", "off", "null", "{}",
        f"{check}, severity: warn}}", f"{check}, bound: 1, {signed}}}", f"{{check: ram, severity: off, {signed}}}", f"{{check: [nvlink], severity: off, {signed}}}",
        f"{row}, severity: off, {signed}}}, {row}, severity: warn, {signed}}}", f"{row}, severity: fail, {signed}}}, {row}, severity: warn, {signed}}}",
        *(f"{{check: {name}, severity: {severity}, {signed}}}" for name in ("gpus", "ecc", "ecc_under_load", "transport") for severity in ("off", "warn")),
        *(f"{{check: {name}, severity: warn, until: 2026-12-31, {signed}}}" for name in ("gpus", "ecc", "ecc_under_load", "transport")),
        *(f"{{replica_agreement: any, of: {gpu}, severity: {severity}, {signed}}}" for severity in ("off", "warn")),
        *(f"{{weak_scaling_efficiency: {size}, of: resnet50-fp16, severity: off, {signed}}}" for size in ("all", "[2 nodes]", "any")),
    )  # fmt: skip
    head = "schema_version: 2\nextends: packaged\nskus:\n  a100-sxm4-80gb:\n"
    for number, text in enumerate(rows):
        yield Case("change", f"{number}: {text[:60]}", CHECK, f"{head}    change: [{text}]\n")
    for name, text in {"a row of checks": "requirements: [{check: ecc, severity: warn}]", "no families": "families: []",
                       "an agreement that warns": f"requirements: [{{replica_agreement: {{node: 1}}, of: {gpu}, because: so, severity: warn}}]"}.items():  # fmt: skip
        yield Case("change", f"by {name}", CHECK, f"{head}    {text}\n")
    for text in (f"{check}, severity: warn, {signed}}}", f"{check}, severity: off, {signed}}}", f"{row}, bound: 0.9, {signed}}}",
                 f"{{check: topology, severity: off, {signed}}}", f"{{check: versions, severity: warn, {signed}}}"):  # fmt: skip
        yield Case("change", f"sound: {text[:60]}", CHECK, f"{head}    change: [{text}]\n", sound=True)


def _nonsense() -> Iterator[Case]:
    """Well-formed files that no person means."""
    for keys in (
        "1: 5000, true: 50",
        "1: 5000, 1.0: 50",
        "1: 5000, +1: 50",
        "true: 5000, 1: 50",
        "1: 5000, 1: 50",
        "1.0: 5000, 1: 50",
    ):
        yield Case(
            "nonsense",
            f"keys {keys}",
            CHECK,
            _changed("{1: 5000}", f"{{{keys}}}"),
            says=r"thresholds\.yaml:\d+: key .* is given twice",
        )
    peak = "    peak: {memory_bandwidth_gbps: 2000, link_bandwidth_gbps: 300, fp16_tflops: 300, bf16_tflops: 300}\n"
    floors = (
        "memory_bandwidth_gbps: 2001, probe: memory-copy", "memory_bandwidth_gbps: 90000, probe: memory-copy", "matmul_tflops: 301, probe: matmul-fp16",
        "matmul_tflops: 900, probe: matmul-bf16-10240", "busbw_gbps: {8: 526}, probe: all-reduce-8gib", "busbw_gbps: {2: 301}, probe: all-reduce-8gib",
        "busbw_gbps: {4: 451}, probe: all-gather-1gib", "busbw_gbps: {node: 601}, probe: all-reduce-8gib", "busbw_gbps: {all: 601}, probe: all-reduce-8gib",
        "pair_bandwidth_gbps: {2: 301}, probe: send-recv-256mib", "model_flops_utilization: {8: 1.01}, of: r", "weak_scaling_efficiency: {2: 1.11}, of: r",
        "strong_scaling_efficiency: {2: 1.11}, of: r", "strong_scaling_speedup: {2: 2.21}, of: r", "device_utilization: {8: 1.01}, of: r",
    )  # fmt: skip
    for floor in floors:
        row = f"      - {{{floor}, provisional: a guess}}\n"
        text = _changed("    batch: {r: {per_gpu", f"{peak}    batch: {{r: {{per_gpu").replace(
            "  cpu:\n", f"{row}  cpu:\n"
        )
        yield Case("nonsense", f"a floor, {floor}", CHECK, text)
    for floor in ("memory_bandwidth_gbps: 2000, probe: memory-copy", "busbw_gbps: {8: 482}, probe: all-reduce-8gib"):
        row = f"      - {{{floor}, provisional: a guess}}\n"
        text = _changed("    batch: {r: {per_gpu", f"{peak}    batch: {{r: {{per_gpu").replace(
            "  cpu:\n", f"{row}  cpu:\n"
        )
        yield Case("nonsense", f"sound: {floor}", CHECK, text, sound=True)
    ratio = "generation_ratio: {1: 2}, of: r, versus: %s, provisional: a guess"
    for versus in ("gpu", "alias", "nobody-at-all-but: 3", "cpu"):
        row = f"      - {{{ratio % versus}}}\n"
        yield Case("nonsense", f"a ratio to {versus}", CHECK, _changed("  cpu:\n", f"{row}  cpu:\n"))
    for model, size in (("vit_b_16", 63), ("vit_b_16", 225), ("vit_l_32", 48), ("vit_h_14", 224 + 1), ("vit_b_32", 31)):
        yield Case(
            "nonsense",
            f"{model} of {size} px",
            CHECK,
            _changed(
                "r: {model: resnet18, precision: fp16", f"r: {{model: {model}, image_size: {size}, precision: fp16"
            ),
        )
    for node in ("free_disk_gib: 1.0e+300", "free_disk_gib: 0", "pcie_width: 7", "pcie_width: 0", "pcie_width: 64", "pcie_generation: 99",
                 "nvlinks: 1000", "nvlinks: -1", "gpus: 0", "gpus: 9999", "ecc: 1", "ecc: maybe", "published: nobody", "ram_gib: 3"):  # fmt: skip
        yield Case(
            "nonsense",
            f"node {node}",
            CHECK,
            _changed("    batch: {r: {per_gpu", f"    node: {{{node}}}\n    batch: {{r: {{per_gpu"),
        )
    for part in (
        "fp16_tflops: 1.0e+300",
        "memory_bandwidth_gbps: 0",
        "link_bandwidth_gbps: -3",
        "fp8_tflops: 3",
        "link: 3",
        "published: nobody",
    ):
        yield Case(
            "nonsense",
            f"peak {part}",
            CHECK,
            _changed("    batch: {r: {per_gpu", f"    peak: {{{part}}}\n    batch: {{r: {{per_gpu"),
        )
    for pattern in ("^.*$", "^.+$", "^$", "^[^x]*$", "^\\w*.*$", "^(.*|GPU)$", "^.?.*$"):
        yield Case("nonsense", f"any device: {pattern}", CHECK, _changed("'^GPU$'", f"'{pattern}'"))
    for memory in ("1.0e+300", "0", "-80", "many", "[80]"):
        yield Case("nonsense", f"memory {memory}", CHECK, _changed("memory_gib: 80", f"memory_gib: {memory}"))
    for margin in ("51 %", "99 %", "100 %", "200 %", "-5 %", "5", "0.05", "5 per cent", "%", "'5'"):
        yield Case(
            "nonsense",
            f"margin {margin}",
            CHECK,
            _changed("bound: 0.9, because: rounded down well", f"margin: {margin}"),
        )
    for name in ("throughput_per_gp", "throughputs_per_gpu", "weak_scaling_eficiency"):
        yield Case("nonsense", f"margins of {name}", CHECK, _changed("margins: {", f"margins: {{{name}: 5 %, "))
    for value in (
        "200 %",
        "0.05",
        "5",
        "wide",
        "{}",
        "{busbw_gbps: 5 %}",
        "{because: so}",
        "{busbw_gbps: 5, because: so}",
    ):
        yield Case("nonsense", f"named margin {value}", CHECK, _changed("margins: {", f"margins: {{named: {value}, "))
    for limit in ("5", "0.05", "0.5 %", "2000 %", "on", "[5 %]", "'-5 %'"):
        yield Case(
            "nonsense", f"peers {limit}", CHECK, _changed("families:\n", f"peers: {{computing: {limit}}}\nfamilies:\n")
        )
    yield Case("nonsense", "unknown peers", CHECK, _changed("families:\n", "peers: {gpus: 5 %}\nfamilies:\n"))
    yield Case(
        "nonsense", "sound: a wide margin that says why", CHECK, _changed("bound: 0.9,", "margin: 60 %,"), sound=True
    )


def _texts() -> Iterator[Case]:
    """Sound files with one text, name, model or pattern that is not."""
    names = ("..", "../x", "/etc/passwd", "a/b", "--help", "' '", "''", "'a b'", '"a\\eb"', '"a\\nb"', '"a\\0b"', "auto",
             "é", "x" * 65, "'*'", "'a[b]'", "'$(id)'", "'a;b'", '"\\u202egpu"', "~root")  # fmt: skip
    for name in names:
        yield Case("name", f"SKU {name[:20]}", CHECK, _changed("  gpu:\n", f"  {name}:\n"))
        yield Case("name", f"alias {name[:20]}", CHECK, _changed("[alias]", f"[{name}]"))
        if name != "auto":
            text = (
                _changed("  r: {", f"  {name}: {{")
                .replace("of: r,", f"of: {name},")
                .replace("{r: {p", f"{{{name}: {{p")
            )
            yield Case("name", f"workload {name[:20]}", CHECK, text)
    for model in (
        "resnet51",
        "''",
        "os.system",
        "../resnet18",
        "fasterrcnn_resnet50_fpn",
        "r3d_18",
        "ResNet18",
        "x" * 3000,
        "null",
        "3",
    ):
        yield Case("model", model[:24], CHECK, _changed("model: resnet18, precision: fp16", f"model: {model}, precision: fp16"))  # fmt: skip
    patterns = ("^(a+)+$", "^(a|aa)+$", "^(a*)*$", "^(.*)*x$", "^([a-z]+)*$", "^(?:a?){50}$", "^(a{0,9}){9}$",
                "^.*.*.*.*.*$", "^a*a*a*b$", "^(x+x+)+y$", "^(?=a)a$", "^(?i:a)$", "^(?P<n>a)$", "^x{99999999999999}$",
                "^a**$", "^[$", "^(a$", "^a)$", "^\\1$", "^[[a]$", "A100", "", "^" + "a?" * 50 + "$", "^" + "(" * 55 + ")" * 55 + "x{2}{2}$",
                "^" + "(a|b)" * 22 + "$", "^" + "x" * 500 + "$", "^(?#c)a$", "^(?!a)b$", "^(?<=a)b$")  # fmt: skip
    for pattern in patterns:
        yield Case("pattern", pattern[:24], CHECK, _changed("'^GPU$'", f"'{pattern}'"))
    for pattern in ("^(NVIDIA )?A100-SXM4?-80GB$", "^.*A100.*$", "^[A-Z ]+[0-9]+$", "^A\\+\\*\\($", "^(?:a|b|c)$"):
        yield Case("pattern", pattern, CHECK, _changed("'^GPU$'", f"'{pattern}'"), sound=True)
    for text in ("''", "'   '", '"\\t\\t\\t\\t"', '"a\\e[2Jb"', '"\\u202eabc"', "null", "[a]", "3", '"\\x7fabc"'):
        yield Case("text", f"source {text}", CHECK, _changed("paper: a paper", f"paper: {text}"))
        yield Case("text", f"reason {text}", CHECK, _changed("because: rounded down well", f"because: {text}"))
        yield Case("text", f"description {text}", CHECK, _changed("description: a GPU", f"description: {text}"))


def _options() -> Iterator[Case]:
    """Values of options, and options that contradict each other, on the command line and in the environment."""
    counts = ("0", "-1", "1.5", "two", "1e3", "1000000000000", "9" * 5000, "٣", "0x2")
    times = ("0", "-1s", "soon", "1e3", "nan", "inf", "9" * 400, "10 m", "9999999h", "١s")
    bad = {
        "--ddp-nodes": counts, "--ddp-gpus-per-node": counts, "--ddp-world-sizes": (*counts, "1,,2", ","),
        "--ddp-rounds": (*counts, "4"), "--ddp-block": (*times, "0.001", "1h"), "--ddp-budget": times,
        "--ddp-inactivity-limit": times,
        "--ddp-confidence": ("0", "1", "95", "nan", "inf", "-1", "high", "9" * 400), "--ddp-unfit": ("drain", "STOP"),
        "--ddp-launcher": ("mpi", "Slurm"), "--ddp-pass-env": ("A B", "*", "1A", "A=1"), "--gpu-sku": ("nope", "../x", "\x1b[2J", "x" * 3000),
        "--ddp-slurm-args": ("gpu", "--nodes=3", "--x='"), "--ddp-judge": ("nowhere", "/dev/zero", "~nobody-here"),
        "--ddp-resume": ("nowhere", "~nobody-here"),
    }  # fmt: skip
    for flag, values in bad.items():
        variable = "DDPSCALE_" + flag.removeprefix("--").removeprefix("ddp-").upper().replace("-", "_")
        for value in values:
            asked = () if flag in ("--gpu-sku", "--ddp-judge", "--ddp-resume") else ("--gpu-sku=cpu",)
            what = f"{flag}={value[:16]!r}"
            says = f"({flag}|{variable}|{re.escape(value[:100])})" if "\x1b" not in value else flag
            yield Case("option", what, (*PLAN, *asked, f"{flag}={value}"), says=says)
            if flag.startswith("--ddp-") and flag not in ("--ddp-judge", "--ddp-resume"):
                yield Case("ini", f"{flag.removeprefix('--')}={value[:16]!r}", (*PLAN, *asked, "-o", f"{flag.removeprefix('--').replace('-', '_')}={value}"), says=f"(ini option ddp_|{flag})")  # fmt: skip
        yield Case("variable", f"{variable}=1", (*PLAN, "--gpu-sku=cpu"), environment={variable: "1"}, says=variable)
        yield Case("option", f"{flag}= (empty)", (*PLAN, f"{flag}="), says=flag)
    for first, second in (
        ("--ddp-judge=run", "--ddp-rounds=9"), ("--ddp-judge=run", "--ddp-nodes=2"), ("--ddp-judge=run", "--ddp-nvtx"),
        ("--ddp-judge=run", "--ddp-budget=1m"), ("--ddp-judge=run", "--ddp-block=1s"), ("--ddp-judge=run", "--ddp-launcher=slurm"),
        ("--ddp-judge=run", "--ddp-resume=run"), ("--ddp-resume=run", "--ddp-run-dir=other"),
        ("--ddp-block=40s", "--ddp-inactivity-limit=60s"),
    ):  # fmt: skip
        yield Case(
            "contradiction", f"{first} {second}", (*PLAN, "--gpu-sku=cpu", first, second), says=first.partition("=")[0]
        )
    yield Case("option", "--ddp-nvtx in the ini file: maybe", (*PLAN, "--gpu-sku=cpu", "-o", "ddp_nvtx=maybe"),
               says="ini option ddp_nvtx")  # fmt: skip
    for sound in (
        "--ddp-rounds=9",
        "--ddp-block=0.5s",
        "--ddp-budget=90",
        "--ddp-confidence=0.9999",
        "--ddp-world-sizes=1",
    ):
        yield Case("option", sound, (*PLAN, "--gpu-sku=cpu", sound), sound=True)


def _environments() -> Iterator[Case]:
    """Variables left by a shell, a scheduler or torchrun around us: none may stop or change a plan."""
    traps = {"RANK": "3", "WORLD_SIZE": "1000000000", "LOCAL_RANK": "x", "MASTER_ADDR": "nowhere", "MASTER_PORT": "-1",
             "PET_NNODES": "9", "PET_NPROC_PER_NODE": "x", "TORCHELASTIC_RUN_ID": "x", "OMP_NUM_THREADS": "x",
             "HOME": "/nowhere", "TMPDIR": "/nowhere", "LC_ALL": "xx_YY.UTF-99", "LANG": "tr_TR", "COLUMNS": "0", "TERM": "x",
             "PATH": "", "TZ": "Nowhere/At_All", "SLURM_NTASKS": "x", "SLURM_PROCID": "7", "NO_COLOR": "1", "PYTHONHASHSEED": "1",
             "MPLBACKEND": "nothing", "CUDA_VISIBLE_DEVICES": "99", "NCCL_DEBUG": "TRACE", "DDPSCALE_NOBODY": "x"}  # fmt: skip
    for name, value in traps.items():
        yield Case("environment", f"{name}={value}", (*PLAN, "--gpu-sku=cpu"), environment={name: value}, sound=True)
    yield Case("environment", "DDPSCALE_THRESHOLDS=/dev/zero", (*PLAN, "--gpu-sku=cpu"),
               environment={"DDPSCALE_THRESHOLDS": "/dev/zero"}, says="/dev/zero")  # fmt: skip


def _run_directories() -> Iterator[Case]:
    """Folders that are not run directories, and broken ones, with an otherwise sound command."""
    broken = {"no run.json": {}, "empty run.json": {"run.json": ""}, "run.json of a list": {"run.json": "[]"},
              "run.json with NaN": {"run.json": '{"sku": NaN}'}, "deep run.json": {"run.json": "[" * 100_000},
              "no SKU": {"run.json": '{"schema_version": 3}'}, "unknown SKU": {"run.json": '{"schema_version": 3, "sku": "x"}'},
              "SKU of a number": {"run.json": '{"schema_version": 3, "sku": 3}'},
              "newer schema": {"run.json": '{"schema_version": 99, "sku": "cpu"}'},
              "no plan": {"run.json": '{"schema_version": 3, "sku": "cpu"}'},
              "broken plan": {"run.json": '{"schema_version": 3, "sku": "cpu"}', "plan.json": "{"}}  # fmt: skip
    for name, files in broken.items():
        for flag in ("--ddp-judge", "--ddp-resume"):
            yield Case("run directory", f"{flag}, {name}", ("-q", "-p", "no:cacheprovider", "test_it.py", f"{flag}=run"),
                       prepare=lambda folder, files=files: _write_run(folder, files), says="run")  # type: ignore[misc] # fmt: skip
    finished = {"schema_version": 3, "sku": "cpu", "status": "finished", "started_at": "2026-01-31T12:00:00+00:00"}
    for file in ("run.json", "plan.json", "measurements.jsonl"):
        for kind in ("/dev/zero", "pipe"):
            yield Case("run directory", f"{file} is {kind}", (*JUDGE, "--ddp-judge=run"), says=f"run/{file}",
                       prepare=partial(_write_irregular, json.dumps(finished), file, kind))  # fmt: skip
    for moment in ("9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59+00:00"):
        files = {"run.json": json.dumps(finished | {"started_at": moment})}
        yield Case("run directory", f"started at {moment}", (*JUDGE, "--ddp-judge=run"),
                   prepare=partial(_write_run, files=files), says="years 1970 to 2200")  # fmt: skip
    for path in ("/dev/zero", "pipe", ".", "nowhere"):
        asked = (*JUDGE, "--gpu-sku=cpu", "--ddp-launcher=exec", "--ddp-exec=true {host}", f"--ddp-hosts=@{path}")
        yield Case("option", f"--ddp-hosts=@{path}", asked, prepare=_make_pipe, says="--ddp-hosts")


def _write_irregular(run_json: str, file: str, kind: str, folder: Path) -> None:
    """A run directory in which one file is a pipe or a link to a device."""
    from pytest_ddpscale.plan.study import Plan
    from pytest_ddpscale.run.strict_json import strict_json

    plan = strict_json(Plan("cpu", "cpu", ()))
    _write_run(folder, {"run.json": run_json, "plan.json": plan, "measurements.jsonl": ""})
    path = folder / "run" / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)


def _write_run(folder: Path, files: dict[str, str]) -> None:
    (folder / "run").mkdir()
    for name, text in files.items():
        (folder / "run" / name).write_text(text, encoding="utf-8")


def cases() -> list[Case]:
    """All cases, always the same and in the same order."""
    families = (_files, _values, _rows, _changes, _nonsense, _texts, _options, _environments, _run_directories)
    return [case for family in families for case in family()]


def outcome_of(case: Case, folder: Path, startup_s: float = 0.0) -> tuple[str, str, float]:
    """Run a case in a fork. Returns one of `OUTCOMES`, the last line it printed, and its CPU seconds after start-up."""
    folder.mkdir()
    text = case.text if isinstance(case.text, bytes) else case.text.encode()
    (folder / "thresholds.yaml").write_bytes(text)
    (folder / "test_it.py").write_text(ACCEPTANCE, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    case.prepare(folder)
    out = folder / "out"
    child = os.fork()
    if child == 0:
        _become(case, folder, out)
    code, cpu_s = _wait(child)
    cpu_s = max(0.0, cpu_s - startup_s)
    said = out.read_text(encoding="utf-8", errors="backslashreplace")
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    return _judged(case, code, said, cpu_s), last, cpu_s


def _judged(case: Case, code: int | None, said: str, cpu_s: float) -> str:
    if code is None:
        return "hang"
    if "Traceback" in said or "INTERNALERROR" in said:
        return "traceback"
    if case.sound:
        return "accepted rightly" if code == 0 else "wrong refusal"
    if code == 0:
        return "wrong pass"
    if code != REFUSAL or not re.search(case.says, said):
        return "mute"
    return "slow" if cpu_s > MOST_CPU_S else "refused"


def _become(case: Case, folder: Path, out: Path) -> None:
    code = 1
    try:
        file = os.open(out, os.O_WRONLY | os.O_CREAT, 0o644)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        for name in [name for name in os.environ if name.startswith("DDPSCALE_")]:
            del os.environ[name]
        os.environ.update({"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"} | case.environment)
        is_check = case.arguments[0] == "thresholds"
        sys.argv = ["ddpscale" if is_check else "pytest", *case.arguments]
        if is_check:
            from pytest_ddpscale.cli import main as ddpscale

            code = ddpscale(list(case.arguments))
        else:
            runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int) -> tuple[int | None, float]:
    """Exit code, None of a hang, and CPU seconds."""
    deadline = time.monotonic() + HANG_S
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.wait4(child, 0)
            return None, HANG_S
        time.sleep(0.005)


def main() -> int:
    """Run the cases and print the table. Returns 1 if any result is wrong."""
    parser = argument_parser(__doc__)
    parser.add_argument("--every", type=positive_int, default=1, metavar="N", help="only every Nth case of each family")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with case K of each, from 0 up")
    parser.add_argument("--files", action="store_true", help="only thresholds files, by `ddpscale thresholds check`")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here, too")
    options = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):
        import pytest  # noqa: F401 - for the forks

        import pytest_ddpscale.cli
        import pytest_ddpscale.thresholds.loading  # noqa: F401
    seen: dict[str, int] = collections.Counter()
    counts: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        # What the same command takes that has nothing to complain about.
        commands = (("--markers",), CHECK)
        startups = [outcome_of(Case("", "", one, sound=True), Path(folder) / one[0])[2] for one in commands]
        for number, case in enumerate(case for case in cases() if case.arguments == CHECK or not options.files):
            seen[case.family] += 1
            if (seen[case.family] - 1) % options.every != options.first:
                continue
            startup_s = startups[case.arguments[0] == CHECK[0]]
            outcome, last, cpu_s = outcome_of(case, Path(folder) / str(number), startup_s)
            counts.setdefault(case.family, collections.Counter())[outcome] += 1
            slowest = max(slowest, cpu_s if outcome == "refused" else 0.0)
            if outcome not in ("refused", "accepted rightly"):
                wrong.append(f"{outcome}: {case.family}, {case.name} ({cpu_s:.1f} s): {last[:300]}")
    header = ("family", "tried", *OUTCOMES)
    total: dict[str, int] = collections.Counter()
    for found in counts.values():
        for outcome, count in found.items():
            total[outcome] += count
    lines = [*counts.items(), ("all", dict(total))]
    rows = [(name, str(sum(found.values())), *(str(found.get(one, 0)) for one in OUTCOMES)) for name, found in lines]
    print(table(header, rows))
    print(f"slowest refusal: {slowest:.2f} s of CPU time after start-up")
    print(*wrong, sep="\n")
    if options.markdown:
        marked = [header, ("---",) * len(header), *rows]
        options.markdown.write_text("".join(f"| {' | '.join(row)} |\n" for row in marked), encoding="utf-8")
    keep(options.json, "hostile_inputs", {"counts": counts, "wrong": wrong, "slowest_refusal_s": slowest})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
