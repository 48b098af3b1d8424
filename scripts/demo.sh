#!/usr/bin/env bash
# A lab from start to verdict: capture, evidence, a diagnosis, a check that fails for its reason, the
# solution, a check that passes. Exit status 0 only if both checks came out so.
#
# The lab's device is emulated and its times are modelled, so other programs on this machine make the
# demonstration slower, but they can't change its verdicts.
set -uo pipefail

scratch="${1:-$(mktemp -d "${TMPDIR:-/tmp}/bottleneck-lab-demo.XXXXXX")}"
folder="$scratch/stuttering-tagger"
solution="$(cd "$(dirname "$0")/../solutions/stuttering-tagger" && pwd)"

step() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }
give_up() { printf '\n%s\n' "The demonstration stopped: $*" >&2; exit 1; }

step lab start stuttering-tagger "$folder" --device virtual || give_up "the lab could not be started"
cd "$folder" || give_up "$folder is not there"
step lab profile || give_up "the workload could not be captured"
step lab report || give_up "the capture could not be read"

step lab report --ask budget || give_up "the lines of a step could not be added up"

# From this capture, as a learner reads it off the report: which share of a step is saved without the
# line that waits longest, and a stretch to point at, its last millisecond and a half in some step.
# Cause and gain are the solution's, which a learner works out from the report.
evidence=$(lab report --json --ask budget | python3 -c '
import json, sys
answer = json.load(sys.stdin)
rows = [dict(zip(answer["columns"], row)) for row in answer["rows"]]
waiting = [row for row in rows if row["waiting_ms"] and row["saves_percent"]]
print(round(max(waiting, key=lambda row: row["waiting_ms"])["saves_percent"] / 100, 3))')
stretch=$(lab report --json --query "select end from python where name = (select line from waits
    group by line order by sum(duration) desc limit 1) limit 1" | python3 -c '
import json, sys
end = json.load(sys.stdin)["rows"][0][0] / 1e6
print(f"{end - 1.6:.1f}-{end - 0.1:.1f}ms")')
answer() { sed -n "s/^$1 = //p" "$solution/diagnosis.toml" | tr -d '"'; }
step lab diagnose -a cause="$(answer cause)" -a evidence="$evidence" -a where="$stretch" \
    -a predicted_gain="$(answer predicted_gain)" || give_up "the diagnosis was not accepted"

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
