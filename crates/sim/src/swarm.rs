//! The world of a seed: the machine, its disks and titles, its clients, and the faults.
//!
//! Each seed draws not only events but also the kinds of events (swarm testing, Groce and others,
//! 2012): a world with all kinds hides effects that show only when little else happens.

mod crowd;
mod datagrams;
mod memory;
mod programs;
mod sata;

use tactus_core::disk_model::Ratio;
use tactus_core::estimator::ModelOrigin;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB, MonoTime, Nanos, SECOND};

use crate::content::Fidelity;
use crate::device::{DiskKind, Fault, Trouble};
use crate::dice::Dice;
use crate::net::{Receiver, Temper, UdpOutputSpec};
use crate::title::{Audience, Growth, Title};
use datagrams::UdpSpec;
pub(crate) use datagrams::wire_max;
pub(crate) use memory::Memory;
pub(crate) use programs::{MomentSpec, ProgramSpec};

/// What is promised in a world, and so what is an invariant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub enum Mode {
    /// Disks obey their models: nobody is ever late.
    Guarantee,
    /// Anything may fail: no wrong byte, no leak, no crash; healthy disks stay on time.
    Safety,
    /// Faults stop: everything is on time again.
    Liveness,
    /// Disks are slower than their models all the time: uploads keep their floor, and bytes stay
    /// right.
    Degradation,
}

impl Mode {
    /// The mode of a seed that names none.
    pub(crate) fn of(seed: u64) -> Self {
        match seed % 20 {
            18 => Self::Degradation,
            seed if seed % 5 == 3 => Self::Safety,
            seed if seed % 5 == 4 => Self::Liveness,
            _ => Self::Guarantee,
        }
    }
}

/// A world before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    /// The disk is the limit, and not the memory.
    #[cfg_attr(not(feature = "mutants"), expect(dead_code, reason = "only hunts of mutants ask"))]
    pub(crate) is_crowded: bool,
    pub(crate) fidelity: Fidelity,
    pub(crate) begin: MonoTime,
    pub(crate) duration: Nanos,
    pub(crate) cores: usize,
    /// Delivery servers, between which all streams are divided.
    pub(crate) deliveries: usize,
    /// Link servers, between which the deliveries of connections are divided.
    pub(crate) links: usize,
    /// None in worlds without datagrams.
    pub(crate) packet_servers: usize,
    /// Every server is on a random core, not on the default one.
    pub(crate) scattered: bool,
    /// About how often a server moves to another core; `None`: never.
    pub(crate) moves: Option<Nanos>,
    /// The time that a send or a read costs its core, in worlds with the balancer.
    pub(crate) work: Option<Nanos>,
    /// Limit of the lateness of a core's turn.
    pub(crate) lateness: Nanos,
    /// Limit of the delay of the control side.
    pub(crate) control_delay: Nanos,
    pub(crate) streams: u32,
    pub(crate) volumes: Vec<VolumeSpec>,
    pub(crate) titles: Vec<Title>,
    pub(crate) clients: Vec<ClientSpec>,
    pub(crate) uploads: Vec<UploadSpec>,
    /// Local programs.
    pub(crate) programs: Vec<ProgramSpec>,
    /// The UDP outputs; empty in a world without datagrams.
    pub(crate) udp_outputs: Vec<UdpOutputSpec>,
    pub(crate) packet_tick: Nanos,
    /// Limit of the datagrams of a message.
    pub(crate) segments_max: u32,
    /// The ceiling of the class of the first UDP output's streams, on the wire; `None`: they have
    /// no class.
    pub(crate) ceiling: Option<BitRate>,
    /// The stalls of the machine: time and length, in order.
    pub(crate) pauses: Vec<(MonoTime, Nanos)>,
    /// The end of all faults.
    pub(crate) quiet_from: MonoTime,
    pub(crate) behind_max: Nanos,
    /// Streams may be this much later than promised: a disk has changed under full load.
    pub(crate) grace: Nanos,
}

