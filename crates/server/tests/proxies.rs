//! The server behind nginx, HAProxy and Caddy, by the configurations that the guide shows, and pages of
//! other sites that play from it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what it calls")]

#[path = "proxies/chain.rs"]
mod chain;
#[path = "proxies/guide.rs"]
mod guide;

#[path = "proxies/behind.rs"]
mod behind;
#[path = "proxies/hls.rs"]
mod hls;
