//! The few system calls that the standard library does not wrap, each with its proof.

pub use aze_io::real::user_id as uid;
use std::ffi::{CStr, CString};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Number of the user of this name, from wherever the system keeps its users.
pub fn uid_of(user: &str) -> Option<u32> {
    ids_of(user).map(|(uid, _)| uid)
}

/// Makes this process one of another user, with that user's group and no other group. For root, and for good.
///
/// # Errors
/// What the system said; the process may have lost groups then.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: an empty list of groups is not read; the others take numbers.
    let steps =
        [unsafe { libc::setgroups(0, std::ptr::null()) }, unsafe { libc::setgid(gid) }, unsafe { libc::setuid(uid) }];
    if steps.iter().all(|step| *step == 0) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Numbers of the user of this name and of that user's group, from wherever the system keeps its users.
pub fn ids_of(user: &str) -> Option<(u32, u32)> {
    let name = CString::new(user).ok()?;
    // SAFETY: `name` ends in NUL. The result may be overwritten by another such call; this function
    // is called before the command starts any thread, and reads two numbers at once.
    let entry = unsafe { libc::getpwnam(name.as_ptr()) };
    // SAFETY: getpwnam(3) gives null or a pointer to a valid entry.
    unsafe { entry.as_ref() }.map(|entry| (entry.pw_uid, entry.pw_gid))
}

/// Time that processors have worked for a process, all its threads together: clock_getcpuclockid(3).
///
/// # Errors
/// There is no such process, or the system does not say.
pub fn processor_time(pid: u32) -> io::Result<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: `clock` is a valid place for the answer.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    // SAFETY: `time` is a valid place for the answer.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Time that a processor has worked for the calling thread.
///
/// # Errors
/// What the system said.
pub fn thread_time() -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    done(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Time of the cores on which this process may run, since the machine started, without what its host took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoresTime {
    /// How many they are.
    pub count: u32,
    /// All of it.
    pub all: Duration,
    /// What they worked.
    pub busy: Duration,
}

/// How the cores on which this process may run were used: proc_stat(5), sched_getaffinity(2).
///
/// # Errors
/// The system does not say.
pub fn cores_time() -> io::Result<CoresTime> {
    // SAFETY: a set of cores is a plain array of bits, for which zero is a valid value.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cores` is as long as is said. It fails where the machine has more cores than fit.
    done(unsafe { libc::sched_getaffinity(0, size_of_val(&cores), &mut cores) })?;
    // SAFETY: CPU_ISSET looks within the set only for numbers below CPU_SETSIZE.
    let is_ours = |core: usize| core < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(core, &cores) };
    // SAFETY: takes no pointer.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    let time = times_of(&std::fs::read_to_string("/proc/stat")?, is_ours, ticks_per_s);
    Some(time).filter(|time| time.count > 0).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Sums up the lines of cores of /proc/stat: user, nice, system, idle, iowait, irq, softirq; what follows are times of the host and of
/// guests, which are in the first two.
fn times_of(stat: &str, is_ours: impl Fn(usize) -> bool, ticks_per_s: u64) -> CoresTime {
    let (mut count, mut all, mut idle) = (0, 0, 0);
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let core = words.next().and_then(|word| word.strip_prefix("cpu")).and_then(|number| number.parse().ok());
        if !core.is_some_and(&is_ours) {
            continue;
        }
        let times: Vec<u64> = words.take(7).map_while(|word| word.parse().ok()).collect();
        count += 1;
        all += times.iter().sum::<u64>();
        idle += times.iter().skip(3).take(2).sum::<u64>();
    }
    let time = |ticks: u64| Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_s);
    CoresTime { count, all: time(all), busy: time(all.saturating_sub(idle)) }
}

/// Whether a program of this name is in one of the directories of PATH.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Which side of [`fork_orphan`] a process is on.
pub enum Forked {
    /// The caller.
    Parent,
    /// The new process.
    Orphan,
}

