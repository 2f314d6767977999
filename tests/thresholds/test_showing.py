"""What `ddpscale thresholds show` and `check` print of base.yaml, or of a file on it: a line of shown.txt each.

    FILE: COMMAND    one of FILES, and what is typed after `ddpscale thresholds`

Told are the lines that are not empty, with digests as SHA and days as DAY.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.thresholds.showing import WIDTH, json_text, selection_blocks, selection_json, selection_of
from pytest_ddpscale.util.document import text_lines
from tests.builders.clusters import thresholds
from tests.rows import rows
from tests.tables import assert_approved, each_block
from tests.thresholds.edited import edited

TABLE = Path(__file__).with_name("shown.txt")
ROWS = r"\n      - ".join(
    (
        "requirements:",
        "{weak_scaling_efficiency: {8: 0.98}, of: r, published: paper, margin: 0.5 %, baseline: ddp}",
        "{throughput_per_gpu: {4: 1150}, of: r, published: paper, margin: 5 %}",
        "{no_regression: 0.95, provisional: as it is below}",
        '{device_utilization: {8: 0.9}, of: r, provisional: "one\\x0atwo"}',
    )
)
CHANGES = r"""
    change:
      - {matmul_tflops: 1, probe: matmul-fp16, bound: 500, SIGNED}
      - {check: disk, severity: off, SIGNED}
      - {busbw_gbps: 8, probe: all-reduce-32mib, severity: warn, SIGNED}
      - {rank_uniformity: any, of: r, severity: warn, until: DAY+30, SIGNED}"""
FILES = {
    "base": [],
    "nothing": ["site", "{}"],
    "site": ["site", f"detect: {{memory_gib: 90}}\\n    {ROWS}{CHANGES}"],
    "odd": ["bound: 0.95", "bound: 0.125"],
    "wrong": ["site", r"beyond_node: maybe\n    nodes: {gpus: -1}\n    alias: n"],
}


@each_block(TABLE)
def test_what_is_printed(
    block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def tell(case: str) -> Iterator[str]:
        name, _, command = case.partition(": ")
        path = edited(tmp_path, FILES[name])[0].name
        asked = [path] if command == "check" else ["--thresholds", path]
        code = main(["thresholds", *shlex.split(command), *asked])
        said = re.sub(r"20\d\d-\d\d-\d\d(?!,)", "DAY", "".join(capsys.readouterr()))
        if code == 0 and "json" in command:
            said = json.dumps(parse_strict_json(said), indent=1, ensure_ascii=False)
        yield from [f"exit code {code}"] * bool(code)
        said = re.sub(r"[0-9a-f]{64}|(?<=sha256 )[0-9a-f]{12}", "SHA", said)
        yield from filter(None, map(str.rstrip, said.splitlines()))

    assert_approved(TABLE, block, tell)


@rows("sku", list(thresholds().thresholds.skus))
def test_every_requirement_of_a_packaged_sku_is_shown_in_lines_that_fit_a_terminal(sku: str) -> None:
    asked = selection_of(thresholds(), sku)
    shown = [row for row, _ in asked.rows]
    assert sorted(map(str, shown)) == sorted(map(str, thresholds().thresholds.skus[sku].requirements))
    assert len(json.loads(json_text(selection_json(asked)))["requirements"]) == len(shown)
    for verbose in (False, True):
        lines = list(text_lines(*selection_blocks(asked, verbose), width=WIDTH))
        assert [line for line in lines if len(line) > WIDTH and str(thresholds().path) not in line] == []
