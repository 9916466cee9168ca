//! Seeks on a full server: viewers open, close and seek in any order, beside an engine that takes
//! its time.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use proptest::prelude::*;
use tactus_engine::message;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::{Instant, advance};

use super::*;
use crate::settings::ClientShare;

/// Streams that fit.
const ROOM: u32 = 3;
const TICK: Duration = Duration::from_millis(1);

/// A stream in the simulated engine.
struct Live {
    stream: StreamId,
    has_rate: bool,
    is_open: Rc<Cell<bool>>,
    /// Milliseconds until it has finished and until it has retired, when its end has begun.
    ends: Option<(u32, u32, Outcome)>,
}

/// A viewer's connection; dropping it closes it.
struct Client {
    _socket: UnixStream,
    is_open: Rc<Cell<bool>>,
    /// Whether it has the slower pace.
    is_slowed: bool,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.is_open.set(false);
    }
}

struct World {
    fixture: Fixture,
    live: Vec<Live>,
    by_socket: HashMap<i32, Rc<Cell<bool>>>,
    /// How long ends take in milliseconds, in turn.
    delays: Vec<u32>,
    turn: usize,
    /// Viewers that are inside may have a pace without a rate.
    has_slower: bool,
}

/// The progress of a request.
struct PendingRequest {
    client: Client,
    /// Fires when its head is sent before it is admitted.
    announced: oneshot::Receiver<()>,
    /// The number of its pace.
    admitted: oneshot::Receiver<Result<usize, Resource>>,
}

fn viewer(agent: &str, session: Option<&str>) -> Viewer {
    Viewer {
        party: Party::of([10, 0, 0, 1].into()),
        device: Some(Device::of(agent.as_bytes(), session.map(str::as_bytes))),
        client: "10.0.0.1".into(),
        share: ClientShare::All,
    }
}

async fn play(
    (broker, title): (Broker, Arc<OpenTitle>),
    (viewer, overlap, has_slower): (Viewer, Overlap, bool),
    socket: OwnedFd,
    (announced, admitted): (oneshot::Sender<()>, oneshot::Sender<Result<usize, Resource>>),
) {
    let spec = |rate| {
        let spec = DeliverySpec::connection(&broker, &title, rate, LEN);
        spec.of_any_title().within_share(&viewer)
    };
    let slower = has_slower && broker.has_been_inside(&viewer);
    let slower = slower.then(|| spec(None).for_successors());
    let specs: Vec<_> = [spec(RATE)].into_iter().chain(slower).collect();
    let grant = match broker.admit_or_succeed(&specs, overlap) {
        Ok(Admission::Granted(nth, grant)) => Ok((nth, grant)),
        Ok(Admission::Waits(succession)) => {
            if succession.is_open() && overlap == Overlap::Likely {
                announced.send(()).ok();
            }
            succession.admit(&broker, &specs).await
        }
        Err(refusal) => Err(refusal),
    };
    let (nth, mut grant) = match grant {
        Ok(grant) => grant,
        Err(refusal) => {
            admitted.send(Err(refusal.resource)).ok();
            return;
        }
    };
    let running = grant.start_now(&title, Source::range(0..LEN.0), Output::connection(socket));
    admitted.send(Ok(nth)).ok();
    running.expect("it starts").ended().await;
}

impl World {
    fn new(delays: Vec<u32>) -> Self {
        let fixture = Fixture::new(ROOM);
        let (live, by_socket) = (vec![], HashMap::new());
        Self { fixture, live, by_socket, delays, turn: 0, has_slower: false }
    }

    fn delay(&mut self) -> u32 {
        self.turn += 1;
        self.delays[self.turn % self.delays.len()]
    }

    fn ask(&mut self, viewer: Viewer, overlap: Overlap) -> PendingRequest {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let is_open = Rc::new(Cell::new(true));
        self.by_socket.insert(theirs.as_raw_fd(), Rc::clone(&is_open));
        let (announces, announced) = oneshot::channel();
        let (admits, admitted) = oneshot::channel();
        let served = (self.fixture.broker.clone(), Arc::clone(&self.fixture.title));
        let request = (viewer, overlap, self.has_slower);
        tokio::spawn(play(served, request, theirs.into(), (announces, admits)));
        let client = Client { _socket: ours, is_open, is_slowed: false };
        PendingRequest { client, announced, admitted }
    }

