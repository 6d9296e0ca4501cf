#!/usr/bin/env bash
# run.sh [FILTER]: searches every configuration with spin, or those whose line contains FILTER. Needs spin and gcc.
#   ok         there must be no counterexample: no failed assertion, no state in which ranks wait for ever
#   ends       the same, and no run may go round in a circle: every run ends
#   violation  there must be one: an assertion that fails
#   deadlock   there must be one: ranks that wait for ever
# Works in a temporary folder; a search takes at most 2 GB and about ten seconds. Exit status 0: all as expected.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
filter=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unexpected=0
num_checked=0

# check ok|ends|violation|deadlock MODEL DEFINES...
check() {
  local want=$1 model=$2 got build search
  shift 2
  if [[ "$model $*" != *"$filter"* ]]; then return; fi
  spin -a "$@" "$here/$model" >spin.log
  # A search that should end early is not worth an optimised build.
  build="-O1 -DSAFETY"
  search=""
  if [[ $want == violation || $want == deadlock ]]; then build="-O0 -DSAFETY"; fi
  if [[ $want == ends ]]; then
    build="-O1 -DNP -DNOREDUCE"
    search=-l
  fi
  # shellcheck disable=SC2086  # several switches
  gcc -w $build -DMEMLIM=2048 -o pan pan.c # generated code: its warnings are not ours
  ./pan $search -m50000 >pan.log
  if grep -q 'errors: 0' pan.log; then
    got=ok
    if [[ $want == ends ]]; then got=ends; fi
  elif grep -q 'assertion violated' pan.log; then
    got=violation
  elif grep -q 'invalid end state' pan.log; then
    got=deadlock
  else
    got=failed
  fi
  # A search that did not finish proves nothing.
  if grep -qE 'max search depth too small|out of memory|MEMLIM|Search not completed' pan.log && [[ $got == ok || $got == ends ]]; then got=incomplete; fi
  if [[ $got != "$want" ]]; then unexpected=$((unexpected + 1)); fi
  num_checked=$((num_checked + 1))
  printf '%-10s expected %-10s %s %s (%s states)\n' "$got" "$want" "$model" "$*" \
    "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log)"
}

# --- One node ---
check ok exchange.pml -DN=2 -DCALLS=5
check ok exchange.pml -DN=2 -DCALLS=4 -DFULL
check ok exchange.pml -DN=2 -DCALLS=2 -DROUNDS=2 -DFREE
check ok exchange.pml -DN=3 -DCALLS=3
check ok exchange.pml -DN=3 -DCALLS=4 -DKIND=LATENCY
check ok exchange.pml -DN=3 -DCALLS=4 -DKIND=DIRECT
check ok exchange.pml -DN=3 -DCALLS=1 -DKIND=STAGED -DFULL
check ok exchange.pml -DN=3 -DCALLS=1 -DKIND=COMBINE -DFULL
check ok exchange.pml -DN=3 -DCALLS=3 -DSKIP_FINISHED
check ok exchange.pml -DN=3 -DCALLS=2 -DKIND=STAGED -DFULL -DALTERNATING
check ends exchange.pml -DN=2 -DCALLS=3
check violation exchange.pml -DN=2 -DCALLS=3 -DONE_PARITY
check violation exchange.pml -DN=3 -DCALLS=3 -DKIND=LATENCY -DONE_PARITY
check deadlock exchange.pml -DN=2 -DCALLS=3 -DEQUAL
check deadlock exchange.pml -DN=3 -DCALLS=3 -DEQUAL
check violation exchange.pml -DN=2 -DCALLS=3 -DSKIP_ARRIVED
check violation exchange.pml -DN=3 -DCALLS=3 -DSKIP_ARRIVED
check violation exchange.pml -DN=2 -DCALLS=3 -DKIND=DIRECT -DNO_GRANT
check violation exchange.pml -DN=2 -DCALLS=3 -DKIND=DIRECT -DEARLY_GRANT
check violation exchange.pml -DN=2 -DCALLS=1 -DKIND=STAGED -DFULL -DEARLY_TAKEN
check deadlock exchange.pml -DN=2 -DCALLS=1 -DKIND=STAGED -DFULL -DBLOCKING
check deadlock exchange.pml -DN=3 -DCALLS=1 -DKIND=STAGED -DFULL -DBLOCKING

# --- Two contexts ---
check ok contexts.pml -DN=2 -DPOSTS=6
check ok contexts.pml -DN=3 -DPOSTS=5
check ends contexts.pml -DN=2 -DPOSTS=4
check deadlock contexts.pml -DN=2 -DPOSTS=4 -DANY_ORDER
check deadlock contexts.pml -DN=3 -DPOSTS=3 -DANY_ORDER
check deadlock contexts.pml -DN=2 -DPOSTS=4 -DOTHER_POSTS
check violation contexts.pml -DN=2 -DPOSTS=4 -DBEYOND
check violation contexts.pml -DN=2 -DPOSTS=4 -DONE_WINDOW

