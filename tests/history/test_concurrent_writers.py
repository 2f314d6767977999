"""Many nodes end their nightly check in the same second, and every run of theirs is kept once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_ddpscale.history.store import node_runs, reading
from tests.builders.nights import SKU, judged_run

WRITERS, RUNS = 4, 3
WRITER = """
import sys
from pathlib import Path
from pytest_ddpscale.history.store import add_run

print("ready", flush=True)
sys.stdin.readline()
print(*[add_run(Path(sys.argv[1]), Path(run)) for run in sys.argv[2:]])
"""


def test_all_runs_of_many_writers_are_kept_once(tmp_path: Path) -> None:
    """The file is not there yet: they make it together, too. Each run is added by two of them."""
    history = tmp_path / "history.sqlite"
    runs = [
        [str(judged_run(tmp_path / f"{writer}-{run}", run, {f"n{writer}": [100.0, 99.0]}).path) for run in range(RUNS)]
        for writer in range(WRITERS)
    ]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(history), *runs[number], *runs[(number + 1) % WRITERS]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(WRITERS)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [word for writer in writers for word in writer.communicate(timeout=60)[0].split()]
    assert sorted(said) == ["added"] * WRITERS * RUNS + ["known"] * WRITERS * RUNS
    with reading(history) as connection:
        kept = [run for writer in range(WRITERS) for run in node_runs(connection, SKU, f"n{writer}")]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert sorted(run.path for run in kept) == sorted(path for theirs in runs for path in theirs)
    assert [len(run.values) for run in kept] == [4] * WRITERS * RUNS