/// A volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeSpec {
    pub(crate) kind: DiskKind,
    pub(crate) cycle: Nanos,
    pub(crate) block: u32,
    pub(crate) places: u32,
    pub(crate) best_effort_depth: u32,
    pub(crate) share_thousandths: u32,
    pub(crate) memory: Memory,
    pub(crate) write_path: Option<WritePathSpec>,
    pub(crate) faults: Vec<Fault>,
    /// How wrong the model of the start is, and that the disk is learned; `None`: it is right and
    /// stays.
    pub(crate) guess: Option<GuessSpec>,
}

/// The model of the start of a disk that is learned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuessSpec {
    /// Its times, compared with those of the disk.
    pub(crate) ratio: Ratio,
    pub(crate) origin: ModelOrigin,
    /// Whether the reads of streams count as evidence of a fast disk.
    pub(crate) is_direct: bool,
}

/// The uploads of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritePathSpec {
    pub(crate) places: u32,
    pub(crate) place: u32,
    pub(crate) floor_thousandths: u32,
}

/// A client that uploads, or a live input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadSpec {
    pub(crate) volume: usize,
    pub(crate) arrives: Nanos,
    pub(crate) place: u32,
    pub(crate) len_max: u64,
    /// Bytes between two acknowledgements.
    pub(crate) chunk: u64,
    pub(crate) think: Nanos,
    /// The rate of a recording; `None` for an upload.
    pub(crate) record: Option<BitRate>,
    pub(crate) lasts: Nanos,
    /// A complete file gets a name, and its last acknowledgement when the name is durable.
    pub(crate) has_name: bool,
}

/// The kind of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientKind {
    /// Watches for a while, then another title.
    Viewer,
    /// Seeks: stops and starts elsewhere at once.
    Zapper,
    /// Asks for several small ranges in a row.
    Ranger,
    /// Downloads without a rate.
    Downloader,
    /// Pins titles in memory: it stands for the broker, which pins hot titles.
    Pinner,
}

/// A client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSpec {
    pub(crate) kind: ClientKind,
    pub(crate) volume: usize,
    pub(crate) rate: BitRate,
    pub(crate) tick: Tick,
    pub(crate) burst: Bytes,
    pub(crate) receiver: Receiver,
    pub(crate) arrives: Nanos,
    pub(crate) stay: Nanos,
    pub(crate) think: Nanos,
    /// Time until the retry after a refusal.
    pub(crate) retry: Nanos,
    /// Starts every title at the same position as other such clients.
    pub(crate) follows: bool,
    /// Sometimes stops a delivery that has ended long ago.
    pub(crate) is_confused: bool,
    /// Its deliveries leave as datagrams.
    pub(crate) datagrams: Option<DatagramSpec>,
    /// Its rate is the highest one of plans.
    pub(crate) has_plans: bool,
}

impl ClientSpec {
    /// A patient viewer on the first volume, from the beginning of the world on.
    pub(crate) fn viewer(rate: BitRate, stay: Nanos) -> Self {
        Self {
            kind: ClientKind::Viewer,
            volume: 0,
            rate,
            tick: Tick::Ms62,
            burst: Bytes(0),
            receiver: Receiver::new(Temper::Eager, None),
            arrives: Nanos(0),
            stay,
            think: SECOND,
            retry: SECOND,
            follows: false,
            is_confused: false,
            datagrams: None,
            has_plans: false,
        }
    }
}

/// How the deliveries of a client leave as datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramSpec {
    pub(crate) udp_output: usize,
    pub(crate) is_rtp: bool,
    pub(crate) is_v6: bool,
    pub(crate) burst: Nanos,
    pub(crate) repeats: bool,
}

/// Rate of a world in which every byte exists: one second takes about 50 ms to generate and check.
const EVERY_BYTE_RATE: u64 = 8 * 25_000_000;
/// The label of plans: the worlds of past seeds have none, so they stay as they were.
const PLANS: u64 = 257;
/// The time from one turn of a core to the next, in worlds with programs.
pub(crate) const TURN: Nanos = Nanos::from_micros(5);
/// The label of delivery servers.
const DELIVERIES: u64 = 258;
const FLASH_CYCLES: [u64; 6] = [50, 100, 125, 250, 500, 1000];
const ARM_CYCLES: [u64; 3] = [1000, 2000, 4000];

