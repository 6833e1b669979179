#!/bin/bash
# What a user has opened shows nothing that this user may not read, whatever comes to be in its place: another
# user's shard behind a link, or another user's array after two directories were exchanged.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

if [[ $(id -u) != 0 ]]; then
    skip "permissions of several users: not root"
    exit 0
fi
chmod 755 "$TMP"
source=$TMP/source

other() { setpriv --reuid=21003 --regid=21003 --clear-groups "$@"; }

letters() { head -c 65536 /dev/zero | tr '\0' "$1"; }

# arrays [OPTION...]: two arrays of chunks of letters, `mine` of the other user and `theirs` of root, who alone
# may read it. Options are those of the mount.
arrays() {
    rm -rf "$source"
    mkdir "$source"
    for n in mine theirs; do
        "$SHARDFS" create --shape 1048576 --chunk 65536 --shard 524288 --dtype uint8 "$source/$n" >/dev/null
    done
    mount_view "$source" --rw
    mkdir -p "$MP/mine/c" "$MP/theirs/c"
    for n in {0..7}; do
        letters m >"$MP/mine/c/$n"
        letters t >"$MP/theirs/c/$n"
    done
    rm "$MP/mine/c/5"
    unmount_view
    letters m >"$source/mine/note"
    letters t >"$source/theirs/note"
    sed -i 's/"attributes": *{}/"attributes": {"secret": "tttttttt"}/' "$source/theirs/zarr.json"
    chown -R 21003:21003 "$source/mine"
    chmod 700 "$source/theirs"
    chmod 777 "$source"
    mount_view "$source" -o allow_other "$@"
}

# What the other user does: opens a file of the mount, puts something else in the place of what it shows, and reads.
cat >"$TMP/read.pl" <<'PERL'
use Fcntl;
my ($source, $how, $mount, $file, $mode) = @ARGV;
# renameat2 with RENAME_EXCHANGE.
sub exchange { syscall(316, -100, "$source/mine", -100, "$source/theirs", 2) == 0 or die $! }
my %how = (
    link => sub {
        rename "$source/mine/c/0", "$source/mine/before" or die $!;
        symlink "../../theirs/c/0", "$source/mine/c/0" or die $!;
    },
    exchange => \&exchange,
    # The chunk becomes a file beside the array.
    moved => sub {
        rename "$mount/$file", "$mount/mine/moved" or die $!;
        system("sync", "$mount/mine/moved") == 0 or die $!;
        exchange;
    },
    removed => sub {
        exchange;
        unlink "$mount/$file";
    },
);
sysopen my $open, "$mount/$file", $mode eq "rw" ? O_RDWR : O_RDONLY or die "open: $!\n";
if ($mode eq "rw") {
    sysread $open, my $before, 1 << 17 or die "read: $!\n";
    # Behind a header, if there is one.
    substr($before, -65536) =~ tr/m/M/;
    sysseek $open, 0, 0;
    syswrite $open, $before or die "write: $!\n";
    $open->sync or die "fsync: $!\n";
}
$how{$how}->();
# The file that it was opened from changes, too.
for my $before ("$source/mine/before", "$source/theirs/c/0") {
    my $changed;
    open $changed, ">>", $before and syswrite $changed, "x";
}
# Not what is in the page cache: POSIX_FADV_DONTNEED.
syscall(221, fileno $open, 0, 0, 4);
select undef, undef, undef, 1.5;
for (1 .. 3) {
    my $read = sysseek($open, 0, 0) && sysread $open, my $bytes, 1 << 17;
    print defined $read ? "read: " . substr($bytes, -8) . "\n" : "error: $!\n";
}
PERL
chmod 644 "$TMP/read.pl"

# shows_nothing HOW FILE [OPTION...]: what is read is the user's own, or nothing.
shows_nothing() {
    local how=$1 file=$2 mode=ro
    shift 2
    [[ $* != *--rw* ]] || mode=rw
    arrays "$@"
    other perl -MIO::Handle "$TMP/read.pl" "$source" "$how" "$MP" "$file" "${MODE:-$mode}" >"$TMP/read" 2>&1
    cat -v "$TMP/read"
    # What was written is for an array that is elsewhere by now.
    unmount_view || true
    [[ $(wc -l <"$TMP/read") == 3 ]]
    ! grep -q ttt "$TMP/read" || return 1
}

for how in link exchange; do
    check "a chunk that was opened: $how" shows_nothing $how mine/c/0
    check "a chunk that is written to: $how" shows_nothing $how mine/c/0 --rw
    MODE=ro check "a chunk in a writable mount: $how" shows_nothing $how mine/c/0 --rw
    check "a decoded chunk: $how" shows_nothing $how mine/c/0.npy --view npy
    check "a decoded chunk that is written to: $how" shows_nothing $how mine/c/0.npy --rw --view npy
    MODE=ro check "a decoded chunk that is absent: $how" shows_nothing $how mine/c/5.npy --rw --view npy --missing fill
    check "a whole array: $how" shows_nothing $how mine/array.raw --view flat
done
MODE=ro check "a chunk that becomes a file" shows_nothing moved mine/c/0 --rw
check "a chunk that is removed" shows_nothing removed mine/c/0 --rw
MODE=ro check "a decoded chunk that is removed" shows_nothing removed mine/c/0.npy --rw --view npy

# Opens and reads again and again.
cat >"$TMP/reads.pl" <<'PERL'
use Fcntl;
my ($file, $end) = ($ARGV[0], time + 20);
my $read = 0;
for (my $n = 0; $n < 400 || $read < 5 && time < $end; $n++) {
    sysopen my $open, $file, O_RDONLY or next;
    sysread $open, my $bytes, 1 << 17 or next;
    $read += 1;
    print "read: ", $bytes =~ /t{8}/ ? "tttttttt" : substr($bytes, -8) =~ s/\s/ /gr, "\n";
}
PERL
chmod 644 "$TMP/reads.pl"

exchanges() {
    # shellcheck disable=SC2016 # Perl's.
    exec perl -e '
        my ($directory, $one, $other) = @ARGV;
        chdir $directory or die;
        while (1) {
            syscall(316, -100, $one, -100, $other, 2) == 0 or $!{ENOENT} or die $!;
            select undef, undef, undef, rand 0.002;
        }' "$source" mine theirs
}

in_turn() {
    local file=$1 exchange
    shift
    arrays "$@"
    (exchanges) &
    exchange=$!
    other perl "$TMP/reads.pl" "$MP/$file" >"$TMP/read"
    kill "$exchange"
    wait "$exchange" || true
    unmount_view || true
    sort "$TMP/read" | uniq -c
    [[ -s $TMP/read ]]
    ! grep -q ttt "$TMP/read" || return 1
}
check "a document in turn" in_turn mine/zarr.json -o trusted=0
check "a generated document in turn" in_turn mine/array.json --view npy -o trusted=0
check "a chunk in turn" in_turn mine/c/0 -o trusted=0
check "a chunk of a writable mount in turn" in_turn mine/c/0 --rw -o trusted=0
check "a decoded chunk in turn" in_turn mine/c/0.npy --view npy -o trusted=0
check "a whole array in turn" in_turn mine/array.raw --view flat -o trusted=0
check "a file in turn" in_turn mine/note -o trusted=0
