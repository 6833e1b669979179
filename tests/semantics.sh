#!/bin/bash
# Runs the examples of the documentation and compares what they print with what is written there.
#
#     tests/semantics.sh              docs/SEMANTICS.md, VIEWS.md, COMMANDS.md, USAGE.md and METRICS.md,
#                                   then README.md
#     tests/semantics.sh FILE...      the examples of other files
#
# An example is a line "$ COMMAND" in a fenced block that is marked "console".  "> " continues it.  The
# lines up to the next one are what the command prints, stderr included.  "..." stands for any text, on a
# line of its own for any lines; "[N]" as the last line for the exit code, which is 0 otherwise.  A block
# that is marked "console needs PROGRAM..." is left out where one of the programs is not installed.
#
# Each file is run from its first example to its last, in a new directory with a new sample, sample.zarr,
# mounted on mnt.  The README makes both itself.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
export LC_ALL=C TZ=UTC
unset RUST_LOG

# As long as an example may take.
patience=90

mkdir "$TMP/bin"
ln -s "$SHARDFS" "$TMP/bin/shardfs"
export PATH=$TMP/bin:$PATH

# All mounts in our directory are ended, also those of examples that were not foreseen.
register_mounts() {
    awk -v below="$TMP/" 'index($2, below) == 1 { print $2 }' /proc/self/mounts >>"$TMP/mounts"
}
trap 'rc=$?; register_mounts; end "$rc"' EXIT

# --- one example -----------------------------------------------------------------------------------

# matches I J: the lines of "want" from I on are the lines of "got" from J on.
matches() {
    local i=$1 j=$2 pattern
    for (( ; i < ${#want[@]}; i++, j++)); do
        if [[ ${want[i]} == ... ]]; then
            for (( ; j <= ${#got[@]}; j++)); do
                ! matches $((i + 1)) "$j" || return 0
            done
            return 1
        fi
        ((j < ${#got[@]})) || return 1
        # Nothing but "..." has a meaning.
        pattern=$(sed 's/[^[:alnum:]]/\\&/g; s/\\\.\\\.\\\./*/g' <<<"${want[i]}")
        # shellcheck disable=SC2053 # a pattern on purpose
        [[ ${got[j]} == $pattern ]] || return 1
    done
    ((j == ${#got[@]}))
}

# Runs $command in $work and compares: $want, $file and $line come from the caller.
run_example() {
    local rc=0 code=0 got last
    if ((${#want[@]} > 0)) && [[ ${want[-1]} =~ ^\[([0-9]+)\]$ ]]; then
        code=${BASH_REMATCH[1]}
        unset 'want[-1]'
    fi
    # Known before it is made: should it hang, the deadline ends it.
    if [[ $command =~ ^shardfs\ mount\ .*\ ([^ ]+)$ ]]; then
        echo "$work/${BASH_REMATCH[1]}" >>"$TMP/mounts"
    fi
    # Into a file: a background process that kept a pipe open would be waited for.
    (cd "$work" && timeout "$patience" bash -c "$command") </dev/null >"$TMP/out" 2>&1 || rc=$?
    mapfile -t got <"$TMP/out"
    if ! matches 0 0; then
        fail "$file:$line: $ ${command%%$'\n'*}"
        diff --label written --label printed -u <(printf '%s\n' "${want[@]}") "$TMP/out" | indent || true
    elif [[ $rc != "$code" ]]; then
        fail "$file:$line: $ ${command%%$'\n'*}"
        echo "exit code $rc, $code is written" | indent
    else
        last=${command%%$'\n'*}
        pass "$file:$line: $ $last"
    fi
}

# --- one file --------------------------------------------------------------------------------------

has_programs() {
    local program
    for program; do
        command -v "$program" >/dev/null || return 1
    done
}

# run_file FILE: all its examples, in order.
run_file() {
    local file=$1 text line=0 number=0 inside='' command='' continues='' want=() examples=0 needed
    while IFS= read -r text || [[ -n $text ]]; do
        number=$((number + 1))
        if [[ -z $inside ]]; then
            [[ $text != '```console' ]] || inside=yes
            if [[ $text == '```console needs '* ]]; then
                needed=${text#*needs }
                # shellcheck disable=SC2086 # several names
                if has_programs $needed; then inside=yes; else skip "$file:$number: needs $needed"; fi
            fi
            continue
        fi
        if [[ $text == '```' || $text == '$ '* ]] && [[ -n $command ]]; then
            run_example
            command=''
        fi
        case $text in
        '```') inside='' ;;
        '$ '*)
            command=${text#'$ '} line=$number want=() continues=yes
            examples=$((examples + 1))
            ;;
        '> '*)
            if [[ -n $continues ]]; then
                command+=$'\n'${text#'> '}
            else
                want+=("$text")
            fi
            ;;
        *)
            continues=''
            want+=("$text")
            ;;
        esac
    done <"$repo/$file"
    # A block that is never closed, or a file without examples, would test nothing.
    if [[ -n $inside || $examples == 0 ]]; then
        fail "$file: a block has no end, or there is no example"
    fi
}

files=("$@")
[[ $# -gt 0 ]] || files=(docs/SEMANTICS.md docs/VIEWS.md docs/COMMANDS.md docs/USAGE.md docs/METRICS.md README.md)

for file in "${files[@]}"; do
    work=$(mktemp -d "$TMP/work.XXXXXX")
    if [[ $file != README.md ]]; then
        "$SHARDFS" create --sample "$work/sample.zarr"
        mkdir "$work/mnt"
        echo "$work/mnt" >>"$TMP/mounts"
        timeout 30 "$SHARDFS" mount "$work/sample.zarr" "$work/mnt" </dev/null >"$TMP/mount.log" 2>&1 || {
            cat "$TMP/mount.log"
            exit 1
        }
    fi
    run_file "$file"
done
