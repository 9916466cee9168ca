//! Programs and a server: order, sleep, ends, and buffers that are still in use.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

mod fake;

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use tactus_client::protocol::Reply;
use tactus_client::{
    BitRate, Client, Completion, Error, Nanos, Options, PIECE, ReadRequest, Title, memory, now,
};
use tactus_core::local::{Answer, layout, processor_word};
use tactus_core::units::MonoTime;

use fake::{FakeServer, TITLE_LEN, TITLE_RATE, byte};

const PAGE: usize = 4096;

fn connect_with(data: usize, spin: Duration) -> (FakeServer, Client, Title) {
    let server = FakeServer::start();
    let options = Options { data: data as u64, spin, ..Options::default() };
    let client = Client::connect_with(&server.path, &options).unwrap();
    let title = client.open("/one").unwrap();
    (server, client, title)
}

fn connect() -> (FakeServer, Client, Title) {
    let options = Options::default();
    connect_with(options.data as usize, options.spin)
}

/// A client that never spins.
fn connect_sleepy() -> (FakeServer, Client, Title) {
    connect_with(4 << 20, Duration::ZERO)
}

fn expect(title: u32, offset: u64, bytes: &[u8]) {
    for (nth, got) in bytes.iter().enumerate() {
        assert_eq!(*got, byte(title, offset + nth as u64), "byte {nth} from {offset}");
    }
}

