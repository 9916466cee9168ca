//! Runs one channel: primes the next title before the current one ends, and takes another one if
//! that fails. `timing` decides what is due and when.
//!
//! Promise: while any title can be sent, one is sent. The next title is at the engine before its
//! time and starts where the current one ends. A title that is skipped, whose time is over or whose
//! data cannot be read ends at a packet boundary. A primed title stays until another one can
//! replace it, so a title follows however near the end is.

mod plan;
mod search;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_control::broker::{DeliverySpec, Grant, Output, Running, Source, UdpOutput};
use tactus_control::class::SendOptions;
use tactus_core::datagrams::{Counting, Framing, Plan, Restamping, Session, Sound};
use tactus_core::path::RequestPath;
use tactus_core::polyline::Polyline;
use tactus_core::units::{BitRate, Bytes, MonoTime};
use tactus_engine::counters::StreamCounters;
use tactus_engine::message::{Extent, Outcome, StreamId};
use tactus_notation::Auto;
use tactus_storage::catalogue::OpenTitle;
use tactus_sys::clock;
use tokio::sync::mpsc;

use super::content::{self, Content, ContentKind};
use super::live::{Live, PartSpec};
use super::rundown::{Item, Origin, Rundown};
use super::session::{self, Announcement, Reports};
use super::status::Board;
use super::timing::{AGAIN, Act, CurrentTitle, Facts, PrimedTitle, Search, Skip};
use super::title::{self, path_of};
use super::{Shared, list};
use crate::channel::{Channel, List};
use crate::recording::Kind;

/// An order to a channel. Dropping the sender ends it.
#[derive(Debug)]
pub(super) enum Order {
    /// Use another playlist.
    Change(Box<Channel>),
    /// Skip the current title.
    Skip,
    /// Send this title next.
    Next(String),
}

/// Runs one channel.
pub(super) struct Runner {
    board: Arc<Board>,
    live: Arc<Live>,
    shared: Arc<Shared>,
    orders: mpsc::Receiver<Order>,
    channel: Channel,
    rundown: Rundown,
    udp_output: Option<Arc<UdpOutput>>,
    /// The current title.
    now: Option<PlayingTitle>,
    /// The primed title.
    next: Option<NextTitle>,
    /// The predecessor of the current title, held until the current one has started.
    before: Option<(Grant, StreamId)>,
    session: Session,
    reports: Option<Reports>,
    announcement: Option<Announcement>,
    /// The description to announce, and its source address.
    described: Option<(String, IpAddr)>,
    /// When a failed search is repeated.
    again: Instant,
    /// The same for timed titles.
    timed_again: Instant,
    /// Titles requested so far.
    requests: u64,
    /// The search in progress.
    search: Option<Search>,
    /// When the list was read; `None` after a change of the playlist.
    list_read: Option<Instant>,
    /// The rest of a title after an unreadable block.
    rest: Option<(Item, Arc<OpenTitle>, Content)>,
}

/// A title at the engine.
struct PlayingTitle {
    item: Item,
    title: Arc<OpenTitle>,
    grant: Grant,
    sending: Running,
    content: Content,
    plan: Arc<Plan>,
    /// The rate that is read, and the rate that leaves.
    rate: BitRate,
    out: BitRate,
    /// The duration of one turn.
    lasts: Duration,
    /// When it ends, if it does.
    ends: Option<Instant>,
    /// It was stopped.
    is_stopped: bool,
    /// It was skipped.
    is_left: bool,
    /// It was replaced: it starts only if the replacement is late, and is skipped then.
    is_unwanted: bool,
}

/// A primed title.
struct NextTitle {
    playing: PlayingTitle,
    /// When it cuts the current title; `None` at the natural end.
    cut: Option<Instant>,
    since: Instant,
}

/// Why a title is not taken.
enum Miss {
    Because(String),
    /// The primed title may start at any moment.
    Late,
}

