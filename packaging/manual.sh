#!/usr/bin/env bash
# Writes one compressed manual page for the command and for each of its subcommands, from what their --help prints.
#
# usage: manual.sh MOEBUS FOLDER
set -euo pipefail

command=$1
folder=$2
version=$("$command" --version)

# page WORD...: the page of `moebus WORD...`, then those of its subcommands.
page() {
  local help purpose name see word
  help=$("$command" "$@" --help)
  purpose=$(head -n 1 <<<"$help")
  name=$(IFS=-; echo "moebus${*:+-$*}")
  see=${name%-*}
  help2man --no-info --section=1 --manual="moebus" --source="moebus $version" --version-string="$version" \
    --name="${purpose#moebus: }" --include=<(see_also "$see" "$name" "$help") "$command${*:+ $*}" |
    sed -E "s/^\.TH MOEBUS /.TH ${name^^} /; s/^moebus( [a-z]+)* \\\\- /$name \\\\- /" | gzip -9n >"$folder/$name.1.gz"
  for word in $(subcommands "$help"); do page "$@" "$word"; done
}

# The names in the part "Subcommands:" of a help text.
subcommands() { sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$1"; }

# see_also PARENT NAME HELP: what help2man puts at the end.
see_also() {
  local pages=() word
  if [[ $2 != moebus ]]; then pages+=("$1"); fi
  for word in $(subcommands "$3"); do pages+=("$2-$word"); done
  printf '[see also]\n'
  printf '.BR %s (1)\n' "${pages[@]}" | sed '$!s/$/,/'
}

rm -rf "$folder"
mkdir -p "$folder"
page
