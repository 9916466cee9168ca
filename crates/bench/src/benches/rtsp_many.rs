//! rtsp-many: RTSP readers of one title of 4 Mbit/s, beside MediaMTX.
//!
//! Promise: both servers run on one core and send RTP over UDP to the same readers, in turns.
//! Tactus reads a file for each reader at that reader's place; MediaMTX, which serves no files,
//! copies one live stream that ffmpeg publishes on the other core. What arrived is counted by the
//! receiver's device, so a server that sends less is seen.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow, ensure};
use serde_json::json;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::{Fixture, RECEIVER_CORE, SERVER_CORES, say};
use crate::cpu::CpuSnapshot;
use crate::crowd::Session;
use crate::netns::Side;
use crate::peers::{self, Server};
use crate::report::{Report, Table, number, spread};
use crate::{clock, command, interrupt, machine, priority};

const READERS: [usize; 2] = [100, 500];
const RATE: BitRate = BitRate(4_000_000);
/// Of the title: as long as a run lasts at most.
const LENGTH: Nanos = SECOND.times(180);
const ROUNDS: usize = 3;
const WARM_UP: Nanos = SECOND.times(2);
const PORT: u16 = 8554;
/// Reader n receives at this and 2 n.
const FIRST_PORT: u16 = 20_000;
/// How long a server may take until a reader can set up a session.
const PATIENCE: Nanos = SECOND.times(60);
/// Beside the media: one that sends less than this share has not carried the readers.
const SHARE_MIN: f64 = 0.9;

/// A server and its settings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Tactus {
        /// How long datagrams may wait for each other.
        burst: &'static str,
    },
    MediaMtx,
}

const SENDERS: [Sender; 3] =
    [Sender::Tactus { burst: "8 ms" }, Sender::Tactus { burst: "0 ms" }, Sender::MediaMtx];

impl Sender {
    fn name(self) -> String {
        match self {
            Self::Tactus { burst } => format!("tactus, burst {burst}"),
            Self::MediaMtx => "MediaMTX".into(),
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Tactus { .. } => "/title.ts",
            Self::MediaMtx => "/live",
        }
    }
}

/// What one run showed.
struct Run {
    sender: Sender,
    readers: usize,
    /// Processor time of the server, in cores.
    cores: f64,
    cpu_per_gb: f64,
    /// Of what the title's rate asks for.
    share: f64,
    memory: Option<Bytes>,
    refused: usize,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "what do readers by RTSP cost, beside MediaMTX?";
    let mut report = fixture.report("rtsp-many", question);
    let version = command::finish(Command::new(&fixture.options.mediamtx).arg("--version"));
    let version =
        version.map_err(|error| anyhow!("{error:#}: `cargo xtask bench rtsp-many` builds it"))?;
    report.settings.push(("MediaMTX".into(), format!("{}, its own defaults", version.trim())));
    let root = fixture.options.data.join("rtsp-many");
    lay(&root)?;
    peers::measure_volume(&fixture.tactus, &root, fixture.options.quick)?;
    let counts = match &*fixture.options.streams {
        [] => READERS.to_vec(),
        asked => asked.to_vec(),
    };
    let all: Vec<(Sender, usize)> =
        counts.iter().flat_map(|&readers| SENDERS.map(|sender| (sender, readers))).collect();
    let names: Vec<String> = all
        .iter()
        .map(|(sender, readers)| format!("{}, {readers} readers", sender.name()))
        .collect();
    let runs =
        fixture.take_turns(&names, fixture.rounds(ROUNDS), &mut report, |place, _, report| {
            let (sender, readers) = all[place];
            let run = run(fixture, sender, readers, &root)?;
            report.runs.push(json!({
                "server": sender.name(),
                "readers": readers,
                "cores": run.cores,
                "cpu_per_gb": run.cpu_per_gb,
                "share": run.share,
                "memory": run.memory.map(|memory| memory.0),
                "refused": run.refused,
            }));
            say(&format!("{} cores, {} of the rate", number(run.cores), number(run.share)));
            Ok(run)
        })?;
    summarise(&counts, &runs, &mut report);
    report.note(format!("load average {}", machine::load()));
    report.method.push(format!(
        "Readers set up a session of RTP over UDP each and read nothing from their sockets: the \
         kernel drops what finds no room, and the receiver's device counts what came. The title \
         is H.264 in a transport stream of {RATE}. Tactus sends the whole stream (payload type \
         33) from each reader's place in the file; MediaMTX sends the H.264 of a copy that loops, \
         published by `ffmpeg -re -c copy` by TCP on core {RECEIVER_CORE}, the same packets to \
         all. Each server is on core {SERVER_CORES}. CPU is as in all benches; of MediaMTX it \
         holds the reception of the one publisher. Memory is the most that was resident, of \
         Tactus with its arena."
    ));
    Ok(report)
}

