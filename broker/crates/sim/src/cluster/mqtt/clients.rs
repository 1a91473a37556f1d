//! All MQTT clients of a run, and how their connections run through the world.

use super::super::amq_topic::{TAP, TAPS_QUEUE};
use super::super::byte_stream::StreamPiece;
use super::super::client::{Client, Link};
use super::super::consistency;
use super::super::node::{Node, Reply, Request};
use super::client::{AbandonedConnection, ClientAction, MqttClient, Plan, RunContext};
use super::dying_node::DyingClients;
use super::expiring_session::WAITING;
use super::oracle::MqttOracle;
use super::retained::RetainedOracle;
use super::routes::{self, ShardIncarnation};
use super::wire::{MqttConnection, ServerMessage};
use crate::world::{Scenario, World};
use codec_mqtt::Qos;
use env::{NodeId, Rng, SeededRng, Time};
use std::ops::Range;
use std::time::Duration;

/// The number of the first of these clients, for replies.
pub const FIRST: u64 = 1000;
/// A connection whose client has left it for another one ends within this, when nothing is wrong.
const TAKEN_OVER: Duration = Duration::from_secs(2);

pub struct MqttClients {
    mqtt_devices: Vec<MqttClient>,
    pub mqtt_oracle: MqttOracle,
    retained: RetainedOracle,
    shards: u64,
    quiet: Option<Time>,
    rng: SeededRng,
    looking: bool,
}

