#!/bin/bash
# .shardfs: the log, what is not shown, what waits; and who may read it.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

SRC=$TMP/source
mkdir "$SRC" "$SRC/bad" "$SRC/text"
echo '{"zarr_format": 3, "node_type": "group"}' >"$SRC/zarr.json"
python3 "$here/shards.py" array "$SRC/a" 5
truncate -s 10 "$SRC/a/c/1"
echo '{"zarr_format": 3' >"$SRC/bad/zarr.json"
python3 - "$SRC/a/zarr.json" "$SRC/text/zarr.json" <<'PY'
import json
import sys

document = json.load(open(sys.argv[1]))
document["codecs"][0]["configuration"]["codecs"].append({"name": "secret"})
json.dump(document, open(sys.argv[2], "w"))
PY

has_log() {
    mount_view "$SRC" "$@"
    local chunk=4
    [[ $* != *npy* ]] || chunk=4.npy
    fails_with "" cat "$MP/a/c/$chunk"
    cat "$MP/.shardfs/log"
    grep -E '^20[0-9-]+T[0-9:.]+Z info: .* is mounted on' "$MP/.shardfs/log"
    [[ $(grep -c 'shard a/c/1: it has 10 bytes' "$MP/.shardfs/log") == 1 ]]
    unmount_view
}
check "the log is in the mount" has_log
check "in a writable one" has_log --rw
check "in one that nobody changes" has_log -o immutable
check "in one that logs to a file" has_log --log-file "$TMP/log"
check "in one that decodes" has_log --view npy

is_bounded() {
    mount_view "$SRC" -v
    # Each is an error of a request, which is a line.
    for _ in {1..1200}; do
        read -r _ <"$MP/a/c/4" || true
    done 2>/dev/null
    [[ $(wc -l <"$MP/.shardfs/log") == 1000 ]]
    unmount_view
}
check "no more than the last 1000 lines" is_bounded

not_shown() {
    mount_view "$SRC" --view "$1"
    ls -R "$MP" >/dev/null 2>&1 || true
    cat "$MP/.shardfs/not-shown.txt"
    grep -q '^bad: not valid JSON' "$MP/.shardfs/not-shown.txt"
    [[ $(grep -c '^text: .*"secret"' "$MP/.shardfs/not-shown.txt") == "$2" ]]
    # What was mended is gone, and nothing was logged twice.
    cp "$SRC/zarr.json" "$TMP/group.json"
    touch "$SRC/bad/zarr.json"
    sleep 1.2
    ls -R "$MP" >/dev/null 2>&1 || true
    [[ $(grep -c ' warning: bad/zarr.json' "$MP/.shardfs/log") == 1 ]]
    cp "$SRC/bad/zarr.json" "$TMP/bad.json"
    cp "$TMP/group.json" "$SRC/bad/zarr.json"
    sleep 1.2
    ls -R "$MP" >/dev/null 2>&1 || true
    cp "$TMP/bad.json" "$SRC/bad/zarr.json"
    ! grep -q '^bad' "$MP/.shardfs/not-shown.txt" || return 1
    unmount_view
}
check "what the view cannot show, and why" not_shown zarr3 0
check "what a view that decodes cannot show" not_shown npy 1

for_the_owner() {
    chmod 755 "$TMP"
    mount_view "$SRC" -o allow_other
    chmod 755 "$(dirname "$MP")" "$MP" 2>/dev/null || true
    local file
    for file in log not-shown.txt waiting.txt; do
        [[ $(stat -c '%a %u' "$MP/.shardfs/$file") == "400 $(id -u)" ]]
        fails_with "Permission denied" setpriv --reuid 65534 --regid 65534 --clear-groups cat "$MP/.shardfs/$file"
    done
    setpriv --reuid 65534 --regid 65534 --clear-groups cat "$MP/.shardfs/stats.json" >/dev/null
    unmount_view
}
if [[ $(id -u) == 0 ]]; then
    check "files that name paths are for the user who mounted" for_the_owner
fi

has_a_name() {
    cp -r "$SRC/a" "$TMP/volume.zarr"
    echo '{' >"$TMP/volume.zarr/zarr.json.new"
    mount_view "$TMP/volume.zarr"
    mv "$TMP/volume.zarr/zarr.json.new" "$TMP/volume.zarr/zarr.json"
    sleep 1.2
    ls "$MP" >/dev/null
    cat "$MP/.shardfs/not-shown.txt"
    grep -q '^volume.zarr: ' "$MP/.shardfs/not-shown.txt"
    unmount_view
}
check "the source's root is called by its name" has_a_name

# What -v and -vv log, as docs/USAGE.md says.
verbose_logs() {
    local verbosity
    for verbosity in v vv; do
        mount_view "$SRC" "-$verbosity" --log-file "$TMP/log-$verbosity"
        fails_with "No such file" cat "$MP/no-such-name"
        unmount_view
    done
    fails_with "" grep no-such-name "$TMP/log-v"
    grep 'trace: no-such-name: there is no such name' "$TMP/log-vv"
}
check "names that do not exist are logged with -vv alone" verbose_logs
