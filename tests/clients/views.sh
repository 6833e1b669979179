#!/bin/bash
# Views: readers that know no sharding, and programs that know no Zarr, read what is mounted with --view, and
# write through it; zarr-python 3 and TensorStore say what is in the source.
#
#     tests/clients/views.sh
#
# SHARDFS_CORPUS: where the corpus is; without one only the arrays that are made here are looked at.
# The libraries come from setup.sh.  Debian's ncdump is tried if it is there.

# Nine views of 90 stores.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-1200}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
# Against listings without end; mapped files do not count.
ulimit -d 6000000
venvs=${SHARDFS_VENVS:-$repo/target/venvs}

# zarr-python 3, TensorStore; and the readers of the views
checker() { PYTHONPATH=$here "$venvs/clients/bin/python" -m views_check "$@"; }
writer() { "$venvs/clients/bin/python" "$here/views_write.py" "$@"; }
reader() { "$venvs/views/bin/python" "$here/zarr2_read.py" "$@"; }

# mounted NAME SOURCE [OPTION...]: mount_view, or a failed result
mounted() {
    local name=$1
    shift
    mount_view "$@" >"$TMP/refused" && return
    fail "$name: mount: $(tr '\n' ' ' <"$TMP/refused")"
    return 1
}

unmounted() { check "$1: unmount" unmount_view "${2:-$MP}"; }

checker make "$TMP/made"

# --- arrays that are made here: all views of one mount, then each one alone -----------------------------

all=zarr3,zarr2,npy,raw,flat

no_zarr_json() {
    local found
    # In the view zarr2 what has no form there is as it is stored.
    found=$(find "$MP"/{npy,raw,flat} -name zarr.json)
    [[ -z $found ]] || { echo "$found"; return 1; }
}

all_views_listed() { [[ $(ls "$MP") == $'flat\nnpy\nraw\nzarr2\nzarr3' ]]; }
is_read_only() {
    fails_with "Read-only file system" touch "$MP/npy/new"
    fails_with "Read-only file system" touch "$MP/new"
}

for store in arrays huge netcdf dataset; do
    source=$TMP/made/$store.zarr
    mounted "$store" "$source" --view "$all" || continue
    check "$store: a directory for each view" all_views_listed
    check "$store: no zarr.json in the decoded views" no_zarr_json
    check "$store: no more writable than before" is_read_only
    for form in zarr2 npy raw flat; do
        judge "$store " checker made "$source" "$MP/$form" --form "$form"
    done
    check "$store: chunk files of zarr2 are those of zarr3" checker same "$MP/zarr3" "$MP/zarr2"
    case $store in
    arrays) judge "" reader images "$MP/flat" ;;
    dataset) judge "" reader xarray "$MP/zarr2" ;;
    netcdf)
        judge "" reader netcdf "$MP/zarr2"
        if ! command -v ncdump >/dev/null; then
            skip "ncdump: not installed (Debian package netcdf-bin)"
        elif [[ $(nc-config --has-nczarr 2>/dev/null || echo unknown) == no ]]; then
            skip "ncdump: built without NCZarr"
        else
            judge "" reader ncdump "$MP/zarr2"
        fi
        ;;
    esac
    if [[ $store != huge ]]; then
        checker made-jobs "$source" "$MP/zarr2" "$TMP/jobs"
        judge "" reader arrays "$TMP/jobs"
    fi
    unmounted "$store"
done

# one_view STORE FORM [OPTION...]: the mount's root is the view itself
one_view() {
    local store=$1 form=$2 source=$TMP/made/$1.zarr
    shift 2
    mounted "$store alone" "$source" --view "$form" "$@" || return 0
    judge "$store alone " checker made "$source" "$MP" --form "$form" "$@"
    unmounted "$store --view $form $*"
}
for form in zarr2 npy raw flat; do
    one_view arrays "$form"
done
for form in npy raw; do
    one_view arrays "$form" --endian big
    one_view arrays "$form" --edge clip
    one_view arrays "$form" --missing fill
    one_view arrays "$form" --endian big --edge clip --missing fill
done
one_view arrays flat --endian big
one_view huge npy --missing fill

# An array as the source, in each view.
for name in u2_zstd scalar plain; do
    source=$TMP/made/arrays.zarr/$name
    for form in zarr2 npy raw flat; do
        mounted "$name $form" "$source" --view "$form" || continue
        case $form in
        flat) check "$name is mounted itself: flat" checker flat "$source" "$MP" ;;
        *) check "$name is mounted itself: $form" checker decoded "$source" "$MP" --form "$form" ;;
        esac
        unmounted "$name $form"
    done
done

default_is_zarr3() {
    mount_view "$TMP/made/arrays.zarr"
    local plain=$MP
    mount_view "$TMP/made/arrays.zarr" --view zarr3
    diff -r "$plain" "$MP"
    unmount_view "$plain"
    unmount_view
}
check "--view zarr3 is what is shown without it" default_is_zarr3

