//! Profiles of the AWS command line: credentials, and how a store is reached, by name.
//!
//! ```text
//! ~/.aws/credentials     [NAME]            aws_access_key_id, aws_secret_access_key, aws_session_token
//! ~/.aws/config          [profile NAME]    region, endpoint_url, credential_process, role_arn, sso_...
//! ```
//!
//! Keys are used as they are; a program that prints credentials (`credential_process`) is run. Signing
//! in by a role or by SSO is the business of the AWS command line, which is asked for what comes of it.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use ini::{Ini, ParseOption};
use jiff::{SignedDuration, Timestamp};
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, StaticCredentialProvider};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::text::shown;

/// Name of the profile that is used if none is named.
const DEFAULT: &str = "default";

/// Time before their end at which credentials are renewed, unless they are short-lived.
const BEFORE_END: SignedDuration = SignedDuration::from_mins(5);

/// Time after which that is tried again where it has failed.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Reason why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A file of profiles cannot be read.
    #[error("{}: {error}", shown(.path))]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        error: ini::Error,
    },
    /// It has a half of a pair of keys.
    #[error(
        "the profile {name:?} has one of aws_access_key_id and aws_secret_access_key, and not the other"
    )]
    Half {
        /// The name.
        name: String,
    },
    /// It has no credentials, and there are no others.
    #[error(
        "the profile {name:?} has no credentials (aws_access_key_id and aws_secret_access_key, \
         credential_process, a role or a login), and there are none in the environment or of this \
         machine; with \"anonymous\" (--anonymous) none are needed"
    )]
    NoCredentials {
        /// The name.
        name: String,
    },
    /// There is none of this name.
    #[error("there is no profile {name:?} in {} and {}", shown(.credentials), shown(.config))]
    Unknown {
        /// The name.
        name: String,
        /// File of credentials.
        credentials: PathBuf,
        /// File of other settings.
        config: PathBuf,
    },
}

/// Settings of a profile.
pub(super) struct Profile {
    name: String,
    settings: BTreeMap<String, String>,
}

