#!/bin/bash
# What helps with the command line: manual pages, and completions of shells.
#
#     tests/shell/manual.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

pages=$TMP/man/man1
"$SHARDFS" man "$TMP/man"
mapfile -t commands < <("$SHARDFS" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\+\) .*/\1/p' | grep -vx help)

# options COMMAND: the names of its options, as its help has them
options() { "$SHARDFS" "$1" --help | grep -oE '^ +(-[a-z],? )?(--[a-z0-9-]+)?' | grep -oE -- '--?[a-z][a-z0-9-]*' | sort -u; }

each_command_has_a_page() {
    local command option
    ((${#commands[@]} >= 7))
    [[ -s $pages/shardfs.1 && -s $TMP/man/man8/mount.shardfs.8 ]]
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
    for page in "$TMP"/man/man?/*; do
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

synopses_tell_how_to_call() {
    plain() { sed 's/\\f[A-Z]//g; s/\\-/-/g' "$TMP/man/man${1##*.}/$1"; }
    plain shardfs-pack.1 | grep -F 'shardfs pack --shard RULE [--index WHERE] [--order ORDER]' | grep ' SOURCE DEST$'
    plain shardfs-info.1 | grep -F '[--map[=SHARD-KEY]]'
    plain mount.shardfs.8 | grep -Fx 'mount -t shardfs [-o OPTION,...] SOURCE MOUNTPOINT'
    plain mount.shardfs.8 | grep -Fx '/data/volume.zarr  /mnt/volume  shardfs  ro,allow_other,nofail  0  0'
    plain mount.shardfs.8 >"$TMP/plain"
    fails_with "" grep 'shardfs mount ' "$TMP/plain"
}
check "pages show how to call a command, values included" synopses_tell_how_to_call

help_fits() {
    local columns command lines
    for columns in 80 100; do
        for command in "" "${commands[@]}"; do
            # shellcheck disable=SC2086 # no word without a command
            lines=$(COLUMNS=$columns "$SHARDFS" $command --help)
            awk -v columns=$columns '{ gsub(/[^ -~]+/, "?") } length > columns { exit 1 }' <<<"$lines" ||
                { echo "$command: wider than $columns"; return 1; }
        done
    done
    # What does not fit in the second column goes on in the second column.
    lines=$(COLUMNS=80 "$SHARDFS" mount --help | sed -n '/^Options of -o:/,/^$/p' | tail -n +2)
    (($(wc -l <<<"$lines") > 25))
    fails_with "" grep -vE '^(  [^ ].{18} |                      )[^ ]|^$' <(cat <<<"$lines")
    # No line ends early because it was broken by hand before.
    COLUMNS=100 "$SHARDFS" info --help | grep -x 'The map shows the last two axes.* Where there'
    COLUMNS=80 "$SHARDFS" create --help | grep -x 'wishes. What is not given is found.*'
}
check "help is as wide as the terminal" help_fits

help_is_short_or_long() {
    local command
    for command in "" mount info ls verify create resize delete pack unpack repack; do
        # shellcheck disable=SC2086 # no word without a command
        (($("$SHARDFS" $command -h | wc -l) < $("$SHARDFS" $command --help | wc -l))) || { echo "$command"; return 1; }
    done
    fails_with "" grep 'Examples:' <("$SHARDFS" mount -h)
    "$SHARDFS" mount --help | grep 'Examples:'
}
check "-h is short, --help is long" help_is_short_or_long

topics_are_explained() {
    local topic topics pages=0
    mapfile -t topics < <("$SHARDFS" help | sed -n '/^Topics of shardfs help:/,$s/^  \([a-z-]*\)  .*/\1/p')
    ((${#topics[@]} >= 6))
    for topic in "${topics[@]}"; do
        # Fitted like the help of commands, and with a page of its own.
        COLUMNS=80 "$SHARDFS" help "$topic" | awk 'length > 80 { exit 1 } END { exit NR < 8 }'
        [[ -s $TMP/man/man7/shardfs-$topic.7 ]]
        # Its headings are those of its lists, and no sentences.
        fails_with "" grep -E '^\.SH "([^ ]+ ){9}' "$TMP/man/man7/shardfs-$topic.7"
        pages=$((pages + 1))
    done
    [[ $pages == "$(find "$TMP/man/man7" -type f | wc -l)" ]]
    "$SHARDFS" help views | grep -x '  flat  *array.npy, array.raw: .*'
    cmp <("$SHARDFS" help mount) <("$SHARDFS" mount --help)
    cmp <("$SHARDFS" help unmount) <("$SHARDFS" umount --help)
    cmp <("$SHARDFS" help) <("$SHARDFS" --help)
    expect_exit 2 "$SHARDFS" help nothing >"$TMP/unknown" 2>&1
    grep -F 'there is no command and no topic "nothing"' "$TMP/unknown"
}
check "topics are explained as commands are" topics_are_explained

options_are_documented() {
    local command option
    for command in "${commands[@]}"; do
        for option in $(options "$command" | grep -- '^--' | grep -vx -- --help); do
            grep -qF -- "$option" "$repo/README.md" "$repo"/docs/*.md || { echo "$command $option"; return 1; }
        done
    done
}
check "every option is in the documentation" options_are_documented

pages_are_written_anew() {
    echo old >"$pages/shardfs-mount.1"
    "$SHARDFS" man "$TMP/man"
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
    # The options wait until a dash is typed.
    fails_with "" grep -- '^-' <(completed completions '')
    completed mount - | grep -x -- --rw
}
check "bash completes commands and options" bash_completes

bash_completes_values() {
    [[ $(completed mount --view '' | tr '\n' ' ') == 'zarr3 zarr2 npy raw flat ' ]]
    [[ $(completed mount --format b | tr '\n' ' ') == 'bloscpack blz blosc2 ' ]]
    [[ $(completed mount --update in) == in-place && $(completed mount --missing f) == fill ]]
    [[ $(completed pack --order m) == morton && $(completed create --index-location s) == start ]]
    completed mount -o allow | grep -x allow_other
}
check "bash completes values of options" bash_completes_values

# typed SHELL TEXT: what an interactive shell makes of a text and a tab
typed() {
    (cd "$TMP/completed" && python3 - "$SHARDFS" "$1" "$2") <<'EOF'
import os, pty, re, select, sys
program, shell, text = sys.argv[1:]
COMMANDS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
STARTS = {"bash": "bind 'set bell-style none'", "zsh": "unsetopt zle_bracketed_paste; bindkey -e; autoload -Uz compinit; compinit -u -D"}
pid, master = pty.fork()
if pid == 0:
    os.environ.update(PS1="$ ", TERM="dumb", INPUTRC="/dev/null")
    os.execvp(shell, COMMANDS[shell])
def read_until(end):
    found = b""
    while end not in found:
        if not select.select([master], [], [], 20)[0]:
            sys.exit(f"no {end} in {found}")
        found += os.read(master, 4096)
    return found.decode(errors="replace")
os.write(master, f"{STARTS[shell]}; source <({program} completions {shell}); echo rea''dy\n".encode())
read_until(b"ready\r\n")
# What is on the line then is an argument of another command.
os.write(master, b"show() { printf '<%s>' \"$@\"; echo en''d; }; echo rea''dy\n")
read_until(b"ready\r\n")
os.write(master, f"shardfs {text}\t".encode())
# zsh loads its functions first.
quiet = 0.5 if shell == "bash" else 3
while select.select([master], [], [], quiet)[0]:
    os.read(master, 4096)
os.write(master, b"\x01show \x05\n")
print(re.search(r"<[^\r\n]*>(?=end)", read_until(b"end\r\n")).group())
os.write(master, b"exit\n")
os.waitpid(pid, 0)
EOF
}

bash_completes_names() {
    mkdir -p "$TMP/completed/volume.zarr" "$TMP/completed/mountpoint"
    touch "$TMP/completed/data.blp" "$TMP/completed/measured"
    [[ $(typed bash 'mount vol') == '<shardfs><mount><volume.zarr/>' ]]
    [[ $(typed bash 'mount da') == '<shardfs><mount><data.blp>' ]]
    [[ $(typed bash 'mount --rw data.blp mou') == '<shardfs><mount><--rw><data.blp><mountpoint/>' ]]
    [[ $(typed bash 'mount --log-file da') == '<shardfs><mount><--log-file><data.blp>' ]]
    [[ $(typed bash 'mount --view zarr2 vol') == '<shardfs><mount><--view><zarr2><volume.zarr/>' ]]
    [[ $(typed bash 'umount mou') == '<shardfs><umount><mountpoint/>' ]]
}
check "bash completes names of files and directories" bash_completes_names

# fish_offers TEXT: what fish offers for the last word, without its explanation
fish_offers() {
    # shellcheck disable=SC2016 # for fish
    (cd "$TMP/completed" && fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$TMP/script.fish" "shardfs $1" |
        cut -f 1)
}

fish_completes() {
    command -v fish >/dev/null || { skip "no fish" && return; }
    "$SHARDFS" completions fish >"$TMP/script.fish"
    [[ $(fish_offers mo) == mount ]]
    fish_offers 'mount --commit' | grep -x -- --commit-interval
    [[ $(fish_offers 'mount --view ' | sort | tr '\n' ' ') == 'flat npy raw zarr2 zarr3 ' ]]
    fish_offers 'mount -o allow' | grep -x allow_other
    fish_offers 'completions z' | grep -x zsh
    fish_offers 'help v' | grep -x views
    [[ $(fish_offers 'mount vol') == volume.zarr/ && $(fish_offers 'mount da') == data.blp ]]
    [[ $(fish_offers 'mount data.blp mou') == mountpoint/ ]]
}
check "fish completes commands, options, values and names" fish_completes

zsh_completes() {
    command -v zsh >/dev/null || { skip "no zsh" && return; }
    [[ $(typed zsh 'mou') == '<shardfs><mount>' ]]
    [[ $(typed zsh 'mount --commit') == '<shardfs><mount><--commit-interval>' ]]
    [[ $(typed zsh 'mount --view f') == '<shardfs><mount><--view><flat>' ]]
    [[ $(typed zsh 'completions zs') == '<shardfs><completions><zsh>' ]]
    [[ $(typed zsh 'help vie') == '<shardfs><help><views>' ]]
    # What zsh appends goes again when something else than a name is typed.
    [[ $(typed zsh 'mount vol') == '<shardfs><mount><volume.zarr>' ]]
    # The mount point is a directory: files are not offered.
    [[ $(typed zsh 'mount data.blp m') == '<shardfs><mount><data.blp><mountpoint>' ]]
    [[ $(typed zsh 'mount --log-file da') == '<shardfs><mount><--log-file><data.blp>' ]]
}
check "zsh completes commands, options, values and names" zsh_completes

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
