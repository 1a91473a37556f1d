//! Sessions and links of a connection, for listings.

use crate::connection::{Amqp10Session, Link};
use crate::publish::PublishTarget;
use crate::{address, filters};
use amqp10::{LinkState, SessionState};
use codec_amqp10::{Role, SenderSettleMode};
use session::{ChannelDetails, LinkDetails, LinkFilter, LinkSessionDetails};

/// Most links of a connection that are listed.
const MAX_LISTED_LINKS: usize = 1024;

/// The part of a listing that is left.
struct Room {
    links: usize,
    /// Links that need more are listed without filters.
    filter_bytes: usize,
}

impl Room {
    fn take_filters(&mut self, encoded: &[u8]) -> Vec<LinkFilter> {
        let Some(left) = self.filter_bytes.checked_sub(encoded.len()) else {
            return Vec::new();
        };
        self.filter_bytes = left;
        filters::list(encoded)
    }
}

impl Amqp10Session {
    /// The sessions, sorted by channel.
    pub(crate) fn channel_details(&self) -> Vec<ChannelDetails> {
        let mut room = Room {
            links: MAX_LISTED_LINKS,
            filter_bytes: filters::MAX_LISTED_FILTER_BYTES,
        };
        let mut channels = Vec::new();
        for state in self.engine.sessions() {
            if self.sessions.contains(&state.session) {
                channels.push(self.details_of(&state, &mut room));
            }
        }
        channels.sort_unstable_by_key(|channel| channel.number);
        channels
    }

    fn details_of(&self, state: &SessionState, room: &mut Room) -> ChannelDetails {
        let mut details = ChannelDetails {
            number: state.session.channel(),
            confirm: true,
            unacknowledged: state.unsettled_outgoing as u64,
            ..ChannelDetails::default()
        };
        let mut links = LinkSessionDetails {
            handle_max: u32::from(self.state.settings.limits.links.saturating_sub(1)),
            next_incoming_id: state.next_incoming_id.0,
            incoming_window: state.incoming_window,
            next_outgoing_id: state.next_outgoing_id.0,
            remote_incoming_window: state.remote_incoming_window,
            remote_outgoing_window: state.remote_outgoing_window,
            incoming: Vec::new(),
            outgoing: Vec::new(),
        };
        for state in &state.links {
            let Some(link) = self.links.get(&state.link.number()) else {
                continue;
            };
            match link {
                Link::Publisher(publisher) => {
                    details.unconfirmed += publisher.unconfirmed.len() as u64;
                    details.flow_blocked |= publisher.is_behind;
                }
                Link::Consumer(_) => details.consumers += 1,
                Link::Coordinator(_) => details.transactional = true,
                // A browser is no consumer of its queue.
                Link::Browser(_) | Link::Management(_) => {}
            }
            let Some(left) = room.links.checked_sub(1) else {
                continue;
            };
            room.links = left;
            let mut listed = link_details(link, state);
            let filters = match link {
                Link::Consumer(consumer) => consumer.effective_filters.as_deref(),
                Link::Browser(browser) => browser.listed_filters.as_deref(),
                Link::Publisher(_) | Link::Coordinator(_) | Link::Management(_) => None,
            };
            listed.filters = room.take_filters(filters.unwrap_or_default());
            match state.role {
                Role::Sender => links.outgoing.push(listed),
                Role::Receiver => links.incoming.push(listed),
            }
        }
        links.incoming.sort_unstable_by_key(|link| link.handle);
        links.outgoing.sort_unstable_by_key(|link| link.handle);
        (details.uncommitted, details.acks_uncommitted) = self.transactions.counts(details.number);
        details.links = Some(Box::new(links));
        details
    }
}

fn link_details(link: &Link, state: &LinkState) -> LinkDetails {
    let (address, queue) = match link {
        Link::Publisher(publisher) => match &publisher.target {
            PublishTarget::Fixed(target) => (Some(address::target_address(target)), ""),
            PublishTarget::PerMessage => (None, ""),
        },
        Link::Consumer(consumer) => {
            let queue = &*consumer.queue_name;
            (Some(address::queue_address(queue)), queue)
        }
        Link::Browser(browser) => {
            let queue = &*browser.queue_name;
            (Some(address::queue_address(queue)), queue)
        }
        Link::Management(_) => (Some(address::MANAGEMENT.to_owned()), ""),
        Link::Coordinator(_) => (None, ""),
    };
    LinkDetails {
        handle: state.remote_handle,
        name: state.name.to_string(),
        address,
        queue: queue.to_owned(),
        settle_mode: match state.snd_settle_mode {
            SenderSettleMode::Unsettled => "unsettled",
            SenderSettleMode::Settled => "settled",
            SenderSettleMode::Mixed => "mixed",
        },
        max_message_size: Some(state.max_message_size).filter(|max| *max != u64::MAX),
        delivery_count: state.delivery_count.0,
        credit: state.credit,
        unconfirmed: match link {
            Link::Publisher(publisher) => publisher.unconfirmed.len() as u64,
            _ => 0,
        },
        filters: Vec::new(),
    }
}
