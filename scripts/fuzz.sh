#!/usr/bin/env bash
# fuzz.sh SECONDS: lets every libFuzzer program of build/fuzz search for SECONDS, two at a time, from the kept corpus of
# tests/fuzz/corpus. What a search adds stays in build/fuzz/grown, what it breaks in build/fuzz/found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:?usage: scripts/fuzz.sh SECONDS}

search() {
  local seconds=$1 program=$2 name log
  name=$(basename "$program" _fuzz)
  log=build/fuzz/$name.log
  mkdir -p "build/fuzz/grown/$name" build/fuzz/found
  if "$program" -max_total_time="$seconds" -max_len=4096 -timeout=20 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$name-" "build/fuzz/grown/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    printf '%-14s %9d inputs, nothing found\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  else
    # What follows the first report is of no use to a reader.
    grep -v -e NEW -e REDUCE -e pulse "$log" | head -60
    printf '%-14s FOUND SOMETHING: %s; reproduce: %s FILE\n' "$name" "build/fuzz/found/$name-*" "$program"
    return 1
  fi
}
export -f search

# In order of their names; xargs ends with an error if any of them does.
printf '%s\n' build/fuzz/tests/fuzz/*_fuzz | xargs -P 2 -I {} bash -c 'search "$@"' _ "$seconds" {}
