//! Channels: titles that are sent as datagrams, to whoever has joined a group or to one address.
//!
//! Promise: each is admitted like a delivery, and as long as it does not run its status says why; what
//! can be had later is tried again. Between its start and its end the engine sends it without anybody
//! here. Channels that leave in the same way share an outlet.

pub(crate) mod packets;
mod status;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tactus_core::datagrams::{Form, Line, Plan, Session, Stamps};
use tactus_core::path::RequestPath;
use tactus_core::units::{BitRate, MIB};
use tactus_engine::message::Outcome;
use tactus_sys::{datagrams, outlet};
use tokio::task::JoinSet;

pub use status::{State, Status};

use crate::broker::{Broker, Outlet, Target};
use crate::catalogue::{Catalogue, Found, Indexed, OpenTitle};
use crate::config::channel::Channel;
use crate::config::recording::Kind;
use crate::config::{Auto, Config};
use status::Board;

/// All channels of a server.
#[derive(Clone)]
pub struct Channels {
    boards: Arc<[Arc<Board>]>,
    broker: Broker,
}

/// What is not there, or has no room, is looked for again after this.
const AGAIN: Duration = Duration::from_secs(5);

/// What an outlet may hold: 25 ms of 2.5 Gbit/s, after which a link has stalled ten times over.
const BUFFER: usize = 8 * MIB as usize;

impl Channels {
    /// Begins those of `config`. They end when what is given back is dropped.
    pub fn begin(
        config: &Config,
        catalogue: &Arc<Catalogue>,
        broker: &Broker,
    ) -> (Self, JoinSet<()>) {
        let boards: Arc<[_]> =
            config.channels.iter().map(|channel| Arc::new(Board::new(channel.clone()))).collect();
        let outlets = Arc::new(Outlets::default());
        let mut running = JoinSet::new();
        for board in boards.iter() {
            let runner = Runner {
                board: Arc::clone(board),
                catalogue: Arc::clone(catalogue),
                broker: broker.clone(),
                outlets: Arc::clone(&outlets),
            };
            running.spawn(runner.run());
        }
        (Self { boards, broker: broker.clone() }, running)
    }

    /// All of them, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        self.boards.iter().map(|board| board.read(&self.broker)).collect()
    }

    /// One of them.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Status> {
        let board = self.boards.iter().find(|board| board.channel.name == name)?;
        Some(board.read(&self.broker))
    }
}

/// What runs one channel.
struct Runner {
    board: Arc<Board>,
    catalogue: Arc<Catalogue>,
    broker: Broker,
    outlets: Arc<Outlets>,
}

