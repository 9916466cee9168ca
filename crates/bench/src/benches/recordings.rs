//! recordings: live inputs on a spinning disk that is full of deliveries, with greedy uploads
//! beside.
//!
//! Promise: deliveries take a share of the disk's time, then as many live inputs as are admitted
//! take the rest; more are asked for than fit. The loss of a recording is the number of sent
//! packets that its title does not have. The report also has the gaps that the server counts.

use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use tactus_core::ts::{PACKET, SYNC};
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use super::stretches::{Load, Stretches};
use super::uploads::{CYCLE, GREEDY, RATE, UNWRITTEN, streams_for};
use super::{Fixture, say};
use crate::disk::{Profile, Queue, RequestCounts};
use crate::figures::windows::Span;
use crate::machine;
use crate::netns::Side;
use crate::peers::{Peer, TOKEN, Tactus, Tuning, UPLOADS};
use crate::report::{Report, Table, Verdict, number, spread};
use crate::run::Scene;
use crate::titles::Titles;
use crate::{clock, interrupt};

/// The share of the disk's time that the deliveries need by the model, in percent; recordings get
/// the rest.
const SHARE: u32 = 21;
const CALM: Nanos = SECOND.times(10);
const STAGGER: Nanos = SECOND.times(5);
/// Live inputs are begun in it, and those that do not fit ended.
const WARM_UP: Nanos = SECOND.times(45);
const ROUNDS: usize = 3;

/// What a live input is promised, and what comes: a source's clock is its own.
const PROMISED: BitRate = BitRate(8_000_000);
const COMES: BitRate = BitRate(7_600_000);
/// More than fit.
const ASKED: usize = 24;
/// How long it takes until each of them has been admitted or not.
const DECIDED: Nanos = SECOND.times(8);
const SEVEN: usize = 7;
/// How often datagrams are sent, and how often the server is asked how far it is.
const BEAT: Nanos = Nanos::from_millis(5);
const LOOK: Nanos = SECOND;
const PATIENCE: Duration = Duration::from_secs(30);
/// What is durable when (`docs/design/recording.md`): 4 s, three cycles, two groups of flushes.
const DURABLE_WITHIN: f64 = 9.0;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "what do live inputs lose on a 7200 rpm disk that is full, with greedy uploads?";
    let mut report = fixture.report("recordings", question);
    let length = CALM + fixture.seconds(60);
    let mut disk = fixture.emulated(Profile::Hdd, &mut report)?;
    disk.limit_unwritten(UNWRITTEN)?;
    say("laying down the titles");
    let size = Scene::title_size(RATE, STAGGER, WARM_UP, length);
    let usual = streams_for(SHARE) as usize;
    let streams = fixture.options.streams.first().copied().unwrap_or(usual);
    let titles = Titles::lay_apart(disk.mount(), streams, size, disk.size())?;
    titles.make_room()?;
    disk.timed()?;
    report.settings.push(("queue".into(), machine::storage(disk.mount())));
    report.settings.push(("titles".into(), format!("{streams} of {size}, evenly over the disk")));
    let scene = Scene {
        stagger: STAGGER,
        warm_up: WARM_UP,
        length,
        server_cores: "0-1",
        ..fixture.scene(&titles, RATE, streams)
    };
    let tuning = Tuning { cycle: Some(CYCLE), ..Tuning::default() };
    let peer = Tactus { label: "cycle 1 s".into(), tuning };
    report.settings.push((peer.name(), peer.settings(&scene.setting_with_uploads())?));
    let rounds = fixture.rounds(ROUNDS);
    let runs = fixture.take_turns(&[peer.name()], rounds, &mut report, |_, _, report| {
        disk.set_queue(&Queue::plain("mq-deadline"))?;
        let recorded = Mutex::new(None);
        let beside = |server, whole| {
            let found = record(&fixture.wire.receiver_side(), server, whole)?;
            *recorded.lock().map_err(|_| anyhow!("a recorder panicked"))? = Some(found);
            Ok(())
        };
        let load = Load { kind: GREEDY, calm: CALM, patience: Nanos::ZERO, beside: Some(&beside) };
        let disk = Mutex::new(&mut disk);
        let found = Stretches::run(fixture, &peer, &scene, &load, CYCLE, Some(&disk), report)?;
        let recorded = recorded.into_inner().map_err(|_| anyhow!("a recorder panicked"))?;
        let run = Run::of(&found, recorded.context("nothing was recorded")?);
        say(&run.say());
        if let Some(last) = report.runs.last_mut() {
            last["recordings"] = run.recorded.told();
        }
        Ok(run)
    })?;
    summarise(streams, &runs, &mut report);
    report.method.push(method());
    Ok(report)
}

