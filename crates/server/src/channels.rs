//! Channels: titles that are sent as datagrams one after the other, to whoever has joined a group
//! or to one address.
//!
//! Promise: each title is admitted like a delivery, and as long as nothing is sent the status says
//! why; what can be had later is tried again. Between the beginning and the end of a title the
//! engine sends it without anybody here. One channel that comes, changes or goes moves no other.
//! Those that leave in the same way share an outlet.
//!
//! What comes next is decided by `rundown`, when by `timing`; it is done by `runner`, told by
//! `status`; `session` makes reports and announcements; `kept` has changes outlive the server.

mod list;
pub(crate) mod packets;
mod rundown;
mod saved;
mod session;
mod status;
mod timing;

mod title;

mod runner;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz_targets;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tactus_core::classes::ClassNumber;
use tactus_sys::packets::outlet;
use tactus_sys::udp_input;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use status::{State, Status};

use crate::broker::{Broker, Door, OUTLET_BUFFER, Outlet};
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::config::channel::{Channel, List};
use crate::config::class::{Classes, Terms};
use runner::{Order, Runner};
use saved::SavedChanges;
use status::{Board, WISHES_MAX};
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
    outlets: Outlets,
    /// In the order in which they came.
    entries: Mutex<Vec<Entry>>,
    /// One is changed at a time: between the end of one and its beginning anew nobody takes its
    /// name.
    changing: tokio::sync::Mutex<()>,
}

/// One channel.
struct Entry {
    board: Arc<Board>,
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

/// Channels that may be known at once: as many streams as the largest host sends.
pub const CHANNELS_MAX: usize = 10_000;
/// Orders that a channel has not taken yet; it takes them at once, but while a disk hangs.
const ORDERS_MAX: usize = 16;
/// How many titles are inspected before a channel is changed, and for how long. The rest is
/// inspected when it is sent.
const CHECKED_MAX: usize = 200;
const CHECK_MAX: Duration = Duration::from_secs(5);
/// For a disk that hangs nobody waits longer.
const END_WAIT: Duration = Duration::from_secs(2);

/// Why an order is not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderError {
    /// Nobody is called so.
    #[error("no channel has this name")]
    Unknown,
    /// Another one goes there.
    #[error("the channel {0:?} already sends to this address; give each channel its own")]
    SameAddress(String),
    /// Its class is unknown, or does not allow it.
    #[error("{0}")]
    Class(String),
    /// There are too many.
    #[error("the limit of {CHANNELS_MAX} channels is reached; delete one")]
    TooMany,
    /// It is so, but not after the next start.
    #[error("the change is active but could not be saved, and a restart undoes it: {0}")]
    NotKept(String),
    /// It has not done what it was asked before.
    #[error("a previous change to this channel is still pending; retry in a moment")]
    Busy,
    /// As many titles wait as may.
    #[error("{WISHES_MAX} requested titles are already queued; set a list of titles instead")]
    Wishes,
    /// The channel could not send its titles.
    #[error("{0}")]
    Title(String),
    /// There is nothing to be left.
    #[error("the channel is not sending a title, so there is nothing to skip")]
    Silent,
}

/// What has become of channels that are configured anew.
#[derive(Debug)]
pub struct Configured {
    /// Which are other ones now.
    pub changed: Vec<String>,
    /// Which are as they were, and why.
    pub failed: Vec<String>,
}

impl Channels {
    /// Begins those of `config`, as they were changed.
    pub fn begin(config: &Config, catalogue: &Arc<Catalogue>, broker: &Broker) -> Self {
        let shared = Shared {
            catalogue: Arc::clone(catalogue),
            broker: broker.clone(),
            classes: config.classes.clone(),
            saved: SavedChanges::open(config),
            outlets: Outlets::default(),
            entries: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        };
        let this = Self { shared: Arc::new(shared) };
        for channel in this.shared.saved.channels() {
            // Names and addresses have been compared.
            this.start(&mut this.shared.entries(), channel);
        }
        this
    }

