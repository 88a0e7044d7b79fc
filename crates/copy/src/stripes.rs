//! Files over several servers of a parallel file system: how many of these a new file takes, and what that means for a stage.
//!
//! It alone reads layouts of Lustre. Each file that is made asks all servers of its stripes, so that files and stripes together can overload them (Tsujita
//! et al., 2017-HPC-162-12, figures 5 to 7: many files are slower with more stripes, one large file is faster). There is no Lustre where this was
//! made: bytes of layouts in the tests are written by hand, after `lustre_user.h`.

use crate::tree::Meta;
use aze_io::real::files;
use aze_proto::attr::FileKind;
use aze_words::size;
use std::fs::File;
use std::path::Path;

/// Stripes of all files that are being made at the same time, at most; a file with more is made alone. The 16 jobs of a stage have these with 8 stripes each.
pub const STRIPES_AT_ONCE_MAX: u32 = 128;

/// What one server may hold of a file before more stripes are advised.
const BYTES_PER_STRIPE: u64 = 16 << 30;

/// Most stripes that are advised.
const ADVISED_MAX: u64 = 64;

/// From so many small files on one stripe is advised, where each of them would have several.
const SMALL_FILES_MIN: u64 = 1000;

/// What statfs(2) says of Lustre.
const LUSTRE: i64 = 0x0bd0_0bd0;

/// The extended attribute that has the layout of new files in a directory.
const LAYOUT_XATTR: &[u8] = b"lustre.lov";

/// How layouts begin that have the same stripes for all of a file: LOV_USER_MAGIC_V1, _V3 and _SPECIFIC.
const PLAIN: [u32; 3] = [0x0bd1_0bd0, 0x0bd3_0bd0, 0x0bd5_0bd0];

/// Where their size and number of stripes are.
const STRIPE_BYTES_AT: usize = 24;
const STRIPE_COUNT_AT: usize = 28;

/// Over all servers; how many these are the layout does not say.
const OVER_ALL: u16 = u16::MAX;

/// New files of a directory on a parallel file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Servers of each file. Over all servers: [`STRIPES_AT_ONCE_MAX`], since it is not told how many there are.
    pub count: u32,
    /// Bytes that one server gets before it is the next one's turn.
    pub bytes: u64,
}

/// The stripes of new files in a directory; `None` where that is not Lustre, or its layout depends on the length of a file.
pub(crate) fn of_dir(dir: &Path) -> Option<Stripes> {
    if files::file_system_kind(dir).ok()? != LUSTRE {
        return None;
    }
    // Without a layout of its own the file system's default counts, of one stripe unless set otherwise.
    let layout = File::open(dir).and_then(|dir| files::xattr(&dir, LAYOUT_XATTR));
    layout.map_or(Some(Stripes { count: 1, bytes: 1 << 20 }), |layout| of_layout(&layout))
}

/// Of a plain layout; others, of components by length, are made to fit.
fn of_layout(layout: &[u8]) -> Option<Stripes> {
    let number = |at: usize| Some(u32::from_le_bytes(layout.get(at..at + 4)?.try_into().ok()?));
    if !PLAIN.contains(&number(0)?) {
        return None;
    }
    let bytes = match number(STRIPE_BYTES_AT)? {
        0 => 1 << 20,
        bytes => bytes.into(),
    };
    let count = match number(STRIPE_COUNT_AT)? as u16 {
        0 => 1,
        OVER_ALL => STRIPES_AT_ONCE_MAX,
        count => count.into(),
    };
    Some(Stripes { count, bytes })
}

/// Threads that may make files at the same time.
pub(crate) fn threads(jobs: usize, stripes: Option<Stripes>) -> usize {
    let max = stripes.map_or(usize::MAX, |stripes| (STRIPES_AT_ONCE_MAX / stripes.count.max(1)).max(1) as usize);
    jobs.min(max)
}

/// What would be better for these files in the directory `dir`.
pub(crate) fn advice<'a>(dir: &str, stripes: Stripes, objects: impl Iterator<Item = &'a Meta>) -> Option<String> {
    let files: Vec<u64> = objects.filter(|meta| meta.kind == FileKind::File).map(|meta| meta.size).collect();
    let (largest, count) = (files.iter().copied().max().unwrap_or(0), stripes.count);
    let small = files.iter().filter(|size| **size <= stripes.bytes).count() as u64;
    let wanted = largest.div_ceil(BYTES_PER_STRIPE).min(ADVISED_MAX);
    if wanted > u64::from(count) {
        let largest = size::words(largest);
        return Some(format!(
            "{dir}: new files there are on {count} servers each, and the largest that is staged has {largest}: it would be written faster over {wanted}: \
             'lfs setstripe -c {wanted} DIR' for a directory of its own, before the stage"
        ));
    }
    (count > 1 && wanted <= 1 && small >= SMALL_FILES_MIN).then(|| {
        format!(
            "{dir}: new files there are on {count} servers each, and {small} of those that are staged fit on one: they would be made faster with one: \
             'lfs setstripe -c 1 DIR', before the stage"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `lustre_user.h` has `struct lov_user_md_v1`: magic, pattern, 16 bytes of an object's number, bytes and number of stripes, first server.
    fn layout(magic: u32, bytes: u32, count: u16) -> Vec<u8> {
        let parts = [&magic.to_le_bytes()[..], &[1, 0, 0, 0], &[7; 16], &bytes.to_le_bytes(), &count.to_le_bytes()];
        [&parts.concat()[..], &[0xff; 2]].concat()
    }

    #[test]
    fn plain_layouts_are_read_and_others_left() {
        let of = |magic, bytes, count| of_layout(&layout(magic, bytes, count)).map(|is| (is.count, is.bytes));
        assert_eq!(of(0x0bd1_0bd0, 1 << 22, 12), Some((12, 1 << 22)));
        assert_eq!(of(0x0bd3_0bd0, 0, 0), Some((1, 1 << 20)));
        assert_eq!(of(0x0bd1_0bd0, 1 << 20, u16::MAX), Some((STRIPES_AT_ONCE_MAX, 1 << 20)));
        assert_eq!(of(0x0bd6_0bd0, 1 << 20, 4), None, "of components");
        assert_eq!(of_layout(&layout(0x0bd1_0bd0, 1, 1)[..27]), None, "too short");
        assert_eq!(of_dir(Path::new("/")), None, "no Lustre");
    }

    #[test]
    fn files_and_stripes_are_bounded_together() {
        let at = |jobs, count| threads(jobs, Some(Stripes { count, bytes: 1 << 20 }));
        assert_eq!([at(16, 1), at(16, 8), at(16, 12), at(256, 12), at(16, 500)], [16, 16, 10, 10, 1]);
        assert_eq!(threads(256, None), 256);
    }

    #[test]
    fn advice_fits_the_files() {
        let told = |count, sizes: Vec<u64>| {
            let metas: Vec<Meta> = sizes.into_iter().map(Meta::of_file).collect();
            advice("/l", Stripes { count, bytes: 1 << 20 }, metas.iter())
        };
        assert!(told(1, vec![1 << 40]).is_some_and(|text| text.contains("-c 64 ")));
        assert!(told(1, vec![100 << 30]).is_some_and(|text| text.contains("-c 7 ")));
        assert!(told(12, vec![1000; 1000]).is_some_and(|text| text.contains("-c 1 ")));
        for (count, sizes) in [(1, vec![16 << 30]), (8, vec![100 << 30]), (12, vec![1000; 999]), (1, vec![0; 5000])] {
            assert_eq!(told(count, sizes), None, "{count}");
        }
    }
}
