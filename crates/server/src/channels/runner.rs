//! One channel at work: has the next title read ahead before the one that is sent ends, and takes another
//! where one cannot be had.
//!
//! Promise: as long as there is anything that can be sent something is; the title that follows is at the
//! engine before its time, and begins where the one before it ends. A title that somebody has left, whose
//! time is over, or that cannot be read further, makes way at a packet's end.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_core::datagrams::{Form, Line, Plan, Session, Stamps};
use tactus_core::path::RequestPath;
use tactus_core::ts::{Index, IndexFault, PACKET};
use tactus_core::units::{BitRate, Bytes};
use tactus_engine::message::{Outcome, StreamId};
use tactus_sys::clock;
use tokio::sync::mpsc;

use super::desk::{Desk, Item, Origin};
use super::session::{self, Announcement, Reports};
use super::status::Board;
use super::{Inner, list, packets};
use crate::broker::{Grant, Outlet, Sending, Target};
use crate::catalogue::{Found, Indexed, OpenTitle};
use crate::config::Auto;
use crate::config::channel::{Channel, List};
use crate::config::recording::Kind;

/// What somebody wants of a channel. To drop the sender ends it.
#[derive(Debug)]
pub(super) enum Order {
    /// Go by another programme.
    Change(Box<Channel>),
    /// Leave the title for the next one.
    Skip,
    /// Send this one next.
    Next(String),
}

/// What runs one channel.
pub(super) struct Runner {
    board: Arc<Board>,
    house: Arc<Inner>,
    orders: mpsc::Receiver<Order>,
    channel: Channel,
    desk: Desk,
    outlet: Option<Outlet>,
    /// What is sent.
    now: Option<Playing>,
    /// What waits behind it.
    next: Option<Next>,
    /// Whom the title that is sent follows: its place is kept until that has begun.
    before: Option<(Grant, StreamId)>,
    session: Session,
    reports: Option<Reports>,
    announcement: Option<Announcement>,
    /// The title of the list that was begun last.
    last: Option<String>,
    /// What was not to be had is asked for again then.
    again: Instant,
    /// Somebody has left the title that is sent.
    is_left: bool,
    /// Its programme is another one since the list was read.
    is_changed: bool,
    /// What is to be sent of a title behind a block that could not be read.
    rest: Option<(Item, Arc<OpenTitle>, Range<u64>)>,
}

/// A title that the engine has.
struct Playing {
    item: Item,
    title: Arc<OpenTitle>,
    grant: Grant,
    sending: Sending,
    range: Range<u64>,
    rate: BitRate,
    /// How long one turn of it takes.
    lasts: Duration,
    /// When it ends, if it does.
    ends: Option<Instant>,
    /// It was told to end.
    is_stopped: bool,
}

/// One that follows.
struct Next {
    playing: Playing,
    /// When the one before it has to make way; none for its own end.
    cut: Option<Instant>,
    since: Instant,
}

/// How long before its time a title is looked for, admitted and read ahead. Its room counts twice so long.
const LEAD: Duration = Duration::from_secs(20);
/// What is not there, or has no room, is looked for again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// Between titles that fail.
const REST: Duration = Duration::from_secs(1);
/// So soon the engine has given back what a title had.
const RETURN: Duration = Duration::from_millis(300);
/// A title that is not read ahead after this is cut to all the same.
const PRIME_MAX: Duration = Duration::from_secs(15);
/// How often a title's times are asked for: 2 s each, so the title that is sent has not ended by then.
const INDEX_TRIES: u32 = 5;
/// How often it is looked whether one is.
const LOOK: Duration = Duration::from_millis(20);
/// For so long nothing happens.
const LONG: Duration = Duration::from_secs(60);
/// Titles that are tried one after the other, before another thing is.
const TRIES_MAX: usize = 20;

