//! Writing to open files, closing them, and making safe what was written.

use std::sync::Arc;

use super::live::LiveFile;
use super::{Fs, FsError, Result, Target};
use crate::store::ShardStore;
use crate::store::storage::StorageFile;

impl Fs {
    /// Writes to an open file.
    pub fn write(&self, ino: u64, handle: u64, offset: u64, data: &[u8]) -> Result<()> {
        self.stats.operations.write.count();
        match self.writable_handle(ino, handle)? {
            Written::Live(file) => self.write_live(&file, offset, data)?,
            Written::Source(file) => file.write_at(data, offset)?,
        }
        self.stats.operations.write_bytes.add(data.len() as u64);
        Ok(())
    }

    /// What is behind an open file that is written to.
    fn writable_handle(&self, ino: u64, handle: u64) -> Result<Written> {
        if let Some(file) = self.live_handle(handle) {
            return Ok(Written::Live(file));
        }
        // A file of the source that was renamed onto a chunk since it was opened.
        if let Some(file) = self.live(ino) {
            return Ok(Written::Live(file));
        }
        self.source_handle(handle).map(Written::Source).ok_or(FsError::BadHandle)
    }

    /// A file was closed, by one of those who have it open.
    pub fn flush(&self, ino: u64, handle: u64) -> Result<()> {
        let Ok(Written::Live(file)) = self.writable_handle(ino, handle) else { return Ok(()) };
        self.publish(&file)?;
        self.check_chunks(&file)?;
        if self.config.writing.sync {
            self.commit_file(&file)?;
        }
        self.take_error(&file)
    }

    /// Its writer hears at once of a chunk that will never be committed like this.
    fn check_chunks(&self, file: &LiveFile) -> Result<()> {
        let names = file.state().names.clone();
        for name in names {
            let waiting = self.overlay()?.names().get(&name).and_then(|name| {
                let place = name.place.as_ref();
                let place = place.filter(|place| !ShardStore::has_holes(&place.array.source))?;
                Some((place.clone(), name.stage.as_ref()?.change.as_ref()?.content.clone()?))
            });
            if let Some((place, content)) = waiting {
                ShardStore::check_chunk(&place.array.source, &place.coords, &content)?;
            }
        }
        Ok(())
    }

    /// Returns once what was written to a file is safe.
    pub fn fsync(&self, ino: u64, handle: u64) -> Result<()> {
        match self.writable_handle(ino, handle) {
            Ok(Written::Source(file)) => Ok(file.sync()?),
            Ok(Written::Live(file)) => {
                self.publish(&file)?;
                self.commit_file(&file)?;
                self.take_error(&file)
            }
            // Opened for reading only, as a chunk that is in its shard.
            Err(_) => Ok(()),
        }
    }

    /// Commits the chunks that a file stands for, and what waits beside them.
    fn commit_file(&self, file: &LiveFile) -> Result<()> {
        let names = file.state().names.clone();
        let mut first = Ok(());
        for name in names {
            let place = self.overlay()?.names().get(&name).and_then(|name| name.place.clone());
            if let Some(place) = place {
                // Those of the same array come along: one record, one turn at the lock.
                let committed = self.commit(&place.array.source.path);
                let own = file.state().error.take();
                first = first.and(match own {
                    Some(error) => Err(FsError::Commit(error)),
                    None => committed.or(Ok(())),
                });
            }
        }
        first
    }

    /// Returns once everything below a directory is safe.
    pub fn fsyncdir(&self, ino: u64) -> Result<()> {
        let target = self.target(ino)?;
        let path = match &target {
            Target::ControlDirectory => return Ok(()),
            target => self.directory_path(target)?,
        };
        let committed = self.commit(&path);
        if let Target::Path(path) = &target {
            self.storage.sync_directory(path)?;
        }
        committed
    }
}

/// What is written to.
enum Written {
    Live(Arc<LiveFile>),
    Source(Arc<dyn StorageFile>),
}
