//! Sources on storages that can only be read: objects with versions, without links, owners, locks
//! and renames.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, View, ViewConfig};
use shardfs::source::{Node, Source};
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::{
    DirItem, FileKind, Stat, Storage, StorageFile, Timestamp, Visit, if_present,
};
use shardfs::store::{ShardStore, StoreConfig};
use shardfs::tools::repack::{How, repack};
use shardfs::tools::verify::{Step, VerifyConfig, verify};
use shardfs::view::inode::ROOT;

use crate::power;
use crate::support::foreign::{bcolz, ino, read, shown};
use crate::support::{IndexKind, Model, places};

/// An object, which is replaced as a whole.
struct Object {
    /// Stands for the entity tag: no two objects ever have the same.
    tag: u64,
    bytes: Vec<u8>,
}

impl StorageFile for Object {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..));
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(stat(FileKind::File, self.tag, self.bytes.len() as u64))
    }
}

/// Objects by key. There are no directories, only keys with slashes in them.
#[derive(Default)]
struct Objects(Mutex<BTreeMap<PathBuf, Arc<Object>>>);

impl Objects {
    fn put(&self, key: &str, bytes: Vec<u8>) {
        let mut objects = self.0.lock().unwrap();
        let tag = objects.values().map(|object| object.tag).max().unwrap_or(0) + 1;
        objects.insert(key.into(), Arc::new(Object { tag, bytes }));
    }

    fn with(files: &MemoryStorage) -> Arc<Self> {
        let objects = Self::default();
        for (path, _, bytes) in files.files() {
            objects.put(path.to_str().unwrap(), bytes);
        }
        Arc::new(objects)
    }

    fn object(&self, path: &Path) -> io::Result<Arc<Object>> {
        let object = self.0.lock().unwrap().get(path).cloned();
        object.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }
}

