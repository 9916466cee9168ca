//! Many RTSP clients at once, who seek and pause as they please.
//!
//! Promise: each has its own connection and ports, plays over UDP and is as impatient as its dice
//! say. All datagrams are read by one thread that never waits for one client, and stamped by the
//! kernel. The received packets are judged by the server's answers and the titles' rates. Faults
//! are missing sequence numbers, continuity errors that are not announced or not at a seek, and
//! late or missing bytes.

mod client;
mod view;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::time::{ClockId, clock_gettime};
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};
use tactus_sys::udp_input::{BATCH, InputOptions, UdpInput};

use crate::cpu::RECEIVER;
use crate::netns::Side;
use crate::{clock, priority};
use client::Client;
use view::View;

pub(crate) use client::Session;
pub use client::{ClientActions, Part, Title};
pub use view::{LatenessHistogram, ReceptionSummary, SHARE_MIN};

/// Client n receives at this and 2 n, its reports at the next.
const PORT: u16 = 20_000;
/// How often each socket is emptied.
const SWEEP: Nanos = Nanos::from_millis(50);
/// What a socket holds.
const BUFFER: usize = 1 << 20;
/// Threads that ask: a request takes a server some milliseconds, and each client asks every few
/// seconds.
const ASKERS: usize = 16;
/// Longer ones are not counted in their clients' microseconds.
const LENGTH_MAX: Nanos = SECOND.times(3_600);

/// What a crowd shall do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the server speaks RTSP.
    pub server: SocketAddrV4,
    /// How many.
    pub clients: usize,
    /// What they watch.
    pub titles: Arc<[Title]>,
    /// The constant rate of each of them.
    pub rate: BitRate,
    /// Clients begin within this time.
    pub stagger: Nanos,
    /// How long they then play.
    pub length: Nanos,
    /// The dice.
    pub seed: u64,
    /// The crowd's core.
    pub core: usize,
}

/// What became of a client.
#[derive(Debug)]
pub struct ClientReport {
    /// What it asked and was answered.
    pub did: ClientActions,
    /// What it got.
    pub seen: ReceptionSummary,
}

/// Lets a crowd play from `side` of a wire, and waits for its end.
pub fn play(side: &Side, plan: &Plan) -> Result<Vec<ClientReport>> {
    ensure!(plan.stagger + plan.length <= LENGTH_MAX, "a crowd plays for an hour at most");
    let stop = Arc::new(AtomicBool::new(false));
    let inboxes = Inboxes::open(side.clone(), plan.clone(), Arc::clone(&stop))?;
    let next = Arc::new(AtomicUsize::new(0));
    let from = clock::now();
    let askers = (0..ASKERS).map(|_| {
        let (side, plan, next) = (side.clone(), plan.clone(), Arc::clone(&next));
        std::thread::Builder::new().name("asker".into()).spawn(move || {
            side.enter()?;
            priority::pin(plan.core)?;
            let mut own = Vec::new();
            // Which client is whose does not matter, as each has dice of its own.
            while own.len() < plan.clients.div_ceil(ASKERS) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= plan.clients {
                    break;
                }
                own.push(Client::new(&plan, number, PORT, from));
            }
            ask(own, from + plan.stagger + plan.length)
        })
    });
    let askers: Vec<_> = askers.collect::<Result<_, _>>()?;
    let mut did = Vec::new();
    for asker in askers {
        let asked: Result<Vec<_>> = asker.join().map_err(|_| anyhow!("an asker panicked"))?;
        did.extend(asked?);
    }
    stop.store(true, Ordering::Relaxed);
    let views = inboxes.reader.join().map_err(|_| anyhow!("the receiver panicked"))??;
    did.sort_by_key(|&(number, _)| number);
    let told = did.into_iter().zip(views).map(|((_, did), (view, dropped))| {
        let seen = view.judge(&did.parts, dropped);
        ClientReport { did, seen }
    });
    Ok(told.collect())
}

/// Does what each client wants when it wants it, until `end`; then all leave.
fn ask(mut clients: Vec<Client>, end: MonoTime) -> Result<Vec<(usize, ClientActions)>> {
    while let Some(due) = clients.iter().map(Client::due).min()
        && due < end
    {
        crate::interrupt::sleep_until(due)?;
        let now = clock::now();
        for client in clients.iter_mut().filter(|client| client.due() <= now) {
            client.act();
        }
    }
    crate::interrupt::sleep_until(end)?;
    Ok(clients.into_iter().map(Client::leave).collect())
}

struct Inboxes {
    reader: JoinHandle<Result<Vec<(View, u32)>>>,
}

impl Inboxes {
    fn open(side: Side, plan: Plan, stop: Arc<AtomicBool>) -> Result<Self> {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let reader = std::thread::Builder::new().name(RECEIVER.into()).spawn(move || {
            side.enter()?;
            priority::pin(plan.core)?;
            let clients = plan.clients;
            // Without it the stamps are the same; only the buffers have to hold more.
            drop(priority::fifo(20));
            let inboxes: Result<Vec<_>> = (0..clients).map(|client| inbox(2 * client)).collect();
            // Nobody reads them: what is not asked for must find a socket all the same.
            let reports: Result<Vec<_>> =
                (0..clients).map(|client| inbox(2 * client + 1)).collect();
            let (inboxes, _reports) = (inboxes?, reports?);
            ready.send(()).context("nobody waits for the receiver")?;
            let view = || View::new(plan.rate, plan.length + plan.stagger);
            read(inboxes, (0..clients).map(|_| view()).collect(), &stop)
        })?;
        match is_ready.recv() {
            Ok(()) => Ok(Self { reader }),
            Err(_) => Err(reader.join().map_or_else(
                |_| anyhow!("the receiver panicked"),
                |ended| ended.err().unwrap_or_else(|| anyhow!("the receiver has ended")),
            )),
        }
    }
}

/// Takes what comes as one as it is: the kernel would cut it at the sender's cost, whose core it
/// does it on.
fn inbox(offset: usize) -> Result<UdpInput> {
    let port = PORT + u16::try_from(offset).context("so many clients have no ports")?;
    let to = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let wanted = InputOptions { to, source: None, interface: None, buffer: BUFFER };
    Ok(UdpInput::open(&wanted)?.stamped()?.gathered()?)
}

fn read(
    mut inboxes: Vec<UdpInput>,
    mut views: Vec<View>,
    stop: &AtomicBool,
) -> Result<Vec<(View, u32)>> {
    // The kernel stamps by the wall clock.
    let wall = clock_gettime(ClockId::Realtime);
    let wall = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
    let apart = wall - clock::now().0;
    let mut next = clock::now();
    while !stop.load(Ordering::Relaxed) {
        for (view, inbox) in views.iter_mut().zip(&mut inboxes) {
            let mut each = |datagram: tactus_sys::udp_input::Datagram<'_>| {
                if let Some(stamp) = datagram.timestamp {
                    view.take(MonoTime(stamp.0.saturating_sub(apart)), datagram.bytes);
                }
            };
            while inbox.receive(&mut each).is_ok_and(|count| count == BATCH) {}
        }
        next = clock::now().max(next) + SWEEP;
        clock::sleep_until(next);
    }
    let views = views.into_iter().zip(&inboxes);
    views.map(|(view, inbox)| Ok((view, inbox.dropped()?))).collect()
}
