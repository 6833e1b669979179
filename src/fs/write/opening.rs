//! Opening and closing of files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::format::decoded::DecodedForm;
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::read::openers::OPEN_ATTEMPTS;
use crate::fs::request::{OpenHow, Writers};
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::{Handle, OpenChunk, OpenDecoded, OpenFlat, OpenText, Opened};
use crate::fs::state::live_file::{
    Behind, Bytes, ChunkBase, LiveFile, LiveState, OpenFile, Place, Shown,
};
use crate::fs::state::opener::Opener;
use crate::fs::state::page_policy::Pages;
use crate::fs::state::target::Target;
use crate::number::to_usize;
use crate::store::Freshness;
use crate::store::storage::{Need, PosixFile, StorageFile};

impl Fs {
    /// Opens a file for reading.
    pub fn open(&self, ino: u64) -> Result<Opened> {
        self.stats.operations.open.count();
        self.open_as(ino, &Caller::own())
    }

    pub(in crate::fs) fn open_as(&self, ino: u64, caller: &Caller) -> Result<Opened> {
        self.ahead.open(ino, |opened: &Opened| opened.handle, || self.open_to_read(ino, caller))
    }

    fn open_to_read(&self, ino: u64, caller: &Caller) -> Result<Opened> {
        // Before anything of the file is looked at.
        let replaced = self.commits.replaced(ino);
        let target = self.target(ino)?;
        let opener = self.permit_opening(&target, Need::Read, caller)?;
        let opener = || opener.clone();
        let (handle, pages) = match target {
            Target::ControlDirectory => return Err(FsError::IsDirectory),
            Target::Control(file) => {
                let text = self.control_text(file).into();
                (Handle::Text(OpenText { text, attr: None }), Pages::Bypassed)
            }
            Target::Live(file) => {
                return self.open_live(&file, OpenHow::default(), opener());
            }
            // No timestamp changes when one of its shards does.
            Target::Flat(array, file) => {
                let opener = opener();
                (Handle::Flat(Box::new(OpenFlat { array, file, opener })), Pages::Renewed)
            }
            Target::Path(path) => self.open_at(ino, &path, caller, opener().as_ref())?,
            Target::Nameless(file) => (self.open_nameless(ino, file, false, opener()), Pages::Kept),
            Target::Tree(array, coords) if coords.len() < array.tree.rank() => {
                return Err(FsError::IsDirectory);
            }
            Target::Tree(array, coords) => {
                despite_commits(|freshness| match array.decoded_form() {
                    Some(form) => {
                        self.open_decoded(ino, (&array, &coords), form, opener(), freshness)
                    }
                    None => self.open_chunk(ino, (&array, &coords), replaced, opener(), freshness),
                })?
            }
        };
        self.insert_handle(handle, pages)
    }

    /// Opens a chunk as it is stored.
    fn open_chunk(
        &self,
        ino: u64,
        (array, coords): (&Arc<ArrayView>, &[u64]),
        replaced: u64,
        opener: Option<Arc<Opener>>,
        freshness: Freshness,
    ) -> Result<(Handle, Pages)> {
        let reader = self.chunk_reader(array, coords, freshness);
        if let Err(FsError::NotFound) = &reader
            && let Some(chunk) = self.absent_chunk(array)?
        {
            // The chunk may be created at any time.
            return Ok((Handle::Text(OpenText { text: chunk, attr: None }), Pages::Bypassed));
        }
        let reader = reader?;
        let version = reader.shard().version();
        self.permit_shard(opener.as_deref(), Need::Read, (array, coords), version)?;
        let shard = array.source.layout.shard_of(coords);
        let is_in_array = self.is_in_array((array, coords), version)?;
        let lineage = || self.store.lineage_of(&array.source, &shard, version);
        let lineage = if self.overlay.is_some() { lineage() } else { None };
        let mut date = self.chunk_date(array, coords, reader.shard());
        if date.is_none() {
            // A commit of this mount has replaced the shard since.
            if freshness == Freshness::Now {
                return Err(FsError::Stale);
            }
            // They do so all the time. The date is that of the chunk, in whichever version it is found.
            let found = self.store.dated_chunk(&array.source, coords, Freshness::Again)?;
            let dated = found.and_then(|(_, dated)| dated);
            date = dated.and_then(|dated| self.date_of(array, coords, dated));
        }
        let attr = self.dated_entry(array, coords, (reader.shard(), date), reader.nbytes()).attr;
        // Last: an open that fails drops no pages.
        let pages = self.chunk_pages(array, coords, version, ino)?.of_shared(is_in_array);
        let chunk = OpenChunk {
            array: Arc::clone(array),
            coords: coords.to_vec(),
            reader,
            attr,
            replaced,
            opener,
            lineage,
            is_direct: matches!(pages, Pages::Bypassed | Pages::Uncached),
            served: AtomicBool::new(false),
            moved_to: Mutex::new(None),
            touched: Mutex::new(None),
        };
        Ok((Handle::Chunk(Box::new(chunk)), pages))
    }

