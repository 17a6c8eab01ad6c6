//! Ten thousand manifests with two hundred distinct programs.

use std::fs;
use std::time::Instant;

use super::vejas;

const MANIFESTS: usize = 10_000;
const PROGRAMS: usize = 200;
/// The aim is 3 s for the release build on two free cores. Without optimisation and beside other tests it is a multiple;
/// what grows quadratically is far beyond this, too.
const SECONDS_MAX: u64 = if cfg!(debug_assertions) { 60 } else { 3 };

#[test]
fn ten_thousand_manifests_are_checked_in_time() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..MANIFESTS {
        let sub = folder.path().join(format!("{}", n / 1_000));
        if n % 1_000 == 0 {
            fs::create_dir(&sub).unwrap();
        }
        let text = match n {
            0 => "apiVersion: vejas/v1\nkind: Source\nmetadata: { name: tick }\nspec: { interval: { every: 10s }, to: chain.0 }\n"
                .to_owned(),
            _ if n == MANIFESTS - 1 => format!(
                "apiVersion: vejas/v1\nkind: Sink\nmetadata: {{ name: out }}\nspec: {{ from: chain.{}, stdout: {{}} }}\n",
                n - 1
            ),
            _ => format!(
                "apiVersion: vejas/v1\nkind: Flow\nmetadata: {{ name: flow-{n} }}\nspec:\n  from: chain.{}\n  steps:\n    - map: \
                 |\n        .step = {}\n        .items = push(array(.items) ?? [], .step)\n        .name = upcase(string(.name) \
                 ?? \"none\")\n  to: chain.{n}\n",
                n - 1,
                n % PROGRAMS
            ),
        };
        fs::write(sub.join(format!("{n:05}.yaml")), text).unwrap();
    }
    let started = Instant::now();
    let run = vejas(folder.path(), &["check", "."], None);
    let taken = started.elapsed();
    println!("{MANIFESTS} manifests, {PROGRAMS} distinct programs: {taken:?}");
    assert_eq!(run.text(), "no problems in 10000 manifests\n--- exit 0\n");
    assert!(taken.as_secs() < SECONDS_MAX, "{taken:?}");
}
