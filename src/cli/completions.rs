//! `shardfs completions`.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use super::exit::Failure;

/// Print completions of shardfs for a shell
///
/// For example, in bash: source <(shardfs completions bash)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "shardfs", &mut script);
    print(&script)
}

/// Writes to stdout. Whoever has closed it wants no more.
pub(super) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::System(format!("stdout: {error}")))
        }
        _ => Ok(()),
    }
}