impl Swarm {
    /// A world without volumes, titles and clients, in which nothing fails, nothing is late and
    /// disks obey their models.
    pub(crate) fn quiet(duration: Nanos) -> Self {
        Self {
            seed: 0,
            mode: Mode::Guarantee,
            is_crowded: false,
            // Stamps cost little, so a run measures the engine and not the memory.
            fidelity: Fidelity::Restamping(65_536),
            begin: MonoTime(SECOND.0),
            duration,
            cores: 1,
            deliveries: 1,
            links: 1,
            packet_servers: 0,
            scattered: false,
            moves: None,
            work: None,
            lateness: Nanos(0),
            control_delay: Nanos(1000),
            streams: 256,
            volumes: vec![],
            titles: vec![],
            clients: vec![],
            uploads: vec![],
            programs: vec![],
            udp_outputs: vec![],
            packet_tick: Nanos::from_millis(1),
            segments_max: 1,
            ceiling: None,
            pauses: vec![],
            quiet_from: MonoTime(0),
            behind_max: SECOND.times(60),
            grace: Nanos(0),
        }
    }

    /// The world of `seed`.
    pub(crate) fn draw(seed: u64, mode: Mode, duration: Option<Nanos>) -> Self {
        let all = Dice::new(seed);
        let mut dice = all.fork(1);
        let every_byte = dice.chance(250);
        let fidelity = if every_byte {
            Fidelity::EveryByte
        } else {
            Fidelity::Restamping(dice.pick(&[4096, 16_384, 65_536]))
        };
        // Every byte costs memory and time: such worlds are small.
        let arena = if every_byte { 48 * MIB } else { dice.spread(16 * MIB, 192 * MIB) };
        let (cores, links) = draw_links(&mut all.fork(12), dice.pick(&[1, 1, 1, 2, 3]));
        let is_crowded = !every_byte && dice.chance(250);
        let count = if is_crowded { 1 } else { dice.pick(&[1, 1, 2, 3, 4]) };
        let mut volumes: Vec<_> =
            (0..count).map(|n| VolumeSpec::draw(&mut all.fork(100 + n), arena / count)).collect();
        if is_crowded {
            volumes = vec![crowd::draw_volume(&mut all.fork(100))];
        }
        let longest = volumes.iter().map(|volume| volume.cycle).max().unwrap_or(SECOND);
        let default = Nanos((longest.0 * dice.between(12, 30)).max(10 * SECOND.0));
        let duration = duration.unwrap_or(default);
        let begin = MonoTime(dice.between(SECOND.0, 1_000_000 * SECOND.0));
        let lateness =
            if dice.chance(650) { Nanos(0) } else { Nanos::from_micros(dice.spread(10, 2000)) };
        let has_pins = !is_crowded && dice.chance(250);
        // A pin reads in best-effort time what streams read in real time.
        let separate = !has_pins && dice.chance(600);
        let mut titles = if is_crowded {
            crowd::draw_titles(&mut all.fork(2))
        } else {
            draw_titles(&mut all.fork(2), &volumes, separate)
        };
        let mut clients = if is_crowded {
            crowd::draw_clients(&mut all.fork(3), &volumes[0], duration)
        } else {
            draw_clients(&mut all.fork(3), &volumes, mode, duration, fidelity)
        };
        if is_crowded {
            // Read-ahead needs extra memory; otherwise memory would be the limit.
            volumes[0].places += volumes[0].memory.ahead() * clients.len() as u32;
        }
        if has_pins {
            pin_some(&mut all.fork(5), &volumes, &mut titles, &mut clients);
        }
        if every_byte {
            draw_sums(&mut all.fork(7), &mut titles);
        }
        if !is_crowded && !has_pins {
            draw_growth(&mut all.fork(8), &mut titles, begin, duration);
        }
        let uploads = draw_uploads(&mut all.fork(6), &mut volumes, duration);
        let mut narrowness = all.fork(11);
        let is_narrow = !is_crowded && !has_pins && narrowness.chance(100);
        if is_narrow {
            narrow(&mut narrowness, &mut volumes);
        }
        let (mut pauses, mut quiet_from) = (vec![], begin);
        if mode == Mode::Degradation {
            draw_slowness(&mut all.fork(4), &mut volumes, begin, duration);
        } else if mode != Mode::Guarantee {
            let mut faults = all.fork(4);
            let until = Nanos(duration.0 * if mode == Mode::Liveness { 4 } else { 9 } / 10);
            quiet_from = begin + until;
            draw_faults(&mut faults, &mut volumes, begin, until, mode);
            draw_flush_errors(&mut all.fork(10), &mut volumes, begin, until, mode);
            if every_byte {
                draw_damage(&mut all.fork(9), &mut volumes, begin, until, mode);
            }
            if faults.chance(if count > 1 { 250 } else { 500 }) {
                pauses = draw_pauses(&mut faults, begin, until);
            }
        }
        draw_plans(&mut all.fork(PLANS), &mut clients);
        let mut calling = all.fork(programs::LABEL);
        let programs = programs::draw(&mut calling, &volumes, &mut titles, (duration, every_byte));
        // A turn of a core that polls for programs without sleep takes time.
        let lateness = if programs.is_empty() { lateness } else { lateness.max(TURN) };
        let sending = all.fork(datagrams::LABEL);
        let sending = datagrams::DatagramLimits {
            mode,
            begin,
            duration,
            quiet_from,
            every_byte,
            dice: sending,
        };
        let UdpSpec { udp_outputs, tick, segments_max, ceiling } =
            datagrams::draw(sending, &mut clients);
        Self {
            seed,
            mode,
            is_crowded,
            fidelity,
            begin,
            duration,
            cores,
            deliveries: draw_deliveries(&mut all.fork(DELIVERIES), cores),
            links,
            packet_servers: match (udp_outputs.is_empty(), ceiling) {
                (true, _) => 0,
                // One server schedules all classes.
                (false, Some(_)) => 1,
                (false, None) => all.fork(14).pick(&[1, links]),
            },
            scattered: dice.chance(300),
            moves: draw_moves(&mut all.fork(13), cores),
            work: draw_work(&mut all.fork(14), cores),
            lateness,
            control_delay: Nanos::from_micros(dice.spread(1, 5000)),
            streams: if is_crowded {
                512
            } else if is_narrow {
                narrowness.between(1, 4) as u32
            } else {
                dice.pick(&[8, 100, 512]).max(dice.spread(1, 512)) as u32
            },
            volumes,
            titles,
            clients,
            uploads,
            programs,
            udp_outputs,
            packet_tick: tick,
            segments_max,
            ceiling,
            pauses,
            quiet_from,
            behind_max: SECOND.times(dice.between(1, 10)),
            grace: Nanos(0),
        }
    }
}

