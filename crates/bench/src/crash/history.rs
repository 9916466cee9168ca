//! What a subject was asked and what it has acknowledged, and the judgement over what is left of
//! it.
//!
//! Promise: positions are counts of the disk's events. What was acknowledged at or before the cut
//! must be there, or something that was begun before the cut and comes after it; nothing else may
//! be. Acts on one name come one after the other.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::content::{StoredVersion, Version};

/// A count of the disk's events.
pub(super) type Position = u64;

/// Everything that was asked.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    titles: BTreeMap<String, Vec<Operation>>,
    moves: Vec<Move>,
    uploads: BTreeMap<String, Upload>,
    /// What comes in and cannot wait, by the names of the titles: each is one as far as it came.
    recordings: BTreeMap<String, Upload>,
    /// Uploads that were asked for, and nobody was told whether they are there.
    untold: usize,
    /// Uploads that end with their program, unless it goes on with them.
    bound: BTreeSet<String>,
}

/// One act on a name.
#[derive(Clone, Debug)]
struct Operation {
    /// The version that the name has afterwards; `None`: none.
    leaves: Option<u64>,
    begun: Position,
    acked: Option<Position>,
}

/// A version gets another name: an act on both, in one step.
#[derive(Clone, Debug)]
struct Move {
    version: u64,
    from: OperationRef,
    to: OperationRef,
}

/// A name, and which of its acts.
type OperationRef = (String, usize);

/// An upload that can be resumed.
#[derive(Clone, Debug)]
struct Upload {
    /// The title that it becomes.
    name: String,
    version: Version,
    steps: Vec<Step>,
    /// When its last step was begun, after which it may be gone.
    ended: Option<Position>,
}

#[derive(Clone, Debug)]
struct Step {
    /// The offset that it leads to.
    to: u64,
    begun: Position,
    acked: Option<Position>,
}

/// Names what was begun.
#[derive(Clone, Debug)]
pub(super) enum OperationHandle {
    Title(OperationRef),
    Move(OperationRef, OperationRef),
    Upload(OperationRef),
    Recording(OperationRef),
}

/// What a recovered volume shows.
#[derive(Clone, Debug, Default)]
pub(super) struct VolumeContents {
    pub(super) titles: BTreeMap<String, StoredVersion>,
    pub(super) uploads: BTreeMap<String, ResumedUpload>,
    /// Recordings by the names of their titles, as far as they came.
    pub(super) recordings: BTreeMap<String, ResumedUpload>,
    /// What belongs to nothing.
    pub(super) strays: Vec<String>,
}

/// What is said about an upload.
#[derive(Clone, Debug)]
pub(super) struct ResumedUpload {
    pub(super) offset: u64,
    /// The first place below the offset with a wrong byte.
    pub(super) wrong_at: Option<u64>,
}

/// What is wrong, one sentence each.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Judgement {
    /// Acknowledged, and not there.
    pub(super) lost: Vec<String>,
    /// Visible, and no whole version.
    pub(super) torn: Vec<String>,
    /// An offset that was never sent, or wrong bytes below it.
    pub(super) wrong_offset: Vec<String>,
    /// Belongs to nothing.
    pub(super) stray: Vec<String>,
    /// Uploads that have more than was acknowledged, all of it right.
    pub(super) ahead: u64,
}

impl History {
    /// The name will have version `leaves`, or be gone.
    pub(super) fn begin(
        &mut self,
        now: Position,
        name: &str,
        leaves: Option<u64>,
    ) -> OperationHandle {
        OperationHandle::Title(self.act(now, name, leaves))
    }

    /// The version that is called `from` will be called `to`.
    pub(super) fn begin_move(
        &mut self,
        now: Position,
        from: &str,
        to: &str,
        version: u64,
    ) -> OperationHandle {
        let (from, to) = (self.act(now, from, None), self.act(now, to, Some(version)));
        self.moves.push(Move { version, from: from.clone(), to: to.clone() });
        OperationHandle::Move(from, to)
    }

    fn act(&mut self, now: Position, name: &str, leaves: Option<u64>) -> OperationRef {
        let acts = self.titles.entry(name.to_owned()).or_default();
        acts.push(Operation { leaves, begun: now, acked: None });
        (name.to_owned(), acts.len() - 1)
    }

    /// An upload is asked for whose id is not known yet.
    pub(super) fn ask(&mut self) {
        self.untold += 1;
    }

    /// It was refused.
    pub(super) fn refused(&mut self) {
        self.untold -= 1;
    }

