//! classes: what the pacer costs with ten to ten thousand classes, by itself.
//!
//! Promise: the same bits per second are cut into more and more classes, in interleaved rounds, on
//! a thread of its own run time; packets are counted and thrown away, so nothing but the pacer and
//! its streams' byte clocks is measured. What a sender costs with it is another bench.

use std::path::PathBuf;

use anyhow::Result;
use rustix::thread::gettid;
use serde_json::json;
use tactus_core::byte_clock::ByteClock;
use tactus_core::pacer::{Class, ClassId, LINK, Limits, Pacer, Packet};
use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos, SECOND};

use crate::cpu::thread_run_time;
use crate::interrupt;
use crate::report::{Report, Table, Verdict, number, spread};

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds of each case.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Simulated milliseconds that are measured in each.
    #[arg(long, default_value_t = 500)]
    pub millis: u64,
    /// The numbers of classes.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000, 10_000])]
    pub classes: Vec<usize>,
    /// Where the report is written.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

const LINK_RATE: BitRate = BitRate(10_000_000_000);
/// Of paced streams: a thousand of 4 Mbit/s.
const PACED: u64 = 4_000_000_000;
/// Of targets on a link of 10.
const CROWDED: u64 = 16_000_000_000;
const TICK: Nanos = Nanos::from_micros(100);
/// Seven packets of a transport stream.
const DATAGRAM: Bytes = Bytes(1316);
/// Within it all streams begin: two packets of each of ten thousand.
const WARM_UP: Nanos = Nanos::from_millis(60);

/// How the classes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// Streams with byte clocks, all on the link.
    Paced,
    /// The same, ten to a class.
    Nested,
    /// Targets that exceed the link, always with work.
    Crowded,
}

impl Shape {
    const ALL: [Self; 3] = [Self::Paced, Self::Nested, Self::Crowded];

    const fn name(self) -> &'static str {
        match self {
            Self::Paced => "paced streams, 4 Gbit/s in all",
            Self::Nested => "the same, ten to a class",
            Self::Crowded => "targets of 16 Gbit/s on a link of 10",
        }
    }
}

/// What one run came to.
struct Cost {
    nanos_per_packet: f64,
    steps_per_packet: f64,
    turns_per_second: f64,
    packets: u64,
}

/// Runs it.
pub fn run(options: &Options) -> Result<()> {
    let mut report = Report::new("classes", "does a packet cost more when there are more classes?");
    report.method = [
        "The pacer runs on a clock of its own, as fast as it can; packets of 1,316 bytes are \
         counted and thrown away. CPU is the thread's run time from the scheduler and holds the \
         byte clock of the stream, which says when its next packet is due. The number of classes \
         changes from run to run within a round.",
        "Wake-ups are turns of the pacer for each second of its clock: it is asked when it wants \
         to be polled, and polled then. The tick is 100 us, so 10,000 are the most.",
    ]
    .map(String::from)
    .into();
    let cases: Vec<(Shape, usize)> = Shape::ALL
        .into_iter()
        .flat_map(|shape| options.classes.iter().map(move |&classes| (shape, classes)))
        .collect();
    let mut costs: Vec<Vec<Cost>> = cases.iter().map(|_| vec![]).collect();
    for _ in 0..options.rounds {
        for (&(shape, classes), costs) in cases.iter().zip(&mut costs) {
            interrupt::check()?;
            let cost = measure(shape, classes, Nanos::from_millis(options.millis))?;
            report.runs.push(json!({
                "name": shape.name(),
                "classes": classes,
                "packets": cost.packets,
                "nanos_per_packet": cost.nanos_per_packet,
                "steps_per_packet": cost.steps_per_packet,
                "turns_per_second": cost.turns_per_second,
            }));
            costs.push(cost);
        }
    }
    for shape in Shape::ALL {
        summarise(shape, &cases, &costs, &mut report);
    }
    report.publish(&options.out).map(drop)
}

fn summarise(shape: Shape, cases: &[(Shape, usize)], costs: &[Vec<Cost>], report: &mut Report) {
    let head =
        ["streams", "CPU, ns/packet", "of the first row's", "operations/packet", "wake-ups/s"];
    let mut table = Table::new(shape.name(), &head);
    let mine = || cases.iter().zip(costs).filter(|((of, _), _)| *of == shape);
    let Some((_, first)) = mine().next() else { return };
    let (mut steps, mut turns) = (vec![], vec![]);
    for ((_, classes), costs) in mine() {
        let values = |figure: fn(&Cost) -> f64| costs.iter().map(figure).collect::<Vec<f64>>();
        let pairs = costs.iter().zip(first);
        let ratios: Vec<f64> =
            pairs.map(|(one, base)| one.nanos_per_packet / base.nanos_per_packet).collect();
        let columns = [
            values(|cost| cost.nanos_per_packet),
            ratios,
            values(|cost| cost.steps_per_packet),
            values(|cost| cost.turns_per_second),
        ];
        let mut row = vec![classes.to_string()];
        row.extend(columns.iter().map(|column| spread(column)));
        table.row(row);
        steps.extend(&columns[2]);
        turns.extend(&columns[3]);
    }
    report.tables.push(table);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    report.verdicts.push(Verdict {
        figure: format!("operations per packet, {}", shape.name()),
        measured: format!("at most {}", number(most(&steps))),
        must: format!("<= {STEPS_MAX} whatever the number"),
        reached: Some(most(&steps) <= STEPS_MAX),
        push: "-".into(),
        pushed: None,
    });
    let ticks = SECOND.0 as f64 / TICK.0 as f64;
    report.verdicts.push(Verdict {
        figure: format!("wake-ups per second, {}", shape.name()),
        measured: format!("at most {}", number(most(&turns))),
        must: format!("<= {ticks} whatever the number"),
        reached: Some(most(&turns) <= ticks),
        push: "-".into(),
        pushed: None,
    });
}

