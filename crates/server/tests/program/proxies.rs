//! The server behind nginx, HAProxy and Caddy, with the configurations of the guide, and players on
//! pages of other sites.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what it calls")]

mod chain;
mod guide;

mod behind;
mod hls;
mod unix_socket;
