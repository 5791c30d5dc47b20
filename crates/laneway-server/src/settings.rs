//! What flags, environment, configuration file and defaults amount to, checked.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use laneway_api::{StoreCodec, TelemetryLevel};
use laneway_engine::{DeviceChoice, KvType, StageSettings};
use serde::Deserialize;

use crate::args::{ChatArgs, ModelArgs, ReadArgs, ServeArgs};
use crate::catalogue;

/// Positions of a sequence if nobody asks for another number: room for a conversation, or for 255 options.
const DEFAULT_CONTEXT: usize = 8192;
/// Positions for each lane then, so that nobody's memory is surprised: a long sequence takes from what others leave.
const DEFAULT_POOL_OF_LANE: usize = 4096;

/// A mistake in what the user asked for, as opposed to something that failed.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    model: Option<String>,
    device: Option<Device>,
    split: Option<Layers>,
    kv_type: Option<String>,
    lanes: Option<usize>,
    ctx: Option<usize>,
    threads: Option<usize>,
    isolated_reads: bool,
    host: Option<String>,
    port: Option<u16>,
    api_key: Option<String>,
    admin_key: Option<String>,
    cors: Option<Origins>,
    queue: Option<usize>,
    queue_timeout: Option<u64>,
    checkpoints: Option<PathBuf>,
    checkpoint_budget: Option<Size>,
    checkpoint_codec: Option<String>,
    checkpoint_min: Option<usize>,
    telemetry: Option<String>,
    telemetry_endpoint: Option<String>,
    drain_time: Option<u64>,
    idle_lanes: Option<usize>,
    safe_mode: bool,
}

/// A number of bytes, or one with a unit.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

/// A device's name or number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Device {
    Index(usize),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Layers {
    One(usize),
    Many(Vec<usize>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Origins {
    One(String),
    Many(Vec<String>),
}

/// Options fill a page; anything much longer is another file.
const MOST_CONFIG_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads the file, if there is one.
    pub fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let mut text = String::new();
        let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let read = file.take(MOST_CONFIG_BYTES + 1).read_to_string(&mut text);
        read.with_context(|| format!("cannot read {}", path.display()))?;
        if text.len() as u64 > MOST_CONFIG_BYTES {
            return Err(Usage(format!("{} is over {MOST_CONFIG_BYTES} bytes long", path.display())).into());
        }
        let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            let place = error.span().map(|span| format!(" line {}", line(span.start))).unwrap_or_default();
            Usage(format!("{}{place}: {}", path.display(), error.message())).into()
        })
    }
}

/// A model and how to load it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSettings {
    pub model: String,
    /// That of the first stage, if there are several.
    pub device: DeviceChoice,
    /// None for the whole model on one device.
    pub stages: Vec<StageSettings>,
    pub kv_type: KvType,
    /// None for what suits the model.
    pub lanes: Option<usize>,
    pub context_length: Option<usize>,
    pub threads: Option<usize>,
    /// Whether each question of a decision has a canvas of its own.
    pub isolated_reads: bool,
}

impl ModelSettings {
    /// The context for a model that was trained for `trained` positions.
    pub fn context_for(&self, trained: usize) -> usize {
        self.context_length.unwrap_or(DEFAULT_CONTEXT).min(trained).max(1)
    }

    /// Positions that all lanes share; none for a whole context for each.
    pub fn pool_positions(&self, lanes: usize) -> Option<usize> {
        self.context_length.is_none().then(|| lanes.saturating_mul(DEFAULT_POOL_OF_LANE))
    }
}

/// What `laneway serve` needs.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    pub model: ModelSettings,
    pub host: String,
    pub port: u16,
    pub api_key: Option<String>,
    pub cors_origins: Vec<String>,
    /// None for a number that follows the lanes.
    pub queue_depth: Option<usize>,
    /// 0 for ever.
    pub queue_timeout: Duration,
    pub admin_key: Option<String>,
    /// None where nothing is stored.
    pub checkpoints: Option<CheckpointSettings>,
    /// Where spans go, and how many; none where nobody wants them.
    pub telemetry: Option<(TelemetryLevel, String)>,
    /// How long requests are still taken after a signal to end.
    pub drain_time: Duration,
    /// None for all.
    pub idle_lanes: Option<usize>,
    pub safe_mode: bool,
}

/// Where and how sessions are stored.
#[derive(Clone, Debug)]
pub struct CheckpointSettings {
    pub folder: PathBuf,
    pub budget_bytes: u64,
    pub codec: StoreCodec,
    pub min_tokens: usize,
}

