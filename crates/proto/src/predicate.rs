//! Which entries a search finds, and shell patterns.

use crate::attr::{Attr, FileKind};
use crate::ids::Time;
use crate::name::Name;
use crate::wire::Blob;
use crate::wire_struct;

wire_struct! {
    /// What a search looks for; every part that is there must hold.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Predicate {
        /// Shell pattern for the name (`*`, `?`, `[a-z]`, `[!a]`, `\x`), as in glob(7).
        pub name: Option<Blob>,
        /// Kind of file.
        pub kind: Option<FileKind>,
        /// Least length in bytes.
        pub size_min: Option<u64>,
        /// Greatest length in bytes.
        pub size_max: Option<u64>,
        /// Modified later than this.
        pub newer_than: Option<Time>,
        /// Modified earlier than this.
        pub older_than: Option<Time>,
        /// Owner.
        pub uid: Option<u32>,
    }
}

impl Predicate {
    /// Whether name and kind fit; the rest needs attributes.
    pub fn fits_name(&self, name: &Name, kind: FileKind) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && self.name.as_ref().is_none_or(|pattern| glob(&pattern.0, name.as_bytes()))
    }

    /// Whether anything but name and kind is asked for.
    pub fn needs_attr(&self) -> bool {
        let Predicate { name: _, kind: _, size_min, size_max, newer_than, older_than, uid } = self;
        size_min.is_some() || size_max.is_some() || newer_than.is_some() || older_than.is_some() || uid.is_some()
    }

    /// Whether the attributes fit.
    pub fn fits_attr(&self, attr: &Attr) -> bool {
        self.size_min.is_none_or(|min| attr.size >= min)
            && self.size_max.is_none_or(|max| attr.size <= max)
            && self.newer_than.is_none_or(|time| attr.mtime > time)
            && self.older_than.is_none_or(|time| attr.mtime < time)
            && self.uid.is_none_or(|uid| attr.uid == uid)
    }
}

/// Shell pattern matching on bytes, glob(7) without the rule about leading dots.
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how far the text had been taken by it.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some(b'?') => Some(p + 1),
            Some(b'[') => class(pattern, p, text[t]),
            Some(b'\\') if p + 1 < pattern.len() => (pattern[p + 1] == text[t]).then_some(p + 2),
            Some(byte) => (*byte == text[t]).then_some(p + 1),
            None => None,
        };
        match (step, star) {
            (Some(next), _) => (p, t) = (next, t + 1),
            (None, Some((star_p, star_t))) => {
                star = Some((star_p, star_t + 1));
                (p, t) = (star_p + 1, star_t + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Matches a bracket expression that starts at `open`; gives the place after it.
fn class(pattern: &[u8], open: usize, byte: u8) -> Option<usize> {
    let mut at = open + 1;
    let negated = matches!(pattern.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let first = at;
    let mut hit = false;
    loop {
        match pattern.get(at) {
            // An unclosed bracket stands for itself.
            None => return (byte == b'[').then_some(open + 1),
            Some(b']') if at > first => return (hit != negated).then_some(at + 1),
            Some(low) => match pattern.get(at + 1..at + 3) {
                Some([b'-', high]) if *high != b']' => {
                    hit |= (*low..=*high).contains(&byte);
                    at += 3;
                }
                _ => {
                    hit |= *low == byte;
                    at += 1;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_the_shell() {
        for (pattern, text, fits) in [
            ("*01*", "mdtest.01.7", true),
            ("*.rs", "a.rs", true),
            ("*.rs", "a.rss", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[", "[", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("**a*b", "xxaxxb", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} on {text}");
        }
    }
}
