//! A repository behind HTTP with a token: git's own `http-backend`, and a server in front of it that asks for credentials.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::repository::{Repository, flow, follower, is_at, until, until_not_synced};

const TOKEN: &str = "t0ken-of-the-test";

/// Serves until the test ends. `redirects_to` sends every request elsewhere.
fn serve(root: PathBuf, redirects_to: Option<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let root = root.clone();
            thread::spawn(move || answer(connection.unwrap(), &root, redirects_to));
        }
    });
    address
}

fn answer(connection: TcpStream, root: &Path, redirects_to: Option<SocketAddr>) {
    let mut input = BufReader::new(connection.try_clone().unwrap());
    let mut output = connection;
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
    if let Some(other) = redirects_to {
        // The same server under another name.
        let location = format!("http://localhost:{}{target}", other.port());
        let text =
            format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return output.write_all(text.as_bytes()).unwrap();
    }
    let wanted = format!("Basic {}", STANDARD.encode(format!("git:{TOKEN}")));
    if header("authorization") != Some(wanted) {
        let text = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"git\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        return output.write_all(text.as_bytes()).unwrap();
    }
    let length: usize = header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    input.read_exact(&mut body).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut backend = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
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
    output.write_all(head.as_bytes()).unwrap();
    output.write_all(&answer).unwrap();
}

fn root(repository: &Repository) -> PathBuf {
    repository.path().parent().unwrap().to_owned()
}

#[test]
fn a_repository_behind_a_token_is_followed_and_a_wrong_one_is_told_and_never_shown() {
    let repository = Repository::new();
    let url = format!("http://{}/repo/.git", serve(root(&repository), None));
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
    let elsewhere = serve(root(&repository), None);
    let url = format!("http://{}/repo/.git", serve(root(&repository), Some(elsewhere)));
    let mut vejas = follower(&url, "500ms");
    vejas.environment("VEJAS_GIT_TOKEN", TOKEN);
    vejas.launch();
    vejas.wait_for_api();
    until_not_synced(&vejas, "failing", "cannot redirect from '127.0.0.1' to 'localhost'");
}
