//! Sessions, row by row, and against a model.

use super::*;
use crate::rtsp::Version;
use crate::rtsp::transport::offers;
use alloc::string::ToString;
use alloc::vec;
use proptest::prelude::*;

const URI: &str = "rtsp://host/a.ts";
/// More sessions than one address may have waiting, fewer than two may.
const MAX: usize = 40;
const OTHER: [&str; 2] =
    ["RTP/AVP;unicast;client_port=5000-5001", "RTP/AVP;unicast;client_port=6000-6001"];

fn offer(nth: usize) -> Offer {
    offers(Version::One, OTHER[nth])[0]
}

fn caller(connection: u64, principal: Option<&str>) -> Caller<'_> {
    Caller { connection, address: "10.0.0.1".parse().unwrap(), principal }
}

fn after(seconds: u64) -> MonoTime {
    MonoTime(7) + SECOND.times(seconds)
}

fn set_up(sessions: &mut Sessions, now: MonoTime, caller: &Caller<'_>, id: u128) -> String {
    let setup = sessions.handle_setup(now, caller, None, (URI, offer(0)), SessionId(id));
    assert_eq!(setup, Ok(Setup::New));
    SessionId(id).to_string()
}

#[test]
fn s06_each_step_has_its_state() {
    let (mut sessions, one, now) = (Sessions::new(MAX), caller(1, None), after(0));
    assert_eq!(
        sessions.handle_play(now, &one, None),
        Err(SessionRefusal::State),
        "PLAY before SETUP"
    );
    assert_eq!(SessionRefusal::State.status(), Status::NOT_IN_THIS_STATE);
    let name = set_up(&mut sessions, now, &one, 5);
    let named = Some(name.as_str());
    let id = SessionId(5);
    assert_eq!(sessions.handle_pause(now, &one, named), Ok((id, State::Ready)));
    assert_eq!(sessions.handle_play(now, &one, named), Ok((id, State::Ready)));
    assert_eq!(sessions.handle_play(now, &one, named), Ok((id, State::Playing)));
    let mut again =
        |nth, uri| sessions.handle_setup(now, &one, named, (uri, offer(nth)), SessionId(6));
    assert_eq!(again(0, URI), Ok(Setup::Same(id)));
    assert_eq!(again(1, URI), Err(SessionRefusal::State), "another transport");
    assert_eq!(again(0, "rtsp://host/b.ts"), Err(SessionRefusal::State), "another title");
    assert_eq!(sessions.handle_pause(now, &one, named), Ok((id, State::Playing)));
    assert_eq!(sessions.handle_teardown(now, &one, named), Ok(id));
    let unknown = SessionRefusal::Unknown(Status::SESSION_NOT_FOUND);
    assert_eq!(sessions.handle_play(now, &one, named), Err(unknown));
    assert!(sessions.is_empty() && sessions.waiting.is_empty());
}

#[test]
fn s07_a_session_answers_to_its_own() {
    let (mut sessions, now) = (Sessions::new(MAX), after(0));
    let unknown = Err(SessionRefusal::Unknown(Status::SESSION_NOT_FOUND));
    let name = set_up(&mut sessions, now, &caller(1, None), 5);
    let of_anna = set_up(&mut sessions, now, &caller(1, Some("anna")), 6);
    for stranger in [caller(2, None), caller(2, Some("anna")), caller(1, Some("anna"))] {
        assert_eq!(sessions.handle_alive(now, &stranger, Some(&name)), unknown, "{stranger:?}");
    }
    for stranger in
        [caller(1, None), caller(2, None), caller(1, Some("ben")), caller(2, Some("ben"))]
    {
        assert_eq!(sessions.handle_alive(now, &stranger, Some(&of_anna)), unknown, "{stranger:?}");
    }
    // An authenticated owner may return on another connection.
    assert!(sessions.handle_alive(now, &caller(2, Some("anna")), Some(&of_anna)).is_ok());
    for text in ["", "5", "0x00000000000000000000000000000005", "+0000000000000000000000000000005"]
    {
        assert_eq!(sessions.handle_alive(now, &caller(1, None), Some(text)), unknown, "{text}");
    }
}

#[test]
fn s11_who_is_silent_is_over_even_while_playing() {
    let (mut sessions, one) = (Sessions::new(MAX), caller(1, None));
    let [silent, heard, asks] = [5, 6, 7].map(|id| set_up(&mut sessions, after(0), &one, id));
    for name in [&silent, &heard, &asks] {
        sessions.handle_play(after(0), &one, Some(name)).unwrap();
    }
    sessions.handle_report(after(30), SessionId(6));
    sessions.handle_alive(after(40), &one, Some(&asks)).unwrap();
    assert_eq!(sessions.poll_timeout(), Some(after(60)));
    assert_eq!(sessions.poll_silent(after(60).before(Nanos(1))), []);
    assert_eq!(sessions.poll_silent(after(60)), [SessionId(5)]);
    assert_eq!(sessions.poll_silent(after(90)), [SessionId(6)]);
    assert_eq!(sessions.poll_silent(after(100)), [SessionId(7)]);
    assert_eq!(sessions.poll_timeout(), None);
}

