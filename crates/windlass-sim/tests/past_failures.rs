//! Seeds that once found a bug, in `seeds.txt`: each must pass for ever.

use windlass_sim::{Profile, Trace, swarm};

#[test]
fn no_seed_that_once_found_a_bug_finds_it_again() {
    let mut seeds = 0;
    for line in include_str!("../seeds.txt").lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some((seed, profile)) = line.split_once(' ') else { continue };
        let seed: u64 = seed.parse().expect("a seed is a number");
        let profile: Profile = profile.trim().parse().expect("a profile");
        if let Err(why) = swarm::run_seed(seed, profile, Trace::none()) {
            panic!("windlass-sim --seed {seed} --profile {profile}  # {why}");
        }
        seeds += 1;
    }
    assert!(seeds > 10, "the list of past failures is gone");
}
