//! F-09: what lies on the disk changes under the server.

use std::time::Duration;

use tactus_bench::faulty::Order;

use crate::disk::wait_until;
use crate::fixture::{Answer, Fixture, Plan, Random};

const TITLES: usize = 4;
/// Not whole blocks, and not a whole number of sectors.
const LEN: usize = 900_001;
const BLOCK: u64 = 256 * 1024;

/// What is done to a title, and how it is undone.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip { at: u64, bit: u8 },
    Swap { one: u64, other: u64 },
}

struct Titles {
    fixture: Fixture,
    contents: Vec<Vec<u8>>,
    random: Random,
}

impl Titles {
    fn new(sendfile: bool, seed: u64) -> Self {
        let fixture = Fixture::new(Plan { sendfile, ..Plan::default() });
        let store = |number| fixture.store(&format!("{number}.ts"), LEN);
        let contents = (0..TITLES).map(store).collect();
        Self { fixture, contents, random: Random::new(seed) }
    }

    /// A new version of a title with the same content: nobody has anything of it in memory.
    fn renew(&mut self, number: usize) {
        let name = format!("{number}.ts");
        assert_eq!(self.fixture.server.put(&name, &self.contents[number]), 204);
    }

    fn order(&mut self, damage: Damage) {
        let order = match damage {
            Damage::Flip { at, bit } => Order::Flip { at, bit },
            Damage::Swap { one, other } => Order::Swap { one, other },
        };
        self.fixture.disk().order(order).expect("the disk obeys");
    }

    /// Damages a title at random; answers in which block first.
    fn damage(&mut self, number: usize) -> u64 {
        let name = format!("{number}.ts");
        let fixture = &mut self.fixture;
        // The server reads each new title for an index, which leaves it in the page cache.
        let wanted = || fixture.server.figure("tactus_indexes_wanted");
        wait_until("all titles are read", Duration::from_secs(30), || wanted() == 0.0);
        fixture.disks[0].forget(&name).expect("memory is given back");
        let at = self.random.below(LEN as u64);
        let position = fixture.disks[0].position(&name, at).expect("it is stored");
        let damage = if self.random.below(4) > 0 {
            Damage::Flip { at: position, bit: self.random.below(8) as u8 }
        } else {
            // A misdirected write: what belongs elsewhere, whole and right by itself.
            let from = format!("{}.ts", (number + 1) % TITLES);
            let with = fixture.disks[0].position(&from, self.random.below(LEN as u64 - 4096));
            Damage::Swap { one: position & !4095, other: with.expect("it is stored") & !4095 }
        };
        self.order(damage);
        at / BLOCK
    }
}

/// What came is right as far as it goes, and stops before the damage.
fn judge(answer: &Answer, content: &[u8], damaged: u64) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(content.starts_with(&answer.body), "{} bytes, damaged: {damaged}", answer.body.len());
    assert!(answer.body.len() as u64 <= damaged * BLOCK, "{} bytes", answer.body.len());
    assert!(!answer.is_whole);
}

/// So many random damages, by one way of sending.
fn damages(sendfile: bool, count: u64, seed: u64) {
    let mut titles = Titles::new(sendfile, seed);
    let mut untouched = 0;
    for round in 0..count {
        let number = (round as usize) % TITLES;
        // Of every other title the blocks before the damage are in memory.
        if round % 2 == 0 {
            let (server, len) = (&titles.fixture.server, 1 + round % BLOCK);
            let part = format!("Range: bytes=0-{len}\r\n");
            let answer = server.ask("GET", &format!("/{number}.ts?rate=max"), &part, b"");
            assert_eq!((answer.status, answer.body.len() as u64), (206, len + 1));
        }
        let block = titles.damage(number);
        let is_in_memory = round % 2 == 0 && block == 0;
        let answer = titles.fixture.server.get(&format!("{number}.ts"));
        if is_in_memory {
            // Held against its sum before, or found now; never anything else.
            assert!(titles.contents[number].starts_with(&answer.body));
        } else if sendfile && answer.is_whole && answer.body == titles.contents[number] {
            // The kernel had not given back all of its memory: the disk was not read again.
            untouched += 1;
        } else {
            judge(&answer, &titles.contents[number], block);
        }
        // The neighbour may have lost a block to it.
        for each in [number, (number + 1) % TITLES] {
            titles.renew(each);
        }
    }
    let found = titles.fixture.server.figure("tactus_blocks_damaged_total{volume=\"/\"}");
    assert!(found >= count as f64 / 2.0, "{found} of {count}");
    assert!(untouched <= count / 20, "{untouched} of {count} were still in memory");
    let whole = titles.fixture.server.get("0.ts");
    assert!(whole.is_whole && whole.body == titles.contents[0]);
}

/// For a release (P7) 5000, by `TACTUS_DAMAGES`: ten minutes for both ways together.
fn how_many() -> u64 {
    std::env::var("TACTUS_DAMAGES").map_or(200, |count| count.parse().expect("a number"))
}

#[test]
fn f_09_random_damage_is_found_before_it_is_copied() {
    damages(false, how_many(), 1);
}

#[test]
fn f_09_random_damage_is_found_before_it_is_sent_by_reference() {
    damages(true, how_many(), 2);
}

#[test]
fn f_09_a_cut_title_and_one_without_its_checksums_are_refused_before_any_byte() {
    let fixture = Fixture::new(Plan::default());
    for name in ["cut.ts", "long.ts", "lost.ts"] {
        // Longer than those whose checksums need no file.
        fixture.store(name, 2 * LEN);
    }
    let open = |name: &str| std::fs::File::options().write(true).open(fixture.path(name));
    open("cut.ts").and_then(|file| file.set_len(2 * LEN as u64 - 1)).expect("a shorter file");
    open("long.ts").and_then(|file| file.set_len(2 * LEN as u64 + 1)).expect("a longer file");
    std::fs::remove_dir_all(fixture.path(".tactus/sums")).expect("it is there");
    for (count, name) in [(1.0, "cut.ts"), (2.0, "long.ts"), (3.0, "lost.ts")] {
        let answer = fixture.server.get(name);
        assert_eq!(answer.status, 500, "{name}: {}", answer.head);
        assert!(answer.text().contains("store"), "{name}: {}", answer.text());
        assert_eq!(fixture.server.figure("tactus_titles_damaged_total"), count);
    }
}

#[test]
fn f_09_a_title_that_is_held_in_memory_is_compared_as_well() {
    for sendfile in [false, true] {
        let mut fixture = Fixture::new(Plan { sendfile, ..Plan::default() });
        let content = fixture.store("a.ts", 4_000_000);
        let at = fixture.disks[0].position("a.ts", 3_000_000).expect("it is stored");
        fixture.disk().order(Order::Flip { at, bit: 3 }).expect("the disk obeys");
        // The server inspects a title after it is stored, which leaves its sectors in the page
        // cache.
        fixture.disk().forget("a.ts").expect("memory is given back");
        // From the second on it would be kept in memory, for all who come.
        let watches: Vec<_> = (0..4).map(|_| fixture.server.watch("a.ts", &content)).collect();
        for watch in watches {
            let seen = watch.seen();
            assert!(!seen.is_whole && seen.bytes() <= 3_000_000 / 262_144 * 262_144);
            assert!(seen.lateness() < Duration::from_millis(500), "{:?}", seen.lateness());
        }
        let said = fixture.server.said();
        let logged = said.lines().filter(|line| line.contains("is not what was stored")).count();
        assert_eq!(logged, 1, "{said}");
        assert!(said.contains("block=11") && said.contains("a.ts"), "{said}");
    }
}
