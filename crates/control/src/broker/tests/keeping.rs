//! Titles that are kept in memory, and pins.

use super::*;
use crate::pins::{PinError, Pins};

/// Titles of so many blocks, which take no room on the disk.
fn long_titles<const N: usize>(fixture: &Fixture, blocks: [u64; N]) -> [Arc<OpenTitle>; N] {
    let catalogue = Catalogue::new(fixture.dir.path(), CatalogueRules::default());
    let catalogue = catalogue.expect("a volume");
    // Its number is that of the fixture's title.
    title_of(&catalogue, "/a.ts");
    blocks.map(|blocks| {
        write_long(fixture, &format!("{blocks}.ts"), blocks * 256 * KIB);
        title_of(&catalogue, &format!("/{blocks}.ts"))
    })
}

fn write_long(fixture: &Fixture, name: &str, len: u64) {
    let file = std::fs::File::create(fixture.dir.path().join(name)).expect("a title");
    file.set_len(len).expect("room");
}

fn pinned(fixture: &mut Fixture) -> StreamId {
    let Some(Command::Pin(pin)) = fixture.commands.pop() else { panic!("nothing is pinned") };
    fixture.report(Report::Pinned { stream: pin.stream });
    pin.stream
}

#[tokio::test]
async fn a_kept_title_stays_when_others_need_the_memory() {
    let mut fixture = Fixture::new(1000);
    fixture.broker.keep(&fixture.title).expect("room");
    let pin = pinned(&mut fixture);
    let mut grants = vec![];
    while let Ok(grant) = fixture.admit(RATE, Bytes(1 << 40)) {
        grants.push(grant);
    }
    let kept = fixture.broker.kept(fixture.title.id);
    assert!(kept.is_some_and(|kept| kept.is_complete && kept.viewers == 0), "{kept:?}");
    assert_eq!(fixture.commands.pop(), None);
    let before = fixture.used(Resource::Arena);
    fixture.broker.release(fixture.title.id);
    assert_eq!(fixture.commands.pop(), Some(Command::Stop(pin)));
    assert_eq!(fixture.used(Resource::Arena), before - 1);
    assert_eq!(fixture.broker.kept(fixture.title.id), None);
}

#[tokio::test]
async fn kept_titles_leave_a_quarter_of_the_arena() {
    let fixture = Fixture::new(10);
    let limit = Bytes(750 * 256 * KIB);
    let [fits, wide] = long_titles(&fixture, [700, 51]);
    fixture.broker.keep(&fits).expect("room");
    let needed = Bytes(751 * 256 * KIB);
    assert_eq!(fixture.broker.keep(&wide), Err(KeepFault::Limit { needed, limit }));
    assert_eq!(fixture.used(Resource::Arena), 700);
    fixture.broker.release(fits.id);
    fixture.broker.keep(&wide).expect("the other one has gone");
}

#[tokio::test]
async fn hot_titles_make_room_for_a_kept_one() {
    let mut fixture = Fixture::new(1000);
    let hot = fixture.pin_title();
    drop((hot.0, hot.1));
    let mut grants = vec![];
    while fixture.used(Resource::Arena) < 260 {
        grants.push(fixture.admit(RATE, Bytes(1 << 40)).expect("room"));
    }
    // It needs one block more than is free.
    let [kept] = long_titles(&fixture, [1001 - fixture.used(Resource::Arena)]);
    assert_eq!(fixture.broker.pinned_titles(), 1);
    let asked = fixture.broker.keep(&kept);
    assert_eq!((asked, fixture.broker.pinned_titles()), (Ok(()), 0));
}

#[tokio::test]
async fn a_title_that_is_watched_and_released_stays_until_its_memory_is_needed() {
    let mut fixture = Fixture::new(1000);
    let (_first, _second, _) = fixture.pin_title();
    fixture.broker.keep(&fixture.title).expect("it is in memory");
    let kept = fixture.broker.kept(fixture.title.id).expect("it is kept");
    assert_eq!((kept.is_complete, kept.viewers), (true, 2));
    fixture.broker.release(fixture.title.id);
    assert_eq!(fixture.broker.pinned_titles(), 1);
}

