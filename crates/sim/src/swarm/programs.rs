//! The local programs of a world: what they read, how often, and how long they live.

use tactus_core::units::{Bytes, MIB, Nanos};
use tactus_engine::file::PLACES_OF_CLIENT;

use super::VolumeSpec;
use crate::device::SPAN;
use crate::dice::Dice;
use crate::title::{Audience, Title};

/// The label of programs: the worlds of past seeds before them have none, so they stay as they
/// were.
pub(super) const LABEL: u64 = 390;

/// Programs that come one after the other in one slot of the file server's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramSpec {
    /// It writes anything into its memory.
    pub(crate) is_liar: bool,
    pub(crate) arrives: Nanos,
    /// Time until it is killed, from half of this to one and a half.
    pub(crate) lives: Nanos,
    /// Time from its end to the next program.
    pub(crate) rests: Nanos,
    /// Mean time from one read to the next.
    pub(crate) think: Nanos,
    /// Reads under way at once, without those at promised moments.
    pub(crate) depth: u32,
    /// Bytes of a read at most, a multiple of 4096.
    pub(crate) len_max: u32,
    /// How often it looks for answers by itself; `None`: it sleeps until it is woken.
    pub(crate) looks: Option<Nanos>,
    /// Its reads at moments that are promised.
    pub(crate) moments: Option<MomentSpec>,
}

/// Reads at moments that a program reserves room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MomentSpec {
    /// Moments in the time that two blocks are read ahead.
    pub(crate) ahead: u64,
    /// Their tolerance in thousandths of their interval.
    pub(crate) tolerance_thousandths: u64,
    pub(crate) len: Bytes,
}

/// About a seventh of all worlds has programs, and titles for both them and all others.
pub(super) fn draw(
    dice: &mut Dice,
    volumes: &[VolumeSpec],
    titles: &mut Vec<Title>,
    (duration, every_byte): (Nanos, bool),
) -> Vec<ProgramSpec> {
    if !dice.chance(150) {
        return vec![];
    }
    for volume in 0..volumes.len() {
        for _ in 0..dice.between(1, 3) {
            titles.push(draw_title(dice, volume, every_byte));
        }
    }
    let blocks: u64 = volumes.iter().map(|volume| u64::from(volume.block)).sum();
    let room = MEMORY / (blocks * u64::from(PLACES_OF_CLIENT));
    let count = dice.between(1, 5).min(room.max(1));
    // What is read must be generated and checked.
    let reads_max = if every_byte { READ_MAX / blocks / count } else { READS_MAX / count };
    (0..count).map(|_| draw_one(dice, duration, reads_max.max(READS_MIN))).collect()
}

fn draw_one(dice: &mut Dice, duration: Nanos, reads_max: u64) -> ProgramSpec {
    let is_liar = dice.chance(200);
    let moments = MomentSpec {
        ahead: dice.between(1, 6),
        tolerance_thousandths: dice.pick(&[0, 500, 2000]),
        len: Bytes(dice.spread(1, 65_536)),
    };
    let reads = dice.spread(READS_MIN, reads_max.max(READS_MIN));
    ProgramSpec {
        is_liar,
        arrives: Nanos(dice.below(duration.0 / 4)),
        lives: Nanos(dice.spread(duration.0 / 20, 2 * duration.0)),
        rests: Nanos::from_micros(dice.spread(1, 2_000_000)),
        think: Nanos(duration.0 / reads),
        depth: dice.between(1, 7) as u32,
        len_max: dice.pick(&[4096, 16_384, 65_536]),
        looks: dice.chance(300).then(|| Nanos::from_micros(dice.spread(1000, 20_000))),
        moments: (!is_liar && dice.chance(700)).then_some(moments),
    }
}

fn draw_title(dice: &mut Dice, volume: usize, every_byte: bool) -> Title {
    // Summing takes time.
    let has_sums = every_byte && dice.chance(500);
    let len = dice.spread(1, if has_sums { 3_000_000 } else { 4_000_000_000 });
    let position = dice.below(SPAN - len) / 4096 * 4096;
    let (len, audience) = (Bytes(len), Audience::Both);
    Title { volume, len, position, audience, has_sums, growth: None }
}

/// Bytes of the places of all programs.
const MEMORY: u64 = 128 * MIB;
/// Reads of all programs of a world, and those of one program at least.
const READS_MAX: u64 = 2000;
const READS_MIN: u64 = 20;
/// Bytes that they read where every byte exists.
const READ_MAX: u64 = 128 * MIB;

#[cfg(test)]
mod tests {
    use tactus_core::units::SECOND;

    use crate::swarm::{Mode, Swarm};

    #[test]
    fn a_seventh_of_all_worlds_has_programs_some_of_which_lie() {
        let swarms = (0..500).map(|seed| Swarm::draw(seed, Mode::of(seed), Some(SECOND)));
        let programs: Vec<_> = swarms.map(|swarm| swarm.programs).collect();
        let worlds = programs.iter().filter(|programs| !programs.is_empty()).count();
        assert!((50..100).contains(&worlds), "{worlds}");
        let all = || programs.iter().flatten();
        let (liars, promised) = (
            all().filter(|program| program.is_liar).count(),
            all().filter(|program| program.moments.is_some()).count(),
        );
        assert!(liars * 10 > all().count() && promised * 3 > all().count());
    }
}
