//! What one program can take of a turn.

use std::sync::atomic::Ordering;

use tactus_core::local::{Answer, Operation, RING_SLOTS, Request, layout, processor_word};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use super::REQUESTS_MAX;
use super::fixture::{Fixture, byte};
use super::program::Program;
use crate::message::TitleId;

/// A client could write requests that are refused as fast as the server takes them: a turn checks
/// that it ends. No ring of the doorbell follows for what it leaves.
#[test]
fn l03_requests_have_an_end_in_each_turn_and_none_is_forgotten() {
    // While the server may stay awake, and while it sleeps.
    for now in [1_000_000_000, 1_009_000_000] {
        let mut fixture = Fixture::new();
        let mut program = fixture.attach(0);
        fixture.turn();
        fixture.now = MonoTime(now);
        for token in 0..u64::from(RING_SLOTS) {
            assert_eq!(program.requests.push(&[token, 99, 0, 0, 0, 0, 0, 0]), Ok(true));
        }
        let (mut answered, mut turns) = (0, 0);
        while answered < RING_SLOTS {
            let next = fixture.turn();
            turns += 1;
            while program.answers.pop().expect("an honest server").is_some() {
                answered += 1;
            }
            if answered < RING_SLOTS {
                fixture.now = next.expect("a turn that follows by itself");
            }
        }
        assert!(turns >= 4, "{turns} turns");
        assert!(fixture.broken.is_empty());
    }
}

/// Has the server take a request. Returns whether it waits for the next one.
fn waits_after(fixture: &mut Fixture, program: &mut Program) -> bool {
    // Behind the last wait, in the first part of a period.
    fixture.now += Nanos::from_millis(10);
    assert_eq!(program.requests.push(&[1, 1, 0, 0, 0, 0, 0, 0]), Ok(true));
    program.server_mark.must_ring();
    fixture.turn();
    assert!(program.answers.pop().expect("an honest server").is_some());
    let waits = fixture.turn() == Some(fixture.now);
    fixture.now += Nanos::from_micros(100);
    fixture.turn();
    assert!(program.server_mark.must_ring(), "it sleeps, and is rung for");
    waits
}

#[test]
fn no_program_on_the_processor_of_the_server_is_waited_for() {
    let mut fixture = Fixture::new();
    let mut programs = [fixture.attach(0), fixture.attach(1)];
    fixture.processor.store(3, Ordering::Relaxed);
    let [beside, other] = &mut programs;
    assert!(waits_after(&mut fixture, beside), "it has not said where it is");
    beside.write(layout::CLIENT_PROCESSOR, processor_word(3));
    other.write(layout::CLIENT_PROCESSOR, processor_word(2));
    assert!(!waits_after(&mut fixture, beside));
    assert!(waits_after(&mut fixture, other));
    // One that is waited for is reason enough, whoever else asks.
    assert_eq!(beside.requests.push(&[1, 1, 0, 0, 0, 0, 0, 0]), Ok(true));
    assert!(waits_after(&mut fixture, other));
    assert!(!waits_after(&mut fixture, beside));
    // The server moves.
    fixture.processor.store(2, Ordering::Relaxed);
    assert!(waits_after(&mut fixture, beside));
    assert!(!waits_after(&mut fixture, other));
}

#[test]
fn each_program_knows_where_the_server_runs_from_its_first_request_on() {
    let mut fixture = Fixture::new();
    let mut first = fixture.attach(0);
    fixture.processor.store(5, Ordering::Relaxed);
    fixture.turn();
    assert_eq!(first.word(layout::SERVER_PROCESSOR), 0, "nobody has asked");
    waits_after(&mut fixture, &mut first);
    assert_eq!(first.word(layout::SERVER_PROCESSOR), processor_word(5));
    let second = fixture.attach(1);
    fixture.turn();
    assert_eq!(second.word(layout::SERVER_PROCESSOR), processor_word(5));
    fixture.processor.store(0, Ordering::Relaxed);
    waits_after(&mut fixture, &mut first);
    for program in [&first, &second] {
        assert_eq!(program.word(layout::SERVER_PROCESSOR), processor_word(0));
    }
}

