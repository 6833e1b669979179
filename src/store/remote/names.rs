//! What is known of the names in a store, and since when: answers to requests for single names, and
//! listings of directories, which answer for every name in them.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::attributes::{Object, bare};
use crate::bounded::bounded;
use crate::store::byte_cache::ByteCache;

/// Number of single names of which something is remembered.
// Evaluated by the compiler, which rejects zero.
const SINGLE_NAMES: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();
/// Number of directories that are remembered as large.
// Evaluated by the compiler, which rejects zero.
const LARGE: NonZeroUsize = NonZeroUsize::new(1 << 12).unwrap();
/// Number of directories of which it is remembered when something was put below them.
// Evaluated by the compiler, which rejects zero.
const GROWN: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
/// Budget for listings in bytes.
const LISTINGS_BYTES: usize = 16 << 20;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// An object.
    Object(Object),
    /// Objects whose keys go on after it.
    Directory,
}

/// Names in a directory.
#[derive(Debug)]
pub(super) struct Listing {
    /// Number that no other listing of the store has had for long. Not 0, which stands for none.
    pub number: u64,
    /// When they were asked for.
    pub at: Instant,
    /// The names, sorted. All of them, or those of the first page.
    pub names: Vec<(String, Name)>,
    /// `true` if these are all.
    pub is_complete: bool,
    /// Where pages begin: the number of names before them, and what to ask for them with.
    pub pages: Vec<(u64, String)>,
    /// The page that was asked for last, if these are not all names.
    pub last: Option<Arc<Page>>,
    /// `true` if the directory is there even if it has no names: an object stands for it.
    pub has_marker: bool,
}

/// Page of the names in a directory.
#[derive(Debug)]
pub(super) struct Page {
    /// Number of the names before it.
    pub start: u64,
    /// The names, sorted.
    pub names: Vec<(String, Name)>,
    /// What to ask for the next page with; `None` if it is the last one.
    pub next: Option<String>,
}

impl Page {
    /// Returns the number of the names before the next page.
    pub(super) fn end(&self) -> u64 {
        self.start + self.names.len() as u64
    }
}

/// What is known of a single name, and since when.
type Single = (Instant, State);

/// What is known of a single name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// What it stands for, if anything, by the answer to a request.
    Is(Option<Name>),
    /// It is not what was known any more, or may not be. That there was an object must not be forgotten: one
    /// answer that there is none is not enough then.
    Doubted { was_object: bool },
}

/// Names in a store.
pub(super) struct Names {
    /// Time for which an answer is believed.
    trusted: Duration,
    single: Mutex<LruCache<PathBuf, Single>>,
    listings: Mutex<ByteCache<PathBuf, Arc<Listing>>>,
    /// Listings of which readers have had a part, by their numbers: in another one of the same directory other
    /// names may be before their positions.
    begun: Mutex<ByteCache<u64, Arc<Listing>>>,
    /// Number of listings so far.
    count: AtomicU64,
    /// Directories below which too many objects are to be listed at once.
    large: Mutex<LruCache<PathBuf, ()>>,
    grown: Mutex<Grown>,
}

/// When an object was last put below each directory: a listing that was asked for before does not have it.
struct Grown {
    last: LruCache<PathBuf, Instant>,
    /// The last time of those that were forgotten.
    forgotten: Option<Instant>,
}

impl Grown {
    fn note(&mut self, directory: &Path, at: Instant) {
        if let Some((other, last)) = self.last.push(directory.to_owned(), at)
            && other != directory
        {
            self.forgotten = self.forgotten.max(Some(last));
        }
    }

    /// Returns whether a listing of a directory that was asked for at some time has all that was put there.
    fn is_seen(&self, directory: &Path, at: Instant) -> bool {
        let last = self.last.peek(directory).copied().max(self.forgotten);
        last.is_none_or(|last| last < at)
    }
}

/// Where a reader of a directory goes on: a number of names of a listing, which has a number itself.
///
/// ```text
/// position   0 to 31: names before it   32 to 60: number of the listing
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    /// Number of the listing; 0 for names that are asked for page by page.
    pub listing: u64,
    /// Number of the names before it.
    pub after: u64,
}

