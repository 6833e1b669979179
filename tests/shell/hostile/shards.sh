#!/bin/bash
# Shards that are links, or private; saved chunks behind links; several processes that change the same shards.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

linked_shard() {
    local update
    for update in in-place auto rewrite; do
        fresh
        rm "$src/evil/c/0"
        ln -s ../../good/c/0 "$src/evil/c/0"
        remember
        mount_view "$src" --rw -o "update=$update"
        printf 'x%.0s' {1..4096} >"$MP/evil/c/1"
        "$SHARDFS" sync "$MP"
        unmount_view
        [[ ! -L $src/evil/c/0 && -f $src/evil/c/0 ]]
        state "$src" | diff "$work/before" -
    done
    # One below a directory that is a link is not written.
    mv "$src/evil/c" "$src/elsewhere"
    ln -s ../elsewhere "$src/evil/c"
    remember
    rm -f "$work/log"
    mount_view "$src" --rw --log-file "$work/log"
    printf 'y%.0s' {1..4096} >"$MP/evil/c/1"
    "$SHARDFS" sync "$MP" && return 1
    "$SHARDFS" umount "$MP" || true
    within 10 no_daemon_of "$MP"
    unsaved
    grep -F 'evil/c: it is a symbolic link where a directory must be' "$work/log"
    untouched
}
check "a shard that is a link is replaced, one behind a link is not written" linked_shard

# At no moment may other users open what replaces a private shard, or read its bytes elsewhere.
private_shards() {
    fresh
    chmod 600 "$src/evil/c/"* "$src/evil/zarr.json"
    local update
    for update in rewrite in-place auto; do
        (umask 0 && mount_view "$src" --rw -o "update=$update" && echo "$MP" >"$work/mp")
        MP=$(<"$work/mp")
        python3 -c 'import os, sys; sys.stdout.buffer.write(os.urandom(4096))' >"$work/chunk"
        cp "$work/chunk" "$MP/evil/c/1"
        "$SHARDFS" sync "$MP"
        [[ $(stat -c %a "$src/evil/c/0") == 600 ]]
        [[ $update != in-place || $(stat -c %a "$src/evil/.shardfs/journal") == 600 ]]
        "$SHARDFS" umount "$MP"
    done
}
check "shards that are private stay private, and so do the bytes that the journal keeps" private_shards

# Whoever has the journal open, from a time when all were allowed to, does not read what a private shard held.
journal_is_open() {
    local refuse
    for refuse in 'chmod 600' 'setfacl -m u:1002:-'; do
        fresh
        if ! command -v "${refuse%% *}" >/dev/null; then continue; fi
        chmod 755 "$src" "$src/evil" "$src/evil/c"
        chmod 644 "$src/evil/c/"*
        mount_view "$src" --rw -o update=in-place
        head -c 4096 /dev/zero | tr '\0' A >"$MP/evil/c/1"
        "$SHARDFS" sync "$MP"
        [[ $(stat -c %a "$src/evil/.shardfs/journal") == 644 ]]
        exec 7<"$src/evil/.shardfs/journal"
        $refuse "$src/evil/c/0"
        head -c 4096 /dev/zero | tr '\0' B >"$MP/evil/c/1"
        "$SHARDFS" sync "$MP"
        head -c 4096 /dev/zero | tr '\0' C >"$MP/evil/c/1"
        "$SHARDFS" sync "$MP"
        [[ $(stat -c %a "$src/evil/.shardfs/journal") == 600 ]]
        grep -q BBBBBBBB "$src/evil/.shardfs/journal"
        if grep -q BBBBBBBB <&7; then return 1; fi
        exec 7<&-
        unmount_view
    done
}
check "a journal that others have open is not the one that gets the bytes of private shards" journal_is_open

