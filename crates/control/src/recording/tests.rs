//! Recordings against their promises, on a real file system; a gate plays the time of the disk.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use tactus_core::cost::{DiskLimits, SendCost, WindowLimits, WriteLimits};
use tactus_core::disk_model::DiskModel;
use tactus_core::ledger::{Ledger, Limits, Resource};
use tactus_core::ports::Waker;
use tactus_core::units::{Bytes, KIB, Nanos, SECOND};
use tactus_ring::spsc::ring;
use tactus_storage::store::{
    Extent, Flush, Medium, Pending, PendingIo, PlainMedium, StoreOptions, Verdict, WriteSlot,
    verify,
};
use tokio::sync::watch;

use super::*;
use crate::broker::{BrokerParts, BrokerRules, DatagramCost, Degradations, ServerNumbers};

struct Silent;

impl Waker for Silent {
    fn wake(&self) {}
}

const PLACE: u64 = 64 * KIB;
/// Seven transport packets: a usual datagram.
const PACKET: usize = 1316;

/// A medium whose writes land only while the gate is open.
#[derive(Clone)]
struct Gated {
    plain: PlainMedium,
    open: watch::Receiver<bool>,
    /// Slots that uploads do not need.
    spare: Arc<AtomicUsize>,
}

struct GatedPlace(Box<dyn WriteSlot>, watch::Receiver<bool>);

impl WriteSlot for GatedPlace {
    fn memory(&mut self) -> &mut [u8] {
        self.0.memory()
    }

    fn write(self: Box<Self>, to: Extent) -> PendingIo {
        let Self(place, mut open) = *self;
        let write = tokio::spawn(async move {
            open.wait_for(|open| *open).await.expect("the gate is there");
            place.write(to).await
        });
        Box::pin(async move { write.await.expect("no panic") })
    }
}

impl Medium for Gated {
    fn slot_size(&self) -> usize {
        self.plain.slot_size()
    }

    fn places_each(&self) -> usize {
        usize::MAX
    }

    fn reserve(&self, what: Reserve) -> Pending<Arc<dyn Medium>> {
        let plain = PlainMedium::new(what.places as usize, PLACE as usize);
        let (own, promise) = (Self { plain, ..self.clone() }, what.promise);
        Box::pin(async move { Arc::new(GatedReservation(own, promise)) as Arc<dyn Medium> })
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        let (place, open) = (self.plain.place(), self.open.clone());
        Box::pin(async move { Box::new(GatedPlace(place.await, open)) as Box<dyn WriteSlot> })
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        self.plain.sync(file, what)
    }
}

/// Holds the reservation as long as the slots exist.
struct GatedReservation(Gated, Arc<dyn std::any::Any + Send + Sync>);

impl Medium for GatedReservation {
    fn slot_size(&self) -> usize {
        self.0.slot_size()
    }

    fn places_each(&self) -> usize {
        self.0.places_each()
    }

    fn reserve(&self, what: Reserve) -> Pending<Arc<dyn Medium>> {
        assert!(Arc::strong_count(&self.1) > 0);
        self.0.reserve(what)
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        self.0.place()
    }

    fn spare_now(&self) -> Option<Box<dyn WriteSlot>> {
        let one_less = |left: usize| left.checked_sub(1);
        self.0.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok()?;
        PlainMedium::new(2, PLACE as usize).place_now()
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        self.0.sync(file, what)
    }
}

struct Fixture {
    recorder: Recorder,
    broker: Broker,
    gate: watch::Sender<bool>,
    spare: Arc<AtomicUsize>,
    directory: tempfile::TempDir,
    store: Store,
}