impl Runner {
    pub(super) fn new(board: Arc<Board>, house: Arc<Inner>, orders: mpsc::Receiver<Order>) -> Self {
        let channel = board.channel();
        let desk = Desk::new(channel.programme.clone(), clock::wall_now());
        Self {
            board,
            house,
            orders,
            channel,
            desk,
            outlet: None,
            now: None,
            next: None,
            before: None,
            session: session::new(),
            reports: None,
            announcement: None,
            last: None,
            again: Instant::now(),
            is_left: false,
            is_changed: false,
            rest: None,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.step().await;
            let wake = tokio::time::Instant::from_std(self.wake());
            tokio::select! {
                (outcome, _) = ended(&mut self.now) => self.ended(outcome),
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => break,
                },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
        self.end().await;
    }

    /// Does what is due.
    async fn step(&mut self) {
        self.tell();
        if std::mem::take(&mut self.is_changed) {
            self.read_list().await;
            self.foresee();
        }
        let is_due = match &self.now {
            None => Instant::now() >= self.again,
            Some(now) if self.next.is_some() || now.is_stopped => false,
            Some(_) if Instant::now() < self.again => false,
            Some(now) => {
                let is_near = |end: Option<Instant>| end.is_some_and(|end| in_time(end) <= LEAD);
                let is_asked = self.is_left || self.is_abandoned(now);
                is_near(now.ends) || is_near(self.timed()) || is_asked || now.item.is_fill()
            }
        };
        if is_due {
            self.find_next().await;
        }
        self.cut();
    }

    /// Whether what is sent again and again is not in the programme any more.
    fn is_abandoned(&self, now: &Playing) -> bool {
        now.item.is_endless && !now.item.is_fill() && !self.desk.loops(&now.item.path)
    }

    /// When something happens that has its time, if that is before the title's own end.
    fn timed(&self) -> Option<Instant> {
        let time = self.desk.time()?;
        let after = Duration::from_nanos(time.0.saturating_sub(clock::wall_now().0));
        let at = Instant::now() + after;
        let ends = self.now.as_ref().and_then(|now| now.ends);
        ends.is_none_or(|ends| at <= ends).then_some(at)
    }

    /// When to look again.
    fn wake(&self) -> Instant {
        let mut wake = Instant::now() + LONG;
        let mut by = |time: Option<Instant>| wake = time.map_or(wake, |time| time.min(wake));
        by(self.announcement.as_ref().map(Announcement::due));
        by(self.reports.as_ref().filter(|_| self.now.is_some()).map(Reports::due));
        let lead = |time: Instant| time.checked_sub(LEAD);
        match (&self.now, &self.next) {
            (None, _) => by(Some(self.again)),
            (Some(now), None) if !now.is_stopped => {
                let at_once = now.item.is_fill() || self.is_left || self.is_abandoned(now);
                let times = [now.ends.and_then(lead), self.timed().and_then(lead)];
                let times = times.into_iter().flatten().chain(at_once.then_some(self.again));
                by(times.min().map(|time| time.max(self.again)));
            }
            (Some(now), Some(Next { cut: Some(cut), .. })) if !now.is_stopped => {
                by(Some((*cut).max(Instant::now() + LOOK)));
            }
            (Some(_), _) => {}
        }
        by(self.before.as_ref().filter(|_| self.now.is_some()).map(|_| Instant::now() + LOOK));
        wake
    }

    /// Reports, announcements, and the place of whom the title has followed.
    fn tell(&mut self) {
        if let Some(announcement) = &mut self.announcement {
            announcement.poll();
        }
        let Some(now) = &self.now else { return };
        let Some(counters) = self.house.broker.counters_of(now.grant.place()) else { return };
        if counters.epoch.value() != 0 {
            self.before = None;
        }
        if let Some(reports) = &mut self.reports {
            reports.poll(counters);
        }
    }

    /// Has the title that is sent make way, if it must.
    fn cut(&mut self) {
        let (Some(now), Some(next)) = (&mut self.now, &self.next) else { return };
        let Some(cut) = next.cut.filter(|&cut| cut <= Instant::now() && !now.is_stopped) else {
            return;
        };
        let counters = self.house.broker.counters_of(next.playing.grant.place());
        // The packet server knows its rate when the first blocks are in memory.
        let is_ready = counters.is_some_and(|counters| counters.rate.value() != 0);
        if is_ready || next.since.elapsed().min(cut.elapsed()) >= PRIME_MAX {
            now.is_stopped = true;
            self.house.broker.stop(&now.grant);
        }
    }

    /// Has another title read ahead, or begins it when nothing is sent.
    async fn find_next(&mut self) {
        self.read_list().await;
        let is_near = self.timed().filter(|&at| in_time(at) <= LEAD);
        let mut why = None;
        let mut first = None;
        let mut cut = None;
        if let Some(at) = is_near.filter(|&at| self.now.is_some() || in_time(at).is_zero()) {
            (cut, first) = (Some(at), self.desk.next_timed().map(|(_, item)| item));
        } else if let Some(now) = &self.now {
            let at_once = now.item.is_endless || self.is_left;
            cut = at_once.then(Instant::now);
        }
        let is_timed = first.is_some();
        let is_fill = self.now.as_ref().is_some_and(|now| now.item.is_fill());
        if let Some((item, title, range)) = self.rest.take()
            && let Ok(playing) = self.prime_range(item, title, range).await
        {
            return self.take(playing, None);
        }
        for _ in 0..self.desk.len().clamp(1, TRIES_MAX) {
            let Some(item) = first.take().or_else(|| self.desk.next()) else { break };
            let path = item.path.clone();
            match self.prime(item).await {
                Ok(playing) => {
                    self.last = Some(path);
                    return self.take(playing, cut);
                }
                Err(reason) => {
                    self.board.skip(&path, &reason);
                    // What has its time and is not there breaks nothing off.
                    if is_timed && self.now.is_some() {
                        self.again = Instant::now();
                        return;
                    }
                    why = Some(format!("{path}: {reason}"));
                }
            }
        }
        self.again = Instant::now() + AGAIN;
        // What is sent until something better comes, is sent already.
        if is_fill {
            return;
        }
        if let Some(fill) = self.desk.fill() {
            let path = fill.path.clone();
            match self.prime(fill).await {
                Ok(playing) => return self.take(playing, cut),
                Err(reason) => why = why.or(Some(format!("{path}: {reason}"))),
            }
        }
        if self.now.is_some() {
            return;
        }
        // Nobody goes on in this session.
        if let Some(before) = self.before.take() {
            drop(before);
            self.again = Instant::now() + RETURN;
        }
        self.close_session();
        match (why, self.desk.time()) {
            (Some(why), _) => self.board.wait(why),
            (None, _) if self.desk.is_over() => self.board.end(),
            (None, Some(_)) => self.board.wait("its time has not come".into()),
            (None, None) => self.board.wait("there is no title".into()),
        }
    }

    /// Takes what was begun as what is sent, or as what follows.
    fn take(&mut self, mut playing: Playing, cut: Option<Instant>) {
        if self.now.is_some() {
            self.board.next(&playing.item.path);
            self.next = Some(Next { playing, cut, since: Instant::now() });
            return;
        }
        playing.begin();
        self.board.begin(
            &playing.item.path,
            playing.grant.place(),
            playing.rate,
            playing.item.is_fill(),
        );
        self.now = Some(playing);
        self.foresee();
    }

    /// Says what follows, as far as it is known.
    fn foresee(&self) {
        if let (Some(now), Some(next)) = (&self.now, self.desk.peek())
            && !now.item.is_endless
        {
            self.board.next(next);
        }
    }

    /// Has the engine read a title ahead, behind what is sent.
    async fn prime(&mut self, item: Item) -> Result<Playing, String> {
        let path = path_of(&item.path)?;
        let title = self.title(&path).await?;
        let range = packets::range(&title).await?;
        self.prime_range(item, title, range).await
    }

    async fn prime_range(
        &mut self,
        item: Item,
        title: Arc<OpenTitle>,
        range: Range<u64>,
    ) -> Result<Playing, String> {
        let path = path_of(&item.path)?;
        let (rate, plan, lasts) = self.plan(&title, &path, &range).await?;
        let outlet = match &self.outlet {
            Some(outlet) => Arc::clone(outlet),
            None => self.open().map_err(|error| {
                format!("no socket can be had for it: {error}; check `interface` and `source`")
            })?,
        };
        let after = self.now.as_ref().map(|now| now.sending.stream());
        let after = after.or(self.before.as_ref().map(|(_, stream)| *stream));
        let rate_out = self.channel.stuff.unwrap_or(rate);
        if after.is_none() {
            self.open_session(&outlet, rate_out);
        }
        let form = match self.channel.to.kind {
            Kind::Udp => Form::Udp,
            Kind::Rtp => Form::Rtp(self.session),
        };
        let (burst, plan) = (self.channel.burst, plan.map(Arc::new));
        let target = Target { outlet, to: self.channel.to.to, form, burst, plan, after };
        let broker = &self.house.broker;
        let turn = item.is_endless.then_some(Bytes(range.end - range.start));
        let grant = broker.admit_turns(&title, rate, &target, turn);
        let mut grant = grant.map_err(|refusal| refusal.to_string())?;
        let repeats = item.is_endless;
        let sending =
            broker.begin_sending(&mut grant, &title, range.clone(), repeats, target).await;
        let sending = sending.map_err(|outcome| format!("it ended: {outcome:?}"))?;
        let (ends, is_stopped) = (None, false);
        let rate = rate_out;
        Ok(Playing { item, title, grant, sending, range, rate, lasts, ends, is_stopped })
    }

    /// The rate to reserve, what is to be known of its bytes before they leave (nothing of a constant rate that leaves
    /// once and alone), and how long a turn of it lasts.
    async fn plan(
        &self,
        title: &OpenTitle,
        path: &RequestPath,
        range: &Range<u64>,
    ) -> Result<(BitRate, Option<Plan>, Duration), String> {
        let channel = &self.channel;
        let index = self.index(title, path).await?;
        let block = self.house.broker.block_of(title.volume);
        let known = index.as_ref().ok().and_then(|index| {
            let (plan, rate) = Plan::of(index, range.clone(), block)?;
            Some((index, plan, rate))
        });
        let line = known.as_ref().and_then(|(index, ..)| Line::of(index, range.start, range.end));
        let ticks = line.as_ref().map(Line::duration);
        let of_rate =
            |rate: BitRate| Duration::from_nanos(rate.time_for(Bytes(range.end - range.start)).0);
        // A tick of 27 MHz is 1000/27 ns.
        let own =
            |rate| ticks.map_or(of_rate(rate), |ticks| Duration::from_nanos(ticks.0 / 27 * 1000));
        let is_single = self.desk.is_single() && self.now.is_none() && self.before.is_none();
        let keeps = |plan: Plan| (!is_single || plan.line.is_some()).then_some(plan);
        match (channel.stuff, channel.rate, known) {
            (Some(stuff), _, Some((index, plan, rate))) => {
                let fastest = index.rates().map_or(rate, |rates| rates.max);
                if stuff < fastest {
                    return Err(format!(
                        "its fastest second has {fastest}, which null packets cannot make {stuff}; give \
                         `stuff` a rate above that"
                    ));
                }
                Ok((rate, Some(plan.stuffed(stuff)), own(rate)))
            }
            (Some(_), _, None) => {
                let why = index.err().map_or("it lasts no time".into(), |fault| fault.to_string());
                Err(format!("null packets cannot be put where they belong: {why}"))
            }
            (None, Auto::Auto, Some((_, plan, rate))) if !is_single => {
                Ok((rate, Some(plan), own(rate)))
            }
            (None, Auto::Auto, Some((_, plan, rate))) => {
                // Of what leaves once nothing is changed.
                Ok((rate, keeps(Plan { stamps: None, ..plan }), own(rate)))
            }
            // Not by its own clock, or by none: counters are kept, and clocks by what a turn of them takes.
            (None, ..) => {
                let stamps = Some(Stamps { turn: ticks, ..Stamps::default() });
                let rate = self.rate(title, path).await?;
                Ok((rate, keeps(Plan { stamps, ..Plan::default() }), of_rate(rate)))
            }
        }
    }

    /// The title's times; why it has none, where it has none.
    async fn index(
        &self,
        title: &OpenTitle,
        path: &RequestPath,
    ) -> Result<Result<Arc<Index>, IndexFault>, String> {
        for _ in 0..INDEX_TRIES {
            match self.house.catalogue.index(title, path).await {
                Ok(Indexed::Ready(index)) => return Ok(Ok(index)),
                Ok(Indexed::Never(fault)) => return Ok(Err(fault)),
                // Each time it is waited for a little.
                Ok(Indexed::Coming) => {}
                Err(fault) => return Err(fault.to_string()),
            }
        }
        Err("the title's times are being found out".into())
    }

    /// The outlet, and what goes by it beside the packets.
    fn open(&mut self) -> std::io::Result<Outlet> {
        let outlet = self.house.outlets.get(&self.channel)?;
        let socket = UdpSocket::from(outlet.try_clone()?);
        let from = self.channel.source.or_else(|| source_of(&self.channel));
        let number = clock::wall_now().0 / 1_000_000_000;
        let text = session::describe(&self.channel, from, number).to_string();
        self.board.describe(text.clone(), session::url(&self.channel, from));
        if let (true, true, Some(from)) =
            (self.channel.announced, self.channel.to.to.ip().is_multicast(), from)
        {
            self.announcement = Some(Announcement::new(socket, &self.channel, text, from));
        }
        self.outlet = Some(Arc::clone(&outlet));
        Ok(outlet)
    }

    fn open_session(&mut self, outlet: &Outlet, rate: BitRate) {
        self.close_session();
        self.session = session::new();
        if self.channel.to.kind == Kind::Rtp
            && let Ok(socket) = outlet.try_clone()
        {
            let (to, name) = (self.channel.to.to, &self.channel.name);
            self.reports = Reports::new(UdpSocket::from(socket), to, self.session, name, rate);
        }
    }

    fn close_session(&mut self) {
        if let Some(reports) = self.reports.take() {
            reports.end();
        }
    }

    async fn title(&self, path: &RequestPath) -> Result<Arc<OpenTitle>, String> {
        match self.house.catalogue.find(path).await {
            Ok(Found::Title(title)) if title.following.is_some() => {
                Err("the title still comes in; it is sent when all of it is stored".into())
            }
            Ok(Found::Title(title)) => Ok(title),
            Ok(Found::Directory(_)) => Err("this is a directory; name one title".into()),
            Err(fault) => Err(fault.to_string()),
        }
    }

    async fn rate(&self, title: &OpenTitle, path: &RequestPath) -> Result<BitRate, String> {
        if let Auto::Set(rate) = self.channel.rate {
            return Ok(rate);
        }
        let facts = self.house.catalogue.media(title, path).await;
        match facts.map_err(|fault| fault.to_string())? {
            Some(facts) => Ok(facts.rate),
            None => {
                Err("the title has no clock to find its rate by; give the channel a `rate`".into())
            }
        }
    }

    /// Reads the list as it is now; one that cannot be read stays as it was.
    async fn read_list(&mut self) {
        let titles = match &self.channel.programme.list {
            List::Titles(titles) => Ok(titles.clone()),
            List::File(file) => match path_of(file) {
                Ok(path) => match self.title(&path).await {
                    Ok(found) => list::read(&found, file).await,
                    Err(reason) => Err(reason),
                },
                Err(reason) => Err(reason),
            },
        };
        match titles {
            Ok(titles) => self.desk.read(titles, self.last.as_deref()),
            Err(reason) => {
                if let List::File(file) = &self.channel.programme.list {
                    self.board.skip(file, &reason);
                }
            }
        }
    }

    /// What was sent has ended.
    fn ended(&mut self, outcome: Outcome) {
        let Some(gone) = self.now.take() else { return };
        let was_left = gone.is_stopped || std::mem::take(&mut self.is_left);
        self.is_left = false;
        match outcome {
            Outcome::Complete => {}
            Outcome::Stopped if was_left => {}
            _ => self.board.skip(&gone.item.path, &format!("it ended: {outcome:?}")),
        }
        let Playing { item, title, grant, sending, range, .. } = gone;
        self.before = Some((grant, sending.stream()));
        self.again = Instant::now();
        if let Some(Next { mut playing, .. }) = self.next.take() {
            playing.begin();
            let Playing { item, grant, rate, .. } = &playing;
            self.board.begin(&item.path, grant.place(), *rate, item.is_fill());
            self.now = Some(playing);
            return self.foresee();
        }
        match outcome {
            Outcome::Unreadable { block, .. } | Outcome::Damaged { block } if !item.is_endless => {
                let size = self.house.broker.block_of(title.volume);
                let rest = behind(&range, (block + 1) * size.0);
                self.rest = (rest.start < rest.end).then_some((item, title, rest));
            }
            // Somebody needs the disk more than channels do.
            Outcome::Stopped if !was_left => {
                self.before = None;
                self.again = Instant::now() + AGAIN;
                self.board.wait("the disk is slower than it was measured".into());
            }
            Outcome::Complete | Outcome::Stopped => {}
            // Where all of them fail at once, nobody is asked all the time.
            _ => self.again = Instant::now() + REST,
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Skip => match &mut self.next {
                Some(next) => next.cut = Some(Instant::now()),
                None => self.is_left = self.now.is_some(),
            },
            Order::Next(title) => {
                self.take_back(|item| item.origin == Origin::List);
                if !self.desk.wish(title) {
                    tracing::warn!(channel = self.channel.name, "too many titles are wished for");
                }
            }
            Order::Change(channel) => {
                self.take_back(|_| true);
                let programme = channel.programme.clone();
                self.board.change((*channel).clone());
                self.channel = *channel;
                self.desk.change(programme, clock::wall_now());
                self.is_changed = true;
            }
        }
        self.foresee();
        self.again = Instant::now();
    }

    /// What waits is not to follow after all, unless it has begun already.
    fn take_back(&mut self, concerns: impl Fn(&Item) -> bool) {
        let is_sent = self.now.as_ref().is_some_and(|now| {
            let counters = self.house.broker.counters_of(now.grant.place());
            !now.is_stopped && counters.is_some_and(|counters| counters.rate.value() != 0)
        });
        if let Some(next) = self.next.take_if(|next| is_sent && concerns(&next.playing.item)) {
            self.desk.give_back(next.playing.item);
        }
    }

    async fn end(mut self) {
        self.tell();
        self.next = None;
        if let Some(mut now) = self.now.take() {
            self.house.broker.stop(&now.grant);
            now.sending.ended().await;
        }
        self.close_session();
        if let Some(announcement) = self.announcement.take() {
            announcement.end();
        }
    }
}

impl Playing {
    /// It is sent from now on.
    fn begin(&mut self) {
        self.ends = (!self.item.is_endless).then(|| Instant::now() + self.lasts);
    }
}

/// The end of what is sent; without end when nothing is.
async fn ended(now: &mut Option<Playing>) -> (Outcome, u64) {
    match now {
        Some(now) => now.sending.ended().await,
        None => std::future::pending().await,
    }
}

/// What of a range of whole packets lies behind a byte of its title.
fn behind(range: &Range<u64>, byte: u64) -> Range<u64> {
    let packets = byte.saturating_sub(range.start).div_ceil(PACKET as u64);
    (range.start + packets * PACKET as u64).min(range.end)..range.end
}

fn in_time(at: Instant) -> Duration {
    at.saturating_duration_since(Instant::now())
}

fn path_of(title: &str) -> Result<RequestPath, String> {
    RequestPath::parse(title.as_bytes())
        .map_err(|_| format!("{title:?} is no path; write it as in a URL"))
}

/// The address from which a channel's packets come, as the kernel's routes have it.
fn source_of(channel: &Channel) -> Option<IpAddr> {
    let any = match channel.to.to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    };
    // No packet leaves: it only asks the routes. A group that an interface was named for may have another
    // one; whoever wants to be sure names the `source`.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(channel.to.to).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_bad_block_it_goes_on_with_a_whole_packet() {
        assert_eq!(behind(&(3..3 + 188 * 10), 0), 3..1883);
        assert_eq!(behind(&(3..3 + 188 * 10), 4), 191..1883);
        assert_eq!(behind(&(3..3 + 188 * 10), 191), 191..1883);
        assert_eq!(behind(&(3..3 + 188 * 10), 9999), 1883..1883);
    }
}
