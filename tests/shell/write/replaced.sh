#!/bin/bash
# Arrays that others replace, reshape or move while chunks of them wait to be committed: nothing goes where it does
# not belong, and whoever asks is told.

# shellcheck source=../../lib.sh
. "$(dirname "$0")/../../lib.sh"
here=$repo/tests/shell
saved=${XDG_STATE_HOME:-$HOME/.local/state}/shardfs/unsaved
[[ $(id -u) != 0 ]] || saved=/var/lib/shardfs/unsaved

make_array() { python3 "$here/shards.py" array "$1" 65 --shards 4 --bytes 16; }
make_group() {
    rm -rf "$1"
    mkdir "$1"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$1/zarr.json"
}
# found_saved TEXT: what was saved of mounts of this test
found_saved() {
    local record
    for record in "$saved"/*/.source; do
        grep -qs -- "$TMP/" "$record" || continue
        if grep -rqs -- "$1" "${record%/.source}"; then return 0; fi
    done
    return 1
}

# An absent chunk is absent in both arrays: only what the array is tells them apart.
replaced() {
    local source=$TMP/replaced make=(--shape 64 --chunk 16 --shard 64)
    make_group "$source"
    "$SHARDFS" create "$source/a" "${make[@]}" --dtype int32
    mount_view "$source" --rw --commit-interval 60
    mkdir "$MP/a/c"
    printf 'written before%50s' "" >"$MP/a/c/1"
    rm -r "$source/a"
    "$SHARDFS" create "$source/a" "${make[@]}" --dtype float32
    fails_with "others have removed it in the meantime, or put another one in its place" "$SHARDFS" sync "$MP"
    "$SHARDFS" umount "$MP" || true
    [[ ! -e $source/a/c/0 ]]
    found_saved 'written before'
}
check "what waits for an array that others replace does not go into the new one" replaced

# The other mount removes what is outside; this one has not seen it.
smaller() {
    local source=$TMP/smaller.zarr first other
    make_array "$source"
    rm "$source/c/3"
    mount_view "$source" --rw --commit-interval 60
    first=$MP
    printf '%-16s' outside >"$first/c/15"
    mount_view "$source" --rw
    other=$MP
    sed 's/^    [0-9]*$/    100/' "$other/zarr.json" >"$TMP/document"
    cp "$TMP/document" "$other/zarr.json"
    "$SHARDFS" sync "$other"
    unmount_view "$other"
    fails_with "others have made it smaller" "$SHARDFS" sync "$first"
    [[ ! -e $source/c/3 ]]
    "$SHARDFS" umount "$first" || true
    "$SHARDFS" resize "$source" --shape 256
    mount_view "$source"
    [[ ! -e $MP/c/15 ]]
    unmount_view
    found_saved outside
}
check "what waits for a chunk outside the shape that others have given the array is not committed" smaller

# A copy, which EXDEV asks for, would be an unsharded array.
moved() {
    local source=$TMP/moved
    make_group "$source"
    make_array "$source/a"
    mount_view "$source" --rw
    exec 5<>"$MP/a/c/1"
    fails_with "Device or resource busy" mv "$MP/a" "$MP/b"
    printf '%-16s' two >&5
    exec 5>&-
    mv "$MP/a" "$MP/b"
    grep -q two "$MP/b/c/1"
    unmount_view
    grep -q sharding_indexed "$source/b/zarr.json"
    [[ ! -e $source/a && $(find "$source/b/c" -type f | wc -l) == 4 ]]
}
check "an array is moved with its shards, or not at all while a chunk is open for writing" moved

# hold PATH SECONDS: keeps a file locked, in the background
hold() {
    exec python3 - "$@" <<'PY'
import fcntl
import sys
import time

with open(sys.argv[1], "rb") as file:
    fcntl.lockf(file, fcntl.LOCK_SH)
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
PY
}

held() {
    local source=$TMP/held.zarr holder readers syncing
    make_array "$source"
    mount_view "$source" --rw --log-file "$TMP/held.log"
    printf '%-16s' one >"$MP/c/0"
    "$SHARDFS" sync "$MP"
    # Whoever may read an array can lock its journal, which holds up nothing.
    hold "$source/.shardfs/journal" 300 >"$TMP/journal.held" &
    readers=$!
    # shellcheck disable=SC2064 # The process that was just started.
    trap "kill $readers 2>/dev/null || true" EXIT
    within 10 grep -q held "$TMP/journal.held"
    printf '%-16s' new >"$MP/c/2"
    "$SHARDFS" sync "$MP"
    if grep locked "$TMP/held.log"; then return 1; fi
    hold "$source/.shardfs/lock" 300 >"$TMP/lock.held" &
    holder=$!
    # shellcheck disable=SC2064 # The processes that were just started.
    trap "kill $holder $readers 2>/dev/null || true" EXIT
    within 10 grep -q held "$TMP/lock.held"
    # Neither reading nor opening a chunk waits for it.
    printf '%-16s' two >"$MP/c/1"
    timeout 30 cat "$MP/c/"{0,1,2} >/dev/null
    "$SHARDFS" sync "$MP" &
    syncing=$!
    within 60 grep -q "others have locked it for 5 s: waiting" "$TMP/held.log"
    kill "$holder" "$readers"
    wait "$syncing"
    unmount_view
}
check "a commit that waits for another process says so" held

# Another process is stopped, or forgets to give the lock back.
given_up_lock() {
    local source=$TMP/kept.zarr holder first
    make_group "$source"
    make_array "$source/a"
    make_array "$source/b"
    mount_view "$source" --rw
    first=$MP
    printf '%-16s' one >"$MP/a/c/0"
    "$SHARDFS" sync "$MP"
    hold "$source/a/.shardfs/lock" 300 >"$TMP/lock.kept" &
    holder=$!
    # shellcheck disable=SC2064 # The process that was just started.
    trap "kill $holder 2>/dev/null || true" EXIT
    within 10 grep -q held "$TMP/lock.kept"
    printf '%-16s' two >"$MP/a/c/0"
    fails_with "another process has locked it and does not give it back" timeout 100 "$SHARDFS" sync "$MP"
    # From now on it is waited for no longer.
    printf '%-16s' three >"$MP/b/c/0"
    timeout 40 sync "$MP/b/c/0"
    fails_with "busy" timeout 40 sync "$MP/a/c/0"
    timeout 30 cat "$MP/a/c/0" | grep -q two
    # Another mount of the array is not held up when it looks at it.
    mount_view "$source" --rw
    timeout 30 ls "$MP/a/c" >/dev/null
    unmount_view
    MP=$first
    kill "$holder"
    "$SHARDFS" sync "$MP"
    unmount_view
    mount_view "$source"
    grep -q two "$MP/a/c/0" && grep -q three "$MP/b/c/0"
    unmount_view
}
check "a lock that is not given back holds up commits to its own array alone" given_up_lock

# Other software holds it while it writes the shard, or is stopped meanwhile.
held_shard() {
    local source=$TMP/shard.zarr holder
    make_array "$source"
    mount_view "$source" --rw --commit-interval 60
    : >"$source/c/0.__lock"
    hold "$source/c/0.__lock" 300 >"$TMP/shard.held" &
    holder=$!
    # shellcheck disable=SC2064 # The process that was just started.
    trap "kill $holder 2>/dev/null || true" EXIT
    within 10 grep -q held "$TMP/shard.held"
    printf '%-16s' one >"$MP/c/0"
    printf '%-16s' other >"$MP/c/15"
    fails_with "c/0.__lock: another process has locked it" timeout 100 "$SHARDFS" sync "$MP"
    # Other shards are committed, and this one is waited for no longer.
    timeout 15 sync "$MP/c/15"
    fails_with "busy" timeout 15 sync "$MP/c/0"
    kill "$holder"
    timeout 60 "$SHARDFS" sync "$MP"
    unmount_view
    mount_view "$source"
    grep -q one "$MP/c/0" && grep -q other "$MP/c/15"
    unmount_view
}
check "the lock of a shard that is not given back holds up commits to that shard alone" held_shard

# It is hidden where it is in the source.
hidden() {
    local source=$TMP/hidden
    make_group "$source"
    mount_view "$source" --rw
    mkdir "$MP/sub"
    fails_with "Operation not permitted" mkdir "$MP/sub/.shardfs"
    fails_with "Operation not permitted" touch "$MP/sub/.shardfs"
    rm -r "$MP/sub"
    unmount_view
}
check "no file gets a name under which it would be hidden" hidden

# The limit of the shell that has mounted is not one for the mount's life.
limited() {
    make_array "$TMP/limited.zarr"
    (
        ulimit -f 100
        mount_view "$TMP/limited.zarr" --rw --commit-interval 60
        echo "$MP" >"$TMP/limited.mp"
    )
    MP=$(<"$TMP/limited.mp")
    printf '%-16s' kept >"$MP/c/3"
    fails_with "" dd if=/dev/zero of="$MP/c/large" bs=1M count=40 conv=fsync status=none
    grep -q kept "$MP/c/3"
    rm -f "$MP/c/large"
    unmount_view
    mount_view "$TMP/limited.zarr"
    grep -q kept "$MP/c/3"
    unmount_view
}
check "a write beyond the limit of file sizes fails, and the mount stays" limited

# Its shard has not changed, and the kernel has pages of what was given up.
shown_again() {
    local source=$TMP/shown_again.zarr
    make_array "$source"
    mount_view "$source" --rw --commit-interval 60
    printf '%-16s' stored >"$MP/c/0"
    "$SHARDFS" sync "$MP"
    sleep 1.2
    printf '%-16s' given-up >"$MP/c/0"
    grep -q given-up "$MP/c/0"
    sed -i 's/"data_type": *"[a-z0-9]*"/"data_type": "int8"/' "$source/zarr.json"
    sleep 1.2
    fails_with "given up" "$SHARDFS" sync "$MP"
    grep -q stored "$MP/c/0"
    printf X | dd of="$MP/c/0" bs=1 seek=3 conv=notrunc status=none
    [[ $(<"$MP/c/0") == stoXed* ]]
    "$SHARDFS" sync "$MP"
    grep -q stoXed "$MP/c/0"
    unmount_view
    mount_view "$source"
    grep -q stoXed "$MP/c/0"
    unmount_view
}
check "a chunk is shown as it is stored once a change of it is given up" shown_again
