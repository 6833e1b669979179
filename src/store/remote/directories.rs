//! Directories of a store: listings of keys, which are asked for page by page.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use object_store::ObjectMeta;
use object_store::path::Path as Key;

use super::attributes::Object;
use super::client::{Client, If};
use super::error::RequestError;
use super::names::{Listing, Name, Names, Page, Position};
use crate::store::storage::{DirItem, FileKind, Visit};
use crate::text::shown;

/// Names in a directory up to which a listing is kept as a whole.
const KEPT_NAMES: usize = 20_000;

/// Pages without a name that may follow each other.
const EMPTY_PAGES: usize = 100;

/// Page of the names in a directory.
struct Found {
    /// The names, sorted.
    names: Vec<(String, Name)>,
    /// What to ask for the next page with; `None` if it is the last one.
    next: Option<String>,
    /// `true` if one of the objects stands for the directory itself.
    has_marker: bool,
}

/// Directories of a source.
pub(super) struct Directories {
    /// Connection to the store.
    pub client: Arc<Client>,
    /// What is known of the names.
    pub names: Arc<Names>,
    /// Key of the source's root, and a slash unless it is empty.
    pub root: String,
    /// Name of the only object that counts in the root; `None` if all that is below it does.
    pub only: Option<String>,
}

impl Directories {
    /// Returns the key of the object at a path. Nothing is at a path that no key can be.
    pub(super) fn key(&self, path: &Path) -> io::Result<Key> {
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let path = path.to_str().ok_or_else(absent)?;
        if self.only.as_deref().is_some_and(|only| path != only) {
            return Err(absent());
        }
        Key::parse(format!("{}{path}", self.root)).map_err(|_| absent())
    }

    /// Returns what all keys below a directory begin with.
    pub(super) fn prefix(&self, directory: &Path) -> io::Result<String> {
        if directory.as_os_str().is_empty() {
            return Ok(self.root.clone());
        }
        Ok(format!("{}/", self.key(directory)?))
    }

    /// Returns the error of a request that has not found an object that was there the last time. If a listing
    /// has it still, something before the store has answered. An object that is absent may be that for
    /// `trusted`, and chunks in it would be read as fill values.
    pub(super) fn not_found(&self, key: &Key) -> io::Result<RequestError> {
        Ok(match self.client.can_list() && self.is_listed(key)? {
            true => RequestError::Wrong("there is no such object, and a listing has it".to_owned()),
            false => RequestError::Absent,
        })
    }

    fn is_listed(&self, key: &Key) -> io::Result<bool> {
        let page = self.client.list(key.as_ref(), None, Some(1));
        let page = page.map_err(|error| self.failed(key, &error))?.result;
        Ok(page.objects.iter().any(|object| object.location == *key))
    }

    /// Finds out whether there is an object at a path, whatever is below it.
    pub(super) fn find_object(&self, path: &Path) -> io::Result<Option<Name>> {
        let at = Instant::now();
        let found = self.head(path)?.map(Name::Object);
        self.names.note(path, at, found.clone());
        Ok(found)
    }

    /// Returns the object at a path; `None` if there is none.
    pub(super) fn head(&self, path: &Path) -> io::Result<Option<Object>> {
        let key = self.key(path)?;
        match self.client.head(&key, If::Any) {
            Ok(meta) => Ok(Some(Object::of(&meta))),
            Err(RequestError::Absent) if self.names.was_object(path) => {
                match self.not_found(&key)? {
                    RequestError::Absent => Ok(None),
                    error => Err(self.failed(&key, &error)),
                }
            }
            Err(RequestError::Absent) => Ok(None),
            Err(error) => Err(self.failed(&key, &error)),
        }
    }

    /// Turns the error of a request into one of reading a file, and reports it.
    pub(super) fn failed(&self, key: &Key, error: &RequestError) -> io::Error {
        self.client.reports().failed(key, error)
    }

    /// Returns whether there is a key below a path.
    pub(super) fn is_directory(&self, path: &Path) -> io::Result<bool> {
        let prefix = self.prefix(path)?;
        let page = self.client.list(&prefix, None, Some(1));
        let page = page.map_err(|error| self.failed(&Key::from(prefix), &error))?.result;
        Ok(!page.objects.is_empty() || !page.common_prefixes.is_empty())
    }

