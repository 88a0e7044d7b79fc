//! The `#AZE` lines of a job script: commands of this program, which a batch system's own shell takes for comments.
//!
//! It alone knows where such lines may stand, how their words are split, and which commands they may be. Each is understood by
//! the parser of the command line itself before anything is started.

use crate::exit::{Exit, Outcome, Trouble};
use crate::launch;
use crate::place::Place;
use std::path::Path;

/// What such lines begin with.
const MARK: &str = "#AZE";

/// Bytes of a job script that are read, at most: Slurm takes no larger ones unless its administrator allows it.
pub const SCRIPT_BYTES_MAX: u64 = 4 << 20;

/// Options of `aze stage out` about rounds; each but the first may have its value in the next word.
const ROUNDS: [(&str, bool); 3] = [("--before-end", false), ("--every", true), ("--until", true)];

/// Options with which `aze stage out` copies in no rounds.
const NO_ROUNDS: [&str; 6] = ["--atomic", "--receipt", "--list", "--newer-than", "--include", "--exclude"];

/// A job script's lines, in words.
#[derive(Debug, Default, PartialEq)]
pub struct Lines {
    /// The options of `aze up`.
    pub up: Vec<String>,
    /// Where each `stage in` line stands, and its words after these two.
    pub stage_in: Vec<(usize, Vec<String>)>,
    /// The same of `stage out`.
    pub stage_out: Vec<(usize, Vec<String>)>,
    /// The words of the script's first line, if they name a program that runs it.
    pub interpreter: Option<Vec<String>>,
}

/// How a variable is looked up: its value, or why there is none.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Result<String, String>;

impl Lines {
    /// Reads a script's lines.
    ///
    /// # Errors
    /// [`Exit::Usage`]: a line is no command that may stand there, the parser of the command line refuses it, it stands behind
    /// the first command of the script, where no batch system would look for it either, or there is none.
    pub fn read(path: &Path, text: &str, lookup: Lookup<'_>) -> Outcome<Lines> {
        let mut lines = Lines { interpreter: interpreter(text), ..Lines::default() };
        let (mut has_begun, mut has_up, mut count) = (false, false, 0);
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |why: &str| Trouble::usage(format!("{}:{number}: {why}: '{line}'", path.display()));
            let Some(rest) = line.strip_prefix(MARK).filter(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
            else {
                has_begun |= !(line.trim_start().is_empty() || line.trim_start().starts_with('#'));
                continue;
            };
            if has_begun {
                return Err(wrong("this line stands behind the first command of the script: move it up"));
            }
            let words = launch::split(rest, Some(lookup)).map_err(|why| wrong(&why))?;
            match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["up", ..] if has_up => return Err(wrong("there is an 'up' line already")),
                ["up", ..] => (has_up, lines.up) = (true, words[1..].to_vec()),
                ["stage", "in", ..] => lines.stage_in.push((number, words[2..].to_vec())),
                ["stage", "out", ..] => lines.stage_out.push((number, words[2..].to_vec())),
                _ => return Err(wrong("it is none of 'up', 'stage in FROM TO' and 'stage out FROM TO'")),
            }
            let parsed = crate::command().try_get_matches_from([&["aze".to_owned()], &words[..]].concat());
            parsed.map_err(|error| wrong(error.to_string().trim().trim_start_matches("error: ")))?;
            if words[0] == "stage" && words[1] == "in" && names_local_alone(&words[2..]) {
                return Err(wrong("it names no place in the volume to stage in to: 'stage in FROM aze:/…'"));
            }
            count += 1;
        }
        if count == 0 {
            let text = format!("{}: it has no line that begins with '{MARK}': see 'aze help job'", path.display());
            return Err(Trouble::new(Exit::Usage, text));
        }
        Ok(lines)
    }
}

/// The program of a first line `#!PROGRAM …`; `None` if this program itself stands there, or there is no such line.
fn interpreter(text: &str) -> Option<Vec<String>> {
    let words: Vec<String> = text.lines().next()?.strip_prefix("#!")?.split_whitespace().map(str::to_owned).collect();
    let is_own = |word: &String| Path::new(word).file_name().is_some_and(|name| name == "aze");
    Some(words).filter(|words| !words.is_empty() && !words.iter().any(is_own))
}

/// FROM and TO of a line, when options may stand around them; `None` if it has no TO.
pub fn places(direction: &str, words: &[String]) -> Option<(String, String)> {
    let stage = matched(direction, words)?;
    Some((value(&stage, "from")?, value(&stage, "to")?))
}

/// Whether a `stage in` line has no TO, as for a volume over a directory, and yet names no place in the volume.
fn names_local_alone(words: &[String]) -> bool {
    let is_local = |from: String| matches!(Place::parse(from.as_ref()), Ok(Place::Local(_)));
    let stage = matched("in", words).filter(|stage| value(stage, "to").is_none());
    stage.and_then(|stage| value(&stage, "from")).is_some_and(is_local)
}

