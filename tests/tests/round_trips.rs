//! How many round trips commands wait for, over a line that takes its time. Network namespaces need root.

use aze_tests::line::{Line, Took};
use aze_tests::{Place, leave_out};
use std::time::Duration;

/// Far more than what a command takes beside waiting for the line.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// Volumes of these many servers are looked at.
const SERVERS: [&str; 2] = ["4", "16"];

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

    /// The least of a few runs, each with other words: a busy machine makes some slower.
    fn takes(&self, words: impl Fn(u32) -> String) -> Took {
        let run = |turn| {
            let words = words(turn);
            let (ran, took) = self.line.aze(&self.place, &words.split(' ').collect::<Vec<_>>());
            ran.ok();
            took
        };
        (0..2).map(run).min().expect("two runs")
    }
}

/// Names with a common beginning, and so on many servers.
fn names(stem: &str, count: u32) -> String {
    (0..count).map(|index| format!(" aze:/d/{stem}-{index}")).collect()
}

/// Many names are on more servers than one, of which the others are connected to a round trip after the first.
const CONNECTING: u32 = 2;

#[test]
fn several_operands_take_the_time_of_one() {
    for servers in SERVERS {
        let Some(far) = Far::new("several_operands_take_the_time_of_one", servers) else { return };
        far.near("mkdir aze:/d aze:/d/to");
        let compare = |command: &str, stem: &str, target: &str| {
            let of = |count| {
                far.takes(|turn| format!("{command}{}{target}", names(&format!("{stem}{count}-{turn}"), count)))
            };
            let (one, many) = (of(1), of(40));
            assert!(
                many.trips <= one.trips + CONNECTING,
                "{servers} servers, {command}: {one:?} for one, {many:?} for 40"
            );
        };
        compare("touch", "file", "");
        compare("stat", "file", "");
        compare("mv", "file", " aze:/d/to");
        compare("rm", "to/file", "");
        compare("mkdir", "dir", "");
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

/// Connecting, proving oneself, and saying farewell: whatever else a command waits for is its operation.
const BESIDE_THE_OPERATION: u32 = 3;

#[test]
fn a_command_takes_its_operation_and_three_round_trips() {
    for servers in SERVERS {
        let Some(far) = Far::new("a_command_takes_its_operation_and_three_round_trips", servers) else { return };
        far.near("mkdir aze:/d");
        // What each takes once there are connections: names on the way, the name itself, an inode that is elsewhere.
        let operations = [
            ("touch aze:/fN", 1),
            ("stat aze:/fN", 1),
            ("ls -l aze:/fN", 1),
            ("mv aze:/fN aze:/d/fN", 3),
            ("stat aze:/d/fN", 3),
            ("touch aze:/d/fN", 4),
            ("rm aze:/d/fN", 2),
            ("mkdir aze:/dN", 1),
            ("mkdir -p aze:/dN/a", 4),
            ("rmdir aze:/dN/a", 2),
            ("df aze:", 1),
        ];
        for (command, trips) in operations {
            let took = far.takes(|turn| command.replace('N', &turn.to_string()));
            // The other servers are connected to as soon as the first turns out to be far away, which over this line, whose
            // connections stand at once, is one round trip later than over a real one.
            let late = u32::from(trips > 1);
            let most = trips + BESIDE_THE_OPERATION + late;
            assert!(took.trips <= most, "{servers} servers, {command}: {took:?}, expected {most} round trips at most");
        }
    }
}
