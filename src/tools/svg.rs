//! A map as a picture: SVG 1.1 that stands alone. Every cell tells what it is when it is pointed at.

use std::fmt::Write;
use std::ops::Range;

use super::map::{Cell, Map, Shade};

/// Edge of a cell.
const CELL: u64 = 10;
/// Room around pictures, and between them.
const MARGIN: u64 = 20;
/// Room for a line of text.
const LINE: u64 = 20;
/// The least width, so that the legend has room.
const LEAST_WIDTH: u64 = 560;

/// What a shade looks like: a class, a colour, what it means.
const SHADES: [(Shade, &str, &str, &str); 7] = [
    (Shade::Empty, "empty", "#eeeeee", "no chunk"),
    (Shade::Few, "few", "#b7d3ea", "up to a third"),
    (Shade::Some, "some", "#6ea6d2", "up to two thirds"),
    (Shade::Most, "most", "#3679ad", "not all"),
    (Shade::Full, "full", "#134b75", "all chunks"),
    (Shade::Outside, "outside", "#e8a33d", "outside the array's shape"),
    (Shade::Damaged, "damaged", "#c8102e", "damaged"),
];

/// The map as an SVG document, with a title.
pub fn svg(map: &Map, title: &str) -> String {
    let [columns, rows, pictures] = map.cells();
    let height = rows * CELL + LINE + MARGIN;
    let width = (columns * CELL + 2 * MARGIN).max(LEAST_WIDTH);
    let all = pictures * height + 3 * LINE + 2 * MARGIN;
    let mut out = String::new();
    // Writing to memory does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{all}\" \
         viewBox=\"0 0 {width} {all}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{}</title>\n<style>",
        escaped(title)
    );
    for (_, class, colour, _) in SHADES {
        let _ = writeln!(out, ".{class} {{ fill: {colour} }}");
    }
    let _ = writeln!(
        out,
        "</style>\n<rect width=\"{width}\" height=\"{all}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"{LINE}\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{MARGIN}\" y=\"{}\">{}</text>",
        escaped(title),
        2 * LINE,
        escaped(&scale(map)),
    );
    for picture in 0..pictures {
        let top = 3 * LINE + picture * height;
        put_picture(&mut out, map, picture, top);
    }
    put_legend(&mut out, 3 * LINE + pictures * height);
    out.push_str("</svg>\n");
    out
}

/// What a cell stands for, in words.
pub fn scale(map: &Map) -> String {
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

/// What a picture shows of the leading axes, in words; None if there are none.
pub fn caption(map: &Map, picture: u64) -> Option<String> {
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

fn put_picture(out: &mut String, map: &Map, picture: u64, top: u64) {
    let [columns, rows, _] = map.cells();
    let name = caption(map, picture).unwrap_or_default();
    let _ = writeln!(out, "<g><title>{name}</title>");
    if !name.is_empty() {
        let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{}\">{name}</text>", top + LINE - 6);
    }
    for row in 0..rows {
        for column in 0..columns {
            let place = [column, row, picture];
            let cell = map.cell(place);
            let Some((_, class, ..)) = SHADES.iter().find(|shade| shade.0 == cell.shade()) else {
                continue;
            };
            let (x, y) = (MARGIN + column * CELL, top + LINE + row * CELL);
            let edge = CELL - 1;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{edge}\" height=\"{edge}\" class=\"{class}\">\
                 <title>{}</title></rect>",
                what(&map.chunks(place), &cell)
            );
        }
    }
    out.push_str("</g>\n");
}

/// What a cell is, in words.
fn what(chunks: &[Range<u64>], cell: &Cell) -> String {
    let range = |range: &Range<u64>| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    };
    let place: Vec<String> = chunks.iter().map(range).collect();
    let Cell { possible, present, damaged, outside } = *cell;
    let mut text = format!("{}: {present} of {possible} chunks", place.join(", "));
    if outside > 0 {
        let _ = write!(text, ", {outside} outside the array's shape");
    }
    if damaged > 0 {
        let _ = write!(text, ", {damaged} damaged");
    }
    text
}

fn put_legend(out: &mut String, top: u64) {
    let mut x = MARGIN;
    for (_, class, _, meaning) in SHADES {
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{top}\" width=\"{0}\" height=\"{0}\" class=\"{class}\"/>\
             <text x=\"{1}\" y=\"{2}\" font-size=\"10\">{meaning}</text>",
            CELL - 1,
            x + CELL + 2,
            top + CELL - 1,
        );
        // About the width of the text.
        x += CELL + 14 + 5 * meaning.len() as u64;
    }
}

fn escaped(text: &str) -> String {
    let escape = |char: char| match char {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        // What XML cannot hold at all.
        char if char.is_control() => "\u{fffd}".to_owned(),
        char => char.to_string(),
    };
    text.chars().map(escape).collect()
}
