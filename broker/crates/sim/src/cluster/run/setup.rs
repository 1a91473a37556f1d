//! Initial state of a run: the cluster, queues and clients.

use super::super::amq_topic::{BoundQueueConsumer, TopicPublisher};
use super::super::amqp;
use super::super::client::{Client, ClientRole};
use super::super::consumer::Consumer;
use super::super::node::{Identities, Identity, name_of};
use super::super::oracle::{DEAD_LETTER_QUEUE, DelayPlan, QueuePlan, QueueTreatment, STEADY};
use super::super::publisher::Publisher;
use super::super::queue_admin::QueueAdmin;
use env::{Rng, SeededRng};
use metadata::features::Version;
use metadata::{DelayedReturns, NodeRecord, QueueType, UserRecord};
use std::time::Duration;

/// Mixed into the seed for the choice of the queue with delays.
const DELAYS: u64 = 0x6de1;
/// Mixed into the seed for the choice of the queue with scheduled messages.
const SCHEDULES: u64 = 0x5c4e;
/// Mixed into the seed for the choice of the queue with groups.
const GROUPS: u64 = 0x6209;
/// Mixed into the seed for the choice of the queue with copies.
const COPIES: u64 = 0xc0b1;

/// `seed`: for choices on which the others of a run do not depend.
pub(super) fn queues(rng: &mut SeededRng, seed: u64, has_all_features: bool) -> Vec<QueuePlan> {
    let queue = |name: &str, quorum, treatment| QueuePlan {
        name: name.to_owned(),
        quorum,
        treatment,
    };
    let mut all = vec![
        queue("plain-quorum", true, QueueTreatment::Plain),
        queue("plain-classic", false, QueueTreatment::Plain),
        queue(STEADY, true, QueueTreatment::Plain),
    ];
    let others = [
        ("purged", QueueTreatment::Purged),
        ("recreated", QueueTreatment::Recreated),
        ("short", QueueTreatment::MaxLength(3 + rng.below(30))),
        (
            "brief",
            QueueTreatment::MessageTtl(Duration::from_millis(200 + rng.below(3000))),
        ),
        ("refusing", QueueTreatment::RejectPublish(3 + rng.below(30))),
    ];
    for (name, treatment) in others {
        if rng.chance(1, 2) {
            all.push(queue(name, rng.chance(2, 3), treatment));
        }
    }
    if rng.chance(1, 2) {
        all.push(queue("mortal", true, QueueTreatment::DeadLettering));
        all.push(queue(DEAD_LETTER_QUEUE, true, QueueTreatment::Plain));
    }
    let rng = &mut SeededRng::new(seed ^ DELAYS);
    if rng.chance(1, 2) {
        let min = Duration::from_millis(100 + rng.below(900));
        let plan = DelayPlan {
            returns: match rng.below(4) {
                0 => DelayedReturns::Failed,
                1 => DelayedReturns::Returned,
                _ => DelayedReturns::All,
            },
            min,
            max: min * (1 + rng.below(3) as u32),
        };
        all.push(queue("delaying", true, QueueTreatment::DelayedRetry(plan)));
    }
    if rng.chance(1, 2) {
        let timeout = Duration::from_millis(400 + rng.below(1600));
        all.push(queue(
            "timed",
            true,
            QueueTreatment::ConsumerTimeout(timeout),
        ));
    }
    // The exchange needs its feature flag.
    let rng = &mut SeededRng::new(seed ^ SCHEDULES);
    if has_all_features && rng.chance(1, 2) {
        let delay = Duration::from_millis(100 + rng.below(2000));
        all.push(queue("scheduled", true, QueueTreatment::Scheduled(delay)));
    }
    // The arguments need their feature flag.
    let rng = &mut SeededRng::new(seed ^ COPIES);
    if has_all_features && rng.chance(1, 2) {
        all.push(queue("deduplicated", true, QueueTreatment::Deduplicated));
    }
    let rng = &mut SeededRng::new(seed ^ GROUPS);
    if has_all_features && rng.chance(1, 2) {
        all.push(queue("grouped", true, QueueTreatment::Grouped));
    }
    all
}

/// Small limits, so that a short run has checkpoints, segments and transfers.
pub(super) fn limits() -> consensus::HostLimits {
    consensus::HostLimits {
        checkpoint_bytes: 64 << 10,
        checkpoint_entries: 60,
        retain_entries: 20,
        max_message_bytes: 16 << 10,
        max_inflight_messages: 8,
        transfer_chunk_bytes: 2 << 10,
        ..consensus::HostLimits::default()
    }
}

/// First contents of the cluster, with a node on every machine.
pub(super) fn founding(
    identities: &Identities,
    version: Version,
) -> Result<shard::Founding, String> {
    let algorithm = auth::HashAlgorithm::Sha256;
    let password = auth::hash_with(algorithm, amqp::PASSWORD.as_bytes(), b"salt")
        .map_err(|e| e.to_string())?;
    let all = identities.borrow();
    let record = |identity: &Identity| {
        let name = name_of(identity.name_number);
        NodeRecord {
            id: identity.node,
            address: format!("{name}:25672").as_str().into(),
            name: name.as_str().into(),
            voter: true,
            maintenance: false,
        }
    };
    Ok(shard::Founding {
        cluster: "sim".into(),
        nodes: all.values().map(record).collect(),
        user: UserRecord {
            name: amqp::USER.into(),
            password: Some(password),
            tags: vec!["administrator".into()],
            limits: Vec::new(),
        },
        // For the queues of MQTT sessions.
        default_queue_type: Some(QueueType::Quorum),
        features: version.facts().features,
    })
}

pub(super) fn clients(rng: &mut SeededRng) -> Vec<Client> {
    let mut clients = Vec::new();
    let mut add = |role| {
        clients.push(Client {
            rng: rng.fork(),
            role,
            link: None,
            home: None,
        });
    };
    for number in 0..3 {
        add(ClientRole::Publisher(Publisher::new(number)));
    }
    for _ in 0..3 {
        add(ClientRole::Consumer(Consumer::default()));
    }
    add(ClientRole::QueueAdmin(QueueAdmin::new(0)));
    add(ClientRole::Consumer(Consumer::with_own_queue()));
    add(ClientRole::TopicPublisher(TopicPublisher::default()));
    add(ClientRole::BoundQueueConsumer(BoundQueueConsumer::default()));
    clients
}
