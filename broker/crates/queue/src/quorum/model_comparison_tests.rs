//! The machine against the model of a queue.

use super::command::{Command, Configuration};
use super::machine::Machine;
use super::tests::{Rig, session, settings};
use crate::model::{FLOW, Pair, QueueUnderTest, Step, step};
use crate::{
    BrowsePage, BrowseRequest, ConsumerId, DelayedDetails, DelayedRetry, QueueOutput,
    QueueSettings, QueueType, ReadyDetails, RequestBody, SessionId,
};
use proptest::prelude::*;

impl QueueUnderTest for Rig {
    fn request(&mut self, by: u64, body: RequestBody) -> QueueOutput {
        self.one(by, body)
    }

    fn open_flow_window(&mut self, by: u64, consumer: u32, up_to: u64) -> QueueOutput {
        Rig::received(self, by, ConsumerId(consumer), up_to)
    }

    fn advance(&mut self, ms: u64) -> QueueOutput {
        self.pass(ms)
    }

    fn configure(&mut self, settings: &QueueSettings) -> QueueOutput {
        let (features, settings) = (self.machine.features(), settings.clone());
        let command = match features.is_empty() {
            true => Command::Settings(settings),
            false => Command::Configure(Configuration { features, settings }),
        };
        self.command(command.encode())
    }

    fn restart(&mut self) -> QueueOutput {
        let state = self.machine.snapshot();
        let mut again = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
        again.checkout.flow_window = FLOW;
        assert_eq!(again.snapshot(), state);
        self.machine = again;
        QueueOutput::default()
    }

    fn serve_strictly(&mut self) -> Option<QueueOutput> {
        Some(self.enable_strict_priorities())
    }

    fn count_deliveries(&mut self) -> Option<QueueOutput> {
        Some(self.enable_delivery_counts())
    }

    fn expire_exactly(&mut self) -> Option<QueueOutput> {
        Some(self.enable_exact_expiry())
    }

    fn delay_returns(&mut self, retry: Option<DelayedRetry>) -> Option<QueueOutput> {
        Some(Rig::delay_returns(self, retry))
    }

    fn hold_back(&mut self) -> Option<QueueOutput> {
        Some(self.enable_scheduled_delivery())
    }

    fn time_out(&mut self, by: u64, consumer: u32, up_to: u64) -> Option<QueueOutput> {
        let command = Command::ConsumerTimedOut {
            session: session(by),
            consumer: ConsumerId(consumer),
            up_to,
        };
        Some(self.command(command.encode()))
    }

    fn delayed(&self) -> Option<DelayedDetails> {
        self.machine.delayed_details()
    }

    fn ready_details(&self) -> Option<ReadyDetails> {
        self.machine.ready_details()
    }

    fn browse(&mut self, request: &BrowseRequest) -> BrowsePage {
        let log = &self.log;
        let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
        self.machine.browse(request, &mut read).unwrap()
    }

    fn head(&mut self) -> Option<u64> {
        Rig::head(self).0
    }

    fn session(&self, by: u64) -> SessionId {
        session(by)
    }

    fn clock(&self) -> u64 {
        self.wall
    }

    fn counts(&self) -> (u64, u64) {
        let stats = self.machine.stats();
        (stats.ready, stats.unacknowledged)
    }
}

impl Rig {
    /// With exact expiry, no ready message is present after its expiry.
    fn assert_none_has_expired(&self) -> Result<(), TestCaseError> {
        let ready = &self.machine.ready;
        let requeued = ready.returned().chain(ready.postponed().map(|(_, r)| r));
        let grouped = ready.grouped().map(|(_, r)| r);
        let messages = ready.fresh().chain(requeued.chain(grouped).map(|r| r.held));
        let clock = self.machine.clock;
        let expired = messages.filter(|held| held.expires != 0 && held.expires <= clock);
        prop_assert!(!ready.is_exact() || expired.count() == 0);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn queue_behaves_like_the_model(
        steps in proptest::collection::vec(step(60), 1..120),
        delivery_limit in prop_oneof![Just(None), (0u32..4).prop_map(Some)],
        message_ttl_ms in proptest::option::of(20u64..100),
        single_active_consumer: bool,
        is_exact: bool,
    ) {
        let settings = QueueSettings {
            delivery_limit,
            message_ttl_ms,
            single_active_consumer,
            ..settings()
        };
        let mut rig = Rig::new(settings.clone());
        rig.machine.checkout.flow_window = FLOW;
        let mut pair = Pair::new(QueueType::Quorum, settings, rig);
        if is_exact {
            pair.run(Step::ExpireExactly)?;
        }
        for step in steps {
            pair.run(step)?;
            pair.real.assert_none_has_expired()?;
        }
    }
}
