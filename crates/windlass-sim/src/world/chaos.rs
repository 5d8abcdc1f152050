//! What goes wrong: power, processes, disks, clocks, bits.

use windlass::store::file::OpenError;

use super::{Turn, World};
use crate::cover::Point;
use crate::disk::{Damage, Faults, Loss, Moment, NameLoss};
use crate::machine::{Machine, Opening};
use crate::{Checked, Violation, ensure};

/// What is wrong at the moment.
#[derive(Debug, Default)]
pub(super) struct Chaos {
    damage: Option<Damage>,
    /// The disk has an end.
    pub(super) limited: bool,
    /// The wall clock was set back since the store was opened.
    set_back: bool,
}

const HOUR: i64 = 3_600_000_000;
const YEAR: i64 = 365 * 24 * HOUR;

impl World {
    /// Draws whether something goes wrong now.
    pub(super) fn strike(&mut self) -> Checked {
        let rates = self.settings.rates;
        let mut dice = self.random.below(100_000);
        let mut falls = |rate: u64| {
            let hit = dice < rate;
            dice = dice.wrapping_sub(rate);
            hit
        };
        if falls(rates.power_loss) {
            self.lose_power();
        } else if falls(rates.trap) {
            let at = self.machine.disk.calls() + self.random.spread(1, 40);
            self.machine.disk.set_trap(at, *self.random.pick(&Moment::ALL));
        } else if falls(rates.kill) {
            if self.is_shared() { self.kill_some() } else { self.machine.kill() }
        } else if falls(rates.stop) {
            self.stop_some();
        } else if falls(rates.close) {
            self.close_and_open()?;
        } else if falls(rates.clock_step) {
            self.step_clock();
        } else if falls(rates.damage) {
            self.damage()?;
        } else if falls(rates.space) {
            self.change_space();
        } else {
            return Ok(());
        }
        self.hear()?;
        self.notice()
    }

    fn lose_power(&mut self) {
        self.everybody_dies();
        let losses = [Loss::Keep, Loss::Drop, Loss::Tear, Loss::Mix];
        let (loss, names) = (*self.random.pick(&losses), *self.random.pick(&NameLoss::ALL));
        self.machine.lose_power(loss, names);
    }

    fn close_and_open(&mut self) -> Checked {
        if self.machine.is_down()
            || self.machine.is_broken()
            || self.held_up(&Turn::Writer).is_some()
        {
            return Ok(());
        }
        self.machine.close()?;
        if !self.machine.is_down() {
            return Ok(());
        }
        if let Some(owner) = self.processes.owner {
            // Everything it has read is answered, and it ends.
            self.hear()?;
            self.owner_is_gone(true)?;
            self.bury(owner);
        }
        self.reopen()
    }

    fn step_clock(&mut self) {
        let size = *self.random.pick(&[HOUR, YEAR, HOUR / 3_600]);
        let step = if self.random.coin() { size } else { -size };
        self.machine.clock.step(step);
        self.machine.cover.hit(Point::ClockStepped);
        self.machine.trace.line(|| format!("the wall clock is stepped by {step} µs"));
        self.chaos.set_back |= step < 0;
    }

    fn change_space(&mut self) {
        let used = self.machine.disk.used();
        let segment = u64::from(self.settings.options.segment_bytes.unwrap_or(4_096));
        let left = if self.random.chance(300) { 0 } else { self.random.below(segment * 3) };
        let capacity = self.random.chance(600).then_some(used / 2 * u64::from(left > 0) + left);
        self.chaos.limited = capacity.is_some();
        self.machine.trace.line(|| format!("the disk has room for {capacity:?}, {used} are used"));
        self.machine.disk.set_capacity(capacity);
    }

    /// Damages the disk: under an open store, or while it is closed.
    fn damage(&mut self) -> Checked {
        if self.machine.is_down() || self.machine.is_broken() || self.chaos.damage.is_some() {
            return Ok(());
        }
        if self.random.chance(300) {
            self.chaos.damage = self.machine.disk.flip(true, &mut self.random);
            if let Some(damage) = &self.chaos.damage {
                self.machine.trace.line(|| damage.place.clone());
                self.machine.expect_breakage(true);
                self.machine.cover.hit(Point::FlipWhileOpen);
            }
            return Ok(());
        }
        self.machine.close()?;
        if !self.machine.is_down() {
            return Ok(());
        }
        self.machine.disk.settle();
        let cut = self.random.chance(300);
        let damage = if cut {
            self.machine.disk.truncate(&mut self.random)
        } else {
            self.machine.disk.flip(false, &mut self.random)
        };
        self.machine.cover.hit_if(Point::CutRefused, cut);
        self.machine.trace.line(|| format!("{damage:?}"));
        self.machine.expect_breakage(damage.is_some());
        self.chaos.damage = damage;
        self.reopen()
    }

