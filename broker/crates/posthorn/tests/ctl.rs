//! Runs the `posthorn ctl` binary against the management API of a fake node that consists of a
//! metadata tree.

use control::{
    ConnectionFacts, ControlRequest, ForgetProgress, MaintenanceProgress, MemberChange,
    MemberOutcome, MembershipRequest, NodeFacts, QueueFacts, QueueRecovery, Readiness,
    RecoveredGroup, RecoveryStep, ReplicaFacts, ReplicaStatus, StreamConsumerFacts,
    StreamPublisherFacts, StreamReaderFacts, StreamReplicaFacts, StreamSessionFacts,
    StreamTrackingFacts, VotingState,
};
use env::NodeId;
use metadata::{Change, ChangeError, ChangeResult, NodeRecord, QueueId, Tree, UserRecord};
use queue::{QueueReply, QueueStats, RequestBody};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Fake {
    tree: Tree,
    index: u64,
    ready: u64,
    critical: Vec<QueueId>,
    readiness: Option<String>,
    maintenance: bool,
    watermark: Option<f64>,
    disk_free_limit: Option<u64>,
    log_level: Option<(Option<String>, String)>,
    changed: Vec<MemberChange>,
    /// Adds a second node, which is down.
    has_second_node: bool,
    /// A new node has the name of the second one once the metadata are recovered, and runs.
    is_second_node_replaced: bool,
    second_node_runs: bool,
    /// Responses to requests for a recovery, in reverse order. Without one, nothing is left to recover.
    recovery: Vec<Result<RecoveryStep, ChangeError>>,
    /// The nodes that each of these requests named.
    named_lost: Vec<Vec<NodeId>>,
    connections: Vec<ConnectionFacts>,
    /// Replicas of streams.
    streams: Vec<StreamReplicaFacts>,
    /// Names and reasons of connections that were closed individually.
    closed_connections: Vec<(String, String)>,
}

impl Fake {
    fn apply(&mut self, change: &Change) -> Result<ChangeResult, metadata::ChangeError> {
        self.index += 1;
        self.tree.apply(self.index, change)
    }

    fn queues(&self, only: Option<QueueId>) -> Vec<QueueFacts> {
        let queues = self.tree.all_queues();
        let facts = queues.map(|q| QueueFacts {
            id: q.id,
            leader: Some(NodeId(1)),
            members: q.members.clone(),
            online: q.members.clone(),
            stats: Some(QueueStats {
                ready: self.ready,
                ..QueueStats::default()
            }),
            counters: queue::QueueCounters::default(),
            ready: None,
            delayed: None,
            head: None,
        });
        facts.filter(|f| only.is_none_or(|id| id == f.id)).collect()
    }

    fn nodes(&self) -> Vec<NodeFacts> {
        let node = NodeFacts {
            id: NodeId(1),
            name: "c-0".into(),
            running: true,
            maintenance: self.maintenance,
            voter: true,
            address: "c-0:25672".into(),
            zone: "eu-1a".into(),
            client_addresses: Vec::new(),
            uptime_s: Some(1),
            memory_alarm: false,
            disk_alarm: false,
            version: Some(metadata::features::Version::default().facts()),
        };
        let has_second_node = NodeFacts {
            id: NodeId(2),
            name: "c-1".into(),
            running: self.second_node_runs,
            ..node.clone()
        };
        let has_second_node = self.has_second_node.then_some(has_second_node);
        [node].into_iter().chain(has_second_node).collect()
    }

    fn queue(&mut self, body: &RequestBody) -> QueueReply {
        if matches!(body, RequestBody::Delete { if_empty: true, .. }) && self.ready > 0 {
            return QueueReply::Refused {
                code: 406,
                text: "queue 'q' in vhost '/' is not empty".into(),
            };
        }
        let messages = std::mem::take(&mut self.ready);
        QueueReply::Count {
            messages,
            consumers: 0,
        }
    }

    fn membership(&mut self, request: MembershipRequest) {
        match request {
            MembershipRequest::Change {
                queues,
                change,
                reply,
            } => {
                self.changed.push(change);
                let outcome = |queue| MemberOutcome {
                    queue,
                    result: match change {
                        MemberChange::Remove(_) => Err(metadata::ChangeError::PreconditionFailed(
                            "node 'c-0' holds the last replica".into(),
                        )),
                        _ => Ok(vec![NodeId(1)]),
                    },
                };
                reply(queues.into_iter().map(outcome).collect());
            }
            MembershipRequest::Replicas { reply, .. } => reply(vec![ReplicaFacts {
                node: NodeId(1),
                vote: VotingState::Voter,
                replica: Some(ReplicaStatus {
                    is_leader: true,
                    term: 3,
                    last_index: 12,
                    ..ReplicaStatus::default()
                }),
            }]),
            MembershipRequest::Forget { node, reply } => reply(match node {
                NodeId(1) => Err(ChangeError::PreconditionFailed("it is running".into())),
                _ => Ok(ForgetProgress::Moving { queues: 2 }),
            }),
            MembershipRequest::RecoverMajority { lost, reply } => {
                self.named_lost.push(lost);
                let nothing = RecoveryStep::Queues {
                    outcomes: Vec::new(),
                    left: 0,
                };
                let step = self.recovery.pop().unwrap_or(Ok(nothing));
                if step == Ok(RecoveryStep::Forgotten) {
                    self.has_second_node = false;
                }
                let is_recovered = matches!(step, Ok(RecoveryStep::Metadata(_)));
                self.second_node_runs |= is_recovered && self.is_second_node_replaced;
                reply(step);
            }
        }
    }

