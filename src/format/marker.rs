//! Contents of the marker of unfinished work, which a copy keeps in its destination until it is
//! complete.
//!
//! ```json
//! {"shardfs": "unfinished", "version": 1, "id": "5a21...", "what": {"command": "pack", ...}}
//! ```

use serde_json::{Value, json};

use super::json;
use crate::text::shown;

/// File name of the marker.
pub(crate) const MARKER: &str = "job.json";
/// Value of the `shardfs` field in every marker.
const MAGIC: &str = "unfinished";
/// Version of the format.
const VERSION: u64 = 1;
/// Maximum length of a marker, in bytes.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// Returns the text of a marker.
pub(crate) fn to_text(id: &str, what: &Value) -> Vec<u8> {
    json::to_text(&json!({"shardfs": MAGIC, "version": VERSION, "id": id, "what": what}))
}

/// Returns the identifier of a marker and what it says about the work; `None` if the text is not
/// that of a marker.
pub(crate) fn parse(text: &[u8]) -> Option<(String, Value)> {
    let mut note = json::parse(text).ok()?;
    let is_ours =
        note.get("shardfs")?.as_str()? == MAGIC && note.get("version")?.as_u64()? == VERSION;
    let id = note.get("id")?.as_str().filter(|id| is_id(id.as_bytes()))?.to_owned();
    let what = note.get_mut("what").filter(|what| what.is_object())?.take();
    is_ours.then_some((id, what))
}

/// Returns whether a text is a marker identifier.
pub(crate) fn is_id(text: &[u8]) -> bool {
    text.len() == 32 && text.iter().all(u8::is_ascii_hexdigit)
}

/// Longest word of a job that messages show, in characters.
const MAX_SHOWN: usize = 300;

/// Describes the work of a copy as the command that was given, without its destination. Anybody may
/// have written the marker: its words are escaped, and cut off if they are long.
pub(crate) fn describe(job: &Value) -> String {
    let text = |name: &str| {
        let word = job.get(name).and_then(Value::as_str).unwrap_or("?");
        match word.char_indices().nth(MAX_SHOWN) {
            Some((end, _)) => format!("{}...", shown(&word[..end])),
            None => shown(word).to_string(),
        }
    };
    format!("`shardfs {} {}`", text("command"), text("source"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_a_stranger_is_escaped_and_cut_off() {
        let job = json!({"command": "unpack", "source": "/data/a"});
        assert_eq!(describe(&job), "`shardfs unpack /data/a`");
        let job = json!({"command": "x\u{1b}[2J\ny", "source": "ä".repeat(5000)});
        let expected = format!("`shardfs x\\x1b[2J\\ny {}...`", "ä".repeat(300));
        assert_eq!(describe(&job), expected);
    }
}
