//! The floor of what a mount of shardfs can cost: a filesystem of the same shape on the same
//! fuser with the same kernel flags that answers every question from a constant.
//!
//!     floor [-o immutable] --grid 32x32x32 --chunk-bytes 32768 [--copy-from FILE] MOUNTPOINT
//!
//! With a file to copy from, chunks are its bytes one after the other: what it costs to answer
//! with bytes that lie in memory somewhere, instead of the same few for every chunk.
//!
//! MOUNTPOINT then shows `c/i/j/k` and stays until it is unmounted, or SIGTERM.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use clap::Parser;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, Request,
};
use shardfs::format::chunk_key::{KeyEncoding, Prefix, Separator};
use shardfs::fuse::KernelFlags;
use shardfs::mount::{Access, MountSpec, mount};
use shardfs::stats::Stats;
use shardfs::view::tree::ChunkTree;

#[derive(Parser)]
struct Args {
    /// "immutable", as shardfs takes it
    #[arg(short = 'o')]
    options: Option<String>,
    /// Chunks along each axis
    #[arg(long, value_name = "NxNx...")]
    grid: String,
    /// Length of every chunk
    #[arg(long)]
    chunk_bytes: u64,
    /// Where the chunks' bytes lie, in the order of their keys
    #[arg(long, value_name = "FILE")]
    copy_from: Option<PathBuf>,
    mountpoint: PathBuf,
}

struct Floor {
    flags: KernelFlags,
    tree: ChunkTree,
    content: Vec<u8>,
    copy_from: Option<File>,
    created: SystemTime,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The mount's root; the nodes of the tree follow.
const ROOT: u64 = 1;

impl Floor {
    fn coords(&self, ino: u64) -> Option<Vec<u64>> {
        self.tree.coords(ino.checked_sub(ROOT + 1)?)
    }

    fn ino(&self, coords: &[u64]) -> u64 {
        self.tree.number(coords) + ROOT + 1
    }

    fn attr(&self, ino: u64) -> FileAttr {
        let file = self.coords(ino).is_some_and(|coords| coords.len() == self.tree.rank());
        let size = if file { self.content.len() as u64 } else { 0 };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: self.created,
            mtime: self.created,
            ctime: self.created,
            crtime: self.created,
            kind: if file { FileType::RegularFile } else { FileType::Directory },
            perm: if file { 0o644 } else { 0o755 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: if file { 128 << 10 } else { 1 << 20 },
            flags: 0,
        }
    }

    fn child(&self, parent: u64, name: &OsStr) -> Option<u64> {
        let name = name.to_str()?;
        let coords = match self.coords(parent) {
            None => self.tree.top(name)?,
            Some(parent) => self.tree.child(&parent, name)?,
        };
        Some(self.ino(&coords))
    }

    /// Reads from the file in which the chunks lie.
    fn copy(&self, file: &File, ino: u64, offset: u64, length: usize, reply: ReplyData) {
        let first = self.ino(&vec![0; self.tree.rank()]);
        let offset = (ino - first) * self.content.len() as u64 + offset;
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(length.max(buffer.len()), 0);
            match file.read_exact_at(&mut buffer[..length], offset) {
                Ok(()) => reply.data(&buffer[..length]),
                Err(_) => reply.error(Errno::EIO),
            }
        });
    }

    /// Calls `add` with inode number, position and name of each child until it is full.
    fn list(&self, ino: u64, from: u64, mut add: impl FnMut(u64, u64, &str) -> bool) {
        let Some(coords) = self.coords(ino) else {
            if from == 0 {
                add(self.ino(&[]), 1, "c");
            }
            return;
        };
        let mut child = [&coords[..], &[0]].concat();
        for coord in from..self.tree.grid()[coords.len()] {
            child[coords.len()] = coord;
            if add(self.ino(&child), coord + 1, &self.tree.name(&child)) {
                return;
            }
        }
    }
}

impl Filesystem for Floor {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.flags.configure(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.child(parent.0, name) {
            Some(ino) => reply.entry(&self.flags.lasting(), &self.attr(ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&self.flags.lasting(), &self.attr(ino.0));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.flags.immutable {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), self.flags.opened(shardfs::fs::Pages::Kept, false));
        }
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.flags.immutable {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), fuser::FopenFlags::empty());
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: fuser::ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.content.get(offset..));
        let rest = rest.unwrap_or_default();
        let rest = &rest[..rest.len().min(size as usize)];
        match &self.copy_from {
            Some(file) => self.copy(file, ino.0, offset, rest.len(), reply),
            None => reply.data(rest),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.list(ino.0, offset, |ino, next, name| {
            reply.add(INodeNo(ino), next, self.attr(ino).kind, name)
        });
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let lasting = self.flags.lasting();
        self.list(ino.0, offset, |ino, next, name| {
            reply.add(INodeNo(ino), next, name, &lasting, &self.attr(ino), Generation(0))
        });
        reply.ok();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let grid = args.grid.split('x').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let keys = KeyEncoding { prefix: Prefix::Apart, separator: Separator::Slash };
    let floor = Floor {
        flags: KernelFlags {
            immutable: args.options.as_deref() == Some("immutable"),
            writable: false,
            shared: false,
            sync: false,
        },
        tree: ChunkTree::new(keys, "", grid)?,
        content: (0..args.chunk_bytes).map(|n| (n % 251) as u8).collect(),
        copy_from: args.copy_from.map(File::open).transpose()?,
        created: SystemTime::now(),
    };
    let spec = MountSpec {
        name: "floor".to_owned(),
        mountpoint: args.mountpoint.canonicalize()?,
        access: Access::Owner,
        threads: std::thread::available_parallelism()
            .map_or(2, std::num::NonZero::get)
            .clamp(2, 16),
        writable: false,
    };
    Ok(mount(floor, &spec)?.serve(
        Arc::new(Stats::default()),
        Arc::new(|| true),
        None,
        || Ok(()),
    )?)
}
