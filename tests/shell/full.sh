#!/bin/bash
# A source whose disk is full: writers are told, whatever way they write; nothing that waits grows beyond its
# limit; what is left outlives the process and can be put in later.

# On a busy machine.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-2400}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
export HOME=$TMP/home XDG_STATE_HOME=$TMP/state
mkdir "$HOME"

if [[ $EUID != 0 ]]; then
    skip 'full disks: only root can mount a tmpfs'
    exit 0
fi
# Where root's mounts save what cannot be committed.
unsaved_of() { compgen -G "/var/lib/shardfs/unsaved/*-$1" || true; }

# small_disk NAME SIZE: a disk in memory. Sets disk, and source to a place on it.
small_disk() {
    disk=$TMP/disk-$1
    mkdir "$disk"
    mount -t tmpfs -o "size=$2" tmpfs "$disk"
    echo "$disk" >>"$TMP/mounts"
    source=$disk/a
}

# small_source NAME: a source on a disk of 6 MiB; 256 chunks of 64 KiB do not fit. Sets source, disk and pid.
small_source() {
    small_disk "$1" 6m
    "$SHARDFS" create "$source" --shape 16,1048576 --dtype uint8 --chunk 1,65536 --shard 4,262144
    mount_view "$source" --rw --dirty-limit 1M
    pid=$(daemon_of "$MP")
}

# write_all HOW: writes all chunks until one is refused; prints how many were not.
write_all() {
    python3 - "$1" "$MP" <<'PY'
import os
import sys

how, mount = sys.argv[1:]
done = 0
for row in range(16):
    os.makedirs(f"{mount}/c/{row}", exist_ok=True)
    for column in range(16):
        path = f"{mount}/c/{row}/{column}"
        try:
            name = path if how == "write" else path + ".partial"
            with open(name, "wb") as file:
                file.write(bytes([row * 16 + column]) * 65536)
                if how == "fsync":
                    file.flush()
                    os.fsync(file.fileno())
            if how == "link":
                os.link(name, path)
                os.unlink(name)
            elif how != "write":
                os.rename(name, path)
        except OSError as error:
            print(done, os.strerror(error.errno))
            sys.exit()
        done += 1
print(done, "none was refused")
PY
}

# waiting_bytes PID: what lies in spool files.
spooled() { unsaved_of "$1" | xargs -r du -sb | cut -f 1; }

# others_are_refused: chunks of other shards are, once what a shard did not fit into is full as well.
others_are_refused() {
    local chunk
    mkdir -p "$MP"/c/{12,13}
    for chunk in {12,13}/{0..15}; do
        dd if=/dev/zero of="$MP/c/$chunk" bs=64K count=1 conv=fsync 2>"$TMP/dd" || {
            grep -q 'No space' "$TMP/dd"
            return
        }
    done
    echo 'none was refused'
    return 1
}

refuses() {
    local accepted why
    small_source "$1"
    read -r accepted why < <(write_all "$1")
    echo "$accepted chunks: $why"
    [[ $why == 'No space left on device' ]]
    # What fits on the disk, and what may wait: no more.
    ((accepted >= 64 && accepted <= 128))
    others_are_refused
    [[ $(spooled "$pid") -le $((3 << 20)) ]]
    find "$MP" -name '*.partial' -delete
    # With more room everything that waits is written.
    mount -o remount,size=64m "$disk"
    within 10 "$SHARDFS" sync "$MP"
    unmount_view
    [[ -z $(unsaved_of "$pid") ]]
    "$SHARDFS" verify "$source" >"$TMP/verify" || {
        tail -n 5 "$TMP/verify"
        return 1
    }
    [[ $("$SHARDFS" info --json "$source" | python3 -c 'import json, sys; print(json.load(sys.stdin)["arrays"][0]["chunks"]["present"])') -ge $accepted ]]
}

for how in write rename link fsync; do
    check "a full disk is reported to writers that $how" refuses "$how"
done

