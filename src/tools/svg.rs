//! Rendering of a map as a standalone SVG 1.1 picture. Pointing at a cell shows what it represents.

use std::fmt::Write;
use std::ops::Range;

use super::map::{Cell, Map, Shade};
use crate::text::count;

/// Length of a cell's side.
const CELL: u64 = 10;
/// Margin around and between pictures.
const MARGIN: u64 = 20;
/// Height of a line of text.
const LINE: u64 = 20;
/// Font sizes: of titles, and of everything else.
const LARGE: u64 = 12;
const SMALL: u64 = 10;
/// Minimum width, which leaves room for the legend.
const LEAST_WIDTH: u64 = 560;
/// Maximum number of cells in a line of a map with a single axis; the axis continues in the next
/// line.
const FOLD: u64 = 64;
/// Maximum number of characters of a name; longer ones are truncated.
const NAME: usize = 32;

/// Appearance of each shade: class, colour and meaning.
const SHADES: [(Shade, &str, &str, &str); 7] = [
    (Shade::Empty, "empty", "#eeeeee", "no chunk"),
    (Shade::Few, "few", "#b7d3ea", "up to a third"),
    (Shade::Some, "some", "#6ea6d2", "up to two thirds"),
    (Shade::Most, "most", "#3679ad", "not all"),
    (Shade::Full, "full", "#134b75", "all chunks"),
    (Shade::Outside, "outside", "#e8a33d", "outside the array's shape"),
    (Shade::Damaged, "damaged", "#c8102e", "damaged"),
];

/// Arrangement of the pictures on the sheet.
struct Sheet<'a> {
    map: &'a Map,
    /// Names of the axes; there may be fewer names than axes.
    names: &'a [Option<String>],
    /// Number of cells in a line, and number of lines.
    columns: u64,
    rows: u64,
    /// Width of the numbers and the axis name to the left of the cells.
    left: u64,
    /// Width and height of a picture, including everything around it.
    frame: [u64; 2],
    /// Number of pictures beside each other.
    across: u64,
}

/// Renders a map as an SVG document, with a title and the names of the array's axes.
pub(crate) fn svg(map: &Map, title: &str, names: &[Option<String>]) -> String {
    let title = &cut(title, 2 * NAME);
    let sheet = Sheet::new(map, names);
    let pictures = map.cells()[2];
    let legend = legend(map);
    let head = [text_width(title, LARGE), text_width(&scale(map), LARGE)];
    let content = (sheet.across * sheet.frame[0]).max(head[0]).max(head[1]);
    let width = (content + 2 * MARGIN).max(LEAST_WIDTH);
    let lines = break_lines(&legend, width - 2 * MARGIN);
    let bottom = 3 * LINE + pictures.div_ceil(sheet.across.max(1)) * sheet.frame[1];
    let height = bottom + lines.len() as u64 * LINE + MARGIN;
    let mut out = String::new();
    put_head(&mut out, [width, height], title, &scale(map));
    for picture in 0..pictures {
        let at = [picture % sheet.across, picture / sheet.across];
        let origin = [MARGIN + at[0] * sheet.frame[0], 3 * LINE + at[1] * sheet.frame[1]];
        sheet.put_picture(&mut out, picture, origin);
    }
    put_legend(&mut out, &legend, &lines, bottom);
    out.push_str("</svg>\n");
    out
}

fn put_head(out: &mut String, [width, height]: [u64; 2], title: &str, scale: &str) {
    let title = escaped(title);
    // Writing to memory does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"{LARGE}\">\n\
         <title>{title}</title>\n<style>",
    );
    for (_, class, colour, _) in SHADES {
        let _ = writeln!(out, ".{class} {{ fill: {colour} }}");
    }
    let _ = writeln!(
        out,
        ".shard {{ stroke: #e07b00; stroke-width: 1 }}\n.axis {{ font-size: {SMALL}px; fill: #555 }}\n\
         </style>\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"{LINE}\" font-weight=\"bold\">{title}</text>\n\
         <text x=\"{MARGIN}\" y=\"{}\">{}</text>",
        2 * LINE,
        escaped(scale),
    );
}