/// What became of the live inputs of one run.
struct RecordingResults {
    admitted: usize,
    /// Packets that were sent to them.
    sent: u64,
    /// Of those, what no title has.
    missing: u64,
    gaps: u64,
    /// Datagrams that the kernel dropped before the server.
    dropped: u64,
    /// Seconds of the stream that were sent and not durable, at most.
    behind: f64,
    /// The latest that this side sent something, milliseconds.
    late: f64,
}

impl RecordingResults {
    fn told(&self) -> Value {
        json!({
            "admitted": self.admitted, "asked for": ASKED, "packets sent": self.sent,
            "missing": self.missing, "gaps": self.gaps, "dropped by the kernel": self.dropped,
            "behind, s": self.behind, "sent late, ms": self.late,
        })
    }
}

/// One run, in figures.
struct Run {
    missed: (usize, usize),
    late: usize,
    j: f64,
    taken: f64,
    writes: f64,
    reads: f64,
    recorded: RecordingResults,
}

impl Run {
    fn of(found: &Stretches, recorded: RecordingResults) -> Self {
        Self {
            missed: found.missed,
            late: found.late,
            j: found.busy.j1s.mean,
            taken: found.taken(),
            writes: found.disk_share(|asked: &RequestCounts| asked.write_time),
            reads: found.disk_share(|asked: &RequestCounts| asked.read_time),
            recorded,
        }
    }

    fn say(&self) -> String {
        let RecordingResults { admitted, missing, gaps, dropped, behind, late, .. } =
            &self.recorded;
        format!(
            "missed {} of {}, late streams {}; {admitted} recordings of {ASKED}, {gaps} gaps, \
             {missing} packets missing, {dropped} datagrams dropped by the kernel, at most {} s \
             not durable, sent {} ms late; uploads {} MB/s; reads {} %, writes {} %",
            self.missed.0,
            self.missed.1,
            self.late,
            number(*behind),
            number(*late),
            number(self.taken),
            number(self.reads),
            number(self.writes),
        )
    }
}

/// Asks a server for something; a connection each time, as nothing here is in a hurry.
fn ask(server: SocketAddrV4, method: &str, target: &str, body: &str) -> Result<(u16, Value)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {target} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\
         Authorization: Bearer {TOKEN}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.get(9..12).and_then(|text| text.parse().ok()).context("no status")?;
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

const RECORDINGS: &str = "/api/v1/recordings";

fn count(status: &Value, name: &str) -> u64 {
    status["counts"][name].as_u64().unwrap_or(0)
}

/// Everybody who sends.
struct Senders {
    /// By number; none where nothing is sent any more.
    targets: Vec<Option<SocketAddr>>,
    since: MonoTime,
    /// Packets so far, the same for each that still has a target.
    packets: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Senders {
    /// Sends by the byte clock; answers the latest that it did, and packets to each.
    fn run(mut self, side: &Side) -> Result<(f64, Vec<u64>)> {
        side.enter()?;
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        let mut sent = vec![0; self.targets.len()];
        let mut late = Nanos(0);
        let mut count = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let passed = clock::now().since(self.since);
            let due = COMES.bytes_in(passed).0 / PACKET as u64;
            for gone in self.ended.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                self.targets[gone] = None;
            }
            while count + SEVEN as u64 <= due {
                let datagram: Vec<u8> = (count..count + SEVEN as u64).flat_map(numbered).collect();
                for (sent, target) in sent.iter_mut().zip(&self.targets) {
                    if let Some(target) = target {
                        socket.send_to(&datagram, target)?;
                        *sent += SEVEN as u64;
                    }
                }
                count += SEVEN as u64;
                let was_due = (count * PACKET as u64 * 8_000_000_000).div_ceil(COMES.0);
                late = late.max(Nanos(clock::now().since(self.since).0.saturating_sub(was_due)));
            }
            self.packets.store(count, Ordering::Relaxed);
            clock::sleep(BEAT);
        }
        Ok((late.0 as f64 / 1e6, sent))
    }
}

fn numbered(number: u64) -> [u8; PACKET] {
    let mut packet = [number as u8; PACKET];
    packet[..4].copy_from_slice(&[SYNC, 1, 0, 0x10 | number as u8 & 0x0f]);
    packet[4..12].copy_from_slice(&number.to_be_bytes());
    packet
}

