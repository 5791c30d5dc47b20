//! What this process has used of the machine.

use std::time::Duration;

/// CPU time of all threads so far, where the system tells.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn cpu_time() -> Option<Duration> {
    // SAFETY: rusage is plain data, and getrusage only writes to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &mut usage) != 0 {
            return None;
        }
        usage
    };
    let duration = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Some(duration(usage.ru_utime) + duration(usage.ru_stime))
}

/// CPU time of all threads so far, where the system tells.
#[cfg(not(unix))]
pub fn cpu_time() -> Option<Duration> {
    None
}

/// The most memory this process held at a time, in bytes, where the system tells.
pub fn peak_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
