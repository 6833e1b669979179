#!/bin/bash
# `shardfs status`: what is mounted, whether it answers, and what waits to be committed.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

# In a mount namespace of its own, where root can have one: mounts of other tests may be dead, and asking them
# counts as a use.
if [[ $(id -u) == 0 && ${1:-} != in-namespace ]] && unshare --mount true 2>/dev/null; then
    run_in_namespace
fi

"$SHARDFS" create --sample "$TMP/sample.zarr" >/dev/null

# row MP: the same as words; no cell may have spaces.
row() { "$SHARDFS" status "$1" 2>"$TMP/said" | sed 1d | tr -s ' '; }

# json MP EXPRESSION: a value of what is said of a mount, `it`, to programs.
json() {
    "$SHARDFS" status --json "$1" >"$TMP/status.json" 2>/dev/null || true
    python3 -c '
import json, sys
(it,) = json.load(open(sys.argv[1]))["mounts"]
print(eval(sys.argv[2]))' "$TMP/status.json" "$2"
}

none() {
    [[ -z $("$SHARDFS" status) ]]
    [[ $("$SHARDFS" status --json | tr -d ' \n') == '{"mounts":[]}' ]]
}
[[ -n $(findmnt -t fuse.shardfs) ]] || check "nothing is mounted" none

serving() {
    mount_view "$TMP/sample.zarr"
    local transport
    transport=$(json "$MP" 'it["stats"]["transport"]["name"]')
    [[ $(row "$MP") == "$MP serving $TMP/sample.zarr zarr3 ro $transport - - - 0 0" ]]
    [[ $(json "$MP" 'it["state"], it["writable"], it["user"]') == "('serving', False, $(id -u))" ]]
    [[ $(json "$MP" 'it["stats"]["pid"]') == "$(daemon_of "$MP")" ]]
    # It is one of all, under whatever name, and as often as it is named.
    ("$SHARDFS" status || true) >"$TMP/all"
    grep "^$MP  *serving " "$TMP/all"
    ln -s "$MP" "$TMP/link"
    [[ $("$SHARDFS" status "$TMP/link" "$MP" | grep -c "^$MP  *serving ") == 2 ]]
    unmount_view
}
check "a mount that is read" serving

written() {
    mount_view "$TMP/sample.zarr" --rw --commit-interval 60 --view zarr3,npy
    [[ $(json "$MP" '" ".join(it["stats"]["views"]), it["stats"]["uncommitted"]') == "('zarr3 npy', 0)" ]]
    cp "$MP/zarr3/waves/c/0/0/0" "$TMP/chunk"
    cp "$TMP/chunk" "$MP/zarr3/waves/c/0/0/1"
    [[ $(json "$MP" 'it["stats"]["uncommitted"]') == "$(stat -c %s "$TMP/chunk")" ]]
    [[ $(json "$MP" '"last_commit" in it["stats"]') == False ]]
    "$SHARDFS" sync "$MP"
    "$SHARDFS" status "$MP"
    [[ $(row "$MP") == *" zarr3,npy rw "*" 0 B "*" ago 0 0 0" ]]
    [[ $(json "$MP" 'it["stats"]["uncommitted"]') == 0 ]]
    [[ $(json "$MP" 'it["stats"]["last_commit"]') == "$(date -u +%Y-%m-)"*Z ]]
    unmount_view
}
check "one that is written to" written

dead() {
    mount_view "$TMP/sample.zarr" --rw
    local pid
    pid=$(daemon_of "$MP")
    kill -s KILL "$pid"
    within 60 has_ended "$pid"
    [[ $(row "$MP") == "$MP dead $TMP/sample.zarr - rw - - - - - -" ]]
    grep "^shardfs: $MP: the process behind it has ended; .shardfs umount $MP. unmounts it" "$TMP/said"
    expect_exit 1 "$SHARDFS" status "$MP"
    expect_exit 1 "$SHARDFS" status
    [[ $(json "$MP" 'it["state"], "stats" in it') == "('dead', False)" ]]
    "$SHARDFS" umount "$MP" || true
    not_mounted "$MP"
}
check "one whose process was killed" dead

# Nothing can interrupt a request that was accepted.
silent() {
    local silent pid rc=0
    new_mount_point
    silent=$MP
    python3 "$here/silent.py" "$TMP/sample.zarr" "$silent" >"$silent.log" 2>&1 &
    pid=$!
    within 60 grep -q mounted "$silent.log" || rc=1
    mount_view "$TMP/sample.zarr" || rc=1
    timeout 60 "$SHARDFS" status >"$TMP/all" 2>"$TMP/said" && rc=1
    grep "^$silent  *silent " "$TMP/all" || rc=1
    grep "^$MP  *serving " "$TMP/all" || rc=1
    grep "^shardfs: $silent: the process behind it has not answered" "$TMP/said" || rc=1
    # What lies in it is not looked at.
    (fails_with "but lies in one: $silent" timeout 5 "$SHARDFS" status "$silent/waves") || rc=1
    unmount_view || rc=1
    timeout 10 "$SHARDFS" umount --lazy "$silent" || rc=1
    kill -s KILL "$pid"
    wait
    not_mounted "$silent" || rc=1
    return "$rc"
}
hidden() {
    local below all rc=0
    mount_view "$TMP/sample.zarr"
    below=$MP
    mount -t tmpfs none "$(dirname "$MP")"
    all=$("$SHARDFS" status) || true
    umount "$(dirname "$MP")"
    grep "^$below  *hidden  *$TMP/sample.zarr" <<<"$all" || rc=1
    unmount_view || rc=1
    return "$rc"
}
part() {
    mount_view "$TMP/sample.zarr"
    mkdir -p "$TMP/part"
    mount --bind "$MP/waves" "$TMP/part"
    local said rc=0
    said=$("$SHARDFS" status) || rc=1
    ! grep "^$TMP/part" <<<"$said" || rc=1
    [[ $(row "$TMP/part") == "$TMP/part part $TMP/sample.zarr "* ]] || rc=1
    umount "$TMP/part"
    unmount_view || rc=1
    return "$rc"
}
if [[ $(id -u) == 0 ]]; then
    check "one that has taken requests and does not answer them, beside one that does" silent
    check "one below another filesystem" hidden
    check "a part of one that is mounted elsewhere" part
fi

not_there() {
    mkdir -p "$TMP/empty"
    fails_with "$TMP/empty is not a mount of shardfs" "$SHARDFS" status "$TMP/empty"
    expect_exit 1 "$SHARDFS" status "$TMP/empty"
    expect_exit 2 "$SHARDFS" status --no-such-option
    mount_view "$TMP/sample.zarr"
    fails_with "but lies in one: $MP" "$SHARDFS" status "$MP/waves"
    fails_with "$TMP/none" "$SHARDFS" status "$TMP/none"
    expect_exit 2 "$SHARDFS" status "$TMP/none"
    unmount_view
}
check "what is no mount is refused" not_there
