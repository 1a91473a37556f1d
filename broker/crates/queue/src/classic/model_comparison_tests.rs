//! The queue against the model of a queue.

use super::tests::{Rig, session, settings};
use crate::model::{FLOW, Pair, QueueUnderTest, step};
use crate::{
    BrowsePage, BrowseRequest, ConsumerId, Queue, QueueOutput, QueueSettings, QueueType,
    RequestBody, SessionId,
};
use proptest::prelude::*;
use std::time::Duration;

impl QueueUnderTest for Rig {
    fn request(&mut self, by: u64, body: RequestBody) -> QueueOutput {
        Rig::request(self, by, body)
    }

    fn open_flow_window(&mut self, by: u64, consumer: u32, up_to: u64) -> QueueOutput {
        Rig::received(self, by, ConsumerId(consumer), up_to)
    }

    fn advance(&mut self, ms: u64) -> QueueOutput {
        Rig::pass(self, Duration::from_millis(ms))
    }

    fn configure(&mut self, settings: &QueueSettings) -> QueueOutput {
        let mut out = QueueOutput::default();
        self.queue.configure(self.at, settings, &mut out);
        self.take_dead(&mut out);
        out
    }

    fn restart(&mut self) -> QueueOutput {
        self.restart(true);
        self.queue.checkout.flow_window = FLOW;
        let mut out = QueueOutput::default();
        self.queue.flush(self.at, &mut out);
        self.take_dead(&mut out);
        out
    }

    fn browse(&mut self, request: &BrowseRequest) -> BrowsePage {
        self.queue.browse(request).unwrap()
    }

    fn head(&mut self) -> Option<u64> {
        Rig::head(self).0
    }

    fn session(&self, by: u64) -> SessionId {
        session(by)
    }

    fn clock(&self) -> u64 {
        self.at.wall.0
    }

    fn counts(&self) -> (u64, u64) {
        let stats = self.queue.stats();
        (stats.ready, stats.unacknowledged)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn queue_behaves_like_the_model(
        steps in proptest::collection::vec(step(30_000), 1..120),
        max_priority in proptest::option::of(0u8..10),
        message_ttl_ms in proptest::option::of(20u64..100),
        single_active_consumer: bool,
    ) {
        let settings = QueueSettings {
            max_priority,
            message_ttl_ms,
            single_active_consumer,
            ..settings()
        };
        let mut rig = Rig::new(settings.clone());
        rig.queue.checkout.flow_window = FLOW;
        let mut pair = Pair::new(QueueType::Classic, settings, rig);
        for step in steps {
            pair.run(step)?;
        }
    }
}
