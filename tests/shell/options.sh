#!/bin/bash
# Options, and what is said about wrong ones: exit code 1 for usage, 32 when the mount failed, one
# sentence that names the culprit.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
python3 "$here/shards.py" array "$TMP/a.zarr" 5
mkdir "$TMP/empty"

# refused CODE WORDS ARG...: the command line is refused with CODE, one line on stderr that has WORDS in it
refused() {
    local code=$1 words=$2 rc=0
    shift 2
    timeout 20 "$SHARDFS" "$@" </dev/null >"$TMP/out" 2>"$TMP/err" || rc=$?
    cat "$TMP/out" "$TMP/err"
    [[ $rc == "$code" ]] || { echo "exit $rc, expected $code"; return 1; }
    grep -qF -- "$words" "$TMP/err" || { echo "not named: $words"; return 1; }
    [[ ! -s $TMP/out ]] || { echo "something on stdout"; return 1; }
    # Usage errors may show the usage as well; failures are one line.
    [[ $code == 1 || $(wc -l <"$TMP/err") == 1 ]] || { echo "more than one line"; return 1; }
}
# The same, and nothing may be left mounted.
not_mounting() {
    new_mount_point
    local args=("${@//@MP@/$MP}")
    refused "${args[@]}"
    not_mounted "$MP"
    no_daemon_of "$MP"
}

check "--help" expect_exit 0 "$SHARDFS" --help
check "mount --help" expect_exit 0 "$SHARDFS" mount --help
has_examples_and_codes() {
    "$SHARDFS" "$1" --help >"$TMP/help"
    grep -x 'Examples:' "$TMP/help"
    grep -E '^ *Exit codes: 0 ' "$TMP/help"
}
for command in mount umount sync recover info ls verify create resize delete pack unpack repack refs completions man; do
    check "$command --help has examples and exit codes" has_examples_and_codes $command
done
check "--version" expect_exit 0 "$SHARDFS" --version
check "no arguments" expect_exit 2 "$SHARDFS"
check "mount without arguments" expect_exit 1 "$SHARDFS" mount
check "an unknown command" expect_exit 2 "$SHARDFS" frobnicate
check "an unknown flag" not_mounting 1 --frobnicate mount --frobnicate "$TMP/a.zarr" @MP@
check "an unknown option" not_mounting 1 frobnicate mount -o frobnicate "$TMP/a.zarr" @MP@
check "what immutable and writable exclude is named without a word that was not given" \
    not_mounting 1 'leave out "immutable", or what asks for writing' mount -o immutable,writable "$TMP/a.zarr" @MP@
check "a size below zero" not_mounting 1 "invalid value '-1' for '--cache-size <BYTES>'" \
    mount --cache-size -1 "$TMP/a.zarr" @MP@
in_a_mount() {
    mount_view "$TMP/a.zarr"
    refused 32 "lies in one: $MP" sync "$MP/zarr.json"
    refused 32 "lies in one: $MP" umount "$MP/zarr.json"
    refused 2 "repack it in the source, $TMP/a.zarr" repack "$MP"
    refused 2 "recover it in the source, $TMP/a.zarr" recover "$MP"
    unmount_view
}
check "what lies in a mount is named with the mount, or with its source" in_a_mount
check "an unknown option among good ones" not_mounting 1 frobnicate mount -o immutable,frobnicate=1,ro "$TMP/a.zarr" @MP@
for threads in 0 1 1025 20000 x; do
    check "threads=$threads" not_mounting 1 "mount option \"threads=$threads\": " mount -o "threads=$threads" "$TMP/a.zarr" @MP@
done
check "the most threads are named" not_mounting 1 'a number from 2 to 1024' mount -o threads=1025 "$TMP/a.zarr" @MP@
check "uid that is no number" not_mounting 1 uid mount -o uid=someone "$TMP/a.zarr" @MP@
check "umask that is no octal number" not_mounting 1 umask mount -o umask=9 "$TMP/a.zarr" @MP@
check "level that is no number" not_mounting 1 level mount -o level=x "$TMP/a.zarr" @MP@
check "shards of a size that is none" not_mounting 1 'such as 256M; or off' mount --rw --shard big "$TMP/a.zarr" @MP@
check "the same in -o" not_mounting 1 'mount option "shard=[=off": it is no pattern of paths' \
    mount --rw -o 'shard=[=off' "$TMP/a.zarr" @MP@
