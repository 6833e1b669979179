#!/bin/bash
# Installs what scripts/release has made on machines without Rust: Debian packages, wheels and archives, in fresh roots of
# Debian 12 and of an older one, and in one that has nothing at all.
#
#     tests/packages.sh [DIST]
#
# DIST is what scripts/release has made (default dist). As root; needs debootstrap and lintian. It is no part of scripts/test,
# since it needs a release. Roots are kept in target/roots, as debootstrap makes them.

# Roots are made, and packages fetched.
export SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-3600}
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# What is mounted in the roots goes with the namespace.
[[ ${1:-} == in-namespace ]] || { export DIST=${1:-}; run_in_namespace; }

dist=$(realpath "${DIST:-$repo/dist}")
kept=$repo/target/roots
machine=$(uname -m)
deb=$(echo "$dist"/shardfs_*_"$(dpkg --print-architecture)".deb)
wheel=$(echo "$dist"/shardfs-*"_$machine"*.whl)
archive=$(echo "$dist"/shardfs-*"-$machine"-unknown-linux-musl.tar.gz)
for program in debootstrap lintian; do
    command -v "$program" >/dev/null || { echo "install the package $program" >&2; exit 1; }
done

sums_are_right() {
    cd "$dist"
    sha256sum --check --quiet SHA256SUMS
    # Each file has one.
    [[ $(wc -l <SHA256SUMS) == "$(find . -type f ! -name SHA256SUMS | wc -l)" ]]
}
check "checksums are those of the files" sums_are_right

check "lintian finds no error in the Debian package" lintian --fail-on error "$deb"

# new_root SUITE: a fresh root of that Debian; sets ROOT.
new_root() {
    if [[ ! -e $kept/$1.tar ]]; then
        mkdir -p "$kept"
        debootstrap --variant=minbase "$1" "$TMP/made-$1" >"$TMP/debootstrap.log" 2>&1 || {
            tail -n 5 "$TMP/debootstrap.log"
            return 1
        }
        tar -C "$TMP/made-$1" -cf "$kept/$1.tar.new" .
        mv "$kept/$1.tar.new" "$kept/$1.tar"
        rm -rf --one-file-system "$TMP/made-$1"
    fi
    ROOT=$TMP/$1
    mkdir "$ROOT"
    tar -C "$ROOT" -xf "$kept/$1.tar"
    cp /etc/resolv.conf "$ROOT/etc/"
    # As Debian's installer leaves it: fusermount3 looks there.
    ln -sf ../proc/self/mounts "$ROOT/etc/mtab"
    furnish
}

# furnish: what every machine has when it runs. Debian lets all users open /dev/fuse; this machine may not.
furnish() {
    local name
    mkdir -p "$ROOT/proc" "$ROOT/dev" "$ROOT/tmp"
    mount -t proc proc "$ROOT/proc"
    mount -t tmpfs -o mode=755 devices "$ROOT/dev"
    for name in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "fuse 10 229"; do
        # shellcheck disable=SC2086 # a name and two numbers
        set -- $name
        mknod -m 666 "$ROOT/dev/$1" c "$2" "$3"
    done
    ln -s /proc/self/fd "$ROOT/dev/fd"
    mkdir -m 1777 "$ROOT/dev/shm"
}

# inside COMMAND...: in the root, as on a machine of its own.
inside() {
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        chroot "$ROOT" "$@"
}

debian_package_installs() {
    new_root bookworm
    fails_with "" inside which rustc
    cp "$deb" "$ROOT/tmp/"
    inside apt-get -q update >/dev/null
    inside apt-get -q install -y "/tmp/$(basename "$deb")"
    inside shardfs --version
    # Recommended: users other than root mount with it.
    inside which fusermount3
    [[ $(inside readlink -f /sbin/mount.shardfs) == /usr/bin/shardfs ]]
    [[ -s $ROOT/usr/share/bash-completion/completions/shardfs && -s $ROOT/usr/lib/systemd/system/shardfs@.service ]]
    grep -q MIT "$ROOT/usr/share/doc/shardfs/copyright"
    grep -q '^musl' "$ROOT/usr/share/doc/shardfs/THIRD-PARTY-LICENCES.txt"
    # A minimal Debian leaves manual pages out.
    dpkg-deb -c "$deb" >"$TMP/listed"
    grep -q './usr/share/man/man8/mount.shardfs.8.gz$' "$TMP/listed"
    grep -q './usr/share/man/man7/shardfs-views.7.gz$' "$TMP/listed"
}
check "a fresh Debian 12 installs the package" debian_package_installs
ROOT=$TMP/bookworm

mounts_by_hand() {
    inside shardfs create --sample /root/sample.zarr
    inside mkdir -p /mnt/sample
    inside shardfs mount --rw /root/sample.zarr /mnt/sample
    [[ $(inside find /mnt/sample/waves/c -type f | wc -l) == 192 ]]
    inside cp /mnt/sample/waves/c/0/0/0 /mnt/sample/waves/c/0/0/6
    inside shardfs umount /mnt/sample
    inside shardfs verify --decode /root/sample.zarr | grep ' 193 chunks, .* 0 defects'
}
check "there it mounts, writes and unmounts" mounts_by_hand

