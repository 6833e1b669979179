//! How a store is reached: what users set, and what the environment and profiles say of what they
//! leave out. Credentials come from the environment, from profiles and from what the machine provides,
//! never from options.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::HttpConnector;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider,
};
use parking_lot::Mutex;
use reqwest::Certificate;
use url::Url;

use super::assembler::Assembler;
use super::connection::{Connector, Settings, is_region};
use super::disk_cache::CacheError;
use super::latency::Latency;
use super::machine::is_machine_of;
use super::profile::{Profile, ProfileError};
use super::url::{Protocol, SourceUrl, UrlError, check_no_secret};
pub use crate::store::remote_options::RemoteOptions;
use crate::text::shown;

/// A store, ready for requests.
pub(super) struct Opened {
    pub objects: Arc<dyn ObjectStore>,
    /// The same, for requests that change it, each of which is sent once; `None` if it is only read.
    pub writes: Option<Arc<dyn ObjectStore>>,
    /// What assembles objects of parts; `None` if nothing does.
    pub assembler: Option<Assembler>,
    /// The same, for listings; `None` if it has none.
    pub pages: Option<Arc<dyn PaginatedListStore>>,
    /// `true` if the last bytes of an object can be asked for without its length.
    pub has_suffixes: bool,
    /// What tells the store apart from others with buckets of the same name: its address, if it is not
    /// the provider's own, and the account.
    pub place: String,
    /// `true` if requests are not signed because there is nothing to sign with.
    pub lacks_credentials: bool,
}

/// Reason why a store cannot be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The file of certificates cannot be read.
    #[error("ca={}: {error}", shown(.path))]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// The file of certificates is none.
    #[error("ca={}: it holds no certificates in the format PEM", shown(.0))]
    NoCertificates(PathBuf),
    /// Options or environment do not fit together.
    #[error("{0}")]
    Store(#[from] object_store::Error),
    /// The account that holds a container is unknown.
    #[error(
        "no account of Azure Blob Storage is named: give it with account=NAME (--account), or in \
         AZURE_STORAGE_ACCOUNT_NAME"
    )]
    NoAccount,
    /// The address of a store holds a secret.
    #[error("endpoint=: {0}")]
    Endpoint(#[source] UrlError),
    /// What should be the address of a store is none.
    #[error(
        "{address:?} is no address of a store (endpoint=, --endpoint, the environment or the profile): \
         write http://HOST:PORT or https://HOST"
    )]
    Address {
        /// What was given, without what stands before an `@`.
        address: String,
    },
    /// The address of a store is a number, before which no bucket can stand.
    #[error(
        "{address:?} takes no bucket before it, as virtual_host (--virtual-host) asks for: give the name of a \
         host, or leave virtual_host out"
    )]
    NoVirtualHost {
        /// What was given.
        address: String,
    },
    /// What should be the name of a region is none.
    #[error("{0:?} is no name of a region (region=, --region): they are such as eu-central-1")]
    Region(String),
    /// A profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// There can be no cache on disk.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// No thread can be started.
    #[error("no thread can be started for requests: {0}")]
    Runtime(#[source] io::Error),
}

