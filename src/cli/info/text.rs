//! Human-readable output of `shardfs info`.

use std::fmt::Write;

use indicatif::{HumanBytes, HumanCount};
use serde_json::Value;

use crate::cli::source_defaults::{DEFAULTS_FILE, Defaults, DefaultsError};
use crate::format::index::IndexLocation;
use crate::format::json::to_line;
use crate::text::many;
use crate::text::{Line, shown};
use crate::tools::info::{ArrayInfo, Contents, Kind};
use crate::tools::map::{Map, MapSize, Shade};
use crate::tools::svg::{caption, scale};

/// Maximum length in characters of all attributes, and of a value.
const LINE: usize = 100;
const VALUE: usize = 48;
/// Number of columns of a map if the width of the terminal is unknown.
const USUAL_COLUMNS: u64 = 80;
/// Maximum numbers of rows of a picture and of pictures: no more than a few screens in total.
const ROWS: u64 = 32;
const PICTURES: u64 = 12;

/// Appearance of each shade: character, colour if any, and meaning.
const SHADES: [(Shade, char, &str, &str); 8] = [
    (Shade::Beyond, ' ', "", "no part of the array"),
    (Shade::Empty, '·', "", "no chunk"),
    (Shade::Few, '░', "", "up to a third of the chunks"),
    (Shade::Some, '▒', "", "up to two thirds"),
    (Shade::Most, '▓', "", "not all"),
    (Shade::Full, '█', "", "all"),
    (Shade::Outside, 'o', "\x1b[33m", "outside the array's shape"),
    (Shade::Damaged, '×', "\x1b[31m", "damaged"),
];

/// Returns whether output may be coloured: <https://no-color.org>.
pub(super) fn has_colours(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns the maximum size of a map.
pub(super) fn map_size(is_terminal: bool) -> MapSize {
    let size = is_terminal.then(|| rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok());
    let columns = size.flatten().map(|size| u64::from(size.ws_col)).filter(|columns| *columns > 0);
    MapSize { columns: columns.unwrap_or(USUAL_COLUMNS), rows: ROWS, pictures: PICTURES }
}

/// Returns the ratio of the decoded length of the chunks to their encoded length; `None` if it is
/// unknown.
pub(super) fn ratio(contents: &Contents) -> Option<f64> {
    #[allow(clippy::cast_precision_loss, reason = "a ratio of a few digits")]
    let ratio = contents.decoded? as f64 / contents.live as f64;
    (contents.live > 0).then_some(ratio)
}

/// Returns the text about an array.
pub(super) fn about(about: &ArrayInfo, map: Option<&Map>, colours: bool) -> String {
    let ArrayInfo { path, kind, contents } = about;
    let mut text = format!("{}\n", shown(path));
    let mut put = |name: &str, value: String| {
        // Writing to memory does not fail.
        let _ = writeln!(text, "  {name:<12} {}", Line(value));
    };
    put("format", kind.format.to_owned());
    let shape = kind.shape.as_deref().map_or_else(|| "not known".to_owned(), by);
    put("shape", format!("{shape} {}", data_type(kind)).trim().into());
    if let Some(names) = &kind.dimension_names {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
        put("dimensions", names.iter().map(name).collect::<Vec<_>>().join(", "));
    }
    if let Some(value) = &kind.fill_value {
        put("fill value", short(&to_line(value)));
    }
    if !kind.codecs.is_empty() {
        put("codecs", kind.codecs.join(", "));
    }
    shards(kind, &mut put);
    // Without a shape there are no elements in which to count.
    if kind.shape.is_some() {
        put("chunks", by(&kind.chunk_shape));
    }
    if !kind.attributes.is_empty() {
        put("attributes", attributes(&kind.attributes));
    }
    put_counts(contents, &mut put);
    let size = HumanBytes;
    if let Some(spread) = contents.spread() {
        let about = if spread.is_exact { "" } else { "about " };
        put(
            "chunk bytes",
            format!(
                "smallest {}, median {about}{}, largest {}",
                size(spread.smallest),
                size(spread.median),
                size(spread.largest)
            ),
        );
    }
    if let Some(outside) = outside(contents) {
        put("outside", outside);
    }
    if contents.shared > 0 {
        put("shared", format!("{} with bytes of another one", many(contents.shared, "chunk")));
    }
    put_damage(contents, &mut put);
    contents.errors.iter().for_each(|error| put("error", error.clone()));
    if let Some(map) = map {
        put_map(&mut text, map, colours);
    }
    text
}

/// Returns the name of an array's data type, with what its metadata says of it.
fn data_type(kind: &Kind) -> String {
    let name = kind.data_type.clone().unwrap_or_default();
    let Some(configuration) = &kind.data_type_configuration else { return name };
    let option = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name} {text}"),
        value => format!("{name} {value}"),
    };
    let options: Vec<String> = configuration.iter().map(option).collect();
    format!("{name} ({})", short(&options.join(", ")))
}