impl ModelArgs {
    /// These options over those of the file.
    pub fn settings(&self, config: &Config) -> Result<ModelSettings> {
        let from_file = config.device.as_ref().map(|device| match device {
            Device::Index(index) => index.to_string(),
            Device::Name(name) => name.clone(),
        });
        let device = self.device.clone().or(from_file).unwrap_or_default();
        let split = self.split.clone().or_else(|| match &config.split {
            Some(Layers::One(layer)) => Some(vec![*layer]),
            Some(Layers::Many(layers)) => Some(layers.clone()),
            None => None,
        });
        let kv_type = self.kv_type.as_ref().or(config.kv_type.as_ref()).map_or(Ok(KvType::F32), |text| text.parse());
        let kv_type = kv_type.map_err(|error| Usage(format!("kv-type: {error}")))?;
        let (device, stages) = stages(&device, split.unwrap_or_default())?;
        let model = self.model.clone().or_else(|| config.model.clone());
        Ok(ModelSettings {
            model: model.unwrap_or_else(|| catalogue::DEFAULT.to_owned()),
            device,
            stages,
            kv_type,
            lanes: None,
            context_length: within("ctx", self.ctx.or(config.ctx), 1 << 24)?,
            threads: within("threads", self.threads.or(config.threads), 1024)?,
            isolated_reads: self.isolated_reads || config.isolated_reads,
        })
    }
}

impl ServeArgs {
    /// These options over those of the file.
    pub fn settings(&self, config: &Config) -> Result<ServeSettings> {
        let lanes = within("lanes", self.lanes.or(config.lanes), 256)?;
        let model = ModelSettings { lanes, ..self.model.settings(config)? };
        let api_key = self.api_key.clone().or_else(|| config.api_key.clone());
        if api_key.as_ref().is_some_and(|key| key.trim().is_empty()) {
            return Err(Usage("the API key is empty; leave it out to let everybody in".to_owned()).into());
        }
        let admin_key = self.admin_key.clone().or_else(|| config.admin_key.clone());
        if admin_key.as_ref().is_some_and(|key| key.trim().is_empty()) {
            return Err(Usage("the admin key is empty; leave it out to close the admin routes".to_owned()).into());
        }
        let from_file = config.cors.as_ref().map(|origins| match origins {
            Origins::One(origin) => vec![origin.clone()],
            Origins::Many(origins) => origins.clone(),
        });
        let cors_origins = self.cors.clone().or(from_file).unwrap_or_default();
        let cors_origins: Vec<_> = cors_origins.iter().map(|o| o.trim().to_owned()).filter(|o| !o.is_empty()).collect();
        for origin in &cors_origins {
            check_origin(origin)?;
        }
        let checkpoints = self.checkpoints(config)?;
        let telemetry = self.telemetry(config)?;
        let idle_lanes = match self.idle_lanes.or(config.idle_lanes) {
            Some(0) => Some(0),
            other => within("idle-lanes", other, 256)?,
        };
        let queue_depth = within("queue", self.queue.or(config.queue), 1 << 20)?;
        Ok(ServeSettings {
            host: self.host.clone().or_else(|| config.host.clone()).unwrap_or_else(|| "127.0.0.1".to_owned()),
            port: self.port.or(config.port).unwrap_or(8000),
            api_key,
            cors_origins,
            queue_depth,
            queue_timeout: Duration::from_secs(self.queue_timeout.or(config.queue_timeout).unwrap_or(0).min(86_400)),
            admin_key,
            checkpoints,
            telemetry,
            drain_time: Duration::from_secs(self.drain_time.or(config.drain_time).unwrap_or(0).min(86_400)),
            idle_lanes,
            safe_mode: self.safe_mode.unwrap_or(config.safe_mode),
            model,
        })
    }
}

impl ServeArgs {
    fn telemetry(&self, config: &Config) -> Result<Option<(TelemetryLevel, String)>> {
        let endpoint = self.telemetry_endpoint.clone().or_else(|| config.telemetry_endpoint.clone());
        let endpoint = endpoint.filter(|endpoint| !endpoint.trim().is_empty());
        let level = match self.telemetry.as_ref().or(config.telemetry.as_ref()).map(String::as_str) {
            None => None,
            Some("off") => Some(TelemetryLevel::Off),
            Some("summary") => Some(TelemetryLevel::Summary),
            Some("debug") => Some(TelemetryLevel::Debug),
            Some(other) => {
                return Err(Usage(format!("telemetry is {other:?}, expected off, summary or debug")).into());
            }
        };
        match (level, endpoint) {
            (None, None) | (Some(TelemetryLevel::Off), None) => Ok(None),
            (Some(_), None) => Err(Usage("telemetry needs telemetry-endpoint, a URL or stderr".to_owned()).into()),
            (level, Some(endpoint)) if endpoint == "stderr" => {
                Ok(Some((level.unwrap_or_default().for_stderr(), endpoint)))
            }
            (Some(TelemetryLevel::Off), Some(_)) => Ok(None),
            (level, Some(endpoint)) if endpoint.starts_with("http://") || endpoint.starts_with("https://") => {
                Ok(Some((level.unwrap_or(TelemetryLevel::Summary), endpoint)))
            }
            (_, Some(other)) => Err(Usage(format!("telemetry-endpoint is {other:?}, expected a URL or stderr")).into()),
        }
    }

