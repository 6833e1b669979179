//! Files of decoded chunks and of whole arrays.

use std::ops::Range;
use std::sync::Arc;

use crate::format::decoded::{DecodedForm, WrittenError};
use crate::format::flat::{ChunkRow, FlatFile, FlatForm};
use crate::format::npy;
use crate::format::zarr2::{Missing, ZARRAY};
use crate::fs::attr::Entry;
use crate::fs::error::{FsError, Result, Unwritable};
use crate::fs::form::Form;
use crate::fs::node::ArrayView;
use crate::fs::read::openers::OPEN_ATTEMPTS;
use crate::fs::state::decoded_file::{DecodedFile, Items};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Place, Shown};
use crate::fs::state::opener::Opener;
use crate::memory::zeroed;
use crate::store::Freshness;
use crate::store::content::Content;
use crate::store::decoded::{Asked, DecodedChunk};
use crate::store::storage::{Need, Stat};

/// Encoded contents of a chunk file.
pub(in crate::fs) struct Encoded {
    /// Encoded chunk; `None` if the chunk is to be empty.
    pub chunk: Option<Content>,
    /// Contents visible to readers other than the writer from now on.
    pub shown: Shown,
}

impl Encoded {
    /// Returns what readers see of a file with these contents; `None` if they see no file.
    pub(in crate::fs) fn seen(&self, content: &Content) -> Option<Content> {
        match &self.shown {
            Shown::Written => Some(content.clone()),
            Shown::Instead(content) => Some(content.clone()),
            Shown::Nothing | Shown::Stored(_) => None,
        }
    }
}