    /// What was asked for at `asked` is there, and called `id`.
    pub(super) fn created(
        &mut self,
        asked: Position,
        now: Position,
        id: &str,
        name: &str,
        version: Version,
    ) {
        self.untold -= 1;
        let created = self.begin_step(asked, id, name, version, 0);
        self.ack(now, &created);
    }

    /// The upload `id` is there, and ends with its program. It does not any more when it is
    /// [created](Self::created) or goes on.
    pub(super) fn bind(&mut self, id: &str) {
        self.bound.insert(id.to_owned());
    }

    /// Uploads of which nothing was acknowledged: they may be there or not.
    pub(super) fn bound(&self) -> impl Iterator<Item = &String> {
        self.bound.iter().filter(|id| !self.uploads.contains_key(*id))
    }

    /// So many of the uploads that nobody was told of have expired.
    pub(super) fn expired(&mut self, count: usize) {
        self.untold -= count;
    }

    /// Uploads that may be there though nobody was told.
    pub(super) fn untold(&self) -> usize {
        self.untold
    }

    /// The upload `id` of a `version` of the title `name` goes on to the offset `to`; when that is
    /// its length it ends, one way or the other.
    pub(super) fn begin_step(
        &mut self,
        now: Position,
        id: &str,
        name: &str,
        version: Version,
        to: u64,
    ) -> OperationHandle {
        let name = name.to_owned();
        let new = || Upload { name, version, steps: Vec::new(), ended: None };
        let upload = self.uploads.entry(id.to_owned()).or_insert_with(new);
        upload.steps.push(Step { to, begun: now, acked: None });
        if to == version.length() {
            upload.ended.get_or_insert(now);
        }
        OperationHandle::Upload((id.to_owned(), upload.steps.len() - 1))
    }

    /// A `version` comes in as a recording under `name`, and has come up to `to`.
    pub(super) fn begin_piece(
        &mut self,
        now: Position,
        name: &str,
        version: Version,
        to: u64,
    ) -> OperationHandle {
        let title = name.to_owned();
        let new = || Upload { name: title, version, steps: Vec::new(), ended: None };
        let recording = self.recordings.entry(name.to_owned()).or_insert_with(new);
        recording.steps.push(Step { to, begun: now, acked: None });
        OperationHandle::Recording((name.to_owned(), recording.steps.len() - 1))
    }

    /// It was acknowledged.
    pub(super) fn ack(&mut self, now: Position, begun: &OperationHandle) {
        let in_history = "what was begun is in the history";
        let mut act = |(name, place): &OperationRef| {
            self.titles.get_mut(name).expect(in_history)[*place].acked = Some(now);
        };
        match begun {
            OperationHandle::Title(place) => act(place),
            OperationHandle::Move(from, to) => [from, to].into_iter().for_each(act),
            OperationHandle::Upload((id, place)) => {
                self.uploads.get_mut(id).expect(in_history).steps[*place].acked = Some(now);
            }
            OperationHandle::Recording((name, place)) => {
                let step = &mut self.recordings.get_mut(name).expect(in_history).steps[*place];
                // It is told again and again how far it is durable.
                step.acked.get_or_insert(now);
            }
        }
    }

    /// Positions at which something was acknowledged.
    pub(super) fn acks(&self) -> Vec<Position> {
        let acts = self.titles.values().flatten().filter_map(|act| act.acked);
        let both = self.uploads.values().chain(self.recordings.values());
        let steps = both.flat_map(|upload| &upload.steps);
        acts.chain(steps.filter_map(|step| step.acked)).collect()
    }

    /// What was seen holds from now on: it must not change by itself. What comes before is
    /// forgotten.
    pub(super) fn settle(&mut self, now: Position, found: &VolumeContents) {
        for (name, acts) in &mut self.titles {
            let leaves = match found.titles.get(name) {
                Some(StoredVersion::Whole(number)) => Some(*number),
                Some(StoredVersion::Torn(_)) | None => None,
            };
            *acts = vec![Operation { leaves, begun: now, acked: Some(now) }];
        }
        self.moves.clear();
        self.uploads.retain(|id, _| found.uploads.contains_key(id));
        for (id, upload) in &mut self.uploads {
            let to = found.uploads[id].offset;
            upload.steps = vec![Step { to, begun: now, acked: Some(now) }];
            upload.ended = None;
        }
    }

    /// Uploads that have become titles: these, and whatever is complete.
    pub(super) fn finish(&mut self, now: Position, all: bool) {
        let complete =
            |upload: &Upload| upload.steps.iter().any(|s| s.to == upload.version.length());
        let finished = self.uploads.extract_if(.., |_, upload| all || complete(upload));
        for (_, upload) in finished {
            let act =
                Operation { leaves: Some(upload.version.number()), begun: now, acked: Some(now) };
            self.titles.entry(upload.name).or_default().push(act);
        }
    }

