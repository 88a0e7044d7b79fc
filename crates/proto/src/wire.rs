//! The codec: fixed-width little-endian fields in the order they are declared.
//!
//! Every message is declared once with [`wire_struct!`](crate::wire_struct) or
//! [`wire_enum!`](crate::wire_enum), which give its Rust type, its encoder and its
//! decoder. Decoders never panic, never read past the input and never set aside more
//! memory than the input could fill: a count is checked against the bytes that are left.

use std::fmt;
use std::sync::Arc;

/// The input does not decode: the expected item and its byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The item that was being read.
    pub what: &'static str,
    /// Offset in the input, in bytes.
    pub at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {} at byte {}", self.what, self.at)
    }
}

impl std::error::Error for Malformed {}

/// A cursor over received bytes.
pub struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input { bytes, at: 0 }
    }

    /// Bytes not yet read.
    #[inline]
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// An error at the current place.
    #[cold]
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, at: self.at }
    }

    /// The next `count` bytes.
    #[inline]
    pub fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        if count > self.left() {
            return Err(self.malformed(what));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let Some(array) = self.bytes[self.at..].first_chunk() else { return Err(self.malformed(what)) };
        self.at += N;
        Ok(*array)
    }

    /// Ends the reading; bytes that are left over are an error.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.left() == 0 { Ok(()) } else { Err(self.malformed("unexpected bytes at the end")) }
    }
}

/// What can be written to and read from the wire.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads one value.
    fn take(input: &mut Input<'_>) -> Result<Self, Malformed>;

    /// The whole encoding.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.put(&mut out);
        out
    }

    /// Decodes a value that fills `bytes` exactly.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(bytes);
        let value = Self::take(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}

macro_rules! wire_number {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
                Ok(<$number>::from_le_bytes(input.array(stringify!($number))?))
            }
        }
    )*};
}
wire_number!(u8, u16, u32, u64, i64);

impl Wire for bool {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    #[inline]
    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(input.malformed("a truth value that is neither 0 nor 1")),
        }
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        input.array("a byte array")
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                value.put(out);
            }
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        Ok(if bool::take(input)? { Some(T::take(input)?) } else { None })
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        T::take(input).map(Box::new)
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        T::take(input).map(Arc::new)
    }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).expect("a message holds fewer than 2^32 items: frames are limited far below").put(out);
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        for item in self {
            item.put(out);
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let count = u32::take(input)? as usize;
        // Every item takes at least one byte, so a count beyond the bytes left is a lie.
        if count > input.left() {
            return Err(input.malformed("a count larger than the message"));
        }
        let room = input.left() / std::mem::size_of::<T>().max(1);
        let mut items = Vec::with_capacity(count.min(room));
        for _ in 0..count {
            items.push(T::take(input)?);
        }
        Ok(items)
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let count = u32::take(input)? as usize;
        let bytes = input.bytes(count, "a text")?;
        String::from_utf8(bytes.to_vec()).map_err(|_| input.malformed("a text that is not UTF-8"))
    }
}

/// Opaque bytes with a length, kept apart from `Vec<u8>` so that they are copied whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob(pub Vec<u8>);

impl Wire for Blob {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        out.extend_from_slice(&self.0);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let count = u32::take(input)? as usize;
        Ok(Blob(input.bytes(count, "bytes")?.to_vec()))
    }
}

/// Declares a struct together with its encoding: its fields in order.
#[macro_export]
macro_rules! wire_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident : $type:ty),* $(,)? }) => {
        $(#[$meta])*
        pub struct $name { $($(#[$field_meta])* pub $field: $type),* }

        impl $crate::wire::Wire for $name {
            #[allow(unused_variables)]
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            #[allow(unused_variables)]
            fn take(input: &mut $crate::wire::Input<'_>) -> Result<Self, $crate::wire::Malformed> {
                Ok($name { $($field: $crate::wire::Wire::take(input)?),* })
            }
        }
    };
}

/// Declares an enum together with its encoding: a 16-bit tag, then the fields of the variant, which stand there or
/// in a struct of their own: that makes no difference on the wire.
/// A tag is never given a second meaning; a message that grows gets a new tag. The name of a
/// variant is available from `name()`, and `NAMES` lists all of them with their tags.
#[macro_export]
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $(
        $(#[$variant_meta:meta])* $tag:literal = $variant:ident $(($struct:ident))? $({ $($(#[$field_meta:meta])* $field:ident : $type:ty),* $(,)? })?
    ),* $(,)? }) => {
        $(#[$meta])*
        #[allow(missing_docs, reason = "fields are explained at the variant where their name does not")]
        pub enum $name { $($(#[$variant_meta])* $variant $(($struct))? $({ $($(#[$field_meta])* $field: $type),* })?),* }

        impl $name {
            /// Every variant's tag and name.
            pub const NAMES: &'static [(u16, &'static str)] = &[$(($tag, stringify!($variant))),*];

            /// The variant's tag on the wire.
            pub fn tag(&self) -> u16 {
                match self { $($name::$variant { .. } => $tag),* }
            }

            /// The variant's name, for counters and messages.
            pub fn name(&self) -> &'static str {
                match self { $($name::$variant { .. } => stringify!($variant)),* }
            }
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self { $(
                    $name::$variant $((fields @ $struct { .. }))? $({ $($field),* })? => {
                        $crate::wire::Wire::put(&($tag as u16), out);
                        $(<$struct as $crate::wire::Wire>::put(fields, out);)?
                        $($($crate::wire::Wire::put($field, out);)*)?
                    }
                )* }
            }
            fn take(input: &mut $crate::wire::Input<'_>) -> Result<Self, $crate::wire::Malformed> {
                let tag = <u16 as $crate::wire::Wire>::take(input)?;
                match tag {
                    $($tag => Ok($name::$variant
                        $((<$struct as $crate::wire::Wire>::take(input)?))?
                        $({ $($field: $crate::wire::Wire::take(input)?),* })?),)*
                    _ => Err(input.malformed(concat!("unknown kind of ", stringify!($name)))),
                }
            }
        }
    };
}

/// Declares a number type of its own, so that ids, counts and sizes are never mixed up.
#[macro_export]
macro_rules! wire_id {
    ($(#[$meta:meta])* pub struct $name:ident($number:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $number);

        impl $crate::wire::Wire for $name {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                $crate::wire::Wire::put(&self.0, out);
            }
            #[inline]
            fn take(input: &mut $crate::wire::Input<'_>) -> Result<Self, $crate::wire::Malformed> {
                Ok($name($crate::wire::Wire::take(input)?))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}
