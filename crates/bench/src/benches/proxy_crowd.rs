//! proxy-crowd: viewers and attackers behind one nginx.
//!
//! Promise: nginx and the server are configured as the guide shows it, and every client has an
//! address of its own. The attack begins before the first viewer and ends after the last
//! measurement. The bench fails when a viewer is refused, or when a stream is late by the viewer's
//! own measurement or by the server's count.

mod attack;

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use super::{Fixture, RECEIVER_CORE, SERVER_CORE, START_UP, say};
use crate::cpu::CpuSnapshot;
use crate::figures::lateness;
use crate::figures::underrun::Player;
use crate::figures::windows::Span;
use crate::gaps::{Detector, Looks};
use crate::peers::{self, Server, TOKEN};
use crate::receiver::{End, Plan, PlannedRequest, StreamReceiver};
use crate::report::{Report, Table, Verdict, number};
use crate::run::{self, Scene};
use crate::titles::Titles;
use crate::{clock, command, interrupt, machine, priority, spread};
use attack::{Attack, Outcomes};

const VIEWERS: usize = 200;
const RATE: BitRate = BitRate(1_000_000);
const TITLES: usize = 20;
const ATTACKERS: u16 = 20;
/// Bad requests per second of each attacker.
const ATTACK_RATE: u64 = 200;
/// The first attacker's address; viewers begin with that of client 1.
const FIRST_ATTACKER: u16 = 0x6600;
/// How long the attackers are alone: by then most of them are refused for their score.
const AHEAD: Nanos = SECOND.times(3);
/// Viewers arrive within this time.
const STAGGER: Nanos = SECOND.times(5);
const WARM_UP: Nanos = SECOND.times(2);
/// How long the server may take until it is ready.
const PATIENCE: Nanos = SECOND.times(60);
/// The server's metrics, on its own side of the wire.
const ADMIN: &str = "127.0.0.1:9464";
const GUIDE: &str = include_str!("../../../../docs/guide/proxies.md");

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "what do viewers notice of attackers who come through the same proxy?";
    let mut report = fixture.report("proxy-crowd", question);
    let viewers = fixture.options.streams.first().copied().unwrap_or(VIEWERS);
    let length = SECOND.times(fixture.options.seconds.unwrap_or(if fixture.options.quick {
        10
    } else {
        120
    }));
    let size = Scene::title_size(RATE, STAGGER, WARM_UP, length);
    let titles = Titles::lay(&fixture.options.data.join("crowd"), TITLES, size)?;
    // The default disk model depends on other load at the start.
    peers::measure_volume(&fixture.tactus, titles.root(), fixture.options.quick)?;
    let client = fixture.wire.take_clients()?;
    let mut server = start(fixture, &titles, &mut report)?;
    say(&format!("{ATTACKERS} attackers, and {viewers} viewers for {length}"));
    let attack = Attack {
        server: peers::address(&fixture.wire),
        clients: (0..ATTACKERS).map(|place| client(FIRST_ATTACKER + place)).collect(),
        every: Nanos(SECOND.0 / ATTACK_RATE),
        title: titles.target(0),
        core: RECEIVER_CORE,
    };
    let attack = attack.begin(&fixture.wire.receiver_side())?;
    interrupt::sleep_until(clock::now() + AHEAD)?;
    let step = Nanos(STAGGER.0 / viewers.max(1) as u64);
    let ask = |viewer: usize| {
        let target = format!("{}?rate={}", titles.target(viewer % TITLES), RATE.0);
        let after = step.times(viewer as u64);
        PlannedRequest {
            from: u16::try_from(viewer + 1).ok().map(client),
            ..PlannedRequest::get(after, &target)
        }
    };
    let plan = Plan {
        server: peers::address(&fixture.wire),
        asks: (0..viewers).map(ask).collect(),
        room: (RATE.bytes_in(STAGGER + WARM_UP + length).0 / 2_000) as usize * viewers,
        core: RECEIVER_CORE,
    };
    let detector = Detector::start(RECEIVER_CORE, Looks::OFTEN);
    let begun = clock::now();
    let receiver = StreamReceiver::start(fixture.wire.receiver_side(), plan)?;
    let from = begun + STAGGER + WARM_UP;
    let whole = Span { from, to: from + length };
    interrupt::sleep_until(whole.from)?;
    let before = CpuSnapshot::take()?;
    let sent_before = attack.sent();
    while clock::now() < whole.to {
        ensure!(!receiver.is_finished(), "the receiver gave up");
        server.check()?;
        interrupt::sleep_until(whole.to.min(clock::now() + SECOND))?;
    }
    let spent = CpuSnapshot::take()?.since(&before, server.process());
    let sent = attack.sent() - sent_before;
    // Ended streams are no longer in the metrics.
    let own = own_counts(fixture)?;
    let harvest = receiver.stop()?;
    let outcomes = attack.end()?;
    server.check()?;
    let gaps = detector.and_then(Detector::stop).map_or(0, |gaps| gaps.len());
    let seen = ViewerResults::of(&harvest, whole);
    report.runs.push(json!({
        "viewers": viewers,
        "seconds": length.0 / SECOND.0,
        "answers": &outcomes.0,
        "server": &own,
        "gaps": gaps,
    }));
    report.note(format!(
        "the clock of the receiver's core stepped by more than a millisecond {gaps} times; load \
         average {}",
        machine::load()
    ));
    report.method = vec![format!(
        "{viewers} viewers of {RATE} and {ATTACKERS} attackers, each with an address of its own, \
         through one nginx of the guide's configuration (X-Forwarded-For, trusted_proxies). Each \
         attacker begins {ATTACK_RATE} bad requests a second: wrong tokens, malformed paths and \
         queries, too many ranges, methods that do not exist, broken XML, and connections that it \
         drops. They begin {AHEAD} before the first viewer. Late by the clients' measurement is a \
         viewer whose player, which starts with {START_UP} of media, ever stands still. The \
         server's engine is on core {SERVER_CORE}, clients on core {RECEIVER_CORE}, nginx and the \
         server's control side on both."
    )];
    let rate = sent as f64 * 1e9 / length.0 as f64;
    let cpu = spent.tree / spent.wall;
    summarise(&seen, &outcomes, &own, (rate, cpu), &mut report);
    Ok(report)
}

