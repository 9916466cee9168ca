//! Lists without allocation: nodes from one pool, linked by number.
//!
//! A server keeps one pool and many lists. The size of the pool is the sum of everything that the
//! ledger can grant, so it cannot run out.

const NONE: u32 = u32::MAX;

/// The nodes of all lists of one server.
pub(crate) struct Pool<T> {
    nodes: Vec<Node<T>>,
    free: u32,
}

struct Node<T> {
    value: Option<T>,
    next: u32,
}

/// A first-in-first-out list of nodes of a [`Pool`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl List {
    /// A list without nodes.
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE };

    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Loads the list into the cache, for callers that read many before using the first. The number
    /// has no meaning.
    pub(crate) fn look_up(&self) -> u64 {
        u64::from(self.head ^ self.tail)
    }
}

impl<T> Pool<T> {
    pub(crate) fn new(size: usize) -> Self {
        let last = u32::try_from(size).expect("a pool is smaller than 2^32");
        let nodes = (0..last)
            .map(|at| Node { value: None, next: if at + 1 < last { at + 1 } else { NONE } })
            .collect();
        Self { nodes, free: if size == 0 { NONE } else { 0 } }
    }

    /// Takes a node that is on no list. Its number is the token.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let at = self.free;
        assert!(at != NONE, "the ledger grants no more than the pool has");
        let node = &mut self.nodes[at as usize];
        self.free = node.next;
        node.value = Some(value);
        node.next = NONE;
        at
    }

    /// Returns a node that is on no list.
    pub(crate) fn remove(&mut self, at: u32) -> T {
        let node = &mut self.nodes[at as usize];
        node.next = self.free;
        self.free = at;
        node.value.take().expect("a node is removed once")
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        self.nodes[at as usize].value.as_mut().expect("the node is in use")
    }

    /// Appends a new node to `list`.
    pub(crate) fn push_back(&mut self, list: &mut List, value: T) -> u32 {
        let at = self.insert(value);
        match list.tail {
            NONE => list.head = at,
            tail => self.nodes[tail as usize].next = at,
        }
        list.tail = at;
        at
    }

    /// Removes the first node from `list` but leaves it in use.
    pub(crate) fn detach_front(&mut self, list: &mut List) -> Option<u32> {
        let at = self.front(list)?;
        list.head = self.nodes[at as usize].next;
        if list.head == NONE {
            list.tail = NONE;
        }
        self.nodes[at as usize].next = NONE;
        Some(at)
    }

    /// Removes the first node from `list` and frees it.
    pub(crate) fn pop_front(&mut self, list: &mut List) -> Option<T> {
        let at = self.detach_front(list)?;
        Some(self.remove(at))
    }

    /// The first node of `list`.
    pub(crate) fn front(&self, list: &List) -> Option<u32> {
        (list.head != NONE).then_some(list.head)
    }

    /// The first value of `list`.
    pub(crate) fn first(&self, list: &List) -> Option<&T> {
        self.nodes.get(list.head as usize)?.value.as_ref()
    }

    /// The values of `list`, in order.
    pub(crate) fn iter<'a>(&'a self, list: &List) -> impl Iterator<Item = &'a T> {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.next;
            node.value.as_ref()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn lists_of_one_pool_behave_like_queues() {
        let mut pool = Pool::new(64);
        let mut lists = [List::default(); 4];
        let mut model = [const { VecDeque::new() }; 4];
        let mut state = 7u64;
        for step in 0..20_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let which = (state >> 33) as usize % 4;
            let used: usize = model.iter().map(VecDeque::len).sum();
            if (state >> 40).is_multiple_of(2) && used < 64 {
                pool.push_back(&mut lists[which], step);
                model[which].push_back(step);
            } else {
                assert_eq!(pool.pop_front(&mut lists[which]), model[which].pop_front());
            }
            assert!(pool.iter(&lists[which]).eq(model[which].iter()));
        }
    }
}