    fn insert_live(
        &self,
        file: &Arc<LiveFile>,
        how: OpenHow,
        pages: Pages,
        base: Option<ChunkBase>,
        opener: Option<Arc<Opener>>,
    ) -> Result<Opened> {
        let open = OpenFile::new(Behind::Live(Arc::clone(file)), how.write, opener);
        // It is empty in a moment, and not whole until it is closed.
        open.is_writing.store(how.truncate, Ordering::Relaxed);
        if let Some(base) = base {
            if pages == Pages::Kept {
                // They are those of the chunk in its current state.
                file.state().open_files().iter().for_each(|other| other.set_mapped_base(&base));
            }
            open.set_fresh_base(base);
        }
        {
            // A file without open handles may have been dropped since it was found: writes to it
            // would be lost.
            let names = self.overlay()?.names();
            let is_unnamed = how.write && file.state().names.is_empty();
            if !names.has(file) || is_unnamed {
                return Err(FsError::Stale);
            }
            self.opened(file, &open)?;
        }
        let opened = self.insert_handle(Handle::Open(Arc::clone(&open)), pages);
        if opened.is_err() {
            self.closed(file, &open);
        }
        opened
    }

    /// Opens a file of the overlay, or one that is still open though its bytes are in the shard, for a user
    /// with limited rights if there is an `opener`.
    pub(in crate::fs) fn open_live(
        &self,
        file: &Arc<LiveFile>,
        how: OpenHow,
        opener: Option<Arc<Opener>>,
    ) -> Result<Opened> {
        // Before the page policy is chosen: no page may be older than the base.
        let base = match how {
            OpenHow { truncate: true, .. } => None,
            OpenHow { write: true, .. } => self.base_of(file)?,
            // Errors are reported by each read.
            _ => self.stored_base(file).unwrap_or_default(),
        };
        let author = opener.as_ref().map(|opener| opener.author.clone());
        let pages = match how {
            // A write to a document may be refused: the kernel must not cache it.
            _ if self.is_refusable(file) => Pages::Bypassed,
            _ if self.is_behind_link(file) => Pages::Uncached,
            // Truncation leaves the kernel without pages.
            OpenHow { truncate: true, .. } => Pages::Kept,
            _ if how.write => self.live_pages(file).to_write(),
            _ => self.live_pages(file),
        };
        let opened = self.insert_live(file, how, pages, base, opener)?;
        if let (OpenHow { write: true, truncate: true, .. }, Some(author)) = (how, author) {
            file.state().written_by(&author);
        }
        Ok(opened)
    }

    /// Returns the chunk that a file stands for; `None` if the file differs from what is stored.
    fn base_of(&self, file: &LiveFile) -> Result<Option<ChunkBase>> {
        let Bytes::Stored(place) = file.state().bytes.clone() else { return Ok(None) };
        Ok(Some((place.array.path(&place.coords), self.stage(&place)?.base)))
    }

    /// Does the same for a file that is not to be changed.
    fn stored_base(&self, file: &LiveFile) -> Result<Option<ChunkBase>> {
        let Bytes::Stored(place) = file.state().bytes.clone() else { return Ok(None) };
        let Place { array, coords } = &place;
        let base = self.store.base(&array.source, coords, Freshness::Now)?;
        Ok(Some((array.path(coords), base)))
    }

    /// Returns the page cache policy of a file of the overlay, or of one that is still open though
    /// its bytes are in the shard.
    fn live_pages(&self, file: &LiveFile) -> Pages {
        let Place { array, coords } = match &*file.state() {
            LiveState { shown: Shown::Written, bytes: Bytes::Stored(place), .. } => place.clone(),
            LiveState { shown: Shown::Written, .. } => return Pages::Kept,
            // The pages hold what was written.
            _ => return Pages::Renewed,
        };
        match self.store.chunk(&array.source, &coords, Freshness::Now) {
            Ok(Some(chunk)) => {
                let version = chunk.shard.version();
                self.chunk_pages(&array, &coords, version, file.ino).unwrap_or(Pages::Renewed)
            }
            // Errors are reported by each read.
            Ok(None) | Err(_) => Pages::Renewed,
        }
    }

