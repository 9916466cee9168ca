//! One channel at work: has the next title read ahead before the one that is sent ends, and takes another
//! where one cannot be had.
//!
//! Promise: as long as there is anything that can be sent something is; the title that follows is at the
//! engine before its time, and begins where the one before it ends. A title that somebody has left, whose
//! time is over, or that cannot be read further, makes way at a packet's end. What waits keeps its place until
//! another one can take it: whatever is ordered, and however near the end is, something follows.

mod plan;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_core::datagrams::{Counting, Form, Line, Plan, Session, Stamps};
use tactus_core::path::RequestPath;
use tactus_core::ts::{Index, IndexFault, PACKET};
use tactus_core::units::{BitRate, Bytes};
use tactus_engine::counters::StreamCounters;
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
use crate::config::class::Terms;
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
    /// What announcements of it say, and the address that they come from.
    described: Option<(String, IpAddr)>,
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
    /// Something else is to follow: it begins only if that is not there in time, and is left then.
    is_unwanted: bool,
    /// The title of the list that was begun last before it.
    last: Option<String>,
}

/// Why a title is not taken.
enum Missed {
    Because(String),
    /// What waits may begin at any moment.
    Late(Item),
}

impl From<String> for Missed {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

/// How long before its time a title is looked for, admitted and read ahead. Its room counts twice so long.
const LEAD: Duration = Duration::from_secs(20);
/// What is not there, or has no room, is looked for again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// Between titles that fail.
const REST: Duration = Duration::from_secs(1);
/// So soon the engine has given back what a title had.
const RETURN: Duration = Duration::from_millis(300);
/// Nearer to the end of what is sent nothing takes the place of what waits: the engine would have the one before it has
/// heard of the other.
const KEEP: Duration = Duration::from_secs(2);
/// A title that is not read ahead after this is cut to all the same.
const PRIME_MAX: Duration = Duration::from_secs(15);
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
            described: None,
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
                (outcome, sent) = ended(&mut self.now) => self.ended(outcome, sent),
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
        let is_wanted = self.next.as_ref().is_some_and(|next| !next.is_unwanted);
        let is_due = match &self.now {
            None => Instant::now() >= self.again,
            Some(now) if is_wanted || now.is_stopped => false,
            // Nobody can follow what has not begun.
            Some(_) if Instant::now() < self.again || !self.has_begun() => false,
            Some(now) => {
                let is_near = |end: Option<Instant>| end.is_some_and(|end| in_time(end) <= LEAD);
                let is_asked = self.is_left || self.is_abandoned(now);
                is_near(now.ends) || is_near(self.timed()) || is_asked || now.item.is_fill()
            }
        };
        if is_due {
            self.find_next().await;
        } else if !is_wanted && Instant::now() >= self.again && self.has_begun() {
            // Nothing has to follow.
            self.make_way();
        }
        self.cut();
    }

    /// Whether anything can have left of what is sent.
    fn has_begun(&self) -> bool {
        self.counter_of_now(|counters| counters.epoch.value()) != 0
    }

    /// Whether the packet server has what is sent: before it has begun, and not behind its end.
    fn is_open(&self) -> bool {
        self.counter_of_now(|counters| counters.rate.value()) != 0
    }

    fn counter_of_now(&self, value: impl Fn(&StreamCounters) -> u64) -> u64 {
        let now = self.now.as_ref();
        let counters = now.and_then(|now| self.house.broker.counters_of(now.grant.place()));
        counters.map_or(0, value)
    }

    /// Drops what waits and is unwanted, unless it may begin at any moment; whether nothing waits.
    fn make_way(&mut self) -> bool {
        let ends = self.now.as_ref().and_then(|now| now.ends);
        let is_far = ends.is_none_or(|ends| in_time(ends) > KEEP) && self.is_open();
        if is_far {
            self.next.take_if(|next| next.is_unwanted);
        }
        self.next.is_none()
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
        let next = self.next.as_ref().filter(|next| !next.is_unwanted);
        match (&self.now, next) {
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
        let begins = self.now.is_some() && (self.before.is_some() || !self.has_begun());
        by(begins.then(|| Instant::now() + LOOK));
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
        let is_time =
            |cut: &Instant| *cut <= Instant::now() && !now.is_stopped && !next.is_unwanted;
        let Some(cut) = next.cut.filter(is_time) else { return };
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
            let (path, origin) = (item.path.clone(), item.origin);
            match self.prime(item).await {
                Ok(playing) => {
                    let last = self.last.clone();
                    if origin == Origin::List {
                        self.last = Some(path);
                    }
                    self.take(playing, cut);
                    if let Some(next) = &mut self.next {
                        next.last = last;
                    }
                    return;
                }
                Err(Missed::Late(item)) => return self.put_off(item),
                Err(Missed::Because(reason)) => {
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
                Err(Missed::Late(_)) => return,
                Err(Missed::Because(reason)) => why = why.or(Some(format!("{path}: {reason}"))),
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
            let (since, is_unwanted, last) = (Instant::now(), false, None);
            self.next = Some(Next { playing, cut, since, is_unwanted, last });
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

    /// What waits begins first: then this one is looked for again.
    fn put_off(&mut self, item: Item) {
        match item.origin {
            Origin::Time => self.desk.wish_first(item.path),
            _ => self.desk.give_back(item),
        }
        self.again = Instant::now() + REST;
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
    async fn prime(&mut self, item: Item) -> Result<Playing, Missed> {
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
    ) -> Result<Playing, Missed> {
        let path = path_of(&item.path)?;
        let (rate, plan, lasts) = self.plan(&title, &path, &range).await?;
        let terms = self.channel.terms(&self.house.classes)?;
        // What takes its time is done: from here on it is the engine's.
        if !self.make_way() {
            return Err(Missed::Late(item));
        }
        let outlet = match &self.outlet {
            Some(outlet) => Arc::clone(outlet),
            None => self.open(terms).map_err(|error| {
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
        let (burst, plan) = (terms.burst, Some(Arc::new(plan)));
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

    /// The outlet, and what goes by it beside the packets.
    fn open(&mut self, terms: Terms) -> std::io::Result<Outlet> {
        let outlet = self.house.outlets.get(&self.channel, terms)?;
        let from = self.channel.source.or_else(|| source_of(&self.channel));
        let number = clock::wall_now().0 / 1_000_000_000;
        let text = session::describe(&self.channel, from, number).to_string();
        self.board.describe(text.clone(), session::url(&self.channel, from));
        self.outlet = Some(Arc::clone(&outlet));
        self.described = from.map(|from| (text, from));
        self.announce();
        Ok(outlet)
    }

    /// Begins or ends its announcement, as its configuration has it; nothing before it has an outlet.
    fn announce(&mut self) {
        let is_wanted = self.channel.announced && self.channel.to.to.ip().is_multicast();
        match (is_wanted, self.announcement.take()) {
            (true, None) => {
                let (Some(outlet), Some((text, from))) = (&self.outlet, &self.described) else {
                    return;
                };
                self.announcement = outlet.try_clone().ok().map(|socket| {
                    Announcement::new(UdpSocket::from(socket), &self.channel, text.clone(), *from)
                });
            }
            (true, known) => self.announcement = known,
            (false, known) => known.into_iter().for_each(Announcement::end),
        }
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
    fn ended(&mut self, outcome: Outcome, sent: u64) {
        let Some(gone) = self.now.take() else { return };
        let was_left = gone.is_stopped || std::mem::take(&mut self.is_left);
        self.is_left = false;
        match outcome {
            Outcome::Complete => {}
            Outcome::Stopped if was_left => {}
            _ => self.board.skip(&gone.item.path, &format!("it ended: {outcome:?}")),
        }
        let Playing { item, title, grant, sending, range, .. } = gone;
        // Where nothing of it has left, whoever it was to follow is still the last.
        if self.before.is_none() || sent > 0 {
            self.before = Some((grant, sending.stream()));
        }
        self.again = Instant::now();
        if let Some(Next { mut playing, is_unwanted, .. }) = self.next.take() {
            self.is_left = is_unwanted;
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
            Order::Skip => match self.next.as_mut().filter(|next| !next.is_unwanted) {
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
                self.announce();
            }
        }
        self.foresee();
        self.again = Instant::now();
    }

    /// What waits is not to follow after all, unless it has begun already.
    fn take_back(&mut self, concerns: impl Fn(&Item) -> bool) {
        let is_sent = self.now.as_ref().is_some_and(|now| !now.is_stopped) && self.is_open();
        let Some(next) = &mut self.next else { return };
        if is_sent && !next.is_unwanted && concerns(&next.playing.item) {
            next.is_unwanted = true;
            if next.playing.item.origin == Origin::List {
                self.last = next.last.take();
            }
            self.desk.give_back(next.playing.item.clone());
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
