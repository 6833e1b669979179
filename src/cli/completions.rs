//! `shardfs completions`.

use clap::Command;
use clap_complete::Shell;

use super::exit::Failure;
use super::output::print;

const AFTER_HELP: &str = "\
Examples:
  source <(shardfs completions bash)
  shardfs completions zsh > ~/.zfunc/_shardfs
  shardfs completions fish > ~/.config/fish/completions/shardfs.fish

Exit codes: 0 done, 2 it could not be done.";

/// Print completions of shardfs for a shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the completions of `command`, the whole command line.
pub(super) fn run(args: &Args, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "shardfs", &mut script);
    match args.shell {
        Shell::Bash => print(with_files(&String::from_utf8_lossy(&script)).as_bytes()),
        Shell::Fish => print(&[script, words_of_places(&command).into_bytes()].concat()),
        _ => print(&script),
    }
}

/// Makes the fish script complete the words of positional arguments, which the generated one does not.
fn words_of_places(command: &Command) -> String {
    let mut lines = String::new();
    for command in command.get_subcommands() {
        let places = command.get_positionals().flat_map(clap::Arg::get_possible_values);
        let words: Vec<String> = places.map(|word| word.get_name().to_owned()).collect();
        if !words.is_empty() {
            let (name, words) = (command.get_name(), words.join(" "));
            lines += &format!(
                "complete -c shardfs -n \"__fish_shardfs_using_subcommand {name}\" -f -a \"{words}\"\n"
            );
        }
    }
    lines
}

/// Makes the bash script complete file names. The generated script offers the options of a command
/// if nothing was typed yet, and only options after that. The modified script offers options after
/// a dash, and elsewhere the words known for that position; if there are none, bash completes file
/// names.
fn with_files(script: &str) -> String {
    const ALL: &str = "\n            COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )";
    let words = ALL.replace("compgen", "compgen -X '-*'");
    script.replace(" || ${COMP_CWORD} -eq 2 ]]", " ]]").replace(ALL, &words)
}
