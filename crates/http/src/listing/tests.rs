//! The content of listings, and their readers.

use tactus_core::units::{BitRate, Bytes, Nanos, WallTime};
use tactus_storage::catalogue::EntryKind;

use super::*;

fn fields(accept: &str) -> Fields {
    let len = accept.len();
    Fields::new(format!("accept{accept}").into_bytes(), vec![(0..6, 6..6 + len)])
}

fn shown(path: &str, query: Option<&str>, accept: &str, names: &[&str]) -> (String, String) {
    let title = EntryKind::Title {
        len: Bytes(2_200_000),
        own_rate: Some(BitRate(8_800_000)),
        peak: None,
        duration: Some(Nanos(2_000_000_000)),
    };
    let entry = |name: &&str| Entry {
        name: (*name).to_owned(),
        kind: title,
        modified: Some(WallTime(1_700_000_000_000_000_000)),
        created: None,
        etag: None,
        file: None,
        grows: false,
        digests: None,
    };
    let mut entries: Vec<_> = names.iter().map(entry).collect();
    let (name, kind) = ("sub".into(), EntryKind::Directory);
    entries.push(Entry {
        name,
        kind,
        modified: None,
        created: None,
        etag: None,
        file: None,
        grows: false,
        digests: None,
    });
    let path = RequestPath::parse(path.as_bytes()).unwrap();
    let takes_uploads = path.name().starts_with("up");
    let (host, base) = (Some("tv:8080".into()), Some("http://tv:8080/media".into()));
    let page = Page { path, host, base, takes_uploads };
    let kind = super::kind(query, &fields(accept));
    let (mut form, mut text) = begin(kind, &page);
    entries.iter().for_each(|entry| form.entry(entry, &mut text));
    form.end(&Footer { unlisted: 2, next: Some("?after=sub/".into()) }, &mut text);
    let response = described(Response::new(200, kind.media_type(), text), kind);
    let head = response.head(
        crate::framing::Version::Http11,
        crate::response::Persistence::Keep,
        std::time::SystemTime::now(),
    );
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&head), text(response.content()))
}

#[test]
fn the_form_is_the_one_that_is_asked_for() {
    let is_json = |query, accept| shown("/", query, accept, &[]).0.contains("application/json");
    for accept in ["application/json", "text/html;q=0.5, application/json", "application/*"] {
        assert!(is_json(None, accept), "{accept}");
    }
    for accept in [
        "",
        "*/*",
        "text/html",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "application/json;q=0",
        "application/json;q=0.1, */*",
        "application/json;q=x",
    ] {
        assert!(!is_json(None, accept), "{accept}");
    }
    assert!(is_json(Some("format=json"), "text/html"));
    assert!(!is_json(Some("format=html"), "application/json"));
}

