//! What a store of objects is asked for, and what it answers, when an object is replaced: at once, on the
//! condition that it still is the version that the writer knows.

use std::fmt;
use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::format::index::ByteRange;

/// Condition on which an object is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When<'a> {
    /// There is none.
    Absent,
    /// It has this entity tag ([`super::StorageFile::entity_tag`]).
    Is(&'a str),
}

/// Part of an object that is assembled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectPart {
    /// Range of the object before it.
    Kept(ByteRange),
    /// New bytes.
    Sent(Vec<u8>),
}

impl ObjectPart {
    /// Returns its length in bytes.
    pub fn nbytes(&self) -> u64 {
        match self {
            Self::Kept(range) => range.nbytes,
            Self::Sent(bytes) => bytes.len() as u64,
        }
    }
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// Its entity tag. `None` if the store gives it none that can be a condition.
    pub tag: Option<String>,
    /// The write that it comes from. `None` if that was not one of shardfs.
    pub write: Option<WriteId>,
}

/// Reason why an object was not put, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// Something else is there: the condition does not hold.
    #[error("others have replaced it in the meantime")]
    Conflict,
    /// There was no answer, or one that does not say whether the object was put. It may be put even later.
    #[error("it is unknown whether it was written: {0}")]
    Unknown(#[source] io::Error),
    /// The store does not accept it, and will not the next time.
    #[error("{0}")]
    Refused(#[source] io::Error),
}

/// Identity of a write, which no other has. By it a writer without an answer finds out whether an object is
/// the one that it has put.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriteId(u128);

impl WriteId {
    /// Returns an identity for a new write.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        let mut done = 0;
        while let Some(left) = bytes.get_mut(done..).filter(|left| !left.is_empty()) {
            done += retry_on_intr(|| getrandom(&mut *left, GetRandomFlags::empty()))?;
        }
        Ok(Self(u128::from_be_bytes(bytes)))
    }

    /// Reads an identity as it is displayed. `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_hex).map(Self)
    }

    /// Returns the identity as bytes.
    pub fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_back_as_it_is_displayed() {
        let id = WriteId::random().unwrap();
        assert_eq!(WriteId::parse(&id.to_string()), Some(id));
        assert_ne!(WriteId::random().unwrap(), id);
        assert_eq!(WriteId::parse(&WriteId(1).to_string()), Some(WriteId(1)));
        for text in ["", "1", "+0000000000000000000000000000001", &"g".repeat(32), &"0".repeat(33)]
        {
            assert_eq!(WriteId::parse(text), None, "{text}");
        }
    }
}
