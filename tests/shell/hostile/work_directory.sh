#!/bin/bash
# A work directory that others have tampered with: links, pipes, notes of locks, files of their own.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

work_directory_is_a_link() {
    fresh
    ln -s ../good/c "$src/evil/.shardfs"
    refused '.shardfs: it is a symbolic link where a directory must be'
    rm "$src/evil/.shardfs"
    "$SHARDFS" recover "$src"
    untouched
}
check "a work directory that is a link to another array's shards" work_directory_is_a_link

work_directory_is_a_file() {
    fresh
    echo mine >"$src/evil/.shardfs"
    refused '.shardfs: it is a regular file where a directory must be'
    [[ $(<"$src/evil/.shardfs") == mine ]]
}
check "a work directory that is a file" work_directory_is_a_file

journal_is_a_link() {
    fresh
    mkdir "$src/evil/.shardfs"
    ln -s ../../secret.txt "$src/evil/.shardfs/$1"
    refused ".shardfs/$1: it is a symbolic link where a regular file must be"
}
check "a journal that is a link" journal_is_a_link journal
check "a lock that is a link" journal_is_a_link lock

journal_is_linked() {
    fresh
    mkdir "$src/evil/.shardfs"
    ln "$src/secret.txt" "$src/evil/.shardfs/$1"
    remember
    refused ".shardfs/$1: it has 2 names (hard links) where a file with one must be"
}
check "a journal that is another name of a file" journal_is_linked journal
check "a lock that is another name of a file" journal_is_linked lock

journal_is_a_pipe() {
    fresh
    mkdir "$src/evil/.shardfs"
    mkfifo "$src/evil/.shardfs/$1"
    refused ".shardfs/$1: it is a named pipe where a regular file must be"
}
check "a journal that is a named pipe" journal_is_a_pipe journal
check "a lock that is a named pipe" journal_is_a_pipe lock

note_is_a_link() {
    fresh
    mkdir "$src/evil/.shardfs"
    ln -s ../../secret.txt "$src/evil/.shardfs/locks"
    # Nothing is in the way of recovery but the note itself, which goes.
    "$SHARDFS" recover "$src" 2>"$work/err"
    untouched
    mkdir -p "$src/evil/.shardfs"
    ln -sf ../../secret.txt "$src/evil/.shardfs/locks"
    mount_view "$src" --rw
    head -c 4096 /dev/zero >"$MP/evil/c/1"
    unmount_view
    state "$src" | diff "$work/before" -
}
check "a note of locks that is a link" note_is_a_link

note_names_others() {
    fresh
    mkdir "$src/evil/.shardfs"
    : >"$src/evil/.shardfs/journal"
    touch "$src/good/c/0.__lock" "$src/secret.txt.__lock" "$src/evil/zarr.json.__lock" "$src/evil/c/1.__lock" \
        "$src/evil/c/2.__lock" "$work/outside.__lock"
    mkdir -p "$work/target"
    : >"$work/target/file"
    ln -s ../../good/c/0 "$src/evil/c/3.__lock"
    printf '%s\n' ../good/c/0 ../secret.txt zarr.json ../../outside "$work/outside" c/1 c/01 c/3 '' \
        >"$src/evil/.shardfs/locks"
    remember
    # Another process holds the lock of the second shard.
    python3 - "$src/evil/c/2.__lock" "$work/held" <<'PY' &
import fcntl, os, struct, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, 37, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, 0, 0, 0, 0))
open(sys.argv[2], "w").close()
time.sleep(60)
PY
    local holder=$!
    within 10 test -e "$work/held"
    echo c/2 >>"$src/evil/.shardfs/locks"
    "$SHARDFS" recover "$src"
    kill "$holder"
    untouched
    [[ -e $work/outside.__lock && -e $src/evil/zarr.json.__lock && -L $src/evil/c/3.__lock ]]
    [[ -e $src/evil/c/2.__lock ]]
    [[ ! -e $src/evil/c/1.__lock ]]
}
check "a note of locks that names files of others, and a lock that somebody holds" note_names_others

repack_is_a_link() {
    fresh
    mkdir "$src/evil/.shardfs"
    ln -s ../../good "$src/evil/.shardfs/repack"
    local text='.shardfs/repack: it is a symbolic link where a directory must be'
    fails_with "$text" "$SHARDFS" recover "$src"
    untouched
    fails_with "$text" "$SHARDFS" repack "$src/evil"
    untouched
    rm "$src/evil/.shardfs/repack"
    mkdir "$src/evil/.shardfs/repack"
    ln -s ../../../secret.txt "$src/evil/.shardfs/repack/lock"
    text='.shardfs/repack/lock: it is a symbolic link where a regular file must be'
    fails_with "$text" "$SHARDFS" recover "$src"
    fails_with "$text" "$SHARDFS" repack "$src/evil"
    untouched
    rm "$src/evil/.shardfs/repack/lock"
    # A link on the way of the new shards.
    ln -s ../../../good/c "$src/evil/.shardfs/repack/c"
    "$SHARDFS" recover "$src" || true
    untouched
    mkdir -p "$src/evil/.shardfs/repack"
    ln -sfn ../../../good/c "$src/evil/.shardfs/repack/c"
    python3 "$here/shards.py" shard "$src/evil/c/2" 6 --gap 999
    remember
    "$SHARDFS" repack "$src/evil" && return 1
    untouched
}
check "a directory of repack, and what is in it, that are links" repack_is_a_link

own_files_stay() {
    fresh
    mkdir -p "$src/evil/.shardfs/repack/c/sub"
    local file
    for file in notes.txt new x.new 01.new repack/mine repack/c/sub/9 repack/c/notes; do
        echo mine >"$src/evil/.shardfs/$file"
    done
    mkdir "$src/evil/.shardfs/7.new"
    touch "$src/evil/.shardfs/5.new" "$src/evil/.shardfs/repack/c/3"
    "$SHARDFS" recover "$src"
    "$SHARDFS" repack "$src/evil"
    for file in notes.txt new x.new 01.new repack/mine repack/c/sub/9 repack/c/notes; do
        [[ $(<"$src/evil/.shardfs/$file") == mine ]]
    done
    [[ -d $src/evil/.shardfs/7.new && ! -e $src/evil/.shardfs/5.new && ! -e $src/evil/.shardfs/repack/c/3 ]]
    untouched
    rm -r "$src/evil/.shardfs"
    # A user's own file that is called like a temporary one once was.
    echo mine >"$src/secret.txt.shardfs-new"
    echo mine >"$src/evil/zarr.json.shardfs-new"
    mount_view "$src" --rw
    echo other >"$work/other"
    mv "$work/other" "$MP/secret.txt"
    sed -i 's/made by/made for/' "$MP/evil/zarr.json"
    "$SHARDFS" umount "$MP"
    [[ $(<"$src/secret.txt") == other && $(<"$src/evil/zarr.json") == *'made for'* ]]
    [[ $(<"$src/secret.txt.shardfs-new") == mine && $(<"$src/evil/zarr.json.shardfs-new") == mine ]]
    [[ ! -e $src/evil/.shardfs && ! -e $src/.shardfs ]]
}
check "files of others beside those of commits stay" own_files_stay
