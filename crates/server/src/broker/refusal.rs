//! What is said of a stream that has no room.
//!
//! Promise: it names what is short, and the class of the stream where it has one.

use tactus_core::classes::ClassNumber;
use tactus_core::ledger::{Resource, Short};
use tactus_core::units::{BitRate, Nanos};

use super::{BrokerRules, Refusal};

/// The class of a stream, for people.
pub(super) fn in_class(class: Option<ClassNumber>, rules: &BrokerRules) -> String {
    let name = class.and_then(|class| rules.classes.get(class.index()));
    name.map(|name| format!(" in the class {name:?}")).unwrap_or_default()
}

pub(super) fn refusal(short: Short, what: &str, rules: &BrokerRules) -> Refusal {
    let Short { resource, needed, limit, class } = short;
    let name = class.and_then(|class| rules.classes.get(class.index()));
    let of_class = format!("the class {:?}", name.map_or("", |name| name));
    let (name, needed, limit) = match resource {
        Resource::Class => (&*of_class, BitRate(needed).to_string(), BitRate(limit).to_string()),
        Resource::Disk => ("the disk's cycle", Nanos(needed).to_string(), Nanos(limit).to_string()),
        Resource::Cpu => {
            ("each second of the cores", Nanos(needed).to_string(), Nanos(limit).to_string())
        }
        Resource::Link => ("the link", BitRate(needed).to_string(), BitRate(limit).to_string()),
        Resource::Datagrams => {
            ("the link of datagrams", BitRate(needed).to_string(), BitRate(limit).to_string())
        }
        Resource::Arena => ("memory", format!("{needed} blocks"), format!("{limit} blocks")),
        Resource::WriteShare => {
            ("the write share", format!("{needed} places"), format!("{limit} places"))
        }
        Resource::Streams => ("the table", format!("{needed} streams"), format!("{limit} streams")),
    };
    let message = format!("no room for {what}: {needed} of {name} would be promised, of {limit}");
    Refusal { resource, retry_after: rules.retry_after, message }
}
