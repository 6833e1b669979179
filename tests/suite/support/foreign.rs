//! Files of other formats, made byte by byte, and all that a mount shows.
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::ControlFlow;

use serde_json::Value;
use shardfs::format::digest::Digest;
use shardfs::fs::{Fs, Listing};
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::FileKind;
use shardfs::view::inode::ROOT;

/// Bytes of each file, or the errno of what fails.
pub(crate) type Found = BTreeMap<String, Result<Vec<u8>, i32>>;

pub(crate) const CHUNK: u32 = 24;
/// What is read of a file, in bytes.
pub(crate) const READ: usize = 1 << 17;

/// A Blosc buffer of stored bytes.
pub(crate) fn blosc(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap();
    let mut buffer = vec![2, 1, 2, 8];
    for word in [length, length, length + 16] {
        buffer.extend(word.to_le_bytes());
    }
    buffer.extend(bytes);
    buffer
}

/// Chunks of a file: all of them whole but the last.
pub(crate) fn chunks() -> Vec<Vec<u8>> {
    let whole = (0..4_u8).map(|n| blosc(&[n + 1; CHUNK as usize]));
    whole.chain([blosc(&[9; 16])]).collect()
}

/// How a Bloscpack file is made.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub digest: u8,
    pub offsets: bool,
    /// None: none; Some(true): bare, as in the design document.
    pub metadata: Option<bool>,
    pub known: bool,
}

pub(crate) const TEXT: &str =
    r#"{"dtype": "'<i8'", "shape": [14], "order": "C", "container": "numpy"}"#;

pub(crate) fn bloscpack(layout: Layout) -> Vec<u8> {
    let (chunks, digest) = (chunks(), Digest::from_number(layout.digest).unwrap());
    let (spare, bare) = (if layout.offsets { 3 } else { 0 }, layout.metadata == Some(true));
    let options = u8::from(layout.offsets) | u8::from(layout.metadata.is_some()) << 1;
    let mut file = b"blpk\x03".to_vec();
    file.extend([options, layout.digest, 8]);
    let number = |known: i64| if layout.known { known } else { -1 };
    for number in [number(CHUNK.into()), number(16)] {
        file.extend(i32::try_from(number).unwrap().to_le_bytes());
    }
    file.extend(number(5).to_le_bytes());
    let rest = if bare { TEXT.len() as u64 } else { spare };
    file.extend(rest.to_le_bytes());
    match layout.metadata {
        None => (),
        Some(true) => file.extend(TEXT.as_bytes()),
        Some(false) => {
            let length = u32::try_from(TEXT.len()).unwrap();
            file.extend(b"JSON\0\0\0\0\0\x02\0\0");
            for word in [length, length + 10, length] {
                file.extend(word.to_le_bytes());
            }
            file.extend([0; 8]);
            file.extend(TEXT.as_bytes());
            file.extend([0; 10]);
            file.extend(Digest::Crc32.of(TEXT.as_bytes()));
        }
    }
    let spare = if bare { 0 } else { spare };
    let table = if layout.offsets { (5 + spare) * 8 } else { 0 };
    let mut at = file.len() as u64 + table;
    if layout.offsets {
        for chunk in &chunks {
            file.extend(at.to_le_bytes());
            at += (chunk.len() + digest.nbytes()) as u64;
        }
        file.extend((0..spare).flat_map(|_| (-1_i64).to_le_bytes()));
    }
    for chunk in chunks {
        file.extend(digest.of(&chunk));
        let digest = file.split_off(file.len() - digest.nbytes());
        file.extend(chunk);
        file.extend(digest);
    }
    file
}

pub(crate) fn walk(fs: &Fs, ino: u64, path: &str, found: &mut Found) {
    let mut names = Vec::new();
    fs.readdir((ino, None), 0, Listing::Names, &mut |entry| {
        names.push(entry.name.to_str().unwrap().to_owned());
        ControlFlow::Continue(())
    })
    .unwrap();
    for name in names.iter().filter(|name| ![".", "..", ".shardfs"].contains(&name.as_str())) {
        let child = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        match fs.lookup(ino, OsStr::new(name)) {
            Ok(entry) => {
                let attr = entry.unwrap_or_else(|| panic!("{child} is listed, and not there")).attr;
                if attr.kind == FileKind::Directory {
                    walk(fs, attr.ino, &child, found);
                } else {
                    let bytes = read(fs, attr.ino);
                    let length = attr.size.min(READ as u64);
                    assert!(
                        bytes.as_ref().is_err() || bytes.as_ref().unwrap().len() as u64 == length
                    );
                    found.insert(child, bytes);
                }
            }
            Err(error) => drop(found.insert(child, Err(error.errno()))),
        }
    }
}

pub(crate) fn read(fs: &Fs, ino: u64) -> Result<Vec<u8>, i32> {
    let opened = fs.open(ino).map_err(|error| error.errno())?;
    let mut bytes = vec![0; READ];
    let read = fs.read(ino, Some(opened.handle), 0, &mut bytes).map_err(|error| error.errno());
    fs.release(opened.handle);
    bytes.truncate(read?);
    Ok(bytes)
}

pub(crate) fn shown(fs: &Fs) -> Found {
    let mut found = Found::new();
    walk(fs, ROOT, "", &mut found);
    found
}

pub(crate) fn json_of(found: &mut Found, name: &str) -> Value {
    serde_json::from_slice(&found.remove(name).unwrap().unwrap()).unwrap()
}

/// The files of a bcolz array of 5 x 3 numbers, two rows a chunk.
pub(crate) fn bcolz(storage: &MemoryStorage, directory: &str) {
    let path = |name: &str| format!("{directory}{name}");
    storage.replace(&path("meta/sizes"), br#"{"shape": [5, 3], "nbytes": 120}"#.to_vec());
    let how = br#"{"dtype": "float64", "chunklen": 2, "dflt": 0.5, "cparams": {}}"#;
    storage.replace(&path("meta/storage"), how.to_vec());
    storage.replace(&path("__attrs__"), br#"{"unit": "m"}"#.to_vec());
    for (number, rows) in [2, 2, 1].into_iter().enumerate() {
        let mut file = b"blpk\x01\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
        file.extend(blosc(&vec![u8::try_from(number).unwrap(); rows * 24]));
        storage.replace(&path(&format!("data/__{number}.blp")), file);
    }
}

/// The inode of a path.
pub(crate) fn ino(fs: &Fs, path: &str) -> u64 {
    path.split('/').fold(ROOT, |parent, name| {
        let found = fs.lookup(parent, OsStr::new(name)).unwrap();
        found.unwrap_or_else(|| panic!("{path}: {name} is not there")).attr.ino
    })
}

/// Numbers as they are in a chunk, least significant byte first.
pub(crate) fn numbers(numbers: &[i16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The paths of what was found.
pub(crate) fn names(found: &Found) -> Vec<&str> {
    found.keys().map(String::as_str).collect()
}