    /// This title has been deleted, and is not asked for any more.
    pub(super) fn forget(&mut self, name: &str) {
        self.titles.remove(name);
    }

    /// Uploads that were begun: id, title and version.
    pub(super) fn uploads(&self) -> impl Iterator<Item = (&String, &str, Version)> {
        self.uploads.iter().map(|(id, upload)| (id, upload.name.as_str(), upload.version))
    }

    /// Recordings that were begun: title and version.
    pub(super) fn recordings(&self) -> impl Iterator<Item = (&str, Version)> {
        self.recordings.iter().map(|(name, recording)| (&**name, recording.version))
    }

    /// The version that an upload brings.
    pub(super) fn version(&self, id: &str) -> Option<Version> {
        self.uploads.get(id).map(|upload| upload.version)
    }

    /// What is wrong with `found` after a cut behind the first `cut` events.
    pub(super) fn judge(&self, cut: Position, found: &VolumeContents) -> Judgement {
        let mut wrong = Judgement { stray: found.strays.clone(), ..Judgement::default() };
        for (name, acts) in &self.titles {
            let floor = acts.iter().rposition(|act| act.acked.is_some_and(|acked| acked <= cut));
            let later = &acts[floor.map_or(0, |floor| floor + 1)..];
            let mut allowed: Vec<Option<u64>> =
                later.iter().filter(|act| act.begun < cut).map(|act| act.leaves).collect();
            allowed.push(floor.and_then(|floor| acts[floor].leaves));
            let there = match found.titles.get(name) {
                None => None,
                Some(StoredVersion::Whole(number)) => Some(*number),
                Some(StoredVersion::Torn(reason)) => {
                    wrong.torn.push(format!("{name}: {reason}"));
                    continue;
                }
            };
            if allowed.contains(&there) {
                continue;
            }
            let expected = allowed.last().copied().flatten();
            let show = |version: Option<u64>| {
                version.map_or("nothing".to_owned(), |number| format!("version {number}"))
            };
            let known = acts.iter().any(|act| act.leaves == there && act.begun < cut);
            let text = format!("{name}: {} instead of {}", show(there), show(expected));
            match known || there.is_none() {
                true => wrong.lost.push(text),
                // Nothing of it had been begun: the bytes come from nowhere.
                false => wrong.torn.push(text),
            }
        }
        self.judge_moves(cut, found, &mut wrong);
        let unknown = found.titles.keys().filter(|name| !self.titles.contains_key(*name));
        wrong.stray.extend(unknown.map(|name| format!("{name}: never asked for")));
        for (id, upload) in &self.uploads {
            upload.judge(cut, &format!("upload {id}"), found.uploads.get(id), &mut wrong);
        }
        for (name, recording) in &self.recordings {
            let there = found.recordings.get(name);
            // One of which nothing has come is no title: then nothing is lost.
            let none = ResumedUpload { offset: 0, wrong_at: None };
            let there = there.or(recording.has_begun(cut).then_some(&none));
            recording.judge(cut, &format!("recording {name}"), there, &mut wrong);
        }
        let unknown = found.uploads.keys().filter(|id| !self.uploads.contains_key(*id));
        wrong.stray.extend(unknown.map(|id| format!("upload {id}: never asked for")));
        wrong
    }

    /// What was on its way from one name to another has one of them, and nothing has two.
    fn judge_moves(&self, cut: Position, found: &VolumeContents, wrong: &mut Judgement) {
        let mut names = BTreeMap::new();
        for (name, seen) in &found.titles {
            if let StoredVersion::Whole(number) = seen
                && let Some(other) = names.insert(*number, name)
            {
                wrong.stray.push(format!("version {number}: called {other} and {name}"));
            }
        }
        let is_last = |(name, place): &OperationRef| {
            self.titles[name].iter().rposition(|act| act.begun < cut) == Some(*place)
        };
        for Move { version, from, to } in &self.moves {
            if is_last(from) && is_last(to) && !names.contains_key(version) {
                let (from, to) = (&from.0, &to.0);
                wrong.lost.push(format!("version {version}: between {from} and {to}"));
            }
        }
    }
}

impl Upload {
    fn has_begun(&self, cut: Position) -> bool {
        self.steps.iter().any(|step| step.begun < cut)
    }

