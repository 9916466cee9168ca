//! vbr: titles of a variable rate over HTTP, as their players see them.
//!
//! Promise: twelve titles that ffmpeg has made are played from the beginning and from twenty access
//! points each, and judged by the packets that ffprobe finds. Then viewers come at random to a
//! narrow link, more and more of them. How many are inside when the first one is refused is
//! compared with a reservation at the peak of each, for the same viewers. The server has both cores
//! and its defaults, and has read all titles before the first request.

mod arrivals;
mod packets;

mod clips;

mod server;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tactus_core::units::{BitRate, Bytes, KIB, Nanos, SECOND};

use super::{Fixture, RECEIVER_CORE, REPEATS, say};
use crate::gaps::{Detector, Looks};
use crate::peers;
use crate::receiver::{End, Harvest, Plan, PlannedRequest, StreamReceiver};
use crate::report::{Report, Table, Verdict, number, spread};
use crate::{clock, interrupt, machine, run, spread};
use arrivals::{TitleReservation, Viewer};
use clips::Clip;
use packets::Play;
use server::TitleServer;

/// What a player buffers, in seconds: the goal, and what to push to.
const BUFFERS: [f64; 2] = [2.0, 1.0];
/// Wide enough for all plays.
const WIDE: BitRate = BitRate(10_000_000_000);
/// Too narrow for all viewers.
const NARROW: BitRate = BitRate(600_000_000);
/// Titles whose plays run at once.
const TOGETHER: usize = 3;
/// The rate at which viewers come grows by so much a second each second: the link is full after
/// more than the length of a title.
const GROWTH: f64 = 0.02;
const ROUNDS: usize = 3;
/// A play that takes so much longer than its title has hung.
const PATIENCE: Nanos = SECOND.times(30);
/// A machine that stands still for longer makes players wait, whatever the server does.
const STANDSTILL_MAX: Nanos = Nanos::from_millis(100);
/// The part of a link that streams may reserve, by default.
const BUDGET_PERCENT: u64 = 90;
/// What the server calls the link in its counts of refusals.
const LINK: &str = "link";

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "do viewers of variable titles stand still, and how many does a link take?";
    let mut report = fixture.report("vbr", question);
    let folder = fixture.options.data.join("vbr");
    let clips = clips::lay(&folder)?;
    report.settings.push(("disk".into(), machine::storage(&folder)));
    let stage = VariableTitles { fixture, folder, clips };
    if fixture.wants("stalls") {
        stage.stalls(&mut report)?;
    }
    if fixture.wants("admitted") {
        stage.admitted(&mut report)?;
    }
    report.method.push(
        "A player begins when 2 s of its media (or 1 s) have come, and needs each packet that \
         ffprobe finds at its decoding time. When one is more than 5 ms late it stands still \
         until the packet comes, and goes on from there."
            .into(),
    );
    Ok(report)
}

struct VariableTitles<'a> {
    fixture: &'a Fixture,
    folder: PathBuf,
    clips: Vec<Clip>,
}

/// What has come until all had ended, and what the server counted meanwhile.
struct Reception {
    harvest: Harvest,
    underruns: f64,
    /// For lack of the link, and of anything else.
    refused: [f64; 2],
}

/// The plays of one title.
struct TitlePlays {
    /// The highest rate of all schedules; `None` if the title left at its mean.
    peak: Option<BitRate>,
    /// The bytes to begin at.
    starts: Vec<u64>,
    /// One for each of them and each buffer; `None` if it broke off.
    plays: Vec<[Option<Play>; BUFFERS.len()]>,
    /// Its part of the server's late sends.
    underruns: f64,
}

impl TitlePlays {
    /// How long each play stood still, in milliseconds, with the buffer of this number.
    fn stood(&self, buffer: usize) -> Vec<f64> {
        let stood = |play: &[Option<Play>; 2]| Some(play[buffer]?.stood * 1e3);
        self.plays.iter().filter_map(stood).collect()
    }

    fn broken(&self) -> usize {
        self.plays.iter().filter(|play| play[0].is_none()).count()
    }
}

