#!/bin/bash
# What the end of a mount cannot carry over to the source: it is named, it is kept, and it goes where it belongs.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

unsaved_of() { compgen -G "/var/lib/shardfs/unsaved/*-$1" || true; }

# A file beside chunks has no place in the source.
beside_chunks() {
    local pid saved
    fresh $plane
    pid=$(daemon_of "$MP")
    cp "$data/text" "$MP/c/0/notes"
    cp "$data/text" "$MP/c/0/gone"
    : >"$MP/c/0/lock"
    "$SHARDFS" sync "$MP" >"$work/said" 2>&1
    grep 'c/0/notes: no chunk' "$work/said"
    rm "$MP/c/0/gone"
    expect_exit 2 "$SHARDFS" umount "$MP" >"$work/said"
    cat "$work/said"
    saved=$(unsaved_of "$pid")
    [[ $(grep -c : "$work/said") == 2 ]]
    grep -F "c/0/notes: no chunk, in the mount alone; it is saved as $saved/.other/c/0/notes" "$work/said"
    cmp "$data/text" "$saved/.other/c/0/notes"
    within 10 no_daemon_of "$MP"
    "$SHARDFS" recover "$source" >"$work/said" 2>&1
    grep "beside chunks in an earlier mount are in $saved: move them" "$work/said"
    fails_with '' grep -e --unsaved "$work/said"
    in_shards
}
at_once "a file beside chunks is named by sync and umount, and saved" beside_chunks

# A list of all of them would hide the rest of the message.
many_beside_chunks() {
    local number
    fresh $plane
    for number in {1..12}; do
        cp "$data/text" "$MP/c/0/notes.$number"
    done
    "$SHARDFS" sync "$MP" >"$work/said" 2>&1
    [[ $(grep -c 'no chunk' "$work/said") == 10 ]]
    grep -x 'and 2 other changes' "$work/said"
    [[ $(wc -l <"$MP/.shardfs/leftover.txt") == 12 ]]
    rm "$MP"/c/0/notes.*
    unmount_view
    in_shards
}
at_once "of many files beside chunks the first ones are named" many_beside_chunks

nothing_left() {
    fresh $plane
    cp "$data/text" "$MP/c/0/notes"
    mv "$MP/c/0/notes" "$MP/c/0/0"
    cp "$data/text" "$MP/notes"
    [[ -z $("$SHARDFS" sync "$MP" 2>&1) ]]
    [[ -z $("$SHARDFS" umount "$MP" 2>&1) ]]
    cmp "$data/text" "$source/notes"
}
at_once "nothing is said where everything has its place" nothing_left

# Without its document, what is in the shards could not be read, and copies of it through the view say nothing of
# shards.
document_stays() {
    local how=$1
    fresh_group
    cp "$source/waves/zarr.json" "$work/before.json"
    case $how in
    removed) rm "$MP/waves/zarr.json" ;;
    renamed) mv "$MP/waves/zarr.json" "$MP/waves/zarr.json.bak" ;;
    esac
    [[ ! -e $MP/waves/zarr.json ]]
    "$SHARDFS" sync "$MP"
    expect_exit 2 "$SHARDFS" umount "$MP" >"$work/said"
    grep 'waves/zarr.json: removed, but its array is not; it stays in the source' "$work/said"
    cmp "$work/before.json" "$source/waves/zarr.json"
    within 10 no_daemon_of "$MP"
    rm -f "$source/waves/zarr.json.bak"
    in_shards
}
at_once "the document of shards stays if it alone is removed" document_stays removed
at_once "the document of shards stays if it alone is renamed" document_stays renamed

