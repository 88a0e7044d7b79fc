//! Small files that programs open for reading and writing: contents come with the open, and each read shows the
//! contents of that moment.

use super::lookup::{Watcher, asked};
use super::{SYMBOLS, through, volume};
use aze_tests::{Ran, run};
use std::process::Command;

/// How many files are there before a program begins.
const FILES: u32 = 100;

/// A program that opens files for reading and writing as it is told. It reads some before, so that it gets the indexes.
const EDITOR: &str = r"
import os, sys
files = {}
for i in range(12):
    fd = os.open(f'/aze/d/f{i}', os.O_RDWR); os.read(fd, 10); os.close(fd)
def child(act):
    pid = os.fork()
    if pid == 0: act(); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
for line in sys.stdin:
    what, name, *rest = line.split()
    said = what
    if what == 'open': files[name] = os.open('/aze/d/' + rest[0], os.O_RDWR)
    elif what == 'dup': files[name] = os.dup(files[rest[0]])
    elif what == 'next': said = os.read(files[name], int(rest[0])).decode()
    elif what == 'read': said = os.pread(files[name], 100, 0).decode()
    elif what == 'write': os.pwrite(files[name], rest[0].encode(), 1)
    elif what == 'child': child(lambda: os.pwrite(files[name], rest[0].encode(), 2))
    elif what == 'fork': child(lambda: print(os.read(files[name], 100).decode(), flush=True)); continue
    elif what == 'cut': os.ftruncate(files[name], int(rest[0]))
    elif what == 'close': os.close(files.pop(name))
    print(said.replace('\n', ''), flush=True)
";

/// The files d/f0 and so on, each of these bytes.
fn files(place: &aze_tests::Place, bytes: u32) {
    let script = format!(
        "mkdir /aze/d; cd /aze/d; for ((i = 0; i < {FILES}; i++)); do head -c {bytes} < /dev/zero | tr '\\0' x > f$i; done"
    );
    place.aze(&through("intercept", &script)).ok();
}

#[test]
fn a_small_file_is_opened_for_reading_and_writing_and_read_with_one_question() {
    let test = "a_small_file_is_opened_for_reading_and_writing_and_read_with_one_question";
    let Some((place, _)) = volume(test) else { return };
    files(&place, 3901);
    let text = format!(
        "import os\nfor i in range({FILES}):\n fd = os.open(f'/aze/d/f{{i}}', os.O_RDWR)\n os.lseek(fd, 0, 0)\n \
         assert os.read(fd, 3901) == b'x' * 3901\n os.close(fd)"
    );
    for way in [("AZE_INTERCEPT", ""), SYMBOLS] {
        let mut command = place.command(&["run", "--door", "intercept", "--", "python3", "-c", &text]);
        let ran: Ran = command.env(way.0, way.1).env("AZE_INTERCEPT_VERBOSE", "1").output().expect("it starts").into();
        let count = asked(&ran.ok().err);
        // One for each; and one more for those before the program has the indexes, for which it asks seven times.
        assert!((u64::from(FILES)..u64::from(FILES) + 30).contains(&count), "{count} questions {way:?}");
    }
}

#[test]
fn a_read_after_such_an_open_shows_what_others_have_changed() {
    let Some((mut place, _)) = volume("a_read_after_such_an_open_shows_what_others_have_changed") else { return };
    files(&place, 10);
    let mount = place.mount();
    let mut editor = Watcher::start_with(&place, EDITOR);
    let mut next = 12;
    let mut fresh = || {
        next += 1;
        format!("f{next}")
    };
    let changes = [
        ("true", "xxxxxxxxxx"),
        ("printf yz | dd of=$F conv=notrunc status=none", "yzxxxxxxxx"),
        ("printf yz | dd of=$F conv=notrunc oflag=append status=none", "xxxxxxxxxxyz"),
        ("printf yz > $F", "yz"),
        ("truncate -s 3 $F", "xxx"),
        ("mv $F $F.old; printf another > $F", "xxxxxxxxxx"),
        ("printf another > $F.new; mv $F.new $F", "xxxxxxxxxx"),
        ("rm $F", "xxxxxxxxxx"),
        ("fallocate -p -o 0 -l 10 $F", "\0\0\0\0\0\0\0\0\0\0"),
        ("fallocate -z -o 2 -l 3 $F", "xx\0\0\0xxxxx"),
    ];
    for by_mount in [false, true] {
        let dir = if by_mount { mount.display().to_string() } else { "/aze".into() };
        for (change, seen) in changes {
            let file = fresh();
            assert_eq!(editor.says(&format!("open a {file}")), "open");
            let script = format!("F={dir}/d/{file}; {change}");
            if by_mount {
                run(Command::new("bash").args(["-c", &script]));
            } else {
                place.aze(&through("intercept", &script)).ok();
            }
            assert_eq!(editor.says("read a"), seen, "by another client: {script}");
            assert_eq!(editor.says("close a"), "close");
        }
    }
    // Between two reads.
    let file = fresh();
    assert_eq!((editor.says(&format!("open a {file}")), editor.says("next a 4")), ("open".into(), "xxxx".into()));
    place.aze(&through("intercept", &format!("printf 0123456789 > /aze/d/{file}"))).ok();
    assert_eq!(editor.says("next a 4"), "4567");
    // By the program itself, by another descriptor of it, and by a child.
    let steps: &[(&str, &str)] = &[
        ("write a AB", "write"),
        ("read a", "xABxxxxxxx"),
        ("open b FILE", "open"),
        ("write b CD", "write"),
        ("read a", "xCDxxxxxxx"),
        ("read b", "xCDxxxxxxx"),
        ("dup c a", "dup"),
        ("next c 2", "xC"),
        ("child a EF", "child"),
        ("next a 2", "EF"),
        ("fork b", "xCEFxxxxxx"),
        ("next b 2", ""),
        ("cut b 3", "cut"),
        ("read c", "xCE"),
    ];
    for first in ["next a 0", "read a"] {
        let file = fresh();
        assert_eq!(editor.says(&format!("open a {file}")), "open");
        editor.says(first);
        for (step, said) in steps {
            let step = step.replace("FILE", &file);
            assert_eq!(editor.says(&step), *said, "{step} after {first}");
        }
    }
    assert!(editor.asked(&place) > 0, "it has ended well");
}
