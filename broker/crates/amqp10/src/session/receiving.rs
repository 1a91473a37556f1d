//! Transfers from the peer (sections 2.6.12 to 2.6.14).

use codec_amqp10::{Condition, DeliveryState, Role, Transfer};

use crate::link::{Link, Unfinished};
use crate::{Config, Event, Fault, IncomingDelivery, Payload, Serial, ShortBytes};

use super::{Incoming, Io, Placed, Session, write_small};

impl Session {
    /// Counts a transfer in the session's windows.
    pub(super) fn count_transfer(&mut self, io: &mut Io<'_>) -> Result<(), Fault> {
        match (
            self.incoming_window.checked_sub(1),
            self.window_margin.checked_sub(1),
        ) {
            (Some(window), _) => self.incoming_window = window,
            (None, Some(margin)) => self.window_margin = margin,
            (None, None) => {
                return Err(Fault::session(
                    Condition::WindowViolation,
                    "a transfer beyond the incoming window",
                ));
            }
        }
        self.next_incoming_id = self.next_incoming_id.next();
        self.remote_outgoing_window = self.remote_outgoing_window.saturating_sub(1);
        if !self.is_blocked && self.incoming_window <= io.config.incoming_window / 2 {
            self.incoming_window = io.config.incoming_window;
            write_small(io, self.id.channel, &self.flow());
        }
        debug_assert!(self.incoming_window <= io.config.incoming_window);
        Ok(())
    }

