//! Servers of a volume in memory are killed, server 0 first: files of the others work at once, through a mount and by
//! commands, and lost ones are EIO at once, by the name of their server.

use aze_tests::servers::pids;
use aze_tests::{Place, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Directories in the root; each server has some.
const COUNT: usize = 40;

/// Until something has worked, or failed. A server that is silent is waited for 10 s. The times are those of a machine that is busy with
/// other tests.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Does the same to all numbers; gives those for which it worked. What fails does so with EIO, and everything at once.
fn each(what: &str, mut act: impl FnMut(usize) -> io::Result<()>) -> Vec<usize> {
    let mut slowest = (Duration::ZERO, 0);
    let mut worked = Vec::new();
    for number in 0..COUNT {
        let began = Instant::now();
        match act(number) {
            Ok(()) => worked.push(number),
            Err(why) => assert_eq!(why.raw_os_error(), Some(libc::EIO), "{what} {number}: {why}"),
        }
        slowest = slowest.max((began.elapsed(), number));
    }
    println!("{what}: {} of {COUNT} worked, the slowest after {:?}", worked.len(), slowest.0);
    assert!(slowest.0 < AT_ONCE, "{what} {} took {:?}", slowest.1, slowest.0);
    worked
}

/// Of the acts on all directories at least one for each living server worked, and not all: an act below needs several
/// servers.
fn is_part(worked: &[usize], living: usize) -> bool {
    worked.len() >= living && worked.len() < COUNT
}

fn used(mount: &Path, round: usize, living: usize) {
    let made = each("a file in a directory of the root", |number| {
        let path = mount.join(format!("d{number}/r{round}"));
        fs::write(&path, path.as_os_str().as_encoded_bytes())
    });
    assert!(is_part(&made, living), "{made:?}");
    for number in &made {
        let path = mount.join(format!("d{number}/r{round}"));
        assert_eq!(fs::read(&path).expect("what was written is read"), path.as_os_str().as_encoded_bytes());
    }
    let made = each("a name in the root", |number| fs::write(mount.join(format!("r{round}-{number}")), "here"));
    assert!(is_part(&made, living), "{made:?}");
    let renamed = |number: usize| {
        fs::create_dir(mount.join(format!("d{number}/a{round}")))?;
        fs::rename(mount.join(format!("d{number}/a{round}")), mount.join(format!("d{number}/b{round}")))
    };
    wait_until("directories are renamed", || (0..COUNT).any(|number| renamed(number).is_ok()));
}

#[test]
fn any_server_may_be_lost() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(200));
    place.aze(&["up", "--name", "v", "--servers", "4", "--size", "400M"]).ok();
    let mount = place.mount();
    (0..COUNT).for_each(|number| fs::create_dir(mount.join(format!("d{number}"))).expect("a directory"));
    for (round, dead) in [0, 2].into_iter().enumerate() {
        let (server, living) = (pids(&place, "v")[dead], 3 - round);
        // SAFETY: it takes no memory.
        assert_eq!(unsafe { libc::kill(server.cast_signed(), libc::SIGKILL) }, 0);
        used(&mount, round * 2, living);
        let fresh = place.mount_with(&[]);
        used(&fresh, round * 2 + 1, living);
        let mut failed = BTreeMap::new();
        let touched = each("aze touch", |number| {
            let ran = place.aze(&["touch", &format!("aze:/t{round}-{number}")]);
            if ran.code == 0 {
                return Ok(());
            }
            failed.insert(number, ran.err);
            Err(io::Error::from_raw_os_error(libc::EIO))
        });
        assert!(is_part(&touched, living), "{failed:?}");
        assert_eq!(touched.len() + failed.len(), COUNT);
        for why in failed.values() {
            assert!(why.contains("server 0 on") || why.contains("server 2 on"), "{why}");
            assert!(why.contains("its process has ended"), "{why}");
        }
        let began = Instant::now();
        let listed = place.aze(&["ls", "aze:/"]);
        assert!(listed.code != 0 && listed.err.contains("server 0 on"), "{}{}", listed.out, listed.err);
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
}
