//! Properties of the configuration as a whole.

use std::path::Path;

use tactus_control::rights::Readers;
use tactus_core::units::{BitRate, Bytes};

use super::*;

const SAMPLE: &str = include_str!("../../../tactus.sample.toml");

fn said(text: &str) -> String {
    Config::parse(Path::new("t.toml"), text).expect_err(text).to_string()
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(Config::parse(Path::new("t.toml"), ""), Ok(Config::unconfigured()));
}

#[test]
fn the_sample_shows_the_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let media = dir.path().join("media");
    std::fs::create_dir(&media).unwrap();
    let text = SAMPLE.replace("/srv/media", media.to_str().unwrap());
    let sample = Config::parse(&dir.path().join("tactus.toml"), &text).unwrap();
    let mut expected = Config::unconfigured();
    expected.serve_only(&media);
    assert_eq!(sample, expected);
}

/// The keys of a table, as the parser lists them after an unknown key.
fn keys(table: &str) -> Vec<String> {
    let opened = match table {
        "volume" | "upload.principal" | "rtsp.principal" | "recording" | "class" | "channel"
        | "http.unix_socket" | "admin.unix_socket" => {
            format!("[[{table}]]")
        }
        // This table requires two keys.
        "upload.principal.grant" => {
            "[[upload.principal]]\nname = \"a\"\ntoken_file = \"a\"\n[[upload.principal.grant]]"
                .into()
        }
        _ => format!("[{table}]"),
    };
    let text = match table {
        "" => "zzzzzz = 1\n".into(),
        _ => format!("{opened}\nzzzzzz = 1\n"),
    };
    let error = said(&text);
    let list = error.lines().next().unwrap().split("the keys here are ").nth(1);
    list.unwrap_or_else(|| panic!("{error}")).split(", ").map(String::from).collect()
}

#[test]
fn every_key_stands_in_the_sample_and_in_the_guide() {
    let guide = include_str!("../../../docs/guide/configuration.md");
    let mut tables: Vec<String> = keys("");
    let classes = ["title", "asked", "cmcd"];
    tables.extend(classes.map(|class| format!("rate.{class}")));
    tables.push("upload.principal".into());
    tables.push("upload.principal.grant".into());
    tables.push("rtsp.principal".into());
    tables.extend(["http.unix_socket", "admin.unix_socket"].map(String::from));
    let classes = [&classes[..], &["principal", "grant", "unix_socket"]].concat();
    for table in tables {
        assert!(SAMPLE.contains(&format!("[{table}]")), "[{table}] is not in the sample");
        assert!(guide.contains(&format!("[{table}]")), "[{table}] is not in the guide");
        for key in keys(&table).iter().filter(|key| !classes.contains(&key.as_str())) {
            let shown =
                |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
            assert!(SAMPLE.lines().any(shown), "{table}.{key} is not in the sample");
            assert!(guide.contains(&format!("`{key}`")), "{table}.{key} is not in the guide");
        }
    }
}

#[test]
fn an_unknown_key_is_answered_with_its_place_and_the_nearest_one() {
    let error = said("[http]\nlisting = true\nadress = \"0.0.0.0:80\"\n");
    assert!(
        error.starts_with("t.toml:3:1: unknown key `adress`; did you mean `address`?"),
        "{error}"
    );
    let error = said("[memroy]\narena = \"1 GiB\"\n");
    assert!(
        error.starts_with("t.toml:1:2: unknown key `memroy`; did you mean `memory`?"),
        "{error}"
    );
}

