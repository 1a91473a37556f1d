//! Settlement of deliveries in both directions (section 2.6.12).

use codec_amqp10::{Condition, DeliveryState, Disposition, ReceiverSettleMode, Role};
use env::planted::{self, Bug};
use smallvec::SmallVec;

use crate::link::Link;
use crate::{CommandError, Event, Fault, LinkId, Serial, SettledDelivery};

use super::{Io, MAX_RANGES, Placed, Session, write_small};

impl Session {
    pub(super) fn on_disposition<'a>(
        &mut self,
        disposition: Disposition<'a>,
        event: &mut Option<Event<'a>>,
    ) -> Result<Placed, Fault> {
        let Disposition {
            role,
            first,
            last,
            settled,
            state,
            ..
        } = disposition;
        let first = Serial(first);
        let last = last.map_or(first, |last| {
            Serial(last.wrapping_sub(u32::from(planted::is(Bug::RangeShort) && last != first.0)))
        });
        if last.since(first) < 0 {
            return Err(Fault::session(
                Condition::InvalidField,
                format_args!(
                    "disposition: field 'last': {} is before {}",
                    last.0, first.0
                ),
            ));
        }
        if role == Role::Sender {
            if settled {
                self.settled_by_sender(first, last);
            }
            return Ok(Placed::Nothing);
        }
        if !settled && !state.as_ref().is_some_and(DeliveryState::is_terminal) {
            return Ok(Placed::Nothing);
        }
        let mut deliveries = SmallVec::new();
        self.outgoing.visit_range(first, last, |id, delivery| {
            deliveries.push(SettledDelivery {
                link: delivery.link,
                id: id.0,
                token: delivery.token,
            });
            settled
        });
        if deliveries.is_empty() {
            return Ok(Placed::Nothing);
        }
        *event = Some(Event::Disposition {
            session: self.id,
            role,
            state,
            settled,
            deliveries,
        });
        Ok(Placed::Event)
    }

    /// The peer settled deliveries that it sent: it gave up their outcome, or answers ours in receiver settle mode second.
    pub(super) fn settled_by_sender(&mut self, first: Serial, last: Serial) {
        let links = &mut self.links;
        self.incoming.visit_range(first, last, |_, delivery| {
            delivery.is_settled = true;
            if delivery.is_answered
                && let Some(Some(Link::Receiver(link))) =
                    links.get_mut(usize::from(delivery.link.handle))
            {
                link.unsettled -= 1;
            }
            delivery.is_answered
        });
        self.is_credit_due = true;
    }

    pub(crate) fn settle_received(
        &mut self,
        link: LinkId,
        id: Serial,
        state: &DeliveryState<'_>,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        let receiver = match self.links.get_mut(usize::from(link.handle)) {
            Some(Some(Link::Receiver(receiver))) if receiver.identity.id == link => receiver,
            Some(Some(other)) if other.id() == link => return Err(CommandError::WrongState),
            _ => return Err(CommandError::Gone),
        };
        if receiver
            .unfinished
            .as_ref()
            .is_some_and(|unfinished| unfinished.id == id)
        {
            return Err(CommandError::WrongState);
        }
        let is_second = receiver.rcv_settle_mode == ReceiverSettleMode::Second;
        let (mut is_settled, mut found) = (false, false);
        self.incoming.visit(id, |delivery| {
            found = delivery.link == link && !delivery.is_answered;
            is_settled = delivery.is_settled;
            delivery.is_answered |= found && is_second && !is_settled;
            found && !delivery.is_answered
        });
        if !found {
            return Err(CommandError::Gone);
        }
        if is_second && !is_settled {
            self.write_disposition(Role::Receiver, id, id, false, state, io);
            return Ok(());
        }
        receiver.unsettled -= 1;
        self.is_credit_due = true;
        if is_settled {
            return Ok(());
        }
        if *state != DeliveryState::ACCEPTED {
            self.write_disposition(Role::Receiver, id, id, true, state, io);
            return Ok(());
        }
        match self.accepted.last_mut() {
            Some((_, last)) if last.next() == id => *last = id,
            Some((first, _)) if id.next() == *first => *first = id,
            _ => self.accepted.push((id, id)),
        }
        if self.accepted.len() > MAX_RANGES {
            self.write_dispositions(io);
        }
        Ok(())
    }

    /// Settles deliveries that the engine sent, after the peer told their outcome unsettled.
    pub(crate) fn settle_sent(
        &mut self,
        first: Serial,
        last: Serial,
        state: &DeliveryState<'_>,
        io: &mut Io<'_>,
    ) {
        let mut any = false;
        self.outgoing.visit_range(first, last, |_, _| {
            any = true;
            true
        });
        if any {
            self.write_disposition(Role::Sender, first, last, true, state, io);
        }
    }

    /// Settles the deliveries of a sending link up to this token that the peer has not settled.
    pub(crate) fn settle_link(
        &mut self,
        link: LinkId,
        up_to: u64,
        state: &DeliveryState<'_>,
        io: &mut Io<'_>,
    ) {
        // The last transfer of a delivery comes before its disposition.
        let partial = self.partial.as_ref().map(|partial| partial.id);
        let mut ranges: SmallVec<[(Serial, Serial); 4]> = SmallVec::new();
        self.outgoing.visit_all(|id, delivery| {
            let is_settled =
                delivery.link == link && delivery.token <= up_to && partial != Some(id);
            match ranges.last_mut() {
                Some((_, last)) if is_settled && last.next() == id => *last = id,
                _ if is_settled => ranges.push((id, id)),
                _ => {}
            }
            is_settled
        });
        for (first, last) in ranges {
            self.write_disposition(Role::Sender, first, last, true, state, io);
        }
    }

    pub(super) fn write_disposition(
        &self,
        role: Role,
        first: Serial,
        last: Serial,
        settled: bool,
        state: &DeliveryState<'_>,
        io: &mut Io<'_>,
    ) {
        use codec_amqp10::Outcome;
        let mut disposition = Disposition {
            role,
            first: first.0,
            last: Some(last.0).filter(|last| *last != first.0),
            settled,
            state: Some(state.clone()),
            batchable: false,
        };
        if io.write(self.id.channel, &disposition).is_ok() {
            return;
        }
        // Details that do not fit in a frame are left out; the kind of the outcome stays.
        disposition.state = Some(match state {
            DeliveryState::Outcome(Outcome::Rejected(_)) => {
                DeliveryState::Outcome(Outcome::Rejected(None))
            }
            DeliveryState::Outcome(Outcome::Modified(modified)) => {
                DeliveryState::Outcome(Outcome::Modified(codec_amqp10::Modified {
                    message_annotations: None,
                    ..modified.clone()
                }))
            }
            _ => DeliveryState::RELEASED,
        });
        write_small(io, self.id.channel, &disposition);
    }

    /// Tells the peer of accepted deliveries, in as few ranges as there are.
    pub(super) fn write_dispositions(&mut self, io: &mut Io<'_>) {
        let mut ranges = std::mem::take(&mut self.accepted);
        let Some(&(base, _)) = ranges.first() else {
            return;
        };
        ranges.sort_unstable_by_key(|(first, _)| first.since(base));
        let mut pending = ranges[0];
        for &(first, last) in &ranges[1..] {
            if pending.1.next() == first {
                pending.1 = last;
            } else {
                debug_assert!(pending.1 < first, "a delivery is accepted once");
                self.write_disposition(
                    Role::Receiver,
                    pending.0,
                    pending.1,
                    true,
                    &DeliveryState::ACCEPTED,
                    io,
                );
                pending = (first, last);
            }
        }
        self.write_disposition(
            Role::Receiver,
            pending.0,
            pending.1,
            true,
            &DeliveryState::ACCEPTED,
            io,
        );
    }
}