impl VariableTitles<'_> {
    fn server(&self, link: BitRate, report: &mut Report) -> Result<TitleServer<'_>> {
        TitleServer::start(self.fixture, (&self.folder, &self.clips), link, report)
    }

    fn stalls(&self, report: &mut Report) -> Result<()> {
        let mut server = self.server(WIDE, report)?;
        let mut judged: Vec<TitlePlays> = Vec::new();
        for clips in self.clips.chunks(TOGETHER) {
            let names: Vec<&str> = clips.iter().map(|clip| clip.name.as_str()).collect();
            say(&format!("playing {}", names.join(", ")));
            judged.extend(self.play_all(clips, &mut server)?);
        }
        self.summarise_stalls(&judged, report);
        Ok(())
    }

    /// Plays each of `clips` from each of its places, all at once.
    fn play_all(&self, clips: &[Clip], server: &mut TitleServer<'_>) -> Result<Vec<TitlePlays>> {
        let starts: Vec<Vec<u64>> = clips.iter().map(Clip::starts).collect();
        let asks: Vec<PlannedRequest> = clips
            .iter()
            .zip(&starts)
            .flat_map(|(clip, starts)| {
                starts.iter().map(|&start| ask(Nanos::ZERO, &clip.name, start))
            })
            .collect();
        let bytes = clips
            .iter()
            .zip(&starts)
            .map(|(clip, starts)| starts.iter().map(|start| clip.len.0 - start).sum::<u64>());
        let bytes = Bytes(bytes.sum());
        let lasts = clips.iter().map(Clip::lasts).fold(0.0, f64::max);
        let Reception { harvest, underruns, .. } = self.receive(&asks, bytes, lasts, server)?;
        run::reasons(harvest.answers.iter().filter(|answer| answer.end != End::Complete))
            .iter()
            .take(3)
            .for_each(|reason| say(reason));
        let traces = harvest.record.traces(harvest.answers.len());
        let mut plays = harvest.answers.iter().zip(&traces);
        let judged = clips.iter().zip(starts).map(|(clip, starts)| {
            let mut peak = None;
            let plays = starts.iter().zip(plays.by_ref()).map(|(&start, (answer, trace))| {
                let asked = answer.asked_at.unwrap_or(answer.opened_at);
                let whole = answer.accepted() && answer.end == End::Complete;
                peak = peak.max(answer.peak);
                BUFFERS.map(|buffer| {
                    packets::play(&clip.packets, start, trace, asked, buffer).filter(|_| whole)
                })
            });
            let plays = plays.collect();
            TitlePlays { peak, starts, plays, underruns: underruns / clips.len() as f64 }
        });
        Ok(judged.collect())
    }

    /// Receives until all have ended, and again if the machine stood still meanwhile.
    fn receive(
        &self,
        asks: &[PlannedRequest],
        bytes: Bytes,
        lasts: f64,
        server: &mut TitleServer<'_>,
    ) -> Result<Reception> {
        for _ in 0..=REPEATS {
            let before = (server.underruns()?, server.refusals(LINK)?);
            let detector = Detector::start(RECEIVER_CORE, Looks::OFTEN)?;
            let harvest = self.receive_once(asks.to_vec(), bytes, lasts, server)?;
            let gaps = detector.stop()?;
            let longest = gaps.iter().map(|gap| gap.length()).max().unwrap_or(Nanos::ZERO);
            if longest <= STANDSTILL_MAX || self.fixture.options.accept_noise {
                let after = server.refusals(LINK)?;
                return Ok(Reception {
                    harvest,
                    underruns: server.underruns()? - before.0,
                    refused: [after[0] - before.1[0], after[1] - before.1[1]],
                });
            }
            say(&format!("the machine stood still for {longest}: once more"));
        }
        bail!("the machine stood still, {} times", REPEATS + 1)
    }

    fn receive_once(
        &self,
        asks: Vec<PlannedRequest>,
        bytes: Bytes,
        lasts: f64,
        server: &mut TitleServer<'_>,
    ) -> Result<Harvest> {
        let count = asks.len();
        let last = asks.last().map_or(Nanos::ZERO, |ask| ask.after);
        // A piece of 12 KiB or more at a time, and sixteen ticks a second at most.
        let room = (bytes.0 / (12 * KIB)) as usize + count * (lasts * 20.0) as usize;
        let plan =
            Plan { server: peers::address(&self.fixture.wire), asks, room, core: RECEIVER_CORE };
        let receiver = StreamReceiver::start(self.fixture.wire.receiver_side(), plan)?;
        let deadline = clock::now() + last + Nanos((lasts * SECOND.0 as f64) as u64) + PATIENCE;
        while receiver.ended() < count && clock::now() < deadline {
            interrupt::check()?;
            server.check()?;
            ensure!(!receiver.is_finished(), "the receiver gave up");
            clock::sleep(Nanos::from_millis(100));
        }
        receiver.stop()
    }

    /// Where players stood still: the packet of each play that kept it longest.
    fn late_packets(&self, judged: &[TitlePlays]) -> Table {
        let head = [
            "title",
            "from byte",
            "buffer, s",
            "began after, s",
            "stood still, ms",
            "longest for the packet before byte",
            "which came after, s",
            "for, ms",
        ];
        let mut table = Table::new("plays that stood still", &head);
        for (clip, judged) in self.clips.iter().zip(judged) {
            for (start, plays) in judged.starts.iter().zip(&judged.plays) {
                for (play, buffer) in plays.iter().zip(BUFFERS) {
                    let Some(Play { began_after, stood, worst: Some(worst) }) = play else {
                        continue;
                    };
                    table.row(vec![
                        clip.name.clone(),
                        start.to_string(),
                        number(buffer),
                        number(*began_after),
                        number(stood * 1e3),
                        worst.end.to_string(),
                        number(worst.came_after),
                        number(worst.wait * 1e3),
                    ]);
                }
            }
        }
        table
    }

    fn summarise_stalls(&self, judged: &[TitlePlays], report: &mut Report) {
        let underruns: f64 = judged.iter().map(|judged| judged.underruns).sum();
        let head = [
            "title",
            "MB",
            "mean, Mbit/s",
            "peak",
            "plays",
            "broken",
            "begins after, s",
            "stood still, buffer 2 s, ms",
            "most",
            "buffer 1 s, ms",
            "most",
        ];
        let mut table = Table::new("how long players stood still", &head);
        for (clip, judged) in self.clips.iter().zip(judged) {
            let began: Vec<f64> =
                judged.plays.iter().filter_map(|play| Some(play[0]?.began_after)).collect();
            let mut row = vec![
                clip.name.clone(),
                number(clip.len.0 as f64 / 1e6),
                number(clip.len.0 as f64 * 8.0 / clip.lasts() / 1e6),
                judged.peak.map_or_else(|| "-".into(), |peak| number(peak.0 as f64 / 1e6)),
                judged.plays.len().to_string(),
                judged.broken().to_string(),
                spread(&began),
            ];
            for buffer in 0..BUFFERS.len() {
                let mut stood = judged.stood(buffer);
                row.push(number(spread::quantile(&mut stood, 0.5).unwrap_or(f64::NAN)));
                row.push(number(spread::quantile(&mut stood, 1.0).unwrap_or(f64::NAN)));
            }
            table.row(row);
        }
        report.tables.push(table);
        report.tables.push(self.late_packets(judged));
        let plays: usize = judged.iter().map(|judged| judged.plays.len()).sum();
        let broken: usize = judged.iter().map(TitlePlays::broken).sum();
        let stalled = |buffer: usize| {
            let all = judged.iter().flat_map(|judged| judged.stood(buffer));
            all.filter(|&stood| stood > 0.0).count()
        };
        let counts = [stalled(0) + broken, stalled(1) + broken];
        report.runs.push(json!({
            "name": "stalls", "plays": plays, "broken": broken, "underruns": underruns,
            "stood_still": counts,
        }));
        report.verdicts.push(Verdict {
            figure: format!("plays of {plays} that stood still or broke off, buffer 2 s; 1 s"),
            measured: format!("{}; {}", counts[0], counts[1]),
            must: "0 with 2 s".into(),
            reached: (plays > 0).then_some(counts[0] == 0),
            push: "0 with 1 s".into(),
            pushed: (plays > 0).then_some(counts[1] == 0),
        });
        report.verdicts.push(none("late sends by the server's count, all plays", underruns));
    }
}

