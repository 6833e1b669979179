//! The table of open handles.

use std::path::Path;
use std::sync::Arc;

use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::node::{At, NodeKind};
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::{Handle, OpenText, Opened};
use crate::fs::state::live_file::{Behind, LiveFile, OpenFile};
use crate::fs::state::opener::Opener;
use crate::fs::state::page_policy::Pages;
use crate::fs::state::target::Target;
use crate::number::to_usize;
use crate::store::storage::{FileKind, Stat, StorageFile};
use crate::view::inode::InodeRange;

impl Fs {
    /// Returns whether the file of an open chunk was replaced or removed through this mount since.
    pub(in crate::fs) fn is_replaced(&self, ino: u64, handle: &Handle) -> bool {
        let replaced = match handle {
            Handle::Chunk(open) => open.replaced,
            Handle::Decoded(open) => open.replaced,
            _ => return false,
        };
        self.overlay.is_some() && self.commits.replaced(ino) != replaced
    }

    /// Opens a directory and returns its handle, through which everything given up below the
    /// directory from now on is reported.
    ///
    /// # Errors
    ///
    /// `Stale` if the number is that of an array before it was reshaped. Reported here and not by
    /// the first listing, the kernel looks the path up anew; so the array is compared with the
    /// source first, and the listing finds it as it is now.
    pub fn opendir(&self, ino: u64) -> Result<u64> {
        if let Some((range, _)) = InodeRange::split(ino) {
            self.nodes.revalidate(range)?;
        }
        let target = self.target(ino)?;
        let handle = self.next_number();
        if let (Target::Path(path), true) = (&target, self.makes_shards())
            && !matches!(self.nodes.node(path)?.kind, NodeKind::Sharded(_))
        {
            self.listings.lock().insert(handle);
        }
        if self.overlay.is_some() {
            self.failures.opened(handle);
        }
        Ok(handle)
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: u64) {
        self.listings.lock().remove(&handle);
        self.failures.closed(handle);
    }

    pub(in crate::fs) fn insert_handle(&self, handle: Handle, pages: Pages) -> Result<Opened> {
        let handle = self.handles.insert(handle).ok_or_else(|| FsError::Io(too_many()))?;
        if self.overlay.is_some() {
            self.failures.opened(handle as u64);
        }
        Ok(Opened { handle: handle as u64, pages })
    }

    /// Opens another handle of a file of the source that has no name.
    pub(in crate::fs) fn open_nameless(
        &self,
        ino: u64,
        file: Arc<dyn StorageFile>,
        is_writable: bool,
        opener: Option<Arc<Opener>>,
    ) -> Handle {
        let open = OpenFile::new(Behind::Source(file), is_writable, opener);
        self.paths.opened_again(ino, &open);
        Handle::Open(open)
    }

    /// Returns the open file behind a handle; `None` if it cannot change between source and
    /// overlay.
    pub(in crate::fs) fn open_handle(&self, handle: u64) -> Option<Arc<OpenFile>> {
        match &*self.handles.get(to_usize(handle))? {
            Handle::Open(open) => Some(Arc::clone(open)),
            _ => None,
        }
    }

    /// Returns whether reads through a handle follow changes by other processes, where an open
    /// chunk keeps its contents; and whether it is a file of the source.
    pub fn follows(&self, handle: u64) -> (bool, bool) {
        let open = self.open_handle(handle);
        (open.is_some(), open.is_some_and(|open| open.source().is_some()))
    }

    /// Returns the file of the source behind a handle; `None` if it is another kind of file.
    pub(in crate::fs) fn source_handle(&self, handle: u64) -> Option<Arc<dyn StorageFile>> {
        self.open_handle(handle)?.source()
    }

    /// Returns the file of the overlay with an inode number; `None` if there is none.
    pub(in crate::fs) fn live(&self, ino: u64) -> Option<Arc<LiveFile>> {
        self.overlay.as_ref()?.names().by_ino(ino)
    }

    /// Registers a file of the source opened under an inode number, which refers to that file from
    /// now on. Returns the page cache policy.
    pub(in crate::fs) fn source_pages(&self, ino: u64, open: &Arc<OpenFile>) -> Result<Pages> {
        let stat = open.source().ok_or(FsError::Stale)?.stat()?;
        self.paths.opened(ino, &stat, open)?;
        let content = self.fingerprint(&stat.version());
        if self.identities.changed_recently(ino, content) {
            return Ok(if open.is_writable { Pages::Renewed } else { Pages::Bypassed });
        }
        let has_pages = self.paths.has_pages(ino, content);
        Ok(if has_pages { Pages::Kept } else { Pages::Dropped })
    }

    /// Opens a file of the source, or a document of the view, for a caller, who is `opener` if not one who may
    /// do anything.
    pub(in crate::fs) fn open_path(
        &self,
        path: &Path,
        caller: &Caller,
        opener: Option<&Arc<Opener>>,
    ) -> Result<Handle> {
        if let Some(text) = self.open_document(path, opener)? {
            return Ok(text);
        }
        // The attributes are checked first: they are refused where the bytes must not be shown.
        match self.path_attr(path)?.kind {
            FileKind::File => {
                let identity = match opener {
                    Some(opener) => opener.author.identity.clone().ok_or(FsError::Denied)?,
                    None => self.access.identity(caller)?,
                };
                let file = identity.act(|| self.storage.open(path))?;
                let file = file.map_err(|error| self.gone(path, error.into()))?;
                // It may have been replaced by the document of a sharded array since it was found.
                if let Some(text) = self.open_document(path, opener)? {
                    return Ok(text);
                }
                // It may be a shard by now, by other mounts as well.
                self.check_no_shard_now(path)?;
                if self.is_document(path) && self.storage.objects().is_some() {
                    self.note_served(path, &file.stat()?);
                }
                Ok(Handle::Open(OpenFile::new(Behind::Source(file), false, opener.cloned())))
            }
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    /// Opens a document of the view, if a path is that of one that the source has otherwise.
    fn open_document(&self, path: &Path, opener: Option<&Arc<Opener>>) -> Result<Option<Handle>> {
        let At::Text(text, document) = self.nodes.at(path)? else { return Ok(None) };
        self.permit_document(opener.map(|opener| &**opener), path, &document)?;
        self.note_served(path, &document);
        let number = self.paths.number(path);
        let attr = Some(self.config.ownership.file(number, &document, text.len() as u64));
        Ok(Some(Handle::Text(OpenText { text, attr })))
    }
}

impl Fs {
    /// Records that a program is given a document of a store of objects, which it may be about to change.
    pub(in crate::fs) fn note_served(&self, path: &Path, document: &Stat) {
        if self.overlay.is_none() || self.storage.objects().is_none() {
            return;
        }
        // Those of Zarr v2 are made of one of Zarr v3.
        if let Ok(stored) = self.document_of(path) {
            self.served().note(&stored, document.id());
        }
    }
}

fn too_many() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::ENFILE)
}
