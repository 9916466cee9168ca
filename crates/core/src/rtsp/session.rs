//! The sessions of a server (RFC 2326, sections 3.4, 12.37 and appendix A.2): whose they are, what they may do, and
//! when they are over.
//!
//! Promise: a session answers only to its own (row S07); each step is refused in a state that does not allow it; who
//! sets up and does not play is bounded by address (row S15), who plays and pauses by time (row S18); a session of which
//! nothing has been heard for [`SILENCE_MAX`] is over, whatever else it does (rows S11, S15). It holds no
//! streams: whoever does ends them when it is told here.

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
/// Most sessions of one address that have not played yet.
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
    /// The address has as many sessions that have not played as it may have.
    Waiting,
    /// Too often.
    Often,
}

impl Refused {
    /// What is answered.
    pub const fn status(self) -> Status {
        match self {
            Self::Unknown(status) => status,
            Self::State => Status::NOT_IN_THIS_STATE,
            Self::Waiting => Status::NOT_ENOUGH_BANDWIDTH,
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
    /// Sessions that have not played, by address.
    waiting: BTreeMap<IpAddr, u32>,
    silence_max: Nanos,
}

impl Default for Sessions {
    fn default() -> Self {
        let (all, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { all, waiting, silence_max: SILENCE_MAX }
    }
}

#[derive(Debug)]
struct Session {
    connection: u64,
    network: IpAddr,
    principal: Option<String>,
    state: State,
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
        let waiting = self.waiting.entry(network).or_default();
        if *waiting >= WAITING_MAX {
            return Err(Refused::Waiting);
        }
        *waiting += 1;
        let session = Session {
            connection: caller.connection,
            network,
            principal: caller.principal.map(String::from),
            state: State::Ready,
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

    /// PLAY: which session it is, and what it did before.
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
        let before = core::mem::replace(&mut session.state, State::Playing);
        if !core::mem::replace(&mut session.has_played, true) {
            let network = session.network;
            self.stop_waiting(network);
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
        Ok((id, core::mem::replace(&mut session.state, State::Ready)))
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

    /// It is sent from now on; its order may have come before its last end was told.
    pub fn handle_begin(&mut self, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.state = State::Playing;
        }
    }

    /// What it plays has come to its end, or could not begin.
    pub fn handle_end(&mut self, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.state = State::Ready;
        }
    }

    /// It is over.
    pub fn handle_over(&mut self, id: SessionId) {
        if let Some(session) = self.all.remove(&id)
            && !session.has_played
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