/// In some worlds some of those who watch get titles of a variable rate.
fn draw_plans(dice: &mut Dice, clients: &mut [ClientSpec]) {
    let share = if dice.chance(200) { dice.pick(&[300, 700, 1000]) } else { 0 };
    for client in clients {
        let watches = matches!(client.kind, ClientKind::Viewer | ClientKind::Zapper);
        client.has_plans = watches && dice.chance(share);
    }
}

/// Half of the worlds with several cores have servers that move.
fn draw_moves(dice: &mut Dice, cores: usize) -> Option<Nanos> {
    let moves = cores > 1 && dice.chance(500);
    moves.then(|| Nanos::from_micros(dice.spread(3_000, 3_000_000)))
}

/// Half of the worlds with several cores have the balancer. Cores are idle in some of them, and
/// full in others.
fn draw_work(dice: &mut Dice, cores: usize) -> Option<Nanos> {
    let balances = cores > 1 && dice.chance(500);
    balances.then(|| Nanos::from_micros(dice.spread(1, 3_000)))
}

/// The cores and link servers of a world that has `cores` by itself. Few have eight of each, as
/// each core takes turns without end.
fn draw_links(dice: &mut Dice, cores: usize) -> (usize, usize) {
    match (dice.chance(60), cores) {
        (true, _) => (8, 8),
        (false, 1) => (1, 1),
        (false, _) => (cores, if dice.chance(500) { cores } else { 1 }),
    }
}

/// The delivery servers of a world. Half of those with several cores have several, and a few of the
/// others, where one core polls all of them.
fn draw_deliveries(dice: &mut Dice, cores: usize) -> usize {
    let has_several = dice.chance(if cores > 1 { 500 } else { 100 });
    if has_several { dice.pick(&[2, 3, cores.max(2)]) } else { 1 }
}

