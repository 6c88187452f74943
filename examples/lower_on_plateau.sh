#!/usr/bin/env bash
# Halves the learning rate when a metric has not fallen for PATIENCE looks: lower_on_plateau.sh RUN [METRIC] [PATIENCE]
set -euo pipefail
run=$1 metric=${2:-train/loss} patience=${3:-10} best='' stale=0 file=$run/procfs/state/metrics/${metric//\//%2F}
while value=$(cat "$file"); do
    stale=$((stale + 1))
    if awk -v v="$value" -v b="$best" 'BEGIN { exit !(v ~ /[0-9]/ && (b == "" || v + 0 < b + 0)) }'; then best=$value stale=0; fi
    if ((stale >= patience)); then
        rate=$(jq '.optimizers[0].groups[0].lr / 2' "$run/procfs/state/optimizers.json")
        id=plateau-$(date +%s%N) stale=0
        echo "{\"kind\": \"set_learning_rate\", \"args\": {\"value\": $rate}, \"source\": \"script\"}" > "$run/spool/new/.$id"
        mv "$run/spool/new/.$id" "$run/spool/new/$id.json"
    fi
    sleep "${EVERY:-10}"
done
