//! What the operating system tells about this process, where it does.

use std::fs;
use std::time::Duration;

/// Memory that is resident.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}

/// Processor time that the threads which are alive have used.
pub(crate) fn processor_time() -> Option<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir("/proc/self/task").ok()? {
        // A thread may end in between, and is then no longer counted.
        let Ok(figures) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else {
            continue;
        };
        nanos += figures.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}
