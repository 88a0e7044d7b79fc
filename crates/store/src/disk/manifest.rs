//! The file that says whose directory this is. It is text, so that a person can read it, too.

use super::text::{self, Fields};
use aze_io::disk::{Dir, DiskError, DiskResult};

/// The file's name.
pub const NAME: &str = "volume";

/// What the file is called when its server has left the volume.
pub const LEFT: &str = "volume.left";

/// Marks a directory: its server has left the volume, and it is no part of that any more.
///
/// # Errors
/// The disk's error.
pub async fn leave(dir: &dyn Dir) -> DiskResult<()> {
    match dir.rename(NAME, LEFT).await {
        // It was marked before.
        Err(DiskError::NotFound(_)) => {}
        renamed => renamed?,
    }
    dir.sync().await
}

/// What a marked directory was a part of.
///
/// # Errors
/// The disk's error, and a file that cannot be parsed.
pub async fn read_left(dir: &dyn Dir) -> DiskResult<Option<Manifest>> {
    text::read(dir, LEFT, |text| Manifest::parse(text).map_err(DiskError::Failed)).await
}

/// The format of everything in the directory. A server refuses any other.
pub const FORMAT: u32 = 15;

/// The format where a server has several directories, which differs in this file only: so a program that
/// does not know of that refuses it.
pub const FORMAT_SEVERAL: u32 = 16;

/// First line of the file.
const TITLE: &str = "Azekura: one server's part of a volume";

/// Which volume, which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The volume's number, drawn when it was made.
    pub volume: u64,
    /// Which of its servers.
    pub server: u16,
    /// Of how many.
    pub servers: u16,
    /// Number of shards when the volume was made.
    pub shards: u32,
    /// Number of slots: shard s is in slot s mod this.
    pub slots: u32,
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
    /// The format of the directory's files.
    pub fn format(&self) -> u32 {
        if self.directories == 1 { FORMAT } else { FORMAT_SEVERAL }
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let Manifest { volume, server, servers, shards, slots, chunk_bits, owner_uid, directory, directories } = self;
        let several = match directories {
            1 => String::new(),
            _ => format!("directory {directory}\ndirectories {directories}\n"),
        };
        format!(
            "{TITLE}\nformat {}\nvolume {volume:016x}\nserver {server}\nservers {servers}\nshards {shards}\nslots {slots}\n\
             chunk-bits {chunk_bits}\nowner {owner_uid}\n{several}",
            self.format()
        )
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let mut fields = Fields::new(text, TITLE)?;
        let format = fields.value("format")?;
        let is_several = format == FORMAT_SEVERAL.to_string();
        if format != FORMAT.to_string() && !is_several {
            return Err(format!(
                "it is in format {format}, and this program knows formats {FORMAT} and {FORMAT_SEVERAL} only: use the \
                 version that wrote it"
            ));
        }
        let volume = fields.value("volume")?;
        let manifest = Manifest {
            volume: u64::from_str_radix(volume, 16).map_err(|_| format!("'volume {volume}': not a number"))?,
            server: fields.number("server")?,
            servers: fields.number("servers")?,
            shards: fields.number("shards")?,
            slots: fields.number("slots")?,
            chunk_bits: fields.number("chunk-bits")?,
            owner_uid: fields.number("owner")?,
            directory: if is_several { fields.number("directory")? } else { 0 },
            directories: if is_several { fields.number("directories")? } else { 1 },
        };
        // A letter of the volume's number in the other case is damage, too.
        if manifest.text() != text {
            return Err("it is not as this program writes it".into());
        }
        if is_several && (manifest.directories < 2 || manifest.directory >= manifest.directories) {
            return Err(format!("there is no directory {} of {}", manifest.directory, manifest.directories));
        }
        Ok(manifest)
    }

    /// Reads the file of a directory; `None` if it has none.
    ///
    /// # Errors
    /// The disk's error; [`DiskError::Unfit`] for another version's file, and [`DiskError::Failed`] for one that is damaged.
    pub async fn read(dir: &dyn Dir) -> DiskResult<Option<Manifest>> {
        text::read(dir, NAME, |text| {
            let format = Fields::new(text, TITLE).and_then(|mut fields| fields.number("format"));
            let is_of_another_version = format.is_ok_and(|format: u32| ![FORMAT, FORMAT_SEVERAL].contains(&format));
            let wrong = if is_of_another_version { DiskError::Unfit } else { DiskError::Failed };
            Manifest::parse(text).map_err(wrong)
        })
        .await
    }

    /// Writes the file, durably.
    ///
    /// # Errors
    /// The disk's error.
    pub async fn write(&self, dir: &dyn Dir) -> DiskResult<()> {
        text::write(dir, NAME, self.text()).await
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
        slots: 32,
        chunk_bits: 20,
        owner_uid: 1000,
        directory: 0,
        directories: 1,
    };

    #[test]
    fn the_file_looks_like_this() {
        let text = "Azekura: one server's part of a volume\nformat 15\nvolume 000000000000feed\nserver 2\n\
                    servers 4\nshards 4096\nslots 32\nchunk-bits 20\nowner 1000\n";
        assert_eq!(MANIFEST.text(), text);
        assert_eq!(Manifest::parse(text), Ok(MANIFEST));
        assert!(Manifest::parse(&text.replace("feed", "fEed")).is_err());
        let several = Manifest { directory: 1, directories: 3, ..MANIFEST };
        let text = text.replace("format 15", "format 16") + "directory 1\ndirectories 3\n";
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
        let why = Manifest::parse(&MANIFEST.text().replace("format 15", "format 14")).unwrap_err();
        assert!(why.contains("format 14") && why.contains("formats 15 and 16 only"), "{why}");
        for text in ["", "something else\n", &MANIFEST.text().replace("shards 4096", "shards many")] {
            assert!(Manifest::parse(text).is_err(), "{text}");
        }
    }
}
