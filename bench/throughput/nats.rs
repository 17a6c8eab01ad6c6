//! A hop over a NATS server beside what a program with nothing but the client library does ([`raw`](crate::raw)): by turns on
//! one server, on the same input, because what else the machine does meanwhile changes both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vejas::bus::nats::Nats;
use vejas::id::Names;

use crate::scenarios::{self, flow};
use crate::server::{self, Server};
use crate::support::Failure;
use crate::support::process::Process;
use crate::{Figures, Options, raw};

/// As little as a flow can do with a message beside handing it on.
const STEPS: &str = "    - map: .seen = true\n";

/// How often the processes are asked how far they are.
const LOOK_PERIOD: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(300);

struct Bench {
    server: Server,
    runtime: tokio::runtime::Runtime,
    bus: Arc<Nats>,
}

impl Bench {
    /// The outputs' rate; then the streams are deleted: each reserves its limit of the server's storage.
    fn rate_and_clear(&self, names: &Names, count: usize) -> Result<f64, Failure> {
        self.runtime.block_on(async {
            let rate = scenarios::rate_of(&*self.bus, names, "bench.out", count).await?;
            raw::delete_stream(&self.server.url(), &names.messages()).await?;
            // There is none where no process ran.
            let _ = raw::delete_stream(&self.server.url(), &names.dead_letters()).await;
            Ok(rate)
        })
    }
}

fn environment(server: &Server, root: &str, instance: &str) -> Vec<(&'static str, String)> {
    [
        ("VEJAS_CLUSTER", "1"),
        ("VEJAS_NATS_URL", server.url().as_str()),
        ("VEJAS_SUBJECT_ROOT", root),
        ("VEJAS_INSTANCE", instance),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec()
}

/// One instance, the limit, two instances.
pub fn hops(options: &Options, figures: &mut Figures) -> Result<(), Failure> {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new()?;
    let bus = runtime.block_on(server::connect(&server));
    let bench = Bench { server, runtime, bus };
    let (mut one, mut limits, mut two) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds.max(1) {
        one.push(hop(options, &bench, &format!("one{round}"), 1)?);
        limits.push(limit(options, &bench, &format!("raw{round}"))?);
        two.push(hop(options, &bench, &format!("two{round}"), 2)?);
        eprintln!("round {round}: hop {:.0}, limit {:.0}, two instances {:.0}", one[round], limits[round], two[round]);
    }
    let ratio = |over: &[f64], under: &[f64]| median(over.iter().zip(under).map(|(over, under)| over / under));
    figures.insert("ratio", ratio(&one, &limits));
    figures.insert("ratio_two_instances", ratio(&two, &one));
    figures.insert("hop_per_s", median(one));
    figures.insert("limit_per_s", median(limits));
    figures.insert("hop_two_instances_per_s", median(two));
    Ok(())
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Messages that wait on the server go through one flow, which as many processes share.
fn hop(options: &Options, bench: &Bench, root: &str, instances: usize) -> Result<f64, Failure> {
    let names = Names::new(root)?;
    bench.runtime.block_on(scenarios::store_input(&*bench.bus, &names, options.messages))?;
    let mut processes = Vec::new();
    for number in 0..instances {
        let mut process = Process::new(&flow(STEPS))?;
        for (name, value) in environment(&bench.server, root, &format!("i{number}")) {
            process.environment(name, value);
        }
        process.launch(&options.binary)?;
        processes.push(process);
    }
    processes.iter_mut().try_for_each(Process::wait_ready)?;
    let began = Instant::now();
    loop {
        // A process that is busy may give no answer in time.
        let found = emitted(&processes);
        if found.as_ref().is_ok_and(|count| *count >= options.messages as u64) {
            break;
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("the flow did not finish: {found:?} {}", processes[0].log()).into());
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    processes.iter_mut().try_for_each(Process::stop)?;
    bench.rate_and_clear(&names, options.messages)
}

fn emitted(processes: &[Process]) -> Result<u64, Failure> {
    processes.iter().map(|process| process.unit("flow/hop", "emitted")).sum()
}

fn limit(options: &Options, bench: &Bench, root: &str) -> Result<f64, Failure> {
    let names = Names::new(root)?;
    let (from, to) = (names.stored("bench.in"), names.stored("bench.out"));
    bench.runtime.block_on(async {
        scenarios::store_input(&*bench.bus, &names, options.messages).await?;
        let done = raw::hop(&bench.server.url(), &names.messages(), &from, &to, options.messages).await;
        done.map_err(|failure| Failure::from(format!("the limit: {failure}")))
    })?;
    bench.rate_and_clear(&names, options.messages)
}

/// Entrance, flow, sink.
pub fn end_to_end(options: &Options, figures: &mut Figures) -> Result<(), Failure> {
    let server = Server::start();
    scenarios::end_to_end(options, figures, &environment(&server, "vx", "i0"))
}
