//! What a source itself says of how new arrays in it are stored, for whoever mounts it and says nothing else.
//!
//! ```text
//! SOURCE/.shardfs/mount.json
//! {
//!   "shard": ["**/time=off", "256M"],    as --shard, a rule or several: the first one counts that is for an array
//!   "index_location": "start"            as --index-location; it may be left out
//! }
//! ```

use std::io;
use std::path::Path;

use serde_json::Value;

use super::shard_rule::of_created;
use crate::format::index::IndexLocation;
use crate::format::json::{self, JsonError};
use crate::fs::NewShards;
use crate::store::document::text_of;
use crate::store::storage::{PosixStorage, if_present};

/// Path of the file in a source.
pub(super) const DEFAULTS_FILE: &str = ".shardfs/mount.json";

/// Reason why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DefaultsError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is no JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It is JSON, but no object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// It has a member that means nothing.
    #[error("member {0:?} is not known; there are \"shard\" and \"index_location\"")]
    Member(String),
    /// There are no rules.
    #[error("\"shard\" must be a rule, such as \"256M\", or a list of rules")]
    NoRules,
    /// A rule is none.
    #[error("\"shard\": {rule:?}: {why}")]
    Rule {
        /// The rule.
        rule: String,
        /// What it should be.
        why: String,
    },
    /// The location of indexes is none.
    #[error("\"index_location\" must be \"start\" or \"end\"")]
    IndexLocation,
}

/// How new arrays in a source are stored.
#[derive(Debug)]
pub(super) struct Defaults {
    /// The rules as they are written.
    pub rules: Vec<String>,
    /// The same as a mount takes them.
    pub new_shards: NewShards,
}

/// Reads the defaults of a source. `None` if it has none.
pub(super) fn defaults_of(storage: &dyn PosixStorage) -> Result<Option<Defaults>, DefaultsError> {
    // Through no link: the file says nothing about another place.
    let Some(file) = if_present(storage.open_plain(Path::new(DEFAULTS_FILE)))? else {
        return Ok(None);
    };
    parse(&text_of(&*file)?).map(Some)
}

fn parse(text: &[u8]) -> Result<Defaults, DefaultsError> {
    let document = json::parse(text)?;
    let members = document.as_object().ok_or(DefaultsError::NotAnObject)?;
    let is_unknown = |name: &&String| !["shard", "index_location"].contains(&name.as_str());
    if let Some(name) = members.keys().find(is_unknown) {
        return Err(DefaultsError::Member(name.clone()));
    }
    let rules = match members.get("shard") {
        Some(Value::String(rule)) => Some(vec![rule.clone()]),
        Some(Value::Array(rules)) => {
            rules.iter().map(|rule| rule.as_str().map(str::to_owned)).collect()
        }
        _ => None,
    };
    let rules = rules.filter(|rules: &Vec<String>| !rules.is_empty());
    let rules = rules.ok_or(DefaultsError::NoRules)?;
    let rule = |rule: &String| {
        of_created(rule).map_err(|why| DefaultsError::Rule { rule: rule.clone(), why })
    };
    let index_location = match members.get("index_location").map(Value::as_str) {
        None => None,
        Some(Some("start")) => Some(IndexLocation::Start),
        Some(Some("end")) => Some(IndexLocation::End),
        Some(_) => return Err(DefaultsError::IndexLocation),
    };
    let parsed = rules.iter().map(rule).collect::<Result<_, _>>()?;
    Ok(Defaults { rules, new_shards: NewShards { rules: parsed, index_location } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStorage;

    fn read(text: &str) -> Result<Defaults, String> {
        parse(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_source_may_have_one_rule_or_several() {
        let one = read(r#"{"shard": "256M"}"#).unwrap();
        assert_eq!(one.new_shards, NewShards::of_at_most(256 << 20));
        let several =
            read(r#"{"shard": ["**/time=off", "x8"], "index_location": "start"}"#).unwrap();
        assert_eq!(several.rules, ["**/time=off", "x8"]);
        assert_eq!(several.new_shards.rules.len(), 2);
        assert_eq!(several.new_shards.index_location, Some(IndexLocation::Start));
    }

    #[test]
    fn each_defect_is_named() {
        let refused = |text: &str| read(text).unwrap_err();
        assert_eq!(
            refused(r#"{"shards": "1M"}"#),
            "member \"shards\" is not known; there are \"shard\" and \"index_location\""
        );
        let no_rules = "\"shard\" must be a rule, such as \"256M\", or a list of rules";
        for text in ["{}", r#"{"shard": []}"#, r#"{"shard": 256}"#, r#"{"shard": ["1M", 2]}"#] {
            assert_eq!(refused(text), no_rules, "{text}");
        }
        assert!(refused(r#"{"shard": ["1M", "big"]}"#).starts_with("\"shard\": \"big\": write"));
        assert_eq!(
            refused(r#"{"shard": "1M", "index_location": "middle"}"#),
            "\"index_location\" must be \"start\" or \"end\""
        );
        assert_eq!(refused("[]"), "it is not a JSON object");
        assert!(refused("{").starts_with("not valid JSON"));
    }

    #[test]
    fn a_source_without_the_file_has_no_defaults() {
        let storage = MemoryStorage::default();
        assert!(defaults_of(&storage).unwrap().is_none());
        storage.replace(DEFAULTS_FILE, r#"{"shard": "off"}"#);
        assert_eq!(defaults_of(&storage).unwrap().unwrap().rules, ["off"]);
    }
}
