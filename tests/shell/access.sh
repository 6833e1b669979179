#!/bin/bash
# Who may do what in a mount that everybody may use: the same as in a tree of plain files on the source's filesystem.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

if [[ $(id -u) != 0 ]]; then
    skip "permissions of several users: not root"
    exit 0
fi
if ! command -v setfacl >/dev/null; then
    skip "permissions of several users: no setfacl (package acl)"
    exit 0
fi
chmod 755 "$TMP"
# Where the program is may be closed to others.
install -m 755 "$here/access.py" "$here/shards.py" "$TMP"

other() { setpriv --reuid=21003 --regid=21003 --clear-groups "$@"; }
owner() { setpriv --reuid=21001 --regid=21001 --groups=22000 "$@"; }

# trees DIRECTORY: the same tree twice, in DIRECTORY/source with shards and in DIRECTORY/twin with chunk files.
trees() {
    mkdir -p "$1/source" "$1/twin"
    chmod 755 "$1" "$1/source" "$1/twin"
    python3 "$TMP/access.py" make "$1/source" "$1/twin"
}

# alike NAME DIRECTORY: the mount and the twin answer alike.
alike() {
    trees "$2"
    mount_view "$2/source" --rw -o allow_other
    judge "$1: " python3 "$TMP/access.py" compare "$MP" "$2/twin"
    unmount_view
}

alike "$(stat -f -c %T "$TMP")" "$TMP/trees"
mkdir "$TMP/tmpfs"
if mount -t tmpfs -o mode=755 tmpfs "$TMP/tmpfs" 2>/dev/null; then
    if touch "$TMP/tmpfs/try" && setfacl -m u:1:r "$TMP/tmpfs/try" 2>/dev/null; then
        alike tmpfs "$TMP/tmpfs/trees"
    else
        skip "tmpfs: no access control lists"
    fi
    umount "$TMP/tmpfs"
fi

# What others may read of an array in which the shards are one user's, and what is behind links, in each kind of mount.
trees "$TMP/again"
source=$TMP/again/source

read_only() {
    local options=$1 array
    mount_view "$source" -o "allow_other,$options"
    # Root first: what it has looked at is in caches.
    for array in links/c_to_closed links/shard_to_closed arrays/shard_600 arrays/c_700; do
        cat "$MP/$array/c/0" >/dev/null
        fails_with "Permission denied" other cat "$MP/$array/c/0"
        owner cat "$MP/$array/c/0" >/dev/null
    done
    other cat "$MP/arrays/plain/c/0" "$MP/links/c_to_open/c/0" >/dev/null
    unmount_view
}
several_views() {
    mount_view "$source" --view zarr3,npy -o allow_other
    [[ $(other ls "$MP") == $'npy\nzarr3' ]]
    other ls -l "$MP/zarr3/arrays" >/dev/null
    unmount_view
}
check "several views are for other users, too" several_views

check "shards of others, and links to them, read-only" read_only ro
check "shards of others, and links to them, immutable" read_only immutable

flat() {
    local options=$1 array
    mount_view "$source" --view flat -o "allow_other,$options"
    for array in links/c_to_closed arrays/shard_600 arrays/c_700; do
        cat "$MP/$array/array.raw" >/dev/null
        fails_with "Permission denied" other cat "$MP/$array/array.raw"
        owner cat "$MP/$array/array.raw" >/dev/null
    done
    other cat "$MP/arrays/plain/array.raw" >/dev/null
    unmount_view
}
check "the file of a whole array is for those who may read all its shards" flat ro
check "the file of a whole array is for those who may read all its shards, immutable" flat immutable

not_root() {
    new_mount_point
    # It may not act as others: what it cannot check it refuses.
    setpriv --bounding-set=-setuid,-setgid --inh-caps=-setuid,-setgid \
        "$SHARDFS" mount -o allow_other "$source" "$MP" </dev/null >"$MP.log" 2>&1
    cat "$MP/links/c_to_open/c/0" >/dev/null
    fails_with "Permission denied" other cat "$MP/links/c_to_closed/c/0"
    fails_with "Permission denied" other cat "$MP/links/c_to_open/c/0"
    fails_with "Permission denied" other cat "$MP/arrays/shard_600/c/0"
    other cat "$MP/arrays/plain/c/0" >/dev/null
    unmount_view
}
check "links are for the mount's own user where it cannot act as others" not_root

