//! Attaching and detaching links (sections 2.6.3 to 2.6.6).

use codec_amqp10::{AmqpError, Attach, Condition, Detach, Multiple, ReceiverSettleMode, Role};

use crate::link::{Attaching, INITIAL_DELIVERY_COUNT, Identity, Link, receiver_limits};
use crate::{
    AttachReply, Attached, Cause, CommandError, Event, Fault, LinkId, PendingAttach, Serial,
};

use super::{Handled, Io, Phase, Session, write_detach, write_small};

/// Bytes of the frame of an attach without terminus, apart from its name: the frame header and the fields in their longest forms.
const MAX_SMALL_ATTACH_OVERHEAD: usize = 64;

impl Session {
    pub(super) fn on_attach<'a>(
        &mut self,
        attach: Attach<'a>,
        io: &mut Io<'_>,
    ) -> Result<Handled<'a>, Fault> {
        if attach.handle > u32::from(io.config.handle_max) {
            return Err(Fault::connection(
                Condition::FramingError,
                format_args!(
                    "attach: handle {} is above handle-max {}",
                    attach.handle, io.config.handle_max
                ),
            ));
        }
        if self.find(attach.handle).is_some() {
            return Err(Fault::session(
                Condition::HandleInUse,
                format_args!("attach: handle {} is in use", attach.handle),
            ));
        }
        let delivery_count = match (attach.role, attach.initial_delivery_count) {
            (Role::Sender, None) => {
                return Err(Fault::session(
                    Condition::InvalidField,
                    "attach: field 'initial-delivery-count': missing, and mandatory from a sender",
                ));
            }
            (_, count) => Serial(count.unwrap_or(0)),
        };
        let role = attach.role.opposite();
        let named = self.links.iter().position(|link| {
            link.as_ref().and_then(Link::name_and_role) == Some((attach.name, role))
        });
        if let Some(handle) = named {
            let is_answer =
                matches!(&self.links[handle], Some(Link::Attaching(link)) if link.is_ours);
            if is_answer {
                return Ok(self.on_attach_answer(handle as u16, attach, delivery_count, io));
            }
            // The peer attached the link again: the earlier attachment ends (section 2.6.1).
            let fault = Fault::link(
                Condition::Stolen,
                format_args!("link '{}' was attached again", attach.name),
            );
            return Ok(Handled::Again(self.fail_link(handle as u16, fault, io)));
        }
        if attach.name.len() + MAX_SMALL_ATTACH_OVERHEAD > io.max_frame_size {
            // An answer has to repeat the name, and a detach needs an attach before it (section 2.6.3).
            return Err(Fault::session(
                Condition::FrameSizeTooSmall,
                format_args!(
                    "attach: field 'name': the answer with these {} bytes does not fit in the max-frame-size of {}",
                    attach.name.len(),
                    io.max_frame_size
                ),
            ));
        }
        let handle = self.free_handle().map_err(|_| {
            Fault::session(
                Condition::ResourceLimitExceeded,
                format_args!(
                    "more links than handle-max {} allows",
                    self.remote_handle_max
                ),
            )
        })?;
        let id = LinkId {
            channel: self.id.channel,
            handle,
            generation: io.next_generation(),
        };
        let link = Attaching {
            identity: Identity {
                id,
                remote_handle: attach.handle,
                name: attach.name.into(),
            },
            role,
            is_ours: false,
            snd_settle_mode: attach.snd_settle_mode,
            rcv_settle_mode: attach.rcv_settle_mode,
            remote_delivery_count: delivery_count,
            remote_max_message_size: attach.max_message_size.unwrap_or(0),
            early_flow: None,
            link_credit: 0,
            max_message_size: 0,
        };
        self.links[usize::from(handle)] = Some(Link::Attaching(link));
        self.insert_handle(attach.handle, handle);
        if attach.incomplete_unsettled || attach.unsettled.is_some_and(|map| !map.is_empty()) {
            let error = AmqpError::new(Condition::NotImplemented, "link recovery is not supported");
            self.start_detach(handle, true, Some(&error), io);
            return Ok(Handled::Nothing);
        }
        Ok(Handled::Event(Event::AttachRequested {
            attach: Box::new(attach),
            pending: PendingAttach { link: id },
        }))
    }

    pub(super) fn on_attach_answer<'a>(
        &mut self,
        handle: u16,
        attach: Attach<'a>,
        delivery_count: Serial,
        io: &mut Io<'_>,
    ) -> Handled<'a> {
        let Some(Link::Attaching(mut link)) = self.links[usize::from(handle)].take() else {
            debug_assert!(false, "the caller found an attaching link");
            return Handled::Nothing;
        };
        let id = link.identity.id;
        link.identity.remote_handle = attach.handle;
        link.snd_settle_mode = attach.snd_settle_mode;
        link.rcv_settle_mode = attach.rcv_settle_mode;
        link.remote_delivery_count = delivery_count;
        link.remote_max_message_size = attach.max_message_size.unwrap_or(0);
        self.insert_handle(attach.handle, handle);
        let attached = match link.role {
            Role::Sender => Link::Sender(link.into_sender().0),
            Role::Receiver => Link::Receiver(link.into_receiver()),
        };
        let grants = matches!(&attached, Link::Receiver(link) if link.credit > 0);
        self.links[usize::from(handle)] = Some(attached);
        if grants {
            self.write_link_flow(handle, false, io);
        }
        Handled::Event(Event::LinkAttached {
            link: id,
            attach: Box::new(attach),
        })
    }

    pub(super) fn free_handle(&mut self) -> Result<u16, CommandError> {
        let free = self
            .links
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.links.len());
        let handle = u16::try_from(free).map_err(|_| CommandError::LimitReached)?;
        if u32::from(handle) > self.remote_handle_max {
            return Err(CommandError::LimitReached);
        }
        if free == self.links.len() {
            // Most sessions have few links.
            self.links.reserve_exact(1);
            self.links.push(None);
        }
        Ok(handle)
    }

    pub(super) fn insert_handle(&mut self, remote: u32, own: u16) {
        let at = self.handles.partition_point(|(other, _)| *other < remote);
        debug_assert!(
            self.handles
                .get(at)
                .is_none_or(|(other, _)| *other != remote)
        );
        // Most sessions have few links.
        self.handles.reserve_exact(1);
        self.handles.insert(at, (remote, own));
    }

    pub(super) fn on_detach<'a>(&mut self, detach: Detach<'a>, io: &mut Io<'_>) -> Handled<'a> {
        // Detaches may cross, and a client may answer ours twice. Nothing is to be done for a handle without a link.
        let Some(handle) = self.find(detach.handle) else {
            return Handled::Nothing;
        };
        self.handles.retain(|(remote, _)| *remote != detach.handle);
        let Some(link) = self.links[usize::from(handle)].take() else {
            debug_assert!(false, "a handle has its link");
            return Handled::Nothing;
        };
        let id = link.id();
        if matches!(link, Link::Detaching(_)) {
            return Handled::Nothing;
        }
        self.write_dispositions(io);
        self.forget_deliveries(id, Some(&link), io);
        if let Link::Attaching(link) = &link {
            write_small_attach(io, link);
        }
        write_detach(io, self.id.channel, id.handle(), detach.closed, None);
        Handled::Event(Event::LinkDetached {
            link: id,
            closed: detach.closed,
            cause: Cause::Peer(detach.error),
        })
    }

    /// Attaches a link that the engine starts.
    pub(crate) fn attach(
        &mut self,
        attach: &Attach<'_>,
        link_credit: Option<u32>,
        io: &mut Io<'_>,
    ) -> Result<LinkId, CommandError> {
        if self.phase != Phase::Mapped {
            return Err(CommandError::WrongState);
        }
        let handle = self.free_handle()?;
        let id = LinkId {
            channel: self.id.channel,
            handle,
            generation: io.next_generation(),
        };
        let (link_credit, max_message_size) =
            receiver_limits(io.config, link_credit, attach.max_message_size);
        let is_sender = attach.role == Role::Sender;
        let attach = Attach {
            handle: id.handle(),
            initial_delivery_count: is_sender.then_some(INITIAL_DELIVERY_COUNT.0),
            max_message_size: if is_sender {
                attach.max_message_size
            } else {
                Some(max_message_size)
            },
            ..attach.clone()
        };
        io.write(self.id.channel, &attach)?;
        self.links[usize::from(handle)] = Some(Link::Attaching(Attaching {
            identity: Identity {
                id,
                remote_handle: 0,
                name: attach.name.into(),
            },
            role: attach.role,
            is_ours: true,
            snd_settle_mode: attach.snd_settle_mode,
            rcv_settle_mode: attach.rcv_settle_mode,
            remote_delivery_count: Serial(0),
            remote_max_message_size: 0,
            early_flow: None,
            link_credit,
            max_message_size,
        }));
        Ok(id)
    }

    pub(crate) fn accept_attach(
        &mut self,
        id: LinkId,
        reply: &AttachReply<'_>,
        io: &mut Io<'_>,
    ) -> Result<Attached, CommandError> {
        let Link::Attaching(link) = self.link_mut(id)? else {
            return Err(CommandError::Gone);
        };
        debug_assert!(!link.is_ours, "a pending attach is the peer's");
        let role = link.role;
        match role {
            Role::Sender => {
                if let Some(mode) = reply.snd_settle_mode {
                    link.snd_settle_mode = mode;
                }
            }
            Role::Receiver => {
                link.rcv_settle_mode = reply.rcv_settle_mode.unwrap_or(ReceiverSettleMode::First);
                (link.link_credit, link.max_message_size) =
                    receiver_limits(io.config, reply.link_credit, reply.max_message_size);
            }
        }
        let attach = Attach {
            name: &link.identity.name,
            handle: id.handle(),
            role,
            snd_settle_mode: link.snd_settle_mode,
            rcv_settle_mode: link.rcv_settle_mode,
            source: reply.source.clone(),
            target: reply.target.clone(),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: (role == Role::Sender).then_some(INITIAL_DELIVERY_COUNT.0),
            max_message_size: match role {
                Role::Receiver => Some(link.max_message_size),
                Role::Sender => Some(link.remote_max_message_size).filter(|size| *size > 0),
            },
            offered_capabilities: reply.offered_capabilities,
            desired_capabilities: Multiple::NONE,
            properties: reply.properties,
        };
        io.write(id.channel, &attach)?;
        let slot = &mut self.links[usize::from(id.handle)];
        let Some(Link::Attaching(link)) = slot.take() else {
            debug_assert!(false, "the link was found above");
            return Err(CommandError::Gone);
        };
        let mut credit = None;
        match role {
            Role::Sender => {
                let (link, state) = link.into_sender();
                credit = state;
                *slot = Some(Link::Sender(link));
            }
            Role::Receiver => {
                let link = link.into_receiver();
                let grants = link.credit > 0;
                *slot = Some(Link::Receiver(link));
                if grants {
                    self.write_link_flow(id.handle, false, io);
                }
            }
        }
        Ok(Attached { link: id, credit })
    }

    /// Refuses or ends a link.
    pub(crate) fn detach(
        &mut self,
        id: LinkId,
        closed: bool,
        error: Option<&AmqpError<'_>>,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        if matches!(self.link_mut(id)?, Link::Detaching(_)) {
            return Err(CommandError::Gone);
        }
        if let Link::Attaching(link) = self.link_mut(id)?
            && link.is_ours
        {
            // The peer's handle is not known before its attach.
            return Err(CommandError::WrongState);
        }
        self.start_detach(id.handle, closed, error, io);
        Ok(())
    }
}

/// Answers an attach that is refused or withdrawn: without the terminus of the peer's own side (section 2.6.3).
pub(super) fn write_small_attach(io: &mut Io<'_>, link: &Attaching) {
    let is_sender = link.role == Role::Sender;
    let attach = Attach {
        name: &link.identity.name,
        handle: link.identity.id.handle(),
        role: link.role,
        snd_settle_mode: link.snd_settle_mode,
        rcv_settle_mode: link.rcv_settle_mode,
        source: None,
        target: None,
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: is_sender.then_some(INITIAL_DELIVERY_COUNT.0),
        max_message_size: None,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    write_small(io, link.identity.id.channel, &attach);
}