    /// Returns whether the bytes of a file of the overlay are, or may be, from behind a link.
    fn is_behind_link(&self, file: &LiveFile) -> bool {
        if !self.has_rights() || !self.access.acts() {
            return false;
        }
        let Place { array, coords } = match &*file.state() {
            LiveState { bytes: Bytes::Stored(place), .. } => place.clone(),
            state => return state.behind_link.is_some(),
        };
        let is_inside = despite_commits(|freshness| {
            match self.store.chunk(&array.source, &coords, freshness)? {
                Some(chunk) => self.is_in_array((&array, &coords), chunk.shard.version()),
                None => Ok(true),
            }
        });
        // Errors are reported by each read.
        matches!(is_inside, Ok(false))
    }

    /// Closes an open file.
    pub fn release(&self, handle: u64) {
        let open = self.open_handle(handle);
        self.failures.closed(handle);
        // Before its number can be that of another file.
        self.ahead.closed(handle);
        self.handles.remove(to_usize(handle));
        if let Some(open) = open
            && let Some(file) = open.live()
        {
            self.closed(&file, &open);
        }
    }

    fn open_decoded(
        &self,
        ino: u64,
        (array, coords): (&Arc<ArrayView>, &[u64]),
        form: &DecodedForm,
        opener: Option<Arc<Opener>>,
        freshness: Freshness,
    ) -> Result<(Handle, Pages)> {
        let replaced = self.commits.replaced(ino);
        self.prefetch.opened(array, coords);
        let file = self.decoded_file(array, form, coords, freshness)?;
        let file = file.ok_or(FsError::NotFound)?;
        // That of the items, though another lookup may find the shard replaced meanwhile.
        let version = file.shard;
        if let Some(shard) = version {
            self.permit_shard(opener.as_deref(), Need::Read, (array, coords), shard)?;
        }
        let is_in_array = match version {
            Some(version) => self.is_in_array((array, coords), version)?,
            None => true,
        };
        let shard = array.source.layout.shard_of(coords);
        let lineage = |version| self.store.lineage_of(&array.source, &shard, version);
        let lineage = if self.overlay.is_some() { version.and_then(lineage) } else { None };
        let keeps_attr = self.overlay.is_some();
        let entry = keeps_attr.then(|| self.tree_entry(array, coords, Freshness::Recent));
        let attr = entry.transpose()?.flatten().map(|entry| entry.attr);
        // An absent chunk may be created at any time.
        let is_settled = !self.shows_all(array) && self.overlay.is_none();
        // Last: an open that fails drops no pages.
        let pages = version.map(|version| self.chunk_pages(array, coords, version, ino));
        let pages = match pages.transpose()? {
            Some(pages) if is_settled => pages,
            Some(Pages::Kept | Pages::Dropped) => Pages::Dropped,
            // The array may have been resized, which changes the length of its last chunks.
            Some(Pages::Renewed | Pages::Bypassed | Pages::Uncached) | None => Pages::Renewed,
        };
        let open = OpenDecoded {
            array: Arc::clone(array),
            coords: coords.to_vec(),
            file,
            replaced,
            opener,
            shard: version,
            lineage,
            attr,
        };
        Ok((Handle::Decoded(Box::new(open)), pages.of_shared(is_in_array)))
    }

    fn open_at(
        &self,
        ino: u64,
        path: &Path,
        caller: &Caller,
        opener: Option<&Arc<Opener>>,
    ) -> Result<(Handle, Pages)> {
        if let Handle::Open(open) = self.open_path(path, caller, opener)? {
            let pages = self.source_pages(ino, &open)?;
            return Ok((Handle::Open(open), pages));
        }
        let attr = self.path_attr(path)?;
        let changed = self.identities.changed_recently(ino, self.path_content(&attr, None));
        // In a mount that others may use, the next one to open it may be shown another document.
        let pages = if self.has_rights() { Pages::Bypassed } else { Pages::kept_if(!changed) };
        Ok((self.open_path(path, caller, opener)?, pages))
    }

