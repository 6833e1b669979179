#!/bin/bash
# recover --scan --write: a shard is put back to an older index, but not where that may show bytes of other chunks.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
cd "$TMP" || exit 1

history() { python3 "$repo/tests/shell/older_index.py" "$@"; }

generations=6

# new_array NAME [OPTION...]: of one shard with 8 x 8 chunks, whose items are compressed by gzip, or not at all.
new_array() {
    local name=$1
    shift
    rm -rf "$name"
    "$SHARDFS" create "$name" --shape 256,256 --dtype uint16 --chunk 32,32 --shard 256,256 "$@" >said
}

codec() { if [[ $1 == gzip ]]; then echo --codec gzip; fi; }

# updated NAME HOW HISTORY GENERATIONS: its chunks in generations, each made durable by a mount.
updated() {
    local name=$1 how=$2 history=$3 count=$4 generation
    new_mount_point
    "$SHARDFS" mount --rw --update "$how" --view raw "$name" "$MP"
    for ((generation = 0; generation < count; generation++)); do
        history write "$MP" "$history" "$generation"
        "$SHARDFS" sync "$MP"
    done
    "$SHARDFS" umount "$MP"
}

# shows NAME HOW HISTORY GENERATIONS
shows() {
    local rc=0
    new_mount_point
    "$SHARDFS" mount --view raw "$1" "$MP"
    history "$2" "$MP" "$3" "$4" || rc=1
    "$SHARDFS" umount "$MP"
    return "$rc"
}

appended() {
    local codec how number=0 left
    for codec in gzip plain; do
        for how in sum more half few; do
            # shellcheck disable=SC2046 # an option or none
            new_array appended $(codec "$codec")
            history append appended/c/0/0 "grown-$((++number))" "$generations" "$codec"
            shows appended exactly "grown-$number" "$generations"
            history damage appended/c/0/0 "$how" 64 "$number"
            cp appended/c/0/0 damaged
            if [[ $how == half || $how == few ]]; then
                # What of the newest index is missing could say that others stand in the place of chunks.
                expect_exit 1 "$SHARDFS" recover --scan --write appended >said
                grep -F 'but only a part of a newer one is left' said | grep -F '; not repaired'
                cmp damaged appended/c/0/0
                continue
            fi
            expect_exit 1 "$SHARDFS" recover --scan appended >said
            grep -F '1 can be repaired by --write, which brings back chunks' said
            cmp damaged appended/c/0/0
            expect_exit 1 "$SHARDFS" recover --scan --write appended >said
            grep -F ' of 64 chunks stands at byte ' said | grep -F ', a copy of it stands at the end now'
            grep -F '1 repaired by an older index: what was written there since then is gone' said
            # No byte of it was changed.
            cmp -n "$(stat -c %s damaged)" damaged appended/c/0/0
            "$SHARDFS" recover --scan appended
            left=$((generations - 1))
            [[ $how != more ]] || left=$generations
            shows appended exactly "grown-$number" "$left"
        done
    done
}
check "a shard that other software appended to is put back to its older index" appended

# What the disk has changed is found by the checksum, and the shard is as it was.
one_wrong_byte() {
    local location how seed
    for location in end start; do
        how=byte
        [[ $location == end ]] || how=byte-at-start
        new_array mended --index-location "$location" --codec gzip
        updated mended rewrite mended 3
        cp mended/c/0/0 sound
        for seed in 1 2 3 4 5 6; do
            cp sound mended/c/0/0
            history damage mended/c/0/0 "$how" 64 "$seed"
            cp mended/c/0/0 damaged
            expect_exit 1 "$SHARDFS" recover --scan mended >said
            grep -E 'c/0/0: checksum of the index .*; with 0x.. in place of 0x.. at byte [0-9]+ it matches$' said
            grep -F '1 can be repaired by --write, which puts back one byte' said
            cmp damaged mended/c/0/0
            "$SHARDFS" recover --scan --write mended >said
            grep -E ' at byte [0-9]+ it matches, and does now$' said
            cmp sound mended/c/0/0
        done
    done
    shows mended exactly mended 3
    # All names of a file change with it.
    cp damaged mended/c/0/0
    ln mended/c/0/0 other
    expect_exit 1 "$SHARDFS" recover --scan --write mended >said
    grep -F 'it matches, but the file has 2 names, and changes under all of them; not repaired' said
    cmp damaged mended/c/0/0
    expect_exit 1 "$SHARDFS" recover --scan --write --force mended >said
    cmp sound other
    # A chunk that is damaged as well does not show that the byte is another one, nor that it is not.
    cp damaged mended/c/0/0
    printf 'XXXXXXXX' | dd of=mended/c/0/0 bs=1 seek=$((64 * 16 + 4 + 12)) conv=notrunc status=none
    expect_exit 1 "$SHARDFS" recover --scan --write mended >said
    grep -F 'it matches, but' said | grep -F '; not repaired'
}
check "a single wrong byte of an index is put right" one_wrong_byte

# outcome NAME HISTORY GENERATIONS: what becomes of its damaged shard is right, and counted.
outcome() {
    find "$1/c" -type f -exec cp {} damaged \;
    expect_exit 1 "$SHARDFS" recover --scan --write "$1" >said
    if grep -q '; not repaired' said; then
        grep -qF '1 can be repaired by --write --force alone' said
        refused=$((refused + 1))
    elif grep -q 'no older index stands in it' said; then
        none=$((none + 1))
    else
        grep -q 'a copy of it stands at the end now' said
        repaired=$((repaired + 1))
        shows "$1" ever "$2" "$3"
    fi
}

updated_again_and_again() {
    local update codec how seed refused=0 none=0 repaired=0
    for update in in-place append; do
        for codec in gzip plain; do
            for seed in 1 2 3; do
                # shellcheck disable=SC2046
                new_array updated $(codec "$codec")
                updated updated "$update" "$seed" "$generations"
                cp updated/c/0/0 sound
                for how in bytes half few more; do
                    cp sound updated/c/0/0
                    history damage updated/c/0/0 "$how" 64 "$seed"
                    outcome updated "$seed" "$generations"
                done
            done
        done
    done
    echo "$refused refused, $none without an older index, $repaired repaired"
    ((refused > 5))
}
check "a shard whose space was used again shows no bytes of other chunks" updated_again_and_again

moved() {
    local refused=0 none=0 repaired=0
    rm -rf moved
    "$SHARDFS" create moved --shape 262144 --dtype uint8 --chunk 65536 --shard 262144 >said
    updated moved append moved 6
    shows moved exactly moved 6
    history damage moved/c/0 bytes 4 1
    outcome moved moved 6
    echo "$refused refused, $none without an older index, $repaired repaired"
}
check "nor does one in which every chunk has moved to where another was" moved

forced() {
    local seed refused=0 none=0 repaired=0
    for ((seed = 1; refused == 0; seed++)); do
        new_array forced --codec gzip
        updated forced append "$seed" "$generations"
        history damage forced/c/0/0 more 64 "$seed"
        outcome forced "$seed" "$generations"
    done
    cmp damaged forced/c/0/0
    expect_exit 2 "$SHARDFS" recover --scan --force forced
    expect_exit 1 "$SHARDFS" recover --scan --write --force forced >said
    grep -F 'a copy of it stands at the end now' said
    grep -F '1 repaired by --force: chunks there may show bytes of other chunks' said
    "$SHARDFS" recover --scan forced
}
check "--force puts it back all the same" forced
