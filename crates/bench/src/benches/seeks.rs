//! seeks: how fast players have data and a picture after a seek on a full server, beside nginx.
//!
//! Promise: each player seeks in each container on Tactus, whose link is full of viewers, and on
//! nginx without a limit, in the same run. The time to data is taken on the wire, request by
//! request. The time to the picture is the player's, from the command on.

mod full;
mod players;
mod titles;
mod wire;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tactus_core::units::{Nanos, SECOND};

use super::say;
use crate::clock;
use crate::interrupt;
use crate::random::Random;
use crate::report::{Report, Table, Verdict, number};
use crate::spread;
use full::{Crowd, ServerKind, Site};
use players::{Player, Program};
use titles::{Container, Titles};
use wire::{Exchange, Wiretap};

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Seeks of each player in each container.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub seeks: u16,
    /// Only the runs whose name contains one of these, as in "mpv, mp4;chromium".
    #[arg(long, value_delimiter = ';')]
    pub only: Vec<String>,
    /// Seconds between two access points of the titles.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=10))]
    pub gop: u16,
    /// The server to measure; by default the binary `tactus` beside this one.
    #[arg(long)]
    pub tactus: Option<PathBuf>,
    /// Where `cargo xtask setup` has installed the driver of the browser.
    #[arg(long, default_value = "target/tools/clients")]
    pub clients: PathBuf,
    /// Where titles are laid down; they are kept for the next run.
    #[arg(long, default_value = "target/bench/data")]
    pub data: PathBuf,
    /// Where the report is written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// What each program seeks in. Chromium plays no MPEG-TS and no Matroska with these codecs.
const RUNS: [(Program, Container); 8] = [
    (Program::Mpv, Container::Mp4),
    (Program::Mpv, Container::Ts),
    (Program::Mpv, Container::Mkv),
    (Program::MpvExact, Container::Mp4),
    (Program::Vlc, Container::Mp4),
    (Program::Vlc, Container::Ts),
    (Program::Vlc, Container::Mkv),
    (Program::Chromium, Container::Mp4),
];

/// Seeks go at least this far, so that nothing of the target is in the player's memory.
const DISTANCE_MIN: f64 = 60.0;
/// Pause between two seeks: this and up to as much again.
const PAUSE: Nanos = Nanos::from_millis(200);
/// Time from the first picture to the viewers: some players open several streams at their start.
const SETTLES: Nanos = SECOND;
/// Goals of the time to data, in milliseconds: must, and push to.
const DATA_MAX: [f64; 2] = [300.0, 150.0];

/// One seek.
struct Seek {
    exchanges: Vec<Exchange>,
    /// From the command to the picture, in milliseconds; `None` if there was none in time.
    picture: Option<f64>,
    /// From the command to the first request, in milliseconds.
    request: Option<f64>,
}

/// All seeks of a player in a container on a server.
struct Run {
    name: String,
    server: ServerKind,
    seeks: Vec<Seek>,
}

/// Runs it.
pub(super) fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.data)?;
    let tactus = match &options.tactus {
        Some(path) => path.canonicalize()?,
        None => std::env::current_exe()?.with_file_name("tactus"),
    };
    let titles = Titles::lay(&options.data.canonicalize()?.join("seeks"), options.gop)?;
    let question = "how fast do players have data and a picture after a seek on a full server?";
    let mut report = Report::new("seeks", question);
    describe(options, &titles, &mut report);
    let mut runs = Vec::new();
    for (program, container) in RUNS {
        let name = format!("{}, {}", program.name(), container.extension());
        let only = &options.only;
        if !only.is_empty() && !only.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        for server in [ServerKind::Tactus, ServerKind::Nginx] {
            say(&format!("{name}, {}", server.name()));
            let site = Site::start(server, &tactus, &titles)?;
            match seek(options, &site, program, container, &titles) {
                Ok(seeks) => {
                    let run = Run { name: name.clone(), server, seeks };
                    report.runs.push(run.as_json());
                    runs.push(run);
                }
                Err(error) => {
                    interrupt::check()?;
                    report.note(format!("{name}, {}: {error:#}", server.name()));
                }
            }
            report.keep(&options.out)?;
        }
    }
    ensure!(!runs.is_empty(), "no run took place");
    summarise(&runs, &mut report);
    report.publish(&options.out).map(drop)
}

/// Lets a player seek, while the server is full.
fn seek(
    options: &Options,
    site: &Site,
    program: Program,
    container: Container,
    titles: &Titles,
) -> Result<Vec<Seek>> {
    let tap = Wiretap::start(site.address())?;
    let url = format!("http://{}/{}", tap.address(), container.file());
    let mut player = Player::start(program, &url, &options.clients)?;
    thread::sleep(Duration::from_nanos(SETTLES.0));
    let mut crowd = Crowd::default();
    let viewers = site.fill(container, &mut crowd)?;
    let mut joined = 0;
    let mut random = Random::new(1);
    let length = titles.length();
    let mut at = 0.0_f64;
    let mut seeks = Vec::new();
    for _ in 0..options.seeks {
        interrupt::check()?;
        let pause = PAUSE.0 + (random.share() * PAUSE.0 as f64) as u64;
        thread::sleep(Duration::from_nanos(pause));
        let to = loop {
            let to = 10.0 + random.share() * (length - 20.0);
            if (to - at).abs() >= DISTANCE_MIN {
                break to;
            }
        };
        at = to;
        // Rates vary, so another viewer may fit now.
        joined += site.fill(container, &mut crowd)?;
        tap.take();
        let begun = clock::now();
        let shown = player.seek(container, to, length)?;
        let exchanges = tap.take();
        let millis = |nanos: Nanos| nanos.0 as f64 / 1e6;
        let picture = shown.map(|shown| millis(shown.since(begun)));
        let request = exchanges.first().map(|one| millis(one.asked.since(begun)));
        seeks.push(Seek { exchanges, picture, request });
    }
    ensure!(crowd.is_whole(), "a viewer beside the player lost its stream");
    say(&format!("{viewers} viewers beside it, and {joined} later"));
    Ok(seeks)
}

