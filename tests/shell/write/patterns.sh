#!/bin/bash
# Every pattern of writing (patterns.py) on every layout of arrays, and with every policy of updates.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

mapfile -t layouts < <(python3 "$here/arrays.py" layouts)
make_arrays "${layouts[@]}"

patterns() {
    local layout=$1
    shift
    fresh "$layout" "$@"
    python3 "$here/patterns.py" "$want" "$layout" >"$work/in-want"
    python3 "$here/patterns.py" "$MP" "$layout" >"$work/in-mount"
    diff "$work/in-want" "$work/in-mount"
    settled
}
for layout in "${layouts[@]}"; do
    [[ $layout == compressed ]] || at_once "all patterns: $layout" patterns "$layout"
done
for layout in slash start nested; do
    at_once "all patterns: $layout, --update=in-place" patterns "$layout" --update=in-place
done
at_once "all patterns: start, --update=append" patterns start --update=append
at_once "all patterns: nested, --update=rewrite" patterns nested --update=rewrite
at_once "all patterns: every close is a commit" patterns slash -o sync
at_once "all patterns: memory for a few chunks only" patterns slash --dirty-limit 16K

finish