#[test]
fn reads_of_two_programs_come_with_their_bytes_from_memory_and_from_the_page_cache() {
    let mut fixture = Fixture::new();
    let mut programs = [fixture.attach(0), fixture.attach(1)];
    for program in &programs {
        for handle in 0..3 {
            fixture.open(program.id, handle);
        }
        fixture.map(program.id, 2);
    }
    for nth in 0..300 {
        for program in &mut programs {
            program.read(&mut fixture, nth % 3);
        }
    }
    for program in &programs {
        fixture.detach(program.id);
    }
    fixture.run(8, |fixture| (fixture.detached.len() == 2).then_some(()));
    fixture.turn();
    assert_eq!(fixture.lent(), 0);
}

/// A read of 3,000 bytes from `offset` on at a moment `millis` after 1 s.
fn submit(program: &mut Program, token: u64, offset: u64, millis: u64) {
    let (operation, offset) = (Operation::Read, Bytes(offset));
    let when = MonoTime(1_000_000_000) + Nanos::from_millis(millis);
    let request = Request { token, operation, handle: 0, offset, len: 3000, at: 0, when };
    assert_eq!(program.requests.push(&request.encode()), Ok(true));
}

fn answer(program: &mut Program) -> Option<Answer> {
    program.answers.pop().expect("an honest server").map(|words| Answer::decode(&words))
}

#[test]
fn the_blocks_of_a_kept_moment_are_wanted_in_time_one_after_the_other() {
    let mut fixture = Fixture::new();
    let mut program = fixture.attach(0);
    fixture.open(program.id, 0);
    fixture.reserve(program.id, 0);
    fixture.turn();
    let begin = fixture.now;
    // In the first two blocks: the first one is wanted 40 ms ahead, the second one 20 ms.
    submit(&mut program, 1, 2000, 100);
    for (millis, block) in [(60, 0), (80, 1)] {
        let wanted = begin + Nanos::from_millis(millis);
        while fixture.now < wanted {
            let next = fixture.turn().expect("a want that waits for its time");
            assert!(fixture.wanted(0).is_empty(), "not earlier: others need the disk");
            fixture.now = next.max(fixture.now + Nanos::from_micros(10));
        }
        assert_eq!(fixture.now, wanted, "a turn at this time");
        fixture.turn();
        let due = begin + Nanos::from_millis(millis + 15);
        assert_eq!(fixture.wanted(0), [(block, due, false)]);
        fixture.answer_all();
    }
    let moment = begin + Nanos::from_millis(100);
    fixture.turn();
    assert_eq!((answer(&mut program), fixture.lent()), (None, 0), "copied, and given back");
    fixture.now = moment;
    fixture.turn();
    assert_eq!(answer(&mut program), Some(Answer { token: 1, result: Ok(3000), at: moment }));
    let mut bytes = [0; 3000];
    program.data.copy_out(0, &mut bytes);
    assert!((2000..).zip(bytes).all(|(at, found)| found == byte(TitleId(0), at)));
}

#[test]
fn moments_that_cannot_be_kept_are_refused_at_once() {
    let mut fixture = Fixture::new();
    let mut program = fixture.attach(0);
    fixture.open(program.id, 0);
    fixture.reserve(program.id, 0);
    fixture.turn();
    let mut refusal = |program: &mut Program, offset, millis| {
        submit(program, 7, offset, millis);
        fixture.turn();
        answer(program).map(|answer| answer.result)
    };
    // ETIME: too near for one block, and for two.
    assert_eq!(refusal(&mut program, 0, 19), Some(Err(62)));
    assert_eq!(refusal(&mut program, 2000, 39), Some(Err(62)));
    // EBUSY: closer than the interval and the tolerance allow.
    assert_eq!(refusal(&mut program, 0, 30), None, "its moment is kept");
    assert_eq!(refusal(&mut program, 0, 38), Some(Err(16)));
    assert_eq!(refusal(&mut program, 0, 39), None, "within the tolerance");
}