/// Describes what lies outside an array; `None` if nothing does.
fn outside(contents: &Contents) -> Option<String> {
    let Contents { outside, stray, .. } = *contents;
    let chunks = (outside > 0).then(|| {
        format!("{} outside the array's shape, in shards at its edge", many(outside, "chunk"))
    });
    let files = (stray > 0)
        .then(|| format!("{} outside the shard grid, not counted above", many(stray, "file")));
    let parts: Vec<String> = [chunks, files].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Returns the text about all arrays together.
pub(super) fn totals(arrays: u64, contents: &Contents) -> String {
    let mut text = format!("\n{} together\n", many(arrays, "array"));
    let mut put = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<12} {value}");
    };
    put_counts(contents, &mut put);
    put_damage(contents, &mut put);
    text
}

/// Returns the text about how new arrays are stored.
pub(super) fn new_arrays(defaults: &Result<Defaults, DefaultsError>) -> String {
    let text = match defaults {
        Ok(Defaults { rules, new_shards }) => {
            let at_start = new_shards.index_location == Some(IndexLocation::Start);
            let place = if at_start { "; index at the start" } else { "" };
            format!("{}{place}", rules.join(", "))
        }
        Err(error) => error.to_string(),
    };
    format!("\nNew arrays, by {DEFAULTS_FILE}: {}\n", Line(&text))
}

fn put_counts(contents: &Contents, put: &mut dyn FnMut(&str, String)) {
    let Contents { possible, present, shards, shards_possible, .. } = contents;
    let full = percent(*present, *possible);
    let count = HumanCount;
    put("present", format!("{} of {}{full}", count(*present), many(*possible, "chunk")));
    if contents.unreadable > 0 {
        let (unreadable, missing) = (count(contents.unreadable), count(contents.missing()));
        put("", format!("{unreadable} cannot be read, {missing} missing"));
    }
    put("", format!("{} of {}", count(*shards), many(*shards_possible, "file")));
    let size = HumanBytes;
    let unreadable = match contents.unreadable_nbytes {
        0 => String::new(),
        nbytes => format!(", unreadable {}", size(nbytes)),
    };
    put(
        "bytes",
        format!(
            "{} in files: chunks {}, indexes and checksums {}, dead {}{unreadable}",
            size(contents.nbytes),
            size(contents.live),
            size(contents.overhead),
            size(contents.dead)
        ),
    );
    if let (Some(decoded), Some(ratio)) = (contents.decoded, ratio(contents)) {
        put("decoded", format!("{}, {ratio:.2} times as much", size(decoded)));
    }
}

fn put_damage(contents: &Contents, put: &mut dyn FnMut(&str, String)) {
    if contents.damaged_shards + contents.damaged_entries > 0 {
        put(
            "damaged",
            format!(
                "{}, {} in others: see `shardfs verify`",
                many(contents.damaged_shards, "shard"),
                many(contents.damaged_entries, "entry")
            ),
        );
    }
}

/// Returns the attributes and their values, as many as fit on a line.
fn attributes(attributes: &serde_json::Map<String, Value>) -> String {
    let mut text = String::new();
    for (number, (name, value)) in attributes.iter().enumerate() {
        let next = format!("{name} {}", short(&to_line(value)));
        let gap = if number == 0 { "" } else { ", " };
        if number > 0 && text.chars().count() + next.chars().count() > LINE {
            let _ = write!(text, ", and {} more", attributes.len() - number);
            break;
        }
        let _ = write!(text, "{gap}{next}");
    }
    text
}

