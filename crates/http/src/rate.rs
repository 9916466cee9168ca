//! The pace of a stream: chosen from the request, the player, the title or the configured default.
//!
//! Promise: an explicit `?rate=` precedes the player's rate (CMCD `rtp`), which precedes the
//! title's own rate, which precedes the configured default. A granted rate never exceeds its
//! class's ceiling. The title's rate is an argument.

use std::ops::Range;
use std::sync::Arc;

use tactus_core::datagrams::Plan;
use tactus_core::polyline::Polyline;
use tactus_core::range::RequestedRange;
use tactus_core::smoothing::{Consumption, PlayerBuffer};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB, MediaTime, Nanos, SECOND};
use tactus_engine::message::Pace;
use tactus_media::MediaFacts;
use tactus_media::playlist::Segment;

use super::fields::Fields;
use super::settings::{Rate as RateLimits, RateClass};
use super::{cmcd, query};

/// The rate in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RateRequest {
    /// `?rate=8800000`: this rate.
    Exact(BitRate),
    /// `?rate=max`: a best-effort download.
    Max,
    /// The rate that the player requests.
    Player(BitRate),
    /// No rate: the title's own rate applies.
    Title,
}

/// Why a rate cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum RateFault {
    #[error(
        "`rate` is invalid: write bits per second as `rate=8800000` or `rate=8.8M` \
         (k, M and G are decimal), or `rate=max`"
    )]
    Malformed,
    #[error("`rate` occurs twice in the query")]
    Twice,
    #[error("`rate` is below the lowest rate of this server, {0}")]
    TooLow(BitRate),
}

/// Reads the rate of a request.
pub(super) fn requested(query: Option<&str>, fields: &Fields) -> Result<RateRequest, RateFault> {
    let mut asked = query::values(query, "rate");
    match (asked.next(), asked.next()) {
        (_, Some(_)) => Err(RateFault::Twice),
        (Some(text), None) => match text.as_deref() {
            Some("max") => Ok(RateRequest::Max),
            text => Ok(RateRequest::Exact(text.and_then(bit_rate).ok_or(RateFault::Malformed)?)),
        },
        (None, None) => Ok(cmcd::requested_throughput(fields, query)
            .map_or(RateRequest::Title, RateRequest::Player)),
    }
}

/// The rate that a title needs by its own bytes, for the requested parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TitleRate {
    pub(super) rate: BitRate,
    /// The bytes that a player needs before any media.
    pub(super) head: Bytes,
}

impl TitleRate {
    /// Several parts have one pace. The part with the fewest bytes of the head determines it.
    pub(super) fn of(media: &MediaFacts, asked: &RequestedRange) -> Self {
        let of_head = |part: &Range<u64>| media.head.0.min(part.end).saturating_sub(part.start);
        let head = match asked {
            RequestedRange::Parts(parts) => Bytes(parts.iter().map(of_head).min().unwrap_or(0)),
            RequestedRange::Whole | RequestedRange::Unsatisfiable => media.head,
        };
        Self { rate: media.rate, head }
    }
}

/// Most bytes of a title's head that are sent at once. The index of a movie of three hours has
/// about 5 MiB. A longer burst would take memory for the whole life of the stream.
const HEAD_AT_ONCE_MAX: Bytes = Bytes(8 * MIB);