impl Profile {
    /// Reads the profile `name`, or the one that the environment names, or the default one. `None` if
    /// none is named and there is no default one.
    pub(super) fn read(name: Option<&str>) -> Result<Option<Self>, ProfileError> {
        let named = name.map(str::to_owned).or_else(|| env::var("AWS_PROFILE").ok());
        let place = |variable: &str, file: &str| {
            // Without one, or with another than an absolute path, nothing is read: the working directory may be
            // another user's.
            let home = || env::home_dir().filter(|home| home.is_absolute());
            let usual = || home().unwrap_or(PathBuf::from("/nonexistent")).join(".aws").join(file);
            env::var_os(variable).map_or_else(usual, PathBuf::from)
        };
        let credentials = place("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = place("AWS_CONFIG_FILE", "config");
        let name = named.clone().unwrap_or_else(|| DEFAULT.to_owned());
        let mut settings = settings(&config, |section| {
            section
                .strip_prefix("profile ")
                .map_or(section == DEFAULT && name == DEFAULT, |it| it.trim() == name)
        })?;
        settings.extend(self::settings(&credentials, |section| section == name)?);
        match (settings.is_empty(), named) {
            (false, _) => Ok(Some(Self { name, settings })),
            (true, None) => Ok(None),
            (true, Some(name)) => Err(ProfileError::Unknown { name, credentials, config }),
        }
    }

    /// Returns a setting.
    pub(super) fn get(&self, setting: &str) -> Option<&str> {
        self.settings.get(setting).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the error of a profile that has no credentials.
    pub(super) fn without_credentials(&self) -> ProfileError {
        ProfileError::NoCredentials { name: self.name.clone() }
    }

    /// Checks that it has both keys of a pair, or none.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let keys =
            ["aws_access_key_id", "aws_secret_access_key"].map(|key| self.get(key).is_some());
        match keys {
            [id, secret] if id != secret => Err(ProfileError::Half { name: self.name.clone() }),
            _ => Ok(()),
        }
    }

    /// Returns what gives the profile's credentials; `None` if it has none.
    pub(super) fn credentials(&self) -> Option<AwsCredentialProvider> {
        if let (Some(id), Some(secret)) =
            (self.get("aws_access_key_id"), self.get("aws_secret_access_key"))
        {
            let token = self.get("aws_session_token").map(str::to_owned);
            let (key_id, secret_key) = (id.to_owned(), secret.to_owned());
            let credential = AwsCredential { key_id, secret_key, token };
            return Some(Arc::new(StaticCredentialProvider::new(credential)));
        }
        let program = match self.get("credential_process") {
            Some(line) => Program::Line(line.to_owned()),
            None if self.signs_in() => Program::Aws(self.name.clone()),
            None => return None,
        };
        Some(Arc::new(Printed { program, last: Mutex::new(None) }))
    }

    /// Returns whether credentials are those of a role, or come from signing in.
    fn signs_in(&self) -> bool {
        self.settings
            .keys()
            .any(|name| name == "role_arn" || name.starts_with("sso_") || name == "login_session")
    }
}

/// Returns the settings of a section of a file, none if there is no such file.
fn settings(
    path: &PathBuf,
    is_it: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, ProfileError> {
    // Secrets may have any characters.
    let options =
        ParseOption { enabled_escape: false, enabled_quote: false, ..ParseOption::default() };
    let file = match Ini::load_from_file_opt(path, options) {
        Ok(file) => file,
        Err(ini::Error::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(BTreeMap::new());
        }
        Err(error) => return Err(ProfileError::File { path: path.clone(), error }),
    };
    let sections = file.iter().filter(|(section, _)| section.is_some_and(|it| is_it(it.trim())));
    let settings = sections.flat_map(|(_, settings)| settings.iter());
    Ok(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// A program that prints credentials.
#[derive(Debug, Clone)]
enum Program {
    /// Given as a line for the shell.
    Line(String),
    /// The AWS command line, for this profile.
    Aws(String),
}

impl Program {
    fn command(&self) -> Command {
        match self {
            Self::Line(line) => {
                let mut command = Command::new("sh");
                command.args(["-c", line]);
                command
            }
            Self::Aws(profile) => {
                let mut command = Command::new("aws");
                command.args(["configure", "export-credentials", "--format", "process"]);
                command.args(["--profile", profile]);
                command
            }
        }
    }

    /// Runs the program, which is killed if its result is not waited for any longer. What it prints on
    /// stdout is in no message: it is secret.
    async fn run(&self) -> Result<(AwsCredential, Option<Timestamp>), String> {
        let what = match self {
            Self::Line(_) => "credential_process of the profile".to_owned(),
            Self::Aws(profile) => {
                format!("aws configure export-credentials --profile {profile}")
            }
        };
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The shell may start others. On a terminal a group in the background could ask for nothing.
        let is_group = std::fs::File::open("/dev/tty").is_err();
        if is_group {
            command.process_group(0);
        } else {
            command.kill_on_drop(true);
        }
        let started = command.spawn().map_err(|error| format!("{what}: {error}"))?;
        let id = started.id().filter(|_| is_group);
        let mut group = Group(id.and_then(|id| Pid::from_raw(id.cast_signed())));
        let ran = started.wait_with_output().await;
        group.0 = None;
        let ran = ran.map_err(|error| format!("{what}: {error}"))?;
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr);
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            return Err(format!("{what}: {}: {last}", ran.status));
        }
        credential(&ran.stdout).ok_or_else(|| {
            format!("{what}: it has not printed AccessKeyId and SecretAccessKey, as JSON")
        })
    }
}

/// Processes that are killed when this is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        // Fails if they have ended.
        let _ = self.0.map(|group| kill_process_group(group, Signal::KILL));
    }
}

