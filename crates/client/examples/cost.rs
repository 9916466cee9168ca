//! What a read in place costs the program: the time of `submit` and `poll`, without the server's.
//!
//! Method: a server in this process holds 64 requests back, so that it does not run beside the
//! submissions, and answers all of them before the first is polled. Median and 99th percentile of
//! the rounds, per request.

#[path = "../tests/fake/mod.rs"]
#[allow(dead_code, reason = "made for tests")]
mod fake;

use std::time::{Duration, Instant};

use tactus_client::{Client, ReadRequest};

const REQUESTS: u64 = 64;
const ROUNDS: usize = 2_000;
const LEN: usize = 4096;

fn main() -> tactus_client::Result<()> {
    let server = fake::FakeServer::start();
    let client = Client::connect(&server.path)?;
    let title = client.open("/one")?;
    let mut buffers: Vec<_> =
        (0..REQUESTS).map(|_| client.buffer(LEN)).collect::<Result<_, _>>()?;
    let (mut submits, mut polls, mut taken) = (vec![], vec![], 0);
    for _ in 0..ROUNDS {
        server.control.hold(true);
        // Wakes the server, so that none of the timed requests has to.
        let first = client.buffer(LEN)?;
        client.submit(ReadRequest::new(&title, 0, first))?;
        taken += 1;
        server.control.wait_for_requests(taken);

        let start = Instant::now();
        for (nth, buffer) in buffers.drain(..).enumerate() {
            client.submit(ReadRequest::new(&title, nth as u64, buffer))?;
        }
        submits.push(start.elapsed());

        taken += REQUESTS;
        server.control.wait_for_requests(taken);
        server.control.hold(false);
        drop(client.wait(None)?);
        std::thread::sleep(Duration::from_micros(300));

        let start = Instant::now();
        while buffers.len() < REQUESTS as usize {
            if let Some(completion) = client.poll() {
                assert_eq!(completion.result, Ok(LEN));
                buffers.push(completion.buffer);
            }
        }
        polls.push(start.elapsed());
    }
    print("submit", &mut submits);
    print("poll", &mut polls);
    Ok(())
}

fn print(name: &str, times: &mut [Duration]) {
    times.sort();
    let per_request = |time: Duration| time.as_nanos() / u128::from(REQUESTS);
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{name}: p50 {} ns, p99 {} ns", per_request(p50), per_request(p99));
}
