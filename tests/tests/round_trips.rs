//! How many round trips commands wait for, over a line that takes its time. Network namespaces need root.

use aze_tests::line::{Line, Took};
use aze_tests::{Place, leave_out};
use std::time::Duration;

/// Far more than what a command takes beside waiting for the line.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// Volumes of these many servers are looked at.
const SERVERS: [&str; 2] = ["4", "16"];

/// Runs of one command; other work of the machine may slow each one down. Most take one or two.
const RUNS_MAX: u32 = 40;

/// A volume and a line to it.
struct Far {
    place: Place,
    line: Line,
}

impl Far {
    fn new(test: &str, servers: &str) -> Option<Far> {
        let place = Place::new();
        let volume = format!("far{servers}");
        place.aze(&["up", "--name", &volume, "--servers", servers, "--size", "2G"]).ok();
        let line = Line::new(&place, &volume, ROUND_TRIP);
        if line.is_none() {
            leave_out(test, "network namespaces are made by root only");
        }
        Some(Far { line: line?, place })
    }

    /// Without the delay.
    fn near(&self, words: &str) {
        self.place.aze(&words.split(' ').collect::<Vec<_>>()).ok();
    }

    /// The least of a few runs, each with other words: a busy machine makes some slower, and none faster. Runs go on while
    /// it is more than `enough`.
    ///
    /// What `before` says is done without the delay before each run.
    fn takes(&self, enough: u32, before: impl Fn(u32) -> String, words: impl Fn(u32) -> String) -> Took {
        let run = |turn| {
            let (before, words) = (before(turn), words(turn));
            if !before.is_empty() {
                self.near(&before);
            }
            let (ran, took) = self.line.aze(&self.place, &words.split(' ').collect::<Vec<_>>());
            ran.ok();
            took
        };
        let mut least = run(0);
        for turn in 1..RUNS_MAX {
            if least.trips <= enough {
                break;
            }
            least = least.min(run(turn));
        }
        least
    }
}

/// Names with a common beginning, and so on many servers.
fn names(stem: &str, count: u32) -> String {
    (0..count).map(|index| format!(" aze:/d/{stem}-{index}")).collect()
}

/// Many names are on more servers than one: the client connects to the others a round trip after the first.
const CONNECTING: u32 = 2;

#[test]
fn several_operands_take_the_time_of_one() {
    for servers in SERVERS {
        let Some(far) = Far::new("several_operands_take_the_time_of_one", servers) else { return };
        far.near("mkdir aze:/d aze:/d/to");
        let compare = |command: &str, before: &str, stem: &str, target: &str| {
            let of = |count, enough| {
                let names = |turn| names(&format!("{stem}{count}-{turn}"), count);
                let before = |turn| if before.is_empty() { String::new() } else { format!("{before}{}", names(turn)) };
                far.takes(enough, before, |turn| format!("{command}{}{target}", names(turn)))
            };
            let one = of(1, BESIDE_THE_OPERATION + 1);
            let many = of(40, one.trips + CONNECTING);
            assert!(
                many.trips <= one.trips + CONNECTING,
                "{servers} servers, {command}: {one:?} for one, {many:?} for 40"
            );
        };
        compare("touch", "", "file", "");
        compare("stat", "touch", "known", "");
        compare("mv", "touch", "moved", " aze:/d/to");
        compare("rm", "touch", "to/file", "");
        compare("mkdir", "", "dir", "");
    }
}

/// Operands that depend on each other, by their names or through a link: as if one came after the other.
#[test]
fn operands_that_depend_on_each_other_are_done_in_their_order() {
    let place = Place::new();
    place.up(&["--servers", "4"]);
    let aze = |words: &str| place.aze(&words.split(' ').collect::<Vec<_>>());
    // Often enough for an order that is left to chance to show.
    for turn in 0..20 {
        let r = format!("aze:/r{turn}");
        aze(&format!("mkdir {r} {r}/a {r}/a/b {r}/a/b/c {r}/x")).ok();
        aze(&format!("ln -s a/b {r}/link")).ok();
        aze(&format!("mkdir {r}/link/d {r}/a/b/d/e {r}/link/d/e/f")).ok();
        aze(&format!("rmdir {r}/link/d/e/f {r}/a/b/d/e {r}/link/d {r}/a/b/c")).ok();
        // The second is the one that fails.
        let twice = aze(&format!("mkdir {r}/y {r}/x {r}/z {r}/link/../../y")).code(1);
        let lines: Vec<&str> = twice.err.lines().collect();
        assert_eq!(lines.len(), 2, "{}", twice.err);
        assert!(
            lines[0].contains(&format!("{r}/x: ")) && lines[1].contains(&format!("{r}/link/../../y: ")),
            "{lines:?}"
        );
        aze(&format!("touch {r}/link/f {r}/a/b/g")).ok();
        let failed = aze(&format!("rm {r}/a/b/f {r}/link/f {r}/link {r}/link/g")).code(1);
        let lines: Vec<&str> = failed.err.lines().collect();
        assert_eq!(lines.len(), 2, "{}", failed.err);
        assert!(lines[0].contains("/link/f: ") && lines[1].contains("/link/g: "), "{lines:?}");
        aze(&format!("mv {r}/a/b/g {r}/a/b {r}/a {r}/x")).ok();
        let left = aze(&format!("find {r}")).ok().out;
        let mut left: Vec<&str> = left.lines().map(|line| &line[r.len()..]).collect();
        left.sort_unstable();
        assert_eq!(left, ["", "/x", "/x/a", "/x/b", "/x/g", "/y", "/z"]);
        aze(&format!("rm -r {r}/x/a {r}/x {r}/y {r}")).ok();
    }
}

/// Connecting, proving oneself, and saying farewell: all other waiting of a command is for its operation.
const BESIDE_THE_OPERATION: u32 = 3;

#[test]
fn a_command_takes_its_operation_and_three_round_trips() {
    for servers in SERVERS {
        let Some(far) = Far::new("a_command_takes_its_operation_and_three_round_trips", servers) else { return };
        far.near("mkdir aze:/d");
        // What comes before, and what each takes once there are connections: names on the way, the name itself, an inode that
        // is elsewhere.
        let operations = [
            ("", "touch aze:/newN", 1),
            ("touch aze:/fN", "stat aze:/fN", 1),
            ("touch aze:/fN", "ls -l aze:/fN", 1),
            ("touch aze:/fN", "mv aze:/fN aze:/d/fN", 3),
            ("touch aze:/d/fN", "stat aze:/d/fN", 3),
            ("touch aze:/d/fN", "touch aze:/d/fN", 4),
            ("touch aze:/d/fN", "rm aze:/d/fN", 2),
            ("", "mkdir aze:/dN", 1),
            ("mkdir -p aze:/eN", "mkdir -p aze:/eN/a", 4),
            ("mkdir -p aze:/eN/b", "rmdir aze:/eN/b", 2),
            ("", "df aze:", 1),
        ];
        for (before, command, trips) in operations {
            // The other servers are connected to as soon as the first turns out to be far away, which over this line, whose
            // connections stand at once, is one round trip later than over a real one.
            let late = u32::from(trips > 1);
            let most = trips + BESIDE_THE_OPERATION + late;
            let with = |words: &str, turn: u32| words.replace('N', &turn.to_string());
            let took = far.takes(most, |turn| with(before, turn), |turn| with(command, turn));
            assert!(took.trips <= most, "{servers} servers, {command}: {took:?}, expected {most} round trips at most");
        }
    }
}
