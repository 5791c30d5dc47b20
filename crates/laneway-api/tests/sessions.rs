//! Sessions that outlive their turn: stored, restored, moved, and what operators see of them.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{Gate, Reply, Server, Setup, Watched, post, settled, wait_until};
use laneway_api::{ApiOptions, Health, StoreCodec, TurnService};
use laneway_checkpoint::{ByteStore, Checkpoint, Entry, MemoryStore, StoreFuture};
use laneway_session::EngineLimits;
use laneway_session::fake::{VOCABULARY, continuation};
use laneway_text::{Tokenizer, TokenizerSource};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMITS: EngineLimits = EngineLimits {
    lanes: 2,
    pages: 256,
    page_positions: 16,
    context_length: 2048,
    max_rows: 64,
    depth: 1,
    branches: 0,
    row_bytes: 8,
    canvas: None,
};

fn tokenizer() -> Tokenizer {
    let mut tokens = vec!["<|im_end|>".to_owned()];
    tokens.extend((1..VOCABULARY).map(|word| format!("▁w{word}")));
    let words = tokens.len();
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    let mut types = vec![1; words];
    types[0] = 3;
    types.extend([6; 256]);
    Tokenizer::new(TokenizerSource {
        model: "llama".into(),
        scores: Some(vec![0.0; tokens.len()]),
        eos: Some(0),
        tokens,
        token_types: Some(types),
        chat_template: Some("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:".into()),
        ..Default::default()
    })
    .expect("the vocabulary is valid")
}

fn setup(store: Option<Arc<dyn ByteStore>>) -> Setup {
    let mut setup = Setup::new(LIMITS);
    setup.store = store.map(|store| (store, StoreCodec::Exact));
    setup.options = ApiOptions { admin_key: Some("key".into()), ..ApiOptions::default() };
    setup
}

async fn start(setup: &Setup) -> Server<Watched> {
    setup.start(tokenizer()).await
}

/// A server whose model is loaded, with next to nothing in its cache.
async fn started(setup: &Setup) -> Server<Watched> {
    let server = start(setup).await;
    answer(&server, &[1, 2], 1).await;
    server
}

fn prompt(count: u32) -> Vec<u32> {
    (0..count).map(|n| n % 60 + 1).collect()
}

