#!/usr/bin/env bash
# Evidence that needs an NVIDIA GPU, collected in at most nine minutes: the GPU tests, the nightly node-health run,
# a short training run with a profile, the cost of the telemetry sampler, the fidelity benchmark, and other commands.
#
#   usage: benchmarks/gpu_evidence.sh OUT_DIR [PART …]
#
# PART is one of tests, node-health, training, sampler, fidelity, inference, whole-run, find-max-batch and tune; by
# default it is all of them, in this order. Where a GPU is lent for less time, name some.
# OUT_DIR must be new or empty. It gets at most seven files: summary.json (each part's outcome, each run's verdicts,
# each benchmark's whole result), machine.txt, tests.log, run.log, tools.log, run.tar.gz (the directories of all runs)
# and benchmarks.log. A part that fails stops no other.
# PYTHON names the interpreter (default: python3); pytest-ddpscale need not be installed into it, but what it
# depends on must be: the first line names the packages to carry to a machine without a network, and the next
# those that it lacks. Settings of the card are only read.
#
# Exit code: 0 if every part succeeded, 1 if one did not, 2 for wrong usage, 3 without a GPU, 4 if packages are missing.
set -euo pipefail

readonly LIMIT_S=540
readonly GRACE_S=20 # between asking a part to stop and killing it
readonly EXIT_USAGE=2 EXIT_NO_GPU=3 EXIT_MISSING=4
# Beside torch and torchvision, which a machine with a GPU has: what is needed, and what that needs, as PACKAGE:MODULE.
readonly PACKAGES=(
    pytest:pytest iniconfig:iniconfig packaging:packaging pluggy:pluggy pygments:pygments
    pytest-json-report:pytest_jsonreport pytest-metadata:pytest_metadata nvidia-ml-py:pynvml pyyaml:yaml
    pydantic:pydantic pydantic-core:pydantic_core annotated-types:annotated_types typing-extensions:typing_extensions
    typing-inspection:typing_inspection matplotlib:matplotlib contourpy:contourpy
    cycler:cycler fonttools:fontTools kiwisolver:kiwisolver numpy:numpy pillow:PIL pyparsing:pyparsing
    python-dateutil:dateutil psutil:psutil msgspec:msgspec argcomplete:argcomplete
    prometheus-client:prometheus_client hypothesis:hypothesis sortedcontainers:sortedcontainers
)

usage() {
    echo "usage: $0 OUT_DIR [${PARTS// /|} …]" >&2
    exit "$EXIT_USAGE"
}