#[test]
fn s15_an_address_has_a_few_that_do_not_play_and_loses_them_at_sixty_seconds() {
    let (mut sessions, one) = (Sessions::new(MAX), caller(1, None));
    for id in 0..u128::from(WAITING_MAX) {
        set_up(&mut sessions, after(0), &one, id);
    }
    let mut more = |now, caller: &Caller<'_>| {
        let setup = sessions.handle_setup(now, caller, None, (URI, offer(0)), SessionId(1000));
        if setup.is_ok() {
            sessions.handle_over(SessionId(1000));
        }
        setup
    };
    assert_eq!(more(after(1), &one), Err(SessionRefusal::Waiting));
    assert_eq!(SessionRefusal::Waiting.status(), Status::NOT_ENOUGH_BANDWIDTH);
    assert_eq!(
        more(after(1), &caller(2, None)),
        Err(SessionRefusal::Waiting),
        "of the same address"
    );
    let far = Caller { address: "10.0.0.2".parse().unwrap(), ..one };
    assert_eq!(more(after(1), &far), Ok(Setup::New));
    // A playing session makes room for the next.
    let name = SessionId(3).to_string();
    sessions.handle_play(after(1), &one, Some(&name)).unwrap();
    set_up(&mut sessions, after(2), &one, 2000);
    assert_eq!(sessions.poll_silent(after(60)).len(), WAITING_MAX as usize - 1);
}

#[test]
fn s15_what_holds_nothing_waits_whatever_it_has_played() {
    let (mut sessions, one) = (Sessions::new(1000), caller(1, None));
    let begin = |sessions: &mut Sessions, id| {
        let setup = sessions.handle_setup(after(0), &one, None, (URI, offer(0)), SessionId(id));
        sessions.promise_when_played(SessionId(id));
        setup.map(drop)
    };
    let play = |sessions: &mut Sessions, id| {
        let name = SessionId(id).to_string();
        sessions.handle_play(after(0), &one, Some(&name)).map(|(_, before)| before)
    };
    let full = Err(SessionRefusal::Waiting);
    let most = u128::from(WAITING_MAX);
    for id in 0..most {
        assert_eq!(begin(&mut sessions, id), Ok(()));
        // The request is refused before it has an effect.
        assert_eq!(play(&mut sessions, id), Ok(State::Ready));
        assert_eq!(sessions.state(SessionId(id)), Some(State::Ready));
    }
    assert_eq!(begin(&mut sessions, most), full);
    // The number of playing sessions of one address is not limited here.
    for id in 0..300 {
        assert!(sessions.handle_begin(SessionId(id)));
        assert_eq!(begin(&mut sessions, id + most), Ok(()), "{id}");
    }
    assert_eq!(begin(&mut sessions, 1000), full);
    // Paused or ended they wait again; a second report makes no more room.
    let name = SessionId(0).to_string();
    assert_eq!(
        sessions.handle_pause(after(1), &one, Some(&name)),
        Ok((SessionId(0), State::Playing))
    );
    sessions.handle_end(SessionId(0));
    sessions.handle_end(SessionId(1));
    assert_eq!(sessions.waiting.values().sum::<u32>(), WAITING_MAX + 2);
    for id in 300..302 {
        sessions.handle_over(SessionId(id));
        assert_eq!(begin(&mut sessions, 1000), full);
    }
    sessions.handle_over(SessionId(1));
    assert_eq!(begin(&mut sessions, 1000), Ok(()));
    assert!(!sessions.handle_begin(SessionId(1)), "it is over");
}

#[test]
fn s15_all_sessions_together_are_as_many_as_there_may_be() {
    let mut sessions = Sessions::new(3);
    for id in 0..3 {
        let name = set_up(&mut sessions, after(0), &caller(1, None), id);
        sessions.handle_play(after(0), &caller(1, None), Some(&name)).unwrap();
    }
    let far = Caller { address: "10.0.0.2".parse().unwrap(), ..caller(2, None) };
    let more = |sessions: &mut Sessions| {
        sessions.handle_setup(after(0), &far, None, (URI, offer(0)), SessionId(9))
    };
    assert_eq!(more(&mut sessions), Err(SessionRefusal::Full));
    assert_eq!(SessionRefusal::Full.status(), Status::NOT_ENOUGH_BANDWIDTH);
    assert_eq!(sessions.waiting.len(), 0, "nothing of it is left");
    sessions.handle_over(SessionId(1));
    assert_eq!(more(&mut sessions), Ok(Setup::New));
}

