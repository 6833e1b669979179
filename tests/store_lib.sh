# shellcheck shell=bash
# An object store of our own for scripts: the files below $TMP/top as the bucket `bucket` (examples/store.rs). Source it after
# lib.sh.

# shellcheck disable=SC2154 # of lib.sh
(cd "$repo" && cargo build --quiet --example store)
store=$repo/target/debug/examples/store

# stop_store: it accepts connections, and answers nothing. Its threads stop one after the other.
stop_store() {
    kill -STOP "$STORE"
    within 60 store_is_stopped
}
store_is_stopped() {
    local states
    # One that ends meanwhile is not stopped.
    states=$(grep -h '^State:' "/proc/$STORE/task/"*/status) && ! grep -qv 'T (stopped)' <<<"$states"
}

# start_store [LATENCY-MS [HOW]]: sets URL, and STORE, its process, which ends with this script.
start_store() {
    local out
    out=$(mktemp "$TMP/store.XXXXXX")
    mkfifo "$out.end"
    "$store" "$TMP/top" "$@" <"$out.end" >"$out" &
    STORE=$!
    # Held open until this script ends, and the store with it.
    # shellcheck disable=SC2034 # it is never written to
    exec {held}>"$out.end"
    at_end bash -c "kill -KILL $STORE 2>/dev/null || true"
    within 20 test -s "$out"
    # shellcheck disable=SC2034 # of those who source this
    URL=$(<"$out")
}
