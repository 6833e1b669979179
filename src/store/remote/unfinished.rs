//! Uploads that were begun and not completed, as mounts leave them that were killed: stores keep their parts, which
//! take space and are in no listing of objects.
//!
//! ```text
//! GET /BUCKET?uploads&prefix=PREFIX&key-marker=KEY&upload-id-marker=ID     a page of them
//! ```

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

use object_store::path::Path as Key;
use object_store::signer::{HeaderMap, Method};
use serde::Deserialize;

use super::assembler::SignedRequest;
use super::multipart::NotMade;
use super::storage::RemoteStorage;
use crate::store::storage::PutError;

/// Pages that are asked for, of a thousand uploads each.
const MOST_PAGES: usize = 1000;

/// How a list of uploads begins.
const ROOT: &str = "<ListMultipartUploadsResult";

/// Upload that was not completed.
#[derive(Debug, Clone)]
pub struct UnfinishedUpload {
    /// Path of the object that it was to become, relative to the source's root.
    pub path: PathBuf,
    /// When it was begun; `None` if the store does not say so.
    pub since: Option<SystemTime>,
    key: String,
    id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Page {
    upload: Vec<Listed>,
    is_truncated: bool,
    next_key_marker: String,
    next_upload_id_marker: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Listed {
    key: String,
    upload_id: String,
    initiated: String,
}

impl RemoteStorage {
    /// Returns the uploads below the source's root that were not completed. In the stores of Google and Microsoft, and on
    /// web servers, there are none.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn unfinished_uploads(&self) -> io::Result<Vec<UnfinishedUpload>> {
        let (root, mut found) = (&self.directories.root, Vec::new());
        if self.client.assembler.is_none() {
            return Ok(found);
        }
        let mut after = (String::new(), String::new());
        for _ in 0..MOST_PAGES {
            let page = self.uploads_after(&after)?;
            for Listed { key, upload_id, initiated } in page.upload {
                let Some(below) = key.strip_prefix(root.as_str()) else { continue };
                let since = jiff::Timestamp::from_str(&initiated).ok().map(SystemTime::from);
                found.push(UnfinishedUpload { path: below.into(), since, key, id: upload_id });
            }
            let next = (page.next_key_marker, page.next_upload_id_marker);
            if !page.is_truncated {
                return Ok(found);
            }
            if next == after {
                break;
            }
            after = next;
        }
        Err(io::Error::other("there are more uploads than the store can be asked for"))
    }

    /// Asks for a page of uploads.
    fn uploads_after(&self, (key, id): &(String, String)) -> io::Result<Page> {
        let root = self.directories.root.as_str();
        let mut query = vec![("uploads", ""), ("prefix", root)];
        if !key.is_empty() {
            query.extend([("key-marker", key.as_str()), ("upload-id-marker", id.as_str())]);
        }
        let (method, headers, bucket) = (Method::GET, HeaderMap::new(), Key::default());
        let request =
            SignedRequest { method, key: &bucket, query: &query, headers, body: Vec::new() };
        let limit = self.client.patience.timeout();
        let answer = self.client.in_time(&bucket, limit, self.client.answer_to(request));
        let text = self.client.wait_for(answer).map_err(io_of)?;
        match text.contains(ROOT) {
            true => quick_xml::de::from_str(&text).map_err(io::Error::other),
            false => Err(io::Error::other("the answer is no list of uploads")),
        }
    }

    /// Gives an upload up: its parts are gone.
    ///
    /// # Errors
    /// Those of the request.
    pub fn abort_upload(&self, upload: &UnfinishedUpload) -> io::Result<()> {
        let key = Key::parse(&upload.key).map_err(io::Error::other)?;
        self.client.abort(&key, &upload.id).map_err(io::Error::other)
    }
}

fn io_of(error: NotMade) -> io::Error {
    match error {
        NotMade::Put(PutError::Refused(error) | PutError::Unknown(error))
        | NotMade::Unable(error) => error,
        NotMade::Put(PutError::Conflict) => io::Error::from_raw_os_error(libc::EIO),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_uploads_is_read() {
        let text = "<?xml version=\"1.0\"?><ListMultipartUploadsResult xmlns=\"x\"><Bucket>b</Bucket>\
                    <NextKeyMarker>a&amp;b</NextKeyMarker><NextUploadIdMarker>2</NextUploadIdMarker>\
                    <IsTruncated>true</IsTruncated>\
                    <Upload><Key>a&amp;b</Key><UploadId>2</UploadId><Owner><ID>x</ID></Owner>\
                    <Initiated>2026-11-30T06:00:00.000Z</Initiated></Upload>\
                    <Upload><Key>c</Key><UploadId>3</UploadId></Upload></ListMultipartUploadsResult>";
        let page: Page = quick_xml::de::from_str(text).unwrap();
        let keys: Vec<_> = page.upload.iter().map(|it| it.key.as_str()).collect();
        assert_eq!(keys, ["a&b", "c"]);
        assert!(page.is_truncated && page.next_key_marker == "a&b");
        assert!(jiff::Timestamp::from_str(&page.upload[0].initiated).is_ok());
        let none: Page = quick_xml::de::from_str("<ListMultipartUploadsResult/>").unwrap();
        assert!(none.upload.is_empty() && !none.is_truncated);
    }
}
