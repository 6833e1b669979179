#!/usr/bin/env bash
# What is in a mount alone when it ends is saved, or the mount does not end.
. "$(dirname "$0")/../lib.sh"

unsaved_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["unsaved"])' "$1/.shardfs/stats.json"; }

long_names() {
    "$SHARDFS" create --sample "$TMP/long"
    mount_view "$TMP/long" --rw
    local name
    name=$(printf 'x%.0s' {1..256})
    fails_with 'File name too long' touch "$MP/waves/c/0/0/$name"
    echo text >"$MP/waves/c/0/0/x"
    fails_with 'File name too long' mv "$MP/waves/c/0/0/x" "$MP/waves/c/0/0/$name"
    fails_with 'File name too long' ln "$MP/waves/c/0/0/x" "$MP/waves/c/0/0/$name"
    echo text >"$MP/waves/c/0/0/${name:1}"
    rm "$MP/waves/c/0/0/${name:1}" "$MP/waves/c/0/0/x"
    unmount_view
}
check "names that cannot be saved are refused" long_names

# few_inodes: in a private namespace
few_inodes() {
    mount -t tmpfs -o nr_inodes=40 none /var/lib/shardfs
    "$SHARDFS" create --sample "$TMP/few"
    mount_view "$TMP/few" --rw
    for n in {1..100}; do echo "precious $n" >"$MP/waves/c/0/0/tmp.$n"; done
    fails_with 'would be lost' timeout 60 "$SHARDFS" umount "$MP"
    is_mounted "$MP"
    # There is room for these.
    for n in {11..100}; do rm "$MP/waves/c/0/0/tmp.$n"; done
    fails_with 'it is saved as' timeout 60 "$SHARDFS" umount "$MP"
    [[ $(find /var/lib/shardfs/unsaved -type f -name 'tmp.*' -size +0 | wc -l) == 10 ]]
}

# conflict A B CHUNK: what A has of a chunk loses against what B has
conflict() {
    mkdir -p "$1/$(dirname "$3")" "$2/$(dirname "$3")"
    echo mine >"$1/$3"
    echo theirs >"$2/$3"
    sync "$2/$3"
    fails_with 'given up' "$SHARDFS" sync "$1"
}

# replaced_array: the saved chunk c/0/1 of the old array is where the new one needs a directory
replaced_array() {
    local source=$TMP/replaced a saved
    mkdir "$source"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$source/zarr.json"
    "$SHARDFS" create "$source/a" --shape 32,32 --dtype uint8 --chunk 4,4 --shard 16,16
    mount_view "$source" --rw --commit-interval 1000
    a=$MP
    saved=$(unsaved_of "$a")
    mount_view "$source" --rw
    conflict "$a" "$MP" a/c/0/1
    "$SHARDFS" create "$TMP/new" --shape 8,8,8 --dtype uint8 --chunk 4,4,4 --shard 8,8,8
    rm -r "$source/a"
    mv "$TMP/new" "$source/a"
    sleep 2.2
    conflict "$a" "$MP" a/c/0/1/0
    unmount_view "$a"
    unmount_view
    [[ $(<"$saved/a/c/0/1/0") == mine ]]
    [[ $(find "$saved/.spool" -type f -path '*/a/c/0/1' | wc -l) == 1 ]]
    rm -r "$saved"
}
check "what was saved of an array moves out of the way of another of its name" replaced_array

no_chown() {
    local source=$TMP/no_chown a saved
    "$SHARDFS" create --sample "$source"
    chown -R 12345:12345 "$source"
    new_mount_point
    a=$MP
    setpriv --bounding-set -chown --inh-caps -chown "$SHARDFS" mount --rw --commit-interval 1000 "$source" "$a"
    saved=$(unsaved_of "$a")
    mount_view "$source" --rw
    conflict "$a" "$MP" waves/c/0/0/0
    unmount_view "$a"
    unmount_view
    [[ $(<"$saved/waves/c/0/0/0") == mine ]]
    [[ $(stat -c '%a %u' "$saved/waves/c/0/0/0") == '600 0' ]]
    rm -r "$saved"
}

if [[ $EUID == 0 ]]; then
    check "what another user owns is saved by a process that may not give files away" no_chown
else
    skip "saving by a process that may not give files away: not root"