    fn checkpoints(&self, config: &Config) -> Result<Option<CheckpointSettings>> {
        let from_file = config.checkpoint_budget.as_ref().map(|size| match size {
            Size::Bytes(bytes) => bytes.to_string(),
            Size::Text(text) => text.clone(),
        });
        let budget = self.checkpoint_budget.clone().or(from_file);
        let codec = self.checkpoint_codec.clone().or_else(|| config.checkpoint_codec.clone());
        let Some(folder) = self.checkpoints.clone().or_else(|| config.checkpoints.clone()) else {
            return match budget.or(codec) {
                Some(_) => {
                    Err(Usage("checkpoint-budget and checkpoint-codec need checkpoints, the folder".into()).into())
                }
                None => Ok(None),
            };
        };
        let budget_bytes = budget.map_or(Ok(4 << 30), |text| size("checkpoint-budget", &text))?;
        let codec = match codec.as_deref() {
            None | Some("exact") => StoreCodec::Exact,
            Some("cachegen") => StoreCodec::CacheGen,
            Some(other) => {
                return Err(Usage(format!("checkpoint-codec is {other:?}, expected exact or cachegen")).into());
            }
        };
        let min_tokens =
            within("checkpoint-min", self.checkpoint_min.or(config.checkpoint_min), 1 << 24)?.unwrap_or(512);
        Ok(Some(CheckpointSettings { folder, budget_bytes, codec, min_tokens }))
    }
}

impl ChatArgs {
    /// These options over those of the file; a terminal needs one lane.
    pub fn settings(&self, config: &Config) -> Result<ModelSettings> {
        Ok(ModelSettings { lanes: Some(1), ..self.model.settings(config)? })
    }
}

impl ReadArgs {
    /// These options over those of the file; one request needs one lane.
    pub fn settings(&self, config: &Config) -> Result<ModelSettings> {
        Ok(ModelSettings { lanes: Some(1), ..self.model.settings(config)? })
    }
}

/// A number of bytes such as 1048576, 512M or 4G.
fn size(name: &str, text: &str) -> Result<u64> {
    let wrong = || Usage(format!("{name} is {text:?}, expected a number of bytes such as 512M or 4G"));
    let text = text.trim();
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let bytes = digits.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    Ok(bytes.filter(|bytes| *bytes > 0).ok_or_else(wrong)?)
}

fn within(name: &str, value: Option<usize>, max: usize) -> Result<Option<usize>> {
    match value {
        Some(value) if value == 0 || value > max => {
            Err(Usage(format!("{name} is {value}, expected 1 to {max}")).into())
        }
        other => Ok(other),
    }
}

/// The device of the first stage, and all stages if there is more than one.
fn stages(devices: &str, split: Vec<usize>) -> Result<(DeviceChoice, Vec<StageSettings>)> {
    let parsed = |text: &str| {
        let Ok(device) = text.parse::<DeviceChoice>();
        device
    };
    if split.is_empty() {
        return Ok((parsed(devices), Vec::new()));
    }
    let named: Vec<DeviceChoice> = devices.split(',').map(parsed).collect();
    let count = split.len() + 1;
    if named.len() != 1 && named.len() != count {
        let given = named.len();
        return Err(Usage(format!("device names {given} devices, expected 1 or one for each of {count} stages")).into());
    }
    if split[0] == 0 || !split.is_sorted_by(|a, b| a < b) {
        return Err(Usage(format!("split is {split:?}, expected layers over 0, each after the one before")).into());
    }
    let firsts = std::iter::once(0).chain(split);
    let stages = firsts.enumerate().map(|(at, first_layer)| {
        let device = named.get(at).unwrap_or(&named[0]).clone();
        StageSettings { device, first_layer }
    });
    Ok((named[0].clone(), stages.collect()))
}

