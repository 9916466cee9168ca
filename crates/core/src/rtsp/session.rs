//! The sessions of a server (RFC 2326, sections 3.4, 12.37 and appendix A.2): whose they are, what they may do, and
//! when they are over.
//!
//! Promise: a session answers only to its own (row S07); each step is refused in a state that does not allow it; who
//! sets up and does not play is bounded by address, also when it has played and holds nothing any more, and all of them
//! together are bounded (row S15); who plays and pauses is by time (row S18); a session of which nothing has been
//! heard for [`SILENCE_MAX`] is over, whatever else it does (rows S11, S15). It holds no streams: whoever does
//! ends them when it is told here.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use super::Status;
use super::transport::Offer;
use crate::units::{MonoTime, Nanos, SECOND};

/// A session of which nothing has been heard for so long is over (RFC 2326, section 12.37).
pub const SILENCE_MAX: Nanos = SECOND.times(60);
/// Most sessions of one address that wait when another one begins: those that have not played yet, and those that hold
/// nothing as long as they do not play. Who plays is bounded by what there is room for, whatever its address.
pub const WAITING_MAX: u32 = 32;
/// Most times in a second that a session begins, stops, or is moved: each is work for the engine.
pub const TURNS_PER_SECOND: u32 = 10;

/// What a session is called: 128 bits that nobody can guess.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

impl SessionId {
    /// The one that is written as `text`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| plain).map(Self)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    // Whoever knows it may end it: logs show enough to tell two apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}..", self.0 >> 96)
    }
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller<'a> {
    /// The number of its connection; none is used twice.
    pub connection: u64,
    /// Where it comes from.
    pub address: IpAddr,
    /// Who it has shown to be.
    pub principal: Option<&'a str>,
}

/// What a session does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has its place, and nothing is sent.
    Ready,
    /// It is sent.
    Playing,
}

/// Why a step was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No session is named, or there is none of this name that is the caller's.
    Unknown(Status),
    /// Not in this state.
    State,
    /// The address has as many sessions that wait as it may have.
    Waiting,
    /// There are as many sessions as there may be.
    Full,
    /// Too often.
    Often,
}

impl Refused {
    /// What is answered.
    pub const fn status(self) -> Status {
        match self {
            Self::Unknown(status) => status,
            Self::State => Status::NOT_IN_THIS_STATE,
            Self::Waiting | Self::Full => Status::NOT_ENOUGH_BANDWIDTH,
            Self::Often => Status::UNAVAILABLE,
        }
    }
}

/// What SETUP comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setup {
    /// A session has begun.
    New,
    /// It is as it was: the request only repeats what is so.
    Same(SessionId),
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    all: BTreeMap<SessionId, Session>,
    /// Most of them at once.
    max: usize,
    /// Sessions that wait, by address.
    waiting: BTreeMap<IpAddr, u32>,
    silence_max: Nanos,
}

#[derive(Debug)]
struct Session {
    connection: u64,
    network: IpAddr,
    principal: Option<String>,
    state: State,
    /// What it needs was promised at SETUP and is until its end; else only while it is played.
    is_promised: bool,
    /// It is counted as one that waits.
    waits: bool,
    has_played: bool,
    uri: String,
    offer: Offer,
    heard: MonoTime,
    turns: Turns,
}

/// A bucket of [`TURNS_PER_SECOND`] that fills evenly.
#[derive(Clone, Copy, Debug)]
struct Turns {
    /// When it will be full.
    full: MonoTime,
}

impl Turns {
    const EACH: Nanos = Nanos(SECOND.0 / TURNS_PER_SECOND as u64);

    fn take(&mut self, now: MonoTime) -> bool {
        let full = self.full.max(now) + Self::EACH;
        let fits = full.since(now) <= SECOND;
        if fits {
            self.full = full;
        }
        fits
    }
}

impl Sessions {
    /// None yet, and at most `max` at once.
    pub fn new(max: usize) -> Self {
        let (all, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { all, max, waiting, silence_max: SILENCE_MAX }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// From now on silence ends a session after this, instead of [`SILENCE_MAX`].
    pub fn end_after(&mut self, silence_max: Nanos) {
        self.silence_max = silence_max;
    }

    /// What the session of this name does.
    pub fn state(&self, id: SessionId) -> Option<State> {
        Some(self.all.get(&id)?.state)
    }

    /// Whether the session exists and has never been played: it then belongs to the connection that
    /// set it up.
    pub fn is_unplayed(&self, id: SessionId) -> bool {
        self.all.get(&id).is_some_and(|session| !session.has_played)
    }

    /// SETUP of `uri`: a new session of the name `new`, or the one that is `named`.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn handle_setup(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
        (uri, offer): (&str, Offer),
        new: SessionId,
    ) -> Result<Setup, Refused> {
        if named.is_some() {
            let (id, session) = self.find(now, caller, named)?;
            let is_same = session.offer == offer && session.uri == uri;
            return if is_same { Ok(Setup::Same(id)) } else { Err(Refused::State) };
        }
        let network = network(caller.address);
        if self.waiting.get(&network).is_some_and(|&waiting| waiting >= WAITING_MAX) {
            return Err(Refused::Waiting);
        }
        if self.all.len() >= self.max {
            return Err(Refused::Full);
        }
        *self.waiting.entry(network).or_default() += 1;
        let session = Session {
            connection: caller.connection,
            network,
            principal: caller.principal.map(String::from),
            state: State::Ready,
            is_promised: true,
            waits: true,
            has_played: false,
            uri: uri.into(),
            offer,
            heard: now,
            turns: Turns { full: now },
        };
        let before = self.all.insert(new, session);
        assert!(before.is_none(), "128 random bits do not come twice");
        Ok(Setup::New)
    }

    /// What the session that has just been set up needs is promised only while it is played: when it is not, it waits.
    pub fn promise_when_played(&mut self, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.is_promised = false;
        }
    }

