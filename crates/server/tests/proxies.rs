//! The server behind nginx, HAProxy and Caddy, with the configurations of the guide, and players on
//! pages of other sites.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what it calls")]

#[path = "proxies/chain.rs"]
mod chain;
#[path = "process/child.rs"]
mod child;
#[path = "proxies/guide.rs"]
mod guide;

#[path = "proxies/behind.rs"]
mod behind;
#[path = "proxies/hls.rs"]
mod hls;
#[path = "proxies/unix_socket.rs"]
mod unix_socket;
