#!/usr/bin/env bash
# A mount ends when its process is killed, whatever a thread of it waits for in the kernel.
. "$(dirname "$0")/../lib.sh"
here=$(dirname "$0")

if [[ $EUID != 0 ]]; then
    skip "the guard of a mount: not root"
    exit
fi

# stuck [GUARD]: a process that cannot end by itself, with a file that it does not answer for; sets PID
stuck() {
    new_mount_point
    # A file of its own: one of before would say so until it is truncated, in a process that has yet to begin.
    said=$(mktemp "$TMP/said.XXXXXX")
    python3 "$here/stuck.py" "$MP" "$@" >"$said" &
    PID=$!
    within 20 grep -q stuck "$said"
}

# has_ended: no thread of the process is left
has_ended() { [[ ! -e /proc/$PID ]] || ! grep -q '^State:.*[DSR]' /proc/"$PID"/task/*/status; }

without() {
    stuck
    kill -9 "$PID"
    sleep 1
    grep -q '^State:.*D' /proc/"$PID"/task/*/status
    # That alone ends it; it may be busy still.
    umount -f "$MP" || true
    wait "$PID" || true
}
check "a process that pushes what it does not answer for cannot be killed" without

with() {
    stuck "$SHARDFS"
    kill -9 "$PID"
    within 20 has_ended
    wait "$PID" || true
    fails_with 'not connected' timeout -s KILL 20 ls "$MP"
    umount "$MP"
}
check "its guard ends the mount" with

# in_service: all processes of a service are killed at once, the guard having left it
in_service() {
    local groups=$TMP/groups group
    mkdir "$groups"
    mount -t cgroup2 none "$groups"
    group=$groups/shardfs-test-$$.service
    mkdir "$group"
    new_mount_point
    said=$(mktemp "$TMP/said.XXXXXX")
    bash -c 'echo 0 >"$1/cgroup.procs"; exec python3 "${@:2}"' _ "$group" "$here/stuck.py" "$MP" "$SHARDFS" >"$said" &
    PID=$!
    within 20 grep -q stuck "$said"
    [[ $(<"/proc/$PID/cgroup") == *"0::/shardfs-test-$$.service"* ]]
    echo 1 >"$group/cgroup.kill"
    within 20 has_ended
    wait "$PID" || true
    fails_with 'not connected' timeout -s KILL 20 ls "$MP"
    umount "$MP"
    within 20 rmdir "$group"
    umount "$groups"
}
if unshare --mount mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null; then
    check "its guard ends the mount of a service that is killed as a whole" in_service
else
    skip "a service that is killed as a whole: there are no control groups of version 2"
fi

# guard_of PID: its process
guard_of() { pgrep -fP "$1" '^shardfs-guard ' || true; }

lives_as_long() {
    local pid guard
    python3 "$here/shards.py" array "$TMP/array.zarr" 7
    mount_view "$TMP/array.zarr" --rw
    pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$MP/.shardfs/stats.json")
    guard=$(guard_of "$pid")
    [[ $guard ]]
    [[ $(<"/proc/$pid/comm") == "$(basename "$SHARDFS" | cut -c 1-15)" && $(<"/proc/$guard/comm") == fuse-guard ]]
    # Whoever sends these means the process of the mount.
    kill -TERM "$guard"
    kill -INT "$guard"
    kill -USR1 "$guard"
    kill -USR2 "$guard"
    sleep 1.5
    [[ $(guard_of "$pid") == "$guard" ]]
    echo note >"$MP/note"
    # It holds nothing open that anyone waits for.
    [[ $(readlink "/proc/$guard/cwd") == / ]]
    [[ $(find "/proc/$guard/fd" -mindepth 1 -printf '%l\n' | grep -cvE '^(/dev/null|socket:.*|/.*/abort)$') == 0 ]]
    unmount_view
    within 30 test ! -e "/proc/$guard"
    cat "$TMP/array.zarr/note"
}
check "a guard lives as long as its mount" lives_as_long

killed() {
    local pid guard
    mount_view "$TMP/array.zarr"
    pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$MP/.shardfs/stats.json")
    guard=$(guard_of "$pid")
    kill -9 "$pid"
    within 30 test ! -e "/proc/$guard"
    fails_with 'not connected' timeout -s KILL 20 ls "$MP"
    umount "$MP"
    # Without it, the mount is what it was before.
    mount_view "$TMP/array.zarr"
    pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$MP/.shardfs/stats.json")
    kill -9 "$(guard_of "$pid")"
    sleep 0.2
    ls "$MP"
    unmount_view
}
check "a guard ends with its mount, not the mount with its guard" killed

# other_proc: /proc is that of the system, which knows this process by another number
other_proc() {
    mount_view "$TMP/array.zarr" --rw
    echo more >>"$MP/note"
    sleep 0.5
    ls "$MP"
    umount "$MP"
}
if unshare --mount --pid --fork true 2>/dev/null; then
    check "a mount in a PID namespace that sees another /proc" \
        env KEEP="$TMP" unshare --pid --fork "$repo/tests/alone.py" bash -c "
            set -euo pipefail
            TMP=$TMP SHARDFS=$SHARDFS
            new_mount_point() { MP=\$(mktemp -d \"\$TMP/mnt.XXXXXX\"); }
            $(declare -f mount_view other_proc)
            other_proc"
else
    skip "a mount in a PID namespace: there are none"
fi
