use codec_amqp10::{Condition, Flow, ReceiverSettleMode, Role, SenderSettleMode, Transfer};
use env::planted::{self, Bug};

use crate::serial::sender_credit;
use crate::{Config, CreditState, Fault, LinkId, Serial, ShortBytes};

/// Delivery count of a new sending link. Arbitrary (section 2.6.7), but some clients, for example rhea, ignore the value in
/// the attach and count from 0. Another value would give them more or less credit than they grant.
pub(crate) const INITIAL_DELIVERY_COUNT: Serial = Serial(0);

/// The identifiers of a link.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: LinkId,
    /// The handle in the peer's frames.
    pub(crate) remote_handle: u32,
    /// The name, unique for a role within a session.
    pub(crate) name: Box<str>,
}

/// A link endpoint in one of its states (section 2.6).
#[derive(Debug)]
pub(crate) enum Link {
    /// One side attached and the other did not answer.
    Attaching(Attaching),
    /// Attached; the engine sends.
    Sender(SenderLink),
    /// Attached; the engine receives.
    Receiver(ReceiverLink),
    /// The engine detached; frames are discarded until the peer does.
    Detaching(LinkId),
}

impl Link {
    pub(crate) fn id(&self) -> LinkId {
        match self {
            Self::Attaching(link) => link.identity.id,
            Self::Sender(link) => link.identity.id,
            Self::Receiver(link) => link.identity.id,
            Self::Detaching(id) => *id,
        }
    }

    /// Name and own role, unless the link is detaching.
    pub(crate) fn name_and_role(&self) -> Option<(&str, Role)> {
        match self {
            Self::Attaching(link) => Some((&link.identity.name, link.role)),
            Self::Sender(link) => Some((&link.identity.name, Role::Sender)),
            Self::Receiver(link) => Some((&link.identity.name, Role::Receiver)),
            Self::Detaching(_) => None,
        }
    }
}

/// A link that is not attached yet. It has no credit in either direction.
#[derive(Debug)]
pub(crate) struct Attaching {
    pub(crate) identity: Identity,
    /// The role of the engine.
    pub(crate) role: Role,
    /// The engine attached first.
    pub(crate) is_ours: bool,
    pub(crate) snd_settle_mode: SenderSettleMode,
    pub(crate) rcv_settle_mode: ReceiverSettleMode,
    /// The delivery count of a sending peer.
    pub(crate) remote_delivery_count: Serial,
    /// The largest message that a receiving peer accepts; 0: no limit.
    pub(crate) remote_max_message_size: u64,
    /// The last flow that a receiving peer sent ahead of the answer.
    pub(crate) early_flow: Option<EarlyFlow>,
    /// Credit that a receiving link grants and renews when it is attached.
    pub(crate) link_credit: u32,
    /// The largest message that a receiving link accepts.
    pub(crate) max_message_size: u64,
}

/// Credit from a flow before the link was attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyFlow {
    pub(crate) delivery_count: Option<Serial>,
    pub(crate) credit: u32,
    pub(crate) drain: bool,
    pub(crate) echo: bool,
}

impl Attaching {
    pub(crate) fn into_sender(self) -> (SenderLink, Option<CreditState>) {
        debug_assert_eq!(self.role, Role::Sender);
        let mut link = SenderLink {
            identity: self.identity,
            snd_settle_mode: self.snd_settle_mode,
            delivery_count: INITIAL_DELIVERY_COUNT,
            credit: 0,
            available: 0,
            drain: false,
            is_drain_due: false,
            max_message_size: match self.remote_max_message_size {
                0 => u64::MAX,
                limit => limit,
            },
        };
        let state = self
            .early_flow
            .map(|flow| link.set_credit(flow.delivery_count, flow.credit, flow.drain, flow.echo));
        (link, state)
    }

    pub(crate) fn into_receiver(self) -> ReceiverLink {
        debug_assert_eq!(self.role, Role::Receiver);
        ReceiverLink {
            identity: self.identity,
            snd_settle_mode: self.snd_settle_mode,
            rcv_settle_mode: self.rcv_settle_mode,
            delivery_count: self.remote_delivery_count,
            credit: self.link_credit,
            credit_margin: 0,
            drain: false,
            renewed_credit: self.link_credit,
            is_withheld: false,
            unsettled: 0,
            available: 0,
            max_message_size: self.max_message_size,
            unfinished: None,
        }
    }
}

/// The engine's end of a link on which it sends (section 2.6.7).
#[derive(Debug)]
pub(crate) struct SenderLink {
    pub(crate) identity: Identity,
    pub(crate) snd_settle_mode: SenderSettleMode,
    pub(crate) delivery_count: Serial,
    pub(crate) credit: u32,
    pub(crate) available: u32,
    pub(crate) drain: bool,
    /// The broker said that it has nothing more, and a message is still being sent.
    pub(crate) is_drain_due: bool,
    pub(crate) max_message_size: u64,
}