/// Who there is: always somebody of each kind that costs little, of the others what the seed decides.
fn plans(rng: &mut SeededRng) -> Vec<Plan> {
    use Qos::{AtLeastOnce as One, AtMostOnce as Zero, ExactlyOnce as Two};
    let plan = |client: &str, lasting, filters: &[(&'static str, Qos)]| Plan {
        client: client.to_owned(),
        lasting,
        filters: filters.to_vec(),
        ..Plan::default()
    };
    let publisher = |client: &str, lasting, name| Plan {
        publishes: Some(name),
        ..plan(client, lasting, &[])
    };
    let mut all = vec![
        publisher("writer", false, "writer"),
        publisher("returner", true, "returner"),
        Plan {
            toggled: Some(("b/+", One)),
            ..plan("lasting", true, &[("a/#", Two), ("w/#", One)])
        },
    ];
    if rng.chance(1, 2) {
        all.push(Plan {
            begins_anew: true,
            ..plan("fickle", true, &[("+/x", One), ("b/y/z", Two)])
        });
    }
    let clean: &[_] = match rng.below(3) {
        0 => &[("#", Two)],
        1 => &[("a/+", One), ("b/#", Zero)],
        _ => &[("a/x", Zero), ("+/x", One)],
    };
    let mut clean = clean.to_vec();
    if clean.iter().all(|(filter, _)| *filter != "#") {
        clean.push((WAITING, Two));
    }
    all.push(plan("clean", false, &clean));
    if rng.chance(1, 2) {
        all.push(Plan {
            wills: true,
            ..plan("willing", false, &[])
        });
    }
    if rng.chance(1, 2) {
        let group = [("$share/g/s/#", One)];
        all.push(plan("member-a", true, &group));
        all.push(plan("member-b", rng.chance(1, 2), &group));
    }
    if rng.chance(2, 3) {
        let expiring_session = |client, filters: &[_]| Plan {
            expiring_session: true,
            ..plan(client, true, filters)
        };
        all.push(expiring_session("guest", &[("b/x", One)]));
        if rng.chance(1, 3) {
            all.push(expiring_session("caller", &[("a/y", Two)]));
        }
    }
    all
}

impl MqttClients {
    pub fn new(rng: &mut SeededRng, shards: u16) -> MqttClients {
        let mut mqtt_clients = MqttClients {
            mqtt_devices: Vec::new(),
            mqtt_oracle: MqttOracle::default(),
            retained: RetainedOracle::default(),
            shards: u64::from(shards.max(1)),
            quiet: None,
            rng: rng.fork(),
            looking: false,
        };
        for plan in plans(rng) {
            mqtt_clients.join(plan);
        }
        mqtt_clients.mqtt_oracle.join_bound(TAP, TAPS_QUEUE);
        mqtt_clients
    }

    fn join(&mut self, plan: Plan) {
        let number = self.mqtt_devices.len();
        let mqtt_client = MqttClient::new(number, plan, self.rng.fork());
        self.mqtt_oracle.join(number, mqtt_client.queue());
        self.mqtt_devices.push(mqtt_client);
    }

    pub fn len(&self) -> usize {
        self.mqtt_devices.len()
    }

    /// No more faults from now on.
    pub fn quiet(&mut self, now: Time) {
        self.quiet = Some(now);
    }

    /// Has a device do something, and sends what it says.
    fn with<S: Scenario<Process = Node>, T>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        f: impl FnOnce(&mut MqttClient, &mut RunContext<'_>) -> T,
    ) -> Option<T> {
        let wanted = self.quiet.is_some() && self.subscribers_wait(world.now());
        let mqtt_client = self.mqtt_devices.get_mut(number)?;
        let place = mqtt_client.place;
        let process = place.and_then(|place| world.process(place.node));
        let knows = |queue: &str, filter: &str| {
            place.and_then(|place| routes::knows(process, place, queue, filter))
        };
        let mut cx = RunContext {
            now: world.now(),
            quiet: self.quiet,
            wanted,
            mqtt_oracle: &mut self.mqtt_oracle,
            retained: &mut self.retained,
            knows: &knows,
        };
        let result = f(mqtt_client, &mut cx);
        if let Some(link) = &mut mqtt_client.link {
            while let Some((at, bytes)) = link.piece() {
                let request = Request::Piece {
                    connection: link.connection,
                    number: at,
                    piece: StreamPiece::Bytes(bytes),
                };
                world.request(link.node, FIRST + number as u64, request);
            }
        }
        Some(result)
    }

    /// What those of them wait for, when all is quiet.
    fn waiting(&mut self, now: Time, of: impl Fn(&MqttClient) -> bool) -> Vec<String> {
        let cx = RunContext {
            now,
            quiet: self.quiet,
            wanted: false,
            mqtt_oracle: &mut self.mqtt_oracle,
            retained: &mut self.retained,
            knows: &|_, _| None,
        };
        let all = self
            .mqtt_devices
            .iter()
            .filter(|mqtt_client| of(mqtt_client));
        all.filter_map(|mqtt_client| mqtt_client.waits_for(&cx))
            .collect()
    }

    /// Some subscriber has not heard enough yet.
    fn subscribers_wait(&mut self, now: Time) -> bool {
        !self.waiting(now, MqttClient::listens).is_empty()
    }

    /// What they wait for, when all is quiet.
    pub fn waits_for(&mut self, now: Time) -> Vec<String> {
        self.waiting(now, |_| true)
    }

    /// A device's turn. When the next one is.
    pub fn act<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        next_connection: &mut u64,
    ) -> Result<Duration, String> {
        let now = world.now();
        let Some(mqtt_client) = self.mqtt_devices.get_mut(number) else {
            return Ok(Duration::MAX);
        };
        let pause = Duration::from_millis(20 + mqtt_client.rng.below(180));
        if mqtt_client.has_lived() {
            return Ok(pause);
        }
        if mqtt_client.link.is_none()
            && self.with(world, number, |d, cx| d.is_away(cx)) == Some(true)
        {
            return Ok(pause);
        }
        let Some(link) = self.mqtt_devices.get(number).and_then(|d| d.link.as_ref()) else {
            self.connect(world, number, next_connection);
            return Ok(pause);
        };
        if is_over(world, link) || link.too_slow(now) {
            self.hang_up(world, number);
            return Ok(pause);
        }
        match self.with(world, number, |mqtt_client, cx| mqtt_client.act(cx)) {
            Some(ClientAction::HangUp) => self.hang_up(world, number),
            Some(ClientAction::MoveOn) => {
                self.leave(world, number);
                self.connect(world, number, next_connection);
            }
            Some(ClientAction::GoOn) | None => {}
        }
        Ok(pause)
    }

    fn connect<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        next_connection: &mut u64,
    ) {
        let nodes = world.nodes();
        let Some(mqtt_client) = self.mqtt_devices.get_mut(number) else {
            return;
        };
        let last = mqtt_client.place.map(|place| place.node);
        let stays = mqtt_client.rng.chance(1, 2);
        let any = Client::pick(&mut mqtt_client.rng, &nodes).unwrap_or_default();
        *next_connection += 1;
        let returns = mqtt_client.place.filter(|place| {
            let alive = world.process(place.node).map(Node::incarnation);
            mqtt_client.returns() && alive == Some(place.machine_run)
        });
        let looks = returns.map(|place| (place.node, place.shard));
        let node = match looks.or(mqtt_client.plan.looks) {
            _ if let Some(dies) = mqtt_client.plan.dies => dies.node,
            Some((node, shard)) => {
                let shards = self.shards;
                *next_connection += (shard + shards - *next_connection % shards) % shards;
                node
            }
            None => last.filter(|n| stays && nodes.contains(n)).unwrap_or(any),
        };
        let Some(machine_run) = world.process(node).map(Node::incarnation) else {
            return;
        };
        let connection = *next_connection;
        let place = ShardIncarnation {
            node,
            machine_run,
            shard: connection % self.shards,
        };
        let link = Link::new(
            node,
            machine_run,
            connection,
            world.now(),
            MqttConnection::default(),
        );
        self.with(world, number, |mqtt_client, cx| {
            mqtt_client.connects(link, place, cx)
        });
        let request = Request::Connect {
            connection,
            protocol: super::super::node::MQTT,
        };
        world.request(node, FIRST + number as u64, request);
    }

    /// The client ends its connection, and leaves it at once.
    fn hang_up<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>, number: usize) {
        let link = self.with(world, number, |mqtt_client, cx| mqtt_client.loses(cx));
        if let Some(link) = link.flatten() {
            end(world, number, &link);
        }
    }

    /// The client goes on with another connection and tells the old one nothing.
    fn leave<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>, number: usize) {
        let link = self.with(world, number, |mqtt_client, cx| mqtt_client.loses(cx));
        if let (Some(link), Some(mqtt_client)) = (link.flatten(), self.mqtt_devices.get_mut(number))
        {
            mqtt_client
                .ghosts
                .push(AbandonedConnection { link, since: None });
        }
    }

    pub fn reply<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        client: u64,
        reply: Reply,
    ) -> Result<(), String> {
        let number = client.saturating_sub(FIRST) as usize;
        let (Reply::Piece { connection, .. }
        | Reply::Accepted { connection }
        | Reply::Reset { connection }) = reply
        else {
            return Ok(());
        };
        let link = self.mqtt_devices.get(number).and_then(|d| d.link.as_ref());
        if link.is_none_or(|link| link.connection != connection) {
            self.ghost(world, number, connection, reply);
            return Ok(());
        }
        let ends = match reply {
            Reply::Accepted { .. } => {
                self.with(world, number, |mqtt_client, _| {
                    if let Some(link) = &mut mqtt_client.link {
                        link.accepted = true;
                    }
                });
                false
            }
            Reply::Piece {
                number: at, piece, ..
            } => {
                let read = self.with(world, number, |mqtt_client, cx| {
                    read(mqtt_client, at, piece, cx)
                });
                let client = &self.mqtt_devices.get(number).map(|d| d.plan.client.clone());
                let client = client.as_deref().unwrap_or_default();
                read.unwrap_or(Ok(true))
                    .map_err(|error| format!("{client}: {error}"))?
            }
            _ => true,
        };
        if ends {
            self.hang_up(world, number);
        }
        Ok(())
    }

    /// Nobody reads what comes on a connection that was left; its end is seen.
    fn ghost<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        connection: u64,
        reply: Reply,
    ) {
        let Some(mqtt_client) = self.mqtt_devices.get_mut(number) else {
            return;
        };
        let ghosts = &mut mqtt_client.ghosts;
        let at = ghosts.iter().position(|g| g.link.connection == connection);
        let Some(ghost) = at.and_then(|at| ghosts.get_mut(at)) else {
            return;
        };
        let ended = match reply {
            Reply::Reset { .. } => true,
            Reply::Piece {
                number: at, piece, ..
            } => ghost.link.arrive(at, piece).contains(&StreamPiece::End),
            _ => false,
        };
        if let (true, Some(at)) = (ended, at) {
            let ghost = ghosts.remove(at);
            end(world, number, &ghost.link);
        }
    }

    /// Connections that were left have ended when nothing is wrong, or with their nodes.
    pub fn check<S: Scenario<Process = Node>>(&mut self, world: &World<S>) -> Result<(), String> {
        let now = world.now();
        self.check_expiring_sessions(world)?;
        self.mqtt_oracle.check_wills(now)?;
        for mqtt_client in &mut self.mqtt_devices {
            mqtt_client
                .ghosts
                .retain(|ghost| !is_over(world, &ghost.link));
            let late = |g: &&AbandonedConnection| {
                g.since
                    .is_some_and(|at| now.since(at) > TAKEN_OVER && self.mqtt_oracle.calm_since(at))
            };
            if let Some(ghost) = mqtt_client.ghosts.iter().find(late) {
                return Err(format!(
                    "{} has another connection since {:?}, and the one to node {} goes on",
                    mqtt_client.plan.client, ghost.since, ghost.link.node.0
                ));
            }
        }
        Ok(())
    }

    /// The sessions of those who have been away for too long are over, and their queues gone.
    fn check_expiring_sessions<S: Scenario<Process = Node>>(
        &mut self,
        world: &World<S>,
    ) -> Result<(), String> {
        let now = world.now();
        let nodes = world.nodes();
        let all = || nodes.iter().filter_map(|node| world.process(*node));
        for mqtt_client in self
            .mqtt_devices
            .iter_mut()
            .filter(|d| d.plan.expiring_session)
        {
            let name = mqtt_client.queue().unwrap_or_default();
            let leaders = all().flat_map(Node::shards).filter_map(|shard| {
                let core = shard.core();
                let queue = core.tree.queue("/", &name)?.id;
                Some((queue, core.local_queues.led_status(queue)?.term))
            });
            if let Some(leader) = leaders.max() {
                mqtt_client.is_led(now, leader);
            }
            if mqtt_client.has_outstayed(now, &self.mqtt_oracle) {
                consistency::queues_are(all(), &name, false).map_err(|e| {
                    format!(
                        "{} is away and its session over: {e}",
                        mqtt_client.plan.client
                    )
                })?;
            }
        }
        Ok(())
    }

    /// When all is quiet: clients come to a machine that is to die, where the run has wills at all. The new devices.
    pub fn mourn(&mut self, node: NodeId) -> Range<usize> {
        let first = self.mqtt_devices.len();
        if self
            .mqtt_devices
            .iter()
            .any(|mqtt_client| mqtt_client.plan.wills)
        {
            for (client, goodbye) in [("mortal-a", false), ("mortal-b", false), ("leaver", true)] {
                self.join(Plan {
                    client: client.to_owned(),
                    wills: true,
                    dies: Some(DyingClients { node, goodbye }),
                    ..Plan::default()
                });
            }
        }
        first..self.mqtt_devices.len()
    }

    /// Their machine is about to die.
    pub fn die<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>) {
        for number in 0..self.mqtt_devices.len() {
            self.with(world, number, MqttClient::dies);
        }
    }

    /// When all else is done: somebody looks at what is retained, at each node and shard. The new devices; None: they are there.
    pub fn begin_looking(&mut self, nodes: &[NodeId]) -> Option<Range<usize>> {
        if std::mem::replace(&mut self.looking, true) {
            return None;
        }
        let first = self.mqtt_devices.len();
        for node in nodes {
            for shard in 0..self.shards {
                self.join(Plan {
                    client: format!("look-{}-{shard}", node.0),
                    filters: vec![("r/#", Qos::AtLeastOnce)],
                    looks: Some((*node, shard)),
                    ..Plan::default()
                });
            }
        }
        Some(first..self.mqtt_devices.len())
    }

    /// What they found is what was acknowledged last, and everywhere the same.
    pub fn check_retained(&self) -> Result<(), String> {
        let looks = self.mqtt_devices.iter().filter(|d| d.plan.looks.is_some());
        let mut first = None;
        for mqtt_client in looks {
            let client = &mqtt_client.plan.client;
            let found = mqtt_client.looked().ok_or("nobody has looked")?;
            let right = self.retained.check(found);
            right.map_err(|error| format!("{client}: {error}"))?;
            if *first.get_or_insert(found) != found {
                return Err(format!("{client} found {found:?}, others {first:?}"));
            }
        }
        Ok(())
    }
}

