use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Runs language models on this machine and serves them over an OpenAI-compatible API
#[derive(Parser)]
#[command(name = "laneway", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Configuration file; its keys are the long options of `serve`, what is given here or in the environment wins
    #[arg(long, global = true, env = "LANEWAY_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What to log to stderr: error, warn, info, debug, trace, or a filter like laneway_api=debug
    #[arg(long, global = true, env = "LANEWAY_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve a model over HTTP
    Serve(Box<ServeArgs>),
    /// Chat with a model in the terminal
    Chat(ChatArgs),
    /// Download models into the cache
    Pull(PullArgs),
    /// List the models that are known by name
    Models,
    /// List the devices of this machine
    Devices,
    /// Show what a model file contains
    Inspect(InspectArgs),
    /// Answer typed questions about a text with probabilities
    Read(ReadArgs),
    /// Write the logits of every position of a prompt, or of a canvas after it, to a safetensors file
    Logits(LogitsArgs),
    /// Measure loading, prefill and decoding
    Bench(BenchArgs),
}

/// Which model, and how it is loaded.
#[derive(Args, Default)]
pub struct ModelArgs {
    /// A name from `laneway models`, hf:OWNER/REPO/FILE, a .gguf or .safetensors file, or a checkpoint folder
    /// [default: smollm2-135m-instruct]
    #[arg(long, short, env = "LANEWAY_MODEL")]
    pub model: Option<String>,

    /// auto, cpu, gpu, part of an adapter's name, or its number in `laneway devices` [default: auto]
    #[arg(long, short, env = "LANEWAY_DEVICE")]
    pub device: Option<String>,

    /// Split the model into stages that begin with these layers beside the first, each on a device of --device A,B or
    /// all on the same [default: not split]
    #[arg(long, env = "LANEWAY_SPLIT", value_name = "LAYER,…", value_delimiter = ',')]
    pub split: Option<Vec<usize>>,

    /// Tokens that prompt and answer may have together [default: the model's own limit, at most 8192]
    #[arg(long, env = "LANEWAY_CTX", value_name = "TOKENS")]
    pub ctx: Option<usize>,

    /// Type of the values in the K/V cache, f32, f16 or q8: smaller ones take less memory and round a little
    /// [default: f32]
    #[arg(long, env = "LANEWAY_KV_TYPE", value_name = "TYPE")]
    pub kv_type: Option<String>,

    /// Read every question of a decision on a canvas of its own, so that none depends on what else is asked
    #[arg(long, env = "LANEWAY_ISOLATED_READS")]
    pub isolated_reads: bool,

    /// Threads of the cpu device [default: all cores]
    #[arg(long, env = "LANEWAY_THREADS", value_name = "N")]
    pub threads: Option<usize>,
}

#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Answers that are generated at the same time [default: 4, and 1 for a model that revises a canvas]
    #[arg(long, env = "LANEWAY_LANES", value_name = "N")]
    pub lanes: Option<usize>,

    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, env = "LANEWAY_HOST")]
    pub host: Option<String>,

    /// Port to listen on, 0 for any that is free [default: 8000]
    #[arg(long, short, env = "LANEWAY_PORT")]
    pub port: Option<u16>,

    /// Key that clients must send as a bearer token
    #[arg(long, env = "LANEWAY_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,

    /// Key for the routes under /admin/ and /debug/, which are closed without it
    #[arg(long, env = "LANEWAY_ADMIN_KEY", hide_env_values = true, value_name = "KEY")]
    pub admin_key: Option<String>,

    /// Origins whose pages may call the API, separated by commas; * allows all [default: none]
    #[arg(long, env = "LANEWAY_CORS", value_name = "ORIGIN", value_delimiter = ',')]
    pub cors: Option<Vec<String>>,

    /// Requests that may wait for a lane before more are refused [default: 8 for each lane, 16 to 256]
    #[arg(long, env = "LANEWAY_QUEUE", value_name = "N")]
    pub queue: Option<usize>,

    /// Seconds that a request may wait for a lane before it is refused [default: it waits]
    #[arg(long, env = "LANEWAY_QUEUE_TIMEOUT", value_name = "SECONDS")]
    pub queue_timeout: Option<u64>,

    /// Folder where long sessions are stored, so that they survive the server; their text is in it
    /// [default: none are stored]
    #[arg(long, env = "LANEWAY_CHECKPOINTS", value_name = "DIR")]
    pub checkpoints: Option<PathBuf>,

    /// Bytes that stored sessions may take, with K, M or G for units of 1024 [default: 4G]
    #[arg(long, env = "LANEWAY_CHECKPOINT_BUDGET", value_name = "BYTES")]
    pub checkpoint_budget: Option<String>,

    /// Sessions of fewer tokens are not stored [default: 512]
    #[arg(long, env = "LANEWAY_CHECKPOINT_MIN", value_name = "TOKENS")]
    pub checkpoint_min: Option<usize>,

    /// exact, or cachegen: smaller, and answers may differ a little after a restore [default: exact]
    #[arg(long, env = "LANEWAY_CHECKPOINT_CODEC", value_name = "CODEC")]
    pub checkpoint_codec: Option<String>,

    /// Seconds for which requests are still taken after a signal to end, while /health says 503 [default: 0]
    #[arg(long, env = "LANEWAY_DRAIN_TIME", value_name = "SECONDS")]
    pub drain_time: Option<u64>,

    /// Spans of requests to collect: off, summary, or debug with the phases of every answer
    /// [default: summary with an endpoint, else off]
    #[arg(long, env = "LANEWAY_TELEMETRY", value_name = "LEVEL")]
    pub telemetry: Option<String>,

    /// OTLP collector that takes the spans, for example http://127.0.0.1:4318, or stderr
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub telemetry_endpoint: Option<String>,

    /// Lanes that stay ready between answers; others are counted as free [default: all]
    #[arg(long, env = "LANEWAY_IDLE_LANES", value_name = "N")]
    pub idle_lanes: Option<usize>,

    /// Generate one answer at a time, whatever the number of lanes
    #[arg(long, env = "LANEWAY_SAFE_MODE", value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub safe_mode: Option<bool>,
}

