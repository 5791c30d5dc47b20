//! `laneway read`: decisions without a server.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use laneway_protocol::systemone::{Answer, Answers, DecisionRequest, ReadUsage, SystemOneResponse};
use serde_json::{Map, Value};

use crate::args::ReadArgs;
use crate::decisions::{Decided, decide};
use crate::host::{self, Host};
use crate::load::text_side;
use crate::output::{print, printable, table};
use crate::settings::{ModelSettings, Usage};

/// Answers the questions once and prints the answers.
pub fn run(settings: &ModelSettings, args: &ReadArgs) -> Result<()> {
    let request = request(args)?;
    let text = text_side(settings)?;
    let host = Host::start(settings, &text, host::service(256))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Decided { answers, usage } = runtime.block_on(decide(&host, &text, &request))?;
    host.worker.shutdown();
    if args.json {
        let response = SystemOneResponse::new(&text.name, answers, usage);
        return print(&format!("{}\n", serde_json::to_string(&response)?));
    }
    print(&shown(&answers, &usage))
}

/// The files' content as a body of `POST /v1/systemone`.
fn request(args: &ReadArgs) -> Result<DecisionRequest> {
    if args.state == Path::new("-") && args.questions == Path::new("-") {
        return Err(Usage("state and questions cannot both come from standard input".to_owned()).into());
    }
    let questions: Value = json(&args.questions)?;
    let state = match args.json_state {
        true => json(&args.state)?,
        false => Value::String(text(&args.state)?),
    };
    let Value::Object(questions) = questions else {
        return Err(Usage(format!("{} holds no JSON object", args.questions.display())).into());
    };
    let is_body = questions.get("questions").is_some_and(|inner| inner.get("type").is_none() && inner.is_object());
    let mut body = if is_body { questions } else { Map::from_iter([("questions".to_owned(), questions.into())]) };
    body.insert("state".to_owned(), state);
    let refused = |error| Usage(format!("{}: {error}", args.questions.display()));
    Ok(DecisionRequest::from_json(Value::Object(body).to_string().as_bytes()).map_err(refused)?)
}

/// Longer states fit no context.
const MOST_BYTES: u64 = 64 << 20;

fn text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let named = || format!("cannot read {}", path.display());
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(MOST_BYTES + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).with_context(named)?.take(MOST_BYTES + 1).read_to_string(&mut text)
    };
    read.with_context(named)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(Usage(format!("{} is over {MOST_BYTES} bytes long", path.display())).into());
    }
    Ok(text)
}

fn json(path: &Path) -> Result<Value> {
    let text = text(path)?;
    serde_json::from_str(&text).map_err(|error| anyhow!(Usage(format!("{}: {error}", path.display()))))
}

fn shown(answers: &Answers, usage: &ReadUsage) -> String {
    let mut rows = vec![["question", "answer", "confidence", "probabilities"].map(str::to_owned).to_vec()];
    for (id, answer) in answers.iter() {
        let probabilities = answer.reading().distribution().probabilities();
        let percent = |p: f64| format!("{:.1} %", 100.0 * p);
        let row = match answer {
            Answer::Noul(noul) => {
                let said = if noul.yes() >= 0.5 { "yes" } else { "no" };
                [said.to_owned(), String::new(), format!("yes {}", percent(noul.yes()))]
            }
            Answer::Choice(choice) => {
                let named = choice.names().zip(probabilities).map(|(name, p)| format!("{name} {}", percent(*p)));
                let all: Vec<String> = named.collect();
                [choice.name().to_owned(), percent(choice.confidence()), all.join(", ")]
            }
            Answer::Score(score) => {
                let levels = probabilities.iter().enumerate().map(|(level, p)| format!("{level} {}", percent(*p)));
                [format!("{:.2}", score.score()), percent(score.confidence()), levels.collect::<Vec<_>>().join(", ")]
            }
        };
        let id = printable(id);
        rows.push(std::iter::once(id).chain(row.iter().map(|text| printable(text))).collect());
    }
    let tokens = format!("{} tokens read, {} computed", usage.input_tokens, usage.computed_tokens);
    table(&rows, &[]) + &tokens + "\n"
}