document_goes() {
    fresh_group
    rm -r "$MP"/waves/*
    [[ -z $("$SHARDFS" umount "$MP" 2>&1) ]]
    [[ -d $source/waves && ! -e $source/waves/zarr.json ]]
}
at_once "the document goes with the last shard, where the directory stays" document_goes

# A process that works in the mount is served until the process behind it ends.
told_before_the_end() {
    local pid writer mp
    fresh $plane
    pid=$(daemon_of "$MP") mp=$MP
    cat >"$work/writer.py" <<'PY'
import itertools
import os
import sys

names = [line.strip() for line in open(sys.argv[2])]
os.chdir(sys.argv[1])
with open(sys.argv[3], "w") as told:
    for number, name in zip(itertools.count(), itertools.cycle(names)):
        try:
            with open(name, "wb", buffering=0) as chunk:
                chunk.write(b"%-300d" % number)
        except OSError:
            break
        print(number, name, file=told, flush=True)
PY
    printf '%s\n' "${present[@]}" >"$work/names"
    python3 "$work/writer.py" "$MP" "$work/names" "$work/told" &
    writer=$!
    within 10 test -s "$work/told"
    kill -TERM "$pid"
    within 30 no_daemon_of "$mp"
    wait "$writer"
    rm -rf "$work/extracted"
    python3 "$here/arrays.py" extract "$source" "$work/extracted"
    # The last that was told of each, or what it could not be told of any more.
    python3 - "$work/told" "$work/extracted" "$(unsaved_of "$pid")" <<'PY'
import os
import sys

last = {}
for line in open(sys.argv[1]):
    number, name = line.split()
    last[name] = int(number)
assert last
for name, number in last.items():
    places = [os.path.join(root, name) for root in sys.argv[2:] if root]
    found = [open(place, "rb").read() for place in places if os.path.exists(place)]
    # An open has emptied it, and its write was refused.
    assert any(not content or int(content) >= number for content in found), (name, number, found)
PY
}
at_once "what was told to be written before TERM ends a busy mount is kept" told_before_the_end

# Paths alone would be those of any array.
another_source() {
    local pid saved sum ours
    fresh_group --commit-interval 1000
    pid=$(daemon_of "$MP")
    ours=$MP
    # Another one of the same names, which are enough for a chunk to be put in.
    cp -r "$source" "$work/other.zarr"
    cp "$data/page" "$ours/waves/c/0/0/0"
    mount_view "$source" --rw
    cp "$data/text" "$MP/waves/c/0/0/0"
    unmount_view
    fails_with 'Stale' "$SHARDFS" umount "$ours"
    within 10 no_daemon_of "$ours"
    saved=$(unsaved_of "$pid")
    [[ $(cat "$saved/.source") == "$source" ]]
    sum=$(cat "$work"/other.zarr/waves/c/0/0/* | sha256sum)
    fails_with "it was saved of $source; --force puts it into $work/other.zarr all the same" \
        "$SHARDFS" recover --unsaved "$saved" "$work/other.zarr"
    [[ $sum == "$(cat "$work"/other.zarr/waves/c/0/0/* | sha256sum)" ]]
    cmp "$data/page" "$saved/waves/c/0/0/0"
    # The next mount and recover say what is left to do.
    expect_exit 1 "$SHARDFS" recover "$source" | grep -F "\`shardfs recover --unsaved $saved $source\` puts its chunks in"
    "$SHARDFS" recover "$work/other.zarr" | grep -F "$saved" && return 1
    mount_view "$source" --rw
    grep -F "what an earlier mount could not commit is in $saved" "$MP.log"
    unmount_view
    (cd "$work" && "$SHARDFS" recover --unsaved "$saved" s.zarr)
    [[ ! -e $saved ]]
    mount_view "$source" --rw
    [[ ! -s $MP.log ]]
    cmp "$data/page" "$MP/waves/c/0/0/0"
    unmount_view
}
at_once "what is saved is put into no other source" another_source

# They alone can say that something may be lost.
killed() {
    fresh $plane --commit-interval 1000
    cp "$data/page" "$MP/${present[0]}"
    kill -KILL "$(daemon_of "$MP")"
    within 10 no_daemon_of "$MP"
    expect_exit 2 "$SHARDFS" sync "$MP" | grep 'was killed: what was not durable yet is lost'
    expect_exit 2 "$SHARDFS" umount "$MP" | grep 'was killed: what was not durable yet is lost'
    not_mounted "$MP"
    in_shards
}
at_once "sync and umount say that the process of a writable mount was killed" killed

# In a view of decoded chunks a name that is none there may be that of a chunk as it is stored.
no_chunk_of_another_view() {
    local pid saved
    fresh_group --view npy
    pid=$(daemon_of "$MP")
    cp "$data/text" "$MP/waves/c/0/0/0"
    expect_exit 2 "$SHARDFS" umount "$MP"
    within 10 no_daemon_of "$MP"
    saved=$(unsaved_of "$pid")
    expect_exit 1 "$SHARDFS" recover --unsaved "$saved" "$source" >"$work/said"
    grep 'waves/c/0/0/0: is no chunk of' "$work/said"
    in_shards
}
at_once "a file beside decoded chunks is not put in as a stored one" no_chunk_of_another_view

# What is below the directory is removed once it is put in.
not_saved_at_all() {
    fresh_group
    unmount_view
    "$SHARDFS" unpack "$source" "$work/plain" >/dev/null
    for from in "$source" "$source/waves" "$work"; do
        fails_with 'must not lie in each other' "$SHARDFS" recover --unsaved "$from" "$source" --force
    done
    fails_with 'is an array or a group' "$SHARDFS" recover --unsaved "$work/plain" "$source" --force
    in_shards
}
at_once "recover --unsaved takes no array for what was saved" not_saved_at_all

linked_document() {
    fresh_group
    fails_with 'cross-device' ln "$MP/waves/zarr.json" "$MP/waves/copy.json"
    fails_with 'cross-device' ln "$MP/waves/zarr.json" "$MP/copy.json"
    unmount_view
    in_shards
}
at_once "a document gets no second name under which it could be written unchecked" linked_document

# Shards outside the shape are no less than others.
document_of_shards_outside() {
    local source=$TMP/outside.zarr
    "$SHARDFS" create "$source" --shape 64,64 --dtype uint8 --chunk 8,8 --shard 32,32
    mount_view "$source" --rw -o keep_outside
    mkdir -p "$MP/c/7"
    head -c 64 "$data/page" >"$MP/c/7/7"
    "$SHARDFS" sync "$MP"
    sed -i '0,/64/s//32/' "$MP/zarr.json"
    rm "$MP/zarr.json"
    fails_with 'zarr.json: removed, but its array is not' "$SHARDFS" umount "$MP"
    [[ -e $source/zarr.json && -e $source/c/1/1 ]]
}
at_once "the document stays while there are shards outside the shape" document_of_shards_outside

level_of_shards() {
    local source=$TMP/nested.zarr first pid saved
    [[ -n $(corpus_dir) ]] || { skip "no corpus"; return 0; }
    cp -r "$(corpus_dir)/data/zarrpy/r2_u2_nested.zarr" "$source"
    mount_view "$source" --rw -o level=1 --commit-interval 1000
    first=$MP pid=$(daemon_of "$MP")
    chunk=$(cd "$first" && find c -type f | sort | sed -n 1p)
    cp "$first/$chunk" "$TMP/nested.chunk"
    cp "$TMP/nested.chunk" "$first/$chunk"
    mount_view "$source" --rw -o level=1
    rm "$MP/$chunk"
    unmount_view
    fails_with Stale "$SHARDFS" umount "$first"
    within 10 no_daemon_of "$first"
    saved=$(unsaved_of "$pid")
    cmp "$TMP/nested.chunk" "$saved/.level-1/$chunk"
    "$SHARDFS" recover --unsaved "$saved" "$source"
    "$SHARDFS" verify --decode "$source"
    mount_view "$source" -o level=1
    cmp "$TMP/nested.chunk" "$MP/$chunk"
    unmount_view
}
at_once "a saved chunk that is itself a shard is put in as one" level_of_shards

finish