impl VolumeSpec {
    fn draw(dice: &mut Dice, arena: u64) -> Self {
        let kind = dice.pick(&[DiskKind::Spinning, DiskKind::Sata, DiskKind::Nvme]);
        let has_arm = kind == DiskKind::Spinning;
        let cycle = if has_arm { dice.pick(&ARM_CYCLES) } else { dice.pick(&FLASH_CYCLES) };
        let block = match kind {
            DiskKind::Spinning => dice.pick(&[256 << 10, 1 << 20, 2 << 20, 4 << 20]),
            DiskKind::Sata => dice.pick(&[64 << 10, 128 << 10, 256 << 10]),
            DiskKind::Nvme => dice.pick(&[128 << 10, 256 << 10, 1 << 20]),
        };
        // A long cycle of a spinning disk needs more memory than most worlds get; now and then
        // it has it, so that the arm is the limit. Such worlds have stamps far apart or take
        // longer.
        let arena = if has_arm && dice.chance(250) { arena.max(320 * MIB) } else { arena };
        Self {
            kind,
            cycle: Nanos::from_millis(cycle),
            block: block as u32,
            places: (arena / block).max(8) as u32,
            best_effort_depth: dice.between(1, 4) as u32,
            share_thousandths: dice.between(800, 950) as u32,
            memory: Memory::draw(dice),
            write_path: None,
            faults: vec![],
            guess: None,
        }
    }

    /// Bits per second that the disk gives in long reads.
    fn sequential(&self) -> u64 {
        self.kind.model(self.block).sequential().0
    }
}

fn draw_titles(dice: &mut Dice, volumes: &[VolumeSpec], separate: bool) -> Vec<Title> {
    let mut titles = vec![];
    for volume in 0..volumes.len() {
        for audience in [Audience::Paced, Audience::Downloads] {
            for _ in 0..dice.spread(1, 40) {
                let len = match dice.below(10) {
                    0 => dice.spread(1, 100_000),
                    1..=3 => dice.spread(100_000, 50_000_000),
                    _ => dice.spread(50_000_000, 40_000_000_000),
                };
                let position = dice.below(crate::device::SPAN - len) / 4096 * 4096;
                let audience = if separate { audience } else { Audience::Both };
                titles.push(Title {
                    volume,
                    len: Bytes(len),
                    position,
                    audience,
                    has_sums: false,
                    growth: None,
                });
            }
        }
    }
    titles
}

fn draw_clients(
    dice: &mut Dice,
    volumes: &[VolumeSpec],
    mode: Mode,
    duration: Nanos,
    fidelity: Fidelity,
) -> Vec<ClientSpec> {
    let count = dice.spread(1, 400);
    // Together the clients ask for this share of what the disks can give in long reads.
    let fullness = dice.pick(&[100, 400, 800, 1200, 1200, 2000]);
    let all: u64 = volumes.iter().map(VolumeSpec::sequential).sum();
    let every_byte = fidelity == Fidelity::EveryByte;
    let all = if every_byte { all.min(EVERY_BYTE_RATE) } else { all };
    let fair = (all / 1000 * fullness / count).max(1);
    let mixed = dice.chance(500);
    let habits = [
        (ClientKind::Viewer, 600),
        (ClientKind::Zapper, if dice.chance(400) { dice.below(400) } else { 0 }),
        (ClientKind::Ranger, if dice.chance(300) { dice.below(300) } else { 0 }),
        (ClientKind::Downloader, if dice.chance(500) { dice.below(400) } else { 0 }),
    ];
    let total: u64 = habits.iter().map(|&(_, weight)| weight).sum();
    let (bursts, follows) = (dice.chance(500), dice.below(600));
    let rude = if dice.chance(500) { dice.below(400) } else { 0 };
    let rush = if dice.chance(300) { Nanos(0) } else { Nanos(duration.0 / 3) };
    let draw_one = |number: u64| {
        let mut dice = dice.fork(number);
        let mut roll = dice.below(total);
        let found = habits.iter().find(|&&(_, weight)| {
            let hit = roll < weight;
            roll = roll.saturating_sub(weight);
            hit
        });
        let kind = found.map_or(ClientKind::Viewer, |&(kind, _)| kind);
        let rate = if mixed {
            dice.spread(64_000, 1_000_000_000).min(fair.saturating_mul(8)).max(64_000)
        } else {
            fair.clamp(64_000, 1_000_000_000)
        };
        let rate = BitRate(rate);
        let wanted = dice.pick(&Tick::EVEN);
        let media = Nanos::from_millis(dice.between(0, 2000));
        ClientSpec {
            kind,
            volume: dice.below(volumes.len() as u64) as usize,
            rate,
            tick: Tick::for_rate(rate, wanted),
            burst: if bursts { rate.bytes_in(media) } else { Bytes(0) },
            receiver: if every_byte && kind == ClientKind::Downloader {
                let rate = BitRate(EVERY_BYTE_RATE / count);
                Receiver::new(Temper::Steady { rate, buffer: 262_144 }, None)
            } else {
                draw_receiver(&mut dice, rate, mode, rude)
            },
            arrives: Nanos(dice.below(rush.0.max(1))),
            stay: match kind {
                ClientKind::Zapper => Nanos::from_millis(dice.spread(10, 8000)),
                _ => Nanos(dice.between(duration.0 / 10, duration.0 * 2)),
            },
            think: Nanos::from_millis(dice.spread(1, 3000)),
            retry: SECOND,
            follows: dice.chance(follows),
            is_confused: dice.chance(100),
            datagrams: None,
            has_plans: false,
        }
    };
    (0..count).map(draw_one).collect()
}