#[test]
fn names_are_escaped_and_can_run_nothing() {
    let evil = "<img src=x onerror=alert(1)>&\"'.ts";
    let (head, page) = shown("/a%3Cb/", None, "", &[evil, "x:y #?%.ts"]);
    assert!(head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
    assert!(!page.contains("<img") && !page.contains("a<b"), "{page}");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;&amp;&quot;&#39;.ts"), "{page}");
    assert!(page.contains("href=\"x%3Ay%20%23%3F%25.ts\""), "{page}");
    assert!(
        page.contains("href=\"%3Cimg%20src=x%20onerror=alert(1)%3E&amp;%22&#39;.ts\""),
        "{page}"
    );
}

#[test]
fn people_see_sizes_rates_durations_and_that_more_is_there() {
    let (_, page) = shown("/films/", None, "", &["a.ts"]);
    for part in ["2.1 MiB", "8.8 Mbit/s", "0:02", "2023-11-14 22:13", "href=\"sub/\"", "2 names"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    assert!(page.contains("href=\"../\"") && !shown("/", None, "", &[]).1.contains("href=\"../\""));
}

#[test]
fn programs_get_numbers() {
    let (_, body) = shown("/films/", Some("format=json"), "", &["a \"b\".ts"]);
    let value: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(value["path"], "/films/");
    assert_eq!(value["complete"], false);
    assert_eq!((&value["not_listed"], &value["next"]), (&2.into(), &"?after=sub/".into()));
    let title = &value["entries"][0];
    assert_eq!(title["name"], "a \"b\".ts");
    assert_eq!(title["href"], "a%20%22b%22.ts");
    assert_eq!((&title["type"], &title["bytes"]), (&"title".into(), &2_200_000.into()));
    assert_eq!(title["rate_bits_per_second"], 8_800_000);
    assert_eq!(title["duration_seconds"], 2.0);
    assert_eq!(title["modified"], "2023-11-14T22:13:20Z");
    let directory = &value["entries"][1];
    assert_eq!((&directory["type"], &directory["href"]), (&"directory".into(), &"sub/".into()));
    assert!(directory.get("bytes").is_none() && directory.get("modified").is_none());
}

#[test]
fn c02_the_page_runs_the_server_s_scripts_only() {
    let evil = "<script>alert(1)</script>.ts";
    let (head, page) = shown("/up%22%3Cb%3E/", None, "", &[evil]);
    assert!(head.contains("default-src 'none'; script-src 'self'; connect-src 'self'"), "{head}");
    assert!(head.contains("form-action 'none'") && !head.contains("unsafe"), "{head}");
    assert!(page.contains("data-directory=\"/up&quot;&lt;b&gt;/\""), "{page}");
    assert_eq!(page.matches("<script").count(), 2);
    assert!(page.contains("<script src=\"../api/v1/upload.js\" defer></script>"), "{page}");
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick="));
    // The form is missing where uploads are not accepted.
    let (_, page) = shown("/a/", None, "", &[]);
    assert!(!page.contains("upload.js") && !page.contains("<form"), "{page}");
}

#[test]
fn n02_playable_titles_are_marked_and_figures_are_sortable() {
    let names = ["a.ts", "b.mp4", "c.m3u8", "d.txt", "e.flac", "f.m3u"];
    let (_, page) = shown("/films/", None, "", &names);
    for (name, by) in [("a.ts", "ts"), ("b.mp4", "file"), ("c.m3u8", "hls"), ("e.flac", "file")] {
        let row = format!("<tr data-play={by}><td><a href=\"{name}\">");
        assert!(page.contains(&row), "{name}: {page}");
    }
    assert_eq!(page.matches("data-play").count(), 4, "{page}");
    assert!(page.contains("<td data-v=2200000>2.1 MiB<td data-v=8800000>8.8 Mbit/s"), "{page}");
    assert!(page.contains("<td data-v=2000>0:02<td data-v=1700000000>"), "{page}");
}

#[test]
fn n09_the_title_names_the_directory_and_the_server() {
    let title = |path| {
        let page = shown(path, None, "", &[]).1;
        page.split("<title>").nth(1).unwrap().split('<').next().unwrap().to_owned()
    };
    assert_eq!(title("/"), "tv:8080 – Tactus");
    assert_eq!(title("/films/new/"), "new – tv:8080");
}

#[test]
fn n02_players_get_absolute_urls() {
    let names = ["a b.ts", "notes.txt", "x\ny.mp3"];
    let (head, list) = shown("/new%20films/", Some("format=m3u"), "", &names);
    assert!(head.contains("audio/x-mpegurl"), "{head}");
    assert_eq!(
        list,
        "#EXTM3U\n#EXTINF:2,a b.ts\nhttp://tv:8080/media/new%20films/a%20b.ts\n\
         #EXTINF:2,xy.mp3\nhttp://tv:8080/media/new%20films/x%0Ay.mp3\n"
    );
}

#[test]
fn n09_only_browsers_get_a_page_for_a_404() {
    let path = RequestPath::parse(b"/films/%3Cb%3E.ts").unwrap();
    let nothing = |accept| {
        let plain = Response::text(404, "no title has this name");
        not_found(&path, &fields(accept), plain)
    };
    let page = nothing("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");
    let text = String::from_utf8(page.content().to_vec()).unwrap();
    assert_eq!(page.status(), 404);
    assert!(text.contains("/films/&lt;b&gt;.ts") && !text.contains("<b>.ts"), "{text}");
    assert!(text.contains("href=\"./\"") && text.contains("href=\"../\""), "{text}");
    for accept in
        ["", "*/*", "application/json", "text/*;q=0.1", "application/json, text/html;q=0.1"]
    {
        let plain = nothing(accept);
        assert_eq!(plain.content(), b"no title has this name\n", "{accept}");
    }
}

#[test]
fn w03_links_of_a_page_lead_nowhere_outside_of_a_prefix() {
    for path in ["/", "/up/films/new/"] {
        let (_, page) = shown(path, None, "", &["a.ts"]);
        for link in page.split("href=\"").skip(1).chain(page.split("src=\"").skip(1)) {
            let link = link.split('"').next().unwrap();
            assert!(!link.starts_with('/'), "{link}");
            let depth = path.matches('/').count() - 1;
            assert!(link.matches("../").count() <= depth, "{link} is above {path}");
        }
    }
}

/// For any properties and names, a part ends soon after 64 KiB; `check` verifies it.
#[test]
fn s01_a_listing_is_written_in_parts_of_bounded_length() {
    let properties = |count: usize, namespace: &str| {
        let one = |nth| format!("<p{nth:02} xmlns='{namespace}'/>");
        let all: String = (0..count).map(one).collect();
        format!("<propfind xmlns='DAV:'><prop>{all}</prop></propfind>")
    };
    for part in ["\"", "&", " ", "\u{e9}", "<", "%", "a"] {
        let name = |nth| format!("{nth:03}{}.ts", part.repeat(249 / part.len()));
        let names: Vec<_> = (0..PART_ENTRIES).map(name).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        check(&names);
        for body in [
            properties(64, &"u".repeat(124)),
            properties(64, &"&lt;".repeat(124)),
            properties(64, &"&quot;".repeat(124)),
            properties(7, &"&quot;".repeat(1024)),
            "<propfind xmlns='DAV:'><propname/></propfind>".to_owned(),
            String::new(),
        ] {
            assert!(crate::dav::check_parts(body.as_bytes(), &names), "{body}");
        }
        // Requests that need more per entry are refused.
        let long = properties(64, &"u".repeat(128));
        assert!(!crate::dav::check_parts(long.as_bytes(), &names));
    }
}

#[test]
fn s01_a_part_of_a_listing_has_as_many_entries_as_fit() {
    let names: Vec<_> =
        (0..PART_ENTRIES).map(|nth| format!("{nth:03}{}", " ".repeat(252))).collect();
    let entry = |name: &String| Entry {
        name: name.clone(),
        kind: EntryKind::Directory,
        modified: None,
        created: None,
        etag: None,
        file: None,
        grows: false,
        digests: None,
    };
    let mut entries = names.iter().map(entry).collect::<Vec<_>>().into_iter();
    let (mut form, opening) = json::Document::begin(&RequestPath::parse(b"/").unwrap());
    let (mut text, mut parts) = (opening, vec![]);
    loop {
        let before = text.len();
        let more = write_part(&mut entries, &mut form, &mut text);
        parts.push(text.len() - before);
        if !more {
            break;
        }
    }
    form.end(&Footer::default(), &mut text);
    let listed: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        listed["entries"].as_array().unwrap().len(),
        PART_ENTRIES,
        "none is lost between \
                                                                           parts"
    );
    let (_, full) = parts.split_last().unwrap();
    // An entry of 252 spaces has 1,060 bytes: its name, and its link in three bytes for each.
    assert!(
        full.len() > 2 && full.iter().all(|part| (PART_BYTES..PART_BYTES + 1100).contains(part))
    );
}

#[test]
fn r01_the_page_shows_the_mean_of_a_title_and_its_peak_if_it_is_higher() {
    let cell = |peak| {
        let title = EntryKind::Title {
            len: Bytes(2_200_000),
            own_rate: Some(BitRate(1_932_751)),
            peak,
            duration: None,
        };
        let (name, modified) = ("film.mp4".to_owned(), None);
        let entry = Entry {
            name,
            kind: title,
            modified,
            created: None,
            etag: None,
            file: None,
            grows: false,
            digests: None,
        };
        let path = RequestPath::parse(b"/").unwrap();
        let page = Page { path, host: None, base: None, takes_uploads: false };
        let (mut form, mut text) = begin(super::kind(None, &fields("text/html")), &page);
        form.entry(&entry, &mut text);
        text
    };
    let mean = "<td data-v=1932751>1.93 Mbit/s<td>";
    assert!(cell(None).contains(mean), "{}", cell(None));
    assert!(cell(Some(BitRate(1_932_751))).contains(mean));
    let both = cell(Some(BitRate(7_573_442)));
    assert!(both.contains("<td data-v=1932751>1.93 Mbit/s, peak 7.57 Mbit/s<td>"), "{both}");
}
