#!/bin/bash
# What commands remove and replace: nothing that is not theirs, nothing through links or mounts, and nothing
# before what takes its place is whole.
#
#     tests/shell/force.sh [ROUNDS]      kills of each command; 20 if not given

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

rounds=${1:-20}
cd "$TMP"
sf=$SHARDFS
if [[ $EUID != 0 ]]; then
    skip "mounts inside a destination: not root"
    exit 0
fi
# All files of a directory, by content.
sum_of() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }
nothing_hidden() { [[ -z $(find . -maxdepth 1 -name '.*.shardfs-*') ]] || { find . -maxdepth 1; return 1; }; }
# Whatever a check leaves mounted goes at the end.
unmount_rest() {
    local rc=$? place
    while read -r place; do umount -l "$place"; done < <(awk -v top="$TMP/" 'index($2, top) == 1 && $3 != "fuse.shardfs" { print $2 }' /proc/self/mounts)
    end "$rc"
}
trap unmount_rest EXIT

"$sf" create --sample sample.zarr
"$sf" create --sample other.zarr
mkdir home
echo precious >home/data

# --- mounts inside -----------------------------------------------------------------------------------

# each COMMAND of those that replace or remove DEST
replacing() {
    cat <<'COMMANDS'
unpack --force sample.zarr DEST
pack --force sample.zarr DEST --shard 64,64,64
repack --force sample.zarr DEST
create --force DEST --shape 3 --dtype int8
delete DEST
delete --recursive DEST
COMMANDS
}
stay_mounted() {
    local kind=$1 command dest before
    while read -r command; do
        for dest in sample.zarr/waves sample.zarr; do
            rm -rf dest.zarr
            cp -r "$dest" dest.zarr
            mkdir -p dest.zarr/keep/home
            if [[ $kind == bind ]]; then
                mount --bind home dest.zarr/keep/home
            else
                mount -t tmpfs none dest.zarr/keep/home
                echo precious >dest.zarr/keep/home/data
            fi
            before=$(sum_of dest.zarr)
            # shellcheck disable=SC2086 # words
            expect_exit 2 "$sf" ${command//DEST/dest.zarr} >said
            grep -Eq 'something is mounted on|--recursive deletes|it is not replaced' said || { cat said; return 1; }
            [[ $(sum_of dest.zarr) == "$before" && $(<dest.zarr/keep/home/data) == precious ]]
            umount dest.zarr/keep/home
        done
    done < <(replacing)
    nothing_hidden
}
check "what is mounted inside a destination stays, and so does the destination: tmpfs" stay_mounted tmpfs
check "the same: a bind mount of the same device" stay_mounted bind

guards_leftovers() {
    local hidden
    "$sf" create big --shape 3 --dtype int8
    mkdir big/c
    (cd big/c && seq 30000 | xargs touch)
    # It is killed as soon as it has begun: no shell is fast enough for that on a busy machine.
    python3 - "$sf" <<'PY'
import glob
import subprocess
import sys

deleting = subprocess.Popen([sys.argv[1], "delete", "big"])
while not glob.glob(".big.shardfs-*/old/c/1*"):
    assert deleting.poll() is None, "it was not seen"
deleting.kill()
deleting.wait()
PY
    hidden=$(find . -maxdepth 1 -name '.big.shardfs-*')
    [[ ! -e big && -e $hidden/job.json ]]
    mkdir -p "$hidden/old/keep/home"
    mount --bind home "$hidden/old/keep/home"
    expect_exit 2 "$sf" delete big | grep >/dev/null "keep/home: something is mounted there"
    [[ $(<home/data) == precious ]]
    umount "$hidden/old/keep/home"
    "$sf" delete big | grep >/dev/null 'what an interrupted deletion has left removed'
    [[ ! -e $hidden ]]
}
check "what is mounted while something is being removed stays" guards_leftovers

no_links() {
    rm -rf dest.zarr
    cp -r sample.zarr dest.zarr
    ln -s ../home dest.zarr/link
    ln -s "$TMP/home" dest.zarr/waves/link
    ln home/data dest.zarr/hard
    "$sf" unpack --force sample.zarr dest.zarr
    [[ $(<home/data) == precious && ! -e dest.zarr/link ]]
    ln -s home linked.zarr
    expect_exit 2 "$sf" unpack --force sample.zarr linked.zarr
    expect_exit 2 "$sf" unpack sample.zarr linked.zarr
    expect_exit 2 "$sf" create --force linked.zarr --shape 3 --dtype int8
    expect_exit 2 "$sf" delete linked.zarr
    [[ $(ls home) == data ]]
    # A node's work directory, or its metadata, that is a link.
    mkdir fake.zarr
    ln -s ../sample.zarr/zarr.json fake.zarr/zarr.json
    expect_exit 2 "$sf" unpack --force sample.zarr fake.zarr | grep >/dev/null 'is no Zarr array or group'
    nothing_hidden
}
check "nothing is removed through links" no_links

# --- mounts of ours ----------------------------------------------------------------------------------

mounted_source() {
    rm -rf dest.zarr
    cp -r sample.zarr dest.zarr
    mount_view dest.zarr/waves --rw --commit-interval 3600
    printf new >"$MP/c/0/0/6"
    local command
    while read -r command; do
        # shellcheck disable=SC2086 # words
        expect_exit 2 "$sf" ${command//DEST/dest.zarr} >said
        # shellcheck disable=SC2086 # words
        expect_exit 2 "$sf" ${command//DEST/dest.zarr\/waves} >>said
        grep -q 'is mounted on' said || { cat said; return 1; }
        # Its mount point.
        # shellcheck disable=SC2086 # words
        expect_exit 2 "$sf" ${command//DEST/$MP} >said
    done < <(replacing)
    [[ $(<"$MP/c/0/0/6") == new ]]
    unmount_view
    [[ ! -e dest.zarr/waves/.shardfs/unsaved ]]
    "$sf" ls dest.zarr waves/c/0/0/6 | grep >/dev/null 'waves/c/0/0/6'
    # What waits is committed before an array is resized or repacked.
    mount_view dest.zarr/waves --rw --commit-interval 3600
    printf newer >"$MP/c/0/0/6"
    "$sf" resize dest.zarr/waves --shape 32,112,120
    "$sf" ls dest.zarr waves/c/0/0/6 --json | grep >/dev/null '"nbytes":5'
    unmount_view
}
check "what a mount shows is not replaced, and loses nothing" mounted_source

lie_apart() {
    local apart='source and destination must not lie in each other'
    expect_exit 2 "$sf" unpack sample.zarr nope/../sample.zarr/inside | grep >/dev/null "$apart"
    expect_exit 2 "$sf" unpack --force sample.zarr/waves nope/.. | grep >/dev/null "$apart"
    ln -s sample.zarr alias.zarr
    expect_exit 2 "$sf" pack sample.zarr alias.zarr/inside --shard 64,64,64 | grep >/dev/null "$apart"
    ln -s sample.zarr/gone dangling.zarr
    expect_exit 2 "$sf" repack sample.zarr dangling.zarr/x | grep >/dev/null "$apart"
    mkdir bound
    mount --bind sample.zarr bound
    expect_exit 2 "$sf" unpack sample.zarr bound/inside | grep >/dev/null "$apart"
    expect_exit 2 "$sf" unpack bound sample.zarr/inside | grep >/dev/null "$apart"
    umount bound
    mount --bind sample.zarr/waves bound
    expect_exit 2 "$sf" unpack sample.zarr bound/inside | grep >/dev/null "$apart"
    umount bound
    mount_view sample.zarr --rw
    expect_exit 2 "$sf" unpack sample.zarr "$MP/inside" | grep >/dev/null "$apart"
    expect_exit 2 "$sf" unpack "$MP" sample.zarr/inside | grep >/dev/null "$apart"
    unmount_view
    expect_exit 2 "$sf" refs sample.zarr -o refs.Parquet | grep >/dev/null 'not as Parquet: .* refs.json'
    [[ ! -e refs.Parquet ]]
    expect_exit 2 "$sf" refs sample.zarr --force -o sample.zarr/zarr.json | grep >/dev/null "$apart"
    expect_exit 2 "$sf" info sample.zarr --force --svg sample.zarr/zarr.json | grep >/dev/null "$apart"
    [[ ! -e nope && ! -e sample.zarr/inside ]]
    diff -r sample.zarr other.zarr
}
check "source and destination lie apart, whatever leads to them" lie_apart

# --- devices and pipes -------------------------------------------------------------------------------

streams_are_written_to() {
    local force name reader command
    "$sf" refs sample.zarr >expected.json
    "$sf" info sample.zarr --svg expected.svg
    mkfifo pipe
    for force in '' --force; do
        for command in 'refs sample.zarr -o' 'info sample.zarr --svg'; do
            timeout 20 cat pipe >piped &
            reader=$!
            # shellcheck disable=SC2086
            "$sf" $command pipe $force
            wait $reader
            [[ -p pipe ]]
            cmp piped expected.json || cmp piped expected.svg
        done
    done
    "$sf" refs sample.zarr -o /dev/stdout >piped
    cmp piped expected.json
    # Where the text is, no picture can be.
    for name in - /dev/stdout; do
        expect_exit 2 "$sf" info sample.zarr --svg $name >said
        grep -qx "shardfs: $name: standard output has the text: give --svg the name of a file" said
        [[ $(wc -l <said) == 1 ]]
        expect_exit 2 "$sf" info sample.zarr --json --svg $name | grep >/dev/null 'has the text'
    done
    if [[ $EUID == 0 ]] && mknod device c 1 3 && : 2>/dev/null >device; then
        "$sf" refs sample.zarr --force -o device
        "$sf" info sample.zarr --force --svg device
        [[ -c device ]]
    fi
    # Followed, not replaced.
    echo old >linked
    ln -s linked link
    expect_exit 2 "$sf" refs sample.zarr -o link | grep >/dev/null 'link: it exists; --force replaces it'
    "$sf" refs sample.zarr --force -o link
    [[ -L link ]]
    cmp linked expected.json
    mkdir directory
    ln -s nowhere dangling
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
    for name in directory dangling socket; do
        for command in 'refs sample.zarr -o' 'info sample.zarr --svg'; do
            # shellcheck disable=SC2086
            expect_exit 2 "$sf" $command $name | grep >/dev/null "$name: it is a "
            # shellcheck disable=SC2086
            expect_exit 2 "$sf" $command $name --force | grep >/dev/null "$name: it is a "
        done
    done
    [[ -d directory && -L dangling && -S socket ]]
    expect_exit 2 "$sf" unpack sample.zarr pipe | grep >/dev/null 'pipe: it exists and is no Zarr array'
    expect_exit 2 "$sf" create pipe --shape 1 --dtype uint8 --force | grep >/dev/null 'it is not replaced'
    [[ -p pipe ]]
}
check "results are written to devices and pipes, which nothing replaces" streams_are_written_to

# --- whose it is -------------------------------------------------------------------------------------

only_ours() {
    local note
    for note in '' '{}' '[]' '{"command": "unpack", "source": "/x"}'; do
        rm -rf mine
        mkdir -p mine/.shardfs
        echo precious >mine/zarr.txt
        printf %s "$note" >mine/.shardfs/job.json
        expect_exit 2 "$sf" unpack sample.zarr mine | grep >/dev/null 'it exists'
        expect_exit 2 "$sf" unpack --force sample.zarr mine | grep >/dev/null 'is no Zarr array or group'
        [[ $(<mine/zarr.txt) == precious && $(<mine/.shardfs/job.json) == "$note" ]]
    done
    # Our own note, in a place that is not where it was made.
    cp -r sample.zarr torn.zarr
    truncate -s 1000 torn.zarr/waves/c/0/0/1
    expect_exit 1 "$sf" unpack torn.zarr begun.zarr
    [[ -e begun.zarr/.shardfs/job.json ]]
    ln begun.zarr/.shardfs/job.json note
    expect_exit 2 "$sf" unpack --force sample.zarr begun.zarr | grep >/dev/null 'is no Zarr array or group'
    rm note
    rm -rf mine
    mkdir mine
    echo precious >mine/zarr.txt
    ln -s ../begun.zarr/.shardfs mine/.shardfs
    expect_exit 2 "$sf" unpack --force sample.zarr mine | grep >/dev/null 'is no Zarr array or group'
    [[ $(<mine/zarr.txt) == precious && -e begun.zarr/.shardfs/job.json ]]
    "$sf" unpack --force sample.zarr begun.zarr
    nothing_hidden
}
check "only what has our own note counts as unfinished" only_ours

renamed_between() {
    cp -r sample.zarr moved.zarr
    cp -r moved.zarr/waves moved.zarr/first
    truncate -s 1000 moved.zarr/waves/c/0/0/1
    expect_exit 1 "$sf" unpack moved.zarr moved-chunks.zarr
    cp sample.zarr/waves/c/0/0/1 moved.zarr/waves/c/0/0/1
    mv moved.zarr/first moved.zarr/second
    expect_exit 2 "$sf" unpack moved.zarr moved-chunks.zarr | grep >/dev/null 'or of its source as it was then; --force starts anew'
    # Attributes have no files.
    mv moved.zarr/second moved.zarr/first
    sed -i 's/"counts"/"volts"/' moved.zarr/*/zarr.json
    "$sf" unpack moved.zarr moved-chunks.zarr
    grep -q volts moved-chunks.zarr/first/zarr.json
    [[ $(ls moved-chunks.zarr) == $'first\nwaves\nzarr.json' ]]
}
check "arrays that were renamed between two runs leave nothing in the copy" renamed_between

# --- the old one until the new one is whole ----------------------------------------------------------

old_stays() {
    "$sf" unpack --force sample.zarr dest.zarr
    local before
    before=$(sum_of dest.zarr)
    expect_exit 1 "$sf" unpack --force torn.zarr dest.zarr | grep >/dev/null 'is not finished: the source is damaged'
    [[ $(sum_of dest.zarr) == "$before" ]]
    nothing_hidden
    mkdir small
    mount -t tmpfs -o size=1200k none small
    cp -r sample.zarr small/dest.zarr
    before=$(sum_of small/dest.zarr)
    expect_exit 2 "$sf" unpack --force sample.zarr small/dest.zarr | grep >/dev/null 'No space left on device.*; what was there before is as it was'
    [[ $(sum_of small/dest.zarr) == "$before" && $(ls -A small) == dest.zarr ]]
    mount -o remount,size=8m small
    "$sf" unpack --force sample.zarr small/dest.zarr
    [[ $(sum_of small/dest.zarr) == "$(sum_of dest.zarr)" && $(ls -A small) == dest.zarr ]]
    umount small
}
check "after damage or with no space left the old one is as it was" old_stays

killed() {
    local most=$1 pid
    shift
    "$@" >/dev/null 2>&1 &
    pid=$!
    sleep "$(printf '0.%03d' $((RANDOM % (most > 999 ? 999 : most))))"
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}
milliseconds() {
    local from=${EPOCHREALTIME/[.,]/}
    "$@" >/dev/null
    echo $(((${EPOCHREALTIME/[.,]/} - from) / 1000 + 1))
}
force_is_killed() {
    local most i old new seen=""
    "$sf" pack --force sample.zarr new.zarr --shard 16,64,64
    new=$(sum_of new.zarr)
    rm -rf old.zarr
    cp -r sample.zarr old.zarr
    old=$(sum_of old.zarr)
    most=$(milliseconds "$sf" pack --force sample.zarr old.zarr --shard 16,64,64)
    for ((i = 0; i < rounds; i++)); do
        rm -rf old.zarr
        cp -r sample.zarr old.zarr
        killed "$most" "$sf" pack --force sample.zarr old.zarr --shard 16,64,64
        case $(sum_of old.zarr) in
        "$old") seen+=o ;;
        "$new") seen+=n ;;
        *) echo "neither the old one nor the new one"; find . -maxdepth 3; return 1 ;;
        esac
        # Whatever was left goes with the next.
        ((i % 2)) || "$sf" pack --force sample.zarr old.zarr --shard 16,64,64
        ((i % 2)) || nothing_hidden
    done
    "$sf" delete --recursive old.zarr
    nothing_hidden
    echo "$seen"
}
check "--force, killed $rounds times, leaves the old one or the new one, whole" force_is_killed

create_is_killed() {
    local most i
    most=$(milliseconds "$sf" create timed --shape 3 --dtype int8)
    for ((i = 0; i < rounds; i++)); do
        rm -rf array
        "$sf" create array --shape 3 --dtype int8
        touch array/old
        killed "$most" "$sf" create --force array --shape 4 --dtype int16
        # The old one has a file more.
        if grep -q int8 array/zarr.json; then [[ -e array/old ]]; else [[ ! -e array/old ]]; fi
        killed "$most" "$sf" delete array
        [[ ! -e array ]] || grep >/dev/null int array/zarr.json
        "$sf" create --force array --shape 5 --dtype int8
        grep -q 5 array/zarr.json
        nothing_hidden
    done
}
check "create --force and delete, killed $rounds times, leave all or nothing" create_is_killed
