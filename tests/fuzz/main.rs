//! Input that nobody meant: manifests, stored envelopes and requests made of noise, of mutated real ones, of repetition.
//! Nothing may panic, hang, swell, or be taken for what it is not. What was found is kept as a test of its own
//! beside the property.
//!
//! Each property runs for some seconds, with `VEJAS_TEST_FULL=1` for a minute each. A failing case is shrunk and printed.

#![allow(clippy::disallowed_methods)]

mod entrance;
mod envelope;
#[path = "../front/mod.rs"]
mod front;
mod manifests;
mod mutate;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const SHORT: Duration = Duration::from_secs(4);
const FULL: Duration = Duration::from_secs(60);
/// Cases between two looks at the clock.
const CASES: u32 = 16;

/// Puts cases to the test until the time is over; fails with the smallest case that fails.
fn fuzz<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>)
where
    S::Value: Debug,
{
    let full = std::env::var_os("VEJAS_TEST_FULL").is_some();
    let ends = Instant::now() + if full { FULL } else { SHORT };
    let mut cases = 0;
    while Instant::now() < ends {
        let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
        let outcome = TestRunner::new(config).run(&strategy, &test);
        outcome.unwrap_or_else(|failure| panic!("after {cases} cases: {failure}"));
        cases += CASES;
    }
    println!("{cases} cases");
}