fn check_origin(origin: &str) -> Result<()> {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let plain = |host: &str| !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && c != '/');
    if origin == "*" || host.is_some_and(plain) {
        return Ok(());
    }
    Err(Usage(format!("`{origin}` is not an origin (expected * or the form https://example.org, without a path)"))
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    use crate::args::{Cli, Command};

    fn settings(arguments: &[&str], file: &str) -> Result<ServeSettings> {
        let cli = Cli::try_parse_from(["laneway", "serve"].iter().chain(arguments))?;
        let Command::Serve(args) = cli.command else { unreachable!("serve was asked for") };
        args.settings(&toml::from_str(file)?)
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "port = 1234\nlanes = 2\ndevice = 0\ncors = 'https://a.org'";
        let read = settings(&["--port", "99", "--device", "cpu"], file).unwrap();
        assert_eq!((read.port, read.model.lanes, read.model.device), (99, Some(2), DeviceChoice::Cpu));
        assert_eq!((read.cors_origins, read.host.as_str()), (vec!["https://a.org".to_owned()], "127.0.0.1"));
        assert_eq!(settings(&[], file).unwrap().model.device, DeviceChoice::Index(0));
        assert_eq!(settings(&[], "").unwrap().queue_depth, None);
    }

    #[test]
    fn sessions_are_stored_where_a_folder_is_given() {
        let file = "checkpoints = 'a'\ncheckpoint-budget = '2G'\nsafe-mode = true";
        let read = settings(&["--checkpoint-codec", "cachegen", "--idle-lanes", "0"], file).unwrap();
        let stored = read.checkpoints.unwrap();
        assert_eq!((stored.folder, stored.budget_bytes, stored.codec), ("a".into(), 2 << 30, StoreCodec::CacheGen));
        assert_eq!((read.safe_mode, read.idle_lanes), (true, Some(0)));
        assert!(settings(&["--safe-mode"], "").unwrap().safe_mode);
        assert!(!settings(&["--safe-mode=off"], "safe-mode = true").unwrap().safe_mode);
        assert!(settings(&[], "").unwrap().checkpoints.is_none());
    }

    #[test]
    fn stages_have_a_device_each_or_share_one() {
        let read = settings(&["--split", "2,5", "--device", "cpu,lavapipe,0"], "").unwrap().model;
        let firsts: Vec<_> = read.stages.iter().map(|stage| (stage.device.to_string(), stage.first_layer)).collect();
        assert_eq!(firsts, [("cpu".to_owned(), 0), ("llvmpipe".to_owned(), 2), ("0".to_owned(), 5)]);
        let read = settings(&[], "split = 4\ndevice = 'cpu'").unwrap().model;
        assert!(read.stages.len() == 2 && read.stages.iter().all(|stage| stage.device == DeviceChoice::Cpu));
        assert!(settings(&[], "").unwrap().model.stages.is_empty());
    }

    #[test]
    fn origins_come_one_by_one_or_separated_by_commas() {
        let read = settings(&["--cors", "https://a.org,http://b:3000", "--cors", "*"], "").unwrap();
        assert_eq!(read.cors_origins, ["https://a.org", "http://b:3000", "*"]);
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        let refused = |arguments: &[&str], file: &str, words: &str| {
            let error = settings(arguments, file).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(&["--lanes", "0"], "", "lanes is 0, expected 1 to 256");
        refused(&[], "ctx = 0", "ctx is 0");
        refused(&[], "prot = 1", "unknown field `prot`");
        refused(&["--cors", "https://a.org/x"], "", "is not an origin");
        refused(&["--api-key", " "], "", "API key is empty");
        refused(&["--port", "70000"], "", "70000");
        refused(&["--checkpoints", "x", "--checkpoint-codec", "zip"], "", "expected exact or cachegen");
        refused(&["--checkpoints", "x", "--checkpoint-budget", "4T"], "", "checkpoint-budget is \"4T\"");
        refused(&["--checkpoints", "x", "--checkpoint-budget", "99999999999G"], "", "checkpoint-budget");
        refused(&["--checkpoint-budget", "4G"], "", "need checkpoints");
        refused(&["--kv-type", "auto"], "", "kv-type: \"auto\" is no type of the K/V cache");
        refused(&["--split", "3,2"], "", "split is [3, 2]");
        refused(&["--split", "0"], "", "split is [0]");
        refused(&["--split", "3", "--device", "cpu,cpu,cpu"], "", "device names 3 devices");
        refused(&["--telemetry", "all"], "", "telemetry is \"all\"");
        refused(&["--telemetry", "debug"], "", "needs telemetry-endpoint");
        refused(&["--telemetry-endpoint", "ftp://x"], "", "expected a URL or stderr");
        refused(&["--idle-lanes", "300"], "", "idle-lanes is 300");
    }
}