#[test]
fn s18_a_session_begins_and_stops_ten_times_in_a_second() {
    let (mut sessions, one) = (Sessions::new(MAX), caller(1, None));
    let name = set_up(&mut sessions, after(0), &one, 5);
    let turn = |sessions: &mut Sessions, now, nth: u32| match nth % 2 {
        0 => sessions.handle_play(now, &one, Some(&name)),
        _ => sessions.handle_pause(now, &one, Some(&name)),
    };
    for nth in 0..TURNS_PER_SECOND {
        assert!(turn(&mut sessions, after(0), nth).is_ok());
    }
    let before = sessions.state(SessionId(5));
    assert_eq!(turn(&mut sessions, after(0), 10), Err(SessionRefusal::Often));
    assert_eq!(sessions.state(SessionId(5)), before);
    let done = (0..1000).filter(|nth| {
        turn(&mut sessions, after(0) + Nanos::from_millis(u64::from(*nth)), *nth).is_ok()
    });
    assert_eq!(done.count(), 9, "one each 100 ms");
}

/// The possible inputs, in any order.
#[derive(Clone, Debug)]
enum Step {
    Setup { connection: u64, named: Option<usize>, offer: usize, refused: bool, late: bool },
    Play(u64, Option<usize>),
    Pause(u64, Option<usize>),
    Teardown(u64, Option<usize>),
    Alive(u64, Option<usize>),
    Report(usize),
    Begin(usize),
    End(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let who = || (0u64..3, prop::option::of(0usize..50));
    prop_oneof![
        3 => (who(), 0usize..2, any::<bool>()).prop_map(|((connection, named), offer, refused)| {
            Step::Setup { connection, named, offer, refused, late: refused }
        }),
        2 => (0u64..3, 0usize..2, any::<bool>()).prop_map(|(connection, offer, late)| {
            Step::Setup { connection, named: None, offer, refused: false, late }
        }),
        4 => who().prop_map(|(c, n)| Step::Play(c, n)),
        2 => who().prop_map(|(c, n)| Step::Pause(c, n)),
        1 => who().prop_map(|(c, n)| Step::Teardown(c, n)),
        1 => who().prop_map(|(c, n)| Step::Alive(c, n)),
        1 => (0usize..50).prop_map(Step::Report),
        1 => (0usize..50).prop_map(Step::Begin),
        1 => (0usize..50).prop_map(Step::End),
        2 => (0u64..40_000).prop_map(Step::Wait),
    ]
}

/// The expected behaviour in its simplest form.
struct Model {
    owner: u64,
    playing: bool,
    /// It has a reservation only while it plays.
    late: bool,
    waits: bool,
    heard: MonoTime,
}

impl Model {
    fn begin(&mut self) {
        (self.playing, self.waits) = (true, false);
    }

