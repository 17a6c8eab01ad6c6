//! Who is let in, and which servers are taken.

use std::io::{Read, Write};
use std::net::TcpListener;

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