impl<'a> Sheet<'a> {
    fn new(map: &'a Map, names: &'a [Option<String>]) -> Self {
        let [columns, rows, pictures] = map.cells();
        let [columns, rows] = match rows {
            1 if columns > FOLD => [FOLD, columns.div_ceil(FOLD)],
            _ => [columns, rows],
        };
        let mut sheet = Self { map, names, columns, rows, left: 0, frame: [0, 0], across: 1 };
        let numbers = sheet.row_numbers();
        let longest = numbers.iter().map(|(_, text)| text_width(text, SMALL)).max().unwrap_or(0);
        sheet.left = LINE + longest + 4;
        let caption = (0..pictures).map(|at| text_width(&sheet.caption(at), LARGE)).max();
        let below = text_width(&sheet.axis(1), SMALL).max(sheet.numbers_below_width());
        let wide = sheet.left + (columns * CELL).max(below);
        let beside = text_width(&sheet.axis(2), SMALL);
        let high = LINE + (rows * CELL).max(beside) + 2 * LINE;
        sheet.frame = [wide.max(caption.unwrap_or(0)) + MARGIN, high + MARGIN];
        // Approximately the aspect ratio of a screen.
        let area = pictures * sheet.frame[1] * 3 / (sheet.frame[0] * 2).max(1);
        sheet.across = area.isqrt().clamp(1, pictures.max(1));
        sheet
    }

    /// Returns the name of the last axis (`from_end` = 1), or of the one before it (2).
    fn axis(&self, from_end: usize) -> String {
        let rank = self.map.rank();
        let Some(axis) = rank.checked_sub(from_end) else { return String::new() };
        let name = self.names.get(axis).and_then(Option::as_deref);
        name.map_or_else(|| format!("axis {axis}"), |name| cut(name, NAME))
    }

    /// Returns the positions along the leading axes that a picture shows, with the names of the
    /// axes; empty if there are no leading axes.
    fn caption(&self, picture: u64) -> String {
        let Some((first, last)) = self.map.leading(picture) else { return String::new() };
        let axes = first.iter().zip(&last).enumerate();
        let text = |(axis, (first, last)): (usize, (&u64, &u64))| {
            let name = self.names.get(axis).and_then(Option::as_deref);
            let name = name.map_or_else(|| format!("axis {axis}"), |name| cut(name, NAME));
            match first == last {
                true => format!("{name} = {first}"),
                false => format!("{name} = {first} to {last}"),
            }
        };
        axes.map(text).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether the only axis continues from line to line.
    fn is_folded(&self) -> bool {
        self.rows > self.map.cells()[1]
    }

    /// Returns the lines with a number in front: the first and the last, or all lines of a folded
    /// axis.
    fn row_numbers(&self) -> Vec<(u64, String)> {
        let [along, down] = self.map.shown();
        let block = self.map.block();
        if self.is_folded() {
            let first = |row: u64| along.start + row * FOLD * block[0];
            return (0..self.rows).map(|row| (row, first(row).to_string())).collect();
        }
        if self.map.rank() < 2 || down.is_empty() {
            return Vec::new();
        }
        let mut numbers = vec![(0, down.start.to_string())];
        if self.rows > 1 {
            numbers.push((self.rows - 1, (down.end - 1).to_string()));
        }
        numbers
    }

    /// Returns the coordinates of the first and the last chunk along a line; `None` if no such
    /// numbers are shown.
    fn column_numbers(&self) -> Option<[String; 2]> {
        let [along, _] = self.map.shown();
        let has_axis = self.map.rank() > 0 && !self.is_folded() && !along.is_empty();
        has_axis.then(|| [along.start.to_string(), (along.end - 1).to_string()])
    }

    fn numbers_below_width(&self) -> u64 {
        let widths =
            self.column_numbers().map(|numbers| numbers.map(|text| text_width(&text, SMALL)));
        widths.map_or(0, |[first, last]| first + CELL + last)
    }

    /// Returns the upper left corner of a cell.
    fn corner(&self, column: u64, row: u64, [left, top]: [u64; 2]) -> [u64; 2] {
        let [column, row] = match self.is_folded() {
            true => [column % FOLD, column / FOLD],
            false => [column, row],
        };
        [left + self.left + column * CELL, top + LINE + row * CELL]
    }

    fn put_picture(&self, out: &mut String, picture: u64, origin: [u64; 2]) {
        let [columns, rows, _] = self.map.cells();
        let name = escaped(&self.caption(picture));
        let _ = writeln!(out, "<g><title>{name}</title>");
        if !name.is_empty() {
            let (x, y) = (origin[0], origin[1] + LINE - 6);
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{name}</text>");
        }
        for row in 0..rows {
            for column in 0..columns {
                self.put_cell(out, [column, row, picture], origin);
            }
        }
        self.put_borders(out, origin);
        self.put_axes(out, origin);
        out.push_str("</g>\n");
    }

    fn put_cell(&self, out: &mut String, place: [u64; 3], origin: [u64; 2]) {
        let cell = self.map.cell(place);
        let Some((_, class, ..)) = SHADES.iter().find(|shade| shade.0 == cell.shade()) else {
            return;
        };
        let [x, y] = self.corner(place[0], place[1], origin);
        let edge = CELL - 1;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{edge}\" height=\"{edge}\" class=\"{class}\">\
             <title>{}</title></rect>",
            what(&self.map.chunks(place), &cell)
        );
    }

