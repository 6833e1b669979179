#!/bin/bash
# Sources on an object store and on a web server: mounts of them show what mounts of the same files do,
# in every view; commands read them; a store that is gone is an error in time; nothing hangs, and no
# credentials are to be seen anywhere.  object_store.sh has the corpus, on a store that is none of ours.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=../store_lib.sh
. "$repo/tests/store_lib.sh"
here=$repo/tests/shell

mkdir "$TMP/top"
"$SHARDFS" create --sample "$TMP/top/sample.zarr" >/dev/null
python3 "$here/arrays.py" "$TMP/top/arrays" >/dev/null 2>&1 || true
python3 - "$here" "$TMP/top/large.zarr" <<'PY'
# The example of ZEP 2: 2.4 TB of uint8 in 10.3 million chunks, here in 2700 shards. They are one sparse file.
import itertools
import json
import os
import struct
import sys

sys.path.insert(0, sys.argv[1])
import shards

shape, shard, chunk = [25000, 18000, 6000], 1024, 64
slots, length = (shard // chunk) ** 3, chunk**3
little = {"name": "bytes", "configuration": {"endian": "little"}}
os.makedirs(sys.argv[2] + "/c")
with open(sys.argv[2] + "/zarr.json", "w") as f:
    json.dump({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard] * 3}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [chunk] * 3, "codecs": [little], "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end"}}],
        "attributes": {}}, f)
