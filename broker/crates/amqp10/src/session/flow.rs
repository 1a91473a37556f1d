//! Windows of the session and credit of its links (sections 2.5.6 and 2.6.7).

use codec_amqp10::{Condition, Flow, Map, Role};
use env::planted::{self, Bug};

use crate::link::{EarlyFlow, Link};
use crate::serial::remote_window;
use crate::{CommandError, CreditState, Event, Fault, LinkId, Serial};

use super::{Handled, INITIAL_OUTGOING_ID, Io, OUTGOING_WINDOW, Phase, Session, write_small};

impl Session {
    pub(super) fn flow(&self) -> Flow<'static> {
        Flow {
            next_incoming_id: Some(self.next_incoming_id.0),
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id.0,
            outgoing_window: OUTGOING_WINDOW,
            handle: None,
            delivery_count: None,
            link_credit: None,
            available: None,
            drain: false,
            echo: false,
            properties: None,
        }
    }

    pub(super) fn write_link_flow(&self, handle: u16, echo: bool, io: &mut Io<'_>) {
        let flow = self.flow();
        self.write_filled_flow(handle, Flow { echo, ..flow }, io);
    }

    fn write_filled_flow(&self, handle: u16, mut flow: Flow<'_>, io: &mut Io<'_>) {
        match &self.links[usize::from(handle)] {
            Some(Link::Sender(link)) => link.fill(&mut flow),
            Some(Link::Receiver(link)) => link.fill(&mut flow),
            _ => return,
        }
        write_small(io, self.id.channel, &flow);
    }

    pub(super) fn on_flow<'a>(
        &mut self,
        flow: &Flow<'a>,
        io: &mut Io<'_>,
    ) -> Result<Handled<'a>, Fault> {
        let next_incoming = flow.next_incoming_id.map_or(INITIAL_OUTGOING_ID, Serial);
        if next_incoming.since(self.next_outgoing_id) > 0 {
            return Err(Fault::session(
                Condition::WindowViolation,
                format_args!(
                    "flow: field 'next-incoming-id': {} leads next-outgoing-id {}",
                    next_incoming.0, self.next_outgoing_id.0
                ),
            ));
        }
        self.remote_incoming_window =
            remote_window(next_incoming, flow.incoming_window, self.next_outgoing_id);
        if planted::is(Bug::WindowIgnored) {
            self.remote_incoming_window = u32::MAX;
        }
        self.next_incoming_id = Serial(flow.next_outgoing_id);
        self.remote_outgoing_window = flow.outgoing_window;
        let handled = match flow.handle {
            Some(remote) => {
                let handle = self
                    .find(remote)
                    .ok_or_else(|| Self::unattached(remote, "flow"))?;
                self.on_link_flow(handle, flow, io)
            }
            None if flow.echo => {
                write_small(io, self.id.channel, &self.flow());
                Handled::Nothing
            }
            None => Handled::Nothing,
        };
        self.continue_partial(io);
        if self.is_window_awaited && self.remote_incoming_window > 0 && self.partial.is_none() {
            self.is_window_awaited = false;
            self.has_window_opened = true;
        }
        Ok(handled)
    }

    pub(super) fn on_link_flow<'a>(
        &mut self,
        handle: u16,
        flow: &Flow<'_>,
        io: &mut Io<'_>,
    ) -> Handled<'a> {
        let count = flow.delivery_count.map(Serial);
        match &mut self.links[usize::from(handle)] {
            Some(Link::Sender(link)) => {
                let state = match flow.link_credit {
                    Some(credit) => link.set_credit(count, credit, flow.drain, flow.echo),
                    None if flow.echo => CreditState {
                        credit: link.credit,
                        drain: link.drain,
                        echo: true,
                    },
                    None => return Handled::Nothing,
                };
                Handled::Event(Event::CreditChanged {
                    link: link.identity.id,
                    state,
                })
            }
            Some(Link::Receiver(link)) => {
                if let Some(count) = count
                    && let Err(fault) = link.follow_sender(count)
                {
                    return Handled::Event(self.fail_link(handle, fault, io));
                }
                self.is_credit_due = true;
                let id = link.identity.id;
                let is_drained = link.drain && flow.drain && link.credit == 0;
                link.drain &= !is_drained;
                let changed = flow
                    .available
                    .filter(|available| *available != link.available);
                link.available = changed.unwrap_or(link.available);
                if flow.echo {
                    self.write_link_flow(handle, false, io);
                }
                match changed {
                    _ if is_drained => Handled::Event(Event::Drained { link: id }),
                    Some(available) => Handled::Event(Event::AvailableChanged {
                        link: id,
                        available,
                    }),
                    None => Handled::Nothing,
                }
            }
            Some(Link::Attaching(link)) => {
                if let (Role::Sender, Some(credit)) = (link.role, flow.link_credit) {
                    link.early_flow = Some(EarlyFlow {
                        delivery_count: count,
                        credit,
                        drain: flow.drain,
                        echo: flow.echo,
                    });
                }
                Handled::Nothing
            }
            Some(Link::Detaching(_)) | None => Handled::Nothing,
        }
    }

    pub(crate) fn grant_credit(
        &mut self,
        id: LinkId,
        credit: u32,
        drain: bool,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        let Link::Receiver(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        link.set_credit(credit, drain);
        self.write_link_flow(id.handle, false, io);
        Ok(())
    }

    /// Stops the renewal of a receiving link's credit, or resumes it.
    pub(crate) fn withhold_credit(
        &mut self,
        id: LinkId,
        is_withheld: bool,
    ) -> Result<(), CommandError> {
        let Link::Receiver(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        link.is_withheld = is_withheld;
        self.is_credit_due |= !is_withheld;
        Ok(())
    }

    pub(crate) fn set_available(&mut self, id: LinkId, available: u32) -> Result<(), CommandError> {
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        link.available = available;
        Ok(())
    }

    pub(crate) fn report_flow(
        &mut self,
        id: LinkId,
        echo: bool,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        match self.link_mut(id)? {
            Link::Sender(_) | Link::Receiver(_) => {
                self.write_link_flow(id.handle, echo, io);
                Ok(())
            }
            Link::Attaching(_) | Link::Detaching(_) => Err(CommandError::WrongState),
        }
    }

    pub(crate) fn report_properties(
        &mut self,
        id: LinkId,
        properties: Map<'_>,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        let Link::Sender(_) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        let properties = Some(properties);
        let flow = self.flow();
        self.write_filled_flow(id.handle, Flow { properties, ..flow }, io);
        Ok(())
    }

    pub(crate) fn drained(&mut self, id: LinkId, io: &mut Io<'_>) -> Result<(), CommandError> {
        let is_sending = self
            .partial
            .as_ref()
            .is_some_and(|partial| partial.link == id);
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        if !link.drain {
            return Ok(());
        }
        if is_sending {
            // The flow must not overtake the transfers of the same link.
            link.is_drain_due = true;
            return Ok(());
        }
        link.use_up_credit();
        self.write_link_flow(id.handle, false, io);
        if let Link::Sender(link) = self.link_mut(id)? {
            link.drain = false;
        }
        Ok(())
    }

    /// Closes the incoming window, or opens it.
    pub(crate) fn block(&mut self, is_blocked: bool, io: &mut Io<'_>) {
        if self.is_blocked == is_blocked || self.phase == Phase::Ending {
            self.is_blocked = is_blocked;
            return;
        }
        self.is_blocked = is_blocked;
        if is_blocked {
            self.window_margin = self.incoming_window;
            self.incoming_window = 0;
        } else {
            self.incoming_window = io.config.incoming_window;
            self.window_margin = 0;
        }
        if self.phase == Phase::Mapped {
            write_small(io, self.id.channel, &self.flow());
        }
    }
}
