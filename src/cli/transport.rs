//! How the kernel's requests reach a mount: `-o transport=`.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::exit::Failure;
use crate::fs::Views;
use crate::fuse::{Classic, Plan, Rings, Server, Unavailable, forgetting, push};
use crate::mount::{self, MountError, MountSpec, Mounted};
use crate::stats::Transport as Served;

/// Environment variable with the transport of mounts that are not given one.
const VARIABLE: &str = "SHARDFS_TRANSPORT";

/// Transport that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Rings where the kernel has them.
    Auto,
    /// `/dev/fuse`, read by threads.
    Classic,
    /// Rings, with a warning where there are none.
    Uring,
    /// `/dev/fuse`, for a source on the network. Threads that wait for it would hold up the rings that they
    /// belong to.
    ForNetwork,
}

impl Transport {
    /// Names of the transports.
    pub(super) const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("classic", Self::Classic), ("uring", Self::Uring)];

    /// Returns the transport with that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, transport)| *transport)
    }

    /// Returns the transport that the environment asks for.
    pub(super) fn usual() -> Self {
        let name = std::env::var(VARIABLE).ok();
        let named = name.as_deref().map(|name| (name, Self::named(name)));
        if let Some((name, None)) = named {
            log::warn!("{VARIABLE}: {name:?} is none of auto, classic, uring: auto is used");
        }
        named.and_then(|(_, transport)| transport).unwrap_or(Self::Auto)
    }

    /// Starts threads with rings if they are wanted and to be had; otherwise returns why requests come
    /// in the classic way.
    fn prepare(self, threads: usize) -> Result<Rings, String> {
        match self {
            Self::Classic => return Err("it was asked for".to_owned()),
            Self::ForNetwork => return Err("the source is on the network".to_owned()),
            Self::Auto | Self::Uring => (),
        }
        let prepared = Plan::new(threads).and_then(|plan| {
            // Threads that have ended do not give all of it back, so this is found out before.
            match mount::fits_beside(threads, plan.threads(), plan.nbytes()) {
                true => Rings::prepare(&plan),
                false => Err(Unavailable::NoRoom),
            }
        });
        prepared.map_err(|error| self.report(&error))
    }

    /// Logs why there are no rings, and returns it. Where they were not asked for, they are usually
    /// switched off.
    fn report(self, error: &Unavailable) -> String {
        let text = format!("requests are read from /dev/fuse, not by io_uring: {error}");
        match (self, error) {
            (Self::Uring, _) => log::warn!("{text}"),
            (_, Unavailable::Kernel | Unavailable::SwitchedOff) => log::debug!("{text}"),
            _ => log::info!("{text}"),
        }
        error.to_string()
    }
}

/// Mount that exists, with all that answers its requests.
pub(super) struct Transported {
    mounted: Mounted<Classic>,
    server: Arc<Server>,
    rings: Option<Rings>,
}

/// Mounts `views`. Requests are not answered yet.
pub(super) fn mount(
    transport: Transport,
    views: &Arc<Views>,
    spec: &MountSpec,
) -> Result<Transported, Failure> {
    let rings = transport.prepare(spec.threads);
    let server = Arc::new(Server::new(Arc::clone(views), rings.is_ok()));
    let mounted = mount::mount(Classic::new(Arc::clone(&server)), spec)?;
    let rings = match rings {
        Ok(rings) if !server.uses_rings() => {
            rings.end();
            Err(transport.report(&Unavailable::Kernel))
        }
        rings => rings,
    };
    let served = match &rings {
        Ok(rings) => Served {
            name: "uring",
            threads: rings.threads(),
            shared_nbytes: rings.nbytes(),
            why: None,
        },
        Err(why) => {
            let why = Some(why.clone());
            Served { name: "classic", threads: spec.threads, shared_nbytes: 0, why }
        }
    };
    // Set once: a process has one mount.
    let _ = views.stats().transport.set(served);
    Ok(Transported { mounted, server, rings: rings.ok() })
}

impl Transported {
    /// Starts the threads beside fuser's, which are left to be started. Returns those that end with the
    /// mount.
    pub(super) fn start(
        self,
        views: &Arc<Views>,
    ) -> Result<(Mounted<Classic>, Vec<JoinHandle<()>>), Failure> {
        let Self { mounted, server, rings } = self;
        server.notify_through(mounted.notifier());
        if let Some(revalidation) = server.revalidation() {
            let notifier = mounted.notifier();
            start_thread("revalidation", move || revalidation.run(notifier))?;
        }
        let (device, notifier) = (|| mounted.connection(), || mounted.notifier());
        if let Err(error) = push::start(views, mounted.is_guarded(), device, notifier) {
            log::warn!("no chunks are pushed ahead of their readers: {error}");
        }
        if let Err(error) = forgetting::start(views, mounted.is_guarded(), || mounted.notifier()) {
            log::warn!("the kernel is not asked to forget files: {error}");
        }
        // Last, for what is opened before is not known to be open. The kernel holds requests back until
        // these threads are ready.
        let threads = match rings {
            Some(rings) => {
                let device = mounted.connection().map_err(MountError::Session)?;
                let serving = rings.serve(&server, mounted.acl(), device, mount::end_mount);
                serving.ok_or_else(|| MountError::NoRings(mounted.mountpoint().to_owned()))?
            }
            None => Vec::new(),
        };
        Ok((mounted, threads))
    }
}

/// Starts a thread of a mount.
pub(super) fn start_thread(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).map_err(|error| MountError::Thread(error).into())
}
