//! Bugs that the simulator must detect: `sim --selfcheck` enables each in turn and checks that an invariant
//! is violated.
//!
//! Without the cargo feature `planted`, which production builds never enable, [`is`] is a constant and its
//! callers cost nothing. With it, one switch applies to the whole process.

macro_rules! bugs {
    ($($layer:literal { $($bug:ident $name:literal $breaks:literal,)* })*) => {
        /// A bug that can be enabled on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Bug {
            $($(#[doc = $breaks] $bug,)*)*
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$($(Bug::$bug,)*)*];

            /// The name that `sim --planted` accepts.
            pub fn name(self) -> &'static str {
                match self { $($(Bug::$bug => $name,)*)* }
            }

            /// The scenario of the simulator that detects the bug.
            pub fn scenario(self) -> &'static str {
                match self { $($(Bug::$bug => $layer,)*)* }
            }

            /// The faulty behaviour while the bug is enabled.
            pub fn breaks(self) -> &'static str {
                match self { $($(Bug::$bug => $breaks,)*)* }
            }

            /// Returns the bug with this name.
            pub fn named(name: &str) -> Option<Bug> {
                Bug::ALL.iter().copied().find(|b| b.name() == name)
            }
        }
    };
}

bugs! {
    "metadata" {
        ConfirmBeforeFsync "confirm-before-fsync" "the log reports unsynced records as durable",
        FailedFsyncForgotten "failed-fsync-forgotten" "a failed fsync is treated as successful",
        NameNotSynced "name-not-synced" "the name of a new log file is not made durable",
        ChecksumIgnored "checksum-ignored" "damaged log records are accepted",
        NewestLogFileNotRecorded "newest-log-file-not-recorded" "the log manifest does not record a new log file, so its loss goes undetected",
        SuffixKept "suffix-kept" "entries overwritten by a new leader reappear after a restart",
        LogFileFreedEarly "log-file-freed-early" "a log file is deleted before its entries are in segments",
        SegmentChecksumIgnored "segment-checksum-ignored" "damaged segment entries are accepted",
        SegmentDeletedTooFar "segment-deleted-too-far" "a segment is deleted although its last entry is live",
        LiveEntryForgotten "live-entry-forgotten" "a live entry is dropped from memory before it is in a segment",
        SnapshotWithoutTail "snapshot-without-tail" "a transferred checkpoint lacks the newest live entry",
        VoteNotPersisted "vote-not-persisted" "a restarted node has forgotten its vote",
        LeaderAnswersAlone "leader-answers-alone" "a leader applies and acknowledges entries before a majority has them",
        LearnerVotes "learner-votes" "a learner counts as a voter immediately",
        SilentMemberIgnored "silent-member-ignored" "a group continues without lost members although another member does not answer",
        OldestLogContinues "oldest-log-continues" "a group that lost its majority continues with the oldest log that is left",
        OldIdentity "old-identity" "a node that lost its disk rejoins under its old id",
    }
    "cluster" {
        ConfirmBeforeCommit "confirm-before-commit" "a queue leader confirms a publish on arrival",
        ClassicConfirmEarly "classic-confirm-early" "a classic queue confirms a persistent publish before writing it",
        RefusalForgotten "refusal-forgotten" "a publish rejected by its queue is confirmed",
        NumberingLost "numbering-lost" "a publish resent to a new leader is enqueued twice",
        EveryReplicaNeeded "every-replica-needed" "the leader of a queue proposes nothing while a replica does not answer",
        NotSentAgain "not-sent-again" "pending commands are not resent to a queue's new leader",
        AckAppliedTwice "ack-applied-twice" "an acknowledgement of a settled delivery settles the next one",
        AckShort "ack-short" "a multiple acknowledgement skips the last delivery",
        RequeueBehind "requeue-behind" "requeued messages go to the end of the queue",
        ReturnFails "return-fails" "a quorum queue counts each requeue that a client asks for as a failed delivery",
        FailureForgotten "failure-forgotten" "a quorum queue does not count failed deliveries",
        DelayIgnored "delay-ignored" "a delayed message of a quorum queue is ready again with the next command",
        ScheduleIgnored "schedule-ignored" "a quorum queue delivers a message before the time that its publisher set",
        DeduplicationIgnored "deduplication-ignored" "a quorum queue stores each copy of a message",
        DeduplicationForgotten "deduplication-forgotten" "a checkpoint of a quorum queue lacks the publishes that it remembers",
        GroupOrderIgnored "group-order-ignored" "a quorum queue with message groups delivers messages as if they had no group",
        GroupOwnerForgotten "group-owner-forgotten" "a message group is free again once its consumer has settled one of its messages",
        ReturnedUnexamined "returned-unexamined" "a message that is ready again is not compared again with the filters of consumers",
        FilterIgnored "filter-ignored" "every message satisfies the filter of a consumer",
        ExpiryIndexForgotten "expiry-index-forgotten" "a restored quorum queue has no index of messages that expire before others ahead of them",
        DelayedForgotten "delayed-forgotten" "a checkpoint of a quorum queue lacks the delayed messages",
        TimeoutForgotten "timeout-forgotten" "a quorum queue never ends the time of a consumer that does not acknowledge",
        TimeoutLosesMessages "timeout-loses-messages" "the messages of a consumer whose time is over do not return to their quorum queue",
        PriorityLevelSkipped "priority-level-skipped" "a quorum queue does not serve a priority level again after it was empty",
        UnackedNotReturned "unacked-not-returned" "unacknowledged messages of a closed session are not requeued",
        CancelLosesDeliveries "cancel-loses-deliveries" "messages in flight to a cancelled consumer are not requeued",
        DeadRouteKept "dead-route-kept" "queues keep delivering to a node's earlier incarnation after it restarts",
        CreditAdded "credit-added" "new credit of an AMQP 1.0 receiver is added to its old credit",
        OutcomeEarly "outcome-early" "an AMQP 1.0 session accepts a publish before its queues have confirmed it",
        TransfersTwice "transfers-twice" "an AMQP 1.0 message of several transfers is published twice",
        RangeShort "range-short" "the outcome of a range of AMQP 1.0 deliveries leaves out the last",
        WindowIgnored "window-ignored" "transfers are sent without regard to the incoming window of an AMQP 1.0 session",
        AnnotationsLost "annotations-lost" "annotations of the outcome modified are lost when the message is requeued",
        OverCredit "over-credit" "one delivery more than the prefetch limit is outstanding",
        DeadLetterLost "dead-letter-lost" "a dead-lettered message leaves its queue before the target queue has it",
        PurgeTakesUnacked "purge-takes-unacked" "a purge also removes unacknowledged messages",
        QueueLearnerVotes "queue-learner-votes" "a new member of a queue's group votes before it has any data",
        RemovedKeeps "removed-keeps" "unacknowledged messages of a removed node's sessions are not requeued",
        ForgottenUnasked "forgotten-unasked" "a node is removed although it received a queue replica after the check",
        LastCopyHoldsMember "last-copy-holds-member" "a member that lost its data directory stays in every group because one queue had its only copy there",
        RemovedReturns "removed-returns" "a removed node is admitted again",
        PubackEarly "puback-early" "PUBACK and PUBREC do not wait for session queues",
        MisfitGoesOn "misfit-goes-on" "a node keeps running when a feature flag is enabled that its version does not know",
        SenderShardIndex "sender-shard-index" "a Raft frame goes to the shard with the sender's index, whatever the receiver's count",
        ProgramOfBefore "program-of-before" "a node's version is taken from an earlier incarnation",
        DeadHubKept "dead-hub-kept" "MQTT routers keep the routes of a node's earlier incarnation after it restarts",
        PacketIdForgotten "packet-id-forgotten" "QoS 2 packet identifiers are lost with the connection",
        ForgetsReceivedId "forgets-received-id" "a QoS 2 publish is forgotten if its connection ends before the queues confirm it",
        PredecessorStays "predecessor-stays" "messages held by a persistent session's previous connection are not requeued before the next connection is served",
        SuspectedReturns "suspected-returns" "messages held by a persistent session are requeued when its node is briefly unreachable",
        RetainedStale "retained-stale" "a shard keeps serving a retained message after another shard replaced it",
        TakeoverIgnored "takeover-ignored" "a connection stays open when another one takes over its client id",
        WillKeptOn "will-kept-on" "the holder of a will is not told that its client disconnected normally",
        WillOfTheDead "will-of-the-dead" "wills of clients whose node dies are not published",
        BoundUnasked "bound-unasked" "PUBACK and PUBREC do not wait for queues bound by AMQP clients",
        ExpiryForgotten "expiry-forgotten" "session expiry is not tracked after another node becomes leader of the session's queue",
        WillInSpite "will-in-spite" "a delayed will is published although its client reconnected in time",
        SharedTwice "shared-twice" "a message of a shared subscription is also delivered to the next member",
    }
    "cluster" {
        StreamConfirmEarly "stream-confirm-early" "the leader of a stream confirms publishes before they are committed",
        StreamReadsUncommitted "stream-reads-uncommitted" "consumers of a stream get messages that are not committed",
        StreamReattachSkips "stream-reattach-skips" "a consumer of a stream leaves out a message when it continues on another replica",
        StreamOverPrefetch "stream-over-prefetch" "one delivery of a stream more than the prefetch is unacknowledged",
        StreamChunkFromStart "stream-chunk-from-start" "a consumer that starts inside a chunk of a stream gets the whole chunk",
        StreamTruncationForgotten "stream-truncation-forgotten" "a replica of a stream keeps chunks in its file that its leader does not have",
    }
    "stream" {
        StreamCommitAlone "stream-commit-alone" "the leader of a stream confirms chunks that no follower has written",
        StreamAckBeforeWrite "stream-ack-before-write" "a follower acknowledges chunks before it has written them",
        StreamShortLeader "stream-short-leader" "a stream's new leader writes although another member has more of the log",
        StreamLostEndCounts "stream-lost-end-counts" "a log that lost its end counts towards the majority of an election",
        StreamOldEpochCounted "stream-old-epoch-counted" "a leader commits chunks of earlier epochs before its own marker is on a majority",
        StreamTruncationSkipped "stream-truncation-skipped" "a follower keeps chunks that its leader does not have",
        StreamIntactEarly "stream-intact-early" "a log counts as intact before it has got back what it lost",
    }
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// One more than the number of the enabled bug; 0 means none.
    static ON: AtomicU8 = AtomicU8::new(0);

    /// True if bugs can be enabled in this build.
    pub const POSSIBLE: bool = true;

    /// True if the bug is enabled.
    pub fn is(bug: Bug) -> bool {
        ON.load(Ordering::Relaxed) == bug as u8 + 1
    }

    /// Enables the bug in the whole process and disables any other. Returns false if this build cannot.
    pub fn plant(bug: Bug) -> bool {
        ON.store(bug as u8 + 1, Ordering::Relaxed);
        true
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    /// True if bugs can be enabled in this build.
    pub const POSSIBLE: bool = false;

    /// Always false in this build.
    #[inline(always)]
    pub const fn is(_: super::Bug) -> bool {
        false
    }

    /// Enables the bug in the whole process and disables any other. Returns false if this build cannot.
    pub fn plant(_: super::Bug) -> bool {
        false
    }
}

pub use switch::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_names_round_trip_and_no_bug_is_enabled() {
        for bug in Bug::ALL {
            assert_eq!(Bug::named(bug.name()), Some(*bug));
            assert!(!is(*bug));
            assert!(!bug.breaks().is_empty());
        }
        assert_eq!(Bug::named("none"), None);
    }
}
