//! Channels: titles sent as datagrams one after the other, to a multicast group or to one address.
//!
//! Promise: each title is admitted like a delivery. While nothing is sent, the status says why, and
//! a title that may become available is tried again. Between the start and the end of a title the
//! engine sends it without the control side. Starting, changing or ending one channel does not
//! affect the others. Channels with the same socket options share a UDP output.
//!
//! `rundown` decides what comes next and `timing` when; `runner` executes it; `status` reports it.
//! `session` sends RTCP and SAP; `saved` stores changes over restarts.

mod content;
mod list;
mod live;
mod rundown;
mod saved;
mod session;
mod status;
mod sync;
mod timing;

mod title;

mod runner;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tactus_control::broker::{Broker, UDP_BUFFER, UdpOutput, Viewer};
use tactus_control::class::{Classes, SendOptions};
use tactus_core::classes::ClassNumber;
use tactus_storage::catalogue::Catalogue;
use tactus_sys::packets::udp_output;
use tactus_sys::udp_input;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::channel::{Channel, List};

pub use live::{AdmittedListener, ListenError};
pub use status::{State, Status};

use live::Live;
use runner::{Order, Runner};
pub use saved::ChannelSettings;
use saved::SavedChanges;
use status::{Board, REQUESTS_MAX};
use sync::Meetings;
use title::TitleError;

/// All channels of a server.
#[derive(Clone)]
pub struct Channels {
    shared: Arc<Shared>,
}

struct Shared {
    catalogue: Arc<Catalogue>,
    broker: Broker,
    classes: Classes,
    saved: SavedChanges,
    udp_outputs: UdpOutputs,
    /// Channels that wait for each other.
    meetings: Meetings,
    /// In the order of their creation.
    entries: Mutex<Vec<Entry>>,
    /// One change at a time: between the end and the restart of a channel its name stays reserved.
    changing: tokio::sync::Mutex<()>,
}

/// One channel.
struct Entry {
    board: Arc<Board>,
    live: Arc<Live>,
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

/// Upper bound of channels: as many streams as the largest host sends.
pub const CHANNELS_MAX: usize = 10_000;
/// Queued orders of a channel; they wait only while a disk hangs.
const ORDERS_MAX: usize = 16;
/// Titles that are inspected before a channel is changed, and the time for it. The rest is
/// inspected before it is sent.
const CHECKED_MAX: usize = 200;
const CHECK_MAX: Duration = Duration::from_secs(5);
/// Upper bound of the wait for a disk that does not answer.
const END_WAIT: Duration = Duration::from_secs(2);

/// Why an order is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderError {
    /// No channel has this name.
    #[error("no channel has this name")]
    Unknown,
    /// Another channel has this address.
    #[error("the channel {0:?} already sends to this address; give each channel its own")]
    SameAddress(String),
    /// The class is unknown or does not permit the channel.
    #[error("{0}")]
    Class(String),
    /// The limit of channels is reached.
    #[error("the limit of {CHANNELS_MAX} channels is reached; delete one")]
    TooMany,
    /// The change is active but not saved.
    #[error("the change is active but could not be saved, and a restart undoes it: {0}")]
    NotKept(String),
    /// A previous order is pending.
    #[error("a previous change to this channel is still pending; retry in a moment")]
    Busy,
    /// The queue of requested titles is full.
    #[error("{REQUESTS_MAX} requested titles are already queued; set a list of titles instead")]
    TooManyRequests,
    /// The channel could not send its titles.
    #[error("{0}")]
    Title(String),
    /// There is no title to skip.
    #[error("the channel is not sending a title, so there is nothing to skip")]
    Silent,
}

/// The result of a reload.
#[derive(Debug)]
pub struct ConfigureResult {
    /// The changed channels.
    pub changed: Vec<String>,
    /// The unchanged channels, with the error.
    pub failed: Vec<String>,
}

impl Channels {
    /// Starts the channels of `settings` with their saved changes.
    pub fn begin(settings: &ChannelSettings, catalogue: &Arc<Catalogue>, broker: &Broker) -> Self {
        let shared = Shared {
            catalogue: Arc::clone(catalogue),
            broker: broker.clone(),
            classes: settings.classes.clone(),
            saved: SavedChanges::open(settings),
            udp_outputs: UdpOutputs::default(),
            meetings: Meetings::default(),
            entries: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        };
        let this = Self { shared: Arc::new(shared) };
        let mut entries = this.shared.entries();
        for channel in this.shared.saved.channels() {
            // Names and addresses are unique: the configuration was checked.
            this.start(&mut entries, channel);
        }
        drop(entries);
        this
    }

