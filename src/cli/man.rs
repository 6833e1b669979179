//! `shardfs man`: manual pages, generated from the help of each command.
//!
//! The text after the options consists of columns, which a manual page would run together. They are
//! turned into lists of a term and its description.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::Man;
use roff::{Inline, Roff, bold, italic, roman};

use super::exit::Failure;
use super::mount::HelperArgs;
use super::output::print;
use super::topics::{TOPICS, Topic};

/// Name of a directory that stands for stdout.
const STDOUT: &str = "-";
/// Section of the manual for mount helpers.
const ADMINISTRATION: &str = "8";
/// Section of the manual for overviews.
const OVERVIEWS: &str = "7";

const AFTER_HELP: &str = "\
Examples:
  shardfs man /usr/local/share/man
  shardfs man - | man -l -

Exit codes: 0 done, 2 it could not be done.";

/// Write the manual pages of shardfs
///
/// Makes man1/shardfs.1, a page for each command, such as man1/shardfs-mount.1, one for each topic of
/// shardfs help, such as man7/shardfs-views.7, and man8/mount.shardfs.8.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Directory for man1, man7 and man8, made if it is not there; with - the page shardfs.1 goes to stdout
    directory: PathBuf,
}

/// Writes the pages of `command`, the whole command line.
pub(super) fn run(args: &Args, command: Command) -> Result<(), Failure> {
    let mut all = command;
    all.build();
    let cannot = |path: &Path| {
        let path = path.to_string_lossy().into_owned();
        move |error: io::Error| Failure::System(format!("{path}: {error}"))
    };
    if args.directory == Path::new(STDOUT) {
        return print(&page(&all, None).map_err(cannot(&args.directory))?.1);
    }
    let mut helper = HelperArgs::command();
    helper.build();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set());
    let pages = commands.map(|command| page(command, None));
    let overviews = TOPICS.iter().map(overview);
    for made in
        pages.chain(overviews).chain([page(&all, None), page(&helper, Some(ADMINISTRATION))])
    {
        let (name, text) = made.map_err(cannot(&args.directory))?;
        let section = Path::new(&name).extension().unwrap_or_default().to_string_lossy();
        let directory = args.directory.join(format!("man{section}"));
        fs::create_dir_all(&directory).map_err(cannot(&directory))?;
        let path = directory.join(name);
        fs::write(&path, text).map_err(cannot(&path))?;
    }
    Ok(())
}

/// Returns the file name and text of a command's page.
fn page(command: &Command, section: Option<&str>) -> io::Result<(String, Vec<u8>)> {
    let mut man = manual(command.clone());
    if let Some(section) = section {
        man = man.section(section);
    }
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(after) = command.get_after_long_help() {
        after_options(&after.to_string()).to_writer(&mut text)?;
    }
    Ok((man.get_filename(), text))
}

/// Returns the file name and text of a topic's page.
fn overview(topic: &Topic) -> io::Result<(String, Vec<u8>)> {
    let name = format!("shardfs-{}", topic.name);
    let command = Command::new(topic.name).display_name(name).about(topic.about);
    let man = manual(command).section(OVERVIEWS);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let mut roff = Roff::new();
    roff.control("SH", ["DESCRIPTION"]);
    roff.to_writer(&mut text)?;
    after_options(topic.text).to_writer(&mut text)?;
    Ok((man.get_filename(), text))
}

/// Begins a page. All pages have the same version, and no date.
fn manual(command: Command) -> Man {
    const SOURCE: &str = concat!("shardfs ", env!("CARGO_PKG_VERSION"));
    Man::new(command).source(SOURCE).manual("shardfs").date("")
}

/// Returns the synopsis of a command; for a mount helper, that of mount(8) comes first.
fn synopsis(command: &Command) -> Roff {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    if let Some(kind) = name.strip_prefix("mount.") {
        let words = [bold(format!("mount -t {kind}")), roman(" ["), bold("-o"), roman(" ")];
        let rest = [italic("OPTION,..."), roman("] "), italic("SOURCE MOUNTPOINT")];
        roff.text([words.to_vec(), rest.to_vec()].concat());
        roff.control("br", []);
    }
    let mut words = vec![bold(&name)];
    if command.has_subcommands() {
        words.extend([
            roman(" "),
            italic("COMMAND"),
            roman(" ["),
            italic("ARGUMENT"),
            roman("...]"),
        ]);
    }
    let is_told =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let (places, options): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(is_told).partition(|arg| arg.is_positional());
    for arg in options.into_iter().chain(places) {
        let [open, close] = if arg.is_required_set() { ["", ""] } else { ["[", "]"] };
        words.push(roman(format!(" {open}")));
        words.extend(usage(arg));
        let more = if is_repeated(arg) { "..." } else { "" };
        words.push(roman(format!("{close}{more}")));
    }
    roff.text(words);
    roff
}

