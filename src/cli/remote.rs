//! How a store on the network is reached: options of the commands, and those of `-o`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::exit::{Failure, system};
use super::seconds::seconds;
use crate::store::remote::{Place, RemoteOptions};
use crate::text::{shown, without_secrets, word};

/// Options for sources that are URLs.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Options for URLs")]
pub(super) struct RemoteArgs {
    /// Address of a store that is not the provider's own, such as https://s3.example.org
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
    /// Write to a store that cannot keep writers apart: nothing else writes there
    #[arg(long)]
    single_writer: bool,
    /// Take objects that may not be read for absent ones: 403
    #[arg(long, value_name = "STATUS", value_parser = forbidden)]
    absent: Option<()>,
    /// Accept the certificates in this file, too
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// How long a request may take, with its repetitions [default: 60; 15 while no connection succeeds]
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    timeout: Option<Duration>,
    /// How many requests may be under way at once [default: 64]
    #[arg(long, value_name = "N", value_parser = requests)]
    requests: Option<usize>,
}

impl RemoteArgs {
    /// Returns how a store is reached.
    pub(super) fn options(&self) -> RemoteOptions {
        let mut options = RemoteOptions::default();
        self.apply(&mut options);
        options
    }

    /// Applies the options that are given, which override others, and returns their names in `-o`.
    pub(super) fn apply(&self, options: &mut RemoteOptions) -> Vec<&'static str> {
        let mut given = Vec::new();
        let texts = [
            ("endpoint", &self.endpoint, &mut options.endpoint),
            ("region", &self.region, &mut options.region),
            ("profile", &self.profile, &mut options.profile),
            ("account", &self.account, &mut options.account),
        ];
        for (name, value, option) in texts {
            if value.is_some() {
                option.clone_from(value);
                given.push(name);
            }
        }
        let flags = [
            ("anonymous", self.anonymous, &mut options.anonymous),
            ("virtual_host", self.virtual_host, &mut options.virtual_host),
            ("requester_pays", self.requester_pays, &mut options.requester_pays),
            ("no_list", self.no_list, &mut options.unlisted),
            ("single_writer", self.single_writer, &mut options.single_writer),
            ("absent", self.absent.is_some(), &mut options.forbidden_is_absent),
        ];
        for (name, is_given, option) in flags {
            if is_given {
                *option = true;
                given.push(name);
            }
        }
        if self.ca.is_some() {
            options.ca.clone_from(&self.ca);
            given.push("ca");
        }
        if let Some(timeout) = self.timeout {
            options.timeout = timeout;
            given.push("timeout");
        }
        if let Some(requests) = self.requests {
            options.requests = requests;
            given.push("requests");
        }
        given
    }
}

/// Returns the place of what a command changes: a path of this machine or a place in a store.
pub(super) fn place_of(path: &Path) -> Result<Place, Failure> {
    Place::of(path).map_err(|error| system(format!("{}: {error}", shown(&without_secrets(path)))))
}

/// Returns the options by which other commands find the same store, as words for a shell, each with a space behind it.
pub(super) fn words_of(options: &RemoteOptions) -> String {
    let RemoteOptions { endpoint, region, profile, account, .. } = options;
    let text = |value: &Option<String>| value.as_ref().map(PathBuf::from);
    // Whoever uses them may be elsewhere.
    let ca = options.ca.as_ref().map(|ca| std::path::absolute(ca).unwrap_or_else(|_| ca.clone()));
    let texts = [
        ("endpoint", text(endpoint)),
        ("region", text(region)),
        ("profile", text(profile)),
        ("account", text(account)),
        ("ca", ca),
    ];
    let flags = [
        ("anonymous", options.anonymous),
        ("virtual-host", options.virtual_host),
        ("requester-pays", options.requester_pays),
        ("no-list", options.unlisted),
        ("single-writer", options.single_writer),
        ("absent 403", options.forbidden_is_absent),
    ];
    let texts = texts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let texts = texts.map(|(name, value)| format!("--{name} {} ", word(&value)));
    let flags = flags.into_iter().filter(|(_, is_given)| *is_given);
    texts.chain(flags.map(|(name, _)| format!("--{name} "))).collect()
}

/// Longest time for a request.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Most requests under way at once.
const MOST_REQUESTS: usize = 4096;

/// Parses the time for a request.
pub(super) fn timeout(value: &str) -> Result<Duration, String> {
    match seconds(value)? {
        time if time.is_zero() || time > LONGEST_TIMEOUT => Err(format!(
            "{value:?} is no time for a request: give more than 0 s, and no more than a day"
        )),
        time => Ok(time),
    }
}

/// Parses how many requests may be under way at once.
pub(super) fn requests(value: &str) -> Result<usize, String> {
    let requests = value.parse().ok().filter(|requests| (1..=MOST_REQUESTS).contains(requests));
    requests.ok_or_else(|| format!("{value:?} is no number of requests from 1 to {MOST_REQUESTS}"))
}

/// Parses the status by which a store says that an object is absent, besides 404.
pub(super) fn forbidden(value: &str) -> Result<(), String> {
    match value {
        "403" => Ok(()),
        _ => Err("only 403 can mean that as well as 404".to_owned()),
    }
}
