#!/bin/bash
# .shardfs/metrics is read by a parser of OpenMetrics, and says the same as .shardfs/stats.json.
#
#     tests/clients/metrics.sh
#
# The parser comes from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
checker() { "${SHARDFS_VENVS:-$repo/target/venvs}/metrics/bin/python" "$here/metrics_check.py" "$@"; }

"$SHARDFS" create --sample "$TMP/sample.zarr" >/dev/null

read_only() {
    mount_view "$TMP/sample.zarr" "$@"
    find "$MP" -type f -exec cat {} + >/dev/null
    fails_with '' cat "$MP/waves/c/0/0/no-chunk"
    # What it is, is known before it is read.
    [[ $(stat -c '%a %s' "$MP/.shardfs/metrics") == "444 $(wc -c <"$MP/.shardfs/metrics")" ]]
    checker "$MP"
    # Read in pieces it is one text, too.
    dd if="$MP/.shardfs/metrics" of="$TMP/pieces" bs=1000 status=none
    [[ $(wc -c <"$TMP/pieces") == 65536 && $(tail -n 1 "$TMP/pieces") == '# EOF' ]]
    unmount_view
}
check "a mount that is read" read_only
check "one of a source that does not change" read_only -o immutable
check "one of several views" read_only --view zarr3,npy

written() {
    mount_view "$TMP/sample.zarr" --rw --commit-interval 60
    cp "$MP/waves/c/0/0/0" "$TMP/chunk"
    cp "$TMP/chunk" "$MP/waves/c/0/0/1"
    checker "$MP" --uncommitted "$(stat -c %s "$TMP/chunk")"
    "$SHARDFS" sync "$MP"
    checker "$MP" --uncommitted 0
    unmount_view
}
check "one that is written to" written

# The script of the documentation that copies metrics to where the node exporter finds them.
copied() {
    local into=$TMP/node-exporter one two
    mkdir "$into"
    mount_view "$TMP/sample.zarr"
    one=$MP
    mount_view "$TMP/sample.zarr" --rw
    two=$MP
    {
        awk '/^```/ { inside = 0 } inside; /^```sh/ { inside = 1 }' "$repo/docs/METRICS.md" |
            sed -e "s|^into=.*|into=$into|" -e '/^copy [a-z]/d'
        printf 'copy %s\n' "one '$one'" "two '$two'" "gone '$TMP/gone'"
    } >"$TMP/copy"
    touch "$into/shardfs-gone.prom"
    sh "$TMP/copy"
    [[ $(cd "$into" && echo *) == 'shardfs-one.prom shardfs-two.prom' ]]
    checker "$two" --uncommitted 0 --copy "$into/shardfs-two.prom" --other "$into/shardfs-one.prom" \
        --dashboard "$repo/docs/grafana.json" --page "$repo/docs/METRICS.md"
    unmount_view "$two"
    unmount_view "$one"
}
check "what is copied for the node exporter has a label for each mount" copied
