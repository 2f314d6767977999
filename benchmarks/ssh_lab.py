"""Acceptance over three hosts reachable only by ssh, healthy and with one slow host: is the slow host named?

    python benchmarks/ssh_lab.py
    python benchmarks/ssh_lab.py --share 0.3 --json ssh_lab.json

The hosts are namespaces on this machine that share no file system (tests/ssh_lab); needs root and openssh-server. Every
host has the same quota of CPU time, the slow host a share of it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reporting import argument_parser, keep, table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pytest_ddpscale.run.strict_json import parse_strict_json  # noqa: E402
from tests.integration.lab_runs import QUICK, thresholds_for  # noqa: E402
from tests.ssh_lab.lab import SshLab  # noqa: E402

# Between what the lab keeps with one slow host (0.22) and without (0.55).
BOUND, OF_THREE_HOSTS = re.compile(r"(weak_scaling_efficiency: .*\b)0\.3\b"), r"\g<1>0.35"


@dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
        slow: the host with less CPU; empty if none has.
        outcome: of the run.
        named: hosts that a verdict names for certain.
        exit_code: of pytest.
        seconds: duration.
        left: processes left on hosts.
    """

    slow: str
    outcome: str
    named: tuple[str, ...]
    exit_code: int
    seconds: float
    left: int


def one_run(lab: SshLab, folder: Path, slow: str, share: float) -> Outcome:
    """Measure all hosts once."""
    lab.share_cores(slow=slow, share=share)
    thresholds = thresholds_for(3, folder)
    text, found = BOUND.subn(OF_THREE_HOSTS, thresholds.read_text(encoding="utf-8"))
    if found != 1:
        raise SystemExit(f"{thresholds}: {found} bounds of 0.3 for weak_scaling_efficiency; expected one")
    thresholds.write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("pytest")), "--gpu-sku=cpu", "-p", "no:cacheprovider"]
    command += [f"--thresholds={thresholds}", "--ddp-hosts=n[1-3]", "--ddp-run-dir=run", *QUICK]
    command.append("--ddp-inactivity-limit=400s")  # with a share of a core torch takes minutes to import
    began_s = time.monotonic()
    done = lab.run([*command, str(ROOT / "acceptance")], folder, timeout_s=900)
    seconds = time.monotonic() - began_s
    print(done.stdout, file=sys.stderr)
    verdicts: dict[str, Any] = parse_strict_json((folder / "run/verdicts.json").read_text(encoding="utf-8"))
    culprits = [one for verdict in verdicts["verdicts"] for one in verdict["culprits"]]
    named = tuple(sorted({one["host"] for one in culprits}))
    return Outcome(slow, verdicts["outcome"], named, done.returncode, round(seconds, 1), len(lab.processes()))


def main() -> None:
    """Run the script."""
    parser = argument_parser(__doc__)
    parser.add_argument("--share", type=float, default=0.4, help="CPU share of the slow host; default: %(default)s")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="ssh-lab-") as scratch, SshLab(Path(scratch) / "lab") as lab:
        for number, slow in enumerate(("", "n2")):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            found.append(one_run(lab, folder, slow, arguments.share))
    rows = [
        [one.slow or "none", one.outcome, ", ".join(one.named), str(one.exit_code), f"{one.seconds:.0f}", str(one.left)]
        for one in found
    ]
    print(table(["slow host", "outcome", "named", "exit code", "seconds", "processes left"], rows))
    keep(arguments.json, "ssh_lab", {"runs": [asdict(one) for one in found]})


if __name__ == "__main__":
    main()