/// A program that is cut off while its moments are kept leaves no block behind, whether it has
/// waited for it, has it or has not wanted it yet.
#[test]
fn kept_moments_of_a_program_that_leaves_hold_nothing() {
    for turns in 0..400 {
        let mut fixture = Fixture::new();
        let mut program = fixture.attach(0);
        fixture.open(program.id, 0);
        fixture.reserve(program.id, 0);
        for nth in 0..REQUESTS_MAX as u64 {
            submit(&mut program, nth, 2000, 50 + nth * 10);
        }
        fixture.turn();
        for turn in 0..turns {
            fixture.now += Nanos::from_micros(500);
            fixture.turn();
            if turn % 7 == 0 {
                fixture.answer_all();
            }
        }
        fixture.detach(program.id);
        fixture.run(8, |fixture| (fixture.detached.len() == 1).then_some(()));
        fixture.turn();
        assert_eq!(fixture.lent(), 0);
    }
}

/// The commands of a turn are taken before its requests: a title can be opened, and its client told
/// of it, in between.
#[test]
fn a_request_that_overtakes_the_opening_of_its_title_is_answered_by_its_bytes() {
    for now in [1_000_000_000, 1_009_000_000] {
        let mut fixture = Fixture::new();
        let mut program = fixture.attach(0);
        fixture.turn();
        fixture.now = MonoTime(now);
        let read = |token: u64| [token, 2 | 1 << 32, 0, 100, 0, 0, 0, 0];
        assert_eq!(program.requests.push(&read(7)), Ok(true));
        assert_eq!(program.requests.push(&[8, 1, 0, 0, 0, 0, 0, 0]), Ok(true));
        let next = fixture.turn().expect("a turn that follows by itself");
        assert_eq!(program.answers.pop(), Ok(None));
        fixture.open(program.id, 1);
        fixture.now = next;
        let answers = [(); 2].map(|()| {
            let popped = |_: &Fixture| program.answers.pop().expect("an honest server");
            Answer::decode(&fixture.run(20, popped))
        });
        assert!(answers.iter().all(|answer| answer.result.is_ok()), "{answers:?}");
        // A title that nobody opens is refused soon.
        assert_eq!(program.requests.push(&[9, 2 | 2 << 32, 0, 100, 0, 0, 0, 0]), Ok(true));
        let popped = |_: &Fixture| program.answers.pop().expect("an honest server");
        let answer = Answer::decode(&fixture.run(3, popped));
        assert_eq!((answer.token, answer.result), (9, Err(9)));
    }
}

/// The block in which a growing title has ended stays leased, and has fewer bytes than the title
/// has there later.
#[test]
fn a_title_that_has_grown_is_read_to_its_new_end() {
    for handle in 0..2 {
        let mut fixture = Fixture::new();
        let mut program = fixture.attach(0);
        for len in [1000, 2000, 3001] {
            fixture.open_grown(program.id, handle, len);
            let read = [len, 2 | u64::from(handle) << 32, 0, 5000, 0, 0, 0, 0];
            assert_eq!(program.requests.push(&read), Ok(true));
            let popped = |_: &Fixture| program.answers.pop().expect("an honest server");
            let answer = Answer::decode(&fixture.run(20, popped));
            assert_eq!((answer.token, answer.result), (len, Ok(len as u32)));
            let mut bytes = vec![0; len as usize];
            program.data.copy_out(0, &mut bytes);
            let title = TitleId(u64::from(handle));
            assert!((0..).zip(bytes).all(|(at, found)| found == byte(title, at)), "{len}");
            fixture.close(program.id, handle);
        }
    }
}

/// What a core takes to begin a turn after a sleep: 30 us and up to 7 more.
fn wake_up_time(nth: u64) -> Nanos {
    Nanos::from_micros(30 + nth * 5 % 8)
}

