//! Ending work: outputs stored, marks won, then inputs acknowledged.
//!
//! A server has no commit over all of it, so the order carries the promise: an input is acknowledged only after everything
//! that came of it is stored. What fails in between is done again with the redelivery; outputs are then known by their
//! transport ids, and a mark that says the same as before counts as won.
//!
//! An acknowledgement that is lost on the way costs a redelivery: for a sink a second delivery to the outside, so the server
//! confirms each; for a flow outputs that are known by their ids, so it confirms the last, which went behind the others on the
//! same connection. Confirmations travel pipelined.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use super::Shared;
use super::publish::{NotSent, Sent};
use crate::ports::bus::{Batch, Durable, Error, PubAck, Settlement};
use crate::ports::store::{Outcome, Write};

impl Shared {
    /// Sends the outputs, at the time of the call.
    pub(super) fn send_outputs(self: &Arc<Self>, batches: &[Batch]) -> Vec<Result<Sent, NotSent>> {
        batches.iter().map(|batch| self.send_batch(batch, true)).collect()
    }

    pub(super) async fn settled(
        self: Arc<Self>,
        settlement: Settlement,
        sent: Vec<Result<Sent, NotSent>>,
    ) -> Result<Vec<PubAck>, Error> {
        let Settlement { batches, writes, acknowledged, confirm } = settlement;
        let mut acks = Vec::new();
        let stored = sent.into_iter().zip(&batches).map(|(sent, batch)| self.finish_batch(sent, batch, true));
        for stored in join_all(stored).await {
            acks.extend(stored?);
        }
        self.win_all(writes).await?;
        let mut by_durable: BTreeMap<Durable, Vec<u64>> = BTreeMap::new();
        for (durable, sequence) in acknowledged {
            by_durable.entry(durable).or_default().push(sequence);
        }
        for (durable, sequences) in by_durable {
            self.acknowledge(&durable, &sequences, confirm).await?;
        }
        Ok(acks)
    }

    /// Waits for a batch; sends it first if it could not be sent at the time of the call.
    pub(super) async fn finish_batch(
        self: &Arc<Self>,
        sent: Result<Sent, NotSent>,
        batch: &Batch,
        settlement: bool,
    ) -> Result<Vec<PubAck>, Error> {
        let mut sent = sent;
        if let Err(NotSent::Stranger) = sent {
            self.known(&batch.stream).await?;
            sent = self.send_batch(batch, settlement);
        }
        if let Err(NotSent::Full(known, bytes)) = &sent {
            self.admits_after_all(known, *bytes).await?;
            // Counted by that; now it goes the way of a settlement.
            sent = self.send_batch(batch, true);
        }
        match sent {
            Ok(sent) => self.all_stored(sent).await,
            Err(not_sent) => Err(self.not_sent(not_sent, &batch.stream)),
        }
    }

    async fn win_all(self: &Arc<Self>, writes: Vec<Write>) -> Result<(), Error> {
        if writes.is_empty() {
            return Ok(());
        }
        let first_tries = self.first_tries(&writes);
        let outcomes = self.outcomes(writes.clone(), first_tries).await?;
        for (write, outcome) in writes.into_iter().zip(outcomes) {
            let Outcome::Lost(held) = outcome else { continue };
            // An earlier try of this settlement got this far.
            if held.map(|entry| entry.value) != write.value {
                return Err(Error::WrongRevision { bucket: write.bucket, key: write.key });
            }
        }
        Ok(())
    }
}
