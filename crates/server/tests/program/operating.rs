//! The server from an operator's view: its status, logs and signals, and its reports of problems.

mod test_server;

mod access;
mod activation;
mod commands;
mod health;
mod signals;
mod stalls;
