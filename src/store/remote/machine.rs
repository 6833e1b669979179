//! Whether this machine is one of a provider's, which then gives it credentials.
//!
//! All of them answer at the same address, each to requests of its own kind.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::url::Protocol;

/// Address at which machines of a provider are given credentials.
const METADATA_SERVICE: ([u8; 4], u16) = ([169, 254, 169, 254], 80);
/// Time within which it answers where there is one.
const METADATA_WAIT: Duration = Duration::from_secs(1);
/// Longest answer that is read, in bytes.
const LONGEST: u64 = 4 << 10;

/// Returns whether this machine belongs to the provider whose stores have this protocol.
pub(super) fn is_machine_of(protocol: Protocol) -> bool {
    let Some((request, _)) = question(protocol) else { return false };
    ask(request).is_ok_and(|answer| is_yes(protocol, &answer))
}

/// Returns what is asked, and a header that the answer has, if it has one.
fn question(protocol: Protocol) -> Option<(&'static str, Option<&'static str>)> {
    match protocol {
        Protocol::S3 => Some((
            "PUT /latest/api/token HTTP/1.0\r\nHost: 169.254.169.254\r\nContent-Length: 0\r\n\
             X-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n",
            None,
        )),
        Protocol::Gcs => Some((
            "GET / HTTP/1.0\r\nHost: metadata.google.internal\r\nMetadata-Flavor: Google\r\n\r\n",
            Some("metadata-flavor: google"),
        )),
        Protocol::Azure => Some((
            "GET /metadata/instance?api-version=2021-02-01 HTTP/1.0\r\nHost: 169.254.169.254\r\n\
             Metadata: true\r\n\r\n",
            Some("content-type: application/json"),
        )),
        Protocol::Web => None,
    }
}

fn ask(request: &str) -> io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&METADATA_SERVICE.into(), METADATA_WAIT)?;
    connection.set_read_timeout(Some(METADATA_WAIT))?;
    connection.set_write_timeout(Some(METADATA_WAIT))?;
    connection.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    // What has come is enough, if the connection is not closed.
    let _ = connection.take(LONGEST).read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns whether an answer is that of the provider.
fn is_yes(protocol: Protocol, answer: &str) -> bool {
    let header = answer.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
    let is_success = header.split(' ').nth(1) == Some("200");
    let expected = question(protocol).and_then(|(_, header)| header).unwrap_or_default();
    header.starts_with("http/") && is_success && header.contains(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_of_one_provider_is_not_taken_for_that_of_another() {
        let amazon = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nAQAE==";
        let unknown = "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n";
        let google = "HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\n\r\ncomputeMetadata/";
        let azure = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n\r\n{}";
        for (protocol, own) in
            [(Protocol::S3, amazon), (Protocol::Gcs, google), (Protocol::Azure, azure)]
        {
            assert!(is_yes(protocol, own), "{protocol:?}");
            assert!(!is_yes(protocol, unknown) && !is_yes(protocol, ""), "{protocol:?}");
        }
        assert!(!is_yes(Protocol::Gcs, amazon) && !is_yes(Protocol::Azure, google));
        assert!(!is_machine_of(Protocol::Web));
    }
}
