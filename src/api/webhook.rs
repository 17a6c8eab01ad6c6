//! `POST /api/v1/git/webhook`: a forge says that something was pushed. GitHub, GitLab and Gitea forms.
//!
//! The body only says that it is worth a look: what is taken is decided by the repository alone. So a forged or replayed call could do
//! no more than cause a fetch; both are refused all the same, and counted.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Told;
use super::routes::{self, Operation, Route};
use super::status::problem;

/// Largest payload, in bytes: what GitHub sends at most.
const BODY_BYTES_MAX: usize = 25 << 20;
/// Deliveries remembered, against replays.
const DELIVERIES_MAX: usize = 1_024;

pub(super) fn route() -> Route {
    routes::route(
        "/api/v1/git/webhook",
        post(webhook).layer(DefaultBodyLimit::max(BODY_BYTES_MAX)),
        [Operation::post(
            "A push to the repository, told by GitHub, Gitea (HMAC-SHA256 of the body) or GitLab (token). Causes a look at the repository.",
        )
        .takes_bytes()
        .refuses(401, "The signature is missing or wrong.")
        .refuses(404, "No repository is followed, or no secret is set.")
        .refuses(409, "This delivery was received before.")
        .refuses(413, "The body is too large.")
        .refuses(503, "The bus does not answer.")],
    )
}

/// Deliveries that were taken. One process sees what comes to it; another one would only look once more.
#[derive(Debug, Default)]
pub struct Seen(Mutex<VecDeque<Vec<u8>>>);

impl Seen {
    /// Whether it is new.
    fn take(&self, delivery: Vec<u8>) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(&delivery) {
            return false;
        }
        if seen.len() >= DELIVERIES_MAX {
            seen.pop_front();
        }
        seen.push_back(delivery);
        true
    }
}

async fn webhook(State(told): State<Told>, headers: HeaderMap, body: Bytes) -> Response {
    let count = |result: &'static str| metrics::counter!("vejas_git_webhooks_total", "result" => result).increment(1);
    let (Some(secret), Some(publisher)) = (&told.webhook_secret, &told.publisher) else {
        count("closed");
        let detail = "the webhook is closed: VEJAS_GIT_URL and VEJAS_GIT_WEBHOOK_SECRET open it";
        return problem(StatusCode::NOT_FOUND, "no-webhook", detail, Vec::new());
    };
    if !is_signed(secret.as_bytes(), &headers, &body) {
        count("unsigned");
        let detail = "no X-Hub-Signature-256, X-Gitea-Signature or X-Gitlab-Token fits the body and the secret";
        return problem(StatusCode::UNAUTHORIZED, "unsigned", detail, Vec::new());
    }
    // Known by its body: the headers with an id of the delivery are not signed.
    if !told.webhooks.take(Sha256::digest(&body).to_vec()) {
        count("replayed");
        return problem(StatusCode::CONFLICT, "replayed", "this delivery was received before", Vec::new());
    }
    match publisher.versions().request_sync(told.clock.now()).await {
        Ok(()) => {
            count("taken");
            (StatusCode::OK, "the repository is looked at\n").into_response()
        }
        Err(error) => problem(StatusCode::SERVICE_UNAVAILABLE, "bus", &error.to_string(), Vec::new()),
    }
}

/// Compared in constant time.
fn is_signed(secret: &[u8], headers: &HeaderMap, body: &[u8]) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let github = header("X-Hub-Signature-256").and_then(|value| value.strip_prefix("sha256="));
    if let Some(signature) = github.or_else(|| header("X-Gitea-Signature")) {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes any key");
        mac.update(body);
        let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        return expected.as_bytes().ct_eq(signature.to_ascii_lowercase().as_bytes()).into();
    }
    header("X-Gitlab-Token").is_some_and(|token| token.as_bytes().ct_eq(secret).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn the_forms_of_three_forges_are_taken_and_nothing_else() {
        // HMAC-SHA256("secret", "body"), by another program.
        let good = "dc46983557fea127b43af721467eb9b3fde2338fe3e14f51952aa8478c13d355";
        let signed = |headers: &HeaderMap| is_signed(b"secret", headers, b"body");
        assert!(signed(&with("X-Hub-Signature-256", &format!("sha256={good}"))));
        assert!(signed(&with("X-Gitea-Signature", good)));
        assert!(signed(&with("X-Gitlab-Token", "secret")));
        assert!(!signed(&HeaderMap::new()));
        assert!(!signed(&with("X-Hub-Signature-256", good)), "without its prefix");
        assert!(!signed(&with("X-Gitea-Signature", &good.replace('d', "e"))));
        assert!(!signed(&with("X-Gitlab-Token", "secre")));
    }

    #[test]
    fn a_delivery_is_taken_once_and_the_memory_is_bounded() {
        let seen = Seen::default();
        assert!(seen.take(b"1".to_vec()) && !seen.take(b"1".to_vec()));
        (0..DELIVERIES_MAX).for_each(|n| _ = seen.take(n.to_be_bytes().to_vec()));
        assert_eq!(seen.0.lock().unwrap().len(), DELIVERIES_MAX);
    }
}
