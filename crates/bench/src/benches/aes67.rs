//! aes67: two outputs of sound in packets of a millisecond, beside CPU hogs.
//!
//! Promise: both outputs send the same title, so a packet of one has a packet of the other with the
//! same timestamp and the same samples. Lateness counts from the earliest packet of both outputs in
//! the whole run: a drift of the sender counts as lateness. Seconds in which the host took a core
//! do not count. A missing packet does not void the run; the report counts it.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::json;
use tactus_core::rtp;
use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_sys::udp_input::{BATCH, Datagram, InputOptions, UdpInput};

use super::measurement::{HostInterference, NoCleanWindow, Watch};
use super::{Fixture, RECEIVER_CORE, say};
use crate::cpu::RECEIVER;
use crate::figures::windows::{Grid, Span};
use crate::hogs::Hogs;
use crate::netns::Side;
use crate::peers::{self, Server};
use crate::random::Random;
use crate::report::{Report, Table, Verdict, number, spread};
use crate::spread::quantile;
use crate::{clock, datagrams, interrupt, priority};

const OUTPUTS: usize = 2;
const HOGS: usize = 2;
/// The warm-up: nothing that is sent in this time counts.
const WARM_UP: Nanos = SECOND.times(3);
/// How often sockets are emptied.
const SWEEP: Nanos = Nanos::from_millis(10);
/// What a socket holds: seconds of small packets, as the kernel counts them.
const BUFFER: usize = 8 << 20;
/// How long the outputs may take to begin.
const BEGIN_MAX: Nanos = SECOND.times(30);
/// The title: stereo of 24 bits, repeated.
const TITLE_SECONDS: u64 = 60;
const FRAME: u64 = 6;
const SAMPLE_RATE: u64 = 48_000;
/// Samples in a packet.
#[cfg(test)]
const PACKET: u32 = 48;
/// A packet, and a sample, in microseconds.
const PACKET_US: f64 = 1000.0;
const SAMPLE_US: f64 = 1e6 / 48_000.0;

/// A packet that came.
#[derive(Clone, Copy)]
struct Arrival {
    at: MonoTime,
    output: usize,
    sequence: u16,
    timestamp: u32,
    /// Its first samples.
    samples: u64,
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    packets: usize,
    /// Packets of neither output's sequence.
    missing: u64,
    /// In percent.
    late_share: f64,
    /// In microseconds.
    late_p50: f64,
    late_p99: f64,
    late_p999: f64,
    late_max: f64,
    /// Between the packets of one timestamp, in microseconds.
    apart_p50: f64,
    apart_p99: f64,
    apart_max: f64,
    /// Packets of the first output whose timestamp the other one has not, or with other samples.
    unlike: usize,
    /// Seconds that count.
    seconds: usize,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "is sound in packets of a millisecond on time beside a CPU hog, and in step?";
    let mut report = fixture.report("aes67", question);
    report.method = vec![
        "Two channels of L24, 48 kHz, stereo, 1 ms, of one `sync`, send one title to two ports of \
         the receiver. Server and receiver live in two network namespaces joined by a veth pair. \
         The server's real-time core is 0. Core 1 has its control side, two hogs of ordinary \
         priority, and the receiver by SCHED_FIFO."
            .into(),
        "The kernel stamps each arrival. Lateness: arrival less the time of the RTP timestamp, \
         less the smallest such difference of both outputs in the whole run. Apart: the arrivals \
         of the two packets with one timestamp. Seconds in which the host took a core for more \
         than a millisecond do not count."
            .into(),
    ];
    let title = title(&fixture.options.data)?;
    let names = ["tactus".to_owned()];
    let runs = fixture.take_turns(&names, fixture.rounds(1), &mut report, |_, _, report| {
        let figures = run(fixture, &title)?;
        report.runs.push(json!({"name": "tactus", "figures": &figures}));
        Ok(figures)
    })?;
    summarise(&runs, &mut report);
    Ok(report)
}

fn run(fixture: &Fixture, title: &Path) -> Result<Figures> {
    interrupt::check()?;
    let lasts = fixture.seconds(600);
    let receiver = Receiver::open(fixture.wire.receiver_side(), lasts)?;
    let mut server = start(fixture, title)?;
    let watch = Watch::start(fixture)?;
    receiver.wait(&mut server)?;
    let hogs = Hogs::start(RECEIVER_CORE, HOGS)?;
    let from = clock::now() + WARM_UP;
    let measured = Span { from, to: from + lasts };
    interrupt::sleep_until(measured.to)?;
    server.check()?;
    drop(hogs);
    let HostInterference { gaps, .. } = Watch::stop(watch, measured)?;
    drop(server);
    judge(&receiver.stop()?, measured, &gaps)
}

