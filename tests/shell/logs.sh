#!/bin/bash
# Logs of mounts: their forms, a file that is opened anew, and what a service manager hears.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

"$SHARDFS" create --sample "$TMP/sample.zarr" >/dev/null

# objects FILE: each line is an object, and one says that the source is mounted.
objects() {
    python3 - "$1" "$MP" <<'PY'
import datetime
import json
import sys

lines = [json.loads(line) for line in open(sys.argv[1])]
for line in lines:
    assert list(line) == ["time", "level", "pid", "message"], line
    datetime.datetime.fromisoformat(line["time"].replace("Z", "+00:00"))
assert any(line["level"] == "info" and line["message"].endswith("is mounted on " + sys.argv[2]) for line in lines), lines
PY
}

in_background() {
    mount_view "$TMP/sample.zarr" --log-file "$TMP/json.log" --log-format json
    objects "$TMP/json.log"
    # The mount shows its own as text.
    grep -E '^20[0-9-]+T[0-9:.]+Z info: .* is mounted on' "$MP/.shardfs/log"
    unmount_view
}
check "a file of objects for programs" in_background

as_text() {
    mount_view "$TMP/sample.zarr" --log-file "$TMP/text.log" --log-format text
    grep -E "^20[0-9-]+T[0-9:.]+Z shardfs\[$(daemon_of "$MP")\]: info: .* is mounted on $MP\$" "$TMP/text.log"
    unmount_view
    expect_exit 1 "$SHARDFS" mount --log-format xml "$TMP/sample.zarr" "$MP"
}
check "one of text" as_text

# In front the log is on stderr, and who has started the process hears when the mount answers.
in_front() {
    new_mount_point
    python3 - "$SHARDFS" "$TMP/sample.zarr" "$MP" "$TMP/front.log" <<'PY'
import os
import socket
import subprocess
import sys

shardfs, source, mountpoint, log = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
    heard.bind(f"{log}.socket")
    heard.settimeout(60)
    environment = {**os.environ, "NOTIFY_SOCKET": f"{log}.socket"}
    command = [shardfs, "mount", "-f", "--log-format", "json", source, mountpoint]
    with subprocess.Popen(command, env=environment, stderr=open(log, "w")) as mount:
        try:
            said = heard.recv(4096).decode()
            assert "READY=1" in said.splitlines(), said
            assert os.path.ismount(mountpoint)
        finally:
            mount.terminate()
    assert mount.returncode == 0, mount.returncode
PY
    objects "$TMP/front.log"
}
check "stderr of objects, and a word to who has started it" in_front

# With the journal at the other end, lines begin with a priority.
in_journal() {
    local pid stream rc=0
    new_mount_point
    : >"$TMP/journal"
    stream=$(stat -c '%d:%i' "$TMP/journal")
    JOURNAL_STREAM=$stream "$SHARDFS" mount -f "$TMP/sample.zarr" "$MP" 2>"$TMP/journal" &
    pid=$!
    within 60 grep "^<6>info: .* is mounted on $MP\$" "$TMP/journal" || rc=1
    kill -s TERM "$pid"
    wait "$pid" || rc=$?
    return "$rc"
}
check "lines for the journal begin with their priority" in_journal

units() {
    local unit
    mkdir -p "$TMP/units"
    cp "$repo"/packaging/systemd/* "$TMP/units"
    # Where the program is here.
    sed -i "s|/usr/bin/shardfs|$SHARDFS|" "$TMP/units/shardfs@.service"
    for unit in 'shardfs@mnt-volume.service' mnt-volume.mount mnt-volume.automount; do
        systemd-analyze verify --man=no "$TMP/units/$unit"
    done
}
if command -v systemd-analyze >/dev/null; then
    check "systemd takes the units" units
else
    skip "no systemd-analyze"
fi

opened_anew() {
    local pid
    mkdir "$TMP/logs"
    mount_view "$TMP/sample.zarr" --rw --log-file "$TMP/logs/log"
    pid=$(daemon_of "$MP")
    mv "$TMP/logs/log" "$TMP/logs/log.1"
    kill -s HUP "$pid"
    within 60 grep -qs 'opened anew' "$TMP/logs/log"
    grep 'is mounted on' "$TMP/logs/log.1"
    fails_with '' grep 'opened anew' "$TMP/logs/log.1"
    # Where it cannot be, nothing is lost.
    mv "$TMP/logs" "$TMP/moved"
    kill -s HUP "$pid"
    within 60 grep -q "error: $TMP/logs/log: not opened anew: No such file" "$TMP/moved/log"
    # Nor does it wait for a pipe in its place, or write to one.
    mkdir "$TMP/logs"
    mkfifo "$TMP/logs/log"
    exec 9<>"$TMP/logs/log"
    kill -s HUP "$pid"
    within 60 grep -q "error: $TMP/logs/log: not opened anew: it is no file" "$TMP/moved/log"
    exec 9>&-
    # The mount goes on.
    cp "$MP/waves/c/0/0/0" "$TMP/chunk"
    cp "$TMP/chunk" "$MP/waves/c/0/0/1"
    unmount_view
    grep 'is unmounted' "$TMP/moved/log"
}
check "a file that was renamed is opened anew on SIGHUP" opened_anew

# The number of a descriptor is that of another file by then.
by_number() {
    local pid
    new_mount_point
    : >"$TMP/by-number"
    "$SHARDFS" mount --log-file /dev/fd/8 "$TMP/sample.zarr" "$MP" 8>>"$TMP/by-number"
    pid=$(daemon_of "$MP")
    kill -s HUP "$pid"
    within 60 grep -q 'warning: /dev/fd/8: not opened anew' "$TMP/by-number"
    unmount_view
    grep 'is unmounted' "$TMP/by-number"
}
check "a log that was given by its number stays what it is" by_number
