#!/bin/bash
# What a user has opened shows nothing that this user may not read, whatever comes to be in its place: another
# user's shard behind a link, or another user's array after two directories were exchanged.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

if [[ $(id -u) != 0 ]]; then
    skip "permissions of several users: not root"
    exit 0
fi
if [[ $(uname -m) != x86_64 ]]; then
    skip "files that are exchanged: the numbers of system calls are known for x86_64"
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

in_turn() {
    local file=$1 exchange
    shift
    arrays "$@"
    (exchanges "$source" mine theirs) &
    exchange=$!
    other perl "$TMP/reads.pl" "$MP/$file" >"$TMP/read"
    kill "$exchange"
    wait "$exchange" || true
    unmount_view || true
    sort "$TMP/read" | uniq -c
    [[ -s $TMP/read ]]
    ! grep -q ttt "$TMP/read" || return 1
}
check "a document in turn" in_turn mine/zarr.json
check "a generated document in turn" in_turn mine/array.json --view npy
check "a chunk in turn" in_turn mine/c/0
check "a chunk of a writable mount in turn" in_turn mine/c/0 --rw
check "a decoded chunk in turn" in_turn mine/c/0.npy --view npy
check "a whole array in turn" in_turn mine/array.raw --view flat
check "a file in turn" in_turn mine/note

# Others read through the same path, and fill the kernel's pages with what is there by then.
cat >"$TMP/waits.pl" <<'PERL'
use Fcntl;
$| = 1;
my ($source, $how, $file, $mode) = @ARGV;
sysopen my $open, $file, $mode eq "rw" ? O_RDWR : O_RDONLY or die "open: $!\n";
if ($how eq "link") {
    rename "$source/mine/c/0", "$source/mine/before" or die $!;
    symlink "../../theirs/c/0", "$source/mine/c/0" or die $!;
} else {
    syscall(316, -100, "$source/mine", -100, "$source/theirs", 2) == 0 or die $!;
}
print "ready\n";
for (1 .. 600) {
    last if -e "$source/go";
    select undef, undef, undef, 0.05;
}
# Within the file: what is read beyond its end lets the kernel ask for its attributes, and drop its pages.
my $read = sysread $open, my $bytes, -s $open < 1000 ? 1 << 17 : 1000;
print defined $read ? "read: " . substr($bytes, -8) . "\n" : "error: $!\n";
PERL
chmod 644 "$TMP/waits.pl"
beside_others() {
    local how=$1 file=$2 seen pid
    shift 2
    arrays "$@"
    other perl "$TMP/waits.pl" "$source" "$how" "$MP/$file" "${MODE:-ro}" >"$TMP/read" 2>&1 &
    pid=$!
    within 20 grep -q ready "$TMP/read"
    # Pages are kept again a second after the mount has seen the change.
    ${AT_ONCE:-false} || { cat "$MP/$file" >/dev/null || true; sleep 1.3; }
    seen=$(grep -c ttt "$MP/$file") || true
    touch "$source/go"
    wait "$pid" || true
    unmount_view || true
    cat "$TMP/read"
    # Who may read it has. What is open for writing is no array to be opened once another has its place.
    ${AT_ONCE:-false} || [[ $seen == 1 || $how == exchange && ${MODE:-ro} == rw ]]
    [[ $(wc -l <"$TMP/read") == 2 ]]
    ! grep -q ttt "$TMP/read" || return 1
}
env_at_once() { AT_ONCE=true "$@"; }
check "what others read: a chunk" beside_others exchange mine/c/0
check "what others read: a chunk, at once" env_at_once beside_others exchange mine/c/0
check "what others read: a chunk of a writable mount" beside_others exchange mine/c/0 --rw
check "what others read: a chunk of a writable mount, at once" env_at_once beside_others exchange mine/c/0 --rw
check "what others read: a chunk behind a link" beside_others link mine/c/0
check "what others read: a chunk behind a link in a writable mount" beside_others link mine/c/0 --rw
MODE=rw check "what others read: a chunk that is open for writing" beside_others exchange mine/c/0 --rw
MODE=rw check "what others read: a chunk behind a link that is open for writing" beside_others link mine/c/0 --rw
check "what others read: a decoded chunk" beside_others exchange mine/c/0.npy --view npy
check "what others read: a decoded chunk behind a link" beside_others link mine/c/0.npy --view npy
check "what others read: a decoded chunk of a writable mount" beside_others exchange mine/c/0.npy --view npy --rw
check "what others read: a whole array" beside_others exchange mine/array.raw --view flat
check "what others read: a document" beside_others exchange mine/array.json --view npy
check "what others read: a file" beside_others exchange mine/note

