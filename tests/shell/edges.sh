#!/bin/bash
# What few programs do, and some do all the same: a source that is removed while it is mounted, shapes that come and
# go, few open files, commits that fail.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
export PYTHONDONTWRITEBYTECODE=1

sample() { "$SHARDFS" create --sample "$1" >/dev/null; }

source_is_removed() {
    local source=$TMP/gone options=$1
    sample "$source"
    # shellcheck disable=SC2086 # several
    mount_view "$source" $options
    gzip -dc <"$MP/waves/c/0/0/0" >/dev/null
    exec 9<"$MP/waves/c/0/0/1"
    rm -rf "$source"
    sleep 1.2
    for name in waves/zarr.json zarr.json waves/c/0/0/0 waves/c/1/0/0 waves/nothing nothing waves; do
        fails_with "Stale file handle" stat "$MP/$name"
    done
    fails_with "Stale file handle" ls "$MP"
    fails_with "Stale file handle" ls "$MP/waves/c/0"
    exec 9<&-
    [[ $(grep -c "the source's directory was removed" "$MP/.shardfs/log") == 1 ]]
    [[ $options != --rw ]] || fails_with "Stale file handle" touch "$MP/new"
    timeout 30 "$SHARDFS" umount "$MP" || [[ $options == --rw ]]
    not_mounted "$MP"
}
check "what a removed source had is stale, not absent" source_is_removed ""
check "what a removed source had is stale, not absent, in a writable mount" source_is_removed --rw

shrinks_and_grows() {
    local source=$TMP/shapes
    sample "$source"
    mount_view "$source" --rw
    python3 - "$MP" <<'END'
import os, sys, re
mp = sys.argv[1]
document = os.path.join(mp, "waves/zarr.json")
chunks = [os.path.join(mp, "waves/c", key) for key in ("3/0/0", "3/0/1", "3/0/2", "0/0/1")]
fds = [os.open(chunk, os.O_RDWR) for chunk in chunks]
os.pwrite(fds[0], b"written before the shrink", 0)
os.pwrite(fds[3], b"inside", 0)
closed = os.open(os.path.join(mp, "waves/c/3/0/3"), os.O_RDWR | os.O_CREAT)
os.pwrite(closed, b"closed before", 0)
os.close(closed)
text = open(document).read()
def resize(extent):
    with open(document, "w") as f:
        f.write(re.sub(r'("shape": \[\s*)\d+', r"\g<1>%d" % extent, text))
    assert '"shape": [\n    %d' % extent in open(document).read()
resize(32)
os.pwrite(fds[1], b"written while it is small", 0)
os.fsync(fds[1])
resize(64)
os.pwrite(fds[2], b"written after", 0)
os.fsync(fds[2])
assert os.pread(fds[0], 7, 0) == b"written" and os.pread(fds[2], 7, 0) == b"written"
for fd in fds:
    os.close(fd)
for chunk in chunks[:3]:
    assert not os.path.exists(chunk), chunk
assert open(chunks[3], "rb").read(6) == b"inside"
# New ones are chunks as before.
os.makedirs(os.path.dirname(chunks[0]))
with open(chunks[0], "wb") as f:
    f.write(b"new")
END
    "$SHARDFS" sync "$MP"
    sleep 1.2
    [[ $(ls "$MP/waves/c/3/0") == 0 && $(<"$MP/waves/c/3/0/0") == new ]]
    [[ ! -s $MP/.shardfs/waiting.txt ]]
    unmount_view
    mount_view "$source"
    [[ $(ls "$MP/waves/c/3/0") == 0 && $(<"$MP/waves/c/3/0/0") == new ]]
    unmount_view
}
check "a descriptor of before a shrink brings no chunk back" shrinks_and_grows

few_open_files() {
    local source=$TMP/few shards=3000
    sample "$source"
    mkdir "$source/many"
    cat >"$source/many/zarr.json" <<END
{"zarr_format": 3, "node_type": "array", "shape": [$((shards * 2))], "data_type": "uint8", "fill_value": 0,
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
 "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "sharding_indexed",
 "configuration": {"chunk_shape": [1], "codecs": ["bytes"], "index_codecs": ["bytes"]}}]}
END
    python3 -c 'import sys; [open(f"{sys.argv[1]}/plain{n}", "w").write(str(n)) for n in range(300)]' "$source"
    new_mount_point
    (ulimit -n 100 && "$SHARDFS" mount --rw "$source" "$MP")
    python3 - "$MP" "$shards" <<'END'
import errno, os, sys
mp, shards = sys.argv[1], int(sys.argv[2])
os.mkdir(os.path.join(mp, "many/c"))
for shard in range(shards):
    with open(os.path.join(mp, f"many/c/{2 * shard}"), "wb") as f:
        f.write(b"%d" % shard)
opened, refused = [], 0
for number in range(300):
    try:
        opened.append((number, os.open(os.path.join(mp, f"plain{number}"), os.O_RDONLY)))
    except OSError as error:
        assert error.errno in (errno.EMFILE, errno.ENFILE), error
        refused += 1
# Commits in the background take some, and give them back.
assert 10 < len(opened) < 100 and refused == 300 - len(opened), len(opened)
# Those that are open are read, and so is what needs no file of its own.
assert all(int(os.pread(fd, 10, 0)) == number for number, fd in opened)
assert os.stat(os.path.join(mp, "plain299")).st_size == 3
for _, fd in opened:
    os.close(fd)
for number in range(300):
    with open(os.path.join(mp, f"plain{number}")) as f:
        assert int(f.read()) == number
END
    "$SHARDFS" sync "$MP"
    [[ $(grep -c "no more files can be opened: .*limit of this process is 100" "$MP/.shardfs/log") == 1 ]]
    [[ $(find "$source/many/c" -type f | wc -l) == "$shards" && $(<"$MP/many/c/4242") == 2121 ]]
    unmount_view
}
check "few open files: what is refused is told, nothing else fails" few_open_files

sync_says_what_failed() {
    local source=$TMP/failing out
    sample "$source"
    mount_view "$source" --rw
    ln -s nowhere "$source/waves/.shardfs"
    echo new >"$MP/waves/c/0/0/0"
    out=$(expect_exit 2 "$SHARDFS" sync "$MP")
    echo "$out"
    [[ $out == *"not everything could be written: Input/output error"* && $out == *"waves/c/0/0/0: "* ]]
    [[ $out == *"$MP/.shardfs/waiting.txt"* && $out == *"$MP/.shardfs/log"* && $out != *uncategorized* ]]
    rm "$source/waves/.shardfs"
    "$SHARDFS" sync "$MP"
    [[ $(<"$MP/waves/c/0/0/0") == new ]]
    unmount_view
}
check "sync says what failed, where the list is and what to do" sync_says_what_failed

# --- links out of the source -------------------------------------------------------------------------

links_out_are_named() {
    local source=$TMP/links said
    sample "$source.outside"
    sample "$source"
    ln -s waves "$source/alias"
    ln -s "$source/waves" "$source/absolute"
    ln -s ../links.outside/waves "$source/one"
    ln -s "$source.outside" "$source/two"
    for command in ls info verify refs recover; do
        said=$("$SHARDFS" "$command" "$source" 2>&1 >/dev/null)
        [[ $(wc -l <<<"$said") == 1 && $said == *"first of 2 symbolic links"*"not followed"* ]]
    done
    rm "$source/one" "$source/two"
    [[ -z $("$SHARDFS" ls "$source" 2>&1 >/dev/null) ]]
}
check "links to arrays outside of the source are named once, with their number" links_out_are_named