check "cache size that is no number" not_mounting 1 cache-size mount --cache-size banana "$TMP/a.zarr" @MP@

check "a missing source" not_mounting 32 "$TMP/none.zarr" mount "$TMP/none.zarr" @MP@
check "a source that is no array" not_mounting 32 "$TMP/empty" mount "$TMP/empty" @MP@
check "a source that is a file" not_mounting 32 "$TMP/a.zarr/zarr.json" mount "$TMP/a.zarr/zarr.json" @MP@
check "an unknown format" not_mounting 1 'none of auto, zarr, draft2022, bloscpack, blz' mount --format hdf5 "$TMP/a.zarr" @MP@
check "another format than the source has" not_mounting 32 'not of the format draft2022, but an array (Zarr v3, sharded)' mount -o format=draft2022 "$TMP/a.zarr" @MP@
for command in info ls verify refs recover; do
    check "an unknown format: $command" expect_exit 2 "$SHARDFS" "$command" --format hdf5 "$TMP/a.zarr"
    check "another format: $command" refused 2 "$TMP/a.zarr: it is not of the format blz, but an array (Zarr v3, sharded), which --format zarr reads" \
        "$command" --format blz "$TMP/a.zarr"
    check "its format: $command" expect_exit 0 "$SHARDFS" "$command" --format zarr "$TMP/a.zarr"
done
check "another format: pack" refused 2 "not of the format" pack --format blz --shard 4 "$TMP/a.zarr" "$TMP/packed"
check "another format: repack" refused 2 "not of the format" repack --format blz "$TMP/a.zarr"
echo text >"$TMP/text"
check "a file that is no Bloscpack file" not_mounting 32 "not a Bloscpack file (.blp) nor a frame of Blosc2" mount "$TMP/text" @MP@
for command in info ls verify refs recover repack; do
    check "a file that is no array: $command" refused 2 "$TMP/text: it is a file, but not a Bloscpack file" "$command" "$TMP/text"
done
printf '\x93NUMPY\x01\0' >"$TMP/a.npy"
check "a file of NumPy: info" refused 2 "$TMP/a.npy: it is a NumPy file" info "$TMP/a.npy"
check "a file of NumPy: mount" not_mounting 32 "$TMP/a.npy: it is a NumPy file" mount "$TMP/a.npy" @MP@
printf '\0\0\0\0' >"$TMP/damaged.blp"
check "a damaged Bloscpack file" expect_exit 1 "$SHARDFS" info "$TMP/damaged.blp"
check "a damaged file that is said to be one" expect_exit 1 "$SHARDFS" info --format bloscpack "$TMP/text"

mkdir "$TMP/levels"
cp -r "$TMP/a.zarr" "$TMP/levels/one"
python3 "$here/arrays.py" make "$TMP/levels/two" nested
# Its chunks are any bytes: of items without a fixed size nothing is expected of them.
sed -i 's/"data_type": "uint8"/"data_type": "string"/' "$TMP/levels/two/zarr.json"
"$SHARDFS" unpack "$TMP/a.zarr" "$TMP/unsharded" >"$TMP/out"
for command in info ls verify; do
    for level in 0 1 2; do
        check "$command --level $level" expect_exit 0 "$SHARDFS" "$command" --level $level "$TMP/levels"
    done
    check "$command --level 3" refused 2 "$TMP/levels: level 3 of sharding: no array here has more than 2 levels" \
        "$command" --level 3 "$TMP/levels"
