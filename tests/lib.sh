# shellcheck shell=bash
# Common parts of the tests that need a real mount.  Source it first:
#
#     . "$(dirname "$0")/lib.sh"
#
# It gives $repo, $SHARDFS, $TMP (removed at the end) and the functions below.  Results are kept in a
# file, so that checks made in background jobs count too.  The last line is always "N passed, M failed".

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SHARDFS=$(realpath -m "${SHARDFS:-$repo/target/release/shardfs}")
TMP=$(mktemp -d "${TMPDIR:-/tmp}/shardfs-test.XXXXXX")
main_pid=$BASHPID
: >"$TMP/results"
: >"$TMP/mounts"
: >"$TMP/at_end"

# Where the corpus is, or nothing.
corpus_dir() {
    local dir=${SHARDFS_CORPUS:-$repo/../shared/corpus}
    [[ -d $dir/manifests ]] && realpath "$dir"
}

# --- results ---------------------------------------------------------------------------------------

pass() {
    echo "ok   $*"
    echo pass >>"$TMP/results"
}

fail() {
    echo "FAIL $*"
    echo fail >>"$TMP/results"
}

indent() { sed 's/^/       /'; }

skip() { echo "skipped: $*"; }

# check NAME COMMAND [ARG...]: one result.  COMMAND may be a function of several lines: it runs with
# errexit, and the line that ended it is shown with its output.
check() {
    local name=$1 out rc
    shift
    out=$(mktemp "$TMP/check.XXXXXX")
    echo "$name" >"$out.name"
    set +e
    (
        trap 'echo "line $LINENO: ${BASH_COMMAND%%[[:cntrl:]]*} (exit $?)" >&2' ERR
        set -eE
        "$@"
    ) >"$out" 2>&1
    rc=$?
    set -e
    if [[ $rc == 0 ]]; then
        pass "$name"
    else
        fail "$name"
        tail -n 25 "$out" | indent
    fi
    rm -f "$out" "$out.name"
}

# judge LABEL COMMAND...: its lines are results: "ok ...", "skipped: ...", or a failure.  LABEL stands in front.
judge() {
    local label=$1 verdict words
    shift
    while read -r verdict words; do
        case $verdict in
        ok) pass "$label$words" ;;
        skipped:) skip "$label$words" ;;
        *) fail "$label$words" ;;
        esac
    done < <("$@" 2>"$TMP/judge.err" || echo "FAIL ended with $?: ${*:1:3}: $(tail -n 3 "$TMP/judge.err" | tr '\n' ' ')")
}

# expect_exit CODE COMMAND...: COMMAND ends with exactly this code.  Its output goes to stdout.
expect_exit() {
    local want=$1 rc=0
    shift
    "$@" </dev/null 2>&1 || rc=$?
    [[ $rc == "$want" ]] || {
        echo "exit $rc, expected $want: $*"
        return 1
    }
}

# fails_with TEXT COMMAND...: COMMAND fails and says TEXT, for example the text of an errno.
fails_with() {
    local text=$1 out rc=0
    shift
    out=$("$@" 2>&1 </dev/null) || rc=$?
    [[ $rc != 0 && $out == *"$text"* ]] || {
        echo "exit $rc, expected a failure with '$text': $*"
        echo "$out"
        return 1
    }
}

# exchanges DIRECTORY ONE OTHER: exchanges these two names in it and back, again and again, until it is ended.
exchanges() {
    # shellcheck disable=SC2016 # Perl's.
    exec perl -e '
        my ($directory, $one, $other) = @ARGV;
        chdir $directory or die;
        while (1) {
            # renameat2 with RENAME_EXCHANGE.
            syscall(316, -100, $one, -100, $other, 2) == 0 or $!{ENOENT} or die $!;
            select undef, undef, undef, rand 0.002;
        }' "$@"
}

# within SECONDS COMMAND...: COMMAND succeeds at some time in the next SECONDS.
within() {
    local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000)) is_last
    shift
    while :; do
        # Known before: the last attempt is made once that time has passed.
        is_last=$((${EPOCHREALTIME/[.,]/} >= end))
        if "$@" >/dev/null 2>&1; then return 0; fi
        if ((is_last)); then
            echo "not in time: $*"
            return 1
        fi
        sleep 0.05
    done
}

# --- mounts ----------------------------------------------------------------------------------------