    /// Draws lines between shards, in the gaps between cells or across a cell of several chunks.
    fn put_borders(&self, out: &mut String, origin: [u64; 2]) {
        let [columns, rows, _] = self.map.cells();
        let ([across, down], block) = (self.map.borders(), self.map.block());
        let [along, along_rows] = self.map.shown();
        // In tenths of a unit; the line is half a unit before the cell.
        let tenths = |start: u64, from: u64, block: u64| {
            let all = u128::from(start - from) * u128::from(CELL) * 10;
            u64::try_from(all / u128::from(block.max(1))).unwrap_or(u64::MAX)
        };
        let mut line = |from: [u64; 2], to: [u64; 2]| {
            let at = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
            let _ = writeln!(
                out,
                "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"shard\"/>",
                at(from[0]),
                at(from[1]),
                at(to[0]),
                at(to[1]),
            );
        };
        let [left, top] = self.corner(0, 0, origin).map(|at| at * 10);
        for start in across {
            let at = tenths(*start, along.start, block[0]);
            let (at, y) = match self.is_folded() {
                true => (at % (FOLD * CELL * 10), top + at / (FOLD * CELL * 10) * CELL * 10),
                false => (at, top),
            };
            let x = (left + at).saturating_sub(5);
            line([x, y.saturating_sub(5)], [x, y + rows * CELL * 10 - 5]);
        }
        for start in down {
            let y = (top + tenths(*start, along_rows.start, block[1])).saturating_sub(5);
            line([left.saturating_sub(5), y], [left + columns * CELL * 10 - 5, y]);
        }
    }

    /// Draws the names of the axes, and the coordinates of the first and last chunks.
    fn put_axes(&self, out: &mut String, origin: [u64; 2]) {
        let [left, top] = self.corner(0, 0, origin);
        let middle = |row: u64| top + row * CELL + CELL - 2;
        for (row, number) in self.row_numbers() {
            let (x, y) = (left - 4, middle(row));
            put_axis(out, &format!("x=\"{x}\" y=\"{y}\" text-anchor=\"end\""), &number);
        }
        let mut y = top + self.rows * CELL + SMALL + 2;
        if let Some([first, last]) = self.column_numbers() {
            put_axis(out, &format!("x=\"{left}\" y=\"{y}\""), &first);
            let end = left + (self.columns * CELL).max(self.numbers_below_width());
            if self.columns > 1 {
                put_axis(out, &format!("x=\"{end}\" y=\"{y}\" text-anchor=\"end\""), &last);
            }
            y += SMALL + 4;
        }
        if self.map.rank() > 0 {
            put_axis(
                out,
                &format!("x=\"{left}\" y=\"{y}\""),
                &format!("{} \u{2192}", self.axis(1)),
            );
        }
        if self.map.rank() > 1 {
            let x = origin[0] + SMALL;
            let place =
                format!("transform=\"translate({x} {top}) rotate(-90)\" text-anchor=\"end\"");
            put_axis(out, &place, &format!("\u{2190} {}", self.axis(2)));
        }
    }
}