impl Position {
    /// Number of listings that have different numbers.
    const LISTINGS: u64 = 1 << 29;

    /// Returns the position that a reader goes on from.
    pub(super) fn of(position: u64) -> Self {
        Self { listing: position >> 32, after: position & u64::from(u32::MAX) }
    }

    /// Returns what a reader is to go on from.
    pub(super) fn number(self) -> u64 {
        self.listing << 32 | self.after
    }
}

impl Listing {
    /// Creates a listing of all names in a directory, or of those of the first page.
    pub(super) fn new(at: Instant, names: Vec<(String, Name)>, is_complete: bool) -> Self {
        Self { number: 0, at, names, is_complete, pages: Vec::new(), last: None, has_marker: false }
    }

    fn get(&self, name: &str) -> Option<&Name> {
        let at = self.names.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        self.names.get(at).map(|(_, name)| name)
    }

    fn memory(&self) -> usize {
        const EACH: usize = 96;
        let last = self.last.iter().flat_map(|page| &page.names);
        let names = self.names.iter().chain(last).map(|(name, _)| name.len() + EACH).sum::<usize>();
        let pages = self.pages.iter().map(|(_, token)| token.len() + EACH).sum::<usize>();
        size_of::<Self>() + names + pages
    }
}

impl Names {
    /// Creates an empty table whose answers are believed for a time.
    pub(super) fn new(trusted: Duration) -> Self {
        Self {
            trusted,
            single: Mutex::new(bounded(SINGLE_NAMES)),
            listings: Mutex::new(ByteCache::new(LISTINGS_BYTES)),
            begun: Mutex::new(ByteCache::new(LISTINGS_BYTES)),
            count: AtomicU64::new(0),
            large: Mutex::new(bounded(LARGE)),
            grown: Mutex::new(Grown { last: bounded(GROWN), forgotten: None }),
        }
    }

    /// Returns whether an answer to a request that was made at some time is believed.
    pub(super) fn is_fresh(&self, at: Instant) -> bool {
        at.elapsed() < self.trusted
    }

    /// Returns what a path stands for, `Some(None)` if nothing; `None` if that must be asked.
    pub(super) fn known(&self, path: &Path) -> Option<Option<Name>> {
        let single = self.single.lock().get(path).cloned();
        let is_true = |at: Instant, state: &State| match state {
            State::Is(Some(Name::Directory)) | State::Doubted { .. } => true,
            State::Is(_) => self.grown.lock().is_seen(path, at),
        };
        let single = single.filter(|(at, state)| self.is_fresh(*at) && is_true(*at, state));
        let listed = self.listed(path);
        match (single, listed) {
            (Some((at, _)), Some((later, name))) if later > at => Some(name),
            (Some((_, State::Is(name))), _) => Some(name),
            (Some((_, State::Doubted { .. })), _) | (None, None) => None,
            (None, Some((_, name))) => Some(name),
        }
    }

    /// Returns what a listing says about a path: that of the directory above, or of one further
    /// above in which the way to it is missing.
    fn listed(&self, path: &Path) -> Option<(Instant, Option<Name>)> {
        let mut listings = self.listings.lock();
        for (depth, below) in path.ancestors().enumerate() {
            let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { break };
            let Some(listing) = listings.get(above).filter(|it| self.is_believed(above, it)) else {
                continue;
            };
            return match name.to_str().and_then(|name| listing.get(name)) {
                Some(name) if depth == 0 => Some((listing.at, Some(name.clone()))),
                Some(Name::Directory) => None,
                // Nothing lies below an object. A directory of its name, which would hide it, may be on a later
                // page.
                Some(Name::Object(_)) if !listing.is_complete => None,
                Some(Name::Object(_)) => Some((listing.at, None)),
                None if listing.is_complete => Some((listing.at, None)),
                None => None,
            };
        }
        None
    }

    /// Returns the object that a path was the last time, however long ago.
    pub(super) fn last(&self, path: &Path) -> Option<Object> {
        match self.single.lock().get(path) {
            Some((_, State::Is(Some(Name::Object(object))))) => Some(object.clone()),
            _ => None,
        }
    }