/// A program has bytes of a title in memory copied, each at a moment 2 ms ahead, and sleeps
/// meanwhile. Returns the time for which the core was awake, and how many moments were missed by
/// more than 2 us.
fn read_at_moments(fixture: &mut Fixture, program: &mut Program, reads: u64) -> (Nanos, usize) {
    let turn_time = Nanos::from_micros(1);
    let (mut awake, mut missed) = (Nanos(0), 0);
    for nth in 0..reads {
        let when = fixture.now + Nanos::from_millis(2);
        let (operation, offset) = (Operation::Read, Bytes(nth % 1000));
        let request = Request { token: nth, operation, handle: 0, offset, len: 3000, at: 0, when };
        assert_eq!(program.requests.push(&request.encode()), Ok(true));
        program.own_mark.set();
        // Its doorbell wakes the core.
        assert!(program.server_mark.must_ring(), "the server sleeps");
        let mut is_answered = false;
        loop {
            let next = fixture.turn();
            (fixture.now, awake) = (fixture.now + turn_time, awake + turn_time);
            while let Some(answer) = answer(program) {
                missed += usize::from(answer.at > when + Nanos::from_micros(2));
                is_answered = true;
            }
            match next.filter(|&next| !is_answered || next <= fixture.now) {
                Some(next) if next > fixture.now => fixture.now = next + wake_up_time(nth),
                Some(_) => {}
                None => break,
            }
        }
    }
    (awake, missed)
}

/// The core is awake from shortly before each moment to its end: not after the request, which says
/// that nothing is urgent, and not for a program that sleeps when it gets its bytes. How long
/// before is learned from its processor.
#[test]
fn a_read_at_a_moment_has_its_core_awake_only_shortly_before() {
    let mut fixture = Fixture::new();
    let mut program = fixture.attach(0);
    fixture.open(program.id, 0);
    fixture.map(program.id, 0);
    fixture.turn();
    read_at_moments(&mut fixture, &mut program, 1_000);
    let (awake, missed) = read_at_moments(&mut fixture, &mut program, 1_000);
    let each = awake.0 / 1_000;
    // The spread of the wake-up, the margin, and a few turns; it was 100 us.
    assert!(each < 30_000, "{each} ns awake for each read");
    assert!(missed <= 50, "{missed} of 1,000 moments were missed");
}

/// A program that is awake when it gets its bytes may follow at once: that needs no doorbell.
#[test]
fn a_program_that_is_awake_at_its_moment_follows_without_a_ring() {
    let mut fixture = Fixture::new();
    let mut program = fixture.attach(0);
    fixture.open(program.id, 0);
    fixture.map(program.id, 0);
    fixture.turn();
    submit(&mut program, 1, 0, 3);
    assert!(program.server_mark.must_ring(), "the server sleeps");
    let moment = fixture.now + Nanos::from_millis(3);
    while answer(&mut program).is_none() {
        let next = fixture.turn().expect("it waits for the moment");
        fixture.now = next.max(fixture.now + Nanos::from_micros(1));
        assert!(fixture.now <= moment + Nanos::from_micros(1));
    }
    submit(&mut program, 2, 0, 8);
    assert!(!program.server_mark.must_ring(), "the server is awake");
}

/// A turn of another cause takes a request between its push and the look at the mark: the mark is
/// gone when the server sleeps already, and the next request must ring all the same.
#[test]
fn the_mark_is_set_again_after_a_ring_that_came_late() {
    let mut fixture = Fixture::new();
    let mut program = fixture.attach(0);
    fixture.open(program.id, 0);
    fixture.map(program.id, 0);
    fixture.turn();
    submit(&mut program, 1, 0, 20);
    fixture.turn();
    assert!(fixture.turn() > Some(fixture.now), "it sleeps until shortly before the moment");
    assert!(program.server_mark.must_ring(), "the mark says so");
    // The turn that the doorbell wakes finds no request.
    fixture.turn();
    submit(&mut program, 2, 0, 30);
    assert!(program.server_mark.must_ring(), "the next one rings as well");
}
