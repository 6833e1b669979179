# shellcheck shell=bash
# Common parts of the tests of a hostile source: another user has put things where shardfs keeps its own.  Whatever
# is done with one array, another one and all other files stay as they are, and an error names what is in the way.
#
#     . "$(dirname "$0")/lib.sh"

# shellcheck source=../../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../lib.sh"
here=$repo/tests/shell

# fresh: a source with the array that is tampered with, another one, and a file.  Sets work and src.
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
    directory=$(grep -o 'is in [^ ]*shardfs/unsaved/[0-9TZ.-]*[0-9]' "$work/log" | sort -u | cut -d ' ' -f 3)
    [[ -d $directory ]]
    [[ -z $(find "$directory" -type d ! -perm 700) ]]
    [[ -z $(find "$directory" -type f ! -name .source ! -perm 644) && -n $(find "$directory" -type f) ]]
    rm -r "$directory"
}

# refused TEXT: no command acts on what is in evil/.shardfs, and each error contains TEXT.
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
