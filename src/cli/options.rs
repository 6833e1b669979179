//! Mount options as in mount(8) and /etc/fstab: `-o ro,allow_other,uid=1000`.

use std::collections::BTreeSet;

use super::exit::Failure;
use super::open::format;
use super::remote::{forbidden, requests, timeout};
use super::seconds::seconds;
use super::shard_rule::of_created;
use super::size;
use super::transport::Transport;
use crate::format::plan::Policy;
use crate::format::zarr2::Missing;
use crate::fs::{FsConfig, Ownership, View, ViewConfig};
use crate::mount::Access;
use crate::number::to_usize;
use crate::store::StoreConfig;
use crate::store::remote::RemoteOptions;

/// Options that are accepted without effect: those about the time and user of mounting, those that
/// always hold, and those that are never honoured, since a mount stays `nosuid,nodev,noexec`.
const WITHOUT_EFFECT: [&str; 25] = [
    "_netdev",
    "atime",
    "auto",
    "auto_unmount",
    "default_permissions",
    "defaults",
    "dev",
    "exec",
    "kernel_cache",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nonempty",
    "nosuid",
    "nouser",
    "owner",
    "relatime",
    "ro",
    "suid",
    "user",
    "users",
    "subtype=shardfs",
];

/// Names of the options, with an equals sign if a value follows.
pub(super) const NAMES: [&str; 46] = [
    "absent=",
    "account=",
    "allow_other",
    "allow_root",
    "anonymous",
    "ca=",
    "cache_dir=",
    "cache_limit=",
    "cache_size=",
    "commit_interval=",
    "decode_limit=",
    "decoded_size=",
    "dirty_limit=",
    "edge=",
    "endian=",
    "endpoint=",
    "fetch_size=",
    "format=",
    "fsname=",
    "gid=",
    "immutable",
    "keep_fill",
    "keep_outside",
    "level=",
    "missing=",
    "no_list",
    "pad_edge",
    "profile=",
    "region=",
    "requester_pays",
    "requests=",
    "ro",
    "rw",
    "shard=",
    "single_writer",
    "sync",
    "threads=",
    "timeout=",
    "transport=",
    "trusted=",
    "uid=",
    "umask=",
    "update=",
    "view=",
    "virtual_host",
    "xattr",
];

/// Highest number of threads that answer requests. A mount that cannot start all of its threads fails
/// when it is there already.
const MOST_THREADS: usize = 1024;

/// Options that have an effect in writable mounts only.
const OF_WRITING: [&str; 7] =
    ["sync", "update", "dirty_limit", "commit_interval", "keep_outside", "keep_fill", "shard"];
/// Options of writing that have no effect on sources that are URLs.
const OF_FILESYSTEMS: [&str; 1] = ["update"];
/// Options that have an effect in some views only, and which.
const OF_VIEWS: [(&str, &[View]); 6] = [
    ("endian", &[View::Npy, View::Raw, View::Flat]),
    ("decoded_size", &[View::Npy, View::Raw, View::Flat]),
    ("edge", &[View::Npy, View::Raw]),
    ("keep_fill", &[View::Npy, View::Raw]),
    ("missing", &[View::Npy, View::Raw, View::Zarr2]),
    ("shard", &[View::Zarr3, View::Zarr2]),
];

/// Options that have an effect on sources that are URLs only.
const OF_URLS: [&str; 17] = [
    "absent",
    "account",
    "anonymous",
    "ca",
    "cache_dir",
    "cache_limit",
    "endpoint",
    "fetch_size",
    "no_list",
    "profile",
    "region",
    "requester_pays",
    "requests",
    "single_writer",
    "timeout",
    "trusted",
    "virtual_host",
];