swapped() {
    local array=$source/links/c_to_open
    mount_view "$source" -o allow_other
    other cat "$MP/links/c_to_open/c/0" >/dev/null
    ln -sfn ../../closed/c "$array/c"
    fails_with "" other cat "$MP/links/c_to_open/c/0"
    fails_with "" other ls "$MP/links/c_to_open/c"
    ln -sfn ../../open/c "$array/c"
    unmount_view
}
check "a link that is exchanged is followed with nobody else's rights" swapped

written() {
    local array=$source/arrays/plain
    chmod 777 "$array/c"
    chmod 644 "$array"/c/*
    mount_view "$source" --rw -o allow_other
    # Its directory may be written to, its shard may not.
    fails_with "Permission denied" other cp "$array/zarr.json" "$MP/arrays/plain/c/0"
    fails_with "Permission denied" other rm -f "$MP/arrays/plain/c/0"
    fails_with "Permission denied" other cp "$array/zarr.json" "$MP/arrays/plain/c/3"
    fails_with "Permission denied" other mv -f "$MP/arrays/plain/c/0" "$MP/arrays/plain/c/1"
    owner rm "$MP/arrays/plain/c/0"
    unmount_view
}
check "a chunk is changed by those who may write to its shard" written

new_shards() {
    local array=$source/arrays/plain
    rm "$array/c/3"
    chown 21001:22000 "$array/c"
    chmod 2777 "$array/c"
    mount_view "$source" --rw -o allow_other
    (umask 027 && other cp --no-preserve=all "$array/zarr.json" "$MP/arrays/plain/c/12")
    unmount_view
    [[ $(stat -c '%u:%g %a' "$array/c/3") == "21003:22000 640" ]] || { stat "$array/c/3"; return 1; }
}
check "a new shard belongs to whoever made its first chunk, and to the group of its directory" new_shards

# made_above NAME: an array of three dimensions in which the directory of shards c/0/0 exists, and c/0/1, for the
# chunks in c/0/4 to c/0/7, does not.  Sets $array.
made_above() {
    "$SHARDFS" create --sample "$source/$1" >/dev/null
    array=$source/$1/waves
    rm -r "$array/c/0/1"
}

directories_above() {
    made_above above
    chmod 777 "$array"
    mount_view "$source" --rw -o allow_other
    mkdir "$MP/above/waves/c/0/4"
    [[ $(stat -c '%u %a' "$MP/above/waves/c/0/4") == "0 755" ]]
    fails_with "Permission denied" other mkdir "$array/c/0/1"
    fails_with "Permission denied" other cp "$array/zarr.json" "$MP/above/waves/c/0/4/0"
    unmount_view
    [[ ! -e $array/c/0/1 ]]
    chown 21003:21003 "$array/c/0"
    chmod 755 "$array"
    mount_view "$source" --rw -o allow_other
    other mkdir "$MP/above/waves/c/0/4"
    other cp "$array/zarr.json" "$MP/above/waves/c/0/4/0"
    unmount_view
    [[ $(stat -c %u "$array/c/0/1" "$array/c/0/1/0") == $'21003\n21003' ]]
}
check "a new directory above chunks is for those who may create the directory of its shards" directories_above

shown_absent() {
    made_above shown
    rm "$array/c/0/0/1"
    chmod 777 "$array"
    mount_view "$source" --rw --view raw --missing fill -o allow_other
    other cat "$MP/shown/waves/c/0/0/4.raw" >/dev/null
    fails_with "Permission denied" other cp "$MP/shown/waves/c/0/0/0.raw" "$MP/shown/waves/c/0/0/4.raw"
    fails_with "Permission denied" other truncate -s 3 "$MP/shown/waves/c/0/4/0.raw"
    unmount_view
    [[ ! -e $array/c/0/0/1 && ! -e $array/c/0/1 ]]
    chmod 777 "$array/c/0/0"
    mount_view "$source" --rw --view raw --missing fill -o allow_other
    other cp "$MP/shown/waves/c/0/0/0.raw" "$MP/shown/waves/c/0/0/4.raw"
    unmount_view
    [[ -e $array/c/0/0/1 ]]
}
check "a chunk without a shard is written by those who may create the shard" shown_absent

default_lists() {
    made_above listed
    rm "$array/c/0/0/1"
    chmod 777 "$array/c/0" "$array/c/0/0"
    setfacl -d -m u:21001:rwx,g::-,o::- "$array/c/0" "$array/c/0/0"
    mount_view "$source" --rw -o "allow_other,$1" --commit-interval 60
    (
        umask 022
        other bash -c "echo new >'$MP/listed/waves/c/0/0/4'"
        other mkdir "$MP/listed/waves/c/0/4"
        other bash -c "echo new >'$MP/listed/waves/c/0/4/4'"
        # Until it is committed nobody may do more with it.
        [[ $1 == sync ]] || [[ $(stat -c %A "$MP/listed/waves/c/0/4/4") == -rw------- ]]
        other touch "$array/c/0/0/file" "$array/c/0/file"
        other mkdir "$array/c/0/made"
    )
    unmount_view
    like c/0/0/1 c/0/0/file
    like c/0/1 c/0/made
    like c/0/1/1 c/0/file
    rm -r "$source/listed"
}
default_lists_above() {
    mkdir "$source/listed"
    "$SHARDFS" create "$source/listed/waves" --shape 16,16,16 --dtype uint8 --chunk 2,2,2 --shard 4,4,4 >/dev/null
    array=$source/listed/waves
    mount_view "$source" --rw -o allow_other
    mkdir -p "$MP/listed/waves/c/0/0"
    echo first >"$MP/listed/waves/c/0/0/0"
    unmount_view
    # The array's own is another one.
    setfacl -d -m u:21002:rwx "$array"
    chmod 2777 "$array/c"
    setfacl -d -m u:21001:rwx,g::-,o::- "$array/c"
    mount_view "$source" --rw -o allow_other
    (
        umask 022
        other mkdir -p "$MP/listed/waves/c/2/0"
        other bash -c "echo new >'$MP/listed/waves/c/2/0/0'"
        other mkdir -p "$array/c/made/made"
        other touch "$array/c/made/made/file"
    )
    unmount_view
    like c/1 c/made
    like c/1/0 c/made/made
    like c/1/0/0 c/made/made/file
    rm -r "$source/listed"
}
# like NAME OTHER: both have the same owner, permissions and access control lists.
like() {
    [[ $(getfacl -cp "$array/$1") == "$(getfacl -cp "$array/$2")" ]] || { getfacl -p "$array/$1" "$array/$2"; return 1; }
    [[ $(stat -c '%u:%g %A' "$array/$1") == "$(stat -c '%u:%g %A' "$array/$2")" ]]
}
check "new shards and their directories inherit access control lists as plain files do" default_lists xattr
check "new shards and their directories inherit access control lists as plain files do, -o sync" default_lists sync
check "new directories of shards inherit access control lists one from the other" default_lists_above

# To be a chunk, or a document, a file is read and written anew.
not_read_by_renaming() {
    local array=$source/arrays/plain home=$source/home
    mkdir "$home"
    chmod 777 "$home" "$array/c"
    chmod 666 "$array"/c/*
    echo "for root alone" | tee "$home/one" "$home/two" "$home/three" >/dev/null
    chmod 600 "$home"/*
    mount_view "$source" --rw -o allow_other
    fails_with "Permission denied" other mv -f "$MP/home/one" "$MP/arrays/plain/c/0"
    other mkdir "$MP/home/new"
    fails_with "Permission denied" other mv "$MP/home/two" "$MP/home/new/zarr.json"
    fails_with "" other ln "$MP/home/three" "$MP/arrays/plain/c/40"
    "$SHARDFS" sync "$MP"
    unmount_view
    [[ $(ls "$home") == "$(printf '%s\n' new one three two)" ]]
    fails_with "" grep -rl "for root alone" "$array" "$home/new"
}
check "a file that a caller may not read does not become a chunk or a document" not_read_by_renaming

# The kernel checks permissions as it has cached them.
named() {
    local array=$source/arrays/plain home=$source/late
    mkdir "$home"
    chmod 777 "$home" "$array/c"
    chmod 666 "$array"/c/*
    mount_view "$source" --rw -o allow_other
    other stat "$MP/late" "$MP/arrays/plain/c/4" >/dev/null
    chmod 755 "$home"
    fails_with "Permission denied" other mv "$MP/arrays/plain/c/4" "$MP/late/file"
    unmount_view
    [[ -z $(ls "$home") ]]
    rmdir "$home"
}
check "a chunk is given a name only in directories that the caller may write to" named

# Documents are written by the process behind the mount, for whoever has written them.
documented() {
    local home=$source/late
    mkdir "$home"
    chmod 777 "$home"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$TMP/group"
    chmod 644 "$TMP/group"
    mount_view "$source" --rw -o allow_other
    other stat "$MP/late" >/dev/null
    chmod 755 "$home"
    fails_with "Permission denied" other cp "$TMP/group" "$MP/late/zarr.json"
    [[ -z $(ls -A "$home") ]]
    # One that is there, in a directory that is closed meanwhile.
    sleep 1.2
    cp "$TMP/group" "$home/zarr.json"
    chmod 777 "$home"
    other stat "$MP/late/zarr.json" >/dev/null
    chmod 755 "$home"
    fails_with "Permission denied" other rm -f "$MP/late/zarr.json"
    [[ -e $home/zarr.json ]]
    unmount_view
    rm -r "$home"
}
check "a document is made and removed only in directories that its writer may write to" documented

# The path of an open document leads to that of another user, who has not given it away.
documented_elsewhere() {
    local home=$source/shared
    mkdir "$home" "$home/victim"
    chmod 777 "$home"
    echo '{"zarr_format": 3, "node_type": "group", "attributes": {"mine": 1}}' >"$home/victim/zarr.json"
    mount_view "$source" --rw -o allow_other
    other mkdir "$MP/shared/own"
    # shellcheck disable=SC2016 # Expanded by that shell.
    fails_with "" other bash -c '
        set -e
        exec 3>"$1/own/zarr.json"
        cd "$2"
        mv own away
        mv victim own
        cat "$3" >&3
        exec 3>&-' _ "$MP/shared" "$home" "$TMP/group"
    unmount_view || true
    grep -q mine "$home/own/zarr.json"
    rm -r "$home"
}
check "a document of another user to which a path has come to lead stays as it is" documented_elsewhere

# exchanged SOURCE COMMAND...: the command, while the directories `mine` and `theirs` of the source, of which
# the first is the other user's, are exchanged, as whoever may write to the directory above can do. What was in
# `theirs` is as before.
exchanged() {
    local source=$1 exchange before name
    shift
    chown -R 21003:21003 "$source/mine"
    chmod 777 "$source"
    before=$(contents "$source/theirs")
    mount_view "$source" --rw -o allow_other
    (exchanges "$source" mine theirs) &
    exchange=$!
    "$@" >"$TMP/done" 2>/dev/null || true
    kill "$exchange"
    wait "$exchange" || true
    unmount_view || true
    # Some came to where they belong.
    wc -l "$TMP/done"
    [[ -s $TMP/done ]]
    name=$(find "$source" -mindepth 1 -maxdepth 1 -user 0 ! -name .shardfs)
    [[ -n $name ]]
    diff <(echo "$before") <(contents "$name")
    rm -r "$source"
}
contents() { (cd "$1" && find . -path ./.shardfs -prune -o -type f -exec sha256sum {} + | sort); }

write_documents() {
    for n in {1..300}; do
        # Wherever that leads: mostly it is refused.
        printf '{"zarr_format": 3, "node_type": "group", "attributes": {"n": %d}}' "$n" |
            other dd of="$MP/mine/zarr.json" bs=4096 conv=fsync status=none && echo x
    done
}
documented_in_turn() {
    mkdir -p "$TMP/exchanged/mine" "$TMP/exchanged/theirs"
    echo '{"zarr_format": 3, "node_type": "group"}' | tee "$TMP/exchanged"/{mine,theirs}/zarr.json
    exchanged "$TMP/exchanged" write_documents
}

# arrays_in_turn: two arrays in which the first chunk is the same.
arrays_in_turn() {
    local n
    rm -rf "$TMP/exchanged"
    mkdir "$TMP/exchanged"
    for n in mine theirs; do
        "$SHARDFS" create --shape 128 --chunk 8 --shard 64 --dtype uint8 "$TMP/exchanged/$n" >/dev/null
    done
    mount_view "$TMP/exchanged" --rw
    mkdir -p "$MP/mine/c" "$MP/theirs/c"
    printf tttttttt | tee "$MP/mine/c/0" >"$MP/theirs/c/0"
    unmount_view
}
write_chunks() {
    local n done=0 end=$((SECONDS + 30))
    # What a mount has seen of one of them holds for a second.
    for ((n = 0; n < 300 || done < 3 && SECONDS < end; n++)); do
        printf mmmmmmmm | other dd of="$MP/mine/c/$((n % 16))" bs=8 conv=fsync,notrunc status=none &&
            echo x && ((done += 1))
    done
}
committed_in_turn() {
    arrays_in_turn
    exchanged "$TMP/exchanged" write_chunks
}

move_chunks() {
    for n in {1..200}; do
        printf mmmmmmmm | other dd of="$MP/mine/c/1" bs=8 status=none
        other mv "$MP/mine/c/1" "$MP/mine/note" && echo x
    done
}
moved_in_turn() {
    arrays_in_turn
    echo note >"$TMP/exchanged/theirs/note"
    exchanged "$TMP/exchanged" move_chunks
}

remove_arrays() {
    for n in {1..200}; do
        other rm "$MP/mine/zarr.json"
        other rmdir "$MP/mine" && echo x
        other "$SHARDFS" create --shape 128 --chunk 8 --shard 64 --dtype uint8 "$TMP/exchanged/mine"
    done
}
removed_in_turn() {
    arrays_in_turn
    rm -r "$TMP"/exchanged/*/c
    exchanged "$TMP/exchanged" remove_arrays
}