fn judge(arrivals: &[Arrival], measured: Span, gaps: &[Span]) -> Result<Figures> {
    let grid = Grid::new(measured, SECOND, gaps);
    let first = arrivals.first().context("nothing came")?.timestamp;
    // Of the timestamp, as a time; it may wrap in a run.
    let due = |timestamp: u32| f64::from(timestamp.wrapping_sub(first) as i32) * SAMPLE_US;
    let begun = arrivals.iter().map(|arrival| arrival.at).min().unwrap_or_default();
    let late = |arrival: &Arrival| arrival.at.since(begun).0 as f64 / 1e3 - due(arrival.timestamp);
    let counts: Vec<&Arrival> = {
        let kept: Vec<Span> = grid.kept().collect();
        let is_kept = |at: MonoTime| {
            let next = kept.partition_point(|span| span.to <= at);
            kept.get(next).is_some_and(|span| span.from <= at)
        };
        arrivals.iter().filter(|arrival| is_kept(arrival.at)).collect()
    };
    let earliest = arrivals.iter().map(late).fold(f64::INFINITY, f64::min);
    let mut lateness: Vec<f64> = counts.iter().map(|arrival| late(arrival) - earliest).collect();
    let late_share = lateness.iter().filter(|&&late| late > PACKET_US).count() as f64 * 100.0
        / lateness.len().max(1) as f64;
    let (mut apart, mut unlike) = (Vec::new(), 0);
    let of = |output: usize| arrivals.iter().filter(move |arrival| arrival.output == output);
    let other: HashMap<u32, &Arrival> = of(1).map(|each| (each.timestamp, each)).collect();
    for arrival in counts.iter().filter(|arrival| arrival.output == 0) {
        match other.get(&arrival.timestamp) {
            Some(other) if other.samples == arrival.samples => {
                apart.push((arrival.at.0.abs_diff(other.at.0)) as f64 / 1e3);
            }
            _ => unlike += 1,
        }
    }
    let missing = (0..OUTPUTS).map(|output| {
        let sequences: Vec<u16> = of(output).map(|arrival| arrival.sequence).collect();
        let steps = sequences.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]).wrapping_sub(1));
        steps.map(u64::from).sum::<u64>()
    });
    let value = |values: &mut [f64], q| quantile(values, q).ok_or(NoCleanWindow);
    Ok(Figures {
        packets: counts.len(),
        missing: missing.sum(),
        late_share,
        late_p50: value(&mut lateness, 0.5)?,
        late_p99: value(&mut lateness, 0.99)?,
        late_p999: value(&mut lateness, 0.999)?,
        late_max: value(&mut lateness, 1.0)?,
        apart_p50: value(&mut apart, 0.5)?,
        apart_p99: value(&mut apart, 0.99)?,
        apart_max: value(&mut apart, 1.0)?,
        unlike,
        seconds: grid.count() - grid.dropped(),
    })
}

/// Sockets of all outputs, and the thread that empties them.
struct Receiver {
    stop: Arc<AtomicBool>,
    has_all: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Arrival>>>,
}

impl Receiver {
    fn open(side: Side, lasts: Nanos) -> Result<Self> {
        let (stop, has_all) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, begun) = (Arc::clone(&stop), Arc::clone(&has_all));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let room = (lasts + WARM_UP + BEGIN_MAX).0 / SECOND.0 * 1000 * OUTPUTS as u64;
        let thread = std::thread::Builder::new().name(RECEIVER.into()).spawn(move || {
            side.enter()?;
            priority::pin(RECEIVER_CORE)?;
            // Without it the stamps are the same; only the buffers have to hold more.
            drop(priority::fifo(20));
            let inbox = |output: usize| -> Result<UdpInput> {
                let first = (Ipv4Addr::UNSPECIFIED, datagrams::PORT).into();
                let to = datagrams::behind(first, output as u16);
                let wanted = InputOptions { to, source: None, interface: None, buffer: BUFFER };
                Ok(UdpInput::open(&wanted)?.stamped()?)
            };
            let inboxes = (0..OUTPUTS).map(inbox).collect::<Result<Vec<_>>>()?;
            ready.send(()).context("nobody waits for the receiver")?;
            read(inboxes, room as usize, &seen, &begun)
        })?;
        if is_ready.recv().is_err() {
            let ended = thread.join().map_err(|_| anyhow!("the receiver panicked"))?;
            return Err(ended.err().unwrap_or_else(|| anyhow!("the receiver has ended")));
        }
        Ok(Self { stop, has_all, thread })
    }

    /// Waits until something has come of each output.
    fn wait(&self, server: &mut Server) -> Result<()> {
        let end = clock::now() + BEGIN_MAX;
        while !self.has_all.load(Ordering::Relaxed) {
            server.check()?;
            if clock::now() > end {
                bail!("not all outputs have begun within {BEGIN_MAX}: {}", server.output());
            }
            interrupt::sleep_until(clock::now() + Nanos::from_millis(50))?;
        }
        Ok(())
    }

    fn stop(self) -> Result<Vec<Arrival>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the receiver panicked"))?
    }
}

