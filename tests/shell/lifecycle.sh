#!/bin/bash
# From start to end: background and foreground, signals, a busy mount, a daemon that was killed.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
python3 "$here/shards.py" array "$TMP/a.zarr" 5

# --- background --------------------------------------------------------------------------------------

answers_at_once() {
    local i
    for i in 1 2 3 4 5; do
        mount_view "$TMP/a.zarr"
        [[ $(find "$MP/c" -type f | wc -l) == 16 ]]
        unmount_view
        no_daemon_of "$MP"
        echo "round $i"
    done
}
check "mount answers when the command returns, umount waits for the daemon's end" answers_at_once

# A daemon that kept the pipe would keep the reader of it waiting.
in_a_pipe() {
    new_mount_point
    timeout 20 bash -c "'$SHARDFS' mount '$TMP/a.zarr' '$MP' 2>&1 | cat"
    is_mounted "$MP"
    unmount_view
}
check "the daemon lets go of stdout and stderr" in_a_pipe

detached() {
    mount_view "$TMP/a.zarr"
    local pid
    pid=$(daemon_of "$MP")
    [[ -n $pid ]]
    [[ $(readlink "/proc/$pid/cwd") == / ]]
    # A session of its own: not ended with the terminal.
    [[ $(ps -o sid= -p "$pid" | tr -d ' ') != $(ps -o sid= -p $$ | tr -d ' ') ]]
    [[ $(readlink "/proc/$pid/fd/0") == /dev/null ]]
    unmount_view
}
check "the daemon has its own session and no working directory" detached

# --- signals -----------------------------------------------------------------------------------------

# gone MOUNTPOINT: neither mount nor daemon
gone() { not_mounted "$1" && no_daemon_of "$1"; }

foreground() {
    local signal=$1 rc=0 job
    new_mount_point
    # A job of a script ignores INT unless told otherwise.
    env --default-signal "$SHARDFS" mount -f "$TMP/a.zarr" "$MP" </dev/null >"$MP.log" 2>&1 &
    job=$!
    within 60 is_mounted "$MP"
    within 60 cat "$MP/c/0"
    [[ $(daemon_of "$MP") == "$job" ]]
    kill -s "$signal" "$job"
    within 60 gone "$MP"
    wait "$job" || rc=$?
    cat "$MP.log"
    echo "exit $rc"
    [[ $rc == 0 ]]
}
background() {
    mount_view "$TMP/a.zarr"
    kill -s "$1" "$(daemon_of "$MP")"
    within 60 gone "$MP"
}
for signal in TERM INT HUP; do
    check "foreground: $signal unmounts, exit code 0" foreground "$signal"
    check "background: $signal unmounts" background "$signal"
done

statistics() {
    mount_view "$TMP/a.zarr" --log-file "$TMP/usr1.log"
    local pid before
    pid=$(daemon_of "$MP")
    cat "$MP/c/0" >/dev/null
    before=$(stat -c %s "$TMP/usr1.log")
    kill -s USR1 "$pid"
    log_has_grown() { (($(stat -c %s "$TMP/usr1.log") > before)); }
    within 60 log_has_grown
    cat "$TMP/usr1.log"
    cat "$MP/c/1" >/dev/null
    [[ $(daemon_of "$MP") == "$pid" ]]
    unmount_view
}
check "USR1 logs statistics and nothing else happens" statistics

foreground_failure() {
    new_mount_point
    expect_exit 32 timeout 20 "$SHARDFS" mount -f "$TMP/none.zarr" "$MP"
}
check "foreground: a failed mount is exit code 32 too" foreground_failure

