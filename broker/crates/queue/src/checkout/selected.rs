//! Messages for consumers with filters.
//!
//! The queue searches for them ([`Selection`](crate::selection::Selection)) and assigns what it found here. In a quorum queue
//! the log has each assignment, because all replicas must assign alike and only the leader reads messages.

use super::{Checkout, FlowWindow, MessageStore, Weighed};
use crate::{BrowsePosition, ConsumerFilter};

impl<I: Weighed> Checkout<I> {
    /// The filter of a consumer.
    pub(crate) fn filter(&self, number: u64) -> Option<&ConsumerFilter> {
        self.consumers.get(&number)?.spec.filter.as_ref()
    }

    /// The priority of a consumer.
    pub(crate) fn priority(&self, number: u64) -> i32 {
        let consumer = self.consumers.get(&number);
        consumer.map_or(0, |consumer| consumer.spec.priority)
    }

    /// The messages that may be assigned to a consumer with a filter now. The message that exceeds the bytes is the last one.
    /// `None`: it can get none.
    pub(crate) fn room_for_selected(&self, number: u64) -> Option<FlowWindow> {
        let consumer = self.consumers.get(&number)?;
        let room = consumer.room(self.rules, self.flow_window);
        let is_served = consumer.takes_turns() && self.is_chosen(number);
        (is_served && room.messages > 0 && room.bytes > 0).then_some(room)
    }

    /// Assigns the messages that are still ready to a consumer, as far as it has room. `drained`: the request of the drain
    /// that ends then. Returns the messages that it had no room for.
    pub(crate) fn assign_selected<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        number: u64,
        messages: &[BrowsePosition],
        drained: Option<u64>,
    ) -> Vec<u64> {
        let mut unassigned = Vec::new();
        for at in messages {
            if self.room_for_selected(number).is_none() {
                unassigned.push(at.number);
                continue;
            }
            let Some(dequeued) = store.take_selected(at) else {
                continue;
            };
            if let Some(consumer) = self.consumers.get_mut(&number) {
                self.out += 1;
                consumer.count_delivery(&mut self.counters.deliveries, dequeued.counts);
                consumer.assign(store, dequeued, 0, self.flow_window);
            }
        }
        let drain = self.drains.get(&number).map(|drain| drain.seq);
        if drained.is_some() && drain == drained && unassigned.is_empty() {
            self.finish_drain(store, number);
        }
        unassigned
    }
}
