//! Who has a directory open: a file for each, locked for as long as it lives.
//!
//! A member is dead exactly when its file can be locked; doubt means alive. The file names its
//! workers before they claim anything, so whoever owns the directory knows whose leases they are.
//! Nothing here need survive the power: then no lock is held, and everyone is dead.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::store::file::{open_plain, open_to_read, try_lock};

/// The directory of the files, in that of the store.
const MEMBERS: &str = "members";

/// A file that is being made, and not locked yet.
const UNFINISHED: &str = "new-";

/// Names the workers of other machines that a member speaks for. It is never locked: nobody here
/// knows whether they live.
const REMOTE: &str = ".remote";

/// This process as a member.
#[derive(Debug)]
pub(super) struct Member {
    path: PathBuf,
    /// Locked; the lock goes with it.
    file: File,
    /// Workers that the file names.
    workers: Mutex<BTreeSet<Arc<str>>>,
    /// Workers of other machines.
    remote: Mutex<BTreeSet<Arc<str>>>,
}

impl Member {
    /// Becomes a member. The file appears under its name when it is locked, so nobody sees it
    /// without.
    pub(super) fn enter(directory: &Path) -> io::Result<Self> {
        let members = directory.join(MEMBERS);
        DirBuilder::new().recursive(true).mode(0o700).create(&members)?;
        loop {
            let id = uuid::Uuid::new_v4().simple().to_string();
            let (unfinished, path) = (members.join(format!("{UNFINISHED}{id}")), members.join(id));
            let mut file = open_plain(&unfinished, OpenOptions::new().create(true))?;
            file.lock()?;
            writeln!(file, "{}", this_process())?;
            match fs::rename(&unfinished, &path) {
                // Whoever tidies up took it for one that was left behind.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => {
                    renamed?;
                    let (workers, remote) = (Mutex::default(), Mutex::default());
                    return Ok(Self { path, file, workers, remote });
                }
            }
        }
    }

    /// Names a worker of this process, before it claims.
    pub(super) fn name_worker(&self, worker: &Arc<str>) -> io::Result<()> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if !workers.contains(worker) {
            write_name(&mut &self.file, worker)?;
            workers.insert(worker.clone());
        }
        Ok(())
    }

    /// Names a worker of another machine that claims through this process: its leases end by time
    /// alone, whatever becomes of this process.
    pub(super) fn name_remote_worker(&self, worker: &Arc<str>) -> io::Result<()> {
        let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
        if !remote.contains(worker) {
            let path = with_suffix(&self.path, REMOTE);
            let mut file = open_plain(&path, OpenOptions::new().create(true).append(true))?;
            write_name(&mut file, worker)?;
            remote.insert(worker.clone());
        }
        Ok(())
    }

    /// Which file it is.
    pub(super) fn id(&self) -> String {
        id_of(&self.path)
    }

    /// The workers of this process that have claimed.
    pub(super) fn workers(&self) -> BTreeSet<Arc<str>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // If it stays, the next owner removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn id_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    name.into()
}

/// A name may hold anything, so it is written as JSON.
fn write_name(file: &mut impl Write, name: &str) -> io::Result<()> {
    let line = serde_json::Value::from(name).to_string();
    file.write_all(format!("{line}\n").as_bytes())
}

/// This process, as others name it.
pub(super) fn this_process() -> String {
    let program = std::env::args().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    let program: String = program.chars().filter(|c| !c.is_control()).take(64).collect();
    format!("process {} ({program})", std::process::id())
}

/// What was found among the members of a directory.
#[derive(Debug, Default)]
pub(super) struct MemberSurvey {
    /// Workers whose process lives, or may live: those of living members, and of other machines.
    pub(super) living: BTreeSet<Arc<str>>,
    /// How many members live, this one included.
    pub(super) members: usize,
    /// Members that have died.
    pub(super) dead: Vec<DeadMember>,
}

/// A member that has died. It is locked, so nobody else finds it.
#[derive(Debug)]
pub(super) struct DeadMember {
    path: PathBuf,
    _locked: File,
    /// Which process it was, and its workers.
    pub(super) process: String,
    pub(super) workers: BTreeSet<Arc<str>>,
}

impl DeadMember {
    /// Which file it is.
    pub(super) fn id(&self) -> String {
        id_of(&self.path)
    }

    /// Forgets it: its jobs were given back, durably.
    pub(super) fn forget(self) {
        // If it stays, it is found again and has no leases.
        let _ = fs::remove_file(&self.path);
    }
}

