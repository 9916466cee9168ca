//! The journal's bytes: whatever happens to them, only committed states are reported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::store::names::Precondition;
use crate::store::quotas::Principal;
use crate::store::sums::{SumsBuilder, SumsState};
use crate::store::{PlainMedium, Store, StoreOptions, recovery};

fn created(id: StoreId, len: Option<u64>) -> Record {
    Record::Created(Box::new(CreationRecord {
        id,
        principal: Principal::new("ann"),
        path: Some("a/b.ts".into()),
        precondition: Precondition::Match(vec!["\"1\"".into()]),
        len,
        metadata: b"filename YS50cw==".to_vec(),
        expires: u64::MAX,
    }))
}

type State = (SumsState, Vec<u32>, Option<String>);

/// Uploads that advance in turn, one group for each step, with every state of each upload.
struct History {
    bytes: Vec<u8>,
    /// For each group, where its last record ends and the state after it.
    groups: Vec<(usize, Table)>,
    states: BTreeMap<StoreId, Vec<State>>,
}

fn history(steps: &[(usize, usize)]) -> History {
    let ids: Vec<_> = (1..=4).map(|number| StoreId([number; 16])).collect();
    let mut sums: Vec<_> = ids.iter().map(|_| SumsBuilder::default()).collect();
    let mut history =
        History { bytes: Vec::new(), groups: Vec::new(), states: BTreeMap::default() };
    let mut table = Table::default();
    let mut number = 0;
    let mut commit = |record: Record, history: &mut History| {
        let mut body = Vec::new();
        record.write(&mut body);
        number += 1;
        let mut sectors = vec![0; (body.len() + HEAD).next_multiple_of(4096)];
        Group { journal: 77, number, body: &body }.write(&mut sectors);
        let end = history.bytes.len() + HEAD + body.len();
        history.bytes.extend(sectors);
        table.apply(record);
        history.groups.push((end, table.clone()));
        for (id, entry) in table.entries() {
            let state = (entry.mark, entry.units.clone(), entry.named.clone());
            history.states.entry(*id).or_default().push(state);
        }
    };
    for id in &ids {
        commit(created(*id, None), &mut history);
    }
    for &(who, len) in steps {
        let (id, sums) = (ids[who], &mut sums[who]);
        let from = sums.ended();
        sums.add(&vec![who as u8; len]);
        let units = sums.units_from(from).to_vec();
        let (mark, prefix, from) = (sums.mark(), sums.prefix(), from as u64);
        let advanced = WatermarkRecord { id, mark, prefix, from, units, expires: u64::MAX };
        commit(Record::Advanced(advanced), &mut history);
    }
    commit(Record::Named { id: ids[0], etag: "\"e\"".into() }, &mut history);
    commit(Record::Gone { id: ids[1] }, &mut history);
    history
}

fn steps() -> Vec<(usize, usize)> {
    (0..20).map(|at| (at % 4, 1 + at * 9001)).collect()
}

impl History {
    /// Every reported state of an upload must have been true at some time.
    fn judge(&self, bytes: &[u8]) {
        for (id, entry) in replay(bytes).table.entries() {
            let state = (entry.mark, entry.units.clone(), entry.named.clone());
            assert!(self.states[id].contains(&state), "{id} was never at {:?}", entry.mark);
        }
    }
}

#[test]
fn w8_a_journal_cut_at_any_byte_says_what_its_whole_groups_say() {
    let history = history(&steps());
    for len in 0..=history.bytes.len() {
        let whole = history.groups.iter().rev().find(|(end, _)| *end <= len);
        let expected = whole.map(|(_, table)| table.clone()).unwrap_or_default();
        assert_eq!(replay(&history.bytes[..len]).table, expected, "{len} bytes");
    }
}