impl RemoteOptions {
    /// Sets up a store; sends no request.
    pub(super) fn open(
        &self,
        url: &SourceUrl,
        connected: impl Fn(Settings) -> Connector,
    ) -> Result<Opened, SetupError> {
        let profile = match url.protocol {
            Protocol::S3 => self.profile()?,
            _ => None,
        };
        let setting = |name| profile.as_ref().and_then(|it| it.get(name)).map(str::to_owned);
        self.endpoint.as_deref().map_or(Ok(()), check_no_secret).map_err(SetupError::Endpoint)?;
        let endpoint = self.endpoint.clone().or_else(|| environment_endpoint(url.protocol));
        let endpoint = endpoint.or_else(|| setting("endpoint_url"));
        endpoint.as_deref().map_or(Ok(()), check_address)?;
        let client = Self::client_options(url, endpoint.as_deref());
        let account = self.account.clone().filter(|_| url.protocol == Protocol::Azure);
        let account = account.or_else(|| environment_account(url.protocol)).unwrap_or_default();
        if url.protocol == Protocol::Azure && account.is_empty() && !has_emulator() {
            return Err(SetupError::NoAccount);
        }
        let place = format!("{} {account}", endpoint.as_deref().unwrap_or_default());
        profile.as_ref().map_or(Ok(()), Profile::check)?;
        let credentials = profile.as_ref().and_then(Profile::credentials);
        let anonymous = self.anonymous
            || url.protocol != Protocol::Web
                && credentials.is_none()
                && !has_credentials(url.protocol, endpoint.as_deref());
        if let (true, true, Some(profile)) =
            (anonymous && !self.anonymous, self.profile.is_some(), &profile)
        {
            return Err(profile.without_credentials().into());
        }
        let settings = self.settings(url.protocol != Protocol::Web && !anonymous)?;
        let connector = connected(settings.clone());
        // How long a request takes that changes something is limited elsewhere.
        let writing = connected(Settings { read_timeout: None, ..settings });
        // It says nothing about how long answers to others take.
        let latency = Arc::new(Latency::new(self.hedge_after));
        let writing = Connector { latency, ..writing };
        let once = RetryConfig { max_retries: 0, ..self.retries() };
        let opened = match url.protocol {
            Protocol::S3 => {
                let mut builder = AmazonS3Builder::from_env()
                    .with_bucket_name(url.bucket())
                    .with_virtual_hosted_style_request(self.virtual_host)
                    .with_client_options(client.clone())
                    .with_retry(self.retries())
                    .with_http_connector(connector);
                if let Some(endpoint) = endpoint {
                    let endpoint = match self.virtual_host {
                        true => with_bucket(&endpoint, url.bucket())?,
                        false => endpoint,
                    };
                    // More than what the environment says, which the builder knows as well.
                    builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
                }
                let region = self.region.clone().or_else(environment_region);
                if let Some(region) = region.or_else(|| setting("region")) {
                    check_region(&region)?;
                    builder = builder.with_region(region);
                }
                if let Some(credentials) = credentials {
                    builder = builder.with_credentials(credentials);
                }
                if anonymous {
                    builder = builder.with_skip_signature(true);
                }
                if self.requester_pays {
                    builder = builder.with_request_payer(true);
                }
                let http = writing.connect(&client)?;
                let mut writes = builder.clone().with_retry(once).with_http_connector(writing);
                if anonymous {
                    // The library makes addresses only with a signature, which is left out of them.
                    let nothing = AwsCredential {
                        key_id: String::new(),
                        secret_key: String::new(),
                        token: None,
                    };
                    let nothing = StaticCredentialProvider::new(nothing);
                    writes = writes.with_credentials(Arc::new(nothing));
                }
                // Each store can remove a single object.
                let writes = Arc::new(writes.with_disable_bulk_delete(true).build()?);
                let assembler = Assembler {
                    store: Arc::clone(&writes),
                    http,
                    bucket: url.bucket().to_owned(),
                    is_signed: !anonymous,
                    trust: Mutex::default(),
                    is_measured: AtomicBool::new(false),
                    unfinished: Mutex::default(),
                };
                Opened {
                    writes: Some(writes),
                    assembler: Some(assembler),
                    ..Opened::of(builder.build()?, true, place)
                }
            }
            Protocol::Gcs => {
                let mut builder = GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(url.bucket())
                    .with_client_options(client)
                    .with_retry(self.retries())
                    .with_http_connector(connector);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_base_url(&endpoint);
                }
                if anonymous {
                    builder = builder.with_skip_signature(true);
                }
                let mut writes = builder.clone().with_retry(once).with_http_connector(writing);
                if anonymous {
                    // The library signs them all the same; emulators do not look at that.
                    let unsigned = GcpCredential { bearer: String::new() };
                    let unsigned = StaticCredentialProvider::new(unsigned);
                    writes = writes.with_credentials(Arc::new(unsigned));
                }
                let writes: Arc<dyn ObjectStore> = Arc::new(writes.build()?);
                Opened { writes: Some(writes), ..Opened::of(builder.build()?, true, place) }
            }
            Protocol::Azure => {
                let mut builder = MicrosoftAzureBuilder::from_env()
                    .with_container_name(url.bucket())
                    .with_client_options(client)
                    .with_retry(self.retries())
                    .with_http_connector(connector);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint);
                }
                if !account.is_empty() {
                    builder = builder.with_account(account);
                }
                if anonymous {
                    builder = builder.with_skip_signature(true);
                }
                let writes = builder.clone().with_retry(once).with_http_connector(writing);
                let writes: Arc<dyn ObjectStore> = Arc::new(writes.build()?);
                Opened { writes: Some(writes), ..Opened::of(builder.build()?, false, place) }
            }
            Protocol::Web => {
                let builder = HttpBuilder::new()
                    .with_url(&url.base)
                    .with_client_options(client)
                    .with_retry(self.retries())
                    .with_http_connector(connector);
                let objects = Arc::new(builder.build()?);
                Opened {
                    objects,
                    writes: None,
                    assembler: None,
                    pages: None,
                    has_suffixes: true,
                    place,
                    lacks_credentials: false,
                }
            }
        };
        let lacks_credentials = anonymous && !self.anonymous && url.protocol != Protocol::Web;
        Ok(Opened { pages: opened.pages.filter(|_| !self.unlisted), lacks_credentials, ..opened })
    }

    /// Returns the profile to use; `None` if the environment has credentials, unless one is named.
    fn profile(&self) -> Result<Option<Profile>, SetupError> {
        let is_needed = self.profile.is_some()
            || env::var_os("AWS_ACCESS_KEY_ID").is_none_or(|key| key.is_empty());
        if self.anonymous || !is_needed {
            return Ok(None);
        }
        Ok(Profile::read(self.profile.as_deref())?)
    }

    /// Returns the options that the library looks at itself. The rest is up to the [`Connector`].
    fn client_options(url: &SourceUrl, endpoint: Option<&str>) -> ClientOptions {
        let is_plain = |address: &str| address.starts_with("http://");
        let is_plain = is_plain(&url.base) || endpoint.is_some_and(is_plain);
        ClientOptions::new().with_allow_http(is_plain).with_timeout_disabled()
    }

    fn settings(&self, is_signed: bool) -> Result<Settings, SetupError> {
        let certificates = self.ca.as_deref().map(read_certificates).transpose()?;
        Ok(Settings {
            certificates: certificates.unwrap_or_default(),
            is_signed,
            connect_timeout: self.attempt().min(Duration::from_secs(10)),
            // An answer that stops is asked for again; how long all takes is limited elsewhere.
            read_timeout: Some(self.attempt()),
        })
    }

    /// Time without a byte after which a request is repeated.
    fn attempt(&self) -> Duration {
        self.timeout / 3
    }

    /// Repetitions of a request: as many as fit into the time that it may take, which others limit. Were it limited here
    /// as well, the last error would be told on a busy machine, and not that there was no answer in time.
    fn retries(&self) -> RetryConfig {
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(5),
            ..BackoffConfig::default()
        };
        RetryConfig { backoff, max_retries: usize::MAX, retry_timeout: Duration::MAX }
    }
}

