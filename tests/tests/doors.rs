//! Programs of others through both doors, and the gate with programs of MPI: `make test-doors`. They need packages and time
//! that `make test` does not have.

#[path = "intercept/gate.rs"]
mod gate;

use aze_tests::{Place, Ran, long, run};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Trees of the gate; 1,000 with AZE_TEST_LONG=1.
const ROUNDS: usize = 24;
const ROUNDS_LONG: usize = 1000;

fn place() -> Place {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    place
}

/// Compiles `tests/mpi/ranks.c`.
fn ranks(place: &Place, compiler: &str) -> PathBuf {
    let made = place.path(&format!("ranks-{compiler}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/ranks.c");
    run(Command::new(compiler).args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&made).arg(source));
    made
}

#[test]
fn nothing_is_left_of_processes_of_mpi_and_others() {
    let mut place = place();
    let mpich = format!("mpiexec.mpich -n 4 {}", ranks(&place, "mpicc.mpich").display());
    let openmpi = format!(
        "mpiexec.openmpi --allow-run-as-root --oversubscribe -n 4 {}",
        ranks(&place, "mpicc.openmpi").display()
    );
    gate::pass(&mut place, if long() { ROUNDS_LONG } else { ROUNDS }, &[&mpich, &openmpi]);
}

/// The ways to a volume: a door, and the value of `AZE_INTERCEPT`.
const WAYS: [(&str, &str); 3] = [("mount", ""), ("intercept", ""), ("intercept", "symbols")];

/// What a script says, in a directory of the volume that is there for it alone.
fn said(place: &Place, (door, way): (&str, &str), script: &str) -> String {
    let whole =
        format!("mkdir /aze/d && cd /aze/d && exec 2>&1 && {{ {script}\n}}; echo \"= $?\"; cd / && rm -r /aze/d");
    let mut command = place.command(&["run", "--door", door, "--", "bash", "-c", &whole]);
    let ran = Ran::from(command.env("AZE_INTERCEPT", way).output().expect("it starts")).ok();
    format!("{}{}", ran.out, ran.err)
}

/// A program that `make test-doors` has built from its crate.
fn tool(name: &str) -> PathBuf {
    let built = aze_tests::program().ancestors().nth(2).expect("a target directory").join("tools/bin").join(name);
    assert!(built.exists(), "{} is not built: 'make test-doors' does it", built.display());
    built
}

/// Random reads, writes, truncations and mappings of one file are as a file has them.
#[test]
fn fsx_finds_nothing() {
    let place = place();
    let fsx = tool("fsx");
    for (door, way) in WAYS {
        for seed in ["1", "2", "3"] {
            let script = format!("{} -N 3000 -S {seed} f", fsx.display());
            let said = said(&place, (door, way), &script);
            assert!(said.ends_with("All operations completed A-OK!\n= 0\n"), "{door} {way}, seed {seed}: {said}");
        }
    }
}

/// What pjdfstest is told of this machine.
const PJDFSTEST: &str = "[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
rename_ctime = {}
[settings]
naptime = 0.001
allow_remount = false
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"bin\", \"bin\"], [\"daemon\", \"daemon\"]]
";