    /// All channels, in the order of their creation.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        self.shared.entries().iter().map(|entry| self.read(entry)).collect()
    }

    /// The channel with this name.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Status> {
        let entries = self.shared.entries();
        Some(self.read(entries.iter().find(|entry| entry.board.channel().name == name)?))
    }

    fn read(&self, entry: &Entry) -> Status {
        let status = entry.board.read(&self.shared.broker);
        let is_changed = self.shared.saved.is_changed(&status.name);
        Status { is_changed, listeners: entry.live.listeners(), ..status }
    }

    /// Admits a listener of a channel: a connection that carries what the channel sends.
    ///
    /// # Errors
    /// Why not.
    pub fn listen(&self, name: &str, viewer: &Viewer) -> Result<AdmittedListener, ListenError> {
        self.check_kind(name)?;
        self.find_live(name).ok_or(ListenError::Unknown)?.listen(viewer)
    }

    /// Whether a channel can be listened to now.
    ///
    /// # Errors
    /// Why not.
    pub fn check_live(&self, name: &str) -> Result<(), ListenError> {
        self.check_kind(name)?;
        let status = self.one(name).ok_or(ListenError::Unknown)?;
        match status.state {
            State::Running | State::Filling => Ok(()),
            State::Ended => Err(ListenError::Silent(Some("its playlist has ended".into()))),
            State::Waiting => Err(ListenError::Silent(status.reason)),
        }
    }

    /// Sound has no transport stream.
    fn check_kind(&self, name: &str) -> Result<(), ListenError> {
        match self.configured(name).is_some_and(|channel| channel.sound.is_some()) {
            true => Err(ListenError::Sound),
            false => Ok(()),
        }
    }

    fn find_live(&self, name: &str) -> Option<Arc<Live>> {
        let entries = self.shared.entries();
        let entry = entries.iter().find(|entry| entry.board.channel().name == name)?;
        Some(Arc::clone(&entry.live))
    }

    /// The configuration of a channel.
    #[must_use]
    pub fn configured(&self, name: &str) -> Option<Channel> {
        Some(self.board(name)?.channel())
    }

    /// The session description (SDP) of a channel.
    #[must_use]
    pub fn description(&self, name: &str) -> Option<String> {
        self.board(name)?.description()
    }

    /// An M3U playlist of the channels that send to multicast groups.
    #[must_use]
    pub fn m3u(&self) -> String {
        let mut text = "#EXTM3U\n".to_owned();
        for entry in self.shared.entries().iter() {
            if let Some(url) = entry.board.url() {
                text.push_str(&format!("#EXTINF:-1,{}\n{url}\n", entry.board.channel().name));
            }
        }
        text
    }

    /// Creates a channel or changes the one with this name. If only its playlist differs, receivers
    /// notice no change before the next title. True if the channel is new.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub async fn set(&self, channel: Channel) -> Result<bool, OrderError> {
        channel.send_options(&self.shared.classes).map_err(OrderError::Class)?;
        if channel.stuff.is_some() || channel.sound.is_some() {
            self.check_titles(&channel).await?;
        }
        let _one = self.shared.changing.lock().await;
        let is_new = self.put(channel.clone()).await?;
        self.keep(&channel.name.clone(), Some(channel)).await?;
        Ok(is_new)
    }

    /// Checks for each existing title whether null packets can fill it up to the channel's rate, or
    /// whether its sound has the channel's format. Later titles are checked when they are sent.
    async fn check_titles(&self, channel: &Channel) -> Result<(), OrderError> {
        let playlist = &channel.playlist;
        let mut titles = match &playlist.list {
            List::Titles(titles) => titles.clone(),
            List::File(file) => {
                let listed = async {
                    let path = title::path_of(file)?;
                    let found = title::find(&self.shared, &path).await?;
                    list::read(&found, file).await
                };
                // A list that cannot be read now may be stored later, and so may a title.
                listed.await.unwrap_or_default()
            }
        };
        titles.extend(playlist.timed.iter().map(|(_, title)| title.clone()));
        titles.extend(playlist.fill.clone());
        let all = async {
            for title in titles.iter().take(CHECKED_MAX) {
                if let Err(TitleError::Unfit(why)) =
                    title::check(&self.shared, channel, title).await
                {
                    return Err(OrderError::Title(format!("{title}: {why}")));
                }
            }
            Ok(())
        };
        tokio::time::timeout(CHECK_MAX, all).await.unwrap_or(Ok(()))
    }

    /// Restores the configured state of a channel, which ends it if it is not configured. True if
    /// the channel exists afterwards.
    ///
    /// # Errors
    /// Why not.
    pub async fn reset(&self, name: &str) -> Result<bool, OrderError> {
        let _one = self.shared.changing.lock().await;
        let configured = self.shared.saved.configured(name);
        let is_there = configured.is_some();
        if !is_there && !self.shared.saved.is_changed(name) {
            return Err(OrderError::Unknown);
        }
        match configured.clone() {
            Some(channel) => drop(self.put(channel).await?),
            None => self.end(name).await?,
        }
        self.keep(name, configured).await?;
        Ok(is_there)
    }

    /// Saves the state of a channel.
    async fn keep(&self, name: &str, channel: Option<Channel>) -> Result<(), OrderError> {
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        let keep = move || shared.saved.keep(&name, channel.as_ref());
        let kept = tokio::task::spawn_blocking(keep).await.map_err(std::io::Error::other).flatten();
        kept.map_err(|error| OrderError::NotKept(error.to_string()))
    }

    /// Starts or changes a channel; true if it is new. The caller holds the lock of changes.
    async fn put(&self, channel: Channel) -> Result<bool, OrderError> {
        let gone = {
            let mut entries = self.shared.entries();
            let others = entries.iter().map(|entry| entry.board.channel());
            let mut others = others.filter(|known| known.name != channel.name);
            if let Some(other) = others.find(|known| known.to.to == channel.to.to) {
                return Err(OrderError::SameAddress(other.name));
            }
            drop(others);
            let at = entries.iter().position(|entry| entry.board.channel().name == channel.name);
            match at {
                None if entries.len() == CHANNELS_MAX => return Err(OrderError::TooMany),
                None => {
                    self.start(&mut entries, channel);
                    return Ok(true);
                }
                Some(at) if entries[at].board.channel().leaves_as(&channel) => {
                    let order = Order::Change(Box::new(channel));
                    return entries[at].orders.try_send(order).map(|()| false).map_err(busy);
                }
                Some(at) => entries.remove(at),
            }
        };
        gone.end().await;
        self.start(&mut self.shared.entries(), channel);
        Ok(false)
    }

    /// Ends a channel.
    ///
    /// # Errors
    /// If no channel has this name.
    pub async fn remove(&self, name: &str) -> Result<(), OrderError> {
        let _one = self.shared.changing.lock().await;
        self.end(name).await?;
        self.keep(name, None).await
    }

    async fn end(&self, name: &str) -> Result<(), OrderError> {
        let gone = {
            let mut entries = self.shared.entries();
            let at = entries.iter().position(|entry| entry.board.channel().name == name);
            entries.remove(at.ok_or(OrderError::Unknown)?)
        };
        gone.end().await;
        Ok(())
    }

    /// Skips the rest of the current title.
    ///
    /// # Errors
    /// Why not.
    pub fn skip(&self, name: &str) -> Result<(), OrderError> {
        match self.board(name).ok_or(OrderError::Unknown)?.is_sent() {
            true => self.order(name, Order::Skip),
            false => Err(OrderError::Silent),
        }
    }

    /// Queues a title before the next one of the playlist.
    ///
    /// # Errors
    /// Why not.
    pub async fn request_title(&self, name: &str, title: String) -> Result<(), OrderError> {
        let board = self.board(name).ok_or(OrderError::Unknown)?;
        let channel = board.channel();
        if let Err(TitleError::Title(why) | TitleError::Unfit(why)) =
            title::check(&self.shared, &channel, &title).await
        {
            return Err(OrderError::Title(format!("{title}: {why}")));
        }
        match board.take_request() {
            true => self.order(name, Order::Next(title)).inspect_err(|_| board.cancel_request()),
            false => Err(OrderError::TooManyRequests),
        }
    }

    /// Checks whether the channels of a configuration can be sent.
    ///
    /// # Errors
    /// The error of the first one that cannot.
    pub fn check(&self, configured: &[Channel]) -> Result<(), OrderError> {
        for channel in configured {
            let named = |error| OrderError::Class(format!("channel {:?}: {error}", channel.name));
            channel.send_options(&self.shared.classes).map_err(named)?;
        }
        if configured.len() > CHANNELS_MAX { Err(OrderError::TooMany) } else { Ok(()) }
    }

    /// Applies the `configured` channels, with the changes saved since. Receivers of a channel that
    /// stays, or that changes only its playlist, notice nothing.
    pub async fn configure(&self, configured: Vec<Channel>) -> ConfigureResult {
        let _one = self.shared.changing.lock().await;
        self.shared.saved.configure(configured);
        let wanted = self.shared.saved.channels();
        let of = |name: &str| wanted.iter().find(|channel| channel.name == name);
        let known: Vec<Channel> =
            self.shared.entries().iter().map(|entry| entry.board.channel()).collect();
        let mut changed = vec![];
        // Addresses are released before other channels use them.
        let gone = {
            let mut entries = self.shared.entries();
            let stays = |entry: &mut Entry| {
                let channel = entry.board.channel();
                of(&channel.name).is_some_and(|wanted| wanted.leaves_as(&channel))
            };
            let ends = entries.extract_if(.., |entry| !stays(entry));
            ends.collect::<Vec<_>>()
        };
        for channel in &known {
            if of(&channel.name).is_none() {
                changed.push(format!("channel {:?} (removed)", channel.name));
            }
        }
        end_all(gone).await;
        let mut failed = vec![];
        for channel in &wanted {
            let before = known.iter().find(|known| known.name == channel.name);
            if before == Some(channel) {
                continue;
            }
            match self.put(channel.clone()).await {
                Ok(_) if before.is_none() => {
                    changed.push(format!("channel {:?} (added)", channel.name));
                }
                Ok(_) => changed.push(format!("channel {:?}", channel.name)),
                Err(error) => failed.push(format!("channel {:?}: {error}", channel.name)),
            }
        }
        ConfigureResult { changed, failed }
    }

    /// Ends all channels.
    pub async fn close(&self) {
        let all = std::mem::take(&mut *self.shared.entries());
        end_all(all).await;
    }

    fn order(&self, name: &str, order: Order) -> Result<(), OrderError> {
        let entries = self.shared.entries();
        let entry = entries.iter().find(|entry| entry.board.channel().name == name);
        entry.ok_or(OrderError::Unknown)?.orders.try_send(order).map_err(busy)
    }

    fn board(&self, name: &str) -> Option<Arc<Board>> {
        let entries = self.shared.entries();
        let entry = entries.iter().find(|entry| entry.board.channel().name == name)?;
        Some(Arc::clone(&entry.board))
    }

    fn start(&self, entries: &mut Vec<Entry>, channel: Channel) {
        let board = Arc::new(Board::new(channel));
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let live = Live::new(self.shared.broker.clone());
        let boards = (Arc::clone(&board), Arc::clone(&live));
        let runner = Runner::new(boards, Arc::clone(&self.shared), taken);
        let task = tokio::spawn(runner.run());
        entries.push(Entry { board, live, orders, task });
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.all().into_iter().map(|channel| channel.name).collect();
        f.debug_tuple("Channels").field(&names).finish()
    }
}

