//! Bugs that the simulator must catch: `sim --selfcheck` switches each on in turn and looks whether a rule breaks.
//!
//! Without the cargo feature `planted` (the program never has it) [`is`] is a constant, and the lines that ask it
//! cost nothing. With it the switch is one for the whole process.

macro_rules! bugs {
    ($($layer:literal { $($bug:ident $name:literal $breaks:literal,)* })*) => {
        /// What can be broken on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Bug {
            $($(#[doc = $breaks] $bug,)*)*
        }

        impl Bug {
            /// Every one of them.
            pub const ALL: &[Bug] = &[$($(Bug::$bug,)*)*];

            /// As `sim --planted` takes it.
            pub fn name(self) -> &'static str {
                match self { $($(Bug::$bug => $name,)*)* }
            }

            /// The scenario of the simulator that it is planted in.
            pub fn scenario(self) -> &'static str {
                match self { $($(Bug::$bug => $layer,)*)* }
            }

            /// What is wrong with it on.
            pub fn breaks(self) -> &'static str {
                match self { $($(Bug::$bug => $breaks,)*)* }
            }

            /// The bug of this name.
            pub fn named(name: &str) -> Option<Bug> {
                Bug::ALL.iter().copied().find(|b| b.name() == name)
            }
        }
    };
}

bugs! {
    "metadata" {
        ConfirmBeforeFsync "confirm-before-fsync" "the log calls records durable that were not synced",
        FailedFsyncForgotten "failed-fsync-forgotten" "a failed fsync counts as done",
        NameNotSynced "name-not-synced" "the name of a new log file is not made durable",
        ChecksumIgnored "checksum-ignored" "damaged records of the log are believed",
        NewestLogFileNotRecorded "newest-log-file-not-recorded" "the manifest of the log does not learn of a new log file, so a missing one is not noticed",
        SuffixKept "suffix-kept" "entries that a new leader's replaced come back at a restart",
        LogFileFreedEarly "log-file-freed-early" "a log file goes before its entries are in segments",
        SegmentChecksumIgnored "segment-checksum-ignored" "damaged entries of segments are believed",
        SegmentDeletedTooFar "segment-deleted-too-far" "the last entry of a segment does not count when it is deleted",
        LiveEntryForgotten "live-entry-forgotten" "an entry that is still read leaves memory before it is in a segment",
        SnapshotWithoutTail "snapshot-without-tail" "a transferred checkpoint comes without the newest live entry",
        VoteNotPersisted "vote-not-persisted" "a restarted node has forgotten whom it voted for",
        LeaderAnswersAlone "leader-answers-alone" "a leader applies and answers what no majority has",
        LearnerVotes "learner-votes" "a learner counts as a voter at once",
        OldIdentity "old-identity" "a node that lost its disk comes back under its old id",
    }
    "cluster" {
        ConfirmBeforeCommit "confirm-before-commit" "a queue's leader calls a publish safe when it comes in",
        ClassicConfirmEarly "classic-confirm-early" "a classic queue calls a persistent publish safe before it is written",
        RefusalForgotten "refusal-forgotten" "a publish that its queue refused is confirmed",
        NumberingLost "numbering-lost" "a publish that is sent again to a new leader is taken again",
        NotSentAgain "not-sent-again" "what waits for a queue is not sent again to its new leader",
        AckAppliedTwice "ack-applied-twice" "an acknowledgement of what is no longer out takes the next delivery",
        AckShort "ack-short" "an acknowledgement of several leaves out the last",
        RequeueBehind "requeue-behind" "what is given back goes to the queue's end",
        UnackedNotReturned "unacked-not-returned" "what a session held when it ended does not go back",
        CancelLosesDeliveries "cancel-loses-deliveries" "what was on its way to a consumer that was cancelled does not go back",
        DeadRouteKept "dead-route-kept" "queues go on delivering to a node's earlier life when it is back",
        OverCredit "over-credit" "one delivery more than the prefetch is out",
        DeadLetterLost "dead-letter-lost" "a dead message leaves its queue before the next one has it",
        PurgeTakesUnacked "purge-takes-unacked" "a purge takes what clients hold, too",
        QueueLearnerVotes "queue-learner-votes" "a new member of a queue's group has a vote before it has anything else",
        RemovedKeeps "removed-keeps" "what sessions of a removed node had does not go back to its queues",
        ForgottenUnasked "forgotten-unasked" "a node is forgotten although a queue came to it since the queues were asked",
        LastCopyHoldsMember "last-copy-holds-member" "a member that lost its directory stays in every group while a queue had its only copy there",
        RemovedReturns "removed-returns" "a node that was removed is taken in again",
        PubackEarly "puback-early" "PUBACK and PUBREC do not wait for the queues of sessions",
        MisfitGoesOn "misfit-goes-on" "a program goes on when a feature flag comes on that it does not know",
        ProgramOfBefore "program-of-before" "a node counts as what it ran in an earlier life",
        DeadHubKept "dead-hub-kept" "hubs keep the routes of a node's earlier life when it is back",
        PacketIdForgotten "packet-id-forgotten" "packet identifiers of QoS 2 do not outlive the connection",
        ForgetsReceivedId "forgets-received-id" "a client's publish of QoS 2 is forgotten if its connection ends before the queues have answered",
        PredecessorStays "predecessor-stays" "what a lasting session's last connection held does not go back before the next one is served",
        SuspectedReturns "suspected-returns" "what a lasting session holds goes back when its node is out of reach for a moment",
        RetainedStale "retained-stale" "a shard goes on showing what was retained before another one replaced it",
        TakeoverIgnored "takeover-ignored" "a connection does not end when another one claims its client id",
        WillKeptOn "will-kept-on" "whoever keeps a will does not hear that its client said goodbye",
        WillOfTheDead "will-of-the-dead" "wills of clients whose node dies are not published",
        BoundUnasked "bound-unasked" "PUBACK and PUBREC do not wait for queues that clients of AMQP bound",
        ExpiryForgotten "expiry-forgotten" "the time of a session is not counted where another node comes to lead its queue",
        WillInSpite "will-in-spite" "a will that waits comes although its client was back in time",
        SharedTwice "shared-twice" "a message for one of a group goes to the next member, too",
    }
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// One more than the bug's number; 0: none.
    static ON: AtomicU8 = AtomicU8::new(0);

    /// Whether bugs can be switched on in this build.
    pub const POSSIBLE: bool = true;

    pub fn is(bug: Bug) -> bool {
        ON.load(Ordering::Relaxed) == bug as u8 + 1
    }

    /// Switches it on, and any other off, in the whole process. False: not in this build.
    pub fn plant(bug: Bug) -> bool {
        ON.store(bug as u8 + 1, Ordering::Relaxed);
        true
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    /// Whether bugs can be switched on in this build.
    pub const POSSIBLE: bool = false;

    /// Never.
    #[inline(always)]
    pub const fn is(_: super::Bug) -> bool {
        false
    }

    /// Switches it on, and any other off, in the whole process. False: not in this build.
    pub fn plant(_: super::Bug) -> bool {
        false
    }
}

pub use switch::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_nothing_is_on() {
        for bug in Bug::ALL {
            assert_eq!(Bug::named(bug.name()), Some(*bug));
            assert!(!is(*bug));
            assert!(!bug.breaks().is_empty());
        }
        assert_eq!(Bug::named("none"), None);
    }
}
