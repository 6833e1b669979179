#!/bin/bash
# A short scripts/torture: the daemon of a writable mount is killed, and the power of its source's
# filesystem is cut, in a storm of writes; nothing durable is lost, nothing is torn.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

export SHARDFS TMPDIR=$TMP
# Always the same rounds; the moments of the crashes still differ from run to run.
torture() {
    timeout 300 "$repo/scripts/torture" --seed "${SHARDFS_TORTURE_SEED:-1}" --seconds "$1" \
        --keep "$repo/target/torture" "${@:2}" 2>&1 | tee "$TMP/torture.log"
}

# Filesystems on which no power can be cut here, and why.
skipped() {
    local what
    sed -n 's/^skipped: //p' "$TMP/torture.log" | while IFS= read -r what; do skip "$what"; done
}

check 'kills of the daemon' torture 40 --kills 10 --cuts 0 --faults 0
check 'a filesystem below that fails at random' torture 40 --kills 0 --cuts 0 --faults 8
for fs in ext4 xfs btrfs; do
    name="power cuts on $fs"
    if out=$(torture 20 --kills 0 --cuts 2 --faults 0 --fs "$fs"); then
        if grep -q '^skipped: ' "$TMP/torture.log"; then skipped; else pass "$name"; fi
    else
        fail "$name"
        tail -n 25 <<<"$out" | indent
    fi
done
