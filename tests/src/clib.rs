//! The libraries for C, and programs in C that use them.

use crate::{Place, Ran, program, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Libraries, headers and pkg-config's files, linked from the archives that were built by the same profile as the tests.
///
/// # Panics
/// If they have not been built: `cargo build -p aze-capi -p aze-chfs` does that.
pub fn libraries() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let built = program().parent().expect("a program is in a folder").to_path_buf();
        for name in ["libazekura.a", "libchfs.a"] {
            let missing = format!("{name} is not built: run 'cargo build -p aze-capi -p aze-chfs' first");
            assert!(built.join(name).exists(), "{missing}");
        }
        // Test programs run one after the other, and each makes it once.
        let made = built.join("azekura");
        run(Command::new("bash").arg(root().join("scripts/link-libs")).args([&built, &made]));
        made
    })
}

/// The folder of the programs in C.
pub fn sources() -> PathBuf {
    root().join("tests/c")
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// How a program gets its library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// `lib*.so`, as pkg-config says.
    Shared,
    /// `lib*.a`, as pkg-config says.
    Static,
    /// `lib*.so`, with its own code watched by the compiler's sanitizers.
    Watched,
}

/// Compiles `tests/c/NAME.c` with library `library` into the place; gives the program.
pub fn compile(place: &Place, name: &str, library: &str, linked: Linked) -> PathBuf {
    let (made, libraries) = (place.path(&format!("{name}-{linked:?}")), libraries());
    let pkg_config = |words: &[&str]| -> Vec<String> {
        let mut command = Command::new("pkg-config");
        let out = run(command.args(words).arg(library).env("PKG_CONFIG_PATH", libraries.join("lib/pkgconfig"))).out;
        out.split_whitespace().map(str::to_owned).collect()
    };
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-pthread", "-o"]).arg(&made);
    cc.args(pkg_config(&["--cflags"])).arg(sources().join(format!("{name}.c")));
    match linked {
        Linked::Static => {
            let words = pkg_config(&["--libs", "--static"]).into_iter();
            let archive = format!("{}/lib/lib{library}.a", libraries.display());
            cc.args(words.map(|word| if word == format!("-l{library}") { archive.clone() } else { word }));
        }
        _ => {
            cc.args(pkg_config(&["--libs"])).arg(format!("-Wl,-rpath,{}/lib", libraries.display()));
        }
    }
    if linked == Linked::Watched {
        cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    run(&mut cc);
    made
}

/// Runs a program on the place's volume.
pub fn start(place: &Place, program: &Path) -> Command {
    let mut command = Command::new(program);
    on_volume(place, &mut command);
    command
}

fn on_volume<'a>(place: &Place, command: &'a mut Command) -> &'a mut Command {
    command.env("AZE_RUN_DIR", place.dir.join("run")).env_remove("AZE_VOLUME").env_remove("XDG_RUNTIME_DIR");
    command.env_remove("CHFS_SERVER").current_dir(&place.dir)
}

/// Compiles `tests/c/NAME.c`, and runs it on the place's volume: it says that all is well.
pub fn check(place: &Place, name: &str, library: &str, linked: Linked) {
    let program = compile(place, name, library, linked);
    let ran: Ran = start(place, &program).output().expect("the program starts").into();
    assert_eq!((ran.code, ran.out.as_str()), (0, "all is well\n"), "{name}, {linked:?}: {}", ran.err);
}

/// As `check`, with the shared library, under valgrind: every fault and every lost block is a failure.
pub fn check_under_valgrind(place: &Place, name: &str, library: &str) {
    let program = compile(place, name, library, Linked::Shared);
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--leak-check=full", "--error-exitcode=9"]);
    command.arg(format!("--suppressions={}", root().join("crates/capi/valgrind.supp").display())).arg(&program);
    let ran: Ran = on_volume(place, &mut command).output().expect("valgrind starts").into();
    assert_eq!((ran.code, ran.out.as_str()), (0, "all is well\n"), "{name} under valgrind: {}", ran.err);
}