readonly PARTS="tests node-health training sampler fidelity inference whole-run find-max-batch tune"
[[ $# -ge 1 && $1 != -* ]] || usage
for wanted in "${@:2}"; do
    [[ " $PARTS " == *" $wanted "* ]] || usage
done
# is_wanted NAME, one of PARTS
wanted_parts=${*:2}
is_wanted() { [[ " ${wanted_parts:-$PARTS} " == *" $1 "* ]]; }
echo "to carry:" "${PACKAGES[@]%%:*}"
missing=$("${PYTHON:-python3}" - torch:torch torchvision:torchvision "${PACKAGES[@]}" <<'PYTHON_CODE'
import sys
from importlib.util import find_spec

print(*(name for name, module in (one.split(":") for one in sys.argv[1:]) if find_spec(module) is None))
PYTHON_CODE
)
if [[ -n $missing ]]; then
    {
        echo "$0: ${PYTHON:-python3} lacks $missing"
        echo "Where there is a network, and the same Python: pip download -d wheels, and those names. Carry wheels/ here;"
        echo "then pip install --no-index --find-links wheels, and those names."
    } >&2
    exit "$EXIT_MISSING"
fi
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

# What is packed in the end: OUT_DIR would have hundreds of files.
WORK=$(mktemp -d)
readonly WORK
trap 'rm -rf -- "$WORK"' EXIT

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
import json, sys
from pathlib import Path

out, work, gpus, *lines = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
parts = []
for line in lines:
    name, code, seconds, limit = line.split("\t")
    ended = {"exit_code": int(code), "seconds": int(seconds), "limit_s": int(limit)}
    parts.append({"name": name, "ok": code == "0", **ended})
runs = {}
for path in sorted(work.glob("*/verdicts.json")):
    found = json.loads(path.read_text(encoding="utf-8"))
    told = {one["id"]: [one["outcome"], one["value"], one["unit"]] for one in found["verdicts"]}
    runs[path.parent.name] = {key: found[key] for key in ("sku", "outcome", "reason")} | {"verdicts": told}
benchmarks = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*.json"))}
summary = {"gpus": gpus, "ok": all(part["ok"] for part in parts), "parts": parts, "runs": runs}
(out / "summary.json").write_text(json.dumps(summary | {"benchmarks": benchmarks}, indent=1) + "\n", encoding="utf-8")
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
    "$PYTHON" -c "$SUMMARY" "$OUT" "$WORK" "$gpus" "${parts[@]}" || failed=1
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
# Warnings of another machine's plugins must not cost a part.
pytest_command=("$PYTHON" -m pytest -p no:cacheprovider -W default)
"$PYTHON" -c 'import sys; from importlib.metadata import entry_points as found
sys.exit(not found(group="pytest11", name="ddpscale"))' || pytest_command+=(-p pytest_ddpscale.plugin)
# Only these: other tests need what a machine with a GPU may not have.
mapfile -t gpu_tests < <(grep -rl --include='test_*.py' 'mark\.gpu' tests | sort)

# Everything measured so far, packed again after each run.
pack() { part "pack-$1" 20 run.log tar -C "$WORK" -czf "$OUT/run.tar.gz" .; }

# run NAME LIMIT_S OPTION…: an acceptance run, packed as far as it came.
run() {
    local name=$1 limit=$2
    shift 2
    part "$name" "$limit" run.log "${pytest_command[@]}" --gpu-sku=auto --ddp-allow-incomplete \
        --ddp-run-dir="$WORK/$name" --ddp-history="$WORK/history.sqlite" "$@"
    pack "$name"
}

# tool NAME LIMIT_S COMMAND…: one of ddpscale's commands, packed as far as it came.
tool() {
    local name=$1 limit=$2
    shift 2
    part "$name" "$limit" tools.log "$PYTHON" -c 'import sys; from pytest_ddpscale.cli import main; sys.exit(main())' "$@"
    pack "$name"
}

# Limits are wider than what an H200 took in seconds: 5 for the first three, then 93, 45, 66, 41 and twice 45. What
# matters least comes last, and not all of it fits.
part nvidia-smi 15 machine.txt nvidia-smi
part nvidia-smi-q 15 machine.txt nvidia-smi -q
part versions 30 machine.txt "$PYTHON" -c "$VERSIONS"
if is_wanted tests; then
    part tests 140 tests.log "${pytest_command[@]}" -m gpu -v --durations=10 "${gpu_tests[@]}"
    # Skipped tests are no evidence, though pytest exits with 0.
    part some-tests-passed 10 machine.txt grep -E '[0-9]+ passed' "$OUT/tests.log"
fi
if is_wanted node-health; then
    run node-health 150 -m node_health --ddp-budget=85s
fi
# What is published for one GPU of most SKUs, and what DDP by itself costs.
if is_wanted training; then
    run training 120 -m 'not node_health' -k 'resnet50-nchw-fp16' --ddp-budget=75s --ddp-rounds=8 --ddp-profile=3
fi
if is_wanted sampler; then
    part sampler-overhead 80 benchmarks.log "$PYTHON" benchmarks/sampler_overhead.py --model resnet50 \
        --batch-size 256 --image-size 224 --block-s 1 --rounds 16 --json "$WORK/sampler-overhead.json"
fi
# bf16 beside fp16, whose gradient scaler waits for the GPU in every step and so hides what else would wait. With 128
# images an H200 waits for its host, and rounds differ by 10 %.
if is_wanted fidelity; then
    for precision in fp16 bf16; do
        part "fidelity-$precision" 70 benchmarks.log "$PYTHON" benchmarks/fidelity.py --device cuda --model resnet50 \
            --batch-size 512 --image-size 224 --num-classes 1000 --precision "$precision" \
            --memory-format channels_last --launches 1 --rounds 24 --block-steps 4 \
            --json "$WORK/fidelity-$precision.json"
    done
fi
of_one_gpu=(--model resnet50 --precision fp16)
if is_wanted inference; then
    tool inference 100 suite inference "${of_one_gpu[@]}" --batches=32,256 --ddp-budget=90s \
        --ddp-run-dir="$WORK/inference"
fi
if is_wanted whole-run; then
    tool whole-run 90 suite whole-run "${of_one_gpu[@]}" --batch=256 --made=2048 --epochs=2 --compile=default \
        --ddp-run-dir="$WORK/whole-run"
fi
# Until torch, cuDNN or the driver says that there is no memory left.
if is_wanted find-max-batch; then
    tool find-max-batch 180 find-max-batch "${of_one_gpu[@]}" --least=512 --steps=8 --json "$WORK/find-max-batch.json"
fi
if is_wanted tune; then
    tool tune 110 tune "${of_one_gpu[@]}" --batch=256 --ddp-budget=90s --ddp-run-dir="$WORK/tune" \
        --try='fused_optimizer=true'
fi
exit "$failed"
