//! The commands and the page as people use them every day, against a real server.
//!
//! Promise: what is shown on a first day works as it is shown. A program that is not installed fails its test
//! by name.

#[path = "everyday/commands.rs"]
mod commands;
#[path = "everyday/output.rs"]
mod output;
#[path = "everyday/page.rs"]
mod page;
#[path = "everyday/server.rs"]
mod server;
#[path = "everyday/tls.rs"]
mod tls;