/// Reads certificates to trust.
fn read_certificates(path: &Path) -> Result<Vec<Certificate>, SetupError> {
    let failed = |error| SetupError::Certificates { path: path.to_owned(), error };
    let found = Certificate::from_pem_bundle(&fs::read(path).map_err(failed)?);
    let found = found.unwrap_or_default();
    // A private key, for example, is no certificate either.
    if found.is_empty() { Err(SetupError::NoCertificates(path.to_owned())) } else { Ok(found) }
}

/// Checks that a text is the address of a server.
fn check_address(address: &str) -> Result<(), SetupError> {
    check_no_secret(address).map_err(SetupError::Endpoint)?;
    let is_server = Url::parse(address).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|it| !it.is_empty())
    });
    let is_plain = !address.chars().any(|it| it.is_whitespace() || it.is_control());
    match is_server && is_plain {
        true => Ok(()),
        // What has no scheme may hold a password all the same.
        false => Err(SetupError::Address {
            address: address.rsplit('@').next().unwrap_or_default().to_owned(),
        }),
    }
}

/// Checks that a text can be the name of a region: it becomes a part of addresses and signatures.
fn check_region(region: &str) -> Result<(), SetupError> {
    if is_region(region) { Ok(()) } else { Err(SetupError::Region(region.to_owned())) }
}

/// Returns the address of a store at which the bucket is a part of the host's name.
fn with_bucket(endpoint: &str, bucket: &str) -> Result<String, SetupError> {
    let refused = |_| SetupError::NoVirtualHost { address: endpoint.to_owned() };
    let is_name = Url::parse(endpoint).is_ok_and(|url| url.domain().is_some());
    let with_bucket = match endpoint.split_once("://") {
        _ if !is_name => return Err(refused(())),
        Some((scheme, host)) if !host.starts_with(&format!("{bucket}.")) => {
            format!("{scheme}://{bucket}.{host}")
        }
        _ => endpoint.to_owned(),
    };
    check_address(&with_bucket).map_err(|_| refused(()))?;
    Ok(with_bucket)
}

