#!/usr/bin/env bash
# How requests reach a mount: by io_uring where the kernel has it, from /dev/fuse wherever that is not
# to be had, with one line that says why, and never a mount that hangs.
. "$(dirname "$0")/../lib.sh"

switch=/sys/module/fuse/parameters/enable_uring
source=$TMP/array
"$SHARDFS" create --shape 64,64 --chunk 8,8 --shard 32,32 --dtype uint16 "$source" >/dev/null

# of_stats KEY: the value in the counters' section on the transport.
of_stats() { python3 -c 'import json, sys; print(json.load(sys.stdin)["transport"].get(sys.argv[1]))' "$1" <"$MP/.shardfs/stats.json"; }

# mount_by TRANSPORT [COMMAND...]: mounts in the foreground, with the log in $TMP/log; sets MP and PID.
mount_by() {
    local transport=$1
    shift
    new_mount_point
    : >"$TMP/log"
    "$@" "$SHARDFS" mount --foreground --rw -v -o transport="$transport" "$source" "$MP" 2>"$TMP/log" &
    PID=$!
    within 60 grep -q 'is mounted on' "$TMP/log"
}

# mount_by_rings: by io_uring, and not because it was asked for.
mount_by_rings() {
    mount_by uring
    [[ $(of_stats name) == uring ]]
}

end_mount() {
    unmount_view
    wait "$PID"
}

# works: files are written, read, listed, renamed and removed.
works() {
    head -c 128 /dev/urandom >"$TMP/chunk"
    mkdir -p "$MP/c/0"
    cp "$TMP/chunk" "$MP/c/0/0"
    cmp "$TMP/chunk" "$MP/c/0/0"
    sync "$MP/c/0/0"
    mkdir "$MP/notes"
    ln -s target "$MP/notes/link"
    [[ $(readlink "$MP/notes/link") == target ]]
    mkfifo "$MP/notes/pipe"
    seq 100000 >"$MP/notes/numbers"
    ln "$MP/notes/numbers" "$MP/notes/other"
    mv "$MP/notes/numbers" "$MP/notes/renamed"
    seq 100000 | cmp - "$MP/notes/other"
    truncate -s 10 "$MP/notes/renamed"
    [[ $(stat -c %s "$MP/notes/other") == 10 ]]
    chmod 600 "$MP/notes/renamed"
    touch -d '1969-12-31 23:59:58.5 UTC' "$MP/notes/renamed"
    [[ $(stat -c '%a %.9Y' "$MP/notes/renamed") == '600 -1.500000000' ]]
    for n in {1..500}; do : >"$MP/notes/$n.with-a-name-of-some-length"; done
    [[ $(find "$MP/notes" -type f | wc -l) == 502 ]]
    rm -r "$MP/notes"
    rm "$MP/c/0/0"
    [[ ! -e $MP/c/0/0 ]]
    fails_with 'No such file' cat "$MP/c/9/9"
    fails_with 'Not a directory' ls "$MP/zarr.json/x"
    stat -f "$MP"
}

classic_on_request() {
    mount_by classic
    [[ $(of_stats name) == classic && $(of_stats why) == 'it was asked for' ]]
    works
    end_mount
}
check 'the classic transport is taken when it is asked for' classic_on_request

bad_name() { fails_with 'is none of auto, classic, uring' "$SHARDFS" mount -o transport=pigeon "$source" "$TMP"; }
check 'an unknown transport is refused' bad_name

variable() {
    new_mount_point
    SHARDFS_TRANSPORT=classic "$SHARDFS" mount "$source" "$MP"
    [[ $(of_stats why) == 'it was asked for' ]]
    unmount_view
}
check 'the environment says what is taken where nothing else does' variable

if [[ ! -w $switch ]]; then
    skip "io_uring: no $switch that can be written"
    exit
fi
# The switch is the whole system's: one run at a time uses it.
exec {lock}</dev/fuse
kill "$deadline"
echo 'waits until no other run of the tests needs it as it is'
flock "$lock"
deadline "${SHARDFS_TEST_SECONDS:-600}"
was=$(<"$switch")
io_uring_was=$(sysctl -n kernel.io_uring_disabled 2>/dev/null || true)

