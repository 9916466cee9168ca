//! Indexes and previews on a simulated disk, in simulated time.

use super::*;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Mutex as Locked;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use futures::future::join_all;
use tactus_core::path::RequestPath;
use tactus_core::units::{MIB, Nanos};
use tactus_media::{MediaFacts, sample};
use tactus_storage::catalogue::{CatalogueRules, Exactness, PartConsumption, PathObject};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The bounds that the design note states.
const PREVIEW: u64 = 32 * MIB;
const HALF_A_SECOND: Duration = Duration::from_millis(500);
const TWO_SECONDS: Duration = Duration::from_secs(2);
/// More than a preview.
const LEN: u64 = 40 * MIB;

/// A disk whose titles have the same content.
#[derive(Clone)]
struct Disk(Arc<DiskState>);

struct DiskState {
    content: File,
    /// The time of a piece.
    piece: Duration,
    is_full: AtomicBool,
    reads: Locked<Vec<ReadLog>>,
    previews: AtomicUsize,
    previews_max: AtomicUsize,
}

#[derive(Clone, Debug)]
struct ReadLog {
    range: Range<u64>,
    read: u64,
}

impl ReadLog {
    /// An index reads up to the end of its title.
    fn is_preview(&self, len: u64) -> bool {
        self.range.end < len && self.range.end - self.range.start > HEAD
    }
}

struct DiskReading {
    disk: Disk,
    nth: usize,
    is_preview: bool,
    delay: Pin<Box<Sleep>>,
}

impl RangeReader for Disk {
    fn read_range(&self, title: Arc<OpenTitle>, range: Range<u64>) -> Result<Reading, Busy> {
        if self.0.is_full.load(Ordering::Relaxed) {
            return Err(Busy("the disk is full".to_owned()));
        }
        let log = ReadLog { range, read: 0 };
        let is_preview = log.is_preview(title.len.0);
        if is_preview {
            let at_once = self.0.previews.fetch_add(1, Ordering::Relaxed) + 1;
            self.0.previews_max.fetch_max(at_once, Ordering::Relaxed);
        }
        let mut reads = self.0.reads.lock().expect("no panic");
        reads.push(log);
        let (disk, nth, delay) = (self.clone(), reads.len() - 1, Box::pin(sleep(self.0.piece)));
        Ok(Box::new(DiskReading { disk, nth, is_preview, delay }))
    }
}

impl AsyncRead for DiskReading {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.delay.as_mut().poll(context));
        let disk = self.disk.clone();
        self.delay = Box::pin(sleep(disk.0.piece));
        let mut reads = disk.0.reads.lock().expect("no panic");
        let log = &mut reads[self.nth];
        let at = log.range.start + log.read;
        let count = buffer.remaining().min(PIECE).min((log.range.end - at) as usize);
        disk.0.content.read_exact_at(buffer.initialize_unfilled_to(count), at)?;
        buffer.advance(count);
        log.read += count as u64;
        Poll::Ready(Ok(()))
    }
}

