use super::*;
use consensus::{JobId, JobResult, WalToken};

/// Answers every request with the wall clock of its last tick.
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

/// Runs until so many replies have come, or the time is up.
#[derive(Default)]
struct Ask {
    wanted: usize,
    waiting: bool,
    replies: Vec<(Time, u64)>,
    damaged: Vec<String>,
}

impl Scenario for Ask {
    type Process = Echo;
    type Timer = ();

    fn start(&mut self, _start: Start) -> Result<Echo, String> {
        Ok(Echo::default())
    }
    fn timer(&mut self, _world: &mut World<Ask>, _timer: ()) -> Result<(), String> {
        self.waiting = false;
        Ok(())
    }
    fn reply(&mut self, world: &mut World<Ask>, _client: u64, wall: u64) -> Result<(), String> {
        self.replies.push((world.now(), wall));
        Ok(())
    }
    fn note(&mut self, _world: &World<Ask>, _node: NodeId, _note: ()) -> Result<(), String> {
        Ok(())
    }
    fn damaged(&mut self, _: &mut World<Ask>, _: NodeId, error: &str) -> Result<(), String> {
        self.damaged.push(error.to_owned());
        Ok(())
    }
    fn done(&mut self, _world: &World<Ask>) -> bool {
        !self.waiting && self.replies.len() >= self.wanted
    }
}

const NODE: NodeId = NodeId(1);

fn world() -> World<Ask> {
    let mut world = World::new(WorldConfig::default(), 1, false);
    for node in world.nodes() {
        world.start_in(Duration::ZERO, node);
    }
    world
}

fn run(world: &mut World<Ask>, ask: &mut Ask, more: usize) -> Result<(), Violation> {
    ask.wanted = ask.replies.len() + more;
    let until = world.now() + Duration::from_secs(60);
    world.run(ask, until)
}

/// Lets so much time pass.
fn wait(world: &mut World<Ask>, ask: &mut Ask, time: Duration) -> Result<(), Violation> {
    world.timer_in(time, ());
    ask.waiting = true;
    run(world, ask, 0)
}

#[test]
fn a_paused_process_answers_when_it_goes_on_and_a_clock_jumps() {
    let (mut world, mut ask) = (world(), Ask::default());
    wait(&mut world, &mut ask, Duration::from_secs(1)).expect("runs");
    world.pause(NODE, Duration::from_secs(3));
    let paused_at = world.now();
    world.request(NODE, 7, 1);
    world.request(NodeId(2), 7, 1);
    run(&mut world, &mut ask, 2).expect("answers");
    assert!(ask.replies[0].0 < paused_at + Duration::from_secs(1));
    assert!(ask.replies[1].0 >= paused_at + Duration::from_secs(3));
    let before = ask.replies[1].1;
    world.jump_clock(NODE, -3_600_000);
    wait(&mut world, &mut ask, Duration::from_secs(1)).expect("runs");
    world.request(NODE, 7, 2);
    run(&mut world, &mut ask, 1).expect("answers");
    assert!(ask.replies[2].1 < before);
}

#[test]
fn who_is_killed_while_it_is_paused_starts_anew() {
    let (mut world, mut ask) = (world(), Ask::default());
    wait(&mut world, &mut ask, Duration::from_secs(1)).expect("runs");
    world.pause(NODE, Duration::from_secs(3));
    world.request(NODE, 7, 1);
    wait(&mut world, &mut ask, Duration::from_millis(10)).expect("runs");
    world.stop(NODE, Stop::Kill);
    assert!(!world.is_paused(NODE));
    world.start_in(Duration::ZERO, NODE);
    wait(&mut world, &mut ask, Duration::from_secs(1)).expect("runs");
    assert!(ask.replies.is_empty(), "what waited for it is lost");
    world.request(NODE, 7, 1);
    run(&mut world, &mut ask, 1).expect("answers");
}

/// Whatever bit flips in the log: it reads as before, or the next start is refused with the name of the file.
#[test]
fn flipped_bits_of_the_log_are_noticed() {
    let (mut refused, mut harmless) = (0, 0);
    for seed in 0..60 {
        let (mut world, mut ask) = (world(), Ask::default());
        world.rng = SeededRng::new(seed);
        for number in 1..40 {
            wait(&mut world, &mut ask, Duration::from_millis(100)).expect("runs");
            world.request(NODE, 7, number);
        }
        wait(&mut world, &mut ask, Duration::from_secs(1)).expect("runs");
        world.stop(NODE, Stop::Kill);
        world.flip_bit(NODE).expect("noticed");
        world.start_in(Duration::ZERO, NODE);
        wait(&mut world, &mut ask, Duration::from_secs(1)).expect("excused");
        match world.process(NODE).is_some() {
            true => harmless += 1,
            false => {
                refused += 1;
                assert!(ask.damaged[0].contains("write-ahead log: wal/"));
                assert!(world.is_damaged(NODE));
            }
        }
    }
    assert!(refused > 10 && harmless > 0, "{refused}, {harmless}");
}

#[test]
fn a_replacement_has_an_id_and_a_disk_of_its_own() {
    let (mut world, mut ask) = (world(), Ask::default());
    wait(&mut world, &mut ask, Duration::from_secs(1)).expect("runs");
    world.request(NODE, 7, 1);
    wait(&mut world, &mut ask, Duration::from_secs(1)).expect("runs");
    let new = world.replace(NODE).expect("it is there");
    assert_eq!(world.nodes(), [NodeId(2), NodeId(3), new]);
    assert_eq!(new, NodeId(4));
    assert_eq!(world.disk(new).map(SimDisk::files), Some(Vec::new()));
    assert_eq!(world.replace(NODE), None);
}
