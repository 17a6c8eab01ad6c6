//! `vejas replay` and `vejas shadow`: a candidate of a flow beside the version that runs. What is compared and how is decided in
//! `runtime::replay`; here the candidate is gathered and the differences are shown.

mod gather;
mod text;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, ValueEnum};
use serde::Serialize;

use super::api::Api;
use super::exit::Exit;
use super::output;
use super::status::{self, Error, cause, client, refusal};
use super::tap::events::Events;
use crate::api::{REPLAY_BYTES_MAX, view};
use crate::manifest::value::Span;
use crate::runtime::replay::MESSAGES_DEFAULT;
use crate::runtime::replay::view::{Candidate, End, Message, Open, Replay, Shadow};

/// The longest silence: the process sends a comment after ten seconds of it.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Compare a changed flow with the one that runs, on stored messages.
///
/// Both versions are run in the process on the same messages. Nothing is published or acknowledged, and no dedupe mark is
/// written. Ends with 0 when nothing differs and with 1 when something does.
#[derive(Debug, Parser)]
pub struct ReplayArgs {
    #[command(flatten)]
    what: What,
    /// Messages stored at or after this time: RFC 3339, or how long ago (`2h`). Default: 1h, or every dead letter.
    #[arg(long, conflicts_with = "from_seq")]
    since: Option<String>,
    /// Messages from this sequence on.
    #[arg(long, value_name = "N")]
    from_seq: Option<u64>,
    /// The dead letters of the flow in place of what it reads: would the candidate take them?
    #[arg(long)]
    dead_letters: bool,
}

/// Compare a changed flow with the one that runs, on messages as they come.
///
/// Messages are read beside the flow, which does not notice it. Ends when the time is over or another version of the flow runs;
/// with 0 when nothing differed and with 1 when something did.
#[derive(Debug, Parser)]
pub struct ShadowArgs {
    #[command(flatten)]
    what: What,
    /// How long, at most 24h.
    #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = |text: &str| Span::parse(text))]
    lasts: Span,
}

#[derive(Debug, ClapArgs)]
struct What {
    /// The flow, such as price-orders.
    flow: String,
    /// A file that declares the flow as it might become. Schemas, tables and the files these name are looked for in its folder
    /// first, then in what runs.
    #[arg(long, value_name = "FILE")]
    candidate: PathBuf,
    /// Messages compared at most, 1 to 100000.
    #[arg(long, value_name = "N", default_value_t = MESSAGES_DEFAULT)]
    limit: u64,
    /// Shows also the messages that come out the same.
    #[arg(long)]
    unchanged: bool,
    /// For people, or one JSON object a line as the API sends them.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    api: Api,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(super) fn replay(args: ReplayArgs) -> Exit {
    let ReplayArgs { what, since, from_seq, dead_letters } = args;
    let wanted = |candidate| Replay {
        candidate,
        since,
        from_sequence: from_seq,
        limit: Some(what.limit),
        dead_letters,
        unchanged: what.unchanged,
    };
    compare(&what, "replay", wanted)
}

pub(super) fn shadow(args: ShadowArgs) -> Exit {
    let ShadowArgs { what, lasts } = args;
    let wanted =
        |candidate| Shadow { candidate, lasts: Some(lasts), limit: Some(what.limit), unchanged: what.unchanged };
    compare(&what, "shadow", wanted)
}

fn compare<T: Serialize>(what: &What, verb: &str, wanted: impl FnOnce(Candidate) -> T) -> Exit {
    let candidate = match gather::candidate(&what.candidate) {
        Ok(candidate) => candidate,
        Err(error) => {
            output::error(&format!("vejas: {error}"));
            return Exit::Failed;
        }
    };
    let body = serde_json::to_vec(&wanted(candidate)).expect("texts and numbers are JSON");
    if body.len() > REPLAY_BYTES_MAX {
        output::error(&format!(
            "vejas: the candidate and the schemas and tables in its folder have {} bytes, more than {REPLAY_BYTES_MAX}: put it \
             into a folder of its own with those that changed, the others are taken from what runs",
            body.len()
        ));
        return Exit::Failed;
    }
    let mut differs = false;
    let exit = status::block_on(async {
        differs = Comparing { what, end: None }.run(verb, body).await?;
        Ok(())
    });
    if exit == Exit::Ok && differs { Exit::Differs } else { exit }
}

