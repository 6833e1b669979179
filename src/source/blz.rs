//! BLZ and bcolz arrays: directories, recognized by their contents.

use std::io;
use std::path::Path;

use serde_json::Value;

use super::array::ArrayFormat;
use super::config::Probe;
use super::document::read_document;
use super::error::NodeError;
use super::found::{Found, FoundArray, FoundKind, Unusable};
use super::zarr3;
use crate::format::foreign::{self, SuperchunkArray};
use crate::format::numpy;
use crate::store::formats::bloscpack::file;
use crate::store::formats::file_state::FileState;
use crate::store::formats::superchunks::{
    ATTRIBUTES, ATTRIBUTES_TOO, FILES, Form, SIZES, STORAGE, superchunks,
};
use crate::store::storage::{FileKind, Stat, Storage, if_present, is_absent};

/// Maximum length, in chunks, to which a writable array can grow.
const MOST_SUPERCHUNKS: u64 = 1 << 24;

/// Looks for the BLZ or bcolz array at a directory, or the column of a table.
pub(super) fn look(
    config: &Probe,
    storage: &dyn Storage,
    directory: &Path,
) -> Result<Option<Found>, Box<Unusable>> {
    let unusable = |stat, error: NodeError| Unusable::of(true, directory, stat, error);
    // It may be no array at all: what lies below is visited.
    let unreadable = |error: io::Error| Unusable::new(directory, None, error);
    let sizes = if_present(storage.stat(&directory.join(SIZES))).map_err(unreadable)?;
    let (stat, found) = match sizes {
        Some(stat) => (stat, array(storage, directory, config.grows)),
        None => match column(storage, directory).map_err(unreadable)? {
            Some((stat, found)) => (stat, found.map(Some)),
            None => return Ok(None),
        },
    };
    let kind = match found.map_err(|error| unusable(Some(stat), error))? {
        Some(array) => FoundKind::Array(array),
        // A table: its columns are below.
        None => FoundKind::AsStored,
    };
    let (stat, path) = (Some(stat), directory.to_owned());
    Ok(Some(Found { kind, stat, path, documents: zarr3::DOCUMENTS, room: None }))
}

/// Reads the BLZ or bcolz array in a directory; `None` if the directory is a table, whose columns
/// are arrays in directories of their own below `data`.
///
/// If it `grows` and each of its files holds one chunk, the array has room to grow; its current
/// extent is in `meta/sizes`.
fn array(
    storage: &dyn Storage,
    directory: &Path,
    grows: bool,
) -> Result<Option<Box<FoundArray>>, NodeError> {
    let documents = Documents::read(storage, directory)?;
    let is_column = |name: &str| {
        let found = storage.stat(&directory.join(FILES).join(name));
        found.is_ok_and(|stat| stat.kind == FileKind::Directory)
    };
    if documents.fields().iter().any(|(name, _)| is_column(name)) {
        return Ok(None);
    }
    let (form, chunks_per_file) = form_of(storage, &directory.join(FILES))?;
    let grows = grows && form == Form::Single;
    let room = if grows { MOST_SUPERCHUNKS } else { 0 };
    documents.array(FILES, form, chunks_per_file, room).map(Some)
}

/// Column of a table, or the reason why it cannot be used.
type Column = Result<Box<FoundArray>, NodeError>;

/// Reads the column in a directory below the `data` directory of a table, in the form of the design
/// document; `None` if the directory is not a column. Columns cannot grow: all columns of a table
/// have the same length.
///
/// # Errors
/// Returns an error if it cannot be determined whether there is a table.
fn column(storage: &dyn Storage, directory: &Path) -> io::Result<Option<(Stat, Column)>> {
    let table = directory.parent().filter(|data| data.ends_with(FILES));
    let Some(table) = table.and_then(Path::parent) else { return Ok(None) };
    let Some(stat) = if_present(storage.stat(&table.join(SIZES)))? else { return Ok(None) };
    let documents = match Documents::read(storage, table) {
        Ok(documents) => documents,
        Err(error) => return Ok(Some((stat, Err(error)))),
    };
    let Some(documents) = documents.of_column(directory) else { return Ok(None) };
    let found = form_of(storage, directory)
        .and_then(|(form, chunks_per_file)| documents.array("", form, chunks_per_file, 0));
    Ok(Some((stat, found)))
}

