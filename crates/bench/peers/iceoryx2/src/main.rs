//! Reads parts of a file out of another process's memory by request and response of iceoryx2, for
//! the bench `stages`.
//!
//! `iceoryx2-peer FILE CORE SERVER_CORE` starts its own server, which has FILE in memory, and takes
//! a line `SIZE MILLISECONDS` at a time. To each it answers with the times of its requests in one
//! line: p50 and p99.9 in microseconds, CPU time of both sides for a request in microseconds, and
//! the number of requests.

use std::fs;
use std::io::{BufRead, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use iceoryx2::port::client::Client;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;
use rustix::process::{Pid, Signal};

/// The first byte and the number of bytes.
type Request = [u64; 2];
type Requests = PortFactory<ipc::Service, Request, (), [u8], ()>;

/// The largest reply.
const REPLY_MAX: usize = 1 << 20;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", name, file, core] => serve(name, &fs::read(file)?, core.parse()?),
        [file, core, server_core] => ask(file, core.parse()?, server_core),
        _ => bail!("usage: iceoryx2-peer FILE CORE SERVER_CORE"),
    }
}

fn service(name: &str) -> Result<(Node<ipc::Service>, Requests)> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = node.service_builder(&name.try_into()?).request_response::<Request, [u8]>();
    Ok((node, service.open_or_create()?))
}

/// Answers without sleep until its parent ends.
fn serve(name: &str, bytes: &[u8], core: usize) -> Result<()> {
    pin(core)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let (_node, service) = service(name)?;
    let server = service.server_builder().initial_max_slice_len(REPLY_MAX).create()?;
    println!("ready");
    loop {
        let Some(request) = server.receive()? else {
            std::hint::spin_loop();
            continue;
        };
        let [first, len] = (*request).map(|word| word as usize);
        let reply = request.loan_slice_uninit(len)?;
        reply.write_from_slice(&bytes[first..first + len]).send()?;
    }
}

fn ask(file: &str, core: usize, server_core: &str) -> Result<()> {
    pin(core)?;
    let name = format!("stages-{}", std::process::id());
    let server = Server::start(&name, file, server_core)?;
    let (_node, service) = service(&name)?;
    let client = service.client_builder().create()?;
    server.signal(Signal::STOP)?;
    let len = fs::metadata(file)?.len();
    let mut random = 7_u64;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (size, span) = line.split_once(' ').context("SIZE MILLISECONDS")?;
        let (size, span) = (size.parse()?, Duration::from_millis(span.parse()?));
        server.signal(Signal::CONT)?;
        let warm = Instant::now() + span / 10;
        while Instant::now() < warm {
            read(&client, &mut random, size, len)?;
        }
        let mut times = Vec::with_capacity(1 << 22);
        let before = cpu(&server)?;
        let until = Instant::now() + span;
        loop {
            let begun = Instant::now();
            if begun >= until {
                break;
            }
            read(&client, &mut random, size, len)?;
            times.push(begun.elapsed());
        }
        let cpu = (cpu(&server)? - before) as f64 / 1e3 / times.len() as f64;
        // It never sleeps by itself, and the bench measures others meanwhile.
        server.signal(Signal::STOP)?;
        times.sort_unstable();
        let at = |part: f64| times[(times.len() as f64 * part) as usize].as_nanos() as f64 / 1e3;
        println!("{} {} {cpu} {}", at(0.5), at(0.999), times.len());
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// One request, answered. Reads the first and the last byte.
fn read(
    client: &Client<ipc::Service, Request, (), [u8], ()>,
    random: &mut u64,
    size: u64,
    len: u64,
) -> Result<()> {
    // A linear congruential generator will do to hop about.
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    let first = (*random >> 33) % (len / size) * size;
    let pending = client.send_copy([first, size])?;
    let reply = loop {
        match pending.receive()? {
            Some(reply) => break reply,
            None => std::hint::spin_loop(),
        }
    };
    let expected = (first ^ first >> 8 ^ first >> 16) as u8;
    let bytes = reply.payload();
    ensure!(bytes.len() == size as usize && bytes[0] == expected, "other bytes");
    std::hint::black_box(bytes[bytes.len() - 1]);
    Ok(())
}

/// Run time of this thread and of all of the server's, in nanoseconds.
fn cpu(server: &Server) -> Result<u64> {
    let ran = |path: String| -> Result<u64> {
        let text = fs::read_to_string(path)?;
        Ok(text.split_whitespace().next().context("a number")?.parse()?)
    };
    let mut sum = ran("/proc/thread-self/schedstat".to_owned())?;
    for task in fs::read_dir(format!("/proc/{}/task", server.0.id()))? {
        sum += ran(format!("{}/schedstat", task?.path().display()))?;
    }
    Ok(sum)
}

fn pin(core: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The process that has the file in memory.
struct Server(Child);

impl Server {
    fn start(name: &str, file: &str, core: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", name, file, core]).stdout(Stdio::piped());
        let mut server = Self(command.spawn()?);
        let said = server.0.stdout.take().context("its output")?;
        let mut line = String::new();
        std::io::BufReader::new(said).read_line(&mut line)?;
        ensure!(line == "ready\n", "the server does not start");
        Ok(server)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let process = Pid::from_child(&self.0);
        Ok(rustix::process::kill_process(process, signal)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
