//! Mounting as an ordinary user: the setuid program fusermount3 mounts and passes back the device.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::UnmountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::error::MountError;
use super::spec::{Access, MountSpec};

const PROGRAM: &str = "fusermount3";

/// Mounts through fusermount3 and returns the FUSE device.
pub(super) fn mount(spec: &MountSpec) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = sockets().map_err(MountError::NoFusermount)?;
    let mut options = format!(
        "fsname={},subtype=shardfs,{},nosuid,nodev,noexec,default_permissions",
        escape(&spec.name),
        if spec.writable { "rw" } else { "ro" }
    );
    if spec.access != Access::Owner {
        options.push_str(",allow_other");
    }
    let child = Command::new(PROGRAM)
        .args([OsStr::new("-o"), options.as_ref(), "--".as_ref(), spec.mountpoint.as_ref()])
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoFusermount)?;
    drop(theirs);
    let device = receive_device(&ours).ok().flatten();
    let output = child.wait_with_output().map_err(MountError::NoFusermount)?;
    match device {
        Some(device) if output.status.success() => Ok(device),
        made => {
            if made.is_some() {
                // It was interrupted after it had mounted. Its error is the one to report.
                let _ = unmount(&spec.mountpoint, UnmountFlags::DETACH);
            }
            Err(MountError::Fusermount(message(&output.stderr)))
        }
    }
}

/// Unmounts through fusermount3.
pub(super) fn unmount(mountpoint: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if flags.contains(UnmountFlags::DETACH) {
        command.arg("-z");
    }
    // The C locale makes its error messages predictable.
    command.env("LC_ALL", "C").arg("--").arg(mountpoint);
    let output = command.output().map_err(MountError::NoFusermount)?;
    match message(&output.stderr) {
        _ if output.status.success() => Ok(()),
        message if message.ends_with("Device or resource busy") => {
            Err(MountError::busy(mountpoint))
        }
        message => Err(MountError::Fusermount(message)),
    }
}

/// Creates a pair of sockets; the second is inherited by child processes.
fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let (ours, theirs) = socketpair(kind.0, kind.1, kind.2, None)?;
    fcntl_setfd(&theirs, FdFlags::empty())?;
    Ok((ours, theirs))
}

/// Receives the file descriptor that is sent along with one byte; `None` if none came.
fn receive_device(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut messages = ancillary.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut devices) => devices.next(),
        _ => None,
    }))
}

/// Escapes backslashes and commas in the value of a mount option.
fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace(',', r"\,")
}

fn message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim().trim_start_matches(PROGRAM).trim_start_matches(':').trim();
    if text.is_empty() { "it gave no reason".to_owned() } else { text.replace('\n', "; ") }
}