#[tokio::test]
async fn a_hot_title_that_is_deleted_is_given_up_when_its_viewers_have_left() {
    let mut fixture = Fixture::new(1000);
    let (first, second, pin) = fixture.pin_title();
    drop(first);
    std::fs::remove_file(fixture.dir.path().join("a.ts")).expect("a title");
    fixture.broker.forget_deleted();
    assert_eq!(fixture.broker.pinned_titles(), 1, "it has a viewer");
    drop(second);
    fixture.broker.forget_deleted();
    assert_eq!(fixture.commands.pop(), Some(Command::Stop(pin)));
    assert_eq!((fixture.broker.pinned_titles(), fixture.used(Resource::Arena)), (0, 0));
}

#[tokio::test]
async fn a_hot_title_that_is_there_stays_without_viewers() {
    let mut fixture = Fixture::new(1000);
    let (first, second, _) = fixture.pin_title();
    drop((first, second));
    fixture.broker.forget_deleted();
    assert_eq!(fixture.broker.pinned_titles(), 1);
    // As long as it is kept, who keeps it finds out that it is gone.
    fixture.broker.keep(&fixture.title).expect("it is in memory");
    std::fs::remove_file(fixture.dir.path().join("a.ts")).expect("a title");
    fixture.broker.forget_deleted();
    assert!(fixture.broker.kept(fixture.title.id).is_some());
}

#[tokio::test]
async fn a_kept_title_that_cannot_be_read_gives_its_memory_back() {
    let mut fixture = Fixture::new(10);
    fixture.broker.keep(&fixture.title).expect("room");
    let stream = pinned(&mut fixture);
    let outcome = Outcome::Unreadable { block: 0, errno: 5 };
    fixture.report(Report::Finished { stream, outcome, sent: Bytes(0) });
    fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    assert_eq!((fixture.used(Resource::Arena), fixture.broker.kept(fixture.title.id)), (0, None));
    assert_eq!(fixture.broker.keep(&fixture.title), Err(KeepFault::Damaged));
}

#[tokio::test]
async fn a_slow_disk_reads_no_title_that_is_only_to_be_kept() {
    let mut fixture = Fixture::new(10);
    let degradations = fixture.broker.shared.degradations.clone();
    degradations.set(VolumeId(0), DegradationLevel::Ahead);
    assert_eq!(fixture.broker.keep(&fixture.title), Err(KeepFault::SlowDisk));
    let pins = pins(&fixture, &[]);
    let problem = pins.add("a.ts").await.expect("it is tried again").problem;
    assert!(problem.is_some_and(|problem| problem.contains("slower")));
    assert_eq!(fixture.commands.pop(), None);
    degradations.set(VolumeId(0), DegradationLevel::Nothing);
    assert_eq!(pins.add("a.ts").await.map(|pin| pin.problem), Ok(None));
    pinned(&mut fixture);
    degradations.set(VolumeId(0), DegradationLevel::Ahead);
    assert_eq!(fixture.broker.keep(&fixture.title), Ok(()), "it is in memory");
}

/// Pins of the fixture's directory.
fn pins(fixture: &Fixture, configured: &[&str]) -> Pins {
    let catalogue = Catalogue::new(fixture.dir.path(), CatalogueRules::default());
    let configured: Vec<_> = configured.iter().map(ToString::to_string).collect();
    Pins::begin(&configured, &Arc::new(catalogue.expect("a volume")), &fixture.broker)
}