fn read(
    mut inboxes: Vec<UdpInput>,
    room: usize,
    stop: &AtomicBool,
    begun: &AtomicBool,
) -> Result<Vec<Arrival>> {
    // The kernel stamps by the wall clock; both go alike.
    let wall = clock_gettime(ClockId::Realtime);
    let wall = wall.tv_sec as u64 * SECOND.0 + wall.tv_nsec as u64;
    let apart = wall - clock::now().0;
    let mut arrivals = Vec::with_capacity(room);
    let mut has_begun = [false; OUTPUTS];
    let (mut next, mut strange) = (clock::now(), 0u64);
    while !stop.load(Ordering::Relaxed) {
        for (output, inbox) in inboxes.iter_mut().enumerate() {
            let mut each = |datagram: Datagram<'_>| {
                let (Ok(packet), Some(stamp)) =
                    (rtp::Packet::read(datagram.bytes), datagram.timestamp)
                else {
                    strange += 1;
                    return;
                };
                let samples =
                    packet.payload.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                let at = MonoTime(stamp.0.saturating_sub(apart));
                let (sequence, timestamp) = (packet.sequence, packet.timestamp);
                has_begun[output] = true;
                if arrivals.len() < room {
                    arrivals.push(Arrival { at, output, sequence, timestamp, samples });
                }
            };
            while inbox.receive(&mut each).is_ok_and(|count| count == BATCH) {}
        }
        begun.store(has_begun.iter().all(|&has| has), Ordering::Relaxed);
        next = clock::now().max(next) + SWEEP;
        clock::sleep_until(next);
    }
    let dropped: u64 =
        inboxes.iter().map(|inbox| inbox.dropped().map(u64::from)).sum::<Result<u64, _>>()?;
    ensure!(dropped == 0, "the receiver's sockets dropped {dropped} packets");
    ensure!(strange == 0, "{strange} datagrams were no RTP");
    ensure!(arrivals.len() < room, "more came than there is memory for");
    Ok(arrivals)
}

/// A title of noise; kept for the next run.
fn title(data: &Path) -> Result<PathBuf> {
    let folder = data.join("aes67");
    fs::create_dir_all(&folder)?;
    let path = folder.join("noise.wav");
    let len = TITLE_SECONDS * SAMPLE_RATE * FRAME;
    if fs::metadata(&path).is_ok_and(|known| known.len() == len + 44) {
        return Ok(path);
    }
    say("making a title of noise");
    let head = [
        &b"RIFF"[..],
        &(len as u32 + 36).to_le_bytes(),
        b"WAVEfmt \x10\0\0\0\x01\0\x02\0",
        &(SAMPLE_RATE as u32).to_le_bytes(),
        &((SAMPLE_RATE * FRAME) as u32).to_le_bytes(),
        &(FRAME as u16).to_le_bytes(),
        &24u16.to_le_bytes(),
        b"data",
        &(len as u32).to_le_bytes(),
    ];
    let mut random = Random::new(67);
    let part = path.with_extension("part");
    let mut file = std::io::BufWriter::new(fs::File::create(&part)?);
    file.write_all(&head.concat())?;
    for _ in 0..len / 8 {
        file.write_all(&random.next().to_le_bytes())?;
    }
    file.into_inner()?.sync_all()?;
    fs::rename(&part, &path)?;
    Ok(path)
}

