//! Reading a request's body: at most so large, so long, and so much of all bodies together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

use super::answer::Problem;

/// The longest wait for a whole body.
pub(super) const BODY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Bytes of bodies one entrance holds at once; a request beyond it is answered 503.
pub(super) const BODIES_BYTES_MAX: usize = 256 << 20;
/// What is read and dropped of a refused body, so that its sender sees the answer instead of a reset connection.
const DISCARDED_BYTES_MAX: usize = 1 << 20;
const DISCARD_WAIT_MAX: Duration = Duration::from_secs(1);

/// Memory that bodies may take, shared by all requests of an entrance.
#[derive(Debug)]
pub(super) struct Budget {
    used_bytes: AtomicUsize,
    bytes_max: usize,
}

impl Budget {
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Budget { used_bytes: AtomicUsize::new(0), bytes_max })
    }

    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), bytes: 0 }
    }
}

/// What one request has of the budget; given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let used_bytes = self.budget.used_bytes.fetch_add(bytes, Relaxed) + bytes;
        self.bytes += bytes;
        if used_bytes > self.budget.bytes_max { Err(Problem::Busy) } else { Ok(()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Reads the whole body. The stated length is believed only as a reason to refuse, never to reserve memory.
pub(super) async fn read(
    body: &mut Incoming,
    bytes_max: usize,
    wait_max: Duration,
    share: &mut Share,
) -> Result<Bytes, Problem> {
    let stated_bytes = body.size_hint().lower();
    if stated_bytes > bytes_max as u64 {
        return Err(Problem::BodyTooLarge { bytes_max });
    }
    timeout(wait_max, collect(body, bytes_max, share)).await.unwrap_or(Err(Problem::BodyTimeout))
}

async fn collect(body: &mut Incoming, bytes_max: usize, share: &mut Share) -> Result<Bytes, Problem> {
    // Most bodies are one piece: that one is kept as it is. From the second on they are copied together.
    let mut single = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::BodyBroken(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        share.grow(data.len())?;
        if single.len() + whole.len() + data.len() > bytes_max {
            return Err(Problem::BodyTooLarge { bytes_max });
        }
        if single.is_empty() && whole.is_empty() {
            single = data;
        } else {
            whole.extend_from_slice(&std::mem::take(&mut single));
            whole.extend_from_slice(&data);
        }
    }
    Ok(if whole.is_empty() { single } else { whole.freeze() })
}

/// Reads on and drops, for a moment. Sockets closed with unread data reset the connection and take the answer with it.
pub(super) async fn discard(body: &mut Incoming) {
    let mut left_bytes = DISCARDED_BYTES_MAX;
    let reading = async {
        while left_bytes > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            left_bytes = left_bytes.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    // Whatever came of it, the answer is sent now.
    let _ = timeout(DISCARD_WAIT_MAX, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_goes_back_when_its_request_ends_also_when_it_was_refused() {
        let budget = Budget::new(10);
        let mut one = budget.share();
        one.grow(8).unwrap();
        let mut two = budget.share();
        assert!(matches!(two.grow(3), Err(Problem::Busy)));
        drop(two);
        one.grow(2).unwrap();
        drop(one);
        assert_eq!(budget.used_bytes.load(Relaxed), 0);
    }
}
