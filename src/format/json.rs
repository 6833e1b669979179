//! JSON as Zarr writers write it, kept unchanged: members keep their order and numbers their text.
//!
//! zarr-python writes the bare words `NaN`, `Infinity` and `-Infinity` into attributes. They are
//! not JSON, so [`parse`] replaces them by strings and [`to_text`] restores them. The same holds for
//! escapes of lone surrogates (`"\udc80"`), which Python writes for bytes that are not UTF-8: they are
//! no characters, so no string in memory can hold them.

use super::limits::MAX_JSON_VALUES;
use serde_json::Value;

/// Error parsing a document.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text is not valid JSON.
    #[error("not valid JSON: {0}")]
    Invalid(#[from] serde_json::Error),
    /// The document has more values than the limit.
    #[error("it holds {0} values, the limit is {MAX_JSON_VALUES}")]
    TooMany(u64),
}

/// Maximum memory in bytes of a parsed value, including its name and its entry in a list.
const VALUE_BYTES: u64 = 256;

/// Bare words and the JSON strings that replace them. A NUL can be written in JSON only as an
/// escape, so no document contains these strings by chance.
const BARE_WORDS: [(&str, &str); 3] = [
    ("-Infinity", r#""\u0000shardfs -Infinity""#),
    ("Infinity", r#""\u0000shardfs Infinity""#),
    ("NaN", r#""\u0000shardfs NaN""#),
];

/// Text in a string that stands for the escape of a lone surrogate, before its four digits; before
/// four zeros it stands for itself. It is short, since a document may consist of such escapes.
const ESCAPE: &str = r"\u0000#";
/// What follows [`ESCAPE`] where it stands for itself.
const ITSELF: &str = "0000";

/// Parses a document. A byte order mark is skipped. Nesting deeper than 128 levels is an error.
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let values = most_values(bytes);
    if values > MAX_JSON_VALUES {
        return Err(JsonError::TooMany(values));
    }
    let plain = match bytes.windows(ESCAPE.len()).any(|text| text == ESCAPE.as_bytes()) {
        true => None,
        false => Some(serde_json::from_slice(bytes)),
    };
    match plain {
        Some(Ok(value)) => Ok(value),
        plain => match (replaced(bytes, &BARE_WORDS, hidden), plain) {
            (None, Some(Err(error))) => Err(error.into()),
            (text, _) => Ok(serde_json::from_slice(text.as_deref().unwrap_or(bytes))?),
        },
    }
}

/// Returns the length of the object, or the list, at the start of a text. `None` if it has no end.
pub fn first_length(bytes: &[u8]) -> Option<usize> {
    let (mut in_string, mut escaped, mut depth) = (false, false, 0_usize);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => (),
        }
    }
    None
}

/// Maximum memory in bytes of a document while it is parsed and written anew.
pub fn memory(bytes: &[u8]) -> u64 {
    let values = most_values(bytes).min(MAX_JSON_VALUES);
    values.saturating_mul(VALUE_BYTES).saturating_add((bytes.len() as u64).saturating_mul(4))
}

/// Returns an upper bound of the number of values in a document: each value but the first follows a
/// bracket, a comma or a colon.
fn most_values(bytes: &[u8]) -> u64 {
    let (mut in_string, mut escaped, mut values) = (false, false, 1);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' | b',' | b':' if !in_string => values += 1,
            _ => (),
        }
    }
    values
}

/// Serializes a document that [`parse`] has parsed, indented by two spaces.
pub fn to_text(value: &Value) -> Vec<u8> {
    // The alternate form of a value's Display is the indented one; it cannot fail.
    with_words(format!("{value:#}\n"), |word| word).into_bytes()
}

/// Serializes a value that has parts of such documents as JSON that every parser takes: bare words are strings.
pub fn to_strict_text(value: &Value) -> String {
    let quoted = |word| match word {
        "NaN" => r#""NaN""#,
        "Infinity" => r#""Infinity""#,
        _ => r#""-Infinity""#,
    };
    with_words(format!("{value:#}"), quoted)
}

