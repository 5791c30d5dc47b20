//! A conversation that outlives the program: its messages, and what the engine computed of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::executor::block_on;
use laneway_api::checkpoint::{self, ByteStore, FileStore};
use laneway_api::{CheckpointOptions, ModelScope, Sessions, StoreCodec};
use laneway_text::ChatMessage;
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::load::{TextSide, content_files};
use crate::output::one_line;
use crate::settings::Usage;

const KEY: &str = "conversation.json";
/// For storing what the engine computed when the program ends.
const STORE_TIME: Duration = Duration::from_secs(20);

/// A folder with one conversation.
pub struct Conversation {
    store: Arc<FileStore>,
    sessions: Sessions,
}

/// What was said.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Talk {
    pub system: Option<String>,
    pub messages: Vec<Said>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    role: String,
    content: String,
}

impl From<&ChatMessage> for Said {
    fn from(message: &ChatMessage) -> Self {
        Self { role: message.role.clone(), content: message.content.clone() }
    }
}

impl Said {
    pub fn message(&self) -> ChatMessage {
        ChatMessage::new(&self.role, &self.content)
    }
}

impl Conversation {
    /// Opens or creates the folder, which no other program may have open.
    pub fn open(folder: &Path, text: &TextSide, host: &Host) -> Result<Self> {
        let store = Arc::new(FileStore::open(folder).map_err(|error| Usage(one_line(&error.into())))?);
        let limits = checkpoint::Config { min_tokens: 64, ..checkpoint::Config::default() };
        let options = CheckpointOptions { store: store.clone(), limits, codec: StoreCodec::Exact };
        let scope = ModelScope { files: content_files(&text.path), positions: "as in the files".to_owned() };
        let sessions = Sessions::new(Arc::new(host.worker.clone()), text.kv.clone(), scope, Some(options))?;
        Ok(Self { store, sessions })
    }

    /// What was said before.
    pub fn talk(&self) -> Result<Talk> {
        let Some(bytes) = block_on(self.store.get(KEY))? else { return Ok(Talk::default()) };
        serde_json::from_slice(&bytes).with_context(|| format!("{KEY} is not a conversation"))
    }

    /// Writes what was said, in place of what is there.
    pub fn write(&self, talk: &Talk) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(talk)?;
        Ok(block_on(self.store.put(KEY, &[&bytes]))?)
    }

    /// Brings back what was computed of a prompt.
    pub async fn prepare(&self, prompt: &[u32]) {
        self.sessions.prepare(0, prompt).await;
    }

    /// Stores what was computed.
    pub async fn end(&self) {
        self.sessions.shutdown(STORE_TIME).await;
    }
}