fn completion(prompt: &[u32], max_tokens: usize) -> String {
    json!({ "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "seed": 1 }).to_string()
}

/// Text and cached tokens of an answer.
async fn answer(server: &Server<Watched>, prompt: &[u32], max_tokens: usize) -> (String, u64) {
    let reply = server.post("/v1/completions", &completion(prompt, max_tokens)).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let body = reply.json();
    let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (body["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

fn expected(prompt: &[u32], max_tokens: usize) -> String {
    tokenizer().decode(&continuation(1, prompt, max_tokens), true)
}

async fn admin(server: &Server<Watched>, method: &str, path: &str) -> Reply {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    server.raw(request.as_bytes()).await
}

/// Status and body of an answer that is not text.
async fn download(server: &Server<Watched>, path: &str) -> (u16, Vec<u8>) {
    let mut stream = server.connect().await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), bytes[end + 4..].to_vec())
}

async fn upload(server: &Server<Watched>, path: &str, body: &[u8]) -> Reply {
    server.post_with(path, "authorization: Bearer key\r\ncontent-type: application/octet-stream\r\n", body).await
}

async fn stored(server: &Server<Watched>) -> Vec<Value> {
    admin(server, "GET", "/admin/checkpoints").await.json()["data"].as_array().unwrap().clone()
}

async fn wait_for_stored(server: &Server<Watched>, tokens: u64) {
    for _ in 0..500 {
        if stored(server).await.iter().any(|listed| listed["tokens"] == tokens) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{tokens} tokens were not stored: {:?}", stored(server).await);
}

async fn metric(server: &Server<Watched>, name: &str) -> u64 {
    let text = server.get("/metrics").await.body;
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap_or_else(|| panic!("{name}"));
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

async fn only_session(server: &Server<Watched>) -> String {
    let listed = admin(server, "GET", "/admin/sessions").await.json();
    let data = listed["data"].as_array().unwrap();
    assert_eq!(data.len(), 1, "{listed}");
    data[0]["id"].as_str().unwrap().to_owned()
}

/// G40, G57: what one process stored serves the next one, which computes only the rest, and answers the same.
#[tokio::test]
async fn a_restarted_server_resumes_what_was_stored() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(600);
    {
        let server = start(&setup(Some(store.clone()))).await;
        assert_eq!(answer(&server, &prompt, 8).await, (expected(&prompt, 8), 0));
        wait_for_stored(&server, 512).await;
    }
    let server = started(&setup(Some(store))).await;
    assert_eq!(answer(&server, &prompt, 8).await, (expected(&prompt, 8), 512));
    assert_eq!(metric(&server, "laneway_checkpoint_hits_total").await, 1);
    // Live goes before disk.
    assert!(answer(&server, &prompt, 8).await.1 > 512);
    assert_eq!(metric(&server, "laneway_checkpoint_hits_total").await, 1);
}

/// L97: pages of another model or configuration are never taken for this one's.
#[tokio::test]
async fn another_models_checkpoints_are_not_found() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(600);
    {
        let server = start(&setup(Some(store.clone()))).await;
        answer(&server, &prompt, 8).await;
        wait_for_stored(&server, 512).await;
    }
    let mut other = setup(Some(store));
    other.positions = "otherwise".to_owned();
    let server = started(&other).await;
    assert_eq!(answer(&server, &prompt, 8).await, (expected(&prompt, 8), 0));
}

/// G63: a damaged object is set aside, and the request goes on without it.
#[tokio::test]
async fn a_damaged_page_is_quarantined_and_the_request_is_answered_cold() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(600);
    {
        let server = start(&setup(Some(store.clone()))).await;
        answer(&server, &prompt, 8).await;
        wait_for_stored(&server, 512).await;
    }
    let server = started(&setup(Some(store.clone()))).await;
    let key = store.list("pages/").await.unwrap()[0].key.clone();
    let mut body = store.get(&key).await.unwrap().unwrap();
    body[7] ^= 1;
    store.put(&key, &[&body]).await.unwrap();
    assert_eq!(answer(&server, &prompt, 8).await, (expected(&prompt, 8), 0));
    let aside = store.list("quarantine/").await.unwrap();
    assert!(aside.iter().any(|entry| entry.key.ends_with(key.rsplit('/').next().unwrap())), "{aside:?}");
    assert_eq!(metric(&server, "laneway_checkpoint_misses_total").await, 1);
}

/// C23: the tokens of a growing session are written once, and a repeated one not at all.
#[tokio::test]
async fn a_growing_session_writes_each_token_once() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let server = start(&setup(Some(store))).await;
    answer(&server, &prompt(520), 2).await;
    wait_for_stored(&server, 512).await;
    let first = metric(&server, "laneway_checkpoint_written_bytes_total").await;
    answer(&server, &prompt(520), 2).await;
    answer(&server, &prompt(1030), 2).await;
    wait_for_stored(&server, 1024).await;
    let second = metric(&server, "laneway_checkpoint_written_bytes_total").await;
    // Pages of 512 new tokens, and a manifest that lists all of them.
    let (pages, manifest) = (512 * 8, 1024 * 4 + 4 * 160 + 1024);
    assert!(second - first < pages + manifest, "{first} then {second}");
    assert_eq!(stored(&server).await.len(), 1);
}

/// L83: a session goes to another machine as bytes and is gone on with there.
#[tokio::test]
async fn an_exported_session_resumes_on_another_server() {
    let prompt = prompt(100);
    let from = start(&setup(None)).await;
    answer(&from, &prompt, 8).await;
    let id = only_session(&from).await;
    let probed = admin(&from, "GET", &format!("/admin/sessions/{id}")).await.json();
    assert_eq!(probed["pages"].as_array().unwrap().len(), 1);
    assert!(probed.get("token_ids").is_none());
    let (status, bytes) = download(&from, &format!("/admin/sessions/{id}/export")).await;
    assert_eq!(status, 200);

    let to = started(&setup(None)).await;
    let reply = upload(&to, "/admin/sessions/import", &bytes).await;
    assert_eq!(reply.status, 201, "{}", reply.body);
    assert_eq!(reply.json()["tokens"], probed["tokens"]);
    let listed = admin(&to, "GET", "/admin/sessions").await.json();
    assert!(listed["data"].as_array().unwrap().iter().any(|session| session["id"] == id), "{listed}");
    let (text, cached) = answer(&to, &prompt, 8).await;
    assert_eq!(text, expected(&prompt, 8));
    assert!(cached >= 99, "{cached}");
}

/// L78: everything is checked before anything is written.
#[tokio::test]
async fn bad_and_foreign_imports_are_refused_and_leave_nothing() {
    let from = start(&setup(None)).await;
    answer(&from, &prompt(100), 8).await;
    let id = only_session(&from).await;
    let (_, bytes) = download(&from, &format!("/admin/sessions/{id}/export")).await;
    let mut foreign = setup(None);
    foreign.positions = "otherwise".to_owned();
    let to = start(&foreign).await;
    // The model is loaded by its first turn.
    answer(&to, &[1, 2], 1).await;
    let check = async |path: &str, body: &[u8], status: u16| {
        let reply = upload(&to, path, body).await;
        assert_eq!(reply.status, status, "{}", reply.body);
        assert!(reply.json()["error"]["message"].is_string());
    };
    check("/admin/sessions/import", &bytes, 409).await;
    check("/admin/sessions/import", &bytes[..bytes.len() - 1], 400).await;
    check("/admin/sessions/import", &[], 400).await;
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    check("/admin/sessions/import", &flipped, 400).await;
    check("/admin/sessions/import?model=none", &bytes, 404).await;
    let listed = admin(&to, "GET", "/admin/sessions").await.json();
    assert!(listed["data"].as_array().unwrap().iter().all(|session| session["tokens"].as_u64() < Some(10)));

    let same = start(&setup(None)).await;
    answer(&same, &[1, 2], 1).await;
    let elsewhere = upload(&same, "/admin/sessions/import?namespace=7", &bytes).await;
    assert_eq!(elsewhere.status, 409, "{}", elsewhere.body);
}

/// L92: what went through a lossy codec never passes for what an engine computed.
#[tokio::test]
async fn lossy_and_exact_sessions_stay_apart() {
    let exact = start(&setup(None)).await;
    answer(&exact, &prompt(600), 8).await;
    let id = only_session(&exact).await;
    let (_, whole) = download(&exact, &format!("/admin/sessions/{id}/export")).await;
    let (status, archived) = download(&exact, &format!("/admin/sessions/{id}/export?codec=cachegen")).await;
    assert_eq!(status, 200);
    assert_ne!(Checkpoint::decode(&whole).unwrap().identity, Checkpoint::decode(&archived).unwrap().identity);
    let refused = upload(&exact, "/admin/sessions/import", &archived).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (409, &json!("lossy_checkpoint")));

    let mut setup = setup(None);
    setup.store = Some((Arc::new(MemoryStore::default()), StoreCodec::CacheGen));
    let lossy = started(&setup).await;
    assert_eq!(upload(&lossy, "/admin/sessions/import", &archived).await.status, 201);
    assert_eq!(upload(&lossy, "/admin/sessions/import", &whole).await.status, 201);
    let listed = admin(&lossy, "GET", "/admin/sessions").await.json();
    let id = listed["data"].as_array().unwrap().iter().find(|session| session["tokens"].as_u64() > Some(500)).unwrap();
    let path = format!("/admin/sessions/{}/export", id["id"].as_str().unwrap());
    assert_eq!(download(&lossy, &path).await.0, 200);
    assert_eq!(download(&lossy, &format!("{path}?codec=exact")).await.0, 409);
    assert_eq!(download(&lossy, &format!("{path}?codec=zip")).await.0, 400);
}

