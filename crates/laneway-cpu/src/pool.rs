//! The threads that share one step's work, and the only place that knows whether the platform has threads.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

/// A fixed number of threads that take tasks from a common counter.
///
/// A thread that the system runs late finds no task left and costs nothing; idle threads sleep.
pub(crate) struct Pool {
    threads: usize,
    #[cfg(not(target_arch = "wasm32"))]
    workers: Option<rayon::ThreadPool>,
}

impl Pool {
    #[cfg(not(target_arch = "wasm32"))]
    pub fn new(threads: usize) -> Self {
        let wanted = threads.max(1);
        let name = |i| format!("laneway-cpu-{i}");
        let build = || rayon::ThreadPoolBuilder::new().num_threads(wanted).thread_name(name).build().ok();
        let workers = if wanted > 1 { build() } else { None };
        Self { threads: if workers.is_some() { wanted } else { 1 }, workers }
    }

    #[cfg(target_arch = "wasm32")]
    pub fn new(_threads: usize) -> Self {
        Self { threads: 1 }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` on one of the pool's threads, from where tasks are shared at the least cost.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(workers) = &self.workers {
            return workers.install(f);
        }
        f()
    }

    /// Calls `f` exactly once with every number below `count`, on all threads, and waits.
    pub fn share(&self, count: usize, f: impl Fn(usize) + Sync) {
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(workers) = self.workers.as_ref().filter(|_| count > 1) {
            let next = AtomicUsize::new(0);
            let work = || drain(&next, count, &f);
            workers.in_place_scope(|scope| {
                for _ in 1..self.threads.min(count) {
                    scope.spawn(|_| work());
                }
                work();
            });
            return;
        }
        drain(&AtomicUsize::new(0), count, &f);
    }

    /// `f` of every number below `count`, in order.
    pub fn map<T: Send>(&self, count: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let results = Mutex::new(Vec::with_capacity(count));
        self.share(count, |i| {
            let result = f(i);
            results.lock().expect("no task panics while it holds the lock").push((i, result));
        });
        let mut results = results.into_inner().expect("no task panics while it holds the lock");
        results.sort_by_key(|(i, _)| *i);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

fn drain(next: &AtomicUsize, count: usize, f: &impl Fn(usize)) {
    loop {
        let task = next.fetch_add(1, Ordering::Relaxed);
        if task >= count {
            return;
        }
        f(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_results_keep_their_order() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            assert_eq!(pool.map(100, |i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
            assert_eq!(pool.run(|| pool.map(3, |i| i)), [0, 1, 2]);
            assert!(pool.map(0, |i| i).is_empty());
        }
    }
}
