//! Classes that change while their streams run, by commands and requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tactus_core::rtp;
use tactus_sys::udp_input::UdpInput;

use super::served::RunningServer;
use super::{PATIENCE, inbox, is_inside};

/// What of a class is not counted.
fn parameters(class: &Value) -> Vec<Value> {
    let keys = [
        "guaranteed_bits_per_second",
        "ceiling_bits_per_second",
        "priority",
        "share_bits_per_second",
        "promised_bits_per_second",
        "changed",
    ];
    keys.iter().map(|key| class[key].clone()).collect()
}

/// Whoever receives an RTP stream, of which nothing may be missing.
pub(crate) struct Receiver {
    is_over: Arc<AtomicBool>,
    came: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Receiver {
    pub(crate) fn of(mut inbox: UdpInput) -> Self {
        let (is_over, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&came));
        let thread = std::thread::spawn(move || {
            let mut last = None;
            let mut heard = |bytes: &[u8]| {
                let next = rtp::Packet::read(bytes).expect("RTP").sequence;
                let is_next = last.is_none_or(|last: u16| next == last.wrapping_add(1));
                let before = count.fetch_add(1, Ordering::Relaxed);
                assert!(is_next, "{next} comes behind {last:?}, after {before}");
                last = Some(next);
            };
            while !over.load(Ordering::Relaxed) {
                while inbox.receive(|datagram| heard(datagram.bytes)).is_ok() {}
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self { is_over, came, thread }
    }

    /// Waits for a second of the stream, and for its end here.
    pub(crate) fn end(self) {
        let before = self.came.load(Ordering::Relaxed);
        let end = Instant::now() + PATIENCE;
        while self.came.load(Ordering::Relaxed) < before + 300 && !self.thread.is_finished() {
            assert!(Instant::now() < end, "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("nothing is missing");
    }
}

const CLASSES: &str = r#"
[link]
rate = "100 Mbit/s"
[[class]]
name = "house"
guaranteed = "20 Mbit/s"
ceiling = "20 Mbit/s"
oversubscribe = true
[[class]]
name = "gold"
guaranteed = "40 Mbit/s"
ceiling = "50 Mbit/s"
burst = "4 ms"
[[class]]
name = "inner"
parent = "gold"
guaranteed = "20 Mbit/s"
ceiling = "30 Mbit/s"
"#;

#[test]
fn classes_change_while_streams_run_and_what_is_promised_stays_so() {
    if !is_inside("classes::live::classes_change_while_streams_run_and_what_is_promised_stays_so") {
        return;
    }
    let (own, others) = (inbox(), inbox());
    let port = |inbox: &UdpInput| inbox.address().expect("bound").port();
    let ports = (port(&own), port(&others));
    let served = RunningServer::new(
        |media| {
            format!(
                "[admin]\naddress = \"off\"\non_http = true\n[memory]\narena = \"64 MiB\"\n\
                 [[volume]]\npath = \"{media}\"\n{CLASSES}\
                 [[channel]]\nname = \"a\"\ntitle = \"/1.ts\"\nrate = \"24 Mbit/s\"\n\
                 to = \"rtp://127.0.0.1:{}\"\nclass = \"inner\"\n\
                 [[channel]]\nname = \"b\"\ntitle = \"/2.ts\"\nrate = \"30 Mbit/s\"\n\
                 to = \"udp://127.0.0.1:{}\"\nclass = \"house\"\n",
                ports.0, ports.1
            )
        },
        &[1, 2],
    );
    // One of them loses no datagram, whatever the others are given.
    let receiver = Receiver::of(own);
    let sends = |name: &str, from: u64, to: u64| {
        served.until(name, |class| {
            let rate = class["real_rate_bits_per_second"].as_u64().expect("a rate");
            (from * 1_000_000..=to * 1_000_000).contains(&rate)
        })
    };
    sends("inner", 24, 26);
    let house = sends("house", 19, 21);
    assert_eq!((&house["streams"], &served.class("gold")["streams"]), (&json!(1), &json!(1)));
    let tree = served.told(&["class", "list"], &[]);
    let rows: Vec<_> = tree.lines().skip(1).map(str::trim_end).collect();
    assert!(
        rows[0].trim_start().starts_with("house") && rows[1].trim_start().starts_with("gold"),
        "{tree}"
    );
    assert!(rows[2].trim_start().starts_with("inner") && rows[2].starts_with("   "), "{tree}");

    // What would not fit is named, and nothing changes.
    let before = ["house", "gold", "inner"].map(|name| parameters(&served.class(name)));
    let promised = |name: &str| served.class(name)["promised_bits_per_second"].as_u64();
    assert!((24_000_000..26_000_000).contains(&promised("inner").expect("a rate")));
    for (words, code, said) in [
        (
            &["gold", "--ceiling", "22 Mbit/s"][..],
            2,
            "the ceiling of a class is not below its guarantee",
        ),
        (
            &["inner", "--ceiling", "22 Mbit/s"],
            1,
            "of the class \"inner\" would be promised, of 22 Mbit/s",
        ),
        (&["inner", "--rate", "19 Mbit/s"], 1, "streams of the class \"inner\" are promised 25."),
        (
            &["inner", "--rate", "41 Mbit/s", "--ceiling", "off"],
            1,
            "below \"gold\" are guaranteed 41 Mbit/s",
        ),
        (&["gold", "--guaranteed", "15 Mbit/s"], 1, "below \"gold\" are guaranteed 20 Mbit/s"),
        (
            &["house", "--rate", "51 Mbit/s", "--ceiling", "90 Mbit/s"],
            1,
            "of the link would be promised, of 90 Mbit/s",
        ),
        (&["gold", "--priority", "8"], 2, "8 is out of range"),
        (&["gold", "--rate", "8"], 2, "has no unit"),
        (&["silver", "--rate", "8 Mbit/s"], 1, "no class of this name"),
        (&["gold"], 2, "no change was given; see --help"),
    ] {
        let (ended, why) = served.refused(&["class", "set"], words);
        assert!(ended == code && why.contains(said), "{words:?}: {ended}, {why}");
    }
    let path = "/api/v1/classes/gold";
    for (method, path, body, is_known, status, said) in [
        ("PATCH", path, r#"{"priority": 1}"#, false, 401, "token"),
        (
            "PATCH",
            path,
            r#"{"burst": "8 ms"}"#,
            true,
            409,
            "`burst` of the class \"gold\" needs a restart",
        ),
        ("PATCH", path, r#"{"parent": "house"}"#, true, 409, "`parent`"),
        ("PATCH", path, r#"{"name": "other"}"#, true, 400, "another class"),
        ("PATCH", path, r#"{"pace": 1}"#, true, 400, "pace"),
        ("PUT", path, "[]", true, 400, "JSON object"),
        ("PUT", "/api/v1/classes/new", "{}", true, 404, "no class"),
        ("DELETE", path, "", true, 405, "GET"),
        ("POST", "/api/v1/classes", "{}", true, 405, "GET"),
        ("GET", "/api/v1/classes/new", "", false, 404, "no class"),
    ] {
        let (answered, text) = served.ask(method, path, body, is_known);
        assert!(answered == status && text.contains(said), "{method} {body}: {answered}, {text}");
    }
    assert_eq!(["house", "gold", "inner"].map(|name| parameters(&served.class(name))), before);

    served.told(
        &["class", "set"],
        &["house", "--ceiling", "10 Mbit/s", "--guaranteed", "10 Mbit/s", "--priority", "5"],
    );
    let house = sends("house", 9, 11);
    assert_eq!((&house["priority"], &house["changed"]), (&json!(5), &json!(true)));
    // Only what is said changes by PATCH; by PUT all that can.
    let (status, text) =
        served.ask("PATCH", "/api/v1/classes/house", r#"{"ceiling": "15 Mbit/s"}"#, true);
    let house: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (status, &house["priority"], &house["guaranteed_bits_per_second"]),
        (200, &json!(5), &json!(10_000_000))
    );
    sends("house", 14, 16);
    let body = r#"{"guaranteed": "18 Mbit/s", "ceiling": "18 Mbit/s"}"#;
    let (status, text) = served.ask("PUT", "/api/v1/classes/house", body, true);
    let house: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (status, &house["priority"], &house["oversubscribed"]),
        (200, &json!(0), &json!(true))
    );
    sends("house", 17, 19);
    // A class of streams that are promised theirs changes under them, and what is beyond it is
    // borrowed.
    served.told(&["class", "set"], &["inner", "--rate", "26 Mbit/s", "--ceiling", "off"]);
    sends("inner", 24, 26);
    served.told(&["class", "set"], &["inner", "--ceiling", "27 Mbit/s"]);
    let inner = served.until("inner", |class| class["borrowed_bits_per_second"] == 0);
    assert_eq!(inner["ceiling_bits_per_second"], 27_000_000);
    let shown: Value =
        serde_json::from_str(&served.told(&["class", "show"], &["inner"])).expect("JSON");
    assert_eq!(parameters(&shown), parameters(&inner));
    served
        .told(&["class", "set"], &["house", "--guaranteed", "20 Mbit/s", "--ceiling", "20 Mbit/s"]);
    assert!(served.class("house")["changed"].is_null(), "as it is configured again");
    sends("house", 19, 21);
    assert!(served.log().contains("a class has changed"));
    receiver.end();
}
