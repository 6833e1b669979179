#!/bin/bash
# An ordinary user mounts with the help of fusermount3.  Run by root it becomes "nobody", in a mount
# namespace of its own in which everybody may open /dev/fuse, as on most machines: nothing outside changes.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

if ! command -v fusermount3 >/dev/null; then
    skip "ordinary user: no fusermount3"
    exit 0
fi
if [[ ! -u $(command -v fusermount3) ]]; then
    skip "ordinary user: fusermount3 is not setuid"
    exit 0
fi

if [[ $(id -u) != 0 ]]; then
    as_user=()
    if [[ ! -r /dev/fuse || ! -w /dev/fuse ]]; then
        skip "ordinary user: $(id -un) may not open /dev/fuse"
        exit 0
    fi
else
    as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    if [[ ${1:-} != in-namespace ]]; then
        if ! unshare --mount true 2>/dev/null; then
            skip "ordinary user: no private mount namespace"
            exit 0
        fi
        run_in_namespace
    fi
    chmod 755 "$TMP"
    mknod -m 666 "$TMP/fuse" c 10 229
    mount --bind "$TMP/fuse" /dev/fuse
    # Where the program is may be closed to others.
    install -m 755 "$SHARDFS" "$TMP/shardfs"
    SHARDFS=$TMP/shardfs
fi

user() { timeout 30 "${as_user[@]}" "$@" </dev/null; }

