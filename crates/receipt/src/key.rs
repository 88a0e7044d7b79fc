//! The key with which a user signs receipts: its place, its readers, and the messages that it signs.

use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::hex;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What every signed message begins with: a signature of a receipt is one of nothing else.
const CONTEXT: &[u8] = b"azekura receipt 1 signature\0";

/// What the hash begins with that makes the short id of a key.
const ID_CONTEXT: &[u8] = b"azekura key id\0";

/// The first line of a key's file.
const FIRST_LINE: &str = "azekura key 1";

/// Bytes of a file that is taken for a key, at most.
const FILE_BYTES_MAX: u64 = 4096;

/// The key of a user, with which receipts are signed (Ed25519, RFC 8032).
pub struct Key(SigningKey);

/// What everybody may know of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl Key {
    /// Where a user's key lies: `$XDG_CONFIG_HOME/azekura/key`, or `~/.config/azekura/key`.
    ///
    /// # Errors
    /// Neither variable is set.
    pub fn place() -> Outcome<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
        let missing = || Trouble::new(Exit::Caller, "find the key: neither XDG_CONFIG_HOME nor HOME is set: set one");
        Ok(config.ok_or_else(missing)?.join("azekura/key"))
    }

    /// Reads a key, or makes it if there is none; `true` if it is new.
    ///
    /// # Errors
    /// It cannot be read or made, others than its owner may read or write it, or it is no key.
    pub fn at(path: &Path) -> Outcome<(Key, bool)> {
        if let Some(key) = Key::read(path)? {
            return Ok((key, false));
        }
        let is_ours = Key::make(path)?;
        let missing = || Trouble::new(Exit::Again, format!("read key {}: it went while it was read", path.display()));
        Ok((Key::read(path)?.ok_or_else(missing)?, is_ours))
    }

    fn read(path: &Path) -> Outcome<Option<Key>> {
        let during = || format!("read key {}", path.display());
        let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Trouble::local(during(), &error)),
        };
        let meta = file.metadata().map_err(|error| Trouble::local(during(), &error))?;
        if !meta.is_file() {
            return Err(Trouble::new(Exit::Caller, format!("{}: it is no file", during())));
        }
        let (own, mode) = (aze_io::real::own_ids().0, meta.mode() & 0o7777);
        if meta.uid() != own || mode & 0o077 != 0 {
            let owner = meta.uid();
            let text = format!(
                "{}: mode {mode:04o}, owner {owner}: only user {own} may be able to read or write it: 'chmod 600' it, and \
                 make a new key if others may have read it",
                during()
            );
            return Err(Trouble::new(Exit::Denied, text));
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| Trouble::local(during(), &error))?;
        let secret = text.strip_prefix(FIRST_LINE).and_then(|rest| hex::read(rest.trim()));
        let secret: Option<[u8; 32]> = secret.and_then(|bytes| bytes.try_into().ok());
        let bad = || {
            let text = format!("{}: it is no key: move it away, and 'aze key' makes a new one", during());
            Trouble::new(Exit::Caller, text)
        };
        Ok(Some(Key(SigningKey::from_bytes(&secret.ok_or_else(bad)?))))
    }

    /// Makes a new key, whole or not at all; `false` if another process was first.
    fn make(path: &Path) -> Outcome<bool> {
        let failed = |error: std::io::Error| Trouble::local(format!("make key {}", path.display()), &error);
        let dir = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let mut random = [0; 40];
        aze_io::real::fill_random(&mut random);
        let (secret, unique) = random.split_at(32);
        let temporary = dir.join(format!(".key-{}", hex::write(unique)));
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            writeln!(file, "{FIRST_LINE}\n{}", hex::write(secret))?;
            file.sync_all()?;
            // A link replaces no key that another process has made meanwhile.
            let made = match fs::hard_link(&temporary, path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
                linked => linked.map(|()| true)?,
            };
            File::open(dir)?.sync_all()?;
            Ok(made)
        };
        let made = write();
        let removed = fs::remove_file(&temporary);
        let is_ours = made.map_err(failed)?;
        removed.map_err(failed)?;
        Ok(is_ours)
    }

    /// What others may know of it.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs the hash of a receipt's lines; 64 bytes.
    pub fn sign(&self, hash: &crate::Hash) -> [u8; 64] {
        self.0.sign(&[CONTEXT, &hash.0].concat()).to_bytes()
    }
}

impl PublicKey {
    /// Of 64 hexadecimal digits.
    pub fn read(text: &str) -> Option<PublicKey> {
        let bytes: [u8; 32] = hex::read(text)?.try_into().ok()?;
        VerifyingKey::from_bytes(&bytes).ok().filter(|key| !key.is_weak()).map(PublicKey)
    }

    /// A short name for people: 16 hexadecimal digits. Too short to prove an origin: that takes the whole key.
    pub fn id(&self) -> String {
        hex::write(&crate::Hash::of(&[ID_CONTEXT, self.0.as_bytes()].concat()).0[..8])
    }

    /// Whether the owner of the key has signed this hash.
    pub fn has_signed(&self, hash: &crate::Hash, signature: &[u8; 64]) -> bool {
        self.0.verify_strict(&[CONTEXT, &hash.0].concat(), &Signature::from_bytes(signature)).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::write(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hash;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(test: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("aze-key-{test}-{}", std::process::id()));
        fs::create_dir(&dir).expect("a new directory");
        dir
    }

    #[test]
    fn a_key_is_made_once_and_read_by_its_owner_only() {
        let dir = scratch("once");
        let path = dir.join("below/key");
        let (key, is_new) = Key::at(&path).expect("a key");
        let (again, is_new_again) = Key::at(&path).expect("the same key");
        assert_eq!((is_new, is_new_again, again.public()), (true, false, key.public()));
        assert_eq!(fs::read_dir(dir.join("below")).expect("a directory").count(), 1, "nothing else is left");
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        for loose in [0o640, 0o604, 0o620, 0o602, 0o610] {
            mode(loose);
            let refused = Key::at(&path).err().expect("a loose mode is refused");
            assert_eq!(refused.exit, Exit::Denied);
            assert!(refused.text.contains(&format!("{loose:04o}")), "{refused}");
        }
        mode(0o600);
        fs::write(&path, "azekura key 1\n00\n").expect("a short key");
        assert_eq!(Key::at(&path).err().map(|refused| refused.exit), Some(Exit::Caller));
        fs::remove_dir_all(&dir).expect("the directory goes");
    }

    #[test]
    fn a_signature_is_of_one_hash_and_one_key() {
        let dir = scratch("sign");
        let (key, other) = (Key::at(&dir.join("one")).expect("a key").0, Key::at(&dir.join("two")).expect("a key").0);
        let hash = Hash::of(b"lines");
        let signature = key.sign(&hash);
        assert!(key.public().has_signed(&hash, &signature));
        assert!(!other.public().has_signed(&hash, &signature));
        assert!(!key.public().has_signed(&Hash::of(b"line"), &signature));
        for bit in 0..512 {
            let mut changed = signature;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.public().has_signed(&hash, &changed), "bit {bit}");
        }
        assert_eq!(PublicKey::read(&key.public().to_string()), Some(key.public()));
        assert_eq!((PublicKey::read("00"), key.public().id().len()), (None, 16));
        fs::remove_dir_all(&dir).expect("the directory goes");
    }
}