fn run(fixture: &Fixture, sender: Sender, readers: usize, root: &Path) -> Result<Run> {
    let mut server = match sender {
        Sender::Tactus { burst } => start_tactus(fixture, burst, root)?,
        Sender::MediaMtx => start_mediamtx(fixture, root)?,
    };
    let address = SocketAddrV4::new(fixture.wire.server_address(), PORT);
    let side = fixture.wire.receiver_side();
    let path = sender.path();
    let ready = move || Session::open(address, path, FIRST_PORT).map(drop);
    let deadline = clock::now() + PATIENCE;
    while let Err(error) = on(&side, ready)? {
        server.check()?;
        interrupt::check()?;
        ensure!(clock::now() < deadline, "nobody can read {path}: {error:#}");
        clock::sleep(Nanos::from_millis(200));
    }
    let (sessions, refused) = on(&side, move || play(address, path, readers))??;
    interrupt::sleep_until(clock::now() + WARM_UP)?;
    let (before, bytes) = (CpuSnapshot::take()?, fixture.wire.received()?);
    interrupt::sleep_until(clock::now() + fixture.seconds(20))?;
    let (spent, bytes) =
        (CpuSnapshot::take()?.since(&before, server.process()), fixture.wire.received()? - bytes);
    server.check()?;
    let memory = server.memory_peak();
    drop(sessions);
    let cost = spent.cost(&fixture.idle).total();
    let wanted = RATE.0 as f64 / 8.0 * spent.wall * readers as f64;
    Ok(Run {
        sender,
        readers,
        cores: cost / spent.wall,
        cpu_per_gb: cost * 1e9 / bytes.max(1) as f64,
        share: bytes as f64 / wanted,
        memory,
        refused,
    })
}

/// Does `act` in a thread on `side` of the wire.
fn on<T: Send>(side: &Side, act: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<T> {
            side.enter()?;
            priority::pin(RECEIVER_CORE)?;
            Ok(act())
        });
        thread.join().map_err(|_| anyhow!("a reader panicked"))?
    })
}

/// A reader's session, and the sockets of its datagrams and reports.
type Reader = (Session, [UdpSocket; 2]);

/// Sets up all readers; answers those that play, and how many were refused.
fn play(server: SocketAddrV4, path: &str, readers: usize) -> Result<(Vec<Reader>, usize)> {
    let (mut playing, mut refused) = (Vec::new(), 0);
    for reader in 0..readers {
        interrupt::check()?;
        let port = FIRST_PORT + 2 * u16::try_from(reader)?;
        let bind = |port| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
        let sockets = [bind(port)?, bind(port + 1)?];
        let played = Session::open(server, path, port).and_then(|mut session| {
            session.ask("PLAY", "")?;
            Ok(session)
        });
        match played {
            Ok(session) => playing.push((session, sockets)),
            Err(error) => {
                if refused == 0 {
                    say(&format!("reader {reader}: {error:#}"));
                }
                refused += 1;
            }
        }
    }
    Ok((playing, refused))
}

fn start_tactus(fixture: &Fixture, burst: &str, root: &Path) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("tactus-bench-rtsp-").tempdir()?;
    let address = peers::address(&fixture.wire);
    let text = format!(
        "[http]\naddress = \"{address}\"\n[admin]\naddress = \"off\"\n[link]\n\
         rate = \"100 Gbit/s\"\n\
         [cpu]\nbudget = \"95 %\"\n[memory]\nstreams_max = 1024\n\
         [cores]\n\
         placement = [{{ cpu = 0, servers = [\"disk.0\", \"block\", \"delivery\", \"link\", \
         \"packets\"] }}]\n\
         [rtsp]\naddress = \"{}:{PORT}\"\nconnections_per_address_max = 10000\n\
         burst = \"{burst}\"\n\
         [[volume]]\npath = \"{}\"\nmount = \"/\"\n",
        address.ip(),
        root.display(),
    );
    let file = folder.path().join("tactus.toml");
    fs::write(&file, text)?;
    let mut command = priority::on_cores(SERVER_CORES, None, &fixture.tactus.to_string_lossy());
    command.arg("serve").arg("--config").arg(&file);
    Server::start(&command, folder, &fixture.wire, address)
}

