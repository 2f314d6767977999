#!/usr/bin/env bash
# Drains this node if the last night's check rejected it: for slurmd's HealthCheckProgram.
#
#   # in slurm.conf; a copy on each node, with the settings edited in it, as slurmd has no environment of yours
#   HealthCheckProgram=/etc/slurm/ddpscale_health_check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY
#
# It never measures. slurmd waits for its health check, for at most 60 seconds, and calls it while jobs run: a
# measurement takes minutes, and would take GPUs from those jobs. The measuring is nightly_submit.sh's; this reads
# what that found. It returns at once, whatever the shared file system does: all reading is left to a process in the
# background, in a session of its own, of which there is never more than one. (That is also why the copy is a local
# one.) That process starts Python only for a verdict that it has not seen yet, once a night, so that a thousand nodes
# do not load the file system every interval.
# A verdict is acted on once: a node that an administrator resumes stays resumed until a newer check rejects it.
#
# Runs as root: let nobody but operators write to $DDPSCALE_RUNS.

set -euo pipefail

# ---- site settings: edit them here, or export them -----------------------------------------------
: "${DDPSCALE_VENV:=/opt/ddpscale/venv}"             # virtual environment with pytest-ddpscale
: "${DDPSCALE_SCRIPTS:=/shared/site/slurm}"          # where drain_failed.sh is
: "${DDPSCALE_RUNS:=/shared/site/ddpscale-runs}"     # where nightly_submit.sh keeps its runs
: "${DDPSCALE_HEALTH_HOURS:=36}"                     # a verdict that is older says nothing of today
: "${DDPSCALE_HEALTH_STATE:=/var/lib/ddpscale}"      # local folder: which verdict was seen, and what was done
: "${DDPSCALE_SLURM_BIN:=/usr/bin}"                  # where sinfo and scontrol are: slurmd passes no PATH
: "${SLURM_CONF:=}"                                  # slurm.conf, if they do not find it by themselves
# --------------------------------------------------------------------------------------------------

export PATH="$DDPSCALE_SLURM_BIN:${PATH:-/usr/local/bin:/usr/bin:/bin}"
if [[ -n "$SLURM_CONF" ]]; then export SLURM_CONF; else unset SLURM_CONF; fi
node="${SLURMD_NODENAME:-$(hostname -s)}"

look() {
    exec 9>"$DDPSCALE_HEALTH_STATE/lock"
    flock --nonblock 9 || return 0  # the one before hangs on the file system, and will see to it
    local found run written
    shopt -s nullglob
    found=("$DDPSCALE_RUNS"/nightly/????-??-??/"$node"/verdicts.json)
    if [[ ${#found[@]} -eq 0 ]]; then return; fi
    run="${found[-1]%/verdicts.json}"
    written="$(stat --format=%Y "$run/verdicts.json")"
    if (($(date +%s) - written > DDPSCALE_HEALTH_HOURS * 3600)); then return; fi
    if [[ "$(cat "$DDPSCALE_HEALTH_STATE/seen" 2>/dev/null)" == "$written $run" ]]; then return; fi
    exec >"$DDPSCALE_HEALTH_STATE/log" 2>&1
    # If this fails it is tried again at the next call: slurmctld may have been away.
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