fn errno(error: &Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// All of the data can be taken at once: no request and no buffer holds a page.
fn expect_all_free(client: &Client, data: usize) {
    client.buffer(data).expect("no page is in use");
}

#[test]
fn names_are_opened_listed_and_refused_with_number_and_text() {
    let (_server, client, title) = connect();
    assert_eq!((title.len(), title.rate()), (TITLE_LEN, Some(BitRate(TITLE_RATE))));
    assert_eq!(client.stat("/one").unwrap(), *title.stat());
    let error = client.open("/missing").unwrap_err();
    assert_eq!(errno(&error), Errno::NOENT);
    assert_eq!(error.message(), "no title has the name /missing");
    assert_eq!(errno(&client.stat("/missing").unwrap_err()), Errno::NOENT);
    let names: Vec<_> = client.list("/").unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_dropped_title_is_closed_and_later_replies_are_still_those_of_their_requests() {
    let (server, client, title) = connect();
    drop(title);
    for _ in 0..3 {
        drop(client.open("/two").unwrap());
    }
    assert_eq!(client.list("/").unwrap().len(), 5);
    assert!(client.open("/missing").is_err());
    assert_eq!(server.control.closed.load(Ordering::SeqCst), 4);
}

#[test]
fn reads_in_place_have_the_bytes_of_their_requests_in_whatever_order_they_come() {
    let (server, client, title) = connect();
    let other = client.open("/other").unwrap();
    server.control.is_reversed.store(true, Ordering::SeqCst);
    server.control.hold(true);
    let mut requested = vec![];
    for nth in 0..50_u64 {
        let (title, handle) = if nth % 3 == 0 { (&other, 1) } else { (&title, 0) };
        let (offset, len) = (nth * 23_456, 1 + nth as usize * 311);
        let request = ReadRequest::new(title, offset, client.buffer(len).unwrap());
        requested.push((client.submit(request).unwrap(), handle, offset, len));
    }
    server.control.wait_for_requests(50);
    assert!(client.poll().is_none());
    server.control.hold(false);
    for (token, handle, offset, len) in requested.iter().rev() {
        let completion = client.wait(None).unwrap().unwrap();
        assert_eq!(completion.token, *token);
        let bytes = completion.bytes().unwrap();
        assert_eq!(bytes.len() as u64, (*len as u64).min(TITLE_LEN.saturating_sub(*offset)));
        assert_eq!(completion.buffer.len(), *len);
        expect(*handle, *offset, bytes);
    }
    assert!(client.wait(None).unwrap().is_none(), "nothing is under way");
    expect_all_free(&client, 4 << 20);
}

#[test]
fn copying_reads_of_any_length_have_every_byte_to_the_end_of_the_title() {
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        let (_server, client, title) = connect_with(1 << 20, spin);
        let mut into = vec![0; TITLE_LEN as usize + 10];
        for (offset, len) in [
            (0, 0),
            (0, 1),
            (4095, 2),
            (7, PIECE),
            (7, PIECE + 1),
            (0, TITLE_LEN as usize),
            (0, TITLE_LEN as usize + 10),
            (TITLE_LEN - 5, 3 * PIECE),
            (TITLE_LEN - PIECE as u64, 9 * PIECE / 2),
            (TITLE_LEN, 10),
            (TITLE_LEN + 1, 10),
            (1 << 62, 10),
        ] {
            let len = len.min(into.len());
            let expected = (len as u64).min(TITLE_LEN.saturating_sub(offset)) as usize;
            assert_eq!(title.read_at(offset, &mut into[..len]).unwrap(), expected);
            expect(0, offset, &into[..expected]);
        }
        // Pieces beyond the end may still be under way.
        while client.room() < 256 {
            assert!(client.poll().is_none());
        }
        expect_all_free(&client, 1 << 20);
    }
}

#[test]
fn a_copying_read_does_with_one_free_page_and_fails_without_any() {
    let (_server, client, title) = connect_with(64 * PAGE, Duration::ZERO);
    let most = client.buffer(63 * PAGE).unwrap();
    let mut into = vec![0; 100_000];
    assert_eq!(title.read_at(11, &mut into).unwrap(), into.len());
    expect(0, 11, &into);
    let last = client.buffer(1).unwrap();
    assert_eq!(errno(&title.read_at(0, &mut into).unwrap_err()), Errno::NOBUFS);
    assert_eq!(errno(&client.buffer(1).unwrap_err()), Errno::NOBUFS);
    drop((most, last));
    expect_all_free(&client, 64 * PAGE);
}

#[test]
fn more_requests_than_the_ring_has_are_refused_and_lose_nothing() {
    let (server, client, title) = connect();
    for _ in 0..3 {
        let taken = server.control.requests.load(Ordering::SeqCst);
        server.control.hold(true);
        for nth in 0..256 {
            assert_eq!(client.room(), 256 - nth);
            let buffer = client.buffer(PAGE).unwrap();
            client.submit(ReadRequest::new(&title, nth as u64, buffer)).unwrap();
        }
        for _ in 0..2 {
            let buffer = client.buffer(PAGE).unwrap();
            let refused = client.submit(ReadRequest::new(&title, 0, buffer)).unwrap_err();
            assert_eq!(errno(&refused), Errno::AGAIN);
        }
        assert_eq!(errno(&title.read_at(0, &mut [0]).unwrap_err()), Errno::AGAIN);
        server.control.wait_for_requests(taken + 256);
        server.control.hold(false);
        let mut count = 0;
        while let Some(completion) = client.wait(None).unwrap() {
            expect(0, count, completion.bytes().unwrap());
            count += 1;
        }
        assert_eq!(count, 256);
        expect_all_free(&client, 4 << 20);
    }
}

#[test]
fn a_client_that_sleeps_is_woken_each_time() {
    let (server, client, title) = connect_sleepy();
    for nth in 0..300_u64 {
        if nth % 10 == 0 {
            // Both sides sleep by now.
            std::thread::sleep(Duration::from_millis(3));
        }
        let buffer = client.buffer(100).unwrap();
        client.submit(ReadRequest::new(&title, nth, buffer)).unwrap();
        let completion = client.wait(None).unwrap().unwrap();
        expect(0, nth, completion.bytes().unwrap());
    }
    assert!(server.control.rings.load(Ordering::SeqCst) > 0, "it slept at least once");
}

#[test]
fn a_client_that_is_awake_is_never_rung_for() {
    let (server, client, title) = connect_with(4 << 20, Duration::from_secs(3600));
    for nth in 0..300_u64 {
        let buffer = client.buffer(100).unwrap();
        client.submit(ReadRequest::new(&title, nth, buffer)).unwrap();
        client.wait(None).unwrap().unwrap();
    }
    assert_eq!(server.control.rings.load(Ordering::SeqCst), 0);
}

/// However long it looks for answers elsewhere.
#[test]
fn a_client_on_the_processor_of_a_sleeping_server_sleeps_at_once_and_no_other_does() {
    let here = sched_getcpu();
    let mut only = CpuSet::new();
    only.set(here);
    sched_setaffinity(None, &only).unwrap();
    let (server, client, title) = connect_with(4 << 20, Duration::from_secs(3600));
    let rings_at = |processor: u32| {
        server.control.processor.store(processor_word(processor), Ordering::SeqCst);
        for nth in 0..100 {
            // The server sleeps by then, and has said where it is.
            std::thread::sleep(Duration::from_millis(3));
            let buffer = client.buffer(100).unwrap();
            client.submit(ReadRequest::new(&title, nth, buffer)).unwrap();
            expect(0, nth, client.wait(None).unwrap().unwrap().bytes().unwrap());
        }
        server.control.rings.swap(0, Ordering::SeqCst)
    };
    assert_eq!(rings_at(here as u32 + 1), 0);
    assert!(rings_at(here as u32) > 0);
    let told = &server.control.processor_of_client;
    while told.load(Ordering::SeqCst) != processor_word(here as u32) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_wait_ends_with_its_time_and_the_request_goes_on() {
    for spin in [Duration::ZERO, Duration::from_secs(3600)] {
        let (server, client, title) = connect_with(1 << 20, spin);
        server.control.hold(true);
        client.submit(ReadRequest::new(&title, 0, client.buffer(9).unwrap())).unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(5)] {
            assert!(client.wait(Some(timeout)).unwrap().is_none());
        }
        server.control.hold(false);
        let completion = client.wait(Some(Duration::MAX)).unwrap().unwrap();
        expect(0, 0, completion.bytes().unwrap());
    }
}

#[test]
fn a_request_takes_effect_at_its_time_and_not_before() {
    let (_server, client, title) = connect();
    let start = now();
    let late = start + Nanos::from_millis(30);
    let soon = start + Nanos::from_millis(10);
    for when in [late, soon] {
        let request = ReadRequest::new(&title, when.0, client.buffer(10).unwrap());
        client.submit(request.at(when)).unwrap();
    }
    for when in [soon, late] {
        let completion = client.wait(None).unwrap().unwrap();
        assert!(completion.at >= when && now() >= when);
    }
}

#[test]
fn the_end_of_the_server_ends_everything_that_waits() {
    for spin in [Duration::ZERO, Duration::from_secs(3600)] {
        let (mut server, client, title) = connect_with(4 << 20, spin);
        server.control.hold(true);
        client.submit(ReadRequest::new(&title, 0, client.buffer(9).unwrap())).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.wait(None).unwrap().unwrap());
            let copying = scope.spawn(|| title.read_at(0, &mut [0; 3 * PIECE]).unwrap_err());
            server.control.wait_for_requests(4);
            server.stop();
            let completion = waiting.join().unwrap();
            assert_eq!(errno(&completion.result.unwrap_err()), Errno::CONNRESET);
            assert_eq!(errno(&copying.join().unwrap()), Errno::CONNRESET);
        });
        assert!(client.wait(None).unwrap().is_none());
        let request = ReadRequest::new(&title, 0, client.buffer(9).unwrap());
        assert_eq!(errno(&client.submit(request).unwrap_err()), Errno::CONNRESET);
        assert_eq!(errno(&client.open("/one").unwrap_err()), Errno::CONNRESET);
        assert_eq!(errno(&client.arm().unwrap_err()), Errno::CONNRESET);
        expect_all_free(&client, 4 << 20);
    }
}