done
check "unpack --level 0" expect_exit 0 "$SHARDFS" unpack --level 0 "$TMP/levels" "$TMP/unpacked"
check "unpack --level 2" refused 2 'no array here has more than 1 level' unpack --level 2 "$TMP/levels/one" "$TMP/one"
check "--level 1 without shards" refused 2 'no array here is sharded' info --level 1 "$TMP/unsharded"
check "mount -o level=3" not_mounting 1 'no array here has more than 2 levels' mount -o level=3 "$TMP/levels" @MP@
shows_a_level() {
    mount_view "$TMP/levels" -o level="$1"
    unmount_view
}
for level in 0 1 2; do check "mount -o level=$level" shows_a_level "$level"; done

# warns WORDS OPTION...: it is mounted, and every line of WORDS is on stderr.
warns() {
    local words=$1
    shift
    mount_view "$TMP/a.zarr" "$@"
    [[ $(grep -o 'the option .*' "$MP.log") == "$words" ]] || { cat "$MP.log"; return 1; }
    grep "warning: ${words%%$'\n'*}" "$MP/.shardfs/log"
    unmount_view
}
check "options of writing in a read-only mount" warns "the option dirty_limit has no effect: the mount is read-only
the option sync has no effect: the mount is read-only" -o sync --dirty-limit 1M
check "shards of created arrays in a read-only mount" warns "the option shard has no effect: the mount is read-only" \
    --shard 1M
check "shards of created arrays in another view" warns "the option shard has no effect: it is for the views zarr3, zarr2" \
    --rw -o 'shard=x2\,2' --view npy
check "an option of other views" warns "the option endian has no effect: it is for the views npy, raw, flat" --endian big
hides_files() {
    new_mount_point
    echo data >"$MP/file"
    echo "$MP" >>"$TMP/mounts"
    "$SHARDFS" mount "$TMP/a.zarr" "$MP" </dev/null >"$TMP/out" 2>&1
    cat "$TMP/out"
    grep -q "$MP: it is not empty: what is in it is hidden until this is unmounted" "$TMP/out"
    "$SHARDFS" umount "$MP"
    [[ $(<"$MP/file") == data ]]
    mount_view "$TMP/a.zarr"
    [[ ! -s $MP.log ]]
    unmount_view
}
check "a mount that hides files says so" hides_files
has_effect() {
    mount_view "$TMP/a.zarr" --view npy,zarr3 --rw --endian big --edge clip --keep-fill -o sync
    [[ ! -s $MP.log ]]
    unmount_view
}
check "options that have an effect" has_effect

check "--threads 0" fails_with 'write a number of threads, at least 1' "$SHARDFS" unpack --threads 0 "$TMP/a.zarr" "$TMP/none"
mkdir "$TMP/taken"
check "a sample where something is" refused 2 "$TMP/taken: it exists, and --sample replaces nothing: give another name" \
    create --sample "$TMP/taken"

check "an address of another kind is named as such" not_mounting 32 'ftp:// is none of s3, gs, az' mount ftp://host/a.zarr @MP@
check "a password in an address is refused" not_mounting 32 'give credentials in the environment' \
    mount https://me:secret@host/a.zarr @MP@
printf 'PK\003\004rest' >"$TMP/a.zarr.zip"
check "a ZIP archive is named as such" not_mounting 32 'no ZIP archive that can be read' mount "$TMP/a.zarr.zip" @MP@
check "so it is by commands" refused 2 'no ZIP archive that can be read' info "$TMP/a.zarr.zip"
check "the document in the place of its directory" not_mounting 32 "give the directory that it lies in, $TMP/a.zarr" \
    mount "$TMP/a.zarr/zarr.json" @MP@
mkdir "$TMP/v2" "$TMP/n5" "$TMP/precomputed"
echo '{"zarr_format": 2}' >"$TMP/v2/.zgroup"
echo '{"n5": "2.5.1"}' >"$TMP/n5/attributes.json"
echo '{"@type": "neuroglancer_multiscale_volume", "scales": []}' >"$TMP/precomputed/info"
zarr2_is_mounted() {
    mount_view "$TMP/v2"
    [[ -f $MP/.zgroup ]]
    unmount_view
    mount_view "$TMP/v2" --view npy
    [[ -f $MP/group.json && ! -e $MP/.zgroup ]]
    unmount_view
}
check "Zarr v2 is mounted, as it is stored and decoded" zarr2_is_mounted
check "N5 is named as such" not_mounting 32 'N5' mount "$TMP/n5" @MP@
check "a precomputed volume is named as such" not_mounting 32 'Neuroglancer' mount "$TMP/precomputed" @MP@
check "remounting" not_mounting 1 'unmount it and mount it again' mount -o remount,rw "$TMP/a.zarr" @MP@