mounts_by_fstab() {
    echo '/root/sample.zarr  /mnt/sample  shardfs  ro,allow_other,nofail  0  0' >>"$ROOT/etc/fstab"
    inside mount /mnt/sample
    inside grep ' /mnt/sample fuse.shardfs ro,' /proc/mounts
    [[ $(inside find /mnt/sample/waves/c -type f | wc -l) == 193 ]]
    inside umount /mnt/sample
    inside mount -t shardfs -o view=flat /root/sample.zarr /mnt/sample
    [[ $(inside stat -c %s /mnt/sample/waves/array.npy) == 1720448 ]]
    inside umount /mnt/sample
}
check "there mount(8) mounts it, from /etc/fstab and by hand" mounts_by_fstab

users_mount() {
    inside useradd --create-home user
    inside su user -c 'cd && shardfs create --sample s.zarr && mkdir m && shardfs mount s.zarr m && ls m/waves && shardfs umount m'
}
check "there a user mounts with fusermount3" users_mount

wheel_installs() {
    inside apt-get -q install -y python3-venv >/dev/null
    # Networks may have certificates of their own.
    cp /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"
    [[ ! -e /etc/pip.conf ]] || cp /etc/pip.conf "$ROOT/etc/"
    cp "$wheel" "$ROOT/tmp/"
    inside dpkg --purge shardfs
    fails_with "" inside which shardfs
    inside python3 -m venv /venv
    inside /venv/bin/pip install -q "/tmp/$(basename "$wheel")"
    inside /venv/bin/shardfs --version
    # The module finds the program beside its interpreter.
    inside /venv/bin/python -c 'import shardfs
with shardfs.mount("/root/sample.zarr") as path:
    assert len((path / "waves/c/0/0/0").read_bytes()) == 1504'
}
check "in a fresh Python the wheel installs module and program" wheel_installs

python_page_runs() {
    local packages
    packages=$(sed -n '/^module_packages=(/,/)$/p' "$repo/tests/clients/setup.sh" | tr -d '()\n' | sed 's/^module_packages=//')
    # shellcheck disable=SC2086 # several packages
    inside /venv/bin/pip install -q $packages
    mkdir -p "$ROOT/repository"
    cp -r "$repo/docs" "$ROOT/repository/"
    mkdir "$ROOT/repository/python"
    cp -r "$repo/python/tests" "$repo/python/pyproject.toml" "$ROOT/repository/python/"
    inside sh -c 'cd /repository/python && /venv/bin/python -m pytest -q -p no:cacheprovider tests/test_page.py'
}
check "with it the examples of docs/PYTHON.md run" python_page_runs

# runs_archive: the archive installs, mounts and is removed, in the root.
runs_archive() {
    local before after
    before=$(cd "$ROOT" && find usr etc root ! -type d | sort)
    cp "$archive" "$ROOT/tmp/"
    inside sh -c 'cd /tmp && tar -xzf shardfs-*.tar.gz && shardfs-*/install.sh'
    [[ $(inside readlink /sbin/mount.shardfs) == /usr/local/bin/shardfs ]]
    grep -q '^ExecStart=/usr/local/bin/shardfs ' "$ROOT/usr/local/lib/systemd/system/shardfs@.service"
    [[ -s $ROOT/usr/local/share/man/man7/shardfs-views.7.gz ]]
    inside sh -c 'cd /tmp && shardfs create --sample s.zarr && mkdir m && shardfs mount s.zarr m'
    [[ $(inside find /tmp/m/waves/c -type f | wc -l) == 192 ]]
    inside shardfs umount /tmp/m
    inside sh -c 'cd /tmp && shardfs-*/install.sh --uninstall'
    after=$(cd "$ROOT" && find usr etc root ! -type d | sort)
    diff <(cat <<<"$before") <(cat <<<"$after")
}

on_an_older_debian() {
    new_root bullseye
    inside ldd --version | head -n 1
    runs_archive
}
check "the archive installs on an older Debian, with its C library" on_an_older_debian

ROOT=$TMP/bullseye

# What root and mount(8) run is in a directory that only root writes to, wherever a link leads.
helper_is_roots() {
    inside sh -c 'mkdir -m 777 /open && ln -s /open /linked'
    for prefix in /open /linked; do
        inside sh -c "/tmp/shardfs-*/install.sh --prefix $prefix" 2>&1 | grep 'others than root may write'
        [[ -x $ROOT/open/bin/shardfs ]]
        [[ ! -L $ROOT/sbin/mount.shardfs ]]
    done
}
check "there no helper is installed where others may replace the program" helper_is_roots

# Not even a shell: what the program needs is in it.
on_nothing() {
    ROOT=$TMP/empty
    mkdir "$ROOT"
    furnish
    mkdir "$ROOT/bin" "$ROOT/mnt"
    tar -xzf "$archive" -C "$ROOT/bin" --strip-components 2 --wildcards '*/bin/shardfs'
    inside /bin/shardfs create --sample /sample.zarr
    inside /bin/shardfs mount /sample.zarr /mnt
    [[ $(find "$ROOT/mnt/waves/c" -type f | wc -l) == 192 ]]
    inside /bin/shardfs umount /mnt
}
check "the program runs where there is no C library at all" on_nothing
