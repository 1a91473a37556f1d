use super::*;
use crate::entry::NORMAL;
use env::Disk;
use env::sim::SimDisk;
use env::{NodeId, Rng, SeededRng};
use segment::Segment;
use std::collections::BTreeSet;
use std::sync::Arc;

const GROUP: GroupId = GroupId(3);

fn entry(index: u64, term: u64) -> Entry {
    Entry {
        index,
        term,
        kind: NORMAL,
        data: format!("{index} in {term}").into_bytes().into(),
    }
}

fn checkpoint(index: u64, term: u64) -> Checkpoint {
    Checkpoint {
        position: Position { index, term },
        membership: Membership {
            voters: vec![NodeId(1)],
            learners: Vec::new(),
        },
        on_disk: true,
    }
}

fn fresh() -> LogStore {
    let begin = Position { index: 1, term: 1 };
    let segments = Segments::new(GROUP, Vec::new());
    LogStore::new(GROUP, begin, checkpoint(1, 1), segments)
}

/// The expected contents of a log.
struct Model {
    entries: BTreeMap<u64, Entry>,
    live: BTreeSet<u64>,
    checkpoint: u64,
}

struct Run {
    store: LogStore,
    model: Model,
    disk: SimDisk,
    rng: SeededRng,
    term: u64,
    committed: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            store: fresh(),
            model: Model {
                entries: BTreeMap::new(),
                live: BTreeSet::new(),
                checkpoint: 1,
            },
            disk: SimDisk::new(),
            rng: SeededRng::new(seed),
            term: 1,
            committed: 1,
        }
    }

    fn append(&mut self) {
        let last = self.store.last();
        let uncommitted = last - self.committed;
        let from = last + 1 - self.rng.below(uncommitted + 1);
        self.term += self.rng.below(2);
        if from <= last {
            // Overwrites uncommitted entries.
            self.term += 1;
        }
        let count = 1 + self.rng.below(8);
        let new: Vec<Entry> = (from..from + count).map(|i| entry(i, self.term)).collect();
        self.model.entries.split_off(&from);
        for e in &new {
            self.model.entries.insert(e.index, e.clone());
        }
        self.store.append(new.into_iter());
    }

    fn commit(&mut self) {
        let open = self.store.last() - self.committed;
        for _ in 0..self.rng.below(open + 1) {
            self.committed += 1;
            if self.rng.chance(1, 2) {
                self.model.live.insert(self.committed);
            }
        }
    }

    fn checkpoint(&mut self) {
        let at = self.committed;
        if at <= self.model.checkpoint {
            return;
        }
        let chance = self.rng.below(100);
        let live = &mut self.model.live;
        live.retain(|_| self.rng.below(100) > chance / 2);
        let term = self.store.term_of(at).expect("in the log");
        let set = IndexSet::from_sorted(live.iter().copied());
        let margin = self.rng.below(10);
        let pin = self.rng.chance(1, 5).then(|| self.rng.below(at));
        self.store
            .advance_checkpoint(checkpoint(at, term), &set, margin, pin);
        self.model.checkpoint = at;
    }

    fn flush(&mut self) {
        let pin = self
            .rng
            .chance(1, 5)
            .then(|| self.rng.below(self.committed));
        let upto = self.committed - self.rng.below(3).min(self.committed - 1);
        let plan = self.store.plan_flush(upto, pin);
        let metas = segment::write_segments(&self.disk, GROUP, &plan.entries).expect("written");
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let open = |m: segment::SegmentMeta| Segment::open(Arc::clone(&disk), GROUP, m.name);
        let opened = metas.into_iter().map(|m| Arc::new(open(m).expect("opens")));
        self.store.segments_mut().add(opened.collect());
        self.store.mark_flushed(plan.upto);
    }

    fn check(&self) {
        let (store, model) = (&self.store, &self.model);
        let last = model.entries.keys().next_back().copied().unwrap_or(1);
        assert_eq!(store.last(), last.max(store.compacted().index));
        for index in store.first()..=store.last() {
            let expected = &model.entries[&index];
            assert_eq!(store.term_of(index), Some(expected.term), "term of {index}");
            assert_eq!(store.read(index).as_ref(), Ok(expected));
        }
        assert_eq!(store.term_of(store.last() + 1), None);
        for index in model.live.range(..=model.checkpoint) {
            assert_eq!(store.read(*index).as_ref(), Ok(&model.entries[index]));
        }
        let all = store
            .slice(store.first(), store.last() + 1, None)
            .expect("all is there");
        assert_eq!(all.len() as u64, store.last() - store.compacted().index);
        let held = store.mem.iter().chain(store.retained.values());
        assert_eq!(store.mem_bytes(), held.map(memory_cost).sum::<usize>());
    }
}

#[test]
fn random_histories_read_back() {
    for seed in 0..200 {
        let mut run = Run::new(seed);
        for _ in 0..120 {
            match run.rng.below(8) {
                0..=3 => run.append(),
                4 | 5 => run.commit(),
                6 => run.checkpoint(),
                _ => run.flush(),
            }
            run.check();
        }
    }
}

#[test]
fn flushed_entries_leave_memory() {
    let mut run = Run::new(1);
    run.store.append((2..=100).map(|i| entry(i, 1)));
    run.model.entries = (2..=100).map(|i| (i, entry(i, 1))).collect();
    run.committed = 100;
    run.checkpoint();
    for _ in 0..20 {
        run.flush();
    }
    let plan = run.store.plan_flush(100, None);
    run.store.mark_flushed(plan.upto);
    assert_eq!(run.store.mem_bytes(), 0);
    run.check();
}

#[test]
fn raft_sees_only_the_log_above_the_compacted_index() {
    let mut store = fresh();
    store.append((2..=20).map(|i| entry(i, 1)));
    store.advance_checkpoint(checkpoint(10, 1), &IndexSet::from_sorted([4]), 2, None);
    let context = || GetEntriesContext::empty(false);
    let compacted = raft::Error::Store(StorageError::Compacted);
    assert_eq!(store.first_index(), Ok(9));
    assert_eq!(store.entries(8, 12, None, context()), Err(compacted));
    assert_eq!(store.term(8), Ok(1));
    assert!(store.term(7).is_err());
    let some = store.entries(9, 21, Some(1), context()).expect("there");
    assert_eq!(some.len(), 1, "at least one, whatever its size");
    let snapshot = store.snapshot(0, 2).expect("there");
    assert_eq!(snapshot.get_metadata().index, 10);
    assert_eq!(store.read(4).map(|e| e.index), Ok(4));
    assert_eq!(store.read(5), Err(ReadError::Gone));
}
