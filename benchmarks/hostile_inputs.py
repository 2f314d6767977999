"""Whether hostile thresholds, options, environments and run directories are refused well and quickly: docs/evidence.

    python benchmarks/hostile_inputs.py [--every N] [--files]

Each line of benchmarks/hostile/FAMILY.jsonl is a case of `Case`, which runs the real command in its own forked process:
`ddpscale thresholds check`, or `pytest` with the thresholds of a CPU or of an imaginary GPU; nothing is measured. A
case has to be refused (exit code 4, or that of pytest's own parser; a message with the line or the option, no
traceback, under 2 s of CPU time), or accepted because it is sound.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from reporting import Ended, Tally, argument_parser, in_a_fork, positive_int

LISTED = Path(__file__).with_name("hostile")
REFUSAL = 4
MOST_CPU_S = 2.0  # with the start of the program
HANG_S = 300.0  # of wall time: generous, as other work may share the cores
OUTCOMES = ("refused", "accepted rightly", "wrong pass", "wrong refusal", "traceback", "hang", "slow", "mute")
ACCEPTANCE = """\
import pytest

@pytest.mark.requirement("throughput_per_gpu")
def test_throughput_per_gpu(requirement):
    assert requirement
"""
CHECK = ("thresholds", "check", "thresholds.yaml")
PROGRAMS = {"ddpscale": "pytest_ddpscale.cli", "pytest": "pytest"}
COMMON = ("-q", "-p", "no:cacheprovider", "test_it.py")


def long(text: str) -> str:
    """With «TEXT×9» nine times, and «TEXT×3…8» six times with 3 to 8 in place of {i}, 2 to 7 in place of {p}."""

    def repeated(found: re.Match[str]) -> str:
        first, last = int(found[3] or 1), int(found[4])
        numbers = range(first, last + 1)
        return "".join(found[1].replace("{i}", str(number)).replace("{p}", str(number - 1)) for number in numbers)

    return re.sub(r"«(.*?)×((\d+)…)?(\d+)»", repeated, text, flags=re.DOTALL)


@dataclass(frozen=True)
class Case:
    """One input; texts as in `long`.

    Attributes:
        family: what kind of input.
        name: which.
        base: a file of benchmarks/hostile from which thresholds.yaml is made; empty for none.
        edits: texts of it and what replaces each, where it occurs first.
        before: text before it; ``add`` likewise after it.
        encoding: of the file.
        ddpscale: arguments of it.
        pytest: arguments of it, instead.
        environment: variables beside the usual ones.
        run: texts of the files of a run directory.
        irregular: a file of it, and ``pipe`` or the device to which it is a link.
        sound: whether it has to be accepted.
        says: what a refusal has to name, as a regular expression.
    """

    family: str
    name: str
    base: str = "sound"
    edits: list[list[str]] = field(default_factory=list)
    before: str = ""
    add: str = ""
    encoding: str = "utf-8"
    ddpscale: Sequence[str] = CHECK
    pytest: Sequence[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    run: dict[str, str] | None = None
    irregular: list[str] = field(default_factory=list)
    sound: bool = False
    says: str = r"thresholds\.yaml:\d+: "

    @property
    def command(self) -> list[str]:
        """The program and its arguments."""
        of_pytest = [*COMMON, *map(long, self.pytest or ())]
        return ["ddpscale", *self.ddpscale] if self.pytest is None else ["pytest", *of_pytest]

    @property
    def content(self) -> bytes:
        """Of thresholds.yaml."""
        text = (LISTED / f"{self.base}.yaml").read_text(encoding="utf-8") if self.base else ""
        for old, new in self.edits:
            assert old in text, (self.name, old)
            text = text.replace(old, long(new), 1)
        return "".join([long(self.before), text, long(self.add)]).encode(self.encoding)

    def prepare(self, folder: Path) -> None:
        """Write its files."""
        (folder / "thresholds.yaml").write_bytes(self.content)
        (folder / "test_it.py").write_text(ACCEPTANCE, encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        os.mkfifo(folder / "pipe")
        if self.run is not None:
            (folder / "run").mkdir()
        for name, text in (self.run or {}).items():
            (folder / "run" / name).write_text(long(text), encoding="utf-8")
        if self.irregular:
            name, kind = self.irregular
            (path := folder / "run" / name).unlink()
            os.mkfifo(path) if kind == "pipe" else path.symlink_to(kind)


def cases() -> list[Case]:
    """All cases, always the same and in the same order."""
    return [
        Case(file.stem, **json.loads(line))
        for file in sorted(LISTED.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]


def outcome_of(case: Case, folder: Path) -> tuple[str, str, float]:
    """Run a case in a fork. Returns one of `OUTCOMES`, the last line it printed, and its CPU seconds."""
    folder.mkdir()
    case.prepare(folder)
    ended = in_a_fork(partial(_become, case, folder), folder / "out", HANG_S)
    last = next((line for line in reversed(ended.said.splitlines()) if line.strip()), "")
    return judged(case, ended), last, ended.cpu_s


def judged(case: Case, ended: Ended) -> str:
    """One of `OUTCOMES`."""
    if ended.code is None:
        return "hang"
    if "Traceback" in ended.said or "INTERNALERROR" in ended.said:
        return "traceback"
    if case.sound:
        return "accepted rightly" if ended.code == 0 else "wrong refusal"
    if ended.code == 0:
        return "wrong pass"
    if ended.code != REFUSAL or not re.search(long(case.says), ended.said):
        return "mute"
    return "slow" if ended.cpu_s > MOST_CPU_S else "refused"


def _become(case: Case, folder: Path) -> int:
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("DDPSCALE_")]:
        del os.environ[name]
    os.environ.update({"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"} | case.environment)
    sys.argv = case.command
    return int(importlib.import_module(PROGRAMS[sys.argv[0]]).main())


def main() -> int:
    """Run the cases and print the table. Returns 1 if any result is wrong."""
    parser = argument_parser(__doc__)
    parser.add_argument("--every", type=positive_int, default=1, metavar="N", help="only every Nth case of each family")
    parser.add_argument("--files", action="store_true", help="only thresholds files, by `ddpscale thresholds check`")
    options = parser.parse_args()
    for module in (*PROGRAMS.values(), "pytest_ddpscale.thresholds.loading"):  # for the forks
        importlib.import_module(module)
    tally, slowest, numbers = Tally(*OUTCOMES), 0.0, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        for number, case in enumerate(one for one in cases() if one.pytest is None or not options.files):
            numbers[case.family] += 1
            if numbers[case.family] % options.every == 1 % options.every:
                outcome, last, cpu_s = outcome_of(case, Path(folder) / str(number))
                tally.note(case.family, outcome, f"{case.name} ({cpu_s:.1f} s): {last[:300]}")
                slowest = max(slowest, cpu_s if outcome == "refused" else 0.0)
    print(tally.tell())
    print(f"slowest refusal: {slowest:.2f} s of CPU time")
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
