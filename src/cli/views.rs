//! Options that select the views of a mount.

use crate::number::to_usize;

use super::exit::Failure;
use super::help::Words;
use super::options::MountOptions;
use super::size;

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
    #[arg(allow_negative_numbers = true)]
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
                options.give(option);
            }
        }
        if self.keep_fill {
            options.fs.view.keep_fill = true;
            options.give("keep_fill");
        }
        if let Some(bytes) = self.decoded_size {
            options.give("decoded_size");
            options.fs.store.decoded_size = to_usize(bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::View;

    #[test]
    fn completions_name_all_views() {
        assert!(View::NAMES.iter().map(|(name, _)| name).eq(VIEWS.0));
    }
}