mkdir "$TMP/home"
python3 "$here/shards.py" array "$TMP/a.zarr" 5
[[ ${#as_user[@]} == 0 ]] || chown 65534:65534 "$TMP/home"

place() {
    MP=$TMP/home/mnt
    user mkdir -p "$MP"
    echo "$MP" >>"$TMP/mounts"
}
gone() { not_mounted "$1" && no_daemon_of "$1"; }

mounts() {
    place
    user "$SHARDFS" mount "$@" "$TMP/a.zarr" "$MP" >"$TMP/out" 2>&1 || { cat "$TMP/out"; return 1; }
    grep " $MP " /proc/self/mounts
    [[ $(awk -v mp="$MP" '$2 == mp { print $3, $4 }' /proc/self/mounts) == "fuse.shardfs ro,nosuid,nodev"* ]]
    [[ $(user find "$MP/c" -type f | wc -l) == 16 ]]
    user cmp -n 4096 "$MP/c/0" "$TMP/a.zarr/c/0"
    user "$SHARDFS" umount "$MP"
    gone "$MP"
}
check "mount and umount" mounts
check "mount and umount (immutable)" mounts -o immutable
check "mount and umount (fsname with a comma)" mounts -o 'fsname=a\,b'

# Root is another user, too.
seen_by_root() {
    local said rc=0
    place
    user "$SHARDFS" mount "$TMP/a.zarr" "$MP" >/dev/null 2>&1
    said=$("$SHARDFS" status "$MP") || rc=1
    echo "$said"
    [[ $(sed 1d <<<"$said" | tr -s ' ') == "$MP closed $TMP/a.zarr - ro - - - - - -" ]] || rc=1
    [[ $("$SHARDFS" status --json "$MP" | grep -c '"user": 65534') == 1 ]] || rc=1
    [[ $(user "$SHARDFS" status "$MP" | sed 1d) == "$MP  serving "* ]] || rc=1
    user "$SHARDFS" umount "$MP" || rc=1
    return "$rc"
}
[[ ${#as_user[@]} == 0 ]] || check "others see that it is mounted, and no more" seen_by_root

busy() {
    local holder rc=0
    place
    user "$SHARDFS" mount "$TMP/a.zarr" "$MP" >/dev/null 2>&1
    # The process here is one of several; that one says its number, once it has the file open.
    # shellcheck disable=SC2016 # Expanded by that shell.
    "${as_user[@]}" bash -c 'exec 3<"$1" && echo "$BASHPID" && exec sleep 300' _ "$MP/c/0" </dev/null >"$TMP/holder" &
    holder=$!
    trap 'kill "$(<"$TMP/holder")" 2>/dev/null || true' EXIT
    within 60 test -s "$TMP/holder"
    fails_with "is busy" user env LC_ALL=de_DE.UTF-8 "$SHARDFS" umount "$MP" || rc=$?
    kill "$(<"$TMP/holder")" || true
    wait "$holder" || true
    user "$SHARDFS" umount "$MP" && return "$rc"
}
check "umount says that a mount is busy" busy

by_fusermount() {
    place
    user "$SHARDFS" mount "$TMP/a.zarr" "$MP" >/dev/null 2>&1
    user fusermount3 -u "$MP"
    within 10 gone "$MP"
}
check "fusermount3 -u ends the daemon" by_fusermount

signalled() {
    place
    user "$SHARDFS" mount "$TMP/a.zarr" "$MP" >/dev/null 2>&1
    kill -s TERM "$(daemon_of "$MP")"
    within 10 gone "$MP"
}
check "TERM unmounts" signalled

private() {
    place
    user "$SHARDFS" mount "$TMP/a.zarr" "$MP" >/dev/null 2>&1
    # Even root is somebody else.
    fails_with "Permission denied" ls "$MP"
    user ls "$MP" >/dev/null
    user "$SHARDFS" umount "$MP"
}
if [[ ${#as_user[@]} != 0 ]]; then
    check "others see nothing without allow_other" private
else
    skip "others see nothing: there is only one user"
fi

not_allowed() {
    place
    local rc=0
    user "$SHARDFS" mount -o allow_other "$TMP/a.zarr" "$MP" >"$TMP/out" 2>&1 || rc=$?
    cat "$TMP/out"
    [[ $rc == 32 ]] && grep -q allow_other "$TMP/out"
    gone "$MP"
}
if grep -qs '^user_allow_other' /etc/fuse.conf; then
    skip "allow_other is refused: /etc/fuse.conf allows it"
else
    check "allow_other is refused, with the reason" not_allowed
fi

not_ours() {
    mkdir -p "$TMP/roots"
    local rc=0
    user "$SHARDFS" mount "$TMP/a.zarr" "$TMP/roots" >"$TMP/out" 2>&1 || rc=$?
    cat "$TMP/out"
    [[ $rc == 32 ]]
    not_mounted "$TMP/roots"
}
if [[ ${#as_user[@]} != 0 ]]; then
    check "a mount point of somebody else is refused" not_ours
fi

unreadable() {
    place
    cp -r "$TMP/a.zarr" "$TMP/secret.zarr"
    chmod 600 "$TMP/secret.zarr/c/1"
    user "$SHARDFS" mount "$TMP/secret.zarr" "$MP" >/dev/null 2>&1
    fails_with "" user cat "$MP/c/4"
    [[ $(user cat "$MP/c/4" 2>&1) != *"No such file"* ]]
    user cat "$MP/c/0" >/dev/null
    user "$SHARDFS" umount "$MP"
}
if [[ ${#as_user[@]} != 0 ]]; then
    check "a shard that may not be read is an error, not absent" unreadable
fi

# What an ordinary user writes to, and to what not.
writes() {
    place
    cp -r "$TMP/a.zarr" "$TMP/home/own.zarr"
    [[ ${#as_user[@]} == 0 ]] || chown -R 65534:65534 "$TMP/home/own.zarr"
    user "$SHARDFS" mount --rw "$TMP/home/own.zarr" "$MP" >/dev/null 2>&1
    user cp "$MP/c/1" "$MP/c/0"
    user "$SHARDFS" umount "$MP"
    gone "$MP"
    user "$SHARDFS" mount "$TMP/home/own.zarr" "$MP" >/dev/null 2>&1
    user cmp "$MP/c/0" "$MP/c/1"
    user "$SHARDFS" umount "$MP"
}
check "a writable mount" writes

not_permitted() {
    place
    : >"$TMP/home/said"
    chmod 666 "$TMP/home/said"
    (cd "$TMP/a.zarr" && find . -type f -exec sha256sum {} +) >"$TMP/before"
    user env -u XDG_STATE_HOME HOME="$TMP/home" "$SHARDFS" mount --rw --log-file "$TMP/home/log" "$TMP/a.zarr" "$MP" \
        >"$TMP/home/said" 2>&1
    grep -q "cannot be written to: Permission denied" "$TMP/home/said"
    [[ $(grep -c "cannot be written to" "$TMP/home/log") == 1 ]]
    user cat "$MP/c/0" >/dev/null
    # The kernel refuses what the permissions of the source do not allow.
    fails_with "Permission denied" user cp "$TMP/a.zarr/zarr.json" "$MP/c/0"
    fails_with "Permission denied" user rm "$MP/c/0"
    fails_with "Permission denied" user touch "$MP/c/new"
    fails_with "Permission denied" user mkdir "$MP/made"
    fails_with "" user cp "$TMP/before" "$MP/notes"
    user "$SHARDFS" umount "$MP"
    gone "$MP"
    (cd "$TMP/a.zarr" && find . -type f -exec sha256sum {} +) >"$TMP/after"
    diff "$TMP/before" "$TMP/after"
}
if [[ ${#as_user[@]} != 0 ]]; then
    check "a source that may not be written is not" not_permitted
fi

# Mounts that another user has made, and may not look into.
of_others() {
    local source=$TMP/others.zarr roots=$TMP/roots
    place
    mkdir -p "$roots"
    echo "$roots" >>"$TMP/mounts"
    python3 "$here/shards.py" array "$source" 5
    chown -R 65534:65534 "$source"
    head -c 4096 /dev/urandom >"$TMP/chunk"

    "$SHARDFS" mount "$source" "$roots" >/dev/null 2>&1
    user "$SHARDFS" unpack "$source" "$TMP/home/unpacked" 2>"$TMP/out"
    [[ ! -s $TMP/out ]]
    user "$SHARDFS" repack "$source"
    user "$SHARDFS" resize "$source" --shape 65536
    user "$SHARDFS" sync "$roots"
    expect_exit 32 user "$SHARDFS" umount "$roots" >"$TMP/out"
    grep "roots: another user has mounted it: only that user and root can unmount it" "$TMP/out"
    "$SHARDFS" umount "$roots"

    "$SHARDFS" mount --rw "$source" "$roots" >/dev/null 2>&1
    user "$SHARDFS" unpack --force "$source" "$TMP/home/unpacked" 2>"$TMP/out"
    grep "warning: $roots: mounted by another user: uncommitted changes cannot be seen" "$TMP/out"
    expect_exit 2 user "$SHARDFS" repack "$source" | grep "another user has mounted it.*nothing was changed"
    expect_exit 2 user "$SHARDFS" resize "$source" --shape 4096 | grep "another user has mounted it.*nothing was changed"
    expect_exit 2 user "$SHARDFS" sync "$roots" >"$TMP/out"
    grep "another user has mounted it.*only that user can make it durable" "$TMP/out"
    fails_with '' grep waiting "$TMP/out"
    "$SHARDFS" umount "$roots"

    user "$SHARDFS" mount "$source" "$MP" >/dev/null 2>&1
    "$SHARDFS" umount "$MP"
    within 10 gone "$MP"
    user "$SHARDFS" mount --rw "$source" "$MP" >/dev/null 2>&1
    user cp "$TMP/chunk" "$MP/c/0"
    expect_exit 2 "$SHARDFS" umount "$MP" >"$TMP/out"
    grep "another user has mounted it.*it is unmounted" "$TMP/out"
    within 10 gone "$MP"
    "$SHARDFS" unpack --force "$source" "$TMP/home/unpacked"
    cmp "$TMP/chunk" "$TMP/home/unpacked/c/0"
}
if [[ ${#as_user[@]} != 0 ]]; then
    check "mounts of others are in nobody's way unless they may hold changes" of_others
else
    skip "mounts of others: there is only one user"
fi

# Two users of one group, in directories that pass it on: one owns the files, the other changes them. Or one owns
# them, but is not in their group.
owned_by() {
    python3 "$here/shards.py" array "$1" 5
    chown -R "$2" "$1"
    find "$1" -type d -exec chmod "$3" {} +
    find "$1" -type f -exec chmod "$4" {} +
}
member() { timeout 30 setpriv --reuid=1 --regid=1 --groups=64001 env -u XDG_STATE_HOME HOME="$TMP/member" "$@" </dev/null; }
owners() { stat -c '%u:%g %a' "$@"; }

# changed_by USER SOURCE [OPTION...]: a chunk is replaced and another one removed.
changed_by() {
    local who=$1 source=$2
    shift 2
    "$who" "$SHARDFS" mount --rw "$@" "$source" "$MP" >"$TMP/out" 2>&1
    "$who" cp "$TMP/chunk" "$MP/c/0"
    "$who" rm "$MP/c/4"
    "$who" "$SHARDFS" sync "$MP"
    "$who" sed -i "s/shards.py/the member/" "$MP/zarr.json"
    "$who" "$SHARDFS" umount "$MP"
    gone "$MP"
    "$SHARDFS" verify "$source"
    "$SHARDFS" unpack --force "$source" "$TMP/unpacked"
    cmp "$TMP/chunk" "$TMP/unpacked/c/0"
    [[ ! -e $TMP/unpacked/c/4 ]]
    grep "the member" "$source/zarr.json"
}

shared() {
    local how source mtime
    MP=$TMP/member/mnt
    echo "$MP" >>"$TMP/mounts"
    for how in append in-place rewrite auto; do
        source=$TMP/shared-$how.zarr
        owned_by "$source" 65534:64001 2775 664
        mtime=$(date -r "$source/c/0" +%s%N)
        changed_by member "$source" --update "$how"
        (($(date -r "$source/c/0" +%s%N) > mtime))
        # A file in place of another belongs to who made it; the group and what it may do stay.
        [[ $(owners "$source/zarr.json") == '1:64001 664' ]]
        case $how in
        append | in-place) [[ $(owners "$source/c/0") == '65534:64001 664' ]] ;;
        rewrite) [[ $(owners "$source/c/0") == '1:64001 664' ]] ;;
        esac
    done
    member "$SHARDFS" repack "$source"
    [[ $(owners "$source/c/1") == '1:64001 664' ]]
    member "$SHARDFS" resize "$source" --shape 32768
    "$SHARDFS" verify "$source"
}

foreign_group() {
    local source mode
    place
    # What the group of the old file may do, members of the new one may not.
    for mode in 664:644 640:600 604:600; do
        source=$TMP/foreign-${mode%:*}.zarr
        owned_by "$source" 65534:64002 755 "${mode%:*}"
        changed_by user "$source" --update rewrite
        [[ $(owners "$source/c/0") == "65534:65534 ${mode#*:}" ]]
        # What is renamed over a document becomes it as it is.
        owned_by "$TMP/plain" 65534:64002 755 "${mode%:*}"
        user sed -i "s/shards.py/the member/" "$TMP/plain/zarr.json"
        [[ $(owners "$source/zarr.json") == "$(owners "$TMP/plain/zarr.json")" ]]
        rm -r "$TMP/plain"
    done
}
if [[ ${#as_user[@]} != 0 ]]; then
    mkdir -p "$TMP/member/mnt"
    chown -R 1:1 "$TMP/member"
    head -c 4096 /dev/urandom >"$TMP/chunk"
    check "arrays that a group shares can be changed by its members" shared
    check "arrays of a group that their owner is not in can be changed" foreign_group
else
    skip "arrays that a group shares: there is only one user"
fi

# Before python3 becomes the user: what it is made of may be closed to others.
place
mkdir -p "$TMP/group/here" "$TMP/twin"
echo '{"zarr_format": 3, "node_type": "group"}' >"$TMP/group/zarr.json"
uid=$(user id -u)
[[ ${#as_user[@]} == 0 ]] || chown -R "$uid:$uid" "$TMP/group" "$TMP/twin"
user "$SHARDFS" mount --rw "$TMP/group" "$MP" >/dev/null 2>&1
judge "system calls of the user: " python3 "$here/system_calls.py" "$MP/here" "$TMP/twin" one-user \
    ${as_user:+"$uid"}
user "$SHARDFS" umount "$MP"