/// Reads credentials as programs print them, and when they end.
fn credential(text: &[u8]) -> Option<(AwsCredential, Option<Timestamp>)> {
    let json: serde_json::Value = serde_json::from_slice(text).ok()?;
    let get = |name: &str| json.get(name).and_then(|it| it.as_str()).map(str::to_owned);
    let (key_id, secret_key) = (get("AccessKeyId")?, get("SecretAccessKey")?);
    let ends = match get("Expiration") {
        Some(text) => Some(text.parse().ok()?),
        None => None,
    };
    Some((AwsCredential { key_id, secret_key, token: get("SessionToken") }, ends))
}

/// Credentials that a program prints, until they end.
#[derive(Debug)]
struct Printed {
    program: Program,
    last: Mutex<Option<Last>>,
}

/// Credentials that were printed.
#[derive(Debug)]
struct Last {
    credential: Arc<AwsCredential>,
    /// When they end, if they do.
    ends: Option<Timestamp>,
    /// When others are to be had.
    renewed: Option<Timestamp>,
}

impl Last {
    fn new(credential: AwsCredential, ends: Option<Timestamp>) -> Self {
        Self {
            credential: Arc::new(credential),
            ends,
            renewed: ends.map(|ends| renewal(Timestamp::now(), ends)),
        }
    }

    fn is_valid(&self, now: Timestamp) -> bool {
        self.ends.is_none_or(|ends| now < ends)
    }
}

/// Returns when credentials that end at some time are renewed: five minutes before, but not before half
/// of the time is over.
fn renewal(now: Timestamp, ends: Timestamp) -> Timestamp {
    let left = ends.duration_since(now);
    now.checked_add((left - BEFORE_END).max(left / 2)).unwrap_or(ends)
}

#[async_trait]
impl CredentialProvider for Printed {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut last = self.last.lock().await;
        let now = Timestamp::now();
        if let Some(last) = &*last
            && last.renewed.is_none_or(|at| now < at)
        {
            return Ok(Arc::clone(&last.credential));
        }
        let failed = |text: String| object_store::Error::Generic {
            store: "credentials",
            source: text.into(),
        };
        match (self.program.run().await, &mut *last) {
            (Ok((credential, ends)), last) => {
                let found = last.insert(Last::new(credential, ends));
                Ok(Arc::clone(&found.credential))
            }
            (Err(text), Some(last)) if last.is_valid(now) => {
                log::warn!("credentials are not renewed yet: {text}");
                let again = Timestamp::now().checked_add(AGAIN).unwrap_or(now);
                last.renewed = Some(last.ends.map_or(again, |ends| again.min(ends)));
                Ok(Arc::clone(&last.credential))
            }
            (Err(text), _) => Err(failed(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str, section: &str) -> BTreeMap<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        settings(&file.path().to_owned(), |it| it == section).unwrap()
    }

    #[test]
    fn settings_are_those_of_the_section() {
        let text = "# a comment\n[default]\nregion = a\n\n[profile lab]\nregion=eu-west-1\n\
                    aws_secret_access_key = a+b/c=\\d\"e\ns3 =\n  max_concurrent_requests = 20\n";
        let lab = read(text, "profile lab");
        assert_eq!(lab["region"], "eu-west-1");
        assert_eq!(lab["aws_secret_access_key"], "a+b/c=\\d\"e");
        assert_eq!(read(text, "default")["region"], "a");
        assert_eq!(read(text, "other"), BTreeMap::new());
        assert!(settings(&PathBuf::from("/nothing/there"), |_| true).unwrap().is_empty());
    }

    #[test]
    fn keys_are_used_as_they_are_and_programs_are_run() {
        let profile = |pairs: &[(&str, &str)]| Profile {
            name: "lab".to_owned(),
            settings: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        };
        let keys = [("aws_access_key_id", "a"), ("aws_secret_access_key", "b")];
        assert!(profile(&keys).credentials().is_some());
        assert!(profile(&keys[..1]).credentials().is_none());
        assert!(profile(&[("region", "x")]).credentials().is_none());
        assert!(profile(&[("credential_process", "true")]).credentials().is_some());
        assert!(profile(&[("sso_session", "x")]).credentials().is_some());
        assert!(profile(&[("role_arn", "x"), ("source_profile", "y")]).credentials().is_some());
    }

    #[test]
    fn credentials_are_renewed_before_they_end_and_not_at_each_request() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2030-01-01T00:00:00Z");
        let renewed = |ends| renewal(now, at(ends)).to_string();
        assert_eq!(renewed("2030-01-01T01:00:00Z"), "2030-01-01T00:55:00Z");
        assert_eq!(renewed("2030-01-01T00:04:00Z"), "2030-01-01T00:02:00Z");
        assert_eq!(renewed("2029-12-31T23:00:00Z"), "2029-12-31T23:30:00Z");
        assert_eq!(renewed("9999-12-30T00:00:00Z"), "9999-12-29T23:55:00Z");
        assert!(renewal(now, Timestamp::MIN) < now);
    }

