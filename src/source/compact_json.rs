//! Metadata documents that are kept, however many there are.

use std::sync::Arc;

use serde_json::Value;

/// A JSON document as text: parsed, it takes about ten times as much memory, which counts where the
/// arrays of a whole hierarchy are known at once.
#[derive(Debug, Clone)]
pub struct CompactJson(Arc<str>);

impl CompactJson {
    /// Keeps a document.
    pub fn new(document: &Value) -> Self {
        Self(document.to_string().into())
    }

    /// The document.
    pub fn value(&self) -> Value {
        // Its text was made of a value, so it is one.
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
        // As deep as any document may be.
        let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
        let document = json::parse(deep.as_bytes()).unwrap();
        assert_eq!(CompactJson::new(&document).value(), document);
    }
}
