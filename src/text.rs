//! Names and messages from outside as text that cannot deceive its reader: one line stays one line,
//! and no part of it controls a terminal.

use std::fmt::{self, Display, Formatter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Name of the source that this process serves.
static ROOT_NAME: OnceLock<String> = OnceLock::new();

/// Sets the name of the source's root in messages: the last name of its path.
pub(crate) fn name_root(source: &Path) {
    let name = source.file_name().map(|name| shown(Path::new(name)).to_string());
    // A second source of a process would be a bug of the caller.
    let _ = ROOT_NAME.set(name.unwrap_or_else(|| "/".to_owned()));
}

/// Returns a path in the form for messages: control characters, backslashes and bytes that are not
/// UTF-8 are escaped (`\n`, `\\`, `\xff`), so that different names stay different. The source's
/// root is a dot, or has its name if this process serves it.
pub(crate) fn shown<P: AsRef<Path> + ?Sized>(path: &P) -> Shown<'_> {
    Shown(path.as_ref())
}

/// Returns a path as a word of a command for a shell. It is quoted if it has to be, with `$'...'` where
/// bytes have to be escaped (bash, zsh, ksh).
pub(crate) fn word<P: AsRef<Path> + ?Sized>(path: &P) -> Word<'_> {
    Word(path.as_ref())
}

/// Path that is displayed as described at [`word`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word<'a>(&'a Path);

impl Display for Word<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = self.0.as_os_str().as_bytes();
        if bytes.is_empty() {
            return shown(self.0).fmt(f);
        }
        // It would be taken for an option.
        if bytes.starts_with(b"-") {
            f.write_str("./")?;
        }
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(byte);
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.iter().all(is_plain) => f.write_str(text),
            Ok(text) if !text.contains(is_hidden) => {
                write!(f, "'{}'", text.replace('\'', r"'\''"))
            }
            _ => {
                f.write_str("$'")?;
                for part in bytes.utf8_chunks() {
                    part.valid().chars().try_for_each(|char| write_quoted(f, char))?;
                    part.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
                }
                f.write_str("'")
            }
        }
    }
}

/// Writes a character of a path between `$'` and `'`.
fn write_quoted(out: &mut dyn Write, char: char) -> fmt::Result {
    match char {
        '\'' | '\\' => write!(out, "\\{char}"),
        char if is_hidden(char) => {
            let mut bytes = [0; 4];
            let bytes = char.encode_utf8(&mut bytes).bytes();
            bytes.into_iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))
        }
        char => out.write_char(char),
    }
}

/// Path that is displayed as described at [`shown`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown<'a>(&'a Path);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = self.0.as_os_str().as_bytes();
        if bytes.is_empty() {
            return f.write_str(ROOT_NAME.get().map_or(".", String::as_str));
        }
        write_name(f, bytes)
    }
}

/// Writes the bytes of a name as [`shown`] does.
pub(crate) fn write_name(out: &mut dyn Write, name: &[u8]) -> fmt::Result {
    for part in name.utf8_chunks() {
        for char in part.valid().chars() {
            match char {
                '\\' => out.write_str("\\\\")?,
                char => write_visible(out, char)?,
            }
        }
        part.invalid().iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))?;
    }
    Ok(())
}

/// Formats a number with a noun in the singular or plural: `1 byte`, `2000 bytes`, `3 entries`, `4 indexes`.
pub(crate) fn count(number: impl Display, one: &str) -> String {
    let number = number.to_string();
    match (number.as_str(), one.strip_suffix("ry")) {
        ("1", _) => format!("1 {one}"),
        _ if one.ends_with('x') => format!("{number} {one}es"),
        (_, Some(stem)) => format!("{number} {stem}ries"),
        _ => format!("{number} {one}s"),
    }
}

/// Like [`count`], with commas between thousands: `2,000 bytes`.
pub(crate) fn many(number: u64, one: &str) -> String {
    count(indicatif::HumanCount(number), one)
}

/// Returns a path for JSON, in which everything except bytes that are not UTF-8 is represented as
/// it is.
pub(crate) fn json_path(path: &Path) -> String {
    if path.as_os_str().is_empty() { ".".to_owned() } else { path.to_string_lossy().into_owned() }
}

/// Returns a URL that is refused as messages may repeat it: without a user's name and password, and without
/// a query, which may be a signature. What is no URL is returned as it is.
pub(crate) fn without_secrets(source: &Path) -> PathBuf {
    let text = source.to_str().unwrap_or_default();
    // It may have been meant as one.
    let mark = if text.contains("://") { "://" } else { ":" };
    let Some((scheme, rest)) = text.split_once(mark) else { return source.to_owned() };
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?..."));
    // A password may have slashes, if it is not written as it should be.
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("...@", rest));
    format!("{scheme}{mark}{user}{rest}{query}").into()
}

/// Message, parts of which may be from outside, on one line: control characters are escaped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<T>(pub T);

