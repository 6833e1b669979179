#!/bin/bash
# ZIP archives as sources: an array or a hierarchy in one file, stored or deflated; and archives that cannot be read.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
cd "$TMP" || exit 1

archive() { python3 "$repo/tests/shell/zip.py" "$@"; }

"$SHARDFS" create --sample sample.zarr
# Longer than what is inflated in memory.
head -c 3M /dev/urandom >sample.zarr/long
new_mount_point
"$SHARDFS" mount sample.zarr "$MP"
mkdir expected
cp -r "$MP/." expected
rm -rf expected/.shardfs
"$SHARDFS" umount "$MP"

# shows ARCHIVE [TOP]: a mount of it shows what a mount of the directory does.
shows() {
    mount_view "$1"
    [[ $(ls -A "$MP") == *"${2:-zarr.json}"* ]]
    diff -r expected "$MP${2:+/$2}" --exclude .shardfs --exclude empty
    [[ $(stat -c %a "$MP${2:+/$2}/zarr.json") == 444 ]]
    fails_with 'Read-only file system' touch "$MP${2:+/$2}/zarr.json"
    unmount_view
}
shown() {
    archive "$1" sample.zarr "$1.zip"
    shows "$1.zip"
}
for how in stored deflated streamed zip64 directories comment twice; do
    check "an archive is shown as its directory: $how" shown "$how"
done

below_a_directory() {
    archive stored sample.zarr below.zarr.zip sample.zarr
    shows below.zarr.zip sample.zarr
}
check 'one with the directory in it' below_a_directory

named() {
    # Behind a program that unpacks it, of which the name alone says that it is one.
    archive appended sample.zarr program.ozx
    shows program.ozx
    cp stored.zip any
    shows any
    echo none >none.zip
    fails_with 'it is no ZIP archive that can be read' "$SHARDFS" info none.zip
}
check 'archives are known by their first bytes, or by their names' named

commands() {
    local command
    for command in "info --json" "ls --long" "verify --decode"; do
        # shellcheck disable=SC2086 # split on purpose
        "$SHARDFS" $command sample.zarr >one 2>&1
        # shellcheck disable=SC2086
        "$SHARDFS" $command stored.zip >other 2>&1
        diff <(sed 's/sample.zarr/SOURCE/g' one) <(sed 's/stored.zip/SOURCE/g' other)
    done
    "$SHARDFS" unpack deflated.zip unpacked
    diff -r unpacked expected --exclude .shardfs
    "$SHARDFS" pack stored.zip packed --shard 1M
    "$SHARDFS" verify --decode packed
    [[ $("$SHARDFS" recover stored.zip) == 'nothing to recover' ]]
    "$SHARDFS" recover --scan stored.zip
}
check 'commands read them' commands

only_read() {
    new_mount_point
    fails_with 'a ZIP archive is only read; leave out --rw' "$SHARDFS" mount --rw stored.zip "$MP"
    not_mounted "$MP"
    cp stored.zip before
    fails_with '' "$SHARDFS" repack stored.zip --order f
    fails_with '' "$SHARDFS" resize stored.zip/waves --shape 1,1,1
    fails_with '' "$SHARDFS" delete stored.zip
    fails_with 'references into a ZIP archive are not made' "$SHARDFS" refs stored.zip --output refs.json
    cmp stored.zip before
}
check 'and write nothing to them' only_read

views() {
    mount_view sample.zarr --view zarr2,npy,flat
    cp -r "$MP" of-directory
    unmount_view
    mount_view stored.zip --view zarr2,npy,flat
    diff -r of-directory "$MP" --exclude .shardfs
    unmount_view
}
check 'other views of them' views

damaged() {
    local length
    archive bomb sample.zarr bomb.zip
    mount_view bomb.zip
    diff -r expected "$MP" --exclude .shardfs --exclude a
    fails_with 'Input/output error' cat "$MP/a/zeros"
    grep -F 'a/zeros: it cannot be read from its archive: it has 314572800 bytes' "$MP/.shardfs/log"
    unmount_view
    archive leads-out sample.zarr out.zip
    fails_with 'its entry "a/../../b" leads out of the archive' "$SHARDFS" info out.zip
    archive bzip2 sample.zarr bzip2.zip
    fails_with 'compressed by method 12' "$SHARDFS" info bzip2.zip
    (cd sample.zarr && ln -s zarr.json link && python3 - ../links.zip <<'PY'
import stat
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1], "w") as out:
    out.write("zarr.json")
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    out.writestr(link, "zarr.json")
PY
        rm link)
    mount_view links.zip
    [[ $(ls "$MP") == zarr.json ]]
    unmount_view
    # A byte of a deflated document.
    cp deflated.zip flipped.zip
    length=$(python3 -c 'import zipfile; print(zipfile.ZipFile("deflated.zip").getinfo("zarr.json").header_offset)')
    printf '\377\377' | dd of=flipped.zip bs=1 seek=$((length + 60)) conv=notrunc status=none
    "$SHARDFS" info flipped.zip >said 2>&1 || true
    grep -E 'it is damaged: it cannot be inflated|its checksum is' said
    length=$(stat -c %s stored.zip)
    for length in $((length - 1)) $((length / 2)) 100 22 4 0; do
        head -c "$length" stored.zip >cut.zip
        expect_exit 2 timeout 20 "$SHARDFS" info cut.zip
    done
}
check 'archives that cannot be read, and entries' damaged

changes() {
    cp stored.zip changing.zip
    mount_view changing.zip -o trusted=0
    cat "$MP/zarr.json" >/dev/null
    archive deflated sample.zarr other.zip
    exec 7<"$MP/waves/c/0/0/1" 8<"$MP/long"
    head -c 1 <&8 | cmp - <(head -c 1 expected/long)
    # In its place: its bytes are others.
    cat other.zip >changing.zip
    # Unless the kernel has it already.
    if cat <&7 >was_open; then cmp was_open expected/waves/c/0/0/1; fi
    # A file beside arrays, of which the kernel has the beginning at most.
    if dd bs=1M skip=2 count=1 status=none <&8 >late 2>&1; then return 1; fi
    grep 'Stale file handle' late
    exec 7<&- 8<&-
    fails_with '' cat "$MP"/waves/c/0/0/0
    grep -F 'the archive has changed since it was opened' "$MP/.shardfs/log"
    unmount_view
    cp stored.zip changing.zip
    mount_view changing.zip
    # Another file of its name: the mount goes on with the one that it has open.
    mv other.zip changing.zip
    diff -r expected "$MP" --exclude .shardfs
    unmount_view
}
check 'an archive that changes under a mount gives errors, never other bytes' changes
