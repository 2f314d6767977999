"""What PyTorch publishes of its DDP benchmark, and files whose percentiles are those.

Source: github.com/pytorch/pytorch, benchmarks/distributed/ddp/README.md: torch 1.4.0a0, CUDA 10.0, NCCL, V100, 32
images per GPU. Written from its two tables.
"""

from __future__ import annotations

from bisect import bisect
from typing import Any, NamedTuple

BATCH = 32
SIZES = {"no ddp": 1, "1M/1G": 1, "1M/2G": 2, "1M/4G": 4, "1M/8G": 8, "2M/8G": 16}
STEPS = 40


class Printed(NamedTuple):
    """As printed; `diff` in per cent, of the second table only."""

    s_per_iter: float
    examples_per_s: int
    diff: float = 0.0


Tables = dict[str, dict[str, list[Printed]]]

# Example output, p50, p75, p90 and p95: ms/iter, and ex/sec.
_EXAMPLE = """
resnet50
no-ddp 97 329 97 329 97 329 97 329
1M/1G 100 319 100 318 100 318 100 318
1M/2G 103 310 103 310 103 310 103 309
1M/4G 103 310 103 310 103 310 103 310
1M/8G 104 307 104 307 104 306 104 306
2M/8G 104 306 104 306 104 306 104 306
resnet101
no-ddp 162 197 162 197 162 197 162 197
1M/1G 171 187 171 186 171 186 172 185
1M/2G 176 182 176 181 176 181 176 181
1M/4G 176 182 176 181 176 181 176 181
1M/8G 179 179 179 178 180 178 180 177
2M/8G 179 178 180 177 183 174 188 170
resnext50_32x4d
no-ddp 145 220 145 220 145 220 145 220
1M/1G 147 217 147 217 148 216 148 216
1M/2G 153 209 153 209 153 209 153 209
1M/4G 153 208 153 208 154 208 154 208
1M/8G 157 204 157 204 157 203 157 203
2M/8G 157 203 157 203 158 203 158 202
resnext101_32x8d
no-ddp 415 77 415 77 416 76 417 76
1M/1G 425 75 426 75 426 75 426 75
1M/2G 438 73 439 72 439 72 439 72
1M/4G 439 72 439 72 440 72 440 72
1M/8G 447 71 447 71 448 71 448 71
2M/8G 450 71 451 70 451 70 451 70
"""
# diff.py, bucket_cap_mb 25 against 1, p75 and p95 of the latter: ms/iter, ex/sec, tenths of a per cent.
_DIFF = """
resnet50
1M/1G 101 317 -3 101 317 -4
1M/2G 104 306 -10 104 306 -10
1M/4G 105 305 -16 105 304 -18
1M/8G 107 299 -26 107 298 -27
2M/8G 108 294 -38 122 262 -164
resnet101
1M/1G 172 185 -12 172 185 -13
1M/2G 179 178 -21 179 178 -20
1M/4G 180 177 -26 180 177 -26
1M/8G 184 173 -35 184 173 -35
2M/8G 187 170 -1 204 157 -79
resnext50_32x4d
1M/1G 149 214 -10 149 214 -9
1M/2G 156 205 -15 156 205 -16
1M/4G 156 204 -16 157 204 -18
1M/8G 159 200 -15 159 200 -15
2M/8G 161 198 -19 162 197 -23
resnext101_32x8d
1M/1G 427 74 -8 428 74 -7
1M/2G 444 72 -13 445 71 -7
1M/4G 444 72 -11 445 71 -8
1M/8G 452 70 -13 452 70 -13
2M/8G 455 70 -7 456 70 -6
"""


def _parsed(table: str, columns: int) -> Tables:
    """By model and size: a cell for each per cent."""
    found = Tables()
    for name, *words in map(str.split, table.strip().split("\n")):
        if not words:
            rows = found[name] = {}
            continue
        cells = zip(*[iter(map(int, words))] * columns, strict=True)
        rows[name.replace("-", " ")] = [
            Printed(ms / 1000, rate, *(one / 10 for one in diff)) for ms, rate, *diff in cells
        ]
    return found


EXAMPLE, DIFF = _parsed(_EXAMPLE, 2), _parsed(_DIFF, 3)


def report(tables: Tables, **configuration: Any) -> dict[str, Any]:
    """A JSON report whose percentiles are the printed ones, each well within the steps of one length."""

    def steps(row: list[Printed], ranks: int) -> list[float]:
        every = row if len(row) > 2 else [row[0], *row, row[-1]]
        return [every[bisect((0.6, 0.82, 0.92), at / (STEPS * ranks))].s_per_iter for at in range(STEPS * ranks)]

    results = [
        {"model": model, "batch_size": BATCH, "result": [
            {"ranks": [*range(SIZES[size])], "measurements": steps(row, SIZES[size])} for size, row in rows.items()
        ]}
        for model, rows in tables.items()
    ]  # fmt: skip
    return {"pytorch_version": "1.4.0a0+05140f0", "cuda_version": "10.0", "distributed_backend": "nccl",
            "bucket_size": 25, "benchmark_results": results, **configuration}  # fmt: skip


# With the diff, whose test has no row of one GPU without DDP, that of the example output.
REPORT = report(EXAMPLE)
SMALL_BUCKETS = report(
    {model: {"no ddp": EXAMPLE[model]["no ddp"], **rows} for model, rows in DIFF.items()}, bucket_size=1
)