/// A line's ten moves, an entry and a way through for each of two levels, two entries into the
/// wheel and a look.
const STEPS_MAX: f64 = 28.0;

/// Who offers packets.
struct Stream {
    class: ClassId,
    /// When they are due; at once without.
    clock: Option<ByteClock>,
    sent: Bytes,
}

/// A pacer and the streams that feed it.
struct PacerHarness {
    pacer: Pacer,
    /// By the class's place.
    streams: Vec<Option<Stream>>,
    now: MonoTime,
}

impl PacerHarness {
    fn new(shape: Shape, classes: usize) -> Result<Self> {
        let now = MonoTime(SECOND.0);
        let parents = if shape == Shape::Nested { classes.div_ceil(10) } else { 0 };
        let limits = Limits { classes: classes + parents, parents, tick: TICK };
        let mut harness = Self {
            pacer: Pacer::new(limits, LINK_RATE, now),
            streams: (0..=limits.classes).map(|_| None).collect(),
            now,
        };
        let all = if shape == Shape::Crowded { CROWDED } else { PACED };
        let rate = BitRate(all / classes as u64);
        let mut parent = LINK;
        for number in 0..classes as u64 {
            if shape == Shape::Nested && number % 10 == 0 {
                parent = harness.pacer.add(LINK, Class::stream(BitRate(rate.0 * 10)))?;
            }
            let (class, clock) = if shape == Shape::Crowded {
                (Class::target(rate), None)
            } else {
                // Spread over the interval of a packet, as they come in a real house.
                let start = rate.time_for(DATAGRAM).0 * number / classes as u64;
                (Class::stream(rate), Some(ByteClock::new(now + Nanos(start), rate)))
            };
            let class = harness.pacer.add(parent, class)?;
            harness.streams[class.index as usize] = Some(Stream { class, clock, sent: Bytes(0) });
            harness.offer(class.index as usize);
        }
        Ok(harness)
    }

    fn offer(&mut self, place: usize) {
        if let Some(Stream { class, clock, sent }) = &self.streams[place] {
            let due = clock.map_or(MonoTime(0), |clock| clock.due(*sent));
            self.pacer.offer(self.now, *class, Packet { due, bytes: DATAGRAM });
        }
    }

    fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(next) = self.pacer.poll_timeout().filter(|&next| next <= end) {
            self.now = next;
            while let Some(departure) = self.pacer.poll_send(next) {
                let place = departure.class.index as usize;
                if let Some(stream) = &mut self.streams[place] {
                    stream.sent += departure.packet.bytes;
                }
                self.offer(place);
            }
        }
        self.now = end;
    }
}

fn measure(shape: Shape, classes: usize, span: Nanos) -> Result<Cost> {
    let thread = gettid().as_raw_nonzero().get() as u32;
    let mut harness = PacerHarness::new(shape, classes)?;
    harness.run(WARM_UP);
    let (before, began) = (harness.pacer.work(), thread_run_time(thread)?);
    harness.run(span);
    let took = thread_run_time(thread)?.0 - began.0;
    let after = harness.pacer.work();
    let packets = after.packets - before.packets;
    anyhow::ensure!(packets > 0, "{} milliseconds are too short", span.0 / 1_000_000);
    Ok(Cost {
        nanos_per_packet: took as f64 / packets as f64,
        steps_per_packet: (after.steps - before.steps) as f64 / packets as f64,
        turns_per_second: (after.turns - before.turns) as f64 * SECOND.0 as f64 / span.0 as f64,
        packets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_sends_what_it_should() {
        for (shape, rate) in
            [(Shape::Paced, PACED), (Shape::Nested, PACED), (Shape::Crowded, LINK_RATE.0)]
        {
            let span = Nanos::from_millis(40);
            let cost = measure(shape, 40, span).unwrap();
            let expected = BitRate(rate).bytes_in(span).0 / DATAGRAM.0;
            assert!(
                cost.packets.abs_diff(expected) <= 80,
                "{shape:?}: {} {expected}",
                cost.packets
            );
            assert!(cost.steps_per_packet < STEPS_MAX && cost.turns_per_second <= 10_025.0);
        }
    }
}
