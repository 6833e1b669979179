#!/bin/bash
# An object store for tests: Ceph's gateway radosgw with one monitor and one store in memory, on loopback only.
#
#     radosgw.sh start DIR PORT ACCESS SECRET     returns when http://127.0.0.1:PORT answers, to a user with these keys
#     radosgw.sh gateway DIR                      starts the gateway alone again, after it was killed
#     radosgw.sh collect DIR                      removes what is left of objects that were replaced or removed
#     radosgw.sh stop DIR                         ends what runs for DIR, also after a start that failed
#
# DIR is new, and made; everything is in it: configuration, logs, and the processes' numbers in run/NAME.pid, the NAMEs being
# client.rgw.a, osd.0 and mon.a. Objects are in memory, and gone with the processes.
#
# Needs Debian's packages radosgw, ceph-mon, ceph-osd and ceph-common. As root they are installed; otherwise, if
# some are missing, the exit code is 3.

set -euo pipefail

# tool PACKAGE: each program that is called, and Debian's package that has it.
tools=("radosgw radosgw" "ceph-mon ceph-mon" "ceph-osd ceph-osd" "ceph ceph-common")

require_tools() {
    local pair missing=()
    for pair in "${tools[@]}"; do
        command -v "${pair% *}" >/dev/null || missing+=("${pair#* }")
    done
    ((${#missing[@]})) || return 0
    if [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
            "${missing[@]}" >/dev/null
    else
        echo "missing Debian packages: ${missing[*]}" >&2
        exit 3
    fi
}

# configure ADDRESS PORT: the configuration of all processes. ADDRESS is for those behind the gateway. The monitor
# waits for a second before each of its decisions by default, and a start takes a dozen of them. Threads and
# logs are as small as a test can do with, for the sake of memory.
configure() {
    cat <<EOC
[global]
fsid = $(</proc/sys/kernel/random/uuid)
mon host = [v2:$1:3300]
mon initial members = a
public addr = $1
cluster addr = $1
keyring = $dir/keyring
run dir = $dir/run
admin socket =
log file = $dir/run/\$name.log
crash dir = $dir/run
log max recent = 10
ms async op threads = 1

mon data = $dir/mon
mon cluster log file = $dir/run/cluster.log
mon data avail crit = 1
mon data avail warn = 2
mon allow pool size one = true
mon max pg per osd = 1000
paxos propose interval = 0.05
paxos min wait = 0.01

osd data = $dir/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd min pg log entries = 10
osd max pg log entries = 100
osd pg log dups tracked = 10
osd op num shards = 1
osd op num threads per shard = 2

rgw data = $dir/rgw
rgw frontends = beast endpoint=127.0.0.1:$2 tcp_nodelay=1
rgw thread pool size = 64
rgw relaxed region enforcement = true
rgw override bucket index max shards = 1
rgw dynamic resharding = false
rgw enable gc threads = false
rgw enable lc threads = false
rgw run sync thread = false
EOC
}

# run NAME PROGRAM ARG...: starts one of the processes.
run() {
    local name=$1 program=$2
    shift 2
    TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES=4194304 TCMALLOC_RELEASE_RATE=10 \
        setsid "$program" -c "$conf" -f "$@" </dev/null >"$dir/run/$name.out" 2>&1 &
    echo $! >"$dir/run/$name.pid"
}

# is_ours PID: the process is there, and it is one of this directory.
is_ours() { [[ -n $1 ]] && grep -zqxF -- "$conf" "/proc/$1/cmdline" 2>/dev/null; }

# answers: the gateway does.
answers() {
    local status=
    { exec {connection}<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
    printf 'GET / HTTP/1.0\r\n\r\n' >&"$connection"
    read -r -t 10 -u "$connection" status || true
    exec {connection}>&-
    [[ $status == HTTP/1.?\ 200* ]]
}

gateway() {
    local port pid end=$((SECONDS + 300))
    port=$(sed -n 's/^rgw frontends = .*:\([0-9]*\) .*/\1/p' "$conf")
    if answers "$port"; then
        echo "port $port is in use" >&2
        return 1
    fi
    run client.rgw.a radosgw -n client.rgw.a
    pid=$!
    until answers "$port"; do
        if ! kill -0 "$pid" 2>/dev/null || ((SECONDS > end)); then
            echo "the gateway does not answer on port $port:" >&2
            tail -n 5 "$dir/run/client.rgw.a.out" "$dir/run/client.rgw.a.log" >&2 || true
            return 1
        fi
        sleep 0.05
    done
}

start() {
    local port=$1 access=$2 secret=$3 address name id
    # One for this instance alone, so that the ports of several never meet.
    address=127.$((1 + RANDOM % 250)).$((RANDOM % 256)).$((1 + RANDOM % 250))
    mkdir -p "$dir"/{mon,osd,rgw,run}
    configure "$address" "$port" >"$conf"
    id=$(</proc/sys/kernel/random/uuid)
    {
        ceph-authtool -C "$dir/keyring" --gen-key -n mon. --cap mon 'allow *'
        for name in client.admin client.rgw.a osd.0; do
            ceph-authtool "$dir/keyring" --gen-key -n "$name" --cap mon 'allow *' --cap osd 'allow *'
        done
        monmaptool --create --fsid "$(sed -n 's/^fsid = //p' "$conf")" --addv a "[v2:$address:3300]" "$dir/monmap"
        ceph-mon -c "$conf" --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring"
        run mon.a ceph-mon -i a
        ceph-osd -c "$conf" --mkfs -i 0 --osd-uuid "$id"
        timeout 300 ceph -c "$conf" osd new "$id"
        run osd.0 ceph-osd -i 0
        timeout 300 radosgw-admin -c "$conf" user create --uid=test --display-name=test \
            --access-key="$access" --secret-key="$secret" >/dev/null
    } >"$dir/run/start.out" 2>&1
    gateway
}

# The gateway before the store, and that before the monitor: each waits for the next one otherwise.
stop() {
    local name pid
    for name in client.rgw.a osd.0 mon.a; do
        pid=$(cat "$dir/run/$name.pid" 2>/dev/null) || continue
        end_process "$pid" TERM 5 || end_process "$pid" KILL 5 || echo "$name, process $pid, does not end" >&2
        rm -f "$dir/run/$name.pid"
    done
    # What a start that was killed has left.
    while IFS=/ read -r _ _ pid _; do
        end_process "$pid" KILL 5 || true
    done < <(grep -lzxF -- "$conf" /proc/[0-9]*/cmdline 2>/dev/null)
}

# end_process PID SIGNAL SECONDS: it is gone within this time.
end_process() {
    local end=$((SECONDS + $3))
    ! is_ours "$1" || kill "-$2" "$1" 2>/dev/null || true
    while is_ours "$1"; do
        ((SECONDS <= end)) || return 1
        sleep 0.02
    done
}

# What has begun must not be left behind by a start that fails.
failed() {
    echo "radosgw.sh: it cannot be started in $dir" >&2
    tail -n 5 "$dir/run/start.out" >&2 || true
    stop
}

usage() {
    sed -n '4,7s/^# *//p' "$0" >&2
    exit 2
}

(($# >= 2)) || usage
command=$1
dir=$(realpath -m "$2")
conf=$dir/ceph.conf
shift 2
case $command/$# in
start/3)
    if [[ -e $conf ]]; then
        echo "$dir has been used before" >&2
        exit 2
    fi
    require_tools
    trap failed EXIT
    start "$@"
    trap - EXIT
    ;;
gateway/0) gateway ;;
collect/0) timeout 300 radosgw-admin -c "$conf" gc process --include-all ;;
stop/0) stop ;;
*) usage ;;
esac
