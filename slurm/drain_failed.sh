#!/usr/bin/env bash
# Drains nodes that a run rejected, or resumes nodes that this script drained.
#
#   slurm/drain_failed.sh [--apply] [--node NODE] RUN_DIR...             drain, by these runs
#   slurm/drain_failed.sh [--apply] [--node NODE] --nightly DIR          drain, by all runs of one night
#   slurm/drain_failed.sh [--apply] [--node NODE] --resume RUN_DIR...    resume, by these runs
#   slurm/drain_failed.sh --rehearse RUN_DIR...                          try it on simulated runs
#
# Without --apply it only prints what it would do, and why. --apply takes a Slurm operator or administrator. DIR is the
# folder of one night, or the folder `nightly`, whose latest night is used. --node: leave all other nodes alone.
#
# It drains nodes that a rejected run names as a culprit, or whose GPU it names, and the node of a rejected run on one
# node. It never drains for a warning, a waived failure, an undecided requirement or an error, nor by a simulated,
# imported or interrupted run. Links are only printed, because either end may be at fault, and so are nodes whose nightly
# check measured nothing, such as one without a driver. A node that is drained, down or reserved for maintenance, or that
# has somebody else's reason, is left alone.
# It resumes nodes whose reason begins with `ddpscale:` and that were in an accepted run which began after they were
# drained. A partial, incomplete or resumed run resumes no node; a run with waivers resumes no host that a waived failure
# names.
#
# A drained node takes no jobs. To measure it, run `pytest --gpu-sku=SKU --ddp-launcher=torchrun` on it, as root.
# Exit code: 0; 1 if Slurm refused a change; 4 for a wrong command line, without ddpscale, or if a run could not be read.

set -euo pipefail

# ---- site settings: edit them here, or export them -----------------------------------------------
: "${DDPSCALE_VENV:=.venv}"  # virtual environment with pytest-ddpscale; without .venv here, ddpscale on PATH is used

wrong() {
    echo "drain_failed.sh: $1; see drain_failed.sh --help" >&2
    exit 4
}

apply=no only="" action=drain nightly=no rehearse=() runs=() unmeasured=()
shopt -s nullglob

