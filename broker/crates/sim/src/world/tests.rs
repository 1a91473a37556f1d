use super::*;
use consensus::{JobId, JobResult, WalToken};

/// Replies to every request with the wall clock of its last tick.
#[derive(Default)]
struct Echo {
    wall: u64,
    actions: Vec<Action<Echo>>,
}

impl Process for Echo {
    type Request = u64;
    type Reply = u64;
    type Note = ();

    fn tick(&mut self, _now: Time, wall: WallTime) {
        self.wall = wall.0;
    }
    fn peer_frame(&mut self, _from: NodeId, _frame: Bytes) {}
    fn peer_up(&mut self, _node: NodeId, _incarnation: Incarnation) {}
    fn peer_down(&mut self, _node: NodeId) {}
    fn durable(&mut self, _token: WalToken) {}
    fn wal_rolled(&mut self, _file: u64) {}
    fn job_done(&mut self, _id: JobId, _result: JobResult) {}
    fn request(&mut self, client: u64, number: u64) {
        let record = wal::Record {
            group: wal::GroupId(0),
            body: wal::RecordBody::Deleted,
        };
        self.actions.push(Action::Append {
            token: WalToken(number),
            records: vec![record; 40],
        });
        let reply = self.wall;
        self.actions.push(Action::Reply { client, reply });
    }
    fn poll(&mut self, out: &mut Vec<Action<Echo>>) {
        out.append(&mut self.actions);
    }
}

/// Runs until the given number of replies has arrived, or the time is up.
#[derive(Default)]
struct EchoScenario {
    expected_replies: usize,
    is_waiting: bool,
    replies: Vec<(Time, u64)>,
    damaged: Vec<String>,
}

impl Scenario for EchoScenario {
    type Process = Echo;
    type Timer = ();

    fn start(&mut self, _start: Start) -> Result<Echo, String> {
        Ok(Echo::default())
    }
    fn timer(&mut self, _world: &mut World<EchoScenario>, _timer: ()) -> Result<(), String> {
        self.is_waiting = false;
        Ok(())
    }
    fn reply(
        &mut self,
        world: &mut World<EchoScenario>,
        _client: u64,
        wall: u64,
    ) -> Result<(), String> {
        self.replies.push((world.now(), wall));
        Ok(())
    }
    fn note(
        &mut self,
        _world: &World<EchoScenario>,
        _node: NodeId,
        _note: (),
    ) -> Result<(), String> {
        Ok(())
    }
    fn damaged(
        &mut self,
        _: &mut World<EchoScenario>,
        _: NodeId,
        error: &str,
    ) -> Result<(), String> {
        self.damaged.push(error.to_owned());
        Ok(())
    }
    fn done(&mut self, _world: &World<EchoScenario>) -> bool {
        !self.is_waiting && self.replies.len() >= self.expected_replies
    }
}

const NODE: NodeId = NodeId(1);

fn world() -> World<EchoScenario> {
    let mut world = World::new(WorldConfig::default(), 1, false);
    for node in world.nodes() {
        world.start_in(Duration::ZERO, node);
    }
    world
}

fn run(
    world: &mut World<EchoScenario>,
    scenario: &mut EchoScenario,
    more: usize,
) -> Result<(), Violation> {
    scenario.expected_replies = scenario.replies.len() + more;
    let until = world.now() + Duration::from_secs(60);
    world.run(scenario, until)
}

/// Runs until this time has passed.
fn wait(
    world: &mut World<EchoScenario>,
    scenario: &mut EchoScenario,
    time: Duration,
) -> Result<(), Violation> {
    world.timer_in(time, ());
    scenario.is_waiting = true;
    run(world, scenario, 0)
}

#[test]
fn paused_process_replies_after_resuming_and_sees_clock_jump() {
    let (mut world, mut scenario) = (world(), EchoScenario::default());
    wait(&mut world, &mut scenario, Duration::from_secs(1)).expect("runs");
    world.pause(NODE, Duration::from_secs(3));
    let paused_at = world.now();
    world.request(NODE, 7, 1);
    world.request(NodeId(2), 7, 1);
    run(&mut world, &mut scenario, 2).expect("answers");
    assert!(scenario.replies[0].0 < paused_at + Duration::from_secs(1));
    assert!(scenario.replies[1].0 >= paused_at + Duration::from_secs(3));
    let before = scenario.replies[1].1;
    world.jump_clock(NODE, -3_600_000);
    wait(&mut world, &mut scenario, Duration::from_secs(1)).expect("runs");
    world.request(NODE, 7, 2);
    run(&mut world, &mut scenario, 1).expect("answers");
    assert!(scenario.replies[2].1 < before);
}

#[test]
fn process_killed_during_a_pause_starts_again() {
    let (mut world, mut scenario) = (world(), EchoScenario::default());
    wait(&mut world, &mut scenario, Duration::from_secs(1)).expect("runs");
    world.pause(NODE, Duration::from_secs(3));
    world.request(NODE, 7, 1);
    wait(&mut world, &mut scenario, Duration::from_millis(10)).expect("runs");
    world.stop(NODE, Stop::Kill);
    assert!(!world.is_paused(NODE));
    world.start_in(Duration::ZERO, NODE);
    wait(&mut world, &mut scenario, Duration::from_secs(1)).expect("runs");
    assert!(
        scenario.replies.is_empty(),
        "a kill loses the deferred events"
    );
    world.request(NODE, 7, 1);
    run(&mut world, &mut scenario, 1).expect("answers");
}

/// A flipped bit in the log does not change its content, or the next start fails with an error that names the file.
#[test]
fn flipped_bits_of_the_log_are_detected() {
    let (mut refused, mut harmless) = (0, 0);
    for seed in 0..60 {
        let (mut world, mut scenario) = (world(), EchoScenario::default());
        world.rng = SeededRng::new(seed);
        for number in 1..40 {
            wait(&mut world, &mut scenario, Duration::from_millis(100)).expect("runs");
            world.request(NODE, 7, number);
        }
        wait(&mut world, &mut scenario, Duration::from_secs(1)).expect("runs");
        world.stop(NODE, Stop::Kill);
        world.flip_bit(NODE).expect("the bit flip is detected");
        world.start_in(Duration::ZERO, NODE);
        wait(&mut world, &mut scenario, Duration::from_secs(1))
            .expect("the error is attributed to the bit flip");
        match world.process(NODE).is_some() {
            true => harmless += 1,
            false => {
                refused += 1;
                assert!(scenario.damaged[0].contains("write-ahead log: wal/"));
                assert!(world.is_damaged(NODE));
            }
        }
    }
    assert!(refused > 10 && harmless > 0, "{refused}, {harmless}");
}

#[test]
fn replacement_has_a_new_id_and_an_empty_disk() {
    let (mut world, mut scenario) = (world(), EchoScenario::default());
    wait(&mut world, &mut scenario, Duration::from_secs(1)).expect("runs");
    world.request(NODE, 7, 1);
    wait(&mut world, &mut scenario, Duration::from_secs(1)).expect("runs");
    let new = world.replace(NODE).expect("node 1 exists");
    assert_eq!(world.nodes(), [NodeId(2), NodeId(3), new]);
    assert_eq!(new, NodeId(4));
    assert_eq!(world.disk(new).map(SimDisk::files), Some(Vec::new()));
    assert_eq!(world.replace(NODE), None);
}