# Two arrays have one document: a link leads from the first to that of the second.
exchanged_while_open() {
    local link=$1 source=$TMP/exchanged
    arrays_in_turn
    rm "$source/mine/zarr.json" "$source/theirs/c/0"
    # shellcheck disable=SC2086 # None is no argument.
    ln $link "$source/theirs/zarr.json" "$source/mine/zarr.json"
    chown -hR 21003:21003 "$source/mine"
    chown 0:0 "$source/theirs/zarr.json"
    chmod 777 "$source"
    mount_view "$source" --rw -o allow_other
    # shellcheck disable=SC2016 # Perl's.
    other perl -e '
        my ($mount, @names) = @ARGV;
        open my $chunk, ">", "$mount/mine/c/3" or die $!;
        syswrite $chunk, "mmmmmmmm";
        syscall(316, -100, $names[0], -100, $names[1], 2) == 0 or die $!;
        close $chunk' "$MP" "$source/mine" "$source/theirs"
    unmount_view || true
    # It has the name of the first by now.
    [[ $(stat -c %u "$source/mine") == 0 ]]
    [[ -z $(find "$source/mine/c" -type f 2>/dev/null) ]]
    rm -r "$source"
}

if [[ $(uname -m) == x86_64 ]]; then
    check "a chunk is not committed to another array with the same document, by a symbolic link" exchanged_while_open -sr
    check "a chunk is not committed to another array with the same document, by a hard link" exchanged_while_open ""
    check "a document of another user stays as it is while its directory is exchanged with the writer's" documented_in_turn
    check "chunks of another user stay as they are while their array is exchanged with the writer's" committed_in_turn
    check "a chunk that becomes a file becomes none of another user's while directories are exchanged" moved_in_turn
    check "an array of another user is not removed while it is exchanged with one that is" removed_in_turn
