//! The write path against the engine's end of its rings, and against a running engine.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tactus_core::ports::DiskFault;
use tactus_core::units::{Bytes, KIB, MIB};
use tactus_notation::Auto;
use tactus_ring::arena::{HeapRegion, arena};
use tactus_ring::spsc::ring;

use super::*;
use crate::engine::{self, Engine};
use crate::settings::{EngineSettings, Sendfile, Volume};

const PLACE: usize = 64 * KIB as usize;

/// A write path, with the other ends of its rings under the control of the test.
struct ByHand {
    write_path: WritePath,
    requests: Consumer<WriteRequest>,
    answers: Producer<WriteAnswer>,
    given: Consumer<WriteAnswer>,
}

impl ByHand {
    fn new(places: usize) -> Self {
        Self::waking(places, vec![])
    }

    fn waking(places: usize, wakers: Vec<tactus_sys::waker::Waker>) -> Self {
        let (keeper, view) = arena(Box::new(HeapRegion::new(places * PLACE)), PLACE as u32);
        let slots = places + SYNCS_MAX as usize;
        let (ask, requests) = ring(slots);
        let (answers, given) = ring(slots);
        let write_path = WritePath::new(WriteShare { keeper, view }, ask, Wakers(wakers));
        Self { write_path, requests, answers, given }
    }

    fn next(&mut self) -> WriteRequest {
        self.requests.pop().expect("something was asked for")
    }

    fn answer(&mut self, token: u32, result: Result<(), DiskFault>) {
        assert!(self.answers.push(WriteAnswer::Written { token, result }).is_ok());
        self.write_path.handle_answers(&mut self.given);
    }
}

fn token_of(request: WriteRequest) -> u32 {
    match request {
        WriteRequest::Write { token, .. } | WriteRequest::Sync { token, .. } => token,
    }
}

fn file() -> Arc<OwnedFd> {
    Arc::new(tempfile::tempfile().unwrap().into())
}

fn extent(file: &Arc<OwnedFd>) -> Extent {
    Extent { file: Arc::clone(file), offset: Bytes(0), len: 4096 }
}

fn is_ready<T>(pending: &mut Pending<T>) -> bool {
    pending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn now<T>(mut pending: Pending<T>) -> T {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn who_waits_first_for_a_place_gets_the_first_that_is_free() {
    let by_hand = ByHand::new(1);
    let held = now(by_hand.write_path.place());
    let mut waiting: Vec<_> = (0..3).map(|_| by_hand.write_path.place()).collect();
    for one in &mut waiting {
        assert!(!is_ready(one));
    }
    assert_eq!(by_hand.write_path.levels().waiting, 3);
    // It stops waiting, and its turn passes on.
    drop(waiting.remove(1));
    drop(held);
    let mut last = waiting.pop().unwrap();
    assert!(!is_ready(&mut last), "another came before");
    let first = now(waiting.pop().unwrap());
    assert!(!is_ready(&mut last));
    drop(first);
    let mut place = now(last);
    assert_eq!(place.memory().len(), PLACE);
    let levels = by_hand.write_path.levels();
    assert_eq!((levels.places, levels.places_used, levels.waiting), (1, 1, 0));
}

#[test]
fn a_core_that_a_group_of_flushes_wakes_finds_all_of_it() {
    let (waker, mut sleeper) = tactus_sys::waker::waker().unwrap();
    let ByHand { write_path, mut requests, mut answers, mut given } =
        ByHand::waking(1, vec![waker]);
    let files = [(); 3].map(|()| file());
    let (woken, seen) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..100 {
                sleeper.wait_until(None);
                let found = std::iter::from_fn(|| requests.pop());
                woken.send(found.map(token_of).collect::<Vec<_>>()).unwrap();
            }
        });
        for _ in 0..100 {
            let mut group = write_path.sync_all(&files);
            let tokens = seen.recv().unwrap();
            assert_eq!(tokens.len(), 3, "one group");
            for token in tokens {
                assert!(answers.push(WriteAnswer::Synced { token, result: Ok(()) }).is_ok());
            }
            write_path.handle_answers(&mut given);
            assert!(group.iter_mut().all(is_ready));
        }
    });
}