#[test]
fn a_program_that_only_polls_learns_of_the_end_of_the_server() {
    let (mut server, client, title) = connect();
    server.control.hold(true);
    client.submit(ReadRequest::new(&title, 0, client.buffer(9).unwrap())).unwrap();
    server.control.wait_for_requests(1);
    server.stop();
    let completion = loop {
        if let Some(completion) = client.poll() {
            break completion;
        }
    };
    assert_eq!(errno(&completion.result.unwrap_err()), Errno::CONNRESET);
}

#[test]
fn what_was_answered_before_the_end_counts() {
    let (mut server, client, title) = connect();
    client.submit(ReadRequest::new(&title, 5, client.buffer(9).unwrap())).unwrap();
    // Answered when the thread of the server has ended.
    server.control.wait_for_requests(1);
    server.stop();
    let completion = client.wait(None).unwrap().unwrap();
    expect(0, 5, completion.bytes().unwrap());
}

#[test]
fn pages_of_a_dropped_future_are_free_when_the_server_has_answered() {
    let (server, client, title) = connect_with(2 * PAGE, Duration::ZERO);
    server.control.hold(true);
    let buffer = client.buffer(2 * PAGE).unwrap();
    drop(client.read(ReadRequest::new(&title, 0, buffer)).unwrap());
    server.control.wait_for_requests(1);
    assert_eq!(errno(&client.buffer(1).unwrap_err()), Errno::NOBUFS, "the server may write there");
    server.control.hold(false);
    while client.room() < 256 {
        assert!(client.poll().is_none());
    }
    expect_all_free(&client, 2 * PAGE);
}

