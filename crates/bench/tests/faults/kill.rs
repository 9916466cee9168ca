//! F-04: the process is killed at a random moment, under load.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::fixture::{Answer, Client, Fixture, Plan, Random, content};

/// Titles that are stored again and again.
const NAMES: u64 = 6;
const LONGEST: u64 = 600_000;
const WATCHED: usize = 3_000_000;
const RESUMED: usize = 2_000_000;
const CHUNK: usize = 200_000;

/// What a client knows of one name: its last acknowledged version, and one that was on its way.
#[derive(Clone, Default, Debug)]
struct Versions {
    acked: Option<Vec<u8>>,
    under_way: Option<Vec<u8>>,
}

type VersionsByName = BTreeMap<String, Versions>;

/// Stores one version after the other, until the server is not there any more.
fn store(client: Client, mut known: VersionsByName, mut random: Random) -> VersionsByName {
    loop {
        let name = format!("{}.ts", random.below(NAMES));
        let version = format!("{name} {}", random.next());
        let bytes = content(&version, random.below(LONGEST) as usize + 1);
        let versions = known.entry(name.clone()).or_default();
        versions.under_way = Some(bytes.clone());
        let answer = client.ask("PUT", &format!("/{name}"), "", &bytes);
        match answer.map_or(0, |answer| answer.status) {
            201 | 204 => *versions = Versions { acked: Some(bytes), under_way: None },
            0 => return known,
            status => panic!("{name}: {status}"),
        }
    }
}

/// An upload that is sent in parts.
struct PartialUpload {
    name: String,
    url: String,
    /// What the last answer said.
    acked: usize,
    /// How far anything was sent.
    sent: usize,
}

const TUS: &str = "Tus-Resumable: 1.0.0\r\n";

fn offset_in(answer: &Answer) -> Option<usize> {
    field(answer, "upload-offset")?.parse().ok()
}

fn field<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

impl PartialUpload {
    fn create(client: Client, name: String) -> Option<Self> {
        let fields = format!("{TUS}Upload-Length: {RESUMED}\r\n");
        let answer = client.ask("POST", &format!("/api/v1/uploads?path=/{name}"), &fields, b"");
        let answer = answer.ok().filter(|answer| answer.status != 0)?;
        assert_eq!(answer.status, 201, "{}", answer.head);
        let url = field(&answer, "location").expect("it is somewhere").to_owned();
        Some(Self { name, url, acked: 0, sent: 0 })
    }

    /// Sends what is left, in parts; true when all of it has been acknowledged.
    fn send(&mut self, client: Client) -> bool {
        let bytes = content(&self.name, RESUMED);
        while self.acked < RESUMED {
            let part = &bytes[self.acked..RESUMED.min(self.acked + CHUNK)];
            self.sent = self.acked + part.len();
            let fields = format!(
                "{TUS}Upload-Offset: {}\r\nContent-Type: application/offset+octet-stream\r\n",
                self.acked
            );
            match client.ask("PATCH", &self.url, &fields, part) {
                Ok(answer) if answer.status == 204 => {
                    self.acked = offset_in(&answer).expect("it says how far it is");
                    assert_eq!(self.acked, self.sent);
                }
                Ok(answer) if answer.status != 0 => panic!("{}: {}", self.name, answer.head),
                _ => return false,
            }
        }
        true
    }

    /// What was acknowledged is there; goes on from where the server says.
    fn go_on(&mut self, client: Client) {
        let answer = client.ask("HEAD", &self.url, TUS, b"").expect("it is there again");
        if answer.status == 404 && self.sent == RESUMED {
            // It was complete, and has got its name before anybody heard of it.
            return;
        }
        assert!(matches!(answer.status, 200 | 204), "{}: {}", self.url, answer.head);
        let offset = offset_in(&answer).expect("it says how far it is");
        assert!(self.acked <= offset && offset <= self.sent, "{offset}: {} acked", self.acked);
        self.acked = offset;
        assert!(self.send(client));
    }
}

/// Uploads one after the other in parts, until the server is not there any more; which one is open,
/// and which are whole. None is open when it ended before the answer that says where.
fn resume(client: Client, mut count: usize) -> (Option<PartialUpload>, Vec<String>) {
    let mut whole = vec![];
    loop {
        count += 1;
        let Some(mut upload) = PartialUpload::create(client, format!("resumed-{count}.ts")) else {
            return (None, whole);
        };
        if !upload.send(client) {
            return (Some(upload), whole);
        }
        whole.push(upload.name);
    }
}

/// Files of the server's own in one of its directories.
fn own(fixture: &Fixture, directory: &str) -> usize {
    fs::read_dir(fixture.path(&format!(".tactus/{directory}"))).map_or(0, Iterator::count)
}

/// For a release 10000, by `TACTUS_KILLS`: ten hours.
fn how_many() -> u64 {
    std::env::var("TACTUS_KILLS").map_or(8, |count| count.parse().expect("a number"))
}

#[test]
fn f_04_killed_at_any_moment_it_has_all_that_was_acknowledged_and_nothing_half() {
    let mut fixture = Fixture::new(Plan::default());
    let watched = fixture.store("watched.ts", WATCHED);
    let mut random = Random::new(4);
    let mut known = VersionsByName::new();
    let (mut resumed, mut unheard) = (0, 0);
    for round in 0..how_many() {
        let client = fixture.server.client();
        let (before, dice) = (known.clone(), Random::new(random.next()));
        let storing = std::thread::spawn(move || store(client, before, dice));
        let resuming = std::thread::spawn(move || resume(client, resumed));
        // Whoever watches sees no wrong byte, however far he comes.
        let watch = fixture.server.watch("watched.ts", &watched);
        std::thread::sleep(Duration::from_millis(random.below(2000)));
        fixture.server.kill();
        known = storing.join().expect("each is answered as it should be");
        let (open, mut whole) = resuming.join().expect("each is answered as it should be");
        assert!(watch.seen().bytes() <= WATCHED as u64);
        fixture.restart();
        for (name, versions) in &mut known {
            let answer = fixture.server.get(name);
            let Versions { acked, under_way } = versions;
            let is = |version: &Option<Vec<u8>>| version.as_ref() == Some(&answer.body);
            let found = answer.status == 200 && answer.is_whole;
            let is_right = match answer.status {
                404 => acked.is_none(),
                _ => found && (is(acked) || is(under_way)),
            };
            assert!(is_right, "round {round}: {name}: {} {}", answer.status, answer.body.len());
            *versions = Versions { acked: found.then_some(answer.body), under_way: None };
        }
        known.retain(|_, versions| versions.acked.is_some());
        resumed += whole.len() + 1;
        match open {
            Some(mut open) => {
                open.go_on(fixture.server.client());
                whole.push(open.name);
            }
            // It may have been created all the same.
            None => unheard += 1,
        }
        for name in &whole {
            let answer = fixture.server.get(name);
            assert!(answer.body == content(name, RESUMED), "round {round}: {name}");
            assert_eq!(fixture.server.ask("DELETE", &format!("/{name}"), "", b"").status, 204);
        }
        let (uploads, staged) = (own(&fixture, "uploads"), own(&fixture, "stage"));
        assert!(uploads <= unheard && staged == 0, "round {round}: {uploads}, {staged} left");
    }
}
