//! What comes back to local programs: each answer is taken, and judged.

use tactus_core::local::Answer;
use tactus_core::units::{MILLISECOND, Nanos, SECOND};

use super::{PendingRead, Programs, Running, Slot};
use crate::content;
use crate::device::open;
use crate::swarm::{Mode, Swarm};
use crate::title::Title;
use crate::verdict::{Invariant, broken, require};
use crate::world::World;
use crate::world::schedule::Act;

impl World {
    /// Takes all answers that there are, and sleeps or plans the next look.
    pub(super) fn look_for_answers(&mut self, at: usize) {
        if self.programs.slots[at].spec.is_liar {
            return;
        }
        loop {
            while self.take_answer(at) {}
            let Slot { spec, running, .. } = &mut self.programs.slots[at];
            let Some(running) = running else { return };
            running.is_looking = spec.looks.is_some() && !running.asked.is_empty();
            if let Some(every) = spec.looks {
                if running.is_looking {
                    self.push_act(self.now + every, at, Act::Look);
                }
                break;
            }
            running.program.own_mark.set();
            if !self.take_answer(at) {
                break;
            }
        }
        self.leave_if_over(at);
    }

    /// At the end of the world a program leaves when all its requests have been answered.
    pub(super) fn leave_if_over(&mut self, at: usize) {
        let slot = &self.programs.slots[at];
        let is_done = |running: &Running| running.asked.is_empty() || slot.spec.is_liar;
        if self.now >= self.end && slot.running.as_ref().is_some_and(is_done) {
            self.detach(at);
        }
    }

    /// Takes and judges an answer. Returns false if there is none.
    fn take_answer(&mut self, at: usize) -> bool {
        let now = self.now;
        let Some(running) = self.programs.slots[at].running.as_mut() else { return false };
        let words = match running.program.answers.pop() {
            Ok(Some(words)) => words,
            Ok(None) => return false,
            Err(lie) => broken(Invariant::Assertion, format!("{lie:?} at {now:?}, of the server")),
        };
        let answer = Answer::decode(&words);
        let asked = running.asked.iter().position(|asked| asked.token == answer.token);
        let Some(asked) = asked.map(|asked| running.asked.swap_remove(asked)) else {
            broken(
                Invariant::OneCompletionEach,
                format!("{answer:?} at {now:?} to program {at}, which does not wait for it"),
            )
        };
        self.trace.note_all([now.0, answer.token, answer.at.0]);
        self.judge(at, &asked, &answer);
        true
    }

    fn judge(&mut self, at: usize, asked: &PendingRead, answer: &Answer) {
        let now = self.now;
        let Title { volume, .. } = self.titles[asked.title];
        let is_kept = self.keeps_moments(volume);
        // Refusals come at once.
        let is_refused = matches!(answer.result, Err(EBADF | EBUSY | ETIME));
        let in_time = (is_refused || asked.when <= answer.at) && answer.at <= now;
        require(in_time, Invariant::NeverEarly, || format!("{answer:?} at {now:?} of {asked:?}"));
        match answer.result {
            Ok(bytes) => {
                require(bytes == asked.expected, Invariant::TrueOutcome, || {
                    format!("{answer:?} at {now:?} of {asked:?}")
                });
                let Programs { slots, copy, .. } = &mut self.programs;
                let Slot { spec, running, .. } = &slots[at];
                copy.resize(bytes as usize, 0);
                let data = running.as_ref().map(|running| &running.program.data);
                let data = data.expect("it takes answers");
                data.copy_out(u64::from(asked.part) * u64::from(spec.len_max), copy);
                let checked =
                    content::check(asked.title as u64, asked.offset, copy, self.swarm.fidelity);
                require(checked.is_ok(), Invariant::RightBytes, || {
                    format!("{answer:?} at {now:?} of {asked:?}: wrong at {checked:?}")
                });
                self.tally.reads += 1;
            }
            Err(errno) => {
                let is_true = match errno {
                    EBADF => asked.is_closed,
                    EBUSY | ETIME => asked.is_promised && !is_kept,
                    EFAULT | EINVAL | EMSGSIZE | ENOSYS => false,
                    _ => open(&self.devices[volume]).is_damaged(asked.title),
                };
                require(is_true, Invariant::TrueOutcome, || {
                    format!("{answer:?} at {now:?} of {asked:?}")
                });
                return;
            }
        }
        if asked.is_promised && is_kept {
            let late = answer.at.since(asked.when);
            require(late <= self.lateness_of_moments(), Invariant::MomentsKept, || {
                format!("{late:?} late: {answer:?} at {now:?} of {asked:?}")
            });
            self.tally.moments += 1;
        }
    }

    /// Whether nothing of the world breaks the promises of a volume, as for streams.
    fn keeps_moments(&self, volume: usize) -> bool {
        let Swarm { volumes, pauses, mode, .. } = &self.swarm;
        let spec = &volumes[volume];
        let is_healthy = spec.faults.is_empty() && spec.guess.is_none() && pauses.is_empty();
        is_healthy && *mode != Mode::Liveness
    }

    /// A turn that is late delays a want, each message on its way, and the answer.
    fn lateness_of_moments(&self) -> Nanos {
        MILLISECOND + self.swarm.lateness.times(8)
    }

    /// Once a second: no promised moment has passed without an answer.
    pub(in crate::world) fn check_moments(&self) {
        let late = self.lateness_of_moments() + SECOND;
        let running = self.programs.slots.iter().filter_map(|slot| slot.running.as_ref());
        for asked in running.flat_map(|running| &running.asked).filter(|asked| asked.is_promised) {
            let is_kept = self.keeps_moments(self.titles[asked.title].volume);
            require(!is_kept || self.now <= asked.when + late, Invariant::MomentsKept, || {
                format!("no answer by {:?} of {asked:?}", self.now)
            });
        }
    }
}

const EBADF: u32 = 9;
const EFAULT: u32 = 14;
const EBUSY: u32 = 16;
const EINVAL: u32 = 22;
const ENOSYS: u32 = 38;
const ETIME: u32 = 62;
const EMSGSIZE: u32 = 90;