impl SenderLink {
    /// Takes over the receiver's credit.
    pub(crate) fn set_credit(
        &mut self,
        receiver_count: Option<Serial>,
        credit: u32,
        drain: bool,
        echo: bool,
    ) -> CreditState {
        // A receiver that does not know our attach starts from the initial count.
        let receiver_count = receiver_count.unwrap_or(INITIAL_DELIVERY_COUNT);
        let unused = match planted::is(Bug::CreditAdded) {
            true => self.credit,
            false => 0,
        };
        self.credit =
            sender_credit(receiver_count, credit, self.delivery_count).saturating_add(unused);
        self.drain = drain;
        // A drain that waits for a message would use up the new credit as well.
        self.is_drain_due = false;
        CreditState {
            credit: self.credit,
            drain,
            echo,
        }
    }

    /// Uses credit for one delivery.
    pub(crate) fn use_credit(&mut self) {
        assert!(self.credit > 0, "a delivery is sent on credit only");
        self.credit -= 1;
        self.delivery_count = self.delivery_count.next();
    }

    /// Uses up the credit that is left (section 2.6.7, drain).
    pub(crate) fn use_up_credit(&mut self) {
        self.delivery_count = self.delivery_count.plus(self.credit);
        self.credit = 0;
    }

    /// Completes a flow with the state of this link.
    pub(crate) fn fill(&self, flow: &mut Flow<'_>) {
        flow.handle = Some(self.identity.id.handle());
        flow.delivery_count = Some(self.delivery_count.0);
        flow.link_credit = Some(self.credit);
        flow.available = Some(self.available);
        flow.drain = self.drain;
    }
}

/// The engine's end of a link on which it receives.
#[derive(Debug)]
pub(crate) struct ReceiverLink {
    pub(crate) identity: Identity,
    pub(crate) snd_settle_mode: SenderSettleMode,
    pub(crate) rcv_settle_mode: ReceiverSettleMode,
    pub(crate) delivery_count: Serial,
    pub(crate) credit: u32,
    /// Deliveries that may still come because the sender did not know of a reduced credit.
    pub(crate) credit_margin: u32,
    pub(crate) drain: bool,
    /// The credit that is renewed at half; 0: the broker grants credit itself.
    pub(crate) renewed_credit: u32,
    /// The broker stopped the renewal.
    pub(crate) is_withheld: bool,
    /// Deliveries that the broker did not settle.
    pub(crate) unsettled: u32,
    pub(crate) available: u32,
    pub(crate) max_message_size: u64,
    pub(crate) unfinished: Option<Box<Unfinished>>,
}

/// A delivery whose last transfer has not come (section 2.6.14).
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) id: Serial,
    pub(crate) tag: ShortBytes,
    pub(crate) message_format: u32,
    pub(crate) settled: bool,
    pub(crate) transaction: Option<ShortBytes>,
    pub(crate) payload: Vec<u8>,
}

impl ReceiverLink {
    /// Counts a delivery against the credit.
    pub(crate) fn use_credit(&mut self) -> Result<(), Fault> {
        match (
            self.credit.checked_sub(1),
            self.credit_margin.checked_sub(1),
        ) {
            (Some(credit), _) => self.credit = credit,
            (None, Some(margin)) => self.credit_margin = margin,
            (None, None) => {
                return Err(Fault::link(
                    Condition::TransferLimitExceeded,
                    format_args!("link '{}' has no credit for a transfer", self.identity.name),
                ));
            }
        }
        self.delivery_count = self.delivery_count.next();
        Ok(())
    }

    /// Sets the credit. Deliveries that the sender may have sent on the earlier credit are still accepted.
    pub(crate) fn set_credit(&mut self, credit: u32, drain: bool) {
        let allowed = self.credit.saturating_add(self.credit_margin);
        self.credit_margin = allowed.saturating_sub(credit);
        self.credit = credit;
        self.drain = drain;
    }

    /// Renews the credit if half of it is used and the broker keeps up.
    pub(crate) fn renew_credit(&mut self) -> bool {
        let is_due = self.renewed_credit > 0
            && !self.is_withheld
            && self.credit <= self.renewed_credit / 2
            && self.unsettled < self.renewed_credit;
        if is_due {
            self.set_credit(self.renewed_credit, false);
        }
        is_due
    }

    /// Takes over the sender's delivery count, which passes over credit that the sender used up without messages.
    pub(crate) fn follow_sender(&mut self, count: Serial) -> Result<(), Fault> {
        let advance = count.since(self.delivery_count);
        let Ok(advance) = u32::try_from(advance) else {
            return Err(Fault::link(
                Condition::InvalidField,
                format_args!(
                    "flow: field 'delivery-count': {} is before {}",
                    count.0, self.delivery_count.0
                ),
            ));
        };
        let beyond = advance.saturating_sub(self.credit);
        let Some(margin) = self.credit_margin.checked_sub(beyond) else {
            return Err(Fault::link(
                Condition::TransferLimitExceeded,
                format_args!(
                    "delivery count advanced by {advance} with a credit of {}",
                    self.credit
                ),
            ));
        };
        self.credit = self.credit.saturating_sub(advance);
        self.credit_margin = margin;
        self.delivery_count = count;
        Ok(())
    }

