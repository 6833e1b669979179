#!/bin/sh
# Installs shardfs from this archive, or removes it.
#
#     ./install.sh [--prefix DIR] [--uninstall]
#
# The prefix is /usr/local for root, and ~/.local for others. Root's gets mount.shardfs as well, which
# mount(8) and /etc/fstab need, and a service for systemd.
set -eu
umask 022
unset CDPATH

# What is installed, below the archive and below the prefix alike.
files="bin/shardfs share/man/man1/*.gz share/man/man7/*.gz share/man/man8/*.gz
share/bash-completion/completions/shardfs share/zsh/site-functions/_shardfs
share/fish/vendor_completions.d/shardfs.fish share/doc/shardfs/*"
service=lib/systemd/system/shardfs@.service
helper=/sbin/mount.shardfs

say() { echo "install.sh: $*" >&2; }
die() {
    say "$*"
    exit 1
}

# is_ours FILE: it is the link that this script makes for this prefix.
is_ours() { [ "$(readlink "$1" 2>/dev/null)" = "$prefix/bin/shardfs" ]; }

# is_roots DIRECTORY: no other user can replace what is in it. What root and mount(8) run must be so.
is_roots() {
    directory=$1
    while :; do
        # The permissions of others: without the bit for writing.
        case $(stat -L -c '%u %a' "$directory") in
        "0 "*[0145]) ;;
        *) return 1 ;;
        esac
        [ "$directory" != / ] || return 0
        directory=$(dirname "$directory")
    done
}

# put FILE MODE: beside and renamed, for the program may be running.
put() {
    mkdir -p "$prefix/$(dirname "$1")"
    cat >"$prefix/$1.new"
    chmod "$2" "$prefix/$1.new"
    mv -f "$prefix/$1.new" "$prefix/$1"
}

remove() {
    # shellcheck disable=SC2086 # patterns
    for file in $files $service; do
        rm -f "$prefix/$file"
    done
    rmdir "$prefix/share/doc/shardfs" 2>/dev/null || true
    if is_ours "$helper"; then rm -f "$helper"; fi
    echo "removed from $prefix"
}

# put_roots: what only root's installation has.
put_roots() {
    # Links may lead elsewhere: both the names and the places that they lead to count.
    if ! is_roots "$prefix/bin" || ! is_roots "$(cd -P -- "$prefix/bin" && pwd)"; then
        say "others than root may write to $prefix/bin or above: no $helper and no service"
        return
    fi
    if is_ours "$helper" || { [ ! -e "$helper" ] && [ ! -L "$helper" ]; }; then
        ln -sfn "$prefix/bin/shardfs" "$helper" || say "without $helper mount(8) does not know shardfs"
    else
        say "$helper is there already, of another installation, and stays"
    fi
    sed "s|/usr/bin/shardfs|$prefix/bin/shardfs|" "$service" | put "$service" 644
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
}

install_all() {
    # shellcheck disable=SC2086 # patterns
    for file in $files; do
        [ -f "$file" ] || die "$PWD/$file is missing: unpack the archive again"
        mode=644
        [ "$file" != bin/shardfs ] || mode=755
        # shellcheck disable=SC2094 # from the archive to the prefix
        put "$file" $mode <"$file"
    done
    [ -z "$is_root" ] || put_roots
    "$prefix/bin/shardfs" --version
    echo "installed in $prefix"
    case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) echo "add $prefix/bin to PATH" ;;
    esac
    if [ -z "$is_root" ] && ! command -v fusermount3 >/dev/null; then
        echo "mounting also needs fusermount3 (package fuse3)"
    fi
}

act=install_all
is_root=
[ "$(id -u)" != 0 ] || is_root=1
if [ "$is_root" ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -gt 1 ] || die "--prefix: which directory?"
        prefix=$2
        shift
        ;;
    --uninstall) act=remove ;;
    *)
        sed -n '2,7s/^# \{0,1\}//p' "$0"
        [ "$1" = --help ] || [ "$1" = -h ] || exit 1
        exit 0
        ;;
    esac
    shift
done
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
while [ "$prefix" != "${prefix%/}" ]; do prefix=${prefix%/}; done
case $prefix in
*[!A-Za-z0-9/._+-]*) die "$prefix: a prefix is of letters, digits and ._+-" ;;
'') die "the prefix cannot be /" ;;
esac
cd -- "$(dirname -- "$0")"
$act
