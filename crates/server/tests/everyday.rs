//! Everyday use of the commands and the page, against a real server.
//!
//! Promise: the commands that the guide and the demo show work as shown. A missing program fails
//! its test by name.

#[path = "process/child.rs"]
mod child;
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
