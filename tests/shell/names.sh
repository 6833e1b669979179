#!/bin/bash
# Names that would forge log lines or command a terminal: they are escaped wherever they are shown.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

# A line of the log that nothing but a name says, a terminal's title, a byte that is no UTF-8.
evil=$'a\nshardfs: error: forged\r\x1b]0;title\x07\xff\\'
# shellcheck disable=SC1003 # no quote is escaped
escaped='a\nshardfs: error: forged\r\x1b]0;title\x07\xff\\'

echo '{"zarr_format": 3, "node_type": "group"}' >"$TMP/zarr.json"
SRC=$TMP/source
mkdir "$SRC"
cp "$TMP/zarr.json" "$SRC"
python3 "$here/shards.py" array "$SRC/$evil" 5
# One shard is damaged, one array's metadata cannot be used, one has codecs that cannot be decoded.
truncate -s 10 "$SRC/$evil/c/1"
mkdir "$SRC/bad" "$SRC/codec"
echo '{"zarr_format": 3, "node_type": "array' >"$SRC/bad/zarr.json"
python3 - "$SRC/$evil/zarr.json" "$SRC/codec/zarr.json" <<'PY'
import json
import sys

document = json.load(open(sys.argv[1]))
document["codecs"][0]["configuration"]["codecs"].append({"name": "x\nshardfs: error: forged\x1b[0m"})
json.dump(document, open(sys.argv[2], "w"))
PY

# safe FILE: nothing in it commands a terminal, and no line is forged
safe() {
    ! LC_ALL=C grep -nP '[\x00-\x08\x0b-\x1f\x7f]|\xff' "$1" || return 1
    ! grep -n '^shardfs: error: forged' "$1" || return 1
}

log() {
    local chunk=$1
    shift
    mount_view "$SRC" "$@" --log-file "$TMP/log"
    fails_with "" cat "$MP/$evil/c/$chunk"
    ls "$MP/bad" "$MP/codec" || true
    unmount_view
    safe "$TMP/log"
    grep -qF "shard $escaped/c/1: " "$TMP/log"
    # Every line is one of ours.
    [[ $(grep -c '^[^ ]* shardfs\[[0-9]*\]: [a-z]*: ' "$TMP/log") == $(wc -l <"$TMP/log") ]]
    rm "$TMP/log"
}
check "the log" log 4
check "the log of a view that decodes" log 4.npy --view npy

foreground() {
    new_mount_point
    "$SHARDFS" mount -f -v "$SRC" "$MP" </dev/null >"$MP.log" 2>&1 &
    local job=$!
    within 10 is_mounted "$MP"
    fails_with "" cat "$MP/$evil/c/4"
    unmount_view
    wait "$job"
    safe "$MP.log"
    grep -qF "$escaped" "$MP.log"
}
check "stderr in front" foreground

commands() {
    local command
    for command in "info $SRC" "verify --decode $SRC" "recover --scan $SRC" "repack $SRC" \
        "unpack $SRC $TMP/out --skip-damaged" "refs $SRC -o $TMP/refs.json --skip-damaged"; do
        # shellcheck disable=SC2086 # words
        timeout 30 "$SHARDFS" $command </dev/null >"$TMP/said" 2>&1 || true
        echo "$command:"
        cat -v "$TMP/said"
        safe "$TMP/said"
        grep -qF "$escaped" "$TMP/said"
    done
    timeout 30 "$SHARDFS" ls "$SRC" "$evil/c/0" </dev/null >"$TMP/said" 2>/dev/null || true
    # Programs get names as they are.
    grep -qaF "forged" "$TMP/said" && ! grep -qF "$escaped" "$TMP/said"
    timeout 30 "$SHARDFS" ls "$SRC" </dev/null 2>"$TMP/said" >/dev/null || true
    safe "$TMP/said"
    timeout 30 script -qec "'$SHARDFS' ls '$SRC'" /dev/null </dev/null | tr -d '\r' >"$TMP/said" || true
    cat -v "$TMP/said"
    safe "$TMP/said"
    grep -qF "$escaped" "$TMP/said"
}
check "what commands say" commands

paths() {
    local command
    for command in "mount $SRC" umount sync info ls verify recover delete; do
        # shellcheck disable=SC2086 # words
        timeout 20 "$SHARDFS" $command "$TMP/$evil" </dev/null >"$TMP/said" 2>&1 || true
        echo "$command:"
        cat -v "$TMP/said"
        safe "$TMP/said"
        grep -qF "$escaped" "$TMP/said"
    done
}
check "paths of the command line" paths

waiting() {
    cp -r "$SRC/$evil" "$TMP/rw"
    mount_view "$SRC" --rw --commit-interval 60
    cp "$MP/$evil/c/0" "$MP/$evil/c/2"
    cat "$MP/.shardfs/waiting.txt" >"$TMP/said"
    cat -v "$TMP/said"
    safe "$TMP/said"
    grep -qF "$escaped/c/2" "$TMP/said"
    unmount_view
}
check "waiting.txt" waiting