/// A prompt that comes while the model is being loaded finds what is stored all the same.
#[tokio::test]
async fn a_prompt_waits_for_the_model_before_it_is_restored() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(600);
    {
        let server = start(&setup(Some(store.clone()))).await;
        answer(&server, &prompt, 8).await;
        wait_for_stored(&server, 512).await;
    }
    let mut setup = setup(Some(store));
    setup.loads = Gate::of(0);
    let server = start(&setup).await;
    let short = server.send(&post("/v1/completions", &completion(&[1, 2], 1))).await;
    wait_until(|| server.service.health() == Health::Loading).await;
    let mut long = server.send(&post("/v1/completions", &completion(&prompt, 8))).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    setup.loads.open();
    let reply = Reply::read(&mut long).await.json();
    assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 512);
    drop(short);
}

/// C18: nobody's session is not read back.
#[tokio::test]
async fn a_client_that_leaves_before_its_restore_leaves_nothing_behind() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(600);
    {
        let server = start(&setup(Some(store.clone()))).await;
        answer(&server, &prompt, 8).await;
        wait_for_stored(&server, 512).await;
    }
    let mut setup = setup(Some(store));
    setup.loads = Gate::of(0);
    let server = start(&setup).await;
    let short = server.send(&post("/v1/completions", &completion(&[1, 2], 1))).await;
    wait_until(|| server.service.health() == Health::Loading).await;
    drop(server.send(&post("/v1/completions", &completion(&prompt, 8))).await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    setup.loads.open();
    wait_until(|| server.service.health() == Health::Ready).await;
    settled(&server).await;
    assert_eq!(metric(&server, "laneway_checkpoint_hits_total").await, 0);
    drop(short);
    // The next one gets it.
    assert_eq!(answer(&server, &prompt, 8).await, (expected(&prompt, 8), 512));
}