/// The documents of a BLZ or bcolz array.
struct Documents {
    sizes: Value,
    storage: Value,
    attributes: Option<Value>,
}

impl Documents {
    fn read(storage: &dyn Storage, directory: &Path) -> Result<Self, NodeError> {
        let read = |name: &'static str| {
            let document = read_document(storage, &directory.join(name));
            document.map_err(|error| NodeError::Superchunks(name, Box::new(error)))
        };
        let (sizes, storage) = (read(SIZES)?, read(STORAGE)?);
        let mut attributes = None;
        for name in [ATTRIBUTES, ATTRIBUTES_TOO] {
            match read(name) {
                Ok(found) => {
                    attributes = Some(found);
                    break;
                }
                Err(error) if error.io().is_some_and(|error| !is_absent(error)) => {
                    return Err(error);
                }
                // Missing or unusable attributes do not make the array unusable.
                Err(_) => (),
            }
        }
        Ok(Self { sizes, storage, attributes })
    }

    /// Returns the names and data types of the fields of a structured data type; empty for any
    /// other type.
    fn fields(&self) -> Vec<(&str, &str)> {
        let data_type = self.storage.get("dtype").and_then(Value::as_str);
        data_type.and_then(numpy::fields).unwrap_or_default()
    }

    /// Returns the documents of the column in a directory; `None` if the table has no column of
    /// that name.
    fn of_column(mut self, directory: &Path) -> Option<Self> {
        let name = directory.file_name()?.to_str()?;
        let fields = self.fields();
        let number = fields.iter().position(|(field, _)| *field == name)?;
        let data_type = fields.get(number)?.1.to_owned();
        *self.storage.get_mut("dtype")? = data_type.into();
        if let Some(Value::Array(each)) = self.storage.get("dflt") {
            let own = each.get(number).cloned().unwrap_or_default();
            *self.storage.get_mut("dflt")? = own;
        }
        Some(self)
    }

    fn array(
        self,
        files: &'static str,
        form: Form,
        chunks_per_file: u64,
        room: u64,
    ) -> Result<Box<FoundArray>, NodeError> {
        let Self { sizes, storage, attributes } = self;
        let SuperchunkArray { array, extent } =
            foreign::superchunks(&sizes, &storage, attributes, chunks_per_file, room)
                .map_err(|error| NodeError::Superchunks("meta", Box::new(error.into())))?;
        let format = superchunks(files, form, extent, room > 0);
        let identity = serde_json::json!({"codecs": extent.row_bytes});
        Ok(FoundArray::of_own_format(ArrayFormat::Blz, array, format, Vec::new(), identity))
    }
}

/// Returns the form of the files in a directory and the number of chunks in the first file. All
/// other files have the same number, except the last.
fn form_of(storage: &dyn Storage, files: &Path) -> Result<(Form, u64), NodeError> {
    let many = files.join(Form::Many.name(0));
    let Some(stat) = if_present(storage.stat(&many))? else {
        return Ok((Form::Single, 1));
    };
    let file = storage.open(&many)?;
    let state = FileState::now(&*file, stat.size);
    let head = file::head(&state)?;
    let head = head
        .map_err(|error| NodeError::Superchunks("the first superchunk", Box::new(error.into())))?;
    let nchunks = match head.header.nchunks {
        Some(nchunks) => nchunks,
        None => file::contents(&state, &head)?.ranges.len() as u64,
    };
    Ok((Form::Many, nchunks))
}
