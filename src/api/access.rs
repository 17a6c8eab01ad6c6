//! Who may ask what: a token to read, a token to write, and none for health.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::status::problem;
use crate::connectors::http::auth::{self, Secret};

/// The tokens of an installation. Without any the API is open, and may listen on loopback only.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    write: Option<Secret>,
    read: Option<Secret>,
}

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grant {
    Nothing,
    Read,
    Write,
}

impl Tokens {
    /// The write token reads as well. An empty text is an error: it is a variable that somebody forgot to fill.
    pub fn new(write: Option<&str>, read: Option<&str>) -> Result<Self, auth::Error> {
        Ok(Tokens { write: write.map(Secret::new).transpose()?, read: read.map(Secret::new).transpose()? })
    }

    pub fn are_set(&self) -> bool {
        self.write.is_some() || self.read.is_some()
    }

    fn grant(&self, token: Option<&[u8]>) -> Grant {
        if !self.are_set() {
            return Grant::Write;
        }
        let Some(token) = token else { return Grant::Nothing };
        let matches = |secret: &Option<Secret>| secret.as_ref().is_some_and(|secret| secret.matches(token));
        // Both are compared always, so that the time tells nothing about which is set.
        match (matches(&self.write), matches(&self.read)) {
            (true, _) => Grant::Write,
            (false, true) => Grant::Read,
            (false, false) => Grant::Nothing,
        }
    }
}

/// Below these a POST changes nothing either: it has a body only because what is asked for is large.
const READ_BY_POST: [&str; 2] = ["/api/v1/replay/", "/api/v1/shadow/"];

fn wanted(request: &Request<Body>) -> Grant {
    let reads = match *request.method() {
        Method::GET | Method::HEAD => true,
        Method::POST => READ_BY_POST.iter().any(|path| request.uri().path().starts_with(path)),
        _ => false,
    };
    if reads { Grant::Read } else { Grant::Write }
}

/// What changes nothing needs the read token, all else the write token.
pub(super) async fn guard(State(tokens): State<Tokens>, request: Request<Body>, next: Next) -> Response {
    let wanted = wanted(&request);
    match tokens.grant(auth::bearer_token(request.headers())) {
        Grant::Nothing => {
            let detail = "send `Authorization: Bearer <token>` with the token of this installation";
            let mut answer = problem(StatusCode::UNAUTHORIZED, "unauthorized", detail, Vec::new());
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            answer
        }
        granted if granted < wanted => {
            problem(StatusCode::FORBIDDEN, "read-only-token", "this token may read only", Vec::new())
        }
        _ => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_token_reads_and_the_read_token_does_not_write() {
        let both = Tokens::new(Some("w"), Some("r")).unwrap();
        assert_eq!(both.grant(Some(b"w")), Grant::Write);
        assert_eq!(both.grant(Some(b"r")), Grant::Read);
        assert_eq!(both.grant(Some(b"x")), Grant::Nothing);
        assert_eq!(both.grant(None), Grant::Nothing);
    }

    #[test]
    fn one_token_alone_closes_everything_to_those_without_it() {
        let write_only = Tokens::new(Some("w"), None).unwrap();
        assert_eq!((write_only.grant(None), write_only.grant(Some(b""))), (Grant::Nothing, Grant::Nothing));
        let read_only = Tokens::new(None, Some("r")).unwrap();
        assert_eq!((read_only.grant(None), read_only.grant(Some(b"r"))), (Grant::Nothing, Grant::Read));
        assert_eq!(Tokens::default().grant(None), Grant::Write);
        assert!(Tokens::new(Some(""), None).is_err());
    }
}