    fn serve(&mut self, request: ControlRequest) {
        match request {
            ControlRequest::Read(look) => look(&self.tree),
            ControlRequest::Walk(mut walk) => while !walk.step(&self.tree, 2).done {},
            ControlRequest::Change { change, reply } => reply(self.apply(&change)),
            ControlRequest::PlaceQueue { reply, .. } => reply(vec![NodeId(1)]),
            ControlRequest::Membership(request) => self.membership(request),
            ControlRequest::Queues { only, reply } => reply(self.queues(only)),
            ControlRequest::OwnQueues { reply } => reply(self.queues(None)),
            ControlRequest::Queue { body, reply, .. } => {
                let answer = self.queue(&body);
                reply(Ok(answer));
            }
            ControlRequest::Nodes { reply } => reply(self.nodes()),
            ControlRequest::QuorumCritical { reply } => reply(self.critical.clone()),
            ControlRequest::Connections { reply } => reply(self.connections.clone()),
            ControlRequest::Consumers { reply } => reply(Vec::new()),
            ControlRequest::Counters { reply, .. } => reply(Vec::new()),
            ControlRequest::Streams { of, reply, .. } => {
                let mut found = self.streams.clone();
                found.retain(|r| of.queue.is_none_or(|id| id == r.queue));
                reply(found);
            }
            ControlRequest::Traffic { reply, .. } => reply(control::TrafficFacts::default()),
            ControlRequest::Publish { reply, .. } => reply(Ok(control::PublishResult {
                routed: false,
                taken: true,
            })),
            ControlRequest::Get { reply, .. } => reply(Ok(Vec::new())),
            ControlRequest::Browse { reply, .. } => reply(None),
            ControlRequest::Move { reply, .. } => reply(Ok(control::MoveOutcome::default())),
            ControlRequest::Import { reply, .. } => reply(Ok(control::ImportOutcome::default())),
            ControlRequest::CloseConnection {
                name,
                reason,
                reply,
            } => {
                let before = self.connections.len();
                self.connections.retain(|c| c.name != name);
                let is_closed = self.connections.len() < before;
                if is_closed {
                    self.closed_connections.push((name, reason));
                }
                reply(is_closed);
            }
            ControlRequest::Maintenance { on, reply } => {
                self.maintenance = on;
                if on {
                    self.connections.clear();
                }
                reply(MaintenanceProgress {
                    on,
                    leaders_left: 0,
                    connections_left: 0,
                });
            }
            ControlRequest::Readiness { reply } => reply(match &self.readiness {
                None => Readiness::Ready,
                Some(why) => Readiness::NotReady(why.clone()),
            }),
            ControlRequest::RebalanceQueues { reply } => reply(0),
            ControlRequest::StateClientAddresses { .. } => {}
        }
    }
}

struct Node {
    fake: Arc<Mutex<Fake>>,
    url: String,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Result of a command: exit code, standard output, standard error.
struct CommandOutput(i32, String, String);

impl CommandOutput {
    fn ok(self) -> String {
        assert_eq!(self.0, 0, "{}", self.2);
        self.1
    }
}

impl Node {
    fn start() -> Node {
        let mut fake = Fake::default();
        let bootstrap = Change::Bootstrap {
            cluster: "test".into(),
            nodes: vec![NodeRecord {
                id: NodeId(1),
                name: "c-0".into(),
                address: "c-0:25672".into(),
                voter: true,
                maintenance: false,
            }],
            user: UserRecord {
                name: "guest".into(),
                password: auth::hash_with(auth::HashAlgorithm::Sha256, b"guest", b"salt").ok(),
                tags: vec!["administrator".into()],
                limits: Vec::new(),
            },
        };
        fake.apply(&bootstrap).unwrap();
        for feature in metadata::features::KNOWN {
            let name = feature.name.into();
            fake.apply(&Change::EnableFeature { name }).unwrap();
        }
        let fake = Arc::new(Mutex::new(fake));
        let shared = fake.clone();
        let (watched, levelled) = (fake.clone(), fake.clone());
        let limited = fake.clone();
        let node: management::Node = Arc::new(move |r| shared.lock().unwrap().serve(r));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let mut config = management::Config::new(NodeId(1), "c-0");
            let set = move |share| watched.lock().unwrap().watermark = Some(share);
            config.memory_watermark = Some(management::SetWatermark(Arc::new(set)));
            let set = move |bytes| limited.lock().unwrap().disk_free_limit = Some(bytes);
            config.disk_free_limit = Some(management::SetDiskLimit(Arc::new(set)));
            config.log_levels = Some(log_levels(levelled));
            runtime.block_on(async {
                let app = management::router(node, config.clone()).unwrap();
                let wait = async move {
                    let _ = stopped.await;
                };
                management::serve((listener, None), app, (&config, &config.api_gate()), wait)
                    .await
                    .unwrap();
            });
        });
        Node {
            fake,
            url,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn ctl(&self, words: &[&str]) -> CommandOutput {
        ctl(&[&["--url", &self.url], words].concat(), "")
    }
}

fn ctl(words: &[&str], input: &str) -> CommandOutput {
    let mut child = Command::new(env!("CARGO_BIN_EXE_posthorn"))
        .arg("ctl")
        .args(words)
        .env_remove("POSTHORN_URL")
        .env_remove("POSTHORN_USER")
        .env_remove("POSTHORN_PASSWORD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A process that does not read its input may have closed it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let out = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput(
        out.status.code().unwrap(),
        text(out.stdout),
        text(out.stderr),
    )
}

#[test]
fn queues_are_declared_listed_purged_and_deleted() {
    let node = Node::start();
    let declared = node.ctl(&[
        "declare_queue",
        "orders",
        "--arguments",
        "{\"x-max-length\": 5}",
    ]);
    assert_eq!(
        declared.ok(),
        "Declared quorum queue 'orders' in vhost '/'\n"
    );
    let again = node.ctl(&[
        "declare_queue",
        "orders",
        "--arguments",
        "{\"x-max-length\": 5}",
    ]);
    assert!(again.ok().contains("already exists"));
    let limit = "{\"x-max-length\": 5}";
    let other = ["declare_queue", "orders", "--type", "classic"].into_iter();
    let other = node.ctl(&other.chain(["--arguments", limit]).collect::<Vec<_>>());
    assert_eq!(other.0, 1);
    assert!(
        other
            .2
            .contains("inequivalent arg 'x-queue-type' for queue 'orders' in vhost '/'"),
        "{}",
        other.2
    );
    node.fake.lock().unwrap().ready = 7;
    let table = node.ctl(&["list_queues"]).ok();
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..5], ["vhost", "name", "type", "state", "ready"]);
    assert_eq!(lines[1][..5], ["/", "orders", "quorum", "running", "7"]);
    let json = node
        .ctl(&["list_queues", "-p", "/", "--output", "json"])
        .ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["arguments"]["x-max-length"], 5);
    let columns = ["list_queues", "-p", "/", "name", "messages_ready"];
    assert_eq!(node.ctl(&columns).ok(), "name\tmessages_ready\norders\t7\n");
    let kept = node.ctl(&["delete_queue", "orders", "--if-empty"]);
    assert_eq!(kept.0, 1);
    assert!(kept.2.contains("is not empty"));
    node.ctl(&["purge_queue", "orders"]).ok();
    node.ctl(&["delete_queue", "orders", "--if-empty"]).ok();
    let gone = node.ctl(&["delete_queue", "orders"]);
    assert_eq!(gone.0, 1);
    assert!(gone.2.contains("The list_ commands show"), "{}", gone.2);
}

