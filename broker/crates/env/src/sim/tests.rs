use super::{SimClock, SimDisk};
use crate::{Clock, Disk, SeededRng, Time, WallTime};
use proptest::prelude::*;
use std::io::ErrorKind;
use std::time::Duration;

#[test]
fn simulated_time_moves_only_forward_and_only_when_set() {
    let clock = SimClock::new(WallTime(1_000));
    let same = clock.clone();
    clock.advance(Duration::from_millis(5));
    assert_eq!(same.now(), Time(5_000_000));
    assert_eq!(same.wall(), WallTime(1_005));
    same.set(Time(1));
    assert_eq!(clock.now(), Time(5_000_000));
}

fn read_all(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path).expect("open");
    let mut data = vec![0; file.len().expect("len") as usize];
    let n = file.read_at(0, &mut data).expect("read");
    assert_eq!(n, data.len());
    data
}

#[test]
fn synced_bytes_under_synced_names_survive_every_crash() {
    for seed in 0..200 {
        let disk = SimDisk::new();
        disk.create_dir("d/e").expect("dir");
        disk.sync_dir("").expect("sync");
        disk.sync_dir("d").expect("sync");
        let file = disk.create("d/e/f").expect("create");
        file.write_at(0, &[1; 3000]).expect("write");
        file.sync_data().expect("sync");
        disk.sync_dir("d/e").expect("sync");
        file.write_at(1000, &[2; 1000]).expect("write");
        disk.crash(&mut SeededRng::new(seed));
        let data = read_all(&disk, "d/e/f");
        assert_eq!(data.len(), 3000);
        assert!(data[..1000].iter().chain(&data[2000..]).all(|b| *b == 1));
        for sector in data.chunks(512) {
            let middle = sector.iter().filter(|b| **b == 2).count();
            assert!(middle == 0 || sector.contains(&2));
        }
        assert_eq!(
            file.write_at(0, &[3]).map_err(|e| e.kind()),
            Err(ErrorKind::NotFound)
        );
    }
}

