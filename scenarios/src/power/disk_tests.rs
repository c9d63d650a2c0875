use super::*;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn file(disk: &mut Disk, called: &str) -> Ino {
    disk.create(ROOT, name(called), false, 0o644).expect("created")
}

/// All files: path and content.
fn all(disk: &Disk) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![(String::new(), ROOT)];
    while let Some((path, folder)) = folders.pop() {
        for (called, facts) in disk.list(folder).expect("a folder") {
            let path = format!("{path}/{}", called.to_string_lossy());
            if facts.folder {
                folders.push((path, facts.ino));
            } else {
                found.insert(path, disk.read(facts.ino, 0, facts.len).expect("a file"));
            }
        }
    }
    found
}

#[test]
fn what_was_synced_stays_and_the_rest_is_new_old_or_torn() {
    let (mut kept, mut lost, mut torn, mut short, mut gone) = (0, 0, 0, 0, 0);
    for seed in 0..400 {
        let mut disk = Disk::new();
        let ino = file(&mut disk, "a");
        disk.write(ino, 0, &[1; 8192], false).expect("written");
        disk.sync(ino).expect("synced");
        disk.sync_folder(ROOT).expect("synced");
        assert!(!disk.has_unsynced());
        disk.write(ino, 4096, &[2; 4096], false).expect("written");
        assert!(disk.has_unsynced());
        disk.write(ino, 8192, &[3; 100], false).expect("written");
        file(&mut disk, "b");
        disk.switch_off();
        assert_eq!(disk.write(ino, 0, &[9], false), Err(Refused::Off));
        assert_eq!(disk.sync(ino), Err(Refused::Off));
        disk.cut(&mut Seeded::new(seed, 0));
        let found = all(&disk);
        let a = &found["/a"];
        assert_eq!(a[..4096], [1; 4096], "seed {seed}: synced and not written since");
        match (a[4096..8192].contains(&1), a[4096..8192].contains(&2)) {
            (true, false) => lost += 1,
            (false, true) => kept += 1,
            mixed => {
                assert_eq!(mixed, (true, true), "seed {seed}");
                let sectors = a[4096..8192].chunks(SECTOR);
                sectors.for_each(|sector| assert!(sector.iter().all(|byte| *byte == sector[0])));
                torn += 1;
            }
        }
        assert!(a.len() == 8192 || a.len() == 8292, "seed {seed}: {}", a.len());
        assert!(a[8192..].iter().all(|byte| matches!(byte, 0 | 3)));
        short += u32::from(a.len() == 8192);
        gone += u32::from(!found.contains_key("/b"));
    }
    assert!([kept, lost, torn, short, gone].iter().all(|times| *times > 20), "{kept} {lost} {torn} {short} {gone}");
}

#[test]
fn names_go_in_order_and_a_folders_sync_keeps_its_own() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let mut disk = Disk::new();
        let there = disk.create(ROOT, name("there"), true, 0o755).expect("created");
        disk.sync_folder(ROOT).expect("synced");
        let new = disk.create(there, name("new.tmp"), false, 0o644).expect("created");
        disk.write(new, 0, b"content", false).expect("written");
        disk.sync(new).expect("synced");
        disk.rename((there, name("new.tmp")), (there, name("new")), false).expect("renamed");
        let after = disk.create(ROOT, name("after"), false, 0o644).expect("created");
        disk.link(after, there, name("linked")).expect("linked");
        disk.cut(&mut Seeded::new(seed, 0));
        let names: Vec<String> = all(&disk).into_keys().collect();
        seen.insert(names.join(" "));
    }
    let expected = ["", "/after /there/linked /there/new", "/after /there/new", "/there/new", "/there/new.tmp"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);

    for seed in 0..50 {
        let mut disk = Disk::new();
        let (one, two) = (
            disk.create(ROOT, name("one"), true, 0o755).expect("created"),
            disk.create(ROOT, name("two"), true, 0o755).expect("created"),
        );
        disk.sync_folder(ROOT).expect("synced");
        disk.create(two, name("x"), false, 0o644).expect("created");
        disk.create(one, name("y"), false, 0o644).expect("created");
        disk.rename((one, name("y")), (two, name("x")), false).expect("renamed");
        // The rename touches it: it stays, and so do earlier changes of the same folders.
        disk.sync_folder(one).expect("synced");
        disk.cut(&mut Seeded::new(seed, 0));
        assert_eq!(all(&disk).into_keys().collect::<Vec<_>>(), ["/two/x"]);
    }
}

#[test]
fn a_lying_disk_goes_back_to_its_last_true_sync() {
    let mut disk = Disk::new();
    let ino = file(&mut disk, "a");
    disk.sync_folder(ROOT).expect("synced");
    disk.lie();
    for number in 1..=TRUE_SYNC_ONE_IN + 9 {
        disk.write(ino, 0, &number.to_le_bytes(), false).expect("written");
        disk.sync(ino).expect("said so");
    }
    disk.cut(&mut Seeded::new(1, 0));
    assert_eq!(all(&disk)["/a"], TRUE_SYNC_ONE_IN.to_le_bytes());
}

#[test]
fn files_shrink_and_grow_with_zeros_and_what_nothing_names_goes() {
    let mut disk = Disk::new();
    let ino = file(&mut disk, "a");
    disk.write(ino, 10, &[7; 9000], false).expect("written");
    disk.truncate(ino, 5000).expect("shorter");
    disk.truncate(ino, 9000).expect("longer");
    let content = disk.read(ino, 0, 1 << 20).expect("read");
    assert_eq!(content.len(), 9000);
    assert!(content[10..5000].iter().all(|byte| *byte == 7) && content[5000..].iter().all(|byte| *byte == 0));
    assert_eq!(disk.write(ino, u64::MAX - 1, b"xyz", false), Err(Refused::Full));
    assert_eq!(disk.remove(ROOT, name("a"), true), Err(Refused::NotFolder));
    disk.remove(ROOT, name("a"), false).expect("removed");
    assert_eq!(disk.lookup(ROOT, name("a")), Err(Refused::Missing));
    disk.sync_folder(ROOT).expect("synced");
    disk.sweep();
    assert_eq!(disk.nodes.len(), 1, "only the top folder is left");
}