deep() {
    mkdir -p "$TMP/deep/2026/run-7/out" "$TMP/deep/empty"
    cp -r "$TMP/a.zarr" "$TMP/deep/2026/run-7/out/a.zarr"
    mount_view "$TMP/deep"
    [[ $(find "$MP/2026/run-7/out/a.zarr/c" -type f | wc -l) == 16 ]]
    unmount_view
}
check "a folder far above its arrays" deep

without_capability() {
    new_mount_point
    fails_with 'root has no CAP_SYS_ADMIN' setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \
        "$SHARDFS" mount "$TMP/a.zarr" "$MP"
}
if [[ $EUID == 0 ]]; then check "root that may not mount is told why" without_capability; fi

without_fusermount() {
    new_mount_point
    chmod 755 "$TMP"
    fails_with 'apt install fuse3' setpriv --reuid=65534 --regid=65534 --clear-groups \
        env PATH=/nonexistent "$SHARDFS" mount "$TMP/a.zarr" "$MP"
}
if [[ $EUID == 0 ]]; then check "the package of fusermount3 is named" without_fusermount; fi

sizes() {
    local size
    for size in 256MB 1.5G 64MiB 4096; do
        mount_view "$TMP/a.zarr" --cache-size "$size"
        unmount_view
    done
}
check "sizes as people write them" sizes

check "a missing mount point" refused 32 "$TMP/nowhere" mount "$TMP/a.zarr" "$TMP/nowhere"
echo x >"$TMP/file"
check "a mount point that is a file" refused 32 "$TMP/file" mount "$TMP/a.zarr" "$TMP/file"
check "a log file that cannot be written" refused 2 "$TMP/nowhere/log" mount --log-file "$TMP/nowhere/log" \
    "$TMP/a.zarr" "$TMP/empty"
failing_umount() {
    local rc=0
    "$SHARDFS" umount "$TMP/empty" >"$TMP/out" 2>&1 || rc=$?
    cat "$TMP/out"
    [[ $rc != 0 && $rc != 101 ]] && grep -qF "$TMP/empty" "$TMP/out"
}
check "umount of what is not mounted" failing_umount

twice() {
    mount_view "$TMP/a.zarr"
    refused 32 "$MP" mount "$TMP/a.zarr" "$MP"
    [[ $(grep -c " $MP " /proc/self/mounts) == 1 ]]
    cat "$MP/c/0" >/dev/null
    unmount_view
    not_mounted "$MP"
}
check "a mount point that is in use" twice

# Whatever it does, it may not hang: the daemon would look up its source through itself.
onto_itself() {
    cp -r "$TMP/a.zarr" "$TMP/self.zarr"
    echo "$TMP/self.zarr" >>"$TMP/mounts"
    deadline 120
    local rc=0
    "$SHARDFS" mount "$TMP/self.zarr" "$TMP/self.zarr" </dev/null >"$TMP/out" 2>&1 || rc=$?
    cat "$TMP/out"
    [[ $rc == 0 || $rc == 32 ]]
    if [[ $rc == 0 ]]; then
        cmp -n 4096 "$TMP/self.zarr/c/0" "$TMP/a.zarr/c/0"
        "$SHARDFS" umount "$TMP/self.zarr"
    fi
    kill "$deadline"
}
check "a source mounted onto itself" onto_itself

# mount_line MOUNTPOINT: source, type and options
mount_line() { awk -v mp="$1" '$2 == mp { print $1, $3, $4 }' /proc/self/mounts; }

