//! rtsp-crowd: thousands of RTSP clients at once, who seek and pause at random while uploads come
//! in.
//!
//! Promise: titles are read from a cold disk; every client is on its own, and what the server
//! announces is held against what comes: each byte at the time that the title's rate gives it.
//! Uploads come at the same time, and all that was acknowledged is read back. A run in which the
//! receiver itself lost datagrams says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;
use tactus_core::units::{BitRate, Bytes, KIB, Nanos, SECOND};

use super::{Fixture, RECEIVER_CORE, SERVER_CORES, say};
use crate::crowd::{self, ClientReport, LatenessHistogram, Plan, Title};
use crate::peers::{self, Server, TOKEN, UPLOADS};
use crate::report::{Report, Table, Verdict, number};
use crate::uploader::{self, Pace};
use crate::{clock, command, priority, spread};

const CLIENTS: usize = 2_000;
const TITLES: usize = 20;
const RATE: BitRate = BitRate(1_000_000);
const LENGTH: Nanos = SECOND.times(600);
/// How long datagrams may wait for each other: what players of television by IP even out.
const BURST: Nanos = Nanos::from_millis(40);
/// Clients arrive within this time.
const STAGGER: Nanos = SECOND.times(20);
/// A receiver's buffer: what comes later than this after the earliest is missed.
const LATE: f64 = 250.0;
/// An upload begins each so often, of this size.
const UPLOAD_EVERY: Nanos = Nanos::from_millis(100);
const UPLOAD: Bytes = Bytes(256 * KIB);
const PORT: u16 = 8554;
/// Where the server tells what it counts, on its own side of the wire.
const ADMIN: &str = "127.0.0.1:9464";

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question =
        "what do thousands of RTSP clients see that seek and pause while uploads come in?";
    let mut report = fixture.report("rtsp-crowd", question);
    let clients = fixture.options.streams.first().copied().unwrap_or(CLIENTS);
    let length = fixture.seconds(600);
    let (titles, root) = lay(fixture)?;
    // By the cautious model of a disk that nobody has measured a third of them would be refused.
    peers::measure_volume(&fixture.tactus, &root, fixture.options.quick)?;
    let mut server = start(fixture, &root)?;
    for title in titles.iter() {
        wait_for_index(fixture, title)?;
    }
    forget_cache(&root)?;
    let plan = Plan {
        server: std::net::SocketAddrV4::new(fixture.wire.server_address(), PORT),
        clients,
        titles: Arc::clone(&titles),
        rate: RATE,
        stagger: STAGGER,
        length,
        seed: 1,
        core: RECEIVER_CORE,
    };
    say(&format!("{clients} clients for {length}"));
    let begun = clock::now();
    let uploads = uploader::Plan {
        server: peers::address(&fixture.wire),
        target: format!("/{UPLOADS}/crowd-"),
        token: TOKEN.into(),
        pace: Pace::Every(UPLOAD_EVERY),
        size: UPLOAD,
        from: begun + STAGGER,
        to: begun + STAGGER + length,
        patience: SECOND.times(10),
        core: RECEIVER_CORE,
    };
    let side = fixture.wire.receiver_side();
    let beside = std::thread::spawn(move || uploader::upload(&side, &uploads));
    let told = crowd::play(&fixture.wire.receiver_side(), &plan)?;
    let harvest = beside.join().map_err(|_| anyhow!("the uploader panicked"))??;
    server.check()?;
    let own = own_counts(fixture)?;
    drop(server);
    let stored = uploader::check(&root.join(UPLOADS), "crowd-", &harvest, UPLOAD)?;
    fs::remove_dir_all(root.join(UPLOADS))?;
    report.runs.push(json!({ "clients": clients, "seconds": length.0 / SECOND.0, "server": own }));
    report.method = vec![format!(
        "{clients} clients on one address, each with a connection, RTP over UDP from {TITLES} \
         titles of {RATE} (constant), cold, in bursts of at most {BURST}; each seeks or pauses \
         every 20 s on average, a pause is 4 s. An upload of {UPLOAD} begins every \
         {UPLOAD_EVERY}, and is read back at the end. Lateness: by the title's rate, from the \
         client's earliest datagram since its last PLAY, by the kernel's stamps; what has not \
         come when the client asks for something else counts as well. Late is a client with bytes \
         more than {LATE} ms behind. Server on core 0, clients on core 1."
    )];
    summarise(&told, &harvest, stored, &own, &mut report);
    Ok(report)
}

