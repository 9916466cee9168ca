//! Sending a file over one loopback TCP connection: hot by splice, cold by sendfile.
//!
//! Promise: sender on core 0, receiver on core 1, which discards inside the kernel; both sides' CPU
//! time is given.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Result, anyhow};
use rustix::fs::sendfile;
use rustix::net::{RecvFlags, recv, sockopt};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::thread::gettid;
use tactus_core::units::{KIB, MIB, Nanos};

use crate::netns::CONGESTION_CONTROL;
use crate::report::{Floor, number};
use crate::titles::Titles;
use crate::{clock, cpu, priority};

const CHUNK: usize = 256 * KIB as usize;
/// How often the hot file is sent.
const HOT_TURNS: u64 = 2;

/// Both.
pub(super) fn measure(file: &Titles) -> Result<Vec<Floor>> {
    let path = file.root().join(file.target(0).trim_start_matches('/'));
    let whole = file.size().0;
    file.warm()?;
    let hot = transfer("loopback TCP, hot, splice of 256 KiB", HOT_TURNS * whole, |socket| {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&into, MIB as usize)?;
        let source = File::open(&path)?;
        for _ in 0..HOT_TURNS {
            let mut at = 0;
            while at < whole {
                let filled = splice(&source, Some(&mut at), &into, None, CHUNK, SpliceFlags::MOVE)?;
                let mut left = filled;
                while left > 0 {
                    left -= splice(&out, None, socket, None, left, SpliceFlags::MOVE)?;
                }
            }
        }
        Ok(())
    })?;
    file.chill()?;
    let cold = transfer("loopback TCP, cold, sendfile of 256 KiB", whole, |socket| {
        let source = File::open(&path)?;
        let mut at = 0;
        while at < whole {
            sendfile(socket, &source, Some(&mut at), CHUNK)?;
        }
        Ok(())
    })?;
    Ok(vec![hot, cold])
}

fn transfer(
    name: &str,
    bytes: u64,
    send: impl FnOnce(&TcpStream) -> Result<()> + Send,
) -> Result<Floor> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    sockopt::set_tcp_congestion(&listener, CONGESTION_CONTROL)?;
    let address = listener.local_addr()?;
    let start = clock::now();
    let (sender, receiver) = thread::scope(|scope| {
        let sender = scope.spawn(move || {
            on_core(0, || {
                let (socket, _) = listener.accept()?;
                send(&socket)
            })
        });
        let receiver = scope.spawn(move || {
            on_core(1.min(priority::cores() - 1), || {
                let socket = TcpStream::connect(address)?;
                let mut void = vec![0; 4 * MIB as usize];
                while recv(&socket, &mut void[..], RecvFlags::TRUNC)?.1 > 0 {}
                Ok(())
            })
        });
        let panicked = |_| anyhow!("one side of the connection panicked");
        let sender = sender.join().map_err(panicked)??;
        anyhow::Ok((sender, receiver.join().map_err(panicked)??))
    })?;
    let seconds = clock::now().since(start).0 as f64 / 1e9;
    let per_gb = |ran: Nanos| ran.0 as f64 / bytes as f64;
    let (alone, total) = (per_gb(sender), per_gb(sender + receiver));
    let rate = bytes as f64 / seconds / 1e9;
    let value = format!(
        "{} s/GB sender, {} s/GB in all, {} GB/s",
        number(alone),
        number(total),
        number(rate)
    );
    let figures = [("sender s/GB", alone), ("total s/GB", total), ("GB/s", rate)];
    Ok(Floor::new(name, value, &figures))
}

/// Runs `work` on `core` and answers its run time.
fn on_core(core: usize, work: impl FnOnce() -> Result<()>) -> Result<Nanos> {
    priority::pin(core)?;
    let thread = gettid().as_raw_nonzero().get() as u32;
    let before = cpu::thread_run_time(thread)?;
    work()?;
    Ok(cpu::thread_run_time(thread)?.saturating_sub(before))
}