/// The granted pace. `own` is the title's rate, for a request without a rate.
pub(super) fn pace(
    requested: RateRequest,
    own: Option<TitleRate>,
    limits: &RateLimits,
) -> Result<Pace, RateFault> {
    match (requested, own, limits.default) {
        (RateRequest::Max, ..) => Ok(Pace::BestEffort),
        (RateRequest::Exact(rate), ..) if rate < limits.min => Err(RateFault::TooLow(limits.min)),
        (RateRequest::Exact(rate), ..) => Ok(paced(limits.asked.in_force(rate), &limits.asked)),
        // A player cannot handle an error here; the slowest allowed rate is nearest to its rate.
        (RateRequest::Player(rate), ..) => {
            Ok(paced(limits.cmcd.in_force(rate.max(limits.min)), &limits.cmcd))
        }
        (RateRequest::Title, Some(TitleRate { rate, head }), _) if rate.0 > 0 => {
            let rate = limits.title.in_force(rate.max(limits.min));
            // A player begins with the media behind the head.
            let burst = head.min(HEAD_AT_ONCE_MAX) + limits.title.burst(rate);
            Ok(Pace::Paced { rate, burst, tick: limits.title.tick })
        }
        // The default is used exactly as configured, without an addition.
        (RateRequest::Title, _, Some(rate)) => {
            Ok(paced(rate.min(limits.title.ceiling), &limits.title))
        }
        (RateRequest::Title, _, None) => Ok(Pace::BestEffort),
    }
}

/// A pace, and its plan if the rate follows the content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PlannedPace {
    pub(super) pace: Pace,
    pub(super) plan: Option<Arc<Plan>>,
    /// The mean rate of the title, if the plan follows its content.
    mean: BitRate,
    /// Only while memory is spare.
    pub(super) takes_spare: bool,
    /// Below the needs of the content: only for a seek that has no room otherwise.
    pub(super) is_slowed: bool,
}

impl From<Pace> for PlannedPace {
    fn from(pace: Pace) -> Self {
        let (mean, takes_spare, is_slowed) = (BitRate(0), false, false);
        Self { pace, plan: None, mean, takes_spare, is_slowed }
    }
}

/// The pace of a part of a title at the title's own rate: as even as the player's buffer lets it
/// be. `pace` and `mean` are those of the title as a whole.
pub(super) fn following(
    pace: Pace,
    mean: BitRate,
    consumption: &Consumption,
    limits: &RateLimits,
) -> PlannedPace {
    let Pace::Paced { rate: own, tick, .. } = pace else { return pace.into() };
    let class = &limits.title;
    let ticks = |span: Nanos| MediaTime(span.0 * 27 / 1000);
    // A byte leaves up to a tick after it is due. A player whose buffer the burst fills begins at
    // once, and has nothing to spare for that.
    let player = |tick: Tick| PlayerBuffer {
        held: ticks(limits.player_buffer.max(class.start_burst)),
        burst: ticks(class.start_burst),
        burst_max: HEAD_AT_ONCE_MAX + class.burst(own),
        late: ticks(tick.span()),
    };
    let mut line = consumption.smoothed(player(tick));
    let Some(peak) = line.rates().max() else { return pace.into() };
    let longer = Tick::for_rate(peak, tick);
    if longer > tick {
        line = consumption.smoothed(player(longer));
    }
    let player = player(tick.max(longer));
    let burst = line.burst();
    let mut rates = line.rates();
    let (Some(first), second) = (rates.next(), rates.next()) else { return pace.into() };
    if line.duration() <= MediaTime(1) {
        // All of it is needed at once.
        let burst = line.len().min(player.burst_max);
        return bounded(Pace::Paced { rate: own, burst, tick }, line.len());
    }
    let peak = rates.chain(second).fold(first, BitRate::max).max(limits.min);
    let rate = class.in_force(peak);
    if rate < peak {
        // Under the ceiling it would fall behind its schedule, and behind its envelope.
        return Pace::Paced { rate, burst, tick }.into();
    }
    let line = if rate > peak { line.hastened(peak, rate) } else { line };
    let plan = second.map(|_| Arc::new(Plan::of_times(line)));
    let pace = Pace::Paced { rate, burst, tick };
    PlannedPace { pace, plan, mean, takes_spare: false, is_slowed: false }
}

