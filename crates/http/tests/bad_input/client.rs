//! A client that sends exactly the bytes it is told to, and reads answers strictly.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// A case that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).unwrap())
    }

    /// From an address of this host, with a small receive buffer if wanted.
    pub(crate) fn connect_from(address: SocketAddr, from: IpAddr, buffer: Option<usize>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if let Some(size) = buffer {
            socket.set_recv_buffer_size(size).unwrap();
        }
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        Self::of(socket.into())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Sends bytes; a server that has closed already is not a fault of the case.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        if let Err(error) = self.stream.get_mut().write_all(bytes.as_ref()) {
            let gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
            assert!(gone.contains(&error.kind()), "{error}");
        }
    }

    /// A plain GET with more fields, each with its line end.
    pub(crate) fn get(&mut self, target: &str, fields: &str) -> Answer {
        self.ask("GET", target, fields)
    }

    pub(crate) fn ask(&mut self, method: &str, target: &str, fields: &str) -> Answer {
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"));
        self.answer_to(method).expect("an answer")
    }

    /// The next answer; none when the server closes without one.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        self.answer_to("GET")
    }

    pub(crate) fn answer_to(&mut self, method: &str) -> Option<Answer> {
        let mut answer = self.head()?;
        let bodiless = method == "HEAD" || matches!(answer.status, 100 | 204 | 304);
        if !bodiless {
            if answer.field("transfer-encoding") == Some("chunked") {
                while self.chunk(&mut answer.body) {}
                return Some(answer);
            }
            let len = answer.field("content-length").expect("a length").parse().unwrap();
            answer.body = vec![0; len];
            self.stream.read_exact(&mut answer.body).unwrap();
        }
        Some(answer)
    }

    /// Reads one chunk of a body; returns false for the last.
    fn chunk(&mut self, body: &mut Vec<u8>) -> bool {
        let len = usize::from_str_radix(&self.line().expect("a chunk"), 16).expect("its length");
        let at = body.len();
        body.resize(at + len, 0);
        self.stream.read_exact(&mut body[at..]).unwrap();
        assert_eq!(self.line().as_deref(), Some(""), "the end of a chunk");
        len > 0
    }

    /// The head of the next answer.
    pub(crate) fn head(&mut self) -> Option<Answer> {
        let line = self.line()?;
        let status = line.strip_prefix("HTTP/1.1 ").expect("a status line")[..3].parse().unwrap();
        let mut fields = Vec::new();
        loop {
            let line = self.line().expect("the end of the head");
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").expect("a field");
            fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Some(Answer { status, fields, body: Vec::new() })
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.strip_suffix("\r\n").expect("CR LF").to_owned()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no line: {error}"),
        }
    }

    /// Everything until the server closes; how it closes does not matter.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("the server does not close: {error}"),
        }
    }

    /// The next `len` bytes, as text.
    pub(crate) fn bytes(&mut self, len: usize) -> String {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The server has closed, and has said nothing more.
    pub(crate) fn is_closed(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "more came: {:?}", String::from_utf8_lossy(&rest));
    }
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn closes(&self) -> bool {
        self.field("connection") == Some("close")
    }
}
