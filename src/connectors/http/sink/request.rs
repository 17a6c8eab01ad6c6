//! What a request carries, and the client that sends it.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, redirect};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use super::{CONNECT_MAX, Error, IDLE_MAX};
use crate::connectors::secret::{Resolve, Secret};
use crate::flow::dead_letter::business_id;
use crate::flow::message::{self, Stored};
use crate::id::UnitId;
use crate::manifest::connector::http::{Auth, BatchFormat, Http};

/// A shorter secret is not looked for in answers: it would hide ordinary words.
const HIDDEN_BYTES_MIN: usize = 4;

/// The headers of every request.
pub(super) struct Fixed {
    pub headers: HeaderMap,
    /// Secrets that an answer might echo.
    pub hidden: Vec<String>,
}

pub(super) fn fixed(spec: &Http, resolve: Resolve<'_>) -> Result<Fixed, Error> {
    let content_type = match spec.batch.as_ref().map(|batch| batch.format) {
        Some(BatchFormat::Ndjson) => "application/x-ndjson",
        Some(BatchFormat::JsonArray) | None => "application/json",
    };
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    let mut secrets: Vec<Secret> = Vec::new();
    for (name, setting) in &spec.headers {
        let value = resolve(setting)?;
        let header = HeaderName::try_from(name.as_str()).map_err(|_| Error::HeaderName(name.clone()))?;
        headers.insert(header, sensitive(value.expose(), name)?);
        secrets.push(value);
    }
    let authorization = match &spec.auth {
        None => None,
        Some(Auth::Bearer { token }) => {
            let token = resolve(token)?;
            let value = format!("Bearer {}", token.expose());
            secrets.push(token);
            Some(value)
        }
        Some(Auth::Basic { username, password }) => {
            let (username, password) = (resolve(username)?, resolve(password)?);
            let pair = STANDARD.encode(format!("{}:{}", username.expose(), password.expose()));
            let value = format!("Basic {pair}");
            secrets.extend([password, Secret::new(pair)]);
            Some(value)
        }
    };
    if let Some(value) = authorization {
        headers.insert(AUTHORIZATION, sensitive(&value, "authorization")?);
    }
    let hidden = secrets.iter().filter(|secret| secret.is_referenced() || spec.auth.is_some());
    let hidden = hidden.map(|secret| secret.expose().to_owned());
    Ok(Fixed { headers, hidden: hidden.filter(|text| is_hidden(text)).collect() })
}

/// Whether a secret is looked for in answers.
pub(super) fn is_hidden(text: &str) -> bool {
    text.len() >= HIDDEN_BYTES_MIN
}

fn sensitive(value: &str, name: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::try_from(value).map_err(|_| Error::HeaderValue(name.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Adds what depends on the messages: `Idempotency-Key` and the trace context of the first that has one.
pub(super) fn describe(headers: &mut HeaderMap, unit: &UnitId, messages: &[&Stored]) {
    headers.insert(HeaderName::from_static("idempotency-key"), idempotency_key(unit, messages));
    let trace = messages.iter().find_map(|stored| stored.headers.get(message::TRACEPARENT));
    if let Some(trace) = trace.and_then(|trace| HeaderValue::try_from(trace).ok()) {
        headers.insert(HeaderName::from_static(message::TRACEPARENT), trace);
    }
}

/// `<unit>/<Vejas-Id>`; a digest takes the id's place for a batch, and for an id that no header can hold.
fn idempotency_key(unit: &UnitId, messages: &[&Stored]) -> HeaderValue {
    let plain = match messages {
        [message] => HeaderValue::try_from(format!("{unit}/{}", business_id(message))).ok(),
        _ => None,
    };
    plain.unwrap_or_else(|| {
        let mut digest = Sha256::new();
        for message in messages {
            let id = business_id(message);
            digest.update((id.len() as u64).to_le_bytes());
            digest.update(id);
        }
        let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::try_from(format!("{unit}/{hex}")).expect("a unit's name is plain")
    })
}

/// A client with every time-out set, that trusts the given certificates or else the public ones.
pub(super) fn client(timeout: Duration, certificates: Option<&[u8]>) -> Result<Client, Error> {
    let mut roots = RootCertStore::empty();
    match certificates {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| Error::Certificates(error.to_string()))?;
                roots.add(certificate).map_err(|error| Error::Certificates(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(Error::Certificates("it holds none".to_owned()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Client(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .timeout(timeout)
        .read_timeout(timeout)
        .connect_timeout(timeout.min(CONNECT_MAX))
        .pool_idle_timeout(IDLE_MAX)
        .tcp_keepalive(IDLE_MAX)
        .no_proxy()
        .user_agent(concat!("vejas/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| Error::Client(error.without_url().to_string()))
}
