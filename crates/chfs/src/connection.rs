//! The one connection of a process, and settings.

use aze_cabi::{catch, optional_text};
use aze_handles::{Connected, Error, File, Result, Table, Volume, chunk_bits_of};
use aze_io::real::PerProcess;
use aze_io::sync::Mutex;
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The environment variable in which CHFS programs name what they connect to.
const VARIABLE: &str = "CHFS_SERVER";

/// Version of the library, and of CHFS whose interface it has.
const VERSION: &str = concat!("3.0 (Azekura ", env!("CARGO_PKG_VERSION"), ")\0");

/// Bytes that [`crate::stagein`] copies at a time, unless it is told otherwise.
const STAGEIN_BYTES_DEFAULT: usize = 1 << 20;

/// The volume of this process, between init and term. A forked process begins without.
static VOLUME: PerProcess<Mutex<Option<Arc<Volume>>>> = PerProcess::new();

static FILES: PerProcess<Table<File>> = PerProcess::new();

/// Base-2 logarithm of the chunk size of new files; 0: that of their directory.
static CHUNK_BITS: AtomicU8 = AtomicU8::new(0);

static STAGEIN_BYTES: AtomicUsize = AtomicUsize::new(STAGEIN_BYTES_DEFAULT);

/// Files that this process has open.
pub fn files() -> &'static Table<File> {
    FILES.get_or_init(|| Table::new("file"))
}

fn volume() -> &'static Mutex<Option<Arc<Volume>>> {
    VOLUME.get_or_init(Mutex::default)
}

/// The connection.
pub fn connected() -> Result<Arc<Connected>> {
    let volume = volume().lock().clone();
    volume
        .ok_or_else(|| Error::new(libc::ENOTCONN, "chfs_init() comes first, and nothing after chfs_term()"))?
        .connected()
}

/// Chunk size of new files.
pub fn chunk_bits() -> u8 {
    CHUNK_BITS.load(Ordering::Relaxed)
}

/// Bytes that a copy takes at a time.
pub fn stagein_bytes() -> usize {
    STAGEIN_BYTES.load(Ordering::Relaxed)
}

/// A size in bytes as CHFS takes it: 0 for one that makes no sense.
pub fn size(bytes: c_int) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_init(server: *const c_char) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let server = unsafe { optional_text(server) }?;
        let mut volume = volume().lock();
        if volume.is_none() {
            let variable = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
            *volume = Some(Volume::open(server.or(variable.as_deref()))?);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_initialized() -> c_int {
    catch(0, || Ok(c_int::from(volume().lock().is_some())))
}

/// Ends the connection; one that is not there is fine.
fn term(sync: bool) -> Result<c_int> {
    let Some(volume) = volume().lock().take() else { return Ok(0) };
    let synced = if sync { volume.connected().and_then(|connected| connected.wait(connected.sync())) } else { Ok(()) };
    volume.close();
    drop(files().remove_all(File::is_lost));
    synced.map(|()| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_term() -> c_int {
    catch(-1, || term(true))
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_term_without_sync() -> c_int {
    catch(-1, || term(false))
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_sync() {
    catch((), || {
        let connected = connected()?;
        connected.wait(connected.sync())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_size() -> c_int {
    catch(-1, || Ok(connected()?.servers() as c_int))
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_chunk_size(chunk_size: c_int) {
    catch((), || {
        CHUNK_BITS.store(chunk_bits_of(size(chunk_size)), Ordering::Relaxed);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_stagein_buf_size(buf_size: c_int) {
    catch((), || {
        let bytes = usize::try_from(buf_size).ok().filter(|bytes| *bytes > 0);
        STAGEIN_BYTES.store(bytes.unwrap_or(STAGEIN_BYTES_DEFAULT), Ordering::Relaxed);
        Ok(())
    });
}

/// Defines functions for settings of CHFS that nothing here corresponds to.
macro_rules! without_effect {
    ($($function:ident($type:ty);)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(_value: $type) {}
    )*};
}

without_effect! {
    chfs_set_buf_size(c_int);
    chfs_set_async_access(c_int);
    chfs_set_rdma_thresh(usize);
    chfs_set_rpc_timeout_msec(c_int);
    chfs_set_node_list_cache_timeout(c_int);
}
