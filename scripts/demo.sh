#!/usr/bin/env bash
# A lab from start to verdict: capture, evidence, a diagnosis, a check that fails for its reason, the solution, a check that passes.
# Exit status 0 only if both checks came out so. On the emulated device, which is the same everywhere.
set -uo pipefail

place="${1:-$(mktemp -d "${TMPDIR:-/tmp}/bottleneck-lab-demo.XXXXXX")}"
folder="$place/idle-gpu"

step() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }
give_up() { printf '\n%s\n' "The demonstration stopped: $*" >&2; exit 1; }

step lab start idle-gpu "$folder" --device virtual || give_up "the lab could not be started"
cd "$folder" || give_up "$folder is not there"
step lab run || give_up "the workload does not run"
step lab profile || give_up "the workload could not be captured"
step lab report --gap 1 || give_up "the capture could not be read"

# What a learner reads off the page: the share in which the device is idle, and the longest stretch of it.
read -r idle stretch < <(lab report --json | python3 -c '
import json, sys
summary = json.load(sys.stdin)["summary"]
use = summary["devices"][0]
gap = max(use["largest_gaps"], key=lambda gap: gap["end_ns"] - gap["start_ns"])
begin, end = ((gap[key] - summary["origin_ns"]) / 1e6 for key in ("start_ns", "end_ns"))
print(round(use["idle_ns"] / use["wall_ns"], 2), f"{begin:.1f}-{end:.1f}ms")')
step lab diagnose -a cause=input-bound -a evidence="$idle" -a where="$stretch" -a predicted_gain=2.2 ||
    give_up "the diagnosis was not taken"
step lab report || give_up "the capture could not be read"

step lab check
status=$?
[[ $status == 1 ]] || give_up "the shipped workload should FAIL (1), but the check ended with $status"

step lab solution --yes || give_up "the solution could not be copied"
step lab check
status=$?
[[ $status == 0 ]] || give_up "the solution should PASS (0), but the check ended with $status"

step lab report --html report.html || give_up "the report could not be written"
step lab history
printf '\nThe report:  %s\nThe capture: %s\n' "$folder/report.html" "$(ls -d "$folder"/.lab/captures/*/ | tail -1)"
ls -1 "$folder"/.lab/captures/*/
