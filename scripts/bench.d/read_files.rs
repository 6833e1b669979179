//! Reads files one after the other and prints `SECONDS FILES BYTES`.
//! usage: read_files LIST ROOT      (LIST holds one path below ROOT a line)
//!
//! Each file costs what it costs a plain C program: open, read into one preallocated buffer until
//! a read comes short, close. The list and the buffer are ready before the clock starts.

use std::fs::{self, File};
use std::io::{self, Read};
use std::time::Instant;

const BUFFER: usize = 1 << 20;

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(list), Some(root)) = (args.next(), args.next()) else {
        return Err(io::Error::other("usage: read_files LIST ROOT"));
    };
    let list = fs::read_to_string(list)?;
    let paths: Vec<String> = list.lines().map(|key| format!("{root}/{key}")).collect();
    let mut buffer = vec![1; BUFFER];
    let mut bytes = 0;

    let start = Instant::now();
    for path in &paths {
        bytes +=
            read_file(path, &mut buffer).map_err(|e| io::Error::other(format!("{path}: {e}")))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{seconds:.6} {} {bytes}", paths.len());
    Ok(())
}

fn read_file(path: &str, buffer: &mut [u8]) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut total = 0;
    loop {
        let got = file.read(buffer)?;
        total += got;
        if got < buffer.len() {
            return Ok(total);
        }
    }
}
