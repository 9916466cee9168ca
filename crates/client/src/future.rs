//! A request whose result is awaited.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::completion::Completion;
use crate::connection::Connection;
use crate::table::Token;

/// A request under way. It ends with its [`Completion`]; dropped, its buffer is free again when the
/// server has answered.
///
/// It needs no runtime of its own. It is woken when any call of this crate takes the answer: by the
/// task that drives the descriptor of the client, see [`Client::arm`](crate::Client::arm).
#[must_use = "a future does nothing unless it is awaited"]
pub struct RequestFuture {
    connection: Arc<Connection>,
    /// `None` after the result.
    token: Option<Token>,
}

impl RequestFuture {
    pub(crate) fn new(connection: Arc<Connection>, token: Token) -> Self {
        Self { connection, token: Some(token) }
    }
}

impl Future for RequestFuture {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let token = self.token.expect("a future that has ended is not polled again");
        let mut state = self.connection.current();
        let outcome = state.table.take(token);
        if outcome.is_none() {
            state.table.wake_at_end(token, context.waker());
        }
        self.connection.release(state);
        match outcome {
            None => Poll::Pending,
            Some(outcome) => {
                self.token = None;
                Poll::Ready(Completion::new(&self.connection, outcome))
            }
        }
    }
}

impl Drop for RequestFuture {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.connection.state().abandon(token);
        }
    }
}
