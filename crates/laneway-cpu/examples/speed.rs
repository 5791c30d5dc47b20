//! Decode and prefill speed: `speed MODEL [threads or tier names...]`.

use laneway_cpu::{CpuSpace, CpuStep, KvCache, SoftStore, Tier};
use laneway_files::Weights;
use laneway_model::{Network, PAGE_POSITIONS, Pass, Row, Step};
use std::time::Instant;

/// Time on a processor, which a busy machine does not lengthen much; of the main thread only.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

const PROMPT: usize = 128;
const DECODED: usize = 64;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: speed MODEL [threads or tier names...]");
    let args: Vec<String> = args.collect();
    let mut tiers = Tier::available();
    tiers.retain(|tier| args.iter().any(|arg| arg == tier.name()));
    let threads: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    for tier in if tiers.is_empty() { vec![Tier::best()] } else { tiers } {
        for &threads in if threads.is_empty() { &[1, 2][..] } else { &threads } {
            measure(&path, threads, tier);
        }
    }
}

fn measure(path: &str, threads: usize, tier: Tier) {
    let start = Instant::now();
    let weights = Weights::open(path).expect("a readable model");
    let opened = start.elapsed();
    let mut space = CpuSpace::with_tier(threads, tier);
    let network = Network::load(&weights, &mut space).expect("a supported model");
    drop(weights);
    let loaded = start.elapsed();
    println!(
        "{} · {threads} threads · open {:.0} ms · load {:.0} ms · weights {:.1} MB · peak {:.1} MB",
        tier.name(),
        opened.as_secs_f64() * 1e3,
        loaded.as_secs_f64() * 1e3,
        space.weight_bytes() as f64 / 1e6,
        peak_mb(),
    );
    let pages = (PROMPT + DECODED).div_ceil(PAGE_POSITIONS);
    let mut kv = KvCache::new(&network.kv_shapes(), pages);
    let tables = [(0..pages as u32).collect::<Vec<_>>()];
    let mut soft = SoftStore::new();
    let mut run = |rows: &[Row]| {
        let step = Step { rows, tables: &tables, logits: &[rows.len() as u32 - 1], labels: &[], drafts: &[] };
        let mut ops = CpuStep::new(&space, &step, &mut kv, &mut soft, &[]).expect("a valid step");
        let logits = space.run(|| {
            let hidden = network.forward(Pass::Encode, &mut ops);
            network.logits(&hidden, &mut ops)
        });
        let best = logits.data().iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.expect("a vocabulary is not empty").0 as u32
    };
    let prompt: Vec<Row> =
        (0..PROMPT as u32).map(|i| Row { token: 100 + i * 7, position: i, lane: 0, block: None }).collect();
    let mut best = [f64::INFINITY; 2];
    for _ in 0..5 {
        let start = (Instant::now(), cpu_seconds());
        run(&prompt);
        best = [best[0].min(start.0.elapsed().as_secs_f64()), best[1].min(cpu_seconds() - start.1)];
    }
    println!("  prefill {PROMPT}: {:.0} tok/s ({:.0} by cpu time)", PROMPT as f64 / best[0], PROMPT as f64 / best[1]);
    let mut best = [f64::INFINITY; 2];
    for _ in 0..3 {
        let mut token = 1;
        let start = (Instant::now(), cpu_seconds());
        for i in 0..DECODED {
            token = run(&[Row { token, position: (PROMPT + i) as u32, lane: 0, block: None }]);
        }
        best = [best[0].min(start.0.elapsed().as_secs_f64()), best[1].min(cpu_seconds() - start.1)];
    }
    println!(
        "  decode: {:.1} tok/s ({:.1} by cpu time) · peak {:.1} MB",
        DECODED as f64 / best[0],
        DECODED as f64 / best[1],
        peak_mb(),
    );
}

fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().split(' ').next().and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}
