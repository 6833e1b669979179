//! Lookups, attributes and contents of files of the overlay.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::fs::attr::{Attr, Entry, now};
use crate::fs::caller::Owner;
use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, LiveState, Number, Place, Shown};
use crate::fs::state::opener::Opener;
use crate::fs::state::overlay::What;
use crate::fs::state::target::Target;
use crate::store::Freshness;
use crate::store::content::Content;
use crate::store::spool::{Spool, SpoolFile};
use crate::store::storage::{FileKind, Stat};
use crate::view::inode::InodeRange;

/// Maximum length of a chunk file in bytes.
pub(in crate::fs) const MAX_CHUNK_BYTES: u64 = 1 << 40;

/// Number of bytes to copy at once from memory to a file.
pub(in crate::fs) const SPOOL_PIECE: usize = 1 << 20;

/// Permissions of a chunk file, whatever the writer asked for: those of its shard apply.
const CHUNK_MODE: u32 = 0o644;

/// Returns whether a file is open as the stored chunk of an array that others have replaced by `now`: its
/// name is that of a chunk of the other one.
fn is_of_replaced(file: &LiveFile, now: &ArrayView) -> bool {
    match &*file.state() {
        LiveState { dirty: false, bytes: Bytes::Stored(place), .. } => {
            place.array.source.id != now.source.id && !now.is_still(&place.array)
        }
        _ => false,
    }
}

impl Fs {
    /// Looks up a name in the overlay: `None` if the overlay does not decide, `Some(None)` if the
    /// name was removed.
    #[allow(clippy::option_option, reason = "unknown and removed are different answers")]
    pub(in crate::fs) fn lookup_staged(
        &self,
        parent: u64,
        name: &OsStr,
    ) -> Result<Option<Option<Entry>>> {
        let Some(overlay) = &self.overlay else { return Ok(None) };
        if overlay.names().is_empty() {
            return Ok(None);
        }
        let target = self.target(parent)?;
        let Ok(directory) = self.directory_path(&target) else { return Ok(None) };
        let what = overlay.names().get(&directory.join(name)).map(|name| name.what.clone());
        if let (Some(What::File(file)), Target::Tree(now, _)) = (&what, &target)
            && is_of_replaced(file, now)
        {
            return Ok(None);
        }
        let shown = match &what {
            Some(What::File(file)) => file.state().shown.clone(),
            _ => Shown::Written,
        };
        Ok(match what {
            None => None,
            Some(What::Removed) => Some(None),
            Some(What::File(file)) => match shown {
                Shown::Nothing => Some(None),
                Shown::Written | Shown::Instead(_) | Shown::Stored(_) => {
                    match self.live_entry(&file) {
                        // What is stored is shown, and others have removed it.
                        Err(FsError::NotFound) => Some(None),
                        entry => Some(Some(entry?)),
                    }
                }
            },
            // Looked up like any directory above chunks.
            Some(What::Directory) => None,
        })
    }

