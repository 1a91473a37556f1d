//! Filters of consumers, for the queues that evaluate them.

use env::planted::{self, Bug};
use filter::FilterSet;
use message::Message;
use queue::{ConsumerFilter, MessageFilter};

#[derive(Debug)]
struct CompiledFilter(FilterSet);

impl MessageFilter for CompiledFilter {
    fn matches(&self, message: &Message, now_ms: u64) -> bool {
        self.0.matches(message, now_ms) || planted::is(Bug::FilterIgnored)
    }
}

/// `None`: this version does not understand the filter.
pub(super) fn compile(filter: &ConsumerFilter) -> Option<Box<dyn MessageFilter>> {
    let compiled = FilterSet::decode(filter.as_bytes())?;
    Some(Box::new(CompiledFilter(compiled)))
}
