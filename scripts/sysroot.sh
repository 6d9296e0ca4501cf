#!/usr/bin/env bash
# Makes a folder with the libraries of another processor: the packages of the group `sysroot` of scripts/packages.txt,
# downloaded with apt and unpacked there. Nothing is installed; the machine's own packages and lists stay as they are.
#
# usage: sysroot.sh ARCHITECTURE FOLDER      e.g. sysroot.sh arm64 build/aarch64/sysroot
set -euo pipefail

architecture=$1
mkdir -p "$2"
root=$(realpath "$2")
list=$(dirname "${BASH_SOURCE[0]}")/packages.txt
read -r -a packages <<<"$(sed -n 's/^sysroot://p' "$list")"
wanted="$architecture ${packages[*]}"
if [[ -f $root/packages && $(<"$root/packages") == "$wanted" ]]; then exit 0; fi

# apt with lists of its own: it sees the sources of this machine, for that processor.
state=$root/apt
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
: >"$state/status"
apt_here=(
  apt-get -q
  -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture"
  -o "Dir::State=$state" -o "Dir::State::lists=$state/lists" -o "Dir::State::status=$state/status"
  -o "Dir::Cache=$state/cache" -o "Acquire::Languages=none" -o "APT::Sandbox::User=root"
)
"${apt_here[@]}" update
(cd "$state/cache/archives" && rm -f -- *.deb && "${apt_here[@]}" download "${packages[@]}")
for package in "$state"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
rm -r "$state"
echo "$wanted" >"$root/packages"