/// Begins live inputs, ends those that do not fit, and keeps the others going until the end of
/// `whole`.
fn record(side: &Side, server: SocketAddrV4, whole: Span) -> Result<RecordingResults> {
    side.enter()?;
    let names: Vec<String> = (0..ASKED).map(|number| format!("live-{number}")).collect();
    let mut targets = Vec::new();
    for name in &names {
        let wanted = json!({
            "name": name,
            "from": format!("udp://{}:0", server.ip()),
            "to": format!("/{UPLOADS}/{name}-%n.ts"),
            "rate": format!("{} kbit/s", PROMISED.0 / 1000),
        });
        let (status, said) = ask(server, "POST", RECORDINGS, &wanted.to_string())?;
        ensure!(status == 201, "a recording was answered with {status}: {said}");
    }
    for name in &names {
        targets.push(loop {
            let (_, status) = ask(server, "GET", &format!("{RECORDINGS}/{name}"), "")?;
            if let Some(address) = status["address"].as_str() {
                break Some(address.parse()?);
            }
            interrupt::check()?;
            clock::sleep(BEAT);
        });
    }
    let (packets, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let ended = Arc::<Mutex<Vec<usize>>>::default();
    let senders = Senders {
        targets,
        since: clock::now(),
        packets: Arc::clone(&packets),
        stop: Arc::clone(&stop),
        ended: Arc::clone(&ended),
    };
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| senders.run(side));
        let watched = watch(server, &names, whole, &packets, &ended);
        stop.store(true, Ordering::Relaxed);
        let (late, sent) = sending.join().map_err(|_| anyhow!("a sender panicked"))??;
        let (admitted, behind) = watched?;
        settle(server, &names, &admitted, &sent).map(|recorded| RecordingResults {
            behind,
            late,
            ..recorded
        })
    })
}

/// Those that are admitted, and how far they were from being durable at most within `whole`, in
/// seconds.
fn watch(
    server: SocketAddrV4,
    names: &[String],
    whole: Span,
    packets: &AtomicU64,
    ended: &Mutex<Vec<usize>>,
) -> Result<(Vec<usize>, f64)> {
    clock::sleep(DECIDED);
    let (_, all) = ask(server, "GET", RECORDINGS, "")?;
    let all = all.as_array().context("no list of recordings")?;
    let refused = |name: &String| {
        let of = all.iter().find(|status| status["name"].as_str() == Some(name))?;
        of["alarms"]["reserve"].as_str()
    };
    let why = names.iter().find_map(refused);
    let (admitted, others): (Vec<_>, Vec<_>) =
        (0..names.len()).partition(|&number| refused(&names[number]).is_none());
    ended.lock().unwrap_or_else(PoisonError::into_inner).extend(&others);
    // Each is answered when its title is stored, in the time that is left: together that is once.
    std::thread::scope(|scope| {
        let end = |&number: &usize| {
            let target = format!("{RECORDINGS}/{}", names[number]);
            scope.spawn(move || ask(server, "DELETE", &target, ""))
        };
        let ending: Vec<_> = others.iter().map(end).collect();
        ending.into_iter().try_for_each(|one| {
            one.join().map_err(|_| anyhow!("who ended a live input panicked"))?.map(drop)
        })
    })?;
    say(&format!("{} live inputs admitted of {}: {why:?}", admitted.len(), names.len()));
    ensure!(!admitted.is_empty(), "no recording was admitted: {why:?}");
    ensure!(clock::now() < whole.from, "the recordings were not ready in the warm-up");
    interrupt::sleep_until(whole.from)?;
    let mut behind: f64 = 0.0;
    while clock::now() < whole.to {
        let sent = packets.load(Ordering::Relaxed) * PACKET as u64;
        let (_, all) = ask(server, "GET", RECORDINGS, "")?;
        for status in all.as_array().context("no list of recordings")? {
            let name = status["name"].as_str().unwrap_or_default();
            if admitted.iter().any(|&number| names[number] == name) {
                let durable = status["title_durable_bytes"].as_u64().unwrap_or(0);
                let left = sent.saturating_sub(durable) as f64 * 8.0 / COMES.0 as f64;
                behind = behind.max(left);
            }
        }
        interrupt::sleep_until(clock::now() + LOOK)?;
    }
    Ok((admitted, behind))
}

/// Ends them, and adds up.
fn settle(
    server: SocketAddrV4,
    names: &[String],
    admitted: &[usize],
    sent: &[u64],
) -> Result<RecordingResults> {
    let mut all = RecordingResults {
        admitted: admitted.len(),
        sent: 0,
        missing: 0,
        gaps: 0,
        dropped: 0,
        behind: 0.0,
        late: 0.0,
    };
    for &number in admitted {
        let target = format!("{RECORDINGS}/{}", names[number]);
        ask(server, "DELETE", &target, "")?;
        let status = loop {
            let (_, status) = ask(server, "GET", &target, "")?;
            if status["state"] == "stopped" {
                break status;
            }
            interrupt::check()?;
            clock::sleep(BEAT);
        };
        let stored = count(&status, "stored_bytes") / PACKET as u64;
        all.sent += sent[number];
        all.missing += sent[number].saturating_sub(stored);
        all.gaps += count(&status, "write_gaps");
        all.dropped += count(&status, "socket_dropped");
    }
    Ok(all)
}

