//! The worst inputs of each entry point at a given size: repeated parts of seeds, and known attacks
//! on such parsers.
//!
//! Promise: the inputs and their order are the same for every size, so that two sizes can be
//! compared input by input.

use super::Target;

/// An input and its description.
#[derive(Clone, Debug)]
pub struct Input {
    /// The description.
    pub name: String,
    /// The bytes, at most as many as requested.
    pub bytes: Vec<u8>,
}

/// Cut positions in text seeds: the parts between them are repeated.
const CUTS: &[u8] = b"\r\n,;&=<>/ \"";
/// Repeated parts per seed, spread over all of it.
const PARTS_MAX: usize = 24;

/// The worst inputs of about `len` bytes for `target`, with its `seeds`.
pub fn inputs(target: &Target, seeds: &[(String, Vec<u8>)], len: usize) -> Vec<Input> {
    let mut inputs = Vec::new();
    for (name, seed) in seeds {
        for (begin, end) in parts(seed) {
            let what = format!("{name}, bytes {begin} to {end} repeated");
            inputs.push(input(what, repeated(seed, begin, end, len)));
        }
    }
    for byte in [0, b' ', b'\n', b',', b'%', b'"', b'<', 0x47, 0xff] {
        inputs.push(input(format!("byte {byte:#04x} repeated"), vec![byte; len]));
    }
    for (what, before, part, after) in special(target.name) {
        let count = len.saturating_sub(before.len() + after.len()) / part(0).len().max(1);
        let middle = (0..count).flat_map(part);
        let mut bytes: Vec<u8> = before.into_iter().chain(middle).chain(after).collect();
        bytes.truncate(len);
        inputs.push(input(what.to_owned(), bytes));
    }
    match target.name {
        "properties" => inputs.extend(nested(len)),
        "times" => inputs.extend(indexes(len)),
        _ => {}
    }
    inputs
}

fn input(name: String, bytes: Vec<u8>) -> Input {
    Input { name, bytes }
}

/// Parts of a seed: between cuts, and windows of a few lengths, for binary formats.
fn parts(seed: &[u8]) -> Vec<(usize, usize)> {
    let cuts = (0..seed.len()).filter(|&at| CUTS.contains(&seed[at]));
    let cuts: Vec<_> =
        std::iter::once(0).chain(cuts.map(|at| at + 1)).chain([seed.len()]).collect();
    let mut parts: Vec<_> = cuts.windows(2).map(|cut| (cut[0], cut[1])).collect();
    for len in [1, 4, 8, 24, 188] {
        parts.extend((0..seed.len()).step_by(len * 4).map(|at| (at, at + len)));
    }
    parts.push((0, seed.len()));
    parts.retain(|(begin, end)| begin < end && *end <= seed.len());
    let step = parts.len().div_ceil(PARTS_MAX).max(1);
    parts.into_iter().step_by(step).collect()
}

fn repeated(seed: &[u8], begin: usize, end: usize, len: usize) -> Vec<u8> {
    let (before, part, after) = (&seed[..begin], &seed[begin..end], &seed[end..]);
    let room = len.saturating_sub(before.len() + after.len());
    let middle = part.repeat(room / part.len());
    let mut bytes = [before, &middle, after].concat();
    bytes.truncate(len);
    bytes
}

/// The repeated part, by its number.
type Part = fn(usize) -> Vec<u8>;