/// Forks a process that is no child of the caller's: the caller can become another program, which would not
/// expect one. Only a process of one thread may call this, since only that thread goes on in the new one.
pub fn fork_orphan() -> io::Result<Forked> {
    // SAFETY: the process has one thread, so that no lock is held by a thread that the new process lacks.
    let between = unsafe { libc::fork() };
    match between {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above; this process has one thread, too.
            match unsafe { libc::fork() } {
                0 => Ok(Forked::Orphan),
                // SAFETY: _exit(2) ends the process and runs nothing of ours.
                second => unsafe { libc::_exit(i32::from(second < 0)) },
            }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` lives until the call returns.
            done(unsafe { libc::waitpid(pid, &mut status, 0) })?;
            if status == 0 { Ok(Forked::Parent) } else { Err(io::Error::other("no further process can be started")) }
        }
    }
}

/// Has a process of its own do something that cannot be taken back; gives the text that it gave. Blocks until it has ended. Only a
/// process of one thread may call this.
///
/// # Errors
/// What the system said; the process has ended without a word.
pub fn in_another_process(act: impl FnOnce() -> Option<String>) -> io::Result<Option<String>> {
    let (mut reading, mut writing) = io::pipe()?;
    // SAFETY: the process has one thread, so that no lock is held by a thread that the new process lacks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(reading);
        let text = act();
        let told = text.as_ref().map_or(Ok(()), |text| writing.write_all(text.as_bytes()));
        // SAFETY: _exit(2) ends the process and runs nothing of ours.
        unsafe { libc::_exit(i32::from(told.is_err())) };
    }
    done(pid)?;
    drop(writing);
    let mut text = String::new();
    let read = reading.read_to_string(&mut text);
    let mut status = 0;
    // SAFETY: `status` lives until the call returns.
    done(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    read?;
    match status {
        0 => Ok(Some(text).filter(|text| !text.is_empty())),
        _ => Err(io::Error::other(format!("the process that tried it has ended with status {status:#x}"))),
    }
}

/// Starts a session of its own, so that neither the terminal nor the shell's job control ends this process.
pub fn leave_session() -> io::Result<()> {
    // SAFETY: setsid(2) takes nothing; it fails for a process group leader and changes nothing then.
    done(unsafe { libc::setsid() })
}

/// Makes descriptor `number` (0, 1 or 2) mean what `file` means.
pub fn put_in_place(file: &impl AsRawFd, number: i32) -> io::Result<()> {
    // SAFETY: both are descriptors, not memory; an invalid one gives EBADF.
    done(unsafe { libc::dup2(file.as_raw_fd(), number) })
}

/// The nice value of the lowest priority (setpriority(2)).
pub const NICE_LOWEST: i32 = 19;

/// The nice value of the calling thread.
pub fn nice() -> i32 {
    // Zero names the calling thread: Linux keeps this for each (setpriority(2), "C library/kernel differences"). It cannot fail.
    // SAFETY: takes no pointer.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Gives the calling thread this nice value, if it is higher than the one that it has. Threads and processes that it starts from
/// now on have the same. Only a privileged process can take it back.
///
/// # Errors
/// What the system said.
pub fn be_nice(nice: i32) -> io::Result<()> {
    if nice <= self::nice() {
        return Ok(());
    }
    // SAFETY: takes no pointer.
    done(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })
}

/// Ends this process by `signal`, as it would have been if it had not been held.
pub fn die_of(signal: i32) -> ! {
    // SAFETY: a signal set is a plain array of bits, for which zero is a valid value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a value of ours, and the signal exists.
    unsafe { libc::sigaddset(&mut set, signal) };
    // SAFETY: SIG_DFL is a valid disposition and runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: `set` is initialised; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
    // SAFETY: raise(3) takes a number.
    unsafe { libc::raise(signal) };
    // Only a signal that does not end processes comes here.
    std::process::exit(128 + signal)
}

/// A set of these signals.
fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: a signal set is a plain array of bits, for which zero is a valid value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a value of ours.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in signals {
        // SAFETY: `set` was initialised above; a number that is no signal is refused.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

/// Keeps these signals for [`next_signal`]. To be called before the process starts its first thread, since every thread
/// inherits the mask; so do programs, unless they are started by [`with_signals`].
pub fn hold_signals(signals: &[i32]) -> io::Result<()> {
    // SAFETY: the set is initialised; the old mask is not asked for.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signal_set(signals), std::ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Blocks until one of the held signals comes; gives its number.
pub fn next_signal(signals: &[i32]) -> io::Result<i32> {
    let mut number = 0;
    // SAFETY: both arguments point to values that live until the call returns.
    let error = unsafe { libc::sigwait(&signal_set(signals), &mut number) };
    if error == 0 { Ok(number) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Has a program get all signals, though this process holds some.
pub fn with_signals(command: &mut Command) -> &mut Command {
    let none = signal_set(&[]);
    let unmask = move || {
        // SAFETY: the set is initialised; the old mask is not asked for.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    };
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(unmask) }
}

/// Sends `signal` to all processes of a group; signal 0 only asks whether there is any.
///
/// # Errors
/// What kill(2) says; `InvalidInput` for a number that leads no group of one command.
pub fn signal_group(leader: u32, signal: i32) -> io::Result<()> {
    // The groups 0 and 1 would mean this process's own group, and every process.
    let leader = i32::try_from(leader).ok().filter(|leader| *leader > 1).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: kill(2) takes two numbers.
    done(unsafe { libc::kill(-leader, signal) })
}

/// Whether this process may do so with a file (access(2)): `libc::R_OK` and the like, together.
pub fn may(path: &Path, how: i32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` ends in NUL.
    done(unsafe { libc::access(path.as_ptr(), how) })
}

/// Lets programs that this process starts from now on have this descriptor, under the same number.
pub fn inherit(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: a descriptor is no memory; an invalid one gives EBADF.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) })
}

