#!/usr/bin/env bash
# Formats every C++ source that git knows or does not ignore; with --check only says what would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run -Werror); fi
git ls-files -z --cached --others --exclude-standard -- '*.cpp' '*.hpp' '*.cu' '*.cuh' |
  while IFS= read -r -d '' file; do if [[ -f $file ]]; then printf '%s\0' "$file"; fi; done |
  xargs -0 --no-run-if-empty clang-format-19 "${mode[@]}"
