//! Several processes on one directory, some hundred seeds of each profile: what a debug build has
//! time for, and enough to see the bugs that are planted. `./test simulation` runs thousands.

use windlass_sim::swarm::{self, Swarm};
use windlass_sim::{Point, Profile};

/// Runs seeds, which must be clean and come by these rare paths.
fn seeds(profile: Profile, seeds: u64, points: &[Point]) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report =
        swarm::run(&Swarm { first: 1, seeds, profile: Some(profile), within: None, threads });
    if let Some((seed, profile, why)) = report.failure {
        panic!("windlass-sim --seed {seed} --profile {profile}  # {why}");
    }
    for point in points {
        assert!(report.cover.count(*point) > 0, "never: {}", point.words());
    }
}

#[test]
fn processes_that_join_die_stop_and_take_over_break_no_promise() {
    let points = [
        Point::TookOver,
        Point::RanOn,
        Point::SettledAfterTakeover,
        Point::RecoveredWhenNoticed,
        Point::UnheldReleased,
        Point::Repeated,
        Point::NeverSentAgain,
        Point::LastReply,
        Point::OwnerStopped,
        Point::JoinedStopped,
        Point::DiedTogether,
        Point::NobodyLeft,
    ];
    seeds(Profile::Processes, 300, &points);
}

#[test]
fn owners_whose_disk_fails_break_no_promise() {
    let points = [Point::TookOver, Point::RanOn, Point::OpenCrashed, Point::WriteFailed];
    seeds(Profile::FailingOwners, 150, &points);
}
