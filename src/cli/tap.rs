//! `vejas tap`: messages of a running process, live.
//!
//! A connection that breaks is made again: by subject it goes on behind the last sequence shown, by unit with what comes
//! from then on. Both are said on the standard error, so that the output is messages only.

pub(in crate::cli) mod events;
pub(in crate::cli) mod text;

use std::io::Write;
use std::time::Duration;

use clap::Parser;
use reqwest::header::HeaderValue;

use self::events::Events;
use super::api::Api;
use super::exit::Exit;
use super::output;
use super::status::{Error, cause, client, refusal};
use crate::api::view;

/// The wait before a connection is made again.
const AGAIN_WAIT: Duration = Duration::from_secs(1);
/// The longest silence: the process sends a comment after ten seconds of it.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Show messages live: all that are stored under a subject, or each step they take in a unit.
///
/// Watching holds nothing back. What comes faster than it can be shown is left out and counted.
#[derive(Debug, Parser)]
pub struct Args {
    /// A subject or pattern (orders.raw, 'orders.*'), or a flow or sink (flow/price-orders).
    #[arg(value_name = "SUBJECT|UNIT")]
    what: String,
    /// One JSON object a line, as `/api/v1/tap` sends them.
    #[arg(long)]
    json: bool,
    /// Shows only what contains this text.
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Ends after so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    api: Api,
}

pub(super) fn main(args: Args) -> Exit {
    super::status::block_on(Tapping { args, shown: 0, last: None }.run())
}

struct Tapping {
    args: Args,
    /// How many were shown.
    shown: u64,
    /// The id of the last event, to go on behind it.
    last: Option<String>,
}

/// Why a connection is over.
enum Over {
    /// Enough was shown, or nobody reads.
    Done,
    /// For this reason; another one may serve.
    Broken(String),
}

impl Tapping {
    async fn run(mut self) -> Result<(), Error> {
        let client = client(&self.args.api.server, self.args.api.ca.as_deref(), None)?;
        let mut connected_once = false;
        let mut said = false;
        loop {
            let over = match self.connect(&client).await {
                Ok(answer) => {
                    if said {
                        output::error(&match &self.last {
                            Some(last) => format!("vejas: connected again; goes on behind sequence {last}"),
                            None => "vejas: connected again; what happened meanwhile is not shown".to_owned(),
                        });
                        said = false;
                    }
                    connected_once = true;
                    self.show(answer).await?
                }
                Err(Error::Unreachable { reason, .. }) if connected_once => Over::Broken(reason),
                // It stops, or it has not loaded its units yet.
                Err(Error::Refused { status: 503 | 404, detail, .. }) if connected_once => Over::Broken(detail),
                Err(error) => return Err(error),
            };
            match over {
                Over::Done => return Ok(()),
                Over::Broken(reason) if !said => {
                    output::error(&format!("vejas: the connection is lost ({reason}); trying again"));
                    said = true;
                }
                Over::Broken(_) => {}
            }
            tokio::time::sleep(AGAIN_WAIT).await;
        }
    }

    async fn connect(&self, client: &reqwest::Client) -> Result<reqwest::Response, Error> {
        let server = self.args.api.server.trim_end_matches('/').to_owned();
        let key = if self.args.what.contains('/') { "unit" } else { "subject" };
        let mut url = reqwest::Url::parse(&format!("{server}/api/v1/tap"))
            .map_err(|error| Error::Unreachable { server: server.clone(), reason: error.to_string() })?;
        url.query_pairs_mut().append_pair(key, &self.args.what);
        let mut request = client.get(url);
        if let Some(token) = &self.args.api.token {
            request = request.bearer_auth(token);
        }
        if let Some(last) = self.last.as_deref().and_then(|last| HeaderValue::from_str(last).ok()) {
            request = request.header("Last-Event-ID", last);
        }
        let answer = request
            .send()
            .await
            .map_err(|error| Error::Unreachable { server: server.clone(), reason: cause(&error) })?;
        match answer.status().as_u16() {
            200 => Ok(answer),
            status => {
                let body = answer.bytes().await.unwrap_or_default();
                Err(refusal(server, status, &body, self.args.api.token.is_some()))
            }
        }
    }

    async fn show(&mut self, mut answer: reqwest::Response) -> Result<Over, Error> {
        let mut events = Events::default();
        loop {
            let chunk = match tokio::time::timeout(SILENCE_MAX, answer.chunk()).await {
                Err(_) => return Ok(Over::Broken("it is silent".to_owned())),
                Ok(Err(error)) => return Ok(Over::Broken(cause(&error))),
                Ok(Ok(None)) => return Ok(Over::Broken("it ended".to_owned())),
                Ok(Ok(Some(chunk))) => chunk,
            };
            if !events.take(&chunk) {
                return Ok(Over::Broken("an event is too long".to_owned()));
            }
            while let Some(event) = events.next() {
                if event.name == "end" {
                    return Ok(Over::Broken("the process stops".to_owned()));
                }
                if !self.event(&event)? {
                    return Ok(Over::Done);
                }
            }
        }
    }

    /// Answers whether more is wanted.
    fn event(&mut self, event: &events::Event) -> Result<bool, Error> {
        let foreign = |error: serde_json::Error| Error::Foreign {
            server: self.args.api.server.clone(),
            reason: error.to_string(),
        };
        let text = match event.name.as_str() {
            "message" => text::message(&serde_json::from_str::<view::TapMessage>(&event.data).map_err(foreign)?),
            "step" => text::step(&serde_json::from_str::<view::TapStep>(&event.data).map_err(foreign)?),
            "gap" => {
                let gap: view::TapGap = serde_json::from_str(&event.data).map_err(foreign)?;
                output::error(&format!("vejas: {} left out: they came faster than they could be shown", gap.skipped));
                return Ok(true);
            }
            "open" => {
                let open: view::TapOpen = serde_json::from_str(&event.data).map_err(foreign)?;
                // A restart before the first message must not lose it.
                if self.last.is_none() {
                    self.last = open.next.map(|next| next.saturating_sub(1).to_string());
                    output::error(&format!("vejas: watching {} on {}", self.args.what, open.instance));
                }
                return Ok(true);
            }
            _ => return Ok(true),
        };
        if event.id.is_some() {
            self.last.clone_from(&event.id);
        }
        if self.args.grep.as_ref().is_some_and(|wanted| !text.contains(wanted.as_str())) {
            return Ok(true);
        }
        let line = if self.args.json { &event.data } else { &text };
        let mut out = std::io::stdout().lock();
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
            written => written?,
        }
        self.shown += 1;
        Ok(self.args.limit.is_none_or(|limit| self.shown < limit))
    }
}
