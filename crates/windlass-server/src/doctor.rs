//! Whether a store is well: every checksum, every record, every rule of the ledger.

use serde::Serialize;
use windlass::store::file::{Checked, OpenError, check};

use crate::cli::{DoctorOptions, Format};
use crate::output::{self, FAILED, Failure, bytes, counted, grouped};

/// Checks a store and tells what was found.
pub(crate) fn run(options: &DoctorOptions) -> anyhow::Result<()> {
    let store = options.path.display().to_string();
    let findings = match check(&options.path) {
        Ok(checked) => Findings::of(store, checked),
        Err(OpenError::Damaged { file, at, why }) => {
            let damage = Damage { file, byte: at, why };
            Findings { store, damage: Some(damage), ..Findings::default() }
        }
        Err(error) => return Err(error.into()),
    };
    match options.output {
        Format::Table => output::line(&findings.text())?,
        Format::Json => output::json(&findings)?,
    }
    if findings.ok { Ok(()) } else { Err(Failure::told(FAILED)) }
}

/// What was found. Where the store is damaged, nothing else is known.
#[derive(Debug, Default, Serialize)]
struct Findings {
    store: String,
    ok: bool,
    jobs: Option<u64>,
    objects: Option<u64>,
    commits: Option<u64>,
    segments: Option<usize>,
    used_bytes: Option<u64>,
    live_bytes: Option<u64>,
    /// Where an unfinished commit was cut off, which is harmless.
    torn: Option<String>,
    wrong: Vec<String>,
    damage: Option<Damage>,
}

#[derive(Debug, Serialize)]
struct Damage {
    file: String,
    byte: u64,
    why: String,
}

impl Findings {
    fn of(store: String, checked: Checked) -> Self {
        Self {
            store,
            ok: checked.wrong.is_empty(),
            jobs: Some(checked.jobs),
            objects: Some(checked.objects),
            commits: Some(checked.commits),
            segments: Some(checked.space.segments),
            used_bytes: Some(checked.space.used),
            live_bytes: Some(checked.space.live),
            torn: checked.torn,
            wrong: checked.wrong,
            damage: None,
        }
    }

    fn text(&self) -> String {
        if let Some(damage) = &self.damage {
            return damage.text(&self.store);
        }
        let mut lines = vec![match self.wrong.len() {
            0 => format!("{}: all is well.", self.store),
            1 => format!("{}: something is wrong.", self.store),
            many => format!("{}: {many} things are wrong.", self.store),
        }];
        let objects = match self.objects.unwrap_or(0) {
            0 => String::new(),
            many => format!(" and {}", counted(many, "object")),
        };
        lines.push(format!(
            "  {}{objects} in {} and {}, every one of them read and compared",
            counted(self.jobs.unwrap_or(0), "job"),
            counted(self.commits.unwrap_or(0), "commit"),
            counted(self.segments.unwrap_or(0) as u64, "segment"),
        ));
        let (used, live) = (self.used_bytes.unwrap_or(0), self.live_bytes.unwrap_or(0));
        lines.push(format!("  {} used, {} of it by what is kept", bytes(used), bytes(live)));
        lines.extend(self.torn.as_ref().map(|place| {
            format!(
                "  An unfinished commit was cut off ({place}). That is harmless: nobody had been \
                 told of it."
            )
        }));
        lines.extend(self.wrong.iter().take(SHOWN).map(|what| format!("  wrong: {what}")));
        if self.wrong.len() > SHOWN {
            lines.push(format!("  … and {} more", grouped((self.wrong.len() - SHOWN) as u64)));
        }
        if !self.ok {
            lines.push(WHAT_TO_DO_WRONG.to_string());
        }
        lines.join("\n")
    }
}

/// How much of what is wrong is printed for a person.
const SHOWN: usize = 20;

const WHAT_TO_DO_WRONG: &str = "\
What it means: the checksums are right and what they cover contradicts itself, which should not be
  possible.
What to do: keep this directory as it is, restore a backup under its path, and report this.";

impl Damage {
    fn text(&self, store: &str) -> String {
        let Self { file, byte, why } = self;
        format!(
            "{store}: damaged.\n  {file} at byte {}: {why}\n\
What it means: these bytes had been on stable storage and cannot be read back. The disk, or
  something other than Windlass, has changed them. What was written after them may not be whole, so
  the store is not opened. Nothing was changed.\n\
What to do: keep this directory as it is, restore a backup under its path (`windlass backup` makes
  them), and look after the disk.",
            grouped(*byte)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_listed_up_to_a_bound_with_what_to_do() {
        let wrong = (0..SHOWN + 5).map(|number| format!("job {number} disagrees")).collect();
        let checked = Checked { jobs: 1, commits: 2, wrong, ..Checked::default() };
        let findings = Findings::of("./jobs".to_string(), checked);
        let text = findings.text();
        assert!(!findings.ok);
        for words in ["./jobs: 25 things are wrong", "1 job in 2 commits", "job 19 ", "and 5 more"]
        {
            assert!(text.contains(words), "no `{words}` in\n{text}");
        }
        assert!(!text.contains("job 20 "), "{text}");
        assert!(text.contains("What to do: "), "{text}");
    }
}
