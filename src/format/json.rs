//! JSON as Zarr writers write it, kept unchanged: members keep their order and numbers their text.
//!
//! zarr-python writes the bare words `NaN`, `Infinity` and `-Infinity` into attributes. They are
//! not JSON, so [`parse`] replaces them by strings and [`to_text`] restores them.

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

/// Parses a document. A byte order mark is skipped. Nesting deeper than 128 levels is an error.
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let values = most_values(bytes);
    if values > MAX_JSON_VALUES {
        return Err(JsonError::TooMany(values));
    }
    serde_json::from_slice(bytes).or_else(|error| match replaced(bytes, &BARE_WORDS) {
        Some(text) => Ok(serde_json::from_slice(&text)?),
        None => Err(error.into()),
    })
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
    let text = format!("{value:#}\n");
    let back = BARE_WORDS.map(|(word, stand_in)| (stand_in, word));
    if text.contains(r"\u0000shardfs ")
        && let Some(text) = replaced(text.as_bytes(), &back)
    {
        return text;
    }
    text.into_bytes()
}

/// Returns the bare word that a string of a parsed document replaces, or the string itself.
pub fn bare_word(text: &str) -> &str {
    text.strip_prefix("\0shardfs ").unwrap_or(text)
}

/// Replaces the first text of each pair by the second wherever it begins outside of strings.
/// Returns `None` if there is no occurrence.
fn replaced(bytes: &[u8], pairs: &[(&str, &str)]) -> Option<Vec<u8>> {
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
