//! One run: chaos under a seed, then peace, in which every member must get everything.

use super::history::{Chunk, History};
use super::node::{Job, Node};
use crate::{Trace, Violation};
use env::{NodeId, Rng, SeededRng, Time};
use std::collections::BTreeSet;
use std::time::Duration;
use stream_replication::{Attachment, ChunkHeader, MemberMessage, Output};

/// The size of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps with faults.
    pub steps: u64,
    /// Print every event.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            steps: 4_000,
            verbose: false,
        }
    }
}

/// Counts of a run. Equal seeds give equal reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of all events.
    pub hash: u64,
    /// Chunks that leaders wrote.
    pub written: u64,
    /// Chunks in the committed history.
    pub committed: u64,
    /// Terms of the Raft group.
    pub terms: u64,
    /// Leaders that opened their epoch.
    pub opened: u64,
    /// Processes that were killed, and machines that lost power.
    pub stops: (u64, u64),
    /// Truncations, and logs that began anew.
    pub truncated: (u64, u64),
    /// Logs that got back what a stop of the machine may have lost.
    pub recovered: u64,
}

/// Steps in which the members must agree once there are no faults.
const PEACE: u64 = 200_000;
/// Bytes of every chunk, so that only a few fit into one transfer.
const CHUNK_BYTES: u64 = 1 << 20;

/// Adds an event to the trace.
macro_rules! event {
    ($run:ident, $($text:tt)*) => {
        $run.trace.event($run.now, "stream", 0, &format_args!($($text)*))
    };
}

/// Runs one seed.
///
/// # Errors
///
/// The first rule that was broken.
pub fn run(seed: u64, options: &Options) -> Result<Report, Violation> {
    let mut run = Run::new(seed, options);
    for _ in 0..options.steps {
        run.fault();
        run.step(true)?;
    }
    run.peace()?;
    run.report.hash = run.trace.hash();
    Ok(run.report)
}

struct Envelope {
    from: NodeId,
    to: NodeId,
    message: MemberMessage,
    chunks: Vec<Chunk>,
}

struct Run {
    rng: SeededRng,
    now: Time,
    nodes: Vec<Node>,
    voters: Vec<NodeId>,
    learners: Vec<NodeId>,
    /// Pairs of nodes that do not reach each other, the smaller id first.
    cut: BTreeSet<(NodeId, NodeId)>,
    network: Vec<Envelope>,
    /// The term of the Raft group, and its leader.
    term: u64,
    leader: Option<NodeId>,
    history: History,
    contents: u64,
    trace: Trace,
    report: Report,
}

impl Run {
    fn new(seed: u64, options: &Options) -> Run {
        let mut rng = SeededRng::new(seed);
        let voters = [1, 3, 3, 3, 5][rng.below(5) as usize];
        let learners = rng.below(2);
        let nodes: Vec<Node> = (1..=voters + learners)
            .map(|id| Node::new(NodeId(id)))
            .collect();
        let ids = |range: std::ops::RangeInclusive<u64>| range.map(NodeId).collect();
        let mut run = Run {
            rng,
            now: Time::ZERO,
            nodes,
            voters: ids(1..=voters),
            learners: ids(voters + 1..=voters + learners),
            cut: BTreeSet::new(),
            network: Vec::new(),
            term: 0,
            leader: None,
            history: History::default(),
            contents: 0,
            trace: Trace::new(options.verbose),
            report: Report::default(),
        };
        (0..run.nodes.len()).for_each(|at| run.start(at));
        run
    }

    fn violation(&self, message: String) -> Violation {
        Violation {
            at: self.now,
            message,
        }
    }

    fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    fn index(&self, id: NodeId) -> usize {
        (id.0 - 1) as usize
    }

    fn is_cut(&self, a: NodeId, b: NodeId) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    fn start(&mut self, at: usize) {
        let (voters, learners, now) = (self.voters.clone(), self.learners.clone(), self.now);
        self.nodes[at].start(&voters, &learners, now);
        event!(self, "start {at} in term {}", self.nodes[at].term);
    }

