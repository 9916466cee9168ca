//! The server as an operator meets it: its status, its logs, its signals, and what it says when
//! something is wrong.

#[path = "operating/stage.rs"]
mod stage;

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