#[derive(Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Instructions that precede the conversation
    #[arg(long)]
    pub system: Option<String>,

    /// Randomness of the answers, 0 to always take the likeliest token [default: what suits the model]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,

    /// Tokens that an answer may have [default: what the context leaves]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,

    /// Folder that keeps the conversation, which goes on there the next time; its text is in it
    #[arg(long, value_name = "DIR")]
    pub session: Option<PathBuf>,

    /// Makes the answers repeatable
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Args)]
pub struct PullArgs {
    /// Names from `laneway models`, or hf:OWNER/REPO/FILE
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

#[derive(Args)]
pub struct InspectArgs {
    /// A model as `--model` takes it
    #[arg(value_name = "MODEL")]
    pub model: String,
}

#[derive(Args)]
pub struct ReadArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// File with the text the questions are about, - for standard input
    #[arg(long, value_name = "FILE")]
    pub state: PathBuf,

    /// Read the text as JSON, of which the model then sees the values
    #[arg(long)]
    pub json_state: bool,

    /// JSON file with the questions by id, as in the body of POST /v1/systemone, or with a whole such body
    #[arg(long, value_name = "FILE")]
    pub questions: PathBuf,

    /// Print what POST /v1/systemone would answer
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Token ids of the prompt, separated by commas
    #[arg(long, required = true, value_delimiter = ',', value_name = "1,2,3")]
    pub ids: Vec<u32>,

    /// Token ids of a canvas after the prompt, of which one denoising pass is made
    #[arg(long, value_delimiter = ',', value_name = "1,2,3")]
    pub canvas: Option<Vec<u32>>,

    /// A file with `logits` of the same canvas, which the pass is conditioned on
    #[arg(long, value_name = "FILE", requires = "canvas")]
    pub previous_logits: Option<PathBuf>,

    /// Divides the previous logits
    #[arg(long, value_name = "T", default_value_t = 1.0, requires = "previous_logits")]
    pub temperature: f32,

    /// File to write, with one tensor `logits` [T, V] of f32
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Tokens of the prompt
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt: u32,

    /// Tokens to generate; a canvas model makes one pass less over its canvas
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub generate: u32,

    /// Measure decoding of so many sequences at once instead, each with its own prompt of --prompt tokens
    #[arg(
        long,
        value_name = "1,2,4,8",
        value_delimiter = ',',
        conflicts_with_all = ["read", "checkpoint"],
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub lanes: Option<Vec<u16>>,

    /// Measure reads instead: 1 and 12 questions about a state of --prompt tokens, cold and repeated
    #[arg(long)]
    pub read: bool,

    /// Measure storing and restoring a session of --prompt tokens instead, and decoding --generate tokens meanwhile
    #[arg(long, conflicts_with = "read")]
    pub checkpoint: bool,

    /// Repetitions, of which the median counts
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
