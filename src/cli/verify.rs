//! `shardfs verify`.

use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::exit::Failure;
use super::open::{FormatArgs, LevelArgs, open};
use super::output::{Output, unless_closed};
use super::progress::{Progress, Unit};
use super::remote::RemoteArgs;
use crate::source::OpenConfig;
use crate::text::{json_path, many};
use crate::tools::verify::{Counts, Finding, Step, VerifyConfig, What, verify};

const AFTER_HELP: &str = "\
Every defect is one line, with the shard and the position of the chunk in it. What is legal but worth
knowing is a line that begins with \"note:\". The last line counts what was examined.

With --json every line is an object. Findings have: severity (\"defect\" or \"note\"), code (a word that
stays the same), message, array, and where they apply shard, position (in the shard), chunk (its
coordinates). The last object has summary: arrays, shards, files (of arrays without shards: each is
a chunk), chunks, bytes, defects, notes.

Examples:
  shardfs verify volume.zarr                      indexes and entries of all shards
  shardfs verify volume.zarr --decode             all chunks as well: every byte is read
  shardfs verify volume.zarr --json | jq -r 'select(.severity == \"defect\").shard' | sort -u

Exit codes: 0 no defect, 1 defects were found, 2 it could not be done.";

/// Check every shard of sharded arrays: indexes, entries, and with --decode all chunks
///
/// Continues after a defect and reports all of them. Nothing is written. Of arrays without shards,
/// whose chunks are files, names and lengths are checked, and with --decode the chunks.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// An array, a hierarchy of arrays, or a file that is an array
    source: PathBuf,
    /// Decode every chunk, and verify checksums over whole shards
    #[arg(long)]
    decode: bool,
    /// One JSON object on each line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (level, format) = (args.level.level, args.format.format());
    let config = OpenConfig { level, format, ..OpenConfig::default() };
    let source = open(&args.source, config, &args.remote)?.for_one_pass();
    let mut output = Output::new().map_err(|error| Failure::System(error.to_string()))?;
    let progress = Progress::new(Unit::Things("chunks"), None);
    let config = VerifyConfig { decode: args.decode };
    let verified = verify(&source, config, |step: Step| -> io::Result<()> {
        progress.add(step.counts.chunks);
        if step.findings.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for finding in &step.findings {
            text.push_str(&line(finding, args.json));
            text.push('\n');
        }
        progress.pause(|| output.put(text.as_bytes()))
    });
    drop(progress);
    let done = verified.and_then(|counts| {
        output.put(summary(&counts, args).as_bytes())?;
        output.finish()?;
        Ok(counts)
    });
    match done {
        Ok(counts) if counts.defects > 0 => Err(Failure::Found(String::new())),
        done => unless_closed(done.map(drop)),
    }
}

fn line(finding: &Finding, is_json: bool) -> String {
    match (is_json, finding.is_note()) {
        (true, _) => object(finding).to_string(),
        (false, true) => format!("note: {finding}"),
        (false, false) => finding.to_string(),
    }
}

fn object(finding: &Finding) -> Value {
    let mut object = json!({
        "severity": if finding.is_note() { "note" } else { "defect" },
        "code": finding.what.code(),
        "message": finding.what.to_string(),
        "array": json_path(&finding.array),
    });
    let mut put = |member: &str, value: Value| object[member] = value;
    if let What::Metadata { document, .. } | What::Consolidated { document, .. } = &finding.what {
        put("document", json_path(document).into());
    }
    if let Some(shard) = &finding.shard {
        put("shard", json_path(shard).into());
    }
    if let Some(within) = &finding.within {
        put("position", within.position.clone().into());
        if let Some(chunk) = &within.chunk {
            put("chunk", chunk.clone().into());
        }
    }
    object
}

fn summary(counts: &Counts, args: &Args) -> String {
    let Counts { arrays, shards, files, chunks, bytes, defects, notes } = *counts;
    if args.json {
        let summary = json!({
            "arrays": arrays, "shards": shards, "files": files, "chunks": chunks, "bytes": bytes,
            "defects": defects, "notes": notes,
        });
        return format!("{}\n", json!({ "summary": summary }));
    }
    let mut what = vec![many(arrays, "array")];
    if shards > 0 || files == 0 {
        what.push(many(shards, "shard"));
    }
    if files > 0 {
        what.push(many(files, "chunk file"));
    }
    what.extend([many(chunks, "chunk"), indicatif::HumanBytes(bytes).to_string()]);
    let unread = match args.decode || files == 0 {
        true => "",
        false => "; without --decode only names and lengths of chunk files",
    };
    let (defects, notes) = (many(defects, "defect"), many(notes, "note"));
    format!("{} checked{unread}: {defects}, {notes}\n", what.join(", "))
}
