//! `aze bench p4`: bandwidth of one process over the size of its transfers, as the paper on CHFS shows
//! it: with one chunk of a transfer under way at a time, and with all of them at once. Volumes for it
//! are started and ended here, one for each transport, unless a running one is named. What the number of servers
//! changes is in `servers`, what the placement changes in `placements`.

mod placements;
mod servers;
mod simulated;

use crate::plot::{self, Curve, short};
use crate::program::{Program, Session};
use crate::record::{self, Keep};
use crate::started::{self, Started};
use aze_client::{Access, File, NewFile};
use aze_proto::FileKind;
use aze_proto::limits::{CHUNK_BITS_MAX, CHUNK_BITS_MIN};
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use aze_words::{errln, out, outln};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use servers::Measured;

const EXAMPLES: &str = "\
Examples:
  aze bench p4                                       figures 5 and 6, over every transport of this machine
  aze bench p4 --figure 6 --chunks 64K,1M --record result
  aze bench p4 --figure 3,8 --servers 1,4            searches and opens, on one and on four servers
  aze bench p4 --figure 1,2 --servers 4,8            modular placement beside consistent hashing
  aze bench p4 --name v1                             the volume that runs
  aze bench p4 --simulate --figure 1,2,3,5,6,8       16 to 1,024 nodes: real code, modelled network, measured times
  aze bench p4 --simulate --nodes 16 --times result/result.json";

/// Servers of a volume that is started here: as many as the paper's.
const SERVERS: &str = "8";
/// Its capacity: room for the files of all chunk sizes, however they fall on the servers.
const CAPACITY: &str = "4G";
/// Transfer sizes: the paper's axis, up to the largest request of usual programs.
const TRANSFER_BYTES_MIN: u64 = 64 << 10;
const TRANSFER_BYTES_MAX: u64 = 16 << 20;
/// What the paper found, beside which our figures are put.
const PAPER: &str = "\
the paper (CHFS, 8 servers, chunks of 4 to 512 KiB): with one request at a time the bandwidth of a process
depends on the size of a chunk only; with all requests of a transfer at once it grows with the transfer";

/// One process writes and reads in transfers of 64K to 16M: bandwidth by chunk size and chunks under way. And searches
/// and opens by number of servers, and two ways to place data and names.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// 1, 2: bandwidth and metadata with modular placement and by consistent hashing; 3: a search by number of servers; 5: one chunk of a transfer is under way at a time; 6: all of them are;
    /// 8: many open one file, and each its own
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "5,6", value_parser = figure)]
    figure: Vec<u8>,
    /// A running volume [default: one of 8 servers for each transport, or of each number of servers, started and ended]
    #[arg(long)]
    name: Option<String>,
    /// Sizes of chunks
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "64K,512K", value_parser = size::parse)]
    chunks: Vec<u64>,
    /// Bytes of the file
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    bytes: u64,
    /// Numbers of servers for figures 1, 2, 3 and 8
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: Vec<u16>,
    /// Files that are searched
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    files: u64,
    /// How many open a file at one moment, each with a connection of its own
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4,16,64", value_parser = openers)]
    openers: Vec<usize>,
    /// Processes that do the work of figures 1 and 2
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    procs: u32,
    /// When writing phases of figures 1 and 2 stop
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = size::parse_duration)]
    stonewall: Duration,
    /// Turns; the median is shown
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,
    /// Write result.json, result.txt and pictures into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: simulated::Model,
}

/// One combination of parameters, and its bandwidths.
struct Point {
    transport: String,
    chunk_bits: u8,
    /// All chunks of a transfer at once, or one at a time.
    all: bool,
    is_write: bool,
    transfer: u64,
    /// Bytes a second of each turn.
    turns: Vec<f64>,
}

impl Point {
    fn median(&self) -> f64 {
        crate::median::median(&self.turns, |turn| *turn)
    }

    fn mib_per_s(&self) -> f64 {
        self.median() / f64::from(1 << 20)
    }

    fn series(&self) -> String {
        let (chunk, way) = (short(1 << self.chunk_bits), if self.all { "all at once" } else { "one at a time" });
        format!("{chunk} chunks, {way}")
    }
}

/// Most connections of one measurement.
const OPENERS_MAX: usize = 1024;

fn figure(text: &str) -> Result<u8, String> {
    match text {
        "1" | "2" | "3" | "5" | "6" | "8" => Ok(text.as_bytes()[0] - b'0'),
        _ => Err("expected 1, 2, 3, 5, 6 or 8".into()),
    }
}

fn openers(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=OPENERS_MAX).contains(count));
    count.ok_or_else(|| format!("expected 1 to {OPENERS_MAX}"))
}