/// A store whose writes wait until they may go on.
#[derive(Default)]
struct Stuck {
    inner: MemoryStore,
    is_open: Arc<(Mutex<bool>, Condvar)>,
}

impl Stuck {
    fn open(is_open: &(Mutex<bool>, Condvar)) {
        *is_open.0.lock().unwrap() = true;
        is_open.1.notify_all();
    }
}

impl ByteStore for Stuck {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.inner.get(key)
    }

    fn put<'a>(&'a self, key: &'a str, parts: &'a [&'a [u8]]) -> StoreFuture<'a, ()> {
        drop(self.is_open.1.wait_while(self.is_open.0.lock().unwrap(), |is_open| !*is_open).unwrap());
        self.inner.put(key, parts)
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        self.inner.delete(key)
    }

    fn list<'a>(&'a self, folder: &'a str) -> StoreFuture<'a, Vec<Entry>> {
        self.inner.list(folder)
    }
}

/// C23, L108: a disk that hangs delays no answer by more than a moment, and what cannot be noted is counted.
#[tokio::test]
async fn a_stuck_store_holds_nobody_up_and_notes_are_dropped() {
    let store = Stuck::default();
    let is_open = store.is_open.clone();
    let server = start(&setup(Some(Arc::new(store)))).await;
    // A prompt of this length is not looked up, but is worth storing with its answer.
    for salt in 0..80 {
        let prompt: Vec<u32> = (0..512).map(|at| (at * 7 + salt * 13 + at * salt) % 60 + 1).collect();
        assert_eq!(answer(&server, &prompt, 4).await.0, expected(&prompt, 4));
    }
    assert!(metric(&server, "laneway_checkpoint_dropped_total").await > 0);
    // One that is looked up goes on without.
    let long = prompt(700);
    assert_eq!(answer(&server, &long, 4).await.0, expected(&long, 4));
    Stuck::open(&is_open);
    for _ in 0..500 {
        if metric(&server, "laneway_checkpoint_saves_total").await > 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is stored after the store has recovered");
}

/// Two that begin alike are restored once.
#[tokio::test]
async fn prompts_that_come_together_are_restored_once() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(600);
    {
        let server = start(&setup(Some(store.clone()))).await;
        answer(&server, &prompt, 8).await;
        wait_for_stored(&server, 512).await;
    }
    let server = started(&setup(Some(store))).await;
    let (one, other) = tokio::join!(answer(&server, &prompt, 8), answer(&server, &prompt, 8));
    assert_eq!((one.0, other.0), (expected(&prompt, 8), expected(&prompt, 8)));
    assert!(one.1 >= 512 && other.1 >= 512);
    assert_eq!(metric(&server, "laneway_checkpoint_hits_total").await, 1);
}