    /// `what` names it.
    fn judge(
        &self,
        cut: Position,
        what: &str,
        found: Option<&ResumedUpload>,
        wrong: &mut Judgement,
    ) {
        let acked = |step: &&Step| step.acked.is_some_and(|acked| acked <= cut);
        let floor = self.steps.iter().filter(acked).map(|step| step.to).max();
        let ceiling = self.steps.iter().filter(|step| step.begun < cut).map(|step| step.to).max();
        let may_be_gone = self.ended.is_some_and(|ended| ended < cut);
        let Some(found) = found else {
            if let Some(floor) = floor
                && !may_be_gone
            {
                wrong.lost.push(format!("{what}: gone, {floor} acknowledged"));
            }
            return;
        };
        let offset = found.offset;
        if let Some(place) = found.wrong_at {
            wrong.wrong_offset.push(format!("{what}: {offset}, wrong bytes at {place}"));
        } else if ceiling.is_none_or(|ceiling| offset > ceiling) {
            let sent = ceiling.unwrap_or(0);
            wrong.wrong_offset.push(format!("{what}: {offset}, {sent} sent"));
        } else if let Some(floor) = floor.filter(|floor| offset < *floor) {
            wrong.lost.push(format!("{what}: {offset}, {floor} acknowledged"));
        } else {
            wrong.ahead += u64::from(floor.is_none_or(|floor| offset > floor));
        }
    }
}

impl Judgement {
    #[cfg(test)]
    fn is_clean(&self) -> bool {
        [&self.lost, &self.torn, &self.wrong_offset, &self.stray].iter().all(|list| list.is_empty())
    }

