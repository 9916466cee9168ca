//! Everyday use of the commands and the page, against a real server.
//!
//! Promise: the commands that the guide and the demo show work as shown. A missing program fails
//! its test by name.

mod commands;
mod output;
mod page;
mod server;
mod tls;
