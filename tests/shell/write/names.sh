#!/bin/bash
# Names that are no chunk key, chunks outside the shape, chunks that cannot be written.

# shellcheck disable=SC2012 source=lib.sh
. "$(dirname "$0")/lib.sh"

make_arrays compressed

outside() {
    fresh $plane
    fails_with "No such file" touch "$MP/c/5/0"
    fails_with "Invalid argument" touch "$MP/c/0/11"
    fails_with "Invalid argument" mkdir "$MP/c/5"
    grep -q 'c/0/11: it lies outside the array, which has .* chunks: nothing is made there' "$MP/.shardfs/log"
    fails_with "No such file" ls "$MP/c/5"
    # mv has words of its own for this error.
    fails_with "Invalid argument" python3 -c 'import os, sys; os.rename(*sys.argv[1:])' \
        "$MP/${present[0]}" "$MP/c/0/11"
    fails_with "" ln "$MP/${present[0]}" "$MP/c/0/11"
    both cat "${present[0]}"
    settled
}
at_once "chunks outside the array's shape are refused" outside

scratch() {
    fresh $plane
    both cp "$data/page" c/0/notes.txt
    both cp "$data/page" c/0/007
    both cp "$data/page" c/0/.hidden
    both ls -A c/0
    both cat c/0/notes.txt
    both mv c/0/notes.txt c/1/notes.md
    both cp "$data/small" c/1/notes.md
    same_files "$MP"
    sync "$MP"
    # No other reader would know what they are.
    [[ -z $(find "$source" -name 'notes*' -o -name .hidden -o -name 007) ]]
    both rm c/1/notes.md c/0/007 c/0/.hidden
    settled
}
at_once "names that are no chunk key: listed, read, renamed, never in the source" scratch

scratch_left() {
    fresh $plane
    cp "$data/page" "$MP/c/0/notes.txt"
    : >"$MP/c/0/7.__lock"
    : >"$log"
    fails_with 'c/0/notes.txt: no chunk, in the mount alone' "$SHARDFS" umount "$MP"
    # An empty lock file is no loss; what holds something is saved, and the log says where.
    local file
    file=$(saved c/0/notes.txt)
    cmp "$file" "$data/page"
    [[ $(ls -A "${file%/*}") == notes.txt ]]
    in_shards
}
at_once "what is left of them at the end is saved, and the log says where" scratch_left

compressed() {
    fresh compressed
    local chunk new
    chunk=$(cd "$want" && find c -type f | sed -n 1p)
    new=$(comm -23 <(printf 'c/%s\n' {0..4}/{0..10} | sort) <(cd "$want" && find c -type f | sort) | sed -n 1p)
    fails_with "Read-only file system" cp "$data/page" "$MP/$chunk"
    fails_with "Read-only file system" cp "$data/page" "$MP/$new"
    fails_with "Read-only file system" rm -f "$MP/$chunk"
    fails_with "Read-only file system" truncate -s 1 "$MP/$chunk"
    fails_with "Read-only file system" mv "$MP/$chunk" "$work/moved"
    cp "$data/page" "$MP/$new.partial"
    fails_with "Read-only file system" mv "$MP/$new.partial" "$MP/$new"
    rm "$MP/$new.partial"
    settled
}
at_once "chunks of shards that are compressed as a whole are only read" compressed

made_anew() {
    fresh $plane
    both rm -r c/4
    python3 - "$MP/notes" "$MP/c/4" <<'PY'
import os
import sys

for path in sys.argv[1:]:
    os.mkdir(path)
    for _ in range(3):
        # As by a shell whose directory it is.
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        os.rmdir(path)
        os.mkdir(path)
        for _ in range(2):
            with open(path + "/note.txt", "w") as file:
                file.write("note")
            assert os.listdir(path) == ["note.txt"], os.listdir(path)
            os.remove(path + "/note.txt")
            if held is not None:
                os.close(held)
            held = None
    os.rmdir(path)
PY
    settled
}
at_once "a directory is made anew while one of its name that was removed is held open" made_anew

own_names() {
    fresh $plane
    fails_with "not permitted" touch "$MP/.shardfs/new"
    fails_with "not permitted" rm "$MP/.shardfs/stats.json"
    fails_with "not permitted" mkdir "$MP/.shardfs/new"
    fails_with "" rm -r "$MP/.shardfs"
    fails_with "" mv "$MP/.shardfs/stats.json" "$MP/c/0/0"
    python3 -m json.tool "$MP/.shardfs/stats.json" >/dev/null
    settled
}
at_once ".shardfs cannot be changed" own_names

finish
