# shellcheck shell=bash
# Common parts of the tests of writing through a mount.  Source it first, and call `finish` last:
#
#     . "$(dirname "$0")/lib.sh"
#
# Most checks do the same thing twice, in an ordinary directory with the same chunk files and in the mount.
# Both must report the same and end up with the same files.  Then the shards are read without the program
# (arrays.py), the mount is ended, the shards are read again, and so is a new read-only mount.

# Variables for the scripts that source this file.
# shellcheck disable=SC2034 source=../../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../lib.sh"
here=$repo/tests/shell
export PYTHONDONTWRITEBYTECODE=1
# A version manager's python3 is a script that looks for the right program, which takes longer than most of
# what is run here: put the directory of the program itself first.
PATH=$(dirname "$(python3 -c 'import sys; print(sys.executable)')"):$PATH

# at_once NAME COMMAND...: a check that runs beside others, as many as there are processors.
mkfifo "$TMP/turns"
exec 9<>"$TMP/turns"
for ((i = 0; i < $(nproc); i++)); do echo >&9; done
background=()
at_once() {
    read -r -u 9
    {
        check "$@" 9>&-
        echo >&9
    } &
    background+=($!)
}

# finish: waits for the checks of at_once.  Nor may any check have left the message of a panic in a log.
finish() {
    # Without arguments, wait would wait for the deadline too.
    ((${#background[@]} == 0)) || wait "${background[@]}"
    check "nothing in the logs of a panic" no_panic
}
no_panic() {
    local found
    # Not every check has each of these logs.
    found=$(grep -is panick "$TMP"/work.*/log "$TMP"/*.log) || true
    [[ -z $found ]] || { echo "$found"; return 1; }
}

# --- arrays and what must be in them -------------------------------------------------------------------

# The layout that most checks use.  Its chunk files are in a directory "c", its key separator is "/", and its
# shards have 2 x 4 chunks.
plane=slash
mkdir "$TMP/made" "$TMP/data"

# make_arrays LAYOUT...: $TMP/made/LAYOUT, and its chunks as plain files in $TMP/made/LAYOUT.files
make_arrays() {
    local layout
    for layout; do
        [[ ! -e $TMP/made/$layout ]] || continue
        python3 "$here/arrays.py" make "$TMP/made/$layout" "$layout"
        python3 "$here/arrays.py" extract "$TMP/made/$layout" "$TMP/made/$layout.files"
    done
}
make_arrays $plane

python3 - "$TMP/data" <<'PY'
import os
import random
import sys

numbers = random.Random(1)
for name, size in ("small", 300), ("page", 4096), ("medium", 70001), ("large", 3 << 20):
    with open(os.path.join(sys.argv[1], name), "wb") as f:
        f.write(numbers.randbytes(size))
with open(os.path.join(sys.argv[1], "text"), "w") as f:
    f.writelines(f"line {n} is text\n" for n in range(200))
PY
data=$TMP/data

# Chunks of the plane that are there, and some that are not.
mapfile -t present < <(cd "$TMP/made/$plane.files" && find c -type f -size +0 | sort -V)
mapfile -t absent < <(comm -23 <(printf 'c/%s\n' {0..4}/{0..10} | sort) \
    <(cd "$TMP/made/$plane.files" && find c -type f | sort))

# fresh LAYOUT [OPTION...]: a new array, mounted for writing.  Sets work (a directory of the
# check's own), source, want (its chunks as plain files), log and MP.
fresh() {
    local layout=$1
    shift
    work=$(mktemp -d "$TMP/work.XXXXXX")
    source=$work/a.zarr want=$work/files log=$work/log
    cp -r "$TMP/made/$layout" "$source"
    cp -r "$TMP/made/$layout.files" "$want"
    mount_view "$source" --rw --log-file "$log" "$@"
}

# fresh_group [OPTION...]: the same with the program's own sample, a group with the array "waves".
fresh_group() {
    work=$(mktemp -d "$TMP/work.XXXXXX")
    source=$work/s.zarr want=$work/files log=$work/log
    "$SHARDFS" create --sample "$source"
    python3 "$here/arrays.py" extract "$source" "$want"
    mount_view "$source" --rw --log-file "$log" "$@"
}

# saved NAME: the file in which the program has saved the chunk NAME of the view, as the log says.
saved() {
    local path
    path=$(sed -n "s|.*what was written is in \(.*/$1\)\$|\1|p" "$log" | tail -n 1)
    [[ -f $path ]]
    echo "$path"
}

contents() { (cd "$1" && find . -type f ! -name zarr.json -print0 | sort -z | xargs -0 -r sha256sum); }
# Not through pipes: the shell does not wait for the processes behind those, and the mount is busy until they end.
same_files() {
    contents "$want" >"$work/contents-wanted"
    contents "$1" >"$work/contents-found"
    diff "$work/contents-wanted" "$work/contents-found"
}

# in_shards [--mounted]: what the shards of the source hold, and that they break no rule
in_shards() {
    rm -rf "$work/extracted"
    mkdir "$work/extracted"
    python3 "$here/arrays.py" extract "$source" "$work/extracted" "$@"
    same_files "$work/extracted"
}

# settled: the mount and the shards hold what the plain directory holds, before and after a commit and in a new
# mount; at the end nothing but shards and metadata is in the source.
settled() {
    same_files "$MP"
    # fsync of the mount's root
    sync "$MP"
    in_shards --mounted
    same_files "$MP"
    ended
}
ended() {
    unmount_view
    in_shards
    mount_view "$source"
    same_files "$MP"
    unmount_view
}

# both COMMAND...: in both directories, with the same result and the same words
both() {
    local in_want=0 in_mount=0
    (cd "$want" && "$@") </dev/null >"$work/in-want" 2>&1 || in_want=$?
    (cd "$MP" && "$@") </dev/null >"$work/in-mount" 2>&1 || in_mount=$?
    diff "$work/in-want" "$work/in-mount"
    [[ $in_want == "$in_mount" ]] || {
        echo "exit $in_mount, expected $in_want: $*"
        return 1
    }
}

# The same with more than one command.
script() { both bash -euc "$@"; }