#[test]
fn a_prefix_of_unsynced_name_changes_survives() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new();
        for name in ["a", "b"] {
            disk.create(name).expect("create");
        }
        disk.rename("b", "c").expect("rename");
        disk.crash(&mut SeededRng::new(seed));
        outcomes.insert(disk.list("").expect("list"));
    }
    let expected: [&[&str]; 4] = [&[], &["a"], &["a", "b"], &["a", "c"]];
    assert_eq!(outcomes.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn unsynced_writes_tear_at_sector_boundaries() {
    let torn = (0..100).any(|seed| {
        let disk = SimDisk::new();
        let file = disk.create("f").expect("create");
        file.write_at(0, &[1; 2048]).expect("write");
        file.sync_data().expect("sync");
        disk.sync_dir("").expect("sync");
        file.write_at(0, &[2; 2048]).expect("write");
        disk.crash(&mut SeededRng::new(seed));
        let data = read_all(&disk, "f");
        assert!(data.chunks(512).all(|s| s.iter().all(|b| *b == s[0])));
        data.contains(&1) && data.contains(&2)
    });
    assert!(torn);
}

#[test]
fn full_disk_accepts_a_prefix_and_recovers() {
    let disk = SimDisk::new();
    let file = disk.create("f").expect("create");
    disk.set_capacity(Some(1000));
    file.write_at(0, &[1; 600]).expect("write");
    assert_eq!(
        file.write_at(600, &[2; 600]).map_err(|e| e.kind()),
        Err(ErrorKind::StorageFull)
    );
    assert_eq!(file.len().expect("len"), 1000);
    assert_eq!(
        file.allocate(1001).map_err(|e| e.kind()),
        Err(ErrorKind::StorageFull)
    );
    assert_eq!(disk.available().expect("available"), 0);
    file.write_at(0, &[3; 1000])
        .expect("overwrite needs no space");
    disk.create("g").err().expect("a new name needs space");
    disk.remove("f").expect("remove");
    assert_eq!(disk.available().expect("available"), 1000);
}

#[test]
fn injected_faults_take_effect() {
    let disk = SimDisk::new();
    let file = disk.create("f").expect("create");
    file.write_at(0, b"abc").expect("write");
    disk.fail_syncs_after(Some(1));
    file.sync_data().expect("first");
    file.sync_data().expect_err("second");
    disk.sync_dir("").expect_err("directory syncs fail too");
    disk.fail_syncs_after(None);
    disk.sync_dir("").expect("healed");
    assert!(disk.flip("f", 1, 0x20));
    assert!(!disk.flip("f", 3, 1));
    assert_eq!(read_all(&disk, "f"), b"aBc");
    assert!(disk.lose_end("f", 1));
    assert_eq!(read_all(&disk, "f"), b"a");
    disk.set_unreadable("f", true);
    file.read_at(0, &mut [0]).expect_err("unreadable");
    disk.set_gone(true);
    file.write_at(0, b"x")
        .expect_err("data directory is unavailable");
    disk.list("").expect_err("data directory is unavailable");
    assert_eq!(disk.counters().syncs, 2);
    disk.set_gone(false);
    disk.wipe();
    assert_eq!(disk.files(), []);
}

#[test]
fn damage_is_reported_until_durably_overwritten() {
    let disk = SimDisk::new();
    let file = disk.create("f").expect("create");
    disk.sync_dir("").expect("sync");
    file.write_at(0, &[1; 2000]).expect("write");
    file.sync_data().expect("sync");
    assert!(disk.flip("f", 700, 4));
    assert_eq!(disk.damaged(), ["f"]);
    assert!(disk.flip("f", 700, 4));
    assert_eq!(disk.damaged(), [""; 0], "flipped back");
    assert!(disk.flip("f", 700, 4));
    let before = disk.copy();
    file.write_at(600, &[2; 200]).expect("write");
    assert_eq!(disk.damaged(), [""; 0]);
    assert_eq!(before.damaged(), ["f"], "a copy is another disk");
    let unsynced = disk.copy();
    file.sync_data().expect("sync");
    let mut back = 0;
    for seed in 0..20 {
        let (a, b) = (unsynced.copy(), disk.copy());
        a.crash(&mut SeededRng::new(seed));
        b.crash(&mut SeededRng::new(seed));
        let flipped = read_all(&a, "f")[700] == 1 ^ 4;
        assert_eq!(a.damaged().len(), usize::from(flipped));
        assert_eq!(b.damaged(), [""; 0]);
        back += usize::from(flipped);
    }
    assert!((1..20).contains(&back));
}

#[test]
fn power_fails_at_the_chosen_change() {
    let disk = SimDisk::new();
    let file = disk.create("f").expect("create");
    disk.sync_dir("").expect("sync");
    disk.cut_power_after(Some(3));
    file.write_at(0, &[1; 100]).expect("first");
    file.sync_data().expect("second");
    file.write_at(0, &[2; 100]).expect_err("third");
    assert!(disk.power_is_off());
    file.read_at(0, &mut [0]).expect_err("dark");
    disk.list("").expect_err("power is off");
    disk.crash(&mut SeededRng::new(1));
    assert!(!disk.power_is_off());
    let data = read_all(&disk, "f");
    assert!(data == [1; 100] || data == [2; 100]);
}

proptest! {
    /// Without a crash the disk behaves as a plain file; after one, every byte is one that was written there,
    /// or zero.
    #[test]
    fn crash_yields_only_written_bytes_or_zeros(
        writes in prop::collection::vec((0u64..5000, 1usize..2000, any::<bool>()), 1..20),
        cut in prop::option::of(0u64..6000),
        seed: u64,
    ) {
        let disk = SimDisk::new();
        let file = disk.create("f").expect("create");
        disk.sync_dir("").expect("sync");
        let mut model = Vec::new();
        let mut allowed: Vec<std::collections::BTreeSet<u8>> = Vec::new();
        for (n, (offset, len, sync)) in writes.iter().enumerate() {
            let byte = n as u8 + 1;
            file.write_at(*offset, &vec![byte; *len]).expect("write");
            let end = *offset as usize + len;
            if model.len() < end {
                model.resize(end, 0);
                allowed.resize(end, [0].into());
            }
            model[*offset as usize..end].fill(byte);
            for a in &mut allowed[*offset as usize..end] {
                a.insert(byte);
            }
            if *sync {
                file.sync_data().expect("sync");
                for (a, m) in allowed.iter_mut().zip(&model) {
                    *a = [*m].into();
                }
            }
        }
        prop_assert_eq!(&read_all(&disk, "f"), &model);
        if let Some(cut) = cut {
            file.truncate(cut).expect("truncate");
            for a in allowed.iter_mut().skip(cut as usize) {
                a.insert(0);
            }
        }
        disk.crash(&mut SeededRng::new(seed));
        for (n, byte) in read_all(&disk, "f").iter().enumerate() {
            prop_assert!(allowed.get(n).map_or(*byte == 0, |a| a.contains(byte)));
        }
    }
}