    /// A fault, or none.
    fn fault(&mut self) {
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(1_000) {
            0..4 => self.stop(at, false),
            4..7 => self.stop(at, true),
            7..37 if self.nodes[at].member.is_none() => self.start(at),
            37..52 => self.elect(at),
            52..57 => {
                let other = self.rng.below(self.nodes.len() as u64) as usize;
                let (a, b) = (self.nodes[at].id, self.nodes[other].id);
                if a != b && !self.cut.remove(&(a.min(b), a.max(b))) {
                    self.cut.insert((a.min(b), a.max(b)));
                }
                event!(self, "cut or join {a:?} {b:?}");
            }
            57..60 => self.nodes[at].trim(&mut self.rng),
            _ => {}
        }
    }

    fn stop(&mut self, at: usize, mut power: bool) {
        if self.nodes[at].member.is_none() {
            return;
        }
        if power && self.voters.contains(&self.nodes[at].id) {
            // More lost ends than a minority can lose what was confirmed: the guarantee does not cover it.
            let lost = self
                .nodes
                .iter()
                .filter(|n| self.voters.contains(&n.id) && !n.intact);
            let already = usize::from(!self.nodes[at].intact);
            power = lost.count() - already < self.voters.len() - self.majority();
        }
        match power {
            true => {
                self.nodes[at].lose_power(&mut self.rng);
                self.report.stops.1 += 1;
            }
            false => {
                self.nodes[at].kill();
                self.report.stops.0 += 1;
            }
        }
        if self.leader == Some(self.nodes[at].id) {
            self.leader = None;
        }
        event!(
            self,
            "stop {at}, power {power}, log ends at {}",
            self.nodes[at].next()
        );
    }

    /// The Raft group elects this node, if it reaches a majority.
    fn elect(&mut self, at: usize) {
        let id = self.nodes[at].id;
        if self.nodes[at].member.is_none() || !self.voters.contains(&id) {
            return;
        }
        let is_up = |n: &&Node| n.member.is_some() && self.voters.contains(&n.id);
        let reached = self
            .nodes
            .iter()
            .filter(is_up)
            .filter(|n| !self.is_cut(id, n.id));
        let mut granted: Vec<usize> = reached.map(|n| (n.id.0 - 1) as usize).collect();
        if granted.len() < self.majority() {
            return;
        }
        // Some of them hear of the term later.
        while granted.len() > self.majority() {
            let dropped = self.rng.below(granted.len() as u64) as usize;
            if granted[dropped] == at || self.rng.chance(1, 2) {
                break;
            }
            granted.remove(dropped);
        }
        self.term += 1;
        self.report.terms += 1;
        self.leader = Some(id);
        let (term, now) = (self.term, self.now);
        event!(self, "term {term}: {id:?} leads, elected by {granted:?}");
        for voter in granted {
            let node = &mut self.nodes[voter];
            node.term = term;
            let leader = (voter == at).then_some(id);
            node.member
                .as_mut()
                .expect("it is up")
                .set_term(term, leader, now);
        }
    }

    /// A node hears of the current term and leader.
    fn inform(&mut self, at: usize) {
        let Some(leader) = self.leader else { return };
        let (term, now) = (self.term, self.now);
        if self.nodes[at].id == leader || self.is_cut(leader, self.nodes[at].id) {
            return;
        }
        let node = &mut self.nodes[at];
        if let Some(member) = &mut node.member {
            node.term = term;
            member.set_term(term, Some(leader), now);
        }
    }

    /// Something that happens without a fault. `lossy`: messages are lost and repeated.
    fn step(&mut self, lossy: bool) -> Result<(), Violation> {
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(100) {
            0..50 => self.deliver(lossy),
            50..75 => self.nodes[at].work(self.now),
            75..83 if lossy => self.publish(at),
            83..88 => self.tick(),
            88..92 => self.inform(at),
            92..94 => self.nodes[at].sync(),
            94..97 => self.see_reachability(at),
            _ => {}
        }
        self.carry_out()
    }

    /// A node notices which others it reaches.
    fn see_reachability(&mut self, at: usize) {
        let other = self.rng.below(self.nodes.len() as u64) as usize;
        let (a, b) = (self.nodes[at].id, self.nodes[other].id);
        let reachable = self.nodes[other].member.is_some() && !self.is_cut(a, b);
        let now = self.now;
        if let Some(member) = self.nodes[at].member.as_mut().filter(|_| a != b) {
            member.set_reachable(b, reachable, now);
        }
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(self.rng.below(200));
        let now = self.now;
        for node in &mut self.nodes {
            if let Some(member) = &mut node.member
                && member.deadline().is_some_and(|at| at <= now)
            {
                member.tick(now);
            }
        }
    }

