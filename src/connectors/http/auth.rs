//! Who may send: tokens, passwords and signatures, compared without telling by the time it takes how much was right.
//!
//! Secrets arrive resolved. Where they come from is the business of whoever builds these values.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Bytes of an HMAC-SHA256.
const SIGNATURE_BYTES: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the secret is empty")]
    EmptySecret,
    #[error("{0:?} is not a header name")]
    HeaderName(String),
}

/// A secret to compare with. Holds its SHA-256, so that neither its text nor its length can leak from here.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn new(text: &str) -> Result<Self, Error> {
        if text.is_empty() { Err(Error::EmptySecret) } else { Ok(Secret(Sha256::digest(text).into())) }
    }

    pub fn matches(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.ct_eq(&given).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What a request has to show.
#[derive(Clone)]
pub enum Auth {
    /// Nothing, on purpose.
    Anybody,
    Bearer(Secret),
    Basic(Secret),
    /// An HMAC-SHA256 over the raw body.
    Signature {
        mac: Hmac<Sha256>,
        header: HeaderName,
        prefix: String,
    },
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Auth::Anybody => "Anybody",
            Auth::Bearer(_) => "Bearer",
            Auth::Basic(_) => "Basic",
            Auth::Signature { .. } => "Signature",
        })
    }
}

/// What the head of a request says about its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    /// Admitted when the body has this signature.
    Signed([u8; SIGNATURE_BYTES]),
    Refused,
}

impl Auth {
    pub fn bearer(token: &str) -> Result<Self, Error> {
        Secret::new(token).map(Auth::Bearer)
    }

    pub fn basic(username: &str, password: &str) -> Result<Self, Error> {
        if password.is_empty() {
            return Err(Error::EmptySecret);
        }
        Secret::new(&format!("{username}:{password}")).map(Auth::Basic)
    }

    pub fn signature(secret: &str, header: &str, prefix: &str) -> Result<Self, Error> {
        if secret.is_empty() {
            return Err(Error::EmptySecret);
        }
        let mac = Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
        let header = HeaderName::from_bytes(header.as_bytes()).map_err(|_| Error::HeaderName(header.to_owned()))?;
        Ok(Auth::Signature { mac, header, prefix: prefix.to_owned() })
    }

    /// Judges by the head alone, so that a stranger's body is never read.
    pub fn judge(&self, headers: &HeaderMap) -> Verdict {
        let admitted = match self {
            Auth::Anybody => true,
            Auth::Bearer(secret) => bearer_token(headers).is_some_and(|token| secret.matches(token)),
            Auth::Basic(secret) => credentials(headers, "basic")
                .and_then(|encoded| STANDARD.decode(encoded).ok())
                .is_some_and(|pair| secret.matches(&pair)),
            Auth::Signature { header, prefix, .. } => {
                return signature(headers, header, prefix).map_or(Verdict::Refused, Verdict::Signed);
            }
        };
        if admitted { Verdict::Admitted } else { Verdict::Refused }
    }

    /// Whether `body` carries this signature. Without a signature scheme there is nothing to be wrong about.
    pub fn verifies(&self, signature: &[u8; SIGNATURE_BYTES], body: &[u8]) -> bool {
        match self {
            Auth::Signature { mac, .. } => {
                let mut mac = mac.clone();
                mac.update(body);
                mac.verify_slice(signature).is_ok()
            }
            Auth::Anybody | Auth::Bearer(_) | Auth::Basic(_) => true,
        }
    }

    /// The value of `WWW-Authenticate` in a 401.
    pub fn challenge(&self) -> &'static str {
        match self {
            Auth::Anybody | Auth::Bearer(_) => "Bearer",
            Auth::Basic(_) => "Basic realm=\"vejas\", charset=\"UTF-8\"",
            Auth::Signature { .. } => "HMAC-SHA256",
        }
    }
}

/// The token of `Authorization: Bearer <token>`.
pub fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    credentials(headers, "bearer")
}