    /// Checks the settle modes of a transfer against those of the link.
    pub(crate) fn check_modes(&self, transfer: &Transfer<'_>) -> Result<bool, Fault> {
        let settled = transfer.settled.unwrap_or(false);
        let wrong = match self.snd_settle_mode {
            SenderSettleMode::Unsettled if settled => Some("settled on a link of unsettled mode"),
            // The flag may be missing in a continuation.
            SenderSettleMode::Settled if transfer.settled == Some(false) => {
                Some("unsettled on a link of settled mode")
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Err(Fault::link(
                Condition::InvalidField,
                format_args!("transfer: field 'settled': {wrong}"),
            ));
        }
        if transfer.rcv_settle_mode == Some(ReceiverSettleMode::Second)
            && self.rcv_settle_mode == ReceiverSettleMode::First
        {
            return Err(Fault::link(
                Condition::InvalidField,
                "transfer: field 'rcv-settle-mode': the link's mode is first",
            ));
        }
        Ok(settled || self.snd_settle_mode == SenderSettleMode::Settled)
    }

    /// Checks that a transfer continues the unfinished delivery.
    pub(crate) fn check_continuation(
        unfinished: &Unfinished,
        transfer: &Transfer<'_>,
    ) -> Result<(), Fault> {
        let wrong = if transfer.delivery_id.is_some_and(|id| id != unfinished.id.0) {
            "delivery-id"
        } else if transfer
            .delivery_tag
            .is_some_and(|tag| tag != unfinished.tag.as_slice())
        {
            "delivery-tag"
        } else if transfer
            .message_format
            .is_some_and(|format| format != unfinished.message_format)
        {
            "message-format"
        } else {
            return Ok(());
        };
        Err(Fault::link(
            Condition::InvalidField,
            format_args!(
                "transfer: field '{wrong}': differs within delivery {}",
                unfinished.id.0
            ),
        ))
    }

    pub(crate) fn fill(&self, flow: &mut Flow<'_>) {
        flow.handle = Some(self.identity.id.handle());
        flow.delivery_count = Some(self.delivery_count.0);
        flow.link_credit = Some(self.credit);
        flow.drain = self.drain;
    }
}

/// The credit and the largest message of a receiving link.
pub(crate) fn receiver_limits(
    config: &Config,
    credit: Option<u32>,
    size: Option<u64>,
) -> (u32, u64) {
    let credit = credit.unwrap_or(config.link_credit);
    let size = match size {
        None | Some(0) => config.max_message_size,
        Some(size) => size.min(config.max_message_size),
    };
    (credit, size)
}

/// The state of an attached link, for people and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// The link.
    pub link: LinkId,
    /// The handle in the peer's frames.
    pub remote_handle: u32,
    /// The name.
    pub name: Box<str>,
    /// The engine's role.
    pub role: Role,
    /// How the sender settles.
    pub snd_settle_mode: SenderSettleMode,
    /// The delivery count.
    pub delivery_count: Serial,
    /// The credit.
    pub credit: u32,
    /// Messages that the sender has.
    pub available: u32,
    /// Deliveries that a receiving link's broker did not settle.
    pub unsettled: u32,
    /// The largest message that the receiver accepts, in bytes; [`u64::MAX`]: no limit.
    pub max_message_size: u64,
    /// Bytes of a message that is not complete.
    pub unfinished_size: usize,
}

impl LinkState {
    pub(crate) fn of(link: &Link) -> Option<Self> {
        match link {
            Link::Sender(link) => Some(Self {
                link: link.identity.id,
                remote_handle: link.identity.remote_handle,
                name: link.identity.name.clone(),
                role: Role::Sender,
                snd_settle_mode: link.snd_settle_mode,
                delivery_count: link.delivery_count,
                credit: link.credit,
                available: link.available,
                unsettled: 0,
                max_message_size: link.max_message_size,
                unfinished_size: 0,
            }),
            Link::Receiver(link) => Some(Self {
                link: link.identity.id,
                remote_handle: link.identity.remote_handle,
                name: link.identity.name.clone(),
                role: Role::Receiver,
                snd_settle_mode: link.snd_settle_mode,
                delivery_count: link.delivery_count,
                credit: link.credit,
                available: link.available,
                unsettled: link.unsettled,
                max_message_size: link.max_message_size,
                unfinished_size: link
                    .unfinished
                    .as_ref()
                    .map_or(0, |message| message.payload.len()),
            }),
            Link::Attaching(_) | Link::Detaching(_) => None,
        }
    }
}
