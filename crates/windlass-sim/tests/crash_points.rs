//! Every point at which the power can be lost, in fixed scripts.
//!
//! A script is run once to count its calls to the disk and its answers. Then it is run again for
//! each call (before it, in the middle of it, after it) and for each answer, with what was not
//! synced kept, dropped and torn: up to there, then the power is lost, the store is opened, the
//! judge looks at everything, all work is finished, and the judge looks again.
//!
//! `WINDLASS_CRASH_ROUNDS` runs it all that often, torn differently each time (1 unless set), and
//! `WINDLASS_CRASH_SCALE` makes the scripts longer (1 unless set).

#[path = "crash_points/player.rs"]
mod player;
#[path = "crash_points/scripts.rs"]
mod scripts;

use windlass_sim::{Checked, Loss, Moment, NameLoss, Opening};

use crate::player::{Player, Script};

/// Where the power is lost.
#[derive(Clone, Copy, Debug)]
enum Point {
    Call(u64, Moment),
    Answer(u64),
}

fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Runs the script at every point and returns how many there were.
fn sweep(name: &str, script: Script) -> u64 {
    let scale = number("WINDLASS_CRASH_SCALE", 1);
    let (calls, answers) = measure(script, scale).unwrap_or_else(|wrong| {
        panic!("{name} fails by itself: {wrong:?}");
    });
    let calls = (1..=calls).flat_map(|call| Moment::ALL.map(|moment| Point::Call(call, moment)));
    let points = calls.chain((1..=answers).map(Point::Answer));
    let mut runs = 0;
    for round in 0..number("WINDLASS_CRASH_ROUNDS", 1) {
        for point in points.clone() {
            for loss in Loss::PLAIN {
                runs += 1;
                let seed = round << 32 | runs;
                if let Err(wrong) = crash(script, scale, point, loss, seed) {
                    panic!("{name}, {point:?}, {loss:?}, seed {seed}: {}", wrong.0);
                }
            }
        }
    }
    println!("{name}: {runs} crash points");
    runs
}

/// Runs the script to its end: how many calls and answers it takes.
fn measure(script: Script, scale: u64) -> Checked<(u64, u64)> {
    let mut player = Player::new(script, scale, 0);
    player.machine.start()?;
    (script.play)(&mut player)?;
    let counted = (player.machine.disk.calls(), player.machine.given());
    player.finish()?;
    Ok(counted)
}

fn crash(script: Script, scale: u64, point: Point, loss: Loss, seed: u64) -> Checked {
    let mut player = Player::new(script, scale, seed);
    match point {
        Point::Call(call, moment) => player.machine.disk.set_trap(call, moment),
        Point::Answer(answer) => player.machine.set_ack_trap(answer),
    }
    if let Opening::Open = player.machine.open()? {
        (script.play)(&mut player)?;
    }
    let names = match loss {
        Loss::Keep => NameLoss::Keep,
        Loss::Drop => NameLoss::Drop,
        Loss::Tear | Loss::Mix if seed.is_multiple_of(2) => NameLoss::Suffix,
        Loss::Tear | Loss::Mix => NameLoss::Scatter,
    };
    player.machine.lose_power(loss, names);
    player.machine.start()?;
    player.finish()
}

#[test]
fn a_crash_anywhere_in_the_life_of_jobs_loses_nothing_that_was_answered() {
    assert!(sweep("life of jobs", scripts::LIFE) >= 1_000);
}

#[test]
fn a_crash_anywhere_among_dependencies_and_keys_loses_nothing_that_was_answered() {
    assert!(sweep("dependencies and keys", scripts::GRAPH) >= 1_000);
}

#[test]
fn a_crash_anywhere_among_lanes_loses_nothing_that_was_answered() {
    assert!(sweep("lanes", scripts::LANES) >= 500);
}

#[test]
fn a_crash_anywhere_in_the_life_of_objects_leaves_each_after_one_of_its_turns() {
    assert!(sweep("life of objects", scripts::OBJECTS) >= 500);
}

#[test]
fn a_crash_anywhere_in_compaction_and_retention_loses_nothing_that_was_answered() {
    assert!(sweep("compaction and retention", scripts::COMPACTION) >= 1_000);
}
