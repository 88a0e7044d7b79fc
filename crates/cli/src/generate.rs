//! `aze completions` and `aze man`: words for shells and pages for man(1), from the same description as `--help`.

use crate::exit::{Exit, Outcome, Trouble};
use aze_words::out;
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Print a script by which a shell completes commands and options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  eval \"$(aze completions bash)\"                    for this shell
  aze completions zsh > ~/.zfunc/_aze               for all of zsh, if ~/.zfunc is in fpath
  aze completions fish > ~/.config/fish/completions/aze.fish")]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Write a manual page for each command.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze man ~/.local/share/man/man1
  man aze-up")]
pub struct ManArgs {
    /// Directory for the pages; it is made if it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs `aze completions`.
pub fn run_completions(args: &CompletionsArgs, mut command: clap::Command) -> Outcome<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "aze", &mut script);
    out!("{}", String::from_utf8_lossy(&script));
    Ok(Exit::Done)
}

/// Runs `aze man`.
pub fn run_man(args: &ManArgs, command: clap::Command) -> Outcome<Exit> {
    let dir = args.dir.display();
    fs::create_dir_all(&args.dir).map_err(|error| Trouble::local(format!("make directory {dir}"), &error))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, &args.dir).map_err(|error| Trouble::local(format!("write manual pages to {dir}"), &error))?;
    Ok(Exit::Done)
}

/// Writes the pages of a command and of those below it.
fn write_pages(command: &clap::Command, dir: &Path) -> io::Result<()> {
    let shown: Vec<&clap::Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    shown.iter().try_for_each(|sub| write_pages(sub, dir))?;
    let name = command.get_display_name().unwrap_or(command.get_name());
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if !shown.is_empty() {
        page.render_subcommands_section(&mut text)?;
    }
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text.extend(unfilled(&examples).into_bytes());
    fs::write(dir.join(format!("{name}.1")), text)
}

/// A section whose lines stay as they are (groff_man(7)); nothing of an empty text. Its title is the first line.
fn unfilled(text: &str) -> String {
    let Some((title, lines)) = text.split_once('\n') else { return String::new() };
    let escaped = lines.replace('\\', "\\e").replace('-', "\\-");
    // A dot or quote at the beginning of a line would be a request; this puts nothing before it.
    let escaped: String = escaped.lines().map(|line| format!("\\&{line}\n")).collect();
    format!(".SH {}\n.nf\n{escaped}.fi\n", title.trim_end_matches(':').to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        assert_eq!(unfilled("Examples:\n  aze ls -l\n.x\\y"), ".SH EXAMPLES\n.nf\n\\&  aze ls \\-l\n\\&.x\\ey\n.fi\n");
        assert_eq!(unfilled(""), "");
    }
}