    /// Opens a file, also for writing.
    pub fn open_for(&self, ino: u64, how: OpenHow, caller: &Caller) -> Result<Opened> {
        /// Number of attempts: another process may change what the number refers to between lookup
        /// and open.
        const ATTEMPTS: usize = 4;
        self.stats.operations.open.count();
        if self.overlay.is_none() {
            return if how.write { Err(FsError::ReadOnly) } else { self.open_as(ino, caller) };
        }
        let mut opened = self.open_once(ino, how, caller);
        for _ in 1..ATTEMPTS {
            if !matches!(opened, Err(FsError::Stale)) {
                break;
            }
            opened = self.open_once(ino, how, caller);
        }
        opened
    }

    /// Returns the overlay's file of an existing chunk that the kernel knows by its own number.
    ///
    /// # Errors
    ///
    /// `Stale` if another file has just been renamed to the chunk's name.
    pub(in crate::fs) fn own_chunk_file(&self, ino: u64, place: &Place) -> Result<Arc<LiveFile>> {
        let file = self.chunk_file(&place.array.path(&place.coords), place)?;
        if file.ino == ino { Ok(file) } else { Err(FsError::Stale) }
    }

    /// Lets those who have a version of an object open see what is written to it from now on: the kernel takes them for
    /// readers of the same file.
    fn let_readers_follow(&self, ino: u64, file: &Arc<dyn PosixFile>) -> Result<()> {
        if self.storage.posix().is_some() {
            return Ok(());
        }
        let id = file.stat()?.id();
        for open in self.paths.open_files(ino) {
            let mut behind = open.hold();
            if matches!(&*behind, Behind::Source(other) if other.stat()?.id() == id) {
                *behind = Behind::Source(Arc::clone(file) as Arc<dyn StorageFile>);
            }
        }
        Ok(())
    }

    fn open_once(&self, ino: u64, how: OpenHow, caller: &Caller) -> Result<Opened> {
        self.check_not_replaced(ino)?;
        let target = self.target(ino)?;
        let need = if how.write { Need::Write } else { Need::Read };
        let opener = self.permit_opening(&target, need, caller)?;
        let file = match target {
            // The kernel has cached a name that belongs to another file by now, for instance after
            // a rename that was done but could not be committed. Writes must not go to a file
            // without a name.
            Target::Live(file) if how.write && file.state().names.is_empty() => {
                return Err(FsError::Stale);
            }
            Target::Live(file) => file,
            Target::Path(_) if how.write && self.storage.files().is_none() => {
                return Err(FsError::ReadOnly);
            }
            Target::Tree(array, coords) if how.write && coords.len() == array.tree.rank() => {
                self.own_chunk_file(ino, &Place { array, coords })?
            }
            Target::Path(path) if how.write && self.is_document(&path) => {
                self.document_file(&path, !how.truncate)?
            }
            Target::Path(path) if how.write => {
                let _turn = self.name_in_source();
                self.check_stored(&path)?;
                self.check_no_shard_now(&path)?;
                let file = self.on_behalf(caller, |storage| {
                    let file = storage.open_writable(&path)?;
                    if how.truncate {
                        file.set_length(0)?;
                    }
                    Ok(file)
                })?;
                self.let_readers_follow(ino, &file)?;
                let open = OpenFile::new(Behind::Source(file), true, opener);
                let pages = self.source_pages(ino, &open)?;
                return self.insert_handle(Handle::Open(open), pages);
            }
            Target::Nameless(_) if how.write => {
                let file = self.paths.open_file(ino, true).ok_or(FsError::Stale)?;
                if how.truncate {
                    file.writable()?.set_length(0)?;
                }
                let handle = self.open_nameless(ino, file, true, opener);
                return self.insert_handle(handle, Pages::Kept);
            }
            Target::Control(_) | Target::ControlDirectory if how.write => {
                return Err(FsError::NotPermitted);
            }
            _ => return self.open_as(ino, caller),
        };
        let opened = self.open_live(&file, how, opener)?;
        if how.truncate {
            let emptied = self.truncate_live(&file, 0, &Writers::default());
            emptied.inspect_err(|_| self.release(opened.handle))?;
        }
        Ok(opened)
    }
}

/// Looks a chunk up and opens it, again if its shard is not where it was found: a commit, or another process,
/// has replaced it since.
fn despite_commits<T>(open: impl Fn(Freshness) -> Result<T>) -> Result<T> {
    let mut opened = open(Freshness::Now);
    for _ in 1..OPEN_ATTEMPTS {
        if !matches!(opened, Err(FsError::Stale)) {
            break;
        }
        opened = open(Freshness::Again);
    }
    opened
}
