//! The names of the servers of an engine, as they are written and shown.

use std::fmt;
use std::str::FromStr;

/// A server's job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Job {
    /// Reads and writes one volume's device.
    Disk,
    /// Manages one volume's arena.
    Block,
    /// Manages the rows of its streams in the delivery table.
    Delivery,
    /// Sends to connections.
    Link,
    /// Sends datagrams.
    Packets,
    /// Serves local clients.
    File,
}

/// One server: its job, and its index among the servers with this job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerName {
    /// Its job.
    pub job: Job,
    /// For disk and block the volume, in the order of the configuration; for delivery, link and
    /// packets the server.
    pub index: u16,
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = match self.job {
            Job::Disk => "disk",
            Job::Block => "block",
            // A single one is the usual case.
            Job::Delivery if self.index == 0 => return f.write_str("delivery"),
            Job::Delivery => "delivery",
            Job::Link if self.index == 0 => return f.write_str("link"),
            Job::Link => "link",
            Job::Packets if self.index == 0 => return f.write_str("packets"),
            Job::Packets => "packets",
            Job::File => return f.write_str("file"),
        };
        write!(f, "{job}.{}", self.index)
    }
}

impl FromStr for ServerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (job, index) = match text.split_once('.') {
            Some((job, index)) => (job, index.parse().ok()),
            None => (text, Some(0)),
        };
        let job = match job {
            "disk" => Job::Disk,
            "block" => Job::Block,
            "delivery" => Job::Delivery,
            "link" => Job::Link,
            "packets" => Job::Packets,
            "file" => Job::File,
            _ => return Err(unknown(text)),
        };
        let index = index.filter(|&index| index == 0 || job != Job::File);
        index.map(|index| Self { job, index }).ok_or_else(|| unknown(text))
    }
}

fn unknown(text: &str) -> String {
    format!(
        "`{text}` is not a server; write disk.0, block.0, delivery, delivery.1, link, link.1, \
         packets, packets.1 or file"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let jobs = [Job::Disk, Job::Block, Job::Delivery, Job::Link, Job::Packets].into_iter();
        let several = jobs.flat_map(|job| (0..3).map(move |index| ServerName { job, index }));
        for name in several.chain([ServerName { job: Job::File, index: 0 }]) {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert!("file.1".parse::<ServerName>().is_err());
        assert_eq!("disk".parse(), Ok(ServerName { job: Job::Disk, index: 0 }));
        assert!("disk.x".parse::<ServerName>().is_err());
        assert!("dusk".parse::<ServerName>().is_err());
    }
}
