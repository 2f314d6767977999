"""What PyTorch publishes of its DDP benchmark, and files whose percentiles are those.

Source: github.com/pytorch/pytorch, benchmarks/distributed/ddp/README.md: torch 1.4.0a0, CUDA 10.0, NCCL, V100, 32
images per GPU. Written from its two tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

BATCH = 32
SIZES = {"no ddp": 1, "1M/1G": 1, "1M/2G": 2, "1M/4G": 4, "1M/8G": 8, "2M/8G": 16}
STEPS = 40


class Printed(NamedTuple):
    """As printed; `diff` in per cent, of the second table only."""

    s_per_iter: float
    examples_per_s: int
    diff: float = 0.0


# Example output, p50, p75, p90 and p95: sec/iter, and ex/sec.
_EXAMPLE = """
resnet50
no-ddp 0.097 329 0.097 329 0.097 329 0.097 329
1M/1G 0.100 319 0.100 318 0.100 318 0.100 318
1M/2G 0.103 310 0.103 310 0.103 310 0.103 309
1M/4G 0.103 310 0.103 310 0.103 310 0.103 310
1M/8G 0.104 307 0.104 307 0.104 306 0.104 306
2M/8G 0.104 306 0.104 306 0.104 306 0.104 306
resnet101
no-ddp 0.162 197 0.162 197 0.162 197 0.162 197
1M/1G 0.171 187 0.171 186 0.171 186 0.172 185
1M/2G 0.176 182 0.176 181 0.176 181 0.176 181
1M/4G 0.176 182 0.176 181 0.176 181 0.176 181
1M/8G 0.179 179 0.179 178 0.180 178 0.180 177
2M/8G 0.179 178 0.180 177 0.183 174 0.188 170
resnext50_32x4d
no-ddp 0.145 220 0.145 220 0.145 220 0.145 220
1M/1G 0.147 217 0.147 217 0.148 216 0.148 216
1M/2G 0.153 209 0.153 209 0.153 209 0.153 209
1M/4G 0.153 208 0.153 208 0.154 208 0.154 208
1M/8G 0.157 204 0.157 204 0.157 203 0.157 203
2M/8G 0.157 203 0.157 203 0.158 203 0.158 202
resnext101_32x8d
no-ddp 0.415 77 0.415 77 0.416 76 0.417 76
1M/1G 0.425 75 0.426 75 0.426 75 0.426 75
1M/2G 0.438 73 0.439 72 0.439 72 0.439 72
1M/4G 0.439 72 0.439 72 0.440 72 0.440 72
1M/8G 0.447 71 0.447 71 0.448 71 0.448 71
2M/8G 0.450 71 0.451 70 0.451 70 0.451 70
"""
# diff.py, bucket_cap_mb 25 against 1, p75 and p95 of the latter: sec/iter, ex/sec, diff.
_DIFF = """
resnet50
1M/1G 0.101 317 -0.3 0.101 317 -0.4
1M/2G 0.104 306 -1.0 0.104 306 -1.0
1M/4G 0.105 305 -1.6 0.105 304 -1.8
1M/8G 0.107 299 -2.6 0.107 298 -2.7
2M/8G 0.108 294 -3.8 0.122 262 -16.4
resnet101
1M/1G 0.172 185 -1.2 0.172 185 -1.3
1M/2G 0.179 178 -2.1 0.179 178 -2.0
1M/4G 0.180 177 -2.6 0.180 177 -2.6
1M/8G 0.184 173 -3.5 0.184 173 -3.5
2M/8G 0.187 170 -0.1 0.204 157 -7.9
resnext50_32x4d
1M/1G 0.149 214 -1.0 0.149 214 -0.9
1M/2G 0.156 205 -1.5 0.156 205 -1.6
1M/4G 0.156 204 -1.6 0.157 204 -1.8
1M/8G 0.159 200 -1.5 0.159 200 -1.5
2M/8G 0.161 198 -1.9 0.162 197 -2.3
resnext101_32x8d
1M/1G 0.427 74 -0.8 0.428 74 -0.7
1M/2G 0.444 72 -1.3 0.445 71 -0.7
1M/4G 0.444 72 -1.1 0.445 71 -0.8
1M/8G 0.452 70 -1.3 0.452 70 -1.3
2M/8G 0.455 70 -0.7 0.456 70 -0.6
"""


def _parsed(table: str, percents: tuple[int, ...], columns: int) -> dict[str, dict[str, dict[int, Printed]]]:
    """By model, size and per cent."""
    found: dict[str, dict[str, dict[int, Printed]]] = {}
    for line in table.split("\n"):
        name, *cells = line.split() or [""]
        if not cells:
            rows = found.setdefault(name, {}) if name else {}
            continue
        of_percent = [cells[at : at + columns] for at in range(0, len(cells), columns)]
        printed = [Printed(float(one[0]), int(one[1]), *map(float, one[2:])) for one in of_percent]
        rows[name.replace("-", " ")] = dict(zip(percents, printed, strict=True))
    return found


EXAMPLE = _parsed(_EXAMPLE, (50, 75, 90, 95), 2)
DIFF = _parsed(_DIFF, (75, 95), 3)


def steps_of(s_per_iter: Mapping[int, float], ranks: int) -> list[float]:
    """Steps of all ranks whose percentiles are those, by per cent."""
    shares = {0.6: 50, 0.82: 75, 0.92: 90, 1.1: 95}  # percentiles lie well within what has one value
    known = [one for one in shares.values() if one in s_per_iter]
    count = STEPS * ranks

    def at(share: float) -> float:
        asked = next(per_cent for limit, per_cent in shares.items() if share < limit)
        return s_per_iter[min((one for one in known if one >= asked), default=known[-1])]

    return [at(number / count) for number in range(count)]


def report(tables: Mapping[str, Mapping[str, Mapping[int, float]]], **configuration: Any) -> dict[str, Any]:
    """A JSON report whose percentiles are those: by model, size and per cent, in seconds."""
    said = {"pytorch_version": "1.4.0a0+05140f0", "cuda_version": "10.0", "distributed_backend": "nccl",
            "bucket_size": 25} | configuration  # fmt: skip
    results = [
        {
            "model": model,
            "batch_size": BATCH,
            "result": [
                {"ranks": list(range(SIZES[size])), "measurements": steps_of(times, SIZES[size])}
                for size, times in rows.items()
            ],
        }
        for model, rows in tables.items()
    ]
    return said | {"benchmark_results": results}


def times_s(printed: Mapping[str, Mapping[str, Mapping[int, Printed]]]) -> dict[str, dict[str, dict[int, float]]]:
    """The measured column."""
    return {
        model: {size: {p: one.s_per_iter for p, one in row.items()} for size, row in rows.items()}
        for model, rows in printed.items()
    }


def example_report() -> dict[str, Any]:
    """The benchmark's example output as its file."""
    return report(times_s(EXAMPLE))


def bucket_size_1_report() -> dict[str, Any]:
    """The test of its diff; one GPU without DDP, which diff.py passes over, is that of the example output."""
    rows = {model: {"no ddp": times_s(EXAMPLE)[model]["no ddp"], **rows} for model, rows in times_s(DIFF).items()}
    return report(rows, bucket_size=1)


def written(path: Path, said: Any) -> str:
    """A file of that."""
    path.write_text(json.dumps(said), encoding="utf-8")
    return str(path)