/// A stage line as the parser of the command line takes it.
fn matched(direction: &str, words: &[String]) -> Option<clap::ArgMatches> {
    let line = [&["aze", "stage", direction].map(String::from)[..], words].concat();
    let matches = crate::command().try_get_matches_from(line).ok()?;
    Some(matches.subcommand()?.1.subcommand()?.1.clone())
}

fn value(stage: &clap::ArgMatches, name: &str) -> Option<String> {
    Some(stage.get_raw(name)?.next()?.to_str()?.to_owned())
}

/// The words of a `stage out` line without its options about rounds, and whether it had some.
pub fn without_rounds(words: &[String]) -> (Vec<String>, bool) {
    let (mut kept, mut words) = (Vec::new(), words.iter().peekable());
    let mut had = false;
    while let Some(word) = words.next() {
        let option = ROUNDS.iter().find(|(name, _)| word == name || word.starts_with(&format!("{name}=")));
        match option {
            None => kept.push(word.clone()),
            Some((name, has_value)) => {
                had = true;
                if *has_value && word == name {
                    words.next();
                }
            }
        }
    }
    (kept, had)
}

/// Whether such a line can be staged in rounds while the script runs.
pub fn allows_rounds(words: &[String]) -> bool {
    let is_one = |word: &String| NO_ROUNDS.iter().any(|name| word == name || word.starts_with(&format!("{name}=")));
    !words.iter().any(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Lines, String> {
        let lookup = |name: &str| match name {
            "USER" => Ok("anna b".to_owned()),
            _ => Err(format!("{name} is not set")),
        };
        Lines::read(Path::new("script"), text, &lookup).map_err(|trouble| trouble.text)
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn lines_are_commands_with_variables_and_quotes() {
        let text = "#!/bin/bash\n#SBATCH -N 2\n\n#AZE up --size 1G\n#AZE stage in /in/$USER 'aze:/$USER'\n\
            #AZE stage out aze:/o --every 5m \"/out/${USER}\"\n# other\n#AZEKURA\necho '#AZE'\n";
        let lines = read(text).expect("good lines");
        assert_eq!(lines.up, words("--size 1G"));
        assert_eq!(lines.stage_in, [(5, vec!["/in/anna b".to_owned(), "aze:/$USER".into()])]);
        assert_eq!(lines.stage_out.len(), 1);
        let (number, out) = &lines.stage_out[0];
        assert_eq!((*number, places("out", out)), (6, Some(("aze:/o".into(), "/out/anna b".into()))));
        assert_eq!(without_rounds(out), (vec!["aze:/o".to_owned(), "/out/anna b".into()], true));
        assert_eq!(lines.interpreter, Some(vec!["/bin/bash".into()]));
    }

    #[test]
    fn what_cannot_be_meant_is_named_with_its_line() {
        let cases = [
            ("echo\n#AZE up\n", "script:2: this line stands behind the first command"),
            ("#AZE up\n#AZE up\n", "script:2: there is an 'up' line already"),
            ("#AZE down\n", "script:1: it is none of"),
            ("#AZE\n", "script:1: it is none of"),
            ("#AZE up --sise 1G\n", "script:1: unexpected argument '--sise'"),
            ("#AZE stage in /a\n", "script:1: it names no place in the volume"),
            ("#AZE stage out\n#AZE stage in --names-only /a\n", "script:2: it names no place in the volume"),
            ("#AZE stage in /a$NONE aze:/a\n", "script:1: NONE is not set"),
            ("#AZE stage in '/a aze:/a\n", "script:1: a quote is not closed"),
            ("# nothing\n", "it has no line that begins with '#AZE'"),
        ];
        assert_eq!(cases.len(), 10);
        for (text, expected) in cases {
            let told = read(text).expect_err(text);
            assert!(told.contains(expected), "{told}");
        }
        let warms_up = read("#AZE up --backing /b\n#AZE stage in aze:/a\n").expect("the directory below has it");
        assert_eq!(warms_up.stage_in, [(2, vec!["aze:/a".to_owned()])]);
    }

    #[test]
    fn options_about_rounds_are_taken_out_and_known() {
        for (line, kept) in [
            ("a b --every 10m", "a b"),
            ("--every=10m a b --before-end", "a b"),
            ("a --before-end=5m b --until @1 --delete", "a b --delete"),
        ] {
            assert_eq!(without_rounds(&words(line)), (words(kept), true), "{line}");
        }
        assert_eq!(without_rounds(&words("a b --delete")), (words("a b --delete"), false));
        assert!(allows_rounds(&words("a b --delete")) && !allows_rounds(&words("a b --atomic")));
        assert!(!allows_rounds(&words("a b --list=x")));
    }

    #[test]
    fn the_interpreter_is_another_program_than_this() {
        let of = |text: &str| interpreter(text).map(|words| words.join(" "));
        assert_eq!(of("#!/usr/bin/env python3\n").as_deref(), Some("/usr/bin/env python3"));
        for text in ["#!/usr/bin/env -S aze job\n", "#!/opt/bin/aze job\n", "echo\n", "#!\n", ""] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
