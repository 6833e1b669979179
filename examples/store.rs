//! Serves the files below a directory as the bucket `bucket` of an object store, on loopback, and
//! as those of a web server: what tests of real mounts read. Prints its address, and ends with its
//! standard input.
//!
//! usage: store DIRECTORY [LATENCY-MS [no-conditions]]
//!
//! With `no-conditions` it ignores the conditions on which objects are put, as some stores do.

#![allow(clippy::unwrap_used, reason = "a tool of tests stops at the first surprise")]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/suite/support/object_server.rs"]
mod object_server;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, stdin};
use std::path::{Path, PathBuf};
use std::time::Duration;

use object_server::{Fault, Server};
use rustix::fs::{SeekFrom as From, seek};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let directory = PathBuf::from(args.next().unwrap());
    let latency = args.next().map_or(0, |text| text.to_str().unwrap().parse().unwrap());
    let server = Server::start();
    put_all(&server, &directory, Path::new(""));
    server.set_latency(Duration::from_millis(latency));
    if let Some(how) = args.next() {
        assert_eq!(how, "no-conditions");
        server.fail(|_| Some(Fault::NoConditions));
    }
    println!("{}", server.url());
    drop(stdin().read_to_end(&mut Vec::new()));
}

fn put_all(server: &Server, top: &Path, below: &Path) {
    for item in std::fs::read_dir(top.join(below)).unwrap() {
        let path = below.join(item.unwrap().file_name());
        let whole = top.join(&path);
        if whole.is_dir() {
            put_all(server, top, &path);
        } else if whole.is_file() {
            put_file(server, path.to_str().unwrap(), File::open(whole).unwrap());
        }
    }
}

/// What is a hole at the beginning of the file takes no memory: large arrays can be sparse files.
fn put_file(server: &Server, key: &str, mut file: File) {
    let begin = seek(&file, From::Data(0)).unwrap_or(0);
    file.seek(SeekFrom::Start(begin)).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    server.put_sparse(key, usize::try_from(begin).unwrap(), bytes);
}
