use std::ffi::OsString;

use anyhow::Result;

use crate::process::{command, run, step, tools};
use crate::{packages, server, setup};

/// llama.cpp with its CPU and Vulkan backends, ready-made; `node-llama-cpp` 3.22 needs Node.js 20.
const LLAMA: [&str; 3] =
    ["node-llama-cpp@3.22.1", "@node-llama-cpp/linux-x64@3.22.1", "@node-llama-cpp/linux-x64-vulkan@3.22.1"];

/// Measures Laneway and llama.cpp by turns on one model file and prints the ratios.
pub fn compare(arguments: &[OsString]) -> Result<()> {
    packages::install(&[packages::NODE, packages::NPM, packages::SOFTWARE_VULKAN, packages::CERTIFICATES])?;
    setup::node_packages("peers", &LLAMA)?;
    server::build()?;
    let model = match arguments.first() {
        Some(path) => std::env::current_dir()?.join(path),
        None => server::default_model()?,
    };
    step("Laneway and llama.cpp by turns", || {
        let mut compare = command("node");
        compare.arg("tests/peers/compare.mjs").arg(server::program()).arg(&model);
        run(compare.args(arguments.get(1..).unwrap_or_default()).env("LANEWAY_PEERS", tools().join("peers")))
    })
}
