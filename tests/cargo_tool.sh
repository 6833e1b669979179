#!/bin/bash
# Installs a program of others that tests or releases need with cargo, below target/tools. Does nothing when it is there already.
#
#     tests/cargo_tool.sh NAME
#
# SHARDFS_TOOLS  where the program goes (default target/tools)

set -euo pipefail

name=$1
case $name in
fsx) version=0.3.2 ;;
pjdfstest) version=0.2.2 ;;
cargo-deb) version=3.8.0 ;;
cargo-cyclonedx) version=0.5.9 ;;
mdbook) version=0.5.4 ;;
*)
    echo "no version of $name is pinned" >&2
    exit 2
    ;;
esac
tools=${SHARDFS_TOOLS:-$(cd "$(dirname "$0")/.." && pwd)/target/tools}

# Cargo's own note: some of them print their version in forms of their own.
is_installed() { [[ -x $tools/bin/$name ]] && grep -qs "^\"$name $version " "$tools/.crates.toml"; }
! is_installed || exit 0
# Several test suites may share it.
mkdir -p "$tools"
exec {lock}>"$tools/lock"
flock "$lock"
! is_installed || exit 0
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# Outside of the project's directory: its settings for cargo are not meant for others.
cd /
cargo install --quiet --locked --root "$tools" --target-dir "$build" "$name@$version"
