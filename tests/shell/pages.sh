#!/bin/bash
# Pages that the kernel keeps of files that are open in a writable mount: never older than what was written
# through the mount, and not much older than what others have written.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
export PYTHONDONTWRITEBYTECODE=1

python3 "$here/shards.py" array "$TMP/a.zarr" 1 --shards 1 --chunks 4 --bytes 512
head -c 512 /dev/zero >"$TMP/a.zarr/plain"
chunk=$(cd "$TMP/a.zarr" && find c -type f | head -n 1)

# Often committed, each commit is one more reason for the kernel to ask.
for file in plain "$chunk/0"; do
    [[ $file == plain ]] && label='passed through' || label='a chunk'
    mount_view "$TMP/a.zarr" --rw --commit-interval 0.001
    [[ -e $MP/$file ]] || file=$(cd "$MP" && find c -type f | head -n 1)
    judge "$label: " python3 "$here/pages.py" write "$MP/$file" 4 "$TMP/last"
    unmount_view
    mount_view "$TMP/a.zarr"
    judge "$label: " python3 "$here/pages.py" compare "$MP/$file" "$TMP/last"
    unmount_view
done

mount_view "$TMP/a.zarr" --rw
judge '' python3 "$here/pages.py" follow "$MP/grows" "$TMP/a.zarr/grows"
mkdir "$TMP/a.zarr/many"
judge '' python3 "$here/pages.py" beside "$MP/many" "$TMP/a.zarr/many"
unmount_view
