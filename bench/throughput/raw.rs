//! The limit of a hop over NATS: what a program with nothing but the client library has to do for the same guarantee. Each
//! message is pulled, stored again under another subject with a de-duplication id, and acknowledged after its PubAck.
//!
//! In its best form: several pulls are open at once, stores travel without waiting for each other, acknowledgements ask
//! for no answer, and what came together is worked on together.

use std::collections::VecDeque;

use async_nats::{Client, Subject, header};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::support::Failure;

/// Messages of one pull, as a flow asks for.
const BATCH: usize = 256;
/// Pulls that the server may fill at once.
const PULLS_OPEN: usize = 4;

pub async fn hop(url: &str, stream: &str, from: &str, to: &str, count: usize) -> Result<(), Failure> {
    let client = async_nats::ConnectOptions::new().subscription_capacity(1 << 17).connect(url).await?;
    let config = json!({
        "durable_name": "raw", "ack_policy": "explicit", "filter_subjects": [from], "max_ack_pending": 4096,
        "ack_wait": 30_000_000_000_u64,
    });
    let made = json!({ "stream_name": stream, "action": "create", "config": config });
    let made = client.request(format!("$JS.API.CONSUMER.CREATE.{stream}.raw"), made.to_string().into()).await?;
    refused(&made.payload)?;
    let (inbox, to) = (client.new_inbox(), Subject::from(to));
    let mut pulled = client.subscribe(format!("{inbox}.pull")).await?.ready_chunks(BATCH);
    let mut stored = client.subscribe(format!("{inbox}.stored")).await?.ready_chunks(BATCH);
    for _ in 0..PULLS_OPEN {
        pull(&client, stream, &inbox).await?;
    }
    // The server answers stores of one connection in their order.
    let mut unanswered: VecDeque<Subject> = VecDeque::new();
    let (mut taken, mut done) = (0, 0);
    while done < count {
        tokio::select! {
            Some(messages) = pulled.next() => for message in messages {
                let Some(reply) = message.reply else { return Err("a pull was refused".into()) };
                let sequence = reply.split('.').nth(5).unwrap_or_default();
                let mut headers = message.headers.unwrap_or_default();
                headers.insert(header::NATS_MESSAGE_ID, format!("raw/{sequence}"));
                client.publish_with_reply_and_headers(to.clone(), format!("{inbox}.stored"), headers, message.payload).await?;
                unanswered.push_back(reply);
                taken += 1;
                if taken % BATCH == 0 {
                    pull(&client, stream, &inbox).await?;
                }
            },
            Some(answers) = stored.next() => for answer in answers {
                refused(&answer.payload)?;
                let reply = unanswered.pop_front().ok_or("an answer to nothing")?;
                client.publish(reply, Bytes::from_static(b"+ACK")).await?;
                done += 1;
            },
        }
    }
    client.flush().await?;
    Ok(())
}

async fn pull(client: &Client, stream: &str, inbox: &str) -> Result<(), Failure> {
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.raw");
    let request = json!({ "batch": BATCH, "expires": 60_000_000_000_u64 });
    Ok(client.publish_with_reply(next, format!("{inbox}.pull"), request.to_string().into()).await?)
}

fn refused(answer: &Bytes) -> Result<(), Failure> {
    let answer: Value = serde_json::from_slice(answer)?;
    answer.get("error").map_or(Ok(()), |error| Err(error.to_string().into()))
}

pub async fn delete_stream(url: &str, stream: &str) -> Result<(), Failure> {
    let client = async_nats::connect(url).await?;
    let answer = client.request(format!("$JS.API.STREAM.DELETE.{stream}"), Bytes::new()).await?;
    refused(&answer.payload)
}