#[tokio::test]
async fn a_pinned_directory_covers_all_below_it_and_goes_as_a_whole() {
    let mut fixture = Fixture::new(10);
    std::fs::create_dir_all(fixture.dir.path().join("news/old")).expect("directories");
    for name in ["news/a b.ts", "news/old/b.ts"] {
        write_long(&fixture, name, 3 * 256 * KIB);
    }
    let pins = pins(&fixture, &[]);
    let status = pins.add("news").await.expect("room");
    assert_eq!((status.titles, status.bytes, status.titles_in_memory), (2, 6 * 256 * KIB, 0));
    assert_eq!(fixture.used(Resource::Arena), 6);
    pinned(&mut fixture);
    assert_eq!(pins.one("news").expect("a pin").titles_in_memory, 1);
    assert!(!pins.remove("new").await && pins.remove("news").await);
    // The title that the engine still reads is released as well.
    assert_eq!((fixture.used(Resource::Arena), pins.all()), (0, vec![]));
}

#[tokio::test]
async fn a_pin_that_does_not_fit_or_is_not_there_changes_nothing() {
    let fixture = Fixture::new(10);
    for name in ["a", "b"] {
        let dir = fixture.dir.path().join("wide");
        std::fs::create_dir_all(&dir).expect("a directory");
        write_long(&fixture, &format!("wide/{name}.ts"), 400 * 256 * KIB);
    }
    let pins = pins(&fixture, &[]);
    let wide = pins.add("wide").await;
    let is_beyond = matches!(wide, Err(PinError::Refused { fault: KeepFault::Limit { .. }, .. }));
    assert!(is_beyond, "{wide:?}");
    assert!(matches!(pins.add("none.ts").await, Err(PinError::NotFound(_))));
    assert_eq!((fixture.used(Resource::Arena), pins.all()), (0, vec![]));
}

#[tokio::test]
async fn a_new_version_takes_the_place_of_the_pinned_one() {
    let mut fixture = Fixture::new(10);
    let pins = pins(&fixture, &[]);
    pins.add("a.ts").await.expect("room");
    let old = pinned(&mut fixture);
    write_long(&fixture, "new", 2 * 256 * KIB);
    let dir = fixture.dir.path();
    std::fs::rename(dir.join("new"), dir.join("a.ts")).expect("a new version");
    assert_eq!(pins.add("a.ts").await.expect("room").bytes, 2 * 256 * KIB);
    assert_eq!(fixture.commands.pop(), Some(Command::Stop(old)));
    pinned(&mut fixture);
    assert_eq!(fixture.used(Resource::Arena), 2);
}

#[tokio::test]
async fn a_pinned_directory_that_gets_too_many_titles_keeps_those_that_it_has() {
    let mut fixture = Fixture::new(10);
    let dir = fixture.dir.path().join("news");
    std::fs::create_dir_all(&dir).expect("a directory");
    write_long(&fixture, "news/a.ts", 256 * KIB);
    let pins = pins(&fixture, &[]);
    pins.add("news").await.expect("room");
    pinned(&mut fixture);
    for number in 0..1001 {
        std::fs::File::create(dir.join(format!("{number}.ts"))).expect("a title");
    }
    let status = pins.add("news").await.expect("it is pinned");
    assert!(status.problem.is_some_and(|problem| problem.contains("more than 1000")));
    assert_eq!((status.titles_in_memory, fixture.commands.pop()), (1, None));
}

#[tokio::test]
async fn a_configured_pin_that_is_not_there_is_a_condition_until_it_comes() {
    let fixture = Fixture::new(10);
    let catalogue = Catalogue::new(fixture.dir.path(), CatalogueRules::default());
    let catalogue = Arc::new(catalogue.expect("a volume"));
    let pins = Pins::begin(&["/late.ts".into()], &catalogue, &fixture.broker);
    // Any addition compares all pins.
    pins.add("a.ts").await.expect("room");
    let said = catalogue.conditions().all();
    assert_eq!((said.len(), &*said[0].subject), (1, "/late.ts"));
    write_long(&fixture, "late.ts", 256 * KIB);
    pins.add("a.ts").await.expect("room");
    assert_eq!(catalogue.conditions().all(), []);
    let late = pins.one("late.ts").expect("a pin");
    assert!(late.is_configured && late.titles == 1, "{late:?}");
}