/// One round of viewers who come at random.
struct Crowd {
    /// Viewers inside when the first one was refused, and with reservations at the peak.
    inside: [usize; 2],
    /// When that was, in seconds.
    full_at: [f64; 2],
    /// What the link takes by the mean of all peaks.
    by_mean_peak: f64,
    came: usize,
    admitted: usize,
    /// Refused for lack of the link, and of anything else.
    refused: [f64; 2],
    /// Admitted viewers who stood still or broke off, and for how long in all, in milliseconds.
    late: usize,
    stood: f64,
    underruns: f64,
}

impl VariableTitles<'_> {
    fn admitted(&self, report: &mut Report) -> Result<()> {
        self.fixture.wire.shape(NARROW)?;
        let mut crowds = Vec::new();
        for round in 0..self.fixture.rounds(ROUNDS) {
            say(&format!("round {}: viewers come to a link of {NARROW}", round + 1));
            let mut server = self.server(NARROW, report)?;
            let crowd = self.crowd(round as u64, &mut server)?;
            report.runs.push(json!({
                "name": "admitted", "came": crowd.came, "admitted": crowd.admitted,
                "inside": crowd.inside, "full_at": crowd.full_at, "refused": crowd.refused,
                "late": crowd.late, "stood_ms": crowd.stood, "underruns": crowd.underruns,
            }));
            report.keep(&self.fixture.options.out)?;
            crowds.push(crowd);
        }
        summarise_crowds(&crowds, report);
        report.method.push(format!(
            "Viewers come at random, {GROWTH} a second more often each second, each to any title \
             from its beginning, to a wire of {NARROW}. Counted are those inside when the first \
             one is refused; more come until the end. Reservations at the peak: the same viewers \
             in the same order, each with the peak of its `Tactus-Rate` for as long as the server \
             took to send the title."
        ));
        Ok(())
    }

    fn crowd(&self, seed: u64, server: &mut TitleServer<'_>) -> Result<Crowd> {
        let end = self.fixture.options.seconds.unwrap_or(200) as f64;
        let viewers = arrivals::viewers(seed, GROWTH, end, self.clips.len());
        let after = |viewer: &Viewer| Nanos((viewer.comes * 1e9) as u64);
        let asks: Vec<PlannedRequest> = (viewers.iter())
            .map(|viewer| ask(after(viewer), &self.clips[viewer.title].name, 0))
            .collect();
        let bytes = Bytes(viewers.iter().map(|viewer| self.clips[viewer.title].len.0).sum());
        let lasts = self.clips.iter().map(Clip::lasts).fold(0.0, f64::max);
        let received = self.receive(&asks, bytes, lasts, server)?;
        let Reception { harvest, underruns, refused } = received;
        let traces = harvest.record.traces(harvest.answers.len());
        let inside: Vec<bool> = harvest.answers.iter().map(|answer| answer.accepted()).collect();
        let (mut late, mut stood) = (0, 0.0);
        let mut lasted = vec![Vec::new(); self.clips.len()];
        let mut peaks = vec![None; self.clips.len()];
        for ((viewer, answer), trace) in viewers.iter().zip(&harvest.answers).zip(&traces) {
            if !answer.accepted() {
                continue;
            }
            peaks[viewer.title] = answer.peak.max(peaks[viewer.title]);
            let asked = answer.asked_at.unwrap_or(answer.opened_at);
            let clip = &self.clips[viewer.title];
            let play = packets::play(&clip.packets, 0, trace, asked, BUFFERS[0]);
            let last = trace.steps().last().filter(|_| answer.end == End::Complete);
            match (play, last) {
                (Some(play), Some(last)) => {
                    late += usize::from(play.stood > 0.0);
                    stood += play.stood * 1e3;
                    lasted[viewer.title].push(last.at.since(asked).0 as f64 / 1e9);
                }
                _ => late += 1,
            }
        }
        let mut holds = Vec::new();
        for ((clip, lasted), peak) in self.clips.iter().zip(&mut lasted).zip(peaks) {
            let peak = peak.with_context(|| format!("{} has no peak", clip.name))?;
            let lasts = spread::quantile(lasted, 0.5).context("nobody has seen all of a title")?;
            holds.push(TitleReservation { peak, lasts });
        }
        let limit = BitRate(NARROW.0 / 100 * BUDGET_PERCENT);
        let mean_peak = holds.iter().map(|hold| hold.peak.0).sum::<u64>() / holds.len() as u64;
        let at_peaks = arrivals::at_peaks(&viewers, &holds, limit);
        let full = |admitted: &Vec<bool>| {
            arrivals::inside_at_first_refusal(&viewers, admitted, &holds)
                .context("nobody was refused: let viewers come for longer (--seconds)")
        };
        let (own, other) = (full(&inside)?, full(&at_peaks)?);
        Ok(Crowd {
            inside: [own.0, other.0],
            full_at: [own.1, other.1],
            by_mean_peak: limit.0 as f64 / mean_peak as f64,
            came: viewers.len(),
            admitted: inside.iter().filter(|inside| **inside).count(),
            refused,
            late,
            stood,
            underruns,
        })
    }
}

