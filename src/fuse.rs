//! The adapter to FUSE: requests of the kernel, and answers to them.
//!
//! ```text
//! transport    decodes a request into our own types, and encodes the answer
//!   server     runs the operation (reading, changing) and decides what the kernel may cache
//!     fs       the operation itself, which knows nothing of FUSE
//! ```

mod changing;
mod classic;
mod convert;
pub mod forgetting;
mod kernel_cache;
mod kernel_flags;
pub mod push;
mod reading;
mod revalidation;
mod ring;
mod server;

pub use self::classic::Classic;
pub use self::convert::file_attr;
pub use self::kernel_flags::KernelFlags;
pub use self::revalidation::Revalidation;
pub use self::ring::{Plan, Rings, Unavailable};
pub use self::server::Server;
