#!/bin/bash
# Runs a command in a mount namespace that was just made, without the mounts that other scripts have in it: they
# would live as long as it does.
#
#     KEEP=DIRECTORY tests/alone.sh COMMAND...     mounts below DIRECTORY stay
while read -r mount_point; do
    mount_point=$(printf '%b' "$mount_point")
    [[ $mount_point == "${KEEP:?}"/* ]] || umount --lazy "$mount_point" 2>/dev/null
done < <(findmnt --raw --noheadings --output TARGET --types fuse.shardfs)
exec "$@"