/// The viewers' results.
struct ViewerResults {
    viewers: usize,
    refused: usize,
    reasons: Vec<String>,
    late: usize,
    /// Milliseconds behind the rate at each arrival.
    lateness: Vec<f64>,
    first_bytes: Vec<f64>,
}

impl ViewerResults {
    fn of(harvest: &crate::receiver::Harvest, whole: Span) -> Self {
        let viewers = harvest.answers.len();
        let traces = harvest.record.traces(viewers);
        let player = Player { rate: RATE, start_up: START_UP };
        let (mut late, mut lateness, mut first_bytes) = (0, Vec::new(), Vec::new());
        for (trace, answer) in traces.iter().zip(&harvest.answers) {
            if !answer.accepted() {
                continue;
            }
            let asked: MonoTime = answer.asked_at.unwrap_or(answer.opened_at);
            let is_whole = answer.end == End::Complete;
            let played = player.play(trace, asked, harvest.stopped_at, is_whole);
            late += usize::from(played.count > 0);
            lateness.extend(lateness::in_phase(trace, RATE, whole, whole));
            let first = trace.steps().first();
            first_bytes.extend(first.map(|first| first.at.since(asked).0 as f64 / 1e6));
        }
        let refused = || harvest.answers.iter().filter(|answer| !answer.went_well());
        let (refused, reasons) = (refused().count(), run::reasons(refused()));
        Self { viewers, refused, reasons, late, lateness, first_bytes }
    }
}

fn summarise(
    seen: &ViewerResults,
    outcomes: &Outcomes,
    own: &[(&str, f64)],
    (rate, cpu): (f64, f64),
    report: &mut Report,
) {
    let late_by_server: f64 = own.iter().map(|(_, value)| value).sum();
    let of = |values: &[f64], q| spread::quantile(&mut values.to_vec(), q).unwrap_or(f64::NAN);
    let mut table = Table::new("results of the viewers", &["figure", "value"]);
    let rows = [
        ("viewers", seen.viewers as f64),
        ("refused, or broken off", seen.refused as f64),
        ("late: the player stood still", seen.late as f64),
        ("behind the rate p50, ms", of(&seen.lateness, 0.5)),
        ("behind the rate p99, ms", of(&seen.lateness, 0.99)),
        ("behind the rate, most, ms", of(&seen.lateness, 1.0)),
        ("first byte p50, ms", of(&seen.first_bytes, 0.5)),
        ("first byte, most, ms", of(&seen.first_bytes, 1.0)),
    ];
    for (figure, value) in rows.iter().chain(own) {
        table.row(vec![(*figure).into(), number(*value)]);
    }
    table.row(vec!["CPU of the server, cores".into(), number(cpu)]);
    report.tables.push(table);
    let mut table = Table::new("answers to the attackers' requests", &["answer", "requests"]);
    for (answer, count) in &outcomes.0 {
        table.row(vec![answer.clone(), count.to_string()]);
    }
    table.row(vec!["bad requests a second, of all attackers".into(), number(rate)]);
    report.tables.push(table);
    seen.reasons.iter().take(5).for_each(|reason| say(reason));
    for (figure, value) in [
        ("viewers refused, or broken off", seen.refused as f64),
        ("viewers late by the clients' measurement", seen.late as f64),
        ("late sends by the server's count", late_by_server),
    ] {
        report.verdicts.push(Verdict {
            figure: figure.into(),
            measured: number(value),
            must: "0".into(),
            reached: Some(value == 0.0),
            push: "-".into(),
            pushed: None,
        });
    }
    let whole = f64::from(ATTACKERS) * ATTACK_RATE as f64;
    report.verdicts.push(Verdict {
        figure: "bad requests a second".into(),
        measured: number(rate),
        must: format!("{whole}, or the attack is weaker than it is said to be"),
        reached: (rate >= 0.95 * whole).then_some(true),
        push: "-".into(),
        pushed: None,
    });
}

