#!/usr/bin/env bash
# Prints the tests that a test run skipped, and the twenty slowest tests.
#
#   scripts/slowest.sh JUNIT-FILE
set -euo pipefail

if skipped=$(grep -o 'SKIP: [^<]*' "$1"); then
    printf '\nSkipped:\n'
    sort <<<"$skipped" | uniq -c
fi
printf '\nThe twenty slowest tests, in seconds:\n'
sed -nE 's/.*<testcase name="([^"]*)" classname="([^"]*)".* time="([^"]*)".*/\3 \2 \1/p' "$1" |
    sort -rn | awk 'NR <= 20 { printf "%8.1f  %s %s\n", $1, $2, $3 }'
