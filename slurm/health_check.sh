#!/usr/bin/env bash
# Drains this node if the last night's check rejected it: for slurmd's HealthCheckProgram.
#
#   # in slurm.conf; put a copy on each node and edit its settings, because slurmd passes no environment
#   HealthCheckProgram=/etc/slurm/ddpscale_health_check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY
#
# It never measures: slurmd waits for it, for at most 60 seconds, and calls it while jobs run. nightly_submit.sh
# measures; this script reads the verdict. It returns at once, even if the shared file system hangs, because a single
# background process in a session of its own does all reading, and starts Python only for a new verdict, once a night.
# It acts on a verdict once: a node that an administrator resumes stays resumed until a newer check rejects it.
#
# It runs as root: allow only operators to write to $DDPSCALE_RUNS.

set -euo pipefail

# ---- site settings: edit them here, or export them -----------------------------------------------
: "${DDPSCALE_VENV:=/opt/ddpscale/venv}"             # virtual environment with pytest-ddpscale
: "${DDPSCALE_SCRIPTS:=/shared/site/slurm}"          # where drain_failed.sh is
: "${DDPSCALE_RUNS:=/shared/site/ddpscale-runs}"     # where nightly_submit.sh keeps its runs
: "${DDPSCALE_HEALTH_HOURS:=36}"                     # older verdicts are ignored
: "${DDPSCALE_HEALTH_STATE:=/var/lib/ddpscale}"      # local folder: the latest verdict seen, and a log of the action
: "${DDPSCALE_SLURM_BIN:=/usr/bin}"                  # where sinfo and scontrol are: slurmd passes no PATH
: "${SLURM_CONF:=}"                                  # slurm.conf, if sinfo and scontrol do not find it themselves

export PATH="$DDPSCALE_SLURM_BIN:${PATH:-/usr/local/bin:/usr/bin:/bin}"
if [[ -n "$SLURM_CONF" ]]; then export SLURM_CONF; else unset SLURM_CONF; fi
node="${SLURMD_NODENAME:-$(hostname -s)}"

look() {
    exec 9>"$DDPSCALE_HEALTH_STATE/lock"
    flock --nonblock 9 || return 0  # an earlier process still hangs on the file system and will handle the verdict
    local found run written
    shopt -s nullglob
    found=("$DDPSCALE_RUNS"/nightly/????-??-??/"$node"/verdicts.json)
    if [[ ${#found[@]} -eq 0 ]]; then return; fi
    run="${found[-1]%/verdicts.json}"
    written="$(stat --format=%Y "$run/verdicts.json")"
    if (($(date +%s) - written > DDPSCALE_HEALTH_HOURS * 3600)); then return; fi
    if [[ "$(cat "$DDPSCALE_HEALTH_STATE/seen" 2>/dev/null)" == "$written $run" ]]; then return; fi
    exec >"$DDPSCALE_HEALTH_STATE/log" 2>&1
    # After a failure the verdict stays unseen, so the next call tries again: slurmctld may have been down.
    DDPSCALE_VENV="$DDPSCALE_VENV" nice -n 19 "$DDPSCALE_SCRIPTS/drain_failed.sh" --apply --node "$node" "$run"
    echo "$written $run" >"$DDPSCALE_HEALTH_STATE/seen"
}

case "${1:-}" in
    --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" ;;
    --look) look ;;
    *)
        mkdir -p "$DDPSCALE_HEALTH_STATE"
        setsid "$0" --look </dev/null >/dev/null 2>&1 &
        ;;
esac