#[test]
fn titles_and_buffers_of_another_client_are_refused() {
    let (_server, client, title) = connect();
    let (_other_server, other, other_title) = connect();
    for (title, buffer) in
        [(&title, other.buffer(1).unwrap()), (&other_title, client.buffer(1).unwrap())]
    {
        let refused = client.submit(ReadRequest::new(title, 0, buffer)).unwrap_err();
        assert_eq!(errno(&refused), Errno::INVAL);
    }
    assert_eq!(errno(&client.buffer(0).unwrap_err()), Errno::INVAL);
    expect_all_free(&client, 4 << 20);
}

#[test]
fn an_answer_without_a_request_ends_the_connection_and_one_that_is_too_long_its_request() {
    let (server, client, title) = connect();
    server.control.hold(true);
    let submit =
        || client.submit(ReadRequest::new(&title, 0, client.buffer(9).unwrap())).unwrap().number();
    let (first, _second) = (submit(), submit());
    let push = |token, bytes| {
        let answer = Answer { token, result: Ok(bytes), at: MonoTime(1) };
        server.control.answers.lock().unwrap().push(answer.encode());
    };
    push(first, 10);
    let completion = client.wait(None).unwrap().unwrap();
    assert_eq!(completion.token.number(), first);
    assert_eq!(errno(&completion.result.unwrap_err()), Errno::PROTO);
    push(first, 9);
    let completion = client.wait(None).unwrap().unwrap();
    assert_eq!(errno(&completion.result.unwrap_err()), Errno::PROTO);
    let request = ReadRequest::new(&title, 0, client.buffer(9).unwrap());
    assert_eq!(errno(&client.submit(request).unwrap_err()), Errno::PROTO);
}

#[test]
fn several_threads_share_a_client_and_each_gets_its_own_bytes() {
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        let (_server, client, title) = connect_with(1 << 20, spin);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let title = &title;
                scope.spawn(move || {
                    let mut into = vec![0; 10_000];
                    for nth in 0..100 {
                        let offset = (thread * 17 + nth) * 1_009;
                        assert_eq!(title.read_at(offset, &mut into).unwrap(), into.len());
                        expect(0, offset, &into);
                    }
                });
            }
        });
        expect_all_free(&client, 1 << 20);
    }
}

/// Waits for the descriptor of a client as an event loop does, until there is something to poll.
fn wait_by_descriptor(client: &Client) {
    if client.arm().unwrap() {
        let fd = client.as_fd();
        let mut descriptors = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        poll(&mut descriptors, None).unwrap();
        client.disarm();
    }
}

