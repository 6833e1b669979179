//! Lookups and attributes.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use crate::format::Coords;
use crate::fs::attr::{Attr, Entry};
use crate::fs::error::{FsError, Result};
use crate::fs::form::{Form, View};
use crate::fs::node::{ArrayView, NodeKind};
use crate::fs::state::control_files::{ControlFile, DIRECTORY_NAME};
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::{Handle, OpenChunk};
use crate::fs::state::live_file::{Behind, Place, Shown};
use crate::fs::state::overlay::Overlay;
use crate::fs::state::target::Target;
use crate::number::to_usize;
use crate::store::Freshness;

impl Fs {
    /// Returns the attributes of an open file, as it was when it was opened; `None` if its handle
    /// keeps none.
    pub(in crate::fs) fn handle_attr(&self, ino: u64, handle: u64) -> Option<Attr> {
        let handle = self.handles.get(to_usize(handle))?;
        match &*handle {
            Handle::Chunk(chunk) => {
                if self.is_replaced(ino, &handle) {
                    return Some(chunk.attr).filter(|_| !self.paths.has_adopted(ino));
                }
                if let Some(file) = self.live(ino) {
                    return self.live_attr(&file).ok();
                }
                if self.paths.has_adopted(ino) {
                    return None;
                }
                Some(self.open_chunk_attr(chunk))
            }
            Handle::Open(open) => match &*open.behind() {
                Behind::Live(file) => self.live_attr(file).ok(),
                Behind::Source(file) => self.open_attr(ino, &**file).ok(),
            },
            Handle::Decoded(open) if self.is_replaced(ino, &handle) => {
                open.attr.filter(|_| !self.paths.has_adopted(ino))
            }
            Handle::Text(_) | Handle::Decoded(_) | Handle::Flat(_) => None,
        }
    }

    /// Returns the attributes of a chunk that is open: those that it was opened with, unless this mount alone has changed
    /// its shard since.
    fn open_chunk_attr(&self, chunk: &OpenChunk) -> Attr {
        let OpenChunk { array, coords, lineage, attr, .. } = chunk;
        let number = array.source.layout.locate(coords).shard;
        let is_ours = |lineage| self.store.has_lineage(&array.source, &number, lineage);
        if !lineage.is_some_and(is_ours) {
            return *attr;
        }
        let now = self.tree_entry(array, coords, Freshness::Recent);
        now.ok().flatten().map_or(*attr, |now| now.attr)
    }