fn start(fixture: &Fixture, title: &Path) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("tactus-bench-aes67-").tempdir()?;
    let address = peers::address(&fixture.wire);
    let root = title.parent().context("a title lies in a directory")?;
    let mut text = format!(
        "[http]\naddress = \"{address}\"\n[admin]\naddress = \"off\"\n\
         [link]\nrate = \"1 Gbit/s\"\n[memory]\narena = \"64 MiB\"\n\
         [cores]\n\
         placement = [{{ cpu = 0, servers = [\"disk.0\", \"block\", \"delivery\", \"link\", \
         \"packets\"] }}]\n\
         [[volume]]\npath = \"{}\"\nmount = \"/\"\n",
        root.display()
    );
    let first: SocketAddr = (fixture.wire.receiver_address(), datagrams::PORT).into();
    for output in 0..OUTPUTS {
        let to = datagrams::behind(first, output as u16);
        text.push_str(&format!(
            "[[channel]]\nname = \"{output}\"\ntitle = \"/noise.wav\"\nto = \"rtp://{to}\"\n\
             format = \"aes67\"\nsync = \"both\"\n"
        ));
    }
    let file = folder.path().join("tactus.toml");
    fs::write(&file, text)?;
    let mut command = priority::on_cores("0-1", None, &fixture.tactus.to_string_lossy());
    command.arg("serve").arg("--config").arg(&file);
    Server::start(&command, folder, &fixture.wire, address)
}

fn summarise(runs: &[Figures], report: &mut Report) {
    let values = |of: fn(&Figures) -> f64| -> Vec<f64> { runs.iter().map(of).collect() };
    let mut table = Table::new("two outputs of sound", &["figure", "measured"]);
    let mut row = |name: &str, of: fn(&Figures) -> f64| {
        table.row(vec![name.into(), spread(&values(of))]);
    };
    row("packets", |run| run.packets as f64);
    row("seconds that count", |run| run.seconds as f64);
    row("missing packets", |run| run.missing as f64);
    row("late by more than 1 ms, %", |run| run.late_share);
    row("lateness p50, us", |run| run.late_p50);
    row("lateness p99, us", |run| run.late_p99);
    row("lateness p99.9, us", |run| run.late_p999);
    row("lateness, most, us", |run| run.late_max);
    row("apart p50, us", |run| run.apart_p50);
    row("apart p99, us", |run| run.apart_p99);
    row("apart, most, us", |run| run.apart_max);
    row("packets without their like in the other output", |run| run.unlike as f64);
    report.tables.push(table);
    let worst = |of: fn(&Figures) -> f64| values(of).into_iter().reduce(f64::max);
    let mut verdict = |figure: &str, of: fn(&Figures) -> f64, must: f64, push: f64| {
        report.verdicts.push(Verdict {
            figure: figure.into(),
            measured: spread(&values(of)),
            must: format!("<= {}", number(must)),
            reached: worst(of).map(|worst| worst <= must),
            push: format!("<= {}", number(push)),
            pushed: worst(of).map(|worst| worst <= push),
        });
    };
    verdict("packets late by more than 1 ms, %", |run| run.late_share, 0.1, 0.0);
    verdict("lateness p99, us", |run| run.late_p99, 150.0, 50.0);
    verdict("two outputs apart, most, us", |run| run.apart_max, PACKET_US, SAMPLE_US);
    verdict("packets missing or unlike", |run| run.missing as f64 + run.unlike as f64, 0.0, 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_counts_from_the_earliest_packet_and_pairs_by_timestamp() {
        let span = Span { from: MonoTime(0), to: MonoTime(SECOND.times(2).0) };
        let mut arrivals = vec![];
        for nth in 0..2000u64 {
            for output in 0..OUTPUTS {
                // Every hundredth of the second output is late by 2 ms.
                let late = if output == 1 && nth % 100 == 7 { 2_000_000 } else { 0 };
                let at = MonoTime(1000 + nth * 1_000_000 + output as u64 * 10_000 + late);
                let timestamp = (u32::MAX - 480).wrapping_add(PACKET * nth as u32);
                arrivals.push(Arrival {
                    at,
                    output,
                    sequence: nth as u16,
                    timestamp,
                    samples: nth,
                });
            }
        }
        let found = judge(&arrivals, span, &[]).unwrap();
        assert_eq!((found.missing, found.unlike, found.seconds), (0, 0, 2));
        assert!((found.late_share - 0.5).abs() < 0.01, "{found:?}");
        assert!((found.late_p50 - 10.0).abs() < 10.1 && (found.late_max - 2010.0).abs() < 0.1);
        assert!((found.apart_p50 - 10.0).abs() < 0.1 && (found.apart_max - 2010.0).abs() < 0.1);
        // One of the second output is missing, and one of the first has other samples.
        arrivals.remove(1001);
        arrivals[500].samples = 9;
        let found = judge(&arrivals, span, &[]).unwrap();
        assert_eq!((found.missing, found.unlike), (1, 2));
    }
}
