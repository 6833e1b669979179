//! Help and usage fitted to the width of the terminal, and values for completions.
//!
//! clap wraps the text after the options as if it were one paragraph: columns are lost, and lines
//! that were broken by hand are broken twice. These texts are therefore wrapped before clap gets
//! them.

use std::fmt::Write;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::Error;
use clap::{Arg, Command};

/// Maximum width of help, and its width if that of the terminal is unknown.
const WIDEST: usize = 100;
/// Minimum width of help; a narrower terminal breaks the lines itself.
const NARROWEST: usize = 40;
/// Minimum width of the words beside a column of terms.
const LEAST_WORDS: usize = 30;
/// Indentation of the continuation lines of a command that does not fit on a line.
const GOES_ON: usize = 6;

/// Returns the command line with help fitted to the width of the terminal.
pub(super) fn fitted(command: Command) -> Command {
    let width = width();
    let wrap = |command: Command| {
        let after = command.get_after_long_help().map(|text| wrapped(&text.to_string(), width));
        let command = command.term_width(width);
        match after {
            Some(text) => command.after_long_help(text),
            None => command,
        }
    };
    wrap(command).mut_subcommands(wrap)
}

/// Returns the width in columns of the terminal that help is written to, or that in the variable
/// COLUMNS, within limits.
fn width() -> usize {
    use rustix::stdio::{stderr, stdout};
    let of_terminal = [stdout(), stderr()]
        .into_iter()
        .find_map(|fd| rustix::termios::tcgetwinsize(fd).ok())
        .map(|size| usize::from(size.ws_col));
    let stated = || std::env::var("COLUMNS").ok()?.parse().ok();
    let columns = of_terminal.filter(|columns| *columns > 0).or_else(stated);
    columns.unwrap_or(WIDEST).clamp(NARROWEST, WIDEST)
}

/// Wraps a text to the width of the terminal, and ends its last line.
pub(super) fn wrapped_to_terminal(text: &str) -> String {
    wrapped(text, width()) + "\n"
}

/// Wraps paragraphs, and columns below headings: the words of a second column stay in it.
fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_entry = line.starts_with(' ');
        let mut words = line.trim_start().to_owned();
        let (mut indent, mut hang) = (line.len() - words.len(), 0);
        if is_entry {
            hang = GOES_ON;
            if let Some(column) = second_column(line) {
                let is_more = |next: &&str| next.len() > column && next[..column].trim().is_empty();
                while let Some(next) =
                    lines.next_if(|next| next.is_char_boundary(column) && is_more(next))
                {
                    words = format!("{words} {}", next.trim());
                }
                if column + LEAST_WORDS <= width {
                    hang = column;
                }
            }
        } else if !line.is_empty() && !line.ends_with(':') {
            indent = 0;
            let is_more = |next: &&str| !next.is_empty() && !next.starts_with(' ');
            while let Some(next) = lines.next_if(is_more) {
                words = format!("{words} {next}");
            }
        }
        fill(&mut out, &words, indent, hang, width);
        if lines.peek().is_some() {
            out.push('\n');
        }
    }
    out
}

/// Returns the offset of the second column of a line, which follows two or more spaces; `None` if
/// there is none.
fn second_column(line: &str) -> Option<usize> {
    let start = line.len() - line.trim_start().len();
    let gap = start + line[start..].find("  ")?;
    Some(line.len() - line[gap..].trim_start().len())
}

/// Appends words in lines of at most `width`, the first indented by `indent`, the others by `hang`.
/// Spaces between words are kept.
fn fill(out: &mut String, words: &str, indent: usize, hang: usize, width: usize) {
    let mut at = indent;
    let _ = write!(out, "{:indent$}", "");
    let mut gap = 0;
    for word in words.split(' ') {
        if word.is_empty() {
            gap += 1;
            continue;
        }
        let length = word.chars().count();
        if at > indent.max(hang) && at + gap + length > width {
            let _ = write!(out, "\n{:hang$}", "");
            at = hang;
            gap = 0;
        }
        let _ = write!(out, "{:gap$}{word}", "");
        at += gap + length;
        gap = 1;
    }
}

/// Parser that accepts any text and names the words that completions offer. Wrong values are
/// reported where the text is interpreted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words(pub &'static [&'static str]);

impl TypedValueParser for Words {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
What a line says and what the next\nline says is one paragraph.

And this one is another.

Options of -o:
  ro         read-only, as it has always been, and stays
  level=N    which chunks of nested sharding to show: 1 the outermost, 0 the
             shards themselves
  x          y
A last line, and no more of it than that.";

    #[test]
    fn lines_keep_their_columns() {
        let expected = "\
What a line says and what the next line says
is one paragraph.

And this one is another.

Options of -o:
  ro         read-only, as it has always
             been, and stays
  level=N    which chunks of nested sharding
             to show: 1 the outermost, 0 the
             shards themselves
  x          y
A last line, and no more of it than that.";
        assert_eq!(wrapped(TEXT, 45), expected);
        let wide = wrapped(TEXT, 100);
        assert!(wide.contains("outermost, 0 the shards themselves\n"), "{wide}");
    }

    #[test]
    fn commands_that_do_not_fit_go_on_indented() {
        let text =
            "Examples:\n  shardfs repack volume.zarr new.zarr --shard 2048,2048,2048 --index start";
        let expected = "Examples:\n  shardfs repack volume.zarr new.zarr --shard\n      2048,2048,2048 --index start";
        assert_eq!(wrapped(text, 50), expected);
        assert_eq!(wrapped("", 50), "");
    }
}