/// Gives some titles checksums. Summing takes time, so these titles are small.
fn draw_sums(dice: &mut Dice, titles: &mut [Title]) {
    for title in titles {
        if dice.chance(700) {
            title.len = Bytes(title.len.0.min(dice.spread(1, 3_000_000)));
            title.has_sums = true;
        }
    }
}

/// In some worlds some titles are recorded while they are watched.
fn draw_growth(dice: &mut Dice, titles: &mut [Title], begin: MonoTime, duration: Nanos) {
    if !dice.chance(500) {
        return;
    }
    for title in titles.iter_mut().filter(|title| !title.has_sums) {
        if dice.chance(400) {
            let from = Bytes(dice.spread(1, 4_000_000).min(title.len.0));
            let rate = BitRate(dice.spread(64_000, 50_000_000));
            // Some are complete soon, some never.
            let grows = Nanos(duration.0 / 1000 * dice.spread(50, 3000));
            title.len = title.len.min(from + rate.bytes_in(grows));
            title.growth = Some(Growth { since: begin, from, rate });
        }
    }
}

/// All; but for safety the last of several volumes stays healthy, to check that faults do not
/// affect it.
fn volumes_that_may_fail(volumes: &mut [VolumeSpec], mode: Mode) -> &mut [VolumeSpec] {
    let count = volumes.len();
    let keeps_one = count > 1 && mode == Mode::Safety;
    &mut volumes[..count - usize::from(keeps_one)]
}

/// Some disks return bytes other than the stored ones, without an error.
fn draw_damage(
    dice: &mut Dice,
    volumes: &mut [VolumeSpec],
    begin: MonoTime,
    until: Nanos,
    mode: Mode,
) {
    for volume in volumes_that_may_fail(volumes, mode) {
        if dice.chance(700) {
            let from = begin + Nanos(dice.below(until.0));
            let trouble = Trouble::Flips { permille: dice.spread(20, 500) };
            volume.faults.push(Fault { from, to: begin + until, trouble });
        }
    }
}

/// Every disk is slower than its model, for the whole run.
fn draw_slowness(dice: &mut Dice, volumes: &mut [VolumeSpec], begin: MonoTime, duration: Nanos) {
    for volume in volumes {
        let trouble = Trouble::Slow { factor: dice.between(2, 20) };
        volume.faults.push(Fault { from: begin, to: begin + duration, trouble });
    }
}

