//! Sessions and links of a connection, for listings.

use crate::address;
use crate::connection::{Amqp10Session, Link};
use crate::publish::PublishTarget;
use amqp10::{LinkState, SessionState};
use codec_amqp10::{Role, SenderSettleMode};
use session::{ChannelDetails, LinkDetails, LinkSessionDetails};

/// Most links of a connection that are listed.
const MAX_LISTED_LINKS: usize = 1024;

impl Amqp10Session {
    /// The sessions, sorted by channel.
    pub(crate) fn channel_details(&self) -> Vec<ChannelDetails> {
        let mut room = MAX_LISTED_LINKS;
        let mut channels = Vec::new();
        for state in self.engine.sessions() {
            if self.sessions.contains(&state.session) {
                channels.push(self.details_of(&state, &mut room));
            }
        }
        channels.sort_unstable_by_key(|channel| channel.number);
        channels
    }

    fn details_of(&self, state: &SessionState, room: &mut usize) -> ChannelDetails {
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
            let Some(left) = room.checked_sub(1) else {
                continue;
            };
            *room = left;
            match state.role {
                Role::Sender => links.outgoing.push(link_details(link, state)),
                Role::Receiver => links.incoming.push(link_details(link, state)),
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
    }
}