    pub(super) fn on_transfer<'a>(
        &mut self,
        transfer: &Transfer<'a>,
        payload: &'a [u8],
        io: &mut Io<'_>,
        event: &mut Option<Event<'a>>,
    ) -> Result<Placed, Fault> {
        self.count_transfer(io)?;
        let handle = self
            .find(transfer.handle)
            .ok_or_else(|| Self::unattached(transfer.handle, "transfer"))?;
        match &self.links[usize::from(handle)] {
            Some(Link::Receiver(_)) => {}
            Some(Link::Attaching(link)) if link.role == Role::Receiver => {
                let fault = Fault::link(
                    Condition::TransferLimitExceeded,
                    format_args!("link '{}' has no credit for a transfer", link.identity.name),
                );
                *event = Some(self.fail_link(handle, fault, io));
                return Ok(Placed::Event);
            }
            Some(Link::Detaching(_)) => return Ok(Placed::Nothing),
            _ => {
                return Err(Fault::session(
                    Condition::NotAllowed,
                    format_args!("transfer: handle {} is a receiver's", transfer.handle),
                ));
            }
        }
        match self.receive(handle, transfer, payload, io, event) {
            Ok(true) => Ok(Placed::Event),
            Ok(false) => Ok(Placed::Nothing),
            Err(fault) if fault.level == crate::Level::Link => {
                *event = Some(self.fail_link(handle, fault, io));
                Ok(Placed::Event)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Takes a transfer of an attached receiving link. Returns true if it completes a message, which is in `event`.
    pub(super) fn receive<'a>(
        &mut self,
        handle: u16,
        transfer: &Transfer<'a>,
        payload: &'a [u8],
        io: &mut Io<'_>,
        event: &mut Option<Event<'a>>,
    ) -> Result<bool, Fault> {
        let Some(Link::Receiver(link)) = &mut self.links[usize::from(handle)] else {
            return Ok(false);
        };
        let id = link.identity.id;
        let settled = link.check_modes(transfer)?;
        if transfer.resume {
            return Err(Fault::link(
                Condition::NotImplemented,
                "transfer: field 'resume': link recovery is not supported",
            ));
        }
        let transaction = match &transfer.state {
            Some(DeliveryState::Transactional(state)) => {
                Some(ShortBytes::new(state.txn_id).ok_or_else(|| {
                    Fault::link(
                        Condition::TransactionUnknownId,
                        "transfer: no transaction has an id of more than 32 bytes",
                    )
                })?)
            }
            _ => None,
        };
        let Some(mut unfinished) = link.unfinished.take() else {
            let first = (transfer, settled, transaction);
            return self.receive_first(handle, first, payload, io, event);
        };
        let held = unfinished.payload.len();
        let appended = if transfer.aborted {
            Ok(())
        } else {
            crate::link::ReceiverLink::check_continuation(&unfinished, transfer).and_then(|()| {
                check_size(held, payload.len(), link.max_message_size)?;
                check_unfinished(*io.unfinished_size, payload.len(), transfer.more, io.config)
            })
        };
        if let Err(fault) = appended {
            link.unfinished = Some(unfinished);
            return Err(fault);
        }
        if transfer.aborted {
            *io.unfinished_size -= held;
            link.unsettled -= 1;
            self.incoming.take(unfinished.id);
            self.is_credit_due = true;
            return Ok(false);
        }
        unfinished.settled |= settled;
        unfinished.transaction = transaction.or(unfinished.transaction);
        unfinished.payload.extend_from_slice(payload);
        if transfer.more {
            *io.unfinished_size += payload.len();
            link.unfinished = Some(unfinished);
            return Ok(false);
        }
        *io.unfinished_size -= held;
        if unfinished.settled
            && let Some(incoming) = self.incoming.get_mut(unfinished.id)
        {
            incoming.is_settled = true;
        }
        let unfinished = *unfinished;
        *event = Some(Event::MessageReceived {
            link: id,
            delivery: IncomingDelivery {
                id: unfinished.id.0,
                message_format: unfinished.message_format,
                settled: unfinished.settled,
                transaction: unfinished.transaction,
                payload: Payload::Collected(unfinished.payload),
            },
        });
        Ok(true)
    }

    #[inline]
    fn receive_first<'a>(
        &mut self,
        handle: u16,
        (transfer, settled, transaction): (&Transfer<'a>, bool, Option<ShortBytes>),
        payload: &'a [u8],
        io: &mut Io<'_>,
        event: &mut Option<Event<'a>>,
    ) -> Result<bool, Fault> {
        let Some(Link::Receiver(link)) = &mut self.links[usize::from(handle)] else {
            return Ok(false);
        };
        let missing = |field: &str| {
            format!("transfer: field '{field}': missing in the first transfer of a delivery")
        };
        let Some(id) = transfer.delivery_id.map(Serial) else {
            return Err(Fault::session(
                Condition::InvalidField,
                missing("delivery-id"),
            ));
        };
        if self
            .last_incoming_delivery
            .is_some_and(|last| id.since(last) <= 0)
            || !self.incoming.can_push(id)
        {
            return Err(Fault::session(
                Condition::InvalidField,
                format_args!(
                    "transfer: field 'delivery-id': {} is not after earlier ones",
                    id.0
                ),
            ));
        }
        let Some(tag) = transfer.delivery_tag else {
            return Err(Fault::link(
                Condition::InvalidField,
                missing("delivery-tag"),
            ));
        };
        link.use_credit()?;
        check_size(0, payload.len(), link.max_message_size)?;
        check_unfinished(*io.unfinished_size, payload.len(), transfer.more, io.config)?;
        self.last_incoming_delivery = Some(id);
        if transfer.aborted {
            self.is_credit_due = true;
            return Ok(false);
        }
        let link_id = link.identity.id;
        link.unsettled += 1;
        self.incoming.push(
            id,
            Incoming {
                link: link_id,
                is_settled: settled,
                is_answered: false,
            },
        );
        let message_format = transfer.message_format.unwrap_or(0);
        if transfer.more {
            *io.unfinished_size += payload.len();
            // The decoder bounds the tag.
            let tag = ShortBytes::new(tag);
            debug_assert!(tag.is_some(), "a tag has at most 32 bytes");
            link.unfinished = Some(Box::new(Unfinished {
                id,
                tag: tag.unwrap_or_default(),
                message_format,
                settled,
                transaction,
                payload: payload.to_vec(),
            }));
            return Ok(false);
        }
        *event = Some(Event::MessageReceived {
            link: link_id,
            delivery: IncomingDelivery {
                id: id.0,
                message_format,
                settled,
                transaction,
                payload: Payload::Frame(payload),
            },
        });
        Ok(true)
    }
}

fn check_size(held: usize, more: usize, max: u64) -> Result<(), Fault> {
    if held as u64 + more as u64 > max {
        return Err(Fault::link(
            Condition::MessageSizeExceeded,
            format_args!("the message is larger than the link's limit of {max} bytes"),
        ));
    }
    Ok(())
}

fn check_unfinished(held: usize, more: usize, is_kept: bool, config: &Config) -> Result<(), Fault> {
    if is_kept && held + more > config.max_unfinished_size {
        return Err(Fault::link(
            Condition::ResourceLimitExceeded,
            format_args!(
                "unfinished messages of the connection are larger than {} bytes",
                config.max_unfinished_size
            ),
        ));
    }
    Ok(())
}