#[test]
fn users_get_passwords_tags_and_permissions() {
    let node = Node::start();
    let declared = ctl(
        &[
            "--url",
            &node.url,
            "add_user",
            "app",
            "--tags",
            "monitoring",
        ],
        "s3cret\n",
    )
    .ok();
    assert!(declared.contains("set_permissions app"), "{declared}");
    assert_eq!(
        node.ctl(&["add_user", "app", "x"]).0,
        2,
        "it is there already"
    );
    node.ctl(&["set_permissions", "app", "^app-", ".*", ".*"])
        .ok();
    let rights = node.ctl(&["list_permissions", "app"]).ok();
    assert!(rights.contains("^app-"), "{rights}");
    let as_app = |password: &str| {
        ctl(
            &[
                "--url",
                &node.url,
                "--user",
                "app",
                "--password",
                password,
                "status",
            ],
            "",
        )
    };
    as_app("s3cret").ok();
    node.ctl(&["set_user_tags", "app", "management", "policymaker"])
        .ok();
    // Changing tags keeps the password.
    as_app("s3cret").ok();
    node.ctl(&["change_password", "app", "other"]).ok();
    let refused = as_app("s3cret");
    assert_eq!(refused.0, 77);
    assert!(
        refused.2.contains("refused user 'app' or its password"),
        "{}",
        refused.2
    );
    as_app("other").ok();
    let users = node.ctl(&["list_users"]).ok();
    assert!(users.contains("management,policymaker"), "{users}");
    let json = node.ctl(&["list_users", "--output", "json"]).ok();
    assert!(!json.contains("\"password_hash\""));
    let file = std::env::temp_dir().join(format!("posthorn-ctl-{}", std::process::id()));
    std::fs::write(&file, "other\n").unwrap();
    let by_file = [
        "--url",
        &node.url,
        "--user",
        "app",
        "--password-file",
        file.to_str().unwrap(),
        "list_vhosts",
    ];
    ctl(&by_file, "").ok();
    std::fs::remove_file(&file).unwrap();
    node.ctl(&["clear_permissions", "app"]).ok();
    node.ctl(&["delete_user", "app"]).ok();
    assert_eq!(node.ctl(&["delete_user", "app"]).0, 1);
}

#[test]
fn policies_and_vhosts_are_managed_and_listed() {
    let node = Node::start();
    node.ctl(&[
        "set_policy",
        "limit",
        "^o",
        "{\"max-length\": 9}",
        "--priority",
        "-1",
        "--apply-to",
        "queues",
    ])
    .ok();
    node.ctl(&["set_policy", "cap", "", "{\"max-length\": 5}", "--operator"])
        .ok();
    let table = node.ctl(&["list_policies"]).ok();
    assert!(
        table.contains("operator  cap") && table.contains("{\"max-length\":9}"),
        "{table}"
    );
    let bad = node.ctl(&["set_policy", "bad", "^o", "{\"max-lenght\": 9}"]);
    assert!(
        bad.2
            .contains("'max-lenght' = 9 are not recognised policy settings"),
        "{}",
        bad.2
    );
    assert_eq!(node.ctl(&["set_policy", "bad", "^o", "max-length=9"]).0, 2);
    node.ctl(&["clear_policy", "cap", "--operator"]).ok();
    node.ctl(&["add_vhost", "a/b"]).ok();
    assert!(node.ctl(&["list_vhosts"]).ok().contains("a/b"));
    node.ctl(&["delete_vhost", "a/b"]).ok();
    assert!(node.ctl(&["list_exchanges"]).ok().contains("amq.topic"));
    assert!(node.ctl(&["list_nodes"]).ok().contains("c-0"));
    node.ctl(&["list_bindings"]).ok();
    node.ctl(&["list_connections"]).ok();
    let status = node.ctl(&["status"]).ok();
    assert!(status.contains("posthorn"), "{status}");
}

#[test]
fn rabbitmqctl_command_names_are_accepted() {
    let node = Node::start();
    let list = ["list_connections", "-s", "pid", "peer_port"];
    let named = ["-n", "rabbit@localhost"].into_iter().chain(list);
    assert_eq!(node.ctl(&named.collect::<Vec<_>>()).ok(), "");
    let headed = node
        .ctl(&["list_connections", "-q", "pid", "peer_port"])
        .ok();
    assert_eq!(headed, "pid\tpeer_port\n");
    assert_eq!(node.ctl(&["-q", "add_vhost", "quiet"]).ok(), "");
    assert_eq!(node.ctl(&["close_connection", "nobody", "why"]).0, 1);
}

fn connection(name: &str, vhost: &str) -> ConnectionFacts {
    let properties =
        serde_json::json!({"connection_name": name, "capabilities": {"basic.nack": true}});
    ConnectionFacts {
        name: name.to_owned(),
        node: NodeId(1),
        user: "guest".to_owned(),
        vhost: vhost.to_owned(),
        client_properties: properties.as_object().cloned().unwrap_or_default(),
        ..ConnectionFacts::default()
    }
}

#[test]
fn close_all_connections_closes_one_vhost_or_all() {
    let node = Node::start();
    node.ctl(&["add_vhost", "other"]).ok();
    node.fake.lock().unwrap().connections = vec![
        connection("a", "/"),
        connection("b", "/"),
        connection("c", "/"),
        connection("d", "other"),
        connection("e", "other"),
    ];
    let closed_connections = || std::mem::take(&mut node.fake.lock().unwrap().closed_connections);
    let because = |name: &str, why: &str| (name.to_owned(), why.to_owned());
    node.ctl(&["close_all_connections", "--limit", "1", "one"])
        .ok();
    assert_eq!(closed_connections(), [because("a", "one")]);
    let output = node.ctl(&["close_all_connections", "-p", "/", "rest"]).ok();
    assert!(output.contains("Closed 2 connections"), "{output}");
    assert_eq!(
        closed_connections(),
        [because("b", "rest"), because("c", "rest")]
    );
    let paced = [
        "close_all_connections",
        "--global",
        "--per-connection-delay",
        "1",
        "all",
    ];
    node.ctl(&paced).ok();
    assert_eq!(
        closed_connections(),
        [because("d", "all"), because("e", "all")]
    );
    assert_eq!(
        node.ctl(&["close_all_connections", "--global", "none left"])
            .0,
        0
    );
}

#[test]
fn client_properties_have_rabbitmqctl_format() {
    let node = Node::start();
    node.fake.lock().unwrap().connections = vec![connection("mine", "/")];
    let list = ["list_connections", "-q", "pid", "client_properties"];
    let table = node.ctl(&list).ok();
    let line = r#"[{"capabilities",[{"basic.nack",true}]},{"connection_name","mine"}]"#;
    assert_eq!(table, format!("pid\tclient_properties\nmine\t{line}\n"));
    let json = node.ctl(&[&list[..], &["--output", "json"]].concat()).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["client_properties"]["connection_name"], "mine");
}

