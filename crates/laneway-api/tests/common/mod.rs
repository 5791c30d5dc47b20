//! A server on a real socket over a scripted service.
#![allow(dead_code, unused_imports)]

pub mod deciding;
mod engine;
mod script;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use laneway_api::{ApiOptions, ApiState, ServeOptions, TextModel, TurnService, router, serve};
use laneway_protocol::SamplingOptions;
use laneway_protocol::models::ModelInfo;
use laneway_text::{ChatTemplate, Tokenizer, TokenizerSource};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use engine::{Gate, Setup, Watched, deciding_tokenizer, settled};
pub use script::{Script, ScriptService, wait_until};

pub const CONTEXT: usize = 512;
const END: &str = "<|im_end|>";
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}\
    {% endif %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
pub const WORDS: [&str; 10] = [" Hello", "!", " How", " are", " you", "?", " caf", "END", " stop", " tea"];

/// Bytes, then [`WORDS`], then the end of a turn.
pub fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>")).collect();
    tokens.extend(WORDS.map(|word| word.replace(' ', "▁")));
    tokens.push(END.into());
    let mut types = vec![6; 256];
    types.extend([1; WORDS.len()]);
    types.push(3);
    Tokenizer::new(TokenizerSource {
        model: "llama".into(),
        // Worse than single bytes, so that prompts have one token a byte.
        scores: Some(vec![-1e9; tokens.len()]),
        eos: Some(tokens.len() as u32 - 1),
        tokens,
        token_types: Some(types),
        chat_template: Some(TEMPLATE.into()),
        ..Default::default()
    })
    .expect("the vocabulary is valid")
}

/// The id of one of [`WORDS`].
pub fn word(text: &str) -> u32 {
    256 + WORDS.iter().position(|word| *word == text).expect("a known word") as u32
}

pub fn end() -> u32 {
    256 + WORDS.len() as u32
}

pub fn model(service: Arc<dyn TurnService>) -> TextModel {
    model_with(service, tokenizer())
}

pub fn model_with(service: Arc<dyn TurnService>, tokenizer: Tokenizer) -> TextModel {
    TextModel {
        info: ModelInfo {
            id: "tiny".into(),
            description: "a scripted model".into(),
            created: 1_700_000_000,
            context_length: CONTEXT,
        },
        aliases: vec!["tiny-alias".into(), "hf:some/tiny/model.gguf".into()],
        fingerprint: "fp_test".into(),
        template: Some(ChatTemplate::of_tokenizer(&tokenizer).expect("the template is valid")),
        tokenizer: Arc::new(tokenizer),
        page_positions: 16,
        defaults: SamplingOptions::default(),
        denoising: None,
        reader: Err("it only plays a script".into()),
        service,
        sessions: None,
    }
}

pub struct Server<S = ScriptService> {
    pub address: SocketAddr,
    pub service: Arc<S>,
    pub state: Arc<ApiState>,
    pub ended: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
}

impl Server {
    pub async fn start(script: Script) -> Self {
        Self::start_with(script, ApiOptions::default(), ServeOptions::default()).await
    }

    pub async fn start_with(script: Script, options: ApiOptions, serving: ServeOptions) -> Self {
        let service = Arc::new(ScriptService::new(script));
        Self::over(model(service.clone()), service, options, serving).await
    }
}

impl<S> Server<S> {
    pub async fn over(model: TextModel, service: Arc<S>, options: ApiOptions, serving: ServeOptions) -> Self {
        let state = Arc::new(ApiState::new(vec![model], options));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (stop, stopped) = oneshot::channel();
        let pages = Router::new().route("/panic", axum::routing::get(panics));
        let running = serve(listener, router(state.clone(), pages), state.clone(), serving, async {
            // A dropped sender means that the test is over.
            let _ = stopped.await;
        });
        let ended = tokio::spawn(running);
        Self { address, service, state, ended, stop: Some(stop) }
    }

    pub fn shut_down(&mut self) {
        drop(self.stop.take());
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the server listens")
    }

    /// Sends a request as it is and reads to the end of the connection.
    pub async fn raw(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect().await;
        stream.write_all(request).await.expect("the server reads");
        Reply::read(&mut stream).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.raw(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await
    }

    pub async fn post(&self, path: &str, body: &str) -> Reply {
        self.raw(post(path, body).as_bytes()).await
    }

    /// Posts bytes with these header lines, each with its line end.
    pub async fn post_with(&self, path: &str, lines: &str, body: &[u8]) -> Reply {
        self.raw(&post_with(path, lines, body)).await
    }

    /// Sends a request and reads nothing of its answer.
    pub async fn send(&self, request: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.expect("the server reads");
        stream
    }

    pub async fn chat(&self, members: &str) -> Reply {
        self.post("/v1/chat/completions", &chat_body(members)).await
    }
}

async fn panics() {
    panic!("as the test wants");
}

pub fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

pub fn post_with(path: &str, lines: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {length}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A short chat; `members` begins with a comma unless it is empty.
pub fn chat_body(members: &str) -> String {
    format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"hi"}}]{members}}}"#)
}

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub async fn read(stream: &mut TcpStream) -> Self {
        Self::read_rest(stream, Vec::new()).await
    }

    /// The same when some of it was read already.
    pub async fn read_rest(stream: &mut TcpStream, mut bytes: Vec<u8>) -> Self {
        tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes))
            .await
            .expect("the answer ends")
            .expect("the answer is readable");
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).expect("answers are UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        let head = head.to_ascii_lowercase();
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { unchunk(body) } else { body.to_owned() };
        Self { status, head, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().filter_map(|line| line.split_once(": ")).find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The data of server-sent events, each parsed but for the last.
    pub fn events(&self) -> Vec<Value> {
        let mut data: Vec<_> = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter().map(|data| serde_json::from_str(data).expect("events are JSON")).collect()
    }

    /// The body without what differs from run to run.
    pub fn stable(&self) -> String {
        let mut body = self.body.clone();
        for (key, value) in [("\"id\":\"", "ID"), ("\"created\":", "0")] {
            let mut parts = body.split(key);
            let mut out = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let rest = part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
                out += &format!("{key}{value}{rest}");
            }
            body = out;
        }
        body
    }
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk has a size");
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    whole
}