/// Ends channels side by side, each with its BYE.
async fn end_all(all: Vec<Entry>) {
    let ends: Vec<_> = all.into_iter().map(|entry| tokio::spawn(entry.end())).collect();
    for end in ends {
        end.await.ok();
    }
}

fn busy<T>(_: mpsc::error::TrySendError<T>) -> OrderError {
    OrderError::Busy
}

impl Shared {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // A panic elsewhere leaves at worst one channel that has ended.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Ends the channel and waits for its BYE.
    async fn end(self) {
        let Self { live, orders, mut task, .. } = self;
        live.close();
        // Dropping the sender is the order to end.
        drop(orders);
        if tokio::time::timeout(END_WAIT, &mut task).await.is_err() {
            task.abort();
            // The resources are released when the task is dropped.
            task.await.ok();
        }
    }
}

/// The destination of a channel, with the interface for a link-local address. Without it if the
/// interface does not exist now; then opening the UDP output fails.
fn address_of(channel: &Channel) -> SocketAddr {
    let interface = channel.interface.as_deref().and_then(|name| udp_input::interface(name).ok());
    udp_input::on_link(channel.to.to, interface)
}

/// What channels have in common that share a socket.
type UdpOutputKey = (udp_output::UdpOptions, Option<ClassNumber>);

/// Open sockets by their options and their link class.
#[derive(Default)]
struct UdpOutputs(Mutex<HashMap<UdpOutputKey, Arc<UdpOutput>>>);

impl UdpOutputs {
    fn get(&self, channel: &Channel, send_options: SendOptions) -> std::io::Result<Arc<UdpOutput>> {
        let interface = channel.interface.as_deref().map(udp_input::interface).transpose()?;
        let any = match channel.to.to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let options = udp_output::UdpOptions {
            from: channel.source.unwrap_or(any),
            interface,
            hops: Some(channel.hops),
            dscp: send_options.dscp,
            heard_here: true,
            buffer: UDP_BUFFER,
        };
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let options = (options, send_options.class);
        if let Some(udp_output) = open.get(&options) {
            return Ok(Arc::clone(udp_output));
        }
        let udp_output = UdpOutput::of(udp_output::open(&options.0)?, send_options.class);
        // Unused UDP outputs are closed: interfaces may get other numbers.
        open.retain(|_, udp_output| Arc::strong_count(udp_output) > 1);
        open.insert(options, Arc::clone(&udp_output));
        Ok(udp_output)
    }
}