impl Drop for DiskReading {
    fn drop(&mut self) {
        if self.is_preview {
            self.disk.0.previews.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

struct Fixture {
    catalogue: Arc<Catalogue>,
    disk: Disk,
    facts: MediaFacts,
    _dir: tempfile::TempDir,
}

impl Fixture {
    /// Two titles, `title.ts` and `other.ts`.
    async fn new(piece: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join(".tactus")).expect("a directory for indexes");
        let path = dir.path().join("title.ts");
        let second = sample::Sample::ts(Nanos::from_millis(1000)).rate().0 / 8;
        let duration = Nanos::from_millis(LEN * 1000 / second + 1000);
        sample::write_ts(&path, duration).expect("a title");
        std::fs::copy(&path, dir.path().join("other.ts")).expect("a title");
        let content = File::open(&path).expect("a title");
        let facts = tactus_media::facts(&content, "title.ts").expect("a transport stream");
        let rules = CatalogueRules { probe: tactus_media::facts, ..CatalogueRules::default() };
        let catalogue = Arc::new(Catalogue::new(dir.path(), rules).expect("a volume"));
        let disk = Disk(Arc::new(DiskState {
            content,
            piece,
            is_full: AtomicBool::new(false),
            reads: Locked::default(),
            previews: AtomicUsize::new(0),
            previews_max: AtomicUsize::new(0),
        }));
        begin_tasks(&catalogue, &disk);
        // Both tasks have begun.
        sleep(Duration::from_millis(1)).await;
        Self { catalogue, disk, facts, _dir: dir }
    }

    fn title(&self, name: &str) -> (Arc<OpenTitle>, RequestPath) {
        let path = RequestPath::parse(Path::new("/").join(name).as_os_str().as_encoded_bytes());
        let path = path.expect("a path");
        match self.catalogue.find_blocking(&path) {
            Ok(PathObject::Title(title)) => (title, path),
            other => panic!("{name} gave {other:?}"),
        }
    }

    /// What a request for the bytes from `start` on learns, and after which time.
    async fn request(&self, start: u64) -> (PartConsumption, Exactness, Duration) {
        let (title, path) = self.title("title.ts");
        let (range, begun) = (start..title.len.0, Instant::now());
        let (found, exactness) =
            self.catalogue.consumption(&title, &path, &self.facts, range).await;
        (found, exactness, begun.elapsed())
    }

    fn reads(&self) -> Vec<ReadLog> {
        self.disk.0.reads.lock().expect("no panic").clone()
    }

    /// Bytes read for previews, and for indexes.
    fn bytes(&self) -> [u64; 2] {
        let len = self.title("title.ts").0.len.0;
        let of = |is_preview| {
            let reads = self.reads().into_iter();
            reads.filter(|log| log.is_preview(len) == is_preview).map(|log| log.read).sum()
        };
        [of(true), of(false)]
    }
}

#[tokio::test(start_paused = true)]
async fn r01_a_preview_reads_32_mib_from_the_requested_byte_on() {
    let fixture = Fixture::new(Duration::from_millis(1)).await;
    for start in [0, 188 * 9999] {
        let (found, exactness, _) = fixture.request(start).await;
        assert!(matches!(found, PartConsumption::Known(_)), "{start}: {found:?}");
        assert_eq!(exactness, Exactness::Estimate);
        let reads = fixture.reads();
        let begins = |log: &&ReadLog| log.range == (start..start + PREVIEW);
        let read = reads.iter().find(begins).unwrap_or_else(|| panic!("{start}: {reads:?}"));
        assert_eq!(read.read, PREVIEW, "{reads:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn r01_a_preview_is_read_for_half_a_second_at_most() {
    let piece = Duration::from_millis(70);
    let fixture = Fixture::new(piece).await;
    let (found, exactness, took) = fixture.request(0).await;
    // The preview counts the bytes that were read before its time was over.
    assert!(matches!(found, PartConsumption::Known(_)), "{found:?}");
    assert_eq!(exactness, Exactness::Estimate);
    assert!((HALF_A_SECOND..HALF_A_SECOND + piece).contains(&took), "{took:?}");
    let reads = fixture.reads();
    assert_eq!(reads[0].range, 0..PREVIEW);
    assert_eq!(reads[0].read, 7 * PIECE as u64, "{reads:?}");
}

#[tokio::test(start_paused = true)]
async fn r01_previews_are_read_one_at_a_time_and_a_request_waits_two_seconds_at_most() {
    let fixture = Fixture::new(Duration::from_millis(70)).await;
    let answers = join_all((0..8).map(|nth| fixture.request(nth * 188 * 1000))).await;
    let known = |(found, ..): &&(PartConsumption, Exactness, Duration)| {
        matches!(found, PartConsumption::Known(_))
    };
    let slowest = answers.iter().map(|answer| answer.2).max().expect("eight answers");
    assert!(slowest < TWO_SECONDS + Duration::from_millis(10), "{slowest:?}");
    // The index has the other half of the time.
    assert_eq!(answers.iter().filter(known).count(), 2, "{answers:?}");
    sleep(TWO_SECONDS).await;
    assert_eq!(fixture.disk.0.previews_max.load(Ordering::Relaxed), 1);
    let len = fixture.title("title.ts").0.len.0;
    let count = fixture.reads().iter().filter(|log| log.is_preview(len)).count();
    assert!(count <= 3, "requests that were given up are not read for: {:?}", fixture.reads());
}

#[tokio::test(start_paused = true)]
async fn r01_previews_have_half_of_the_time_while_an_index_is_made() {
    let fixture = Fixture::new(Duration::from_millis(70)).await;
    for nth in 0..6 {
        fixture.request(nth * 188 * 1000).await;
    }
    let [previews, index] = fixture.bytes();
    assert!(
        previews > 0 && index * 3 >= previews * 2,
        "{previews} bytes, and {index} of the index"
    );
}

#[tokio::test(start_paused = true)]
async fn r01_without_room_for_a_best_effort_read_a_request_goes_on_without_a_preview() {
    let fixture = Fixture::new(Duration::from_millis(1)).await;
    fixture.disk.0.is_full.store(true, Ordering::Relaxed);
    let (found, exactness, took) = fixture.request(0).await;
    assert_eq!((found, exactness), (PartConsumption::None, Exactness::Estimate));
    assert!(took < HALF_A_SECOND, "{took:?}");
    assert!(fixture.reads().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r01_a_requested_title_interrupts_the_index_of_one_that_was_not() {
    let fixture = Fixture::new(Duration::from_millis(10)).await;
    let [(title, path), (other, _)] = ["title.ts", "other.ts"].map(|name| fixture.title(name));
    fixture.catalogue.queue_index(other.volume, "other.ts");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(fixture.catalogue.index_progress().current.expect("it is read").name, "other.ts");
    fixture.request(0).await;
    fixture.catalogue.index_made(&title, &path).await;
    let is_whole = |log: &ReadLog| log.range.end == title.len.0;
    // It may have begun in this moment.
    let rest = fixture.reads().into_iter().filter(is_whole).nth(2);
    assert!(rest.is_none_or(|rest| rest.read == 0), "the other waits");
    while fixture.catalogue.index_progress().wanted > 0 {
        sleep(Duration::from_millis(100)).await;
    }
    let progress = fixture.catalogue.index_progress();
    assert_eq!((progress.made, progress.failed), (2, 0));
    // The other one goes on where it was.
    let whole = fixture.reads().into_iter().filter(is_whole);
    let [first, requested, rest] = <[_; 3]>::try_from(whole.collect::<Vec<_>>()).expect("three");
    assert_eq!((requested.range, requested.read), (0..title.len.0, title.len.0));
    assert!(first.read > 0 && first.range == (0..other.len.0));
    assert_eq!(rest.range, first.read..other.len.0);
    let kept = fixture.catalogue.index(&other, &fixture.title("other.ts").1).await;
    let tactus_storage::catalogue::IndexState::Ready(kept) = kept.expect("an index") else {
        panic!("no index")
    };
    assert_eq!(kept.len(), other.len.0);
}