#[test]
fn a_wrong_value_is_answered_with_its_place_and_what_to_write() {
    for (text, start) in [
        (
            "[link]\nrate = \"1 gbit/s\"\n",
            "t.toml:2:8: \"gbit/s\" is not a unit of a rate; did you mean \"Gbit/s\"?",
        ),
        (
            "[link]\nrate = 1000\n",
            "t.toml:2:8: \"1000\" has no unit; write a rate like \"8.8 Mbit/s\"",
        ),
        (
            "[link]\nrate = \"off\"\n",
            "t.toml:2:8: this key is not a switch; write a value, or \"auto\"",
        ),
        (
            "[link]\nrate = \"1000001 Mbit/s\"\n",
            "t.toml:2:8: 1000.001 Gbit/s does not fit: a link has 100 kbit/s to 1 Tbit/s",
        ),
        (
            "[http]\naddress = \"here\"\n",
            "t.toml:2:11: \"here\" is not an address to listen on; write",
        ),
        (
            "[http]\nfields_max = 0\n",
            "t.toml:2:14: 0 is out of range; write a value from 8 to 1000",
        ),
        (
            "[http]\nlisting = 1\n",
            "t.toml:2:11: integer `1` does not belong here; write true or false",
        ),
        (
            "[http]\nconnections_max = -1\n",
            "t.toml:2:19: integer `-1` does not belong here; write a whole number from 0 to \
             4294967295",
        ),
        (
            "[rate.title]\ntick = \"64 ms\"\n",
            "t.toml:2:8: 64 ms is not a possible tick; write one of 10 ms, 25 ms, 50 ms, 62.5 ms, \
             100 ms, 125 ms, 250 ms",
        ),
        (
            "[cores]\nrealtime = \"yes\"\n",
            "t.toml:2:12: \"yes\" is not a value of this key; write \"auto\" or \"off\"",
        ),
        (
            "[cores]\nbalance = \"yes\"\n",
            "t.toml:2:11: \"yes\" is not a value of this key; write \"auto\" or \"off\"",
        ),
        (
            "[cores]\nfixed = [\"disk\", \"disk.1\"]\n",
            "t.toml:2:18: there is no server `disk.1`; the servers are disk.0, block.0, delivery, \
             link, link.1, link.2, link.3, packets, packets.1, packets.2, packets.3, file",
        ),
        (
            "[cores]\nplacement = [{ cpu = 0, servers = [\"disk\"] }]\n",
            "t.toml:2:13: `block.0` has no core; add it to the servers of one",
        ),
        (
            "[packets]\nback_end = \"af_xdp\"\n[cores]\nplacement = [{ cpu = 0, servers = [\
             \"disk\", \"block\", \"delivery\", \"link\", \"packets\", \"packets.1\"] }]\n",
            "t.toml:4:13: [[class]], [gap_frames] and the back end \"af_xdp\" need a single packet \
             server; remove packets.1 and all further ones",
        ),
        (
            "[[volume]]\npath = \"/nowhere/at all\"\n",
            "t.toml:2:8: /nowhere/at all is not a directory; create it or correct the path",
        ),
        ("[[volume]]\nmount = \"/\"\n", "t.toml:1:1: the key `path` is missing; add it"),
        (
            "[[volume]]\npath = \"/\"\ncycle = \"256 ms\"\n",
            "t.toml:3:9: 256 ms does not fit: a cycle divides one second",
        ),
        (
            "[[volume]]\npath = \"/\"\nblock = \"100 KiB\"\n",
            "t.toml:3:9: 100 KiB does not fit: a block is a power of two",
        ),
        (
            "[[volume]]\npath = \"/\"\nmount = \"/../\"\n",
            "t.toml:3:9: \"/../\" is not a path of plain names",
        ),
        (
            "[[recording]]\nname = \"a b\"\nfrom = \"\"\nto = \"\"\n",
            "t.toml:2:8: write a name of letters, digits",
        ),
        (
            "[[recording]]\nname = \"a\"\nfrom = \"udp://studio:1\"\nto = \"\"\n",
            "t.toml:3:8: \"studio:1\" is not an address in numbers",
        ),
        (
            "[[recording]]\nname = \"a\"\nfrom = \"udp://[ff02::1]:1\"\nto = \"/a\"\n",
            "t.toml:3:8: this is a link-local address; name its link with `interface`",
        ),
        (
            "[[recording]]\nname = \"a\"\nfrom = \"udp://10.0.0.1:1\"\nto = \"/%q\"\n",
            "t.toml:4:6: %q is not a field",
        ),
        (
            "[[recording]]\nname = \"a\"\nfrom = \"udp://10.0.0.1:1\"\nto = \"/a\"\n\
             rotate = \"7 h\"\n",
            "t.toml:5:10: 25200 s does not divide a day",
        ),
        (
            "[[recording]]\nname = \"a\"\nfrom = \"udp://10.0.0.1:1\"\nto = \"/a\"\n\
             keep_titles = 0\n",
            "t.toml:5:15: 0 is out of range; write a value from 1 to 1000000",
        ),
        (
            "[[recording]]\nname = \"a\"\nfrom = \"udp://10.0.0.1:1\"\nto = \"/a\"\n\
             keep_age = \"1 h\"\n",
            "t.toml:4:6: every title would get this name",
        ),
        (
            "[[recording]]\nname = \"a\"\nfrom = \"udp://10.0.0.1:1\"\nto = \"/a\"\n\
             rate = \"max\"\n",
            "t.toml:5:8: this key is not a switch",
        ),
        (
            "[[volume]]\npath = \"/\"\n[[recording]]\nname = \"a\"\nfrom = \"udp://10.0.0.1:1\"\n\
             to = \"/a\"\n",
            "t.toml:6:6: / accepts no uploads; set `uploads = true`",
        ),
        ("http = [\n", "t.toml:1:9: unclosed array, expected `]`"),
    ] {
        let error = said(text);
        assert!(error.starts_with(start), "{text}\n{error}\nshould be\n{start}");
    }
}