/// Of pjdfstest's tests those fail that `doors/pjdfstest.txt` gives a reason for, and no others.
#[test]
fn of_pjdfstest_those_fail_that_have_a_reason() {
    if std::fs::metadata("/proc/self").expect("a directory").uid() != 0 {
        return aze_tests::leave_out("of_pjdfstest_those_fail_that_have_a_reason", "not root");
    }
    let (all, unmounted) = include_str!("doors/pjdfstest.txt").split_once("[unmounted]\n").expect("two parts");
    let names = |part: &str| -> Vec<String> {
        let lines = part.lines().filter(|line| !line.starts_with(['#', '[']));
        lines.map(str::to_owned).collect()
    };
    let (all, unmounted) = (names(all), names(unmounted));
    assert_eq!((all.len(), unmounted.len()), (7, 70));
    let place = place();
    let config = place.path("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).expect("it is written");
    for (door, way) in WAYS {
        let said =
            said(&place, (door, way), &format!("{} -c {} -p $PWD", tool("pjdfstest").display(), config.display()));
        let ends = |line: &str, word: &str| line.strip_suffix(word).map(|name| name.trim_end().to_owned());
        let mut failed: Vec<String> = said.lines().filter_map(|line| ends(line, " FAILED")).collect();
        let passed = said.lines().filter(|line| ends(line, " ok").is_some()).count();
        let mut known = if door == "mount" { all.clone() } else { [all.clone(), unmounted.clone()].concat() };
        failed.sort();
        known.sort();
        assert_eq!(failed, known, "{door} {way}");
        assert_eq!(passed + failed.len(), 382, "{door} {way}: 16 of 398 are left out: {said}");
    }
}

/// Programs with runtimes of their own: what they say through both doors.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "java",
        "store='-keystore store -storepass secret -alias a'
         keytool -genkeypair $store -keyalg EC -dname CN=name && keytool -list $store | grep -c fingerprint
         keytool -exportcert $store -file one 2>&1 && keytool -exportcert $store -file two && cmp one two
         keytool -printcert -file one | grep Owner; keytool -delete $store; keytool -list $store | grep contains
         java -Djava.io.tmpdir=$PWD -XX:+UsePerfData -Xlog:gc:file=gc.log -Xshare:off -version; grep -c Using gc.log; ls",
    ),
    (
        "node",
        "cat > all.js <<'END'
const fs = require('fs'), path = require('path'), child = require('child_process');
fs.writeFileSync('f', 'x'.repeat(100000)); console.log(fs.statSync('f').size, fs.readFileSync('f').length);
fs.mkdirSync('a/b', { recursive: true }); fs.renameSync('f', 'a/b/g'); fs.copyFileSync('a/b/g', 'h'); fs.symlinkSync('h', 'l');
console.log(fs.readdirSync('.').sort(), fs.realpathSync('l') === path.resolve('h'), fs.existsSync('none'));
console.log(child.execSync('wc -c < h; pwd -P').toString() === `100000\n${process.cwd()}\n`);
const many = [...Array(50).keys()].map(async n => { await fs.promises.writeFile(`p${n}`, `${n}`); return fs.promises.readFile(`p${n}`, 'utf8'); });
Promise.all(many).then(all => {
  console.log(all.every((text, n) => text === `${n}`));
  const out = fs.createWriteStream('s'); for (let n = 0; n < 1000; n++) out.write(`line ${n}\n`);
  out.end(() => fs.createReadStream('s').on('data', part => console.log(part.length)).on('end', () => {
    try { fs.readFileSync('none'); } catch (error) { console.log(error.code); }
    fs.rmSync('a', { recursive: true }); console.log(fs.readdirSync('.').length);
  }));
});
END
         node all.js; cp all.js b.js; mkdir node_modules; echo 'module.exports = 7' > node_modules/seven.js
         node -e \"console.log(require('seven'))\"",
    ),
];

#[test]
fn programs_with_runtimes_say_the_same_through_both_doors() {
    let place = place();
    assert_eq!(SCRIPTS.len(), 2);
    for (name, script) in SCRIPTS {
        let [mounted, by_sites, by_symbols] = WAYS.map(|way| said(&place, way, script));
        assert!(mounted.contains("= 0") && mounted.lines().count() > 5, "{name}: {mounted}");
        assert_eq!(mounted, by_sites, "{name}");
        assert_eq!(mounted, by_symbols, "{name}, by symbols alone");
    }
}

/// Python's own tests of what files do: a module, how many tests it has at least, and those left out without a mount,
/// because the volume has no sockets there and refuses splice(2).
const SUITES: &[(&str, u64, &[&str])] = &[
    ("test_os", 300, &["test_splice*"]),
    ("test_pathlib", 400, &["test_is_socket_true"]),
    ("test_mmap", 40, &[]),
    ("test_shutil", 160, &[]),
    ("test_fileio", 90, &[]),
];

#[test]
fn pythons_own_tests_pass_through_both_doors() {
    let place = place();
    assert_eq!(SUITES.len(), 5);
    for (suite, least, left_out) in SUITES {
        for way in WAYS {
            let ignored: String = match way.0 {
                "mount" => String::new(),
                _ => left_out.iter().map(|pattern| format!("-i '{pattern}' ")).collect(),
            };
            let said = said(&place, way, &format!("TMPDIR=$PWD python3 -m test --tempdir $PWD -v {ignored}{suite}"));
            let count = said.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u64>().ok());
            assert!(said.contains("= 0\n") && count.is_some_and(|count| count >= *least), "{suite}, {way:?}: {said}");
        }
    }
}
