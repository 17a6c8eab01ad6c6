//! One record per publication in the audit stream, written by whoever rolls it out.
//!
//! Every member writes it, and the bus takes one: the subject of a publication has no message before. What a crash left out is written
//! with the next publication, from the history of the head.

use bytes::Bytes;

use crate::flow::message::{self, Headers, Outgoing};
use crate::ports::bus::{Error, Expected};
use crate::protocol::publish::{Head, Publication};
use crate::unit::context::Context;

/// Writes what is missing.
pub(super) async fn record(context: &Context, head: &Head) -> Result<(), Error> {
    let publications: Vec<Publication> = head.history.iter().cloned().chain([head.current()]).collect();
    for at in (0..publications.len()).rev() {
        let before = at.checked_sub(1).map(|before| &publications[before]);
        // Those before it are there too.
        if !write(context, &publications[at], before).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Answers whether it was missing.
async fn write(context: &Context, publication: &Publication, before: Option<&Publication>) -> Result<bool, Error> {
    let made = &publication.made;
    let record = serde_json::json!({
        "no": publication.no,
        "from": before.map(|before| &before.revision),
        "to": publication.revision,
        "by": made.by,
        "at": crate::time::Timestamp(made.at).to_string(),
        "commit": made.commit,
        "author": made.author,
        "reason": made.reason,
    });
    let subject = context.names.audit_record(publication.no);
    let id = format!("a/{}", publication.no);
    let message = Outgoing {
        subject: subject.clone(),
        headers: Headers::from_iter([(message::ID, id.as_str())]),
        payload: Bytes::from(record.to_string()),
        transport_id: None,
    };
    let stream = context.names.audit().into();
    match context.bus.publish(&stream, message, Some(Expected { subject, last: 0 })).await {
        Ok(_) => Ok(true),
        Err(Error::WrongLast { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