else
    skip 'directories that are exchanged: the number of the system call is known for x86_64'
fi

# What the kernel knows of the file is of the one before.
documented_sticky() {
    local home=$source/sticky
    mkdir "$home"
    chmod 1777 "$home"
    mount_view "$source" --rw -o allow_other
    other cp "$TMP/group" "$MP/sticky/zarr.json"
    other mkdir "$MP/sticky/other"
    other cp "$TMP/group" "$MP/sticky/other/new"
    other stat "$MP/sticky/zarr.json" >/dev/null
    echo '{"zarr_format": 3, "node_type": "group", "attributes": {"mine": 1}}' >"$home/mine"
    mv "$home/mine" "$home/zarr.json"
    fails_with "" other rm -f "$MP/sticky/zarr.json"
    grep -q mine "$home/zarr.json"
    sleep 1.2
    other rm "$home/other/new"
    fails_with "" other mv "$TMP/group" "$MP/sticky/zarr.json"
    grep -q mine "$home/zarr.json"
    unmount_view
    rm -r "$home"
}
check "a document in a sticky directory is removed by its owner alone" documented_sticky

# The same groups and lists count as for other files: those that the kernel knows.
documented_by_group() {
    local home=$source/listed by
    mkdir "$home" "$home/"{plain,list}
    chgrp 22000 "$home/plain"
    chmod 2775 "$home/plain"
    setfacl -m u:21001:rwx "$home/list"
    setfacl -d -m u:21002:rw,g::r "$home/list"
    cp -rp "$home" "$source/natively"
    mount_view "$source" --rw -o allow_other
    for by in plain list; do
        (
            umask 022
            owner cp "$TMP/group" "$MP/listed/$by/zarr.json"
            owner cp "$TMP/group" "$source/natively/$by/zarr.json"
        )
    done
    unmount_view
    array=$source
    for by in plain list; do like "listed/$by/zarr.json" "natively/$by/zarr.json"; done
    # One that is moved there has its own permissions, and no list.
    mount_view "$source" --rw -o allow_other
    owner mkdir "$MP/listed/list/sub"
    owner install -m 640 "$TMP/group" "$MP/listed/list/sub/new"
    setfacl -b "$source/listed/list/sub/new"
    chmod 640 "$source/listed/list/sub/new"
    sleep 1.2
    owner mv "$MP/listed/list/sub/new" "$MP/listed/list/sub/zarr.json"
    unmount_view
    [[ $(getfacl -cp "$source/listed/list/sub/zarr.json") != *21002* ]]
    [[ $(stat -c %a "$source/listed/list/sub/zarr.json") == 640 ]]
    # A mount that cannot act as others leaves that to the kernel as well.
    rm "$home/plain/zarr.json"
    new_mount_point
    setpriv --bounding-set=-setuid,-setgid --inh-caps=-setuid,-setgid \
        "$SHARDFS" mount --rw -o allow_other "$source" "$MP" </dev/null >"$MP.log" 2>&1
    owner cp "$TMP/group" "$MP/listed/plain/zarr.json"
    fails_with "Permission denied" other cp "$TMP/group" "$MP/listed/plain/zarr.json"
    unmount_view
    cmp "$TMP/group" "$home/plain/zarr.json"
    rm -r "$home" "$source/natively"
}
check "documents are written by members of groups, and inherit access control lists" documented_by_group