/// Slower paces for a viewer that seeks and has no room at `planned`, the best first: the peaks
/// come later, so that the player has to wait for them, but not at all other times. They are only
/// for a rate that follows the content, wherever in the title its part is. The last pace has no
/// rate: it promises nothing, and takes what others leave.
pub(super) fn slowed(planned: &PlannedPace, limits: &RateLimits) -> Vec<PlannedPace> {
    let line = planned.plan.as_ref().and_then(|plan| plan.line.as_ref());
    let Pace::Paced { rate: peak, burst, tick } = planned.pace else { return vec![] };
    // The part may need less than the title in the mean.
    let mean = planned.mean.min(peak);
    let slower = |eighths: u64| {
        // From the peak down to the mean, and to half of it.
        let rate = match eighths {
            9.. => BitRate(mean.0 + (peak.0 - mean.0) * (eighths - 8) / 8),
            _ => BitRate(mean.0 * eighths / 8),
        };
        let rate = rate.max(limits.min);
        if rate >= peak {
            return None;
        }
        let line = line.map(|line| line.clone().capped(rate));
        let rate = line.as_ref().map_or(Some(rate), |line| line.rates().max())?.max(limits.min);
        let plan = line.map(|line| Arc::new(Plan::of_times(line)));
        let pace = Pace::Paced { rate, burst, tick };
        Some(PlannedPace { pace, plan, mean: planned.mean, takes_spare: false, is_slowed: true })
    };
    let follows_content = mean > BitRate(0);
    let eighths = follows_content.then_some([14, 12, 10, 8, 7, 6, 4]);
    let capped = eighths.into_iter().flatten().filter_map(slower);
    let last = PlannedPace { is_slowed: true, ..Pace::BestEffort.into() };
    capped.chain([last]).collect()
}

/// `pace` for `len` bytes that are due at once, as far as its burst goes. Admission reserves the
/// time that they take, and not their rate for ever.
fn bounded(pace: Pace, len: Bytes) -> PlannedPace {
    let Pace::Paced { rate, burst, .. } = pace else { return pace.into() };
    // A line lasts longer than nothing.
    let burst = burst.min(Bytes(len.0.saturating_sub(1)));
    let lasts = rate.time_for(Bytes(len.0 - burst.0));
    let end = (len, MediaTime(lasts.0.saturating_mul(27).div_ceil(1000)));
    let points = [(Bytes(0), MediaTime(0)), (burst, MediaTime(0)), end];
    let from = usize::from(burst == Bytes(0));
    let line = Polyline::through(&points[from..]);
    let plan = line.map(|line| Arc::new(Plan::of_times(line)));
    PlannedPace { pace, plan, mean: BitRate(0), takes_spare: false, is_slowed: false }
}

/// A segment of HLS or DASH, or a part of a file with segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentRate {
    /// Its own rate.
    own: BitRate,
    len: Bytes,
}

/// The longest part that is a segment: HLS recommends 6 s, and archives use up to 20 s.
const SEGMENT_PART_MAX: Nanos = Nanos(30 * SECOND.0);
/// A playlist that claims shorter segments is not followed: no player requests as many.
const SEGMENT_MIN: Nanos = Nanos(SECOND.0 / 10);

impl SegmentRate {
    /// `len` bytes of a title of `title_len` as a segment, if it is one: `listed` by a playlist, or
    /// short. The duration comes from the media, else from the playlist.
    pub(super) fn of(
        media: Option<&MediaFacts>,
        listed: Option<Segment>,
        [len, title_len]: [Bytes; 2],
        limits: &RateLimits,
    ) -> Option<Self> {
        let is_short = |media: &MediaFacts| media.duration < limits.segment_max;
        if listed.is_none() && !media.is_some_and(is_short) {
            return None;
        }
        let own = match (media, listed) {
            (Some(media), _) => media.rate,
            (None, Some(Segment { duration: Some(duration) })) => {
                let nanos = u128::from(duration.max(SEGMENT_MIN).0);
                let rate = u128::from(title_len.0) * 8 * u128::from(SECOND.0) / nanos;
                BitRate(u64::try_from(rate).unwrap_or(u64::MAX))
            }
            (None, _) => return None,
        };
        let segment = Self { own, len };
        let longest = own.bytes_in(SEGMENT_PART_MAX);
        (own > BitRate(0) && len > Bytes(0) && len <= longest).then_some(segment)
    }