restore() {
    echo "$was" >"$switch"
    [[ -z $io_uring_was ]] || sysctl -q kernel.io_uring_disabled="$io_uring_was"
}
trap 'rc=$?; restore; end $rc' EXIT

# refused TEXT TRANSPORT [COMMAND...]: the classic transport serves, and one line says why.
refused() {
    local text=$1 transport=$2
    shift 2
    mount_by "$transport" "$@"
    [[ $(of_stats name) == classic && $(of_stats why) == *"$text"* ]]
    [[ $(grep -c 'not by io_uring' "$TMP/log") == 1 ]]
    grep 'not by io_uring' "$TMP/log" | grep -qF "$text"
    works
    end_mount
}

echo N >"$switch"
check 'a kernel that has it switched off' refused 'echo Y > /sys/module/fuse/parameters/enable_uring' uring
echo Y >"$switch"

by_rings() {
    mount_by uring
    [[ $(of_stats name) == uring && $(of_stats why) == None ]]
    works
    end_mount
    not_mounted "$MP"
    [[ ! -e /proc/$PID ]]
}
check 'requests come by io_uring' by_rings

automatic() {
    mount_by auto
    [[ $(of_stats name) == uring ]]
    end_mount
}
check 'io_uring is taken where it is switched on' automatic

if (($(nproc) > 1)); then
    check 'a process that may not run on every CPU' refused 'this process may run on 1 of' uring taskset -c 0
fi
if [[ -n $io_uring_was ]]; then
    sysctl -q kernel.io_uring_disabled=2
    check 'a system that forbids io_uring' refused 'the system refuses a ring' auto
    sysctl -q kernel.io_uring_disabled="$io_uring_was"
else
    skip 'a system that forbids io_uring: no kernel.io_uring_disabled'
fi

check 'a filter of system calls that forbids io_uring' refused 'the system refuses a ring' auto \
    python3 "$(dirname "$0")/without_rings.py"

# Linux 5.12 and later count the memory of rings otherwise: either transport may serve.
little_memory() {
    mount_by auto prlimit --memlock=65536
    works
    end_mount
}
check 'a limit of 64 KiB for locked memory' little_memory

# Enough for the threads that read /dev/fuse, and not for rings beside them.
# shellcheck disable=SC2016 # Expanded by that shell.
check 'a limit of address space' refused 'there is no address space for rings' uring \
    bash -c 'ulimit -v 350000 && exec "$0" "$@" -o threads=2'

switched_off_later() {
    mount_by uring
    echo N >"$switch"
    works
    end_mount
    echo Y >"$switch"
}
check 'a mount goes on when it is switched off' switched_off_later

# It is switched off once the mount exists, before the kernel has the answer that agrees to it.
switched_meanwhile() {
    local job rc n
    trap 'echo Y >"$switch"' EXIT
    for n in {1..20}; do
        new_mount_point
        strace -f -o "$TMP/trace" -e trace=mount -e inject=mount:delay_exit=2s \
            "$SHARDFS" mount --foreground "$source" "$MP" </dev/null >"$TMP/said" 2>&1 &
        job=$!
        within 60 is_mounted "$MP"
        echo N >"$switch"
        within 60 is_decided "$job" "$MP"
        echo Y >"$switch"
        if kill -0 "$job" 2>/dev/null; then
            # Too late, on a busy machine.
            unmount_view
            wait "$job"
            continue
        fi
        rc=0
        wait "$job" || rc=$?
        cat "$TMP/said"
        [[ $rc == 2 ]]
        grep -F "$MP: unmounted again: the kernel has refused requests by io_uring" "$TMP/said"
        not_mounted "$MP"
        return
    done
    return 1
}
# is_decided PID MOUNTPOINT: the command has ended, or the mount answers.
is_decided() { ! kill -0 "$1" || grep -qF "is mounted on $2" "$TMP/said"; }
if strace -o /dev/null true 2>/dev/null; then
    check 'a mount that is switched off while it is made is no mount, and its command says so' switched_meanwhile
fi

other_users() {
    mount_by_rings
    fails_with 'Permission denied' setpriv --reuid=65534 --clear-groups ls "$MP"
    works
    end_mount
}
check 'other users are refused' other_users

