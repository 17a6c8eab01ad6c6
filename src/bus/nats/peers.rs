//! Calls between processes over the core protocol: nothing is stored.
//!
//! A call that nobody listens to is answered by the server at once. That says nothing about a process whose own connection is being
//! built anew, and it is only asked over a connection that is up.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};

use super::Shared;
use super::api::{self, Fail};
use super::link::{Conversation, Lane};
use crate::ports::bus::Error;
use crate::ports::peers::Heard;

pub(super) fn call(
    shared: &Arc<Shared>,
    subject: &str,
    wait: Duration,
) -> impl Future<Output = Heard> + Send + 'static + use<> {
    let sent = shared.connection.link().ok().and_then(|link| {
        let sent = link.request(Lane::Direct, Subject::from(subject), None, Bytes::new(), wait).ok()?;
        Some((link, sent))
    });
    async move {
        let Some((link, sent)) = sent else { return Heard::Away };
        match api::answer(&link, sent).await {
            Ok(_) => Heard::Answered,
            Err(Fail::NoResponders) => Heard::NoResponders,
            Err(_) if link.lost_because().is_some() => Heard::Away,
            Err(_) => Heard::Silent,
        }
    }
}

pub(super) fn tell(shared: &Arc<Shared>, subject: &str, payload: Bytes) {
    if let Ok(link) = shared.connection.link() {
        link.tell(Lane::Direct, Subject::from(subject), None, payload);
    }
}

pub(super) fn listen(shared: &Arc<Shared>, subject: &str) -> BoxStream<'static, Result<Bytes, Error>> {
    enum At {
        Begin(Arc<Shared>, String),
        Open(Conversation),
        Ended,
    }
    Box::pin(stream::unfold(At::Begin(Arc::clone(shared), subject.to_owned()), |at| async move {
        let mut open = match at {
            At::Begin(shared, subject) => {
                let link = match shared.connection.link() {
                    Ok(link) => link,
                    Err(error) => return Some((Err(error), At::Ended)),
                };
                match link.listen(&subject).await {
                    Ok(open) => open,
                    Err(reason) => return Some((Err(Error::Unavailable(reason)), At::Ended)),
                }
            }
            At::Open(open) => open,
            At::Ended => return None,
        };
        match open.next().await {
            Some(message) => {
                if let Some(reply) = message.reply {
                    open.link().tell(Lane::Direct, reply, None, Bytes::new());
                }
                Some((Ok(message.payload), At::Open(open)))
            }
            None => {
                let reason = open.link().lost_because().unwrap_or_else(|| "no longer listened to".to_owned());
                Some((Err(Error::Unavailable(reason)), At::Ended))
            }
        }
    }))
}