impl Fs {
    /// Returns the file of a decoded chunk; `None` if the chunk does not exist and the view does
    /// not fill it in.
    pub(in crate::fs) fn decoded_file(
        &self,
        array: &ArrayView,
        form: &DecodedForm,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<DecodedFile>> {
        let chunk = self.store.decoded(&array.source, form.pipeline(), coords, freshness)?;
        let shard = chunk.as_ref().map(|chunk| chunk.shard());
        let items = match chunk {
            Some(chunk) => match form.items(coords, (*chunk).as_ref()) {
                None => Items::Whole(chunk),
                Some(items) => Items::Made(items),
            },
            None if self.fills() => self.filled(form, coords),
            None => return Ok(None),
        };
        Ok(Some(DecodedFile { header: form.header(coords), items, shard }))
    }

    /// Returns the file of a decoded chunk, filled with the fill value if the chunk does not exist
    /// but its file is open.
    pub(in crate::fs) fn open_decoded_file(
        &self,
        array: &ArrayView,
        form: &DecodedForm,
        coords: &[u64],
    ) -> Result<DecodedFile> {
        let file = self.decoded_file(array, form, coords, Freshness::Recent)?;
        Ok(file.unwrap_or_else(|| self.filled_file(form, coords)))
    }

    /// Returns the same file, if who has opened it may read the shard that it is from.
    pub(in crate::fs) fn permitted_decoded(
        &self,
        (array, form, coords): (&ArrayView, &DecodedForm, &[u64]),
        opener: Option<&Opener>,
    ) -> Result<DecodedFile> {
        let mut freshness = Freshness::Recent;
        for _ in 0..OPEN_ATTEMPTS {
            let file = self.decoded_file(array, form, coords, freshness)?;
            let file = file.unwrap_or_else(|| self.filled_file(form, coords));
            let Some(shard) = file.shard else { return Ok(file) };
            match self.permit_shard(opener, Need::Read, (array, coords), shard) {
                // It was replaced since it was found.
                Err(FsError::Stale) => freshness = Freshness::Again,
                permitted => return permitted.map(|()| file),
            }
        }
        Err(FsError::Stale)
    }

    fn filled_file(&self, form: &DecodedForm, coords: &[u64]) -> DecodedFile {
        DecodedFile { header: form.header(coords), items: self.filled(form, coords), shard: None }
    }

    fn filled(&self, form: &DecodedForm, coords: &[u64]) -> Items {
        let chunk = form.filled();
        Items::Made(form.items(coords, &chunk).unwrap_or(chunk))
    }

    /// Returns the attributes to derive those of an absent chunk from; `None` if the view does not
    /// show absent chunks.
    pub(in crate::fs) fn filler(&self, array: &ArrayView) -> Result<Option<Stat>> {
        let fills = match &array.form {
            Form::Decoded(_) => self.fills(),
            Form::Filled(_) => true,
            Form::Encoded | Form::Flat(_) => false,
        };
        fills.then(|| Ok(self.storage.stat(&array.source.path)?)).transpose()
    }

    /// Returns the encoded chunk shown for absent ones; `None` in a view that does not show absent
    /// chunks.
    pub(in crate::fs) fn absent_chunk(&self, array: &ArrayView) -> Result<Option<Arc<[u8]>>> {
        let Form::Filled(filled) = &array.form else { return Ok(None) };
        self.fill_chunks.encoded(array.source.id, &filled.absent).map(Some)
    }

    /// Returns the length of the chunk shown for absent ones in bytes; 0 in a view that does not
    /// show encoded ones.
    pub(in crate::fs) fn absent_nbytes(&self, array: &ArrayView) -> Result<u64> {
        if let Form::Filled(filled) = &array.form
            && let Some(known) = filled.absent.nbytes()
        {
            return Ok(known);
        }
        Ok(self.absent_chunk(array)?.map_or(0, |chunk| chunk.len() as u64))
    }

    /// Returns the encoded chunk that replaces one that is removed; `None` if nothing replaces it.
    pub(in crate::fs) fn removed_chunk(&self, array: &ArrayView) -> Result<Option<Arc<[u8]>>> {
        let Form::Filled(filled) = &array.form else { return Ok(None) };
        let removed = filled.removed.as_ref();
        removed.map(|chunk| self.fill_chunks.encoded(array.source.id, chunk)).transpose()
    }

    /// Returns whether absent decoded chunks are shown.
    fn fills(&self) -> bool {
        self.config.view.missing == Missing::Fill
    }

    /// Returns whether every chunk of the grid is shown.
    pub(in crate::fs) fn shows_all(&self, array: &ArrayView) -> bool {
        match &array.form {
            Form::Decoded(_) => self.fills(),
            // While the array is being removed, only stored chunks are shown.
            Form::Filled(_) => !self.is_removed(&array.source.path.join(ZARRAY)),
            Form::Encoded | Form::Flat(_) => false,
        }
    }

    /// Returns the entry of a file of a whole array.
    pub(in crate::fs) fn flat_entry(
        &self,
        array: &ArrayView,
        form: &FlatForm,
        file: FlatFile,
    ) -> Result<Entry> {
        // The metadata gives the length; there are too many shards to check the mtime of each.
        let stat = match self.nodes.node(&array.source.path)?.stat {
            Some(stat) => stat,
            None => self.storage.stat(&array.source.path)?,
        };
        let ino = array.inodes.ino(file as u64);
        let attr = self.config.ownership.file(ino, &stat, form.nbytes(file));
        Ok(Entry { attr, generation: 0, lasting: true })
    }

    /// Returns the maximum number of chunks to decode at once for a read of a file of a whole array.
    pub(in crate::fs) fn most_chunks(&self, form: &FlatForm) -> u64 {
        let budget = self.config.store.decoded_size / 2;
        (budget / form.pipeline().nbytes().max(1)) as u64
    }

    /// Returns decoded chunks along the last axis, if who has opened the array may read them. Those that
    /// are not cached are decoded by several threads, this one among them.
    pub(in crate::fs) fn chunk_row(
        &self,
        array: &Arc<ArrayView>,
        form: &FlatForm,
        opener: Option<&Opener>,
        place: &[u64],
        range: Range<u64>,
    ) -> Result<ChunkRow<Arc<DecodedChunk>>> {
        let (source, pipeline) = (&array.source, form.pipeline());
        let coords = |last: u64| {
            let mut coords = [place, &[last]].concat();
            coords.truncate(array.tree.rank());
            coords
        };
        let mut row: ChunkRow<Arc<DecodedChunk>> = Vec::new();
        let mut missing = Vec::new();
        for last in range.clone() {
            let coords = coords(last);
            let found = self.store.decoded_if_kept(source, pipeline, &coords)?;
            if let Asked::Busy = found {
                missing.push((row.len(), coords));
            }
            row.push(found.chunk());
        }
        self.prefetch.read_row(array, form, place, missing.is_empty());
        for (_, coords) in missing.iter().skip(1) {
            self.prefetch.announce(array, coords.clone());
        }
        let mut busy = Vec::new();
        for (at, coords) in missing {
            match self.store.decoded_unless_busy(source, pipeline, &coords)? {
                Asked::Busy => busy.push((at, coords)),
                found => row[at] = found.chunk(),
            }
        }
        for (at, coords) in busy {
            row[at] = self.store.decoded(source, pipeline, &coords, Freshness::Recent)?;
        }
        if opener.is_some() {
            for (last, chunk) in range.zip(&mut row) {
                self.permit_decoded((array, form, &coords(last)), opener, chunk)?;
            }
        }
        Ok(row)
    }

    /// Checks that who has opened an array may read a decoded chunk of it, which is looked up anew if its
    /// shard was replaced since it was found.
    fn permit_decoded(
        &self,
        (array, form, coords): (&ArrayView, &FlatForm, &[u64]),
        opener: Option<&Opener>,
        chunk: &mut Option<Arc<DecodedChunk>>,
    ) -> Result<()> {
        let permit = |found: &DecodedChunk| {
            self.permit_shard(opener, Need::Read, (array, coords), found.shard())
        };
        for _ in 0..OPEN_ATTEMPTS {
            match chunk.as_deref().map_or(Ok(()), permit) {
                Err(FsError::Stale) => (),
                permitted => return permitted,
            }
            let (source, pipeline) = (&array.source, form.pipeline());
            *chunk = self.store.decoded(source, pipeline, coords, Freshness::Again)?;
        }
        Err(FsError::Stale)
    }

    /// Encodes the contents of a chunk file for the commit.
    ///
    /// # Errors
    ///
    /// `Unwritable` if the contents cannot become a chunk.
    pub(in crate::fs) fn encoded(&self, place: &Place, content: &Content) -> Result<Encoded> {
        let refused = |error: Unwritable| {
            let path = place.array.path(&place.coords);
            FsError::Unwritable { path, error }
        };
        let Some(form) = place.array.decoded_form() else {
            return match place.array.source.is_shard(&place.coords, content)? {
                true => Err(refused(Unwritable::Shard)),
                false => Ok(Encoded { chunk: Some(content.clone()), shown: Shown::Written }),
            };
        };
        let (found, expected) = (content.nbytes(), form.nbytes(&place.coords));
        if found > expected.saturating_add(npy::MAX_HEADER_BYTES as u64) {
            return Err(refused(WrittenError::Length { found, expected }.into()));
        }
        // Bounded: no longer than a chunk and a header, which have limits.
        let mut file = zeroed(found).map_err(std::io::Error::from)?;
        content.read_at(&mut file, 0)?;
        let chunk = form.chunk(&place.coords, &file);
        let chunk = chunk.map_err(|error| refused(error.into()))?;
        let fill = form.pipeline().fill();
        let is_fill = chunk.chunks_exact(fill.len().max(1)).all(|item| item == fill);
        let is_left_out = is_fill && !self.config.view.keep_fill && !place.array.keeps_fill;
        if is_left_out && !self.fills() {
            return Ok(Encoded { chunk: None, shown: Shown::Nothing });
        }
        let coords = &place.coords;
        let items = form.items(coords, &chunk);
        let again = [&*form.header(coords), items.as_ref().unwrap_or(&chunk)].concat();
        let shown = match again == file {
            true => Shown::Written,
            false => Shown::Instead(Content::Memory(Arc::new(again))),
        };
        if is_left_out {
            return Ok(Encoded { chunk: None, shown });
        }
        let encoded = form.pipeline().encode(&chunk);
        let encoded = encoded.map_err(|error| refused(error.into()))?;
        Ok(Encoded { chunk: Some(Content::Memory(Arc::new(encoded))), shown })
    }

    /// Returns the file of a whole array that has the name `name` in the array's directory; `None`
    /// if there is none.
    pub(in crate::fs) fn flat_file<'a>(
        &self,
        array: &'a ArrayView,
        name: &str,
    ) -> Option<(&'a FlatForm, FlatFile)> {
        let Form::Flat(form) = &array.form else { return None };
        let file = FlatFile::ALL.into_iter().find(|file| file.name() == name)?;
        Some((form, file))
    }
}