struct Comparing<'a> {
    what: &'a What,
    end: Option<End>,
}

impl Comparing<'_> {
    /// Answers whether anything differs.
    async fn run(mut self, verb: &str, body: Vec<u8>) -> Result<bool, Error> {
        let answer = self.ask(verb, body).await?;
        self.show(answer).await?;
        let server = self.what.api.server.clone();
        let broken = |reason: &str| Error::Broken { server: server.clone(), reason: reason.to_owned() };
        let end = self.end.ok_or_else(|| broken("it ended without a summary"))?;
        match end.reason {
            view::replay::Reason::Bus => Err(broken(end.detail.as_deref().unwrap_or("the bus does not answer"))),
            view::replay::Reason::Stopping => Err(broken("the process stops")),
            _ => Ok(end.summary.differs()),
        }
    }

    async fn ask(&self, verb: &str, body: Vec<u8>) -> Result<reqwest::Response, Error> {
        let server = self.what.api.server.trim_end_matches('/').to_owned();
        let client = client(&server, self.what.api.ca.as_deref(), None)?;
        let unreachable = |reason: String| Error::Unreachable { server: server.clone(), reason };
        let mut url =
            reqwest::Url::parse(&format!("{server}/api/v1/{verb}")).map_err(|error| unreachable(error.to_string()))?;
        let flow = self.what.flow.strip_prefix("flow/").unwrap_or(&self.what.flow);
        if let Ok(mut path) = url.path_segments_mut() {
            path.push(flow);
        }
        let mut request = client.post(url).header("content-type", "application/json").body(body);
        if let Some(token) = &self.what.api.token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.map_err(|error| unreachable(cause(&error)))?;
        match answer.status().as_u16() {
            200 => Ok(answer),
            status => {
                let body = answer.bytes().await.unwrap_or_default();
                if let Ok(problem) = serde_json::from_slice::<view::Problem>(&body) {
                    problem.reasons.iter().for_each(|reason| output::error(&text::harmless_lines(reason)));
                }
                Err(refusal(server, status, &body, self.what.api.token.is_some()))
            }
        }
    }

    async fn show(&mut self, mut answer: reqwest::Response) -> Result<(), Error> {
        let broken = |reason: String| Error::Broken { server: self.what.api.server.clone(), reason };
        let mut events = Events::default();
        loop {
            let chunk = match tokio::time::timeout(SILENCE_MAX, answer.chunk()).await {
                Err(_) => return Err(broken("it is silent".to_owned())),
                Ok(Err(error)) => return Err(broken(cause(&error))),
                Ok(Ok(None)) => return Ok(()),
                Ok(Ok(Some(chunk))) => chunk,
            };
            if !events.take(&chunk) {
                return Err(broken("an event is too long".to_owned()));
            }
            while let Some(event) = events.next() {
                let foreign = |error: serde_json::Error| Error::Foreign {
                    server: self.what.api.server.clone(),
                    reason: error.to_string(),
                };
                let shown = match event.name.as_str() {
                    "open" => {
                        let open: Open = serde_json::from_str(&event.data).map_err(foreign)?;
                        output::error(&text::open(&open));
                        continue;
                    }
                    "message" => text::message(&serde_json::from_str::<Message>(&event.data).map_err(foreign)?),
                    "end" => {
                        let end: End = serde_json::from_str(&event.data).map_err(foreign)?;
                        let shown = text::end(&end);
                        self.end = Some(end);
                        shown
                    }
                    _ => continue,
                };
                let line = if self.what.output == Output::Json { &event.data } else { &shown };
                let mut out = std::io::stdout().lock();
                match writeln!(out, "{line}").and_then(|()| out.flush()) {
                    // Who closed the pipe does not want the rest; how it ends still counts.
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                    written => written?,
                }
            }
        }
    }
}
