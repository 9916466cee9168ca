//! Another program occupies the delivery core: the log and the status must give the cause of late
//! streams.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tactus_sys::thread;

use super::test_server::{Server, get, line, prepared};

/// Occupies `core` with the highest real-time priority for this time.
fn take_core(core: u32, span: Duration) {
    std::thread::spawn(move || {
        thread::pin(core).expect("the core exists");
        thread::run_fifo(99).expect("tests run as root, or with CAP_SYS_NICE");
        let begun = Instant::now();
        while begun.elapsed() < span {
            std::hint::spin_loop();
        }
    })
    .join()
    .expect("it has no way to panic");
}

fn core_of(server: &Server) -> u32 {
    let status = server.status();
    let core = status["placement"].as_array().and_then(|cores| cores.last()?["cpu"].as_u64());
    core.expect("link and delivery sit on the last core") as u32
}

#[test]
fn s04_a_real_time_program_that_takes_the_core_is_logged_counted_and_shown() {
    let mut server = Server::new("");
    let core = core_of(&server);
    assert_eq!(server.status()["stalls"]["last"], serde_json::Value::Null);
    let mut viewers: Vec<_> = (0..2)
        .map(|_| {
            let mut viewer = TcpStream::connect(&server.http).expect("a connection");
            write!(viewer, "GET /film.ts?rate=800k HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .expect("a request");
            viewer
        })
        .collect();
    for viewer in &mut viewers {
        viewer.read_exact(&mut [0; 50_000]).expect("the title comes");
    }
    take_core(core, Duration::from_millis(1300));

    let said = server.wait_for(|server| line(&server.err(), &format!("core {core} was stalled")));
    assert!(said.contains("2 streams stay later by as much"), "{said}");
    assert!(said.contains("waited 1.") || said.contains("waited 9"), "{said}");
    assert!(said.contains("involuntary context switches"), "{said}");
    let status = server.status();
    let stalls = &status["stalls"];
    assert!(stalls["count"].as_u64() >= Some(1), "{stalls}");
    assert!(stalls["longest_seconds"].as_f64() > Some(0.8), "{stalls}");
    assert_eq!(stalls["last"]["core"], core, "{stalls}");
    assert!(stalls["last"]["streams"].as_u64() >= Some(2), "{stalls}");
    let degraded = status["degraded"].to_string();
    assert!(degraded.contains(&format!("core {core} was stalled for")), "{degraded}");
    assert!(status["totals"]["underruns"].as_u64() >= Some(2), "{}", status["totals"]);
    for stream in status["streams"].as_array().expect("a list") {
        assert!(stream["underruns"].as_u64() >= Some(1), "{stream}");
        assert!(stream["stalled_seconds"].as_f64() > Some(0.8), "{stream}");
        assert!(stream["lateness_max_seconds"].as_f64() > Some(0.8), "{stream}");
    }
    let metrics = get(&server.admin, "/metrics", "").body;
    let value = |name: &str| -> f64 {
        let found = metrics.lines().find_map(|line| line.strip_prefix(name));
        found.and_then(|value| value.trim().parse().ok()).expect("the metric is there")
    };
    assert!(value(&format!("tactus_core_stalled_seconds_total{{core=\"{core}\"}} ")) > 0.8);
    assert!(value("tactus_streams_stalled_total ") >= 2.0);
    assert!(value("tactus_underruns_total ") >= 2.0);
    drop(viewers);
    assert!(server.is_running());
    assert!(server.end().success());
}

#[test]
fn s04_two_servers_on_one_host_do_not_share_a_core_while_another_is_free() {
    let first = Server::new("");
    let second = Server::beside_others(&[], "");
    let (one, other) = (core_of(&first), core_of(&second));
    let free = thread::allowed_cores().expect("this thread's cores").len();
    let (said, status) = (second.err(), second.status()["degraded"].to_string());
    if one == other {
        // Servers of other tests may use all cores.
        assert!(free < 2 || said.contains("is also used by another Tactus server"), "{said}");
        assert!(status.contains("is also used by another Tactus server"), "{status}");
    } else {
        assert!(said.contains("another Tactus server uses the default core"), "{said}");
    }
}

#[test]
fn s04_a_configured_core_of_another_server_gives_one_warning() {
    let first = Server::new("");
    let core = core_of(&first);
    let servers = "[\"disk\", \"block\", \"delivery\", \"link\", \"packets\"]";
    let config = format!("[cores]\nplacement = [{{ cpu = {core}, servers = {servers} }}]\n");
    let second = Server::beside_others(&[], &config);
    assert_eq!(core_of(&second), core, "the configured placement is kept");
    let said = second.err();
    let lines = said.lines().filter(|line| line.contains("is also used by another Tactus server"));
    assert_eq!(lines.count(), 1, "{said}");
    let (_dir, mut check) = prepared(&["--check-config"], &config);
    assert!(check.status().expect("it ends").success(), "a check claims no core");
}