# The runs of one night: of DIR, or of the latest night in it.
add_nightly() {
    local folder="$1" nights found
    [[ -d "$folder" ]] || wrong "$folder is not a directory"
    nights=("$folder"/????-??-??)
    if [[ ${#nights[@]} -gt 0 ]]; then folder="${nights[-1]}"; fi
    found=("$folder"/*/run.json)
    runs+=("${found[@]%/run.json}")
    nightly=yes
    echo "night: $folder, ${#found[@]} runs"
    local log node why
    for log in "$folder"/*.log; do
        node="$(basename "$log" .log)"
        if [[ -e "$folder/$node/run.json" ]]; then continue; fi
        why="$(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")"
        unmeasured+=("inspect $node: its check measured nothing: ${why#ERROR: } [$log]")
    done
}

while [[ $# -gt 0 ]]; do
    case "$1" in
        --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --apply) apply=yes ;;
        --resume) action=resume ;;
        --rehearse) rehearse=(--rehearse) ;;
        --node) [[ -n "${2:-}" ]] || wrong "--node needs a name"; only="$2"; shift ;;
        --nightly) [[ -n "${2:-}" ]] || wrong "--nightly needs a directory"; add_nightly "$2"; shift ;;
        -*) wrong "unknown option $1" ;;
        *) runs+=("$1") ;;
    esac
    shift
done
if [[ $action == drain && -z "$only" && ${#unmeasured[@]} -gt 0 ]]; then printf '%s\n' "${unmeasured[@]}"; fi
if [[ ${#runs[@]} -eq 0 ]]; then
    [[ $nightly == yes ]] || wrong "found no run directory; expected one or more, or --nightly DIR"
    exit 0
fi

if [[ -x "$DDPSCALE_VENV/bin/ddpscale" ]]; then
    ddpscale=("$DDPSCALE_VENV/bin/ddpscale")
elif [[ "$DDPSCALE_VENV" != .venv ]]; then
    wrong "DDPSCALE_VENV is $DDPSCALE_VENV, which has no bin/ddpscale"
elif command -v ddpscale >/dev/null; then
    ddpscale=(ddpscale)
elif python3 -c 'import pytest_ddpscale' 2>/dev/null; then
    ddpscale=(python3 -m pytest_ddpscale.cli)
else
    wrong "found no ddpscale in .venv, on PATH or in python3; name its virtual environment with DDPSCALE_VENV=DIR"
fi
failures=0

# node_of HOST: Slurm's name of the host that a run recorded; empty if Slurm has no such node. It matches NodeName, then
# NodeHostName (%n) and NodeAddr (%o) if only one node has it. Names are not shortened: n1.site and n1 may be machines
# of two clusters.
node_of() {
    sinfo --all --noheader --Node --format='%N %n %o' |
        awk -v host="$1" '
            $1 == host { named = $1 }
            ($2 == host || $3 == host) && !($1 in seen) { seen[$1]; found = $1; nodes++ }
            END { if (named != "") print named; else if (nodes == 1) print found }'
}

# state_of NODE, since_of NODE, reason_of NODE: the current values in Slurm. The time is in seconds since 1970.
state_of() { sinfo --all --noheader --Node --nodes="$1" --format=%T | sort -u | tail -n 1; }
since_of() { SLURM_TIME_FORMAT=%s sinfo --all --noheader --Node --nodes="$1" --format=%H | sort -u | tail -n 1; }
reason_of() { sinfo --all --noheader --Node --nodes="$1" --format=%E | sort -u | tail -n 1; }

# Slurm does not know simulated nodes, so a rehearsal neither asks nor changes it.
if [[ ${#rehearse[@]} -gt 0 ]]; then
    [[ $apply == no ]] || wrong "--rehearse changes nothing and cannot be combined with --apply"
    node_of() { echo "$1"; }
    state_of() { echo idle; }
    reason_of() { echo none; }
    echo "rehearsal: simulated nodes, Slurm was not asked"
fi

# act WORD COMMAND...: run a command that changes Slurm, or without --apply print that it would run.
act() {
    local word="$1"
    shift
    if [[ $apply == no ]]; then
        echo "would $word"
    elif "$@"; then
        echo "$word: done"
    else
        echo "$word: refused by Slurm" >&2
        failures=$((failures + 1))
    fi
}

drain() {
    local node="$1" reason="$2"
    # The suffixes *, $, @ and ^ (no response, maintenance, reboot) are not stripped, so such nodes are left alone.
    case "${state%[-~#%!]}" in
        idle | allocated | mixed | completing | reserved | planned) ;;
        *) echo "leave $node: it is $state ($held); it would be drained for: $reason"; return ;;
    esac
    case "$held" in
        none | ddpscale:*) ;;
        *) echo "leave $node: it already has the reason \"$held\"; it would be drained for: $reason"; return ;;
    esac
    act "drain $node: $reason" scontrol update nodename="$node" state=drain reason="$reason"
}

resume() {
    local node="$1" started="$2" run="$3" since
    since="$(since_of "$node")"
    case "$state" in
        drained* | draining*) ;;
        *) echo "leave $node: it is $state"; return ;;
    esac
    if [[ "$held" != ddpscale:* ]]; then
        echo "leave $node: ddpscale did not drain it ($held)"
    elif [[ ! "$since" =~ ^[0-9]+$ ]] || ((started <= since)); then
        echo "leave $node: $run began before it was drained ($held)"
    else
        act "resume $node: accepted by $run, was drained for: $held" scontrol update nodename="$node" state=resume
    fi
}

status=0
findings="$("${ddpscale[@]}" culprits "${rehearse[@]}" --format=tsv "${runs[@]}")" || status=$?

declare -A seen=()
while IFS=$'\t' read -r use host started run reason; do
    if [[ "$use" == look && $action == drain && -z "$only" ]]; then echo "inspect $host: ${reason#ddpscale: }"; fi
    if [[ "$use" == none && -z "$only" ]]; then echo "nothing to do: ${reason#ddpscale: }"; fi
    if [[ "$use" != drain || $action != drain ]] && [[ "$use" != accepted || $action != resume ]]; then continue; fi
    node="$(node_of "$host")"
    if [[ -z "$node" ]]; then
        echo "skip $host: Slurm has no such node (${reason#ddpscale: })"
        continue
    fi
    if [[ -n "$only" && "$node" != "$only" ]] || [[ -n "${seen[$node]:-}" && $action == drain ]]; then continue; fi
    seen[$node]=yes
    state="$(state_of "$node")"
    held="$(reason_of "$node")"
    if [[ $action == drain ]]; then drain "$node" "$reason"; else resume "$node" "$started" "$run"; fi
done < <(tail -n +2 <<<"$findings")

if [[ $status -ne 0 ]]; then exit "$status"; fi
if [[ $failures -ne 0 ]]; then exit 1; fi
