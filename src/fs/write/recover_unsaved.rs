//! Return of changes that were saved because they could not be committed.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::format::Coords;
use crate::fs::caller::Caller;
use crate::fs::error::Result;
use crate::fs::node::NodeKind;
use crate::fs::request::Writers;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::Place;
use crate::fs::state::overlay::Name;
use crate::fs::write::slot::Slot;
use crate::fs::write::unsaved::PIECE_BYTES;
use crate::store::ChunkReader;

impl Fs {
    /// Stages a saved chunk, to be committed over what its shard holds. Returns whether `path`, a
    /// path of the view, is that of a chunk.
    pub fn put_saved(&self, path: &Path, content: &mut dyn Read) -> Result<bool> {
        let Some(place) = self.chunk_at(path)? else { return Ok(false) };
        let own = Caller::own();
        let file = self.new_file(None, 0o644, own.owner())?;
        let (mut buffer, mut at) = (vec![0; PIECE_BYTES], 0);
        loop {
            match content.read(&mut buffer)? {
                0 => break,
                read => {
                    self.write_live(&file, Some(at), &buffer[..read], &Writers::default())?;
                    at += read as u64;
                }
            }
        }
        self.name_file(&Slot::Chunk(path.to_owned(), place), &file, &own)?;
        file.state().dirty = false;
        Ok(true)
    }

    /// Returns whether the chunk at a path of the view is in its shard with exactly this content. It
    /// is not if it waits to be committed, or if others have written to it since.
    pub fn holds_saved(&self, path: &Path, content: &mut dyn Read) -> Result<bool> {
        let waits = |name: &Name| name.stage.is_some();
        let Some(place) = self.chunk_at(path)? else { return Ok(false) };
        if self.overlay()?.names().get(path).is_some_and(waits) {
            return Ok(false);
        }
        let array = &place.array.source;
        let same = self.store.quiet_reader(array, &place.coords, |stored| same(&stored, content));
        Ok(same?.transpose()?.unwrap_or(false))
    }

    /// Returns the chunk at a path of the view; `None` if the path is not that of a chunk.
    fn chunk_at(&self, path: &Path) -> Result<Option<Place>> {
        for directory in path.ancestors().skip(1) {
            let node = self.nodes.node(directory)?;
            let NodeKind::Sharded(array) = &node.kind else { continue };
            let Ok(key) = path.strip_prefix(&array.source.path) else { continue };
            let mut names = key.iter().map(OsStr::to_str);
            let mut coords = names.next().flatten().and_then(|name| array.tree.top(name));
            for name in names {
                let child = |coords: Coords| array.tree.child(&coords, name?);
                coords = coords.and_then(child);
            }
            let is_chunk = |coords: &Coords| coords.len() == array.tree.rank();
            let array = Arc::clone(array);
            return Ok(coords.filter(is_chunk).map(|coords| Place { array, coords }));
        }
        Ok(None)
    }
}

/// Returns whether a chunk has exactly this content.
fn same(stored: &ChunkReader, content: &mut dyn Read) -> io::Result<bool> {
    let (mut ours, mut theirs, mut at) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES], 0);
    loop {
        let read = content.read(&mut ours)?;
        if read == 0 {
            return Ok(at == stored.nbytes());
        }
        if stored.read(&mut theirs[..read], at)? != read || theirs[..read] != ours[..read] {
            return Ok(false);
        }
        at += read as u64;
    }
}