impl Opened {
    fn of(store: impl ObjectStore + PaginatedListStore, has_suffixes: bool, place: String) -> Self {
        let objects = Arc::new(store);
        let pages = Some(Arc::clone(&objects) as Arc<dyn PaginatedListStore>);
        let (writes, assembler, lacks_credentials) = (None, None, false);
        Self { objects, writes, assembler, pages, has_suffixes, place, lacks_credentials }
    }
}

/// What the environment may say of a store of Azure besides credentials.
const AZURE_PLACE: [&str; 3] =
    ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ENDPOINT"];

/// Returns whether there is anything to sign requests with. Without, they are not signed: public data
/// needs no signature, and a store that does says so.
fn has_credentials(protocol: Protocol, endpoint: Option<&str>) -> bool {
    let prefixes: &[&str] = match protocol {
        Protocol::S3 => &["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_", "AWS_CONTAINER_CREDENTIALS_"],
        Protocol::Gcs => &["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"],
        Protocol::Azure => &["AZURE_STORAGE_", "AZURE_CLIENT_", "AZURE_FEDERATED_"],
        Protocol::Web => &[],
    };
    // One that is empty is as good as none.
    let set = env::vars_os().filter(|(_, value)| !value.is_empty());
    let mut names = set.filter_map(|(name, _)| name.into_string().ok());
    let is_set = names.any(|name| {
        !AZURE_PLACE.contains(&&*name) && prefixes.iter().any(|known| name.starts_with(known))
    });
    let asks_machine = || match protocol {
        // Stores of others know no roles of Amazon's machines.
        Protocol::S3 => {
            endpoint.is_none_or(|endpoint| endpoint.contains(".amazonaws.com"))
                && !environment("AWS_EC2_METADATA_DISABLED")
                    .is_some_and(|it| it.eq_ignore_ascii_case("true"))
        }
        Protocol::Gcs | Protocol::Azure => true,
        Protocol::Web => false,
    };
    let has_file = || {
        let home = env::var_os("HOME").filter(|_| protocol == Protocol::Gcs);
        home.is_some_and(|home| {
            PathBuf::from(home).join(".config/gcloud/application_default_credentials.json").exists()
        })
    };
    is_set || has_file() || asks_machine() && is_machine_of(protocol)
}

/// Returns the value of a variable of the environment. One that is empty is as good as none.
fn environment(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the account that the environment names.
fn environment_account(protocol: Protocol) -> Option<String> {
    let names = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"];
    let mut names = names.iter().filter(|_| protocol == Protocol::Azure);
    names.find_map(|name| environment(name))
}

/// Returns whether the environment has the emulator of Azure stand for the service: it needs no account.
fn has_emulator() -> bool {
    env::var_os("AZURE_STORAGE_USE_EMULATOR").is_some()
}

/// Returns the region that the environment names.
fn environment_region() -> Option<String> {
    ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(environment)
}

/// Returns the address of a store that the environment names.
fn environment_endpoint(protocol: Protocol) -> Option<String> {
    let names: &[&str] = match protocol {
        Protocol::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
        Protocol::Gcs => &["GOOGLE_BASE_URL"],
        Protocol::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        Protocol::Web => &[],
    };
    names.iter().find_map(|name| environment(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_store_names_a_server() {
        for good in ["http://localhost", "https://s3.example.org:9000/prefix", "http://[::1]:9000"]
        {
            check_address(good).unwrap();
        }
        for bad in [
            "127.0.0.1:9000",
            "localhost",
            "localhost:9000",
            "not a url",
            "https://",
            "ftp://a",
            "http://a b",
        ] {
            check_address(bad).unwrap_err();
        }
        let secret = check_address("user:password@host:9000").unwrap_err().to_string();
        assert!(secret.contains("host:9000") && !secret.contains("password"), "{secret}");
        for number in ["http://127.0.0.1:9000", "http://[::1]:9000"] {
            let refused = with_bucket(number, "data").unwrap_err().to_string();
            assert!(refused.contains(&format!("{number:?} takes no bucket")), "{refused}");
        }
        check_region("eu-central-1").unwrap();
        for bad in ["", "eu west", "a\r\nb"] {
            check_region(bad).unwrap_err();
        }
    }

    #[test]
    fn a_bucket_in_the_name_of_a_host_is_there_once() {
        for endpoint in ["https://s3.example.org", "https://data.s3.example.org"] {
            assert_eq!(with_bucket(endpoint, "data").unwrap(), "https://data.s3.example.org");
        }
    }
}