plain() {
    mount_view "$TMP/a.zarr"
    mount_line "$MP"
    [[ $(mount_line "$MP") == "$TMP/a.zarr fuse.shardfs ro,nosuid,nodev"* ]]
    [[ $(mount_line "$MP") == *,default_permissions* ]]
    [[ $(mount_line "$MP") != *,allow_other* ]]
    [[ $(findmnt -no FSTYPE "$MP") == fuse.shardfs ]]
    unmount_view
}
check "/proc/mounts" plain

named() {
    mount_view "$TMP/a.zarr" -o fsname=myname
    [[ $(mount_line "$MP") == "myname fuse.shardfs "* ]]
    unmount_view
    mount_view "$TMP/a.zarr" -o 'fsname=my\,name'
    mount_line "$MP"
    [[ $(mount_line "$MP") == "my,name fuse.shardfs "* ]]
    unmount_view
}
check "fsname, also with a comma" named

# A name must not become options: fusermount and mount(2) both take lists with commas.
odd_names() {
    local odd="$TMP/a,suid,dev b\\c
d#é.zarr"
    cp -r "$TMP/a.zarr" "$odd"
    mount_view "$odd"
    mount_line "$MP"
    [[ $(awk -v mp="$MP" '$2 == mp { print $4 }' /proc/self/mounts) == ro,nosuid,nodev,* ]]
    cmp -n 4096 "$MP/c/0" "$TMP/a.zarr/c/0"
    unmount_view
    mkdir "$TMP/mount, point"
    echo "$TMP/mount, point" >>"$TMP/mounts"
    timeout 20 "$SHARDFS" mount "$odd" "$TMP/mount, point" </dev/null >/dev/null 2>&1
    cmp -n 4096 "$TMP/mount, point/c/0" "$TMP/a.zarr/c/0"
    timeout 20 "$SHARDFS" umount "$TMP/mount, point"
    [[ -z $(ls -A "$TMP/mount, point") ]]
}
check "commas, blanks and newlines in names" odd_names

relative() {
    new_mount_point
    cd "$TMP"
    timeout 20 "$SHARDFS" mount ./a.zarr/ "$(basename "$MP")/" </dev/null >/dev/null 2>&1
    cd /
    cat "$MP/c/0" >/dev/null
    cd "$TMP"
    "$SHARDFS" umount "./$(basename "$MP")/"
    not_mounted "$MP"
}
check "relative paths" relative

through_link() {
    new_mount_point
    ln -s "$MP" "$TMP/link"
    timeout 20 "$SHARDFS" mount "$TMP/a.zarr" "$TMP/link" </dev/null >/dev/null 2>&1
    cat "$MP/c/0" >/dev/null
    "$SHARDFS" umount "$TMP/link"
    not_mounted "$MP"
}
check "a mount point behind a symbolic link" through_link

owners() {
    mount_view "$TMP/a.zarr" -o uid=1234,gid=2345,umask=077
    stat -c '%u %g %a %n' "$MP" "$MP/c" "$MP/c/0" "$MP/zarr.json"
    [[ $(stat -c '%u %g' "$MP" "$MP/c" "$MP/c/0" "$MP/zarr.json" | sort -u) == "1234 2345" ]]
    [[ -z $(find "$MP" -perm /077) ]]
    unmount_view
    mount_view "$TMP/a.zarr" -o umask=022
    [[ $(stat -c %a "$MP/c/0") == [46]44 ]]
    unmount_view
}
check "uid, gid and umask" owners

# As the shard's: owner, mode without execute bits, and the time.
inherited() {
    cp -r "$TMP/a.zarr" "$TMP/owned.zarr"
    chmod 751 "$TMP/owned.zarr/c/0"
    touch -d '2001-02-03 04:05:06.789 UTC' "$TMP/owned.zarr/c/0"
    if [[ $(id -u) == 0 ]]; then chown 1234:2345 "$TMP/owned.zarr/c/0"; fi
    mount_view "$TMP/owned.zarr"
    [[ $(stat -c '%u %g %Y' "$MP/c/0") == "$(stat -c '%u %g %Y' "$TMP/owned.zarr/c/0")" ]]
    stat -c '%a' "$MP/c/0"
    [[ $(stat -c '%a' "$MP/c/0") == [46]40 ]]
    unmount_view
}
check "owner, mode and time of a chunk are its shard's" inherited