    /// Looks up `name` in the directory `parent`; `None` if there is no such entry.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Option<Entry>> {
        self.stats.operations.lookup.count();
        loop {
            let turns = self.nodes.turns();
            let found = self.lookup_once(parent, name);
            // It may have been put into a shard between two looks.
            let is_absent = matches!(found, Ok(None) | Err(FsError::NotFound | FsError::Stale));
            if !(is_absent && self.has_turned(parent, turns)) {
                return found;
            }
        }
    }

    /// Returns whether a directory has become one of an array, or has begun to, since.
    pub(in crate::fs) fn has_turned(&self, directory: u64, since: u64) -> bool {
        if self.nodes.turns() == since {
            return false;
        }
        let path = self.target(directory).and_then(|target| self.directory_path(&target));
        path.map_or(true, |path| self.nodes.has_turned(&path, since))
    }

    fn lookup_once(&self, parent: u64, name: &OsStr) -> Result<Option<Entry>> {
        if let Some(known) = self.lookup_staged(parent, name)? {
            return Ok(known);
        }
        match self.target(parent)? {
            Target::ControlDirectory => {
                Ok(ControlFile::by_name(name).map(|file| self.control_entry(file)))
            }
            Target::Control(_) | Target::Flat(..) | Target::Live(_) | Target::Nameless(_) => {
                Err(FsError::NotDirectory)
            }
            Target::Path(directory) => self.lookup_path(&directory, name),
            Target::Tree(array, coords) => {
                match name.to_str().and_then(|name| array.tree.child(&coords, name)) {
                    None => Ok(None),
                    Some(child) => self.lookup_tree(&array, child),
                }
            }
        }
    }

    fn control_entry(&self, file: ControlFile) -> Entry {
        let mut entry = self.control.file(file);
        // Files that are read without an open are read up to the size that the kernel has cached.
        if self.config.store.immutable && entry.attr.size == 0 {
            entry.attr.size = self.control_text(file).len() as u64;
        }
        entry
    }

    /// Returns the text of a file in `.shardfs` that is read without an open: the one that its beginning was read of,
    /// so that what is read in pieces fits together.
    pub(in crate::fs) fn control_text_at(&self, file: ControlFile, offset: u64) -> Arc<Vec<u8>> {
        let begun = if offset > 0 { self.control.begun(file) } else { None };
        begun.unwrap_or_else(|| {
            let text = Arc::new(self.control_text(file));
            self.control.begin(file, &text);
            text
        })
    }

    /// Returns the text of a file in `.shardfs`.
    pub(in crate::fs) fn control_text(&self, file: ControlFile) -> Vec<u8> {
        match file {
            ControlFile::Stats => {
                self.control.stats_text(&self.view_names(), self.uncommitted(), self.is_failing())
            }
            ControlFile::Metrics => self.control.metrics_text(self.uncommitted()),
            ControlFile::Waiting => self.waiting_text().into_bytes(),
            ControlFile::Leftover => self.leftover_text().into_bytes(),
            ControlFile::Log => crate::recent::LOG.text().into_bytes(),
            ControlFile::NotShown => {
                let own = self.nodes.not_shown();
                self.others().fold(own, |text, other| text + &other.nodes.not_shown()).into_bytes()
            }
        }
    }

    /// Returns the names of all views of the mount, in their order.
    fn view_names(&self) -> Vec<&'static str> {
        let views = self.others().map(|other| other.config.view.view);
        let mut views: Vec<_> = views.chain([self.config.view.view]).collect();
        views.sort_by_key(|view| View::NAMES.iter().position(|(_, it)| it == view));
        views.into_iter().map(View::name).collect()
    }

    /// Returns the number of bytes that wait to be committed in all views; `None` in a read-only mount.
    fn uncommitted(&self) -> Option<u64> {
        let own = self.overlay.as_ref().map(Overlay::dirty);
        let others = self.others().filter_map(|other| other.overlay.as_ref().map(Overlay::dirty));
        others.fold(own, |sum, nbytes| Some(sum.unwrap_or(0).saturating_add(nbytes)))
    }

    /// Returns whether what was written in one of the views cannot be committed at the moment.
    fn is_failing(&self) -> bool {
        self.commits.is_failing() || self.others().any(|other| other.commits.is_failing())
    }

    fn lookup_tree(&self, array: &Arc<ArrayView>, coords: Coords) -> Result<Option<Entry>> {
        // The kernel looks a directory up before it creates it: an empty one that was not created
        // through the mount must not appear because a commit has created the directory of its
        // shards.
        if self.overlay.is_some() && coords.len() < array.tree.rank() {
            let place = Place { array: Arc::clone(array), coords };
            let there = self.is_made(array, &place.coords)
                || self.shows_all(array)
                || self.holds_chunks(&place);
            return if there { self.tree_directory(array, &place.coords) } else { Ok(None) };
        }
        let entry = self.tree_entry(array, &coords, Freshness::Now)?;
        match entry {
            // The file that was this chunk was renamed and has kept the inode number.
            Some(entry) if self.has_moved(entry.attr.ino) => {
                let place = Place { array: Arc::clone(array), coords };
                let file = self.chunk_file(&array.path(&place.coords), &place)?;
                self.live_entry(&file).map(Some)
            }
            Some(entry) => {
                self.chunk_shown(array, &coords, &entry);
                Ok(Some(entry))
            }
            None => Ok(None),
        }
    }

    fn lookup_path(&self, directory: &Path, name: &OsStr) -> Result<Option<Entry>> {
        if name == DIRECTORY_NAME {
            let is_root = directory.as_os_str().is_empty();
            return Ok(is_root.then(|| self.control.directory()));
        }
        let node = self.nodes.node(directory)?;
        if let NodeKind::Unshown = node.kind {
            return Ok(None);
        }
        if let (NodeKind::Sharded(array), Some(name)) = (&node.kind, name.to_str())
            && let Some((form, file)) = self.flat_file(array, name)
        {
            return self.flat_entry(array, form, file).map(Some);
        }
        if let (NodeKind::Sharded(array), Some(name)) = (&node.kind, name.to_str())
            && array.tree.claims(name)
        {
            return match array.tree.top(name) {
                None => Ok(None),
                Some(coords) => self.lookup_tree(array, coords),
            };
        }
        match self.path_entry(&directory.join(name)) {
            Ok(entry) => Ok(Some(entry)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the attributes of an inode, or of an open file, and whether the kernel may cache
    /// them. `Stale` if a chunk does not exist any more: the kernel then looks its name up.
    pub fn getattr(&self, ino: u64, handle: Option<u64>) -> Result<(Attr, bool)> {
        self.stats.operations.getattr.count();
        if let Some(attr) = handle.and_then(|handle| self.handle_attr(ino, handle)) {
            return Ok((attr, true));
        }
        let found = self.attr_of(ino, handle.is_some());
        if let (Err(FsError::Stale | FsError::NotFound), Some(handle)) = (&found, handle)
            && let Some(attr) = self.handles.get(to_usize(handle)).and_then(|open| open.kept_attr())
        {
            // It has no name any more, and is read as it was.
            return Ok((Attr { ino, ..attr }, true));
        }
        found
    }

    /// Returns the attributes of what an inode number refers to, which is open if `is_open`.
    fn attr_of(&self, ino: u64, is_open: bool) -> Result<(Attr, bool)> {
        match self.target(ino)? {
            Target::ControlDirectory => Ok((self.control.directory().attr, true)),
            Target::Control(file) => Ok((self.control_entry(file).attr, false)),
            Target::Path(path) => match self.paths.open_file(ino, false) {
                Some(file) => Ok((self.open_attr(ino, &*file)?, true)),
                None => {
                    let attr = self.path_attr(&path).map_err(|error| self.gone(&path, error))?;
                    Ok((Attr { ino, ..attr }, true))
                }
            },
            Target::Nameless(file) => Ok((self.open_attr(ino, &*file)?, true)),
            Target::Flat(array, file) => {
                let Form::Flat(form) = &array.form else { return Err(FsError::Stale) };
                Ok((self.flat_entry(&array, form, file)?.attr, true))
            }
            Target::Live(file) => {
                let is_nothing = matches!(file.state().shown, Shown::Nothing);
                if is_nothing && !is_open {
                    return Err(FsError::Stale);
                }
                Ok((self.live_attr(&file)?, !self.is_refusable(&file)))
            }
            Target::Tree(array, coords) => {
                // Of a file that was replaced and is open the attributes are not those of the new one.
                if !is_open {
                    self.check_not_replaced(ino)?;
                }
                let entry = self.tree_entry(&array, &coords, Freshness::Now)?;
                // An open asks for attributes, and looks the name up again if the file is stale.
                let is_chunk = coords.len() == array.tree.rank();
                let gone = if is_chunk { FsError::Stale } else { FsError::NotFound };
                let Entry { attr, lasting, .. } = entry.ok_or(gone)?;
                // A directory may be known by a number that it had before the array's shape changed.
                Ok((Attr { ino, ..attr }, lasting))
            }
        }
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, ino: u64) -> Result<OsString> {
        match self.target(ino)? {
            Target::Path(path) => {
                let storage = self.storage.posix().ok_or(FsError::Invalid)?;
                storage.read_link(&path).map_err(|error| match error.raw_os_error() {
                    // The name now belongs to another file, or to none: ESTALE makes the kernel
                    // look it up again.
                    Some(libc::ENOENT | libc::EINVAL) => FsError::Stale,
                    _ => error.into(),
                })
            }
            Target::Nameless(_) | Target::Live(_) => Err(FsError::Stale),
            _ => Err(FsError::Invalid),
        }
    }
}