impl Run {
    /// Times from request to first payload byte, in milliseconds.
    fn data(&self) -> Vec<f64> {
        self.answered().filter_map(|one| Some(one.data?.since(one.asked).0 as f64 / 1e6)).collect()
    }

    fn pictures(&self) -> Vec<f64> {
        self.seeks.iter().filter_map(|seek| seek.picture).collect()
    }

    fn requests(&self) -> Vec<f64> {
        self.seeks.iter().filter_map(|seek| seek.request).collect()
    }

    fn answered(&self) -> impl Iterator<Item = &Exchange> {
        self.seeks.iter().flat_map(|seek| &seek.exchanges)
    }

    /// Requests that were refused, or had an answer without content though the player waited.
    fn refused(&self) -> impl Iterator<Item = &Exchange> {
        self.answered()
            .filter(|one| one.status.is_some_and(|status| status >= 400) || one.is_cut_by_server())
    }

    fn without_picture(&self) -> usize {
        self.seeks.iter().filter(|seek| seek.picture.is_none()).count()
    }

    fn as_json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "server": self.server.name(),
            "refused": self.refused().map(|one| one.range.as_str()).collect::<Vec<_>>(),
            "data_ms": self.data(),
            "picture_ms": self.pictures(),
            "request_ms": self.requests(),
        })
    }
}

fn quantile(values: &[f64], q: f64) -> f64 {
    spread::quantile(&mut values.to_vec(), q).unwrap_or(f64::NAN)
}

fn summarise(runs: &[Run], report: &mut Report) {
    let head = [
        "player, container",
        "server",
        "seeks",
        "refused",
        "no picture in 20 s",
        "requests a seek",
        "command to request p50, ms",
        "data p50, ms",
        "data p99, ms",
        "picture p50, ms",
        "picture p99, ms",
    ];
    let mut table = Table::new("seeks on a full server", &head);
    for run in runs {
        let (data, pictures) = (run.data(), run.pictures());
        let each = run.answered().count() as f64 / run.seeks.len().max(1) as f64;
        table.row(vec![
            run.name.clone(),
            run.server.name().into(),
            run.seeks.len().to_string(),
            run.refused().count().to_string(),
            run.without_picture().to_string(),
            number(each),
            number(quantile(&run.requests(), 0.5)),
            number(quantile(&data, 0.5)),
            number(quantile(&data, 0.99)),
            number(quantile(&pictures, 0.5)),
            number(quantile(&pictures, 0.99)),
        ]);
    }
    report.tables.push(table);
    let own: Vec<_> = runs.iter().filter(|run| run.server == ServerKind::Tactus).collect();
    let refused: usize = own.iter().map(|run| run.refused().count()).sum();
    report.verdicts.push(Verdict {
        figure: "seeks refused on a full server".into(),
        measured: refused.to_string(),
        must: "0".into(),
        reached: Some(refused == 0),
        push: "-".into(),
        pushed: None,
    });
    let slowest = own.iter().map(|run| quantile(&run.data(), 0.99)).fold(0.0, f64::max);
    report.verdicts.push(Verdict {
        figure: "time to data p99 of the slowest run, ms".into(),
        measured: number(slowest),
        must: number(DATA_MAX[0]),
        reached: Some(slowest <= DATA_MAX[0]),
        push: number(DATA_MAX[1]),
        pushed: Some(slowest <= DATA_MAX[1]),
    });
}

fn describe(options: &Options, titles: &Titles, report: &mut Report) {
    let Options { seeks, gop, .. } = options;
    report.method = vec![
        format!(
            "{seeks} seeks of each player in each container, each at least {DISTANCE_MIN} s away, \
             over the loopback through a proxy in the bench, which forwards each read at once and \
             notes its time. Titles of {} s: 640x360 with noise, H.264 of 1.5 Mbit/s with an \
             access point each {gop} s, AAC of 96 kbit/s.",
            titles.length()
        ),
        "Tactus has a link that is full: viewers from the same address fill it until one is \
         refused, before each seek again. nginx has no limit and no other viewers."
            .into(),
        "Time to data: from a request to the first payload byte of its answer, over all requests \
         of a seek. Picture: from the command to mpv's event that playback goes on, to VLC's \
         message that it has buffered enough, to the first video frame from the target that \
         Chromium presents. The rest is the player's own: reading an index, decoding from the \
         access point, its own reserve."
            .into(),
        "mpv without a seekable cache, so that each seek asks the server. `mpv` goes to access \
         points, as its keys do; `mpv exact` to the exact time; Chromium and VLC always do that, \
         but VLC in MPEG-TS goes to a position."
            .into(),
    ];
    report.settings.push(("tactus.toml".into(), full::CONFIGURATION.into()));
    let longest = SECOND.times(players::PATIENCE_SECONDS);
    report.note(format!("a player waits {longest} for a picture"));
}

/// Names the missing program.
fn missing(program: &str, package: &str) -> anyhow::Error {
    anyhow::anyhow!("{program} is missing: install the package {package}")
}

/// Waits until `done` answers.
fn wait_for<T>(what: &str, mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = clock::now() + SECOND.times(30);
    loop {
        if let Some(value) = done().with_context(|| what.to_owned())? {
            return Ok(value);
        }
        ensure!(clock::now() < deadline, "{what}: nothing within 30 s");
        interrupt::check()?;
        thread::sleep(Duration::from_millis(20));
    }
}