fn summarise(
    told: &[ClientReport],
    harvest: &uploader::Harvest,
    stored: usize,
    own: &[(&str, f64)],
    report: &mut Report,
) {
    let sum = |value: &dyn Fn(&ClientReport) -> u64| told.iter().map(value).sum::<u64>();
    let late = told.iter().filter(|one| one.seen.late.max > LATE).count();
    let mut all = LatenessHistogram::default();
    told.iter().for_each(|one| all.add(&one.seen.late));
    let times = |times: &dyn Fn(&ClientReport) -> &[f32]| -> Vec<f64> {
        told.iter().flat_map(|one| times(one).iter().map(|&took| f64::from(took))).collect()
    };
    let (mut plays, mut starts) = (times(&|one| &one.did.plays), times(&|one| &one.seen.starts));
    let of = |values: &mut Vec<f64>, q| spread::quantile(values, q).unwrap_or(f64::NAN);
    let silent = told.iter().filter(|one| one.seen.datagrams == 0).count();
    let failures: Vec<String> = told.iter().flat_map(|one| one.did.failures.clone()).collect();
    let share_min = told.iter().filter_map(|one| one.seen.share_min).fold(f64::NAN, f64::min);
    let missing = sum(&|one| one.seen.missing);
    let breaks = sum(&|one| one.seen.breaks);
    let unmarked = sum(&|one| one.seen.unmarked);
    let wrong = sum(&|one| one.seen.malformed + one.seen.jumps);
    let short = sum(&|one| one.seen.short);
    let acked = harvest.uploads.len() - harvest.unacked();
    let mut table = Table::new("what the clients saw", &["figure", "value"]);
    let rows = [
        ("clients", told.len() as f64),
        ("that got nothing", silent as f64),
        ("requests that failed", failures.len() as f64),
        ("seeks", sum(&|one| u64::from(one.did.seeks)) as f64),
        ("pauses", sum(&|one| u64::from(one.did.pauses)) as f64),
        ("datagrams", sum(&|one| one.seen.datagrams) as f64),
        ("datagrams missing", missing as f64),
        ("datagrams that the clients' own sockets dropped", sum(&|one| one.seen.dropped) as f64),
        ("counters broken where nobody sought", breaks as f64),
        ("counters broken at a seek, unmarked", unmarked as f64),
        ("packets malformed, time stamps that jump", wrong as f64),
        ("whole seconds watched", sum(&|one| one.seen.seconds) as f64),
        ("seconds with less than 3/4 of the rate", short as f64),
        ("least share of the rate in a second", share_min),
        ("lateness p50, ms", all.quantile(0.5)),
        ("lateness p99, ms", all.quantile(0.99)),
        ("lateness p99.9, ms", all.quantile(0.999)),
        ("lateness max, ms", all.max),
        ("PLAY answered, p50, s", of(&mut plays, 0.5)),
        ("PLAY answered, p99, s", of(&mut plays, 0.99)),
        ("first datagram behind the answer, p99, s", of(&mut starts, 0.99)),
        ("first datagram behind the answer, max, s", of(&mut starts, 1.0)),
        ("uploads", harvest.uploads.len() as f64),
        ("uploads without acknowledgement", harvest.unacked() as f64),
        ("uploads acknowledged that are not as sent", (acked - stored) as f64),
        ("acknowledgement p99, ms", harvest.ack(0.99)),
    ];
    for (figure, value) in rows.iter().chain(own) {
        table.row(vec![(*figure).into(), number(*value)]);
    }
    report.tables.push(table);
    for failure in failures.iter().chain(&harvest.reasons()).take(5) {
        say(failure);
    }
    let mut zero = |figure: &str, value: u64| {
        report.verdicts.push(Verdict {
            figure: figure.into(),
            measured: number(value as f64),
            must: "0".into(),
            reached: Some(value == 0),
            push: "-".into(),
            pushed: None,
        });
    };
    zero("clients that were late, silent or refused", (late + silent + failures.len()) as u64);
    zero("seconds with less than 3/4 of the rate", short);
    zero("datagrams missing", missing);
    zero("continuity errors where nobody sought", breaks);
    zero("continuity errors at seeks, unmarked", unmarked);
    zero("packets malformed, time stamps that jump", wrong);
    zero("uploads not acknowledged, or not as sent", (harvest.uploads.len() - stored) as u64);
}