/// Waits until the readers of all these pipes have closed them, or until `process` has ended: then true.
pub fn wait_for_ends(pipes: &[RawFd], process: Option<&OwnedFd>) -> io::Result<bool> {
    // A pipe without a reader is in error (poll(2)); a process that has ended can be read.
    let wait_for = |fd: RawFd, events| libc::pollfd { fd, events, revents: 0 };
    let mut polled: Vec<libc::pollfd> = pipes.iter().map(|pipe| wait_for(*pipe, 0)).collect();
    polled.extend(process.map(|process| wait_for(process.as_raw_fd(), libc::POLLIN)));
    loop {
        // SAFETY: the pointer and the length are those of `polled`, which lives until the call returns.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
        match done(ready) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        }
        if process.is_some() && polled.last().is_some_and(|process| process.revents != 0) {
            return Ok(true);
        }
        polled.retain(|pipe| pipe.revents == 0);
        if polled.len() == usize::from(process.is_some()) {
            return Ok(false);
        }
    }
}

/// The names of this node's network interfaces that are up, each with one of its addresses (getifaddrs(3)).
pub fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` lives until the call returns; the list is freed below.
    done(unsafe { libc::getifaddrs(&mut first) })?;
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: every entry of the list is valid or null until the list is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: an address is null or valid.
        let Some(family) = (unsafe { entry.ifa_addr.as_ref() }).map(|address| i32::from(address.sa_family)) else {
            continue;
        };
        let address = match family {
            libc::AF_INET => {
                // SAFETY: an address of this family is a `sockaddr_in`.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
            }
            libc::AF_INET6 => {
                // SAFETY: an address of this family is a `sockaddr_in6`.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::from(address.sin6_addr.s6_addr)
            }
            _ => continue,
        };
        if entry.ifa_flags & libc::IFF_UP as u32 != 0 {
            // SAFETY: the name ends in NUL and is valid until the list is freed.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.push((name.to_string_lossy().into_owned(), address));
        }
    }
    // SAFETY: the list came from getifaddrs(3), and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Ignores `signal` from now on.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is a valid disposition for every signal that is passed here; it runs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Allows this process as many open files as the system lets it have (getrlimit(2)). Where it cannot,
/// fewer clients can be connected at one time, and those refused say so.
pub fn open_as_many_files_as_allowed() {
    if let Some(rlim_max) = open_files_max() {
        let limit = libc::rlimit { rlim_cur: rlim_max, rlim_max };
        // SAFETY: `limit` lives until the call returns.
        let _may_be_refused = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// The hard limit of this process's open files; `None` if the system does not say.
pub fn open_files_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives until the call returns.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0).then_some(limit.rlim_max)
}

/// Local calendar time of seconds since 1970.
pub fn local_time(seconds: i64) -> libc::tm {
    // SAFETY: all fields of `tm` are numbers or a pointer that may be null.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both arguments point to values that live until the call returns.
    unsafe { libc::localtime_r(&seconds, &mut parts) };
    parts
}

/// Universal calendar time of seconds since 1970.
pub fn universal_time(seconds: i64) -> libc::tm {
    // SAFETY: all fields of `tm` are numbers or a pointer that may be null.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both arguments point to values that live until the call returns.
    unsafe { libc::gmtime_r(&seconds, &mut parts) };
    parts
}

/// Seconds since 1970 of a local calendar time; `None` if there is no such time.
pub fn seconds_of(mut parts: libc::tm) -> Option<i64> {
    let wanted = (parts.tm_mon, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
    parts.tm_isdst = -1;
    // SAFETY: `parts` is a value of ours that mktime(3) may put in order.
    let seconds = unsafe { libc::mktime(&mut parts) };
    // mktime(3) turns the 31st of February into some day of March; that is not the date asked for.
    let given = (parts.tm_mon, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
    (given == wanted).then_some(seconds)
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn times_of_cores_are_those_of_ours_without_idle_and_the_host() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 400 50 6 7 1000 50 9\ncpu1 1 2 3 4 5 6 7 8 9 10\n\
                    cpu12 1 0 0 0 0 0 0\nintr 5 5\nctxt 7\n";
        let time = |is_ours: &dyn Fn(usize) -> bool| times_of(stat, is_ours, 100);
        let ms = Duration::from_millis;
        assert_eq!(time(&|core| core == 0), CoresTime { count: 1, all: ms(6130), busy: ms(1630) });
        assert_eq!(time(&|core| core != 0), CoresTime { count: 2, all: ms(290), busy: ms(200) });
        assert_eq!(time(&|_| false).count, 0);
    }

    #[test]
    fn the_system_tells_how_busy_the_cores_are() {
        let (before, worked) = (cores_time().unwrap(), thread_time().unwrap());
        while thread_time().unwrap() < worked + Duration::from_millis(50) {}
        let after = cores_time().unwrap();
        assert!(after.count > 0 && after.count as usize == std::thread::available_parallelism().unwrap().get());
        assert!(after.busy > before.busy && after.all - before.all >= after.busy - before.busy);
    }

    #[test]
    fn the_wait_for_pipes_ends_with_the_last_reader() {
        let ((first, first_input), (second, second_input)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let inputs = [first_input.as_raw_fd(), second_input.as_raw_fd()];
        drop(first);
        let is_closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                is_closed.store(true, Ordering::SeqCst);
                drop(second);
            });
            assert!(!wait_for_ends(&inputs, None).unwrap());
            assert!(is_closed.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn the_wait_for_pipes_ends_with_the_process() {
        let (_reader, input) = io::pipe().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = aze_io::real::open_process(child.id()).unwrap();
        child.kill().unwrap();
        assert!(wait_for_ends(&[input.as_raw_fd()], Some(&process)).unwrap());
        child.wait().unwrap();
    }
}