#[test]
fn a_place_that_is_not_written_goes_back() {
    let mut by_hand = ByHand::new(2);
    for _ in 0..10 {
        drop(now(by_hand.write_path.place()));
    }
    assert!(by_hand.requests.pop().is_none());
    assert_eq!(by_hand.write_path.levels().places_used, 0);
}

#[test]
fn a_file_and_its_place_stay_until_the_answer_though_nobody_waits() {
    let mut by_hand = ByHand::new(1);
    let file = file();
    let begun = now(by_hand.write_path.place()).write(extent(&file));
    let sync = by_hand.write_path.sync(&file, Flush::All);
    drop((begun, sync));
    assert_eq!(Arc::strong_count(&file), 3, "the write's and the flush's");
    assert!(!is_ready(&mut by_hand.write_path.place()), "the device may still read it");
    let (write, sync) = (token_of(by_hand.next()), token_of(by_hand.next()));
    by_hand.answer(write, Ok(()));
    assert_eq!(by_hand.write_path.levels().places_used, 0);
    by_hand.answer(sync, Ok(()));
    assert_eq!(Arc::strong_count(&file), 1);
    assert_eq!(by_hand.write_path.levels().syncs, 0);
    drop(now(by_hand.write_path.place()));
}

#[test]
fn each_gets_the_answer_to_what_it_has_asked() {
    let mut by_hand = ByHand::new(3);
    let file = file();
    let mut begun: Vec<_> =
        (0..3).map(|_| now(by_hand.write_path.place()).write(extent(&file))).collect();
    let tokens: Vec<_> = (0..3).map(|_| token_of(by_hand.next())).collect();
    by_hand.answer(tokens[2], Err(DiskFault(28)));
    by_hand.answer(tokens[0], Ok(()));
    assert!(!is_ready(&mut begun[1]));
    let failed = now(begun.pop().unwrap()).unwrap_err();
    assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
    by_hand.answer(tokens[1], Ok(()));
    assert!(begun.into_iter().all(|begun| now(begun).is_ok()));
}

#[tokio::test]
async fn a_flush_that_finds_no_room_waits_and_goes_on_by_itself() {
    let mut by_hand = ByHand::new(1);
    let file = file();
    let begun: Vec<_> =
        (0..=SYNCS_MAX).map(|_| by_hand.write_path.sync(&file, Flush::All)).collect();
    tokio::task::yield_now().await;
    drop(begun);
    let mut answered = 0;
    while let Some(request) = by_hand.requests.pop() {
        by_hand.answer(token_of(request), Ok(()));
        answered += 1;
        // Lets the waiting task run.
        tokio::task::yield_now().await;
    }
    assert_eq!(answered, SYNCS_MAX + 1);
    assert_eq!(Arc::strong_count(&file), 1);
}

#[test]
fn after_the_engine_whoever_waits_is_told() {
    let by_hand = ByHand::new(2);
    let file = file();
    let before = now(by_hand.write_path.place()).write(extent(&file));
    by_hand.write_path.close();
    assert!(now(before).is_err());
    assert!(now(now(by_hand.write_path.place()).write(extent(&file))).is_err());
    assert!(now(by_hand.write_path.sync(&file, Flush::Data)).is_err());
    assert_eq!(Arc::strong_count(&file), 1);
}

#[test]
fn a_recording_s_places_are_its_own_and_its_writes_have_deadlines() {
    let mut by_hand = ByHand::new(4);
    let file = file();
    let promise: Arc<dyn std::any::Any + Send + Sync> = Arc::new(());
    let what = Reserve { places: 2, within: Nanos::from_millis(700), promise: promise.clone() };
    let own = now(by_hand.write_path.reserve(what));
    // Uploads have the other two, and wait for a third.
    let uploads: Vec<_> = (0..2).map(|_| now(by_hand.write_path.place())).collect();
    assert!(!is_ready(&mut by_hand.write_path.place()));
    let before = clock::now();
    let begun = [now(own.place()), now(own.place())].map(|place| place.write(extent(&file)));
    assert!(!is_ready(&mut own.place()), "no more than were promised");
    assert!(own.place_now().is_none());
    let tokens = [by_hand.next(), by_hand.next()].map(|request| {
        let WriteRequest::Write { token, class: WriteClass::Paced { deadline }, .. } = request
        else {
            panic!("{request:?} has no deadline")
        };
        assert!(deadline >= before + Nanos::from_millis(700));
        token
    });
    by_hand.answer(tokens[0], Ok(()));
    drop(own.place_now().expect("one is back"));
    assert!(!is_ready(&mut by_hand.write_path.place()), "and stays its own");
    // The recording ends; its reservation lasts until its last write.
    drop(own);
    assert_eq!(Arc::strong_count(&promise), 2);
    by_hand.answer(tokens[1], Ok(()));
    assert_eq!(Arc::strong_count(&promise), 1);
    drop((begun, uploads));
    assert_eq!(by_hand.write_path.levels().places_used, 0);
}