#[test]
fn stop_app_disconnects_clients_until_start_app() {
    let node = Node::start();
    node.fake.lock().unwrap().connections = vec![connection("a", "/")];
    node.ctl(&["stop_app"]).ok();
    assert!(node.fake.lock().unwrap().maintenance);
    node.ctl(&["start_app"]).ok();
    assert!(!node.fake.lock().unwrap().maintenance);
    node.fake.lock().unwrap().readiness = Some("recovering".into());
    let late = node.ctl(&["--timeout", "1", "start_app"]);
    assert_eq!(late.0, 69, "{}", late.2);
}

#[test]
fn node_option_must_name_the_answering_node() {
    let node = Node::start();
    node.fake.lock().unwrap().has_second_node = true;
    for name in ["c-0", "rabbit@c-0", "rabbit@localhost", "rabbit"] {
        node.ctl(&["-n", name, "list_queues"]).ok();
        node.ctl(&["-n", name, "await_startup"]).ok();
        node.ctl(&["-n", name, "maintenance", "off"]).ok();
    }
    // Another member of the cluster is accepted only for cluster-wide operations.
    node.ctl(&["-n", "c-1", "list_queues"]).ok();
    let other = node.ctl(&["-n", "c-1", "maintenance", "on"]);
    assert_eq!(other.0, 69, "{}", other.1);
    assert!(other.2.contains("'c-0' answers"), "{}", other.2);
    assert!(!node.fake.lock().unwrap().maintenance);
    for command in ["list_queues", "await_startup", "status"] {
        let unknown = node.ctl(&["-n", "rabbit@nowhere", command]);
        assert_eq!(unknown.0, 69, "{command}: {}", unknown.1);
        let text = unknown.2;
        assert!(
            text.contains("'rabbit@nowhere'") && text.contains("c-0, c-1"),
            "{text}"
        );
    }
}

#[test]
fn health_fails_while_a_cluster_node_is_down() {
    let node = Node::start();
    node.fake.lock().unwrap().has_second_node = true;
    let health = node.ctl(&["health"]);
    assert_eq!(health.0, 1, "{}", health.1);
    assert!(health.1.contains("down: c-1"), "{}", health.1);
}

#[test]
fn await_online_nodes_waits_for_their_number() {
    let node = Node::start();
    let one = node.ctl(&["await_online_nodes", "1"]).ok();
    assert_eq!(one, "1 node is up\n");
    node.fake.lock().unwrap().has_second_node = true;
    let two = node.ctl(&["--timeout", "1", "await_online_nodes", "2"]);
    assert_eq!(two.0, 1, "{}", two.2);
    assert!(two.2.contains("1 node is up, 2 needed"), "{}", two.2);
    let refused = node.ctl(&["--password", "wrong", "await_online_nodes", "1"]);
    assert_eq!(refused.0, 77, "{}", refused.2);
    assert_eq!(node.ctl(&["await_online_nodes", "0"]).0, 2);
}

#[test]
fn health_is_reported_and_maintenance_drains_the_node() {
    let node = Node::start();
    node.ctl(&["health"]).ok();
    node.fake.lock().unwrap().critical = vec![QueueId(0)];
    let table = node.ctl(&["health"]).ok();
    assert!(table.contains("the cluster's metadata"), "{table}");
    node.fake.lock().unwrap().readiness = Some("joining".into());
    let ill = node.ctl(&["health"]);
    assert_eq!(ill.0, 1);
    assert!(ill.1.contains("joining"), "{}", ill.1);
    assert!(
        node.ctl(&["maintenance", "on"])
            .ok()
            .contains("'c-0' is drained")
    );
    assert!(node.fake.lock().unwrap().maintenance);
    node.ctl(&["maintenance", "off"]).ok();
    assert!(!node.fake.lock().unwrap().maintenance);
    node.ctl(&["rebalance_queues"]).ok();
}

#[test]
fn memory_watermark_is_set_on_the_answering_node() {
    let node = Node::start();
    let set = |fraction| node.ctl(&["set_vm_memory_high_watermark", fraction]);
    set("0.4").ok();
    assert_eq!(node.fake.lock().unwrap().watermark, Some(0.4));
    for fraction in ["1.5", "-0.1", "NaN", "much"] {
        assert_ne!(set(fraction).0, 0, "{fraction}");
    }
    assert_eq!(node.fake.lock().unwrap().watermark, Some(0.4));
}

#[test]
fn disk_free_limit_is_set_on_the_answering_node() {
    let node = Node::start();
    let set = |limit| node.ctl(&["set_disk_free_limit", limit]);
    set("2GB").ok();
    assert_eq!(
        node.fake.lock().unwrap().disk_free_limit,
        Some(2 * 1000 * 1000 * 1000)
    );
    set("1234").ok();
    for limit in ["-1", "much", "1.5", "2 GiBs"] {
        assert_ne!(set(limit).0, 0, "{limit}");
    }
    assert_eq!(node.fake.lock().unwrap().disk_free_limit, Some(1234));
}

#[test]
fn vhost_is_created_with_default_queue_type() {
    let node = Node::start();
    node.ctl(&[
        "add_vhost",
        "q",
        "--default-queue-type",
        "quorum",
        "--tags",
        "a,b",
    ])
    .ok();
    assert_ne!(
        node.ctl(&["add_vhost", "s", "--default-queue-type", "heap"])
            .0,
        0
    );
    let fake = node.fake.lock().unwrap();
    let declared = fake.tree.vhost("q").unwrap();
    assert_eq!(
        declared.default_queue_type,
        Some(metadata::QueueType::Quorum)
    );
    assert!(!fake.tree.vhost_exists("s"));
}

#[test]
fn tracing_a_missing_vhost_does_not_create_it() {
    let node = Node::start();
    let traced = || {
        let fake = node.fake.lock().unwrap();
        fake.tree.vhost("/").unwrap().traced
    };
    node.ctl(&["trace_on", "-p", "/"]).ok();
    assert!(traced());
    node.ctl(&["trace_off"]).ok();
    assert!(!traced());
    assert_ne!(node.ctl(&["trace_on", "-p", "nowhere"]).0, 0);
    assert!(!node.fake.lock().unwrap().tree.vhost_exists("nowhere"));
}

fn log_levels(fake: Arc<Mutex<Fake>>) -> management::LogLevels {
    let set = move |category: Option<&str>, level: &str| {
        if level == "loud" {
            return Err("log level 'loud' is not known: info, debug".to_owned());
        }
        let category = category.map(str::to_owned);
        fake.lock().unwrap().log_level = Some((category, level.to_owned()));
        Ok(())
    };
    management::LogLevels {
        set: Arc::new(set),
        shown: Arc::new(|| vec![("default", "info"), ("http", "debug")]),
    }
}