/// Returns an option with its value, or the name of a positional argument.
fn usage(arg: &Arg) -> Vec<Inline> {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let option = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => return vec![italic(value)],
    };
    let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    match arg.get_action().takes_values() {
        false => vec![bold(option)],
        true if is_optional => vec![bold(option), roman("[="), italic(value), roman("]")],
        true => vec![bold(option), roman(" "), italic(value)],
    }
}

/// Returns whether an argument may be given more than once.
fn is_repeated(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append | ArgAction::Count)
}

/// Formats the text after the options: a line that ends with a colon is a heading for the indented
/// lines below it, and so are a few words before a colon, such as "Exit codes: ". An empty line ends a
/// paragraph.
fn after_options(help: &str) -> Roff {
    let mut roff = Roff::new();
    let mut lines = help.lines().peekable();
    let mut is_first = true;
    while let Some(line) = lines.next() {
        let begins_paragraph = std::mem::replace(&mut is_first, line.is_empty());
        let is_heading = lines.peek().is_some_and(|next| next.starts_with("  "));
        if let Some(entry) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) {
            let (term, mut words) = term(entry);
            while let Some(more) = lines.next_if(|next| next.starts_with("   ")) {
                words = format!("{words} {}", more.trim_start());
            }
            roff.control("TP", []);
            roff.text([bold(term)]);
            if !words.is_empty() {
                roff.text([roman(words)]);
            }
        } else if let Some(heading) = line.strip_suffix(':').filter(|_| is_heading) {
            roff.control("SH", [title(heading).as_str()]);
        } else if let Some((heading, words)) = line.split_once(": ").filter(|(it, _)| is_title(it))
        {
            roff.control("SH", [title(heading).as_str()]);
            roff.text([roman(words)]);
        } else if !line.is_empty() {
            if begins_paragraph {
                roff.control("PP", []);
            }
            roff.text([roman(line)]);
        }
    }
    roff
}

/// Returns whether what stands before a colon is a title, and not the beginning of a sentence.
fn is_title(heading: &str) -> bool {
    const MOST_WORDS: usize = 3;
    is_words(heading) && heading.split(' ').count() <= MOST_WORDS
}

/// Puts a heading in capitals, unless it contains an option or a file name.
fn title(heading: &str) -> String {
    if is_words(heading) { heading.to_uppercase() } else { heading.to_owned() }
}

fn is_words(heading: &str) -> bool {
    heading.chars().all(|c| c.is_alphabetic() || c == ' ')
}

/// Splits a line into a term and its description. Lines of more columns are kept as they are.
fn term(line: &str) -> (&str, String) {
    match line.split_once("  ").map(|(term, words)| (term, words.trim_start())) {
        Some((term, words)) if !words.contains("  ") => (term, words.to_owned()),
        _ => (line, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_lists() {
        let help = "Options of -o:\n  ro          read-only,\n              the default\n  rw  \
            writable\n\nExit codes: 0 all is well.\n\nAs in fstab:\n  /a  /b  shardfs";
        let roff = after_options(help).to_roff();
        let expected = ".SH \"Options of -o\"\n.TP\n\\fBro\\fR\nread\\-only, the default\n\
            .TP\n\\fBrw\\fR\nwritable\n.SH \"EXIT CODES\"\n0 all is well.\n\
            .SH \"AS IN FSTAB\"\n.TP\n\\fB/a  /b  shardfs\\fR\n";
        assert_eq!(roff, expected);
    }

    #[test]
    fn sentences_are_paragraphs_and_no_headings() {
        let help = "Of a view nothing is copied: it is made.\n\nAnother: one.\n\nViews:\n  a  b\n\nThe last.";
        let expected = ".PP\nOf a view nothing is copied: it is made.\n.SH ANOTHER\none.\n.SH VIEWS\n\
            .TP\n\\fBa\\fR\nb\n.PP\nThe last.\n";
        assert_eq!(after_options(help).to_roff(), expected);
    }
}