/// Known slow inputs of parsers: a beginning, a repeated part, and an end.
fn special(target: &str) -> Vec<(&'static str, Vec<u8>, Part, Vec<u8>)> {
    let of =
        |what, before: &str, part: Part, after: &str| (what, before.into(), part, after.into());
    match target {
        "request" => {
            let get = "GET / HTTP/1.1\r\nHost: h\r\n";
            let end = "\r\n\r\n";
            vec![
                of("fields whose names differ in their last letters", get, twins, "\r\n"),
                of("fields", get, |n| format!("A{n:02}: b\r\n").into(), "\r\n"),
                of("entity tags", &format!("{get}If-None-Match: "), |_| (*b"\"\",").into(), end),
                of("one byte ranges", &format!("{get}Range: bytes="), |_| (*b"0-0,").into(), end),
                of("codings", &format!("{get}Connection: "), |_| (*b"a,").into(), end),
                of("segments", "GET ", |_| (*b"/a").into(), " HTTP/1.1\r\nHost: h\r\n\r\n"),
                of("keys", "GET /?", |_| (*b"%41=&").into(), " HTTP/1.1\r\nHost: h\r\n\r\n"),
                of(
                    "chunks of one byte",
                    "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
                    |_| (*b"1\r\na\r\n").into(),
                    "0\r\n\r\n",
                ),
            ]
        }
        "chunked" => vec![
            of("chunks of one byte", "", |_| (*b"1\r\na\r\n").into(), "0\r\n\r\n"),
            of("trailers", "0\r\n", |_| (*b"a:\r\n").into(), "\r\n"),
        ],
        "range" => vec![
            of("one byte ranges", "\0\0\0\x01\0\0\0\0bytes=", |_| (*b"0-0,").into(), ""),
            of("digits", "\0\0\0\x01\0\0\0\0bytes=0-", |_| (*b"9").into(), ""),
            of("commas", "\0\0\0\x01\0\0\0\0bytes=", |_| (*b",").into(), "0-"),
        ],
        "target" => vec![
            of("segments", "", |_| (*b"/a").into(), ""),
            of("escapes", "/", |_| (*b"%41").into(), ""),
            of("escaped twice", "/", |_| (*b"%25").into(), ""),
        ],
        "proxied" => vec![
            of("hops", "", |_| (*b"for=10.0.0.2,").into(), "for=1.2.3.4\n"),
            of("parameters", "", |_| (*b"a=b;").into(), "for=1.2.3.4\n"),
            of("hops without names", "\n", |_| (*b"10.0.0.2,").into(), "1.2.3.4"),
            of("commas", "\n", |_| (*b",").into(), ""),
        ],
        "pace" => vec![
            of("escaped keys", "", |_| (*b"%72ate=1&").into(), "\n"),
            of("lists", "", |_| (*b"CMCD=%22,&").into(), "\n"),
            of("quotes", "\n", |_| (*b"\"\\\",").into(), ""),
            of("keys", "\n", |_| (*b"rtp=0,").into(), ""),
        ],
        "upload" => vec![
            of("paths", "", |_| (*b"path=%2fa&").into(), "\nTus-Resumable: 1.0.0"),
            of("segments", "path=", |_| (*b"/a").into(), "\nTus-Resumable: 1.0.0"),
            of("metadata", "\nUpload-Metadata: a", |n| format!(",{n:04x} QQ==").into(), ""),
            of("parts", "\nUpload-Concat: final;", |_| (*b"/api/v1/uploads/a ").into(), ""),
            of("tags", "\nIf-Match: ", |_| (*b"\"a\",").into(), ""),
            of("conditions", "\nIf: ", |_| (*b"(<a>)").into(), ""),
        ],
        "properties" => {
            let (open, close) = ("<propfind xmlns='DAV:'><prop>", "</prop></propfind>");
            vec![
                of("elements", open, |_| (*b"<a/>").into(), close),
                of("elements without end tags", open, |_| (*b"<a>").into(), ""),
                of("namespaces", open, |n| format!("<a xmlns:p{n:04}='u'/>").into(), close),
                of("attributes", "<propfind", |n| format!(" a{n:04}=''").into(), "/>"),
                of("declarations", "<propfind", |n| format!(" xmlns:a{n:04}='u'").into(), "/>"),
                of(
                    "references",
                    &format!("{open}<a>"),
                    |_| (*b"&amp;").into(),
                    "</a></prop></propfind>",
                ),
                of("references in a value", "<propfind xmlns='", |_| (*b"&#68;").into(), "'/>"),
                of("comments", open, |_| (*b"<!---->").into(), close),
                of(
                    "owners of a lock",
                    "<lockinfo xmlns='DAV:' xmlns:p='u'><owner>",
                    |_| (*b"<p:a xmlns:b='u'/>").into(),
                    "</owner></lockinfo>",
                ),
                of("instructions", open, |_| (*b"<?a?>").into(), close),
                of("sections", open, |_| (*b"<![CDATA[]]>").into(), close),
                of(
                    "entities",
                    "<!DOCTYPE a [",
                    |n| format!("<!ENTITY e{n:04} '&e;'>").into(),
                    "]>",
                ),
                of("a name", "<", |_| (*b"a").into(), "/>"),
                of("brackets", "", |_| (*b"<").into(), ""),
            ]
        }
        "listing" => {
            let body = |namespace: &str| {
                let property = |n| format!("<a{n:02} xmlns='{}'/>", namespace.repeat(23));
                let properties: String = (0..64).map(property).collect();
                format!("<propfind xmlns='DAV:'><prop>{properties}</prop></propfind>\0")
            };
            let propname = "<propfind xmlns='DAV:'><propname/></propfind>\0";
            let quotes: Part = |n| format!("{n:05}{}.ts\n", "\"".repeat(247)).into();
            let letters: Part = |n| format!("{n:05}{}.ts\n", "\u{e9}".repeat(123)).into();
            let short: Part = |_| (*b"a\n").into();
            vec![
                of("escaped names", &body("&lt;"), quotes, ""),
                of("encoded names", &body("urn:"), letters, ""),
                of("short names, long properties", &body("&quot;"), short, ""),
                of("names with all properties", propname, letters, ""),
                of("titles left out of playlists", "\0", |n| format!("{n:05}\n").into(), ""),
            ]
        }
        "channel" => vec![
            of("keys", "{\"a\":1", |n| format!(",\"k{n:04}\":1").into(), "}"),
            of(
                "titles",
                "{\"name\":\"a\",\"to\":\"udp://239.1.1.1:5000\",\"playlist\":[\"/a.ts\"",
                |_| (*b",\"/a.ts\"").into(),
                "]}",
            ),
            of("nested lists", "{\"name\":", |_| (*b"[").into(), ""),
            of("nested objects", "{\"name\":", |_| (*b"{\"a\":").into(), ""),
            of("lines", "{\"name\":\"", |_| (*b"\\n").into(), "\"}"),
        ],
        "playlist" => vec![
            of("comments", "", |_| (*b"#\n").into(), "a.ts\n"),
            of("titles", "", |_| (*b"a\n").into(), ""),
            of("steps up", "", |_| (*b"../").into(), "a.ts\n"),
        ],
        "rtsp" => {
            let ask = "SETUP rtsp://h/a.ts RTSP/2.0\r\nCSeq: 1\r\n";
            let end = "\r\n\r\n";
            vec![
                of("fields", ask, |n| format!("A{n:02}: b\r\n").into(), "\r\n"),
                of("offers", &format!("{ask}Transport: "), |_| (*b"RTP/AVP,").into(), end),
                of("parameters", &format!("{ask}Transport: RTP/AVP"), |_| (*b";a").into(), end),
                of("features", &format!("{ask}Require: "), |_| (*b"a,").into(), end),
                of("frames", "", |_| (*b"$\0\0\0").into(), ""),
                of("requests", "", |n| format!("A * RTSP/2.0\r\nCSeq: {n:04}\r\n\r\n").into(), ""),
            ]
        }
        "description" => {
            let open = "v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\ns=-\r\nm=video 0 RTP/AVP 96\r\n";
            vec![
                of("attributes", open, |_| (*b"a=\n").into(), ""),
                of("maps", open, |n| format!("a=rtpmap:{n:04} H264/90000\n").into(), ""),
                of("media", open, |_| (*b"m=video 0 RTP/AVP 96\n").into(), ""),
                of(
                    "parameter sets",
                    &format!("{open}a=rtpmap:96 H264/90000\na=fmtp:96 sprop-parameter-sets="),
                    |_| (*b"Z0,").into(),
                    "",
                ),
                of(
                    "parameters",
                    &format!("{open}a=rtpmap:96 MPEG4-GENERIC/48000\na=fmtp:96 a"),
                    |_| (*b";a=1").into(),
                    "",
                ),
            ]
        }
        "credentials" => vec![
            of("commas", "Digest ", |_| (*b",").into(), ""),
            of("parameters", "Digest ", |_| (*b"a=b,").into(), ""),
            of("quoted", "Digest ", |_| (*b"uri=\"\",").into(), ""),
            of("spaces", "Digest ", |_| (*b"a=   ,").into(), ""),
            of("a nonce", "Digest nonce=\"", |_| (*b"a").into(), "\""),
        ],
        "rings" => {
            // Two open handles, one of them in memory.
            let open = "h\0h\u{1}h\u{1}";
            vec![
                of(
                    "reads of two bytes",
                    open,
                    |_| (*b"r\0\x01\0\0\0\0\x02\0\0\0qb\0\0qa").into(),
                    "",
                ),
                of("long reads", open, |_| (*b"r\x01\x01\0\0\0\0\x10\x27\0\0qa").into(), ""),
                of("requests that are refused", open, |_| (*b"p\xffqt\0").into(), ""),
                of("maps", "", |_| (*b"h\0h\0h\x80").into(), ""),
                of("turns", open, |_| (*b"q\xff").into(), ""),
            ]
        }
        "recording" => vec![
            of("bytes one by one", "b\u{7f}", |_| (*b"t\0\x01").into(), ""),
            of("full turns", "", |_| (*b"b\xfft\xff\xff").into(), ""),
            of("short pieces", "", |_| (*b"b\xfft\0\xff").into(), ""),
        ],
        "reports" => {
            let part: Part = |_| vec![0x80, 201, 0, 1, 0, 0, 0, 7];
            let many: Part = |_| vec![0x80, 203, 0, 0];
            let chunk: Part = |_| vec![0, 0, 0, 7, 1, 0, 0, 0];
            vec![
                ("reports", vec![], part, vec![]),
                ("goodbyes", part(0), many, vec![]),
                ("descriptions", [part(0), vec![0x9f, 202, 0xff, 0xff]].concat(), chunk, vec![]),
            ]
        }
        "datagrams" => {
            let small: Part = |_| vec![0, 0];
            let rtp: Part = |n| {
                let sequence = (n as u16).wrapping_mul(257).to_be_bytes();
                [&[0, 12, 0x80, 33][..], &sequence, &[0; 8]].concat()
            };
            vec![
                ("empty datagrams", vec![0], small, vec![]),
                ("packets of RTP out of order", vec![1], rtp, vec![]),
            ]
        }
        "transport_stream" | "index" => {
            // Packets with a table, with a PCR, and with the start of a video frame.
            let packet = |head: [u8; 4], rest: &[u8]| {
                let mut packet = vec![0xff; 188];
                packet[..4].copy_from_slice(&head);
                packet[4..4 + rest.len()].copy_from_slice(rest);
                packet
            };
            let pids: Part = |n| {
                let mut packet = vec![0xff; 188];
                let [high, low] = (n as u16 & 0x1fff).to_be_bytes();
                packet[..4].copy_from_slice(&[0x47, 0x40 | high, low, 0x10 | n as u8 & 15]);
                packet[4..11].copy_from_slice(&[0, 0, 1, 0xe0, 0, 0, 0x80]);
                packet
            };
            let clocks: Part = |n| {
                let mut packet = vec![0xff; 188];
                packet[..4].copy_from_slice(&[0x47, 1, 0, 0x30 | n as u8 & 15]);
                let base = (n as u32).wrapping_mul(0x1234_5678).to_be_bytes();
                packet[4..6].copy_from_slice(&[7, 0x50]);
                packet[6..10].copy_from_slice(&base);
                packet
            };
            let tables: Part = |n| {
                let mut packet = vec![0xff; 188];
                packet[..5].copy_from_slice(&[0x47, 0x40, 0, 0x10 | n as u8 & 15, 0]);
                packet[5..8].copy_from_slice(&[0, 0xb3, 0xfd]);
                packet
            };
            vec![
                ("packets of all numbers", packet([0x47, 0x40, 0, 0x10], &[0]), pids, vec![]),
                ("clocks that jump", pids(256), clocks, vec![]),
                ("tables", vec![], tables, vec![]),
            ]
        }
        "movie" => {
            let head = b"\0\0\0\x08ftyp".to_vec();
            let empty: Part = |_| b"\0\0\0\x08free".to_vec();
            let tracks: Part = |_| b"\0\0\0\x10trak\0\0\0\x08mdia".to_vec();
            let index = [&head[..], b"\0\0\0\0moov"].concat();
            let inner: Part = |_| b"\0\0\0\0trak".to_vec();
            vec![
                ("boxes", head, empty, vec![]),
                ("tracks", index.clone(), tracks, vec![]),
                ("nested boxes", index, inner, vec![]),
            ]
        }
        "frames" => {
            // A segment with a duration of a second, and a cluster without a size.
            let head = b"\x1aE\xdf\xa3\x80\x18S\x80g\xff\x15I\xa9f\x87D\x89\x84Dz\0\0".to_vec();
            let cluster = [&head[..], b"\x1fC\xb6u\xff"].concat();
            let ascending: Part = |n| {
                let [high, low] = (n as u16 & 0x7fff).to_be_bytes();
                vec![0xa3, 0x84, 0x81, high, low, 0]
            };
            let descending: Part = |n| {
                let [high, low] = (n as u16 & 0x7f).wrapping_neg().to_be_bytes();
                vec![0xa3, 0x84, 0x81, high, low, 0]
            };
            let tracks: Part =
                |n| vec![0xae, 0x80, 0xd7, 0x82, (n >> 8) as u8, n as u8, 0x83, 0x81, 17];
            // Layer III of 8 kbit/s at 24 kHz: frames of 24 bytes.
            let frame: Part = |_| [&[0xff, 0xf3, 0x14, 0xc0][..], &[0; 20]].concat();
            let flac = b"fLaC\x80\0\0\x22\x10\0\x10\0\0\0\0\0\0\0";
            let flac = [&flac[..], b"\x0a\xc4\x42\xf0\0\0\x10\0", &[0; 16]].concat();
            let vorbis =
                [&b"OggS\0\x02"[..], &[0; 20], b"\x01\x10\x01vorbis\0\0\0\0\x01\x80\xbb\0\0"];
            let vorbis = vorbis.concat();
            let page: Part = |n| {
                let position = (n as u64).to_le_bytes();
                [&b"OggS\0\0"[..], &position, &[0; 13]].concat()
            };
            vec![
                ("blocks", cluster.clone(), ascending, vec![]),
                ("blocks backwards", cluster.clone(), descending, vec![]),
                ("tracks", cluster.clone(), tracks, vec![]),
                ("no elements", cluster, |_| vec![0], vec![]),
                ("clusters", head, |_| b"\x1fC\xb6u\xff".to_vec(), vec![]),
                ("frames of MP3", vec![], frame, vec![]),
                ("no frames of MP3", frame(0).repeat(4), |_| vec![0xff], vec![]),
                ("codes of FLAC", flac, |_| vec![0xff, 0xf8], vec![]),
                ("pages of Ogg", vorbis.clone(), page, vec![]),
                ("no pages of Ogg", [&vorbis[..], &page(9)].concat(), |_| b"Ogg".to_vec(), vec![]),
            ]
        }
        "film" => {
            // Begin in the middle, and no end; or end there.
            let middle = vec![0, 0x10, 0, 0, 0, 0, 0, 0];
            let to_middle = vec![0, 0, 0, 0, 0, 0x10, 0, 0];
            let still: Part = |_| vec![1, 0, 0, 0];
            let no_sync: Part = |_| vec![0, 1, 0, 0];
            let all_sync: Part = |_| vec![1, 1, 0, 0];
            let never_shown: Part = |_| vec![1, 1, 0x7f, 0xff];
            let backwards: Part = |nth| vec![[4, 0], [0, 200]][nth % 2].repeat(2);
            let audio: Part = |nth| if nth == 0 { vec![1, 0, 0, 0] } else { vec![3, 1, 0, 0] };
            vec![
                ("samples of one time", middle.clone(), still, vec![]),
                ("no sync samples", middle.clone(), no_sync, vec![]),
                ("one sync sample at the end", middle.clone(), no_sync, vec![1, 1, 0, 0]),
                ("sync samples only", middle.clone(), all_sync, vec![]),
                ("an end in the middle", to_middle.clone(), all_sync, vec![]),
                ("sync samples that are shown late", middle.clone(), never_shown, vec![]),
                ("times to and fro", to_middle, backwards, vec![]),
                ("audio that is passed over", middle, audio, vec![1, 1, 0, 0]),
            ]
        }
        "configuration" | "disk_model" => vec![
            of("keys", "[http]\n", |n| format!("k{n:04} = 1\n").into(), ""),
            of("tables", "", |_| (*b"[[volume]]\n").into(), ""),
            of("nested lists", "a = ", |_| (*b"[").into(), ""),
            of("dotted keys", "a", |_| (*b".a").into(), " = 1\n"),
            of("open tables", "a = ", |_| (*b"{a=").into(), ""),
        ],
        _ => vec![],
    }
}

