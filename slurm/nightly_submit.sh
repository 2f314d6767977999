#!/usr/bin/env bash
# Checks every idle node tonight, each by itself: one array job with a task per node.
#
#   slurm/nightly_submit.sh [--dry-run] [ARGUMENTS OF PYTEST]
#
# Run it from cron or scrontab, in the directory with your thresholds.yaml and acceptance/: see scrontab.example. It
# skips busy, drained, down and reserved nodes, and nodes that were already checked tonight. If another job takes a node
# in the meantime, Slurm drops its check after $DDPSCALE_NIGHTLY_WAIT_S seconds. Each task writes
# $DDPSCALE_RUNS/nightly/<date>/<node>, and <node>.log beside it. nightly_health.sbatch is the check itself.
#
# Slurm may place array tasks on any node, so the array is submitted held, and released once each task is pinned to its.

set -euo pipefail

# ---- site settings: edit them here, or export them -----------------------------------------------
: "${DDPSCALE_RUNS:=ddpscale-runs}"          # where run directories are kept, on a file system that all nodes share
: "${DDPSCALE_PARTITION:=}"                  # whose idle nodes are checked; empty: Slurm's default partition
: "${DDPSCALE_NIGHTLY_TIME_MIN:=20}"         # time limit of one node's check, in minutes
: "${DDPSCALE_NIGHTLY_WAIT_S:=900}"          # longest wait for a node that is no longer idle, in seconds; at least 120
: "${DDPSCALE_NIGHTLY_SBATCH:=}"             # further arguments of sbatch: --account=…, --qos=…, --gpus-per-node=…

dry_run=no
case "${1:-}" in
    --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --dry-run) dry_run=yes; shift ;;
esac
own_job="${SLURM_JOB_ID:-}"
own_node="${SLURMD_NODENAME:-}"
if [[ -n "$own_job" ]]; then  # from scrontab: this job's SLURM variables must not become options of the jobs it submits
    for name in "${!SLURM@}"; do
        if [[ "$name" != SLURM_CONF ]]; then unset "$name"; fi
    done
fi

script="$(cd "$(dirname "$0")" && pwd)/nightly_health.sbatch"
export DDPSCALE_RUNS DDPSCALE_NIGHT
DDPSCALE_NIGHT="$(date +%F)"
folder="$DDPSCALE_RUNS/nightly/$DDPSCALE_NIGHT"
partition="${DDPSCALE_PARTITION:-$(sinfo --noheader --format=%P | sed -n 's/\*$//p' | head -n 1)}"
: "${partition:?Slurm has no default partition: set DDPSCALE_PARTITION}"

# Whether only this script's own job keeps the node busy: then its check starts as soon as this script ends.
only_we_are_on() {
    [[ -n "$own_job" && "$1" == "$own_node" && "$(squeue --noheader --nodelist="$1" --format=%A)" == "$own_job" ]]
}

nodes=()
while read -r node state; do
    case "$state" in
        idle) ;;  # no suffix: idle* does not respond, idle~ is powered down; a planned node waits for a larger job
        mixed | allocated) only_we_are_on "$node" || continue ;;
        *) continue ;;
    esac
    if [[ -e "$folder/$node/run.json" ]]; then continue; fi
    nodes+=("$node")
done < <(sinfo --noheader --Node --partition="$partition" --format='%N %T' | sort -u)

if [[ ${#nodes[@]} -eq 0 ]]; then
    echo "ddpscale: partition $partition has no idle node that was not checked tonight"
    exit 0
fi
echo "ddpscale: checking ${#nodes[@]} idle nodes of partition $partition into $folder: ${nodes[*]}"
if [[ $dry_run == yes ]]; then exit 0; fi

mkdir -p "$folder"
read -r -a site_arguments <<<"$DDPSCALE_NIGHTLY_SBATCH"
most_tasks="$(scontrol show config | sed -n 's/^MaxArraySize *= *//p')"
if ((most_tasks < 1)); then
    echo "ddpscale: slurm.conf has MaxArraySize=$most_tasks, so there are no job arrays: submit nightly_health.sbatch" \
        "for each node" >&2
    exit 1
fi

# submit COUNT FIRST ARGUMENTS...: one array of COUNT tasks over the nodes from index FIRST on.
submit() {
    local count=$1 first=$2 task
    shift 2
    # --deadline limits the end of a task: Slurm removes a task that starts too late to meet it with this time limit.
    held="$(sbatch --parsable --hold --array="0-$((count - 1))" --partition="$partition" \
        --time="$DDPSCALE_NIGHTLY_TIME_MIN" \
        --deadline="now+$((DDPSCALE_NIGHTLY_TIME_MIN * 60 + DDPSCALE_NIGHTLY_WAIT_S))seconds" \
        --output="$folder/%N.log" "${site_arguments[@]}" "$script" "$@")"
    held="${held%%;*}"
    for ((task = 0; task < count; task++)); do
        scontrol update JobId="${held}_$task" ReqNodeList="${nodes[first + task]}"
    done
    scontrol release "$held"
    echo "ddpscale: submitted job $held"
    held=""
}

held=""
# Tasks that are not pinned could check one node twice and skip another, so cancel an array that is still held.
trap 'if [[ -n "$held" ]]; then scancel "$held"; fi' EXIT
for ((first = 0; first < ${#nodes[@]}; first += most_tasks)); do
    left=$((${#nodes[@]} - first))
    submit "$((left < most_tasks ? left : most_tasks))" "$first" "$@"
done
