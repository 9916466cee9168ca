//! The configuration, read again while streams run.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::live::Receiver;
use super::served::RunningServer;
use super::{PATIENCE, inbox, is_inside};

/// What is sent, and how: names and titles.
fn channels(served: &RunningServer) -> Vec<(String, String)> {
    let (status, text) = served.ask("GET", "/api/v1/channels", "", false);
    assert_eq!(status, 200, "{text}");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = all.as_array().expect("a list").iter();
    all.map(|one| (text(&one["name"]), text(&one["keys"]["playlist"][0]))).collect()
}

fn until(served: &RunningServer, is_so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{}", served.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn what_may_change_does_when_the_configuration_is_read_again_and_the_rest_is_named() {
    if !is_inside(
        "classes::reload::what_may_change_does_when_the_configuration_is_read_again_and_the_rest_is_named",
    ) {
        return;
    }
    let inbox = inbox();
    let port = inbox.address().expect("bound").port();
    let receiver = Receiver::of(inbox);
    let channel = |name: &str, title: u8, to: &str| {
        format!(
            "[[channel]]\nname = \"{name}\"\ntitle = \"/{title}.ts\"\nto = \"{to}\"\n\
             class = \"house\"\n"
        )
    };
    let served = RunningServer::new(
        |media| {
            format!(
                "[admin]\naddress = \"off\"\non_http = true\n[memory]\narena = \"64 MiB\"\n\
                 [link]\nrate = \"100 Mbit/s\"\n\
                 [[volume]]\npath = \"{media}\"\n\
                 [[class]]\nname = \"house\"\nguaranteed = \"20 Mbit/s\"\n\
                 ceiling = \"30 Mbit/s\"\n{}{}{}",
                channel("a", 1, &format!("rtp://127.0.0.1:{port}")),
                channel("b", 2, "udp://127.0.0.1:7002"),
                channel("c", 2, "udp://127.0.0.1:7003"),
            )
        },
        &[1, 2],
    );
    let of = |names: &[(&str, u8)]| -> Vec<(String, String)> {
        names.iter().map(|&(name, title)| (name.to_owned(), format!("/{title}.ts"))).collect()
    };
    served.until("house", |house| house["streams"] == 3);
    let file = served.dir.path().join("tactus.toml");
    let written = fs::read_to_string(&file).expect("it is there");
    let write = |text: &str| fs::write(&file, text).expect("a configuration");
    let replaced = |changes: &[(&str, &str)]| {
        changes.iter().fold(written.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        })
    };
    assert_eq!(served.told(&["reload"], &[]), "", "nothing is another thing");

    // A mistake, or what does not fit, changes nothing: not even the channels that could.
    for (text, said) in [
        (replaced(&[("20 Mbit/s", "10 Mbits")]), "tactus.toml:"),
        (
            replaced(&[("20 Mbit/s", "10 Mbit/s"), ("30 Mbit/s", "8 Mbit/s")]),
            "the ceiling of a class is not below",
        ),
        (
            replaced(&[("20 Mbit/s", "1 Mbit/s"), ("30 Mbit/s", "8 Mbit/s")]),
            "of the class \"house\" would be promised, of 8 Mbit/s",
        ),
        (replaced(&[("20 Mbit/s", "95 Mbit/s"), ("30 Mbit/s", "off")]), "90 Mbit/s"),
        (channel("z", 1, "udp://127.0.0.1:7004"), "there is no class \"house\""),
        (
            written.replace("[[class]]", "[[class]]\nname = \"new\"\n[[class]]")
                + &channel("z", 1, "udp://127.0.0.1:7004").replace("house", "new"),
            "there is no class \"new\", but house; adding or removing",
        ),
    ] {
        write(
            &(text + &channel("d", 1, "udp://127.0.0.1:7005").replace("class = \"house\"\n", "")),
        );
        let (code, why) = served.refused(&["reload"], &[]);
        assert!(
            code == 1 && why.contains("nothing is changed") && why.contains(said),
            "{code}, {why}"
        );
    }
    assert_eq!(channels(&served), of(&[("a", 1), ("b", 2), ("c", 2)]));
    assert_eq!(served.class("house")["ceiling_bits_per_second"], 30_000_000);
    assert_eq!(served.ask("POST", "/api/v1/reload", "", false).0, 401);
    assert_eq!(served.ask("GET", "/api/v1/reload", "", true).0, 404);

    // One goes, one comes to its address, one sends another title; a class has less, and what needs
    // a restart is named.
    served.told(&["class", "set"], &["house", "--priority", "5"]);
    let more = channel("d", 1, "udp://127.0.0.1:7003");
    let again = replaced(&[
        ("20 Mbit/s", "21 Mbit/s"),
        ("[link]\n", "[http]\nlisting = false\n[link]\n"),
        (
            "title = \"/2.ts\"\nto = \"udp://127.0.0.1:7002\"",
            "title = \"/1.ts\"\nto = \"udp://127.0.0.1:7002\"",
        ),
        (&channel("c", 2, "udp://127.0.0.1:7003"), &more),
    ]);
    write(&again);
    let said = served.told(&["reload"], &[]);
    let expected = "changed: class \"house\"\nchanged: channel \"c\" (removed)\n\
                    changed: channel \"b\"\n\
                    changed: channel \"d\" (added)\nneeds a restart: http.listing\n";
    assert_eq!(said, expected);
    until(&served, || channels(&served) == of(&[("a", 1), ("b", 1), ("d", 1)]));
    let house = served.class("house");
    assert_eq!(
        (&house["guaranteed_bits_per_second"], &house["priority"]),
        (&json!(21_000_000), &json!(0))
    );
    assert!(house["changed"].is_null());
    assert!(served.log().contains("http.listing of the configuration needs a restart"));
    served.until("house", |house| house["streams"] == 3);

    // The same by a signal. What was changed over the interface stays changed, until it is reset.
    served.told(&["channel", "set"], &["b", "/2.ts"]);
    write(&again.replace("21 Mbit/s", "22 Mbit/s"));
    kill_process(Pid::from_child(&served.server.0), Signal::HUP).expect("it runs");
    until(&served, || served.class("house")["guaranteed_bits_per_second"] == 22_000_000);
    until(&served, || channels(&served) == of(&[("a", 1), ("b", 2), ("d", 1)]));
    served.told(&["channel", "reset"], &["b"]);
    until(&served, || channels(&served) == of(&[("a", 1), ("b", 1), ("d", 1)]));
    write(&written);
    let said = served.told(&["reload"], &[]);
    assert!(said.contains("\"d\" (removed)") && !said.contains("restart"), "{said}");
    until(&served, || channels(&served) == of(&[("a", 1), ("b", 2), ("c", 2)]));
    // One that stays as it is has lost nothing.
    receiver.end();
}