/// What follows the scheme, which is compared without regard to case. Two `Authorization` headers are none.
fn credentials<'a>(headers: &'a HeaderMap, scheme: &str) -> Option<&'a [u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (given, rest) = value.split_at_checked(scheme.len())?;
    let rest = rest.strip_prefix(b" ")?.trim_ascii();
    (given.eq_ignore_ascii_case(scheme.as_bytes()) && !rest.is_empty()).then_some(rest)
}

fn signature(headers: &HeaderMap, header: &HeaderName, prefix: &str) -> Option<[u8; SIGNATURE_BYTES]> {
    let mut values = headers.get_all(header).iter();
    let digits = values.next()?.as_bytes().strip_prefix(prefix.as_bytes())?;
    if values.next().is_some() || digits.len() != 2 * SIGNATURE_BYTES {
        return None;
    }
    let mut bytes = [0; SIGNATURE_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (hex_digit(pair[0])? << 4) | hex_digit(pair[1])?;
    }
    Some(bytes)
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.append(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn bearer_takes_the_exact_token_and_any_case_of_the_scheme() {
        let auth = Auth::bearer("s3cret").unwrap();
        for (value, expected) in [
            ("Bearer s3cret", Verdict::Admitted),
            ("bearer s3cret", Verdict::Admitted),
            ("Bearer s3cre", Verdict::Refused),
            ("Bearer s3cret2", Verdict::Refused),
            ("Bearer", Verdict::Refused),
            ("Bearer ", Verdict::Refused),
            ("Basic s3cret", Verdict::Refused),
            ("s3cret", Verdict::Refused),
        ] {
            assert_eq!(auth.judge(&head("authorization", value)), expected, "{value}");
        }
        assert_eq!(auth.judge(&HeaderMap::new()), Verdict::Refused);
    }

    #[test]
    fn two_authorization_headers_are_refused_even_when_one_is_right() {
        let mut headers = head("authorization", "Bearer s3cret");
        headers.append("authorization", "Bearer other".parse().unwrap());
        assert_eq!(Auth::bearer("s3cret").unwrap().judge(&headers), Verdict::Refused);
    }

    #[test]
    fn basic_takes_the_pair_and_nothing_else() {
        let auth = Auth::basic("ann", "p:w").unwrap();
        let given = |pair: &str| head("authorization", &format!("Basic {}", STANDARD.encode(pair)));
        assert_eq!(auth.judge(&given("ann:p:w")), Verdict::Admitted);
        assert_eq!(auth.judge(&given("ann:pw")), Verdict::Refused);
        assert_eq!(auth.judge(&head("authorization", "Basic ann:p:w")), Verdict::Refused);
    }

    /// The example of GitHub's page "Validating webhook deliveries".
    #[test]
    fn the_documented_webhook_signature_verifies_and_a_changed_body_does_not() {
        let auth = Auth::signature("It's a Secret to Everybody", "X-Hub-Signature-256", "sha256=").unwrap();
        let headers =
            head("x-hub-signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17");
        let Verdict::Signed(signature) = auth.judge(&headers) else { panic!("the head is well formed") };
        assert!(auth.verifies(&signature, b"Hello, World!"));
        assert!(!auth.verifies(&signature, b"Hello, World?"));
    }

    #[test]
    fn a_malformed_signature_is_refused_before_the_body() {
        let auth = Auth::signature("secret", "X-Sign", "").unwrap();
        for value in ["", "abc", &"g".repeat(64), &"a".repeat(66)] {
            assert_eq!(auth.judge(&head("x-sign", value)), Verdict::Refused, "{value}");
        }
    }

    #[test]
    fn empty_secrets_are_no_secrets() {
        assert_eq!(Auth::bearer("").unwrap_err(), Error::EmptySecret);
        assert_eq!(Auth::basic("ann", "").unwrap_err(), Error::EmptySecret);
        assert_eq!(Auth::signature("", "X-Sign", "").unwrap_err(), Error::EmptySecret);
    }

    #[test]
    fn debug_output_holds_no_secret() {
        assert_eq!(format!("{:?} {:?}", Auth::bearer("s3cret").unwrap(), Secret::new("x").unwrap()), "Bearer Secret");
    }
}