# Whoever holds a lock, or reads a pipe, waits until all have let go of it.
given_files() {
    local pid
    exec 8>"$TMP/given.log" 9>"$TMP/given"
    mount_view "$TMP/a.zarr" --log-file /dev/fd/8
    exec 8>&- 9>&-
    pid=$(daemon_of "$MP")
    readlink "/proc/$pid"/fd/* >"$TMP/held"
    cat "$TMP/held"
    grep -qxF /dev/fuse "$TMP/held"
    if grep -xF "$TMP/given" "$TMP/held"; then return 1; fi
    # As the log it was opened by its name.
    [[ $(grep -cxF "$TMP/given.log" "$TMP/held") == 1 ]]
    grep -q 'is mounted on' "$TMP/given.log"
    unmount_view
}
check "the daemon lets go of files that it was given" given_files

lock_is_free() {
    new_mount_point
    flock "$TMP/lock" timeout 30 "$SHARDFS" mount "$TMP/a.zarr" "$MP" </dev/null >/dev/null
    flock --nonblock "$TMP/lock" true
    unmount_view
}
check "a lock that was held for the mount is free afterwards" lock_is_free

# The command that waits for the daemon is gone before that can tell it.
interrupted_command() {
    new_mount_point
    python3 - "$SHARDFS" "$TMP/a.zarr" "$MP" <<'PY'
import os
import subprocess
import sys

reader, writer = os.pipe()
os.close(reader)
command = [sys.argv[1], "mount", *sys.argv[2:]]
with open(sys.argv[3] + ".log", "a") as log:
    environment = os.environ | {"SHARDFS_IN_BACKGROUND": "1"}
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=writer, stderr=log, env=environment, timeout=60)
    log.write(f"exit {ended.returncode}\n")
PY
    cat "$MP.log"
    gone "$MP"
    grep -F "$MP: unmounted again" "$MP.log"
    grep -x 'exit 2' "$MP.log"
}
check "a mount whose command was interrupted is unmounted again" interrupted_command

no_directory() {
    local place=$TMP/removed
    new_mount_point
    mkdir "$place"
    (
        cd "$place"
        rmdir "$place"
        fails_with 'b.zarr: the current directory, which it is relative to, no longer exists' \
            timeout 20 "$SHARDFS" mount b.zarr "$MP"
        fails_with 'my.log: the current directory, which it is relative to, no longer exists' \
            timeout 20 "$SHARDFS" mount --log-file my.log "$TMP/a.zarr" "$MP"
        timeout 20 "$SHARDFS" mount "$TMP/a.zarr" "$MP" </dev/null >/dev/null
    )
    unmount_view
}
check "a relative path is named where the current directory was removed" no_directory

hidden_files() {
    local state=/var/lib/shardfs/unsaved
    new_mount_point
    ln -s "$MP" "$TMP/to-mount"
    fails_with "--log-file $TMP/to-mount/log: it would be hidden by the mount on $MP" \
        timeout 20 "$SHARDFS" mount --log-file "$TMP/to-mount/log" "$TMP/a.zarr" "$MP"
    not_mounted "$MP"
    [[ ! -e $MP/log ]]
    # A place of what cannot be committed that is below the mount point, for a command that may be killed.
    state=$MP/state
    local as=()
    if [[ $(id -u) == 0 ]]; then
        chmod o+rx "$TMP"
        chmod o+rwx "$MP"
        as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    fi
    fails_with "what cannot be committed is saved in $state/shardfs/unsaved, which would lie in the mount on $MP" \
        env "XDG_STATE_HOME=$state" "${as[@]}" timeout 20 "$SHARDFS" mount --rw "$TMP/a.zarr" "$MP"
    not_mounted "$MP"
}
check "files that the daemon needs are refused inside its mount point" hidden_files

# Stopped right behind mount(2), before anything answers.
early_signal() {
    local job
    new_mount_point
    env --default-signal strace -f -o "$MP.trace" -e trace=mount -e inject=mount:delay_exit=1s \
        "$SHARDFS" mount -f "$TMP/a.zarr" "$MP" </dev/null >"$MP.log" 2>&1 &
    job=$!
    within 60 is_mounted "$MP"
    kill -s TERM "$(daemon_of "$MP" | head -n 1)"
    wait "$job"
    cat "$MP.log"
    gone "$MP"
}
if [[ $(id -u) == 0 ]] && strace -o /dev/null true 2>/dev/null; then
    check "a signal right behind mount(2) leaves no dead mount" early_signal
fi

# More threads than there is room for, and as many as the message says that there is.
no_threads() {
    local fewer
    new_mount_point
    limited() {
        (
            ulimit -v 1500000
            exec timeout 20 "$SHARDFS" mount -o "threads=$1" "$TMP/a.zarr" "$MP" </dev/null 2>"$TMP/threads"
        )
    }
    ! limited 1024 || return 1
    gone "$MP"
    grep -F 'no room for 1024 threads that answer requests' "$TMP/threads"
    fewer=$(grep -o 'mount with -o threads=[0-9]*' "$TMP/threads")
    limited "${fewer##*=}"
    cat "$MP/c/1" >/dev/null
    unmount_view
}
check "a mount whose threads cannot be started is not left dead" no_threads

# --- a busy mount ------------------------------------------------------------------------------------

# busy COMMAND...: runs it while a process has a file of the mount open and works in it
busy() {
    local holder rc=0
    (cd "$MP/c" && exec tail -f "$MP/c/0" >/dev/null) &
    holder=$!
    within 60 test "/proc/$holder/cwd" -ef "$MP/c"
    "$@" || rc=$?
    # It may have seen the end of the mount, and be gone.
    kill "$holder" 2>/dev/null || true
    wait "$holder" || true
    return "$rc"
}

refused_while_busy() {
    mount_view "$TMP/a.zarr"
    still_there() {
        # One list: errexit is off here.
        fails_with "$MP" timeout 30 "$SHARDFS" umount "$MP" && is_mounted "$MP" &&
            cat "$MP/c/1" >/dev/null
    }
    busy still_there
    unmount_view
    gone "$MP"
}
check "umount of a busy mount is refused, and works later" refused_while_busy

# looks_in DIRECTORY: is in it for a moment, from when $TMP/in is there until the time in $TMP/left, in microseconds.
looks_in() {
    rm -f "$TMP/in" "$TMP/left"
    (cd "$1" && : >"$TMP/in" && sleep 0.2 && cd / && echo "${EPOCHREALTIME/[.,]/}" >"$TMP/left") &
    within 60 test -e "$TMP/in"
}

# was_no_moment BEGAN: it was there for much longer from then on, as a busy machine had no time for it.
was_no_moment() { (($(<"$TMP/left") - $1 > 400000)); }

busy_for_a_moment() {
    local began
    for _ in {1..20}; do
        mount_view "$TMP/a.zarr"
        looks_in "$MP/c"
        began=${EPOCHREALTIME/[.,]/}
        if timeout 60 "$SHARDFS" umount "$MP"; then
            wait "$!"
            gone "$MP"
            return
        fi
        wait "$!"
        was_no_moment "$began" || return 1
        unmount_view
    done
    return 1
}
check "umount waits for who only looks in" busy_for_a_moment

# has_copy NAMED MADE: NAMED is MADE, or another process, of another test, that a copy of our mount came to.
has_copy() {
    [[ $1 == "$2" ]] || { [[ -n $1 ]] && ! [[ /proc/$1/ns/mnt -ef /proc/self/ns/mnt ]]; }
}

# is_elsewhere PID: it is in a mount namespace of its own, and runs what it was to run there.
is_elsewhere() { ! [[ /proc/$1/ns/mnt -ef /proc/self/ns/mnt ]] && [[ $(<"/proc/$1/comm") == sleep ]]; }

in_a_namespace() {
    mount_view "$TMP/a.zarr"
    # It has the mount of its own until it ends.
    KEEP=$TMP "$repo/tests/alone.py" sleep 120 &
    # shellcheck disable=SC2064 # The process that was just started.
    trap "kill $! 2>/dev/null || true" EXIT
    within 60 is_elsewhere "$!"
    # Longer than it waits for its daemon, and less long than that process lives.
    timeout 90 "$SHARDFS" umount "$MP" >"$TMP/said" 2>&1
    ! is_mounted "$MP" || return 1
    has_copy "$(sed -n 's/.*another mount namespace .*: process \([0-9]*\) (.*), for example.*/\1/p' "$TMP/said")" "$!"
}
if unshare -m true 2>/dev/null; then
    check "umount tells of mount namespaces that have the mount still" in_a_namespace
