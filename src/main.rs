//! Entry point of the `shardfs` binary; all code is in the library.

fn main() -> std::process::ExitCode {
    shardfs::cli::run()
}
