#!/bin/bash
# Sources in Azure Blob Storage, as its emulator Azurite has them: the corpus, access that is granted by keys and by
# signatures and refused otherwise, blobs that are replaced.
#
# SHARDFS_CORPUS: where the corpus is. Azurite and the library that fills it come from tests/clients/setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
python=${SHARDFS_VENVS:-$repo/target/venvs}/s3/bin/python
azurite=${SHARDFS_NODE:-$repo/target/node}/azurite/node_modules/.bin/azurite-blob
export PYTHONDONTWRITEBYTECODE=1

# --- the store -------------------------------------------------------------------------------------

# Nothing of the user's own.
unset AZURE_STORAGE_ACCOUNT AZURE_STORAGE_SAS_TOKEN AZURE_STORAGE_CONNECTION_STRING AZURE_CLIENT_ID
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1

"$repo/tests/clients/setup.sh"
PATH=$(dirname "$python"):$PATH
mkdir "$TMP/azurite"
# It says which port it has got.
(cd "$TMP/azurite" && exec "$azurite" --blobHost 127.0.0.1 --blobPort 0 --inMemoryPersistence --disableTelemetry \
    --skipApiVersionCheck </dev/null >"$TMP/azurite.log" 2>&1) &
# A process that is stopped ends by no signal but one.
at_end bash -c "kill -KILL $! 2>/dev/null || true"
within 300 grep -q 'successfully listen' "$TMP/azurite.log"
port=$(sed -n 's|.*successfully listen.* http://127.0.0.1:\([0-9]*\).*|\1|p' "$TMP/azurite.log")
# The emulator's own account, and its key, which are no secrets.
export AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1
export AZURE_STORAGE_ENDPOINT=http://127.0.0.1:$port/$AZURE_STORAGE_ACCOUNT_NAME
key=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
export AZURE_STORAGE_ACCOUNT_KEY=$key

object_store() { "$python" "$here/object_store.py" "$@"; }

"$SHARDFS" create --sample "$TMP/sample.zarr" >/dev/null
object_store array "$TMP/bytes.zarr"
object_store buckets public private
for container in public private unlisted; do
    object_store upload $container sample.zarr/ "$TMP/sample.zarr"
done
object_store upload private bytes.zarr/ "$TMP/bytes.zarr"

# --- the corpus ------------------------------------------------------------------------------------

check_container() {
    local source=az://private/$1
    shift
    check_store "$source" default -1 "" "$@"
}

if corpus=$(corpus_dir); then
    # shellcheck source=../corpus_lib.sh
    . "$repo/tests/corpus_lib.sh"
    corpus_stores "$corpus" zarr3,draft2022,bloscpack,bcolz >"$TMP/work"
    object_store upload private data/ "$corpus/data"
    in_jobs "$TMP/work" check_container
    check_damaged_drafts az://private/data/malformed_other
    check_damaged_bcolz az://private/data/malformed_other
else
    skip "no corpus: set SHARDFS_CORPUS"
fi

# --- access ----------------------------------------------------------------------------------------

same() {
    local source=$1 expected
    shift
    mount_view "$TMP/sample.zarr"
    expected=$MP
    mount_view "$source" "$@"
    diff -r "$expected" "$MP"
    unmount_view
    unmount_view "$expected"
}

by_key() {
    same az://private/sample.zarr
    unset AZURE_STORAGE_ACCOUNT_NAME
    same az://private/sample.zarr -o account=devstoreaccount1
    # As the command line of Azure calls it.
    AZURE_STORAGE_ACCOUNT=devstoreaccount1 same az://private/sample.zarr
    fails_with 'account=NAME (--account)' "$SHARDFS" info az://private/sample.zarr
}
check "a container is read by the key of its account" by_key

by_signature() {
    local signatures
    mapfile -t signatures < <(object_store signatures private)
    unset AZURE_STORAGE_ACCOUNT_KEY
    AZURE_STORAGE_SAS_TOKEN=${signatures[0]} same az://private/sample.zarr -v --log-file "$TMP/signed.log"
    grep -q 'GET [^ ]*/devstoreaccount1/private/sample.zarr' "$TMP/signed.log"
    if grep -q 'sig=' "$TMP/signed.log"; then return 1; fi
    AZURE_STORAGE_SAS_TOKEN=${signatures[1]} fails_with 'Permission denied' "$SHARDFS" info az://private/sample.zarr
}
check "a container is read by a signature, which is nowhere to be seen" by_signature

in_public() {
    unset AZURE_STORAGE_ACCOUNT_KEY
    same az://public/sample.zarr -o anonymous
    fails_with 'Permission denied' "$SHARDFS" info --anonymous az://private/sample.zarr
}
check "a public container needs no key, and another one is refused" in_public

