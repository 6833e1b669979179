//! Options that select the views of a mount.

use super::exit::Failure;
use super::help::Words;
use super::options::MountOptions;
use super::size;
use crate::format::zarr2::Missing;
use crate::fs::{View, ViewConfig};

const VIEWS: Words = Words(&["zarr3", "zarr2", "npy", "raw", "flat"]);
const ENDIAN: Words = Words(&["little", "big"]);
const EDGE: Words = Words(&["full", "clip"]);
const MISSING: Words = Words(&["absent", "fill"]);

/// What is shown.
#[derive(Debug, clap::Args)]
pub(super) struct ViewArgs {
    /// What is shown: zarr3, zarr2, npy, raw or flat; several, separated by commas, in a directory each
    /// [default: zarr3]
    #[arg(long, value_name = "VIEW,...", value_parser = VIEWS, hide_possible_values = true)]
    view: Option<String>,
    /// Order of bytes in npy, raw and flat: little or big [default: little]
    #[arg(long, value_name = "ORDER", value_parser = ENDIAN, hide_possible_values = true)]
    endian: Option<String>,
    /// Chunks at the array's edge in npy and raw: full, or clip to cut them off where the array ends
    /// [default: full]
    #[arg(long, value_name = "HOW", value_parser = EDGE, hide_possible_values = true)]
    edge: Option<String>,
    /// Chunks that do not exist in npy, raw and zarr2: absent, or fill to show them made of the fill
    /// value [default: absent; in zarr2 fill where readers would see other values]
    #[arg(long, value_name = "HOW", value_parser = MISSING, hide_possible_values = true)]
    missing: Option<String>,
    /// Store chunks that are written to npy and raw even if they equal the fill value
    #[arg(long)]
    keep_fill: bool,
    /// Memory for decoded chunks, in each view that decodes [default: 128M]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    decoded_size: Option<u64>,
}

impl ViewArgs {
    /// Applies the given options, which override those of `-o`.
    pub(super) fn apply(&self, options: &mut MountOptions) -> Result<(), Failure> {
        let named = [
            ("view", &self.view),
            ("endian", &self.endian),
            ("edge", &self.edge),
            ("missing", &self.missing),
        ];
        for (option, value) in named {
            if let Some(value) = value {
                options.set_view(option, value)?;
            }
        }
        options.fs.view.keep_fill |= self.keep_fill;
        if let Some(bytes) = self.decoded_size {
            options.fs.store.decoded_size = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        Ok(())
    }
}

impl MountOptions {
    /// Sets an option of the views.
    pub(super) fn set_view(&mut self, option: &str, value: &str) -> Result<(), Failure> {
        let ViewConfig { big_endian, clip, missing, .. } = &mut self.fs.view;
        match option {
            "endian" => *big_endian = either(option, value, ["little", "big"])?,
            "edge" => *clip = either(option, value, ["full", "clip"])?,
            "missing" => {
                let fill = either(option, value, ["absent", "fill"])?;
                *missing = if fill { Missing::Fill } else { Missing::Absent };
            }
            _ => self.views = views(value)?,
        }
        Ok(())
    }

    /// Returns an error if writing was requested and no view is writable.
    pub(super) fn check_views(&self) -> Result<(), Failure> {
        if self.fs.writable && self.views == [View::Flat] {
            let message = "the view flat can only be read: leave out \"rw\", or show npy or raw";
            return Err(Failure::Option(message.to_owned()));
        }
        Ok(())
    }
}

/// Parses a list of views.
fn views(value: &str) -> Result<Vec<View>, Failure> {
    let mut views = Vec::new();
    for name in value.split([',', ':']) {
        let found = View::NAMES.iter().find(|(known, _)| *known == name);
        let Some((_, view)) = found else {
            let names = View::NAMES.map(|(name, _)| name).join(", ");
            return Err(Failure::Option(format!("view {name:?} is none of {names}")));
        };
        if views.contains(view) {
            return Err(Failure::Option(format!("view {name:?} is named twice")));
        }
        views.push(*view);
    }
    Ok(views)
}

/// Parses one of two words; returns whether it is the second one.
fn either(option: &str, value: &str, words: [&str; 2]) -> Result<bool, Failure> {
    match words.iter().position(|word| *word == value) {
        Some(at) => Ok(at == 1),
        None => {
            let [one, other] = words;
            Err(Failure::Option(format!("{option} {value:?} is neither {one} nor {other}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_name_all_views() {
        assert!(View::NAMES.iter().map(|(name, _)| name).eq(VIEWS.0));
    }

    #[test]
    fn views_are_named_once() {
        assert_eq!(views("zarr2,npy:flat").unwrap(), [View::Zarr2, View::Npy, View::Flat]);
        let refused = |value| views(value).unwrap_err().to_string();
        assert_eq!(refused("npy,npy"), "view \"npy\" is named twice");
        assert_eq!(refused("n5"), "view \"n5\" is none of zarr3, zarr2, npy, raw, flat");
        assert_eq!(refused(""), "view \"\" is none of zarr3, zarr2, npy, raw, flat");
    }

    #[test]
    fn a_word_is_one_of_two() {
        assert!(!either("edge", "full", ["full", "clip"]).unwrap());
        assert!(either("edge", "clip", ["full", "clip"]).unwrap());
        let refused = either("edge", "cut", ["full", "clip"]).unwrap_err().to_string();
        assert_eq!(refused, "edge \"cut\" is neither full nor clip");
    }
}
