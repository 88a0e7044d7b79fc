//! The file that says in which starts of the volume a server took part, and where its journal ended.
//!
//! By this file the servers recognise a directory that is older than the directories of the other servers: an old copy
//! that an operator put back after the volume had gone on without it.

use super::text::{self, Fields, with_sum};
use aze_io::disk::{Dir, DiskError, DiskResult};

/// The file's name.
pub const NAME: &str = "starts";

/// First line of the file.
const TITLE: &str = "Azekura: the starts of one server's part";

/// The starts of a volume, counted from 1, as one server knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// The last one that this server began. On the first server, which counts, also one that failed.
    pub begun: u64,
    /// The last one in which every server took part that was not left out, as far as this one knows.
    pub complete: u64,
    /// Servers that were left out of a start and have taken part in no complete one since, each with the last complete one in which it
    /// took part.
    pub away: Vec<(u16, u64)>,
    /// Where the journal ended at the last clean end; none since the start that followed.
    pub ended: Option<u64>,
    /// How often this server has come back alone since the last start.
    pub life: u32,
    /// The system, from its boot to its end, on which the server ran last: bytes written to a file under it are there
    /// for as long as it runs. 0: it is not known.
    pub boot: u64,
}

impl Starts {
    /// The text of the file.
    pub fn text(&self) -> String {
        let ended = self.ended.map_or("open".into(), |position| format!("ended {position}"));
        let Starts { begun, complete, life, boot, .. } = self;
        let away: Vec<String> = self.away.iter().map(|(server, start)| format!("{server}:{start}")).collect();
        let away = if away.is_empty() { String::new() } else { format!("away {}\n", away.join(" ")) };
        with_sum(format!(
            "{TITLE}\nbegun {begun}\ncomplete {complete}\njournal {ended}\nlife {life}\nboot {boot}\n{away}"
        ))
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Starts, String> {
        let mut fields = Fields::new(text, TITLE)?;
        // Only the checksum tells a digit that has changed.
        let body = text.rsplit_once("sum ").map_or(text, |(body, _)| body);
        if with_sum(body.into()) != text {
            return Err("it does not match its checksum".into());
        }
        let (begun, complete) = (fields.number("begun")?, fields.number("complete")?);
        let ended = match fields.value("journal")? {
            "open" => None,
            other => match other.strip_prefix("ended ").map(str::parse) {
                Some(Ok(position)) => Some(position),
                _ => return Err(format!("'journal {other}': expected 'open' or 'ended …' with a number")),
            },
        };
        let (life, boot) = (fields.number("life")?, fields.number("boot")?);
        let away = match body.lines().find_map(|line| line.strip_prefix("away ")) {
            Some(all) => all.split(' ').map(away).collect::<Result<_, String>>()?,
            None => Vec::new(),
        };
        Ok(Starts { begun, complete, away, ended, life, boot })
    }

    /// The last start in which a server must have taken part, so that its directory is not older than what the others have built on.
    pub fn last_of(&self, server: u16) -> u64 {
        self.away.iter().find(|(away, _)| *away == server).map_or(self.complete, |(_, start)| *start)
    }

    /// Reads the file of a directory.
    ///
    /// # Errors
    /// The disk's error, and a file that is missing or cannot be parsed.
    pub async fn read(dir: &dyn Dir) -> DiskResult<Starts> {
        text::read(dir, NAME, |text| Starts::parse(text).map_err(DiskError::Failed)).await?.ok_or_else(|| {
            DiskError::Failed(format!("the file '{NAME}' is missing: put it back from where this directory was copied"))
        })
    }

    /// Whether these starts are the newer ones since the other server was left out, with all that it had.
    pub fn is_newer_for(&self, other: u16, starts: &Starts) -> bool {
        self.away.iter().any(|(away, start)| *away == other && starts.begun >= *start)
    }

    /// Writes the file, durably.
    ///
    /// # Errors
    /// The disk's error; then the file has its old text.
    pub async fn write(&self, dir: &dyn Dir) -> DiskResult<()> {
        text::write(dir, NAME, self.text()).await
    }
}

/// A server that is away, and a start: `2:7`.
fn away(text: &str) -> Result<(u16, u64), String> {
    let parsed = text.split_once(':').and_then(|(server, start)| Some((server.parse().ok()?, start.parse().ok()?)));
    parsed.ok_or_else(|| format!("'away {text}': expected numbers of servers and starts, such as 2:7"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_were_left_out_are_in_the_file() {
        let starts = Starts { begun: 7, complete: 7, away: vec![(2, 5), (11, 6)], ..Starts::default() };
        assert!(starts.text().contains("\naway 2:5 11:6\nsum "), "{}", starts.text());
        assert_eq!(Starts::parse(&starts.text()), Ok(starts.clone()));
        assert_eq!([2, 11, 3].map(|server| starts.last_of(server)), [5, 6, 7]);
        let wrong = with_sum(starts.text().replace("2:5", "2").rsplit_once("sum ").unwrap().0.into());
        assert!(Starts::parse(&wrong).unwrap_err().contains("such as 2:7"));
    }

    #[test]
    fn the_file_looks_like_this() {
        let starts = Starts { begun: 7, complete: 6, away: Vec::new(), ended: None, life: 3, boot: 91 };
        let text = "Azekura: the starts of one server's part\nbegun 7\ncomplete 6\njournal open\nlife 3\nboot 91\n";
        let summed = with_sum(text.into());
        assert!(summed.starts_with(text) && summed[text.len()..].starts_with("sum "), "{summed}");
        assert_eq!((starts.text(), Starts::parse(&summed)), (summed.clone(), Ok(starts.clone())));
        let ended = Starts { ended: Some(4711), ..starts };
        let text = text.replace("open", "ended 4711");
        assert_eq!((ended.text(), Starts::parse(&ended.text())), (with_sum(text.clone()), Ok(ended)));
        for wrong in [text.replace("4711", "x"), text.replace("ended 4711", "torn"), text.replace("begun", "b")] {
            assert!(Starts::parse(&with_sum(wrong.clone())).is_err(), "{wrong}");
        }
        // Without its sum, with another one, with another digit.
        for wrong in
            [String::new(), text, summed.replace("7", "5"), summed.replace("sum ", "sum 0"), summed.replace("sum", "s")]
        {
            assert!(Starts::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