    /// Lists all that is below a directory by one request, if there is not too much of it. Returns
    /// whether that was so.
    pub(super) fn list_below(&self, path: &Path) -> io::Result<bool> {
        if self.names.listing(path).is_some() || self.names.is_large(path) {
            return Ok(false);
        }
        let (prefix, at) = (self.prefix(path)?, Instant::now());
        let page = match self.client.list_deep(&prefix) {
            // It hides what is around it from this request alone.
            Err(RequestError::BadKey(text)) => {
                log::debug!("{prefix}: {text}");
                self.names.note_large(path);
                return Ok(false);
            }
            page => page.map_err(|error| self.failed(&Key::from(prefix.as_str()), &error))?,
        };
        let directories = below(path, &prefix, &page.result.objects);
        // An empty object may stand for a directory, as consoles make one: its key ends with a slash,
        // which only a listing of its directory tells.
        let is_empty = |name: &Name| matches!(name, Name::Object(object) if object.nbytes == 0);
        let has_more = page.page_token.is_some_and(|token| !token.is_empty());
        let has_marker = has_marker(&prefix, &page.result.objects);
        if has_more || has_marker || directories.values().flat_map(BTreeMap::values).any(is_empty) {
            self.names.note_large(path);
            return Ok(false);
        }
        for (directory, names) in directories {
            self.names
                .note_listing(&directory, Listing::new(at, names.into_iter().collect(), true));
        }
        Ok(true)
    }

    /// Lists the first names of a directory.
    pub(super) fn first_page(&self, path: &Path) -> io::Result<Arc<Listing>> {
        let at = Instant::now();
        let Found { names, next, has_marker } = self.page(path, None)?;
        let listing = Listing { has_marker, ..Listing::new(at, names, next.is_none()) };
        Ok(self.names.note_listing(path, listing))
    }

    /// Returns a page of the names in a directory.
    fn page(&self, path: &Path, token: Option<String>) -> io::Result<Found> {
        let (prefix, asked) = (self.prefix(path)?, token.clone());
        let page = self.client.list(&prefix, token, None);
        let page = page.map_err(|error| self.failed(&Key::from(prefix.as_str()), &error))?;
        let name = |key: &Key| {
            let name = key.as_ref().strip_prefix(prefix.as_str())?.to_owned();
            (!name.is_empty() && !name.contains('/')).then_some(name)
        };
        let has_marker = has_marker(&prefix, &page.result.objects);
        let directories = page.result.common_prefixes.iter();
        let directories = directories.filter_map(|key| Some((name(key)?, Name::Directory)));
        let objects = page.result.objects.iter();
        let objects = objects
            .filter_map(|meta| Some((name(&meta.location)?, Name::Object(Object::of(meta)))));
        let mut names: Vec<_> = directories.chain(objects).collect();
        sort(&mut names);
        let next = page.page_token.filter(|token| !token.is_empty());
        if next.is_some() && next == asked {
            return Err(endless(path));
        }
        Ok(Found { names, next, has_marker })
    }