small_cache() {
    mount_view "$TMP/a.zarr" --cache-size 1
    find "$MP" -type f -exec cat {} + >/dev/null
    unmount_view
}
check "a cache of one byte" small_cache

logged() {
    cp -r "$TMP/a.zarr" "$TMP/broken.zarr"
    : >"$TMP/broken.zarr/c/1"
    mount_view "$TMP/broken.zarr" --log-file "$TMP/log"
    fails_with "Input/output error" cat "$MP/c/4"
    cat "$MP/c/0" >/dev/null
    unmount_view
    cat "$TMP/log"
    # One line for a shard's defect, not one for each of its chunks.
    [[ $(grep -c 'c/1' "$TMP/log") == 1 ]]
}
check "--log-file, and damage in it" logged

# --- whoever reads the output leaves ---------------------------------------------------------------

# A pipe whose reader has left before the command begins, as stdout, stderr or both.
# left_alone CODE STREAMS ARG...: the command ends with CODE all the same; STREAMS is out, err or both
left_alone() {
    local code=$1 streams=$2
    shift 2
    python3 - "$code" "$streams" "$SHARDFS" "$@" <<'PY'
import os, subprocess, sys

code, streams, *command = sys.argv[1:]
reader, writer = os.pipe()
os.close(reader)
out = writer if streams in ("out", "both") else subprocess.PIPE
err = writer if streams in ("err", "both") else subprocess.PIPE
done = subprocess.run(command, stdout=out, stderr=err, timeout=60)
sys.stdout.buffer.write(done.stderr or b"")
assert done.returncode == int(code), f"exit {done.returncode}, expected {code}"
# Only errors that were found are reported, not that the reader has left.
assert b"roken pipe" not in (done.stderr or b""), done.stderr
PY
}
python3 "$here/shards.py" array "$TMP/bad.zarr" 5
for shard in "$TMP"/bad.zarr/c/*; do truncate -s -3 "$shard"; done
for streams in err both; do
    check "ls, its reader leaves: $streams" left_alone 1 $streams ls "$TMP/bad.zarr"
    check "refs, its reader leaves: $streams" left_alone 1 $streams refs "$TMP/bad.zarr" -o "$TMP/refs-$streams.json"
    check "unpack, its reader leaves: $streams" left_alone 1 $streams unpack --skip-damaged "$TMP/bad.zarr" "$TMP/part-$streams.zarr"
    check "an error message, its reader leaves: $streams" left_alone 2 $streams info "$TMP/none.zarr"
done
for streams in out both; do
    check "recover, its reader leaves: $streams" left_alone 0 $streams recover "$TMP/a.zarr"
    check "recover --scan, its reader leaves: $streams" left_alone 1 $streams recover --scan "$TMP/bad.zarr"
done
saved_with_reader_gone() {
    cp -r "$TMP/a.zarr" "$TMP/saved.zarr"
    mkdir -p "$TMP/saved/c"
    cp "$TMP/part-full.zarr/c/"[01] "$TMP/saved/c"
    left_alone 0 out recover --force --unsaved "$TMP/saved" "$TMP/saved.zarr"
    # All was put in.
    [[ ! -e $TMP/saved ]]
}
"$SHARDFS" unpack "$TMP/a.zarr" "$TMP/part-full.zarr" >/dev/null
check "recover --unsaved goes on when its reader leaves" saved_with_reader_gone

full_stdout() {
    local rc=0
    "$SHARDFS" "$@" >/dev/full 2>"$TMP/err" || rc=$?
    cat "$TMP/err"
    [[ $rc == 2 ]]
    grep -qx 'shardfs: standard output: No space left on device (os error 28)' "$TMP/err"
}
check "a full stdout: recover" full_stdout recover "$TMP/a.zarr"
for command in help --version 'help mount' 'mount --help'; do
    # shellcheck disable=SC2086 # Words.
    check "a full stdout: $command" full_stdout $command
done
check "a full stdout: recover --scan" full_stdout recover --scan "$TMP/bad.zarr"
