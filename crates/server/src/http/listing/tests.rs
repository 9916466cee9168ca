//! What listings show, and to whom.

use super::*;
use crate::catalogue::{Entry, EntryKind};
use tactus_core::units::WallTime;

fn fields(accept: &str) -> Fields {
    let len = accept.len();
    Fields::new(format!("accept{accept}").into_bytes(), vec![(0..6, 6..6 + len)])
}

fn shown(path: &str, query: Option<&str>, accept: &str, names: &[&str]) -> (String, String) {
    let title = EntryKind::Title { len: Bytes(2_200_000), own_rate: Some(BitRate(8_800_000)) };
    let entry = |name: &&str| Entry {
        name: (*name).to_owned(),
        kind: title,
        modified: Some(WallTime(1_700_000_000_000_000_000)),
        created: None,
        etag: None,
    };
    let mut entries: Vec<_> = names.iter().map(entry).collect();
    let (name, kind) = ("sub".into(), EntryKind::Directory);
    entries.push(Entry { name, kind, modified: None, created: None, etag: None });
    let listing = Listing { entries, complete: false };
    let path = RequestPath::parse(path.as_bytes()).unwrap();
    let response = answer(&path, query, &fields(accept), &listing, path.name().starts_with("up"));
    let head = response.head(
        crate::http::framing::Version::Http11,
        crate::http::response::Afterwards::Keep,
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
    for part in ["2.098 MiB", "8.8 Mbit/s", "0:02", "2023-11-14 22:13", "href=\"sub/\"", "only"] {
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
fn c02_the_upload_form_runs_its_own_script_only() {
    let (head, page) = shown("/up%22%3Cb%3E/", None, "", &["<script>alert(1)</script>.ts"]);
    assert!(head.contains("default-src 'none'; script-src 'self'; connect-src 'self'"), "{head}");
    assert!(page.contains("data-directory=\"/up&quot;&lt;b&gt;/\""), "{page}");
    assert_eq!(page.matches("<script").count(), 1);
    assert!(page.contains("<script src=\"/api/v1/upload.js\" defer></script>"), "{page}");
    // Nothing can be uploaded elsewhere.
    let (head, page) = shown("/a/", None, "", &[]);
    assert!(!head.contains("script-src") && !page.contains("<form"), "{page}");
}
