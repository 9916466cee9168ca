//! Classes of the link that change while streams run.
//!
//! Promise: promises to streams are kept. A change that the ledger could not keep is refused with
//! the name of the short resource, and changes nothing. The engine gets all changes at once, or
//! none.

use tactus_core::classes::{ClassChangeError, ClassFull, ClassLimits, ClassNumber};
use tactus_core::ledger::Resource;
use tactus_core::units::BitRate;
use tactus_engine::message::ClassChange;

use super::Broker;

/// The use of a class, including the classes below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassUse {
    /// The promised rate.
    pub promised: BitRate,
    /// The number of streams.
    pub streams: u32,
}

/// Why the classes could not be changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClassesError {
    /// The promises could not be kept.
    #[error("{message}")]
    NoRoom {
        /// The short resource.
        resource: Resource,
        /// One sentence for people.
        message: String,
    },
    /// The engine has not taken the previous changes yet.
    #[error("the link has not taken yet what was changed before; ask again in a moment")]
    Busy,
}

impl Broker {
    /// The use of each class of the link.
    pub fn classes(&self) -> Vec<ClassUse> {
        let table = self.shared.table();
        let classes = table.ledger.classes();
        let count = table.ledger.limits().classes.len() as u16;
        let of =
            |class| ClassUse { promised: classes.asked(class), streams: classes.streams(class) };
        (0..count).map(|at| of(ClassNumber(at))).collect()
    }

    /// Changes classes: all get `limits`; `changes` lists those that differ from
    /// before.
    ///
    /// # Errors
    /// The short resource; nothing has changed.
    pub fn change_classes(
        &self,
        limits: Vec<ClassLimits>,
        changes: &[ClassChange],
    ) -> Result<(), ClassesError> {
        let mut table = self.shared.table();
        let has_room =
            table.class_changes.as_mut().is_some_and(|ring| ring.free() >= changes.len());
        if !has_room {
            return Err(ClassesError::Busy);
        }
        table.ledger.change_classes(limits).map_err(|unkept| self.no_room(unkept))?;
        let ring = table.class_changes.as_mut().expect("it has room");
        for &change in changes {
            let pushed = ring.push(change);
            assert!(pushed.is_ok(), "there is room for all of them");
        }
        table.waker.wake();
        Ok(())
    }

    fn no_room(&self, unkept: ClassChangeError) -> ClassesError {
        let name = |class: ClassNumber| {
            let name = self.shared.rules.classes.get(class.index());
            format!("the class {:?}", name.map_or("", |name| name))
        };
        let (resource, message) = match unkept {
            ClassChangeError::Ceiling(ClassFull { class, needed, ceiling }) => {
                let class = name(class);
                (Resource::Class, format!("{needed} of {class} would be promised, of {ceiling}"))
            }
            ClassChangeError::Guarantee { class, promised, guaranteed } => (
                Resource::Class,
                format!(
                    "streams of {} are promised {promised}, and it would be guaranteed \
                     {guaranteed}",
                    name(class)
                ),
            ),
            ClassChangeError::Link { needed, limit } => {
                (Resource::Link, format!("{needed} of the link would be promised, of {limit}"))
            }
            ClassChangeError::Datagrams { needed, limit } => (
                Resource::Datagrams,
                format!("{needed} of the link of datagrams would be promised, of {limit}"),
            ),
        };
        ClassesError::NoRoom { resource, message: format!("nothing is changed: {message}") }
    }
}
