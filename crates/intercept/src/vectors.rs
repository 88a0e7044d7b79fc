//! Parts of the host's memory that one call reads or writes in their order.

use crate::host::{self, error};

/// Most parts of a call, as in the kernel (IOV_MAX).
const PARTS_MAX: u64 = 1024;

/// Most bytes of a call, as in the kernel.
const BYTES_MAX: u64 = 0x7fff_f000;

/// The rest of the parts.
pub struct Vectors {
    /// Where the parts after the current one are written, as struct iovec.
    next: u64,
    parts: u64,
    /// The current part.
    at: u64,
    here: u64,
    /// Bytes of all parts.
    left: u64,
}

impl Vectors {
    /// One part. EFAULT if it cannot be memory.
    pub fn one(at: u64, bytes: u64) -> Result<Vectors, i64> {
        if bytes > 0 && !host::is_memory(at) {
            return Err(error(libc::EFAULT));
        }
        Ok(Vectors { next: 0, parts: 0, at, here: bytes, left: bytes })
    }

    /// The parts of an array of struct iovec.
    pub fn many(array: u64, parts: u64) -> Result<Vectors, i64> {
        if parts > PARTS_MAX {
            return Err(error(libc::EINVAL));
        }
        if parts > 0 && !host::is_memory(array) {
            return Err(error(libc::EFAULT));
        }
        let mut left = 0u64;
        for part in 0..parts {
            let [at, bytes] = host::read::<[u64; 2]>(array + part * 16);
            if bytes > i64::MAX as u64 {
                return Err(error(libc::EINVAL));
            }
            if bytes > 0 && !host::is_memory(at) {
                return Err(error(libc::EFAULT));
            }
            left = left.saturating_add(bytes);
        }
        Ok(Vectors { next: array, parts, at: 0, here: 0, left: left.min(BYTES_MAX) })
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Leaves out what comes after so many bytes.
    pub fn cut(&mut self, bytes: u64) {
        self.left = self.left.min(bytes);
    }

    /// Copies `bytes` from `from` to the parts.
    pub fn put(&mut self, from: u64, bytes: u64) {
        self.each(bytes, |at, done, count| host::copy(at, from + done, count as usize));
    }

    /// Copies `bytes` from the parts to `to`.
    pub fn take(&mut self, to: u64, bytes: u64) {
        self.each(bytes, |at, done, count| host::copy(to + done, at, count as usize));
    }

    fn each(&mut self, bytes: u64, mut step: impl FnMut(u64, u64, u64)) {
        let mut done = 0;
        let bytes = bytes.min(self.left);
        while done < bytes {
            if self.here == 0 {
                if self.parts == 0 {
                    return;
                }
                [self.at, self.here] = host::read::<[u64; 2]>(self.next);
                self.next += 16;
                self.parts -= 1;
                continue;
            }
            let count = self.here.min(bytes - done);
            step(self.at, done, count);
            self.at += count;
            self.here -= count;
            self.left -= count;
            done += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_filled_in_their_order_over_several_windows() {
        let mut parts = [[0u8; 3], [0u8; 3], [0u8; 3]];
        let empty = [4096u64, 0];
        let array: Vec<[u64; 2]> =
            parts.iter_mut().map(|part| [part.as_mut_ptr() as u64, 3]).flat_map(|part| [part, empty]).collect();
        let mut vectors = Vectors::many(array.as_ptr() as u64, 6).expect("parts");
        assert_eq!(vectors.left(), 9);
        vectors.put(b"abcd".as_ptr() as u64, 4);
        vectors.put(b"efg".as_ptr() as u64, 3);
        assert_eq!(vectors.left(), 2);
        assert_eq!(parts, [*b"abc", *b"def", *b"g\0\0"]);
        let mut back = Vectors::many(array.as_ptr() as u64, 6).expect("parts");
        let mut window = [0u8; 9];
        back.take(window.as_mut_ptr() as u64, 5);
        back.take(window[5..].as_mut_ptr() as u64, 4);
        assert_eq!(&window, b"abcdefg\0\0");
        let mut cut = Vectors::many(array.as_ptr() as u64, 6).expect("parts");
        cut.cut(4);
        cut.take(window.as_mut_ptr() as u64, 9);
        assert_eq!((cut.left(), &window[..4]), (0, &b"abcd"[..]));
    }

    #[test]
    fn bad_parts_are_refused() {
        let array = [[0u64, 5]];
        assert_eq!(Vectors::many(array.as_ptr() as u64, 1).err(), Some(error(libc::EFAULT)));
        let array = [[4096u64, u64::MAX]];
        assert_eq!(Vectors::many(array.as_ptr() as u64, 1).err(), Some(error(libc::EINVAL)));
        assert_eq!(Vectors::many(array.as_ptr() as u64, 1025).err(), Some(error(libc::EINVAL)));
        assert_eq!(Vectors::one(0, 1).err(), Some(error(libc::EFAULT)));
        assert!(Vectors::one(0, 0).is_ok() && Vectors::many(0, 0).is_ok());
    }
}