impl Storage for Objects {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.object(path)?)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        if let Some(object) = if_present(self.object(path))? {
            return object.stat();
        }
        let is_above = |key: &PathBuf| key.starts_with(path);
        if !self.0.lock().unwrap().keys().any(is_above) {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        Ok(stat(FileKind::Directory, hasher.finish() | 1 << 63, 0))
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        let mut names = BTreeMap::new();
        for key in self.0.lock().unwrap().keys() {
            let Ok(below) = key.strip_prefix(path) else { continue };
            let mut parts = below.iter();
            let Some(name) = parts.next() else { continue };
            let is_object = parts.next().is_none();
            let kind = if is_object { FileKind::File } else { FileKind::Directory };
            names.insert(name.to_owned(), kind);
        }
        for (next, (name, kind)) in (1..).zip(&names).skip(usize::try_from(from).unwrap()) {
            if visit(DirItem { name, kind: Some(*kind), next }) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

fn stat(kind: FileKind, ino: u64, size: u64) -> Stat {
    // Stores date objects by the second, and directories not at all.
    let time = Timestamp::default();
    let (mtime, ctime, atime) = (time, time, time);
    let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    Stat { dev: 0, ino, kind, mode, uid: 0, gid: 0, links: 1, size, mtime, ctime, atime }
}

fn model() -> Model {
    let level = power::level(&[2], IndexKind::Usual, false);
    let chunks = (0..6_u8).filter(|n| *n != 3).map(|n| (vec![n.into()], vec![n; 10]));
    let chunks = chunks.collect();
    Model { shape: vec![6], chunk: vec![1], levels: vec![level], keys: ("default", "/"), chunks }
}

/// A hierarchy: a group, a sharded array, an array of Zarr v2, a table, and a file beside them.
fn files() -> MemoryStorage {
    let files = MemoryStorage::default();
    let (model, group) = (model(), json!({"zarr_format": 3, "node_type": "group"}));
    files.replace("zarr.json", group.to_string());
    files.replace("sharded/zarr.json", model.metadata().to_string());
    for shard in places(&model.shards()) {
        if let Some(bytes) = model.shard(&shard) {
            files.replace(&format!("sharded/{}", model.key(&shard)), bytes);
        }
    }
    let zarray = json!({"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1",
        "compressor": null, "fill_value": 0, "order": "C", "filters": null});
    files.replace("v2/.zarray", zarray.to_string());
    files.replace("v2/0", vec![1, 2]);
    bcolz(&files, "table/");
    files.replace("notes.txt", "passed through");
    files
}

fn config(view: View, writable: bool) -> FsConfig {
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    let view = ViewConfig { view, ..ViewConfig::default() };
    FsConfig { store, view, writable, ..FsConfig::default() }
}

fn start(storage: Arc<dyn Storage>, view: View, shared: bool) -> Fs {
    Fs::new(storage, FsConfig { shared, ..config(view, false) }, Arc::default()).unwrap()
}

fn source(objects: Arc<Objects>) -> Source {
    let storage = Arc::clone(&objects) as Arc<dyn Storage>;
    let store = ShardStore::new(storage, StoreConfig::default(), Arc::default());
    Source::over(Path::new("bucket"), objects, store)
}

#[test]
fn objects_are_shown_in_every_view_as_the_same_files_are() {
    let files = Arc::new(files());
    let objects = Objects::with(&files);
    for view in [View::Zarr3, View::Zarr2, View::Npy, View::Raw, View::Flat] {
        let expected = shown(&start(Arc::clone(&files) as Arc<_>, view, false));
        assert!(expected.len() > 2, "{view:?}: {expected:?}");
        let found = shown(&start(Arc::clone(&objects) as Arc<_>, view, false));
        assert_eq!(found, expected, "{view:?}");
    }
}

#[test]
fn what_only_filesystems_have_is_absent_and_no_error() {
    let fs = start(Objects::with(&files()), View::Zarr3, true);
    let other = Caller { uid: 1000, gid: 1000, pid: 1, umask: 0 };
    assert_eq!(fs.space().unwrap().blocks, 0);
    for path in ["notes.txt", "sharded/c/0"] {
        let ino = ino(&fs, path);
        fs.getattr_for(ino, None, &other).unwrap();
        let handle = fs.open_for(ino, OpenHow::default(), &other).unwrap().handle;
        let read = fs.read(ino, Some(handle), 0, &mut [0; 4]).unwrap();
        fs.release(handle);
        assert_eq!(read, 4, "{path}");
        let absent = fs.getxattr(ino, OsStr::new("user.note"), &other).unwrap_err().errno();
        assert_eq!(absent, libc::ENODATA, "{path}");
    }
    assert_eq!(fs.listxattr(ino(&fs, "notes.txt"), &other).unwrap(), b"");
    assert_eq!(fs.readlink(ino(&fs, "notes.txt")).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn a_replaced_object_is_another_version_however_alike_its_attributes_are() {
    let objects = Objects::with(&files());
    let fs = start(Arc::clone(&objects) as Arc<_>, View::Zarr3, false);
    let chunk = ino(&fs, "sharded/c/0");
    assert_eq!(read(&fs, chunk).unwrap(), [0; 10]);
    let handle = fs.open(chunk).unwrap().handle;
    // The same length and the same date.
    let mut other = model();
    other.chunks.insert(vec![0], vec![7; 10]);
    objects.put("sharded/c/0", other.shard(&[0]).unwrap());
    // An open object stays what it was.
    let mut bytes = [9; 10];
    assert_eq!(fs.read(chunk, Some(handle), 0, &mut bytes).unwrap(), 10);
    assert_eq!(bytes, [0; 10]);
    fs.release(handle);
    assert_eq!(read(&fs, ino(&fs, "sharded/c/0")).unwrap(), [7; 10]);
}

#[test]
fn a_shard_that_is_put_after_a_listing_is_listed() {
    let objects = Objects::with(&files());
    let shard = objects.0.lock().unwrap().remove(Path::new("sharded/c/2")).unwrap();
    let fs = start(Arc::clone(&objects) as Arc<_>, View::Zarr3, false);
    let listed = |name: &str| shown(&fs).contains_key(name);
    assert!(listed("sharded/c/0") && !listed("sharded/c/4"));
    objects.put("sharded/c/2", shard.bytes.clone());
    assert!(listed("sharded/c/4"));
}

#[test]
fn objects_are_not_changed_by_mounts_and_commands() {
    let objects = Objects::with(&files());
    let refused =
        Fs::new(Arc::clone(&objects) as Arc<_>, config(View::Zarr3, true), Arc::default());
    let error = refused.err().unwrap().to_string();
    assert_eq!(
        error,
        "it can only be read: sources on a filesystem can be written to, and what is below s3://, gs:// and \
             az://; leave out --rw"
    );
    let caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
    let fs = start(Arc::clone(&objects) as Arc<_>, View::Zarr3, false);
    let removed = fs.unlink(ROOT, OsStr::new("notes.txt"), &caller).unwrap_err();
    assert_eq!(removed.errno(), libc::EROFS);
    let source = source(objects);
    let arrays = source.nodes().filter_map(|node| match node {
        Node::Array(array) if array.source.path == Path::new("sharded") => Some(array),
        _ => None,
    });
    let array = arrays.into_iter().next().unwrap();
    let threads = NonZeroUsize::MIN;
    let refused = repack(&source, &array, How::default(), threads, &|_| ()).unwrap_err();
    let expected = "array sharded: its source can only be read, it is not on a filesystem";
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn commands_check_objects_too() {
    let objects = Objects::with(&files());
    let mut broken = model().shard(&[1]).unwrap();
    *broken.last_mut().unwrap() ^= 1;
    objects.put("sharded/c/1", broken);
    let source = source(objects);
    let mut findings = Vec::new();
    let counts = verify(&source, VerifyConfig::default(), |step: Step| {
        findings.extend(step.findings.iter().map(ToString::to_string));
        Ok::<(), ()>(())
    });
    assert_eq!(counts.unwrap().defects, 1, "{findings:?}");
    assert!(findings[0].contains("sharded/c/1"), "{findings:?}");
}