fi
if [[ $EUID == 0 ]] && unshare --mount true 2>/dev/null; then
    mkdir -p /var/lib/shardfs
    check "a mount stays while what it would save has no inodes" \
        env KEEP="$TMP" "$repo/tests/alone.py" bash -c "
            set -euo pipefail
            TMP=$TMP SHARDFS=$SHARDFS
            trap 'umount --lazy \"\$MP\" 2>/dev/null || true' EXIT
            new_mount_point() { MP=\$(mktemp -d \"\$TMP/mnt.XXXXXX\"); }
            $(declare -f is_mounted mount_view fails_with few_inodes)
            few_inodes"
else
    skip "a mount stays while what it would save has no inodes: no private mount namespace"
fi

# What is found out by a rehearsal leaves nothing that could be taken for what was saved.
rehearsed() {
    local source=$TMP/rehearsed saved pid n asking
    "$SHARDFS" create --shape 256 --dtype uint8 --chunk 1 --shard 256 "$source" >/dev/null
    for _ in 1 2 3 4 5; do
        mount_view "$source" --rw --commit-interval 1000
        saved=$(unsaved_of "$MP")
        pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$MP/.shardfs/stats.json")
        mkdir -p "$MP/c"
        for n in {0..255}; do printf durable >"$MP/c/$n"; done
        "$SHARDFS" sync "$MP"
        for n in {0..255}; do printf newer >"$MP/c/$n"; done
        echo scratch >"$MP/c/1.tmp"
        (cat "$MP/.shardfs/leftover.txt" || true) >/dev/null 2>&1 &
        asking=$!
        for ((n = 0; n < 2000; n++)); do
            if [[ -d $saved/.spool/.rehearsal ]] || compgen -G "$saved/.spool/[0-9]*" >/dev/null; then break; fi
        done
        kill -KILL "$pid"
        wait "$asking"
        # What it holds is its own until it has ended.
        within 60 has_ended "$pid"
        umount --lazy "$MP"
        if [[ -d $saved ]]; then
            "$SHARDFS" recover --unsaved "$saved" "$source" >"$TMP/said"
            cat "$TMP/said"
            grep '^0 chunks put in, 0 files left' "$TMP/said"
            [[ ! -e $saved ]]
        fi
        mount_view "$source"
        [[ $(cat "$MP"/c/* | sed 's/durable//g') == '' ]]
        unmount_view
    done
}
# A mount makes the directory before the file that names its source.
killed_first() {
    local source=$TMP/killed-first saved=$TMP/killed-first.saved
    "$SHARDFS" create --shape 2 --dtype uint8 --chunk 1 --shard 2 "$source" >/dev/null
    (umask 077 && mkdir -p "$saved/.spool/7")
    printf %s "${source:0:5}" >"$saved/.spool/7/.source"
    "$SHARDFS" recover --unsaved "$saved" "$source" >"$TMP/said"
    grep '^0 chunks put in, 0 files left' "$TMP/said"
    [[ ! -e $saved ]]
    # An empty directory of something else is not taken for one.
    mkdir -m 700 "$saved"
    fails_with 'it has no .source' "$SHARDFS" recover --unsaved "$saved" "$source"
    [[ -d $saved ]]
    # What was still being written when the process was killed stays.
    (umask 077 && mkdir -p "$saved/.spool/7" "$saved/.spool/8")
    printf %s "$source" >"$saved/.source"
    printf half >"$saved/.spool/7/open"
    : >"$saved/.spool/8/open"
    "$SHARDFS" recover --unsaved "$saved" "$source" >"$TMP/said"
    [[ $(<"$saved/.spool/7/open") == half && ! -e $saved/.spool/8 ]]
}
check "a mount that is killed before it has saved anything leaves nothing" killed_first

if [[ $EUID == 0 ]]; then
    check "a rehearsal that is killed leaves nothing to be put in" rehearsed
else
    skip "a rehearsal that is killed: umount needs root"
fi

blank() {
    "$SHARDFS" create --sample "$TMP/blank"
    mount_view "$TMP/blank" --rw
    local saved
    saved=$(unsaved_of "$MP")
    echo text >"$MP/waves/c/0/0/tmp "
    expect_exit 2 "$SHARDFS" umount "$MP" >"$TMP/said"
    cat "$TMP/said"
    # The head, and a line for the file.
    [[ $(wc -l <"$TMP/said") == 2 ]]
    grep -qF "it is saved as $saved/.other/waves/c/0/0/tmp " "$TMP/said"
    [[ $(<"$saved/.other/waves/c/0/0/tmp ") == text ]]
    rm -r "$saved"
}
check "umount names what is saved, whatever its name" blank

# While the mount lives, what waits in its spool is its own.
living() {
    local source=$TMP/living saved
    "$SHARDFS" create --sample "$source"
    mount_view "$source" --rw --commit-interval 1000 --dirty-limit 256K
    saved=$(unsaved_of "$MP")
    head -c 100000 /dev/urandom >"$TMP/big"
    cp "$TMP/big" "$MP/waves/c/0/0/0"
    exec 5>"$MP/waves/c/0/0/1"
    head -c 110000 /dev/zero >&5
    [[ $(find "$saved/.spool" -type f | wc -l) == 2 ]]
    expect_exit 0 "$SHARDFS" recover --unsaved "$saved" "$source" >"$TMP/said"
    cat "$TMP/said"
    grep 'of a mount that is alive' "$TMP/said"
    [[ $(find "$saved/.spool" -type f | wc -l) == 2 && -e $saved/.source ]]
    exec 5>&-
    "$SHARDFS" sync "$MP"
    cmp "$TMP/big" "$MP/waves/c/0/0/0"
    unmount_view
}
check "recover --unsaved leaves the spool of a mount that is alive" living

at_once() {
    local source=$TMP/at_once saved=$TMP/saved n said
    "$SHARDFS" create --shape 4096 --dtype uint8 --chunk 1 --shard 4096 "$source" >/dev/null
    mkdir -p "$saved/c"
    for n in {0..999}; do printf x >"$saved/c/$n"; done
    for n in 1 2 3; do
        "$SHARDFS" recover --unsaved "$saved" --force "$source" >"$TMP/said.$n" 2>&1 &
    done
    wait
    said=$(cat "$TMP"/said.?)
    grep -vE "is in its (shard|array) now" <<<"$said"
    # The others came too late, or were told that it is being done.
    [[ $(grep -c '1000 chunks put in, 0 files left' <<<"$said") == 1 ]]
    [[ $(grep -cE 'another process puts in what is there|there is no such directory|^0 chunks put in' <<<"$said") == 2 ]]
    ! grep 'not in its shard' <<<"$said"
}
check "one recover --unsaved at a time puts in what was saved" at_once

linked() {
    local source=$TMP/linked pid
    mkdir -p "$source/p"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$source/zarr.json"
    "$SHARDFS" create "$source/a" --shape 32,32 --dtype uint8 --chunk 4,4 --shard 16,16
    printf data >"$source/p/f"
    mount_view "$source" --rw --commit-interval 1000
    pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$MP/.shardfs/stats.json")
    python3 - "$MP" <<'PY'
import os
import sys

os.chdir(sys.argv[1])
os.makedirs("a/c/0")
fd = os.open("p/f", os.O_RDWR)
os.link("p/f", "a/c/0/0")
os.unlink("p/f")
os.fsync(fd)
PY
    kill -KILL "$pid"
    within 60 has_ended "$pid"
    umount --lazy "$MP"
    mount_view "$source"
    [[ $(<"$MP/a/c/0/0") == data ]]
    unmount_view
}

given_up() {
    local source=$TMP/given_up a saved
    "$SHARDFS" create "$source" --shape 32,32 --dtype uint8 --chunk 4,4 --shard 16,16
    echo data >"$source/note"
    mount_view "$source" --rw --commit-interval 1000
    a=$MP
    mount_view "$source" --rw
    python3 - "$a" "$MP" <<'PY'
import errno
import os
import sys

one, other = sys.argv[1:]
os.makedirs(one + "/c/0")
fd = os.open(one + "/note", os.O_RDWR)
os.link(one + "/note", one + "/c/0/0")
os.makedirs(other + "/c/0", exist_ok=True)
with open(other + "/c/0/0", "wb") as f:
    f.write(b"of others")
    f.flush()
    os.fsync(f.fileno())
try:
    os.fsync(fd)
    raise AssertionError("not reported")
except OSError as error:
    assert error.errno == errno.ESTALE, error
os.fsync(fd)
PY
    saved=$(unsaved_of "$a")
    fails_with 'given up' timeout 60 "$SHARDFS" umount "$a"
    rm -r "$saved"
    unmount_view
}
check "fsync of a file reports once that its copy in a chunk was given up" given_up
if [[ $EUID == 0 ]]; then
    check "fsync of a file makes the chunks durable to which it was linked" linked
else
    skip "fsync of a file that was linked to a chunk: umount needs root"
fi

outputs() {
    local source=$TMP/outputs
    "$SHARDFS" create --sample "$source"
    rm "$source/waves/c/0/1/1"
    fails_with 'must not lie in each other' "$SHARDFS" refs "$source" --output "$source/waves/c/0/1/1"
    fails_with 'must not lie in each other' "$SHARDFS" info "$source" --svg "$source/waves/c/0/1/9"
    fails_with 'must not lie in each other' "$SHARDFS" refs "$source" --output "$source/refs.json"
    [[ ! -e $source/waves/c/0/1/1 && ! -e $source/waves/c/0/1/9 ]]
    "$SHARDFS" verify "$source"
}
check "no output is written among the files of the source" outputs
