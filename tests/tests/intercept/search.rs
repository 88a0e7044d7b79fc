//! The script by which the official io500 lets `aze find` search, as the page on compatibility has it.

use super::volume;
use aze_tests::program;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The script in the page.
fn script() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compatibility.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, rest) = page.split_once("```text\n#!/bin/sh\n# find.sh").expect("the script");
    format!("#!/bin/sh\n#{}", rest.split_once("```").expect("its end").0)
}

#[test]
fn the_script_for_io500_counts_what_is_found_of_all_there_is() {
    let Some((place, _)) = volume("the_script_for_io500_counts_what_is_found_of_all_there_is") else { return };
    let path = place.path("find.sh");
    fs::write(&path, script()).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its own file");
    let programs = program().parent().expect("a directory").display().to_string();
    // As io500 does: files before its time stamp and after it, of this size and of others. With a blank in a name.
    let text = format!(
        "export PATH={programs}:$PATH; mkdir -p '/aze/data dir/sub' out; cd '/aze/data dir'
         for f in 01old 02old; do head -c 3901 /dev/zero > $f; done
         touch -d @1000 01old 02old; touch -d @2000 {here}/out/timestampfile
         for f in file.01 x01y other sub/0101; do head -c 3901 /dev/zero > $f; done
         for f in 01short; do head -c 3900 /dev/zero > $f; done
         sh -c \"{script} '/aze/data dir' -newer {here}/out/timestampfile -size 3901c -name \\\"*01*\\\"\"",
        here = place.path("").display(),
        script = path.display(),
    );
    for door in ["intercept", "mount"] {
        let mut command = place.command(&["run", "--door", door, "--", "bash", "-c", &text]);
        let ran: aze_tests::Ran = command.current_dir(place.path("")).output().expect("it starts").into();
        // Seven files, the directory, and the one in it.
        assert_eq!(ran.ok().out, "MATCHED 3/9\n", "{door}");
    }
}