# --- Two nodes: 2 + 1, 2 + 2, 3 + 1 ranks ---
check ok gateway.pml -DCALLS=2
check ok gateway.pml -DCALLS=3 -DROUNDS=1
check ok gateway.pml -DCALLS=5 -DEARLY
check ok gateway.pml -DCALLS=2 -DKIND=COMBINE_LATE -DACK_AFTER_HOME
check ok gateway.pml -DCALLS=2 -DKIND=DISPATCH_LATE -DLOCKSTEP
check ok gateway.pml -DCALLS=4 -DEARLY -DREFUSE
check ok gateway.pml -DN=4 -DCALLS=3 -DEARLY
check ok gateway.pml -DN=4 -DCALLS=3 -DKIND=COMBINE_EARLY -DREFUSE
check ok gateway.pml -DN=4 -DSIZE=3 -DCALLS=3 -DEARLY
check ok gateway.pml -DN=4 -DSIZE=3 -DCALLS=1 -DKIND=DISPATCH_LATE -DLOCKSTEP
check ends gateway.pml -DCALLS=2 -DROUNDS=1
check violation gateway.pml -DCALLS=3 -DEARLY -DONE_PARITY
check violation gateway.pml -DCALLS=1 -DKIND=DISPATCH_EARLY -DSIGNAL_FIRST
check violation gateway.pml -DCALLS=1 -DKIND=DISPATCH_EARLY -DNO_TABLES
check violation gateway.pml -DN=4 -DCALLS=1 -DKIND=DISPATCH_LATE -DNO_TABLES
check deadlock gateway.pml -DCALLS=1 -DKIND=DISPATCH_EARLY -DGATE_WAITS
check deadlock gateway.pml -DN=4 -DCALLS=1 -DKIND=DISPATCH_EARLY -DGATE_WAITS
check violation gateway.pml -DCALLS=1 -DKIND=DISPATCH_LATE -DEARLY_TAKEN
check violation gateway.pml -DCALLS=1 -DKIND=DISPATCH_LATE -DNO_NEIGHBOUR_TAKEN
check violation gateway.pml -DCALLS=1 -DKIND=COMBINE_LATE -DNO_HOME_TAKEN
check deadlock gateway.pml -DCALLS=1 -DKIND=DISPATCH_LATE -DBLOCKING
check deadlock gateway.pml -DCALLS=3 -DKIND=DISPATCH_EARLY -DREFUSE -DUNREAD_REFUSAL
check violation gateway.pml -DCALLS=3 -DKIND=COMBINE_EARLY -DREFUSE -DUNREAD_REFUSAL

# --- Peers that are not mapped ---
check ok lanes.pml -DN=2 -DCALLS=4
check ok lanes.pml -DN=3 -DCALLS=3
check ok lanes.pml -DN=2 -DCALLS=1 -DLATE -DROUNDS=4
check ok lanes.pml -DN=2 -DCALLS=2 -DLATE -DROUNDS=2
check ok lanes.pml -DN=2 -DCALLS=4 -DREFUSE -DWAITED
check ok lanes.pml -DN=3 -DCALLS=3 -DREFUSE -DWAITED
check violation lanes.pml -DN=3 -DCALLS=3 -DREFUSE
check violation lanes.pml -DN=2 -DCALLS=3 -DNO_FENCE_ARRIVED
check violation lanes.pml -DN=2 -DCALLS=3 -DNO_FENCE_FINISHED
check violation lanes.pml -DN=2 -DCALLS=1 -DLATE -DNO_FENCE_ROUNDS
check deadlock lanes.pml -DN=2 -DCALLS=1 -DLATE -DROUNDS=4 -DNO_FENCE_TAKEN

# --- A rank dies or stands still ---
for path in "" -DLATE; do
  for fault in "" -DSTALL -DWAKE "-DWAKE -DSPURIOUS"; do
    # shellcheck disable=SC2086  # an empty switch is no argument
    check ok fault.pml -DN=2 -DCALLS=3 $path $fault
  done
done
check ok fault.pml -DN=3 -DCALLS=2
check ok fault.pml -DN=3 -DCALLS=2 -DSTALL
check ok fault.pml -DN=3 -DCALLS=2 -DWAKE -DSPURIOUS
check ok fault.pml -DN=3 -DCALLS=2 -DNO_LIMIT
check ok fault.pml -DN=3 -DCALLS=1 -DLATE -DROUNDS=1
check deadlock fault.pml -DN=3 -DCALLS=2 -DNO_ABORT -DNO_LIMIT
check deadlock fault.pml -DN=3 -DCALLS=1 -DLATE -DROUNDS=1 -DNO_ABORT -DNO_LIMIT
check deadlock fault.pml -DN=2 -DCALLS=2 -DSTALL -DNO_LIMIT

# --- Refusals ---
for path in "" -DPRE; do
  # shellcheck disable=SC2086  # an empty switch is no argument
  check ok refusal.pml -DN=2 -DCALLS=5 $path
  # shellcheck disable=SC2086
  check ok refusal.pml -DN=3 -DCALLS=3 $path
  # shellcheck disable=SC2086
  check ok refusal.pml -DN=2 -DCALLS=5 $path -DFINISH
  for wrong in -DWORD -DONE -DEARLY; do
    # shellcheck disable=SC2086
    check violation refusal.pml -DN=2 -DCALLS=3 $path $wrong
  done
done
check violation refusal.pml -DN=3 -DCALLS=3 -DWORD

echo "$num_checked checked, $unexpected unexpected"
[[ $unexpected -eq 0 && $num_checked -gt 0 ]]
