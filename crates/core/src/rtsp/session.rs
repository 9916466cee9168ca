//! RTSP sessions (RFC 2326, sections 3.4, 12.37 and appendix A.2): ownership, states and expiry.
//!
//! Promise: a session accepts only its owner (row S07). A step that the state does not permit is
//! refused. The sessions of an address that do not play are limited, and so are all sessions
//! together (row S15). The rate of PLAY and PAUSE is limited (row S18). A session ends after a
//! silence of [`SILENCE_MAX`] (rows S11, S15). It holds no streams: the caller ends them when a
//! session ends here.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use super::Status;
use super::transport::Offer;
use crate::units::{MonoTime, Nanos, SECOND};

/// The silence that ends a session (RFC 2326, section 12.37).
pub const SILENCE_MAX: Nanos = SECOND.times(60);
/// Waiting sessions of one address when another one starts: sessions that have not played yet, and
/// sessions without a reservation that do not play. Playing sessions are limited by the resources
/// only.
pub const WAITING_MAX: u32 = 32;
/// Starts, stops and seeks of a session in a second: each is work for the engine.
pub const TURNS_PER_SECOND: u32 = 10;

/// A session id: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

impl SessionId {
    /// Parses an id.
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
    // The whole id is enough to end the session: logs show only a part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}..", self.0 >> 96)
    }
}

/// The client of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller<'a> {
    /// The number of its connection, which is unique.
    pub connection: u64,
    /// Its address.
    pub address: IpAddr,
    /// Its authenticated principal.
    pub principal: Option<&'a str>,
}

/// The state of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Set up, not playing.
    Ready,
    /// Playing.
    Playing,
}

/// Why a step was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionRefusal {
    /// No session is named, or it does not exist, or it belongs to another client.
    Unknown(Status),
    /// Not permitted in this state.
    State,
    /// The limit of waiting sessions of the address is reached.
    Waiting,
    /// The limit of sessions is reached.
    Full,
    /// Too often.
    Often,
}

impl SessionRefusal {
    /// The status to answer with.
    pub const fn status(self) -> Status {
        match self {
            Self::Unknown(status) => status,
            Self::State => Status::NOT_IN_THIS_STATE,
            Self::Waiting | Self::Full => Status::NOT_ENOUGH_BANDWIDTH,
            Self::Often => Status::UNAVAILABLE,
        }
    }
}

/// The result of SETUP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setup {
    /// A new session.
    New,
    /// An unchanged session: the request is a repetition.
    Same(SessionId),
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    all: BTreeMap<SessionId, Session>,
    /// The limit of sessions.
    max: usize,
    /// Waiting sessions by address.
    waiting: BTreeMap<IpAddr, u32>,
    silence_max: Nanos,
}

#[derive(Debug)]
struct Session {
    connection: u64,
    network: IpAddr,
    principal: Option<String>,
    state: State,
    /// The reservation lasts from SETUP to the end; otherwise only while it plays.
    is_promised: bool,
    /// It counts as waiting.
    waits: bool,
    has_played: bool,
    uri: String,
    offer: Offer,
    heard: MonoTime,
    turns: Turns,
}

