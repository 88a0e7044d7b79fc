//! The file that says in which starts of the volume a server took part, and where its journal ended.
//!
//! By it a directory that is older than the others' is told: an old copy that was put back after the
//! volume had gone on without it. It is text, so that a person can read it, too.

use super::write_text;
use aze_io::disk::{Dir, DiskError, DiskResult};
use aze_proto::sum::block_sum;

/// The file's name.
pub const NAME: &str = "starts";

/// First line of the file.
const TITLE: &str = "Azekura: the starts of one server's part";

/// Longest file of this kind; what is longer is none.
const BYTES_MAX: usize = 4096;

/// What a server knows of the starts of its volume, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// The last one that this server began. On server 0, which counts, also one that failed.
    pub begun: u64,
    /// The last one in which every server took part, as far as this one knows.
    pub complete: u64,
    /// Where the journal ended at the last clean end; none since the start that followed.
    pub ended: Option<u64>,
}

impl Starts {
    /// The text of the file.
    pub fn text(&self) -> String {
        let ended = self.ended.map_or("open".into(), |position| format!("ended {position}"));
        with_sum(format!("{TITLE}\nbegun {}\ncomplete {}\njournal {ended}\n", self.begun, self.complete))
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Starts, String> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(format!("the first line is not '{TITLE}'"));
        }
        let mut field = |name: &str| {
            let line = lines.next().unwrap_or_default();
            let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
            value.ok_or_else(|| format!("expected a line '{name} …', found '{line}'"))
        };
        let number = |text: &str| text.parse().map_err(|_| format!("'{text}' is not a number"));
        // A digit that has changed is a digit.
        let body = text.rsplit_once("sum ").map_or(text, |(body, _)| body);
        if with_sum(body.into()) != text {
            return Err("it does not match its checksum".into());
        }
        let (begun, complete) = (number(field("begun")?)?, number(field("complete")?)?);
        let ended = match field("journal")? {
            "open" => None,
            other => match other.strip_prefix("ended ") {
                Some(position) => Some(number(position)?),
                None => return Err(format!("'journal {other}': expected 'open' or 'ended …'")),
            },
        };
        Ok(Starts { begun, complete, ended })
    }

    /// Reads the file of a directory.
    ///
    /// # Errors
    /// What the disk says, a file that is missing, and one that is not such a one.
    pub async fn read(dir: &dyn Dir) -> DiskResult<Starts> {
        let file = match dir.open(NAME).await {
            Err(DiskError::NotFound(_)) => {
                return Err(DiskError::Failed(format!(
                    "the file '{NAME}' is missing: put it back from where this directory was copied"
                )));
            }
            opened => opened?,
        };
        let bytes = file.read_at(0, BYTES_MAX).await?;
        let text = String::from_utf8_lossy(&bytes);
        Starts::parse(&text).map_err(|why| DiskError::Failed(format!("the file '{NAME}': {why}")))
    }

    /// Writes the file, durably.
    ///
    /// # Errors
    /// What the disk says; then nothing has changed.
    pub async fn write(&self, dir: &dyn Dir) -> DiskResult<()> {
        write_text(dir, NAME, self.text()).await
    }
}

/// The text with its checksum, as its last line.
fn with_sum(body: String) -> String {
    let sum = block_sum(body.as_bytes());
    body + &format!("sum {sum:08x}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_looks_like_this() {
        let starts = Starts { begun: 7, complete: 6, ended: None };
        let text = "Azekura: the starts of one server's part\nbegun 7\ncomplete 6\njournal open\n";
        let summed = with_sum(text.into());
        assert!(summed.starts_with(text) && summed[text.len()..].starts_with("sum "), "{summed}");
        assert_eq!((starts.text(), Starts::parse(&summed)), (summed.clone(), Ok(starts)));
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
