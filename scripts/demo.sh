#!/usr/bin/env bash
# The first lab from start to verdict: capture, report, a check that fails for its reason, the solution, a check that passes.
# Exit status 0 only if both checks came out so. On the emulated device, which is the same everywhere.
set -uo pipefail

place="${1:-$(mktemp -d "${TMPDIR:-/tmp}/bottleneck-lab-demo.XXXXXX")}"
folder="$place/dataloader"

step() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }
give_up() { printf '\n%s\n' "The demonstration stopped: $*" >&2; exit 1; }

step lab start dataloader "$folder" --device virtual || give_up "the lab could not be started"
cd "$folder" || give_up "$folder is not there"
step lab run || give_up "the workload does not run"
step lab profile || give_up "the workload could not be captured"
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