index = b"".join(struct.pack("<QQ", slot * length, length) for slot in range(slots))
index += struct.pack("<I", shards.crc32c(index))
first = None
for place in itertools.product(*[range(-(-extent // shard)) for extent in shape]):
    path = "/".join([sys.argv[2], "c", *map(str, place)])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if first:
        os.link(first, path)
        continue
    first = path
    with open(path, "wb") as f:
        f.truncate(slots * length)
        f.seek(0, os.SEEK_END)
        f.write(index)
PY
# Where names cannot be listed: chunks are found by the grid, nodes by the metadata that names them.
mkdir "$TMP/top/unlisted"
python3 - "$TMP/top/unlisted" <<'PY'
import itertools
import json
import os
import sys


def put(path, content):
    path = os.path.join(sys.argv[1], path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content if isinstance(content, bytes) else json.dumps(content).encode())


def chunks(path, key):
    for n, coords in enumerate(itertools.product(range(3), range(2))):
        if n != 4:
            put(f"{path}/{key(coords)}", bytes([n + 1]) * 4)


array = {"zarr_format": 3, "node_type": "array", "shape": [6, 4], "data_type": "uint8", "fill_value": 0,
         "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
         "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
         "codecs": [{"name": "bytes"}], "attributes": {}}
old = {"zarr_format": 2, "shape": [6, 4], "chunks": [2, 2], "dtype": "|u1", "fill_value": 0, "order": "C",
       "filters": None, "compressor": None}
group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
for name, node in ("three", array), ("group/a", array), ("group/deep/b", array), ("bare/a", array):
    put(f"{name}/zarr.json", node)
    chunks(name, lambda coords: "c/%d/%d" % coords)
named = {"a": array, "deep": group, "deep/b": array}
put("group/zarr.json", {**group, "consolidated_metadata": {
    "kind": "inline", "must_understand": False, "metadata": named}})
put("group/deep/zarr.json", group)
put("bare/zarr.json", group)
for name, separator in ("nested", "/"), ("dots", "."):
    put(f"{name}/.zarray", {**old, "dimension_separator": separator})
    put(f"{name}/.zattrs", {"unit": "m"})
    chunks(name, lambda coords: f"{coords[0]}{separator}{coords[1]}")
PY

# A Bloscpack file, beside other objects that are none of the source's.
python3 - "$TMP/top/files" <<'PY'
import json
import os
import struct
import sys
import zlib

text = json.dumps({"dtype": "'|u1'", "shape": [12800], "order": "C", "container": "numpy"}).encode()
chunks = [bytes([2, 1, 2, 1]) + struct.pack("<III", 64, 64, 80) + bytes([value]) * 64 for value in range(200)]
head = b"blpk" + bytes([3, 3, 0, 1]) + struct.pack("<iiqq", 64, 64, len(chunks), 0)
head += b"JSON" + bytes([0, 0, 0, 0, 0, 2, 0, 0]) + struct.pack("<III", len(text), len(text) + 10, len(text)) + bytes(8)
head += text + bytes(10) + struct.pack("<I", zlib.crc32(text))
first = len(head) + 8 * len(chunks)
offsets = [first + 80 * n for n in range(len(chunks))]
os.mkdir(sys.argv[1])
with open(sys.argv[1] + "/values.blp", "wb") as f:
    f.write(head + struct.pack(f"<{len(chunks)}q", *offsets) + b"".join(chunks))
with open(sys.argv[1] + "/notes.txt", "w") as f:
    f.write("not an array")
PY
start_store
there=(-o "endpoint=$URL,anonymous")

same() {
    local view
    for view in zarr3 zarr2 npy raw flat; do
        mount_view "$TMP/top/sample.zarr" --view "$view"
        local local_mp=$MP
        mount_view s3://bucket/sample.zarr "${there[@]}" --view "$view" "$@"
        diff -r "$local_mp" "$MP"
        unmount_view "$local_mp"
        unmount_view
    done
}
check "a bucket shows what the same files do" same
check "a bucket shows what the same files do (immutable)" same -o immutable

# Google's protocol for reading is that of S3, but for the signatures.
on_google() {
    mount_view "$TMP/top/sample.zarr"
    local local_mp=$MP
    mount_view gs://bucket/sample.zarr "${there[@]}"
    diff -r "$local_mp" "$MP"
    unmount_view "$local_mp"
    unmount_view
    "$SHARDFS" verify --endpoint "$URL" --anonymous gs://bucket/sample.zarr
}
check "a bucket of Google shows what the same files do" on_google

on_the_web() {
    mount_view "$TMP/top/sample.zarr"
    local local_mp=$MP node
    node=$(cd "$local_mp" && find . -name c -type d -print -quit)
    node=${node%/c}
    mount_view "$URL/sample.zarr/${node#./}"
    diff -r "$local_mp/$node" "$MP"
    unmount_view "$local_mp"
    unmount_view
}
check "a web server shows an array" on_the_web

# unlisted WORDS...: what stands before the name of an array, and options.
unlisted() {
    local name view local_mp
    for name in three nested dots group; do
        for view in zarr3 zarr2; do
            mount_view "$TMP/top/unlisted/$name" --view "$view"
            local_mp=$MP
            mount_view "$1/unlisted/$name" --view "$view" "${@:2}"
            diff -r "$local_mp" "$MP"
            # Asked for by its name alone, before anything is listed.
            unmount_view
            mount_view "$1/unlisted/$name" --view "$view" "${@:2}"
            while read -r path; do cmp "$local_mp/$path" "$MP/$path"; done \
                < <(cd "$local_mp" && find . -type f ! -path './.shardfs/*')
            unmount_view "$local_mp"
            unmount_view
        done
    done
}
check "chunk files are found on a web server" unlisted "$URL"
check "chunk files are found in a bucket whose names are not listed" \
    unlisted s3://bucket -o "endpoint=$URL,anonymous,no_list"

unlisted_commands() {
    local command name
    for name in three nested dots group; do
        for command in "info" "ls -l" "verify --decode"; do
            # shellcheck disable=SC2086 # a command and its option
            "$SHARDFS" $command "$TMP/top/unlisted/$name" | sed "s|$TMP/top/||" >"$TMP/expected"
            # shellcheck disable=SC2086
            "$SHARDFS" $command "$URL/unlisted/$name" | sed "s|$URL/||" >"$TMP/found"
            diff "$TMP/expected" "$TMP/found"
        done
    done
    for command in info verify ls; do
        fails_with 'names cannot be listed here, and its metadata names no arrays' \
            "$SHARDFS" $command "$URL/unlisted/bare"
    done
    fails_with 'names cannot be listed here' "$SHARDFS" unpack "$URL/unlisted/bare" "$TMP/bare"
    [[ ! -e $TMP/bare ]]
}
check "commands find what metadata names, and say where it names nothing" unlisted_commands

by_commands() {
    local command
    for command in "info" "ls -l" "verify --decode"; do
        # shellcheck disable=SC2086 # a command and its option
        "$SHARDFS" $command "$TMP/top/sample.zarr" | sed "s|$TMP/top/||" >"$TMP/expected"
        # shellcheck disable=SC2086
        "$SHARDFS" $command --endpoint "$URL" --anonymous s3://bucket/sample.zarr >"$TMP/found"
        diff "$TMP/expected" "$TMP/found"
    done
    "$SHARDFS" unpack "$TMP/top/sample.zarr" "$TMP/unpacked" >/dev/null
    "$SHARDFS" unpack --endpoint "$URL" --anonymous s3://bucket/sample.zarr "$TMP/fetched" >/dev/null
    diff -r "$TMP/unpacked" "$TMP/fetched"
    "$SHARDFS" refs --endpoint "$URL" --anonymous s3://bucket/sample.zarr -o "$TMP/refs.json" >/dev/null
    grep -q 's3://bucket/sample.zarr' "$TMP/refs.json"
}
check "commands read a bucket as they read files" by_commands

one_object() {
    local place command expected
    mount_view "$TMP/top/files/values.blp"
    expected=$MP
    for place in s3://bucket "$URL"; do
        mount_view "$place/files/values.blp" "${there[@]}"
        diff -r "$expected" "$MP"
        unmount_view
    done
    unmount_view "$expected"
    for command in "info" "ls -l" "verify --decode" "refs --base-url https://example.org"; do
        # shellcheck disable=SC2086 # a command and its option
        "$SHARDFS" $command "$TMP/top/files/values.blp" | sed "s|$TMP/top/||" >"$TMP/expected"
        # shellcheck disable=SC2086
        "$SHARDFS" $command --endpoint "$URL" --anonymous s3://bucket/files/values.blp | sed 's|s3://bucket/||' >"$TMP/found"
        diff "$TMP/expected" "$TMP/found"
    done
    "$SHARDFS" refs --endpoint "$URL" --anonymous s3://bucket/files/values.blp -o "$TMP/one.json" >/dev/null
    grep -q '"s3://bucket/files/values.blp"' "$TMP/one.json"
    "$SHARDFS" unpack "$TMP/top/files/values.blp" "$TMP/one.local" >/dev/null
    "$SHARDFS" unpack --endpoint "$URL" --anonymous s3://bucket/files/values.blp "$TMP/one.fetched" >/dev/null
    diff -r "$TMP/one.local" "$TMP/one.fetched"
}
check "a Bloscpack file in a bucket is shown as the file is" one_object

no_array() {
    local command=("$SHARDFS" info --endpoint "$URL" --anonymous)
    fails_with 'not a Bloscpack file' "${command[@]}" s3://bucket/files/notes.txt
    fails_with 'give the directory that it lies in, s3://bucket/sample.zarr/waves' \
        "${command[@]}" s3://bucket/sample.zarr/waves/zarr.json
    fails_with 'neither an array nor' "${command[@]}" "$URL/files/notes.txt"
    new_mount_point
    fails_with 'not a Bloscpack file' "$SHARDFS" mount "${there[@]}" s3://bucket/files/notes.txt "$MP"
    fails_with 'does not begin with "blpk"' \
        "$SHARDFS" mount "${there[@]}" --format bloscpack s3://bucket/files/notes.txt "$MP"
}
check "an object that is no array is an error that says so" no_array

new_mount_point
# Arrays in directories are written by remote_write.sh.
check "nothing is written to an object that is an array by itself" fails_with 'it can only be read' \
    "$SHARDFS" mount --rw "${there[@]}" s3://bucket/files/values.blp "$MP"

check "a key that nothing is below is no source" fails_with 'there is no metadata in it' \
    timeout 60 "$SHARDFS" info --endpoint "$URL" --anonymous s3://bucket/nothing.zarr

no_secrets() {
    local secret=b7e1c0ffee place
    AWS_ACCESS_KEY_ID=AKIDEXAMPLE AWS_SECRET_ACCESS_KEY=$secret \
        mount_view s3://bucket/sample.zarr -o "endpoint=$URL" -v --log-file "$TMP/secret.log"
    find "$MP" -type f -exec cat {} + >/dev/null
    for place in "$TMP/secret.log" /proc/self/mounts "$MP/.shardfs/stats.json" "$MP/.shardfs/log"; do
        grep -q . "$place"
        if grep -q "$secret" "$place"; then return 1; fi
    done
    if tr '\0' ' ' <"/proc/$(daemon_of "$MP")/cmdline" | grep -q "$secret"; then return 1; fi
    unmount_view
}
check "credentials are nowhere to be seen" no_secrets

# The store sends requests on to another server: that gets no credentials.
sent_on() {
    local out=$TMP/sent_on
    mkfifo "$out.end"
    cat >"$out.py" <<'PY'
import http.server
import sys
import threading


class Other(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked for", self.path, self.headers, flush=True)
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


class Store(Other):
    def do_GET(self):
        self.send_response(307)
        self.send_header("Location", f"http://localhost:{other.server_port}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET


sys.stdout = open(sys.argv[1] + ".asked", "w")
other, store = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), it) for it in (Other, Store))
for server in other, store:
    threading.Thread(target=server.serve_forever, daemon=True).start()
with open(sys.argv[1], "w") as ports:
    ports.write(str(store.server_port))
sys.stdin.read()
PY
    python3 "$out.py" "$out" <"$out.end" &
    exec {ends}>"$out.end"
    within 20 test -s "$out"
    AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=hidden AWS_SESSION_TOKEN=token fails_with \
        'sends to localhost, which is not given the credentials' \
        timeout 20 "$SHARDFS" info --endpoint "http://127.0.0.1:$(<"$out")" s3://bucket/a
    [[ ! -s $out.asked ]] || { cat "$out.asked"; return 1; }
    # Without credentials there are none to give away.
    fails_with '' timeout 20 "$SHARDFS" info --anonymous --endpoint "http://127.0.0.1:$(<"$out")" s3://bucket/a
    grep -q 'asked for' "$out.asked"
    exec {ends}>&-
}
check "credentials go to no other server than the store" sent_on

# A server with a certificate that is not accepted: the error comes at once, not after a minute of attempts.
certificate() {
    local out=$TMP/tls begun
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=a store" -addext subjectAltName=DNS:localhost \
        -addext basicConstraints=critical,CA:FALSE \
        -keyout "$out.key" -out "$out.pem" 2>/dev/null
    mkfifo "$out.end"
    python3 - "$out" 3<"$out.end" <<'PY' &
import http.server
import os
import ssl
import sys
import threading

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
server.handle_error = lambda *_: None
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + ".pem", sys.argv[1] + ".key")
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
with open(sys.argv[1], "w") as port:
    port.write(str(server.server_port))
os.read(3, 1)
PY
    exec {ends}>"$out.end"
    within 20 test -s "$out"
    begun=$SECONDS
    fails_with 'UnknownIssuer; certificates that are accepted' \
        timeout 60 "$SHARDFS" info "https://localhost:$(<"$out")/nothing"
    ((SECONDS - begun < 45))
    fails_with 'there is no metadata in it' \
        timeout 40 "$SHARDFS" info --ca "$out.pem" "https://localhost:$(<"$out")/nothing"
    exec {ends}>&-
}
check "a certificate that is not accepted is an error at once" certificate

# Credentials that are none: nothing is asked for without them, and nothing is taken from the working directory.
credentials() {
    local run
    mkdir -p "$TMP/home/.aws" "$TMP/elsewhere/.aws"
    printf '[half]\naws_access_key_id = A\n[none]\nregion = r\n' >"$TMP/home/.aws/credentials"
    printf '[default]\ncredential_process = touch %s\n' "$TMP/ran" >"$TMP/elsewhere/.aws/credentials"
    run=(env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY -u AWS_PROFILE HOME="$TMP/home" timeout 60 "$SHARDFS" info
        --endpoint "$URL" s3://bucket/sample.zarr --profile)
    fails_with 'has one of aws_access_key_id and aws_secret_access_key' "${run[@]}" half
    fails_with 'the profile "none" has no credentials' "${run[@]}" none
    (cd "$TMP/elsewhere" && HOME='' timeout 60 "$SHARDFS" info --endpoint "$URL" s3://bucket/sample.zarr) >/dev/null
    [[ ! -e $TMP/ran ]]
}
check "a profile without credentials is an error, and one of the working directory is none" credentials

# Nothing listens there: that is said after seconds, not after the minute that a request may take.
nobody_there() {
    local begun=$SECONDS
    fails_with '127.0.0.1:1: Connection refused' \
        timeout 50 "$SHARDFS" info --anonymous --endpoint http://127.0.0.1:1 s3://bucket/a
    ((SECONDS - begun < 40))
}
check "a server that was never there is named soon" nobody_there

settings() {
    local bad
    for bad in 127.0.0.1:9000 localhost 'not a url' ftp://localhost; do
        fails_with 'is no address of a store' "$SHARDFS" info --endpoint "$bad" s3://bucket/a
        AWS_ENDPOINT_URL=$bad fails_with 'is no address of a store' "$SHARDFS" info s3://bucket/a
    done
    fails_with '"http://127.0.0.1:9000" takes no bucket before it' \
        "$SHARDFS" info --virtual-host --endpoint http://127.0.0.1:9000 s3://bucket/a
    fails_with 'is no name of a region' "$SHARDFS" info --region 'eu west' s3://bucket/a
    fails_with 'holds no certificates' "$SHARDFS" info --ca /dev/null s3://bucket/a
    fails_with 'is no time for a request' "$SHARDFS" info --timeout 0 s3://bucket/a
    fails_with 'is no number of requests' "$SHARDFS" info --requests 0 s3://bucket/a
    new_mount_point
    fails_with 'is no address of a store' "$SHARDFS" mount --endpoint localhost s3://bucket/a "$MP"
    fails_with 'is no time for a request' "$SHARDFS" mount -o timeout=0 s3://bucket/a "$MP"
    fails_with 'cache_dir=' "$SHARDFS" mount -o "cache_dir=$TMP/none/none" s3://bucket/a "$MP"
    [[ ! -e $TMP/none ]]
    # What is given on the command line counts, whatever the environment says.
    AWS_ENDPOINT_URL_S3=http://127.0.0.1:1 "$SHARDFS" info --anonymous --endpoint "$URL" s3://bucket/sample.zarr
}
check "settings of a store that cannot be are named, and options count more than the environment" settings

counted() {
    mount_view s3://bucket/sample.zarr "${there[@]}"
    find "$MP" -type f -exec cat {} + >/dev/null
    python3 - "$MP/.shardfs/stats.json" <<'PY'
import json
import sys

with open(sys.argv[1]) as f:
    stats = json.load(f)
remote = stats["remote"]
print(remote)
assert stats["transport"]["why"] == "the source is on the network"
assert remote["requests"] > 3 and remote["bytes"] > 1000 and remote["lists"] > 0
assert remote["failed"] == remote["lost"] == remote["throttled"] == 0
PY
    unmount_view
}
check "stats.json counts what was asked of a store" counted

stopped() {
    local chunk
    mount_view s3://bucket/sample.zarr "${there[@]}" -o timeout=10
    chunk=$(find "$MP" -path '*/c/*' -type f -print -quit)
    stop_store
    fails_with 'timed out' timeout 60 cat "$chunk"
    timeout 60 "$SHARDFS" umount "$MP"
    kill -CONT "$STORE"
}
check "a store that does not answer is an error in time, and no reason not to unmount" stopped

recovers() {
    local chunk
    mount_view s3://bucket/sample.zarr "${there[@]}" -o timeout=10
    chunk=$(find "$MP" -path '*/c/*' -type f -print -quit)
    stop_store
    fails_with 'timed out' timeout 60 cat "$chunk"
    kill -CONT "$STORE"
    within 60 cat "$chunk"
    unmount_view
}
check "a store that answers again needs no other mount" recovers

ended() {
    local chunk reader waited=yes begun
    mount_view s3://bucket/sample.zarr "${there[@]}"
    chunk=$(find "$MP" -path '*/c/*' -type f -print -quit)
    stop_store
    begun=$SECONDS
    cat "$chunk" >/dev/null &
    reader=$!
    # Another waits behind it, for the same bytes.
    cat "$chunk" >/dev/null &
    sleep 1
    kill "$reader" $! || waited=no
    wait "$reader" $! || true
    # Also for the checks after this one.
    kill -CONT "$STORE"
    [[ $waited == yes ]]
    ((SECONDS - begun < 45))
    within 60 cat "$chunk"
    unmount_view
}
check "a process that waits for a store can be ended long before the timeout" ended

interrupted() {
    local mounting process is_gone=yes
    new_mount_point
    stop_store
    "$SHARDFS" mount "${there[@]}" s3://bucket/sample.zarr "$MP" &
    mounting=$!
    within 60 pgrep -P "$mounting" || is_gone=no
    process=$(pgrep -P "$mounting")
    kill "$mounting"
    wait "$mounting" || true
    within 30 has_ended "$process" || is_gone=no
    kill -CONT "$STORE"
    [[ $is_gone == yes ]]
}
has_ended() { [[ ! -e /proc/$1 ]]; }
check "a mount that is interrupted while it waits for a store leaves no process" interrupted

# from_disk STATS: all that a mount has read came from its cache on disk.
from_disk() {
    python3 - "$1" <<'PY'
import json
import sys

with open(sys.argv[1]) as f:
    remote = json.load(f)["remote"]
print(remote)
sys.exit(not (remote["cached_bytes"] > 1000 and remote["bytes"] == 0))
PY
}

kept_on_disk() {
    local local_mp
    mount_view "$TMP/top/sample.zarr"
    local_mp=$MP
    # What was not yet written when a mount ended is fetched by the next one, too.
    for _ in {1..6}; do
        mount_view s3://bucket/sample.zarr "${there[@]}" -o cache_dir="$TMP/cache"
        diff -r "$local_mp" "$MP"
        cp "$MP/.shardfs/stats.json" "$TMP/stats.json"
        sleep 1
        unmount_view
        ! from_disk "$TMP/stats.json" || break
    done
    unmount_view "$local_mp"
    from_disk "$TMP/stats.json"
    [[ $(stat -c %a "$TMP/cache/shardfs-parts") == 700 ]]
    rm -r "$TMP/cache"
}
check "what was fetched is kept on disk for the next mount" kept_on_disk

full_disk() {
    local local_mp
    if [[ $EUID != 0 ]]; then
        echo "only root can mount a disk that is full"
        return
    fi
    mkdir "$TMP/full"
    at_end umount "$TMP/full"
    mount -t tmpfs -o size=128k tmpfs "$TMP/full"
    mount_view "$TMP/top/sample.zarr"
    local_mp=$MP
    mount_view s3://bucket/sample.zarr "${there[@]}" -o cache_dir="$TMP/full" --log-file "$TMP/full.log"
    diff -r "$local_mp" "$MP"
    within 60 grep -q "warning: .*full.*No space left" "$TMP/full.log"
    unmount_view
    unmount_view "$local_mp"
}
check "a full disk below the cache is a warning, and no error of the mount" full_disk

# Programs that give credentials say when these end, and are asked again.
renewed() {
    local script=$TMP/credentials chunk
    mkdir -p "$TMP/home2/.aws"
    printf '[default]\nendpoint_url = %s\nregion = x\ncredential_process = %s\n' "$URL" "$script" >"$TMP/home2/.aws/config"
    cat >"$script" <<'SH'
#!/bin/bash
[[ ! -e $0.fail ]] || { echo "the session has ended" >&2; exit 1; }
printf '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c", "Expiration": "%s"}' \
    "$(date -u -d '+6 seconds' +%Y-%m-%dT%H:%M:%SZ)"
SH
    chmod +x "$script"
    HOME=$TMP/home2 mount_view s3://bucket/sample.zarr -o trusted=0,timeout=5
    chunk=$(find "$MP" -path '*/c/*' -type f -print -quit)
    cat "$chunk" >/dev/null
    touch "$script.fail"
    within 60 fails_with 'Input/output error' timeout 30 cat "$chunk"
    grep -q 'error: .*the session has ended' "$MP/.shardfs/log"
    rm "$script.fail"
    within 20 cat "$chunk"
    unmount_view
}
check "credentials that end are renewed, and a failure to do so passes" renewed

without_name() {
    fails_with 'lookup address' timeout 30 "$SHARDFS" info --endpoint http://store.invalid --timeout 2 --anonymous \
        s3://bucket/sample.zarr
}
check "a host that has no address is an error that says so" without_name

profiles() {
    mkdir -p "$TMP/home/.aws"
    printf '[lab]\naws_access_key_id = a\naws_secret_access_key = b\n' >"$TMP/home/.aws/credentials"
    printf '[profile lab]\nendpoint_url = %s\nregion = x\n' "$URL" >"$TMP/home/.aws/config"
    HOME=$TMP/home "$SHARDFS" info --profile lab s3://bucket/sample.zarr >"$TMP/found"
    HOME=$TMP/home AWS_PROFILE=lab "$SHARDFS" info s3://bucket/sample.zarr | diff "$TMP/found" -
    HOME=$TMP/home fails_with 'there is no profile "other"' \
        "$SHARDFS" info --profile other s3://bucket/sample.zarr
    # A program that fails says why.
    printf '[profile lab]\nendpoint_url = %s\ncredential_process = echo no session >&2; false\n' "$URL" \
        >"$TMP/home/.aws/config"
    rm "$TMP/home/.aws/credentials"
    HOME=$TMP/home fails_with 'no session' \
        timeout 60 "$SHARDFS" info --profile lab --timeout 5 s3://bucket/sample.zarr
}
check "a profile of the AWS command line tells how a store is reached" profiles

ten_million_chunks() {
    mount_view s3://bucket/large.zarr "${there[@]}" "$@"
    python3 - "$MP" "$(daemon_of "$MP")" <<'PY'
import json
import os
import random
import sys

mp, pid = sys.argv[1:]
draw = random.Random(5)
for _ in range(10_000):
    chunk = "/".join(str(draw.randrange(-(-extent // 64))) for extent in (25000, 18000, 6000))
    assert os.stat(f"{mp}/c/{chunk}").st_size == 64**3
with open(f"{mp}/.shardfs/stats.json") as f:
    remote = json.load(f)["remote"]
with open(f"/proc/{pid}/status") as f:
    resident = next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
print(remote, resident)
assert resident < 150 << 10
# No more than an index for each.
assert remote["requests"] - remote["lists"] < 10_000 + 10
PY
    [[ $(head -c 100 "$MP/c/390/281/93" | tr -d '\0' | wc -c) == 0 ]]
    unmount_view
}
check "of ten million chunks any can be looked up, in little memory" ten_million_chunks
check "of ten million chunks any can be looked up, in little memory (immutable)" ten_million_chunks -o immutable

without_url() {
    mount_view "$TMP/top/sample.zarr" -o anonymous,trusted=5
    grep -q 'trusted has no effect: the source is no URL' "$MP.log"
    unmount_view
}
check "options for URLs have no effect on other sources, which is said" without_url
