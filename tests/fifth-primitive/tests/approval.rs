//! A primitive made outside the library does what the built-in ones do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fifth_primitive::{Approval, Decision, Votes, approve};
use windlass::testing::{Lab, Setup, crash_everywhere};
use windlass::{Engine, Error, Failure, ObjectStatus};

type Log = Arc<Mutex<Vec<(String, Decision)>>>;

fn release(log: &Log) -> Approval {
    let log = log.clone();
    Approval::new("release", 2, Duration::from_secs(3_600), move |key, decision| {
        let log = log.clone();
        async move {
            log.lock().expect("whole").push((key, decision));
            Ok::<_, Failure>(())
        }
    })
}

fn seen(log: &Log) -> Vec<(String, Decision)> {
    log.lock().expect("whole").clone()
}

#[tokio::test(start_paused = true)]
async fn enough_votes_run_the_code_once_and_later_ones_change_nothing() {
    let log = Log::default();
    let approval = release(&log);
    let lab = Lab::new(|worker| worker.primitive(approval.clone())).await;
    for who in ["anna", "anna", "bert", "carl"] {
        approve(lab.engine(), &approval, "v1.0", who).await.expect("taken");
    }
    let view = lab.engine().objects(&approval).view("v1.0").await.expect("answered");
    assert_eq!(view.expect("it is there").alarm_at, None, "the deadline is called off");
    lab.run_everything().await;
    assert_eq!(seen(&log), [("v1.0".to_string(), Decision::Approved)]);
    let votes = lab.engine().objects(&approval).state("v1.0").await.expect("answered");
    let yes = ["anna", "bert"].map(str::to_string).into();
    let expected = Votes { yes, decision: Some(Decision::Approved), carried_out: true };
    assert_eq!(votes, Some(expected));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_decides_when_too_few_have_voted() {
    let log = Log::default();
    let approval = release(&log);
    let lab = Lab::new(|worker| worker.primitive(approval.clone())).await;
    approve(lab.engine(), &approval, "v1.1", "anna").await.expect("taken");
    lab.advance(Duration::from_secs(3_599)).await;
    assert!(seen(&log).is_empty(), "there is still a second");
    lab.advance(Duration::from_secs(1)).await;
    lab.run_until_idle().await;
    assert_eq!(seen(&log), [("v1.1".to_string(), Decision::Expired)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_said_and_nothing_is_stored() {
    let approval = release(&Log::default());
    let lab = Lab::new(|worker| worker.primitive(approval.clone())).await;
    let refused = approve(lab.engine(), &approval, "v1", "").await;
    assert!(matches!(refused, Err(Error::Validation { .. })), "{refused:?}");
    let nobody = Approval::new("nobody", 0, Duration::ZERO, |_, _| async { Ok(()) });
    let refused = approve(lab.engine(), &nobody, "v1", "anna").await;
    assert!(matches!(refused, Err(Error::InvalidSetting { .. })), "{refused:?}");
    assert!(lab.engine().objects(&approval).view("v1").await.expect("answered").is_none());
}

#[tokio::test(start_paused = true)]
async fn code_that_fails_for_good_fails_the_object_with_the_reason() {
    let approval = Approval::new("release", 1, Duration::from_secs(60), |_, _| async {
        Err(Failure::permanent("the release is broken"))
    });
    let lab = Lab::new(|worker| worker.primitive(approval.clone())).await;
    approve(lab.engine(), &approval, "v2", "anna").await.expect("taken");
    lab.run_everything().await;
    let view = lab.engine().objects(&approval).view("v2").await.expect("answered");
    let meta = view.expect("it is there").record.meta;
    assert_eq!(meta.status, ObjectStatus::Failed);
    assert!(meta.reason.is_some_and(|reason| reason.as_str().contains("broken")));
}

#[test]
fn wherever_it_crashes_the_decision_is_carried_out_if_a_vote_was_acknowledged() {
    let setup = || {
        let log = Log::default();
        let approval = release(&log);
        let world = (log, approval.clone(), Mutex::new(false));
        Setup::new(world, move |worker| worker.primitive(approval.clone()))
    };
    type World = (Log, Approval, Mutex<bool>);
    async fn scenario(engine: Engine, world: Arc<World>) -> Result<(), windlass::BoxError> {
        approve(&engine, &world.1, "v3", "anna").await?;
        *world.2.lock().expect("whole") = true;
        approve(&engine, &world.1, "v3", "bert").await?;
        Ok(())
    }
    async fn check(engine: Engine, world: Arc<World>) -> Result<(), windlass::BoxError> {
        let acknowledged = *world.2.lock().expect("whole");
        let votes = engine.objects(&world.1).state("v3").await?.unwrap_or_default();
        if acknowledged && !votes.carried_out {
            return Err(format!("nothing followed from {votes:?}").into());
        }
        let runs: Vec<Decision> = seen(&world.0).into_iter().map(|(_, what)| what).collect();
        // Once, and once more for each crash between its end and the commit that says so.
        if runs.len() > 2 || runs.iter().any(|run| Some(*run) != votes.decision) {
            return Err(format!("{runs:?} followed from {votes:?}").into());
        }
        Ok(())
    }
    let points = crash_everywhere(setup, scenario, check);
    assert!(points > 20, "{points} points");
}

#[test]
fn the_page_shows_this_very_primitive() {
    let page = include_str!("../../../docs/primitives.md");
    let source = include_str!("../src/lib.rs");
    let code: String = source.lines().skip(3).map(|line| format!("{line}\n")).collect();
    assert!(page.contains(code.trim()), "docs/primitives.md and tests/fifth-primitive differ");
}