journal_of_others() {
    [[ $(id -u) == 0 ]] || {
        echo "needs root"
        return 0
    }
    fresh
    chmod 600 "$src/evil/c/"*
    mount_view "$src" --rw -o update=in-place
    head -c 4096 /dev/zero | tr '\0' A >"$MP/evil/c/1"
    "$SHARDFS" sync "$MP"
    # Who owns the directory may put one of his own there.
    rm "$src/evil/.shardfs/journal"
    install -m 600 -o 1002 -g 1002 /dev/null "$src/evil/.shardfs/journal"
    exec 7<"$src/evil/.shardfs/journal"
    head -c 4096 /dev/zero | tr '\0' B >"$MP/evil/c/1"
    "$SHARDFS" sync "$MP"
    head -c 4096 /dev/zero | tr '\0' C >"$MP/evil/c/1"
    "$SHARDFS" sync "$MP"
    [[ $(stat -c '%u %a' "$src/evil/.shardfs/journal") == "0 600" ]]
    grep -q BBBBBBBB "$src/evil/.shardfs/journal"
    if grep -q BBBBBBBB <&7; then return 1; fi
    exec 7<&-
    unmount_view
}
check "a journal of another user does not get the bytes of private shards" journal_of_others

# Two mounts that are killed at once, in the middle of commits: no lock file is left in the end.
killed_together() {
    fresh
    local pids=() mps=() mp
    for _ in 1 2 3; do
        pids=() mps=()
        for _ in 1 2; do
            mount_view "$src" --rw -o commit_interval=0.05
            mps+=("$MP")
            pids+=("$(daemon_of "$MP")")
        done
        for mp in "${mps[@]}"; do
            (for ((i = 0; i < 400; i++)); do head -c 4096 /dev/urandom >"$mp/evil/c/$((RANDOM % 16))" || exit; done) \
                2>/dev/null &
        done
        sleep 0.$((RANDOM % 9 + 1))
        kill -KILL "${pids[@]}"
        wait
        abort_mounts
        "$SHARDFS" recover "$src" >/dev/null || [[ $? == 1 ]]
        [[ -z $(find "$src" -name '*.__lock') ]]
        [[ ! -e $src/evil/.shardfs ]]
    done
}
check "two mounts that are killed at once leave no lock files" killed_together

# What is saved is removed once it is put in: nothing behind a link is, wherever the link is.
saved_behind_links() {
    fresh
    local saved=$work/saved other=$work/other
    mkdir -p "$saved" "$other/evil/c"
    head -c 4096 /dev/urandom >"$other/evil/c/0"
    ln -s "$work/spool" "$saved/.spool"
    mkdir "$work/spool"
    ln -s "$other" "$work/spool/7"
    fails_with "is no directory" "$SHARDFS" recover --unsaved "$saved" --force "$src"
    rm "$saved/.spool"
    mv "$work/spool" "$saved/.spool"
    fails_with "is no directory" "$SHARDFS" recover --unsaved "$saved" --force "$src"
    ln -sfn "$other/evil" "$saved/evil"
    rm "$saved/.spool/7"
    "$SHARDFS" recover --unsaved "$saved" --force "$src"
    [[ -e $other/evil/c/0 ]]
}
check "recover --unsaved takes nothing from behind links" saved_behind_links

# While a mount commits in place, repack never says that a shard is damaged.
repack_beside() {
    fresh
    mount_view "$src" --rw -o update=in-place,commit_interval=0.05
    (for ((i = 0; i < 600; i++)); do head -c 4096 /dev/urandom >"$MP/evil/c/$((RANDOM % 16))" || exit; done) 2>/dev/null &
    local writer=$!
    while kill -0 "$writer" 2>/dev/null; do
        "$SHARDFS" repack "$src/evil" >>"$work/repack.log" 2>&1 || true
        "$SHARDFS" verify "$src/evil" >>"$work/verify.log" 2>&1 || true
    done
    wait "$writer" || true
    "$SHARDFS" umount "$MP"
    "$SHARDFS" verify "$src/evil"
    if grep -iE 'damage|checksum|interrupted' "$work/repack.log"; then return 1; fi
}
check "repack beside commits in place" repack_beside
