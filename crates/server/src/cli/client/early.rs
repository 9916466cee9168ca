//! Early answers: a server that refuses an upload answers and then stops reading.
//!
//! Promise: when sending fails because the server has stopped reading, the rest of the body is
//! dropped and the answer is read. If there is no answer, the read fails. Other errors are passed
//! on.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

use super::RequestBody;

/// Whether the server has stopped reading. One for each request.
#[derive(Clone, Default, Debug)]
pub(super) struct SendStop(Arc<AtomicBool>);

/// A connection that stays readable after a failed send.
#[derive(Debug)]
pub(super) struct EarlyTransport<T> {
    inner: T,
    stopped: SendStop,
}

/// The request's body. It ends at once when the server has stopped reading.
pub(super) struct BodyReader<'a, 'b> {
    body: &'a mut RequestBody<'b>,
    left: Option<u64>,
    stopped: SendStop,
}

impl SendStop {
    /// A reader of `body` that counts the bytes left.
    pub(super) fn reading<'a, 'b>(&self, body: &'a mut RequestBody<'b>) -> BodyReader<'a, 'b> {
        BodyReader { left: body.len, body, stopped: self.clone() }
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<In: Transport> Connector<In> for SendStop {
    type Out = EarlyTransport<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        Ok(chained.map(|inner| EarlyTransport { inner, stopped: self.clone() }))
    }
}

impl<T: Transport> Transport for EarlyTransport<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.stopped.is_set() {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            Err(Error::Io(error))
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                self.stopped.0.store(true, Ordering::Relaxed);
                Ok(())
            }
            sent => sent,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

impl Read for BodyReader<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = match self.left {
            Some(left) => usize::try_from(left).map_or(into.len(), |left| left.min(into.len())),
            None => into.len(),
        };
        if self.stopped.is_set() {
            // A body of known length must be filled up, as the library requires it. None of this is
            // sent.
            let count = self.left.map_or(0, |_| most);
            into[..count].fill(0);
            self.left = self.left.map(|left| left - count as u64);
            return Ok(count);
        }
        let read = self.body.from.read(&mut into[..most])?;
        if read == 0 && self.left.is_some_and(|left| left > 0) {
            let message = "the file became shorter while it was sent";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.left = self.left.map(|left| left - read as u64);
        (self.body.seen)(read as u64);
        Ok(read)
    }
}