# A thread waits for each of these writers' commits: others answer meanwhile.
busy() {
    mount_by_rings
    local n
    for n in {0..7}; do
        mkdir -p "$MP/c/$n"
        head -c 128 /dev/urandom >"$MP/c/$n/$n"
        for _ in {1..20}; do
            head -c 128 /dev/urandom >"$MP/c/$n/$n"
            sync "$MP/c/$n/$n"
        done &
        writers+=($!)
    done
    for n in {1..200}; do
        timeout 60 ls -l "$MP/c/0" >/dev/null
    done
    # Each of them: wait with several names reports the last one alone.
    for n in "${writers[@]}"; do wait "$n"; done
    end_mount
}
writers=()
check 'requests are answered while others wait for commits' busy

# All writers are on one CPU, many more than it has threads, and the lock that their commits need is another
# process's. They come at once: what has no entry of a ring when it arrives, no thread that is started
# afterwards could take.
blocked() {
    local n holder blocked=()
    mount_by_rings
    mkdir -p "$MP/c/0"
    head -c 128 /dev/urandom >"$MP/c/0/0"
    sync "$MP/c/0/0"
    python3 - "$source/.shardfs/lock" "$TMP/held" <<'PY' &
import fcntl
import sys
import time

with open(sys.argv[1], "rb") as lock, open(sys.argv[2], "w") as held:
    fcntl.lockf(lock, fcntl.LOCK_SH)
    print("held", file=held, flush=True)
    time.sleep(600)
PY
    holder=$!
    # shellcheck disable=SC2064 # The process that was just started.
    trap "kill $holder 2>/dev/null || true" EXIT
    within 60 grep -q held "$TMP/held"
    for n in {1..30}; do
        # shellcheck disable=SC2016 # Expanded by that shell.
        taskset -c 0 bash -c 'head -c 128 /dev/urandom >"$1" && sync "$1"' _ "$MP/c/0/$((n % 8))" &
        blocked+=($!)
    done
    sleep 1
    for n in {1..20}; do
        taskset -c 0 timeout 60 ls -l "$MP" >/dev/null
        taskset -c 0 timeout 60 cat "$MP/zarr.json" >/dev/null
    done
    kill "$holder"
    for n in "${blocked[@]}"; do wait "$n"; done
    end_mount
}
check 'one CPU whose threads all wait for a commit answers others' blocked

killed() {
    local n
    for ((n = 0; n < ${KILLS:-20}; n++)); do
        mount_by_rings
        (while cat "$MP"/c/*/* && echo x >"$MP/file"; do :; done) >/dev/null 2>&1 &
        reader=$!
        sleep "0.0$((RANDOM % 10))"
        kill -9 "$PID"
        wait "$PID" || true
        # Whoever waited got an error: nothing hangs.
        timeout 60 tail --pid="$reader" -f /dev/null
        umount "$MP"
    done
}
check 'nothing hangs when the process is killed' killed

# fails_at TIMES ERROR: the calls by which rings are served fail with ERROR, those TIMES of each thread.
fails_at() {
    mount_by uring strace -qq -f -o /dev/null -e trace=io_uring_enter -e inject="io_uring_enter:error=$2:when=$1"
}

broken() {
    local tries=0
    fails_at 40+ EBADFD
    # Other threads take part of the requests. The one that fails has no answer for its caller.
    while timeout -s KILL 20 stat -f "$MP" >/dev/null 2>"$TMP/stat"; do
        (((tries += 1) < 2000))
    done
    cat "$TMP/stat"
    grep -E 'Transport endpoint|connection abort|not connected' "$TMP/stat"
    within 20 not_mounted "$MP"
    wait "$PID" || true
    grep -E 'a ring of CPU [0-9]+ has failed' "$TMP/log"
}
short_of_memory() {
    fails_at 10+3 ENOMEM
    works
    end_mount
}
if strace -o /dev/null true 2>/dev/null; then
    check 'a ring that fails ends the mount, and nothing hangs' broken
    check 'a shortage of memory is waited out' short_of_memory
else
    skip 'threads that fail: no strace'
fi
