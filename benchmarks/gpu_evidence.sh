#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show, collected in at most nine minutes:
# the GPU tests, a short acceptance run, and the fidelity benchmark.
#
#   usage: benchmarks/gpu_evidence.sh OUT_DIR
#
# OUT_DIR must be new or empty. It gets summary.json (each part's outcome), machine.txt, tests.log, run.log,
# run.tar.gz (the run directory), fidelity.log, fidelity-fp16.json and fidelity-bf16.json: eight files. A part
# that fails stops no other.
# PYTHON names the interpreter (default: python3); pytest-ddpscale need not be installed into it, but what it
# depends on must be. Settings of the card are only read.
#
# Exit code: 0 if every part succeeded, 1 if one did not, 2 for wrong usage, 3 without a GPU.
set -euo pipefail

readonly LIMIT_S=540
readonly GRACE_S=20 # between asking a part to stop and killing it
readonly EXIT_USAGE=2 EXIT_NO_GPU=3

usage() {
    echo "usage: $0 OUT_DIR" >&2
    exit "$EXIT_USAGE"
}

[[ $# -eq 1 && $1 != -* ]] || usage
mkdir -p -- "$1"
OUT=$(cd -- "$1" && pwd)
ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
readonly OUT ROOT PYTHON
cd -- "$ROOT"

if [[ -n $(ls -A -- "$OUT") ]]; then
    echo "$0: $OUT is not empty; expected a new or empty directory" >&2
    exit "$EXIT_USAGE"
fi

gpus=$("$PYTHON" - 2>&1 <<'PYTHON_CODE'
import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"{sys.executable} has no torch: {error}")
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} of {sys.executable} sees none (torch.cuda.is_available() is False)")
print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
PYTHON_CODE
) || {
    echo "$0: no NVIDIA GPU here, so nothing was run: $gpus" >&2
    rmdir -- "$OUT"
    exit "$EXIT_NO_GPU"
}
echo "$gpus"

VERSIONS=$(cat <<'PYTHON_CODE'
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

print("python", platform.python_version(), "on", platform.platform())
for name in ("torch", "torchvision", "pytest", "pytest-json-report", "nvidia-ml-py", "pydantic", "pytest-ddpscale"):
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "is not installed")
print("cuda", torch.version.cuda, "cudnn", torch.backends.cudnn.version(), "nccl", torch.cuda.nccl.version())
print("compiled for", *torch.cuda.get_arch_list())
for index in range(torch.cuda.device_count()):
    print(index, torch.cuda.get_device_properties(index))
PYTHON_CODE
)

SUMMARY=$(cat <<'PYTHON_CODE'
import json, sys, tarfile
from pathlib import Path

out, gpus, *lines = Path(sys.argv[1]), *sys.argv[2:]
parts = []
for line in lines:
    name, code, seconds, limit = line.split("\t")
    ended = {"exit_code": int(code), "seconds": int(seconds), "limit_s": int(limit)}
    parts.append({"name": name, "ok": code == "0", **ended})
summary = {"gpus": gpus, "ok": all(part["ok"] for part in parts), "parts": parts}
try:
    with tarfile.open(out / "run.tar.gz") as run:
        verdicts = json.load(run.extractfile("run/verdicts.json"))
    summary["run"] = {key: verdicts.get(key) for key in ("sku", "outcome", "reason")}
except (OSError, KeyError):
    pass  # the run has not ended, or has concluded nothing
for path in sorted(out.glob("fidelity-*.json")):
    summary[path.stem] = json.loads(path.read_text(encoding="utf-8"))["agreements"]
(out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
PYTHON_CODE
)
readonly VERSIONS SUMMARY

# Outcome of each part: name, exit code (-1: not started), seconds, limit in seconds, between tabs.
parts=()
failed=0

# note NAME EXIT_CODE SECONDS LIMIT_S: remember how a part ended, at once in summary.json too.
note() {
    local IFS=$'\t'
    parts+=("$*")
    [[ $2 == 0 ]] || failed=1
    "$PYTHON" -c "$SUMMARY" "$OUT" "$gpus" "${parts[@]}"
}

# part NAME LIMIT_S LOG COMMAND…: run it within what time is left, and keep its output.
part() {
    local name=$1 limit=$2 log=$3 began=$SECONDS code=0 left=$((LIMIT_S - SECONDS - GRACE_S))
    shift 3
    ((limit <= left)) || limit=$left
    if ((limit < 5)); then
        echo "$name: not started, the $LIMIT_S s are used up"
        note "$name" -1 0 0
        return
    fi
    # An interrupt, as Ctrl-C would send it: pytest and the benchmarks then stop their ranks, which hold the GPU.
    # A script started in the background ignores it, and so would they.
    timeout --signal=INT --kill-after="$GRACE_S" "$limit" env --default-signal=INT "$@" >>"$OUT/$log" 2>&1 || code=$?
    echo "$name: exit code $code after $((SECONDS - began)) s"
    note "$name" "$code" "$((SECONDS - began))" "$limit"
}

# As installed, pytest finds the plugin by itself; from a bare checkout it has to be named.
pytest_command=("$PYTHON" -m pytest -p no:cacheprovider)
"$PYTHON" -c 'import sys; from importlib.metadata import entry_points as found
sys.exit(not found(group="pytest11", name="ddpscale"))' || pytest_command+=(-p pytest_ddpscale.plugin)
# Only these: other tests need what a machine with a GPU may not have.
mapfile -t gpu_tests < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)

part nvidia-smi 20 machine.txt nvidia-smi
part versions 40 machine.txt "$PYTHON" -c "$VERSIONS"
part tests 140 tests.log "${pytest_command[@]}" -m gpu -v "${gpu_tests[@]}"
# Skipped tests are no evidence, though pytest exits with 0.
part some-tests-passed 10 machine.txt grep -E '[0-9]+ passed' "$OUT/tests.log"
part run 230 run.log "${pytest_command[@]}" --gpu-sku=auto --ddp-budget 3m --ddp-rounds 5 --ddp-allow-incomplete \
    --ddp-run-dir "$OUT/run"
if [[ -d $OUT/run ]]; then
    part pack 20 run.log tar -C "$OUT" -czf "$OUT/run.tar.gz" run
    rm -rf -- "$OUT/run"
fi
# bf16 beside fp16, whose gradient scaler waits for the GPU in every step and so hides what else would wait.
for precision in fp16 bf16; do
    part "fidelity-$precision" 110 fidelity.log "$PYTHON" benchmarks/fidelity.py --device cuda --model resnet50 \
        --batch-size 128 --image-size 224 --num-classes 1000 --precision "$precision" --memory-format channels_last \
        --launches 1 --rounds 40 --block-steps 10 --json "$OUT/fidelity-$precision.json"
done
exit "$failed"