is_refused() {
    local view
    mount_view "$TMP/made/arrays.zarr" --view raw
    unmount_view
    for view in zarr4 "" zarr2,nothing ","; do
        new_mount_point
        if timeout 30 "$SHARDFS" mount --view "$view" "$TMP/made/arrays.zarr" "$MP" </dev/null >"$MP.log" 2>&1; then
            echo "mounted: --view '$view'"
            unmount_view
            return 1
        fi
        [[ -s $MP.log ]]
        not_mounted "$MP"
    done
}
check "views that do not exist are refused, with a message" is_refused

# --- the corpus --------------------------------------------------------------------------------------

stores() {
    python3 - "$here" "$corpus" <<'PY'
import sys

sys.path.insert(0, sys.argv[1])
import cases

print(*dict.fromkeys(m["store"] for m in cases.manifests(sys.argv[2])), sep="\n")
PY
}

# families FORM [OPTION...]: all stores of a family are one source
families() {
    local form=$1 family store mounts=()
    shift
    declare -A of=()
    : >"$TMP/views"
    while read -r store; do
        family=${store%/*}
        if [[ ! -v of[$family] ]]; then
            of[$family]=
            mounted "$family --view $form $*" "$corpus/$family" --view "$form" "$@" || continue
            of[$family]=$MP
            mounts+=("$MP")
        fi
        [[ -z ${of[$family]} ]] || printf '%s\t%s/%s\n' "$store" "${of[$family]}" "${store##*/}" >>"$TMP/views"
    done <"$TMP/stores"
    judge "" checker corpus "$corpus" "$TMP/views" --form "$form" "$@"
    for MP in "${mounts[@]}"; do
        unmounted "--view $form $*"
    done
}

