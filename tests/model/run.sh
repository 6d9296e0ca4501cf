#!/usr/bin/env bash
# Checks every configuration with spin: `ok` ones must have no counterexample, `bad` ones must have one. Works in a temporary folder.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unexpected=0

# check ok|bad MODEL DEFINES...
check() {
  local want=$1 model=$2 got=bad
  shift 2
  spin -a "$@" "$here/$model" >spin.log
  gcc -w -O2 -DSAFETY -o pan pan.c # generated code: its warnings are not ours
  ./pan -m200000 >pan.log
  if grep -q 'errors: 0' pan.log; then got=ok; fi
  # A search that did not finish proves nothing.
  if grep -qE 'max search depth too small|out of memory|memory limit' pan.log; then got=incomplete; fi
  if [[ $got != "$want" ]]; then unexpected=$((unexpected + 1)); fi
  printf '%-4s expected %-4s %s %s (%s states)\n' "$got" "$want" "$model" "$*" "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log)"
}

for path in "" -DPRE; do
  for ranks in 2 3; do
    calls=$((7 - ranks - ranks / 3))
    # shellcheck disable=SC2086  # an empty switch is no argument
    check ok refusal.pml -DN=$ranks -DCALLS=$calls $path
  done
done
check bad refusal.pml -DN=2 -DCALLS=3 -DWORD
check bad refusal.pml -DN=3 -DCALLS=3 -DWORD
check bad refusal.pml -DN=2 -DCALLS=3 -DONE
check bad refusal.pml -DN=2 -DCALLS=3 -DWORD -DPRE
echo "$unexpected unexpected"
[[ $unexpected -eq 0 ]]
