//! A push is told by a webhook, and taken at once.

use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::repository::{NEVER, Repository, flow, follower, is_at, until};
use crate::support::{Vejas, get, request};

const SECRET: &str = "s3cret";

fn signature(body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn call(vejas: &Vejas, headers: &[(&str, &str)], body: &str) -> u16 {
    request(vejas.api, "POST", "/api/v1/git/webhook", headers, body.as_bytes()).unwrap().0
}

#[test]
fn a_signed_call_causes_a_look_and_others_are_refused_and_counted() {
    let repository = Repository::new();
    let mut vejas = follower(&format!("file://{}", repository.path().display()), NEVER);
    vejas.environment("VEJAS_GIT_WEBHOOK_SECRET", SECRET).environment("VEJAS_TOKEN", "t");
    vejas.launch();
    let deadline = Instant::now() + crate::support::PATIENCE;
    while !get(vejas.api, "/readyz").is_ok_and(|(status, _)| status == 200) {
        assert!(Instant::now() < deadline, "{}", vejas.log());
    }
    // The token of the API is not asked for; the signature is.
    let bodies = ["{\"n\":1}", "{\"n\":2}", "{\"n\":3}"];
    let github = format!("sha256={}", signature(bodies[0]));
    let forms = [
        ("X-Hub-Signature-256", github.clone()),
        ("X-Gitea-Signature", signature(bodies[1])),
        ("X-Gitlab-Token", SECRET.to_owned()),
    ];
    let published = |commit: &str| {
        let deadline = Instant::now() + crate::support::PATIENCE;
        loop {
            let (_, body) =
                request(vejas.api, "GET", "/api/v1/revisions", &[("Authorization", "Bearer t")], b"").unwrap();
            if is_at(&serde_json::from_str(&body).unwrap(), commit) {
                return;
            }
            assert!(Instant::now() < deadline, "{body}\n{}", vejas.log());
        }
    };
    for ((name, value), body) in forms.iter().zip(bodies) {
        repository.write("m/flow.yaml", &flow(&format!(".v = \"{name}\"")));
        let commit = repository.commit(name);
        assert_eq!(call(&vejas, &[(name, value)], body), 200, "{name}");
        published(&commit);
    }
    assert_eq!(call(&vejas, &[("X-Hub-Signature-256", &github)], bodies[0]), 409, "replayed");
    assert_eq!(call(&vejas, &[("X-Hub-Signature-256", &github)], "{\"n\":9}"), 401, "another body");
    assert_eq!(call(&vejas, &[("Authorization", "Bearer t")], "{}"), 401, "unsigned");
    let (_, metrics) = request(vejas.api, "GET", "/metrics", &[("Authorization", "Bearer t")], b"").unwrap();
    for line in ["result=\"taken\"} 3", "result=\"replayed\"} 1", "result=\"unsigned\"} 2"] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[test]
fn without_a_secret_the_webhook_is_closed() {
    let repository = Repository::new();
    let mut vejas = follower(&format!("file://{}", repository.path().display()), NEVER);
    vejas.start();
    until(&vejas, "the first", |found| found["publication"]["no"] == 1);
    assert_eq!(call(&vejas, &[("X-Gitlab-Token", "")], "{}"), 404);
}

#[test]
fn a_call_that_comes_while_the_repository_is_being_looked_at_causes_another_look() {
    let repository = Repository::new();
    // Each is compiled: a look takes long enough for the second push to come into it, after the fetch.
    for n in 0..200 {
        let text = flow(&format!(".n = {n}")).replace("name: work", &format!("name: f{n}"));
        repository.write(&format!("m/f{n}.yaml"), &text);
    }
    repository.commit("many");
    let mut vejas = follower(&format!("file://{}", repository.path().display()), NEVER);
    vejas.environment("VEJAS_GIT_WEBHOOK_SECRET", SECRET);
    vejas.start();
    for round in 0..3 {
        for half in ["a", "b"] {
            repository.write("m/flow.yaml", &flow(&format!(".v = \"{round}{half}\"")));
            repository.commit(half);
            assert_eq!(call(&vejas, &[("X-Gitlab-Token", SECRET)], &format!("{round}{half}")), 200);
        }
        let commit = repository.git(&["rev-parse", "HEAD"]);
        until(&vejas, "the second push", |found| is_at(found, &commit));
    }
}