#[test]
fn an_event_loop_gets_every_completion_and_sleeps_in_between() {
    let (server, client, title) = connect();
    let mut next = 0;
    let mut done = 0;
    while done < 300 {
        while next < 300 && client.room() > 250 {
            let buffer = client.buffer(64).unwrap();
            client.submit(ReadRequest::new(&title, next, buffer)).unwrap();
            next += 1;
        }
        while let Some(completion) = client.poll() {
            expect(0, done, completion.bytes().unwrap());
            done += 1;
        }
        if done < next {
            wait_by_descriptor(&client);
        }
    }
    assert!(server.control.rings.load(Ordering::SeqCst) > 0, "it slept at least once");
}

#[test]
fn threads_that_block_and_an_event_loop_do_not_take_each_others_wake_ups() {
    let (server, client, title) = connect_sleepy();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let blocking: Vec<_> = (0..2_u64)
            .map(|thread| {
                let title = &title;
                scope.spawn(move || {
                    let mut into = [0; 100];
                    for nth in 0..100 {
                        assert_eq!(title.read_at(thread + nth, &mut into).unwrap(), 100);
                        expect(0, thread + nth, &into);
                    }
                })
            })
            .collect();
        let looping = scope.spawn(|| {
            let mut nth = 0;
            while !is_over.load(Ordering::SeqCst) {
                let buffer = client.buffer(64).unwrap();
                client.submit(ReadRequest::new(&title, nth, buffer)).unwrap();
                let completion = loop {
                    match client.poll() {
                        Some(completion) => break completion,
                        None => wait_by_descriptor(&client),
                    }
                };
                expect(0, nth, completion.bytes().unwrap());
                nth += 1;
            }
        });
        for thread in blocking {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        looping.join().unwrap();
    });
    assert_eq!(client.room(), 256);
    drop(server);
}

#[test]
fn an_event_loop_learns_of_the_end_of_the_server() {
    let (mut server, client, title) = connect();
    server.control.hold(true);
    client.submit(ReadRequest::new(&title, 0, client.buffer(9).unwrap())).unwrap();
    server.control.wait_for_requests(1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            loop {
                if let Some(completion) = client.poll() {
                    break completion;
                }
                wait_by_descriptor(&client);
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        server.stop();
        let completion = waiting.join().unwrap();
        assert_eq!(errno(&completion.result.unwrap_err()), Errno::CONNRESET);
    });
}

/// Remembers that a future was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs futures to their ends, each polled only when it was woken.
fn run_all<F: Future<Output = Completion>>(client: &Client, futures: Vec<F>) -> Vec<Completion> {
    let mut tasks: Vec<_> = futures
        .into_iter()
        .map(|future| (Box::pin(future), Arc::new(Flag(AtomicBool::new(true)))))
        .collect();
    let mut completions = vec![];
    while !tasks.is_empty() {
        tasks.retain_mut(|(future, flag)| {
            if !flag.0.swap(false, Ordering::SeqCst) {
                return true;
            }
            let waker = Waker::from(Arc::clone(flag));
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(completion) => completions.push(completion),
                Poll::Pending => return true,
            }
            false
        });
        if !tasks.iter().any(|(_, flag)| flag.0.load(Ordering::SeqCst)) && !tasks.is_empty() {
            wait_by_descriptor(client);
        }
    }
    completions
}

#[test]
fn futures_are_woken_by_the_task_that_drives_the_descriptor() {
    let (server, client, title) = connect();
    for round in 0..20 {
        server.control.is_reversed.store(round % 2 == 0, Ordering::SeqCst);
        let futures: Vec<_> = (0..50)
            .map(|nth| {
                let buffer = client.buffer(PAGE).unwrap();
                client.read(ReadRequest::new(&title, nth * 100, buffer)).unwrap()
            })
            .collect();
        let tokens = run_all(&client, futures)
            .iter()
            .map(|completion| {
                assert_eq!(completion.bytes().unwrap().len(), PAGE);
                completion.token.number()
            })
            .collect::<std::collections::BTreeSet<_>>();
        assert_eq!(tokens.len(), 50);
    }
    assert!(client.poll().is_none(), "results of futures are not in the queue");
    expect_all_free(&client, 4 << 20);
}