fi

# Nor would its session end by itself.
signalled_with_namespace() {
    local mp
    cp -r "$TMP/a.zarr" "$TMP/namespace.zarr"
    mount_view "$TMP/namespace.zarr" --rw --commit-interval 1000 --log-file "$TMP/namespace.log"
    mp=$MP
    KEEP=$TMP "$repo/tests/alone.py" sleep 120 &
    # shellcheck disable=SC2064 # The process that was just started.
    trap "kill $! 2>/dev/null || true" EXIT
    within 60 is_elsewhere "$!"
    cp "$MP/c/1" "$MP/c/0"
    kill -s TERM "$(daemon_of "$mp")"
    within 60 gone "$mp"
    cat "$TMP/namespace.log"
    # Mount namespaces of other tests may have it as well.
    grep -F 'still in use, by a mount namespace that has it too: process' "$TMP/namespace.log"
    mount_view "$TMP/namespace.zarr"
    cmp "$MP/c/0" "$MP/c/1"
    unmount_view
}
if unshare -m true 2>/dev/null; then
    check "TERM ends a mount that another mount namespace has too" signalled_with_namespace
fi

detached_before() {
    mount_view "$TMP/a.zarr"
    local mp=$MP pid
    pid=$(daemon_of "$MP")
    end_it() {
        umount -l "$mp" && kill -s TERM "$pid" && within 60 gone "$mp"
    }
    busy end_it
}
if [[ $(id -u) == 0 ]]; then
    check "TERM ends a busy mount that was detached before" detached_before