impl Runner {
    async fn run(self) {
        let channel = &self.board.channel;
        loop {
            match self.send().await {
                Ok(Outcome::Complete) => {
                    self.board.end();
                    tracing::info!(channel = channel.name, "it has come to its end");
                    return;
                }
                Ok(outcome) => self.board.wait(format!("it ended: {outcome:?}")),
                Err(reason) => self.board.wait(reason),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Sends the channel until it ends.
    async fn send(&self) -> Result<Outcome, String> {
        let channel = &self.board.channel;
        let title = self.title().await?;
        let target = Target {
            outlet: self.outlets.get(channel).map_err(|error| {
                format!("no socket can be had for it: {error}; check `interface` and `source`")
            })?,
            to: channel.to.to,
            form: match channel.to.kind {
                Kind::Udp => Form::Udp,
                Kind::Rtp => Form::Rtp(session()),
            },
            burst: channel.burst,
            plan: None,
            after: None,
        };
        let range = packets::range(&title).await?;
        let (rate, plan) = self.plan(&title, &range).await?;
        let target = Target { plan: plan.map(Arc::new), ..target };
        let mut grant = self
            .broker
            .admit_datagrams(&title, rate, &target)
            .map_err(|refusal| refusal.to_string())?;
        self.board.begin(grant.place(), channel.stuff.unwrap_or(rate));
        tracing::info!(channel = channel.name, to = %channel.to, %rate, "it is sent");
        let repeats = channel.repeats;
        let (outcome, _) = self.broker.send(&mut grant, &title, range, repeats, target).await;
        Ok(outcome)
    }

    async fn title(&self) -> Result<Arc<OpenTitle>, String> {
        let path = self.path()?;
        match self.catalogue.find(&path).await {
            Ok(Found::Title(title)) if title.following.is_some() => {
                Err("the title still comes in; it is sent when all of it is stored".into())
            }
            Ok(Found::Title(title)) => Ok(title),
            Ok(Found::Directory(_)) => Err("this is a directory; name one title".into()),
            Err(fault) => Err(fault.to_string()),
        }
    }

    async fn rate(&self, title: &OpenTitle) -> Result<BitRate, String> {
        if let Auto::Set(rate) = self.board.channel.rate {
            return Ok(rate);
        }
        let facts = self.catalogue.media(title, &self.path()?).await;
        match facts.map_err(|fault| fault.to_string())? {
            Some(facts) => Ok(facts.rate),
            None => {
                Err("the title has no clock to find its rate by; give the channel a `rate`".into())
            }
        }
    }

    /// The rate to reserve, and what is to be known of its bytes before they leave; nothing of a constant
    /// rate that leaves once.
    async fn plan(
        &self,
        title: &OpenTitle,
        range: &Range<u64>,
    ) -> Result<(BitRate, Option<Plan>), String> {
        let channel = &self.board.channel;
        let index = match self.catalogue.index(title, &self.path()?).await {
            Ok(Indexed::Ready(index)) => Ok(index),
            Ok(Indexed::Coming) => return Err("the title's times are being found out".into()),
            Ok(Indexed::Never(fault)) => Err(fault),
            Err(fault) => return Err(fault.to_string()),
        };
        let block = self.broker.block_of(title.volume);
        let known = index.as_ref().ok().and_then(|index| {
            let (plan, rate) = Plan::of(index, range.clone(), block)?;
            Some((index, plan, rate))
        });
        let keeps = |plan: Plan| (channel.repeats || plan.line.is_some()).then_some(plan);
        match (channel.stuff, channel.rate, known) {
            (Some(stuff), _, Some((index, plan, rate))) => {
                let fastest = index.rates().map_or(rate, |rates| rates.max);
                if stuff < fastest {
                    return Err(format!(
                        "its fastest second has {fastest}, which null packets cannot make {stuff}; give \
                         `stuff` a rate above that"
                    ));
                }
                Ok((rate, Some(plan.stuffed(stuff))))
            }
            (Some(_), _, None) => {
                let why = index.err().map_or("it lasts no time".into(), |fault| fault.to_string());
                Err(format!("null packets cannot be put where they belong: {why}"))
            }
            (None, Auto::Auto, Some((_, plan, rate))) if channel.repeats => Ok((rate, Some(plan))),
            (None, Auto::Auto, Some((_, plan, rate))) => {
                // Of what leaves once nothing is changed.
                Ok((rate, keeps(Plan { stamps: None, ..plan })))
            }
            // Not by its own clock, or by none: counters are kept, and clocks by what a turn of them takes.
            (None, _, known) => {
                let line = known.and_then(|(index, ..)| Line::of(index, range.start, range.end));
                let turn = line.map(|line| line.duration());
                let stamps = Some(Stamps { turn, ..Stamps::default() });
                Ok((self.rate(title).await?, keeps(Plan { stamps, ..Plan::default() })))
            }
        }
    }

    fn path(&self) -> Result<RequestPath, String> {
        let title = &self.board.channel.title;
        RequestPath::parse(title.as_bytes())
            .map_err(|_| format!("{title:?} is no path; write it as in a URL"))
    }
}

/// What an RTP session begins with: at random (RFC 3550, section 5.1).
fn session() -> Session {
    let mut bytes = [0; 10];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    if !matches!(filled, Ok(10)) {
        // Before the host has any chance to give. What counts is that two of our own differ.
        let now = tactus_sys::clock::now().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes[..8].copy_from_slice(&now.to_le_bytes());
    }
    let [a, b, c, d, e, f, g, h, i, j] = bytes;
    Session {
        source: u32::from_le_bytes([a, b, c, d]),
        timestamp: u32::from_le_bytes([e, f, g, h]),
        sequence: u16::from_le_bytes([i, j]),
    }
}

/// Sockets that are open, by the way in which they send.
#[derive(Default)]
struct Outlets(Mutex<HashMap<outlet::Way, Outlet>>);

impl Outlets {
    fn get(&self, channel: &Channel) -> std::io::Result<Outlet> {
        let interface = channel.interface.as_deref().map(datagrams::interface).transpose()?;
        let any = match channel.to.to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let way = outlet::Way {
            from: channel.source.unwrap_or(any),
            interface,
            hops: Some(channel.hops),
            dscp: channel.dscp,
            heard_here: true,
            buffer: BUFFER,
        };
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outlet) = open.get(&way) {
            return Ok(Arc::clone(outlet));
        }
        let outlet = Arc::new(outlet::open(&way)?);
        open.insert(way, Arc::clone(&outlet));
        Ok(outlet)
    }
}
