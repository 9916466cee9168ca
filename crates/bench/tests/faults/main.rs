//! Faults of the disk and of the host, one case each, named by its row: the real server on a real
//! file system, on a disk that does what it is told to.
//!
//! They need root, FUSE and loop devices; what is missing is named. Short and interrupted writes
//! (F-08) are shown where they are made, in the crate `tactus-sys`.

mod damage;
mod disk;
mod fixture;
mod host;
mod kill;
mod live;
