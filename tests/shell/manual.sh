#!/bin/bash
# What helps with the command line: manual pages, and completions of shells.
#
#     tests/shell/manual.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

pages=$TMP/man/pages
"$SHARDFS" man "$pages"
mapfile -t commands < <("$SHARDFS" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\+\) .*/\1/p' | grep -vx help)

# options COMMAND: the names of its options, as its help has them
options() { "$SHARDFS" "$1" --help | grep -oE '^ +(-[a-z],? )?(--[a-z0-9-]+)?' | grep -oE -- '--?[a-z][a-z0-9-]*' | sort -u; }

each_command_has_a_page() {
    local command option
    ((${#commands[@]} >= 7))
    [[ -s $pages/shardfs.1 && -s $pages/mount.shardfs.8 ]]
    for command in "${commands[@]}"; do
        grep -q "shardfs\\\\-$command(1)" "$pages/shardfs.1"
        for option in $(options "$command"); do
            # A hyphen that is one, not a place to break a line.
            grep -qF -- "${option//-/\\-}" "$pages/shardfs-$command.1" ||
                { echo "$command: no $option"; return 1; }
        done
    done
}
check "each command has a page, with each of its options" each_command_has_a_page

pages_are_clean() {
    local page
    for page in "$pages"/*; do
        if command -v groff >/dev/null; then
            groff -man -ww -Tutf8 "$page" 2>"$TMP/warnings" >/dev/null
            fails_with "" grep . "$TMP/warnings"
        fi
        if command -v man >/dev/null; then
            man --warnings -l "$page" 2>"$TMP/warnings" >/dev/null
            fails_with "" grep . "$TMP/warnings"
        fi
    done
}
check "pages are formatted without a warning" pages_are_clean

pages_are_written_anew() {
    echo old >"$pages/shardfs-mount.1"
    "$SHARDFS" man "$pages"
    grep -q '^\.TH shardfs-mount 1' "$pages/shardfs-mount.1"
    cmp <("$SHARDFS" man -) "$pages/shardfs.1"
    "$SHARDFS" man - | head -n 1 >/dev/null
    expect_exit 2 "$SHARDFS" man "$pages/shardfs.1/x" | grep 'Not a directory'
}
check "pages are overwritten; - is stdout" pages_are_written_anew

# completed WORD...: what bash offers for the last word
completed() {
    # shellcheck disable=SC2016 # expanded by the other bash
    bash --norc --noprofile -c '
        eval "$("$1" completions bash)"
        shift
        complete -p shardfs >/dev/null
        COMP_WORDS=(shardfs "$@") COMP_CWORD=$#
        COMP_LINE="${COMP_WORDS[*]}" COMP_POINT=${#COMP_LINE}
        function=$(complete -p shardfs | sed "s/.*-F \([^ ]*\).*/\1/")
        previous=shardfs
        (($# < 2)) || previous=${COMP_WORDS[$# - 1]}
        "$function" shardfs "${COMP_WORDS[$#]}" "$previous"
        printf "%s\n" "${COMPREPLY[@]}"' _ "$SHARDFS" "$@"
}

bash_completes() {
    completed mo | grep -qx mount
    completed ref | grep -qx refs
    completed refs --skip | grep -qx -- --skip-damaged
    completed mount --commit | grep -qx -- --commit-interval
    completed completions zs | grep -qx zsh
}
check "bash completes commands and options" bash_completes

scripts_are_valid() {
    local shell
    for shell in bash zsh fish; do
        "$SHARDFS" completions "$shell" >"$TMP/script.$shell"
        grep -q shardfs "$TMP/script.$shell"
        ! command -v "$shell" >/dev/null || "$shell" -n "$TMP/script.$shell"
    done
    "$SHARDFS" completions bash | head -n 1 >/dev/null
    expect_exit 2 "$SHARDFS" completions sh
}
check "completions are valid in each shell" scripts_are_valid
