//! A repository behind HTTP with a token: git's own `http-backend`, and a server in front of it that asks for credentials; with and
//! without TLS.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::repository::{Repository, flow, follower, is_at, until, until_not_synced};

const TOKEN: &str = "t0ken-of-the-test";

#[derive(Clone, Default)]
struct Serving {
    root: PathBuf,
    /// Sends every request there.
    redirects_to: Option<SocketAddr>,
    tls: Option<Arc<ServerConfig>>,
}

/// Serves until the test ends.
fn serve(serving: Serving) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (serving, connection) = (serving.clone(), connection.unwrap());
            thread::spawn(move || match &serving.tls {
                None => answer(connection, &serving),
                Some(tls) => {
                    let session = ServerConnection::new(Arc::clone(tls)).unwrap();
                    answer(StreamOwned::new(session, connection), &serving);
                }
            });
        }
    });
    address
}

fn answer(connection: impl Read + Write, serving: &Serving) {
    let mut input = BufReader::new(connection);
    let mut line = String::new();
    if input.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let header = |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
    if let Some(other) = serving.redirects_to {
        // The same server under another name.
        let location = format!("http://localhost:{}{target}", other.port());
        let text =
            format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return input.get_mut().write_all(text.as_bytes()).unwrap();
    }
    let wanted = format!("Basic {}", STANDARD.encode(format!("git:{TOKEN}")));
    if header("authorization") != Some(wanted) {
        let text = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"git\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        return input.get_mut().write_all(text.as_bytes()).unwrap();
    }
    let length: usize = header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    input.read_exact(&mut body).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut backend = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &serving.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", header("content-type").unwrap_or_default())
        .env("CONTENT_LENGTH", length.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    backend.stdin.take().unwrap().write_all(&body).unwrap();
    let answer = backend.wait_with_output().unwrap().stdout;
    let head_end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let length = answer.len() - head_end;
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n");
    input.get_mut().write_all(head.as_bytes()).unwrap();
    input.get_mut().write_all(&answer).unwrap();
}

fn serving(repository: &Repository) -> Serving {
    Serving { root: repository.path().parent().unwrap().to_owned(), ..Serving::default() }
}

/// An authority of the test's own, as PEM, and a certificate of it for `name`.
fn certified(name: &str) -> (String, ServerConfig) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "an authority of the test");
    let authority_key = KeyPair::generate().unwrap();
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    (authority_pem, config)
}

#[test]
fn a_repository_behind_a_token_is_followed_and_a_wrong_one_is_told_and_never_shown() {
    let repository = Repository::new();
    let url = format!("http://{}/repo/.git", serve(serving(&repository)));
    let mut vejas = follower(&url, "500ms");
    vejas.environment("VEJAS_GIT_TOKEN", TOKEN);
    vejas.start();
    repository.write("m/flow.yaml", &flow(".v = 2"));
    let commit = repository.commit("second");
    until(&vejas, "the commit", |found| is_at(found, &commit));
    vejas.stop();
    assert!(!vejas.log().contains(TOKEN), "{}", vejas.log());

    vejas.environment("VEJAS_GIT_TOKEN", "an-old-one");
    vejas.start();
    let found = until_not_synced(&vejas, "failing", "refuses the credentials");
    assert_eq!(found["publication"]["no"], 2, "what was published goes on");
    assert!(!(vejas.log() + &found.to_string()).contains("an-old-one"), "{}", vejas.log());
    vejas.stop();

    vejas.environment("VEJAS_GIT_TOKEN", "");
    vejas.start();
    until_not_synced(&vejas, "failing", "VEJAS_GIT_TOKEN gives one");
}

#[test]
fn a_redirect_to_another_host_is_not_followed_with_our_credentials() {
    let repository = Repository::new();
    let elsewhere = serve(serving(&repository));
    let url = format!("http://{}/repo/.git", serve(Serving { redirects_to: Some(elsewhere), ..serving(&repository) }));
    let mut vejas = follower(&url, "500ms");
    vejas.environment("VEJAS_GIT_TOKEN", TOKEN);
    vejas.launch();
    vejas.wait_for_api();
    until_not_synced(&vejas, "failing", "cannot redirect from '127.0.0.1' to 'localhost'");
}

#[test]
fn a_certificate_is_checked_for_its_authority_and_its_name() {
    let repository = Repository::new();
    let (authority, tls) = certified("localhost");
    let address = serve(Serving { tls: Some(Arc::new(tls)), ..serving(&repository) });
    let url = |host: &str| format!("https://{host}:{}/repo/.git", address.port());
    let mut vejas = follower(&url("localhost"), "500ms");
    vejas.environment("VEJAS_GIT_TOKEN", TOKEN);
    vejas.launch();
    vejas.wait_for_api();
    until_not_synced(&vejas, "failing", "certificate");
    vejas.stop();

    let file = vejas.folder.path().join("authority.pem");
    fs::write(&file, authority).unwrap();
    vejas.environment("SSL_CERT_FILE", file.to_str().unwrap());
    vejas.start();
    repository.write("m/flow.yaml", &flow(".v = 2"));
    let commit = repository.commit("second");
    until(&vejas, "the commit over TLS", |found| is_at(found, &commit));
    vejas.stop();

    vejas.environment("VEJAS_GIT_URL", &url("127.0.0.1"));
    vejas.start();
    until_not_synced(&vejas, "failing", "certificate");
}