#[test]
fn log_level_is_set_on_the_answering_node() {
    let node = Node::start();
    let level = || node.fake.lock().unwrap().log_level.clone();
    node.ctl(&["set_log_level", "debug"]).ok();
    assert_eq!(level(), Some((None, "debug".to_owned())));
    node.ctl(&["set_log_level", "http", "error"]).ok();
    assert_eq!(level(), Some((Some("http".to_owned()), "error".to_owned())));
    let CommandOutput(code, _, error) = node.ctl(&["set_log_level", "loud"]);
    assert!(
        code != 0 && error.contains("not known: info, debug"),
        "{error}"
    );
    assert_ne!(node.ctl(&["set_log_level"]).0, 0);
    let shown = node.ctl(&["list_log_levels"]).ok();
    assert!(shown.contains("http") && shown.contains("debug"), "{shown}");
}

#[test]
fn unreachable_node_is_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let output = ctl(&["--url", &url, "status"], "");
    assert_eq!(output.0, 69);
    assert!(
        output.2.contains("no answer from") && output.2.contains("--url"),
        "{}",
        output.2
    );
    assert_eq!(ctl(&["--url", "ftp://x", "status"], "").0, 2);
    assert_eq!(ctl(&["no_such_command"], "").0, 2);
}

#[test]
fn limits_topic_permissions_and_parameters_are_set_and_cleared() {
    let node = Node::start();
    node.ctl(&["set_vhost_limits", "{\"max-queues\": 3}"]).ok();
    let table = node.ctl(&["list_vhost_limits"]).ok();
    assert!(table.contains("{\"max-queues\":3}"), "{table}");
    node.ctl(&["clear_vhost_limits", "-p", "/"]).ok();
    assert_eq!(node.ctl(&["list_vhost_limits"]).ok().lines().count(), 1);
    assert_eq!(node.ctl(&["set_vhost_limits", "3"]).0, 2);
    node.ctl(&["set_user_limits", "guest", "{\"max-channels\": 9}"])
        .ok();
    assert!(node.ctl(&["list_user_limits"]).ok().contains("guest"));
    node.ctl(&["clear_user_limits", "guest", "all"]).ok();
    assert!(!node.ctl(&["list_user_limits"]).ok().contains("guest"));
    node.ctl(&["set_topic_permissions", "guest", "amq.topic", "^a", ".*"])
        .ok();
    assert!(node.ctl(&["list_topic_permissions"]).ok().contains("^a"));
    node.ctl(&["clear_topic_permissions", "guest", "amq.topic"])
        .ok();
    assert!(!node.ctl(&["list_topic_permissions"]).ok().contains("^a"));
    // Clearing missing permissions succeeds, but the user and the vhost must exist.
    for command in ["clear_topic_permissions", "clear_permissions"] {
        node.ctl(&["add_vhost", "empty"]).ok();
        node.ctl(&[command, "guest", "-p", "empty"]).ok();
        node.ctl(&[command, "guest", "-p", "empty"]).ok();
        assert_eq!(node.ctl(&[command, "guest", "-p", "nowhere"]).0, 1);
        assert_eq!(node.ctl(&[command, "nobody", "-p", "empty"]).0, 1);
    }
    node.ctl(&["set_global_parameter", "tool", "{\"a\": 1}"])
        .ok();
    let parameters = node.ctl(&["list_global_parameters"]).ok();
    assert!(parameters.contains("{\"a\":1}"), "{parameters}");
    node.ctl(&["clear_global_parameter", "tool"]).ok();
    assert_eq!(node.ctl(&["clear_global_parameter", "tool"]).0, 1);
    node.ctl(&["set_cluster_name", "orders"]).ok();
    assert!(node.ctl(&["status"]).ok().contains("orders"));
    assert!(node.ctl(&["list_feature_flags"]).ok().contains("enabled"));
    node.ctl(&["enable_feature_flag", "all"]).ok();
    let url = node.url.as_str();
    let add = ["--url", url, "add_user", "kept", "--tags", "protected"];
    ctl(&add, "s3cret\n").ok();
    node.ctl(&["set_user_tags", "kept", "protected", "management"])
        .ok();
    node.ctl(&["delete_user", "kept"]).ok();
    let deprecated = node.ctl(&["list_deprecated_features"]).ok();
    assert!(
        deprecated.contains("transient_nonexcl_queues"),
        "{deprecated}"
    );
    let used = node.ctl(&["list_deprecated_features", "--used"]).ok();
    assert!(!used.contains("transient_nonexcl_queues"), "{used}");
    assert_eq!(node.ctl(&["enable_feature_flag", "magic"]).0, 1);
}

