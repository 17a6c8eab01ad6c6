//! One keep-alive connection to an entrance: a request, its answer, little work in between, because it shares the machine
//! with what it measures.

use std::io::{self, Write};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes of an answer's head and body together.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The longest wait for one answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Why a request is not known to be taken. Only [`Failure::Status`] is an answer: all else leaves open what became of it.
#[derive(Debug)]
pub enum Failure {
    Connection(io::ErrorKind),
    Timeout,
    Status(u16),
    Malformed,
}

impl Failure {
    pub fn name(&self) -> String {
        match self {
            Failure::Connection(kind) => format!("{kind:?}"),
            Failure::Timeout => "timeout".to_owned(),
            Failure::Status(status) => status.to_string(),
            Failure::Malformed => "malformed".to_owned(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Connection(error.kind())
    }
}

/// Writes a whole POST of JSON. `headers` are lines, each with its end.
pub fn write_post(request: &mut Vec<u8>, host: &str, path: &str, headers: &str, body: &[u8]) {
    request.clear();
    let _ = write!(
        request,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    request.extend_from_slice(body);
}

pub struct Client {
    /// `host:port`.
    host: String,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Client {
    pub fn new(host: impl Into<String>) -> Self {
        Client { host: host.into(), stream: None, buffer: Vec::with_capacity(4_096) }
    }

    /// Sends a request and waits for its answer: fine when that is of the class 2xx. Opens the connection when there is none, and
    /// gives it up after anything that is no answer.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<(), Failure> {
        let result = timeout(ANSWER_WAIT_MAX, self.attempt(request)).await.unwrap_or(Err(Failure::Timeout));
        if matches!(&result, Err(failure) if !matches!(failure, Failure::Status(_))) {
            self.stream = None;
        }
        result
    }

    async fn attempt(&mut self, request: &[u8]) -> Result<(), Failure> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let opened = TcpStream::connect(&self.host).await?;
                opened.set_nodelay(true)?;
                self.stream.insert(opened)
            }
        };
        stream.write_all(request).await?;
        let buffer = &mut self.buffer;
        buffer.clear();
        loop {
            if stream.read_buf(buffer).await? == 0 {
                return Err(Failure::Connection(io::ErrorKind::UnexpectedEof));
            }
            if let Some((status, total_bytes)) = parse(buffer)?
                && buffer.len() >= total_bytes
            {
                return if (200..300).contains(&status) { Ok(()) } else { Err(Failure::Status(status)) };
            }
            if buffer.len() > ANSWER_BYTES_MAX {
                return Err(Failure::Malformed);
            }
        }
    }
}

/// Status and length of the whole answer, once its head is complete.
fn parse(answer: &[u8]) -> Result<Option<(u16, usize)>, Failure> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| Failure::Malformed)?;
    let status = head.get(9..12).and_then(|digits| digits.parse().ok()).ok_or(Failure::Malformed)?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok())
        .ok_or(Failure::Malformed)?;
    Ok(Some((status, end + 4 + length)))
}