    /// PLAY: which session it is, and what it did before. One that is promised nothing yet is as it was until
    /// [`Self::handle_begin`].
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn handle_play(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<(SessionId, State), Refused> {
        let (id, session) = self.find(now, caller, named)?;
        if !session.turns.take(now) {
            return Err(Refused::Often);
        }
        let before = session.state;
        if session.is_promised {
            self.handle_begin(id);
        }
        Ok((id, before))
    }

    /// PAUSE: which session it is, and what it did before.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn handle_pause(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<(SessionId, State), Refused> {
        let (id, session) = self.find(now, caller, named)?;
        if !session.turns.take(now) {
            return Err(Refused::Often);
        }
        // Before the first PLAY there is nothing to pause (appendix A.2: Ready stays Ready).
        let before = session.state;
        self.handle_end(id);
        Ok((id, before))
    }

    /// TEARDOWN: the session that is over.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn handle_teardown(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<SessionId, Refused> {
        let (id, _) = self.find(now, caller, named)?;
        self.handle_over(id);
        Ok(id)
    }

    /// A request that only says that its sender is there: which session it is.
    ///
    /// # Errors
    /// When it names none of the caller's.
    pub fn handle_alive(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<SessionId, Refused> {
        self.find(now, caller, named).map(|(id, _)| id)
    }

    /// A report of the receiver has come.
    pub fn handle_report(&mut self, now: MonoTime, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.heard = session.heard.max(now);
        }
    }

    /// It is sent from now on; its order may have come before its last end was told. Whether it is there: if not, it must
    /// not be sent.
    pub fn handle_begin(&mut self, id: SessionId) -> bool {
        let Some(session) = self.all.get_mut(&id) else { return false };
        (session.state, session.has_played) = (State::Playing, true);
        if core::mem::take(&mut session.waits) {
            let network = session.network;
            self.stop_waiting(network);
        }
        true
    }

    /// What it plays has stopped, has come to its end, or could not begin.
    pub fn handle_end(&mut self, id: SessionId) {
        let Some(session) = self.all.get_mut(&id) else { return };
        session.state = State::Ready;
        if !session.is_promised && !core::mem::replace(&mut session.waits, true) {
            // More than may begin: those that have been played together may be paused together.
            *self.waiting.entry(session.network).or_default() += 1;
        }
    }

    /// It is over.
    pub fn handle_over(&mut self, id: SessionId) {
        if let Some(session) = self.all.remove(&id)
            && session.waits
        {
            self.stop_waiting(session.network);
        }
    }

    /// Those of which nothing has been heard for too long; they are over.
    pub fn poll_silent(&mut self, now: MonoTime) -> Vec<SessionId> {
        let is_silent = |session: &Session| now.since(session.heard) >= self.silence_max;
        let silent = self.all.iter().filter(|(_, session)| is_silent(session));
        let silent: Vec<_> = silent.map(|(id, _)| *id).collect();
        for id in &silent {
            self.handle_over(*id);
        }
        silent
    }

    /// When the next one will be, if nothing is heard of it.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        self.all.values().map(|session| session.heard + self.silence_max).min()
    }

    /// The caller's session of this name, which has been heard of now.
    fn find(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<(SessionId, &mut Session), Refused> {
        let unknown = Refused::Unknown(Status::SESSION_NOT_FOUND);
        // Row S06: what needs a session comes before SETUP.
        let named = named.ok_or(Refused::State)?;
        let id = SessionId::parse(named).ok_or(unknown)?;
        let session = self.all.get_mut(&id).ok_or(unknown)?;
        let is_same_principal =
            caller.principal.is_some() && session.principal.as_deref() == caller.principal;
        let is_own = session.connection == caller.connection
            && session.principal.as_deref() == caller.principal;
        if !is_own && !is_same_principal {
            return Err(unknown);
        }
        session.connection = caller.connection;
        session.heard = session.heard.max(now);
        Ok((id, session))
    }

    fn stop_waiting(&mut self, network: IpAddr) {
        let waiting = self.waiting.get_mut(&network).expect("it was counted");
        *waiting -= 1;
        if *waiting == 0 {
            self.waiting.remove(&network);
        }
    }
}

/// What counts as one address: an IPv6 customer has 64 bits to choose from.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests;
