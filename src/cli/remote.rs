//! How a store on the network is reached: options of the commands, and those of `-o`.

use std::path::PathBuf;
use std::time::Duration;

use super::seconds::seconds;
use crate::store::remote::RemoteOptions;

/// Options for sources that are URLs.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Options for URLs")]
pub(super) struct RemoteArgs {
    /// Address of a store that is not the provider's own, such as <https://s3.example.org>
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Region of the bucket
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Profile of ~/.aws to use
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Account of Azure Blob Storage
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// Do not sign requests: for public data
    #[arg(long)]
    anonymous: bool,
    /// The bucket is part of the host's name, not of the path
    #[arg(long)]
    virtual_host: bool,
    /// Requests and transfer are paid for by who asks
    #[arg(long)]
    requester_pays: bool,
    /// Do not list names, which may be refused: look for those that the metadata lets expect
    #[arg(long)]
    no_list: bool,
    /// Take objects that may not be read for absent ones: 403
    #[arg(long, value_name = "STATUS", value_parser = forbidden)]
    absent: Option<()>,
    /// Accept the certificates in this file, too
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// How long a request may take, with its repetitions [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// How many requests may be under way at once [default: 64]
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
}

impl RemoteArgs {
    /// Returns how a store is reached.
    pub(super) fn options(&self) -> RemoteOptions {
        let usual = RemoteOptions::default();
        let Self { endpoint, region, profile, account, anonymous, .. } = self.clone();
        let Self { virtual_host, requester_pays, ca, .. } = self.clone();
        RemoteOptions {
            endpoint,
            region,
            profile,
            unlisted: self.no_list,
            forbidden_is_absent: self.absent.is_some(),
            account,
            anonymous,
            virtual_host,
            requester_pays,
            ca,
            timeout: self.timeout.unwrap_or(usual.timeout),
            requests: self.requests.unwrap_or(usual.requests),
            ..usual
        }
    }
}

/// Parses the status by which a store says that an object is absent, besides 404.
pub(super) fn forbidden(value: &str) -> Result<(), String> {
    match value {
        "403" => Ok(()),
        _ => Err("only 403 can mean that as well as 404".to_owned()),
    }
}