/// Serializes a part of a document on one line.
pub fn to_line(value: &Value) -> String {
    with_words(value.to_string(), |word| word)
}

/// Puts what stand-ins stand for into a text, bare words as `write` has them.
fn with_words(text: String, write: fn(&'static str) -> &'static str) -> String {
    let back = BARE_WORDS.map(|(word, stand_in)| (stand_in, write(word)));
    if !text.contains(r"\u0000shardfs ") && !text.contains(ESCAPE) {
        return text;
    }
    // Only whole stand-ins are replaced, by text.
    let replaced = replaced(text.as_bytes(), &back, restored);
    replaced.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or(text)
}

/// Returns the bare word that a string of a parsed document replaces, or the string itself.
pub fn bare_word(text: &str) -> &str {
    text.strip_prefix("\0shardfs ").unwrap_or(text)
}

/// What begins with an escape in a string: what stands for it, and its own length.
type Replacement = Option<(Vec<u8>, usize)>;

/// Returns the stand-in of a lone surrogate. A pair of surrogates is a character, and stays.
fn hidden(rest: &[u8]) -> Replacement {
    if rest.starts_with(ESCAPE.as_bytes()) {
        return Some(([ESCAPE, ITSELF].concat().into_bytes(), ESCAPE.len()));
    }
    let (first, after) = surrogate(rest)?;
    match surrogate(after) {
        Some((second, _)) if first < 0xdc00 && second >= 0xdc00 => Some((rest[..12].to_vec(), 12)),
        _ => Some(([ESCAPE.as_bytes(), &rest[2..6]].concat(), 6)),
    }
}

/// Returns what a stand-in of [`hidden`] stands for.
fn restored(rest: &[u8]) -> Replacement {
    let digits = rest.strip_prefix(ESCAPE.as_bytes())?.get(..ITSELF.len())?;
    let escape = match digits == ITSELF.as_bytes() {
        true => ESCAPE.into(),
        false => [br"\u", digits].concat(),
    };
    // A string that was never parsed may hold any digits.
    (digits == ITSELF.as_bytes() || surrogate(&escape).is_some())
        .then_some((escape, ESCAPE.len() + ITSELF.len()))
}

/// Returns the surrogate whose escape is at the beginning, and what follows it.
fn surrogate(rest: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, after) = rest.strip_prefix(br"\u")?.split_at_checked(4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let number = u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    (0xd800..0xe000).contains(&number).then_some((number, after))
}

/// Replaces the first text of each pair by the second wherever it begins outside of strings, and
/// what `escape` replaces in strings. Returns `None` if there is no occurrence.
fn replaced(
    bytes: &[u8],
    pairs: &[(&str, &str)],
    escape: fn(&[u8]) -> Replacement,
) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len() + 64);
    let (mut in_string, mut found, mut at) = (false, false, 0);
    while at < bytes.len() {
        let rest = &bytes[at..];
        if !in_string
            && let Some((from, to)) =
                pairs.iter().find(|(from, _)| rest.starts_with(from.as_bytes()))
        {
            out.extend_from_slice(to.as_bytes());
            at += from.len();
            found = true;
            continue;
        }
        if in_string
            && rest[0] == b'\\'
            && let Some((stand_in, taken)) = escape(rest)
        {
            found |= stand_in != rest[..taken];
            out.extend_from_slice(&stand_in);
            at += taken;
            continue;
        }
        // An escape includes its next byte, so an escaped quote does not end the string.
        let taken = if in_string && rest[0] == b'\\' { rest.len().min(2) } else { 1 };
        in_string ^= rest[0] == b'"';
        out.extend_from_slice(&rest[..taken]);
        at += taken;
    }
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn survives(text: &str) {
        let value = parse(text.as_bytes()).unwrap();
        let again = String::from_utf8(to_text(&value)).unwrap();
        let squeezed = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(squeezed(&again), squeezed(text));
    }

    #[test]
    fn what_is_no_json_is_a_string_where_every_parser_is_to_take_it() {
        let text = br#"{"a": [NaN, -Infinity, Infinity, "NaN"], "b": "\udc80 \u0000#"}"#;
        let value = parse(text).unwrap();
        let strict: Value = serde_json::from_str(&to_strict_text(&value["a"])).unwrap();
        assert_eq!(strict, serde_json::json!(["NaN", "-Infinity", "Infinity", "NaN"]));
        assert_eq!(to_strict_text(&value["b"]), r#""\udc80 \u0000#""#);
        assert_eq!(to_line(&value["a"]), r#"[NaN,-Infinity,Infinity,"NaN"]"#);
    }

    #[test]
    fn the_first_object_of_a_text_has_a_length() {
        let length = |text: &str| first_length(text.as_bytes());
        assert_eq!(length(r#"{"a": [1, "}\\\"{"]} rest"#), Some(20));
        assert_eq!(length("[NaN]]"), Some(5));
        for text in ["", "1", r#"{"a": "}""#, "}{}"] {
            assert_eq!(length(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_keep_their_text_and_members_their_order() {
        survives(r#"{"z":18446744073709551615,"a":-0.0,"m":12345678901234567890123,"e":5e-324}"#);
    }

    #[test]
    fn bare_words_survive_and_words_in_strings_stay_strings() {
        survives(r#"{"fill":NaN,"range":[-Infinity,Infinity],"text":"NaN\"NaN","k\\":"Infinity"}"#);
    }

    #[test]
    fn a_stand_in_within_a_string_stays_what_it_is() {
        survives(r#"["a\"\u0000shardfs NaN",NaN]"#);
    }

    #[test]
    fn lone_surrogates_survive_and_pairs_stay_characters() {
        survives(r#"{"path":"a\udc80b\uDCff","\ud800":["\ud83d","\ud83d\ud83d","\udc80\\udc80"]}"#);
        survives(r#"["\udc80NaN",NaN,"\ud83dx"]"#);
        let value = parse(br#"["\ud83d\ude00\udc80"]"#).unwrap();
        let again = String::from_utf8(to_text(&value)).unwrap();
        assert!(again.contains("\u{1f600}\\udc80"), "{again}");
        for bad in [r#"["\ud8"#, r#"["\udc8g"]"#, r#"[\udc80]"#] {
            parse(bad.as_bytes()).unwrap_err();
        }
    }

    #[test]
    fn the_stand_in_of_a_surrogate_stays_what_it_is_in_a_string() {
        survives(r#"["\u0000#dc80","\\u0000#dc80"]"#);
        survives(r#"["\u0000#","\u0000#0000\udc80"]"#);
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        assert_eq!(parse(b"\xef\xbb\xbf[1]").unwrap()[0], 1);
    }

    #[test]
    fn bad_documents_are_errors() {
        for bad in [&b""[..], b"{", b"[NaN", b"nan", b"[Na]", b"\"\xff\xfe\"", b"{ // c\n}"] {
            parse(bad).unwrap_err();
        }
        parse("[".repeat(100_000).as_bytes()).unwrap_err();
    }

    #[test]
    fn a_document_of_too_many_values_is_refused_before_it_takes_memory() {
        let limit = usize::try_from(MAX_JSON_VALUES).unwrap();
        let most = format!("[{}0]", "0,".repeat(limit - 2));
        assert_eq!(most_values(most.as_bytes()), MAX_JSON_VALUES);
        let more = format!("[{}0]", "0,".repeat(limit - 1));
        assert!(matches!(parse(more.as_bytes()), Err(JsonError::TooMany(_))));
        // Punctuation in strings does not count as values.
        let text = format!(r#"["{}\\\"{}"]"#, ",".repeat(limit), "[".repeat(limit));
        assert_eq!(most_values(text.as_bytes()), 2);
        parse(text.as_bytes()).unwrap();
    }
}
