//! A server moves from one sleeping core to another by orders of a third thread, in every
//! interleaving: the threads of `engine::migration`, without what the servers do. Two owners show
//! as concurrent accesses, a lost order or wake-up as a deadlock; loom reports both.

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;
use crate::spsc::{Consumer, Producer, ring};
use crate::token::Token;

/// Where a thread sleeps: a token and the behaviour of an eventfd.
struct Event {
    token: Token,
    count: Mutex<u32>,
    changed: Condvar,
}

impl Event {
    fn new() -> Arc<Self> {
        let (token, count, changed) = (Token::new(), Mutex::new(0), Condvar::new());
        Arc::new(Self { token, count, changed })
    }

    fn wake(&self) {
        if self.token.wake() {
            *self.count.lock().unwrap() += 1;
            self.changed.notify_one();
        }
    }

    fn sleep(&self) {
        if self.token.park() {
            let mut count = self.count.lock().unwrap();
            while *count == 0 {
                count = self.changed.wait(count).unwrap();
            }
            *count = 0;
            drop(count);
            assert!(self.token.unpark(), "an event without a call");
        }
    }
}

/// Counts its polls in a cell that loom watches.
struct Server(UnsafeCell<u32>);

// SAFETY: loom reports every access that another thread's access does not happen before.
unsafe impl Send for Server {}

impl Server {
    fn poll(&self) -> u32 {
        // SAFETY: as above.
        self.0.with_mut(|polls| unsafe {
            *polls += 1;
            *polls
        })
    }
}

/// What the threads share.
#[derive(Clone)]
struct Scene {
    way: Arc<HandOver<Box<Server>>>,
    old: Arc<Event>,
    new: Arc<Event>,
    control: Arc<Event>,
}

/// The old core: polls the server in each turn, and gives it up when the new core is awake.
fn leave(scene: &Scene, mut orders: Consumer<()>) {
    let mut server = Box::new(Server(UnsafeCell::new(0)));
    let mut is_leaving = false;
    loop {
        is_leaving |= orders.pop().is_some();
        if is_leaving {
            match scene.way.give(server) {
                Ok(()) => return scene.new.wake(),
                Err(kept) => server = kept,
            }
        }
        server.poll();
        scene.old.sleep();
    }
}

/// The new core: announces itself, and polls the server when it has come. If it `works`, it
/// withdraws for a moment.
fn arrive(scene: &Scene, mut orders: Consumer<()>, works: bool) -> u32 {
    loop {
        if orders.pop().is_some() {
            scene.way.expect();
            scene.old.wake();
            if works && scene.way.withdraw() {
                scene.way.expect();
                scene.old.wake();
            }
        }
        if let Some(server) = scene.way.take() {
            let polls = server.poll();
            scene.control.wake();
            return polls;
        }
        scene.new.sleep();
    }
}

fn order(to: &mut Producer<()>, core: &Event) {
    to.push(()).expect("there is room for one order");
    core.wake();
}

#[test]
fn a_server_that_moves_has_one_owner_and_arrives() {
    move_server(false);
}

#[test]
fn a_server_arrives_at_a_core_that_withdraws_for_work_of_its_own() {
    move_server(true);
}

fn move_server(works: bool) {
    let mut model = loom::model::Builder::new();
    // Four threads at three tokens take too long without a bound. A lost wake-up needs one
    // preemption, two owners at most two.
    model.preemption_bound = Some(2);
    model.check(move || {
        let way = Arc::new(HandOver::new());
        let scene = Scene { way, old: Event::new(), new: Event::new(), control: Event::new() };
        let ((mut to_old, of_old), (mut to_new, of_new)) = (ring(1), ring(1));
        let (at_old, at_new) = (scene.clone(), scene.clone());
        let leaving = thread::spawn(move || leave(&at_old, of_old));
        let arriving = thread::spawn(move || arrive(&at_new, of_new, works));
        order(&mut to_new, &scene.new);
        order(&mut to_old, &scene.old);
        scene.control.sleep();
        leaving.join().unwrap();
        assert!(arriving.join().unwrap() >= 1);
    });
}

#[test]
fn a_value_is_taken_once_by_two_takers() {
    loom::model(|| {
        let way = Arc::new(HandOver::new());
        way.expect();
        let other = Arc::clone(&way);
        let taking = thread::spawn(move || other.take().is_some());
        assert_eq!(way.give(Box::new(1)), Ok(()));
        let here = way.take().is_some();
        let there = taking.join().unwrap();
        assert!(!(here && there), "one of them has it");
        assert!(here || there || way.take().is_some(), "it is not lost");
    });
}
