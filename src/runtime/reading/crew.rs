//! The workers of one unit: one for each durable that its record names.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{After, Ready, STOP_MAX};
use crate::ports::bus;
use crate::runtime::{flow_worker, sink_worker};
use crate::unit::context::Context;

/// Why a worker ended that nobody told to.
pub(super) struct Broken {
    pub reason: String,
    /// Its durable is not there any more: another member put a former version away, or purged the unit.
    pub gone: bool,
}

impl Broken {
    fn of(error: &bus::Error) -> Self {
        Broken { reason: error.to_string(), gone: matches!(error, bus::Error::NoDurable { .. }) }
    }

    pub fn after(self) -> After {
        After::Broken(self.reason)
    }
}

/// The workers of one unit.
pub(super) struct Crew {
    context: Context,
    pub tasks: JoinSet<(u32, Result<(), Broken>)>,
    pub tokens: BTreeMap<u32, (CancellationToken, AbortHandle)>,
}

impl Crew {
    pub fn new(context: Context) -> Self {
        Crew { context, tasks: JoinSet::new(), tokens: BTreeMap::new() }
    }

    pub fn start(&mut self, ready: Ready) {
        let stopping = self.context.stopping.child_token();
        let context = Context { stopping: stopping.clone(), ..self.context.clone() };
        let (number, task) = match ready {
            Ready::Flow(flow) => {
                let number = flow.number;
                let task = self.tasks.spawn(async move {
                    (number, flow_worker::run(context, *flow).await.map_err(|error| Broken::of(&error)))
                });
                (number, task)
            }
            Ready::Sink(sink) => {
                let number = sink.number;
                let task = self.tasks.spawn(async move {
                    let ended = sink_worker::run(context, *sink).await;
                    (number, ended.map_err(|sink_worker::Error::Bus { error, .. }| Broken::of(&error)))
                });
                (number, task)
            }
        };
        self.tokens.insert(number, (stopping, task));
    }

    pub async fn stop_one(&mut self, number: u32) {
        let Some((token, task)) = self.tokens.remove(&number) else { return };
        token.cancel();
        // The others run on; one that ends now is met by the next look at the tasks.
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                if matches!(ended, Ok((ended, _)) if ended == number) {
                    return;
                }
            }
        };
        if tokio::time::timeout(STOP_MAX, ended).await.is_err() {
            task.abort();
        }
    }

    /// Ends them all. What did not end in time is cut off; its messages are handed out again when their ack wait is over.
    pub async fn stop(mut self, wait: Duration) -> Result<(), Broken> {
        self.tokens.values().for_each(|(token, _)| token.cancel());
        let mut broken = None;
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                match ended {
                    Ok((_, Ok(()))) => {}
                    Ok((_, Err(error))) => broken = Some(error).filter(|broken| !broken.gone),
                    Err(panic) => broken = Some(Broken { reason: format!("it broke off: {panic}"), gone: false }),
                }
            }
        };
        let _ = tokio::time::timeout(wait, ended).await;
        self.tasks.shutdown().await;
        broken.map_or(Ok(()), Err)
    }
}