# /proc/self/mounts rather than mountpoint(1): that one fails on a mount whose daemon is dead.
# Blanks are octal there.
is_mounted() {
    mp=${1// /\\040} awk '$2 == ENVIRON["mp"] { found = 1 } END { exit !found }' /proc/self/mounts
}
not_mounted() { ! is_mounted "$1"; }

# run_in_namespace: runs this script again, with the argument "in-namespace", in a mount namespace that has none of other
# tests' mounts, and ends with its exit code. As root.
run_in_namespace() {
    local rc=0
    # Not exec: the outer run removes its own temporary directory and prints the inner one's result.
    KEEP=$TMP "$repo/tests/alone.py" "$0" in-namespace || rc=$?
    trap - EXIT
    kill "$deadline"
    rm -rf "$TMP"
    exit "$rc"
}

# A new empty directory, unmounted at the end whatever is mounted there.  Sets MP.
new_mount_point() {
    MP=$(mktemp -d "$TMP/mnt.XXXXXX")
    echo "$MP" >>"$TMP/mounts"
}

# mount_view SOURCE [OPTION...]: sets MP.
mount_view() {
    local source=$1
    shift
    new_mount_point
    # Not into a pipe: a daemon that kept it open would stop the test here and not where it is tested.
    if ! timeout 30 "$SHARDFS" mount "$@" "$source" "$MP" </dev/null >"$MP.log" 2>&1; then
        cat "$MP.log"
        return 1
    fi
}

# unmount_view [MOUNTPOINT]
unmount_view() {
    # Half a minute where another test has made a mount namespace in the meantime.
    timeout 60 "$SHARDFS" umount "${1:-$MP}"
}

# Process ids of our program.
daemons() {
    # The star: " (deleted)" when it was built anew.
    find /proc/[0-9]*/exe -maxdepth 0 -lname "$SHARDFS*" 2>/dev/null | cut -d / -f 3 || true
}

# daemon_of MOUNTPOINT [PROCESS...]: those of the processes, or of all of our program, that have MOUNTPOINT
# among their arguments.
daemon_of() {
    local mp=$1 pid
    shift
    # shellcheck disable=SC2046 # numbers
    [[ $# != 0 ]] || set -- $(daemons)
    for pid; do
        if grep -zqxF -- "$mp" "/proc/$pid/cmdline" 2>/dev/null; then
            echo "$pid"
        fi
    done
}

no_daemon_of() { [[ -z $(daemon_of "$1") ]]; }

# has_ended PID: a process that was killed has closed its files, too.
has_ended() { ! grep -hsv ') Z ' "/proc/$1/task/"*/stat | grep -q .; }

# abort_mounts: ends the connections of all our mounts and detaches them.  Whoever waits for a daemon that
# does not answer gets an error; before that not even SIGKILL reaches them.  umount(8) would wait too.
abort_mounts() {
    python3 - "$TMP/mounts" <<'PY'
import ctypes
import os
import sys

MNT_FORCE, MNT_DETACH = 1, 2
with open("/proc/self/mounts", "rb") as f:
    mounted = [line.split()[1].replace(b"\\040", b" ") for line in f]
with open(sys.argv[1], "rb") as f:
    for path in f.read().splitlines():
        for _ in range(mounted.count(path)):
            ctypes.CDLL(None).umount2(path, MNT_FORCE | MNT_DETACH)
PY
}

# descendants PID: processes that it has started, theirs, and so on.
descendants() {
    local pid
    # shellcheck disable=SC2013 # words are what is wanted
    for pid in $(cat "/proc/$1/task"/*/children 2>/dev/null); do
        echo "$pid"
        descendants "$pid"
    done
}

# what_hangs: the checks that have not ended, the processes that belong to them or serve their mounts, and where
# in the kernel those wait.
what_hangs() {
    local file pid stack
    for file in "$TMP"/check.*.name; do
        [[ ! -f $file ]] || {
            echo "in: $(<"$file")"
            indent <"${file%.name}"
        }
    done
    for pid in $(descendants "$main_pid") $(daemons); do
        [[ $pid != "$BASHPID" && -r /proc/$pid/cmdline ]] || continue
        tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-200
        for stack in "/proc/$pid"/task/*/stack; do
            sed -n 's/^\[<0>\] \([^+]*\).*/\1/p' "$stack" 2>/dev/null | head -n 6 | paste -s -d ' '
        done | sort | uniq -c | indent
    done
}

# deadline SECONDS: when they are over all mounts are aborted, then everything is killed.  Sets $deadline, to be
# killed before that.
deadline() {
    (
        trap 'kill $!; exit' TERM
        sleep "$1" &
        wait $!
        trap - TERM
        echo "FAIL not done after $1 s: the mounts are aborted"
        echo fail >>"$TMP/results"
        what_hangs || true
        abort_mounts || true
        sleep 10
        # Whoever waits for something else, a lock for example, ends only now.
        for pid in $(descendants "$main_pid"); do
            # shellcheck disable=SC2046 # numbers
            [[ $pid == "$BASHPID" ]] || kill -KILL "$pid" 2>/dev/null || true
        done
        kill -TERM "$main_pid"
    ) &
    # shellcheck disable=SC2034 # for the caller
    deadline=$!
}

# --- mounts of stores on the network -----------------------------------------------------------------

# asked: how many requests the mount has sent, how many of them were for listings, and how many may have been repetitions
# of others, which were late or lost: on a busy machine some are
asked() {
    python3 - "$MP/.shardfs/stats.json" <<'PY'
import json
import sys

with open(sys.argv[1]) as f:
    remote = json.load(f)["remote"]
print(remote["requests"], remote["lists"], sum(remote[name] for name in ("sent_twice", "lost", "throttled")))
PY
}

# asks GETS LISTS COMMAND...: COMMAND makes the mount send exactly as many
asks() {
    local gets=$1 lists=$2 asked_before asked_now sent listed repeated
    shift 2
    read -r -a asked_before < <(asked)
    "$@" >/dev/null
    read -r -a asked_now < <(asked)
    listed=$((asked_now[1] - asked_before[1])) repeated=$((asked_now[2] - asked_before[2]))
    sent=$((asked_now[0] - asked_before[0] - listed))
    echo "$sent GETs and $listed LISTs, $repeated of them repetitions: ${*:1:3}"
    ((listed == lists && sent - repeated <= gets && gets <= sent))
}

# --- the end ---------------------------------------------------------------------------------------

# at_end COMMAND [ARG...]: runs when the script ends, however it ends, after everything is unmounted.
at_end() {
    printf '%q ' "$@" >>"$TMP/at_end"
    echo >>"$TMP/at_end"
}

# A script with a trap of its own hands on the exit code.
# remove_unsaved: what mounts of sources in $TMP have saved, which is outside of it.
remove_unsaved() {
    local record
    for record in /var/lib/shardfs/unsaved/*/.source "${HOME:-/nonexistent}"/.local/state/shardfs/unsaved/*/.source; do
        if grep -qsF -- "$TMP/" "$record"; then
            rm -rf "${record%/.source}"
        fi
    done
}

end() {
    local rc=${1:-$?} mp pid left command passed failed
    [[ $BASHPID == "$main_pid" ]] || exit "$rc"
    trap - EXIT
    trap '' INT TERM HUP
    for pid in $(jobs -p); do
        kill "$pid" 2>/dev/null || true
    done
    while read -r mp; do
        if is_mounted "$mp"; then
            timeout 10 "$SHARDFS" umount "$mp" >/dev/null 2>&1 || true
            # After an abort even a daemon that waits for itself can be killed.
            not_mounted "$mp" || abort_mounts
        fi
    done <"$TMP/mounts"
    # Daemons that outlive their mount, or hang in it; only those of our own mount points.
    mapfile -t left < <(daemons)
    if ((${#left[@]})); then
        while read -r mp; do
            for pid in $(daemon_of "$mp" "${left[@]}"); do
                kill -KILL "$pid" 2>/dev/null || true
            done
        done <"$TMP/mounts"
    fi
    # Detaching is the last resort.
    abort_mounts
    while read -r command; do
        timeout 60 bash -c "$command" </dev/null || true
    done <"$TMP/at_end"
    # Filesystems that a check has mounted and not come to unmount.
    while read -r mp; do
        umount -l "$(printf '%b' "$mp")" 2>/dev/null || true
    done < <(below=$TMP/ awk 'index($2, ENVIRON["below"]) == 1 { print $2 }' /proc/self/mounts | tac)
    remove_unsaved
    passed=$(grep -c pass "$TMP/results" || true)
    failed=$(grep -c fail "$TMP/results" || true)
    rm -rf --one-file-system "$TMP"
    # A script that ended early has failed even if all it came to was right.
    if [[ $rc != 0 && $failed == 0 ]]; then
        echo "ended early with exit code $rc"
        failed=1
    fi
    echo "$passed passed, $failed failed"
    [[ $failed == 0 ]] || exit 1
    exit 0
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

if [[ ! -x $SHARDFS ]]; then
    echo "no program at $SHARDFS: build it or set SHARDFS" >&2
    exit 1
fi
# No script takes this long unless something hangs.
deadline "${SHARDFS_TEST_SECONDS:-600}"