# A chunk that is longer than a quarter of --dirty-limit lies in a file with its name.
survives_a_kill() {
    local saved
    small_disk kill 6m
    "$SHARDFS" create "$disk/a" --shape 4,4194304 --dtype uint8 --chunk 1,4194304 --shard 4,4194304
    head -c $((4 << 20)) /dev/urandom >"$TMP/chunk"
    mount_view "$disk/a" --rw --dirty-limit 1M --commit-interval 1000
    pid=$(daemon_of "$MP")
    mkdir -p "$MP/c/0" "$MP/c/1"
    cp "$TMP/chunk" "$MP/c/0/0"
    # There is no room for a second one.
    fails_with 'No space' cp "$TMP/chunk" "$MP/c/1/0"
    cmp "$TMP/chunk" "$MP/c/1/0"
    expect_exit 1 "$SHARDFS" status "$MP" |
        grep -F "what was written cannot be committed at the moment: $MP/.shardfs/waiting.txt says why"
    kill -KILL "$pid"
    within 10 no_daemon_of "$MP"
    umount "$MP"
    saved=$(unsaved_of "$pid")
    [[ $(stat -c %a "$saved") == 700 ]]
    cmp "$TMP/chunk" "$saved"/.spool/*/c/1/0
    # Still no room: it is kept.
    expect_exit 1 "$SHARDFS" recover --unsaved "$saved" "$disk/a"
    cmp "$TMP/chunk" "$saved"/.spool/*/c/1/0
    mount -o remount,size=64m "$disk"
    "$SHARDFS" recover --unsaved "$saved" "$disk/a"
    [[ ! -e $saved ]]
    mount_view "$disk/a"
    cmp "$TMP/chunk" "$MP/c/0/0"
    cmp "$TMP/chunk" "$MP/c/1/0"
    unmount_view
    "$SHARDFS" verify "$disk/a"
}
check 'what waits in files outlives SIGKILL and is put in by recover --unsaved' survives_a_kill

# At the end of a mount chunks are saved by their names.
saved_at_the_end() {
    local saved
    small_source end
    write_all rename >/dev/null
    fails_with 'No space' "$SHARDFS" umount "$MP"
    within 20 no_daemon_of "$MP"
    saved=$(unsaved_of "$pid")
    [[ $(find "$saved" -type f | wc -l) -ge 1 ]]
    find "$saved" -name '*.partial' -delete
    touch "$saved/notes"
    mount -o remount,size=64m "$disk"
    expect_exit 1 "$SHARDFS" recover --unsaved "$saved" "$source" | grep 'notes: is no chunk'
    [[ $(find "$saved" -type f | sort) == "$saved/.source"$'\n'"$saved/notes" ]]
    rm -r "$saved"
    "$SHARDFS" verify "$source"
}
# closed_while_unmounting NAME SECONDS: whether umount says that a file that was closed between its sync and the end
# of the mount could not be committed. It is closed SECONDS after it was written. Sets saved.
closed_while_unmounting() {
    local writer
    small_source "$1"
    mkdir -p "$MP/c/0"
    dd if=/dev/zero of="$disk/fill" bs=64K 2>/dev/null || true
    python3 - "$MP/c/0/0" "$2" <<'PY' &
import os
import sys
import time

with open(sys.argv[1], "wb") as file:
    file.write(os.urandom(65536))
    file.flush()
    time.sleep(float(sys.argv[2]))
PY
    writer=$!
    within 10 test -s "$MP/c/0/0"
    "$SHARDFS" umount "$MP" >"$TMP/said" 2>&1 && echo "exit 0: $(<"$TMP/said")"
    wait "$writer"
    ! grep -F 'is busy' "$TMP/said" || unmount_view || true
    saved=$(unsaved_of "$pid")
    grep -F "what was written last could not be committed; it is saved below $saved: " "$TMP/said" && return
    [[ -z $saved ]] || rm -r "$saved"
    return 1
}
written_last() {
    local saved n
    # It may come too early or too late, the more so on a busy machine.
    for n in {1..15}; do
        ! closed_while_unmounting "last$n" "$((n * 2 + 2))e-1" || break
        ((n < 15))
    done
    rm "$disk/fill"
    "$SHARDFS" recover --unsaved "$saved" "$source"
    [[ $("$SHARDFS" ls "$source" | cut -f 1) == c/0/0 ]]
}
check 'umount says that what was closed after its sync could not be committed' written_last