fn broker() -> Broker {
    let disk = DiskLimits {
        model: DiskModel {
            read_mib: Nanos(1_000_000),
            write_mib: Nanos(1_000_000),
            ..DiskModel::SLOWEST
        },
        cycle: SECOND,
        share_thousandths: 900,
        block: Bytes(PLACE),
        blocks: 1000,
        ahead: 0,
        windows: WindowLimits::NONE,
        server: 0,
        read_per_mib: Nanos(0),
        deliver_block: Nanos(0),
        per_write: Nanos(0),
        write_path: Some(WriteLimits { places: 400, place: Bytes(PLACE), floor_thousandths: 50 }),
    };
    let limits = Limits {
        disks: vec![disk],
        link: BitRate(1 << 40),
        datagrams: None,
        classes: vec![],
        cores: vec![SECOND],
        streams: 10,
    };
    let (to_engine, _) = ring(64);
    let rules = BrokerRules {
        servers: ServerNumbers { deliveries: vec![0], links: vec![0], packets: vec![0], file: 0 },
        cpus: vec![0],
        downloads_max: 2,
        download_share: crate::settings::ClientShare::Fair,
        retry_after: Duration::from_secs(1),
        start_burst: Nanos(0),
        behind_max: Nanos(0),
        datagram: DatagramCost::each(Nanos::from_micros(4)),
        sendfile: vec![false],
        connections: vec![SendCost { per_send: Nanos(0), per_packet: Nanos(0), per_mib: Nanos(0) }],
        classes: vec![],
    };
    Broker::new(BrokerParts {
        ledger: Ledger::new(limits),
        commands: vec![to_engine],
        class_changes: None,
        waker: Box::new(Silent),
        rules,
        counters: Arc::default(),
        degradations: Degradations::default(),
    })
}

impl Fixture {
    async fn new() -> Self {
        let program = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let (gate, open) = watch::channel(true);
        let spare = Arc::<AtomicUsize>::default();
        let plain = PlainMedium::new(8, PLACE as usize);
        let medium = Gated { plain, open, spare: Arc::clone(&spare) };
        let opening = Store::open(directory.path(), Arc::new(medium), StoreOptions::default());
        let (store, _) = opening.await.unwrap();
        let broker = broker();
        let recorder = Recorder::new(broker.clone(), vec![Some(store.clone())].into());
        Self { recorder, broker, gate, spare, directory, store }
    }

    async fn begin(&self, path: &str, rate: u64) -> Result<Recording, BeginError> {
        self.recorder.begin(begin(path, rate)).await
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.directory.path().join(path)).unwrap()
    }

    fn is_whole(&self, path: &str) {
        let verdict = verify(self.directory.path(), path, &mut |_| {}).unwrap();
        assert!(matches!(verdict, Verdict::Whole(_)), "{path}: {verdict:?}");
    }

    fn used(&self) -> Vec<u64> {
        self.broker.levels().iter().map(|level| level.used).collect()
    }
}

fn begin(path: &str, rate: u64) -> Begin {
    Begin {
        volume: VolumeId(0),
        path: path.to_owned(),
        rate: BitRate(rate),
        precondition: Precondition::Any,
        principal: Principal::new("ann"),
    }
}

/// The packet with this number: all are different.
fn packet(number: u32) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(PACKET).collect()
}

