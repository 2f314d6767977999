#!/usr/bin/env bash
# Takes nodes out of service that a run rejected, or puts back those that it took out itself.
#
#   slurm/drain_failed.sh [--apply] [--node NODE] RUN_DIR...             what would be drained, and why
#   slurm/drain_failed.sh [--apply] [--node NODE] --nightly DIR          the same of all runs of one night
#   slurm/drain_failed.sh [--apply] [--node NODE] --resume RUN_DIR...    what would be resumed
#   slurm/drain_failed.sh --rehearse RUN_DIR...                          what would be drained, were simulated nodes real
#
# Nothing is changed without --apply, which takes a Slurm operator or administrator. DIR is the folder of one night,
# or the folder `nightly`, of which the latest night is taken. --node: leave all other nodes alone.
#
# Drained: nodes that a rejected run names as a culprit, or whose GPU it names, and the node of a rejected run on one
# node. Never for a warning, a waived failure, an undecided requirement or an error, and never by a run that was simulated, imported or
# interrupted. Links are told: either end may be at fault. A node that is drained, down or reserved for maintenance, or
# that carries somebody's reason, is left alone. Resumed: nodes whose reason begins with `ddpscale:` and that took part
# in an accepted run which began after they were drained. A partial, incomplete or resumed run brings nobody back, nor
# one with waivers a host that a waived failure names.
#
# A drained node takes no jobs. To have it measured: `pytest --gpu-sku=SKU --ddp-launcher=torchrun` on it, as root.
# Exit code: 0; 1 if Slurm refused something; 2 after a wrong command line; 4 if a run could not be read.

set -euo pipefail

# ---- site settings: edit them here, or export them -----------------------------------------------
: "${DDPSCALE_VENV:=.venv}"  # virtual environment with pytest-ddpscale
# --------------------------------------------------------------------------------------------------

wrong() {
    echo "drain_failed.sh: $1; see drain_failed.sh --help" >&2
    exit 2
}

apply=no only="" action=drain nightly=no rehearse=() runs=()
shopt -s nullglob

# The runs of one night: of DIR, or of the latest night in it.
add_nightly() {
    local folder="$1" nights found
    [[ -d "$folder" ]] || wrong "$folder is no directory"
    nights=("$folder"/????-??-??)
    if [[ ${#nights[@]} -gt 0 ]]; then folder="${nights[-1]}"; fi
    found=("$folder"/*/run.json)
    runs+=("${found[@]%/run.json}")
    nightly=yes
    echo "night: $folder, ${#found[@]} runs"
}

while [[ $# -gt 0 ]]; do
    case "$1" in
        --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --apply) apply=yes ;;
        --resume) action=resume ;;
        --rehearse) rehearse=(--rehearse) ;;
        --node) only="${2:?--node needs a name}"; shift ;;
        --nightly) add_nightly "${2:?--nightly needs a directory}"; shift ;;
        -*) wrong "unknown option $1" ;;
        *) runs+=("$1") ;;
    esac
    shift
done
if [[ ${#runs[@]} -eq 0 ]]; then
    [[ $nightly == yes ]] || wrong "no run directory was named"
    exit 0
fi

failures=0

# node_of HOST: Slurm's name of the host that a run recorded; nothing if it has no such node. Compared as they stand
# are NodeName, then NodeHostName (%n) and NodeAddr (%o) if only one node has it. Nothing is cut off: n1.site and n1
# may be machines of two clusters.
node_of() {
    sinfo --all --noheader --Node --format='%N %n %o' |
        awk -v host="$1" '
            $1 == host { named = $1 }
            ($2 == host || $3 == host) && !($1 in seen) { seen[$1]; found = $1; nodes++ }
            END { if (named != "") print named; else if (nodes == 1) print found }'
}

# state_of NODE, since_of NODE, reason_of NODE: as Slurm has them now. The moment is in seconds since 1970.
state_of() { sinfo --all --noheader --Node --nodes="$1" --format=%T | sort -u | tail -n 1; }
since_of() { SLURM_TIME_FORMAT=%s sinfo --all --noheader --Node --nodes="$1" --format=%H | sort -u | tail -n 1; }
reason_of() { sinfo --all --noheader --Node --nodes="$1" --format=%E | sort -u | tail -n 1; }

# Slurm has no such nodes, and is not asked: nothing can be changed.
if [[ ${#rehearse[@]} -gt 0 ]]; then
    [[ $apply == no ]] || wrong "--rehearse changes nothing; found --apply beside it"
    node_of() { echo "$1"; }
    state_of() { echo idle; }
    reason_of() { echo none; }
    echo "rehearsal: simulated nodes, Slurm was not asked"
fi

# act WORD COMMAND...: run a command that changes Slurm, or say that it would be run.
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
    local node="$1" reason="$2" state held
    state="$(state_of "$node")"
    held="$(reason_of "$node")"
    # What these marks mean: * does not answer, $ maintenance, @ and ^ reboot.
    case "${state%[-~#%!]}" in
        idle | allocated | mixed | completing | reserved | planned) ;;
        *) echo "leave $node: it is $state ($held); it would be drained for: $reason"; return ;;
    esac
    case "$held" in
        none | ddpscale:*) ;;
        *) echo "leave $node: it carries the reason \"$held\"; it would be drained for: $reason"; return ;;
    esac
    act "drain $node: $reason" scontrol update nodename="$node" state=drain reason="$reason"
}

resume() {
    local node="$1" started="$2" run="$3" state held since
    state="$(state_of "$node")"
    held="$(reason_of "$node")"
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
findings="$("$DDPSCALE_VENV/bin/ddpscale" culprits "${rehearse[@]}" --format=tsv "${runs[@]}")" || status=$?

declare -A seen=()
while IFS=$'\t' read -r use host started run reason; do
    if [[ "$use" == look && $action == drain && -z "$only" ]]; then echo "for a person: $host: ${reason#ddpscale: }"; fi
    if [[ "$use" == none && -z "$only" ]]; then echo "nothing to do: ${reason#ddpscale: }"; fi
    if [[ "$use" != drain || $action != drain ]] && [[ "$use" != accepted || $action != resume ]]; then continue; fi
    node="$(node_of "$host")"
    if [[ -z "$node" ]]; then
        echo "skip $host: Slurm has no such node (${reason#ddpscale: })"
        continue
    fi
    if [[ -n "$only" && "$node" != "$only" ]] || [[ -n "${seen[$node]:-}" && $action == drain ]]; then continue; fi
    seen[$node]=yes
    if [[ $action == drain ]]; then drain "$node" "$reason"; else resume "$node" "$started" "$run"; fi
done < <(tail -n +2 <<<"$findings")

if [[ $status -ne 0 ]]; then exit "$status"; fi
if [[ $failures -ne 0 ]]; then exit 1; fi