if corpus=$(corpus_dir); then
    stores >"$TMP/stores"
    : >"$TMP/all"
    while read -r store; do
        case $store in
        # Nothing of it can be decoded; and its chunks are too many to number them for several views.
        */r1_string_vlen.zarr | */r2_u1_sparse_huge.zarr) views=(zarr2 npy raw flat) ;;
        *) views=("$all") ;;
        esac
        for view in "${views[@]}"; do
            if ! mount_view "$corpus/$store" --view "$view" >"$TMP/refused"; then
                case $view in
                npy | raw | flat)
                    check "$store: --view $view is refused with a message" grep -q "$store" "$TMP/refused"
                    ;;
                *) fail "$store: mount --view $view: $(tr '\n' ' ' <"$TMP/refused")" ;;
                esac
                continue
            fi
            printf '%s\t%s\n' "$store" "$MP" >>"$TMP/all"
            for form in zarr2 npy raw flat; do
                case $view in
                "$all") printf '%s\t%s/%s\n' "$store" "$MP" "$form" >>"$TMP/views.$form" ;;
                "$form") printf '%s\t%s\n' "$store" "$MP" >>"$TMP/views.$form" ;;
                esac
            done
        done
    done <"$TMP/stores"
    for form in zarr2 npy raw flat; do
        judge "" checker corpus "$corpus" "$TMP/views.$form" --form "$form"
    done
    checker jobs "$corpus" "$TMP/views.zarr2" "$TMP/jobs"
    judge "" reader arrays "$TMP/jobs"
    while IFS=$'\t' read -r store MP; do
        unmount_view || fail "unmount $store"
    done <"$TMP/all"
    families raw --endian big
    families npy --edge clip
    families raw --missing fill
    families npy --endian big --edge clip --missing fill

    # Arrays of other formats.  All their fill values are 0.
    : >"$TMP/foreign"
    for manifest in "$corpus"/manifests/{draft2022,bloscpack,blz,bcolz}/*.json; do
        store=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["store"])' "$manifest")
        mounted "$store" "$corpus/$store" --view zarr2,npy,flat || continue
        printf '%s\t%s\n' "$manifest" "$MP" >>"$TMP/foreign"
    done
    judge "" reader foreign "$TMP/foreign"
    while IFS=$'\t' read -r manifest MP; do
        unmount_view || fail "unmount $manifest"
    done <"$TMP/foreign"
    is_refused_alone() {
        local view
        for view in zarr2 npy raw flat; do
            new_mount_point
            fails_with "its data type is not known" \
                "$SHARDFS" mount --view "$view" "$corpus/data/bloscpack/md5_nomax.blp" "$MP"
            not_mounted "$MP"
        done
    }
    check "a Bloscpack file without a data type is refused, with a message" is_refused_alone
else
    skip "no corpus: set SHARDFS_CORPUS"
fi

# --- writing -----------------------------------------------------------------------------------------

# copy NAME: a source to write to.  Sets source.
copy() {
    source=$TMP/written/$1.zarr
    mkdir -p "$TMP/written"
    cp -r "$TMP/made/arrays.zarr" "$source"
}

nothing_left() { python3 "$repo/tests/shell/arrays.py" check --outside "$source"; }

copy zarr2
if mounted "writing, zarr2" "$source" --rw --view zarr2 --log-file "$TMP/written/zarr2.log"; then
    judge "" reader write "$MP"
    judge "" writer written "$source"
    unmounted "writing, zarr2"
    judge "after unmounting: " writer written "$source"
    check "nothing else is left in the source" nothing_left
fi

# decoded NAME FORM [OPTION...]
decoded() {
    local name=$1 form=$2 endian=()
    shift 2
    copy "$name"
    [[ $* != *"--endian big"* ]] || endian=(--endian big)
    mounted "writing, $name" "$source" --rw --view "$form" "$@" --log-file "$TMP/written/$name.log" || return 0
    if [[ $* == *--keep-fill* ]]; then
        judge "" writer decoded "$source" "$MP" --form "$form" "${endian[@]}" --keep-fill
    else
        judge "" writer decoded "$source" "$MP" --form "$form" "${endian[@]}"
    fi
    unmounted "writing, $name"
    check "$name: nothing else is left in the source" nothing_left
}
decoded npy npy
decoded raw raw
decoded npy-big npy --endian big
decoded raw-big raw --endian big
decoded npy-keep npy --keep-fill
decoded raw-keep raw --keep-fill

# What is written in one view is what the others show, after a second or so.
together() {
    "$venvs/views/bin/python" - "$MP" "$1" <<'PY'
import os
import sys
import time

import numpy as np
import zarr

top, form = sys.argv[1:]
name, want = "i4_none", None
array = zarr.open_array(os.path.join(top, "zarr2", name), mode="r+")
want = array[...]
# Both have been read before: nothing old may be shown.
flat = os.path.join(top, "flat", name, "array.npy")
assert (np.load(flat) == want).all(), "flat, before"
if form == "npy":
    part = np.full((2, 3), 1000, "<i4")
    np.save(os.path.join(top, "npy", name, "c/0/0.npy"), part)
    want[:2, :3] = part
else:
    array[1:5, 2:5] = 2000
    want[1:5, 2:5] = 2000
fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
os.fsync(fd)
os.close(fd)


def differences():
    if not (zarr.open_array(os.path.join(top, "zarr2", name), mode="r")[...] == want).all():
        yield "zarr2"
    for i in range(5):
        for j in range(3):
            path = os.path.join(top, "npy", name, f"c/{i}/{j}.npy")
            part = want[2 * i:2 * i + 2, 3 * j:3 * j + 3]
            got = np.load(path)[:, :part.shape[1]] if os.path.exists(path) else np.full_like(part, -1)
            if not (got == part).all():
                yield f"npy {i} {j}: {got.tolist()}, expected {part.tolist()}"
    got = np.load(flat)
    if not (got == want).all():
        yield f"flat: {np.argwhere(got != want)[:3].tolist()}"


# Three seconds, and longer where everything takes longer.
for _ in range(15):
    if not (found := list(differences())):
        break
    time.sleep(0.2)
assert not found, "; ".join(found)
try:
    open(flat, "r+b").close()
except OSError:
    pass
else:
    raise AssertionError("flat can be written")
PY
}
copy together
if mounted "writing, all views" "$source" --rw --view zarr3,zarr2,npy,flat; then
    check "what is written in npy is seen in the other views" together npy
    check "what is written in zarr2 is seen in the other views" together zarr2
    unmounted "writing, all views"
    check "all views: nothing else is left in the source" nothing_left
fi

# Two views write to one shard, and nothing is committed in between.
at_once() {
    mount_view "$source" --rw --view npy,raw --commit-interval 1000
    "$venvs/clients/bin/python" - "$MP" "$@" <<'PY'
import os
import sys

import numpy as np

top, *chunks = sys.argv[1:]
for number, (form, chunk) in enumerate(zip(("npy", "raw"), chunks)):
    path = os.path.join(top, form, "i4_none/c", f"{chunk}.{form}")
    part = np.full((2, 3), 3000 + number, "<i4")
    np.save(path, part) if form == "npy" else part.tofile(path)
PY
    unmount_view
    "$venvs/clients/bin/python" - "$source" "$@" <<'PY'
import sys

import zarr

source, *chunks = sys.argv[1:]
array = zarr.open_array(f"{source}/i4_none", mode="r")
# The last one wins.
for chunk, number in dict(zip(chunks, (0, 1))).items():
    i, j = map(int, chunk.split("/"))
    got = array[2 * i:2 * i + 2, 3 * j:3 * j + 3]
    assert (got == 3000 + number).all(), f"chunk {chunk}: {got.tolist()}, expected {3000 + number}"
PY
}
copy at-once
check "two views write different chunks of one shard at once" at_once 0/0 0/1
check "two views write the same chunk, and the last one is kept" at_once 2/0 2/0
