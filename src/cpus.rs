//! CPUs that threads run on. Linux starts a thread on those of the thread that starts it.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

/// Set of CPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpus(CpuSet);

impl Cpus {
    /// Returns those that the calling thread may run on.
    pub(crate) fn allowed() -> io::Result<Self> {
        Ok(Self(sched_getaffinity(SELF)?))
    }

    /// Returns the number of CPUs in the set.
    pub(crate) fn count(&self) -> usize {
        (0..CpuSet::count()).filter(|cpu| self.0.is_set(*cpu).unwrap_or(false)).count()
    }

    /// Lets the calling thread run on these alone, as far as there are any.
    pub(crate) fn bind(&self) -> io::Result<()> {
        Ok(sched_setaffinity(SELF, &self.0)?)
    }

    /// Returns a set of one CPU.
    pub(crate) fn one(cpu: usize) -> io::Result<Self> {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        Ok(Self(set))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_is_bound_to() {
        std::thread::spawn(|| {
            let before = Cpus::allowed().unwrap();
            let first = (0..CpuSet::count()).find(|cpu| before.0.is_set(*cpu).unwrap()).unwrap();
            Cpus::one(first).unwrap().bind().unwrap();
            assert_eq!(Cpus::allowed().unwrap().count(), 1);
            before.bind().unwrap();
            assert_eq!(Cpus::allowed().unwrap().count(), before.count());
        })
        .join()
        .unwrap();
        assert!(Cpus::one(usize::MAX).is_err());
    }
}