/// Measures, then prints tables or JSON.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    if args.repeat == 0 || args.bytes < TRANSFER_BYTES_MAX || !args.bytes.is_multiple_of(TRANSFER_BYTES_MAX) {
        return Err(Trouble::usage("bench p4: --repeat must be at least 1, --bytes a multiple of 16M"));
    }
    started::hear_signals(program, "p4")?;
    if args.model.simulate {
        return simulated::run(args, program);
    }
    let chunks = args.chunks.iter().map(|bytes| chunk_bits(*bytes)).collect::<Outcome<Vec<u8>>>()?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let mut points = Vec::new();
    let any = |figures: [u8; 2]| args.figure.iter().any(|figure| figures.contains(figure));
    match &args.name {
        _ if !any([5, 6]) => {}
        Some(name) => over_volume(args, program, &chunks, name, &mut points)?,
        None => {
            for transport in ["tcp", "auto"] {
                let name = format!("p4-{transport}-{}", std::process::id());
                let options = ["--servers", SERVERS, "--size", CAPACITY, "--transport", transport];
                let started = Started::new(program, &name, &options)?;
                over_volume(args, program, &chunks, &started.name, &mut points)?;
            }
        }
    }
    let measured = if any([3, 8]) { Some(servers::measure(args, program)?) } else { None };
    let placed = if any([1, 2]) { Some(placements::measure(args, program)?) } else { None };
    let mut result = json(args, program, &points);
    let mut tables = if points.is_empty() { String::new() } else { tables(&points) };
    let mut add = |key: &str, value: Value, text: String| {
        result[key] = value;
        if !tables.is_empty() {
            tables.push('\n');
        }
        tables += &text;
    };
    if let Some(measured) = &measured {
        add("by_servers", measured.json(), measured.tables());
    }
    if let Some(placed) = &placed {
        add("by_placement", placed.json(), placed.tables());
    }
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        keep.write("result.txt", &tables)?;
        let more = measured.iter().flat_map(Measured::pictures);
        let more = more.chain(placed.iter().flat_map(placements::Measured::pictures));
        for (name, picture) in pictures(&points).into_iter().chain(more) {
            keep.write(&name, &picture)?;
        }
    }
    if args.json {
        outln!("{result}")
    } else {
        out!("{tables}")
    }
    Ok(Exit::Done)
}

fn chunk_bits(bytes: u64) -> Outcome<u8> {
    let bits = bytes.trailing_zeros() as u8;
    match bytes.is_power_of_two() && (CHUNK_BITS_MIN..=CHUNK_BITS_MAX).contains(&bits) {
        true => Ok(bits),
        false => {
            Err(Trouble::usage(format!("--chunks {}: expected powers of two from 64K to 16M", size::words(bytes))))
        }
    }
}

fn over_volume(args: &Args, program: &dyn Program, chunks: &[u8], name: &str, points: &mut Vec<Point>) -> Outcome<()> {
    let session = program.open(name)?;
    let transport = session.volume().transport;
    let measured = chunks.iter().try_for_each(|chunk_bits| {
        let file = OneFile::new(&session, *chunk_bits, args.bytes)?;
        let measured = over_sizes(args, &file, &transport, points);
        file.remove().and(measured)
    });
    session.end();
    measured
}

fn over_sizes(args: &Args, file: &OneFile<'_>, transport: &str, points: &mut Vec<Point>) -> Outcome<()> {
    let chunk = short(1 << file.chunk_bits);
    errln!("bench p4: {transport}, {chunk} chunks");
    let first = points.len();
    let sizes =
        || std::iter::successors(Some(TRANSFER_BYTES_MIN), |size| (*size < TRANSFER_BYTES_MAX).then_some(size * 2));
    for figure in args.figure.iter().filter(|figure| matches!(figure, 5 | 6)) {
        for (transfer, is_write) in sizes().flat_map(|size| [(size, true), (size, false)]) {
            points.push(Point {
                transport: transport.into(),
                chunk_bits: file.chunk_bits,
                all: *figure == 6,
                is_write,
                transfer,
                turns: Vec::new(),
            });
        }
    }
    // The first round touches the memory.
    file.whole(TRANSFER_BYTES_MAX, true, true)?;
    for _ in 0..args.repeat {
        for point in &mut points[first..] {
            let took = file.whole(point.transfer, point.all, point.is_write)?;
            point.turns.push(args.bytes as f64 / took.as_secs_f64());
        }
    }
    Ok(())
}

/// The file that is written and read again and again.
struct OneFile<'a> {
    session: &'a Arc<dyn Session>,
    file: Arc<File>,
    path: String,
    chunk_bits: u8,
    bytes: u64,
    block: Vec<u8>,
}

