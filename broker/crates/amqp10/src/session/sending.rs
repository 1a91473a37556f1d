//! Transfers to the peer.

use codec_amqp10::{SenderSettleMode, Transfer, encode_transfer_frame};
use smallvec::SmallVec;

use crate::link::Link;
use crate::{CommandError, LinkId, MessagePart, OutgoingDeliveryOf, SendError};

use super::{Io, Outgoing, PartialSend, Session};

impl Session {
    /// Checks that a delivery can be sent now.
    pub(crate) fn check_send(
        &mut self,
        id: LinkId,
        settled: bool,
        io: &Io<'_>,
    ) -> Result<(), SendError> {
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState.into());
        };
        if link.credit == 0 {
            return Err(SendError::NoCredit);
        }
        if io.is_full() {
            return Err(SendError::OutputFull);
        }
        if self.remote_incoming_window == 0 || self.partial.is_some() {
            self.is_window_awaited = true;
            return Err(SendError::WindowClosed);
        }
        if !settled && self.outgoing.len() >= io.config.max_unsettled {
            return Err(SendError::TooManyUnsettled);
        }
        Ok(())
    }

    pub(crate) fn send<P: MessagePart>(
        &mut self,
        id: LinkId,
        delivery: &OutgoingDeliveryOf<'_, P>,
        io: &mut Io<'_>,
    ) -> Result<u32, SendError> {
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState.into());
        };
        if delivery.tag.len() > codec_amqp10::MAX_DELIVERY_TAG_SIZE {
            return Err(CommandError::WrongState.into());
        }
        let size: usize = delivery.parts.iter().map(|part| part.as_ref().len()).sum();
        if size as u64 > link.max_message_size {
            return Err(SendError::MessageTooLarge {
                max: link.max_message_size,
            });
        }
        let settled = match link.snd_settle_mode {
            SenderSettleMode::Settled => true,
            SenderSettleMode::Unsettled => false,
            SenderSettleMode::Mixed => delivery.settled,
        };
        self.check_send(id, settled, io)?;
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState.into());
        };
        link.use_credit();
        let delivery_id = self.next_delivery_id;
        self.next_delivery_id = delivery_id.next();
        if !settled {
            self.outgoing.push(
                delivery_id,
                Outgoing {
                    link: id,
                    token: delivery.token,
                },
            );
        }
        let mut transfer = Transfer {
            handle: id.handle(),
            delivery_id: Some(delivery_id.0),
            delivery_tag: Some(delivery.tag),
            message_format: Some(delivery.message_format),
            settled: Some(settled),
            ..Transfer::default()
        };
        let sent = encode_transfer_frame(
            io.out,
            self.id.channel,
            &mut transfer,
            delivery.parts,
            0,
            io.max_frame_size,
        );
        self.count_sent();
        if transfer.more {
            let mut partial = PartialSend {
                link: id,
                id: delivery_id,
                parts: SmallVec::new(),
                sent,
            };
            let parts = delivery.parts.iter().map(MessagePart::to_bytes);
            partial.parts.extend(parts);
            self.partial = Some(Box::new(partial));
            self.continue_partial(io);
        }
        Ok(delivery_id.0)
    }

    pub(super) fn count_sent(&mut self) {
        assert!(
            self.remote_incoming_window > 0,
            "a transfer is sent within the peer's window only"
        );
        self.remote_incoming_window -= 1;
        self.next_outgoing_id = self.next_outgoing_id.next();
    }

    /// Sends more of a message that waits for the window or the output.
    pub(super) fn continue_partial(&mut self, io: &mut Io<'_>) {
        let Some(mut partial) = self.partial.take() else {
            return;
        };
        while self.remote_incoming_window > 0 && !io.is_full() {
            let mut transfer = Transfer {
                handle: partial.link.handle(),
                delivery_id: Some(partial.id.0),
                ..Transfer::default()
            };
            partial.sent += encode_transfer_frame(
                io.out,
                self.id.channel,
                &mut transfer,
                &partial.parts,
                partial.sent,
                io.max_frame_size,
            );
            self.count_sent();
            if !transfer.more {
                let link = partial.link;
                if let Ok(Link::Sender(sender)) = self.link_mut(link)
                    && std::mem::take(&mut sender.is_drain_due)
                {
                    let drained = self.drained(link, io);
                    debug_assert!(drained.is_ok(), "the link was found above");
                }
                return;
            }
        }
        self.partial = Some(partial);
    }
}