/// Waits for a required event; the case fails with its message.
async fn until(what: &str, recording: &mut Recording, holds: impl Fn(&Recording) -> bool) {
    for _ in 0..2000 {
        if holds(recording) {
            return;
        }
        tokio::select! {
            error = recording.tend() => panic!("{error}"),
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
        }
    }
    panic!("waited in vain until {what}: {:?}", recording.figures());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_is_a_title_byte_by_byte_and_gives_its_promise_back() {
    let fixture = Fixture::new().await;
    let before = fixture.used();
    let mut recording = fixture.begin("a/live.ts", 50_000_000).await.unwrap();
    assert_ne!(fixture.used(), before);
    let mut all = Vec::new();
    for number in 0..1000 {
        while recording.write(&packet(number)).unwrap() != WriteOutcome::All {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        all.extend(packet(number));
    }
    let finished = recording.finish().await.unwrap().unwrap();
    assert!(finished.created && finished.len == Bytes(all.len() as u64));
    assert!(fixture.read("a/live.ts") == all);
    fixture.is_whole("a/live.ts");
    assert_eq!(fixture.used(), before);
    assert_eq!((fixture.recorder.running().len(), fixture.store.usage().uploads), (0, 0));
    assert!(fixture.store.left(b"").is_empty(), "its entry is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_that_does_not_fit_is_refused_by_name_and_changes_nothing() {
    let fixture = Fixture::new().await;
    let mut running = Vec::new();
    let refusal = loop {
        let (before, titles) = (fixture.used(), fixture.store.usage());
        let path = format!("{}.ts", running.len());
        match fixture.begin(&path, 20_000_000).await {
            Ok(recording) => running.push(recording),
            Err(BeginError::Refused(refusal)) => {
                assert_eq!((fixture.used(), fixture.store.usage()), (before, titles));
                break refusal;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(running.len() > 1 && refusal.message.contains("a recording of"), "{refusal}");
    assert!(matches!(refusal.resource, Resource::Disk | Resource::WriteShare), "{refusal}");
    // Ending one makes room for one.
    running.pop().unwrap().finish().await.unwrap();
    fixture.begin("again.ts", 20_000_000).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_stalls_costs_whole_packets_that_are_counted_and_no_more_memory() {
    let fixture = Fixture::new().await;
    let mut recording = fixture.begin("live.ts", 50_000_000).await.unwrap();
    fixture.gate.send_replace(false);
    let (mut taken, mut lost) = (Vec::new(), 0u64);
    let mut number = 0;
    while lost < 100 {
        match recording.write(&packet(number)).unwrap() {
            WriteOutcome::All => taken.extend(packet(number)),
            WriteOutcome::Lost(LossKind::Disk) => lost += 1,
            // The source does not wait for the rate: early bytes are lost, too.
            WriteOutcome::Lost(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        number += 1;
    }
    // Only its slots and one packet are in memory.
    let places = (taken.len() as u64).div_ceil(PLACE);
    let levels = fixture.broker.levels();
    let promised = levels.iter().find(|level| level.resource == Resource::WriteShare).unwrap();
    assert!(places <= promised.used + 1, "{places} places of {promised:?}");
    fixture.gate.send_replace(true);
    let mut goes_on = false;
    for _ in 0..2000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if recording.write(&packet(number)).unwrap() == WriteOutcome::All {
            taken.extend(packet(number));
            goes_on = true;
            break;
        }
        number += 1;
    }
    assert!(goes_on, "the disk is back");
    let [disk, ..] = recording.figures().lost;
    assert!(disk.gaps >= 1 && disk.bytes >= lost * PACKET as u64, "{disk:?}");
    let totals = fixture.recorder.totals(VolumeId(0));
    assert_eq!((totals.running, totals.lost[0]), (1, disk));
    recording.finish().await.unwrap();
    assert!(fixture.read("live.ts") == taken, "only whole packets are missing");
    fixture.is_whole("live.ts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_the_rate_is_lost_and_counted_and_nobody_else_s_time_is_taken() {
    let fixture = Fixture::new().await;
    let mut recording = fixture.begin("live.ts", 1_000_000).await.unwrap();
    let begun = Instant::now();
    let mut taken = 0;
    for number in 0..3000 {
        if recording.write(&packet(number)).unwrap() == WriteOutcome::All {
            taken += PACKET as u64;
        }
    }
    let may = recording.promised.bytes_in(Nanos(begun.elapsed().as_nanos() as u64)).0;
    assert!(taken <= may + 2 * PIECE_MAX as u64 && taken > 0, "{taken} of {may}");
    let [_, rate, _] = recording.figures().lost;
    assert_eq!(rate.bytes, 3000 * PACKET as u64 - taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_slowly_it_comes_it_is_durable_after_seconds_and_stays_after_a_crash() {
    let fixture = Fixture::new().await;
    let mut recording = fixture.begin("slow.ts", 64_000).await.unwrap();
    let mut all: Vec<u8> = Vec::new();
    for (number, len) in [(1, PACKET), (2, 7), (3, PACKET)] {
        let bytes = &packet(number)[..len];
        assert_eq!(recording.write(bytes).unwrap(), WriteOutcome::All);
        all.extend(bytes);
        let len = all.len() as u64;
        until("it is durable", &mut recording, |one| one.figures().durable == Bytes(len)).await;
    }
    // A power failure: the restart finds what is on the disk.
    let after = copy(fixture.directory.path());
    let medium = Arc::new(PlainMedium::new(4, PLACE as usize));
    let opening = Store::open(after.path(), medium, StoreOptions::default());
    let (store, _) = opening.await.unwrap();
    Recorder::new(broker(), vec![Some(store.clone())].into()).finish_left();
    let title = after.path().join("slow.ts");
    for _ in 0..1000 {
        if title.exists() && store.left(MARK).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(std::fs::read(title).unwrap() == all);
    let verdict = verify(after.path(), "slow.ts", &mut |_| {}).unwrap();
    assert_eq!(verdict, Verdict::Whole(Bytes(all.len() as u64)));
    store.close().await;
}

/// The directory after a crash: the journal first, which never runs ahead of the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p06_received_bytes_are_durable_within_seconds_without_further_bytes() {
    let fixture = Fixture::new().await;
    let mut recording = fixture.begin("live.ts", 8_000_000).await.unwrap();
    let mut len = 0;
    for number in 0..500 {
        // Packets refused by the rate limit are sent again.
        while recording.write(&packet(number)).unwrap() != WriteOutcome::All {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        len += PACKET as u64;
    }
    let last = Instant::now();
    until("it is durable", &mut recording, |one| one.figures().durable == Bytes(len)).await;
    assert!(last.elapsed() < Duration::from_secs(5), "{:?}", last.elapsed());
    recording.finish().await.unwrap();
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir_in(from.parent().unwrap()).unwrap();
    let own = to.path().join(".tactus");
    for directory in ["", "uploads", "stage", "trash", "sums"] {
        std::fs::create_dir_all(own.join(directory)).unwrap();
    }
    std::fs::copy(from.join(".tactus/journal"), own.join("journal")).unwrap();
    for entry in std::fs::read_dir(from.join(".tactus/uploads")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), own.join("uploads").join(entry.file_name())).unwrap();
    }
    to
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_file_begins_before_the_last_one_ends_with_the_same_promise() {
    let fixture = Fixture::new().await;
    let mut first = fixture.begin("1.ts", 50_000_000).await.unwrap();
    let promised = fixture.used();
    assert_eq!(first.write(&packet(1)).unwrap(), WriteOutcome::All);
    let mut second = first.successor("2.ts".into(), Precondition::CreateOnly).await.unwrap();
    assert_eq!(fixture.used(), promised);
    assert_eq!(first.write(&packet(2)).unwrap(), WriteOutcome::All);
    assert_eq!(second.write(&packet(3)).unwrap(), WriteOutcome::All);
    first.finish().await.unwrap();
    assert_eq!(fixture.used(), promised, "the second one has it still");
    assert_eq!(second.write(&packet(4)).unwrap(), WriteOutcome::All);
    drop(second);
    for _ in 0..1000 {
        if fixture.recorder.running().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(fixture.read("1.ts") == [packet(1), packet(2)].concat());
    assert!(fixture.read("2.ts") == [packet(3), packet(4)].concat(), "dropped is finished");
    assert!(fixture.used().iter().all(|&used| used == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_to_which_nothing_came_leaves_nothing() {
    let fixture = Fixture::new().await;
    let recording = fixture.begin("none.ts", 1_000_000).await.unwrap();
    assert!(recording.finish().await.unwrap().is_none());
    assert!(!fixture.directory.path().join("none.ts").exists());
    assert_eq!(fixture.store.usage().uploads, 0);
    assert!(fixture.used().iter().all(|&used| used == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_come_behind_catches_up_in_places_that_uploads_do_not_need() {
    let fixture = Fixture::new().await;
    fixture.spare.store(20, Ordering::Relaxed);
    // At its rate it would take two minutes.
    let all: Vec<u8> = (0..800).flat_map(packet).collect();
    let mut recording = fixture.begin("late.ts", 64_000).await.unwrap();
    let catch_up = async {
        let mut left = &all[..];
        while !left.is_empty() {
            let space = recording.space().await.unwrap();
            let count = space.len().min(left.len());
            space[..count].copy_from_slice(&left[..count]);
            recording.advance(count);
            left = &left[count..];
        }
    };
    tokio::time::timeout(Duration::from_secs(60), catch_up).await.expect("there is room for it");
    let spare = 20 - fixture.spare.load(Ordering::Relaxed);
    assert!((10..=16).contains(&spare), "none is taken that is not needed: {spare}");
    recording.finish().await.unwrap();
    assert!(fixture.read("late.ts") == all);
    fixture.is_whole("late.ts");
}
