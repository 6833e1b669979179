//! Compact in-memory form of metadata documents.

use std::sync::Arc;

use serde_json::Value;

/// A JSON document kept as text. Parsed, it would take about ten times as much memory, which
/// matters when the arrays of a whole hierarchy are held at once.
#[derive(Debug, Clone)]
pub struct CompactJson(Arc<str>);

impl CompactJson {
    /// Serializes a document.
    pub fn new(document: &Value) -> Self {
        Self(document.to_string().into())
    }

    /// Parses and returns the document.
    pub fn value(&self) -> Value {
        // The text was serialized from a `Value`, so parsing cannot fail.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::json;

    #[test]
    fn a_kept_document_is_what_it_was() {
        let text =
            br#"{"z": 1.50, "a": [NaN, -Infinity, 12345678901234567890123], "t": "\u0000 \" x"}"#;
        let document = json::parse(text).unwrap();
        let kept = CompactJson::new(&document).value();
        assert_eq!(json::to_text(&kept), json::to_text(&document));
        // The maximum nesting depth of a document.
        let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
        let document = json::parse(deep.as_bytes()).unwrap();
        assert_eq!(CompactJson::new(&document).value(), document);
    }
}
