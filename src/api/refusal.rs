//! What a call ends with when it does not succeed. Which error is which status is decided where the call is served.

use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::status::problem;

pub(super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    detail: String,
    reasons: Vec<String>,
}

impl Refusal {
    /// `code` is for programs, `detail` for people.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Refusal { status, code, detail: detail.into(), reasons: Vec::new() }
    }

    pub fn because(self, reasons: Vec<String>) -> Self {
        Refusal { reasons, ..self }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        problem(self.status, self.code, &self.detail, self.reasons)
    }
}

macro_rules! bad_request {
    ($($rejection:ty),*) => {$(
        impl From<$rejection> for Refusal {
            fn from(rejection: $rejection) -> Self {
                Refusal::new(rejection.status(), "bad-request", rejection.body_text())
            }
        }
    )*};
}
bad_request!(BytesRejection, JsonRejection, PathRejection, QueryRejection);