fn summarise(streams: usize, runs: &[Run], report: &mut Report) {
    let title = format!("{streams} deliveries, as many live inputs as fit, and greedy uploads");
    let mut table = Table::new(
        &title,
        &[
            "server",
            "live inputs",
            "missed cycles",
            "late streams",
            "J 1 s, %",
            "gaps",
            "packets missing",
            "dropped by the kernel",
            "not durable, at most, s",
            "uploads, MB/s",
            "reads, % of disk time",
            "writes, %",
        ],
    );
    let cell = |value: &dyn Fn(&Run) -> f64| spread(&runs.iter().map(value).collect::<Vec<_>>());
    let sum = |value: &dyn Fn(&Run) -> u64| runs.iter().map(value).sum::<u64>();
    let (missed, cycles) = (sum(&|run| run.missed.0 as u64), sum(&|run| run.missed.1 as u64));
    let gaps = sum(&|run| run.recorded.gaps);
    let missing = sum(&|run| run.recorded.missing);
    let dropped = sum(&|run| run.recorded.dropped);
    let behind = runs.iter().map(|run| run.recorded.behind).fold(0.0, f64::max);
    if !runs.is_empty() {
        table.row(vec![
            "tactus (cycle 1 s)".into(),
            cell(&|run| run.recorded.admitted as f64),
            format!("{missed} of {cycles}"),
            cell(&|run| run.late as f64),
            cell(&|run| run.j),
            gaps.to_string(),
            format!("{missing} of {}", sum(&|run| run.recorded.sent)),
            dropped.to_string(),
            cell(&|run| run.recorded.behind),
            cell(&|run| run.taken),
            cell(&|run| run.reads),
            cell(&|run| run.writes),
        ]);
    }
    report.tables.push(table);
    let tried = !runs.is_empty();
    let verdict = |figure: &str, measured: String, must: &str, reached: bool| Verdict {
        figure: figure.into(),
        measured,
        must: must.into(),
        reached: tried.then_some(reached),
        push: "-".into(),
        pushed: None,
    };
    // What the kernel drops in front of the server is the machine's, and told apart.
    let lost = missing.saturating_sub(dropped * SEVEN as u64);
    report.verdicts.extend([
        verdict("missed cycles of deliveries", format!("{missed} of {cycles}"), "0", missed == 0),
        verdict("gaps in recordings", gaps.to_string(), "0", gaps == 0),
        verdict("packets that came and are in no title", lost.to_string(), "0", lost == 0),
        verdict(
            "sent and not durable, at most",
            format!("{} s", number(behind)),
            &format!("{DURABLE_WITHIN} s"),
            behind <= DURABLE_WITHIN,
        ),
    ]);
}

fn method() -> String {
    format!(
        "Deliveries of a mebibyte a second that need {SHARE} % of the disk's time by its model \
         run first. Then {ASKED} live inputs of {PROMISED} are asked for by UDP, and sent {COMES} \
         each; those that the server does not admit are ended after {DECIDED}, so that the disk \
         is promised to the last. After {CALM} eight clients upload titles of 64 MiB as fast as \
         they are taken. A cycle is missed when the player of at least one delivery, which starts \
         with {} of media, has nothing to show in it. What is missing in recordings is what was \
         sent less what is stored, in packets; what the kernel dropped before the server read it, \
         on a machine that is shared, stands apart.",
        super::START_UP
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(missing: u64, dropped: u64, gaps: u64, behind: f64) -> Run {
        let recorded = RecordingResults {
            admitted: 10,
            sent: 1_000,
            missing,
            gaps,
            dropped,
            behind,
            late: 0.0,
        };
        let (missed, late) = ((0, 60), 0);
        Run { missed, late, j: 0.0, taken: 1.0, writes: 0.0, reads: 0.0, recorded }
    }

    #[test]
    fn what_the_kernel_dropped_is_not_held_against_the_server_and_all_else_is() {
        let reached = |run| {
            let mut report = Report::new("recordings", "");
            summarise(27, &[run], &mut report);
            report.verdicts.iter().map(|verdict| verdict.reached == Some(true)).collect::<Vec<_>>()
        };
        assert_eq!(reached(run(14, 2, 0, 5.0)), [true, true, true, true]);
        assert_eq!(reached(run(15, 2, 0, 5.0)), [true, true, false, true]);
        assert_eq!(reached(run(0, 0, 1, 9.5)), [true, false, true, false]);
    }
}
