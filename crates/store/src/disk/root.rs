//! The file with the rights of the root directory, as its home has told every server: if that is left out of a start, names in the root are
//! found by them.

use super::text::{self, Fields, with_sum};
use aze_io::disk::{Dir, DiskError, DiskResult};
use aze_proto::Stub;
use aze_proto::wire::Wire;

/// The file's name.
pub const NAME: &str = "root";

/// First line of the file.
const TITLE: &str = "Azekura: the rights of the root directory";

fn text(stub: &Stub) -> String {
    let hex: String = stub.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    with_sum(format!("{TITLE}\nrights {hex}\n"))
}

fn parse(text: &str) -> Result<Stub, String> {
    let mut fields = Fields::new(text, TITLE)?;
    let body = text.rsplit_once("sum ").map_or(text, |(body, _)| body);
    if with_sum(body.into()) != text {
        return Err("it does not match its checksum".into());
    }
    let hex = fields.value("rights")?;
    let byte = |at: usize| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
    Stub::from_bytes(&bytes.ok_or("the rights are no bytes in hexadecimal")?).map_err(|why| why.to_string())
}

/// Reads the file of a directory; `None` if there is none.
///
/// # Errors
/// The disk's error, and a file that cannot be parsed.
pub async fn read(dir: &dyn Dir) -> DiskResult<Option<Stub>> {
    text::read(dir, NAME, |text| parse(text).map_err(DiskError::Failed)).await
}

/// Writes the file, durably.
///
/// # Errors
/// The disk's error; then the file has its old text.
pub async fn write(dir: &dyn Dir, stub: &Stub) -> DiskResult<()> {
    text::write(dir, NAME, text(stub)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::{Ino, MapEpoch, Time};

    #[test]
    fn the_file_has_the_rights() {
        let (mode, born, chunk_bits, version) = (0o2750, MapEpoch(1), 16, 9);
        let (uid, gid, acl, default_acl, is_behind) = (7, 8, None, None, false);
        let (mtime, ctime) = (Time(10), Time(11));
        let stub = Stub {
            ino: Ino::ROOT,
            mode,
            uid,
            gid,
            born,
            chunk_bits,
            acl,
            default_acl,
            is_behind,
            version,
            mtime,
            ctime,
        };
        let whole = text(&stub);
        assert_eq!(parse(&whole), Ok(stub));
        for wrong in [String::new(), whole.replace("rights 0", "rights 1"), whole.replace("rights", "right")] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
        assert!(parse(&with_sum(format!("{TITLE}\nrights zz\n"))).unwrap_err().contains("hexadecimal"));
    }
}