    /// The paces that it may have: its rate times the configured multiple, and slower ones down to
    /// its own rate, for when that has no room.
    pub(super) fn paces(&self, limits: &RateLimits) -> Vec<PlannedPace> {
        let halved = |&multiple: &u32| (multiple > 1).then_some(multiple.div_ceil(2));
        let multiples = std::iter::successors(Some(limits.segment_multiple), halved);
        multiples.map(|multiple| self.pace(multiple, limits)).collect()
    }

    /// Its pace at `multiple` times its own rate, and when its bytes are due: they are admitted for
    /// the time that they take. It begins with the burst of a title of its rate.
    fn pace(&self, multiple: u32, limits: &RateLimits) -> PlannedPace {
        let class = &limits.title;
        let own = self.own.max(limits.min);
        let rate = BitRate(own.0.saturating_mul(multiple.into())).min(class.ceiling);
        let burst = class.burst(own).min(self.len);
        bounded(Pace::Paced { rate, burst, tick: class.tick }, self.len)
    }
}

/// The pace of bytes without media, which a player needs all at once, as an index at the end.
pub(super) fn at_once(pace: Pace, len: Bytes) -> PlannedPace {
    match pace {
        Pace::Paced { rate, burst, tick } => {
            let burst = burst.max(len.min(HEAD_AT_ONCE_MAX));
            bounded(Pace::Paced { rate, burst, tick }, len)
        }
        Pace::BestEffort => pace.into(),
    }
}

/// The rate at which a title is recorded; none if it is only stored.
pub(super) fn recorded(
    requested: RateRequest,
    limits: &RateLimits,
) -> Result<Option<BitRate>, RateFault> {
    match requested {
        RateRequest::Exact(rate) if rate < limits.min => Err(RateFault::TooLow(limits.min)),
        RateRequest::Exact(rate) => Ok(Some(rate)),
        RateRequest::Max | RateRequest::Player(_) | RateRequest::Title => Ok(None),
    }
}

/// A pace as the value of `Tactus-Rate`: the rate, or that of the first second behind the burst,
/// with the title's mean and the peak.
pub(super) fn in_words(planned: &PlannedPace) -> String {
    let line = planned.plan.as_ref().and_then(|plan| plan.line.as_ref());
    // A segment has one rate.
    match (planned.pace, line.filter(|_| planned.mean > BitRate(0))) {
        (Pace::Paced { rate: peak, .. }, Some(line)) => {
            let second = line.allowed(SECOND).min(line.len()) - line.burst();
            format!("{}; mean={}; peak={}", second.0 * 8, planned.mean.0, peak.0)
        }
        (Pace::Paced { rate, .. }, None) => rate.0.to_string(),
        (Pace::BestEffort, _) => "max".to_owned(),
    }
}

fn paced(rate: BitRate, class: &RateClass) -> Pace {
    Pace::Paced { rate, burst: class.burst(rate), tick: class.tick }
}