fi

signalled_while_busy() {
    mount_view "$TMP/a.zarr"
    local mp=$MP
    end_it() {
        kill -s TERM "$(daemon_of "$mp")" && within 60 gone "$mp"
    }
    busy end_it
}
check "TERM ends a busy mount" signalled_while_busy

# --- other ends --------------------------------------------------------------------------------------

unmounted_by_system() {
    mount_view "$TMP/a.zarr"
    if [[ $(id -u) == 0 ]]; then umount "$MP"; else fusermount3 -u "$MP"; fi
    within 60 gone "$MP"
}
check "umount(8) ends the daemon" unmounted_by_system

lazily() {
    mount_view "$TMP/a.zarr"
    umount -l "$MP"
    within 60 gone "$MP"
}
if [[ $(id -u) == 0 ]]; then
    check "umount -l ends the daemon" lazily
fi

killed() {
    mount_view "$TMP/a.zarr"
    kill -s KILL "$(daemon_of "$MP")"
    within 60 no_daemon_of "$MP"
    fails_with "not connected" ls "$MP"
    unmount_view
    gone "$MP"
    # And the place can be used again.
    timeout 20 "$SHARDFS" mount "$TMP/a.zarr" "$MP" </dev/null >/dev/null 2>&1
    cat "$MP/c/0" >/dev/null
    unmount_view
}
check "umount clears up after a killed daemon" killed

# A process that does not answer must not keep others waiting for ever, and they must be told why.
stopped() {
    mount_view "$TMP/a.zarr"
    local pid rc=0
    pid=$(daemon_of "$MP")
    kill -s STOP "$pid"
    fails_with "has not answered" timeout 30 "$SHARDFS" umount "$MP" || rc=1
    fails_with "/sys/fs/fuse/connections/" timeout 30 "$SHARDFS" sync "$MP" || rc=1
    is_mounted "$MP" || rc=1
    timeout 10 "$SHARDFS" umount --lazy "$MP" || rc=1
    not_mounted "$MP" || rc=1
    kill -s CONT "$pid"
    within 60 no_daemon_of "$MP"
    return "$rc"
}
check "umount and sync say that a stopped daemon does not answer; --lazy detaches its mount" stopped

# Nor one that has taken the requests, which nothing can interrupt then.
silent() {
    new_mount_point
    local pid rc=0
    python3 "$here/silent.py" "$TMP/a.zarr" "$MP" >"$MP.log" 2>&1 &
    pid=$!
    within 60 grep -q mounted "$MP.log" || rc=1
    # A command that cannot be killed would keep this script as well.
    (fails_with "has not answered" timeout 30 "$SHARDFS" umount "$MP" && touch "$MP.umount") &
    (fails_with "/sys/fs/fuse/connections/" timeout 30 "$SHARDFS" sync "$MP" && touch "$MP.sync") &
    within 25 test -e "$MP.umount" -a -e "$MP.sync" || rc=1
    # Whoever asks again joins the one that asks already.
    for _ in 1 2 3; do
        timeout 30 "$SHARDFS" sync "$MP" >/dev/null 2>&1 &
    done
    sleep 2
    (($(pgrep -fc "^shardfs-probe $MP") <= 2)) || rc=1
    timeout 10 "$SHARDFS" umount --lazy "$MP" || rc=1
    # With its last descriptor of the device all requests end.
    kill -s KILL "$pid"
    wait
    not_mounted "$MP" || rc=1
    return "$rc"
}
if [[ $(id -u) == 0 ]]; then
    check "the same of a daemon that has taken requests and does not answer them" silent
