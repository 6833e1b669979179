# shellcheck shell=bash disable=SC2154 # variables of peer-suites
# fsx, as rewritten in Rust: random operations on one file, compared with what it must hold. On a file that is
# passed through, with mappings and without, and on one beside chunks, which is the mount's alone until it is
# renamed. What chunk files do is in tests/shell/fsx.sh.

fsx_seeds=(1 2 3 4)
fsx_operations=20000

# fsx_config MAPPINGS: weights of the operations. punch_hole is left out: shardfs gives back no blocks.
fsx_config() {
    cat <<EOT
flen = 262144
[opsize]
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = $1
mapwrite = $1
read = 10
write = 10
truncate = 5
fsync = 0.2
fdatasync = 0.2
sendfile = 2
copy_file_range = 2
posix_fallocate = 1
posix_fadvise = 1
EOT
}

# exercise WHAT FILE: with each seed. In the end the source has what the mount has shown.
exercise() {
    local what=$1 file=$2 seed report
    for seed in "${fsx_seeds[@]}"; do
        report=$keep/fsx-$what-$seed.txt
        if timeout --kill-after=10 "$limit" "$tools/bin/fsx" -q -N "$fsx_operations" -S "$seed" -f "$run/fsx.toml" \
            -P "$keep" "$file" >"$report" 2>&1; then
            passed=$((passed + 1))
        else
            echo "  FAIL $what, seed $seed: see $report"
            wrong=$((wrong + 1))
        fi
    done
}

run_fsx() {
    local passed=0 wrong=0 source=$run/fsx-source
    install_tool fsx || return 1
    mkdir -p "$source"
    "$shardfs" create --sample "$source/sample" || return 1
    new_source "$source"
    mount_view "$source" --commit-interval 0.1 --log-file "$keep/fsx.log" || return 1

    fsx_config 0 >"$run/fsx.toml"
    exercise calls "$mount/calls"
    fsx_config 5 >"$run/fsx.toml"
    exercise mappings "$mount/mappings"
    exercise beside-chunks "$mount/sample/waves/c/0/0/0.partial"

    mv "$mount/sample/waves/c/0/0/0.partial" "$mount/moved"
    (cd "$mount" && sha256sum calls mappings moved) >"$run/shown"
    unmount_view || return 1
    (cd "$source" && sha256sum --check --quiet "$run/shown") || wrong=$((wrong + 1))
    echo "fsx: $passed runs of $fsx_operations operations passed, $wrong failed"
    [[ $wrong == 0 ]]
}