/// Parsed options of a mount.
#[derive(Debug, Default)]
pub(super) struct MountOptions {
    /// Users that can access the mount.
    pub access: Access,
    /// Name of the source in /proc/mounts.
    pub name: Option<String>,
    /// Number of threads that answer requests.
    pub threads: Option<usize>,
    /// How requests reach the mount.
    pub transport: Option<Transport>,
    /// Views to show; several are shown in a directory each.
    pub views: Vec<View>,
    /// How a source on the network is reached.
    pub remote: RemoteOptions,
    /// Configuration of the filesystem.
    pub fs: FsConfig,
    /// Names of the options that were given and have an effect in some mounts only.
    pub given: BTreeSet<&'static str>,
}

impl MountOptions {
    /// Parses the options of one or more `-o`; a later one overrides an earlier one.
    pub(super) fn parse<'a>(lists: impl IntoIterator<Item = &'a String>) -> Result<Self, Failure> {
        let mut options = Self { views: vec![View::default()], ..Self::default() };
        for list in lists {
            for option in split(list) {
                options.set(&option)?;
                options.give(option.split('=').next().unwrap_or_default());
            }
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<(), Failure> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let StoreConfig { immutable, cache_size, decoded_size, decode_limit, .. } =
            &mut self.fs.store;
        let Ownership { uid, gid, umask } = &mut self.fs.ownership;
        match (name, value) {
            ("allow_other", None) => self.access = Access::Everybody,
            ("allow_root", None) => self.access = Access::Root,
            ("immutable", None) => *immutable = true,
            ("xattr", None) => self.fs.xattr = true,
            ("pad_edge" | "pad-edge", None) => self.fs.store.pad_edge = true,
            ("ro", None) => self.fs.writable = false,
            ("rw" | "writable", None) => self.fs.writable = true,
            ("sync", None) => self.fs.writing.sync = true,
            ("async", None) => self.fs.writing.sync = false,
            ("keep_outside" | "keep-outside", None) => self.fs.writing.keep_outside = true,
            ("shard", Some(value)) => {
                let rule = of_created(value).map_err(|error| {
                    Failure::Option(format!("mount option {option:?}: {error}"))
                })?;
                self.fs.writing.new_shards.rules.push(rule);
            }
            ("update", Some(value)) => self.fs.writing.policy = policy(value)?,
            ("dirty_limit", Some(value)) => self.fs.writing.dirty_limit = bytes(option, value)?,
            ("commit_interval", Some(value)) => {
                self.fs.writing.interval = seconds(value).map_err(|error| {
                    Failure::Option(format!("mount option {option:?}: {error}"))
                })?;
            }
            ("view" | "endian" | "edge" | "missing", Some(value)) => self.set_view(name, value)?,
            ("keep_fill" | "keep-fill", None) => self.fs.view.keep_fill = true,
            ("format", Some(value)) => {
                let refused = |error| Failure::Option(format!("mount option {option:?}: {error}"));
                self.fs.format = format(value).map_err(refused)?;
            }
            ("fsname", Some(value)) => self.name = Some(value.to_owned()),
            ("level", Some(value)) => self.fs.level = Some(number(option, value, 10)?),
            ("threads", Some(value)) => self.threads = Some(threads(option, value)?),
            ("transport", Some(value)) => self.transport = Some(transport(option, value)?),
            ("uid", Some(value)) => *uid = Some(number(option, value, 10)?),
            ("gid", Some(value)) => *gid = Some(number(option, value, 10)?),
            ("umask", Some(value)) => *umask = Some(number(option, value, 8)?),
            ("cache_size", Some(value)) => {
                *cache_size = to_usize(bytes(option, value)?);
            }
            ("decoded_size", Some(value)) => {
                *decoded_size = to_usize(bytes(option, value)?);
            }
            ("decode_limit", Some(value)) => *decode_limit = bytes(option, value)?,
            _ if self.set_remote(option, name, value)? => (),
            ("comment", Some(_)) => (),
            _ if WITHOUT_EFFECT.contains(&option) || option.starts_with("x-") => (),
            ("remount", None) => {
                let text =
                    "remount: a mount of shardfs cannot be changed; unmount it and mount it again";
                return Err(Failure::Option(text.to_owned()));
            }
            _ => return Err(Failure::Option(format!("unknown mount option {option:?}"))),
        }
        Ok(())
    }

    /// Sets an option of sources on the network; returns whether it is one.
    fn set_remote(
        &mut self,
        option: &str,
        name: &str,
        value: Option<&str>,
    ) -> Result<bool, Failure> {
        let refused = |error| Failure::Option(format!("mount option {option:?}: {error}"));
        let remote = &mut self.remote;
        match (name, value) {
            ("endpoint", Some(value)) => remote.endpoint = Some(value.to_owned()),
            ("region", Some(value)) => remote.region = Some(value.to_owned()),
            ("profile", Some(value)) => remote.profile = Some(value.to_owned()),
            ("absent", Some(value)) => {
                forbidden(value).map_err(refused)?;
                remote.forbidden_is_absent = true;
            }
            ("cache_dir", Some("")) => return Err(refused("name a directory".to_owned())),
            ("cache_dir", Some(value)) => remote.cache_dir = Some(value.into()),
            ("cache_limit", Some(value)) => remote.cache_limit = bytes(option, value)?,
            ("account", Some(value)) => remote.account = Some(value.to_owned()),
            ("ca", Some(value)) => remote.ca = Some(value.into()),
            ("anonymous", None) => remote.anonymous = true,
            ("virtual_host" | "virtual-host", None) => remote.virtual_host = true,
            ("requester_pays" | "requester-pays", None) => remote.requester_pays = true,
            ("no_list" | "no-list", None) => remote.unlisted = true,
            ("single_writer" | "single-writer", None) => remote.single_writer = true,
            ("timeout", Some(value)) => remote.timeout = timeout(value).map_err(refused)?,
            ("trusted", Some(value)) => remote.trusted = seconds(value).map_err(refused)?,
            ("requests", Some(value)) => remote.requests = requests(value).map_err(refused)?,
            ("fetch_size", Some(value)) => remote.window_bytes = to_usize(bytes(option, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option of the views.
    pub(super) fn set_view(&mut self, option: &str, value: &str) -> Result<(), Failure> {
        let ViewConfig { big_endian, clip, missing, .. } = &mut self.fs.view;
        match option {
            "endian" => *big_endian = either(option, value, ["little", "big"])?,
            "edge" => *clip = either(option, value, ["full", "clip"])?,
            "missing" => {
                let fill = either(option, value, ["absent", "fill"])?;
                *missing = if fill { Missing::Fill } else { Missing::Absent };
            }
            _ => self.views = views(value)?,
        }
        Ok(())
    }

    /// Records that an option was given.
    pub(super) fn give(&mut self, option: &str) {
        let mut known = OF_VIEWS.iter().map(|(name, _)| *name).chain(OF_WRITING).chain(OF_URLS);
        let is_it = |name: &&str| option.replace('-', "_") == **name;
        self.given.extend(known.find(is_it));
    }

    /// Returns warnings about options that have no effect in this mount. They are not refused: lines
    /// in /etc/fstab have them.
    pub(super) fn without_effect(&self, is_url: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        for option in &self.given {
            let views = OF_VIEWS.iter().find(|(name, _)| name == option).map(|(_, views)| *views);
            let why = match views.filter(|views| !views.iter().any(|it| self.views.contains(it))) {
                Some(views) => {
                    let of = |view: &&(&'static str, View)| views.contains(&view.1);
                    let names = View::NAMES.iter().filter(of).map(|(name, _)| *name);
                    format!("it is for the views {}", names.collect::<Vec<_>>().join(", "))
                }
                None if OF_WRITING.contains(option) && !self.fs.writable => {
                    "the mount is read-only".to_owned()
                }
                None if OF_FILESYSTEMS.contains(option) && is_url => {
                    "the source is no filesystem, but a store of objects".to_owned()
                }
                None if OF_URLS.contains(option) && !is_url => "the source is no URL".to_owned(),
                None if *option == "trusted" && self.fs.store.immutable => {
                    "with immutable, everything is believed".to_owned()
                }
                None if *option == "single_writer" && !self.fs.writable => {
                    "the mount is read-only".to_owned()
                }
                None if *option == "cache_limit" && self.remote.cache_dir.is_none() => {
                    "there is no cache_dir".to_owned()
                }
                None => continue,
            };
            warnings.push(format!("the option {option} has no effect: {why}"));
        }
        warnings
    }

    /// Returns an error if writing was requested and no view is writable.
    pub(super) fn check_views(&self) -> Result<(), Failure> {
        if self.fs.writable && self.views == [View::Flat] {
            let message = "the view flat can only be read: leave out \"rw\", or show npy or raw";
            return Err(Failure::Option(message.to_owned()));
        }
        Ok(())
    }
}

/// Splits at commas; a comma after a backslash belongs to the value.
fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = list.chars();
    while let Some(char) = chars.next() {
        match (char, options.last_mut()) {
            (',', _) => options.push(String::new()),
            ('\\', Some(option)) => option.extend(chars.next()),
            (_, Some(option)) => option.push(char),
            (_, None) => (),
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

fn number<T: TryFrom<u64>>(option: &str, value: &str, radix: u32) -> Result<T, Failure> {
    let number = u64::from_str_radix(value, radix).ok().and_then(|number| number.try_into().ok());
    let kind = if radix == 8 { "an octal number" } else { "a number" };
    number
        .ok_or_else(|| Failure::Option(format!("mount option {option:?}: {value:?} is not {kind}")))
}

/// Parses a number of threads. When notified to drop pages, the kernel waits for those being read,
/// which another thread must answer.
fn threads(option: &str, value: &str) -> Result<usize, Failure> {
    match number(option, value, 10)? {
        threads @ 2..=MOST_THREADS => Ok(threads),
        _ => {
            let text = format!("mount option {option:?}: give a number from 2 to {MOST_THREADS}");
            Err(Failure::Option(text))
        }
    }
}

/// Parses the name of a transport.
fn transport(option: &str, value: &str) -> Result<Transport, Failure> {
    Transport::named(value).ok_or_else(|| {
        let names = Transport::NAMES.map(|(name, _)| name).join(", ");
        Failure::Option(format!("mount option {option:?}: {value:?} is none of {names}"))
    })
}

/// Parses the name of an update policy.
pub(super) fn policy(value: &str) -> Result<Policy, Failure> {
    Ok(match value {
        "auto" => Policy::Auto,
        "append" => Policy::Append,
        "in-place" => Policy::InPlace,
        "rewrite" => Policy::Rewrite,
        _ => {
            let message = format!("update {value:?} is none of auto, append, in-place, rewrite");
            return Err(Failure::Option(message));
        }
    })
}

/// Parses a list of views.
fn views(value: &str) -> Result<Vec<View>, Failure> {
    let mut views = Vec::new();
    for name in value.split([',', ':']) {
        let found = View::NAMES.iter().find(|(known, _)| *known == name);
        let Some((_, view)) = found else {
            let names = View::NAMES.map(|(name, _)| name).join(", ");
            return Err(Failure::Option(format!("view {name:?} is none of {names}")));
        };
        if views.contains(view) {
            return Err(Failure::Option(format!("view {name:?} is named twice")));
        }
        views.push(*view);
    }
    Ok(views)
}

/// Parses one of two words; returns whether it is the second one.
fn either(option: &str, value: &str, words: [&str; 2]) -> Result<bool, Failure> {
    match words.iter().position(|word| *word == value) {
        Some(at) => Ok(at == 1),
        None => {
            let [one, other] = words;
            Err(Failure::Option(format!("{option} {value:?} is neither {one} nor {other}")))
        }
    }
}

fn bytes(option: &str, value: &str) -> Result<u64, Failure> {
    size::parse(value).map_err(|error| Failure::Option(format!("mount option {option:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions, Failure> {
        MountOptions::parse([&text.to_owned()])
    }

    #[test]
    fn options_of_other_filesystems_are_accepted() {
        parse("dev,suid,exec,nonempty,auto_unmount,kernel_cache,nouser,x-gvfs-show").unwrap();
    }

    #[test]
    fn completions_name_known_options() {
        for name in NAMES {
            let unknown = parse(name).is_err_and(|error| error.to_string().contains("unknown"));
            assert!(!unknown, "{name}");
        }
    }

    #[test]
    fn options_are_read_and_later_ones_count() {
        let options =
            parse("rw,ro,uid=7,umask=027,fsname=a\\,b,,x-systemd.automount,level=2").unwrap();
        assert!(!options.fs.writable);
        assert_eq!(options.fs.ownership, Ownership { uid: Some(7), gid: None, umask: Some(0o27) });
        assert_eq!(options.name.as_deref(), Some("a,b"));
        assert_eq!(options.fs.level, Some(2));
        assert_eq!(parse("allow_other,cache_size=1M").unwrap().fs.store.cache_size, 1 << 20);
    }

    #[test]
    fn an_unknown_or_bad_option_is_named() {
        let message = |text| parse(text).unwrap_err().to_string();
        assert!(message("remount,rw").starts_with("remount: a mount of shardfs cannot be changed"));
        assert_eq!(message("ro,banana"), "unknown mount option \"banana\"");
        assert_eq!(message("immutable=1"), "unknown mount option \"immutable=1\"");
        assert_eq!(message("umask=9"), "mount option \"umask=9\": \"9\" is not an octal number");
        assert_eq!(message("uid=-1"), "mount option \"uid=-1\": \"-1\" is not a number");
        assert_eq!(
            message("uid=4294967296"),
            "mount option \"uid=4294967296\": \"4294967296\" is not a number"
        );
    }

    #[test]
    fn options_without_effect_are_named() {
        let warnings = |text| parse(text).unwrap().without_effect(false);
        assert_eq!(
            warnings("sync,endian=big,commit_interval=3,view=zarr2,missing=fill"),
            [
                "the option commit_interval has no effect: the mount is read-only",
                "the option endian has no effect: it is for the views npy, raw, flat",
                "the option sync has no effect: the mount is read-only",
            ]
        );
        assert_eq!(
            warnings("rw,keep-fill,edge=clip,view=flat:zarr3"),
            [
                "the option edge has no effect: it is for the views npy, raw",
                "the option keep_fill has no effect: it is for the views npy, raw",
            ]
        );
        let none: [&str; 0] = [];
        assert_eq!(warnings("rw,sync,update=append,dirty_limit=1M,keep_outside"), none);
        assert_eq!(
            warnings("trusted=5"),
            ["the option trusted has no effect: the source is no URL"]
        );
        assert_eq!(
            parse("trusted=5,cache_dir=/x,cache_limit=1G").unwrap().without_effect(true),
            none
        );
        assert_eq!(
            parse("trusted=5,immutable,cache_limit=1G").unwrap().without_effect(true),
            [
                "the option cache_limit has no effect: there is no cache_dir",
                "the option trusted has no effect: with immutable, everything is believed",
            ]
        );
        assert_eq!(warnings("view=npy:zarr3,endian=big,edge=clip,missing=fill,ro,immutable"), none);
    }

    #[test]
    fn views_are_named_once() {
        assert_eq!(views("zarr2,npy:flat").unwrap(), [View::Zarr2, View::Npy, View::Flat]);
        let refused = |value| views(value).unwrap_err().to_string();
        assert_eq!(refused("npy,npy"), "view \"npy\" is named twice");
        assert_eq!(refused("n5"), "view \"n5\" is none of zarr3, zarr2, npy, raw, flat");
        assert_eq!(refused(""), "view \"\" is none of zarr3, zarr2, npy, raw, flat");
    }

    #[test]
    fn a_word_is_one_of_two() {
        assert!(!either("edge", "full", ["full", "clip"]).unwrap());
        assert!(either("edge", "clip", ["full", "clip"]).unwrap());
        let refused = either("edge", "cut", ["full", "clip"]).unwrap_err().to_string();
        assert_eq!(refused, "edge \"cut\" is neither full nor clip");
    }
}