fn summarise_crowds(crowds: &[Crowd], report: &mut Report) {
    let values = |value: fn(&Crowd) -> f64| crowds.iter().map(value).collect::<Vec<f64>>();
    let ratios = values(|crowd| crowd.inside[0] as f64 / crowd.inside[1] as f64);
    let sum = |nth: usize| crowds.iter().map(|crowd| crowd.inside[nth]).sum::<usize>() as f64;
    let whole = sum(0) / sum(1);
    let late: usize = crowds.iter().map(|crowd| crowd.late).sum();
    let underruns: f64 = crowds.iter().map(|crowd| crowd.underruns).sum();
    let mut table = Table::new("viewers on a narrow link", &["figure", "value"]);
    for (name, values) in [
        ("viewers inside when the first is refused", values(|crowd| crowd.inside[0] as f64)),
        ("the same with reservations at the peak", values(|crowd| crowd.inside[1] as f64)),
        ("ratio", ratios.clone()),
        ("ratio of the sums of all rounds", vec![whole]),
        ("the link over the mean of the peaks", values(|crowd| crowd.by_mean_peak)),
        ("first refusal after, s", values(|crowd| crowd.full_at[0])),
        ("the same with reservations at the peak", values(|crowd| crowd.full_at[1])),
        ("viewers who came", values(|crowd| crowd.came as f64)),
        ("admitted", values(|crowd| crowd.admitted as f64)),
        ("refused for the link", values(|crowd| crowd.refused[0])),
        ("refused for anything else", values(|crowd| crowd.refused[1])),
        ("admitted who stood still or broke off", values(|crowd| crowd.late as f64)),
        ("for how long in all, ms", values(|crowd| crowd.stood)),
        ("late sends by the server's count", values(|crowd| crowd.underruns)),
    ] {
        table.row(vec![name.into(), spread(&values)]);
    }
    report.tables.push(table);
    if crowds.iter().any(|crowd| crowd.refused[1] > 0.0) {
        report.note("Something else than the link was short at times.".into());
    }
    let reached = |limit: f64| (!crowds.is_empty()).then_some(whole >= limit && late == 0);
    report.verdicts.push(Verdict {
        figure: "viewers admitted against reservations at the peak, all rounds; stood still".into(),
        measured: format!("{}x; {late}", number(whole)),
        must: "1.5x; 0".into(),
        reached: reached(1.5),
        push: "2x; 0".into(),
        pushed: reached(2.0),
    });
    report.verdicts.push(none("late sends by the server's count, all viewers", underruns));
}

fn ask(after: Nanos, name: &str, start: u64) -> PlannedRequest {
    let range = if start > 0 { format!("Range: bytes={start}-\r\n") } else { String::new() };
    let request = format!("GET /{name} HTTP/1.1\r\nHost: bench\r\n{range}\r\n");
    PlannedRequest { after, request: request.into_bytes(), from: None }
}

fn none(figure: &str, count: f64) -> Verdict {
    Verdict {
        figure: figure.into(),
        measured: number(count),
        must: "0".into(),
        reached: Some(count == 0.0),
        push: "-".into(),
        pushed: None,
    }
}
