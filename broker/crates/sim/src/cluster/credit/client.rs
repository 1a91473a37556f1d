//! A publisher or a receiver with credit.

use super::CreditQueue;
use super::oracle::CreditOracle;
use super::wire::{ClientFrame, Outcome, ServerFrame, decode, encode};
use crate::cluster::client::{Link, ProtocolEndpoint};
use bytes::{Bytes, BytesMut};
use env::{Rng, SeededRng, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Publishes that wait for their confirms, at most.
const MOST_OPEN: usize = 6;
/// After the faults, each publisher still publishes this many messages, ...
const LAST_MESSAGES: u32 = 15;
/// ... and each receiver drains, and modifies messages, this many times.
const LAST_DRAINS: u32 = 4;
const LAST_MODIFICATIONS: u32 = 8;
/// A receiver that waits for everything has at least this much credit.
const CREDIT: u64 = 5;

#[derive(Default)]
pub(super) struct CreditWire {
    input: BytesMut,
    output: BytesMut,
}

impl CreditWire {
    pub(super) fn say(&mut self, frame: &ClientFrame) {
        self.output.extend_from_slice(&encode(frame));
    }
}

impl ProtocolEndpoint for CreditWire {
    fn take(&mut self) -> Option<Bytes> {
        (!self.output.is_empty()).then(|| self.output.split().freeze())
    }
}

/// A request for credit without an answer.
#[derive(Clone, Copy, Debug)]
struct CreditRequest {
    number: u64,
    up_to: u64,
    drain: bool,
    at: Time,
}

/// The state of a connection of a receiver. Deliveries are counted from its beginning.
#[derive(Default)]
struct Receiver {
    delivered: u64,
    /// No deliveries beyond, by the last answer.
    limit: u64,
    /// The last request, answered or not.
    granted: u64,
    requests: u64,
    /// Requests up to the last one that was answered.
    answered: u64,
    unanswered: VecDeque<CreditRequest>,
    /// Message numbers by delivery id.
    held: BTreeMap<u64, u64>,
}

pub(super) struct CreditClient {
    pub queue: CreditQueue,
    pub consumes: bool,
    pub rng: SeededRng,
    pub link: Option<Link<CreditWire>>,
    receiver: Receiver,
    unconfirmed: BTreeSet<u64>,
    faults_ended: bool,
    last_messages: u32,
    last_drains: u32,
    last_modifications: u32,
}

impl CreditClient {
    pub(super) fn new(queue: CreditQueue, consumes: bool, rng: SeededRng) -> CreditClient {
        CreditClient {
            queue,
            consumes,
            rng,
            link: None,
            receiver: Receiver::default(),
            unconfirmed: BTreeSet::new(),
            faults_ended: false,
            last_messages: LAST_MESSAGES,
            last_drains: LAST_DRAINS,
            last_modifications: LAST_MODIFICATIONS,
        }
    }

    /// The connection is gone, and with it the consumer.
    pub(super) fn lost(&mut self) {
        self.receiver = Receiver::default();
        self.unconfirmed.clear();
    }

    pub(super) fn open(&self) -> ClientFrame {
        ClientFrame::Open {
            queue: self.queue,
            consumes: self.consumes,
        }
    }

    /// Takes in bytes. True: the connection is of no more use.
    pub(super) fn hear(
        &mut self,
        now: Time,
        bytes: &[u8],
        oracle: &mut CreditOracle,
    ) -> Result<bool, String> {
        let Some(link) = &mut self.link else {
            return Ok(true);
        };
        link.wire.input.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = decode(&mut link.wire.input) {
            frames.push(frame?);
        }
        for frame in frames {
            match frame {
                ServerFrame::Opened => {
                    if let Some(link) = &mut self.link {
                        link.open = true;
                    }
                }
                ServerFrame::Failed => return Ok(true),
                ServerFrame::Published { number, confirmed } => {
                    self.unconfirmed.remove(&number);
                    oracle.confirmed(self.queue, number, confirmed);
                }
                ServerFrame::Delivered { id, number, value } => {
                    oracle.delivered(now, self.queue, number, value)?;
                    self.receiver.delivered(id, number)?;
                }
                ServerFrame::Credited {
                    request,
                    last,
                    available,
                    drained,
                } => {
                    oracle.drains += u64::from(drained);
                    self.receiver
                        .credited(request, last, available, drained, oracle)?;
                }
            }
        }
        Ok(false)
    }

    /// Does something. True: it ends its connection.
    pub(super) fn act(&mut self, now: Time, faults_ended: bool, oracle: &mut CreditOracle) -> bool {
        self.faults_ended |= faults_ended;
        if self.link.as_ref().is_none_or(|link| !link.open) {
            return false;
        }
        let mut frames = Vec::new();
        if !self.consumes {
            let may_publish = !self.faults_ended || self.last_messages > 0;
            if may_publish && self.unconfirmed.len() < MOST_OPEN {
                self.last_messages -= u32::from(self.faults_ended);
                let number = oracle.publish(self.queue);
                self.unconfirmed.insert(number);
                frames.push(ClientFrame::Publish { number });
            }
        } else {
            self.settle(now, oracle, &mut frames);
            self.credit(now, &mut frames);
        }
        if let Some(link) = &mut self.link {
            frames.iter().for_each(|frame| link.wire.say(frame));
        }
        !self.faults_ended && self.rng.chance(1, 120)
    }

    fn settle(&mut self, now: Time, oracle: &mut CreditOracle, frames: &mut Vec<ClientFrame>) {
        let held: Vec<(u64, u64)> = self.receiver.held.iter().map(|(k, v)| (*k, *v)).collect();
        for (id, number) in held {
            if !self.faults_ended && self.rng.chance(1, 2) {
                continue;
            }
            let may_modify = !self.faults_ended || self.last_modifications > 0;
            let outcome = match self.rng.below(8) {
                0 if !self.faults_ended => Outcome::Released,
                1..4 if may_modify => {
                    self.last_modifications -= u32::from(self.faults_ended);
                    Outcome::Modified {
                        delivery_failed: self.rng.chance(1, 2),
                        value: oracle.next_value(),
                    }
                }
                _ => Outcome::Accepted,
            };
            self.receiver.held.remove(&id);
            oracle.settles(now, self.queue, number, outcome);
            frames.push(ClientFrame::Settle { id, outcome });
        }
    }

    fn credit(&mut self, now: Time, frames: &mut Vec<ClientFrame>) {
        let receiver = &mut self.receiver;
        let drains = receiver.unanswered.iter().any(|request| request.drain);
        // Few do not wait for the end of a drain.
        if drains && (self.faults_ended || !self.rng.chance(1, 12)) {
            return;
        }
        let left = receiver.granted.saturating_sub(receiver.delivered);
        let (wants, drain) = match self.faults_ended {
            false => (self.rng.chance(1, 2), self.rng.chance(1, 4)),
            true => (left < CREDIT, self.last_drains > 0 && self.rng.chance(1, 2)),
        };
        if !wants || receiver.unanswered.len() > 3 {
            return;
        }
        self.last_drains -= u32::from(self.faults_ended && drain);
        let more = match self.faults_ended {
            true => 2 * CREDIT,
            false => self.rng.below(12),
        };
        let request = CreditRequest {
            number: receiver.requests,
            up_to: receiver.delivered + more,
            drain,
            at: now,
        };
        receiver.requests += 1;
        receiver.granted = request.up_to;
        receiver.unanswered.push_back(request);
        frames.push(ClientFrame::Credit {
            request: request.number,
            up_to: request.up_to,
            drain,
        });
    }

    /// Nothing is left to do after the faults have ended.
    pub(super) fn is_done(&self) -> bool {
        let is_open = self.link.as_ref().is_some_and(|link| link.open);
        let has_rest = match self.consumes {
            true => !self.receiver.unanswered.is_empty() || !self.receiver.held.is_empty(),
            false => self.last_messages > 0 || !self.unconfirmed.is_empty(),
        };
        self.faults_ended && is_open && !has_rest
    }

    pub(super) fn waits_for(&self) -> String {
        format!(
            "{:?}: {} unconfirmed, {} held, credit {:?}",
            self.queue,
            self.unconfirmed.len(),
            self.receiver.held.len(),
            self.receiver.unanswered
        )
    }
}

impl Receiver {
    fn delivered(&mut self, id: u64, number: u64) -> Result<(), String> {
        self.delivered += 1;
        self.held.insert(id, number);
        let requested = self.unanswered.iter().map(|request| request.up_to).max();
        let allowed = self.limit.max(requested.unwrap_or(0));
        match self.delivered <= allowed {
            true => Ok(()),
            false => Err(format!(
                "delivery {} exceeds the credit, which is up to {allowed}",
                self.delivered
            )),
        }
    }

    fn credited(
        &mut self,
        number: u64,
        last: u64,
        available: u64,
        drained: bool,
        oracle: &CreditOracle,
    ) -> Result<(), String> {
        let at = self.unanswered.iter().position(|r| r.number == number);
        let Some(request) = at.and_then(|at| self.unanswered.remove(at)) else {
            return Err(format!("request {number} for credit was answered twice"));
        };
        let is_last = number + 1 == self.requests;
        if last > self.delivered {
            let here = self.delivered;
            return Err(format!("an answer counts {last} deliveries, {here} came"));
        }
        if drained && last != self.delivered {
            return Err(format!(
                "{} deliveries came, not {last}: {request:?}",
                self.delivered
            ));
        }
        if drained && !request.drain || !drained && request.drain && is_last {
            return Err(format!("{request:?} was answered with drained: {drained}"));
        }
        if drained && last < request.up_to && available > 0 && oracle.calm_since(request.at) {
            return Err(format!("a drain left {available} messages: {request:?}"));
        }
        // An answer that was lost and comes again says nothing if a later request was answered.
        if number >= self.answered {
            self.answered = number + 1;
            self.limit = if drained { last } else { request.up_to };
        }
        if drained && is_last {
            self.granted = last;
        }
        Ok(())
    }
}