fi

# The process that probes a mount for a command is known by its arguments, which anyone can give theirs.
false_probe() {
    mount_view "$TMP/a.zarr"
    local connection pid rc=0
    connection=$(mountpoint -d "$MP")
    echo 'int main(void) { return pause(); }' | cc -w -x c -o "$TMP/sleeper" -
    chmod o+x "$TMP"
    setpriv --reuid 65534 --regid 65534 --clear-groups --reset-env bash -c \
        'exec -a shardfs-probe "$@"' bash "$TMP/sleeper" "$MP" "${connection#*:}" &
    pid=$!
    within 60 pgrep -fu 65534 "^shardfs-probe $MP ${connection#*:}\$" || rc=1
    "$SHARDFS" sync "$MP" || rc=1
    "$SHARDFS" umount "$MP" || rc=1
    kill "$pid"
    return "$rc"
}
if [[ $(id -u) == 0 ]]; then
    check "a process of somebody else cannot pretend that a daemon does not answer" false_probe
fi

twice() {
    local job round
    for round in 1 2 3 4 5; do
        new_mount_point
        env --default-signal "$SHARDFS" mount -f "$TMP/a.zarr" "$MP" </dev/null >"$MP.log" 2>&1 &
        job=$!
        within 60 is_mounted "$MP"
        within 60 cat "$MP/c/0"
        kill -s INT "$job"
        kill -s INT "$job" 2>/dev/null || true
        wait "$job"
        cat "$MP.log"
        [[ $(grep -c -e warning -e error "$MP.log") == 0 ]]
        echo "round $round"
    done
}
check "a signal that comes twice is no reason to warn" twice

passer_by() {
    local job began
    for _ in {1..20}; do
        new_mount_point
        env --default-signal "$SHARDFS" mount -f "$TMP/a.zarr" "$MP" </dev/null >"$MP.log" 2>&1 &
        job=$!
        within 60 is_mounted "$MP"
        within 60 cat "$MP/c/0"
        # Such as an indexer or a df that walks the mounts: gone before the signal is answered.
        looks_in "$MP"
        began=${EPOCHREALTIME/[.,]/}
        kill -s INT "$job"
        wait "$job"
        wait "$!"
        cat "$MP.log"
        grep -e warning -e error "$MP.log" || return 0
        was_no_moment "$began" || return 1
    done
    return 1
}
check "somebody who passes through a mount is no reason to detach it" passer_by

together() {
    mount_view "$TMP/a.zarr"
    local first=$MP
    mount_view "$TMP/a.zarr"
    unmount_view "$first"
    cat "$MP/c/0" >/dev/null
    unmount_view "$MP"
}
check "mounts are independent" together

source_vanishes() {
    cp -r "$TMP/a.zarr" "$TMP/gone.zarr"
    mount_view "$TMP/gone.zarr"
    cat "$MP/c/0" >/dev/null
    rm -r "$TMP/gone.zarr"
    sleep 1.2
    fails_with "" cat "$MP/c/5"
    is_mounted "$MP"
    unmount_view
    gone "$MP"
}
check "a source that vanishes: errors, and a mount that can be unmounted" source_vanishes

# The process of a mount that is gone notices it late, when its mount point, and the number of its connection, are
# those of another mount.
mounted_anew() {
    local pid
    mount_view "$TMP/a.zarr"
    pid=$(daemon_of "$MP")
    kill -s STOP "$pid"
    # umount(8) would wait for an answer.
    python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).umount2(sys.argv[1].encode(), 0))' "$MP" ||
        { kill -s CONT "$pid"; return 1; }
    timeout 30 "$SHARDFS" mount "$TMP/a.zarr" "$MP" </dev/null >"$MP.log" 2>&1 || { kill -s CONT "$pid"; return 1; }
    kill -s CONT "$pid"
    within 60 has_no_process "$pid"
    is_mounted "$MP"
    cat "$MP/c/0" >/dev/null
    unmount_view
}
has_no_process() { [[ ! -d /proc/$1 ]]; }
if [[ $(printf '%s\n' 6.8 "$(uname -r)" | sort -V | head -n 1) == 6.8 ]]; then
    check "a mount is not taken away by the end of the one that was there before" mounted_anew
else
    skip "a mount is not taken away by the end of the one that was there before: Linux before 6.8"
fi
