//! The same seed is the same run: without that, no failure could be looked at twice.

use windlass_sim::{Profile, Trace, run};

#[test]
fn twenty_seeds_twice_give_the_same_traces() {
    for seed in 1..=20 {
        let profile = Profile::of_seed(seed);
        let lines = || run(seed, profile, Trace::kept()).trace.into_lines();
        let (one, other) = (lines(), lines());
        assert!(one.len() > 100, "seed {seed} did something");
        assert!(one == other, "seed {seed} gave two different runs");
    }
}
