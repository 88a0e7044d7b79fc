//! The file that says whose directory this is. It is text, so that a person can read it, too.

use aze_io::disk::{Dir, DiskError, DiskResult};

/// The file's name.
pub const NAME: &str = "volume";

/// The format of everything in the directory. A server refuses any other.
pub const FORMAT: u32 = 5;

/// The format where a server has several directories, which differs in this file only: so a program that
/// does not know of that refuses it.
pub const FORMAT_SEVERAL: u32 = 6;

/// First line of the file.
const TITLE: &str = "Azekura: one server's part of a volume";

/// Longest file of this kind; what is longer is none.
const BYTES_MAX: usize = 4096;

/// Which volume, which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The volume's number, drawn when it was made.
    pub volume: u64,
    /// Which of its servers.
    pub server: u16,
    /// Of how many.
    pub servers: u16,
    /// Number of shards.
    pub shards: u32,
    /// Base-2 logarithm of the chunk size.
    pub chunk_bits: u8,
    /// The owner.
    pub owner_uid: u32,
    /// Which of the server's directories; number 0 has its journal and checkpoints.
    pub directory: u16,
    /// Of how many.
    pub directories: u16,
}

impl Manifest {
    /// The format of what is in the directory.
    pub fn format(&self) -> u32 {
        if self.directories == 1 { FORMAT } else { FORMAT_SEVERAL }
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let Manifest { volume, server, servers, shards, chunk_bits, owner_uid, directory, directories } = self;
        let several = match directories {
            1 => String::new(),
            _ => format!("directory {directory}\ndirectories {directories}\n"),
        };
        format!(
            "{TITLE}\nformat {}\nvolume {volume:016x}\nserver {server}\nservers {servers}\nshards {shards}\n\
             chunk-bits {chunk_bits}\nowner {owner_uid}\n{several}",
            self.format()
        )
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(format!("the first line is not '{TITLE}'"));
        }
        let mut field = |name: &str| {
            let line = lines.next().unwrap_or_default();
            let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
            value.map(str::to_owned).ok_or_else(|| format!("expected a line '{name} …', found '{line}'"))
        };
        fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("'{name} {text}': not a number that fits"))
        }
        let format = field("format")?;
        let is_several = format == FORMAT_SEVERAL.to_string();
        if format != FORMAT.to_string() && !is_several {
            return Err(format!(
                "it is in format {format}, and this program knows formats {FORMAT} and {FORMAT_SEVERAL} only: use the \
                 version that wrote it"
            ));
        }
        let volume = field("volume")?;
        let manifest = Manifest {
            volume: u64::from_str_radix(&volume, 16).map_err(|_| format!("'volume {volume}': not a number"))?,
            server: number("server", &field("server")?)?,
            servers: number("servers", &field("servers")?)?,
            shards: number("shards", &field("shards")?)?,
            chunk_bits: number("chunk-bits", &field("chunk-bits")?)?,
            owner_uid: number("owner", &field("owner")?)?,
            directory: if is_several { number("directory", &field("directory")?)? } else { 0 },
            directories: if is_several { number("directories", &field("directories")?)? } else { 1 },
        };
        if is_several && (manifest.directories < 2 || manifest.directory >= manifest.directories) {
            return Err(format!("there is no directory {} of {}", manifest.directory, manifest.directories));
        }
        Ok(manifest)
    }

    /// Reads the file of a directory; `None` if it has none.
    ///
    /// # Errors
    /// What the disk says, and a file that is not such a one.
    pub async fn read(dir: &dyn Dir) -> DiskResult<Option<Manifest>> {
        let file = match dir.open(NAME).await {
            Ok(file) => file,
            Err(DiskError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = file.read_at(0, BYTES_MAX).await?;
        let text = String::from_utf8_lossy(&bytes);
        Manifest::parse(&text).map(Some).map_err(|why| DiskError::Failed(format!("the file '{NAME}': {why}")))
    }

    /// Writes the file, durably.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn write(&self, dir: &dyn Dir) -> DiskResult<()> {
        super::write_text(dir, NAME, self.text()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: Manifest = Manifest {
        volume: 0xfeed,
        server: 2,
        servers: 4,
        shards: 4096,
        chunk_bits: 20,
        owner_uid: 1000,
        directory: 0,
        directories: 1,
    };

    #[test]
    fn the_file_looks_like_this() {
        let text = "Azekura: one server's part of a volume\nformat 5\nvolume 000000000000feed\nserver 2\n\
                    servers 4\nshards 4096\nchunk-bits 20\nowner 1000\n";
        assert_eq!(MANIFEST.text(), text);
        assert_eq!(Manifest::parse(text), Ok(MANIFEST));
        let several = Manifest { directory: 1, directories: 3, ..MANIFEST };
        let text = text.replace("format 5", "format 6") + "directory 1\ndirectories 3\n";
        assert_eq!(several.text(), text);
        assert_eq!(Manifest::parse(&text), Ok(several));
        for wrong in ["directory 3", "directory x", "directories 1"] {
            let text = match wrong.starts_with("directory ") {
                true => text.replace("directory 1", wrong),
                false => text.replace("directories 3", wrong),
            };
            assert!(Manifest::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn another_format_is_refused() {
        let why = Manifest::parse(&MANIFEST.text().replace("format 5", "format 2")).unwrap_err();
        assert!(why.contains("format 2") && why.contains("formats 5 and 6 only"), "{why}");
        for text in ["", "something else\n", &MANIFEST.text().replace("shards 4096", "shards many")] {
            assert!(Manifest::parse(text).is_err(), "{text}");
        }
    }
}