#[test]
fn an_async_function_reads_block_after_block() {
    async fn sum(client: &Client, title: &Title) -> Completion {
        let mut buffer = client.buffer(1_000).unwrap();
        let mut offset = 0;
        loop {
            let completion = client.read(ReadRequest::new(title, offset, buffer)).unwrap().await;
            expect(0, offset, completion.bytes().unwrap());
            offset += 1_000;
            if offset == 50_000 {
                return completion;
            }
            buffer = completion.buffer;
        }
    }
    let (_server, client, title) = connect();
    let future = pin!(sum(&client, &title));
    assert_eq!(run_all(&client, vec![future]).len(), 1);
}

#[test]
fn a_request_in_place_allocates_nothing() {
    let (_server, client, title) = connect();
    let mut buffer = Some(client.buffer(PAGE).unwrap());
    let mut round = || {
        let request = ReadRequest::new(&title, 0, buffer.take().unwrap());
        client.submit(request).unwrap();
        let completion = client.wait(None).unwrap().unwrap();
        assert_eq!(completion.result, Ok(PAGE));
        drop(completion);
        buffer = Some(client.buffer(PAGE).unwrap());
    };
    round();
    let counted = allocation_counter::measure(|| (0..100).for_each(|_| round()));
    assert_eq!(counted.count_total, 0);
    let mut into = [0; 10_000];
    let counted = allocation_counter::measure(|| {
        assert_eq!(title.read_at(0, &mut into).unwrap(), into.len());
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn a_first_message_that_is_not_right_is_an_error() {
    let welcome = |version, memory| Reply::Welcome { version, memory, handles: 1, requests: 1 };
    let cases = [
        (welcome(1, 1 << 20), 0, Errno::PROTO),
        (welcome(1, 1 << 20), 1, Errno::PROTO),
        (welcome(1, 1 << 20), 3, Errno::PROTO),
        (welcome(2, 1 << 20), 2, Errno::PROTONOSUPPORT),
        (welcome(1, layout::DATA as u64), 2, Errno::PROTO),
        (welcome(1, (1 << 20) + 1), 2, Errno::INVAL),
        (Reply::Error { errno: 13, message: "no".to_owned() }, 0, Errno::ACCESS),
        (Reply::Closed, 0, Errno::PROTO),
    ];
    for (reply, descriptors, expected) in cases {
        let text = format!("{reply:?} with {descriptors} descriptors");
        let server = FakeServer::start_with(move |_| {
            let memory = || memory::create(1 << 20).unwrap();
            (reply, (0..descriptors).map(|_| memory()).collect(), None)
        });
        let Err(error) = Client::connect(&server.path) else { panic!("{text}") };
        assert_eq!(errno(&error), expected, "{text}");
    }
    let Err(error) = Client::connect("/nowhere/tactus.sock") else { panic!("no server") };
    assert_eq!(errno(&error), Errno::NOENT);
}

#[test]
fn a_server_that_does_not_answer_has_gone_when_the_patience_is_over() {
    let server = FakeServer::start();
    let patience = Some(Duration::from_millis(50));
    let options = Options { patience, ..Options::default() };
    let client = Client::connect_with(&server.path, &options).unwrap();
    let title = client.open("/one").unwrap();
    assert_eq!(client.space("/").map(|space| space.total), Ok(3));
    assert_eq!(errno(&client.open_file("/one").unwrap_err()), Errno::OPNOTSUPP);
    let begun = std::time::Instant::now();
    assert_eq!(errno(&client.space("/slow").unwrap_err()), Errno::TIMEDOUT);
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert!(client.stat("/one").is_err(), "a late reply belongs to no other request");
    assert_eq!(errno(&title.read_at(0, &mut [0; 10]).unwrap_err()), Errno::TIMEDOUT);
}
