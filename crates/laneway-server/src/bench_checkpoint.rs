//! `laneway bench --checkpoint`: what storing a session costs, and what restoring it saves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use laneway_api::checkpoint::{self, FileStore};
use laneway_api::{CheckpointOptions, ModelScope, Sessions, StoreCodec, TurnRequest};
use laneway_session::{Decoded, Decoder, Event, Finish, Sampling, SamplingOptions, Source};
use serde_json::json;

use crate::args::BenchArgs;
use crate::bench::{median, prompt_id};
use crate::host::{self, Host};
use crate::load::{content_files, text_side};
use crate::output::{bytes, print, table};
use crate::settings::ModelSettings;

/// An answer that nothing but its length ends.
struct Endless;

impl Decoder for Endless {
    fn token(&mut self, _: u32) -> Decoded {
        Decoded::default()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

struct Bench {
    host: Host,
    sessions: Arc<Sessions>,
    vocab: usize,
}

/// Stores sessions in a folder of their own, which is removed in the end.
pub fn run(settings: &ModelSettings, args: &BenchArgs) -> Result<()> {
    let settings = ModelSettings { lanes: Some(2), ..settings.clone() };
    let text = text_side(&settings)?;
    let vocab = crate::load::open(&text.path)?.config().vocab_size;
    let host = Host::start(&settings, &text, host::service(16))?;
    let folder = std::env::temp_dir().join(format!("laneway-bench-{}", std::process::id()));
    let limits = checkpoint::Config { min_tokens: 1, min_free_bytes: 0, ..checkpoint::Config::default() };
    let store = Arc::new(FileStore::open(&folder)?);
    let options = CheckpointOptions { store, limits, codec: StoreCodec::Exact };
    let scope = ModelScope { files: content_files(&text.path), positions: "bench".to_owned() };
    let sessions = Sessions::new(Arc::new(host.worker.clone()), text.kv.clone(), scope, Some(options))?;
    let mut bench = Bench { host, sessions: Arc::new(sessions), vocab };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let measured = runtime.block_on(bench.measure(args));
    bench.host.worker.shutdown();
    drop(std::fs::remove_dir_all(&folder));
    let Measured { device, stored_bytes, cold, stored, restored, alone, beside } = measured?;
    let report = json!({
        "model": text.name,
        "device": device,
        "prompt_tokens": args.prompt,
        "generated_tokens": args.generate,
        "runs": args.runs,
        "stored_bytes": stored_bytes,
        "prefill_seconds": cold,
        "store_seconds": stored,
        "restore_seconds": restored,
        "prefill_to_restore": cold / restored,
        "decode_ms_per_token": alone,
        "decode_ms_per_token_while_storing": beside,
        "storing_to_not_storing": beside / alone,
    });
    if args.json {
        return print(&format!("{report}\n"));
    }
    let line = |name: &str, value: String, ratio: String| vec![name.to_owned(), value, ratio];
    let rows = [
        line("", "ms".to_owned(), "ratio".to_owned()),
        line("prompt computed", format!("{:.0}", cold * 1000.0), "1.00".to_owned()),
        line("stored", format!("{:.0}", stored * 1000.0), format!("{:.2}", stored / cold)),
        line("restored", format!("{:.0}", restored * 1000.0), format!("{:.2}", restored / cold)),
        line("decoding, a token", format!("{alone:.2}"), "1.00".to_owned()),
        line("the same while storing", format!("{beside:.2}"), format!("{:.3}", beside / alone)),
    ];
    let head = format!(
        "{} on {device}, a session of {} tokens, {} stored, medians of {}\n\n",
        text.name,
        args.prompt,
        bytes(stored_bytes),
        args.runs
    );
    print(&(head + &table(&rows, &[1, 2])))
}

struct Measured {
    device: String,
    stored_bytes: u64,
    /// Seconds.
    cold: f64,
    stored: f64,
    restored: f64,
    /// Milliseconds a token.
    alone: f64,
    beside: f64,
}

impl Bench {
    async fn measure(&mut self, args: &BenchArgs) -> Result<Measured> {
        let preload = self.host.worker.preload(self.host.request.clone());
        preload.await.map_err(|reason| anyhow!("{reason}"))?;
        let device = self.host.opened.try_recv().map_or_else(|_| String::new(), |opened| opened.device.name);
        let (length, generate) = (args.prompt as usize, args.generate as usize);
        let (mut cold, mut stored, mut restored) = (Vec::new(), Vec::new(), Vec::new());
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        let mut stored_bytes = 0;
        // The first run pays for pages and kernels.
        for run in 0..=args.runs as usize {
            self.sessions.clear().await;
            let prompt = self.prompt(length, 2 * run);
            let started = Instant::now();
            self.turn(&prompt, 1).await?;
            let computed = started.elapsed();
            let quiet = self.turn(&self.prompt(8, 999 + run), generate).await?;
            let session = self.sessions.list().await?.into_iter().find(|(_, session)| session.tokens.len() >= length);
            let (_, session) = session.ok_or_else(|| anyhow!("the session was not kept"))?;
            // Whatever the server stores by itself is done before the clock starts.
            tokio::time::sleep(Duration::from_millis(300)).await;
            for checkpoint in self.sessions.stored().await? {
                self.sessions.forget(checkpoint.id).await?;
            }
            let (sessions, kept) = (self.sessions.clone(), session.clone());
            let storing = tokio::spawn(async move {
                let started = Instant::now();
                sessions.save(kept).await.map(|id| (id, started.elapsed()))
            });
            let busy = self.turn(&self.prompt(8, 1999 + run), generate).await?;
            let (id, storing) = storing.await??;
            stored_bytes =
                self.sessions.stored().await?.iter().find(|found| found.id == id).map_or(0, |found| found.bytes);
            self.sessions.clear().await;
            let started = Instant::now();
            let tokens = self.sessions.restore(0, id).await?;
            let restoring = started.elapsed();
            if tokens < length {
                return Err(anyhow!("{tokens} of {length} tokens were restored"));
            }
            let finish = self.turn(&[&prompt[..], &[1]].concat(), 1).await?;
            if finish.cached_tokens < length {
                return Err(anyhow!("only {} tokens of the restored session were found", finish.cached_tokens));
            }
            if run > 0 {
                cold.push(computed.as_secs_f64());
                stored.push(storing.as_secs_f64());
                restored.push(restoring.as_secs_f64());
                alone.push(per_token(&quiet));
                beside.push(per_token(&busy));
            }
        }
        Ok(Measured {
            device,
            stored_bytes,
            cold: median(cold),
            stored: median(stored),
            restored: median(restored),
            alone: median(alone),
            beside: median(beside),
        })
    }

    fn prompt(&self, length: usize, salt: usize) -> Vec<u32> {
        (0..length).map(|at| prompt_id(at + salt * 1009, self.vocab)).collect()
    }

    async fn turn(&self, prompt: &[u32], max_tokens: usize) -> Result<Finish> {
        let mut handle = self.host.worker.submit(TurnRequest {
            request: self.host.request.clone(),
            prompt: prompt.to_vec(),
            max_tokens: Some(max_tokens),
            sampling: Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() })?,
            decoder: Box::new(Endless),
            deadline_ms: None,
            source: Source::LocalChat,
        })?;
        while let Some(event) = handle.next().await {
            if let Event::Finished(result) = event {
                return Ok(result?);
            }
        }
        Err(anyhow!("the engine has stopped"))
    }
}

fn per_token(finish: &Finish) -> f64 {
    finish.decode_ms as f64 / finish.completion_tokens.saturating_sub(1).max(1) as f64
}
