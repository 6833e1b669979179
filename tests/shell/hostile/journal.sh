#!/bin/bash
# Journals with forged records: only what a commit may have left is rolled back.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

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

# What a real commit leaves is still rolled back.
a_real_record() {
    fresh
    hostile c/0 "$src/evil/c/0"
    head -c 30 /dev/zero >>"$src/evil/c/0"
    "$SHARDFS" recover "$src" | grep -x 'evil/c/0: the interrupted commit was rolled back'
    untouched
    [[ ! -e $src/evil/.shardfs ]]
}
check "a record that a commit may have left is rolled back" a_real_record

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
    "$SHARDFS" recover "$src" | grep 'rolled back'
}
check "a record of somebody who may not write the shard" record_of_another_user
