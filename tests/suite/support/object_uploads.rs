//! Objects that the server assembles of parts, as S3 does.
//!
//! ```text
//! POST   KEY?uploads                    an upload
//! PUT    KEY?partNumber=N&uploadId=ID   a part: bytes, or of another object (x-amz-copy-source and its conditions)
//! GET    KEY?uploadId=ID                its parts
//! POST   KEY?uploadId=ID                an object of the parts that are named, at once (If-Match, If-None-Match)
//! DELETE KEY?uploadId=ID                nothing
//! GET    ?uploads                       those that are not completed, in pages
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{Fault, MODIFIED, Object, Request, State, WRITE, bounds, decoded, refusal};

/// Least length of each part but the last, and of an object of which a range is copied, in bytes.
const LEAST: usize = 5 << 20;

/// Parts that were sent, and to what end.
pub(super) struct Upload {
    key: String,
    write: Option<String>,
    parts: BTreeMap<usize, Arc<Vec<u8>>>,
}

/// Returns what a request for a part of an object is called, in tests; `None` if it is none.
pub(super) fn name(key: &str, request: &Request) -> Option<String> {
    let number = request.query.get("partNumber");
    let has = |name| request.query.contains_key(name);
    match (has("uploads"), has("uploadId"), number) {
        (true, ..) => Some(format!("{key}?uploads")),
        (_, true, Some(number)) => Some(format!("{key}?partNumber={number}")),
        (_, true, None) => Some(format!("{key}?uploadId")),
        _ => None,
    }
}

/// Answers a request: the status, headers, and the body. `None` if it is none for parts.
pub(super) fn answer(
    state: &State,
    key: &str,
    request: &Request,
    fault: Option<&Fault>,
) -> Option<(u16, String, String)> {
    let upload = request.query.get("uploadId");
    let is_begin = request.query.contains_key("uploads");
    let done = match (request.method.as_str(), upload) {
        ("POST", None) if is_begin => begin(state, key, request, fault),
        ("GET", None) if is_begin => Ok((200, String::new(), list(state, request))),
        ("GET", Some(upload)) => list_parts(state, upload),
        ("PUT", Some(upload)) => put_part(state, upload, request, fault),
        ("POST", Some(upload)) => complete(state, key, upload, request, fault),
        ("DELETE", Some(upload)) => match state.uploads.lock().unwrap().remove(upload) {
            Some(_) => Ok((204, String::new(), String::new())),
            None => Err((404, "NoSuchUpload")),
        },
        _ => return None,
    };
    Some(done.unwrap_or_else(|(status, code)| {
        (status, String::new(), format!("<Error><Code>{code}</Code></Error>"))
    }))
}