#[test]
fn who_reserves_places_does_not_keep_the_others_from_those_that_become_free() {
    let by_hand = ByHand::new(3);
    let mut held: Vec<_> = (0..3).map(|_| now(by_hand.write_path.place())).collect();
    let what = Reserve { places: 2, within: Nanos(1), promise: Arc::new(()) };
    let mut reserving = by_hand.write_path.reserve(what);
    assert!(!is_ready(&mut reserving));
    let mut journal = by_hand.write_path.place();
    assert!(!is_ready(&mut journal));
    drop(held.pop());
    assert!(!is_ready(&mut reserving), "one of two");
    drop(held.pop());
    assert!(is_ready(&mut journal), "the next one is the other's");
    drop(held.pop());
    assert!(is_ready(&mut reserving));
}

/// A running engine with a volume that takes uploads.
fn engine_with(sendfile: Sendfile) -> (Engine, tempfile::TempDir) {
    // Beside the program: the directory for temporary files may lack direct I/O.
    let program = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let volumes = vec![Volume::new(dir.path().into())];
    let mut settings = EngineSettings { volumes, ..EngineSettings::default() };
    settings.memory.arena = Auto::Set(Bytes(32 * MIB));
    let volume = &mut settings.volumes[0];
    (volume.uploads, volume.write_share, volume.sendfile) = (true, Bytes(8 * MIB), sendfile);
    (engine::start(&settings).unwrap(), dir)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_and_flushed_through_the_engine_is_in_the_file() {
    for sendfile in [Sendfile::Off, Sendfile::On] {
        let (engine, dir) = engine_with(sendfile);
        let write_path = engine.write_paths[0].clone().expect("the volume takes uploads");
        let path = dir.path().join("title");
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let open = File::options().write(true).create(true).custom_flags(direct).open(&path);
        let file: Arc<OwnedFd> = Arc::new(open.unwrap().into());
        let size = write_path.slot_size();
        let word = |at: usize| (at.wrapping_mul(0x9E37_79B9) >> 7) as u8;
        let mut begun = vec![];
        // Twice the size of the share.
        let count = 2 * write_path.levels().places as usize;
        for number in 0..count {
            let mut place = write_path.place().await;
            for (at, byte) in place.memory().iter_mut().enumerate() {
                *byte = word(number * size + at);
            }
            let offset = Bytes((number * size) as u64);
            begun.push(place.write(Extent { file: Arc::clone(&file), offset, len: size }));
        }
        for write in begun {
            write.await.unwrap();
        }
        let directory: Arc<OwnedFd> = Arc::new(File::open(dir.path()).unwrap().into());
        let (first, second) =
            (write_path.sync(&file, Flush::Data), write_path.sync(&directory, Flush::All));
        first.await.unwrap();
        second.await.unwrap();
        let there = std::fs::read(&path).unwrap();
        assert_eq!(there.len(), count * size);
        assert!(there.iter().enumerate().all(|(at, byte)| *byte == word(at)));
        let disk = &engine.counters.disks[0];
        assert_eq!(disk.written_bytes.value(), (count * size) as u64);
        assert_eq!((disk.syncs.value(), disk.sync_faults.value()), (2, 0));
        drop(engine);
        let gone = write_path.sync(&file, Flush::All);
        let ended = tokio::time::timeout(Duration::from_secs(5), gone).await;
        assert!(ended.expect("nobody waits for an engine that has ended").is_err());
    }
}