    fn publish(&mut self, at: usize) {
        let entries = 1 + self.rng.below(4);
        let node = &mut self.nodes[at];
        let Some(member) = &mut node.member else {
            return;
        };
        let Some(epoch) = member.writing() else {
            return;
        };
        // The marker comes first.
        if member.log().end().epoch != epoch {
            return;
        }
        let first = member.log().next();
        let header = ChunkHeader {
            epoch,
            first,
            next: first + entries,
        };
        self.write(at, header);
    }

    /// The leader adds a chunk.
    fn write(&mut self, at: usize, header: ChunkHeader) {
        self.contents += 1;
        let content = self.contents;
        let node = &mut self.nodes[at];
        let token = node
            .member
            .as_mut()
            .and_then(|member| member.append(header));
        let token = token.expect("the leader writes");
        let chunks = vec![Chunk { header, content }];
        node.jobs.push_back(Job::Write { token, chunks });
        self.report.written += 1;
        event!(self, "{at} writes {header:?}");
    }

    fn deliver(&mut self, lossy: bool) {
        if self.network.is_empty() {
            return;
        }
        let at = self.rng.below(self.network.len() as u64) as usize;
        if lossy && self.rng.chance(1, 20) {
            let Envelope {
                from,
                to,
                message,
                chunks,
            } = &self.network[at];
            let (from, to, message, chunks) = (*from, *to, message.clone(), chunks.clone());
            self.network.push(Envelope {
                from,
                to,
                message,
                chunks,
            });
        }
        // Mostly in order: a receiver gets little done otherwise.
        let at = match self.rng.chance(1, 4) {
            true => at,
            false => 0,
        };
        let Envelope {
            from,
            to,
            message,
            chunks,
        } = self.network.remove(at);
        if self.is_cut(from, to) || lossy && self.rng.chance(1, 30) {
            return;
        }
        event!(self, "{from:?} to {to:?}: {message:?} {}", chunks.len());
        let now = self.now;
        let index = self.index(to);
        let node = &mut self.nodes[index];
        let Some(member) = &mut node.member else {
            return;
        };
        if !matches!(message, MemberMessage::Chunks { .. }) {
            return member.receive(from, message, now);
        }
        let headers: Vec<ChunkHeader> = chunks.iter().map(|chunk| chunk.header).collect();
        if let Some(token) = member.receive_chunks(from, &message, &headers, now) {
            node.jobs.push_back(Job::Write { token, chunks });
        }
    }

    /// Carries out what the members ask for, and checks the rules.
    fn carry_out(&mut self) -> Result<(), Violation> {
        for at in 0..self.nodes.len() {
            while let Some(member) = &mut self.nodes[at].member {
                let outputs = member.poll();
                if outputs.is_empty() {
                    break;
                }
                for output in outputs {
                    self.carry_out_one(at, output)?;
                }
            }
        }
        Ok(())
    }

    fn carry_out_one(&mut self, at: usize, output: Output) -> Result<(), Violation> {
        let id = self.nodes[at].id;
        match output {
            Output::Send { to, message } => self.network.push(Envelope {
                from: id,
                to,
                message,
                chunks: Vec::new(),
            }),
            Output::SendChunks {
                to,
                attachment,
                first,
                end,
                bytes,
                committed,
            } => {
                self.send_chunks(at, to, attachment, (first, end), bytes, committed);
            }
            Output::WriteMarker { epoch } => {
                let first = self.nodes[at].member.as_ref().map_or(0, |m| m.log().next());
                let next = first + 1;
                self.write(at, ChunkHeader { epoch, first, next });
            }
            Output::Opened { epoch } => {
                self.report.opened += 1;
                event!(self, "{at} opens epoch {epoch}");
                let node = &self.nodes[at];
                let has_all = self.history.is_in(&node.log, node.start);
                has_all.map_err(|lack| {
                    self.violation(format!("{id:?} leads epoch {epoch}: {lack}"))
                })?;
            }
            Output::Committed(offset) => {
                event!(self, "{at} has committed up to {offset}");
                let node = &self.nodes[at];
                let checked = self.history.commit(&node.log, offset);
                checked.map_err(|wrong| self.violation(format!("at {id:?}: {wrong}")))?;
            }
            Output::Truncate { next } => {
                self.report.truncated.0 += 1;
                event!(self, "{at} truncates to {next}");
                self.nodes[at].jobs.push_back(Job::Truncate { next });
            }
            Output::Reset { start } => {
                self.report.truncated.1 += 1;
                event!(self, "{at} begins anew at {start}");
                self.nodes[at].jobs.push_back(Job::Reset { start });
            }
            Output::TransferLeadership { to } => {
                event!(self, "{at} hands over to {to:?}");
                let to = self.index(to);
                self.elect(to);
            }
            Output::Intact => {
                self.report.recovered += 1;
                self.nodes[at].intact = true;
            }
            Output::LostCommitted { from, to } => {
                return Err(
                    self.violation(format!("{id:?} drops the committed offsets {from}..{to}"))
                );
            }
            Output::Closed => {}
        }
        Ok(())
    }

