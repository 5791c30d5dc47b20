//! `laneway chat`: a conversation in the terminal, on an engine in this process.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use laneway_api::{TextDecoder, TurnHandle, TurnRequest};
use laneway_session::{Event, Finish, Sampling, SamplingOptions, Source, TurnError};
use laneway_text::{ChatMessage, Detokenizer, EncodeOptions, RenderOptions};

use crate::args::ChatArgs;
use crate::chat_io::{Input, Line};
use crate::conversation::{Conversation, Said, Talk};
use crate::host::{self, Host};
use crate::load::{TextSide, text_side};
use crate::output::{one_line, print};
use crate::settings::{ModelSettings, Usage};
use crate::tokenizer::Origin;
use crate::usual::UsualSampling;

const HELP: &str = "\
/reset          forget the conversation
/system TEXT    set the instructions and forget the conversation; without TEXT, none
/help           this
Ctrl-C          stop the answer
Ctrl-D          end
";

struct Chat<'a> {
    host: Host,
    text: TextSide,
    args: &'a ChatArgs,
    sampling: SamplingOptions,
    system: Option<String>,
    /// Messages after the instructions.
    messages: Vec<ChatMessage>,
    kept: Option<Conversation>,
}

/// Talks until the input ends.
pub fn run(settings: &ModelSettings, args: &ChatArgs) -> Result<()> {
    if args.max_tokens == Some(0) {
        return Err(Usage("--max-tokens must be at least 1".into()).into());
    }
    let text = text_side(settings)?;
    let sampling = sampling(args, text.usual)?;
    if text.origin == Origin::Ids {
        return Err(anyhow!("{} has no tokenizer, so it cannot be talked to", text.name));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let host = Host::start(settings, &text, host::service(1))?;
    eprintln!("loading {}", text.name);
    runtime.block_on(host.worker.preload(host.request.clone())).map_err(|reason| anyhow!("{reason}"))?;
    let opened = host.opened.try_recv();
    let device = opened.map_or_else(|_| String::new(), |opened| format!(" on {}", opened.device.name));
    eprintln!("{}{device}, context {}. /help for help, Ctrl-D to end", text.name, text.context_length);
    if text.template.is_none() {
        eprintln!("This model knows no conversation: it goes on with the text you give it.");
    }
    let kept = args.session.as_deref().map(|folder| Conversation::open(folder, &text, &host)).transpose()?;
    let Talk { system, messages } = kept.as_ref().map_or(Ok(Talk::default()), Conversation::talk)?;
    let messages: Vec<ChatMessage> = messages.iter().map(Said::message).collect();
    if !messages.is_empty() {
        eprintln!("going on with a conversation of {} messages; /reset starts a new one", messages.len());
    }
    let system = args.system.clone().or(system);
    let mut chat = Chat { host, text, args, sampling, system, messages, kept };
    let mut input = Input::open()?;
    while let Line::Text(line) = input.next()? {
        match line.trim() {
            "" => {}
            "/help" => eprint!("{HELP}"),
            "/reset" => chat.messages.clear(),
            command if command == "/system" || command.starts_with("/system ") => {
                let instructions = command["/system".len()..].trim();
                chat.system = (!instructions.is_empty()).then(|| instructions.to_owned());
                chat.messages.clear();
            }
            "/exit" | "/quit" => break,
            command if input.is_terminal() && command.starts_with('/') && !command.contains(' ') => {
                eprint!("there is no {command}\n{HELP}");
            }
            _ => runtime.block_on(chat.answer(&line, input.is_terminal()))?,
        }
        chat.write()?;
    }
    if let Some(kept) = &chat.kept {
        runtime.block_on(kept.end());
    }
    chat.host.worker.shutdown();
    Ok(())
}

impl Chat<'_> {
    /// Keeps what was said, where that was asked for.
    fn write(&self) -> Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let messages = self.messages.iter().map(Said::from).collect();
        kept.write(&Talk { system: self.system.clone(), messages })
    }

    /// Answers one line; what the user can mend is said and forgotten, a lost engine is an error.
    async fn answer(&mut self, line: &str, is_terminal: bool) -> Result<()> {
        self.messages.push(ChatMessage::new("user", line));
        let prompt = match self.prompt(line) {
            Ok(prompt) => prompt,
            Err(error) => {
                self.messages.pop();
                eprintln!("{}", one_line(&error));
                return Ok(());
            }
        };
        let continues = self.text.template.is_none();
        let detokenizer = if continues { Detokenizer::continuing(true) } else { Detokenizer::new(true) };
        let mut decoder = TextDecoder::new(self.text.tokenizer.clone(), detokenizer, Vec::new());
        if !continues {
            decoder = decoder.with_channels().after(&prompt);
        }
        if let Some(kept) = &self.kept {
            kept.prepare(&prompt).await;
        }
        // Each answer of a conversation is drawn anew.
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        let mut handle = self.host.worker.submit(TurnRequest {
            request: self.host.request.clone(),
            prompt,
            max_tokens: self.args.max_tokens,
            sampling: Sampling::new(self.sampling.clone())?,
            decoder: Box::new(decoder),
            deadline_ms: None,
            source: Source::LocalChat,
        })?;
        if continues {
            print(line)?;
        }
        let (answer, end) = show(&mut handle, is_terminal).await?;
        print("\n")?;
        match end {
            Ok(finish) if is_terminal => eprintln!("\x1b[2m{}\x1b[0m", figures(&finish)),
            Ok(_) => {}
            Err(TurnError::Cancelled) => eprintln!("(stopped)"),
            Err(TurnError::ContextExceeded { prompt, limit }) => {
                self.messages.pop();
                eprintln!("the conversation has {prompt} tokens, the context holds {limit}; /reset starts a new one");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.messages.push(ChatMessage::new("assistant", answer));
        Ok(())
    }

    fn prompt(&self, line: &str) -> Result<Vec<u32>> {
        let Some(template) = &self.text.template else {
            let options = EncodeOptions { add_bos: true, parse_special: false };
            return Ok(self.text.tokenizer.encode(line, options));
        };
        let system = self.system.iter().map(|text| ChatMessage::new("system", text.as_str()));
        let messages: Vec<_> = system.chain(self.messages.iter().cloned()).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let options = RenderOptions {
            add_generation_prompt: true,
            now_unix_s: now.and_then(|now| i64::try_from(now.as_secs()).ok()),
            ..RenderOptions::default()
        };
        Ok(self.text.tokenizer.encode_chat(template, &messages, &options)?)
    }
}

/// Prints an answer while it is made; in a terminal Ctrl-C stops it.
async fn show(handle: &mut TurnHandle, is_terminal: bool) -> Result<(String, Result<Finish, TurnError>)> {
    let mut answer = String::new();
    loop {
        let interrupt = async {
            // Elsewhere the signal ends the program as usual.
            if !is_terminal || tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            event = handle.next() => match event {
                Some(Event::Chunk { text, reasoning: true, .. }) if is_terminal => {
                    print(&format!("\x1b[2m{text}\x1b[0m"))?;
                }
                Some(Event::Chunk { reasoning: true, .. }) => {}
                Some(Event::Chunk { text, .. }) => {
                    print(&text)?;
                    answer += &text;
                }
                Some(Event::Finished(end)) => return Ok((answer, end)),
                Some(_) => {}
                None => return Err(anyhow!("the engine has stopped")),
            },
            () = interrupt => handle.cancel(),
        }
        std::io::stdout().flush()?;
    }
}

fn figures(finish: &Finish) -> String {
    // The first token belongs to the prompt's time.
    let decoded = finish.completion_tokens.saturating_sub(1) as f64;
    let speed = if finish.decode_ms > 0 { decoded * 1000.0 / finish.decode_ms as f64 } else { 0.0 };
    format!(
        "{} tokens, {speed:.1} tokens/s, prompt of {} in {:.1} s",
        finish.completion_tokens,
        finish.prompt_tokens,
        finish.prefill_ms as f64 / 1000.0
    )
}

fn sampling(args: &ChatArgs, usual: UsualSampling) -> Result<SamplingOptions> {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let options = SamplingOptions {
        temperature: args.temperature.unwrap_or(usual.temperature),
        top_p: usual.top_p,
        top_k: usual.top_k,
        seed: args.seed.unwrap_or_else(clock),
        ..SamplingOptions::default()
    };
    Sampling::new(options.clone()).map_err(|error| Usage(error.to_string()))?;
    Ok(options)
}
