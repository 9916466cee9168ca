//! F-12 for what comes in and cannot wait: a disk that stalls under recordings.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tactus_core::ts::{PACKET, SYNC};
use tactus_core::units::{Bytes, MIB};

use crate::disk::{is_whole_and_on_time, wait_until};
use crate::fixture::{Answer, Fixture, Plan, Server, content};

/// Of both recordings, in bytes each second: what they are promised, and what comes.
const PROMISED: u64 = 1_000_000;
const COMES: u64 = 750_000;
/// Packets of a datagram.
const SEVEN: usize = 7;
/// Of the delivery beside them, at a megabyte each second: longer than the stall.
const WATCHED: usize = 20_000_000;
/// What a stall may cost at most: a queue of 64 chunks for the live input and as much again for
/// what is on its way through it. The places are part of the arena, which is there from the start.
const MEMORY_MAX: u64 = 16 * MIB;
/// A stall has come to an end long before, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Transport packets with their numbers, at [`COMES`]; how many there were.
fn send(to: SocketAddr, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    std::thread::spawn(move || {
        let (begun, mut count) = (Instant::now(), 0u64);
        while !stop.load(Ordering::Relaxed) {
            let due = begun.elapsed().as_millis() as u64 * COMES / 1000 / PACKET as u64;
            while count + SEVEN as u64 <= due {
                let datagram: Vec<u8> = (count..count + SEVEN as u64).flat_map(numbered).collect();
                socket.send_to(&datagram, to).expect("it is sent");
                count += SEVEN as u64;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        count
    })
}

fn numbered(number: u64) -> [u8; PACKET] {
    let mut packet = [number as u8; PACKET];
    packet[..4].copy_from_slice(&[SYNC, 1, 0, 0x10 | number as u8 & 0x0f]);
    packet[4..12].copy_from_slice(&number.to_be_bytes());
    packet
}

/// A chunked PUT at a rate that goes on until it is told to stop; how much of `bytes` was sent, and
/// the answer.
fn put(
    server: &Server,
    name: &str,
    bytes: Arc<Vec<u8>>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<(usize, Answer)> {
    let mut socket = server.connect();
    // Held back for as long as the disk stalls.
    socket.set_write_timeout(Some(PATIENCE)).expect("a time");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    let head = server.head("PUT", &format!("/{name}?rate={}k", PROMISED * 8 / 1000));
    let head = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    socket.write_all(head.as_bytes()).expect("the head is taken");
    std::thread::spawn(move || {
        let mut sent = 0;
        for piece in bytes.chunks((COMES / 20) as usize) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            socket.write_all(&chunk).expect("the server is there");
            sent += piece.len();
            std::thread::sleep(Duration::from_millis(50));
        }
        socket.write_all(b"0\r\n\r\n").expect("the server is there");
        (sent, Answer::read(&mut socket))
    })
}

fn resident(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let text = std::fs::read_to_string(path).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

const LIVE: &str = "/api/v1/recordings/live";

fn status(server: &Server) -> Value {
    let answer = server.ask("GET", LIVE, "", b"");
    assert_eq!(answer.status, 200, "{}", answer.head);
    serde_json::from_slice(&answer.body).expect("JSON")
}

fn count(status: &Value, name: &str) -> u64 {
    status["counts"][name].as_u64().unwrap_or_else(|| panic!("{name} in {status}"))
}

#[test]
fn f_12_a_disk_that_stalls_costs_a_recording_a_counted_gap_and_nobody_else_anything() {
    let sizes = vec![Bytes(1024 * MIB); 2];
    let fixture = Fixture::new(Plan { sizes, ..Plan::default() });
    let server = &fixture.server;
    let good = fixture.store("disk1/b.ts", WATCHED);
    let wanted = format!(
        "{{\"name\": \"live\", \"from\": \"udp://127.0.0.1:0\", \"to\": \"/live-%n.ts\", \
         \"rate\": \"{} kbit/s\"}}",
        PROMISED * 8 / 1000
    );
    let answer = server.ask("POST", "/api/v1/recordings", "", wanted.as_bytes());
    assert_eq!(answer.status, 201, "{}", answer.text());
    wait_until("it listens", PATIENCE, || status(server)["address"].is_string());
    let to = status(server)["address"].as_str().and_then(|to| to.parse().ok()).expect("a place");
    let stop = Arc::new(AtomicBool::new(false));
    let source = send(to, Arc::clone(&stop));
    let bytes = Arc::new(content("put.ts", 100_000_000));
    let uploader = put(server, "put.ts", Arc::clone(&bytes), Arc::clone(&stop));
    let durable = || status(server)["title_durable_bytes"].as_u64().unwrap_or(0);
    wait_until("something is durable", PATIENCE, || durable() > 0);
    assert_eq!(status(server)["alarms"], serde_json::json!({}), "both have what they need");
    let watch = server.watch("disk1/b.ts", &good);
    let before = (durable(), resident(server));

    fixture.disks[0].hang().expect("a process can be stopped");
    wait_until("the alarm", PATIENCE, || status(server)["alarms"]["stall"].is_string());
    let lost = || count(&status(server), "write_gap_bytes");
    wait_until("more is lost", PATIENCE, || lost() > COMES);
    let during = resident(server);
    assert!(during < before.1 + MEMORY_MAX, "{} bytes before, {during} in the stall", before.1);
    fixture.disks[0].go_on().expect("a process can go on");
    wait_until("the alarm is over", PATIENCE, || status(server)["alarms"]["stall"].is_null());
    // What was in memory alone is more than twice as much.
    wait_until("it goes on", PATIENCE, || durable() > before.0 + 10_000_000);
    is_whole_and_on_time(&watch.seen());

    stop.store(true, Ordering::Relaxed);
    let sent = source.join().expect("it has sent");
    let (uploaded, answer) = uploader.join().expect("it has sent");
    assert_eq!(answer.status, 201, "{}\n{}", answer.head, server.said());
    let answer = server.get("put.ts");
    assert!(answer.is_whole && answer.body == bytes[..uploaded], "who can wait loses nothing");
    // Datagrams that are still in the kernel are taken at its end.
    assert!(matches!(server.ask("DELETE", LIVE, "", b"").status, 200 | 202));
    wait_until("it has stopped", PATIENCE, || status(server)["state"] == "stopped");
    let status = status(server);
    let mut title = Vec::new();
    let file = std::fs::File::open(fixture.path("live-0001.ts"));
    file.and_then(|mut file| file.read_to_end(&mut title)).expect("a title");
    assert_eq!(count(&status, "titles"), 1, "{status}");
    assert_eq!(count(&status, "stored_bytes"), title.len() as u64);
    let (mut next, mut gaps, mut missing) = (0, 0, 0);
    for packet in title.chunks(PACKET) {
        let number = u64::from_be_bytes(packet[4..12].try_into().expect("whole packets"));
        assert!(number >= next && *packet == numbered(number), "packet {number} after {next}");
        gaps += u64::from(number > next);
        missing += number - next;
        next = number + 1;
    }
    missing += sent - next;
    let dropped = count(&status, "socket_dropped");
    let counted = count(&status, "write_gap_bytes") / PACKET as u64 + dropped * SEVEN as u64;
    assert_eq!(missing, counted, "{status}");
    // The kernel drops where the whole machine is late; else each hole is one that was told of.
    assert!(dropped > 0 || gaps == count(&status, "write_gaps"), "{gaps} gaps: {status}");
    assert_eq!(server.figure("tactus_underruns_total"), 0.0);
}