type Answer = Result<(u16, String, String), (u16, &'static str)>;

fn begin(state: &State, key: &str, request: &Request, fault: Option<&Fault>) -> Answer {
    let id = format!("upload+{}", state.next_tag());
    let write = WRITE.iter().find_map(|name| request.headers.get(*name).cloned());
    let write = write.filter(|_| fault != Some(&Fault::NoMetadata));
    let upload = Upload { key: key.to_owned(), write, parts: BTreeMap::new() };
    state.uploads.lock().unwrap().insert(id.clone(), upload);
    let body = format!(
        "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
    );
    Ok((200, String::new(), body))
}

/// Returns a page of one upload, so that there are several.
fn list(state: &State, request: &Request) -> String {
    let get = |name: &str| request.query.get(name).cloned().unwrap_or_default();
    let (prefix, after) = (get("prefix"), get("upload-id-marker"));
    let uploads = state.uploads.lock().unwrap();
    let mut later =
        uploads.iter().filter(|(id, upload)| **id > after && upload.key.starts_with(&prefix));
    let Some((id, upload)) = later.next() else {
        return "<ListMultipartUploadsResult/>".to_owned();
    };
    let (key, is_cut) = (&upload.key, later.next().is_some());
    format!(
        "<ListMultipartUploadsResult><Upload><Key>{key}</Key><UploadId>{id}</UploadId>\
         <Initiated>2026-11-25T10:00:00.000Z</Initiated></Upload><IsTruncated>{is_cut}</IsTruncated>\
         <NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>\
         </ListMultipartUploadsResult>"
    )
}

fn list_parts(state: &State, upload: &str) -> Answer {
    let uploads = state.uploads.lock().unwrap();
    let upload = uploads.get(upload).ok_or((404, "NoSuchUpload"))?;
    let parts = upload.parts.iter().map(|(number, part)| {
        format!("<Part><PartNumber>{number}</PartNumber><Size>{}</Size></Part>", part.len())
    });
    let parts: String = parts.collect();
    Ok((200, String::new(), format!("<ListPartsResult>{parts}</ListPartsResult>")))
}

fn put_part(state: &State, upload: &str, request: &Request, fault: Option<&Fault>) -> Answer {
    let number: usize = request.query["partNumber"].parse().unwrap();
    let copied = request.headers.get("x-amz-copy-source");
    let bytes = match copied {
        None => Arc::new(request.body.clone()),
        Some(source) => copied_bytes(state, source, request, fault)?,
    };
    let mut uploads = state.uploads.lock().unwrap();
    let upload = uploads.get_mut(upload).ok_or((404, "NoSuchUpload"))?;
    upload.parts.insert(number, bytes);
    let tag = tag_of(number, upload);
    let body = format!("<CopyPartResult><ETag>&quot;{tag}&quot;</ETag></CopyPartResult>");
    let body = if copied.is_some() { body } else { String::new() };
    Ok((200, format!("ETag: \"{tag}\"\r\n"), body))
}

fn copied_bytes(
    state: &State,
    source: &str,
    request: &Request,
    fault: Option<&Fault>,
) -> Result<Arc<Vec<u8>>, (u16, &'static str)> {
    let source = decoded(source);
    let (_, key) = source.trim_start_matches('/').split_once('/').unwrap();
    let objects = state.objects.lock().unwrap();
    let object = objects.get(key).ok_or((404, "NoSuchKey"))?;
    let wanted = request.headers.get("x-amz-copy-source-if-match");
    let is_other = wanted.is_some_and(|wanted| wanted != object.tag.trim_matches('"'));
    if is_other && fault != Some(&Fault::NoConditions) {
        return Err((412, "PreconditionFailed"));
    }
    let range = request.headers.get("x-amz-copy-source-range");
    let Some(range) = range.filter(|_| fault != Some(&Fault::WholeObject)) else {
        return Ok(Arc::new(object.range(0, object.len())));
    };
    if object.len() <= LEAST {
        return Err((400, "InvalidRequest"));
    }
    let (from, to) = bounds(range, object.len()).ok_or((416, "InvalidRange"))?;
    Ok(Arc::new(object.range(from, to)))
}

/// Returns the tag of a part, which its number and its length are enough for.
fn tag_of(number: usize, upload: &Upload) -> String {
    format!("part{number}-{}", upload.parts[&number].len())
}

fn complete(
    state: &State,
    key: &str,
    id: &str,
    request: &Request,
    fault: Option<&Fault>,
) -> Answer {
    if fault == Some(&Fault::ErrorInside) {
        return Err((200, "InternalError"));
    }
    let body = String::from_utf8(request.body.clone()).unwrap();
    let named: Vec<&str> = body.split("<Part>").skip(1).collect();
    let mut objects = state.objects.lock().unwrap();
    let uploads = state.uploads.lock().unwrap();
    let upload = uploads.get(id).filter(|upload| upload.key == key);
    let upload = upload.ok_or((404, "NoSuchUpload"))?;
    let mut bytes = Vec::new();
    for (at, (text, number)) in named.iter().zip(1..).enumerate() {
        let part = upload.parts.get(&number).ok_or((400, "InvalidPart"))?;
        let is_it = text.contains(&format!("<PartNumber>{number}</PartNumber>"))
            && text.contains(&tag_of(number, upload));
        if !is_it {
            return Err((400, "InvalidPart"));
        }
        if part.len() < LEAST && at + 1 < named.len() {
            return Err((400, "EntityTooSmall"));
        }
        bytes.extend_from_slice(part);
    }
    let write = upload.write.clone();
    drop(uploads);
    if fault != Some(&Fault::NoConditions)
        && let Some(status) = refusal(&objects, key, request)
    {
        return Err((status, if status == 404 { "NoSuchKey" } else { "PreconditionFailed" }));
    }
    if fault == Some(&Fault::EarlyConditions) {
        drop(objects);
        thread::sleep(Duration::from_millis(200));
        objects = state.objects.lock().unwrap();
    }
    let tag = format!("\"tag{}-{}\"", state.next_tag(), named.len());
    let bytes = Arc::new(bytes);
    let object = Object { zeros: 0, bytes, tag: tag.clone(), write, modified: MODIFIED };
    objects.insert(key.to_owned(), object);
    state.uploads.lock().unwrap().remove(id);
    let body = format!(
        "<CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>",
        tag.replace('"', "&quot;")
    );
    Ok((200, String::new(), body))
}