#[tokio::test]
async fn admin_routes_need_their_key() {
    let server = start(&setup(None)).await;
    for path in ["/admin/lanes", "/admin/sessions", "/admin/checkpoints"] {
        assert_eq!(server.get(path).await.status, 401, "{path}");
    }
    let mut closed = setup(None);
    closed.options.admin_key = None;
    let closed = start(&closed).await;
    assert_eq!(admin(&closed, "GET", "/admin/sessions").await.status, 404);
    assert_eq!(closed.post("/admin/sessions/import", "x").await.status, 404);
}

#[tokio::test]
async fn what_is_not_there_is_refused_by_name() {
    let server = start(&setup(None)).await;
    let unknown = "0".repeat(64);
    for (method, path, status) in [
        ("GET", format!("/admin/sessions/{unknown}"), 404),
        ("GET", "/admin/sessions/x".to_owned(), 404),
        ("GET", format!("/admin/sessions/{unknown}/export"), 404),
        ("POST", format!("/admin/sessions/{unknown}/save"), 404),
        ("GET", "/admin/checkpoints".to_owned(), 409),
        ("DELETE", format!("/admin/checkpoints/{unknown}"), 409),
        ("GET", "/admin/sessions?nonsense=1".to_owned(), 400),
        ("PUT", "/admin/sessions".to_owned(), 405),
        ("GET", "/admin/lanes?model=none".to_owned(), 404),
    ] {
        let reply = admin(&server, method, &path).await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.body);
        assert!(reply.json()["error"]["message"].is_string());
    }
}

#[tokio::test]
async fn a_session_is_saved_listed_restored_and_deleted() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(700);
    let id = {
        let server = start(&setup(Some(store.clone()))).await;
        answer(&server, &prompt, 8).await;
        let session = only_session(&server).await;
        let saved = admin(&server, "POST", &format!("/admin/sessions/{session}/save")).await;
        assert_eq!(saved.status, 200, "{}", saved.body);
        saved.json()["id"].as_str().unwrap().to_owned()
    };
    let server = start(&setup(Some(store))).await;
    answer(&server, &[1, 2], 1).await;
    let restored = admin(&server, "POST", &format!("/admin/checkpoints/{id}/restore")).await;
    assert_eq!(restored.status, 200, "{}", restored.body);
    assert!(restored.json()["tokens"].as_u64() >= Some(700));
    assert!(answer(&server, &prompt, 8).await.1 >= 699);
    assert_eq!(admin(&server, "DELETE", &format!("/admin/checkpoints/{id}")).await.status, 200);
    assert_eq!(admin(&server, "DELETE", &format!("/admin/checkpoints/{id}")).await.status, 404);
}

/// G61: what is live is stored on the way out.
#[tokio::test]
async fn shutting_down_stores_whole_sessions() {
    let store: Arc<dyn ByteStore> = Arc::new(MemoryStore::default());
    let prompt = prompt(700);
    {
        let server = start(&setup(Some(store.clone()))).await;
        answer(&server, &prompt, 8).await;
        server.service.sessions.shutdown(Duration::from_secs(20)).await;
    }
    let server = started(&setup(Some(store))).await;
    let next = [&prompt[..], &continuation(1, &prompt, 8), &[5, 6]].concat();
    assert!(answer(&server, &next, 4).await.1 >= 700);
}
