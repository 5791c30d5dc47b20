//! Spans on their way to a collector.

use std::time::Duration;

use anyhow::{Context, Result};
use laneway_api::{SpanSink, StderrSink, Telemetry, TelemetryLevel};
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// A collector that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An OTLP collector over HTTP.
struct Collector {
    agent: Agent,
    url: String,
}

impl SpanSink for Collector {
    fn export(&mut self, batch: &str) -> Result<(), String> {
        let sent = self.agent.post(&self.url).header("content-type", "application/json").send(batch);
        sent.map(drop).map_err(|error| error.to_string())
    }
}

/// Starts the thread that sends spans to an endpoint, or to stderr.
pub fn start(level: TelemetryLevel, endpoint: &str) -> Result<Telemetry> {
    let sink: Box<dyn SpanSink> = match endpoint {
        "stderr" => Box::new(StderrSink),
        url => {
            let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
            let agent = Agent::config_builder().timeout_global(Some(TIMEOUT)).tls_config(tls).build().into();
            let url = url.trim_end_matches('/');
            let url = if url.ends_with("/v1/traces") { url.to_owned() } else { format!("{url}/v1/traces") };
            Box::new(Collector { agent, url })
        }
    };
    Telemetry::start(level, sink).context("the thread for spans did not start")
}