/// Indexes as they are kept, of as many points, runs and accesses as fit and as there may be.
fn indexes(len: usize) -> Vec<Input> {
    let len = len.saturating_sub(64) as u64;
    let runs = (len / 20).clamp(1, 4096);
    let shapes = [
        ("points", [(len / 5).clamp(2, 1 << 18), 1, 1]),
        ("jumps", [2 * runs, runs, 1]),
        ("accesses", [2, 1, (len / 4).clamp(1, 1 << 16)]),
        ("all of these", [(len / 15).clamp(8192, 1 << 18), runs / 3 + 1, (len / 12).min(1 << 16)]),
    ];
    shapes.map(|(name, counts)| input(name.to_owned(), index_of(counts))).into()
}

/// An index as it is kept, of so many points, runs and accesses. Only the last access is one to
/// begin with.
fn index_of([points, runs, accesses]: [u64; 3]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut number = |mut number: u64| {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    };
    let len = 188 * (points - 1);
    [188, len, points - 1, 0x100].into_iter().for_each(&mut number);
    [0; 8].into_iter().for_each(&mut number);
    number(12);
    for (count, step) in [(points, [188, 27_000]), (runs, [len / runs, 27_000])] {
        number(count);
        for nth in 0..count {
            step.into_iter().for_each(|step| number(if nth == 0 { 0 } else { step }));
            if count == runs {
                number(3);
            }
        }
    }
    number(accesses);
    for nth in 0..accesses {
        number(u64::from(nth + 1 < accesses));
        [0, 1, 0].into_iter().for_each(&mut number);
    }
    [0; 2].into_iter().for_each(&mut number);
    out
}

/// A field with a name of the greatest length for a hundred fields, which differs from the others
/// at its end.
fn twins(n: usize) -> Vec<u8> {
    format!("{}_{n:02}: \r\n", "a".repeat(310)).into()
}

/// Nested elements with end tags, which are slow in parsers that build a tree.
fn nested(len: usize) -> Vec<Input> {
    type Open = fn(usize) -> String;
    let shapes: [(&str, Open); 3] = [
        ("nested elements", |_| "<a>".to_owned()),
        ("nested namespaces", |n| format!("<a xmlns:p{n}='u' xmlns:q{n}='u' xmlns:r{n}='u'>")),
        ("nested default namespaces", |n| format!("<a xmlns='u{n}'>")),
    ];
    let shapes = shapes.map(|(name, open)| {
        let (mut begins, mut count) = (String::from("<propfind xmlns='DAV:'><prop>"), 0);
        while begins.len() + (count + 1) * "</a>".len() + 60 < len {
            begins.push_str(&open(count));
            count += 1;
        }
        let text = format!("{begins}{}</prop></propfind>", "</a>".repeat(count));
        input(name.to_owned(), text.into())
    });
    shapes.into()
}