/// Some flushes fail, on disks without other faults.
fn draw_flush_errors(
    dice: &mut Dice,
    volumes: &mut [VolumeSpec],
    begin: MonoTime,
    until: Nanos,
    mode: Mode,
) {
    for volume in volumes_that_may_fail(volumes, mode) {
        if volume.write_path.is_some() && dice.chance(300) {
            let from = begin + Nanos(dice.below(until.0));
            let trouble = Trouble::FlushErrors { permille: dice.spread(1, 1000) };
            volume.faults.push(Fault { from, to: begin + until, trouble });
        }
    }
}

/// In about half of the worlds some volumes take uploads, up to 32 at once, and record some live
/// inputs.
fn draw_uploads(dice: &mut Dice, volumes: &mut [VolumeSpec], duration: Nanos) -> Vec<UploadSpec> {
    let mut uploads = vec![];
    if !dice.chance(500) {
        return uploads;
    }
    // Some uploads wait for nothing but the disk; many of those would only take time.
    let busy = dice.chance(300);
    for (at, volume) in volumes.iter_mut().enumerate() {
        if !dice.chance(800) {
            continue;
        }
        let place = dice.pick(&[64 << 10, 256 << 10, 1 << 20]);
        let places = dice.between(4, 64).min((48 * MIB / place).max(4));
        volume.write_path = Some(WritePathSpec {
            places: places as u32,
            place: place as u32,
            floor_thousandths: dice.pick(&[10, 50, 50, 100]),
        });
        let recordings = if dice.chance(400) { dice.between(1, 4) } else { 0 };
        for number in 0..dice.spread(1, if busy { 6 } else { 32 }) + recordings {
            let is_recording = number < recordings;
            let rate = volume.sequential() / 1000 * dice.between(1, 60);
            let len_max = place * dice.spread(1, 32);
            uploads.push(UploadSpec {
                volume: at,
                arrives: Nanos(dice.below(duration.0 / 4)),
                place: place as u32,
                len_max,
                chunk: place * dice.pick(&[1, 2, 8, 1000]),
                think: Nanos::from_millis(if busy { 0 } else { dice.spread(10, 1000) }),
                record: is_recording.then_some(BitRate(rate.max(64_000))),
                lasts: Nanos(dice.between(duration.0 / 8, duration.0)),
                has_name: false,
            });
        }
    }
    uploads
}

/// The minimum of memory for a stream and an upload: every ring is then as short as possible, and
/// often full.
fn narrow(dice: &mut Dice, volumes: &mut [VolumeSpec]) {
    for volume in volumes {
        volume.places = dice.between(2, 12) as u32 + volume.memory.ahead();
        volume.best_effort_depth = 1;
        if let Some(write_path) = &mut volume.write_path {
            write_path.places = dice.between(1, 3) as u32;
        }
    }
}

/// Makes some titles small enough to be pinned, and some clients pin them.
fn pin_some(
    dice: &mut Dice,
    volumes: &[VolumeSpec],
    titles: &mut [Title],
    clients: &mut [ClientSpec],
) {
    for title in titles {
        if !dice.chance(300) {
            continue;
        }
        let volume = &volumes[title.volume];
        let arena = u64::from(volume.places) * u64::from(volume.block);
        title.len = Bytes(title.len.0.min(dice.spread(arena / 64, arena / 3)).max(1));
    }
    for client in clients {
        if dice.chance(60) {
            client.kind = ClientKind::Pinner;
            client.stay = Nanos::from_millis(dice.spread(100, 30_000));
        }
        client.follows |= dice.chance(300);
    }
}

fn draw_receiver(dice: &mut Dice, rate: BitRate, mode: Mode, rude: u64) -> Receiver {
    // Liveness checks that every stream is on time again, so there every client takes its bytes.
    if mode == Mode::Liveness || !dice.chance(rude) {
        return Receiver::new(Temper::Eager, None);
    }
    let buffer = dice.spread(16_384, 4_000_000);
    let around = |permille| BitRate((rate.0 as u128 * u128::from(permille) / 1000) as u64);
    let temper = match dice.below(4) {
        0 => Temper::Eager,
        1 => Temper::Steady { rate: around(dice.between(300, 990)), buffer },
        2 => Temper::Steady { rate: around(dice.between(1000, 5000)), buffer },
        _ => Temper::Stalling {
            rate: around(4000),
            buffer,
            after: Nanos::from_millis(dice.below(10_000)),
            span: Nanos::from_millis(dice.spread(10, 60_000)),
        },
    };
    let breaks = dice.chance(300).then(|| Nanos::from_millis(dice.below(15_000)));
    Receiver::new(temper, breaks)
}

