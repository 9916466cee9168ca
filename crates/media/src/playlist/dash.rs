//! Manifests of DASH (ISO/IEC 23009-1): segment templates, segment lists and base URLs.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use tactus_core::units::Nanos;

use super::{NAME_MAX, Playlist, Segment};

/// Deepest element; manifests need seven levels.
const DEPTH_MAX: usize = 32;

/// The attributes of a `SegmentTemplate` or `SegmentList`. An element within another inherits them
/// (section 5.3.9.1).
#[derive(Clone, Default)]
struct Segments {
    depth: usize,
    media: Option<String>,
    initialization: Option<String>,
    timescale: Option<u64>,
    duration: Option<u64>,
    /// The longest duration of its timeline.
    longest: Option<u64>,
}

impl Segments {
    fn segment(&self) -> Segment {
        let units = self.longest.or(self.duration).filter(|&units| units > 0);
        let scale = u128::from(self.timescale.unwrap_or(1).max(1));
        let nanos = units.and_then(|units| {
            u64::try_from(u128::from(units) * 1_000_000_000 / scale).ok().filter(|&nanos| nanos > 0)
        });
        Segment { duration: nanos.map(Nanos) }
    }
}

/// Adds the files in `text`. The parser resolves no namespaces and no entities of a document type.
pub(super) fn read(text: &str, playlist: &mut Playlist) {
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    let mut depth = 0;
    // The base URL of each element around the current one.
    let mut bases: Vec<(usize, String)> = Vec::new();
    let mut segments: Vec<Segments> = Vec::new();
    let mut is_base = false;
    loop {
        match reader.read_event() {
            Ok(Event::Start(element)) => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return;
                }
                match element.local_name().as_ref() {
                    "BaseURL" => is_base = true,
                    "SegmentTemplate" | "SegmentList" => {
                        segments.retain(|outer| outer.depth < depth);
                        let mut own = segments.last().cloned().unwrap_or_default();
                        own.depth = depth;
                        own.longest = None;
                        take_attributes(&mut own, &element);
                        segments.push(own);
                    }
                    "S" => {
                        let length = number(&element, "d");
                        if let Some(own) = segments.last_mut() {
                            own.longest = own.longest.max(length);
                        }
                    }
                    "SegmentURL" => {
                        let own = segments.last().map(Segments::segment);
                        let is_part = value(&element, "mediaRange").is_some();
                        let duration = own.and_then(|own| own.duration).filter(|_| !is_part);
                        if let Some(media) = value(&element, "media") {
                            playlist.add(&under(&bases, &media), Segment { duration });
                        }
                    }
                    "Initialization" => {
                        if let Some(source) = value(&element, "sourceURL") {
                            playlist.add(&under(&bases, &source), Segment { duration: None });
                        }
                    }
                    _ => {}
                }
            }
            Ok(Event::Text(text)) if is_base => {
                let text = text.into_inner();
                let text = text.trim();
                // Only the first of alternative bases counts.
                if !text.is_empty() && bases.last().is_none_or(|(at, _)| *at < depth - 1) {
                    let base = under(&bases, text);
                    if base.len() > NAME_MAX {
                        return;
                    }
                    bases.push((depth - 1, base));
                }
            }
            Ok(Event::End(element)) => {
                match element.local_name().as_ref() {
                    "BaseURL" => is_base = false,
                    "SegmentTemplate" => {
                        if let Some(own) = segments.last() {
                            add(playlist, &bases, own);
                        }
                    }
                    "Representation" => {
                        let file = bases.last().filter(|(at, base)| {
                            *at == depth && !base.ends_with('/') && !base.is_empty()
                        });
                        if let Some((_, file)) = file {
                            playlist.add(file, Segment { duration: None });
                        }
                    }
                    _ => {}
                }
                bases.retain(|(at, _)| *at < depth);
                depth = depth.saturating_sub(1);
                // The attributes of an element are inherited within the element around it.
                segments.retain(|own| own.depth <= depth + 1);
            }
            Ok(Event::Eof) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

fn add(playlist: &mut Playlist, bases: &[(usize, String)], own: &Segments) {
    if let Some(media) = &own.media {
        playlist.add_template(&under(bases, media), own.segment());
    }
    if let Some(initialization) = &own.initialization {
        playlist.add_template(&under(bases, initialization), Segment { duration: None });
    }
}

fn take_attributes(own: &mut Segments, element: &BytesStart<'_>) {
    let text = |name| value(element, name);
    own.media = text("media").or(own.media.take());
    own.initialization = text("initialization").or(own.initialization.take());
    own.timescale = number(element, "timescale").or(own.timescale);
    own.duration = number(element, "duration").or(own.duration);
}

/// The value of an attribute.
fn value(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let mut attributes = element.attributes();
    let attributes = attributes.with_checks(false).take(ATTRIBUTES_MAX);
    let own = attributes.flatten().find(|one| one.key.local_name().as_ref() == name)?;
    let text = quick_xml::escape::unescape(&own.value).ok()?;
    (text.len() <= VALUE_MAX).then(|| text.into_owned())
}

/// Most attributes of an element that are looked at.
const ATTRIBUTES_MAX: usize = 64;
/// Longest value of an attribute. Elements within others copy the values that they inherit.
const VALUE_MAX: usize = 1024;

fn number(element: &BytesStart<'_>, name: &str) -> Option<u64> {
    value(element, name)?.trim().parse().ok()
}

/// A reference in the scope of the base URLs.
fn under(bases: &[(usize, String)], reference: &str) -> String {
    let is_absolute = reference.starts_with('/') || reference.contains("://");
    match bases.last() {
        Some((_, base)) if !is_absolute => {
            let directory = base.rfind('/').map_or("", |end| &base[..=end]);
            format!("{directory}{reference}")
        }
        _ => reference.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Playlist {
        Playlist::read("a.mpd", text.as_bytes()).unwrap()
    }

    fn millis(playlist: &Playlist, path: &str) -> Option<Option<u64>> {
        playlist.segment(path).map(|segment| segment.duration.map(|it| it.0 / 1_000_000))
    }

    #[test]
    fn r02_a_template_with_a_timeline_has_its_longest_duration() {
        let playlist = of(r#"<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011">
            <Period id="0"><AdaptationSet id="0"><Representation id="0" bandwidth="300000">
            <SegmentTemplate timescale="12800" initialization="init-stream$RepresentationID$.m4s"
              media="chunk-stream$RepresentationID$-$Number%05d$.m4s" startNumber="1">
            <SegmentTimeline><S t="0" d="51200" r="3" /><S d="25600" /></SegmentTimeline>
            </SegmentTemplate></Representation></AdaptationSet></Period></MPD>"#);
        assert_eq!(millis(&playlist, "chunk-stream0-00001.m4s"), Some(Some(4000)));
        assert_eq!(millis(&playlist, "init-stream0.m4s"), Some(None));
        assert_eq!(millis(&playlist, "other.m4s"), None);
    }

    #[test]
    fn r02_templates_inherit_and_lie_below_base_urls() {
        let playlist = of(r#"<MPD><BaseURL>media/</BaseURL><Period><AdaptationSet>
            <SegmentTemplate timescale="1000" duration="2000"
              media="$RepresentationID$/$Time$.mp4"/>
            <Representation id="a"><BaseURL>video/</BaseURL>
            <SegmentTemplate initialization="$RepresentationID$/init.mp4"/></Representation>
            </AdaptationSet></Period></MPD>"#);
        assert_eq!(millis(&playlist, "media/a/17.mp4"), Some(Some(2000)));
        assert_eq!(millis(&playlist, "media/video/a/17.mp4"), Some(Some(2000)));
        assert_eq!(millis(&playlist, "media/video/a/init.mp4"), Some(None));
        assert_eq!(millis(&playlist, "a/17.mp4"), None);
    }

    #[test]
    fn r02_lists_and_single_files_are_named() {
        let playlist = of(r#"<MPD><Period><AdaptationSet>
            <Representation><BaseURL>whole.mp4</BaseURL><SegmentBase indexRange="800-1200"/>
            </Representation><Representation><SegmentList timescale="10" duration="40">
            <Initialization sourceURL="i.mp4"/><SegmentURL media="1.m4s"/>
            <SegmentURL media="parts.mp4" mediaRange="0-100"/></SegmentList></Representation>
            </AdaptationSet></Period></MPD>"#);
        assert_eq!(millis(&playlist, "whole.mp4"), Some(None));
        assert_eq!(millis(&playlist, "i.mp4"), Some(None));
        assert_eq!(millis(&playlist, "1.m4s"), Some(Some(4000)));
        assert_eq!(millis(&playlist, "parts.mp4"), Some(None));
    }

    #[test]
    fn r02_broken_and_deep_manifests_name_what_they_say_and_no_more() {
        assert!(of("<MPD><Period>").is_empty());
        assert!(of("no xml").is_empty());
        let deep = "<a>".repeat(100_000);
        assert!(of(&deep).is_empty());
        let half = r#"<MPD><SegmentTemplate media="$Number$.ts" duration="4"></SegmentTemplate><"#;
        assert_eq!(millis(&of(half), "7.ts"), Some(Some(4000)));
    }
}
