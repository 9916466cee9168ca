//! Programs that write a title at a rate, through a ring of shared memory.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;

use tactus_client::{BitRate, RecordingOptions};
use tactus_core::local::stream::{BYTES, WRITTEN};

use super::*;

/// 1 MB/s.
const RATE: BitRate = BitRate(8_000_000);
/// What a recording at it may take at once: a quarter of a second, at a sixty-fourth more.
const BURST: f64 = 253_907.0;

/// A volume that shows titles while they come in.
const VISIBLE: &str = "[[volume]]\npath = \"titles\"\nuploads = true\nunfinished = \"visible\"\n";

impl Site {
    /// The parts of disks and write shares that are promised, summed.
    fn promised(&self) -> f64 {
        let text = self.metrics();
        let of_disks = |line: &&str| {
            line.starts_with("tactus_promised")
                && (line.contains("\"disk\"") || line.contains("\"write share\""))
        };
        let values = text.lines().filter(of_disks);
        let values: Vec<f64> = values
            .map(|line| line.rsplit(' ').next().and_then(|value| value.parse().ok()))
            .collect::<Option<_>>()
            .expect("numbers");
        assert!(values.len() >= 2, "{text}");
        values.iter().sum()
    }

    fn wait_until_nothing_is_promised(&self) {
        let until = Instant::now() + PATIENCE;
        while self.promised() > 0.0 || self.metric("tactus_recorders{volume=\"/\"}") > 0.0 {
            assert!(Instant::now() < until, "a promise of {} is left", self.promised());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_program_records_at_its_rate_and_every_door_reads_the_title_as_it_grows() {
    let _turn = turn();
    let site = serve_volume(&own_user(), "", VISIBLE);
    let (client, other) = (site.connect(), site.connect());
    let bytes = content(3_000_001, 5);
    let begun = Instant::now();
    let mut recording = client.record("/in/live.ts", &RecordingOptions::new(RATE)).expect("room");
    assert!(site.promised() > 0.0);
    assert_eq!(site.metric("tactus_recorders{volume=\"/\"}"), 1.0);
    // As fast as it is taken, copied, then in place and by an event loop.
    recording.write_all(&bytes[..1_000_003]).expect("room");
    let mut done = 1_000_003;
    while done < 2_000_000 {
        let space = recording.space().expect("a server");
        let len = space.len().min(2_000_000 - done);
        space[..len].copy_from_slice(&bytes[done..done + len]);
        recording.commit(len);
        done += len;
        if len == 0 && client.arm().expect("a server") {
            let mut fd = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
            let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
            assert!(poll(&mut fd, Some(&patience)).expect("a wait") > 0, "no ring");
            client.disarm();
        }
    }
    // What was taken by now was not taken faster than the rate; the ring holds half a second.
    let taken = done as f64 - 500_000.0 - 4096.0;
    let rate = RATE.0 as f64 / 8.0 * (1.0 + 1.0 / 64.0);
    assert!(begun.elapsed().as_secs_f64() >= (taken - BURST) / rate, "too fast");
    assert!(recording.overruns() > 0, "the ring was full");
    // Every door reads what is on stable storage.
    let until = Instant::now() + PATIENCE;
    while recording.durable() < 1_000_000 {
        assert!(Instant::now() < until, "{recording:?}: {} is durable", recording.durable());
        std::thread::sleep(Duration::from_millis(10));
    }
    let title = other.open("/in/live.ts").expect("a title that grows");
    assert!(title.stat().grows);
    let mut copy = vec![0; 500_000];
    assert_eq!(title.read_at(400_000, &mut copy), Ok(500_000));
    assert!(copy == bytes[400_000..900_000]);
    let answer = site.request("GET /in/live.ts HTTP/1.1\r\nRange: bytes=0-999", "");
    assert!(answer.starts_with("HTTP/1.1 206"), "{answer}");
    // A program that is slower is served as well.
    while recording.underruns() == 0 {
        assert!(Instant::now() < until, "it was slower");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(site.metric("tactus_recorded_overruns_total{volume=\"/\"}") > 0.0);
    assert!(site.metric("tactus_recorded_underruns_total{volume=\"/\"}") > 0.0);
    recording.write_all(&bytes[2_000_000..]).expect("room");
    assert_eq!(recording.finish(), Ok(3_000_001));

    let (status, body) = site.get("/in/live.ts");
    assert!(status == 200 && body.as_bytes() == bytes, "{status} {}", body.len());
    assert!(fs::read(site.dir.path().join("titles/in/live.ts")).expect("a file") == bytes);
    assert!(!other.stat("/in/live.ts").expect("a title").grows);
    drop(title);
    drop((client, other));
    site.wait_until_nothing_is_promised();
    site.wait_until_nothing_is_left();
}

#[test]
fn a_recording_without_room_is_refused_with_what_is_short() {
    let _turn = turn();
    let site = serve_writers();
    let client = site.connect();
    let refused =
        |options: RecordingOptions| client.record("/a.ts", &options).expect_err("no room");
    let at = |rate| RecordingOptions { room: 25_000_000, ..RecordingOptions::new(BitRate(rate)) };
    let error = refused(at(4_000_000_000));
    assert!(error.errno() == 16 || error.errno() == 28, "{error}");
    assert!(error.message().contains("disk") || error.message().contains("write"), "{error}");
    assert_eq!(refused(at(0)).errno(), 22);
    assert_eq!(refused(at(u64::MAX)).errno(), 22);
    assert_eq!(refused(RecordingOptions { room: 1, ..at(8_000_000) }).errno(), 22);
    assert_eq!(refused(RecordingOptions { room: u64::MAX, ..at(8_000_000) }).errno(), 22);
    let error = refused(RecordingOptions { room: 65 << 20, ..at(8_000_000) });
    assert_eq!(error.errno(), 28);
    assert!(error.message().contains("[local] data_max"), "{error}");
    assert_eq!(errno(client.record("/a/", &RecordingOptions::new(RATE))), 21);
    site.store(&client, "/taken.ts", b"one").expect("a title");
    let nothing = RecordingOptions { replace: Replace::Nothing, ..RecordingOptions::new(RATE) };
    assert_eq!(errno(client.record("/taken.ts", &nothing)), 17);
    assert_eq!(site.promised(), 0.0, "a refusal leaves nothing");

    // As many as there is room for, and one more when one has ended.
    let one = RecordingOptions { room: 1 << 20, ..RecordingOptions::new(BitRate(80_000_000)) };
    let mut all = vec![];
    let error = loop {
        match client.record(&format!("/{}.ts", all.len()), &one) {
            Ok(recording) => all.push(recording),
            Err(error) => break error,
        }
        assert!(all.len() < 64, "the ledger has an end");
    };
    assert!(error.errno() == 16 || error.errno() == 28, "{error}");
    assert!(error.message().contains("try again in"), "{error}");
    assert!(!all.is_empty());
    let empty = all.pop().expect("one").finish().expect_err("no bytes");
    assert_eq!((empty.errno(), empty.message()), (61, "the recording received no data"));
    let until = Instant::now() + PATIENCE;
    while let Err(error) = client.record("/again.ts", &one) {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(all);
    site.wait_until_nothing_is_promised();
    assert_eq!(client.list("/").expect("a list").len(), 1, "no title of no bytes");
    drop(client);
    site.wait_until_nothing_is_left();
    drop(site);

    let site = serve_with("", "");
    let error = site.connect().record("/a.ts", &RecordingOptions::new(RATE));
    assert_eq!(errno(error), 13, "this user may not write");
}

#[test]
fn a_full_quota_ends_a_recording_and_what_was_taken_is_a_title() {
    let _turn = turn();
    let local = format!("{}\nprincipal = \"studio\"", own_user());
    let site = serve_with(&local, "quota = \"2 MB\"");
    let client = site.connect();
    let bytes = content(4_000_000, 1);
    let options = RecordingOptions::new(BitRate(80_000_000));
    let mut recording = client.record("/full.ts", &options).expect("room");
    let error = loop {
        if let Err(error) = recording.write_all(&bytes) {
            break error;
        }
    };
    assert_eq!(error.errno(), 122);
    assert!(error.message().contains("quota"), "{error}");
    assert_eq!(errno(recording.finish()), 122);
    let (status, body) = site.get("/full.ts");
    assert_eq!(status, 200);
    assert!(!body.is_empty() && body.len() <= 2_000_000 && body.as_bytes() == &bytes[..body.len()]);
    drop(client);
    site.wait_until_nothing_is_promised();
    site.wait_until_nothing_is_left();
}

/// Not a test of its own: a program that records until it is killed, for the test below.
#[test]
fn child_that_records() {
    let Some(socket) = std::env::var_os("TACTUS_TEST_RECORDER") else { return };
    let client = Client::connect(socket).expect("a connection");
    let mut recording = client.record("/killed.ts", &RecordingOptions::new(RATE)).expect("room");
    recording.write_all(&content(200_003, 0)).expect("room");
    println!("written");
    std::thread::sleep(PATIENCE);
}

#[test]
fn a_killed_program_leaves_what_a_recording_that_ends_leaves() {
    use std::io::{BufRead, BufReader};
    let _turn = turn();
    let site = serve_writers();
    for _ in 0..4 {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        let name = "local::writing::recordings::child_that_records";
        command.args(["--exact", name, "--nocapture"]);
        command.env("TACTUS_TEST_RECORDER", &site.socket).stdout(Stdio::piped());
        let mut child = Process(command.spawn().expect("a program"));
        let mut lines = BufReader::new(child.0.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text").contains("written")), "it has written");
        child.kill();
        site.wait_until_nothing_is_promised();
        site.wait_until_nothing_is_left();
        // All that was in the ring, although the program is gone.
        assert!(site.get("/killed.ts").1.as_bytes() == content(200_003, 0));
        site.connect().remove("/killed.ts").expect("a title");
    }
}

#[test]
fn a_program_that_lies_about_its_ring_is_cut_off_and_keeps_what_was_taken() {
    let _turn = turn();
    let site = serve_writers();
    for rubbish in [u64::MAX, 1 << 40, 1] {
        let client = Raw::connect(&site.socket);
        assert_eq!(client.refusal(&Message::EndRecording { recording: 0 }), 9);
        let (number, mut ring) = client.record("/lie.ts", RATE.0);
        ring.copy_in(BYTES as u64, b"hello");
        ring.copy_in(WRITTEN as u64, &5_u64.to_le_bytes());
        let until = Instant::now() + PATIENCE;
        let mut taken = [0; 8];
        while u64::from_le_bytes(taken) < 5 {
            assert!(Instant::now() < until, "it is not taken");
            ring.copy_out(tactus_core::local::stream::TAKEN as u64, &mut taken);
        }
        ring.copy_in(WRITTEN as u64, &rubbish.to_le_bytes());
        assert!(client.is_cut());
        drop((client, number));
        site.wait_until_nothing_is_promised();
        assert_eq!(site.get("/lie.ts").1, "hello");
    }
    // What a program writes after it has let the recording go is not taken without end.
    let client = Raw::connect(&site.socket);
    let (number, mut ring) = client.record("/late.ts", RATE.0);
    ring.copy_in(BYTES as u64, &[b'a'; 1000]);
    ring.copy_in(WRITTEN as u64, &1000_u64.to_le_bytes());
    assert_eq!(client.ask(&Message::EndRecording { recording: number }), Reply::Closed);
    let until = Instant::now() + PATIENCE;
    let mut written = 1000_u64;
    while site.promised() > 0.0 {
        assert!(Instant::now() < until, "it goes on");
        written += 1000;
        ring.copy_in(WRITTEN as u64, &written.to_le_bytes());
    }
    assert!(site.get("/late.ts").1.len() >= 1000);
    assert_eq!(client.refusal(&Message::EndRecording { recording: number }), 9);
    drop(client);
    site.wait_until_nothing_is_left();
}
