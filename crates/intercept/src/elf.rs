//! Objects that the loader has put into this process: which functions one defines, and where it keeps the addresses of
//! functions of others.
//!
//! It alone knows the tables of ELF (elf(5)), and reads them where they lie in memory.

use crate::host;

/// Kinds of program headers: the loader's table, the headers themselves, the part that the loader seals.
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const PT_GNU_RELRO: u32 = 0x6474_e552;

/// Bytes of a program header, of a symbol, and of a relocation.
const HEADER_BYTES: u64 = 56;
const SYMBOL_BYTES: u64 = 24;
const RELOCATION_BYTES: u64 = 24;

/// Relocations that put the address of a symbol down, as it is.
const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

/// A symbol's version is not the one that new programs get.
const VERSION_HIDDEN: u16 = 0x8000;

/// A symbol whose address a function gives (STT_GNU_IFUNC).
const KIND_INDIRECT: u8 = 10;

const PAGE_BYTES: u64 = 4096;

/// An object in memory.
pub struct Object {
    base: u64,
    /// Address of its table for the loader.
    pub dynamic: u64,
    /// What the loader has made read-only, in whole pages.
    pub sealed: (u64, u64),
    symbols: u64,
    strings: u64,
    versions: u64,
    hash: u64,
    /// Beginning and bytes.
    relocations: [(u64, u64); 2],
}

impl Object {
    /// The object whose program headers lie at `headers`. `None` if it has no table for the loader.
    pub fn of(base: u64, headers: u64, count: u64) -> Option<Object> {
        let mut object = Object {
            base,
            dynamic: 0,
            sealed: (0, 0),
            symbols: 0,
            strings: 0,
            versions: 0,
            hash: 0,
            relocations: [(0, 0); 2],
        };
        for at in (0..count).map(|index| headers + index * HEADER_BYTES) {
            let (address, bytes) = (base + host::read::<u64>(at + 16), host::read::<u64>(at + 40));
            match host::read::<u32>(at) {
                PT_DYNAMIC => object.dynamic = address,
                PT_GNU_RELRO => object.sealed = (address & !(PAGE_BYTES - 1), (address + bytes) & !(PAGE_BYTES - 1)),
                _ => {}
            }
        }
        if object.dynamic == 0 {
            return None;
        }
        object.read_tables();
        Some(object)
    }

    /// The loader, by the vector that the kernel has given this process (getauxval(3)): the values of AT_BASE and AT_PHDR.
    pub fn loader(base: u64, headers: u64) -> Option<Object> {
        if base != 0 {
            return Object::of(base, base + host::read::<u64>(base + 32), u64::from(host::read::<u16>(base + 56)));
        }
        // The loader was called as a program: the headers are its own. The first one says where they lie.
        let is_first = headers != 0 && host::read::<u32>(headers) == PT_PHDR;
        is_first
            .then(|| headers - host::read::<u64>(headers + 16))
            .and_then(|base| Object::of(base, headers, u64::from(host::read::<u16>(base + 56))))
    }

    fn read_tables(&mut self) {
        let mut at = self.dynamic;
        loop {
            let (tag, value): (u64, u64) = (host::read(at), host::read(at + 8));
            // glibc's loader has made these addresses; others leave them as distances.
            let address = if value < self.base { self.base + value } else { value };
            match tag {
                0 => return,
                2 => self.relocations[1].1 = value,
                5 => self.strings = address,
                6 => self.symbols = address,
                7 => self.relocations[0].0 = address,
                8 => self.relocations[0].1 = value,
                23 => self.relocations[1].0 = address,
                0x6fff_fff0 => self.versions = address,
                0x6fff_fef5 => self.hash = address,
                _ => {}
            }
            at += 16;
        }
    }

    fn name(&self, symbol: u64) -> &'static [u8] {
        host::string(self.strings + u64::from(host::read::<u32>(symbol)), usize::MAX)
    }

    /// The address of a symbol that this object defines, of the version that new programs get, or of the only one.
    pub fn find(&self, name: &[u8], hash: u32) -> Option<u64> {
        if self.hash == 0 || self.symbols == 0 {
            return None;
        }
        let word = |index: u64| u64::from(host::read::<u32>(self.hash + 4 * index));
        let (buckets, first, filters, shift) = (word(0), word(1), word(2), word(3));
        if buckets == 0 || filters == 0 {
            return None;
        }
        let filter: u64 = host::read(self.hash + 16 + 8 * (u64::from(hash / 64) % filters));
        let both = 1 << (hash % 64) | 1 << ((hash >> shift) % 64);
        if filter & both != both {
            return None;
        }
        let chains = 4 + 2 * filters + buckets;
        let mut index = word(4 + 2 * filters + u64::from(hash) % buckets);
        if index < first {
            return None;
        }
        let mut older = None;
        loop {
            let entry = word(chains + index - first) as u32;
            let symbol = self.symbols + index * SYMBOL_BYTES;
            if entry | 1 == hash | 1 && self.name(symbol) == name && is_defined(symbol) {
                let address = self.base + host::read::<u64>(symbol + 8);
                if self.versions == 0 || host::read::<u16>(self.versions + 2 * index) & VERSION_HIDDEN == 0 {
                    return Some(address);
                }
                older = Some(address);
            }
            if entry & 1 == 1 {
                return older;
            }
            index += 1;
        }
    }

    /// Tells each place where this object keeps the address of a named symbol.
    pub fn references(&self, mut each: impl FnMut(&[u8], u64)) {
        for (table, bytes) in self.relocations.iter().filter(|(table, _)| *table != 0) {
            for at in (0..bytes / RELOCATION_BYTES).map(|index| table + index * RELOCATION_BYTES) {
                let info: u64 = host::read(at + 8);
                let (kind, symbol) = (info as u32, info >> 32);
                let is_plain = kind == R_X86_64_64 && host::read::<u64>(at + 16) == 0;
                if symbol != 0 && (is_plain || matches!(kind, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT)) {
                    each(self.name(self.symbols + symbol * SYMBOL_BYTES), self.base + host::read::<u64>(at));
                }
            }
        }
    }
}

fn is_defined(symbol: u64) -> bool {
    let kind = host::read::<u8>(symbol + 4) & 0xf;
    kind != KIND_INDIRECT && host::read::<u16>(symbol + 6) != 0 && host::read::<u64>(symbol + 8) != 0
}

/// The hash by which an object's table is looked through.
pub const fn hash(name: &[u8]) -> u32 {
    let mut hash = 5381u32;
    let mut at = 0;
    while at < name.len() {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loader exports the list of this process's objects.
    #[test]
    fn functions_of_loaded_objects_are_found() {
        // SAFETY: constants of this process.
        let (base, headers) = unsafe { (libc::getauxval(libc::AT_BASE), libc::getauxval(libc::AT_PHDR)) };
        let loader = Object::loader(base, headers).expect("a loader");
        let debug = loader.find(b"_r_debug", hash(b"_r_debug")).expect("the loader's list");
        assert_ne!(host::read::<u64>(debug + 8), 0);
        assert_eq!(loader.find(b"_r_debugs", hash(b"_r_debugs")), None);
        assert_eq!(hash(b"printf"), 0x156b_2bb8, "the hash of the format's description");
    }
}
