use anyhow::Result;

use crate::cache::{Cache, has_entry};
use crate::catalogue::{DEFAULT, ENTRIES};
use crate::output::{bytes, print, table};

/// `laneway models`.
pub fn run() -> Result<()> {
    let cache = Cache::open()?;
    let mut rows = vec![["NAME", "SIZE", "LICENCE", "CACHED", "DESCRIPTION"].map(str::to_owned).to_vec()];
    rows.extend(ENTRIES.iter().map(|entry| {
        let cached = if has_entry(&cache.of_entry(entry), entry) { "yes" } else { "no" };
        let default = if entry.name == DEFAULT { " (default)" } else { "" };
        vec![
            entry.name.to_owned(),
            bytes(entry.size_bytes),
            entry.licence.to_owned(),
            cached.to_owned(),
            format!("{}{default}", entry.description),
        ]
    }));
    let more = "\nOther models: hf:OWNER/REPO/FILE.gguf, a .gguf or .safetensors file, or a checkpoint folder.\n";
    print(&(table(&rows, &[1]) + more))
}