#[test]
fn w8_a_flipped_bit_never_makes_an_offset_that_was_not() {
    let history = history(&steps());
    let mut bytes = history.bytes.clone();
    for bit in 0..bytes.len() * 8 {
        // Most of a sector is unused zeros: all heads and records, and some of the rest.
        if history.bytes[bit / 8] == 0 && bit % 61 != 0 {
            continue;
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
        history.judge(&bytes);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn sectors_of_an_older_journal_are_not_this_one() {
    let mut history = history(&steps());
    let mut older = vec![0; 4096];
    let mut body = Vec::new();
    Record::Gone { id: StoreId([3; 16]) }.write(&mut body);
    Group { journal: 76, number: 1_000, body: &body }.write(&mut older);
    history.bytes.extend(&older);
    let mut early = vec![0; 4096];
    Group { journal: 77, number: 2, body: &body }.write(&mut early);
    history.bytes.extend(&early);
    let replayed = replay(&history.bytes);
    assert_eq!(replayed.table, history.groups.last().unwrap().1);
    assert_eq!(replayed.skipped, 2);
}

fn record() -> impl Strategy<Value = Record> {
    let id = any::<[u8; 16]>().prop_map(StoreId);
    let precondition = prop_oneof![
        Just(Precondition::Any),
        Just(Precondition::CreateOnly),
        Just(Precondition::Exists),
        proptest::collection::vec(".{0,20}", 0..4).prop_map(Precondition::Match),
        any::<i64>().prop_map(Precondition::UnmodifiedSince),
        (proptest::collection::vec(".{0,20}", 0..4), any::<bool>(), any::<Option<i64>>()).prop_map(
            |(tags, exists, unmodified_since)| Precondition::Unless {
                tags,
                exists,
                unmodified_since
            }
        ),
    ];
    let created = (
        id.clone(),
        ".{0,30}",
        proptest::option::of(".{0,50}"),
        precondition,
        any::<Option<u64>>(),
        any::<Vec<u8>>(),
        any::<u64>(),
    );
    let mark = any::<(u64, u32, u32)>();
    let mark = mark.prop_map(|(len, whole, partial)| SumsState { len, whole, partial });
    let advanced = (id.clone(), mark, any::<u32>(), any::<u64>(), any::<Vec<u32>>(), any::<u64>());
    prop_oneof![
        created.prop_map(|(id, who, path, precondition, len, metadata, expires)| {
            let principal = Principal::new(&who);
            let created =
                CreationRecord { id, principal, path, precondition, len, metadata, expires };
            Record::Created(Box::new(created))
        }),
        advanced.prop_map(|(id, mark, prefix, from, units, expires)| {
            Record::Advanced(WatermarkRecord { id, mark, prefix, from, units, expires })
        }),
        (id.clone(), any::<u64>()).prop_map(|(id, len)| Record::Length { id, len }),
        (id.clone(), ".{0,40}").prop_map(|(id, etag)| Record::Named { id, etag }),
        id.prop_map(|id| Record::Gone { id }),
    ]
}

proptest! {
    #[test]
    fn records_come_back(records in proptest::collection::vec(record(), 0..8)) {
        let mut bytes = Vec::new();
        for record in &records {
            record.write(&mut bytes);
        }
        prop_assert_eq!(Reader::new(&bytes).records().collect::<Vec<_>>(), records);
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..9000),
        records in proptest::collection::vec(record(), 0..8),
        number in any::<u64>(),
    ) {
        replay(&bytes);
        drop(Reader::new(&bytes).records().collect::<Vec<_>>());
        // Records that the writer never produces, in a group with a valid checksum, are harmless
        // too.
        let mut body = Vec::new();
        for record in &records {
            record.write(&mut body);
        }
        body.extend(&bytes);
        let mut sectors = vec![0; (body.len() + HEAD).next_multiple_of(4096)];
        Group { journal: 1, number, body: &body }.write(&mut sectors);
        replay(&sectors);
    }

    #[test]
    fn what_a_table_writes_reads_as_the_same_table(
        steps in proptest::collection::vec((0..4_usize, 0..200_000_usize), 0..12)
    ) {
        let (_, table) = history(&steps).groups.pop().unwrap();
        let mut again = Table::default();
        for record in table.records() {
            again.apply(record);
        }
        prop_assert_eq!(again, table);
    }

    #[test]
    fn a_long_record_says_the_same_in_parts(
        before in any::<u32>(), units in 0..3 * record::UNITS_MAX, from in 0..10_u64
    ) {
        let units: Vec<u32> = (0..units as u32).collect();
        let sum = units.iter().fold(before, |sum, unit| {
            tactus_core::sums::combine(sum, *unit, tactus_core::sums::UNIT)
        });
        let len = (from + units.len() as u64) * 65_536 + 5;
        let mark = SumsState { len, whole: 7, partial: 8 };
        let id = StoreId([1; 16]);
        let all = WatermarkRecord { id, mark, prefix: sum, from, units: units.clone(), expires: 9 };
        let parts = all.split(before);
        let mut next = from;
        for part in &parts {
            prop_assert!(part.units.len() <= record::UNITS_MAX);
            prop_assert_eq!(part.from, next);
            next += part.units.len() as u64;
        }
        let last = parts.last().unwrap();
        prop_assert_eq!((last.mark, last.prefix), (mark, sum));
        for (part, following) in parts.iter().zip(&parts[1..]) {
            prop_assert_eq!(part.mark.len, following.from * 65_536);
            let rest = following.units.iter().fold(part.prefix, |sum, unit| {
                tactus_core::sums::combine(sum, *unit, tactus_core::sums::UNIT)
            });
            prop_assert_eq!(rest, following.prefix);
        }
        let joined: Vec<u32> = parts.into_iter().flat_map(|part| part.units).collect();
        prop_assert_eq!(joined, units);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w11_a_long_journal_is_replaced_and_says_the_same() {
    let program = std::env::current_exe().unwrap();
    let builder = tempfile::Builder::new().prefix("store-").tempdir_in(program.parent().unwrap());
    let house = builder.unwrap();
    let medium: Arc<dyn Medium> = Arc::new(PlainMedium::default());
    let names = Arc::new(recovery::prepare(house.path()).unwrap());
    let begin = Journal::begin(Arc::clone(&names), medium, Table::default());
    let (journal, keeper) = begin.await.unwrap();
    let keeper = tokio::spawn(keeper);
    let inode = || rustix::fs::stat(house.path().join(".tactus/journal")).unwrap().st_ino;
    let mut journals = vec![inode()];
    let id = StoreId([7; 16]);
    journal.commit(created(id, None)).await.unwrap();
    let mut sums = SumsBuilder::default();
    for _ in 0..100 {
        let from = sums.ended();
        sums.add(&[5; 10_000]);
        let units = sums.units_from(from).to_vec();
        let (mark, prefix, from) = (sums.mark(), sums.prefix(), from as u64);
        let advanced = WatermarkRecord { id, mark, prefix, from, units, expires: u64::MAX };
        journal.commit(Record::Advanced(advanced)).await.unwrap();
        // Every later start finds the committed records.
        let found = read(&names.own.top).unwrap();
        assert_eq!(found.skipped, 0);
        assert!(found.table == journal.look(Table::clone));
        if inode() != *journals.last().unwrap() {
            journals.push(inode());
        }
    }
    assert!(journals.len() > 4, "{} journals", journals.len());
    drop(journal);
    keeper.await.unwrap();
    let len = std::fs::metadata(house.path().join(".tactus/journal")).unwrap().len();
    assert!(len <= LENGTH_MIN + SECTOR, "{len}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_volume_with_ten_thousand_open_uploads_is_ready_within_five_seconds() {
    const UPLOADS: u32 = 10_000;
    let program = std::env::current_exe().unwrap();
    let builder = tempfile::Builder::new().prefix("store-").tempdir_in(program.parent().unwrap());
    let house = builder.unwrap();
    let medium: Arc<dyn Medium> = Arc::new(PlainMedium::default());
    let names = Arc::new(recovery::prepare(house.path()).unwrap());
    let mut table = Table::default();
    for number in 0..UPLOADS {
        let mut id = StoreId([0; 16]);
        id.0[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
        table.apply(created(id, Some(1 << 20)));
        let mut sums = SumsBuilder::default();
        sums.add(&[1; 70_000]);
        let units = sums.units_from(0).to_vec();
        let (mark, prefix) = (sums.mark(), sums.prefix());
        let expires = u64::MAX;
        table.apply(Record::Advanced(WatermarkRecord {
            id,
            mark,
            prefix,
            from: 0,
            units,
            expires,
        }));
        // All of the files are ahead of the journal.
        std::fs::write(house.path().join(format!(".tactus/uploads/{id}")), [1; 71_000]).unwrap();
    }
    let (journal, keeper) =
        Journal::begin(Arc::clone(&names), Arc::clone(&medium), table.clone()).await.unwrap();
    drop((journal, keeper, names));
    let begun = Instant::now();
    let (store, opened) = Store::open(house.path(), medium, StoreOptions::default()).await.unwrap();
    let took = begun.elapsed();
    assert!(took <= Duration::from_secs(5), "{took:?}");
    assert_eq!((opened.uploads, opened.cut), (UPLOADS as usize, UPLOADS as usize));
    let said = store.inner.journal.look(Table::clone);
    assert!(said == table, "every upload is where it was");
    println!("{opened}");
    store.close().await;
}
