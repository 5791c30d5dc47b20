//! `laneway`: serves, chats with, fetches, inspects and measures local language models.
#![deny(unsafe_code)]

mod args;
mod bench;
mod bench_checkpoint;
mod bench_lanes;
mod bench_read;
mod cache;
mod catalogue;
mod chat;
mod chat_io;
mod conversation;
mod decisions;
mod devices;
mod download;
mod host;
mod inspect;
mod load;
mod logits;
mod models;
mod output;
mod pull;
mod read;
mod serve;
mod settings;
mod telemetry;
mod tokenizer;
mod usage;
mod usual;

use std::process::ExitCode;

use anyhow::Result;
use args::{Cli, Command};
use clap::Parser;
use settings::{Config, Usage};

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::log_to_stderr(cli.log.as_deref());
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", output::one_line(&error));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let config = Config::read(cli.config.as_deref())?;
    match cli.command {
        Command::Serve(args) => serve::run(&args.settings(&config)?),
        Command::Chat(args) => chat::run(&args.settings(&config)?, &args),
        Command::Pull(args) => pull::run(&args.names),
        Command::Models => models::run(),
        Command::Devices => devices::run(),
        Command::Inspect(args) => inspect::run(&args.model),
        Command::Read(args) => read::run(&args.settings(&config)?, &args),
        Command::Logits(args) => logits::run(&args.model.settings(&config)?, &args),
        Command::Bench(args) if args.read => bench_read::run(&args.model.settings(&config)?, &args),
        Command::Bench(args) if args.checkpoint => bench_checkpoint::run(&args.model.settings(&config)?, &args),
        Command::Bench(args) if args.lanes.is_some() => bench_lanes::run(&args.model.settings(&config)?, &args),
        Command::Bench(args) => bench::run(&args.model.settings(&config)?, &args),
    }
}