fn draw_faults(
    dice: &mut Dice,
    volumes: &mut [VolumeSpec],
    begin: MonoTime,
    until: Nanos,
    mode: Mode,
) {
    let kinds: Vec<u64> = (0..5).filter(|_| dice.chance(400)).collect();
    let count = volumes.len();
    for (at, volume) in volumes.iter_mut().enumerate() {
        // One of several disks stays healthy: faults of the others must not affect it.
        if kinds.is_empty() || (at + 1 == count && count > 1 && mode == Mode::Safety) {
            continue;
        }
        for _ in 0..dice.spread(1, 6) {
            let from = begin + Nanos(dice.below(until.0));
            let span = Nanos(dice.spread(1_000_000, until.0.max(2_000_000)));
            let to = (from + span).min(begin + until);
            let trouble = match dice.pick(&kinds) {
                0 => Trouble::Errors { permille: dice.spread(1, 1000) },
                1 => Trouble::Short { permille: dice.spread(1, 300) },
                2 => Trouble::Slow { factor: dice.spread(2, 20) },
                3 => Trouble::Spikes {
                    permille: dice.spread(1, 100),
                    extra: Nanos::from_millis(dice.spread(1, 1000)),
                },
                _ => Trouble::Hang,
            };
            volume.faults.push(Fault { from, to, trouble });
        }
    }
}

fn draw_pauses(dice: &mut Dice, begin: MonoTime, until: Nanos) -> Vec<(MonoTime, Nanos)> {
    let mut pauses: Vec<_> = (0..dice.spread(1, 8))
        .map(|_| {
            let at = begin + Nanos(dice.below(until.0));
            let span = Nanos(dice.spread(1_000_000, 8 * SECOND.0));
            (at, span.min((begin + until).since(at)))
        })
        .collect();
    pauses.sort_unstable();
    pauses
}

/// A summary of a world, for the analysis of a failing seed.
#[derive(Debug)]
#[expect(dead_code, reason = "it is only printed")]
pub(crate) struct Summary {
    mode: Mode,
    fidelity: Fidelity,
    duration: Nanos,
    cores: usize,
    deliveries: usize,
    links: usize,
    packet_servers: usize,
    scattered: bool,
    moves: Option<Nanos>,
    work: Option<Nanos>,
    lateness: Nanos,
    streams: u32,
    volumes: Vec<String>,
    titles: usize,
    clients: usize,
    datagrams: usize,
    programs: String,
    udp_outputs: String,
    pauses: usize,
}

impl Swarm {
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            mode: self.mode,
            fidelity: self.fidelity,
            duration: self.duration,
            cores: self.cores,
            deliveries: self.deliveries,
            links: self.links,
            packet_servers: self.packet_servers,
            scattered: self.scattered,
            moves: self.moves,
            work: self.work,
            lateness: self.lateness,
            streams: self.streams,
            volumes: self.volumes.iter().map(|volume| format!("{volume:?}")).collect(),
            titles: self.titles.len(),
            clients: self.clients.len(),
            datagrams: self.clients.iter().filter(|client| client.datagrams.is_some()).count(),
            programs: format!("{:?}", self.programs),
            udp_outputs: format!("{:?} in ticks of {:?}", self.udp_outputs, self.packet_tick),
            pauses: self.pauses.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_half_of_all_volumes_are_of_either_kind_and_read_ahead_by_each_number() {
        let swarms = (0..500).map(|seed| Swarm::draw(seed, Mode::of(seed), None));
        let mut counts = [0; 4];
        for volume in swarms.flat_map(|swarm| swarm.volumes) {
            counts[match volume.memory {
                Memory::Arena => 3,
                Memory::PageCache { ahead } => ahead as usize,
            }] += 1;
        }
        let all: u32 = counts.iter().sum();
        let share = |count: u32| 1000 * count / all;
        assert!((450..550).contains(&share(counts[3])), "{counts:?}");
        assert!(counts[..3].iter().all(|&count| share(count) > 120), "{counts:?}");
    }
}