    /// Opens the store, however often it takes.
    pub(super) fn reopen(&mut self) -> Checked {
        self.machine.cover.hit_if(Point::ClockBackOverRestart, self.chaos.set_back);
        self.chaos.set_back = false;
        let mut crashed = 0;
        loop {
            if self.machine.disk.is_dead() {
                self.lose_power();
            } else if !self.machine.is_down() {
                self.take_down();
            }
            self.choose_opener()?;
            match self.open()? {
                // What lies before the last checkpoint is read only when someone asks for it.
                Opening::Open if self.machine.is_broken() => {
                    self.machine.cover.hit(Point::FlipFoundLater);
                    self.mend();
                }
                Opening::Open => break,
                Opening::Died => {
                    crashed += 1;
                    let point =
                        if crashed == 1 { Point::OpenCrashed } else { Point::OpenCrashedTwice };
                    self.machine.cover.hit(point);
                }
                Opening::Refused(error) => self.judge_refusal(&error)?,
            }
        }
        // What was damaged and could be opened is whole, or clearing a segment will come upon it.
        self.machine.cover.hit_if(Point::FlipHarmless, self.chaos.damage.is_some());
        self.took_over()?;
        self.wake_writer();
        Ok(())
    }

    fn mend(&mut self) {
        if let Some(damage) = self.chaos.damage.take() {
            self.machine.disk.mend(&damage);
        }
        self.machine.expect_breakage(false);
    }

    fn take_down(&mut self) {
        if self.random.coin() { self.machine.kill() } else { self.lose_power() }
    }

    fn open(&mut self) -> Checked<Opening> {
        let risky = !self.healing && self.chaos.damage.is_none();
        if risky && self.random.chance(self.settings.open_crash) {
            let ahead = self.random.spread(1, 12);
            let when = *self.random.pick(&Moment::ALL);
            return self.machine.open_at_risk(Some((ahead, when)));
        }
        if risky && self.random.chance(200) {
            return self.machine.open_at_risk(None);
        }
        self.machine.disk.clear_trap();
        let faults = self.machine.disk.set_faults(Faults::default());
        let opening = self.machine.open();
        self.machine.disk.set_faults(faults);
        opening
    }

    /// Whether it may be that the store was not opened; sees to it that next time it can be.
    fn judge_refusal(&mut self, error: &OpenError) -> Checked {
        if let Some(damage) = &self.chaos.damage {
            let found = Machine::is_damage(error)?;
            ensure!(found, "{}: refused with {error} instead of the place", damage.place);
            self.machine.cover.hit(Point::FlipRefused);
            self.mend();
            return Ok(());
        }
        if self.chaos.limited && self.machine.disk.was_full() {
            self.machine.cover.hit(Point::OpenFull);
            self.machine.disk.set_capacity(None);
            self.chaos.limited = false;
            return Ok(());
        }
        // A disk that fails while what ran is recovered has only failed, too.
        let io = matches!(error, OpenError::Io { .. } | OpenError::Recovery { .. });
        let failing = self.machine.disk.failed() > 0 && io;
        if failing {
            self.machine.cover.hit(Point::OpenFailed);
            self.take_down();
            return Ok(());
        }
        let words = crate::machine::words(error);
        Err(Violation(format!("the store cannot be opened: {words}")))
    }

    /// Ends everything that is wrong, and opens the store if need be.
    pub(super) fn make_whole(&mut self) -> Checked {
        self.machine.disk.set_faults(Faults::default());
        self.machine.disk.set_capacity(None);
        self.chaos.limited = false;
        if self.settings.rates.clock_step > 0 {
            // A client whose clock was ahead may have asked for a time that is far away by now.
            self.machine.clock.step(4 * YEAR);
        }
        self.settings.slowest_step = self.settings.slowest_step.min(1_000);
        if !self.machine.disk.is_dead() {
            self.machine.disk.clear_trap();
        }
        // What the store has read of the damage is still in its memory.
        let damaged = self.chaos.damage.is_some();
        self.mend();
        let dead = self.machine.is_down() || self.machine.disk.is_dead();
        if damaged || dead || self.machine.is_broken() {
            self.reopen()?;
        }
        self.hear()?;
        self.notice()
    }
}