/// MediaMTX with everything but RTSP off, and a publisher on the receiver's core, which is not
/// counted.
fn start_mediamtx(fixture: &Fixture, root: &Path) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("tactus-bench-mediamtx-").tempdir()?;
    let file = folder.path().join("mediamtx.yml");
    let off = ["rtmp", "hls", "webrtc", "srt"].map(|name| format!("{name}: no\n")).concat();
    fs::write(&file, format!("rtspAddress: :{PORT}\n{off}paths:\n  live:\n"))?;
    let binary = fixture.options.mediamtx.canonicalize()?;
    let mut command = priority::on_cores(SERVER_CORES, None, &binary.to_string_lossy());
    command.arg(&file);
    let address = SocketAddrV4::new(fixture.wire.server_address(), PORT);
    let server = Server::start(&command, folder, &fixture.wire, address)?;
    let mut ffmpeg = priority::on_cores(&RECEIVER_CORE.to_string(), None, "ffmpeg");
    ffmpeg.args(["-v", "error", "-re", "-stream_loop", "-1", "-i"]).arg(root.join("title.ts"));
    ffmpeg.args(["-c", "copy", "-f", "rtsp", "-rtsp_transport", "tcp"]);
    ffmpeg.arg(format!("rtsp://{address}/live"));
    let folder = tempfile::Builder::new().prefix("tactus-bench-publisher-").tempdir()?;
    Ok(server.beside(Server::start_silent(&ffmpeg, folder, &fixture.wire)?))
}

/// The title: H.264 at a constant rate, without audio.
fn lay(root: &Path) -> Result<PathBuf> {
    fs::create_dir_all(root)?;
    let title = root.join("title.ts");
    if title.is_file() {
        return Ok(title);
    }
    say(&format!("making a title of {LENGTH}"));
    let part = root.join("part.ts");
    let (video, mux) = ((RATE.0 * 19 / 20).to_string(), RATE.0.to_string());
    let mut ffmpeg = Command::new("ffmpeg");
    let video_frame = "testsrc2=size=640x360:rate=25,noise=alls=40:allf=t";
    ffmpeg.args(["-v", "error", "-y", "-f", "lavfi", "-i", video_frame]);
    ffmpeg.args([
        "-t",
        &(LENGTH.0 / SECOND.0).to_string(),
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
    ]);
    ffmpeg.args(["-pix_fmt", "yuv420p", "-g", "25", "-bf", "0", "-x264-params", "nal-hrd=cbr"]);
    ffmpeg.args(["-b:v", &video, "-minrate", &video, "-maxrate", &video, "-bufsize", "1M"]);
    ffmpeg.args(["-f", "mpegts", "-muxrate", &mux]).arg(&part);
    command::finish(&mut ffmpeg)?;
    fs::rename(&part, &title)?;
    Ok(title)
}

fn summarise(counts: &[usize], runs: &[Run], report: &mut Report) {
    for &readers in counts {
        let mut table = Table::new(
            &format!("{readers} readers of {RATE}"),
            &[
                "server",
                "CPU, cores",
                "readers per core",
                "CPU s/GB",
                "sent, of the rate",
                "memory, MiB",
                "refused",
            ],
        );
        for sender in SENDERS {
            let of = |value: fn(&Run) -> f64| -> String {
                let all = runs.iter().filter(|run| run.sender == sender && run.readers == readers);
                spread(&all.map(value).collect::<Vec<_>>())
            };
            table.row(vec![
                sender.name(),
                of(|run| run.cores),
                of(|run| (run.readers - run.refused) as f64 / run.cores),
                of(|run| run.cpu_per_gb),
                of(|run| run.share),
                of(|run| run.memory.map_or(f64::NAN, |memory| memory.0 as f64 / MIB as f64)),
                of(|run| run.refused as f64),
            ]);
        }
        report.tables.push(table);
    }
    let short = runs.iter().filter(|run| run.refused > 0 || run.share < SHARE_MIN);
    for run in short {
        report.notes.push(format!(
            "{} carried {} of {} readers, at {} of the rate",
            run.sender.name(),
            run.readers - run.refused,
            run.readers,
            number(run.share)
        ));
    }
}