/// Looks who lives. Only whoever owns the directory may do this: it removes what is left behind.
pub(super) fn survey(directory: &Path) -> io::Result<MemberSurvey> {
    let mut survey = MemberSurvey::default();
    let members = directory.join(MEMBERS);
    let entries = match fs::read_dir(&members) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(survey),
        entries => entries?,
    };
    for entry in entries {
        let (name, path) = {
            let entry = entry?;
            (entry.file_name().to_string_lossy().into_owned(), entry.path())
        };
        if name.ends_with(REMOTE) {
            let (_, workers) = read_names(open_to_read(&path)?)?;
            survey.living.extend(workers);
            continue;
        }
        let file = match open_plain(&path, &mut OpenOptions::new()) {
            // It has left meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        if !try_lock(&file)? {
            survey.members += 1;
            let (_, workers) = read_names(file)?;
            survey.living.extend(workers);
        } else if name.starts_with(UNFINISHED) {
            let _ = fs::remove_file(&path);
        } else {
            let (process, workers) = read_names(file.try_clone()?)?;
            survey.dead.push(DeadMember { path, _locked: file, process, workers });
        }
    }
    // Doubt means alive: a name that two members have may be that of the living one.
    for dead in &mut survey.dead {
        dead.workers.retain(|worker| !survey.living.contains(worker));
    }
    Ok(survey)
}

/// Removes the names of workers of other machines that hold nothing any more, of processes that
/// have ended.
pub(super) fn forget_remote(directory: &Path, holds: impl Fn(&BTreeSet<Arc<str>>) -> bool) {
    let Ok(entries) = fs::read_dir(directory.join(MEMBERS)) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let text = path.to_string_lossy().into_owned();
        let Some(member) = text.strip_suffix(REMOTE) else { continue };
        if Path::new(member).exists() {
            continue;
        }
        let names = open_to_read(&path).and_then(read_names);
        if names.is_ok_and(|(_, workers)| !holds(&workers)) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Which process it is, and its workers. The last line may be half written: a worker that is not
/// named yet has claimed nothing.
fn read_names(mut file: File) -> io::Result<(String, BTreeSet<Arc<str>>)> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut process = String::new();
    let mut workers = BTreeSet::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        match serde_json::from_str::<String>(line) {
            Ok(worker) => drop(workers.insert(worker.into())),
            Err(_) => process = line.to_string(),
        }
    }
    Ok((process, workers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> PathBuf {
        let path = std::env::temp_dir().join(format!("windlass-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path).expect("it is new");
        path
    }

    fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn a_member_lives_for_as_long_as_its_file_is_locked() {
        let directory = directory();
        let here = Member::enter(&directory).expect("it enters");
        let there = Member::enter(&directory).expect("it enters");
        here.name_worker(&"a\nb".into()).expect("named");
        there.name_worker(&"c".into()).expect("named");
        let all = survey(&directory).expect("surveyed");
        assert_eq!((all.members, all.living), (2, names(&["a\nb", "c"])));
        assert!(all.dead.is_empty());
        // As when a process is killed: the lock goes, and the file stays.
        there.file.unlock().expect("unlocked");
        let all = survey(&directory).expect("surveyed");
        assert_eq!((all.members, &all.living), (1, &names(&["a\nb"])));
        assert_eq!(all.dead[0].workers, names(&["c"]));
        assert!(all.dead[0].process.starts_with("process "), "{:?}", all.dead[0]);
        all.dead.into_iter().for_each(DeadMember::forget);
        assert!(survey(&directory).expect("surveyed").dead.is_empty());
        drop((here, there));
        assert_eq!(survey(&directory).expect("surveyed").members, 0);
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn a_name_that_a_living_member_has_too_is_not_taken_for_a_dead_one() {
        let directory = directory();
        let (here, there) = (Member::enter(&directory), Member::enter(&directory));
        let (here, there) = (here.expect("it enters"), there.expect("it enters"));
        here.name_worker(&"same".into()).expect("named");
        there.name_worker(&"same".into()).expect("named");
        there.file.unlock().expect("unlocked");
        assert_eq!(survey(&directory).expect("surveyed").dead[0].workers, names(&[]));
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn workers_of_other_machines_outlive_the_process_they_came_through() {
        let directory = directory();
        let server = Member::enter(&directory).expect("it enters");
        server.name_remote_worker(&"far".into()).expect("named");
        server.file.unlock().expect("unlocked");
        let all = survey(&directory).expect("surveyed");
        assert_eq!(all.living, names(&["far"]));
        all.dead.into_iter().for_each(DeadMember::forget);
        forget_remote(&directory, |workers| workers.contains("far"));
        assert_eq!(survey(&directory).expect("surveyed").living, names(&["far"]), "it holds a job");
        forget_remote(&directory, |_| false);
        assert!(survey(&directory).expect("surveyed").living.is_empty());
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn what_a_process_left_half_made_is_tidied_away() {
        let directory = directory();
        let member = Member::enter(&directory).expect("it enters");
        let left = directory.join(MEMBERS).join("new-left");
        fs::write(&left, "").expect("written");
        assert_eq!(survey(&directory).expect("surveyed").members, 1);
        assert!(!left.exists());
        drop(member);
        fs::remove_dir_all(&directory).expect("removed");
    }
}