unlisted() {
    local expected
    unset AZURE_STORAGE_ACCOUNT_KEY
    fails_with '"no_list"' "$SHARDFS" info --anonymous az://unlisted/sample.zarr/waves
    mount_view "$TMP/sample.zarr/waves"
    expected=$MP
    mount_view az://unlisted/sample.zarr/waves -o anonymous,no_list
    diff -r "$expected" "$MP"
    unmount_view
    unmount_view "$expected"
}
check "a container that may be read, but not listed, is read by the grid" unlisted

wrong() {
    AZURE_STORAGE_ACCOUNT_KEY=$(echo wrong | base64) fails_with 'Permission denied' \
        "$SHARDFS" info az://private/sample.zarr
    AZURE_STORAGE_ACCOUNT_KEY='no key' fails_with 'Invalid Access Key' "$SHARDFS" info az://private/sample.zarr
    fails_with 'ContainerNotFound' "$SHARDFS" info az://nothing/sample.zarr
    fails_with 'there is no metadata in it' "$SHARDFS" info az://private/nothing.zarr
}
check "a wrong key, a container that does not exist and a name that nothing is below are errors" wrong

# --- requests --------------------------------------------------------------------------------------

# The last bytes of a blob cannot be asked for, but its length is in the listing.
counted() {
    mount_view az://private/many.zarr
    asks 1 0 stat "$MP/c/70"
    asks 0 0 stat "$MP"/c/{64..127}
    asks 1 0 cat "$MP/c/100"
    asks 39 0 ls -l "$MP/c"
    unmount_view
}
python3 "$here/shards.py" array "$TMP/many.zarr" 5 --shards 40 --chunks 64 --bytes 4096
object_store upload private many.zarr/ "$TMP/many.zarr"
check "an index takes one request, and those of a directory are asked for at once" counted

# --- blobs that are replaced -------------------------------------------------------------------------

replaced() {
    mount_view az://private/bytes.zarr -o trusted=1,fetch_size=1M
    object_store replace private bytes.zarr/c/0 "$MP" 100
    unmount_view
}
check "a shard that is replaced 100 times is never shown in two versions, and in the last one in the end" replaced

# --- writing -----------------------------------------------------------------------------------------

# Two mounts write chunks of the same shards.
written() {
    local one other mp first i pids=()
    mount_view az://private/written.zarr --rw --commit-interval 0.1
    one=$MP
    mount_view az://private/written.zarr --rw --commit-interval 0.1
    other=$MP
    mkdir -p "$one/c"/{0..15} "$other/c"/{0..15}
    for mp in "$one" "$other"; do
        (
            cd "$mp/c"
            [[ $mp == "$one" ]] && first=0 || first=1
            for ((i = first; i < 256; i += 2)); do printf 'chunk %d' "$i" >"$((i / 16))/$((i % 16))"; done
            "$SHARDFS" sync "$mp"
        ) &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i"; done
    echo beside >"$one/notes"
    [[ $(<"$one/notes") == beside ]]
    rm "$one/c/0/0"
    unmount_view "$one"
    unmount_view "$other"
    mount_view az://private/written.zarr
    [[ ! -e $MP/c/0/0 && $(<"$MP/notes") == beside ]]
    for ((i = 1; i < 256; i++)); do [[ $(<"$MP/c/$((i / 16))/$((i % 16))") == "chunk $i" ]]; done
    unmount_view
    # Nothing is left of the trial.
    mount_view az://private
    [[ -z $(find "$MP" -name '.shardfs-*') ]]
    unmount_view
}
"$SHARDFS" create --shape 16,16 --dtype uint8 --chunk 1,1 --shard 8,8 "$TMP/written.zarr" >/dev/null
object_store upload private written.zarr/ "$TMP/written.zarr"
check "two mounts write to a container and lose nothing" written

# Commands write as mounts do.
commands() {
    "$SHARDFS" unpack "$TMP/sample.zarr" "$TMP/chunks.zarr" >/dev/null
    "$SHARDFS" pack --shard x2,2 "$TMP/chunks.zarr" az://private/deep/packed.zarr >"$TMP/out"
    grep -q 'read back and equal' "$TMP/out"
    "$SHARDFS" verify az://private/deep/packed.zarr
    mount_view az://private/deep/packed.zarr
    diff -r "$MP" "$TMP/chunks.zarr"
    unmount_view
    fails_with 'is not replaced' "$SHARDFS" pack --shard x2,2 "$TMP/chunks.zarr" az://private/deep/packed.zarr
    "$SHARDFS" create --shape 16,16 --dtype uint8 --chunk 4,4 --shard 8,8 az://private/deep/made.zarr >/dev/null
    "$SHARDFS" resize az://private/deep/made.zarr --shape 32,16 >/dev/null
    "$SHARDFS" info az://private/deep/made.zarr | grep -q '32 × 16 uint8'
    "$SHARDFS" delete --recursive az://private/deep/packed.zarr >/dev/null
    "$SHARDFS" delete az://private/deep/made.zarr >/dev/null
    mount_view az://private
    [[ -z $(find "$MP/deep" -type f) ]]
    unmount_view
}
check "commands copy to a container, and make, resize and delete arrays there" commands
