//! Report about an array that is created, or would be.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::list::{bytes, shape};
use crate::format::json::{to_strict_text, to_text};
use crate::format::new_array::{NewArray, Sizes};
use crate::text::shown;

/// An array that is created, or would be.
pub(super) struct Report<'a> {
    pub directory: &'a Path,
    pub array: &'a NewArray,
    pub sizes: &'a Sizes,
    pub document: &'a Value,
}

impl Report<'_> {
    /// Returns the plan, followed by the metadata.
    pub(super) fn plan(&self) -> Vec<u8> {
        [self.table().into_bytes(), b"\n".to_vec(), to_text(self.document)].concat()
    }

    /// Returns the report of a created array.
    pub(super) fn done(&self, replaces: bool) -> Vec<u8> {
        let done = if replaces { "replaced" } else { "created" };
        format!("{done} {}\n{}", shown(&self.directory), self.table()).into_bytes()
    }

    fn table(&self) -> String {
        let Sizes { chunks, shards, chunks_per_shard, chunk_nbytes, shard_nbytes, index_nbytes } =
            self.sizes;
        let data_type = &self.document["data_type"];
        let name = data_type.as_str().or_else(|| data_type.get("name")?.as_str());
        let array = shape(&self.array.shape);
        let (read, write) = (shape(&self.array.chunks.read), shape(&self.array.chunks.write));
        let mut table = format!("array             {array}, {}\n", name.unwrap_or_default());
        if !self.array.is_sharded() {
            let size = bytes(*chunk_nbytes);
            table += &format!("chunk             {read}: {size}\nchunks            {chunks}\n");
            return table
                + "shards            none: each would have one chunk (--chunk says what is in a shard)\n";
        }
        let count: u64 = chunks_per_shard.iter().product();
        let index = bytes(*index_nbytes);
        table += &format!("inner chunk       {read}: {}\n", bytes(*chunk_nbytes));
        table += &format!("shard             {write}: {}\n", bytes(*shard_nbytes));
        table += &format!("inner chunks      {chunks}\nshards            {shards}\n");
        table += &format!("chunks per shard  {}: {count}\n", shape(chunks_per_shard));
        table + &format!("shard index       {index}\n")
    }

    /// Returns the whole report as a JSON document.
    pub(super) fn json(&self, written: bool, replaces: bool) -> Vec<u8> {
        let Sizes { chunks, shards, chunks_per_shard, chunk_nbytes, shard_nbytes, index_nbytes } =
            self.sizes;
        let report = json!({
            "path": self.directory.to_string_lossy(),
            "written": written,
            "replaces": replaces,
            "sharded": self.array.is_sharded(),
            "chunk_shape": self.array.chunks.read,
            "shard_shape": self.array.chunks.write,
            "chunks": chunks,
            "shards": shards,
            "chunks_per_shard": chunks_per_shard,
            "chunk_nbytes": chunk_nbytes,
            "shard_nbytes": shard_nbytes,
            "index_nbytes": index_nbytes,
            "metadata": self.document,
        });
        (to_strict_text(&report) + "\n").into_bytes()
    }
}