/// What the server itself has counted of it.
fn own_counts(fixture: &Fixture) -> Result<Vec<(&'static str, f64)>> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "--max-time", "20", &format!("http://{ADMIN}/metrics")]);
    let text = command::finish(&mut fixture.wire.on_server_side(&curl))?;
    let value = |name: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let names = [
        ("server: underruns of datagrams", "tactus_packet_underruns_total"),
        ("server: datagrams that the kernel refused", "tactus_packets_refused_total"),
        ("server: underruns of other streams", "tactus_underruns_total"),
    ];
    let count = |(figure, name): (&'static str, &str)| {
        Ok((figure, value(name).with_context(|| format!("the server tells no {name}"))?))
    };
    names.into_iter().map(count).collect()
}

/// Titles of [`RATE`]: one, made by ffmpeg, and copies, so that each is read from the disk.
fn lay(fixture: &Fixture) -> Result<(Arc<[Title]>, PathBuf)> {
    let root = fixture.options.data.join("rtsp");
    // What a run that was broken off has left.
    if root.join(UPLOADS).exists() {
        fs::remove_dir_all(root.join(UPLOADS))?;
    }
    fs::create_dir_all(root.join(UPLOADS))?;
    let first = root.join("0.ts");
    if !first.is_file() {
        say("making a title of ten minutes");
        let part = root.join("part.ts");
        let (video, mux) = ((RATE.0 * 7 / 10).to_string(), RATE.0.to_string());
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-y", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=25"]);
        ffmpeg.args(["-t", &(LENGTH.0 / SECOND.0).to_string(), "-c:v", "mpeg2video"]);
        ffmpeg.args(["-b:v", &video, "-maxrate", &video, "-bufsize", "500k", "-g", "12"]);
        ffmpeg.args(["-f", "mpegts", "-muxrate", &mux]).arg(&part);
        command::finish(&mut ffmpeg)?;
        fs::rename(&part, &first)?;
    }
    for title in 1..TITLES {
        let path = root.join(format!("{title}.ts"));
        if !path.is_file() {
            fs::copy(&first, &path)?;
        }
    }
    let titles = (0..TITLES).map(|title| Title { path: format!("/{title}.ts"), length: LENGTH });
    Ok((titles.collect(), root))
}

fn start(fixture: &Fixture, root: &Path) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("tactus-bench-rtsp-").tempdir()?;
    let address = peers::address(&fixture.wire);
    let token = folder.path().join("token");
    fs::write(&token, TOKEN)?;
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let text = format!(
        "[http]\naddress = \"{address}\"\n[admin]\naddress = \"{ADMIN}\"\n\
         [link]\nrate = \"100 Gbit/s\"\n[cpu]\nbudget = \"95 %\"\n[memory]\narena = \"4 GiB\"\n\
         [cores]\n\
         placement = [{{ cpu = 0, servers = [\"disk.0\", \"block\", \"delivery\", \"link\", \
         \"packets\"] }}]\n\
         [rtsp]\naddress = \"{}:{PORT}\"\nconnections_per_address_max = 10000\n\
         burst = \"{BURST}\"\n\
         [[volume]]\npath = \"{}\"\nmount = \"/\"\nsendfile = \"off\"\nuploads = true\n\
         [upload]\nopen_per_principal_max = 10000\n\
         [[upload.principal]]\nname = \"bench\"\ntoken_file = \"{}\"\n",
        address.ip(),
        root.display(),
        token.display(),
    );
    let file = folder.path().join("tactus.toml");
    fs::write(&file, text)?;
    let mut permissions = fs::metadata(&token)?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    fs::set_permissions(&token, permissions)?;
    let binary = fixture.tactus.to_string_lossy();
    // Its control side shares the machine; the engine is on core 0.
    let mut command = priority::on_cores(SERVER_CORES, None, &binary);
    command.arg("serve").arg("--config").arg(&file);
    Server::start(&command, folder, &fixture.wire, address)
}

/// A seek needs the title's index, which the server makes when it first hears of it.
fn wait_for_index(fixture: &Fixture, title: &Title) -> Result<()> {
    let plan = Plan {
        server: std::net::SocketAddrV4::new(fixture.wire.server_address(), PORT),
        clients: 1,
        titles: vec![title.clone()].into(),
        rate: RATE,
        stagger: Nanos(1),
        length: SECOND,
        seed: 1,
        core: RECEIVER_CORE,
    };
    let end = clock::now() + SECOND.times(60);
    loop {
        let told = crowd::play(&fixture.wire.receiver_side(), &plan)?;
        let failures = &told.first().context("there is one client")?.did.failures;
        if failures.is_empty() {
            return Ok(());
        }
        ensure!(clock::now() < end, "{}: {failures:?}", title.path);
    }
}

fn forget_cache(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.is_file() {
            let file = fs::File::open(&path)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}
