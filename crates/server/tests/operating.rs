//! The server from an operator's view: its status, logs and signals, and its reports of problems.

#[path = "process/child.rs"]
mod child;
#[path = "operating/test_server.rs"]
mod test_server;

#[path = "operating/access.rs"]
mod access;
#[path = "operating/activation.rs"]
mod activation;
#[path = "operating/commands.rs"]
mod commands;
#[path = "operating/health.rs"]
mod health;
#[path = "operating/signals.rs"]
mod signals;
#[path = "operating/stalls.rs"]
mod stalls;