impl From<String> for Miss {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

/// Pause between titles that fail.
const REST: Duration = Duration::from_secs(1);
/// How long a channel that begins with others waits until they are counted.
const GATHERING: Duration = Duration::from_millis(200);

impl Runner {
    pub(super) fn new(
        (board, live): (Arc<Board>, Arc<Live>),
        shared: Arc<Shared>,
        orders: mpsc::Receiver<Order>,
    ) -> Self {
        let channel = board.channel();
        let rundown = Rundown::new(channel.playlist.clone(), clock::wall_now());
        Self {
            board,
            live,
            shared,
            orders,
            channel,
            rundown,
            udp_output: None,
            now: None,
            next: None,
            before: None,
            session: session::new(),
            reports: None,
            announcement: None,
            described: None,
            again: Instant::now(),
            timed_again: Instant::now(),
            requests: 0,
            search: None,
            list_read: None,
            rest: None,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.tell();
            self.step().await;
            self.board.count_requests(self.requests - self.rundown.requests());
            let wake = tokio::time::Instant::from_std(self.wake());
            tokio::select! {
                // Orders apply to the title that is sent when they arrive.
                biased;
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

    /// Executes the first due act.
    async fn step(&mut self) {
        match self.facts().act() {
            None => {}
            Some(Act::Cut) => self.stop(),
            Some(Act::Read) => {
                self.read_list().await;
                self.foresee();
                self.search = None;
            }
            Some(Act::FindTimed) => self.find_timed().await,
            Some(Act::FindNext) => self.find_next().await,
            Some(Act::MakeWay) => drop(self.make_way()),
        }
    }

    /// When to look again.
    fn wake(&self) -> Instant {
        let announces = self.announcement.as_ref().map(Announcement::due);
        let reports = self.reports.as_ref().filter(|_| self.now.is_some()).map(Reports::due);
        announces.into_iter().chain(reports).fold(self.facts().wake(), Instant::min)
    }

    fn facts(&self) -> Facts {
        let now = Instant::now();
        let timed = self
            .rundown
            .time()
            .map(|time| now + Duration::from_nanos(time.0.saturating_sub(clock::wall_now().0)));
        let sent = self.now.as_ref().map(|sent| {
            let makes_way = sent.item.is_fill() || !self.rundown.keeps(&sent.item);
            CurrentTitle {
                ends: sent.ends,
                // Until then it holds the place of its predecessor.
                has_begun: self.before.is_none()
                    && self.counter(sent, |each| each.epoch.value()) != 0,
                is_open: self.counter(sent, |each| each.rate.value()) != 0,
                is_stopped: sent.is_stopped,
                is_left: sent.is_left || sent.is_unwanted || makes_way,
            }
        });
        let waiting = self.next.as_ref().map(|next| PrimedTitle {
            cut: next.cut,
            since: next.since,
            // The packet server sets the rate when the first blocks are in memory.
            is_ready: self.counter(&next.playing, |each| each.rate.value()) != 0,
            is_unwanted: next.playing.is_unwanted,
        });
        // A playlist of one title in the configuration needs no reading.
        let is_file = matches!(self.channel.playlist.list, List::File(_));
        let looped = self.now.as_ref().filter(|sent| is_file && sent.item.is_endless);
        let reads = match self.list_read {
            None => Some(now),
            Some(read) => looped.map(|sent| read + sent.lasts.max(AGAIN)),
        };
        let (again, timed_again) = (self.again, self.timed_again);
        Facts { now, again, timed, timed_again, reads, sent, waiting }
    }

    fn counter(&self, playing: &PlayingTitle, value: impl Fn(&StreamCounters) -> u64) -> u64 {
        self.shared.broker.counters_of(playing.grant.slot()).map_or(0, value)
    }

    /// Drops the primed title unless it may start at any moment. True if none is primed afterwards.
    fn make_way(&mut self) -> bool {
        if self.facts().may_make_way() {
            self.take_back(|_| true);
            self.next = None;
        }
        self.next.is_none()
    }

    /// Stops the current title at a packet boundary.
    fn stop(&mut self) {
        if let Some(now) = &mut self.now {
            now.is_stopped = true;
            now.grant.stop();
        }
    }

    /// Polls reports and announcements, and releases the predecessor.
    fn tell(&mut self) {
        if let Some(announcement) = &mut self.announcement {
            announcement.poll();
        }
        let Some(now) = &self.now else { return };
        let Some(counters) = self.shared.broker.counters_of(now.grant.slot()) else { return };
        if counters.epoch.value() != 0 {
            self.before = None;
        }
        if let Some(reports) = &mut self.reports {
            reports.poll(counters);
        }
    }

    /// Adds a started title as the current or as the primed one.
    fn take(&mut self, playing: PlayingTitle, cut: Option<Instant>) {
        if self.now.is_some() {
            self.board.next(&playing.item.path);
            self.next = Some(NextTitle { playing, cut, since: Instant::now() });
        } else {
            self.begin(playing);
        }
    }

    /// Makes it the current title.
    fn begin(&mut self, mut playing: PlayingTitle) {
        playing.ends = (!playing.item.is_endless).then(|| Instant::now() + playing.lasts);
        let PlayingTitle { item, title, grant, content, plan, rate, out, .. } = &playing;
        self.board.begin(&item.path, grant.slot(), *out, item.is_fill());
        if self.channel.sound.is_none() {
            self.live.begin(PartSpec {
                title: Arc::clone(title),
                range: content.bytes.clone(),
                plan: Arc::clone(plan),
                rates: [*rate, *out],
                is_endless: item.is_endless,
                slot: grant.slot(),
            });
        }
        self.now = Some(playing);
        self.foresee();
    }

    /// Publishes the next title, as far as it is known.
    fn foresee(&self) {
        if let (Some(now), Some(next)) = (&self.now, self.rundown.peek())
            && !now.item.is_endless
        {
            self.board.next(next);
        }
    }

    /// Primes a title at the engine, behind the current one.
    async fn prime(&mut self, item: Item) -> Result<PlayingTitle, Miss> {
        let path = path_of(&item.path)?;
        let title = self.title(&path).await?;
        let content = content::find(&self.channel, &title).await?;
        self.prime_range(item, title, content).await
    }

    async fn prime_range(
        &mut self,
        item: Item,
        title: Arc<OpenTitle>,
        content: Content,
    ) -> Result<PlayingTitle, Miss> {
        let path = path_of(&item.path)?;
        let (rate, mut plan, lasts) = self.plan(&title, &path, &content).await?;
        let range = content.bytes.clone();
        let send_options = self.channel.send_options(&self.shared.classes)?;
        // The slow part is done. From here on the title is at the engine and replaces the primed
        // one.
        if !self.make_way() {
            return Err(Miss::Late);
        }
        let udp_output = match &self.udp_output {
            Some(udp_output) => Arc::clone(udp_output),
            None => self.open(send_options).map_err(|error| {
                format!(
                    "cannot open a socket for this channel: {error}; check `interface` and \
                    `source`"
                )
            })?,
        };
        let after = self.now.as_ref().map(|now| now.sending.stream());
        let after = after.or(self.before.as_ref().map(|(_, stream)| *stream));
        if after.is_none() {
            self.open_session(&udp_output, self.channel.stuff.unwrap_or(rate));
            plan.begin = self.common_begin().await;
        }
        let framing = self.framing(content.kind);
        let rate_out = self.channel.stuff.unwrap_or(framing.rate_out(rate));
        let to = super::address_of(&self.channel);
        let output = Output::datagrams_after(&udp_output, to, send_options.burst, after);
        let broker = &self.shared.broker;
        let turn = item.is_endless.then_some(Bytes(range.end - range.start));
        let spec =
            DeliverySpec::datagrams(broker, &title, [rate, rate_out], (framing, &output), turn);
        let grant = broker.admit(&spec);
        let mut grant = grant.map_err(|refusal| refusal.to_string())?;
        let bytes = Bytes(range.start)..Bytes(range.end);
        let extent = if item.is_endless { Extent::Repeating(bytes) } else { Extent::Range(bytes) };
        let plan = Arc::new(plan);
        let source = Source::Blocks { extent, framing, plan: Some(Arc::clone(&plan)) };
        let sending = grant.start(&title, source, output).await;
        let sending = sending.map_err(|ended| format!("sending ended: {:?}", ended.outcome))?;
        let (out, ends, is_stopped, is_left, is_unwanted) = (rate_out, None, false, false, false);
        Ok(PlayingTitle {
            item,
            title,
            grant,
            sending,
            content,
            plan,
            rate,
            out,
            lasts,
            ends,
            is_stopped,
            is_left,
            is_unwanted,
        })
    }

    /// The framing of a title in the session.
    fn framing(&self, content: ContentKind) -> Framing {
        let session = self.session;
        match (content, self.channel.sound, self.channel.to.kind) {
            (ContentKind::Samples { width, .. }, Some(format), _) => {
                Framing::Sound(Sound { session, format, width })
            }
            (_, _, Kind::Udp) => Framing::Plain,
            (_, _, Kind::Rtp) => Framing::Rtp(session),
        }
    }

    /// When the channel begins together with others; `None` if it does not.
    async fn common_begin(&self) -> Option<MonoTime> {
        let name = self.channel.sync.as_ref()?;
        // Channels that are added one after the other count, too.
        tokio::time::sleep(GATHERING).await;
        let all =
            self.shared.entries().iter().filter(|entry| entry.board.begins_with(name)).count();
        Some(self.shared.meetings.meet(name, all).await)
    }

    /// Opens the UDP output, the reports and the announcement.
    fn open(&mut self, send_options: SendOptions) -> std::io::Result<Arc<UdpOutput>> {
        let udp_output = self.shared.udp_outputs.get(&self.channel, send_options)?;
        let from = self.channel.source.or_else(|| source_of(&self.channel));
        let number = clock::wall_now().0 / 1_000_000_000;
        let text = session::describe(&self.channel, from, number).to_string();
        // A URL does not tell the format of sound.
        let url = self.channel.sound.is_none().then(|| session::url(&self.channel, from));
        self.board.describe(text.clone(), url);
        self.udp_output = Some(Arc::clone(&udp_output));
        self.described = from.map(|from| (text, from));
        self.announce();
        Ok(udp_output)
    }

    /// Starts or stops the announcement as configured; not before there is a UDP output.
    fn announce(&mut self) {
        let is_wanted = self.channel.announced && self.channel.to.to.ip().is_multicast();
        match (is_wanted, self.announcement.take()) {
            (true, None) => {
                let (Some(udp_output), Some((text, from))) = (&self.udp_output, &self.described)
                else {
                    return;
                };
                self.announcement = udp_output.try_clone().ok().map(|socket| {
                    Announcement::new(UdpSocket::from(socket), &self.channel, text.clone(), *from)
                });
            }
            (true, known) => self.announcement = known,
            (false, known) => known.into_iter().for_each(Announcement::end),
        }
    }

    fn open_session(&mut self, udp_output: &UdpOutput, rate: BitRate) {
        self.close_session();
        self.session = session::new();
        if self.channel.sound.is_some() {
            self.session.timestamp = session::media_clock();
        }
        if self.channel.to.kind == Kind::Rtp
            && let Ok(socket) = udp_output.try_clone()
        {
            self.reports = Reports::new(UdpSocket::from(socket), &self.channel, self.session, rate);
        }
    }

    fn close_session(&mut self) {
        if let Some(reports) = self.reports.take() {
            reports.end();
        }
    }

    /// Reads the list. An unreadable list stays as it was.
    async fn read_list(&mut self) {
        let titles = match &self.channel.playlist.list {
            List::Titles(titles) => Ok(titles.clone()),
            List::File(file) => match path_of(file) {
                Ok(path) => match self.title(&path).await {
                    Ok(found) => list::read(&found, file).await,
                    Err(reason) => Err(reason),
                },
                Err(reason) => Err(reason),
            },
        };
        self.list_read = Some(Instant::now());
        match titles {
            Ok(titles) => self.rundown.read(titles),
            Err(reason) => {
                if let List::File(file) = &self.channel.playlist.list {
                    self.board.skip(file, &reason);
                }
            }
        }
    }

    /// Handles the end of the current title.
    fn ended(&mut self, outcome: Outcome, sent: u64) {
        let Some(gone) = self.now.take() else { return };
        self.live.end_part(sent);
        let was_left = gone.is_stopped || gone.is_left || gone.is_unwanted;
        match outcome {
            Outcome::Complete => {}
            Outcome::Stopped if was_left => {}
            _ => self.board.skip(&gone.item.path, &format!("sending ended: {outcome:?}")),
        }
        let PlayingTitle { item, title, grant, sending, content, .. } = gone;
        // If it sent nothing, its predecessor is still the last one.
        if self.before.is_none() || sent > 0 {
            self.before = Some((grant, sending.stream()));
        }
        (self.again, self.search) = (Instant::now(), None);
        if let Some(NextTitle { playing, .. }) = self.next.take() {
            return self.begin(playing);
        }
        match outcome {
            Outcome::Unreadable { block, .. } | Outcome::Damaged { block } if !item.is_endless => {
                let size = self.shared.broker.block_of(title.volume);
                let rest = content.behind((block + 1) * size.0);
                self.rest = (!rest.bytes.is_empty()).then_some((item, title, rest));
            }
            // The reservation was taken for a stream of higher priority.
            Outcome::Stopped if !was_left => {
                self.before = None;
                self.again = Instant::now() + AGAIN;
                self.board.wait("the disk is slower than it was measured".into());
            }
            Outcome::Complete | Outcome::Stopped => {}
            // A pause, in case every title fails at once.
            _ => self.again = Instant::now() + REST,
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Skip => {
                let waiting = self.next.as_ref().map(|NextTitle { playing, .. }| {
                    (self.counter(playing, |each| each.epoch.value()) != 0, !playing.is_unwanted)
                });
                match (Skip::of(waiting), &mut self.now, &mut self.next) {
                    (Skip::Cut, _, Some(next)) => next.cut = Some(Instant::now()),
                    (Skip::Waiting, _, Some(next)) => next.playing.is_left = true,
                    (_, now, _) => now.iter_mut().for_each(|now| now.is_left = true),
                }
            }
            Order::Next(title) => {
                self.take_back(|item| item.origin == Origin::List);
                self.rundown.request(title);
                self.requests += 1;
            }
            Order::Change(channel) => {
                self.take_back(|_| true);
                let playlist = channel.playlist.clone();
                self.board.change((*channel).clone());
                self.channel = *channel;
                self.rundown.change(playlist, clock::wall_now());
                self.list_read = None;
                self.announce();
            }
        }
        self.foresee();
        self.search = None;
        (self.again, self.timed_again) = (Instant::now(), Instant::now());
    }

    /// Withdraws the primed title unless it has started.
    fn take_back(&mut self, concerns: impl Fn(&Item) -> bool) {
        let is_sent = self.facts().sent.is_some_and(|sent| sent.is_open && !sent.is_stopped);
        let Some(NextTitle { playing, .. }) = self.next.as_mut().filter(|_| is_sent) else {
            return;
        };
        if !playing.is_unwanted && concerns(&playing.item) {
            playing.is_unwanted = true;
            self.rundown.give_back(playing.item.clone());
        }
    }

    async fn end(mut self) {
        self.tell();
        self.next = None;
        if let Some(mut now) = self.now.take() {
            now.grant.stop();
            now.sending.ended().await;
        }
        self.close_session();
        if let Some(announcement) = self.announcement.take() {
            announcement.end();
        }
    }
}

/// The end of the current title; pending for ever if there is none.
async fn ended(now: &mut Option<PlayingTitle>) -> (Outcome, u64) {
    match now {
        Some(now) => {
            let ended = now.sending.ended().await;
            (ended.outcome, ended.sent)
        }
        None => std::future::pending().await,
    }
}

/// The source address of a channel's packets by the routing table.
fn source_of(channel: &Channel) -> Option<IpAddr> {
    let any = match channel.to.to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    };
    // No packet is sent: connecting only looks up the route. The route of a group on a named
    // interface may differ; `source` sets the address.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(super::address_of(channel)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}
