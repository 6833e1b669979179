//! Names in references: keys, and the files of the source.

use std::path::Path;

use serde_json::{Value, json};

use super::config::{Config, Version};
use super::error::RefsError;
use crate::source::{Node, Source};

/// Naming of the source's files in references.
pub(super) struct Urls {
    /// Common prefix of all file names, without a trailing slash.
    base: String,
    /// `true` if the source is a single file, whose name is `base`.
    is_file: bool,
    /// `true` if the names are HTTP URLs, in which `%`, `?` and `#` are escaped: servers interpret
    /// them.
    is_http: bool,
    /// `true` if `base` is the value of a template.
    template: bool,
    version: Version,
}

impl Urls {
    pub(super) fn new(source: &Source, nodes: &[Node], config: &Config) -> Result<Self, RefsError> {
        let base = config.base.trim_end_matches('/').to_owned();
        // With a template, braces in a name would be expanded as one.
        let has_braces = |text: &str| text.contains(['{', '}']);
        let mut plain = !has_braces(&base);
        for node in nodes {
            plain &= !has_braces(text(node.directory())?);
        }
        Ok(Self {
            is_file: source.is_file(),
            is_http: base.starts_with("http://") || base.starts_with("https://"),
            template: plain && config.version == Version::One,
            version: config.version,
            base,
        })
    }

    /// Returns the beginning of the output.
    pub(super) fn head(&self) -> Vec<u8> {
        match self.version {
            Version::Zero => b"{".to_vec(),
            Version::One if self.template => {
                let template = json!({"u": self.base});
                format!("{{\"version\":1,\"templates\":{template},\"refs\":{{").into_bytes()
            }
            Version::One => b"{\"version\":1,\"refs\":{".to_vec(),
        }
    }

    /// Returns the end of the output.
    pub(super) fn tail(&self) -> &'static [u8] {
        match self.version {
            Version::Zero => b"\n}\n",
            Version::One => b"\n}}\n",
        }
    }

    /// Returns the name of a file of the source.
    pub(super) fn of(&self, path: &Path) -> Result<String, RefsError> {
        let base = if self.template { "{{u}}" } else { &self.base };
        if self.is_file {
            return Ok(base.to_owned());
        }
        let path = text(path)?;
        Ok(match self.is_http {
            false => format!("{base}/{path}"),
            true => {
                let path = path.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
                format!("{base}/{path}")
            }
        })
    }
}

/// Returns a path as text, which references must be.
pub(super) fn text(path: &Path) -> Result<&str, RefsError> {
    path.to_str().ok_or_else(|| RefsError::NotText(path.to_owned()))
}

/// Escapes a text for use between the quotes of a JSON string.
pub(super) fn inside(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    let inside = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inside.unwrap_or_default().to_owned()
}