# attributes FILE: owner, group and permissions.
attributes() { stat -c '%u:%g %a' "$1"; }

# shellcheck disable=SC2016 # Expanded by those shells.
documents_owned() {
    local home=$source/shared by
    mkdir "$home"
    chmod 777 "$home"
    mount_view "$source" --rw -o allow_other
    for by in written copied moved; do
        other mkdir "$MP/shared/$by"
    done
    other bash -c 'umask 077; cat "$1" >"$2"' _ "$TMP/group" "$MP/shared/written/zarr.json"
    other install -m 640 "$TMP/group" "$MP/shared/copied/zarr.json"
    other bash -c 'umask 027; cat "$1" >"$2/new"; mv "$2/new" "$2/zarr.json"' _ "$TMP/group" "$MP/shared/moved"
    mkdir "$MP/shared/grouped"
    chgrp 22000 "$MP/shared/grouped"
    chmod 2777 "$MP/shared/grouped"
    other cp "$TMP/group" "$MP/shared/grouped/zarr.json"
    touch -d 2001-02-03 "$TMP/group"
    mkdir "$MP/shared/dated"
    cp -p "$TMP/group" "$MP/shared/dated/zarr.json"
    "$SHARDFS" sync "$MP"
    [[ $(attributes "$home/written/zarr.json") == "21003:21003 600" ]]
    [[ $(attributes "$home/copied/zarr.json") == "21003:21003 640" ]]
    [[ $(attributes "$home/moved/zarr.json") == "21003:21003 640" ]]
    [[ $(attributes "$home/grouped/zarr.json") == "21003:22000 "* ]]
    [[ $(stat -c %y "$home/dated/zarr.json") == 2001-02-03* ]]
    # One that is there keeps them, and has those that it is given while it is open.
    other bash -c 'echo "{\"zarr_format\": 3, \"node_type\": \"group\"}" >"$1"' _ "$MP/shared/written/zarr.json"
    other perl -e 'open(F, "+<", $ARGV[0]) or die; chmod(0604, *F) or die' "$MP/shared/copied/zarr.json"
    [[ $(attributes "$home/written/zarr.json") == "21003:21003 600" ]]
    [[ $(attributes "$home/copied/zarr.json") == "21003:21003 604" ]]
    unmount_view
    rm -r "$home"
}
check "a document belongs to who has written it, with the permissions and the date that it was given" documents_owned