#[test]
fn definitions_are_exported_and_imported() {
    let node = Node::start();
    node.ctl(&["declare_queue", "orders"]).ok();
    let dir = std::env::temp_dir().join(format!("posthorn-ctl-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("definitions.json");
    let path = file.to_str().unwrap();
    node.ctl(&["export_definitions", path]).ok();
    let other = Node::start();
    other.ctl(&["import_definitions", path]).ok();
    assert!(other.ctl(&["list_queues"]).ok().contains("orders"));
    let output = other.ctl(&["export_definitions"]).ok();
    assert!(output.contains("\"orders\""), "{output}");
    let missing = dir.join("none.json");
    let none = other.ctl(&["import_definitions", missing.to_str().unwrap()]);
    assert_eq!(none.0, 2);
    assert!(none.2.contains("cannot read"), "{}", none.2);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn checks_report_by_exit_code() {
    let node = Node::start();
    for check in [
        "ping",
        "check_running",
        "await_startup",
        "check_alarms",
        "check_local_alarms",
        "check_virtual_hosts",
        "check_if_node_is_quorum_critical",
        "check_for_quorum_queues_without_an_elected_leader",
    ] {
        node.ctl(&[check]).ok();
    }
    let leaders = "check_for_quorum_queues_without_an_elected_leader";
    node.ctl(&[leaders, "^orders", "--across-all-vhosts"]).ok();
    assert_eq!(node.ctl(&[leaders, "-p", "none"]).0, 1);
    assert_eq!(node.ctl(&["check_port_listener", "1"]).0, 1);
    let protocol = node.ctl(&["check_protocol_listener", "http/prometheus"]);
    assert_eq!(protocol.0, 1);
    assert!(protocol.1.contains("No active listener"), "{}", protocol.1);
    node.fake.lock().unwrap().readiness = Some("joining".into());
    let not = node.ctl(&["check_running"]);
    assert_eq!(not.0, 1);
    assert!(not.1.contains("joining"), "{}", not.1);
    assert_eq!(node.ctl(&["--timeout", "1", "await_startup"]).0, 69);
    // A node that may not know the newest password refuses none.
    assert_eq!(node.ctl(&["authenticate_user", "guest", "wrong"]).0, 69);
    node.fake.lock().unwrap().readiness = None;
    node.ctl(&["authenticate_user", "guest", "guest"]).ok();
    assert_eq!(node.ctl(&["authenticate_user", "guest", "wrong"]).0, 77);
    assert_eq!(ctl(&["--url", "http://127.0.0.1:1", "ping"], "").0, 69);
}

#[test]
fn replicas_grow_shrink_and_report_status() {
    let node = Node::start();
    node.ctl(&["declare_queue", "orders"]).ok();
    let grown = node.ctl(&["add_member", "orders", "c-0"]).ok();
    assert_eq!(grown, "Node 'c-0' gets a replica of queue 'orders'\n");
    let moved = node.ctl(&["evacuate", "c-0"]).ok();
    let lines: Vec<&str> = moved.lines().collect();
    assert!(
        lines.len() == 2 && lines[1].starts_with("/      orders  1     c-0      ok"),
        "{moved}"
    );
    let shrunk = node.ctl(&["shrink", "c-0", "--queue-pattern", "^ord"]);
    assert_eq!(shrunk.0, 2);
    assert!(shrunk.1.contains("holds the last replica"), "{}", shrunk.1);
    assert!(
        shrunk.2.contains("1 queue(s) were not changed"),
        "{}",
        shrunk.2
    );
    let none = node.ctl(&["shrink", "c-0", "--queue-pattern", "^x", "--output", "json"]);
    assert_eq!(none.ok().trim(), "[]");
    // The replica already exists, so no queue is changed.
    let words = ["grow", "c-0", "even", "--output", "json"];
    assert_eq!(node.ctl(&words).ok().trim(), "[]");
    let status = node.ctl(&["quorum_status", "orders"]).ok();
    let row: Vec<&str> = status.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["c-0", "leader", "voter", "3", "12"]);
    let json = node
        .ctl(&["quorum_status", "orders", "--output", "json"])
        .ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["Last Log Index"], 12);
    let refused = node.ctl(&["delete_member", "orders", "c-0"]);
    assert_eq!(refused.0, 1);
    assert!(
        refused.2.contains("holds the last replica"),
        "{}",
        refused.2
    );
    let changed = node.fake.lock().unwrap().changed.clone();
    let me = NodeId(1);
    let asked = [
        MemberChange::Add(me),
        MemberChange::Evacuate(me),
        MemberChange::Remove(me),
        MemberChange::Remove(me),
    ];
    assert_eq!(changed, asked);
}

#[test]
fn leaders_are_rebalanced_and_nodes_forgotten() {
    let node = Node::start();
    for words in [
        &["rebalance"][..],
        &["rebalance", "all"],
        &["rebalance_queues"],
    ] {
        let output = node.ctl(words).ok();
        assert_eq!(output, "Every node leads its share already\n");
    }
    let running = node.ctl(&["forget_node", "c-0"]);
    assert!(
        running.0 == 1 && running.2.contains("is running"),
        "{}",
        running.2
    );
    node.fake.lock().unwrap().has_second_node = true;
    let moving = node.ctl(&["forget_node", "c-1"]).ok();
    assert!(
        moving.contains("2 queue(s) are moved off node 'c-1'"),
        "{moving}"
    );
    let nodes = node.ctl(&["list_nodes"]).ok();
    assert!(nodes.contains("eu-1a"), "{nodes}");
}

/// A node whose cluster lost the other node, with the queues `orders` and `stuck`.
fn with_lost_node() -> (Node, QueueId, QueueId) {
    let node = Node::start();
    for queue in ["orders", "stuck"] {
        node.ctl(&["declare_queue", queue]).ok();
    }
    let mut fake = node.fake.lock().unwrap();
    fake.has_second_node = true;
    let id = |name: &str| fake.tree.queue("/", name).unwrap().id;
    let (orders, stuck) = (id("orders"), id("stuck"));
    drop(fake);
    (node, orders, stuck)
}

const RECOVERED: RecoveredGroup = RecoveredGroup {
    node: NodeId(1),
    last_index: 17,
    replicas: 1,
    voters: 2,
};

fn recovered(queue: QueueId) -> QueueRecovery {
    QueueRecovery {
        queue,
        result: Ok(RECOVERED),
    }
}

fn refused(queue: QueueId) -> QueueRecovery {
    let reason = "node 'c-1' has a replica and does not answer";
    QueueRecovery {
        queue,
        result: Err(ChangeError::PreconditionFailed(reason.into())),
    }
}

fn queues_step(outcomes: Vec<QueueRecovery>) -> Result<RecoveryStep, ChangeError> {
    Ok(RecoveryStep::Queues { outcomes, left: 0 })
}

#[test]
fn majority_is_not_recovered_unless_the_loss_is_accepted() {
    let (node, ..) = with_lost_node();
    let explained = node.ctl(&["recover_majority", "--lost", "c-1"]);
    assert_eq!(explained.0, 1);
    for part in [
        "Lost nodes: c-1",
        "Nodes that run: c-0",
        "Other nodes that are down: none",
        "Messages and definitions that only lost nodes had are lost",
        "Never start a lost node again with its old data directory",
        "until then it can serve clients with old data",
    ] {
        assert!(explained.1.contains(part), "{part}: {}", explained.1);
    }
    assert!(
        explained.2.contains("nothing was changed") && explained.2.contains("--accept-loss"),
        "{}",
        explained.2
    );
    let json = node.ctl(&["recover_majority", "--output", "json"]);
    let plan: serde_json::Value = serde_json::from_str(&json.1).unwrap();
    assert_eq!(
        (json.0, &plan["lost"], &plan["running"], &plan["down"]),
        (
            1,
            &serde_json::json!([]),
            &serde_json::json!(["c-0"]),
            &serde_json::json!(["c-1"])
        )
    );
    let unknown = node.ctl(&["recover_majority", "--lost", "c-7", "--accept-loss"]);
    assert!(
        unknown.0 == 2 && unknown.2.contains("node 'c-7' is not in the cluster"),
        "{}",
        unknown.2
    );
    assert!(node.fake.lock().unwrap().named_lost.is_empty());
    let help = node.ctl(&["recover_majority", "--help"]).ok();
    assert!(help.contains("Never start a lost node again"), "{help}");
}

#[test]
fn recovery_is_repeated_until_nothing_is_left() {
    let (node, orders, stuck) = with_lost_node();
    let leads = "node 'c-0' leads; nothing is to be recovered";
    let slow = "node 'c-1' may only be slow or restart";
    // The last response is the first one here.
    node.fake.lock().unwrap().recovery = vec![
        queues_step(vec![recovered(stuck)]),
        queues_step(vec![recovered(orders), refused(stuck)]),
        Ok(RecoveryStep::Forgotten),
        Ok(RecoveryStep::Metadata(RECOVERED)),
        Err(ChangeError::Unavailable(leads.into())),
        Err(ChangeError::Unavailable(slow.into())),
    ];
    let words = ["recover_majority", "--lost", "c-1", "--accept-loss"];
    let done = node.ctl(&words);
    assert_eq!(done.0, 0, "{}", done.2);
    for part in [
        "may only be slow or restart",
        "c-0' leads",
        "The metadata continue on node 'c-0' with index 17; 1 of 2 copies were compared",
        "Node 'c-1' is removed from the cluster",
        "never start a removed node (c-1) again",
    ] {
        assert!(done.2.contains(part), "{part}: {}", done.2);
    }
    let rows: Vec<Vec<&str>> = done.1.lines().map(|l| l.split("  ").collect()).collect();
    let rows: Vec<Vec<&str>> = rows
        .into_iter()
        .map(|row| {
            let cells = row.into_iter().map(str::trim);
            cells.filter(|cell| !cell.is_empty()).collect()
        })
        .collect();
    let columns = ["vhost", "name", "node", "last_index", "compared", "result"];
    assert_eq!(rows[0][..6], columns);
    assert_eq!(
        rows[1..],
        [
            ["/", "orders", "c-0", "17", "1 of 2", "recovered", "-"],
            ["/", "stuck", "c-0", "17", "1 of 2", "recovered", "-"]
        ]
    );
    // A node that is removed is not named again.
    let named = node.fake.lock().unwrap().named_lost.clone();
    let lost = vec![NodeId(2)];
    let none = Vec::new();
    assert_eq!(
        named,
        [
            lost.clone(),
            lost.clone(),
            lost.clone(),
            lost,
            none.clone(),
            none.clone(),
            none
        ]
    );
}

#[test]
fn recovery_does_not_name_a_new_node_with_the_name_of_a_lost_one() {
    let (node, orders, _) = with_lost_node();
    let runs = "node 'c-1' is running, so it is not lost";
    let mut fake = node.fake.lock().unwrap();
    fake.is_second_node_replaced = true;
    fake.recovery = vec![
        queues_step(vec![recovered(orders)]),
        Err(ChangeError::PreconditionFailed(runs.into())),
        Ok(RecoveryStep::Metadata(RECOVERED)),
    ];
    drop(fake);
    let done = node.ctl(&["recover_majority", "--lost", "c-1", "--accept-loss"]);
    assert_eq!(done.0, 0, "{}", done.2);
    assert!(done.2.contains("A node 'c-1' runs"), "{}", done.2);
    assert!(done.1.contains("orders"), "{}", done.1);
    let named = node.fake.lock().unwrap().named_lost.clone();
    let lost = vec![NodeId(2)];
    assert_eq!(named, [lost.clone(), lost, Vec::new(), Vec::new()]);
}

#[test]
fn recovery_fails_if_a_queue_is_refused() {
    let (node, orders, stuck) = with_lost_node();
    // The first refusal is temporary, those of the other queue are not.
    let mut steps: Vec<_> = (0..20).map(|_| queues_step(vec![refused(stuck)])).collect();
    steps.push(queues_step(vec![recovered(orders), refused(stuck)]));
    steps.push(queues_step(vec![refused(orders), refused(stuck)]));
    node.fake.lock().unwrap().recovery = steps;
    let failed = node.ctl(&["recover_majority", "--accept-loss", "--output", "json"]);
    assert_eq!(failed.0, 1, "{}", failed.2);
    let document: serde_json::Value = serde_json::from_str(&failed.1).unwrap();
    let result = |at: usize| &document["queues"][at]["result"];
    assert_eq!(
        (result(0), result(1), &document["queues"][2]),
        (
            &serde_json::json!("recovered"),
            &serde_json::json!("refused"),
            &serde_json::Value::Null
        )
    );
    assert_eq!(document["removed"], serde_json::json!([]));
    let error = failed.2.lines().last().unwrap_or_default();
    let error: serde_json::Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"], "unfulfilled");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("1 queue(s) were not recovered"), "{error}");
}

#[test]
fn recovery_ends_without_progress_or_with_a_refusal() {
    let (node, orders, _) = with_lost_node();
    let slow = || Err(ChangeError::Unavailable("node 'c-1' may be slow".into()));
    node.fake.lock().unwrap().recovery = (0..100).map(|_| slow()).collect();
    let words = ["recover_majority", "--accept-loss", "--give-up-after", "1"];
    let late = node.ctl(&words);
    assert_eq!(late.0, 1);
    assert!(
        late.2
            .contains("no progress for 1 s: node 'c-1' may be slow"),
        "{}",
        late.2
    );
    // A reason that stays is reported once while the command waits.
    assert_eq!(late.2.matches("Waiting:").count(), 1, "{}", late.2);
    assert_eq!(late.1, "");

    // The steps before the refusal are shown.
    let runs = "node 'c-1' is running, so it is not lost";
    node.fake.lock().unwrap().recovery = vec![
        Err(ChangeError::PreconditionFailed(runs.into())),
        queues_step(vec![recovered(orders)]),
    ];
    let failed = node.ctl(&["recover_majority", "--lost", "c-1", "--accept-loss"]);
    assert_eq!(failed.0, 1);
    assert!(failed.1.contains("orders"), "{}", failed.1);
    assert!(failed.2.contains(runs), "{}", failed.2);
}

/// A node with the super stream `orders`, whose stream `orders-1` has a publisher and two consumers.
fn with_super_stream() -> Node {
    let node = Node::start();
    let added = node.ctl(&[
        "add_super_stream",
        "orders",
        "--partitions",
        "2",
        "--max-length-bytes",
        "20GB",
        "--max-age",
        "P5D",
    ]);
    assert_eq!(
        added.ok(),
        "Super stream 'orders' is created in vhost '/'\n"
    );
    let mut fake = node.fake.lock().unwrap();
    let queue = fake.tree.queue("/", "orders-1").unwrap().id.0;
    let consumer = |id: u8, active: bool| StreamConsumerFacts {
        id,
        stream: "orders-1".into(),
        offset: 75,
        active,
        properties: [
            ("single-active-consumer", "true"),
            ("name", "app"),
            ("super-stream", "orders"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..StreamConsumerFacts::default()
    };
    fake.connections = vec![ConnectionFacts {
        name: "a -> s".into(),
        node: NodeId(1),
        number: 8,
        user: "guest".into(),
        vhost: "/".into(),
        protocol: "stream".into(),
        state: "running".into(),
        stream: Some(StreamSessionFacts {
            publishers: vec![StreamPublisherFacts {
                stream: "orders-1".into(),
                published: 9,
                ..StreamPublisherFacts::default()
            }],
            consumers: vec![consumer(5, true), consumer(6, false)],
        }),
        ..ConnectionFacts::default()
    }];
    fake.streams = vec![StreamReplicaFacts {
        queue,
        node: NodeId(1),
        leads: true,
        next_offset: 100,
        committed_offset: 100,
        segments: 2,
        tracking: Some(StreamTrackingFacts {
            offsets: [("app".to_owned(), 60)].into(),
            writers: [("producer".to_owned(), 40)].into(),
        }),
        readers: vec![StreamReaderFacts {
            session_node: 1,
            session_number: 8,
            consumer: 5,
            lag: 25,
        }],
        ..StreamReplicaFacts::default()
    }];
    drop(fake);
    node
}

/// The lines of a table with one space between cells.
fn lines(table: &str) -> Vec<String> {
    let lines = table.lines();
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn clients_of_streams_are_listed_with_their_lag() {
    let node = with_super_stream();
    let consumers = node.ctl(&["list_stream_consumers"]).ok();
    assert_eq!(
        lines(&consumers)[..2],
        [
            "stream subscription_id offset offset_lag consumed credits status node connection",
            "orders-1 5 75 25 0 0 single_active c-0 a -> s",
        ]
    );
    let columns = [
        "list_stream_consumers",
        "-s",
        "stream",
        "offset_lag",
        "messages_consumed",
    ];
    assert_eq!(node.ctl(&columns).ok(), "orders-1\t25\t0\norders-1\t0\t0\n");
    let publishers = [
        "list_stream_publishers",
        "-s",
        "stream",
        "messages_published",
    ];
    assert_eq!(node.ctl(&publishers).ok(), "orders-1\t9\n");
    let connections = [
        "list_stream_connections",
        "--vhost",
        "/",
        "-s",
        "conn_name",
        "user",
    ];
    assert_eq!(node.ctl(&connections).ok(), "a -> s\tguest\n");
    let groups = [
        "list_stream_consumer_groups",
        "-s",
        "stream",
        "reference",
        "partition_index",
        "consumers",
    ];
    assert_eq!(node.ctl(&groups).ok(), "orders-1\tapp\t1\t2\n");
    let group = [
        "list_stream_group_consumers",
        "--stream",
        "orders-1",
        "--reference",
        "app",
    ];
    assert_eq!(
        lines(&node.ctl(&group).ok())[1..],
        ["5 a -> s active", "6 a -> s inactive"]
    );
    let absent = [
        "list_stream_group_consumers",
        "--stream",
        "orders-1",
        "--reference",
        "b",
    ];
    let CommandOutput(code, _, error) = node.ctl(&absent);
    assert_eq!(code, 2);
    assert!(
        error.contains("list_stream_consumer_groups shows all groups"),
        "{error}"
    );
}

#[test]
fn replicas_and_tracking_of_a_stream_are_listed_and_changed() {
    let node = with_super_stream();
    let status = node.ctl(&["stream_status", "orders-1"]).ok();
    assert_eq!(
        lines(&status),
        [
            "node role state epoch first_offset offset committed_offset lag segments bytes readers",
            "c-0 writer running 0 0 99 99 0 2 0 0",
        ]
    );
    let tracking = |words: &[&str]| lines(&node.ctl(words).ok())[1..].join("; ");
    let both = "offset app 60; writer producer 40";
    assert_eq!(tracking(&["list_stream_tracking", "orders-1"]), both);
    assert_eq!(tracking(&["stream_status", "--tracking", "orders-1"]), both);
    assert_eq!(
        tracking(&["list_stream_tracking", "orders-1", "--offset"]),
        "offset app 60"
    );
    assert_eq!(
        tracking(&["list_stream_tracking", "orders-1", "--writer"]),
        "writer producer 40"
    );
    let json = node.ctl(&[
        "list_stream_tracking",
        "orders-1",
        "--offset",
        "--output",
        "json",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json.ok()).unwrap();
    let row = serde_json::json!([{"type": "offset", "name": "app", "tracking_value": 60}]);
    assert_eq!(json, row);
    let twice = node.ctl(&["list_stream_tracking", "orders-1", "--offset", "--writer"]);
    assert_eq!(twice.0, 2);
    let absent = ["reset_offset", "--stream", "orders-1", "--reference", "b"];
    let CommandOutput(code, _, error) = node.ctl(&absent);
    assert_eq!(code, 1);
    assert!(error.contains("no stored offset for 'b'"), "{error}");
    node.ctl(&["add_replica", "orders-1", "c-0"]).ok();
    assert_eq!(
        node.fake.lock().unwrap().changed,
        [MemberChange::Add(NodeId(1))]
    );
    node.ctl(&["declare_queue", "q"]).ok();
    let CommandOutput(code, _, error) = node.ctl(&["delete_replica", "q", "c-0"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("'q' in vhost '/' is a quorum queue"),
        "{error}"
    );
}

#[test]
fn super_streams_are_added_listed_and_deleted() {
    let node = with_super_stream();
    let listed = node.ctl(&["list_super_streams"]).ok();
    assert_eq!(lines(&listed)[1..], ["/ orders 2 orders-0,orders-1"]);
    let arguments = {
        let fake = node.fake.lock().unwrap();
        let record = fake.tree.queue("/", "orders-0").unwrap();
        let value = |name| record.arguments.get(name).cloned();
        (value("x-max-length-bytes"), value("x-max-age"))
    };
    let age = text_value("432000s");
    assert_eq!(
        arguments,
        (Some(message::Value::I64(20_000_000_000)), Some(age))
    );
    for (words, why) in [
        (vec!["--max-age", "5D"], "ISO 8601"),
        (vec!["--max-length-bytes", "much"], "20GB or 512MiB"),
        (
            vec!["--partitions", "2", "--binding-keys", "a"],
            "cannot be used with",
        ),
        (vec!["--partitions", "0"], "must be greater than 0"),
    ] {
        let words = [vec!["add_super_stream", "s"], words].concat();
        let CommandOutput(code, _, error) = node.ctl(&words);
        assert!(code != 0 && error.contains(why), "{words:?}: {error}");
    }
    let keys = [
        "add_super_stream",
        "regions",
        "--binding-keys",
        "emea, apac",
    ];
    node.ctl(&keys).ok();
    node.ctl(&["delete_super_stream", "orders"]).ok();
    let listed = node.ctl(&["list_super_streams"]).ok();
    assert_eq!(
        lines(&listed)[1..],
        ["/ regions 2 regions-emea,regions-apac"]
    );
    let absent = node.ctl(&["delete_super_stream", "orders"]);
    assert_eq!(absent.0, 1);
    assert!(
        absent.2.contains("no super stream 'orders' in vhost '/'"),
        "{}",
        absent.2
    );
}

fn text_value(text: &str) -> message::Value {
    message::Value::String(text.to_owned().into())
}