    /// A millisecond of the engine and of all requests.
    async fn step(&mut self) {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        while let Some(command) = self.fixture.commands.pop() {
            match command {
                Command::Start(start) => {
                    let message::Output::Connection(output) = start.delivery.output() else {
                        panic!("connections only");
                    };
                    let message::ConnectionEnd::Socket(socket) = output.end else {
                        panic!("sockets only");
                    };
                    let is_open = Rc::clone(&self.by_socket[&socket.0]);
                    let stream = start.stream;
                    let slots = &self.fixture.broker.shared.table().slots;
                    let has_rate = slots[stream.index as usize].without_rate.is_none();
                    self.live.push(Live { stream, has_rate, is_open, ends: None });
                }
                Command::Stop(stream) => {
                    let at = self.live.iter().position(|live| live.stream == stream);
                    let Some(at) = at else { continue };
                    assert!(!self.live[at].is_open.get(), "a viewer that is served was robbed");
                    let ends = (self.delay() + 1, self.delay(), Outcome::Stopped);
                    self.live[at].ends.get_or_insert(ends);
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        let rated = self.live.iter().filter(|live| live.has_rate).count();
        assert!(rated <= ROOM as usize, "more streams than the link holds");
        let mut reports = vec![];
        for at in 0..self.live.len() {
            if self.live[at].ends.is_none() && !self.live[at].is_open.get() {
                // The engine notices at a later send.
                let ends = (self.delay() + 1, self.delay(), Outcome::PeerGone(104));
                self.live[at].ends = Some(ends);
            }
            let stream = self.live[at].stream;
            match &mut self.live[at].ends {
                Some((0, 0, _)) => {
                    reports.push(Report::Retired { stream, memory: ReturnedMemory::default() });
                }
                Some((0, retires, _)) => *retires -= 1,
                Some((finishes, retires, outcome)) => {
                    *finishes -= 1;
                    if *finishes == 0 {
                        let (outcome, sent) = (*outcome, Bytes(1));
                        reports.push(Report::Finished { stream, outcome, sent });
                        if *retires == 0 {
                            // In one turn, before the request's task runs.
                            let memory = ReturnedMemory::default();
                            reports.push(Report::Retired { stream, memory });
                        }
                    }
                }
                None => {}
            }
        }
        for report in reports {
            if let Report::Retired { stream, .. } = &report {
                self.live.retain(|live| live.stream != *stream);
            }
            self.fixture.report(report);
        }
        advance(TICK).await;
    }

    /// Waits for the end of a request. An earlier connection is closed when the head has come.
    async fn outcome(
        &mut self,
        mut asked: PendingRequest,
        mut before: Option<Client>,
    ) -> Result<Client, Resource> {
        for _ in 0..5000 {
            self.step().await;
            if asked.announced.try_recv().is_ok() {
                before = None;
            }
            if let Ok(admitted) = asked.admitted.try_recv() {
                return admitted.map(|nth| {
                    asked.client.is_slowed = nth > 0;
                    asked.client
                });
            }
        }
        drop(before);
        panic!("a request without an end");
    }
}

fn run(work: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(work);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Begin,
    SeekOpenFirst,
    SeekCloseFirst,
    Leave,
    Wait(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        Just(Act::Begin),
        Just(Act::SeekOpenFirst),
        Just(Act::SeekCloseFirst),
        Just(Act::Leave),
        any::<u8>().prop_map(Act::Wait),
    ]
}

/// The player of each viewer: the last two are behind one address with the same player.
const AGENTS: [&str; 5] = ["mpv", "vlc", "kodi", "same", "same"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A viewer that is inside is never refused, whatever others do; no more streams run than there
    /// is room for; no stream ends whose client has not closed it; and all rooms come back.
    #[test]
    fn r05_who_is_inside_can_seek_and_has_one_room_and_nobody_is_robbed(
        acts in proptest::collection::vec((0..AGENTS.len(), act()), 1..60),
        delays in proptest::collection::vec(prop_oneof![Just(0u32), 0u32..80], 1..20),
        has_slower in any::<bool>(),
    ) {
        run(async move {
            let mut world = World { has_slower, ..World::new(delays) };
            let mut inside: Vec<Option<Client>> = AGENTS.iter().map(|_| None).collect();
            for (who, act) in acts {
                let is_new = inside[who].is_none();
                // A newcomer with the player of a neighbour that has just closed cannot be told
                // from it.
                let is_ambiguous = who >= 3 && is_new;
                let viewer = viewer(AGENTS[who], None);
                match act {
                    Act::Begin if is_new && !is_ambiguous => {
                        let asked = world.ask(viewer, Overlap::Unlikely);
                        inside[who] = world.outcome(asked, None).await.ok();
                    }
                    Act::Begin if is_new => {
                        for _ in 0..2500 {
                            world.step().await;
                        }
                        let asked = world.ask(viewer, Overlap::Unlikely);
                        inside[who] = world.outcome(asked, None).await.ok();
                    }
                    Act::SeekOpenFirst if !is_new => {
                        let before = inside[who].take();
                        let asked = world.ask(viewer, Overlap::Likely);
                        let after = world.outcome(asked, before).await;
                        inside[who] = Some(after.expect("who is inside can seek"));
                    }
                    Act::SeekCloseFirst if !is_new => {
                        inside[who] = None;
                        let asked = world.ask(viewer, Overlap::Unlikely);
                        let after = world.outcome(asked, None).await;
                        inside[who] = Some(after.expect("who is inside can seek"));
                    }
                    Act::Leave => inside[who] = None,
                    Act::Wait(steps) => {
                        for _ in 0..steps {
                            world.step().await;
                        }
                    }
                    _ => {}
                }
                // One without a rate has no room.
                let held = inside.iter().flatten().filter(|client| !client.is_slowed).count();
                assert!(held <= ROOM as usize, "{held} viewers in {ROOM} rooms");
            }
            inside.clear();
            for _ in 0..3000 {
                world.step().await;
            }
            assert_eq!(world.fixture.broker.streams(), 0);
            assert_eq!(world.fixture.used(Resource::Link), 0);
        });
    }
}

/// Three viewers that nothing tells apart fill the server.
async fn full(world: &mut World, session: Option<&str>) -> Vec<Client> {
    let mut inside = vec![];
    for _ in 0..ROOM {
        let asked = world.ask(viewer("mpv", session), Overlap::Unlikely);
        inside.push(world.outcome(asked, None).await.expect("room"));
    }
    inside
}

#[test]
fn r05_a_neighbour_with_the_same_player_gets_no_room_of_a_viewer_that_stays() {
    run(async {
        let mut world = World::new(vec![5]);
        let inside = full(&mut world, None).await;
        for overlap in [Overlap::Likely, Overlap::Unlikely] {
            let asked = world.ask(viewer("mpv", None), overlap);
            // The viewers inside keep their connections, whatever the neighbour is sent.
            let refused = world.outcome(asked, None).await.err();
            assert_eq!(refused, Some(Resource::Link));
        }
        assert!(world.live.len() == 3 && inside.iter().all(|client| client.is_open.get()));
        assert_eq!(world.fixture.broker.refusals().of(Resource::Link), 2);
    });
}

#[test]
fn r05_the_room_of_a_viewer_that_has_closed_is_kept_for_it_and_then_free() {
    run(async {
        let mut world = World::new(vec![5]);
        let mut inside = full(&mut world, None).await;
        inside.pop();
        let mut others = vec![];
        for _ in 0..2 {
            let asked = world.ask(viewer("vlc", None), Overlap::Likely);
            others.push(world.outcome(asked, None).await.is_ok());
            for _ in 0..900 {
                world.step().await;
            }
        }
        assert_eq!(others, [false, false], "it is kept for two seconds");
        for _ in 0..1500 {
            world.step().await;
        }
        let asked = world.ask(viewer("vlc", None), Overlap::Likely);
        assert!(world.outcome(asked, None).await.is_ok());
        assert_eq!(world.live.len(), 3);
    });
}

#[test]
fn r05_a_viewer_that_has_all_bytes_of_a_range_keeps_its_room() {
    run(async {
        let mut world = World::new(vec![5]);
        let _others = full(&mut world, None).await.split_off(1);
        for _ in 0..2500 {
            world.step().await;
        }
        let asked = world.ask(viewer("kodi", None), Overlap::Likely);
        let own = world.outcome(asked, None).await.expect("room");
        world.live.last_mut().expect("it runs").ends = Some((1, 1, Outcome::Complete));
        for _ in 0..20 {
            world.step().await;
        }
        let asked = world.ask(viewer("vlc", None), Overlap::Unlikely);
        assert_eq!(world.outcome(asked, None).await.err(), Some(Resource::Link), "a newcomer");
        let asked = world.ask(viewer("kodi", None), Overlap::Likely);
        assert!(world.outcome(asked, None).await.is_ok());
        world.step().await;
        assert_eq!(world.live.len(), 3);
        drop(own);
    });
}

#[test]
fn r05_a_player_that_has_paused_for_long_finds_its_room() {
    run(async {
        let mut world = World::new(vec![5]);
        let _others = full(&mut world, None).await.split_off(1);
        for _ in 0..2500 {
            world.step().await;
        }
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        let _own = world.outcome(asked, None).await.expect("room");
        world.live.last_mut().expect("it runs").ends = Some((1, 1, Outcome::TooSlow));
        for _ in 0..20 {
            world.step().await;
        }
        let asked = world.ask(viewer("vlc", None), Overlap::Unlikely);
        assert_eq!(world.outcome(asked, None).await.err(), Some(Resource::Link), "a newcomer");
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        assert!(world.outcome(asked, None).await.is_ok());
    });
}

#[test]
fn r05_a_seek_that_follows_a_given_up_one_gets_its_room() {
    run(async {
        let mut world = World::new(vec![40]);
        let _others = full(&mut world, None).await.split_off(1);
        for _ in 0..2500 {
            world.step().await;
        }
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        let own = world.outcome(asked, None).await.expect("room");
        // The second of three requests gets the room, which no client wants any more.
        let mut second = world.ask(viewer("chromium", None), Overlap::Likely);
        world.step().await;
        assert_eq!(second.announced.try_recv(), Ok(()));
        drop(own);
        for _ in 0..10 {
            world.step().await;
        }
        assert!(second.admitted.try_recv().is_err(), "the engine takes its time");
        drop(second.client);
        let third = world.ask(viewer("chromium", None), Overlap::Likely);
        assert!(world.outcome(third, None).await.is_ok());
        world.step().await;
        assert_eq!(world.live.len(), 3);
    });
}

/// A viewer among others on a full server, whose room is kept.
fn vacated(fixture: &Fixture, spec: &DeliverySpec<'_>) {
    leave(fixture, fixture.broker.admit(spec).expect("there is room for one"));
}

fn leave(fixture: &Fixture, grant: Grant) {
    fixture.broker.shared.table().slots[grant.slot as usize].is_left = true;
    drop(grant);
}

#[test]
fn r05_a_room_that_is_kept_is_no_second_viewer() {
    let mut fixture = Fixture::new(ROOM);
    let viewers = ["mpv", "vlc"].map(|agent| viewer(agent, None));
    let admit = |fixture: &Fixture, viewer| {
        let spec = DeliverySpec::connection(&fixture.broker, &fixture.title, RATE, LEN);
        fixture.broker.admit(&spec.within_share(viewer)).expect("room")
    };
    leave(&fixture, admit(&fixture, &viewers[0]));
    let own = admit(&fixture, &viewers[1]);
    assert_eq!(fixture.commands.pop(), None, "one viewer makes no hot title");
    let seeks = admit(&fixture, &viewers[0]);
    assert!(matches!(fixture.commands.pop(), Some(Command::Pin(_))), "two do");
    drop((own, seeks));
}

#[test]
fn r05_a_look_at_a_title_leaves_the_room_to_the_next_seek() {
    let fixture = Fixture::new(ROOM);
    let viewers = ["mpv", "vlc"].map(|agent| viewer(agent, None));
    let spec = |viewer, rate| {
        DeliverySpec::connection(&fixture.broker, &fixture.title, rate, LEN).within_share(viewer)
    };
    let [own, other] = &viewers;
    let _others: Vec<_> = (0..2).map(|_| fixture.broker.admit(&spec(other, RATE)).ok()).collect();
    vacated(&fixture, &spec(own, RATE));
    let admit =
        |specs: &[DeliverySpec<'_>], overlap| match fixture.broker.admit_or_succeed(specs, overlap)
        {
            Ok(Admission::Granted(nth, grant)) => Some((nth, grant)),
            Ok(Admission::Waits(_)) | Err(_) => None,
        };
    let look = admit(&[spec(own, RATE), spec(own, None)], Overlap::Never);
    assert_eq!(look.expect("it needs no room").0, 1);
    assert!(admit(&[spec(other, RATE)], Overlap::Never).is_none(), "the server is full");
    assert!(admit(&[spec(own, RATE)], Overlap::Likely).is_some());
}

#[test]
fn r05_a_pace_for_successors_is_for_viewers_with_a_room() {
    let fixture = Fixture::new(ROOM);
    let viewers = ["mpv", "vlc"].map(|agent| viewer(agent, None));
    let spec = |viewer, rate| {
        DeliverySpec::connection(&fixture.broker, &fixture.title, rate, LEN)
            .of_any_title()
            .within_share(viewer)
    };
    let Rate { rate, burst, tick } = RATE.expect("it is paced");
    let twice = Some(Rate { rate: BitRate(2 * rate.0), burst, tick });
    let admit = |viewer| {
        let specs = [spec(viewer, twice), spec(viewer, RATE).for_successors()];
        match fixture.broker.admit_or_succeed(&specs, Overlap::Unlikely) {
            Ok(Admission::Granted(nth, grant)) => Some((nth, grant)),
            Ok(Admission::Waits(_)) => panic!("no stream is open"),
            Err(_) => None,
        }
    };
    let [own, other] = &viewers;
    let room: Vec<_> = (0..2).map(|_| fixture.broker.admit(&spec(other, RATE)).ok()).collect();
    assert!(room.iter().all(Option::is_some));
    assert!(admit(own).is_none(), "a newcomer has no pace but those of the content");
    vacated(&fixture, &spec(own, RATE));
    assert_eq!(admit(own).expect("it had a room").0, 1);
}

#[test]
fn r05_a_viewer_that_returns_after_its_room_is_not_refused_and_has_no_second_one() {
    run(async {
        let fixture = Fixture::new(ROOM);
        let viewers = ["chromium", "vlc"].map(|agent| viewer(agent, None));
        let spec = |viewer, rate| {
            DeliverySpec::connection(&fixture.broker, &fixture.title, rate, LEN)
                .of_any_title()
                .within_share(viewer)
        };
        let admit = |viewer| {
            let specs = [spec(viewer, RATE), spec(viewer, None).for_successors()];
            match fixture.broker.admit_or_succeed(&specs, Overlap::Likely) {
                Ok(Admission::Granted(nth, grant)) => Some((nth, grant)),
                Ok(Admission::Waits(_)) => panic!("no stream is open"),
                Err(_) => None,
            }
        };
        let [own, other] = &viewers;
        let fill = |rooms| (0..rooms).map(|_| fixture.broker.admit(&spec(other, RATE)));
        let mut others: Vec<_> = fill(2).map(|grant| grant.expect("room")).collect();
        vacated(&fixture, &spec(own, RATE));
        assert!(fixture.broker.admit(&spec(other, RATE)).is_err(), "the room is kept");
        // It plays what it has, and somebody else gets its room.
        advance(Duration::from_millis(2100)).await;
        others.extend(fill(1).map(|grant| grant.expect("the room is sold")));
        assert!(fixture.broker.has_been_inside(own) && !fixture.broker.is_inside(own));
        let (nth, back) = admit(own).expect("it was inside");
        assert_eq!((nth, fixture.broker.streams()), (1, 4), "without a rate");
        drop(back);
        assert!(admit(own).is_none(), "one return for each room");
        // As long as players keep bytes.
        drop(others.pop());
        vacated(&fixture, &spec(own, RATE));
        advance(Duration::from_millis(2100)).await;
        others.extend(fill(1).map(|grant| grant.expect("the room is sold")));
        advance(Duration::from_secs(300)).await;
        assert!(admit(own).is_none(), "it is a newcomer again");
    });
}

#[test]
fn r05_departures_are_bounded_and_the_oldest_is_forgotten() {
    run(async {
        let fixture = Fixture::new(90);
        let viewers: Vec<_> = (0..1080).map(|nth| viewer(&format!("player {nth}"), None)).collect();
        for some in viewers.chunks(90) {
            for one in some {
                let spec = DeliverySpec::connection(&fixture.broker, &fixture.title, RATE, LEN);
                vacated(&fixture, &spec.of_any_title().within_share(one));
            }
            advance(Duration::from_millis(2100)).await;
        }
        let known =
            |some: &[Viewer]| some.iter().filter(|one| fixture.broker.has_been_inside(one)).count();
        assert_eq!([known(&viewers[..90]), known(&viewers[90..])], [90 - 56, 990]);
    });
}

#[test]
fn r05_a_player_that_names_its_session_succeeds_a_stream_that_it_does_not_close() {
    run(async {
        let mut world = World::new(vec![5]);
        let _others = full(&mut world, None).await.split_off(1);
        for _ in 0..2500 {
            world.step().await;
        }
        let asked = world.ask(viewer("app", Some("6e2f")), Overlap::Likely);
        let stuck = world.outcome(asked, None).await.expect("room");
        // Its program has forgotten the connection.
        stuck.is_open.set(false);
        world.live.last_mut().expect("it runs").ends = Some((u32::MAX, 0, Outcome::Stopped));
        let asked = world.ask(viewer("app", Some("0000")), Overlap::Likely);
        assert!(world.outcome(asked, None).await.is_err(), "another session");
        let asked = world.ask(viewer("app", Some("6e2f")), Overlap::Likely);
        let mut asked = asked;
        for _ in 0..1100 {
            world.step().await;
        }
        let last = world.live.last_mut().expect("it runs");
        last.ends = Some((1, 1, Outcome::Stopped));
        for _ in 0..20 {
            world.step().await;
        }
        assert_eq!(asked.admitted.try_recv(), Ok(Ok(0)));
        drop(stuck);
    });
}

#[test]
fn r05_waits_are_bounded_and_further_requests_are_refused_at_once() {
    run(async {
        let mut world = World::new(vec![5]);
        let _inside = full(&mut world, None).await;
        let mut asked: Vec<_> =
            (0..100).map(|_| world.ask(viewer("mpv", None), Overlap::Likely)).collect();
        world.step().await;
        let refused = asked.iter_mut().filter_map(|one| one.admitted.try_recv().ok()).count();
        assert_eq!(refused, 100 - 64);
        for _ in 0..1200 {
            world.step().await;
        }
        let refused = asked.iter_mut().filter_map(|one| one.admitted.try_recv().ok()).count();
        assert_eq!(refused, 64, "the others a second later");
        assert_eq!(world.live.len(), 3);
    });
}

#[test]
fn r05_a_seek_has_a_longer_burst_while_half_of_the_memory_is_free() {
    let fixture = Fixture::new(100);
    let Rate { rate, tick, .. } = RATE.expect("it is paced");
    let len = Bytes(1 << 30);
    let of_burst = |blocks: u64| {
        let burst = Bytes(blocks * 256 * KIB);
        let rate = Some(Rate { rate, burst, tick });
        DeliverySpec::connection(&fixture.broker, &fixture.title, rate, len).of_any_title()
    };
    let specs = [of_burst(100).with_spare_memory(), of_burst(1)];
    let admit = || match fixture.broker.admit_or_succeed(&specs, Overlap::Likely) {
        Ok(Admission::Granted(nth, grant)) => (nth, grant),
        _ => panic!("it fits"),
    };
    let mut grants: Vec<_> = (0..8).map(|_| admit()).collect();
    // 500 of 1,000 blocks are free until the fifth has more than half of them.
    assert_eq!(grants.iter().map(|&(nth, _)| nth).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1, 1, 1]);
    let used = fixture.used(Resource::Arena);
    assert!((500..600).contains(&used), "{used}");
    // The next seek gets the memory of two that have ended.
    drop(grants.drain(..2));
    assert_eq!(admit().0, 0);
}

#[test]
fn r05_a_seek_waits_for_its_own_room_before_it_has_a_slower_pace() {
    run(async {
        let mut world = World { has_slower: true, ..World::new(vec![30]) };
        let _others = full(&mut world, None).await.split_off(1);
        for _ in 0..2500 {
            world.step().await;
        }
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        let own = world.outcome(asked, None).await.expect("room");
        // A request that it has given up leaves it a room that is too small.
        let small = viewer("chromium", None);
        let spec = DeliverySpec::connection(&world.fixture.broker, &world.fixture.title, None, LEN);
        vacated(&world.fixture, &spec.of_any_title().within_share(&small));
        drop(own);
        let begun = Instant::now();
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        let sought = world.outcome(asked, None).await.expect("room");
        assert!(!sought.is_slowed && begun.elapsed() < Duration::from_millis(100));
        world.step().await;
        assert_eq!(world.live.iter().filter(|live| live.has_rate).count(), 3);
    });
}

#[test]
fn r05_a_seek_whose_own_stream_stays_has_a_slower_pace_after_a_tenth_of_a_second() {
    run(async {
        let mut world = World { has_slower: true, ..World::new(vec![5]) };
        let mut others = full(&mut world, None).await.split_off(1);
        for _ in 0..2500 {
            world.step().await;
        }
        // It has had two rooms, and returns to the second one.
        let mut rooms = vec![];
        others.pop();
        for _ in 0..2500 {
            world.step().await;
        }
        for _ in 0..2 {
            let asked = world.ask(viewer("chromium", None), Overlap::Unlikely);
            rooms.push(world.outcome(asked, None).await.expect("room"));
        }
        rooms.pop();
        for _ in 0..2500 {
            world.step().await;
        }
        let asked = world.ask(viewer("vlc", None), Overlap::Unlikely);
        others.push(world.outcome(asked, None).await.expect("room"));
        let begun = Instant::now();
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        let sought = world.outcome(asked, None).await.expect("it has been inside");
        assert!(sought.is_slowed && begun.elapsed() < Duration::from_millis(150));
        // Each noted room is for one return. With one that stays, it gets no second one.
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        assert_eq!(world.outcome(asked, None).await.err(), Some(Resource::Link));
        assert_eq!(world.live.iter().filter(|live| live.has_rate).count(), 3);
    });
}

#[test]
fn r05_the_room_of_a_stream_that_ends_too_late_for_a_seek_stays_its_viewers() {
    run(async {
        let mut world = World { has_slower: true, ..World::new(vec![150]) };
        let _others = full(&mut world, None).await.split_off(1);
        for _ in 0..2500 {
            world.step().await;
        }
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        let own = world.outcome(asked, None).await.expect("room");
        let small = viewer("chromium", None);
        let spec = DeliverySpec::connection(&world.fixture.broker, &world.fixture.title, None, LEN);
        vacated(&world.fixture, &spec.of_any_title().within_share(&small));
        drop(own);
        let asked = world.ask(viewer("chromium", None), Overlap::Likely);
        let sought = world.outcome(asked, None).await.expect("a slower pace");
        assert!(sought.is_slowed);
        assert_eq!(world.fixture.broker.newest_room(&small), None, "it has not retired");
        for _ in 0..400 {
            world.step().await;
        }
        let asked = world.ask(viewer("vlc", None), Overlap::Likely);
        assert_eq!(world.outcome(asked, None).await.err(), Some(Resource::Link), "a newcomer");
        assert!(world.fixture.broker.newest_room(&small).is_some());
        let rest = DeliverySpec::connection(&world.fixture.broker, &world.fixture.title, RATE, LEN);
        let rest = rest.of_any_title().within_share(&small);
        assert!(world.fixture.broker.admit_by_free_room(&rest).is_err());
        assert!(world.fixture.broker.admit_again(&rest).is_ok(), "the stream with the slower pace");
    });
}

#[test]
fn r05_a_refused_request_leaves_all_rooms_that_are_kept_as_they_are() {
    run(async {
        let fixture = Fixture::new(ROOM);
        let [own, other] = ["mpv", "vlc"].map(|agent| viewer(agent, None));
        let spec = |viewer, rate| {
            DeliverySpec::connection(&fixture.broker, &fixture.title, rate, LEN)
                .of_any_title()
                .within_share(viewer)
        };
        let Rate { rate, burst, tick } = RATE.expect("it is paced");
        let of = |factor| Some(Rate { rate: BitRate(factor * rate.0), burst, tick });
        let _other = fixture.broker.admit(&spec(&other, RATE)).expect("room");
        let rooms = [None, RATE].map(|rate| fixture.broker.admit(&spec(&own, rate)).expect("room"));
        rooms.into_iter().for_each(|room| leave(&fixture, room));
        let before = fixture.broker.levels();
        assert!(fixture.broker.admit(&spec(&own, of(3))).is_err(), "more than there is");
        assert_eq!(fixture.broker.levels(), before);
        assert_eq!(fixture.broker.streams(), 3);
        // Until the same time.
        advance(Duration::from_millis(1500)).await;
        assert!(fixture.broker.admit(&spec(&own, of(3))).is_err());
        let two = fixture.broker.admit(&spec(&other, RATE)).expect("the third of three");
        let seeks = fixture.broker.admit(&spec(&own, RATE)).expect("in the second of its rooms");
        drop((two, seeks));
        vacated(&fixture, &spec(&own, RATE));
        assert!(fixture.broker.admit(&spec(&own, of(3))).is_err());
        advance(Duration::from_millis(2100)).await;
        assert_eq!(fixture.broker.streams(), 1);
        let all = fixture.broker.levels();
        assert!(all.iter().all(|level| level.resource != Resource::Link || level.used == rate.0));
    });
}

#[test]
fn r05_a_longer_burst_does_not_cost_a_viewer_of_a_title_in_memory_its_envelope() {
    let mut fixture = Fixture::new(100);
    let file = std::fs::File::create(fixture.dir.path().join("b.ts")).expect("a title");
    file.set_len(64 << 20).expect("it is sparse");
    let title = open_title(fixture.dir.path(), "/b.ts");
    let Rate { rate, tick, .. } = RATE.expect("it is paced");
    // A minute at the rate, and one at a tenth of it.
    let line = [(0, 0), (7_500_000, 60), (8_250_000, 120)];
    let line = line.map(|(bytes, at)| (Bytes(bytes), MediaTime(at * 27_000_000)));
    let line = Polyline::through(&line).expect("a line");
    let of_burst = |broker: &Broker, blocks: u64| {
        let rate = Some(Rate { rate, burst: Bytes(blocks * 256 * KIB), tick });
        DeliverySpec::connection(broker, &title, rate, line.len()).by_line(broker, &line)
    };
    let admit = |broker: &Broker| {
        let specs = [of_burst(broker, 12).with_spare_memory(), of_burst(broker, 1)];
        match broker.admit_or_succeed(&specs, Overlap::Likely) {
            Ok(Admission::Granted(nth, grant)) => (nth, grant),
            _ => panic!("it fits"),
        }
    };
    let broker = fixture.broker.clone();
    let viewers = [admit(&broker), admit(&broker)];
    let Some(Command::Pin(pin)) = fixture.commands.pop() else { panic!("nothing is pinned") };
    assert_eq!(viewers.each_ref().map(|(nth, _)| *nth), [0, 0], "while it is read");
    fixture.report(Report::Pinned { stream: pin.stream });
    assert_eq!(admit(&broker).0, 1);
}
