//! What routers and dashboards read.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Script, Server};

#[tokio::test]
async fn the_metrics_have_the_names_that_routers_know() {
    let server = Server::start(Script::default()).await;
    assert_eq!(server.chat(r#","seed":0,"n":2"#).await.status, 200);
    assert_eq!(server.chat(r#","max_tokens":1"#).await.status, 200);
    assert_eq!(server.chat(r#","n":0"#).await.status, 400);
    let reply = server.get("/metrics").await;
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        r#"vllm:num_requests_waiting{model_name="tiny",engine="0"} 0.0"#,
        r#"vllm:num_requests_running{model_name="tiny",engine="0"} 0.0"#,
        r#"vllm:kv_cache_usage_perc{model_name="tiny",engine="0"} 0.0"#,
        r#"vllm:generation_tokens_total{model_name="tiny",engine="0"} 0"#,
        r#"vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"} 2"#,
        r#"vllm:request_success_total{model_name="tiny",engine="0",finished_reason="length"} 1"#,
        r#"laneway_turns_total{model_name="tiny",source="http",stage="queued"} 0"#,
        r#"laneway_http_requests_total{route="/v1/chat/completions",status="200"} 2"#,
        r#"laneway_http_requests_total{route="/v1/chat/completions",status="400"} 1"#,
        r#"laneway_ready{model_name="tiny",engine="0"} 1"#,
        "# TYPE vllm:time_to_first_token_seconds histogram",
        "# TYPE vllm:num_requests_waiting gauge",
        "# TYPE vllm:generation_tokens_total counter",
    ] {
        assert!(reply.body.lines().any(|found| found == line), "{line} is missing in\n{}", reply.body);
    }
    let open = b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: application/openmetrics-text;version=1.0.0\r\nconnection: close\r\n\r\n";
    let open = server.raw(open).await;
    assert_eq!(open.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(open.body.contains("# TYPE vllm:generation_tokens counter") && open.body.ends_with("# EOF\n"));
    let intervals = "vllm:inter_token_latency_seconds_count{model_name=\"tiny\",engine=\"0\"} 8";
    assert!(reply.body.lines().any(|line| line == intervals), "{}", reply.body);
}

#[tokio::test]
async fn unknown_paths_share_one_series() {
    let server = Server::start(Script::default()).await;
    for path in ["/a", "/b", "/c"] {
        assert_eq!(server.get(path).await.status, 404);
    }
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains(r#"laneway_http_requests_total{route="other",status="404"} 3"#), "{metrics}");
}

#[tokio::test]
async fn models_are_found_by_every_name() {
    let server = Server::start(Script::default()).await;
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["max_model_len"], 512);
    assert_eq!(list["models"][0]["release_date"], "2023-11-14");
    for path in [
        "/v1/models/tiny",
        "/v1/models/tiny-alias",
        "/v1/models/hf:some/tiny/model.gguf",
        "/v1/models/hf%3Asome%2Ftiny%2Fmodel.gguf",
    ] {
        assert_eq!(server.get(path).await.json()["id"], "tiny", "{path}");
    }
}
