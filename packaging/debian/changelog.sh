#!/bin/sh
# The Debian changelog of a version, which has its changes in CHANGELOG.md.
#
#     packaging/debian/changelog.sh VERSION SECONDS-SINCE-1970
set -eu
cat <<EOT
shardfs ($1-1) unstable; urgency=medium

  * Version $1: see CHANGELOG.md.

 -- shardfs developers <shardfs@shardfs.invalid>  $(LC_ALL=C date -u -R -d "@$2")
EOT
