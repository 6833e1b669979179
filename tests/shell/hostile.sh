#!/bin/bash
# A source in which somebody has put things where shardfs keeps its own: links that lead elsewhere, journals with
# records of his choice.  Whatever is done with one array, another one and all other files stay as they are, and it
# is said what is in the way.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

# fresh: a source with an array that somebody may write to, another one, and a file.  Sets work and src.
fresh() {
    work=$(mktemp -d "$TMP/work.XXXXXX")
    src=$work/src
    mkdir "$src"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$src/zarr.json"
    python3 "$here/shards.py" array "$src/evil" 5
    python3 "$here/shards.py" array "$src/good" 7
    echo 'not for everybody' >"$src/secret.txt"
    remember
}

# Everything but what is in the array that is tampered with.
state() { (cd "$1" && find . -path ./evil -prune -o -printf '%p %y %i %s %m\n' -type f -exec sha256sum {} + | sort); }
shards() { (cd "$src/evil" && find c ! -name '*.__lock' -type f -exec sha256sum {} + | sort); }
remember() { state "$src" >"$work/before"; shards >"$work/shards"; }
untouched() {
    state "$src" | diff "$work/before" -
    shards | diff "$work/shards" -
}

# What could not be committed in the end: as private as it was, and more.  It is removed.
unsaved() {
    local directory
    directory=$(grep -o 'is in [^ ]*shardfs/unsaved/[0-9-]*' "$work/log" | sort -u | cut -d ' ' -f 3)
    [[ -d $directory ]]
    [[ -z $(find "$directory" -type d ! -perm 700) ]]
    [[ -z $(find "$directory" -type f ! -perm 644) && -n $(find "$directory" -type f) ]]
    rm -r "$directory"
}

# refused TEXT: nobody acts on what is in evil/.shardfs, and it is said why.
refused() {
    local text=$1
    fails_with "$text" "$SHARDFS" recover "$src"
    untouched
    fails_with "$text" "$SHARDFS" recover "$src/evil"
    untouched
    fails_with "$text" "$SHARDFS" repack "$src/evil"
    untouched
    rm -f "$work/log"
    mount_view "$src" --rw --log-file "$work/log"
    # A chunk of a shard that no record names.
    head -c 4096 /dev/zero >"$MP/evil/c/9"
    expect_exit 0 cmp -n 4096 /dev/zero "$MP/evil/c/9"
    "$SHARDFS" sync "$MP" && { echo "sync says that a chunk is durable that is not"; return 1; }
    "$SHARDFS" umount "$MP" || true
    within 10 no_daemon_of "$MP"
    grep -qF -- "$text" "$work/log"
    unsaved
    untouched
}



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
    ln -s ../../secret.txt "$src/evil/.shardfs/journal"
    refused '.shardfs/journal: it is a symbolic link where a regular file must be'
}
check "a journal that is a link" journal_is_a_link

journal_is_linked() {
    fresh
    mkdir "$src/evil/.shardfs"
    ln "$src/secret.txt" "$src/evil/.shardfs/journal"
    remember
    refused '.shardfs/journal: it has 2 names (hard links) where a file with one must be'
}
check "a journal that is another name of a file" journal_is_linked

journal_is_a_pipe() {
    fresh
    mkdir "$src/evil/.shardfs"
    mkfifo "$src/evil/.shardfs/journal"
    refused '.shardfs/journal: it is a named pipe where a regular file must be'
}
check "a journal that is a named pipe" journal_is_a_pipe

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
    # Somebody holds the lock of the second shard.
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

hostile() { python3 "$here/hostile.py" "$src/evil/.shardfs/journal" "$@"; }

keys_that_lead_out() {
    fresh
    local key
    for key in ../secret.txt ../good/c/0 "$src/secret.txt" zarr.json c/00 c/0/ ./c/0 c//0 c/-1 c/0/1 c \
        c/99999999999999999999 .shardfs/journal c/../../secret.txt; do
        hostile "$key" "$src/good/c/0" overwritten=overwritten
        refused 'it is no shard of this array'
    done
}
check "records with keys of no shard of the array" keys_that_lead_out

record_without_an_index() {
    fresh
    hostile ../secret.txt "$src/secret.txt" index=none overwritten=harmful
    refused 'its old index is not in the old file'
    hostile c/0 "$src/evil/c/0" index=none
    refused 'its old index is not in the old file'
    # Bytes of his choice over all of the shard, which would be no shard afterwards.
    hostile c/0 "$src/evil/c/0" overwritten=harmful index_offset=0 index_nbytes=7
    refused 'what it would restore holds no index of that shard'
    hostile c/0 "$src/evil/c/0" length=18446744073709551615
    refused 'its length is none after a change in place'
}
check "records that would write bytes of somebody's choice" record_without_an_index