/// A token bucket of [`TURNS_PER_SECOND`].
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
    /// An empty table for at most `max` sessions.
    pub fn new(max: usize) -> Self {
        let (all, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { all, max, waiting, silence_max: SILENCE_MAX }
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Replaces [`SILENCE_MAX`].
    pub fn end_after(&mut self, silence_max: Nanos) {
        self.silence_max = silence_max;
    }

    /// The state of a session.
    pub fn state(&self, id: SessionId) -> Option<State> {
        Some(self.all.get(&id)?.state)
    }

    /// Whether the session exists and has never been played: it then belongs to the connection that
    /// set it up.
    pub fn is_unplayed(&self, id: SessionId) -> bool {
        self.all.get(&id).is_some_and(|session| !session.has_played)
    }

    /// SETUP of `uri`: starts the session `new`, or continues the `named` one.
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
    ) -> Result<Setup, SessionRefusal> {
        if named.is_some() {
            let (id, session) = self.find(now, caller, named)?;
            let is_same = session.offer == offer && session.uri == uri;
            return if is_same { Ok(Setup::Same(id)) } else { Err(SessionRefusal::State) };
        }
        let network = network(caller.address);
        if self.waiting.get(&network).is_some_and(|&waiting| waiting >= WAITING_MAX) {
            return Err(SessionRefusal::Waiting);
        }
        if self.all.len() >= self.max {
            return Err(SessionRefusal::Full);
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

    /// The session just set up has a reservation only while it plays; otherwise it waits.
    pub fn promise_when_played(&mut self, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.is_promised = false;
        }
    }

    /// PLAY: the session and its state before. A session without a reservation changes its state at
    /// [`Self::handle_begin`].
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn handle_play(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<(SessionId, State), SessionRefusal> {
        let (id, session) = self.find(now, caller, named)?;
        if !session.turns.take(now) {
            return Err(SessionRefusal::Often);
        }
        let before = session.state;
        if session.is_promised {
            self.handle_begin(id);
        }
        Ok((id, before))
    }

    /// PAUSE: the session and its state before.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn handle_pause(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<(SessionId, State), SessionRefusal> {
        let (id, session) = self.find(now, caller, named)?;
        if !session.turns.take(now) {
            return Err(SessionRefusal::Often);
        }
        // Before the first PLAY there is nothing to pause (appendix A.2: Ready stays Ready).
        let before = session.state;
        self.handle_end(id);
        Ok((id, before))
    }

    /// TEARDOWN: the ended session.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn handle_teardown(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<SessionId, SessionRefusal> {
        let (id, _) = self.find(now, caller, named)?;
        self.handle_over(id);
        Ok(id)
    }

    /// A keep-alive request: the session.
    ///
    /// # Errors
    /// If it names no session of the client.
    pub fn handle_alive(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<SessionId, SessionRefusal> {
        self.find(now, caller, named).map(|(id, _)| id)
    }

    /// A receiver report.
    pub fn handle_report(&mut self, now: MonoTime, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.heard = session.heard.max(now);
        }
    }

    /// Playing starts; the report of the last end may arrive after this. False if the session has
    /// ended: then nothing may be sent.
    pub fn handle_begin(&mut self, id: SessionId) -> bool {
        let Some(session) = self.all.get_mut(&id) else { return false };
        (session.state, session.has_played) = (State::Playing, true);
        if core::mem::take(&mut session.waits) {
            let network = session.network;
            self.stop_waiting(network);
        }
        true
    }

    /// Playing has stopped, ended or failed to start.
    pub fn handle_end(&mut self, id: SessionId) {
        let Some(session) = self.all.get_mut(&id) else { return };
        session.state = State::Ready;
        if !session.is_promised && !core::mem::replace(&mut session.waits, true) {
            // More than may start: sessions that play together may be paused together.
            *self.waiting.entry(session.network).or_default() += 1;
        }
    }

    /// Ends a session.
    pub fn handle_over(&mut self, id: SessionId) {
        if let Some(session) = self.all.remove(&id)
            && session.waits
        {
            self.stop_waiting(session.network);
        }
    }

    /// Ends and returns the silent sessions.
    pub fn poll_silent(&mut self, now: MonoTime) -> Vec<SessionId> {
        let is_silent = |session: &Session| now.since(session.heard) >= self.silence_max;
        let silent = self.all.iter().filter(|(_, session)| is_silent(session));
        let silent: Vec<_> = silent.map(|(id, _)| *id).collect();
        for id in &silent {
            self.handle_over(*id);
        }
        silent
    }

    /// When the next session expires.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        self.all.values().map(|session| session.heard + self.silence_max).min()
    }

    /// The client's session with this id, which is alive now.
    fn find(
        &mut self,
        now: MonoTime,
        caller: &Caller<'_>,
        named: Option<&str>,
    ) -> Result<(SessionId, &mut Session), SessionRefusal> {
        let unknown = SessionRefusal::Unknown(Status::SESSION_NOT_FOUND);
        // Row S06: the request needs a session and comes before SETUP.
        let named = named.ok_or(SessionRefusal::State)?;
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

/// The unit that counts as one address: an IPv6 customer has a /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests;