    /// Returns whether a name that is not shown is that of a file whose next write may make it appear:
    /// what was last written to it are fill values, or was refused.
    pub(in crate::fs) fn may_reappear(&self, parent: u64, name: &OsStr) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        let directory = self.target(parent).and_then(|target| self.directory_path(&target));
        directory.is_ok_and(|directory| overlay.names().file(&directory.join(name)).is_some())
    }

    /// Checks that a chunk's own number is not used for a file that was renamed to the chunk's name and
    /// has a number of its own, after a rename, for instance, that was done but has reported an error. The
    /// kernel has the contents of that file under its number, and would go on showing them, and writing
    /// pages of them, after a write by another number.
    ///
    /// # Errors
    ///
    /// `Stale`; the kernel then looks the name up.
    pub(in crate::fs) fn check_not_replaced(&self, ino: u64) -> Result<()> {
        let Some(overlay) = &self.overlay else { return Ok(()) };
        if InodeRange::split(ino).is_none() || overlay.names().is_empty() {
            return Ok(());
        }
        match self.target(ino)? {
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                let there = overlay.names().file(&array.path(&coords));
                match there {
                    Some(file) if file.ino != ino => Err(FsError::Stale),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Creates a file without a name and without contents.
    pub(in crate::fs) fn new_file(
        &self,
        number: Option<Number>,
        mode: u32,
        owner: Owner,
    ) -> Result<Arc<LiveFile>> {
        let overlay = self.overlay()?;
        let number = number.filter(|number| !self.paths.has_adopted(number.ino));
        Ok(overlay.file(&mut overlay.names(), number, LiveState::new(mode, owner, now())))
    }

    /// Returns a chunk's own number as that of its file from now on.
    pub(in crate::fs) fn chunk_number(&self, ino: u64) -> Number {
        Number { ino, generation: self.commits.replaced(ino) }
    }

    /// Returns the overlay's file of an existing chunk, creating it if needed.
    pub(in crate::fs) fn chunk_file(&self, path: &Path, place: &Place) -> Result<Arc<LiveFile>> {
        match self.overlay()?.names().get(path).map(|name| name.what.clone()) {
            // It stays until it is closed.
            Some(What::File(file)) if is_of_replaced(&file, &place.array) => {
                return Err(FsError::Stale);
            }
            Some(What::File(file)) => return Ok(file),
            Some(What::Removed | What::Directory) => return Err(FsError::NotFound),
            None => (),
        }
        self.check_writable(place)?;
        let entry = self.tree_entry(&place.array, &place.coords, Freshness::Now)?;
        let attr = entry.ok_or(FsError::NotFound)?.attr;
        let owner = Owner { uid: attr.uid, gid: attr.gid };
        let state = LiveState {
            bytes: Bytes::Stored(place.clone()),
            dirty: false,
            ..LiveState::new(attr.mode, owner, attr.mtime)
        };
        let ino = Some(attr.ino).filter(|ino| !self.paths.has_adopted(*ino));
        let overlay = self.overlay()?;
        let mut names = overlay.names();
        // Another thread may have created it first, or removed the chunk.
        match names.get(path).map(|name| name.what.clone()) {
            Some(What::File(other)) => return Ok(other),
            Some(What::Removed | What::Directory) => return Err(FsError::NotFound),
            None => (),
        }
        let number = ino.map(|ino| self.chunk_number(ino));
        let file = overlay.file(&mut names, number, state);
        names.put(path, What::File(Arc::clone(&file)), Some(place.clone()));
        Ok(file)
    }

    /// Checks that a chunk can be written. Chunks of shards that are compressed as a whole are read-only; in a
    /// store of objects, those in files without an index are, too.
    pub(in crate::fs) fn check_writable(&self, place: &Place) -> Result<()> {
        let source = &place.array.source;
        // Other formats have chunks of different lengths, which are shown padded to the same length.
        let is_made_equal = place.array.decoded_form().is_some() && !source.format.has_keys();
        let is_replaced = self.storage.posix().is_some() || source.format.has_index();
        match source.is_writable() && !is_made_equal && is_replaced {
            true => Ok(()),
            false => Err(FsError::ReadOnly),
        }
    }

    /// Returns the attributes of a file of the overlay.
    pub(in crate::fs) fn live_attr(&self, file: &LiveFile) -> Result<Attr> {
        let (bytes, mode, uid, gid, mtime, links) = {
            let state = file.state();
            let links = u32::try_from(state.names.len()).unwrap_or(u32::MAX);
            (state.shown(), state.mode, state.uid, state.gid, state.mtime, links)
        };
        let size = match bytes {
            Bytes::Here(content) => content.nbytes(),
            Bytes::Moved(stored) => return self.open_attr(file.ino, &*stored),
            Bytes::Stored(Place { array, coords }) => {
                let mut entry = self.tree_entry(&array, &coords, Freshness::Recent)?;
                if entry.is_none() {
                    entry = self.tree_entry(&array, &coords, Freshness::Again)?;
                }
                let attr = entry.ok_or(FsError::NotFound)?.attr;
                return Ok(Attr { ino: file.ino, links, ..attr });
            }
        };
        let stat = Stat {
            dev: 0,
            ino: file.ino,
            kind: FileKind::File,
            mode,
            uid,
            gid,
            links: 1,
            size,
            mtime,
            ctime: mtime,
            atime: mtime,
        };
        Ok(Attr { links, ..self.config.ownership.attr(file.ino, &stat) })
    }

    /// Returns whether what is written to a file may turn out to be refused.
    pub(in crate::fs) fn is_refusable(&self, file: &LiveFile) -> bool {
        self.view().is_decoded() || file.state().names.iter().any(|name| self.is_document(name))
    }

    /// Returns the entry of a file of the overlay, and counts a lookup for the reply to the kernel.
    pub(in crate::fs) fn live_entry(&self, file: &LiveFile) -> Result<Entry> {
        let attr = self.live_attr(file)?;
        self.overlay()?.names().looked_up(file.ino);
        let lasting = !self.is_refusable(file);
        Ok(Entry { attr, generation: file.generation, lasting })
    }

    /// Reads from a file of the overlay, or from the shard that its bytes are in if who has opened it may.
    pub(in crate::fs) fn read_live(
        &self,
        file: &LiveFile,
        opener: Option<&Opener>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let bytes = self.shown_to(opener, file)?;
        self.read_bytes(bytes, opener, offset, buffer)
    }

    /// Returns the bytes that readers of a file of the overlay see, if who has opened it may read them.
    pub(in crate::fs) fn shown_to(
        &self,
        opener: Option<&Opener>,
        file: &LiveFile,
    ) -> Result<Bytes> {
        let (bytes, behind_link) = {
            let state = file.state();
            (state.shown(), state.behind_link)
        };
        if let (Some(shard), false) = (behind_link, matches!(bytes, Bytes::Stored(_))) {
            self.permit_linked(opener, file, shard)?;
        }
        Ok(bytes)
    }

    /// Reads bytes of a file of the overlay, or from the shard that they are in if who has opened it may.
    pub(in crate::fs) fn read_bytes(
        &self,
        bytes: Bytes,
        opener: Option<&Opener>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        match bytes {
            Bytes::Here(content) => Ok(content.read_at(buffer, offset)?),
            Bytes::Moved(file) => Ok(file.read_at(buffer, offset)?),
            Bytes::Stored(Place { array, coords }) => {
                self.read_stored((&array, &coords), opener, offset, buffer)
            }
        }
    }
}

/// Moves contents into a spool file that is not shared, copying the bytes if needed.
pub(in crate::fs) fn own_file<'a>(
    content: &'a mut Content,
    spool: &Spool,
) -> std::io::Result<(&'a SpoolFile, &'a mut u64)> {
    let is_own = matches!(content, Content::File { file, .. } if Arc::strong_count(file) == 1);
    if !is_own {
        let file = spool.create()?;
        let (mut buffer, mut at, nbytes) = (vec![0; SPOOL_PIECE], 0, content.nbytes());
        while at < nbytes {
            let read = content.read_at(&mut buffer, at)?;
            file.file().write_all_at(&buffer[..read], at)?;
            at += read as u64;
        }
        *content = Content::File { file: Arc::new(file), nbytes };
    }
    match content {
        Content::File { file, nbytes } => Ok((file, nbytes)),
        // Unreachable: moved to a file above.
        Content::Memory(_) => Err(std::io::ErrorKind::Other.into()),
    }
}

/// Returns the permissions of a new chunk file.
pub(in crate::fs) fn chunk_mode(mode: u32) -> u32 {
    mode & 0o666 | CHUNK_MODE & 0o600
}
