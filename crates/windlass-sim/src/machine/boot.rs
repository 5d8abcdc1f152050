//! How a machine goes down and comes up.

use std::collections::VecDeque;
use std::sync::Arc;

use windlass::clock::AwakeClock;
use windlass::store::file::{FileOptions, JournalPath, JournaledLedger, OpenError};
use windlass::store::{Durability, Opened};
use windlass::wake::LocalWake;
use windlass_core::event::Event;

use super::{Machine, Process};
use crate::clock::ProcessClock;
use crate::cover::Point;
use crate::disk::{Faults, Loss, Moment, NameLoss};
use crate::{Checked, Violation, ensure};

/// What came of an attempt to open the store.
#[derive(Debug)]
pub enum Opening {
    /// It is open.
    Open,
    /// The machine went down again meanwhile.
    Died,
    /// It said why it could not be opened.
    Refused(OpenError),
}

impl Machine {
    /// The power is lost and comes back; the store is not opened yet.
    pub fn lose_power(&mut self, loss: Loss, names: NameLoss) {
        let across = self.disk.dirty_files() > 1;
        self.fall();
        self.oracle.power_lost();
        let (wreck, names_lost) = self.disk.crash(loss, names);
        self.trace.line(|| format!("power lost: {loss:?} {names:?} {wreck:?} {names_lost} names"));
        let torn = across && wreck.torn + wreck.dropped > 0 && wreck.torn + wreck.kept > 0;
        self.cover.hit_if(Point::TornAcrossSegments, torn);
        self.cover.hit_if(Point::NameLost, names_lost > 0);
        self.clock.restart();
    }

    /// The process is killed; the system goes on.
    pub fn kill(&mut self) {
        self.cover.hit_if(Point::UnsyncedKept, self.disk.dirty_files() > 0);
        self.fall();
        self.disk.kill();
        self.trace.line(|| "killed".to_string());
        self.clock.restart();
    }

    /// The process ends in good order, with everything landed.
    pub fn close(&mut self) -> Checked {
        self.work_to_rest()?;
        self.process = None;
        self.disk.kill();
        self.clock.restart();
        self.trace.line(|| "closed".to_string());
        Ok(())
    }

    /// Opens the store, which must succeed.
    pub fn start(&mut self) -> Checked {
        match self.open()? {
            Opening::Open => Ok(()),
            Opening::Died => Err(Violation("the machine went down and should not have".into())),
            Opening::Refused(error) => {
                Err(Violation(format!("the store cannot be opened: {}", words(&error))))
            }
        }
    }

    /// Opens the store while something may go wrong: what opening would do is looked up first on
    /// a copy of the disk, so that the judge knows what it may find later.
    pub fn open_at_risk(&mut self, trap: Option<(u64, Moment)>) -> Checked<Opening> {
        let fork = self.disk.fork();
        fork.set_capacity(None);
        match JournaledLedger::open(fork.mount(), &self.options, self.clock.now()) {
            Ok((mut ledger, _)) => {
                let opening = ledger.opening_events();
                self.oracle.peeked(opening, ledger.last_event(), &mut self.cover)?;
            }
            Err(error) => {
                let words = words(&error);
                return Err(Violation(format!("the store cannot be opened: {words}")));
            }
        }
        if let Some((ahead, when)) = trap {
            self.disk.set_trap(self.disk.calls() + ahead, when);
        }
        self.open()
    }

    /// Opens the store.
    pub fn open(&mut self) -> Checked<Opening> {
        let disk = self.disk.mount();
        let clock = Arc::new(ProcessClock::new(self.clock.machine_now()));
        let awake = Arc::new(AwakeClock::new(clock.clone()));
        let reading: Arc<dyn windlass::clock::Clock> =
            if self.shared { awake.clone() } else { clock.clone() };
        let options = FileOptions { ledger: self.options.clone(), durability: Durability::Sync };
        let wake = Arc::new(LocalWake::new());
        let opened = JournalPath::open(disk, &options, reading.clone(), wake, None);
        self.trace_disk();
        if self.disk.is_dead() {
            self.crashes += 1;
            self.trace.line(|| "the process is gone while it was opening the store".to_string());
            return Ok(Opening::Died);
        }
        let (store, writer) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.trace.line(|| format!("not opened: {}", words(&error)));
                return Ok(Opening::Refused(error));
            }
        };
        let opened = store.opened().clone();
        let Opened { took: _, ref recovered, ref torn, jobs, commits, .. } = opened;
        self.trace.line(|| format!("opened: {jobs} {commits} {torn:?} {recovered:?}"));
        self.cover.hit_if(Point::TornTail, opened.torn.is_some());
        let events: Vec<Event> =
            store.events_after(0).iter().map(|event| Event::clone(event)).collect();
        let known = store.inspect(|ledger| (ledger.last_event(), ledger.landed_commit()));
        let (last_event, landed) = known.unwrap_or_default();
        awake.set_owner(true);
        self.process = Some(Process {
            store,
            clock,
            reading,
            writer,
            waiting: VecDeque::new(),
            told: last_event,
            landed,
            spare: None,
            compacting: false,
            checkpointing: false,
            broken: false,
            gave_up: false,
        });
        let now = self.clock.now();
        self.oracle.reopened(&events, last_event, &opened, now, &mut self.cover)?;
        let faults = self.disk.set_faults(Faults::default());
        self.inspect()?;
        self.disk.set_faults(faults);
        Ok(Opening::Open)
    }

    /// Whether a store that was refused was refused for damage, with the place of it.
    pub fn is_damage(error: &OpenError) -> Checked<bool> {
        match error {
            OpenError::Damaged { file, .. } => {
                ensure!(!file.is_empty(), "damage was reported without its place");
                Ok(true)
            }
            // Found in a record from before the last checkpoint, which recovery had to read.
            OpenError::Recovery { why } => Ok(why.contains("damaged: journal-")),
            _ => Ok(false),
        }
    }
}

/// An error with its causes.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(&format!(": {error}"));
        cause = error.source();
    }
    words
}
