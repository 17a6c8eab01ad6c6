//! Who is let in, and which servers are taken.

use std::io::{Read, Write};
use std::net::TcpListener;

use base64::Engine as _;
use vejas::bus::nats::{ConnectError, Credentials, Nats};

use crate::server::{self, Server};

async fn connects(server: &Server, credentials: Credentials) -> Result<(), ConnectError> {
    let mut options = server::options(&server.url());
    options.credentials = credentials;
    Nats::connect(options).await.map(drop)
}

fn user(user: &str, password: &str) -> Credentials {
    Credentials::User { user: user.into(), password: password.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_the_password() {
    let server = Server::with("authorization { user: u, password: p }");
    connects(&server, user("u", "p")).await.unwrap();
    assert!(matches!(connects(&server, user("u", "q")).await, Err(ConnectError::Refused { .. })));
    assert!(matches!(connects(&server, Credentials::None).await, Err(ConnectError::Refused { .. })));
    let url = server.url().replace("nats://", "nats://u:p@");
    Nats::connect(server::options(&url)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_has_to_be_the_right_one() {
    let server = Server::with("authorization { token: secret }");
    connects(&server, Credentials::Token("secret".into())).await.unwrap();
    assert!(matches!(connects(&server, Credentials::Token("other".into())).await, Err(ConnectError::Refused { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_file_signs_the_servers_challenge() {
    let pair = nkeys::KeyPair::new_user();
    let server = Server::with(&format!("authorization {{ users: [ {{ nkey: {} }} ] }}", pair.public_key()));
    let write = |name: &str, pair: &nkeys::KeyPair| {
        let path = server.folder().join(name);
        std::fs::write(&path, pair.seed().unwrap()).unwrap();
        Credentials::Nkey(path)
    };
    connects(&server, write("right", &pair)).await.unwrap();
    let other = write("other", &nkeys::KeyPair::new_user());
    assert!(matches!(connects(&server, other).await, Err(ConnectError::Refused { .. })));
    let missing = connects(&server, Credentials::Nkey("missing".into())).await;
    assert!(matches!(missing, Err(ConnectError::File { .. })));
}

/// A JWT as NATS wants it: the claims, signed by the issuer's key.
fn jwt(issuer: &nkeys::KeyPair, subject: &nkeys::KeyPair, nats: &serde_json::Value) -> String {
    let encode = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let header = serde_json::json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = serde_json::json!({
        "jti": subject.public_key(), "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject.public_key(), "name": "n",
        "nats": nats,
    });
    let signed = format!("{}.{}", encode(header.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", encode(&signature))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creds_file_holds_a_jwt_that_the_account_signed() {
    let (operator, account) = (nkeys::KeyPair::new_operator(), nkeys::KeyPair::new_account());
    let no_limits = serde_json::json!({
        "subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1, "wildcards": true,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let operator_jwt = jwt(&operator, &operator, &serde_json::json!({ "type": "operator", "version": 2 }));
    let claims = serde_json::json!({ "type": "account", "version": 2, "limits": no_limits });
    let account_jwt = jwt(&operator, &account, &claims);
    let system = nkeys::KeyPair::new_account();
    let system_jwt = jwt(&operator, &system, &serde_json::json!({ "type": "account", "version": 2 }));
    let server = Server::with(&format!(
        "operator: {operator_jwt}\nsystem_account: {1}\nresolver: MEMORY\nresolver_preload: {{ {0}: {account_jwt}, {1}: {system_jwt} }}",
        account.public_key(),
        system.public_key()
    ));
    let write = |name: &str, issuer: &nkeys::KeyPair| {
        let user = nkeys::KeyPair::new_user();
        let claims = serde_json::json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            jwt(issuer, &user, &claims),
            user.seed().unwrap()
        );
        let path = server.folder().join(name);
        std::fs::write(&path, text).unwrap();
        Credentials::Creds(path)
    };
    connects(&server, write("right", &account)).await.unwrap();
    let foreign = write("foreign", &nkeys::KeyPair::new_account());
    assert!(matches!(connects(&server, foreign).await, Err(ConnectError::Refused { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_both_sides_show_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let key = || rcgen::KeyPair::generate().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (ca_key, mut ca) = (key(), rcgen::CertificateParams::default());
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_file = write("ca", ca.self_signed(&ca_key).unwrap().pem());
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let signed = |name: &str| {
        let own = key();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&own, &issuer).unwrap();
        (write(&format!("{name}.crt"), certificate.pem()), write(&format!("{name}.key"), own.serialize_pem()))
    };
    let ((cert, cert_key), client) = (signed("server"), signed("client"));
    let server = Server::with(&format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {ca_file:?}, verify: true }}",
        cert, cert_key
    ));
    let mut options = server::options(&server.url());
    options.tls.ca = Some(ca_file);
    assert!(Nats::connect(options.clone()).await.is_err(), "without a certificate of ours");
    options.tls.certificate = Some(client);
    Nats::connect(options.clone()).await.unwrap();
    options.tls.ca = None;
    assert!(Nats::connect(options).await.is_err(), "signed by nobody the system knows");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_is_refused_with_both_versions() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let info = r#"INFO {"server_id":"X","version":"2.11.9","headers":true,"jetstream":true,"max_payload":1048576}"#;
        stream.write_all(format!("{info}\r\n").as_bytes()).unwrap();
        let mut heard = [0; 4096];
        while stream.read(&mut heard).is_ok_and(|count| count > 0) {
            let _ = stream.write_all(b"PONG\r\n");
        }
    });
    let error = Nats::connect(server::options(&url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Version { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("2.11.9") && text.contains("2.12"), "{text}");
}
