#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show, collected in at most nine minutes:
# the GPU tests, a short acceptance run, and the fidelity benchmark.
#
#   usage: benchmarks/gpu_evidence.sh OUT_DIR
#
# OUT_DIR must be new or empty. It gets summary.json (each part's outcome), machine.txt, tests.log, run.log,
# run.tar.gz (the run directory), fidelity.log and fidelity.json. A part that fails stops no other.
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

gpu=$("$PYTHON" - 2>&1 <<'PYTHON_CODE'
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
    echo "$0: no NVIDIA GPU here, so nothing was run: $gpu" >&2
    rmdir -- "$OUT"
    exit "$EXIT_NO_GPU"
}
echo "$gpu"

# Outcome of each part: "name<TAB>exit code<TAB>seconds<TAB>limit in seconds".
parts=()

# part NAME LIMIT_S LOG COMMAND…: run it, keep its output, and remember how it ended.
part() {
    local name=$1 limit=$2 log=$3 began=$SECONDS code=0 left=$((LIMIT_S - SECONDS - GRACE_S))
    shift 3
    ((limit <= left)) || limit=$left
    if ((limit < 5)); then
        echo "$name: not started, the $LIMIT_S s are used up"
        parts+=("$name"$'\t'"-1"$'\t'"0"$'\t'"0")
        return
    fi
    # An interrupt, as Ctrl-C would: pytest and the benchmarks then stop their ranks, which hold the GPU.
    timeout --signal=INT --kill-after="$GRACE_S" "$limit" "$@" >>"$OUT/$log" 2>&1 || code=$?
    parts+=("$name"$'\t'"$code"$'\t'"$((SECONDS - began))"$'\t'"$limit")
    echo "$name: exit code $code after $((SECONDS - began)) s"
}

versions() {
    "$PYTHON" - <<'PYTHON_CODE'
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
}

# As installed, pytest finds the plugin by itself; from a bare checkout it has to be named.
pytest_command() {
    local installed='import sys; from importlib.metadata import entry_points as e
sys.exit(not e(group="pytest11", name="ddpscale"))'
    command=("$PYTHON" -m pytest)
    "$PYTHON" -c "$installed" || command+=(-p pytest_ddpscale.plugin)
}

pack_run() {
    [[ -d $OUT/run ]] || return 0
    tar -C "$OUT" -czf "$OUT/run.tar.gz" run && cp -- "$OUT/run/verdicts.json" "$OUT/.verdicts.json" 2>/dev/null || true
    rm -rf -- "$OUT/run"
}

write_summary() {
    printf '%s\n' "${parts[@]}" | "$PYTHON" -c '
import json, sys
from pathlib import Path

out, gpu = Path(sys.argv[1]), sys.argv[2]
fields = [line.rstrip("\n").split("\t") for line in sys.stdin]
parts = [
    {"name": name, "exit_code": int(code), "seconds": int(seconds), "limit_s": int(limit), "ok": code == "0"}
    for name, code, seconds, limit in fields
]
summary = {"gpus": gpu, "ok": all(part["ok"] for part in parts), "parts": parts}
verdicts, fidelity = out / ".verdicts.json", out / "fidelity.json"
if verdicts.exists():
    judged = json.loads(verdicts.read_text(encoding="utf-8"))
    summary["run"] = {"sku": judged["sku"], "outcome": judged["outcome"], "reason": judged.get("reason")}
    verdicts.unlink()
if fidelity.exists():
    summary["fidelity"] = json.loads(fidelity.read_text(encoding="utf-8"))["agreements"]
(out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
' "$OUT" "$gpu"
}

pytest_command
mapfile -t gpu_tests < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)

part nvidia-smi 20 machine.txt nvidia-smi
part nvidia-smi-topology 20 machine.txt nvidia-smi topo --matrix
export -f versions
export PYTHON
part versions 40 machine.txt bash -c versions
part tests 140 tests.log "${command[@]}" -p no:cacheprovider -m gpu -v "${gpu_tests[@]}"
part run 230 run.log "${command[@]}" -p no:cacheprovider --gpu-sku=auto --ddp-budget 3m --ddp-rounds 5 \
    --ddp-allow-incomplete --ddp-run-dir "$OUT/run"
pack_run
part fidelity 130 fidelity.log "$PYTHON" benchmarks/fidelity.py --device cuda --model resnet50 --batch-size 128 \
    --image-size 224 --num-classes 1000 --precision fp16 --memory-format channels_last --rounds 50 --block-steps 10 \
    --json "$OUT/fidelity.json"
write_summary

for line in "${parts[@]}"; do
    [[ $(cut -f2 <<<"$line") == 0 ]] || exit 1
done