/// The server's counters of late sends.
fn own_counts(fixture: &Fixture) -> Result<Vec<(&'static str, f64)>> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "--max-time", "20", &format!("http://{ADMIN}/metrics")]);
    let text = command::finish(&mut fixture.wire.on_server_side(&curl))?;
    let names = [
        ("server: sends that were not on time", "tactus_underruns_total"),
        ("server: streams made later by stalls", "tactus_streams_stalled_total"),
    ];
    let count = |(figure, name): (&'static str, &str)| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        Ok((figure, value.with_context(|| format!("the server has no metric {name}"))?))
    };
    names.into_iter().map(count).collect()
}

/// Starts the server, then nginx before it.
fn start(fixture: &Fixture, titles: &Titles, report: &mut Report) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("tactus-bench-proxied-").tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, TOKEN)?;
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let text = format!(
        "{}\n[admin]\naddress = \"{ADMIN}\"\n[link]\nrate = \"1 Gbit/s\"\n\
         [cores]\nplacement = [{{ cpu = {SERVER_CORE}, servers = [\"disk.0\", \"block\", \
         \"delivery\", \"link\"] }}]\n[[volume]]\npath = \"{}\"\nmount = \"/\"\nuploads = true\n\
         [[upload.principal]]\nname = \"bench\"\ntoken_file = \"token\"\n",
        shown("toml")?,
        titles.root().display(),
    );
    let file = folder.path().join("tactus.toml");
    fs::write(&file, &text)?;
    report.settings.push(("tactus.toml".into(), text));
    let mut tactus = priority::on_cores("0-1", None, &fixture.tactus.to_string_lossy());
    tactus.arg("serve").arg("--config").arg(&file);
    let mut tactus = Server::start_silent(&tactus, folder, &fixture.wire)?;
    let deadline = clock::now() + PATIENCE;
    // The line after that of the titles: by then they are served.
    while !tactus.output().contains("Metrics") {
        tactus.check()?;
        if clock::now() > deadline {
            bail!("the server is not ready within {PATIENCE}: {}", tactus.output());
        }
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let folder = tempfile::Builder::new().prefix("tactus-bench-nginx-").tempdir()?;
    let at = folder.path().display().to_string();
    let listen = format!("listen {} backlog=8192;", peers::address(&fixture.wire));
    let server = shown("nginx")?.replace("listen 80;", &listen);
    ensure!(server.contains(&listen), "the guide's nginx listens on another port");
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths = kinds.map(|kind| format!("    {kind}_temp_path {at}/{kind};\n")).concat();
    // nginx's own limits are those of a proxy for many clients; its defaults are 512 connections.
    let text = format!(
        "user root;\npid {at}/pid;\nerror_log {at}/errors crit;\ndaemon off;\nworker_processes 1;\n\
         worker_rlimit_nofile 20000;\nevents {{ worker_connections 8192; }}\n\
         http {{\n    access_log off;\n{paths}{server}}}\n"
    );
    let file = folder.path().join("nginx.conf");
    fs::write(&file, &text)?;
    report.settings.push(("nginx.conf".into(), text));
    let mut nginx = priority::on_cores("0-1", None, "nginx");
    nginx.args(["-p", &at, "-c"]).arg(&file);
    let nginx = Server::start(&nginx, folder, &fixture.wire, peers::address(&fixture.wire))?;
    Ok(tactus.beside(nginx))
}

/// The first block of `language` on the guide's page about proxies.
fn shown(language: &str) -> Result<String> {
    let opening = format!("```{language}\n");
    let (_, rest) = GUIDE.split_once(&opening).context("the guide shows no such block")?;
    let (block, _) = rest.split_once("```").context("the block of the guide has no end")?;
    Ok(block.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_shows_nginx_and_the_server_behind_it() {
        let (nginx, tactus) = (shown("nginx").unwrap(), shown("toml").unwrap());
        assert!(
            nginx.contains("listen 80;") && nginx.contains("proxy_pass http://127.0.0.1:8080;")
        );
        assert!(tactus.contains("trusted_proxies") && tactus.contains("127.0.0.1:8080"));
    }
}