impl<T: Display> Display for Line<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(Escaping { out: f, keeps_lines: false }, "{}", self.0)
    }
}

/// Message of several lines, each of which is known to be one line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines<T>(pub T);

impl<T: Display> Display for Lines<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(Escaping { out: f, keeps_lines: true }, "{}", self.0)
    }
}

struct Escaping<'a, 'b> {
    out: &'a mut Formatter<'b>,
    keeps_lines: bool,
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let hides = |char: char| is_hidden(char) && !(self.keeps_lines && char == '\n');
        while let Some(at) = rest.find(hides) {
            let (before, from) = rest.split_at(at);
            self.out.write_str(before)?;
            let mut chars = from.chars();
            chars.next().map_or(Ok(()), |char| write_visible(self.out, char))?;
            rest = chars.as_str();
        }
        self.out.write_str(rest)
    }
}

fn write_visible(out: &mut dyn Write, char: char) -> fmt::Result {
    match char {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        char if char.is_ascii() && is_hidden(char) => write!(out, "\\x{:02x}", u32::from(char)),
        char if is_hidden(char) => write!(out, "{}", char.escape_unicode()),
        char => out.write_char(char),
    }
}

/// Returns whether a character affects a terminal or the order of a line instead of being visible.
fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn name(bytes: &[u8]) -> String {
        shown(OsStr::from_bytes(bytes)).to_string()
    }

    #[test]
    fn one_and_many() {
        assert_eq!(many(1, "entry"), "1 entry");
        assert_eq!(many(0, "entry"), "0 entries");
        assert_eq!(many(2000, "array"), "2,000 arrays");
        assert_eq!(
            (count(1_u8, "byte"), count(2000, "byte")),
            ("1 byte".into(), "2000 bytes".into())
        );
    }

    #[test]
    fn names_are_shown_without_what_a_terminal_would_obey() {
        assert_eq!(name(b"a/b c"), "a/b c");
        assert_eq!(name("größe/数".as_bytes()), "größe/数");
        assert_eq!(name(b""), ".");
        assert_eq!(name(b"a\nshardfs: error: b\r\t"), "a\\nshardfs: error: b\\r\\t");
        assert_eq!(name(b"\x1b[2J\x07\x7f\0"), "\\x1b[2J\\x07\\x7f\\x00");
        assert_eq!(name("\u{9b}2J\u{202e}\u{2028}".as_bytes()), "\\u{9b}2J\\u{202e}\\u{2028}");
    }

    #[test]
    fn a_word_of_a_command_is_what_a_shell_takes_for_the_path() {
        let names: [&[u8]; 12] = [
            b"/data/a.zarr",
            b"/data/my array",
            b"it's",
            b"$HOME/`id`",
            b"a;b&c|d>e",
            b"-rf",
            b"*?[a]",
            b"a\nb",
            b"\xff'\\",
            "größe".as_bytes(),
            "a\u{202e}b'".as_bytes(),
            b"~/#!x",
        ];
        for name in names {
            let quoted = word(OsStr::from_bytes(name)).to_string();
            assert!(!quoted.contains(is_hidden), "{quoted}");
            let script = format!("printf %s {quoted}");
            let output =
                std::process::Command::new("bash").arg("-c").arg(&script).output().unwrap();
            let output = output.stdout.strip_prefix(b"./".as_slice()).unwrap_or(&output.stdout);
            assert_eq!(output, name, "{quoted}");
        }
        assert_eq!(word("/data/a.zarr").to_string(), "/data/a.zarr");
        assert_eq!(word("my array").to_string(), "'my array'");
    }

    #[test]
    fn a_url_is_repeated_without_what_is_secret() {
        let without = |text: &str| shown(&without_secrets(Path::new(text))).to_string();
        assert_eq!(without("https://me:secret@host/a?sig=secret"), "https://...@host/a?...");
        assert_eq!(without("https://me:sec/ret@host/a"), "https://...@host/a");
        assert_eq!(without("https:me:secret@host/a"), "https:...@host/a");
        assert_eq!(without("s3://bucket/a"), "s3://bucket/a");
        assert_eq!(without("/data/a@b?c"), "/data/a@b?c");
    }

    #[test]
    fn different_names_are_shown_differently() {
        let names: [&[u8]; 5] = [b"a\nb", b"a\\nb", b"a\xffb", b"a\\xffb", "a\u{fffd}b".as_bytes()];
        let mut shown = names.map(name);
        shown.sort();
        assert!(shown.windows(2).all(|two| two[0] != two[1]), "{shown:?}");
    }

    #[test]
    fn a_message_stays_on_its_line_or_lines() {
        let message = "a\nb\u{1b}[0m \\ c";
        assert_eq!(Line(message).to_string(), "a\\nb\\x1b[0m \\ c");
        assert_eq!(Lines(message).to_string(), "a\nb\\x1b[0m \\ c");
        // Text that was escaped once is not escaped again.
        assert_eq!(Line(shown("a\nb")).to_string(), "a\\nb");
    }
}
