//! One client: its connection, its dice, and what the server answered.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tactus_core::units::{MonoTime, Nanos, SECOND};

use super::Plan;
use crate::clock;
use crate::random::Random;

/// Something to watch.
#[derive(Clone, Debug)]
pub struct Title {
    /// Its path, as in a URL.
    pub path: String,
    /// How long it plays.
    pub length: Nanos,
}

/// What a client was sent between a PLAY and what ended it.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The number of the datagram that it begins with, as the server announced it.
    pub first: u16,
    /// It began elsewhere; otherwise it went on where a pause was.
    pub is_elsewhere: bool,
    /// When PLAY was answered.
    pub answered: MonoTime,
    /// When the client asked for something else: until then all had to come.
    pub until: Option<MonoTime>,
}

/// What a client did.
#[derive(Clone, Debug, Default)]
pub struct ClientActions {
    /// What it played, one after the other.
    pub parts: Vec<Part>,
    /// Answers other than 200, and what else went wrong.
    pub failures: Vec<String>,
    /// Seconds until PLAY was answered.
    pub plays: Vec<f32>,
    /// How often it sought.
    pub seeks: u32,
    /// How often it paused.
    pub pauses: u32,
}

/// A client and what it will do next.
pub(super) struct Client {
    number: usize,
    server: SocketAddrV4,
    title: Title,
    port: u16,
    dice: Random,
    due: MonoTime,
    state: State,
    /// Pauses in turn: who only pauses comes to the end of the title.
    paused: u32,
    did: ClientActions,
}

enum State {
    Away,
    Playing(Session),
    Paused(Session),
    /// It could not go on.
    Broken,
}

/// A session of RTSP by UDP, on a connection of its own; it ends with the value.
pub(crate) struct Session {
    stream: TcpStream,
    id: String,
    sequence: u32,
    url: String,
}

pub(crate) struct Answer {
    head: String,
}

/// A client does something each so often, on average.
const EVERY: Nanos = SECOND.times(20);
/// Pauses are this long, on average.
const PAUSE: Nanos = SECOND.times(4);
/// Nobody seeks to the last part of a title: it is to last until the client seeks again.
const LAST: Nanos = SECOND.times(160);
/// After so many pauses it seeks.
const PAUSES_MAX: u32 = 3;
/// An answer that takes longer has not come.
const PATIENCE: Duration = Duration::from_secs(20);
const ANSWER_MAX: usize = 16 * 1024;

impl Client {
    pub(super) fn new(plan: &Plan, number: usize, first_port: u16, from: MonoTime) -> Self {
        let mut dice = Random::new(plan.seed ^ ((number as u64) << 20));
        let title = plan.titles[dice.next() as usize % plan.titles.len()].clone();
        Self {
            number,
            server: plan.server,
            title,
            port: first_port + 2 * number as u16,
            due: from + Nanos((plan.stagger.0 as f64 * dice.share()) as u64),
            dice,
            state: State::Away,
            paused: 0,
            did: ClientActions::default(),
        }
    }

    /// When it wants to do something.
    pub(super) fn due(&self) -> MonoTime {
        self.due
    }

    /// Does what it wants to do now.
    pub(super) fn act(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Broken);
        match self.next(state) {
            Ok(state) => self.state = state,
            Err(error) => self.did.failures.push(format!("{error:#}")),
        }
        let mean = if matches!(self.state, State::Paused(_)) { PAUSE } else { EVERY };
        // Between half and one and a half of the mean.
        let span = Nanos((mean.0 as f64 * (0.5 + self.dice.share())) as u64);
        let never = Nanos(u64::MAX / 4);
        self.due = clock::now() + if matches!(self.state, State::Broken) { never } else { span };
    }

    fn next(&mut self, state: State) -> Result<State> {
        match state {
            State::Away => {
                let mut session = self.arrive()?;
                let place = self.somewhere();
                self.play(&mut session, Some(place))?;
                Ok(State::Playing(session))
            }
            State::Playing(mut session) => {
                if self.paused < PAUSES_MAX && self.dice.share() < 0.5 {
                    self.stop();
                    session.ask("PAUSE", "")?;
                    self.did.pauses += 1;
                    self.paused += 1;
                    return Ok(State::Paused(session));
                }
                self.seek(&mut session)?;
                Ok(State::Playing(session))
            }
            State::Paused(mut session) => {
                match self.dice.share() < 0.5 {
                    true => self.seek(&mut session)?,
                    false => self.play(&mut session, None)?,
                }
                Ok(State::Playing(session))
            }
            State::Broken => Ok(State::Broken),
        }
    }

    fn seek(&mut self, session: &mut Session) -> Result<()> {
        self.did.seeks += 1;
        self.paused = 0;
        let place = self.somewhere();
        self.play(session, Some(place))
    }

    /// A place of the title, in seconds.
    fn somewhere(&mut self) -> f64 {
        let room = Nanos(self.title.length.0.saturating_sub(LAST.0));
        seconds(room) * self.dice.share()
    }

    fn arrive(&self) -> Result<Session> {
        Session::open(self.server, &self.title.path, self.port)
    }

    fn play(&mut self, session: &mut Session, place: Option<f64>) -> Result<()> {
        let range = place.map_or(String::new(), |place| format!("Range: npt={place:.3}-\r\n"));
        self.stop();
        let asked = clock::now();
        let answer = session.ask("PLAY", &range)?;
        let answered = clock::now();
        self.did.plays.push(seconds(answered.since(asked)) as f32);
        let info = answer.field("rtp-info").context("PLAY says no RTP-Info")?;
        let number = info.split([';', ',']).find_map(|part| part.trim().strip_prefix("seq="));
        let number = number.and_then(|number| number.parse().ok()).context("no seq")?;
        let is_elsewhere = place.is_some();
        self.did.parts.push(Part { first: number, is_elsewhere, answered, until: None });
        Ok(())
    }

    /// From now on it does not wait for more of what it plays.
    fn stop(&mut self) {
        if let Some(part) = self.did.parts.last_mut() {
            part.until.get_or_insert_with(clock::now);
        }
    }

    /// Leaves, and tells what it did.
    pub(super) fn leave(mut self) -> (usize, ClientActions) {
        if matches!(self.state, State::Playing(_)) {
            self.stop();
        }
        if let State::Playing(mut session) | State::Paused(mut session) = self.state
            && let Err(error) = session.ask("TEARDOWN", "")
        {
            self.did.failures.push(format!("{error:#}"));
        }
        (self.number, self.did)
    }
}

