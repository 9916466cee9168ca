//! R10: titles whose packets have arrival times in front (M2TS) or parity behind (DVB-ASI).

use tactus_control::settings::Sendfile;

use super::*;

/// The packets of `title` with arrival times or parity, so that they are `stride` bytes apart.
fn framed(title: &[u8], stride: usize) -> Vec<u8> {
    // Sync bytes between the packets must not mislead.
    let between = |nth: usize| vec![if nth.is_multiple_of(7) { 0x47 } else { nth as u8 }; 16];
    let lead = if stride == 192 { 4 } else { 0 };
    let unit = |(nth, packet): (usize, &[u8])| {
        let between = between(nth);
        [&between[..lead], packet, &between[..stride - 188 - lead]].concat()
    };
    title.chunks_exact(188).enumerate().flat_map(unit).collect()
}

/// A server whose title `a.ts` has packets of `stride` bytes; `title` of the fixture has the same
/// packets plain.
fn fixture(stride: usize, sendfile: Sendfile) -> Fixture {
    let fixture = Fixture::with(SECOND.times(3), |settings| {
        settings.engine.volumes[0].sendfile = sendfile;
    });
    let file = fixture._dir.path().join("titles/a.ts");
    std::fs::write(file, framed(&fixture.title, stride)).expect("a title");
    fixture
}

/// Whether `part` is the tail of the title from one of its packets on, except for counters and
/// clocks, behind two tables and the mark of the clock.
fn is_tail(title: &[u8], part: &[u8]) -> bool {
    let tail = &part[3 * 188..];
    jumps::are_of(title, tail) && tail[tail.len() - 100..] == title[title.len() - 100..]
}

#[test]
fn r10_packets_of_192_and_204_bytes_are_played_paused_and_sought_in_without_what_is_between() {
    for (stride, sendfile) in [(192, Sendfile::Off), (204, Sendfile::On)] {
        let fixture = fixture(stride, sendfile);
        let mut client = fixture.connect();
        let described = client.ask("DESCRIBE", &fixture.url(), "").body;
        let end = described.split("a=range:npt=0.000-").nth(1).expect("a duration");
        let end: f64 = end.lines().next().and_then(|end| end.parse().ok()).expect("seconds");
        let duration = fixture.title.len() as f64 * 8.0 / sample::TS_RATE.0 as f64;
        assert!((end - duration).abs() < 0.01, "{stride}: {end} of {duration}");
        let mut receiver = Receiver::new();
        let session = client.set_up(receiver.port).session();
        let played = client.play(&session, "npt=0-");
        let mut packets = receiver.take(200);
        first_matches(&played, &packets[0]);
        assert_eq!(client.order("PAUSE", &session).status, 200);
        packets.extend(receiver.rest());
        let again = client.play(&session, "");
        let more = receiver.take(100);
        first_matches(&again, &more[0]);
        packets.extend(more);
        let sought = client.play(&session, "npt=2-");
        let expected = sought.parameter("RTP-Info", "seq").parse::<u16>().expect("a number");
        receiver.goodbye();
        packets.extend(receiver.rest());
        let all = payload(&packets);
        let first =
            packets.iter().position(|one| rtp::Packet::read(one).unwrap().sequence == expected);
        let at = first.expect("the first packet of the seek") * 1316;
        assert!(all[..at] == fixture.title[..at], "{stride}: the title's own packets");
        jumps::is_marked(&all[..at], &all[at..]);
        assert!(is_tail(&fixture.title, &all[at..]), "{stride}: the end of the title");
        assert_eq!(client.order("TEARDOWN", &session).status, 200);
        fixture.wait_for_peace();
    }
}

#[test]
fn r10_packets_of_192_and_204_bytes_go_in_frames_of_the_connection_too() {
    for (stride, sendfile) in [(192, Sendfile::On), (204, Sendfile::Off)] {
        let fixture = fixture(stride, sendfile);
        let mut client = fixture.connect();
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n";
        let session = client.ask("SETUP", &format!("{}/track1", fixture.url()), transport);
        let session = session.session();
        let played = client.play(&session, "npt=0-");
        let mut packets = client.frames(4, 200);
        first_matches(&played, &packets[0]);
        let sought = client.play(&session, "npt=2-");
        packets.append(&mut client.kept);
        let at = packets.len() * 1316;
        let (_, part) = client.goodbye();
        first_matches(&sought, &part[0]);
        packets.extend(part);
        let all = payload(&packets);
        assert!(all[..at] == fixture.title[..at], "{stride}: the title's own packets");
        jumps::is_marked(&all[..at], &all[at..]);
        assert!(is_tail(&fixture.title, &all[at..]), "{stride}: the end of the title");
        assert_eq!(client.order("TEARDOWN", &session).status, 200);
        fixture.wait_for_peace();
    }
}

/// Stream, size and hash of the packets that ffmpeg reads from `url`, in the order of each stream.
fn packets_of(url: &str, options: &[&str]) -> Vec<String> {
    let copied = ["-map", "0", "-c", "copy", "-f", "framemd5", "-"];
    let said = ffmpeg("ffmpeg", &[&["-v", "error"], options, &["-i", url], &copied].concat());
    let columns = |line: &str| {
        let columns: Vec<_> = line.split(',').map(str::trim).collect();
        format!("{} {} {}", columns[0], columns[4], columns[5])
    };
    let mut all: Vec<_> = said.lines().filter(|line| !line.starts_with('#')).map(columns).collect();
    all.sort_by_key(|line| line.split(' ').next().map(str::to_owned));
    all
}

#[test]
fn r10_ffmpeg_gets_the_frames_of_an_m2ts_of_its_own() {
    let fixture = fixture(188, Sendfile::Auto);
    let file = fixture._dir.path().join("titles/a.ts");
    let file = file.to_str().expect("a plain path");
    let video = "testsrc2=size=320x240:rate=25:duration=2";
    let encode = ["-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", "-g", "25"];
    let sound = ["-f", "lavfi", "-i", "sine=duration=2", "-c:a", "mp2"];
    let muxed = ["-f", "mpegts", "-mpegts_m2ts_mode", "1", "-muxrate", "2M", file];
    let input = ["-v", "error", "-y", "-f", "lavfi", "-i", video];
    let (sound, of_sound) = sound.split_at(4);
    ffmpeg("ffmpeg", &[&input[..], sound, &encode, of_sound, &muxed].concat());
    let bytes = std::fs::read(file).expect("it was written");
    assert_eq!(Framing::find(&bytes, bytes.len()), Some(Framing { stride: 192 }));
    let own = packets_of(file, &[]);
    assert!(own.len() > 100, "{}", own.len());
    for transport in ["udp", "tcp"] {
        let came = packets_of(&fixture.url(), &["-rtsp_transport", transport]);
        // A receiver that is told of the end has the last frame of each stream, or it has not.
        let missing = own.iter().filter(|line| !came.contains(line)).count();
        let foreign = came.iter().filter(|line| !own.contains(line)).count();
        assert!(missing <= 2 && foreign <= 2, "{transport}: {missing} {foreign}");
        fixture.wait_for_peace();
    }
}