/// A rate in bits per second: digits, an optional fraction, an optional `k`, `M` or `G`. It must be
/// exact and above zero.
fn bit_rate(text: &str) -> Option<BitRate> {
    let (number, places) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 3),
        b'M' => (&text[..text.len() - 1], 6),
        b'G' => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return None,
        Some((whole, fraction)) => (whole, fraction.trim_end_matches('0')),
        None => (number, ""),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // A rate is a whole number of bits per second.
    let fits = !whole.is_empty() && digits(whole) && digits(fraction) && fraction.len() <= places;
    let scaled = format!("{whole}{fraction:0<places$}");
    let rate = scaled.parse::<u64>().ok().filter(|_| fits)?;
    (rate > 0).then_some(BitRate(rate))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tactus_core::smoothing::Shape;
    use tactus_media::MediaKind;

    use super::*;

    fn limits() -> RateLimits {
        let default = Some(BitRate(4_000_000));
        let mut limits = RateLimits { default, min: BitRate(16_000), ..RateLimits::default() };
        for class in [&mut limits.title, &mut limits.asked, &mut limits.cmcd] {
            class.headroom = tactus_notation::units::Percent(0);
            class.ceiling = BitRate(100_000_000);
            class.start_burst = Nanos(0);
        }
        limits
    }

    fn rate_of(
        requested: RateRequest,
        own: Option<u64>,
        limits: &RateLimits,
    ) -> Result<Option<u64>, RateFault> {
        let own = own.map(|rate| TitleRate { rate: BitRate(rate), head: Bytes(0) });
        Ok(match pace(requested, own, limits)? {
            Pace::Paced { rate, .. } => Some(rate.0),
            Pace::BestEffort => None,
        })
    }

    #[test]
    fn rates_are_read_exactly() {
        for (text, rate) in [
            ("8800000", 8_800_000),
            ("8.8M", 8_800_000),
            ("8.80M", 8_800_000),
            ("0.5k", 500),
            ("64K", 64_000),
            ("1G", 1_000_000_000),
            ("3.000001M", 3_000_001),
            ("100.0", 100),
        ] {
            assert_eq!(bit_rate(text), Some(BitRate(rate)), "{text}");
        }
        for text in [
            "",
            "M",
            "0",
            "0.0M",
            "-1",
            "+1",
            "1e6",
            "8,8M",
            "8.8",
            "1.0001k",
            ".5M",
            "5.M",
            "8.8m",
            "8 M",
            "8.8Mbit",
            "99999999999999999999",
            "99999999999G",
            "1.2.3M",
            "٣",
        ] {
            assert_eq!(bit_rate(text), None, "{text}");
        }
    }

    #[test]
    fn a_request_says_what_it_wants_in_order_of_precedence() {
        let said = |query: &str| requested(Some(query), &Fields::default());
        assert_eq!(said("rate=8.8M&CMCD=rtp%3D100"), Ok(RateRequest::Exact(BitRate(8_800_000))));
        assert_eq!(said("rate=max"), Ok(RateRequest::Max));
        assert_eq!(said("CMCD=rtp%3D100"), Ok(RateRequest::Player(BitRate(100_000))));
        assert_eq!(said("CMCD=rtp%3Dx"), Ok(RateRequest::Title));
        assert_eq!(said("other=1"), Ok(RateRequest::Title));
        for bad in ["rate=", "rate", "rate=fast", "rate=%zz", "rate=MAX"] {
            assert_eq!(said(bad), Err(RateFault::Malformed), "{bad}");
        }
        assert_eq!(said("rate=1M&rate=1M"), Err(RateFault::Twice));
    }

    #[test]
    fn the_rate_in_force_keeps_to_the_limits() {
        let limits = limits();
        let exact = |rate| rate_of(RateRequest::Exact(BitRate(rate)), Some(1_000_000), &limits);
        assert_eq!(exact(8_800_000), Ok(Some(8_800_000)));
        assert_eq!(exact(900_000_000), Ok(Some(100_000_000)));
        assert_eq!(exact(15_999), Err(RateFault::TooLow(BitRate(16_000))));
        let player = |rate| rate_of(RateRequest::Player(BitRate(rate)), Some(1_000_000), &limits);
        assert_eq!(player(500_000), Ok(Some(500_000)), "also below the title's own");
        assert_eq!(player(900_000_000), Ok(Some(100_000_000)));
        assert_eq!(player(1_000), Ok(Some(16_000)));
        let title = |own| rate_of(RateRequest::Title, own, &limits);
        assert_eq!(title(Some(8_800_000)), Ok(Some(8_800_000)));
        assert_eq!(title(Some(900_000_000)), Ok(Some(100_000_000)));
        assert_eq!(title(None), Ok(Some(4_000_000)));
        assert_eq!(title(Some(0)), Ok(Some(4_000_000)));
        assert_eq!(rate_of(RateRequest::Max, Some(1), &limits), Ok(None));
        let none = RateLimits { default: None, ..limits };
        assert_eq!(rate_of(RateRequest::Title, None, &none), Ok(None));
    }

    #[test]
    fn headroom_and_burst_come_from_the_class() {
        let mut limits = limits();
        limits.title.headroom = tactus_notation::units::Percent::whole(10);
        limits.title.start_burst = SECOND;
        let own = TitleRate { rate: BitRate(8_000_000), head: Bytes(0) };
        let pace = pace(RateRequest::Title, Some(own), &limits);
        let Ok(Pace::Paced { rate, burst, tick }) = pace else { panic!("{pace:?}") };
        assert_eq!((rate, burst), (BitRate(8_800_000), Bytes(1_100_000)));
        assert_eq!(tick, limits.title.tick);
        assert_eq!(
            rate_of(RateRequest::Title, None, &limits),
            Ok(Some(4_000_000)),
            "no headroom on it"
        );
    }

    #[test]
    fn r04_the_start_burst_comes_behind_what_is_left_of_the_head() {
        let mut limits = limits();
        limits.title.start_burst = SECOND;
        let movie = |head| MediaFacts {
            kind: MediaKind::Movie,
            rate: BitRate(8_000_000),
            peak: None,
            duration: SECOND,
            head: Bytes(head),
        };
        let burst = |head, asked| {
            let own = TitleRate::of(&movie(head), &asked);
            let pace = pace(RateRequest::Title, Some(own), &limits);
            let Ok(Pace::Paced { burst, .. }) = pace else { panic!("{pace:?}") };
            burst.0
        };
        let part = |part| RequestedRange::Parts(vec![part]);
        assert_eq!(burst(3_000_000, RequestedRange::Whole), 4_000_000);
        assert_eq!(burst(3_000_000, part(1_200_000..50_000_000)), 2_800_000, "what it has of it");
        assert_eq!(burst(3_000_000, part(1_200_000..2_500_000)), 2_300_000);
        assert_eq!(burst(3_000_000, part(3_000_000..50_000_000)), 1_000_000, "media only");
        assert_eq!(burst(3_000_000, part(9_000_000..50_000_000)), 1_000_000);
        let two = RequestedRange::Parts(vec![0..50_000_000, 60_000_000..70_000_000]);
        assert_eq!(burst(3_000_000, two), 1_000_000, "both begin with the same burst");
        assert_eq!(burst(300_000, RequestedRange::Whole), 1_300_000, "a short one");
        assert_eq!(
            burst(u64::MAX, RequestedRange::Whole),
            8 * MIB + 1_000_000,
            "whatever a file says of itself"
        );
    }

    const MEDIA: MediaFacts = MediaFacts {
        kind: MediaKind::Movie,
        rate: BitRate(1_000_000),
        peak: None,
        duration: Nanos(4 * SECOND.0),
        head: Bytes(0),
    };

    #[test]
    fn r02_a_segment_has_a_multiple_of_its_rate_and_slower_ones_for_want_of_room() {
        let mut limits = limits();
        limits.title.start_burst = SECOND;
        let listed = Some(Segment { duration: Some(SECOND.times(4)) });
        // The media's own rate, or that of the playlist.
        for media in [Some(&MEDIA), None] {
            let len = Bytes(500_000);
            let segment = SegmentRate::of(media, listed, [len, len], &limits).unwrap();
            let paces = segment.paces(&limits);
            let rates = paces.iter().map(|paced| paced.pace.rate().unwrap().rate.0);
            assert_eq!(rates.collect::<Vec<_>>(), [5_000_000, 3_000_000, 2_000_000, 1_000_000]);
            // A second of media at once, and the rest within 0.6 s.
            let line = paces[0].plan.as_ref().and_then(|plan| plan.line.as_ref()).unwrap();
            assert_eq!((line.burst(), line.len()), (Bytes(125_000), len));
            assert_eq!(line.duration(), MediaTime(16_200_000));
            assert_eq!(in_words(&paces[0]), "5000000");
        }
    }

    #[test]
    fn r02_what_is_long_or_named_by_no_playlist_is_no_segment() {
        let limits = RateLimits { segment_max: SECOND.times(5), ..limits() };
        let of = |media: &MediaFacts, listed, len: u64, title_len: u64| {
            let lens = [Bytes(len), Bytes(title_len)];
            SegmentRate::of(Some(media), listed, lens, &limits).is_some()
        };
        let listed = Some(Segment { duration: None });
        let film = MediaFacts { duration: SECOND.times(3600), ..MEDIA };
        assert!(of(&film, listed, 500_000, 450_000_000), "a part of a listed film");
        assert!(!of(&film, listed, 4_000_000, 450_000_000), "more than half a minute of it");
        assert!(!of(&film, None, 500_000, 450_000_000), "a part of any film");
        assert!(of(&MEDIA, None, 500_000, 500_000), "four seconds");
        let clip = MediaFacts { duration: SECOND.times(5), ..MEDIA };
        assert!(!of(&clip, None, 625_000, 625_000));
        let unknown = SegmentRate::of(None, listed, [Bytes(1), Bytes(1)], &limits);
        assert_eq!(unknown, None, "nothing tells its rate");
    }

    #[test]
    fn r04_a_variable_title_begins_with_its_head_and_a_second_of_media() {
        let mut limits = limits();
        limits.title.start_burst = SECOND;
        // A head of three megabytes, and megabytes that are needed each second, from the first on.
        let needed = |second: u64| {
            let bytes = 3_000_000 + (second + 1) * 1_000_000;
            (MediaTime(second * 27_000_000), Bytes(bytes))
        };
        let points = (0..4).map(needed).chain([(MediaTime(4 * 27_000_000), Bytes(9_000_000))]);
        let consumption = Consumption::new(tactus_core::smoothing::Shape::Steps, points).unwrap();
        let own = TitleRate { rate: BitRate(8_000_000), head: Bytes(3_000_000) };
        let pace = pace(RateRequest::Title, Some(own), &limits).unwrap();
        let planned = following(pace, own.rate, &consumption, &limits);
        let Pace::Paced { burst, .. } = planned.pace else { panic!("{planned:?}") };
        assert_eq!(burst, Bytes(5_000_000), "the samples of the first second's ends");
    }

    /// The distance of frames.
    const FRAME: Nanos = Nanos::from_millis(40);

    /// For how long a player stands still that begins with `buffer` of frames of these sizes. The
    /// ticks are in the worst phase: the bytes that fill the buffer come when they are due, and all
    /// others a tick later.
    fn stood_still(planned: &PlannedPace, frames: &[u64], buffer: Nanos) -> Nanos {
        let Pace::Paced { rate, burst, tick } = planned.pace else { panic!("{planned:?}") };
        let tick = Tick::for_rate(rate, tick).span();
        let line = planned.plan.as_ref().and_then(|plan| plan.line.as_ref());
        let due = |end: Bytes| match line {
            _ if end <= burst => Nanos(0),
            Some(line) => line.due(end - Bytes(1), line.hint(end - Bytes(1))),
            None => rate.time_for(end - burst),
        };
        let mut end = Bytes(0);
        let dues = frames.iter().map(|&bytes| {
            end += Bytes(bytes);
            due(end)
        });
        let dues: Vec<Nanos> = dues.collect();
        let filled = (buffer.0 / FRAME.0) as usize;
        let begun = dues[filled.min(dues.len() - 1)];
        let mut stood = Nanos(0);
        for (nth, &due) in dues.iter().enumerate() {
            let came = if due > Nanos(0) { due + tick } else { due };
            stood += came.saturating_sub(begun + stood + FRAME.times(nth as u64));
        }
        stood
    }

    proptest! {
        #[test]
        fn r01_a_player_never_waits_whatever_the_phase_of_its_ticks(
            scenes in vec((1_u64..120_000, 1_usize..80), 1..12),
            from in 0_usize..200, first in 0_u64..30, slot in 1_u64..30, is_whole: bool,
        ) {
            let scene = |(size, count)| {
                (0..count as u64).map(move |nth| size + size * (nth % 7) / 9)
            };
            let frames: Vec<u64> = scenes.into_iter().flat_map(scene).collect();
            let ticks = |millis: u64| MediaTime(millis * 27_000);
            let mut len = 0;
            let points = frames.iter().zip(0..).map(|(bytes, nth)| {
                len += bytes;
                (ticks((first + nth * 40) / slot * slot), Bytes(len))
            });
            let whole = Consumption::new(Shape::Steps, points).unwrap();
            let whole = whole.with_resolution(ticks(slot));
            let (before, frames) = frames.split_at(from % frames.len());
            let part = whole.part(before.iter().sum()..len).unwrap();
            let mut limits = limits();
            limits.title.start_burst = SECOND;
            let limits = if is_whole { limits.of_whole_buffer().unwrap() } else { limits };
            let mean = BitRate(len * 8 / (whole.duration().0 / 27_000_000 + 1));
            let own = TitleRate { rate: mean, head: Bytes(0) };
            let pace = pace(RateRequest::Title, Some(own), &limits).unwrap();
            let planned = following(pace, mean, &part, &limits);
            // A burst of the whole buffer serves players that hold less, too.
            let smallest = if is_whole { Nanos(0) } else { limits.player_buffer };
            for buffer in [smallest, limits.player_buffer] {
                let stood = stood_still(&planned, frames, buffer);
                prop_assert!(stood < Nanos::from_micros(10), "{stood} with {buffer}, {planned:?}");
            }
        }
    }

    #[test]
    fn r05_a_seek_without_room_has_slower_paces_whatever_its_rate() {
        let mut limits = limits();
        limits.title.start_burst = SECOND;
        let rates = |mean, planned: &PlannedPace| {
            let planned = PlannedPace { mean: BitRate(mean), ..planned.clone() };
            let slowed = slowed(&planned, &limits);
            assert!(slowed.iter().all(|pace| pace.is_slowed));
            slowed.iter().map(|one| one.pace.rate().map(|rate| rate.rate.0)).collect::<Vec<_>>()
        };
        let paced = |rate| PlannedPace::from(paced(BitRate(rate), &limits.title));
        assert_eq!(rates(0, &paced(800_000)), [None], "the configured default");
        let lower = [700_000, 600_000, 400_000].map(Some);
        assert_eq!(rates(800_000, &paced(800_000)), [&lower[..], &[None]].concat(), "constant");
        // Part of a title that needs less than all of it in the mean.
        assert_eq!(rates(9_000_000, &paced(800_000)), [&lower[..], &[None]].concat());
        let line = [(0, 0), (1, 50_000), (3, 250_000)];
        let line = line.map(|(at, bytes)| (Bytes(bytes), MediaTime(at * 27_000_000)));
        let line = Polyline::through(&line).expect("a line");
        let pace = Pace::Paced { rate: BitRate(800_000), burst: Bytes(0), tick: Tick::Ms250 };
        let plan = Some(Arc::new(Plan::of_times(line)));
        let lower_mean = rates(9_000_000, &PlannedPace { plan, ..PlannedPace::from(pace) });
        assert_eq!(lower_mean, [&lower[..], &[None]].concat());
        let [above, mean, half] = [1_400_000, 800_000, 400_000].map(Some);
        let higher = rates(800_000, &paced(1_600_000));
        assert_eq!([higher[0], higher[3], higher[6], higher[7]], [above, mean, half, None]);
        assert_eq!(rates(0, &Pace::BestEffort.into()), []);
    }

    #[test]
    fn the_rate_in_force_is_said_in_bits_per_second() {
        let limits = limits();
        let pace = pace(RateRequest::Exact(BitRate(8_800_000)), None, &limits).unwrap();
        assert_eq!(in_words(&pace.into()), "8800000");
        assert_eq!(in_words(&Pace::BestEffort.into()), "max");
    }
}