    /// All sentences.
    pub(super) fn sentences(&self) -> Vec<String> {
        [("lost", &self.lost), ("torn", &self.torn), ("offset", &self.wrong_offset)]
            .into_iter()
            .chain([("stray", &self.stray)])
            .flat_map(|(kind, list)| list.iter().map(move |text| format!("{kind}: {text}")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(titles: &[(&str, StoredVersion)]) -> VolumeContents {
        let titles = titles.iter().map(|(name, seen)| ((*name).to_owned(), seen.clone()));
        VolumeContents { titles: titles.collect(), ..VolumeContents::default() }
    }

    #[test]
    fn a_name_has_its_acknowledged_version_or_one_that_was_begun_before_the_cut() {
        let mut history = History::default();
        let first = history.begin(10, "a", Some(1));
        history.ack(20, &first);
        history.begin(30, "a", Some(2));
        let judge = |cut, found: &VolumeContents| history.judge(cut, found);
        let (none, one, two) = (
            shown(&[]),
            shown(&[("a", StoredVersion::Whole(1))]),
            shown(&[("a", StoredVersion::Whole(2))]),
        );
        assert!(judge(19, &none).is_clean() && judge(19, &one).is_clean());
        assert_eq!(judge(20, &none).lost.len(), 1, "acknowledged and gone");
        assert_eq!(judge(30, &two).torn.len(), 1, "from nowhere");
        assert!(judge(31, &two).is_clean() && judge(31, &one).is_clean());
        let torn = shown(&[("a", StoredVersion::Torn("zeros".into()))]);
        assert_eq!(judge(11, &torn).torn.len(), 1, "torn before it is acknowledged, too");
        assert_eq!(judge(9, &shown(&[("b", StoredVersion::Whole(1))])).stray.len(), 1);
    }

    #[test]
    fn an_older_version_or_a_deleted_title_that_comes_back_is_a_loss() {
        let mut history = History::default();
        for (begun, acked, leaves) in [(1, 2, Some(1)), (3, 4, Some(2)), (5, 6, None)] {
            let act = history.begin(begun, "a", leaves);
            history.ack(acked, &act);
        }
        let one = shown(&[("a", StoredVersion::Whole(1))]);
        assert_eq!(history.judge(4, &one).lost, ["a: version 1 instead of version 2"]);
        assert_eq!(history.judge(6, &one).lost, ["a: version 1 instead of nothing"]);
        assert!(history.judge(6, &shown(&[])).is_clean());
        assert!(history.judge(5, &shown(&[("a", StoredVersion::Whole(2))])).is_clean());
    }

    #[test]
    fn an_offset_lies_between_what_was_acknowledged_and_what_was_sent() {
        let mut history = History::default();
        let version = Version::new(1, 300);
        for (begun, acked, to) in [(1, 2, 0), (3, 4, 100)] {
            let step = history.begin_step(begun, "u", "a", version, to);
            history.ack(acked, &step);
        }
        history.begin_step(5, "u", "a", version, 200);
        let judge = |cut, offset, wrong_at| {
            let mut found = VolumeContents::default();
            found.uploads.insert("u".into(), ResumedUpload { offset, wrong_at });
            history.judge(cut, &found)
        };
        assert!(judge(4, 100, None).is_clean());
        assert_eq!(judge(4, 99, None).lost.len(), 1);
        assert_eq!(judge(4, 101, None).wrong_offset.len(), 1);
        assert_eq!((judge(6, 150, None).is_clean(), judge(6, 150, None).ahead), (true, 1));
        assert_eq!(judge(6, 300, None).wrong_offset.len(), 1, "the size that was reserved");
        assert_eq!(judge(6, 100, Some(50)).wrong_offset.len(), 1);
        assert_eq!(history.judge(2, &VolumeContents::default()).lost.len(), 1);
        assert!(history.judge(1, &VolumeContents::default()).is_clean());
        let mut ended = history.clone();
        ended.begin_step(7, "u", "a", version, 300);
        assert_eq!(ended.judge(7, &VolumeContents::default()).lost.len(), 1);
        assert!(ended.judge(8, &VolumeContents::default()).is_clean());
    }

    #[test]
    fn a_recording_is_a_title_at_least_as_far_as_it_was_durable() {
        let mut history = History::default();
        let version = Version::new(1, 300);
        let first = history.begin_piece(1, "r", version, 100);
        history.begin_piece(3, "r", version, 200);
        history.ack(5, &first);
        history.ack(9, &first);
        let judge = |cut, offset, wrong_at| {
            let mut found = VolumeContents::default();
            found.recordings.insert("r".into(), ResumedUpload { offset, wrong_at });
            history.judge(cut, &found)
        };
        let none = VolumeContents::default();
        assert!(history.judge(1, &none).is_clean() && history.judge(4, &none).is_clean());
        assert_eq!(history.judge(5, &none).lost.len(), 1, "it was durable from then on");
        assert!(judge(4, 150, None).is_clean() && judge(5, 100, None).is_clean());
        assert_eq!(judge(5, 99, None).lost.len(), 1);
        assert_eq!(judge(5, 201, None).wrong_offset.len(), 1, "more than had come");
        assert_eq!(judge(5, 200, Some(7)).wrong_offset.len(), 1);
    }

    #[test]
    fn a_version_that_moves_has_one_of_its_names() {
        let mut history = History::default();
        for (name, version) in [("a", 1), ("b", 2)] {
            let act = history.begin(1, name, Some(version));
            history.ack(2, &act);
        }
        let moved = history.begin_move(3, "a", "b", 1);
        history.ack(5, &moved);
        let [one, two] = [StoredVersion::Whole(1), StoredVersion::Whole(2)];
        let before = shown(&[("a", one.clone()), ("b", two.clone())]);
        let after = shown(&[("b", one.clone())]);
        assert!(history.judge(4, &before).is_clean() && history.judge(4, &after).is_clean());
        assert_eq!(history.judge(4, &shown(&[("b", two)])).lost, ["version 1: between a and b"]);
        let twice = shown(&[("a", one.clone()), ("b", one)]);
        assert_eq!(history.judge(4, &twice).stray, ["version 1: called a and b"]);
        assert!(history.judge(5, &after).is_clean());
        assert_eq!(history.judge(5, &before).lost.len(), 2, "acknowledged");
        assert!(history.judge(3, &before).is_clean() && !history.judge(3, &after).is_clean());
    }

    #[test]
    fn what_was_seen_after_a_restart_must_stay() {
        let mut history = History::default();
        history.begin(1, "a", Some(1));
        let version = Version::new(7, 300);
        let step = history.begin_step(2, "u", "b", version, 100);
        history.ack(3, &step);
        history.begin_step(3, "u", "b", version, 200);
        let mut found = shown(&[("a", StoredVersion::Whole(1))]);
        found.uploads.insert("u".into(), ResumedUpload { offset: 150, wrong_at: None });
        assert!(history.judge(4, &found).is_clean());
        history.settle(4, &found);
        assert_eq!(history.judge(5, &VolumeContents::default()).lost.len(), 2, "title and upload");
        found.uploads.get_mut("u").unwrap().offset = 100;
        assert_eq!(history.judge(5, &found).lost.len(), 1, "an offset that was reported");
        history.finish(6, false);
        assert_eq!(history.uploads().count(), 1, "it is not complete");
        history.finish(6, true);
        let both = [("a", StoredVersion::Whole(1)), ("b", StoredVersion::Whole(7))];
        assert!(history.judge(7, &shown(&both)).is_clean());
        assert_eq!(history.judge(7, &shown(&both[..1])).lost.len(), 1);
    }
}
