//! Programs that are killed at random moments leave nothing behind.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use tactus_client::{Client, Options, ReadRequest, Title};

use super::*;

/// Programs that are killed.
const KILLS: u64 = 1000;
/// Programs that run at once; the server takes eight.
const AT_ONCE: u64 = 4;
/// A program is killed within this time after its start, which is several times what it takes to
/// connect.
const LIFE_MAX: Duration = Duration::from_millis(30);
/// In the environment of a program that is killed: the socket, and the seed of its dice.
const SOCKET: &str = "TACTUS_KILLED_SOCKET";
const SEED: &str = "TACTUS_KILLED_SEED";
/// The test that is such a program.
const PROGRAM: &str = "local::killed::a_program_reads_until_it_is_killed";

/// Random numbers: xorshift.
struct Dice(u64);

impl Dice {
    fn of_seed(seed: u64) -> Self {
        // Seeds next to each other begin far from each other.
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

/// Only within a program that the test below has started; a test of its own it is not.
#[test]
fn a_program_reads_until_it_is_killed() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let seed = std::env::var(SEED).expect("a seed").parse().expect("a number");
    let mut dice = Dice::of_seed(seed);
    let options = Options { data: 1 << 20, ..Options::default() };
    loop {
        // As many as there may be, while the server still takes down the dead ones.
        let Ok(client) = Client::connect_with(&socket, &options) else { continue };
        for _ in 0..dice.below(20) {
            let path = if dice.below(2) == 0 { TITLE } else { "/other.ts" };
            let title = client.open(path).expect("a title");
            use_title(&client, &title, &mut dice);
        }
    }
}

fn use_title(client: &Client, title: &Title, dice: &mut Dice) {
    match dice.below(5) {
        0 => {
            let mut copy = vec![0; dice.below(300_000) as usize];
            title.read_at(dice.below(title.len()), &mut copy).expect("a read");
        }
        1 => {
            for _ in 0..=dice.below(40) {
                let len = 1 + dice.below(20_000) as usize;
                submit(client, title, dice.below(title.len()), len, MonoTime(0));
            }
            // Some answers are left in the ring, and some requests when the title is closed.
            for _ in 0..dice.below(40) {
                client.wait(None).expect("a wait");
            }
        }
        2 => {
            // One of the titles fits into `titles_max`, or none while the other one is there.
            if let Ok(map) = title.map() {
                assert_ne!(map.len(), 0);
            }
        }
        3 => {
            client.list("/").expect("a list");
            client.stat(TITLE).expect("a title");
        }
        _ => {
            let when = tactus_client::now() + tactus_client::Nanos(dice.below(5_000_000));
            submit(client, title, 0, 4096, when);
            client.wait(None).expect("a wait");
        }
    }
}

/// Submits a read, if earlier ones have left a buffer and a place for it.
fn submit(client: &Client, title: &Title, offset: u64, len: usize, when: MonoTime) {
    if client.room() > 0
        && let Ok(buffer) = client.buffer(len)
    {
        client.submit(ReadRequest::new(title, offset, buffer).at(when)).expect("room");
    }
}

/// Starts programs, and kills each at a random moment.
fn kill_programs(socket: &Path, seeds: impl Iterator<Item = u64>) {
    let program = std::env::current_exe().expect("this program");
    for seed in seeds {
        let mut command = Command::new(&program);
        command.args([PROGRAM, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, socket).env(SEED, seed.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("a program");
        let life = Dice::of_seed(seed).below(LIFE_MAX.as_micros() as u64);
        std::thread::sleep(Duration::from_micros(life));
        child.kill().expect("a program that runs");
        let status = child.wait().expect("a program that has ended");
        assert!(!status.success() && status.code().is_none(), "seed {seed}: {status}");
    }
}

impl Served {
    /// Its descriptors by kind, and its mappings of memory files.
    fn holdings(&self) -> (BTreeMap<String, usize>, usize) {
        let proc = Path::new("/proc").join(self.process.0.id().to_string());
        let mut kinds = BTreeMap::new();
        for fd in fs::read_dir(proc.join("fd")).expect("its descriptors").flatten() {
            if let Ok(link) = fs::read_link(fd.path()) {
                let link = link.to_string_lossy().into_owned();
                // The number of a socket or a pipe is its own.
                let kind = link.split(":[").next().unwrap_or_default();
                *kinds.entry(kind.to_owned()).or_default() += 1;
            }
        }
        let maps = fs::read_to_string(proc.join("maps")).expect("its mappings");
        (kinds, maps.lines().filter(|line| line.contains("memfd:")).count())
    }

    /// Blocks that are lent.
    fn leased_blocks(&self) -> u64 {
        let text = self.metrics();
        let is_leased = |line: &&str| {
            line.starts_with("tactus_blocks_resident{") && line.contains("state=\"leased\"")
        };
        let values = text.lines().filter(is_leased).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<f64>().expect("a number") as u64).sum()
    }

    /// Every file below its directory, with its length.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut files = vec![];
        let mut directories = vec![self.dir.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("a directory").flatten() {
                let metadata = entry.metadata().expect("a file");
                if metadata.is_dir() {
                    directories.push(entry.path());
                } else {
                    files.push((entry.path(), metadata.len()));
                }
            }
        }
        files.sort();
        files
    }
}

#[test]
fn l04_a_thousand_killed_programs_leave_nothing_behind() {
    let _turn = turn();
    let served = serve();
    let use_everything = || {
        let client = Client::connect(&served.socket).expect("a connection");
        for path in [TITLE, "/other.ts"] {
            let title = client.open(path).expect("a title");
            let mut copy = vec![0; title.len() as usize];
            assert_eq!(title.read_at(0, &mut copy), Ok(copy.len()));
            assert!(path != TITLE || copy == served.bytes);
        }
        let title = client.open(TITLE).expect("a title");
        assert!(*title.map().expect("room") == served.bytes[..]);
    };
    use_everything();
    served.wait_until_nobody_is_left();
    // Its memory goes a moment later.
    let until = Instant::now() + PATIENCE;
    while served.holdings().1 > 0 {
        assert!(Instant::now() < until, "a mapping is left");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (before, files) = (served.holdings(), served.files());

    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let seed = || next.fetch_add(1, Ordering::Relaxed);
                let seeds = std::iter::repeat_with(seed).take_while(|&seed| seed < KILLS);
                kill_programs(&served.socket, seeds);
            });
        }
    });
    // Most of them had begun.
    let requests = served.metric("tactus_local_requests_total{valid=\"yes\"}");
    assert!(requests > KILLS, "{requests} requests");
    served.wait_until_nobody_is_left();
    let until = Instant::now() + PATIENCE;
    loop {
        let (holdings, leased) = (served.holdings(), served.leased_blocks());
        // Fewer are possible: a connection for metrics was still open before.
        let is_no_more = |(kind, count): (&String, &usize)| before.0.get(kind) >= Some(count);
        if holdings.0.iter().all(is_no_more) && holdings.1 == before.1 && leased == 0 {
            break;
        }
        assert!(Instant::now() < until, "{holdings:?}, {leased} leased, not {before:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(served.files(), files);
    use_everything();
}