    fn send_chunks(
        &mut self,
        at: usize,
        to: NodeId,
        attachment: Attachment,
        (first, end): (u64, u64),
        bytes: u64,
        committed: u64,
    ) {
        let now = self.now;
        let fits = (bytes / CHUNK_BYTES).max(1) as usize;
        let node = &mut self.nodes[at];
        let from = node
            .log
            .iter()
            .skip_while(|chunk| chunk.header.first < first);
        let until = from.take_while(|chunk| chunk.header.next <= end).take(fits);
        let chunks: Vec<Chunk> = until.copied().collect();
        let next = chunks.last().map_or(first, |chunk| chunk.header.next);
        let bytes = chunks.len() as u64 * CHUNK_BYTES;
        let Some(member) = &mut node.member else {
            return;
        };
        // Retention may have deleted the first of them. The follower attaches again, and begins anew.
        if chunks
            .first()
            .is_none_or(|chunk| chunk.header.first != first)
        {
            return member.sent_chunks(to, attachment, first, 0, now);
        }
        let epoch = node.term;
        member.sent_chunks(to, attachment, next, bytes, now);
        let message = MemberMessage::Chunks {
            epoch,
            attachment,
            first,
            committed,
        };
        let from = node.id;
        self.network.push(Envelope {
            from,
            to,
            message,
            chunks,
        });
    }

    /// Without faults, every member gets everything, and then nothing happens any more.
    fn peace(&mut self) -> Result<(), Violation> {
        event!(self, "peace");
        self.cut.clear();
        for at in 0..self.nodes.len() {
            if self.nodes[at].member.is_none() {
                self.start(at);
            }
        }
        for step in 0..PEACE {
            if self.leader.is_none() || step > 0 && step % 20_000 == 0 && !self.is_settled() {
                let at = self.rng.below(self.voters.len() as u64) as usize;
                self.elect(at);
            }
            for at in 0..self.nodes.len() {
                self.inform(at);
            }
            self.step(false)?;
            if step % 64 == 0 && self.is_settled() {
                break;
            }
        }
        if !self.is_settled() {
            let states: Vec<_> = self
                .nodes
                .iter()
                .map(|n| {
                    n.member
                        .as_ref()
                        .map(|m| (m.log().end(), m.committed(), m.deadline()))
                })
                .collect();
            return Err(self.violation(format!("the members do not settle: {states:?}")));
        }
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let has_all = self.history.is_in(&node.log, node.start);
            let id = node.id;
            has_all.map_err(|lack| self.violation(format!("at the end, {id:?}: {lack}")))?;
        }
        self.report.committed = self.history.len() as u64;
        Ok(())
    }

    /// Every member has the whole log, knows that it is committed, and waits for nothing.
    fn is_settled(&self) -> bool {
        let open = self
            .nodes
            .iter()
            .any(|n| n.member.as_ref().is_some_and(|m| m.writing().is_some()));
        let end = self.history.next();
        open && self.network.is_empty()
            && self.nodes.iter().all(|node| {
                node.jobs.is_empty()
                    && node.next() == end
                    && node.intact
                    && node
                        .member
                        .as_ref()
                        .is_some_and(|m| m.committed() == end && m.deadline().is_none())
            })
    }
}