keys_through_links() {
    fresh
    rm "$src/evil/c/0"
    ln "$src/good/c/0" "$src/evil/c/0"
    remember
    hostile c/0 "$src/evil/c/0"
    refused 'evil/c/0: it has 2 names' || refused 'c/0: it has 2 names'
    rm "$src/evil/c/0"
    ln -s ../../good/c/0 "$src/evil/c/0"
    remember
    hostile c/0 "$src/good/c/0"
    # Another file in the shard's place: the record has nothing to do with it.
    "$SHARDFS" recover "$src" | grep 'replaced or removed since'
    untouched
    mv "$src/evil/c" "$src/evil/d"
    ln -s ../good/c "$src/evil/c"
    hostile c/1 "$src/good/c/1"
    "$SHARDFS" recover "$src" && return 1
    state "$src" | diff "$work/before" -
}
check "records with keys that lead through links" keys_through_links

journal_without_an_array() {
    fresh
    mkdir "$src/plain"
    echo mine >"$src/plain/file"
    cp "$src/good/c/0" "$src/plain/0"
    remember
    local key
    for key in ../secret.txt c/0 .. .shardfs /etc/hostname; do
        python3 "$here/hostile.py" "$src/plain/.shardfs/journal" "$key" "$src/secret.txt" overwritten=harmful
        state "$src" >"$work/before"
        fails_with 'there is no metadata of an array whose shard it could be' "$SHARDFS" recover "$src/"
        state "$src" | diff "$work/before" -
    done
    for key in file 0; do
        python3 "$here/hostile.py" "$src/plain/.shardfs/journal" "$key" "$src/plain/$key" overwritten=bad \
            index_offset=0 index_nbytes=4
        state "$src" >"$work/before"
        fails_with 'what it would restore holds no index of that shard' "$SHARDFS" recover "$src"
        state "$src" | diff "$work/before" -
    done
}
check "a journal where there is no array" journal_without_an_array

# What a real commit leaves is still taken back.
a_real_record() {
    fresh
    hostile c/0 "$src/evil/c/0"
    head -c 30 /dev/zero >>"$src/evil/c/0"
    "$SHARDFS" recover "$src" | grep -x 'evil/c/0: the interrupted commit was taken back'
    untouched
    [[ ! -e $src/evil/.shardfs ]]
}
check "a record that a commit may have left is taken back" a_real_record

# Its writer may not have more rights by it than he has.
record_of_another_user() {
    [[ $(id -u) == 0 ]] || {
        echo "needs root"
        return 0
    }
    fresh
    chown 1001:1001 "$src/evil/c/0"
    chmod 644 "$src/evil/c/0"
    hostile c/0 "$src/evil/c/0"
    chown 1002:1002 "$src/evil/.shardfs/journal"
    head -c 30 /dev/zero >>"$src/evil/c/0"
    shards >"$work/shards"
    fails_with 'written by user 1002, who may not write this shard of user 1001' "$SHARDFS" recover "$src"
    untouched
    chown 1001:1001 "$src/evil/.shardfs/journal"
    "$SHARDFS" recover "$src" | grep 'taken back'
}
check "a record of somebody who may not write the shard" record_of_another_user

linked_shard() {
    fresh
    rm "$src/evil/c/0"
    ln -s ../../good/c/0 "$src/evil/c/0"
    remember
    mount_view "$src" --rw -o update=in-place
    printf 'x%.0s' {1..4096} >"$MP/evil/c/1"
    "$SHARDFS" sync "$MP"
    unmount_view
    [[ ! -L $src/evil/c/0 && -f $src/evil/c/0 ]]
    state "$src" | diff "$work/before" -
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

# Nobody may open what replaces a private shard, at any moment, nor read its bytes elsewhere.
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
        "$SHARDFS" recover "$src" >/dev/null
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
    fails_with "is no directory" "$SHARDFS" recover --unsaved "$saved" "$src"
    rm "$saved/.spool"
    mv "$work/spool" "$saved/.spool"
    fails_with "is no directory" "$SHARDFS" recover --unsaved "$saved" "$src"
    ln -sfn "$other/evil" "$saved/evil"
    rm "$saved/.spool/7"
    "$SHARDFS" recover --unsaved "$saved" "$src"
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