/// The connection's node has another life than when it was made.
fn is_over<S: Scenario<Process = Node>>(world: &World<S>, link: &Link<MqttConnection>) -> bool {
    world.process(link.node).map(Node::incarnation) != Some(link.machine_run)
}

fn end<S: Scenario<Process = Node>>(
    world: &mut World<S>,
    number: usize,
    link: &Link<MqttConnection>,
) {
    let request = Request::Piece {
        connection: link.connection,
        number: link.last_number(),
        piece: StreamPiece::End,
    };
    world.request(link.node, FIRST + number as u64, request);
}

/// True: the connection has ended with it.
fn read(
    mqtt_client: &mut MqttClient,
    at: u64,
    piece: StreamPiece,
    cx: &mut RunContext<'_>,
) -> Result<bool, String> {
    let Some(link) = &mut mqtt_client.link else {
        return Ok(false);
    };
    let mut heard: Vec<ServerMessage> = Vec::new();
    let mut ended = false;
    for piece in link.arrive(at, piece) {
        match piece {
            StreamPiece::Bytes(bytes) => link.wire.hear(&bytes, &mut heard)?,
            StreamPiece::End => ended = true,
        }
    }
    for item in heard {
        mqtt_client.heard(item, cx)?;
    }
    Ok(ended)
}
