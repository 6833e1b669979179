#!/bin/bash
# Everyday tools write chunks: the shell, dd, cp, sed, tar, rsync, truncate; chunks of several MiB too.

# shellcheck disable=SC2016 source=lib.sh
. "$(dirname "$0")/lib.sh"

redirected() {
    fresh $plane
    script 'cat "$0" >"$1"; cat "$0" >"$2"; printf more >>"$1"; printf more >>"$3"; : >"$4"' \
        "$data/small" "${present[0]}" "${absent[0]}" "${present[1]}" "${present[2]}"
    both tee -a "${present[3]}" "${absent[1]}"
    settled
}
at_once "> and >> of the shell" redirected

with_dd() {
    fresh $plane
    both dd if="$data/page" of="${present[0]}" status=none
    both dd if="$data/small" of="${present[1]}" bs=7 seek=3 count=5 conv=notrunc status=none
    both dd if="$data/small" of="${absent[0]}" bs=100 seek=50 conv=notrunc,fsync status=none
    both dd if="$data/medium" of="${present[2]}" bs=64K oflag=append conv=notrunc iflag=fullblock status=none
    both dd if="$data/page" of="${present[3]}" bs=1K oflag=sync status=none
    both dd if="$data/page" of="${present[0]}" conv=excl status=none
    settled
}
at_once "dd, conv=notrunc, seek, oflag=append, conv=excl" with_dd

copied() {
    fresh $plane
    both cp "$data/medium" "${present[0]}"
    both cp "$data/medium" "${absent[0]}"
    both cp "${present[1]}" "${present[2]}"
    both cp --reflink=auto --sparse=always "$data/page" "${present[3]}"
    both cp -n "$data/page" "${present[4]}"
    both cp --remove-destination "$data/page" "${present[5]}"
    both cp -b --suffix=.old "$data/page" "${present[6]}"
    both rm "${present[6]}.old"
    cp "$data/small" "$work/old"
    touch -d '2001-02-03 04:05:06.789' "$work/old"
    chmod 600 "$work/old"
    both cp -a "$work/old" "${present[7]}"
    both cp -a "$work/old" "${absent[1]}"
    # With its time, which is there after the commit as well.
    sync "$MP"
    sleep 1.1
    [[ $(stat -c %y "$MP/${present[7]}" "$MP/${absent[1]}" | uniq -c) == *" 2 2001-02-03 04:05:06.789"* ]]
    settled
}
at_once "cp, cp -a, cp -n, cp --remove-destination, cp -b" copied

copied_tree() {
    fresh $plane
    mkdir "$work/tree"
    cp -r "$TMP/made/$plane.files/c" "$work/tree"
    # Other chunks than those that are there, and other contents.
    (cd "$work/tree/c" && mv 0 5 && mv 4 0 && mv 5 4 && cp "$data/medium" 2/3 && rm 3/1*)
    both cp -r "$work/tree/c" .
    both cp -rT "$work/tree/c/1" c/3
    both cp -a "$work/tree/c/2" "$work/tree/c/4" c
    settled
}
at_once "cp -r and cp -a of a tree of chunks" copied_tree

edited() {
    fresh $plane
    both cp "$data/text" "${present[0]}"
    both sed -i 's/text/prose/' "${present[0]}"
    sync "$MP"
    both sed -i 5d "${present[0]}"
    both sed -i.old 's/prose/text/' "${present[0]}"
    both rm "${present[0]}.old"
    if command -v perl >/dev/null; then both perl -pi -e 's/line/row/' "${present[0]}"; fi
    settled
}
at_once "sed -i, perl -i" edited

unpacked() {
    fresh $plane
    mkdir -p "$work/pack"
    cp -r "$TMP/made/$plane.files/c" "$work/pack"
    cp "$data/medium" "$work/pack/${present[0]}"
    cp "$data/small" "$work/pack/${absent[0]}"
    tar -C "$work/pack" -cf "$work/pack.tar" c
    both tar xf "$work/pack.tar"
    both tar xf "$work/pack.tar" --overwrite
    both tar xpf "$work/pack.tar" --unlink-first
    both tar xf "$work/pack.tar" --skip-old-files
    # Their times, from the archive.
    [[ $(stat -c %Y "$MP/${present[0]}") == "$(stat -c %Y "$work/pack/${present[0]}")" ]]
    settled
}
at_once "tar x over what is there, and with --unlink-first" unpacked

with_rsync() {
    fresh $plane
    local tree=$work/rsync
    mkdir "$tree"
    cp -r "$TMP/made/$plane.files/c" "$tree"
    (cd "$tree" && cp "$data/medium" "${present[0]}" && cp "$data/small" "${absent[0]}" && rm -r c/3 c/0/1*)
    local options=(-a --delete) compared=(-aniO --delete)
    [[ $1 == plain ]] || options+=("--$1")
    # It leaves files alone that are as long as its own, their times too.
    [[ $1 != append-verify ]] || compared+=(--size-only --no-times)
    both rsync "${options[@]}" "$tree/c/" c/
    # Nothing is left to send, at once and after the commit; times of directories are the source's.
    [[ -z $(rsync "${compared[@]}" "$tree/c/" "$MP/c/") ]]
    sync "$MP"
    sleep 1.1
    [[ -z $(rsync "${compared[@]}" "$tree/c/" "$MP/c/") ]]
    cp "$data/page" "$tree/${present[1]}"
    both rsync "${options[@]}" -c "$tree/c/" c/
    settled
}
if command -v rsync >/dev/null; then
    at_once "rsync -a --delete, twice" with_rsync plain
    at_once "rsync -a --delete --inplace" with_rsync inplace
    at_once "rsync -a --delete --append-verify" with_rsync append-verify
else
    skip "rsync: not installed"
fi

resized() {
    fresh $plane
    both truncate -s 10 "${present[0]}"
    both truncate -s 0 "${present[1]}"
    both truncate -s 100000 "${present[2]}"
    both truncate -s 5 "${absent[0]}"
    both truncate -s +17 "${present[3]}"
    settled
}
at_once "truncate -s shorter, longer, to nothing, of a new chunk" resized

large() {
    fresh $plane "$@"
    both cp "$data/large" "${present[0]}"
    both cp "$data/large" "${absent[0]}"
    both dd if="$data/large" of="${present[1]}" bs=1000003 seek=1 conv=notrunc status=none
    script 'for f; do cat "$0" "$0" >"$f"; done' "$data/large" "${present[@]:2:5}"
    both dd if="$data/small" of="${present[2]}" bs=1 seek=2000000 conv=notrunc status=none
    both truncate -s 4000000 "${present[3]}"
    settled
}
at_once "chunks of several MiB" large
at_once "chunks of several MiB, memory for 1" large --dirty-limit 1M

finish