/// Shortens a text to a reasonable length, with an ellipsis for what is left out.
fn short(text: &str) -> String {
    match text.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn shards(kind: &Kind, put: &mut dyn FnMut(&str, String)) {
    let mut shape =
        kind.shard_shape.as_deref().map_or_else(|| "of different shapes".to_owned(), by);
    for (number, level) in kind.levels.iter().enumerate() {
        let inside = if number + 1 < kind.levels.len() { "inner shards" } else { "chunks" };
        let chunks = level
            .chunks_per_shard
            .as_deref()
            .map_or(String::new(), |chunks| format!(" of {} {inside}", by(chunks)));
        let place = if level.index_at_start { "start" } else { "end" };
        let after = match level.after.is_empty() {
            true => String::new(),
            false => format!("; {} over all of it", level.after.join(", ")),
        };
        put(
            if number == 0 { "shards" } else { "inner shards" },
            format!("{shape}{chunks}; index at the {place}, {}{after}", level.index),
        );
        shape = by(&level.chunk_shape);
    }
    if kind.levels.is_empty() && kind.shard_shape.is_some() && kind.shape.is_some() {
        put("files", shape);
    }
}

/// Formats numbers as `4 × 8`; no numbers are `scalar`.
fn by(numbers: &[u64]) -> String {
    let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
    if texts.is_empty() { "scalar".to_owned() } else { texts.join(" × ") }
}

/// Formats a percentage in tenths; never 100 % if not all, nor 0 % if not none.
fn percent(part: u64, all: u64) -> String {
    let whole = u128::from(all.max(1));
    let rounded = (u128::from(part) * 1000 + whole / 2) / whole;
    let tenths = if part < all { rounded.min(999) } else { rounded };
    match (part, all) {
        (_, 0) => String::new(),
        (1.., _) if tenths == 0 => ", less than 0.1 %".to_owned(),
        _ => format!(", {}.{} %", tenths / 10, tenths % 10),
    }
}

fn put_map(text: &mut String, map: &Map, colours: bool) {
    let [columns, rows, pictures] = map.cells();
    let mut used = Vec::new();
    for picture in 0..pictures {
        text.push('\n');
        if let Some(caption) = caption(map, picture) {
            let _ = writeln!(text, "{caption}");
        }
        for row in 0..rows {
            let is_beyond = |column| map.cell([column, row, picture]).shade() == Shade::Beyond;
            if (0..columns).all(is_beyond) {
                continue;
            }
            for column in 0..columns {
                let shade = map.cell([column, row, picture]).shade();
                if !used.contains(&shade) {
                    used.push(shade);
                }
                put_shade(text, shade, colours);
            }
            // Trailing blanks beyond the array are not needed.
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
    }
    used.sort_unstable();
    let _ = writeln!(text, "\n{}:", scale(map));
    for shade in used.into_iter().filter(|shade| *shade != Shade::Beyond) {
        text.push_str("  ");
        put_shade(text, shade, colours);
        let meaning = SHADES.iter().find(|known| known.0 == shade).map_or("", |known| known.3);
        let _ = writeln!(text, " {meaning}");
    }
}

fn put_shade(text: &mut String, shade: Shade, colours: bool) {
    let Some((_, char, colour, _)) = SHADES.iter().find(|known| known.0 == shade) else { return };
    match colours && !colour.is_empty() {
        true => {
            let _ = write!(text, "{colour}{char}\x1b[0m");
        }
        false => text.push(*char),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_in_tenths() {
        assert_eq!(percent(1, 3), ", 33.3 %");
        assert_eq!(percent(9, 14), ", 64.3 %");
        assert_eq!(percent(2999, 3000), ", 99.9 %");
        assert_eq!(percent(1, 1_000_000), ", less than 0.1 %");
        assert_eq!((percent(0, 5), percent(5, 5)), (", 0.0 %".into(), ", 100.0 %".into()));
        assert_eq!(percent(0, 0), "");
    }

    #[test]
    fn attributes_have_room_on_a_line() {
        let long = "x".repeat(60);
        let object = serde_json::json!({"unit": "K", "text": long, "n": [1, 2.5], "a": 1, "b": {}});
        let text = attributes(object.as_object().unwrap());
        let x = "x".repeat(VALUE - 1);
        assert_eq!(text, format!("unit \"K\", text \"{x}..., n [1,2.5], a 1, b {{}}"));
        let many: serde_json::Map<_, _> =
            (0..50).map(|n| (format!("attribute{n}"), n.into())).collect();
        let text = attributes(&many);
        assert!(text.ends_with(", and 43 more"), "{text}");
    }

    #[test]
    fn every_shade_has_a_look() {
        use Shade::{Beyond, Damaged, Empty, Few, Full, Most, Outside, Some};
        let all = [Beyond, Empty, Few, Some, Most, Full, Outside, Damaged];
        assert!(SHADES.iter().map(|shade| shade.0).eq(all));
        let mut text = String::new();
        put_shade(&mut text, Damaged, true);
        put_shade(&mut text, Full, true);
        assert_eq!(text, "\x1b[31m×\x1b[0m█");
    }
}
