//! Damage, and stores of other versions: refused with the place or the reason.

use super::*;

#[tokio::test(start_paused = true)]
async fn every_flipped_byte_is_reported_or_harmless() {
    let bench = Bench::new();
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    let handed = claim(&store, 10).await;
    assert_eq!(handed.jobs.len(), 1);
    // Last of all, so that losing the last commit shows.
    accept(&store, [job(10)]).await;
    let before = everything(&store).await;
    store.close().await;
    let path = bench.path().join(&segments(&bench.path())[0]);
    let whole = fs::read(&path).expect("a segment");
    let used = whole.iter().rposition(|byte| *byte != 0).expect("it is not empty") + 200;
    let (mut refused, mut harmless) = (0, 0);
    for at in 0..used {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, &flipped).expect("written");
        match check(&bench.path()) {
            Err(OpenError::Damaged { file, .. }) => {
                assert!(file.starts_with("journal-"), "{file}");
                refused += 1;
            }
            Err(OpenError::Newer { .. }) => refused += 1,
            Err(other) => panic!("byte {at}: {other}"),
            Ok(checked) => {
                assert_eq!((checked.jobs, checked.wrong), (10, Vec::new()), "byte {at}");
                harmless += 1;
            }
        }
    }
    fs::write(&path, &whole).expect("written");
    assert!(refused > used * 9 / 10 - 400, "{refused} refused, {harmless} harmless");
    let mut seen = before;
    let store = bench.open();
    let after = everything(&store).await;
    seen.iter_mut().zip(&after).for_each(|(seen, after)| {
        if seen.state() == StateName::Running {
            *seen = after.clone();
        }
    });
    assert_eq!(seen, after);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_segment_is_refused_at_every_length() {
    let bench = Bench::new();
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    store.close().await;
    let path = bench.path().join(&segments(&bench.path())[0]);
    let whole = fs::read(&path).expect("a segment");
    for length in (0..whole.len()).step_by(611) {
        fs::write(&path, &whole[..length]).expect("written");
        let refused = bench.try_open().expect_err("a file was cut");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{length}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_segment_is_damage_with_its_place() {
    let bench = Bench::new();
    let store = bench.open();
    for round in 0..4u128 {
        let jobs = (0..100).map(|each| job(1 + round * 100 + each));
        accept(&store, jobs.map(|job| NewJob { payload: vec![1; 900].into(), ..job })).await;
    }
    store.close().await;
    let names = segments(&bench.path());
    assert!(names.len() > 4);
    for name in &names[..names.len() - 1] {
        let path = bench.path().join(name);
        let content = fs::read(&path).expect("a segment");
        fs::remove_file(&path).expect("removed");
        let refused = bench.try_open().expect_err("a file is missing").to_string();
        assert!(refused.contains("damaged: journal-"), "{name}: {refused}");
        fs::write(&path, content).expect("written");
    }
}

/// Changes the head of the first segment, and its checksum with it.
fn change_head(bench: &Bench, change: impl FnOnce(&mut [u8])) {
    let path = bench.path().join(&segments(&bench.path())[0]);
    let mut content = fs::read(&path).expect("a segment");
    change(&mut content[..24]);
    let check = crc32(&content[..24]);
    content[24..28].copy_from_slice(&check.to_le_bytes());
    fs::write(&path, content).expect("written");
}

#[tokio::test(start_paused = true)]
async fn a_store_of_a_later_version_is_refused_politely() {
    let bench = Bench::new();
    bench.open().close().await;
    change_head(&bench, |head| head[8] = 2);
    let refused = bench.try_open().expect_err("it is newer").to_string();
    assert!(refused.contains("format 2") && refused.contains("newer version"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_store_of_a_development_version_is_refused_in_a_sentence_and_left_alone() {
    let bench = Bench::new();
    let store = bench.open();
    accept(&store, [job(1)]).await;
    store.close().await;
    change_head(&bench, |head| head[..8].copy_from_slice(b"WINDLASS"));
    let before = fs::read(bench.path().join(&segments(&bench.path())[0])).expect("a segment");
    let sentence = "the store was written by a development version of Windlass, in a format that \
                    is no longer read; export its jobs with that version, and start with a new \
                    directory";
    assert_eq!(bench.try_open().expect_err("it is older").to_string(), sentence);
    assert_eq!(check(&bench.path()).expect_err("it is older").to_string(), sentence);
    let copy = bench.directory.path().join("copy");
    assert_eq!(back_up(&bench.path(), &copy).expect_err("it is older").to_string(), sentence);
    let after = fs::read(bench.path().join(&segments(&bench.path())[0])).expect("a segment");
    assert!(before == after && !copy.exists());
}

/// The checksum of the format page, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(sum & 1))
        })
    })
}
