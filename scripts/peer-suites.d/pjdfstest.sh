# shellcheck shell=bash disable=SC2154 # variables of peer-suites
# pjdfstest, as rewritten in Rust: what POSIX says of the system calls on names and attributes, as root and as other
# users, of files that are passed through.

# pjdfstest_in DIRECTORY REPORT
pjdfstest_in() {
    mkdir -p "$1"
    # Another filesystem, for what cannot be done across two.
    RUST_BACKTRACE=0 NO_COLOR=1 timeout --kill-after=10 "$limit" "$tools/bin/pjdfstest" -c "$run/pjdfstest.toml" \
        -s /dev/shm -p "$1" >"$2" 2>&1 || true
    grep -q '^Summary' "$2" || {
        echo "peer-suites: pjdfstest in $1 did not end:" >&2
        tail -n 30 "$2" >&2
        return 1
    }
}

run_pjdfstest() {
    [[ $EUID == 0 ]] || {
        echo "pjdfstest: skipped, it needs root" >&2
        return 0
    }
    install_tool pjdfstest || return 1
    # Features: those that both filesystems have. It must never be allowed to remount: that would be the plain
    # directory's filesystem. Users: two that every system has.
    cat >"$run/pjdfstest.toml" <<EOT
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "$(id -gn nobody)"], ["daemon", "$(id -gn daemon)"]]
EOT
    new_source "$run/pjdfstest-source"
    pjdfstest_in "$run/pjdfstest-plain" "$keep/pjdfstest-plain.txt" || return 1
    mount_view "$run/pjdfstest-source" -o allow_other --log-file "$keep/pjdfstest.log" || return 1
    pjdfstest_in "$mount/run" "$keep/pjdfstest-mount.txt" || return 1
    unmount_view || return 1
    compare pjdfstest "$keep/pjdfstest-plain.txt" "$keep/pjdfstest-mount.txt"
}