    #[test]
    fn credentials_that_cannot_be_renewed_are_used_until_they_end() {
        let runtime = runtime();
        let now = Timestamp::now();
        let found = |line: &str, ends: Timestamp| {
            let (key_id, secret_key) = ("old".to_owned(), "b".to_owned());
            let mut last = Last::new(AwsCredential { key_id, secret_key, token: None }, Some(ends));
            last.renewed = Some(now);
            let (program, last) = (Program::Line(line.to_owned()), Mutex::new(Some(last)));
            let printed = Printed { program, last };
            let first = runtime.block_on(printed.get_credential());
            let renewed = printed.last.into_inner().unwrap().renewed;
            (first.map(|it| it.key_id.clone()), renewed)
        };
        let later = |seconds| now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        let new = r#"echo '{"AccessKeyId":"new","SecretAccessKey":"b"}'"#;
        assert_eq!(found(new, later(60)).0.unwrap(), "new");
        assert_eq!(found(new, now).0.unwrap(), "new");
        let (kept, renewed) = found("exit 1", later(60));
        assert_eq!(kept.unwrap(), "old");
        assert!(renewed.unwrap() > now && renewed.unwrap() < later(60));
        // Not beyond their end.
        assert_eq!(found("exit 1", later(5)).1, Some(later(5)));
        assert!(found("exit 1", now).0.is_err());
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_program_whose_result_is_not_waited_for_any_longer_is_killed_with_all_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let line = format!("echo $$ >>'{0}'; sleep 600 & echo $! >>'{0}'; wait", shown(&pids));
        let written = || fs::read_to_string(&pids).unwrap_or_default();
        runtime().block_on(async {
            let program = Program::Line(line);
            let begun = async {
                while written().lines().count() < 2 {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                _ = program.run() => panic!("it has ended"),
                () = begun => (),
            }
        });
        let is_there = |pid: &str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let begun = std::time::Instant::now();
        while written().lines().any(is_there) {
            assert!(begun.elapsed().as_secs() < 10, "not killed");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn programs_print_credentials_as_json() {
        let run = |line: &str| runtime().block_on(Program::Line(line.to_owned()).run());
        let text = r#"{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c",
                       "Expiration": "2030-01-02T03:04:05Z"}"#;
        let (found, ends) = run(&format!("echo '{text}'")).unwrap();
        assert_eq!((&*found.key_id, &*found.secret_key), ("a", "b"));
        assert_eq!(found.token.as_deref(), Some("c"));
        assert_eq!(ends.unwrap().to_string(), "2030-01-02T03:04:05Z");
        assert_eq!(run(r#"echo '{"AccessKeyId":"a","SecretAccessKey":"b"}'"#).unwrap().1, None);
        let error = run("echo secret; echo first >&2; echo no session >&2; exit 3").unwrap_err();
        assert_eq!(error, "credential_process of the profile: exit status: 3: no session");
        let error = run("echo secret").unwrap_err();
        assert!(error.contains("it has not printed") && !error.contains("secret"), "{error}");
    }
}
