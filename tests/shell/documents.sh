#!/bin/bash
# zarr.json that is no valid document, that becomes one, that is replaced, and that an array has lost.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
export PYTHONDONTWRITEBYTECODE=1

sample() { "$SHARDFS" create --sample "$1" >/dev/null; }

documents_that_are_none() {
    local source=$TMP/documents name
    sample "$source"
    mount_view "$source" --rw
    for name in '\x01\x02' '' '{"some": "thing"}' '[1, 2]'; do
        mkdir -p "$MP/store/foo"
        # As a program writes it in one go, in the place of another, and by a rename.
        # shellcheck disable=SC2059 # escapes
        printf "$name" >"$MP/store/zarr.json"
        # shellcheck disable=SC2059
        cmp "$MP/store/zarr.json" <(printf "$name")
        # shellcheck disable=SC2059
        printf "$name" >"$MP/store/foo/zarr.json.partial"
        mv "$MP/store/foo/zarr.json.partial" "$MP/store/foo/zarr.json"
        sync "$MP/store/zarr.json"
        # Beside it are files like any other.
        mkdir -p "$MP/store/c" "$MP/store/foo/c"
        echo chunk >"$MP/store/c/0"
        echo chunk >"$MP/store/foo/c/0.0"
        [[ $(<"$MP/store/c/0") == chunk && $(<"$source/store/foo/c/0.0") == chunk ]]
        sleep 1.2
        [[ $(<"$MP/store/c/0") == chunk ]]
        # shellcheck disable=SC2059
        cmp "$source/store/zarr.json" <(printf "$name")
        # shellcheck disable=SC2059
        cmp "$source/store/foo/zarr.json" <(printf "$name")
        rm -r "$MP/store"
    done
    touch "$MP/zarr.json.new"
    : >"$MP/zarr.json"
    is_empty() { [[ $(stat -c %s "$source/zarr.json") == 0 ]]; }
    within 5 is_empty
    [[ -e $source/zarr.json.new && -s $MP/waves/zarr.json ]]
    unmount_view
}
check "zarr.json outside of arrays may be anything" documents_that_are_none

# Work below such a directory is not disturbed.
documents_written_over_and_over() {
    local source=$TMP/often
    sample "$source"
    mount_view "$source" --rw
    mkdir -p "$MP/store/a/b"
    python3 - "$MP/store" <<'END'
import os, sys, threading

top = sys.argv[1]
is_done = threading.Event()
failed = []


def write(directory, content):
    try:
        for number in range(300):
            new = f"{directory}/zarr.json.{content}"
            with open(new, "w") as f:
                f.write(content * number)
            os.rename(new, f"{directory}/zarr.json")
    except OSError as e:
        failed.append(f"writing: {e}")
    is_done.set()


def look(name):
    while not is_done.is_set():
        try:
            with open(name, "w") as f:
                f.write("chunk")
            with open(name) as f:
                f.read()
            os.unlink(name)
        except OSError as e:
            failed.append(f"below: {e}")


threads = [threading.Thread(target=write, args=(top, letter)) for letter in "xy"]
threads += [threading.Thread(target=write, args=(f"{top}/a", "z"))]
threads += [threading.Thread(target=look, args=(f"{top}/{name}",)) for name in ("f", "a/b/g")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(f"{len(failed)} errors: {failed[:3]}" if failed else 0)
END
    unmount_view
}
check "zarr.json that is none is replaced over and over" documents_written_over_and_over

documents_of_arrays() {
    local source=$TMP/protected before
    sample "$source"
    cp -r "$source/waves" "$source/plain"
    sed -i 's/"zarr_format": 3,/&"attributes": {}, /' "$source/zarr.json"
    cat >"$source/plain/zarr.json" <<'END'
{"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0,
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
 "chunk_key_encoding": {"name": "default"}, "codecs": ["bytes"]}
END
    mount_view "$source" --rw
    for array in waves plain; do
        before=$(sha256sum <"$source/$array/zarr.json")
        for text in 'no json' '{"some": ' '{"codecs": [{"name": "sharding_indexed"}]'; do
            echo "$text" >"$TMP/text"
            fails_with "Invalid argument" cp "$TMP/text" "$MP/$array/zarr.json"
            cp "$TMP/text" "$MP/$array/new.part"
            fails_with "Invalid argument" python3 -c \
                "import os, sys; os.rename(sys.argv[1], sys.argv[2])" "$MP/$array/new.part" "$MP/$array/zarr.json"
            rm "$MP/$array/new.part"
            # Nor in a directory in it.
            mkdir -p "$MP/$array/below"
            fails_with "Invalid argument" cp "$TMP/text" "$MP/$array/below/zarr.json"
        done
        [[ $(sha256sum <"$source/$array/zarr.json") == "$before" ]]
    done
    # Elsewhere a part of a document is stored like any text: the rest may follow.
    mkdir "$MP/new"
    cp "$TMP/text" "$MP/new/zarr.json"
    cmp "$TMP/text" "$source/new/zarr.json"
    cp "$source/waves/zarr.json" "$MP/new/zarr.json"
    cmp "$source/waves/zarr.json" "$source/new/zarr.json"
    cmp "$source/waves/zarr.json" "$MP/new/zarr.json"
    unmount_view
}
check "zarr.json of arrays stays one" documents_of_arrays

becomes_valid() {
    local source=$TMP/becomes
    sample "$source"
    mount_view "$source" --rw
    mkdir -p "$MP/new/c/0"
    echo none >"$MP/new/zarr.json"
    echo plain >"$MP/new/c/0/notes"
    [[ $(<"$MP/new/c/0/notes") == plain ]]
    # Others make an array of it: what is in it is shards from then on.
    cp -r "$source/waves/." "$source/new"
    sleep 1.2
    cmp "$MP/new/c/0/0/0" "$MP/waves/c/0/0/0"
    fails_with "No such file" cat "$MP/new/c/0/notes"
    # And damage it: that is no plain file, but an array nobody can read.
    sleep 1.2
    echo none >"$source/new/zarr.json"
    sleep 1.2
    fails_with "Input/output error" cat "$MP/new/c/0/0/0"
    unmount_view
}
check "a directory is what its zarr.json says by now" becomes_valid

array_loses_its_document() {
    local source=$TMP/lost
    sample "$source"
    mount_view "$source"
    sha256sum "$MP/waves/c/0/0/0" >"$TMP/sum"
    mv "$source/waves/zarr.json" "$TMP/document"
    sleep 1.2
    # What is left are shards, under names of chunks.
    fails_with "Input/output error" cat "$MP/waves/c/0/0/0"
    fails_with "Input/output error" cat "$MP/waves/c/0/1/1"
    fails_with "No such file" cat "$MP/waves/zarr.json"
    [[ $(grep -c "waves/zarr.json: it is gone" "$MP/.shardfs/log") == 1 ]]
    sleep 1.2
    fails_with "Input/output error" cat "$MP/waves/c/0/0/0"
    mv "$TMP/document" "$source/waves/zarr.json"
    sleep 1.2
    sha256sum --check --quiet "$TMP/sum"
    # Another directory of that name is what it is.
    mv "$source/waves" "$source/elsewhere"
    mkdir -p "$source/waves/c/0/0"
    echo plain >"$source/waves/c/0/0/0"
    sleep 1.2
    [[ $(<"$MP/waves/c/0/0/0") == plain ]]
    unmount_view
}
check "shards of an array that has lost its zarr.json are not shown as its chunks" array_loses_its_document
