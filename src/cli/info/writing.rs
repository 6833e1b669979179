//! How a store can be written to, which `shardfs info --try-writing` finds out as a writable mount does.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::exit::{Failure, failed};
use crate::cli::remote::RemoteArgs;
use crate::stats::{Replacing, Stats};
use crate::store::remote::{Place, RemoteStorage};
use crate::text::{Line, shown};

/// How shards are replaced; why nothing is written, otherwise.
pub(super) struct Writing(Result<Replacing, String>);

impl Writing {
    /// Tries it out: an object is put below the source, and removed. `is_object` says that the source is an object itself.
    pub(super) fn of(source: &Path, is_object: bool, remote: &RemoteArgs) -> Result<Self, Failure> {
        let Ok(Place::Url(url)) = Place::of(source) else {
            return Err(Failure::System(format!(
                "{}: --try-writing is about stores, and it is no URL",
                shown(&source)
            )));
        };
        if is_object {
            return Ok(Self(Err(
                "an object that is an array by itself can only be read".to_owned()
            )));
        }
        let stats = Arc::new(Stats::default());
        let storage = RemoteStorage::new(&url, &remote.options(), Arc::clone(&stats));
        let storage = storage.map_err(|error| failed(source, &error))?;
        let tried = storage.check_writable().map_err(|error| error.to_string());
        let replacing = stats.replacing.lock().unwrap_or(Replacing::Whole);
        Ok(Self(tried.map(|()| replacing)))
    }

    /// Returns it as text.
    pub(super) fn text(&self) -> String {
        let text = match &self.0 {
            Ok(Replacing::Assembling) => {
                "the store assembles shards: of a long one only what is new is sent"
            }
            Ok(Replacing::Whole) => "shards are put as a whole",
            Ok(Replacing::Unconditionally) => {
                "the store keeps to no conditions: shards are put as a whole, and nothing else may write there"
            }
            Err(error) => error,
        };
        format!("\nWriting: {}\n", Line(&text))
    }

    /// Returns it as JSON.
    pub(super) fn json(&self) -> Value {
        match &self.0 {
            Ok(replacing) => json!({ "shards": replacing.name() }),
            Err(error) => json!({ "error": error }),
        }
    }
}