#[test]
fn volumes_do_not_hide_each_other() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "deep/b"] {
        std::fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    let file = dir.path().join("t.toml");
    let both = "[[volume]]\npath = \"a\"\n[[volume]]\npath = \"b\"\n";
    let config = Config::parse(&file, both).unwrap();
    let mounts: Vec<_> = config.volumes.iter().map(|volume| volume.mount.as_str()).collect();
    assert_eq!(mounts, ["/a/", "/b/"]);
    assert_eq!(config.volumes[0].path, dir.path().join("a"));
    let twice = "[[volume]]\npath = \"b\"\n[[volume]]\npath = \"deep/b\"\n";
    let error = Config::parse(&file, twice).unwrap_err();
    assert_eq!(error.message, "two volumes are mounted at /b/; name `mount` for one");
    assert_eq!(error.place.unwrap().line, 4);
}

#[test]
fn a_class_raises_the_rate_by_its_headroom_and_holds_it_under_its_ceiling() {
    let text = "[rate.cmcd]\nheadroom = \"50 %\"\nceiling = \"20 Mbit/s\"\nstart_burst = \"2 s\"\n";
    let class = Config::parse(Path::new("t.toml"), text).unwrap().rate.cmcd;
    assert_eq!(class.in_force(BitRate(8_000_000)), BitRate(12_000_000));
    assert_eq!(class.in_force(BitRate(18_000_000)), BitRate(20_000_000));
    assert_eq!(class.burst(BitRate(8_000_000)), Bytes(2_000_000));
}

#[test]
fn s14_rtsp_is_no_open_door_beside_http_for_principals() {
    let principal =
        format!("[[upload.principal]]\nname = \"a\"\ntoken_sha256 = \"{}\"\n", "0".repeat(64));
    let readers = |text: &str| {
        let text = format!("{text}{principal}rights = [\"read\"]\n");
        Config::parse(Path::new("t.toml"), &text).unwrap().rtsp.readers
    };
    let closed = "[http]\nreaders = \"principals\"\n";
    assert_eq!(readers(""), Readers::Anyone);
    assert_eq!(readers("[rtsp]\naddress = \"8554\"\n"), Readers::Anyone);
    // The same when only the command line has an address.
    assert_eq!(readers(closed), Readers::Principals);
    assert_eq!(readers(&format!("{closed}[rtsp]\naddress = \"8554\"\n")), Readers::Principals);
    assert_eq!(readers(&format!("{closed}[rtsp]\nreaders = \"anyone\"\n")), Readers::Anyone);
    assert_eq!(readers("[rtsp]\nreaders = \"principals\"\n"), Readers::Principals);
}