fn put_axis(out: &mut String, place: &str, text: &str) {
    let _ = writeln!(out, "<text {place} class=\"axis\">{}</text>", escaped(text));
}

/// Describes what a cell represents.
pub(crate) fn scale(map: &Map) -> String {
    let [columns, rows, pictures] = map.block();
    let cell = match (columns, rows) {
        (1, 1) => "each cell is a chunk".to_owned(),
        _ => format!("each cell is a block of {rows} × {columns} chunks"),
    };
    match pictures {
        1 => cell,
        _ => format!("{cell} at {pictures} positions of the leading axes"),
    }
}

/// Describes the positions along the leading axes that a picture shows; `None` if there are no
/// leading axes.
pub(crate) fn caption(map: &Map, picture: u64) -> Option<String> {
    let (first, last) = map.leading(picture)?;
    let list = |coords: &[u64]| {
        let texts: Vec<String> = coords.iter().map(u64::to_string).collect();
        texts.join(", ")
    };
    Some(match first == last {
        true => format!("[{}, :, :]", list(&first)),
        false => format!("[{}, :, :] to [{}, :, :]", list(&first), list(&last)),
    })
}

/// Describes the contents of a cell.
fn what(chunks: &[Range<u64>], cell: &Cell) -> String {
    let range = |range: &Range<u64>| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    };
    let place: Vec<String> = chunks.iter().map(range).collect();
    let Cell { possible, present, damaged, outside } = *cell;
    let mut text = format!("{}: {present} of {}", place.join(", "), count(possible, "chunk"));
    if outside > 0 {
        let _ = write!(text, ", {outside} outside the array's shape");
    }
    if damaged > 0 {
        let _ = write!(text, ", {damaged} damaged");
    }
    text
}

/// Returns the classes and meanings in the legend: the shades, and shard borders if there are any.
fn legend(map: &Map) -> Vec<(&'static str, &'static str)> {
    let shades = SHADES.iter().map(|(_, class, _, meaning)| (*class, *meaning));
    let has_borders = map.borders().iter().any(|starts| !starts.is_empty());
    shades.chain(has_borders.then_some(("shard", "border of shards"))).collect()
}

/// Returns the width of an entry of the legend.
fn entry_width(meaning: &str) -> u64 {
    CELL + 2 + text_width(meaning, SMALL) + CELL
}

/// Returns the number of legend entries on each line.
fn break_lines(legend: &[(&str, &str)], width: u64) -> Vec<usize> {
    let mut lines = vec![0];
    let mut used = 0;
    for (_, meaning) in legend {
        let more = entry_width(meaning);
        if used > 0 && used + more > width {
            lines.push(0);
            used = 0;
        }
        used += more;
        if let Some(last) = lines.last_mut() {
            *last += 1;
        }
    }
    lines
}

fn put_legend(out: &mut String, legend: &[(&str, &str)], lines: &[usize], top: u64) {
    let mut entries = legend.iter();
    for (line, count) in lines.iter().enumerate() {
        let (mut x, y) = (MARGIN, top + line as u64 * LINE);
        for (class, meaning) in entries.by_ref().take(*count) {
            let edge = CELL - 1;
            let _ = match *class {
                "shard" => write!(
                    out,
                    "<line x1=\"{x}\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" class=\"shard\"/>",
                    y + CELL / 2,
                    x + edge
                ),
                _ => write!(
                    out,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{edge}\" height=\"{edge}\" class=\"{class}\"/>"
                ),
            };
            put_axis(out, &format!("x=\"{}\" y=\"{}\"", x + CELL + 2, y + edge), meaning);
            x += entry_width(meaning);
        }
    }
}

/// Estimates the width of a text in a sans-serif font, rather too large than too small.
fn text_width(text: &str, size: u64) -> u64 {
    let letter = |char: char| if char.is_ascii() { 62 } else { 100 };
    (text.chars().map(letter).sum::<u64>() * size).div_ceil(100)
}

/// Truncates a text to at most `most` characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    let escape = |char: char| match char {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        // XML cannot represent control characters.
        char if char.is_control() => "\u{fffd}".to_owned(),
        char => char.to_string(),
    };
    text.chars().map(escape).collect()
}