impl Session {
    /// Connects and sets up the last medium of `path`, for datagrams to `port` and reports to the
    /// next.
    pub(crate) fn open(server: SocketAddrV4, path: &str, port: u16) -> Result<Self> {
        let stream = TcpStream::connect(server).context("it cannot connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let url = format!("rtsp://{server}{path}");
        let mut session = Self { stream, id: String::new(), sequence: 0, url };
        let described = session.ask("DESCRIBE", "Accept: application/sdp\r\n")?;
        let control = described.control().context("DESCRIBE names no stream")?;
        let whole = std::mem::replace(&mut session.url, control);
        let ports = format!("{port}-{}", port + 1);
        let transport = format!("Transport: RTP/AVP;unicast;client_port={ports}\r\n");
        let answer = session.ask("SETUP", &transport)?;
        let id = answer.field("session").context("SETUP names no session")?;
        session.id = id.split(';').next().unwrap_or_default().trim().to_owned();
        session.url = whole;
        Ok(session)
    }

    /// Sends a request and takes its answer.
    pub(crate) fn ask(&mut self, method: &str, fields: &str) -> Result<Answer> {
        self.sequence += 1;
        let sequence = self.sequence.to_string();
        let session = match &*self.id {
            "" => String::new(),
            id => format!("Session: {id}\r\n"),
        };
        let url = &self.url;
        let request =
            format!("{method} {url} RTSP/1.0\r\nCSeq: {sequence}\r\n{session}{fields}\r\n");
        let taken = self.stream.write_all(request.as_bytes());
        taken.with_context(|| format!("{method} is not taken"))?;
        let answer = self.answer().with_context(|| format!("{method} is not answered"))?;
        let status = answer.head.lines().next().unwrap_or_default();
        if !status.starts_with("RTSP/1.0 200") {
            // What is missing stands in the body.
            let why = answer.head.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
            bail!("{method}: {status} {why}");
        }
        ensure!(answer.field("cseq") == Some(&*sequence), "{method}: another CSeq");
        Ok(answer)
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut got = Vec::new();
        let mut piece = [0; 2048];
        loop {
            let end = got.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let head = String::from_utf8_lossy(&got[..end]).into_owned();
                let body = Answer { head: head.clone() }.field("content-length").map(str::parse);
                let body: usize = body.transpose()?.unwrap_or(0);
                if got.len() >= end + 4 + body {
                    let all = String::from_utf8_lossy(&got[..end + 4 + body]).into_owned();
                    return Ok(Answer { head: if body > 0 { all } else { head } });
                }
            }
            ensure!(got.len() < ANSWER_MAX, "it is too long");
            let count = self.stream.read(&mut piece)?;
            ensure!(count > 0, "the connection has ended");
            got.extend(&piece[..count]);
        }
    }
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let head = self.head.split("\r\n\r\n").next()?;
        let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields
            .map(|(key, value)| (key.trim(), value.trim()))
            .find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
    }

    /// The URL of the last medium of a description: what is above them controls all.
    fn control(&self) -> Option<String> {
        let base = self.field("content-base").unwrap_or_default();
        let mut lines = self.head.lines().rev();
        let last = lines.find_map(|line| line.strip_prefix("a=control:"))?.trim();
        let is_whole = last.starts_with("rtsp://");
        Some(if is_whole { last.to_owned() } else { format!("{base}{last}") })
    }
}

fn seconds(span: Nanos) -> f64 {
    span.0 as f64 / 1e9
}