# Documents are generated from those of other formats as well.
zarr2_document() {
    local array=$TMP/zarr2/array
    mkdir -p "$array"
    echo '{"zarr_format": 2, "shape": [16], "chunks": [8], "dtype": "|u1", "compressor": null, "fill_value": 0,
           "order": "C", "filters": null}' >"$array/.zarray"
    echo '{"unit": "m"}' >"$array/.zattrs"
    printf aaaaaaaa >"$array/0"
    mount_view "$TMP/zarr2" --view npy -o allow_other
    other cat "$MP/array/array.json" | grep -q unit
    other cat "$MP/array/0.npy" | grep -q aaaaaaaa
    chmod 600 "$array/.zattrs"
    # What the kernel knows of it.
    sleep 1.1
    fails_with "Permission denied" other cat "$MP/array/array.json"
    unmount_view
}
check "a document made of those of Zarr v2 is for who may read these" zarr2_document

# A name of a chunk that leads to another user's shard half of the time: what is loaded from it goes to no file
# that the user can read.
cat >"$TMP/flips.pl" <<'PERL'
use Fcntl;
my ($source, $mount) = @ARGV;
my $end = time + 6;
if (fork == 0) {
    symlink "../../theirs/c/0", "$source/mine/link" or die $!;
    while (time < $end) {
        syscall(316, -100, "$source/mine/link", -100, "$source/mine/c/0", 2);
        select undef, undef, undef, rand 0.004;
    }
    exit;
}
my $chunk = "$mount/mine/c/0";
for (my $n = 0; time < $end; $n++) {
    sysopen my $open, $chunk, O_RDWR or next;
    link $chunk, "$mount/mine/c/tmp";
    $n % 3 == 0 and truncate $chunk, 65535;
    $n % 3 == 1 and unlink $chunk;
    if ($n % 3 == 2 and sysopen my $new, "$mount/mine/c/new", O_WRONLY | O_CREAT) {
        syswrite $new, "m" x 65536;
        close $new;
        rename "$mount/mine/c/new", $chunk;
    }
    for my $file ($chunk, "$mount/mine/c/tmp") {
        sysopen my $again, $file, O_RDONLY or next;
        sysread $again, my $bytes, 1 << 17 or next;
        print "read: ", $bytes =~ /t{8}/ ? "tttttttt" : substr($bytes, -8), "\n";
    }
    sysread $open, my $bytes, 1 << 17 and print "read: ", $bytes =~ /t{8}/ ? "tttttttt" : substr($bytes, -8), "\n";
    unlink "$mount/mine/c/tmp";
}
wait;
PERL
chmod 644 "$TMP/flips.pl"
flips() {
    arrays --rw
    other perl "$TMP/flips.pl" "$source" "$MP" >"$TMP/read"
    unmount_view || true
    sort "$TMP/read" | uniq -c
    [[ -s $TMP/read ]]
    ! grep -q ttt "$TMP/read" || return 1
}
check "chunks that lead to another user's shard half of the time" flips

# What is written to a mapping is laid over the bytes of the shard that the chunk has by then.
cat >"$TMP/maps.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define MUST(done) if (!(done)) { perror(#done); return 1; }

/* In the array's directory of the mount; the argument is that of the source. */
int main(int argc, char **argv) {
    static char bytes[65536];
    int open_file = open("c/0", O_RDWR);
    MUST(argc == 2 && open_file >= 0);
    char *map = mmap(0, sizeof bytes, PROT_READ | PROT_WRITE, MAP_SHARED, open_file, 0);
    MUST(map != MAP_FAILED);
    /* The same file in two shards, as it is stored in the second one. */
    MUST(link("c/0", "c/8") == 0);
    MUST(fsync(open_file) == 0);
    /* The page is there before. */
    MUST(*(volatile char *)map == 'm');
    MUST(chdir(argv[1]) == 0);
    MUST(rename("c/1", "before") == 0 && symlink("../../theirs/c/0", "c/1") == 0);
    map[0] = 'M';
    if (msync(map, sizeof bytes, MS_SYNC)) perror("msync");
    if (fsync(open_file)) perror("fsync");
    ssize_t n = pread(open_file, bytes, sizeof bytes, 0);
    printf("read: %.8s\n", n < 8 ? "nothing" : bytes + n - 8);
    return 0;
}
C
maps() {
    cc -o "$TMP/maps" "$TMP/maps.c"
    chmod 755 "$TMP/maps"
    arrays --rw
    (cd "$MP/mine" && other "$TMP/maps" "$source/mine") >"$TMP/read" 2>&1
    cat "$TMP/read"
    # What the array itself has by then, and what is read of it.
    sync -f "$MP" || true
    tail -c 8 "$MP/mine/c/0" || true
    unmount_view || true
    grep -q '^read: ' "$TMP/read"
    rm "$source/mine/c/1"
    mount_view "$source"
    ! grep -q ttt "$TMP/read" "$MP/mine/c/0" || return 1
    unmount_view
}
check "what is written to a mapping of a chunk that leads to another user's shard" maps