    fn end(&mut self) {
        self.playing = false;
        self.waits |= self.late;
    }
}

proptest! {
    /// Connection 2 is another address; connections 1 and 0 share one.
    #[test]
    fn s20_sessions_do_as_the_model_does(steps in prop::collection::vec(step(), 0..200)) {
        let address = |connection: u64| -> IpAddr {
            if connection == 2 { "10.0.0.2" } else { "10.0.0.1" }.parse().unwrap()
        };
        let who = |connection| Caller { connection, address: address(connection), principal: None };
        let mut sessions = Sessions::new(MAX);
        let mut model: Vec<Option<Model>> = vec![];
        let waiting = |model: &[Option<Model>], connection| {
            let of = |one: &&Model| one.waits && address(one.owner) == address(connection);
            model.iter().flatten().filter(of).count()
        };
        let mut now = after(0);
        for step in steps {
            let name = |named: Option<usize>| named.map(|nth| SessionId(nth as u128).to_string());
            let own = |model: &[Option<Model>], connection, named: Option<usize>| {
                let at = named.ok_or(SessionRefusal::State)?;
                let found = model.get(at).and_then(Option::as_ref);
                found
                    .filter(|one| one.owner == connection)
                    .map(|_| at)
                    .ok_or(SessionRefusal::Unknown(Status::SESSION_NOT_FOUND))
            };
            match step {
                Step::Setup { connection, named, offer: nth, refused, late } => {
                    let id = SessionId(model.len() as u128);
                    let named = named.filter(|_| !refused || model.len() > 3);
                    let got = sessions.handle_setup(
                        now,
                        &who(connection),
                        name(named).as_deref(),
                        (URI, offer(nth)),
                        id,
                    );
                    match got {
                        Ok(Setup::New) => {
                            prop_assert!(named.is_none());
                            prop_assert!(waiting(&model, connection) < WAITING_MAX as usize);
                            if late {
                                sessions.promise_when_played(id);
                            }
                            let owner = connection;
                            model.push(Some(Model {
                                owner,
                                playing: false,
                                late,
                                waits: true,
                                heard: now,
                            }));
                            // The broker may have no room for it.
                            if refused {
                                sessions.handle_over(id);
                                model.pop();
                            }
                        }
                        Ok(Setup::Same(id)) => {
                            let at = own(&model, connection, named);
                            prop_assert_eq!(at, Ok(id.0 as usize));
                            model[id.0 as usize].as_mut().unwrap().heard = now;
                        }
                        Err(SessionRefusal::State) => {
                            let at = own(&model, connection, named).unwrap();
                            model[at].as_mut().unwrap().heard = now;
                        }
                        Err(SessionRefusal::Unknown(_)) => {
                            prop_assert!(own(&model, connection, named).is_err())
                        }
                        Err(SessionRefusal::Waiting) => {
                            prop_assert!(waiting(&model, connection) >= WAITING_MAX as usize);
                        }
                        Err(SessionRefusal::Full) => {
                            prop_assert_eq!(model.iter().flatten().count(), MAX);
                        }
                        Err(SessionRefusal::Often) => prop_assert!(false, "nothing has begun"),
                    }
                }
                Step::Play(connection, named) | Step::Pause(connection, named) => {
                    let plays = matches!(step, Step::Play(..));
                    let named_as = name(named);
                    let got = if plays {
                        sessions.handle_play(now, &who(connection), named_as.as_deref())
                    } else {
                        sessions.handle_pause(now, &who(connection), named_as.as_deref())
                    };
                    match (got, own(&model, connection, named)) {
                        (Ok((id, before)), Ok(at)) => {
                            let one = model[at].as_mut().unwrap();
                            prop_assert_eq!(id, SessionId(at as u128));
                            prop_assert_eq!(before == State::Playing, one.playing);
                            match plays {
                                true if one.late => {}
                                true => one.begin(),
                                false => one.end(),
                            }
                            one.heard = now;
                        }
                        (Err(SessionRefusal::Often), Ok(at)) => {
                            model[at].as_mut().unwrap().heard = now;
                        }
                        (Err(got), Err(expected)) => prop_assert_eq!(got, expected),
                        (got, expected) => prop_assert!(false, "{got:?} {expected:?}"),
                    }
                }
                Step::Teardown(connection, named) => {
                    let got =
                        sessions.handle_teardown(now, &who(connection), name(named).as_deref());
                    let expected = own(&model, connection, named);
                    prop_assert_eq!(got, expected.map(|at| SessionId(at as u128)));
                    if let Ok(at) = expected {
                        model[at] = None;
                    }
                }
                Step::Alive(connection, named) => {
                    let got = sessions.handle_alive(now, &who(connection), name(named).as_deref());
                    let expected = own(&model, connection, named);
                    prop_assert_eq!(got, expected.map(|at| SessionId(at as u128)));
                    if let Ok(at) = expected {
                        model[at].as_mut().unwrap().heard = now;
                    }
                }
                Step::Report(at) => {
                    sessions.handle_report(now, SessionId(at as u128));
                    if let Some(Some(one)) = model.get_mut(at) {
                        one.heard = now;
                    }
                }
                Step::Begin(at) => {
                    let is_there = sessions.handle_begin(SessionId(at as u128));
                    let one = model.get_mut(at).and_then(Option::as_mut);
                    prop_assert_eq!(is_there, one.is_some());
                    if let Some(one) = one {
                        one.begin();
                    }
                }
                Step::End(at) => {
                    sessions.handle_end(SessionId(at as u128));
                    if let Some(Some(one)) = model.get_mut(at) {
                        one.end();
                    }
                }
                Step::Wait(millis) => {
                    now += Nanos::from_millis(millis);
                    for id in sessions.poll_silent(now) {
                        let gone = model[id.0 as usize].take().unwrap();
                        prop_assert!(now.since(gone.heard) >= SILENCE_MAX);
                    }
                    let silent = |one: &Model| now.since(one.heard) >= SILENCE_MAX;
                    prop_assert!(!model.iter().flatten().any(silent));
                }
            }
            prop_assert_eq!(sessions.len(), model.iter().flatten().count());
            let all = model.iter().flatten().filter(|one| one.waits).count();
            prop_assert_eq!(sessions.waiting.values().sum::<u32>() as usize, all);
        }
    }
}