impl OneFile<'_> {
    fn new(session: &Arc<dyn Session>, chunk_bits: u8, bytes: u64) -> Outcome<OneFile<'_>> {
        let path = format!("/bench-p4-{}-{chunk_bits}", std::process::id());
        let open = Some(Access { read: true, write: true });
        let kind = FileKind::File;
        let new = NewFile {
            kind,
            mode: 0o600,
            rdev: 0,
            target: Vec::new(),
            exclusive: true,
            open,
            chunk_bits,
            private: false,
        };
        let made = session.client().create_path(session.who(), path.as_bytes(), &new);
        let file = session.ask(format!("create aze:{path}"), made)?.file;
        let Some(file) = file else {
            return Err(Trouble::new(Exit::Fatal, format!("create aze:{path}: it is not open")));
        };
        let block = (0..TRANSFER_BYTES_MAX).map(|index| (index.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        Ok(OneFile { session, file, path, chunk_bits, bytes, block })
    }

    /// Writes or reads all of it; gives how long that took.
    fn whole(&self, transfer: u64, all: bool, is_write: bool) -> Outcome<Duration> {
        let piece = if all { transfer } else { transfer.min(1 << self.chunk_bits) } as usize;
        let mut buffer = vec![0; piece];
        let pieces = self.block.chunks(piece).cycle();
        let started = Instant::now();
        for (offset, block) in (0..self.bytes).step_by(piece).zip(pieces) {
            if is_write {
                self.session.ask(format_args!("write aze:{}", self.path), self.file.write(offset, block))?;
            } else {
                let read = self
                    .session
                    .ask(format_args!("read aze:{}", self.path), self.file.read_into(offset, &mut buffer))?;
                if read != piece {
                    let text = format!("read aze:{}: {read} bytes at {offset}, not {piece}", self.path);
                    return Err(Trouble::new(Exit::Fatal, text));
                }
            }
        }
        let took = started.elapsed();
        if !is_write && !self.block.ends_with(&buffer) {
            let text = format!("read aze:{}: the last {piece} bytes are not those that were written", self.path);
            return Err(Trouble::new(Exit::Fatal, text));
        }
        Ok(took)
    }

    fn remove(&self) -> Outcome<()> {
        self.session.ask(format!("close aze:{}", self.path), self.file.close())?;
        let removed = self.session.client().unlink_path(self.session.who(), self.path.as_bytes());
        self.session.ask(format!("remove aze:{}", self.path), removed)
    }
}

/// All of it, in the order in which it comes: transports, then write and read.
fn groups(points: &[Point]) -> Vec<(String, bool)> {
    let mut groups = Vec::new();
    for point in points {
        let group = (point.transport.clone(), point.is_write);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn curves(points: &[Point], group: &(String, bool)) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for point in points.iter().filter(|point| (point.transport.as_str(), point.is_write) == (group.0.as_str(), group.1))
    {
        let (name, value) = (point.series(), (point.transfer, point.mib_per_s()));
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(value),
            None => curves.push(Curve { name, points: vec![value] }),
        }
    }
    curves
}

fn title((transport, is_write): &(String, bool)) -> String {
    format!("One process, {} over {transport}", if *is_write { "write" } else { "read" })
}

fn tables(points: &[Point]) -> String {
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    for group in groups(points) {
        let curves = curves(points, &group);
        put(format!("{}, MiB/s by bytes of a transfer", title(&group)));
        let sizes: Vec<String> = curves[0].points.iter().map(|(size, _)| format!("{:>7}", short(*size))).collect();
        put(format!("{:<28}{}", "", sizes.concat()));
        for curve in &curves {
            let values: Vec<String> = curve.points.iter().map(|(_, value)| format!("{value:>7.0}")).collect();
            put(format!("{:<28}{}", curve.name, values.concat()));
        }
        put(String::new());
    }
    put(PAPER.to_string());
    text
}

fn pictures(points: &[Point]) -> Vec<(String, String)> {
    let picture = |group: (String, bool)| {
        let name = format!("{}-{}.svg", if group.1 { "write" } else { "read" }, group.0);
        (name, plot::draw(&title(&group), "bytes of a transfer", "MiB/s", &curves(points, &group), &short))
    };
    groups(points).into_iter().map(picture).collect()
}

fn json(args: &Args, program: &dyn Program, points: &[Point]) -> Value {
    let mut result = record::circumstances(program);
    if !points.is_empty() {
        result["bytes"] = args.bytes.into();
    }
    result["durable"] = "nothing is synced".into();
    result["paper"] = PAPER.into();
    let point = |point: &Point| {
        json!({
            "transport": point.transport,
            "direction": if point.is_write { "write" } else { "read" },
            "chunk_bytes": 1u64 << point.chunk_bits,
            "under_way": if point.all { "all" } else { "one" },
            "transfer_bytes": point.transfer,
            "mib_per_s": point.mib_per_s(),
            "turns": point.turns.iter().map(|turn| turn / f64::from(1 << 20)).collect::<Vec<_>>(),
        })
    };
    result["points"] = points.iter().map(point).collect();
    result
}