    /// All of them, in the order in which they came.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        self.shared.entries().iter().map(|entry| self.read(&entry.board)).collect()
    }

    /// One of them.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Status> {
        Some(self.read(&*self.board(name)?))
    }

    fn read(&self, board: &Board) -> Status {
        let status = board.read(&self.shared.broker);
        let is_changed = self.shared.saved.is_changed(&status.name);
        Status { is_changed, ..status }
    }

    /// How one of them is configured.
    #[must_use]
    pub fn configured(&self, name: &str) -> Option<Channel> {
        Some(self.board(name)?.channel())
    }

    /// One of them as a session description.
    #[must_use]
    pub fn description(&self, name: &str) -> Option<String> {
        self.board(name)?.description()
    }

    /// Those that go to groups, as a list for players.
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

    /// Begins a channel, or changes the one of this name: when only its playlist is another one,
    /// nobody who receives it notices before the next title. Whether it is a new one.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub async fn set(&self, channel: Channel) -> Result<bool, OrderError> {
        channel.terms(&self.shared.classes).map_err(OrderError::Class)?;
        if channel.stuff.is_some() {
            self.check_stuff(&channel).await?;
        }
        let _one = self.shared.changing.lock().await;
        let is_new = self.put(channel.clone()).await?;
        self.keep(&channel.name.clone(), Some(channel)).await?;
        Ok(is_new)
    }

    /// Whether stuffing to the channel's rate is possible for each existing title. Later titles are
    /// checked when they are sent.
    async fn check_stuff(&self, channel: &Channel) -> Result<(), OrderError> {
        let playlist = &channel.playlist;
        let mut titles = match &playlist.list {
            List::Titles(titles) => titles.clone(),
            List::File(file) => {
                let listed = async {
                    let path = title::path_of(file)?;
                    let found = title::find(&self.shared, &path).await?;
                    list::read(&found, file).await
                };
                // A list that cannot be read now may be stored later, as may a title.
                listed.await.unwrap_or_default()
            }
        };
        titles.extend(playlist.timed.iter().map(|(_, title)| title.clone()));
        titles.extend(playlist.fill.clone());
        let all = async {
            for title in titles.iter().take(CHECKED_MAX) {
                if let Err(TitleError::Stuff(why)) =
                    title::check(&self.shared, channel, title).await
                {
                    return Err(OrderError::Title(format!("{title}: {why}")));
                }
            }
            Ok(())
        };
        tokio::time::timeout(CHECK_MAX, all).await.unwrap_or(Ok(()))
    }

    /// Has a channel be again what the configuration says of it, which may be nothing. Whether it
    /// is there then.
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

    /// Writes down what a channel is now.
    async fn keep(&self, name: &str, channel: Option<Channel>) -> Result<(), OrderError> {
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        let keep = move || shared.saved.keep(&name, channel.as_ref());
        let kept = tokio::task::spawn_blocking(keep).await.map_err(std::io::Error::other).flatten();
        kept.map_err(|error| OrderError::NotKept(error.to_string()))
    }

    /// As it is to be from now on; whether it is a new one. One at a time.
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
    /// When there is none of this name.
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

    /// Has a channel leave the title that it sends for the next one.
    ///
    /// # Errors
    /// Why not.
    pub fn skip(&self, name: &str) -> Result<(), OrderError> {
        match self.board(name).ok_or(OrderError::Unknown)?.is_sent() {
            true => self.order(name, Order::Skip),
            false => Err(OrderError::Silent),
        }
    }

    /// Has a channel send a title before what it would send next.
    ///
    /// # Errors
    /// Why not.
    pub async fn wish(&self, name: &str, title: String) -> Result<(), OrderError> {
        let board = self.board(name).ok_or(OrderError::Unknown)?;
        let channel = board.channel();
        if let Err(TitleError::Title(why) | TitleError::Stuff(why)) =
            title::check(&self.shared, &channel, &title).await
        {
            return Err(OrderError::Title(format!("{title}: {why}")));
        }
        match board.wish() {
            true => self.order(name, Order::Next(title)).inspect_err(|_| board.unwish()),
            false => Err(OrderError::Wishes),
        }
    }

    /// Whether channels of a configuration can be sent here.
    ///
    /// # Errors
    /// What is wrong with the first that cannot.
    pub fn check(&self, configured: &[Channel]) -> Result<(), OrderError> {
        for channel in configured {
            let named = |error| OrderError::Class(format!("channel {:?}: {error}", channel.name));
            channel.terms(&self.shared.classes).map_err(named)?;
        }
        if configured.len() > CHANNELS_MAX { Err(OrderError::TooMany) } else { Ok(()) }
    }

    /// Has the channels be as they are `configured` from now on, those that were changed meanwhile
    /// as they were changed. Who stays as it is, or changes only its playlist, is not left by
    /// anybody.
    pub async fn configure(&self, configured: Vec<Channel>) -> Configured {
        let _one = self.shared.changing.lock().await;
        self.shared.saved.configure(configured);
        let wanted = self.shared.saved.channels();
        let of = |name: &str| wanted.iter().find(|channel| channel.name == name);
        let known: Vec<Channel> =
            self.shared.entries().iter().map(|entry| entry.board.channel()).collect();
        let mut changed = vec![];
        // Addresses are free before anybody else goes there.
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
        Configured { changed, failed }
    }

    /// Ends all of them.
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
        let runner = Runner::new(Arc::clone(&board), Arc::clone(&self.shared), taken);
        let task = tokio::spawn(runner.run());
        entries.push(Entry { board, orders, task });
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.all().into_iter().map(|channel| channel.name).collect();
        f.debug_tuple("Channels").field(&names).finish()
    }
}

/// Has them say goodbye at the same time.
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
    /// Has it say goodbye, and waits until it has.
    async fn end(self) {
        let Self { orders, mut task, .. } = self;
        // Nobody orders any more: that is the order.
        drop(orders);
        if tokio::time::timeout(END_WAIT, &mut task).await.is_err() {
            task.abort();
            // What it had is given back when it is dropped.
            task.await.ok();
        }
    }
}

/// Where a channel's datagrams go: with the interface, where the address is one of one link.
/// Without, where there is no such interface now, which whoever opens the outlet is told.
fn address_of(channel: &Channel) -> SocketAddr {
    let interface = channel.interface.as_deref().and_then(|name| udp_input::interface(name).ok());
    udp_input::on_link(channel.to.to, interface)
}

/// Sockets that are open, by the way in which they send, and their class of the link.
#[derive(Default)]
struct Outlets(Mutex<HashMap<(outlet::Way, Option<ClassNumber>), Outlet>>);

impl Outlets {
    fn get(&self, channel: &Channel, terms: Terms) -> std::io::Result<Outlet> {
        let interface = channel.interface.as_deref().map(udp_input::interface).transpose()?;
        let any = match channel.to.to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let way = outlet::Way {
            from: channel.source.unwrap_or(any),
            interface,
            hops: Some(channel.hops),
            dscp: terms.dscp,
            heard_here: true,
            buffer: OUTLET_BUFFER,
        };
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let way = (way, terms.class);
        if let Some(outlet) = open.get(&way) {
            return Ok(Arc::clone(outlet));
        }
        let outlet = Door::of(outlet::open(&way.0)?, terms.class);
        // Those that nobody uses any more go: interfaces get other numbers.
        open.retain(|_, outlet| Arc::strong_count(outlet) > 1);
        open.insert(way, Arc::clone(&outlet));
        Ok(outlet)
    }
}
