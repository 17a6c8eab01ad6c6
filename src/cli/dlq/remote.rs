//! The same calls over the API.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::status::{self, cause};
use crate::api::view::Problem;
use crate::runtime::dead_letters::Selection;
use crate::runtime::dead_letters::view::{Detail, Edited, Page};

/// How long the question whether anything listens may take.
const LISTENS_WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error(transparent)]
    Client(#[from] status::Error),
    #[error("{detail}")]
    Refused { status: u16, code: String, detail: String },
}

/// The API of one process.
pub struct Remote {
    client: reqwest::Client,
    server: String,
    token: Option<String>,
}

impl Remote {
    pub fn new(server: String, token: Option<String>, ca: Option<PathBuf>) -> Result<Self, RemoteError> {
        let server = server.trim_end_matches('/').to_owned();
        let client = status::client(&server, ca.as_deref(), Some(status::ANSWER_WAIT_MAX))?;
        Ok(Remote { client, server, token: token.filter(|token| !token.is_empty()) })
    }

    pub fn server(&self) -> &str {
        &self.server
    }

    pub fn is_on_this_machine(&self) -> bool {
        let Ok(url) = reqwest::Url::parse(&self.server) else { return false };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Only a refused connection says that nothing listens; whatever else goes wrong, somebody may be there.
    pub async fn listens(&self) -> bool {
        let asked = self.client.get(format!("{}/healthz", self.server)).timeout(LISTENS_WAIT_MAX).send().await;
        !asked.is_err_and(|error| is_refused(&error))
    }

    pub async fn page(&self, selection: &Selection) -> Result<Page, RemoteError> {
        let mut query = Vec::new();
        let fields = serde_json::to_value(selection).expect("numbers and texts are JSON");
        for (name, value) in fields.as_object().into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            query.push((name.clone(), text));
        }
        let mut url = reqwest::Url::parse(&self.url("")).map_err(|error| self.foreign(&error))?;
        url.query_pairs_mut().extend_pairs(query);
        self.json(self.client.get(url)).await
    }

    pub async fn detail(&self, sequence: u64) -> Result<Detail, RemoteError> {
        self.json(self.request(Method::GET, &format!("/{sequence}"))).await
    }

    pub async fn payload(&self, sequence: u64) -> Result<Bytes, RemoteError> {
        self.send(self.request(Method::GET, &format!("/{sequence}/payload"))).await
    }

    pub async fn edit(&self, sequence: u64, payload: Bytes) -> Result<Edited, RemoteError> {
        self.json(self.request(Method::PUT, &format!("/{sequence}/payload")).body(payload)).await
    }

    /// `replay` or `purge`.
    pub async fn post<T: DeserializeOwned>(&self, verb: &str, body: &impl Serialize) -> Result<T, RemoteError> {
        let body = serde_json::to_vec(body).expect("numbers and texts are JSON");
        let request = self.request(Method::POST, &format!("/{verb}"));
        self.json(request.header("content-type", "application/json").body(body)).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1/dlq{path}", self.server)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, RemoteError> {
        let body = self.send(request).await?;
        serde_json::from_slice(&body).map_err(|error| self.foreign(&error))
    }

    fn foreign(&self, error: &dyn std::error::Error) -> RemoteError {
        status::Error::Foreign { server: self.server.clone(), reason: error.to_string() }.into()
    }

    async fn send(&self, mut request: RequestBuilder) -> Result<Bytes, RemoteError> {
        let server = || self.server.clone();
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let unreachable =
            |error: reqwest::Error| status::Error::Unreachable { server: server(), reason: cause(&error) };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return Ok(body);
        }
        if status.as_u16() == 401 {
            return Err(match self.token {
                None => status::Error::TokenMissing { server: server() },
                Some(_) => status::Error::TokenWrong { server: server() },
            }
            .into());
        }
        let status = status.as_u16();
        Err(match serde_json::from_slice::<Problem>(&body) {
            Ok(Problem { code, detail, .. }) => RemoteError::Refused { status, code, detail },
            Err(_) => status::Error::Refused { server: server(), status, detail: String::new() }.into(),
        })
    }
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused) {
            return true;
        }
        next = error.source();
    }
    false
}
