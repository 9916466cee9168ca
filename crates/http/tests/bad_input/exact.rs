//! Every byte that is sent is the byte that is stored, whatever part is asked for.

use std::fmt::Write;
use std::ops::Range;
use std::process::Command;

use tactus_control::settings::Sendfile;
use tactus_core::units::{Bytes, MIB};
use tactus_notation::Auto;

use crate::client::{Answer, Client};
use crate::test_server::{A_LEN, TestServer, content};

const SEED: u64 = 0x7461_6374_7573;
const RANGES: usize = 1000;

/// Numbers that look random and are the same in every run: SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// Short, long, at the ends of sectors and of the title.
    fn range(&mut self) -> Range<usize> {
        let near = |at: usize| at.min(A_LEN - 1);
        let first = match self.below(4) {
            0 => near(self.below(A_LEN / 4096) * 4096 + self.below(3)),
            1 => A_LEN - 1 - self.below(5000),
            _ => self.below(A_LEN),
        };
        let len = match self.below(4) {
            0 => 1,
            1 => 1 + self.below(10_000),
            2 => 4096,
            _ => 1 + self.below(A_LEN),
        };
        first..(first + len).min(A_LEN)
    }
}

/// The element of a `Range` field, in any of its three forms.
fn spec(part: &Range<usize>) -> String {
    let (first, end) = (part.start, part.end);
    match (end == A_LEN, first % 2) {
        (true, 0) => format!("-{}", end - first),
        (true, _) => format!("{first}-"),
        (false, _) => format!("{first}-{}", end - 1),
    }
}

#[test]
fn one_thousand_random_ranges_from_the_arena_are_byte_exact() {
    one_thousand_random_ranges(Sendfile::Off);
}

#[test]
fn one_thousand_random_ranges_from_the_page_cache_are_byte_exact() {
    one_thousand_random_ranges(Sendfile::On);
}

fn one_thousand_random_ranges(sendfile: Sendfile) {
    println!("seed {SEED:#x}");
    let server = TestServer::with(|plan| {
        plan.sendfile = sendfile;
        // Some devices read many MiB ahead of each stream, and all of it is reserved.
        plan.engine.memory.arena = Auto::Set(Bytes(512 * MIB));
    });
    let facts = &server.engine.volumes[0];
    assert_eq!(facts.sendfile(), sendfile == Sendfile::On, "{:?}", server.engine.degraded);
    let a = content(A_LEN);
    // Ten connections, each used again and again, at two paces and as fast as it goes.
    std::thread::scope(|scope| {
        for share in 0..10 {
            let (server, a) = (&server, &a);
            scope.spawn(move || {
                let mut dice = Dice(SEED + share);
                let mut client = server.client();
                for n in 0..RANGES / 10 {
                    let rate = ["max", "60M", "25M"][n % 3];
                    match n % 5 {
                        4 => several(&mut client, &mut dice, rate, a),
                        _ => single(&mut client, &mut dice, rate, a),
                    }
                }
            });
        }
    });
    server.wait_until("all have ended", |server| server.engine.broker.running().is_empty());
}

fn ask(client: &mut Client, rate: &str, specs: &str) -> Answer {
    client.get(&format!("/a.ts?rate={rate}"), &format!("Range: bytes={specs}\r\n"))
}

fn single(client: &mut Client, dice: &mut Dice, rate: &str, a: &[u8]) {
    let part = dice.range();
    let answer = ask(client, rate, &spec(&part));
    assert_eq!(answer.status, 206, "{part:?}: {}", answer.text());
    let said = format!("bytes {}-{}/{A_LEN}", part.start, part.end - 1);
    assert_eq!(answer.field("content-range"), Some(&*said));
    assert!(answer.body == a[part.clone()], "{part:?} differs");
}

fn several(client: &mut Client, dice: &mut Dice, rate: &str, a: &[u8]) {
    let mut parts: Vec<_> = (0..2 + dice.below(2)).map(|_| dice.range()).collect();
    while parts.iter().map(Range::len).sum::<usize>() > A_LEN {
        for part in &mut parts {
            part.end = part.start + part.len().div_ceil(2);
        }
    }
    let specs: Vec<_> =
        parts.iter().map(|part| format!("{}-{}", part.start, part.end - 1)).collect();
    let answer = ask(client, rate, &specs.join(","));
    assert_eq!(answer.status, 206, "{parts:?}: {}", answer.text());
    let boundary = answer
        .field("content-type")
        .and_then(|value| value.strip_prefix("multipart/byteranges; boundary="))
        .expect("several parts");
    let mut expected = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let line_end = if index == 0 { "" } else { "\r\n" };
        let (first, last) = (part.start, part.end - 1);
        expected.extend(
            format!(
                "{line_end}--{boundary}\r\nContent-Type: video/mp2t\r\n\
                 Content-Range: bytes {first}-{last}/{A_LEN}\r\n\r\n"
            )
            .bytes(),
        );
        expected.extend(&a[part.clone()]);
    }
    expected.extend(format!("\r\n--{boundary}--\r\n").bytes());
    assert!(answer.body == expected, "{parts:?} differ");
}

#[test]
fn curl_gets_the_same_thousand_ranges() {
    let server = TestServer::new();
    let a = content(A_LEN);
    let mut dice = Dice(SEED);
    let parts: Vec<_> = (0..RANGES).map(|_| dice.range()).collect();
    let mut script = String::new();
    for (n, part) in parts.iter().enumerate() {
        if n > 0 {
            script.push_str("next\n");
        }
        let (address, out) = (server.address, server.outside().join(format!("{n}.part")));
        writeln!(script, "silent\nshow-error\nfail\nurl = \"http://{address}/a.ts?rate=max\"")
            .unwrap();
        writeln!(script, "range = {}\noutput = \"{}\"", spec(part), out.display()).unwrap();
    }
    let file = server.outside().join("curl.conf");
    std::fs::write(&file, script).unwrap();
    let curl = Command::new("curl").arg("--config").arg(&file).output();
    let curl = curl.expect("the case needs curl");
    assert!(curl.status.success(), "{}", String::from_utf8_lossy(&curl.stderr));
    for (n, part) in parts.iter().enumerate() {
        let got = std::fs::read(server.outside().join(format!("{n}.part"))).unwrap();
        assert!(got == a[part.clone()], "{part:?} differs");
    }
}
