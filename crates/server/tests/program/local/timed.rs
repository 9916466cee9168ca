//! Reads at moments: what is promised is kept, and what cannot be kept is refused at once.

use std::time::SystemTime;

use tactus_client::{Client, Completion, Nanos, ReadRequest, ReserveOptions, Title, now};

use super::*;

const MILLIS: Nanos = Nanos::from_millis(1);
/// Ten reads a second are eleven under way: a read may lie in two blocks, each of which is wanted
/// two cycles of 250 ms ahead.
const TEN_A_SECOND: ReserveOptions =
    ReserveOptions { interval: MILLIS.times(100), tolerance: Nanos(0), len: 4096 };
/// `ETIME`
const TOO_NEAR: i32 = 62;
/// `EBUSY`
const TOO_MANY: i32 = 16;
/// `EMSGSIZE`
const TOO_LONG: i32 = 90;
const EINVAL: i32 = 22;

fn submit(client: &Client, title: &Title, offset: u64, len: usize, when: MonoTime) {
    let buffer = client.buffer(len).expect("room");
    client.submit(ReadRequest::new(title, offset, buffer).at(when)).expect("room");
}

fn next(client: &Client) -> Completion {
    client.wait(Some(PATIENCE)).expect("a wait").expect("a completion")
}

#[test]
fn moments_of_a_reserve_are_kept_with_the_right_bytes() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let reserve = title.reserve(&TEN_A_SECOND).expect("room");
    // Within one block, and in two.
    let places = [reserve.block() * 3, reserve.block() - 2000, 0, reserve.block() * 2 - 1];
    let ahead = places.map(|offset| reserve.ahead(offset, 4096));
    assert_eq!(ahead[1], ahead[0].times(2));
    let first = now() + ahead[1] + MILLIS.times(200);
    let moments: Vec<_> = (0..8).map(|nth| first + MILLIS.times(100 * nth)).collect();
    for (nth, &when) in moments.iter().enumerate() {
        submit(&client, &title, places[nth % 4], 4096, when);
    }
    for (nth, &when) in moments.iter().enumerate() {
        let done = next(&client);
        let offset = places[nth % 4] as usize;
        assert!(done.bytes().expect("bytes") == &served.bytes[offset..offset + 4096], "{offset}");
        assert!(done.at >= when, "a moment too early");
    }
    let kept = ["yes", "no"].map(|kept| format!("tactus_local_moments_total{{kept=\"{kept}\"}}"));
    let counted = kept.map(|name| served.metric(&name)).iter().sum::<u64>();
    assert_eq!(counted, 8);
    drop(title);
    served.wait_until_nothing_is_promised();
}

#[test]
fn moments_that_cannot_be_kept_are_refused_at_once_and_take_nothing() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let reserve = title.reserve(&TEN_A_SECOND).expect("room");
    let refused = |len, when| {
        submit(&client, &title, 0, len, when);
        let done = next(&client);
        assert!(done.at < when, "not before its moment");
        done.result.expect_err("it cannot be kept").errno()
    };
    let ahead = reserve.ahead(0, 4096);
    let near = now() + Nanos(ahead.0 / 2);
    let far = now() + ahead + MILLIS.times(500);
    for _ in 0..20 {
        assert_eq!(refused(4096, near), TOO_NEAR);
        assert_eq!(refused(4097, far), TOO_LONG);
    }
    submit(&client, &title, 0, 4096, far);
    assert_eq!(refused(4096, far + MILLIS.times(99)), TOO_MANY);
    let done = next(&client);
    assert!(done.bytes().expect("bytes") == &served.bytes[..4096], "its moment is kept");
    // Reads without a moment do not belong to the reserve.
    let mut copy = vec![0; served.bytes.len()];
    assert_eq!(title.read_at(0, &mut copy), Ok(served.bytes.len()));

    let reserve = |options| title.reserve(&options).expect_err("it cannot be").errno();
    assert_eq!(reserve(TEN_A_SECOND), 17, "it has one");
    let other = client.open(OTHER).expect("a title");
    let reserve = |options| other.reserve(&options).expect_err("it cannot be").errno();
    assert_eq!(reserve(ReserveOptions { interval: Nanos(0), ..TEN_A_SECOND }), EINVAL);
    assert_eq!(reserve(ReserveOptions { tolerance: Nanos(u64::MAX), ..TEN_A_SECOND }), EINVAL);
    assert_eq!(reserve(ReserveOptions { len: 0, ..TEN_A_SECOND }), EINVAL);
    assert_eq!(reserve(ReserveOptions { len: u32::MAX, ..TEN_A_SECOND }), TOO_LONG);
    // More under way than a program may have.
    assert_eq!(reserve(TEN_A_SECOND), TOO_MANY);
}

#[test]
fn the_ledger_refuses_a_reserve_without_room_and_gets_it_back() {
    let _turn = turn();
    // A block takes 50 ms or more: the disk has time for one such reserve.
    let served = serve_from(&DISK_MODEL.replace("400 us", "200 ms"));
    let options = ReserveOptions { interval: MILLIS.times(200), ..TEN_A_SECOND };
    let clients = [(); 2].map(|()| Client::connect(&served.socket).expect("a connection"));
    let [first, second] = &clients;
    let title = first.open(TITLE).expect("a title");
    title.reserve(&options).expect("room");
    let other = second.open(OTHER).expect("a title");
    let refused = other.reserve(&options).expect_err("the disk has no time for another");
    assert_eq!(refused.errno(), TOO_MANY);
    assert!(refused.message().contains("the disk's cycle"), "{refused}");
    drop(title);
    let until = Instant::now() + PATIENCE;
    while let Err(error) = other.reserve(&options) {
        assert!(Instant::now() < until, "a closed title keeps its room: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // A program that ends with its title open.
    drop((other, clients));
    served.wait_until_nothing_is_promised();
}

#[test]
fn a_title_in_memory_is_read_at_near_moments() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let map = title.map().expect("room");
    // 100 a second would be too many from the disk.
    let options = ReserveOptions { interval: MILLIS.times(10), ..TEN_A_SECOND };
    let reserve = title.reserve(&options).expect("room");
    let ahead = reserve.ahead(0, 4096);
    assert!(ahead <= MILLIS.times(10), "{ahead}");
    let first = now() + ahead + MILLIS.times(100);
    for nth in 0..10 {
        submit(&client, &title, nth * 100_000, 4096, first + MILLIS.times(10 * nth));
    }
    for nth in 0..10 {
        let done = next(&client);
        let offset = nth * 100_000;
        assert!(done.bytes().expect("bytes") == &served.bytes[offset..offset + 4096], "{offset}");
    }
    // By the wall clock; and without a reserve nothing is refused.
    let unreserved = client.open(TITLE).expect("a title");
    for title in [&title, &unreserved] {
        let when = SystemTime::now() + Duration::from_millis(300);
        let buffer = client.buffer(100).expect("room");
        client.submit(ReadRequest::new(title, 5, buffer).at_wall(when)).expect("room");
        assert!(next(&client).bytes().expect("bytes") == &served.bytes[5..105]);
        let late = SystemTime::now().duration_since(when).expect("not before its moment");
        assert!(late < PATIENCE);
    }
    drop(map);
}
