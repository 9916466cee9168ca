//! The server as an operator meets it: its status, its logs, and what it says when something is wrong.

#[path = "operating/stage.rs"]
mod stage;

#[path = "operating/stalls.rs"]
mod stalls;