# A file that may be written to, and not read.
# shellcheck disable=SC2016 # Expanded by those shells.
write_only() {
    local home=$source/only
    mkdir "$home"
    chmod 777 "$home"
    mount_view "$source" --rw -o allow_other
    other bash -c 'umask 0; echo one >"$1"; chmod 200 "$1"; echo two >>"$1"' _ "$MP/only/only"
    other truncate -s 5 "$MP/only/only"
    fails_with "Permission denied" other cat "$MP/only/only"
    unmount_view
    [[ $(cat "$home/only") == $'one\nt' ]]
    rm -r "$home"
}
check "a file that may be written to and not read is written to" write_only

linked() {
    local array=$source/arrays/plain
    chmod 777 "$array/c"
    chmod 666 "$array"/c/*
    mount_view "$source" --rw -o allow_other
    rm "$MP/arrays/plain/c/5"
    "$SHARDFS" sync "$MP"
    other stat "$MP/arrays/plain/c/1" "$MP/arrays/plain/c/2" >/dev/null
    chmod 622 "$array/c/0"
    fails_with "Permission denied" other ln "$MP/arrays/plain/c/1" "$MP/arrays/plain/c/5"
    fails_with "Permission denied" other mv "$MP/arrays/plain/c/1" "$MP/arrays/plain/c/5"
    chmod 644 "$array/c/0"
    fails_with "Permission denied" other truncate -s 3 "$MP/arrays/plain/c/2"
    owner truncate -s 3 "$MP/arrays/plain/c/2"
    unmount_view
}
check "a chunk is linked by those who may read its shard, and cut off by those who may write to it" linked

# Where files are shown as those of another user, they are changed with the rights of the process that has mounted.
privileges() {
    local source=$TMP/privileges
    mkdir "$source"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$source/zarr.json"
    echo readme >"$source/readme"
    cp "$(command -v id)" "$source/old"
    chmod 4755 "$source/old"
    mount_view "$source" --rw -o uid=21001,gid=21001,allow_other
    fails_with "Operation not permitted" owner chmod 4755 "$MP/readme"
    fails_with "Operation not permitted" owner chmod g+s "$MP/readme"
    owner chmod 700 "$MP/readme"
    # shellcheck disable=SC2016 # of perl
    owner perl -e 'use Fcntl; sysopen(F, $ARGV[0], O_CREAT | O_WRONLY, 06755) or die' "$MP/new"
    owner mkdir -m 2755 "$MP/sub" || true
    owner chmod 4711 "$MP/old"
    owner dd if="$(command -v cat)" of="$MP/old" bs=1M conv=notrunc status=none
    unmount_view
    [[ -z $(find "$source" -perm /6000) ]]
}
check "no program gets the rights of whoever has mounted" privileges

# shrink TO USER...: the user makes the array in $MP half as long, by writing its document or by putting another there.
shrink() {
    local how=$1 text
    shift
    text=$(sed 's/^\( *\)8192\(,\?\)$/\14096\2/' "$MP/zarr.json")
    [[ $text == *4096* ]]
    case $how in
    write) "$@" tee "$MP/zarr.json" <<<"$text" >/dev/null ;;
    rename)
        "$@" tee "$MP/new" <<<"$text" >/dev/null
        "$@" mv -f "$MP/new" "$MP/zarr.json"
        ;;
    esac
}

# Who may change the document may not thereby remove what is in the shards of others.
shrunk() {
    local source=$TMP/shrunk how
    for how in write rename; do
        rm -rf "$source"
        "$SHARDFS" create --shape 8192 --chunk 1024 --shard 4096 --dtype uint8 "$source" >/dev/null
        chmod 777 "$source"
        chown 21003:21003 "$source/zarr.json"
        mount_view "$source" --rw -o allow_other --log-file "$TMP/shrunk.log"
        mkdir "$MP/c"
        head -c 1024 /dev/urandom | tee "$MP/c/2" "$MP/c/5" >"$MP/c/7"
        "$SHARDFS" sync "$MP"
        before=$(stat -c '%s %Y' "$source/c/1")
        shrink "$how" other
        "$SHARDFS" sync "$MP"
        [[ ! -e $MP/c/5 && $(stat -c '%s %Y' "$source/c/1") == "$before" ]]
        grep -q "c/1: chunks outside the array's new shape stay" "$TMP/shrunk.log"
        unmount_view
        grep -q 4096 "$source/zarr.json"
        # Root may.
        sed -i 's/^\( *\)4096\(,\?\)$/\18192\2/; 0,/8192/!s/8192/4096/' "$source/zarr.json"
        mount_view "$source" --rw -o allow_other
        [[ -e $MP/c/5 ]]
        shrink "$how" env
        "$SHARDFS" sync "$MP"
        [[ ! -e $source/c/1 && -e $source/c/0 ]]
        unmount_view
    done
}
check "who may change an array's shape removes no chunks of shards that others alone may change" shrunk

# What counts are the rights with which the document was opened, also when that process has ended and its number
# may be another one's.
shrunk_by_group() {
    local source=$TMP/shrunk-by-group
    "$SHARDFS" create --shape 8192 --chunk 1024 --shard 4096 --dtype uint8 "$source" >/dev/null
    chmod 777 "$source"
    mount_view "$source" --rw -o allow_other
    mkdir "$MP/c"
    for n in 2 5 7; do head -c 1024 /dev/urandom >"$MP/c/$n"; done
    "$SHARDFS" sync "$MP"
    chown 21001:21004 "$source/zarr.json" "$source"/c/*
    chmod 664 "$source/zarr.json" "$source"/c/*
    chmod 777 "$source/c"
    sleep 1.2
    sed 's/^\( *\)8192\(,\?\)$/\14096\2/' "$MP/zarr.json" >"$TMP/zarr.json"
    (umask 0; : >"$TMP/is-shrunk")
    # shellcheck disable=SC2016 # Expanded by that shell.
    setpriv --reuid 21003 --regid 21003 --groups 21004 bash -c '
        exec 3<>"$1/zarr.json"
        (sleep 2; cat "$2" >&3; exec 3>&-; echo done >"$3") &' _ "$MP" "$TMP/zarr.json" "$TMP/is-shrunk"
    within 60 test -s "$TMP/is-shrunk"
    "$SHARDFS" sync "$MP"
    [[ ! -e $source/c/1 && -e $source/c/0 ]]
    unmount_view
    grep -q 4096 "$source/zarr.json"
}
check "a process that ends after it has opened a document changes it with the rights of its groups" shrunk_by_group

# The same where files are shown as those of another user, who may change them all.
shrunk_as_shown() {
    local source=$TMP/shrunk-as-shown
    "$SHARDFS" create --shape 8192 --chunk 1024 --shard 4096 --dtype uint8 "$source" >/dev/null
    chmod 666 "$source/zarr.json"
    mount_view "$source" --rw -o uid=21001,gid=21001,allow_other
    owner mkdir "$MP/c"
    for n in 2 5 7; do owner dd if=/dev/urandom of="$MP/c/$n" bs=1024 count=1 status=none; done
    "$SHARDFS" sync "$MP"
    before=$(stat -c '%s %Y' "$source/c/1")
    shrink write other
    [[ $(stat -c '%s %Y' "$source/c/1") == "$before" ]]
    sed 's/^\( *\)4096\(,\?\)$/\18192\2/; 0,/8192/!s/8192/4096/' "$source/zarr.json" >"$TMP/zarr.json"
    cat "$TMP/zarr.json" >"$source/zarr.json"
    sleep 1.2
    shrink write owner
    [[ ! -e $source/c/1 && -e $source/c/0 ]]
    unmount_view
}
check "the same where files are shown as those of another user" shrunk_as_shown