    /// Returns whether there was an object at a path the last time, however long ago.
    pub(super) fn was_object(&self, path: &Path) -> bool {
        match self.single.lock().get(path) {
            Some((_, State::Is(last))) => return matches!(last, Some(Name::Object(_))),
            Some((_, State::Doubted { was_object: true })) => return true,
            Some((_, State::Doubted { was_object: false })) | None => (),
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let listing = self.last_listing(above);
        let listed = listing.as_ref().zip(name.to_str()).and_then(|(all, name)| all.get(name));
        matches!(listed, Some(Name::Object(_)))
    }

    /// Records the answer to a request that was made at some time, unless more is known by now.
    pub(super) fn note(&self, path: &Path, at: Instant, name: Option<Name>) {
        let mut single = self.single.lock();
        if single.peek(path).is_none_or(|(known, _)| *known <= at) {
            single.put(path.to_owned(), (at, State::Is(name)));
        }
    }

    /// Returns whether more was found out about a path after some time.
    pub(super) fn is_outdated(&self, path: &Path, at: Instant) -> bool {
        self.single.lock().peek(path).is_some_and(|(known, _)| *known > at)
    }

    /// Returns whether something else was found out about a path after some time than that it is an object with this
    /// entity tag, or that there is none: it was put, for example.
    pub(super) fn has_other(&self, path: &Path, at: Instant, tag: Option<&str>) -> bool {
        let is_it = |state: &State| match (state, tag) {
            (State::Is(Some(Name::Object(object))), Some(tag)) => {
                object.strong_tag().map(bare) == Some(tag)
            }
            (State::Is(None), None) => true,
            _ => false,
        };
        self.single.lock().peek(path).is_some_and(|(known, state)| *known > at && !is_it(state))
    }

    /// Records that what is known of a path is not true any more, whatever a listing says.
    pub(super) fn distrust(&self, path: &Path) {
        let mut single = self.single.lock();
        let was_object = match single.peek(path) {
            Some((_, State::Is(last))) => matches!(last, Some(Name::Object(_))),
            Some((_, State::Doubted { was_object })) => *was_object,
            None => false,
        };
        single.put(path.to_owned(), (Instant::now(), State::Doubted { was_object }));
    }

    /// Records that an object was put at a path where there was none, or may have been: listings of the
    /// directories above it from before, and answers that there is no such directory, are not true any more,
    /// even if they are still on their way.
    pub(super) fn note_put(&self, path: &Path) {
        let doubted = State::Doubted { was_object: true };
        self.single.lock().put(path.to_owned(), (Instant::now(), doubted));
        let (now, mut grown) = (Instant::now(), self.grown.lock());
        path.ancestors().skip(1).for_each(|above| grown.note(above, now));
    }

    /// Records that there is nothing at a path any more, nor in listings of the directories above it.
    pub(super) fn note_removed(&self, path: &Path) {
        let now = Instant::now();
        self.single.lock().put(path.to_owned(), (now, State::Is(None)));
        let mut grown = self.grown.lock();
        path.ancestors().skip(1).for_each(|above| grown.note(above, now));
    }

    /// Returns whether the objects below a directory cannot be listed at once, as far as is known.
    pub(super) fn is_large(&self, directory: &Path) -> bool {
        self.large.lock().get(directory).is_some()
    }

    /// Records that the objects below a directory cannot be listed at once: there are too many.
    pub(super) fn note_large(&self, directory: &Path) {
        self.large.lock().put(directory.to_owned(), ());
    }

    /// Returns the listing of a directory, if it is fresh.
    pub(super) fn listing(&self, directory: &Path) -> Option<Arc<Listing>> {
        self.listings.lock().get(directory).filter(|listing| self.is_believed(directory, listing))
    }

    /// Returns whether a listing is fresh, and no older than what was put below its directory.
    pub(super) fn is_believed(&self, directory: &Path, listing: &Listing) -> bool {
        self.is_fresh(listing.at) && self.grown.lock().is_seen(directory, listing.at)
    }

    /// Returns the last listing of a directory, however old.
    pub(super) fn last_listing(&self, directory: &Path) -> Option<Arc<Listing>> {
        self.listings.lock().get(directory)
    }

    /// Records the listing of a directory.
    pub(super) fn note_listing(&self, directory: &Path, mut listing: Listing) -> Arc<Listing> {
        listing.number = self.count.fetch_add(1, Ordering::Relaxed) % (Position::LISTINGS - 1) + 1;
        let (bytes, listing) = (listing.memory(), Arc::new(listing));
        self.listings.lock().put(directory.to_owned(), Arc::clone(&listing), bytes);
        listing
    }

    /// Keeps a listing for a reader who has had a part of it.
    pub(super) fn note_begun(&self, listing: &Arc<Listing>) {
        self.begun.lock().put(listing.number, Arc::clone(listing), listing.memory());
    }

    /// Returns the listing of which a reader has had a part, if it is still kept.
    pub(super) fn begun(&self, number: u64) -> Option<Arc<Listing>> {
        self.begun.lock().get(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    fn object(nbytes: u64) -> Name {
        Name::Object(Object { nbytes, tag: None, modified: 0 })
    }

    fn listing(names: &[(&str, Name)], is_complete: bool) -> Listing {
        let names = names.iter().map(|(name, what)| ((*name).to_owned(), what.clone())).collect();
        Listing::new(Instant::now(), names, is_complete)
    }

    #[test]
    fn a_complete_listing_answers_for_every_name_below() {
        let names = Names::new(LONG);
        let root = listing(&[("a", Name::Directory), ("x", object(3))], true);
        names.note_listing(Path::new(""), root);
        assert_eq!(names.known(Path::new("x")), Some(Some(object(3))));
        assert_eq!(names.known(Path::new("a")), Some(Some(Name::Directory)));
        assert_eq!(names.known(Path::new("b")), Some(None));
        assert_eq!(names.known(Path::new("b/c/d")), Some(None));
        // What is in a directory is not known from above, and in an object there is nothing.
        assert_eq!(names.known(Path::new("a/c")), None);
        assert_eq!(names.known(Path::new("x/c")), Some(None));
    }

    #[test]
    fn the_first_page_says_nothing_about_absence() {
        let names = Names::new(LONG);
        names.note_listing(Path::new("d"), listing(&[("a", object(1))], false));
        assert_eq!(names.known(Path::new("d/a")), Some(Some(object(1))));
        assert_eq!(names.known(Path::new("d/b")), None);
    }

    #[test]
    fn positions_are_no_larger_than_those_of_other_names() {
        let names = Names::new(LONG);
        names.count.store(Position::LISTINGS - 3, Ordering::Relaxed);
        let number = || names.note_listing(Path::new("d"), listing(&[], true)).number;
        assert_eq!(
            [number(), number(), number()],
            [Position::LISTINGS - 2, Position::LISTINGS - 1, 1]
        );
        let last = Position { listing: Position::LISTINGS - 1, after: u64::from(u32::MAX) };
        assert_eq!(Position::of(last.number()), last);
        assert!(last.number() < 1 << 61);
        assert_eq!(Position::of(7), Position { listing: 0, after: 7 });
    }

    #[test]
    fn an_object_on_the_first_page_does_not_hide_a_directory_on_a_later_one() {
        let names = Names::new(LONG);
        names.note_listing(Path::new("d"), listing(&[("a", object(1))], false));
        assert_eq!(names.known(Path::new("d/a/b")), None);
        names.note_listing(Path::new("d"), listing(&[("a", object(1))], true));
        assert_eq!(names.known(Path::new("d/a/b")), Some(None));
    }

    #[test]
    fn an_answer_that_comes_late_is_not_put_over_a_later_one() {
        let (names, asked) = (Names::new(LONG), Instant::now());
        std::thread::sleep(Duration::from_millis(2));
        names.distrust(Path::new("a"));
        assert!(names.is_outdated(Path::new("a"), asked));
        names.note(Path::new("a"), asked, Some(object(1)));
        assert_eq!(names.known(Path::new("a")), None);
        names.note(Path::new("a"), Instant::now(), Some(object(2)));
        assert_eq!(names.known(Path::new("a")), Some(Some(object(2))));
        assert!(!names.is_outdated(Path::new("a"), Instant::now()));
    }

    #[test]
    fn that_there_was_an_object_is_remembered_for_longer_than_it_is_believed() {
        let names = Names::new(Duration::ZERO);
        assert!(!names.was_object(Path::new("d/a")));
        names.note_listing(Path::new("d"), listing(&[("a", object(1))], true));
        assert!(names.was_object(Path::new("d/a")) && !names.was_object(Path::new("d/b")));
        // What was found to be old may be another object by now, or none.
        names.distrust(Path::new("d/a"));
        assert!(names.was_object(Path::new("d/a")));
        names.note(Path::new("alone"), Instant::now(), Some(object(1)));
        names.distrust(Path::new("alone"));
        assert!(names.was_object(Path::new("alone")));
        names.note_put(Path::new("made"));
        names.distrust(Path::new("made"));
        assert!(names.was_object(Path::new("made")));
        names.note(Path::new("d/a"), Instant::now(), None);
        assert!(!names.was_object(Path::new("d/a")));
    }

    #[test]
    fn the_later_answer_counts() {
        let names = Names::new(LONG);
        names.note(Path::new("a"), Instant::now(), None);
        assert_eq!(names.known(Path::new("a")), Some(None));
        std::thread::sleep(Duration::from_millis(2));
        names.note_listing(Path::new(""), listing(&[("a", object(1))], true));
        assert_eq!(names.known(Path::new("a")), Some(Some(object(1))));
        std::thread::sleep(Duration::from_millis(2));
        names.note(Path::new("a"), Instant::now(), Some(object(2)));
        assert_eq!(names.known(Path::new("a")), Some(Some(object(2))));
    }

    #[test]
    fn what_was_put_is_missing_in_no_listing_and_neither_are_the_directories_above_it() {
        let (names, asked) = (Names::new(LONG), Instant::now());
        let late = listing(&[("x", object(1))], true);
        names.note(Path::new("d/e"), asked, None);
        names.note_listing(Path::new("d"), listing(&[], true));
        assert_eq!(names.known(Path::new("d/e/f")), Some(None));
        std::thread::sleep(Duration::from_millis(2));
        names.note_put(Path::new("d/e/f"));
        // What comes late was asked for before.
        names.note(Path::new("d"), asked, None);
        names.note_listing(Path::new(""), late);
        for path in ["d", "d/e", "d/e/f"] {
            assert_eq!(names.known(Path::new(path)), None, "{path}");
        }
        std::thread::sleep(Duration::from_millis(2));
        names.note_listing(Path::new("d"), listing(&[("e", Name::Directory)], true));
        assert_eq!(names.known(Path::new("d/e")), Some(Some(Name::Directory)));
        assert_eq!(names.known(Path::new("d/f")), Some(None));
    }

    #[test]
    fn listings_from_before_are_not_believed_though_more_directories_have_grown_than_are_remembered()
     {
        let names = Names::new(LONG);
        names.note_listing(Path::new("first"), listing(&[], true));
        std::thread::sleep(Duration::from_millis(2));
        names.note_put(Path::new("first/object"));
        for number in 0..GROWN.get() {
            names.note_put(&PathBuf::from(format!("{number}/object")));
        }
        assert_eq!(names.known(Path::new("first/object")), None);
    }

    #[test]
    fn what_was_found_out_to_be_old_is_asked_again() {
        let names = Names::new(LONG);
        names.note_listing(Path::new(""), listing(&[("a", object(1))], true));
        std::thread::sleep(Duration::from_millis(2));
        names.distrust(Path::new("a"));
        assert_eq!(names.known(Path::new("a")), None);
        names.note(Path::new("a"), Instant::now(), None);
        assert_eq!(names.known(Path::new("a")), Some(None));
    }

    #[test]
    fn nothing_is_believed_for_longer_than_allowed() {
        let names = Names::new(Duration::ZERO);
        names.note(Path::new("a"), Instant::now(), Some(object(2)));
        names.note_listing(Path::new(""), listing(&[], true));
        assert_eq!(names.known(Path::new("a")), None);
        assert_eq!(names.last(Path::new("a")), Some(Object { nbytes: 2, tag: None, modified: 0 }));
    }
}