check 'what is left at the end is put in by recover --unsaved' saved_at_the_end

# A disk that holds the state directory as well, and a user who has none. In a mount namespace of its own, in which
# everybody may open /dev/fuse: root saves in /var/lib.
stays_in() {
    disk=$TMP/disk-stays
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups env -u XDG_STATE_HOME "HOME=$1")
    mkdir "$disk"
    mount -t tmpfs -o size=3m,mode=777 tmpfs "$disk"
    mknod -m 666 "$disk/fuse" c 10 229
    mount --bind "$disk/fuse" /dev/fuse
    install -m 755 "$SHARDFS" "$TMP/shardfs"
    "${as[@]}" mkdir "$disk/m" "$disk/home"
    "${as[@]}" "$TMP/shardfs" create "$disk/a" --shape 4,262144 --dtype uint8 --chunk 1,8192 --shard 4,262144
    "${as[@]}" "$TMP/shardfs" mount --rw --log-file "$disk/log" "$disk/a" "$disk/m" >/dev/null 2>&1
    fails_with 'No space' "${as[@]}" dd if=/dev/zero of="$disk/filler" bs=4K
    "${as[@]}" mkdir -p "$disk/m/c/0"
    "${as[@]}" cp "$TMP/chunk" "$disk/m/c/0/0"
    "${as[@]}" cp "$TMP/chunk" "$disk/m/c/0/notes"
    local said rc=0
    said=$("${as[@]}" "$TMP/shardfs" umount "$disk/m" 2>&1) || rc=$?
    echo "$said"
    [[ $rc == 2 ]]
    [[ $said == *"would be lost: it cannot be saved below $1/"*": $2"*"so it stays mounted"* ]]
    "${as[@]}" cmp "$TMP/chunk" "$disk/m/c/0/0"
    rm "$disk/filler"
    # What is no chunk cannot be committed.
    if [[ $1 == /nonexistent ]]; then
        fails_with 'c/0/notes: no chunk' "${as[@]}" "$TMP/shardfs" umount "$disk/m"
        is_mounted "$disk/m"
        "${as[@]}" rm "$disk/m/c/0/notes"
        "${as[@]}" "$TMP/shardfs" umount "$disk/m"
    else
        fails_with "saved as $disk/home/" "${as[@]}" "$TMP/shardfs" umount "$disk/m"
        cmp "$TMP/chunk" "$disk"/home/.local/state/shardfs/unsaved/*/.other/c/0/notes
    fi
    not_mounted "$disk/m"
    "$TMP/shardfs" unpack "$disk/a" "$TMP/unpacked"
    cmp "$TMP/chunk" "$TMP/unpacked/c/0/0"
}

# The log of a mount that is ended all the same.
tells_what_is_lost() {
    disk=$TMP/disk-lost
    mkdir "$disk"
    mount -t tmpfs -o size=3m tmpfs "$disk"
    "$SHARDFS" create "$disk/a" --shape 4,262144 --dtype uint8 --chunk 1,8192 --shard 4,262144
    mkdir -p /var/lib/shardfs/unsaved
    # Ends with this namespace.
    mount -t tmpfs -o ro tmpfs /var/lib/shardfs/unsaved
    mount_view "$disk/a" --rw --log-file "$TMP/log"
    fails_with 'No space' dd if=/dev/zero of="$disk/filler" bs=4K
    mkdir -p "$MP/c/0"
    cp "$TMP/chunk" "$MP/c/0/0"
    cp "$TMP/chunk" "$MP/c/0/1"
    kill -s TERM "$(daemon_of "$MP")"
    within 20 no_daemon_of "$MP"
    tail -n 3 "$TMP/log"
    grep '2 files could not be committed: 2 LOST$' "$TMP/log"
}

# in_namespace FUNCTION [ARG...]
in_namespace() {
    head -c 8192 /dev/urandom >"$TMP/chunk"
    chmod 755 "$TMP"
    env KEEP="$TMP" TMP="$TMP" SHARDFS="$SHARDFS" "$repo/tests/alone.py" bash -c "
        set -euo pipefail
        trap 'umount --lazy \"\${MP:-\$disk/m}\" 2>/dev/null || true' EXIT
        new_mount_point() { MP=\$(mktemp -d \"\$TMP/mnt.XXXXXX\"); }
        $(declare -f is_mounted not_mounted within fails_with mount_view daemons daemon_of no_daemon_of "$1")
        \"\$@\"" bash "$@"
}
if unshare --mount true 2>/dev/null; then
    check 'umount leaves what can neither be committed nor saved on a full disk mounted' \
        in_namespace stays_in "$TMP/disk-stays/home" 'No space left'
    rm -rf "$TMP/disk-stays" "$TMP/unpacked"
    check 'umount leaves what can neither be committed nor saved without a home mounted' \
        in_namespace stays_in /nonexistent 'Permission denied'
    check 'the log of a mount tells what is lost' in_namespace tells_what_is_lost
else
    skip 'what can neither be committed nor saved: no private mount namespace'
fi

unsaved_needs_a_directory() {
    "$SHARDFS" create --sample "$TMP/sample"
    [[ $(expect_exit 2 "$SHARDFS" recover --unsaved "$TMP/none" "$TMP/sample") == \
        "shardfs: $TMP/none: there is no such directory: "* ]]
    expect_exit 2 "$SHARDFS" recover --unsaved "$TMP/sample/zarr.json" "$TMP/sample" | grep 'not a directory'
}
check 'recover --unsaved says that its directory does not exist' unsaved_needs_a_directory

# Decoded views write unsharded arrays, too. What they save has the names that chunks have in the source.
saved_of_unsharded() {
    local source=$TMP/unsharded.zarr saved=$TMP/saved
    mkdir -p "$source/v3/c/0" "$source/v2" "$saved/v3/c/0" "$saved/v3/c/1" "$saved/v2"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$source/zarr.json"
    echo '{"zarr_format": 3, "node_type": "array", "shape": [2, 4], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}' >"$source/v3/zarr.json"
    echo '{"zarr_format": 2, "shape": [2, 4], "chunks": [1, 2], "dtype": "|u1", "order": "C",
        "compressor": null, "filters": null, "fill_value": 0}' >"$source/v2/.zarray"
    printf 'ab' >"$source/v3/c/0/0"
    printf 'AB' >"$saved/v3/c/0/0"
    printf 'CD' >"$saved/v3/c/1/1"
    printf 'EF' >"$saved/v2/1.0"
    # Beyond the grid, and no chunk.
    printf 'GH' >"$saved/v2/2.0"
    printf 'IJ' >"$saved/v3/notes"
    fails_with 'has no .source that says of what it was saved' "$SHARDFS" recover --unsaved "$saved" "$source"
    # They could put links in the place of what is read and removed.
    chmod 777 "$saved/v2"
    fails_with 'other users may write to it' "$SHARDFS" recover --unsaved "$saved" --force "$source"
    chmod 755 "$saved/v2"
    if [[ $(id -u) == 0 ]]; then
        chown 21003 "$saved/v3/c"
        fails_with 'it is the directory of user 21003' "$SHARDFS" recover --unsaved "$saved" --force "$source"
        chown 0 "$saved/v3/c"
    fi
    expect_exit 1 "$SHARDFS" recover --unsaved "$saved" --force "$source" >"$TMP/said"
    cat "$TMP/said"
    grep '2.0: is no chunk' "$TMP/said"
    grep 'notes: is no chunk' "$TMP/said"
    grep '3 chunks put in, 2 files left' "$TMP/said"
    [[ $(cat "$source/v3/c/0/0" "$source/v3/c/1/1" "$source/v2/1.0") == ABCDEF ]]
    [[ $(find "$saved" -type f | sort) == "$(printf '%s\n' "$saved/v2/2.0" "$saved/v3/notes")" ]]
    [[ $(find "$source" -name .shardfs) == '' && ! -e $source/v2/2.0 ]]
}
check 'recover --unsaved puts in chunks of unsharded arrays' saved_of_unsharded

# versions ARRAY: puts in what was saved of three chunks, more than once: what counts is when it was written.
versions() {
    local source=$1 saved=$TMP/versions older=$TMP/versions/.other/.older
    rm -rf "$saved"
    mkdir -p "$saved/c/0" "$saved"/.spool/{1,3,4}/c/0
    printf 'given up' >"$saved/c/0/0"
    printf 'newest' | tee "$saved/.spool/3/c/0/0" >"$saved/.spool/1/c/0/0"
    printf 'before' >"$saved/.spool/4/c/0/1"
    printf 'at the end' >"$saved/c/0/1"
    printf 'once' >"$saved/.spool/4/c/0/2"
    touch -d '2 minutes ago' "$saved/.spool/1/c/0/0"
    touch -d '1 minute ago' "$saved/c/0/0" "$saved/.spool/4/c/0/1"
    expect_exit 1 "$SHARDFS" recover --unsaved "$saved" --force "$source" >"$TMP/said"
    cat "$TMP/said"
    grep '3 chunks put in, 2 files left' "$TMP/said"
    grep -F "$saved/c/0/0: older than what is in its" "$TMP/said"
    # Not the next time either.
    expect_exit 1 "$SHARDFS" recover --unsaved "$saved" --force "$source" >"$TMP/said"
    cat "$TMP/said"
    grep '0 chunks put in, 2 files left' "$TMP/said"
    [[ $(cat "$older"/*/c/0/0) == 'given up' && $(cat "$older"/*/c/0/1) == before ]]
    [[ $(find "$saved" -type f | wc -l) == 2 ]]
    mount_view "$source"
    [[ $(cat "$MP/c/0/0") == newest && $(cat "$MP/c/0/1") == 'at the end' && $(cat "$MP/c/0/2") == once ]]
    unmount_view
}
"$SHARDFS" create "$TMP/versions-sharded" --shape 4,32 --dtype uint8 --chunk 1,8 --shard 4,32 >"$TMP/said"
"$SHARDFS" create "$TMP/versions-unsharded" --shape 4,32 --dtype uint8 --chunk 1,8 --shard 1,8 >"$TMP/said"
for layout in sharded unsharded; do
    check "recover --unsaved puts in what is newest, and keeps what is older ($layout)" versions "$TMP/versions-$layout"
done

# A lazy unmount cannot wait, but must not hide what it knows.
lazily() {
    local said rc=0
    small_source lazy
    write_all rename >/dev/null
    exec 9<"$MP/zarr.json"
    said=$("$SHARDFS" umount --lazy "$MP" 2>&1) || rc=$?
    exec 9<&-
    echo "$said"
    [[ $rc == 2 ]]
    [[ $said == *"not everything could be written: No space left"*"detached all the same"*"/var/lib/shardfs/unsaved"* ]]
    not_mounted "$MP"
    within 20 no_daemon_of "$MP"
    rm -r "$(unsaved_of "$pid")"
}
check 'umount --lazy says what cannot be written' lazily

lazily_in_use() {
    local said
    "$SHARDFS" create --sample "$TMP/used"
    mount_view "$TMP/used" --rw
    exec 9<"$MP/zarr.json"
    said=$("$SHARDFS" umount --lazy "$MP" 2>&1)
    exec 9<&-
    echo "$said"
    [[ $said == *"what was written so far is durable"*"journalctl -t shardfs"* ]]
    within 20 no_daemon_of "$MP"
    says_nothing --rw
    says_nothing
}
# says_nothing [OPTION...]: of a mount that ends at once. On a busy machine it may take its time.
says_nothing() {
    for _ in {1..10}; do
        mount_view "$TMP/used" "$@"
        said=$("$SHARDFS" umount --lazy "$MP" 2>&1)
        within 60 no_daemon_of "$MP"
        [[ -n $said ]] || return 0
        echo "$said"
    done
    return 1
}
check 'umount --lazy says that a writable mount in use goes on' lazily_in_use

# full_disk NAME: a disk of 3 MiB with an array of 2 MiB on it, and 500 KiB of room. Sets disk and source.
full_disk() {
    small_disk "$1" 3m
    "$SHARDFS" create "$source" --shape 4,524288 --dtype uint8 --chunk 1,65536 --shard 4,524288
    mount_view "$source" --rw
    mkdir -p "$MP/c"
    python3 - "$MP" <<'PY'
import os
import sys

for row in range(4):
    os.makedirs(f"{sys.argv[1]}/c/{row}", exist_ok=True)
    for column in range(8):
        with open(f"{sys.argv[1]}/c/{row}/{column}", "wb") as file:
            file.write(bytes([row * 8 + column]) * 65536)
PY
    unmount_view
    head -c 500K /dev/zero >"$disk/filler"
}
free_bytes() { stat -f -c '%a %S' "$disk" | awk '{ print $1 * $2 }'; }
repacks() {
    local before
    full_disk repack
    before=$(free_bytes)
    fails_with 'no chunk is lost, run the command again' "$SHARDFS" repack "$source" --order f
    find "$source"
    [[ ! -e $source/.shardfs ]]
    [[ $(free_bytes) == "$before" ]]
    # A killed one cannot clean up: recover does, and says so.
    mkdir -p "$source/.shardfs/repack/c/0"
    head -c 300K /dev/zero >"$source/.shardfs/repack/c/0/0"
    [[ $("$SHARDFS" recover "$source") == *': new shards that an interrupted repack has left were removed' ]]
    [[ $(free_bytes) == "$before" && $("$SHARDFS" recover "$source") == 'nothing to recover' ]]
    rm "$disk/filler"
    "$SHARDFS" verify --decode "$source"
}
check 'repack in place: a full disk is as full as before' repacks

begins() {
    full_disk begin
    cat /dev/zero >"$disk/filler" || true
    fails_with 'No space left on device' "$SHARDFS" unpack "$source" "$disk/unpacked"
    [[ ! -e $disk/unpacked ]]
    mkdir "$disk/empty"
    fails_with 'No space left on device' "$SHARDFS" unpack "$source" "$disk/empty"
    [[ -z $(ls -A "$disk/empty") ]]
    # What a killed one has left, which came no further.
    mkdir "$disk/empty/.shardfs"
    for command in info ls verify recover "refs --output -"; do
        # shellcheck disable=SC2086
        expect_exit 2 "$SHARDFS" $command "$disk/empty"
    done
    fails_with 'there is no metadata in it' "$SHARDFS" info "$disk/empty"
    rm "$disk/filler"
    expect_exit 2 "$SHARDFS" unpack "$disk/empty" "$TMP/copied"
    [[ ! -e $TMP/copied ]]
}
check 'a copy that no disk has room for begins nothing; an empty work directory is no source' begins

# What a file that is passed through has taken is told, so that nothing is written twice.
appends() {
    small_disk append 3m
    "$SHARDFS" create --sample "$source" >/dev/null
    mount_view "$source" --rw
    python3 - "$MP/log" <<'PY'
import os
import sys

log = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
written = os.write(log, bytes(8 << 20))
size = os.fstat(log).st_size
print(written, size)
assert 0 < written < 8 << 20 and size == written
try:
    os.write(log, bytes(1 << 20))
    sys.exit("it is not full")
except OSError as error:
    print(error)
assert os.fstat(log).st_size == written
PY
    unmount_view
}
check 'who appends to a file on a full disk is told how much is in it' appends

# The kernel looks at no length of what it writes back.
mapped() {
    small_disk mapped 3m
    "$SHARDFS" create --sample "$source" >/dev/null
    mount_view "$source" --rw
    python3 - "$MP/pages" <<'PY'
import mmap
import os
import sys

file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 8 << 20)
pages = mmap.mmap(file, 8 << 20)
pages[:] = b"x" * (8 << 20)
try:
    pages.flush()
    os.fsync(file)
    sys.exit("it is said to be written")
except OSError as error:
    print(error)
PY
    unmount_view
}
check 'pages of a mapped file that a full disk does not take are an error' mapped