    /// Lists all names of a directory, if there are not too many of them, and keeps them. `None` if there
    /// are more.
    fn list_all(&self, path: &Path) -> io::Result<Option<Arc<Listing>>> {
        let at = Instant::now();
        let Found { mut names, mut next, mut has_marker } = self.page(path, None)?;
        let mut empty = 0;
        while let Some(token) = next {
            if names.len() > KEPT_NAMES {
                return Ok(None);
            }
            let more = self.page(path, Some(token))?;
            empty = if more.names.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_PAGES {
                return Err(endless(path));
            }
            names.extend(more.names);
            has_marker |= more.has_marker;
            next = more.next;
        }
        if names.is_empty() && !has_marker && !path.as_os_str().is_empty() {
            self.names.note(path, at, None);
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        // Pages are in the order of keys, where the name of a directory ends with a slash.
        sort(&mut names);
        let listing = Listing { has_marker, ..Listing::new(at, names, true) };
        Ok(Some(self.names.note_listing(path, listing)))
    }

    /// Visits the names of a directory page by page: there are too many to be kept. Where pages begin is
    /// kept, and the last page, from which a reader goes on.
    fn list_pages(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        let known = self.names.last_listing(path).filter(|_| from > 0);
        let (at, mut pages, last) = match &known {
            Some(known) => (known.at, known.pages.clone(), known.last.clone()),
            None => (Instant::now(), Vec::new(), None),
        };
        let mut page = match last.filter(|page| page.start <= from && from < page.end()) {
            Some(page) => page,
            None => {
                let start = pages.iter().rev().find(|(start, _)| *start <= from).cloned();
                let (start, token) = start.map_or((0, None), |(start, token)| (start, Some(token)));
                self.kept_page(path, start, token)?
            }
        };
        // Those of the first page answer for single names.
        let first = match &known {
            Some(known) => known.names.clone(),
            None if page.start == 0 => page.names.clone(),
            None => Vec::new(),
        };
        let mut empty = 0;
        loop {
            let mut names = (page.start + 1..).zip(&page.names).filter(|(next, _)| *next > from);
            let is_full =
                names.any(|(next, (name, what))| show(visit, name, what, next).is_break());
            let (end, token) = (page.end(), page.next.clone());
            let Some(token) = token.filter(|_| !is_full) else { break };
            empty = if page.names.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_PAGES {
                return Err(endless(path));
            }
            if pages.last().is_none_or(|(last, _)| *last < end) {
                pages.push((end, token.clone()));
            }
            page = self.kept_page(path, end, Some(token))?;
        }
        let listing = Listing { pages, last: Some(page), ..Listing::new(at, first, false) };
        self.names.note_listing(path, listing);
        Ok(())
    }

    fn kept_page(&self, path: &Path, start: u64, token: Option<String>) -> io::Result<Arc<Page>> {
        let Found { names, next, .. } = self.page(path, token)?;
        Ok(Arc::new(Page { start, names, next }))
    }

    /// Returns a listing of all names of a directory, which a reader from the beginning must be able to believe.
    /// `None` if there are too many names for one.
    fn whole(&self, path: &Path, is_start: bool) -> io::Result<Option<Arc<Listing>>> {
        match self.names.last_listing(path) {
            Some(known)
                if known.is_complete && (!is_start || self.names.is_believed(path, &known)) =>
            {
                Ok(Some(known))
            }
            Some(known) if known.last.is_some() => Ok(None),
            _ => self.list_all(path),
        }
    }

    /// Visits the names of a directory. Who goes on reads the listing that it has begun with.
    pub(super) fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        if from == 0 {
            let _ = self.list_below(path)?;
        }
        let position = Position::of(from);
        let listing = match self.names.begun(position.listing) {
            Some(begun) => Some(begun),
            None => self.whole(path, from == 0)?,
        };
        let Some(listing) = listing else { return self.list_pages(path, position.after, visit) };
        if listing.names.is_empty() && !listing.has_marker && !path.as_os_str().is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        for (after, (name, what)) in (1..).zip(&listing.names) {
            let next = Position { listing: listing.number, after }.number();
            if after > position.after && show(visit, name, what, next).is_break() {
                self.names.note_begun(&listing);
                break;
            }
        }
        Ok(())
    }
}

/// Returns whether one of the objects whose keys begin with `prefix` stands for the directory itself, as
/// consoles make one. Keys have lost the slash at their end.
fn has_marker(prefix: &str, objects: &[ObjectMeta]) -> bool {
    let own = prefix.strip_suffix('/');
    own.is_some_and(|own| objects.iter().any(|object| object.location.as_ref() == own))
}

/// Returns the names in a directory and in all directories below it, sorted, from the keys of all
/// objects there. A directory hides an object of its name.
fn below(
    top: &Path,
    prefix: &str,
    objects: &[ObjectMeta],
) -> BTreeMap<PathBuf, BTreeMap<String, Name>> {
    let mut found = BTreeMap::from([(top.to_owned(), BTreeMap::new())]);
    for meta in objects {
        let Some(key) = meta.location.as_ref().strip_prefix(prefix) else { continue };
        let mut directory = top.to_owned();
        let mut parts = key.split('/').peekable();
        while let Some(name) = parts.next().filter(|name| !name.is_empty()) {
            let names = found.entry(directory.clone()).or_default();
            if parts.peek().is_some() {
                names.insert(name.to_owned(), Name::Directory);
                directory.push(name);
            } else {
                names.entry(name.to_owned()).or_insert_with(|| Name::Object(Object::of(meta)));
            }
        }
    }
    found
}

/// Reports a listing that goes on without telling names.
fn endless(path: &Path) -> io::Error {
    log::error!("{}: the store sends a listing without an end", shown(&path));
    io::Error::from_raw_os_error(libc::EIO)
}

/// Sorts names. A directory hides an object of its name.
fn sort(names: &mut Vec<(String, Name)>) {
    let is_object = |name: &Name| matches!(name, Name::Object(_));
    names.sort_by(|(one, what), (other, other_what)| {
        one.cmp(other).then(is_object(what).cmp(&is_object(other_what)))
    });
    names.dedup_by(|(one, _), (other, _)| one == other);
}

/// Shows a name of a directory.
pub(super) fn show(visit: &mut Visit<'_>, name: &str, what: &Name, next: u64) -> ControlFlow<()> {
    let kind = match what {
        Name::Object(_) => FileKind::File,
        Name::Directory => FileKind::Directory,
    };
    visit(DirItem { name: OsStr::new(name), kind: Some(kind), next })
}
