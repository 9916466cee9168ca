//! Order of last use of the idle blocks.

const NONE: u32 = u32::MAX;

/// A doubly linked list over the places; the front is the least recently used.
pub(super) struct Recency {
    before: Vec<u32>,
    after: Vec<u32>,
    front: u32,
    back: u32,
}

impl Recency {
    pub(super) fn new(places: u32) -> Self {
        let empty = vec![NONE; places as usize];
        Self { before: empty.clone(), after: empty, front: NONE, back: NONE }
    }

    pub(super) fn front(&self) -> Option<u32> {
        (self.front != NONE).then_some(self.front)
    }

    /// Appends `place`: just used, and idle now.
    pub(super) fn push_back(&mut self, place: u32) {
        self.before[place as usize] = self.back;
        self.after[place as usize] = NONE;
        match self.back {
            NONE => self.front = place,
            back => self.after[back as usize] = place,
        }
        self.back = place;
    }

    /// Removes `place` from any position.
    pub(super) fn remove(&mut self, place: u32) {
        let (before, after) = (self.before[place as usize], self.after[place as usize]);
        match before {
            NONE => self.front = after,
            before => self.after[before as usize] = after,
        }
        match after {
            NONE => self.back = before,
            after => self.before[after as usize] = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_was_used_longest_ago() {
        let mut recency = Recency::new(5);
        for place in [3, 1, 4, 0, 2] {
            recency.push_back(place);
        }
        recency.remove(4);
        recency.remove(3);
        recency.push_back(3);
        let mut order = vec![];
        while let Some(place) = recency.front() {
            recency.remove(place);
            order.push(place);
        }
        assert_eq!(order, [1, 0, 2, 3]);
    }
}
