//! Names of extended attributes, as xattr(7) has them: in which namespace one is, and so who may ask for it.

use crate::error::{Code, Failure};
use crate::limits::XATTR_NAME_BYTES_MAX;
use crate::wire::Blob;
use crate::wire_struct;

/// The access control list that decides who may do what.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The access control list of a directory that new files in it inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

wire_struct! {
    /// One extended attribute.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Xattr {
        /// With its namespace, as in `user.comment`.
        pub name: Blob,
        /// Any bytes.
        pub value: Blob,
    }
}

/// A namespace of extended attributes that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSpace {
    /// `user.`: for users who may read the file, or write it.
    User,
    /// `trusted.`: for root.
    Trusted,
    /// `security.`: for all to read, for root to change.
    Security,
    /// An access control list.
    Acl {
        /// Whether it is the default one of a directory.
        default: bool,
    },
}

impl XattrSpace {
    /// That of a name.
    ///
    /// # Errors
    /// `OutOfRange` (the name's length), `Unsupported` (another namespace).
    pub fn of(name: &[u8]) -> Result<XattrSpace, Failure> {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            let detail = format!("a name of {} bytes: 1 to {XATTR_NAME_BYTES_MAX} are possible", name.len());
            return Err(Failure::new(Code::OutOfRange, detail));
        }
        let inner = |prefix: &[u8]| name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
        match name {
            ACL_ACCESS => Ok(XattrSpace::Acl { default: false }),
            ACL_DEFAULT => Ok(XattrSpace::Acl { default: true }),
            _ if inner(b"user.") => Ok(XattrSpace::User),
            _ if inner(b"trusted.") => Ok(XattrSpace::Trusted),
            _ if inner(b"security.") => Ok(XattrSpace::Security),
            _ => {
                let detail = format!("extended attribute '{}': its namespace is not kept here", name.escape_ascii());
                Err(Failure::new(Code::Unsupported, detail))
            }
        }
    }
}

/// That a file has no attribute of this name.
pub fn absent(name: &[u8]) -> Failure {
    Failure::new(Code::NoAttribute, format!("'{}'", name.escape_ascii()))
}
