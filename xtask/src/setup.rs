use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::{cargo, command, run, step, tools, works};
use crate::{packages, web};

/// The npm packages of the tests, pinned to versions that Node.js 18 still runs.
const CLIENTS_NPM: [&str; 2] = ["openai@6.30.1", "@typesafe-ai/sdk@0.6.0"];
const PLAYWRIGHT: &str = "playwright-core@1.56.1";
const CLIENTS_PYPI: [&str; 3] = ["openai==3.57.0", "typesafe-sdk[zstd]==0.7.5", "jevcompat==0.1.1"];
/// Installed without what it depends on: its generators need nothing but the pydantic of the clients.
const TASKS_PYPI: &str = "sys1bench==0.3.2";

/// Everything that the tests need.
pub fn everything() -> Result<()> {
    packages::install(&[
        packages::CERTIFICATES,
        packages::SOFTWARE_VULKAN,
        packages::CHROMIUM,
        packages::NODE,
        packages::NPM,
        packages::PYTHON,
    ])?;
    for (component, tool) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !works(cargo().args([tool, "--version"])) {
            step(&format!("adding {component} to the Rust toolchain"), || {
                run(command("rustup").args(["component", "add", component]))
            })?;
        }
    }
    web::prepare()?;
    node_packages("clients", &CLIENTS_NPM)?;
    node_packages("browser", &[PLAYWRIGHT])?;
    python_packages()?;
    println!("all that the tests need is there");
    Ok(())
}

/// Installs packages of npm, and nothing that they call optional, under `target/NAME`, without running their scripts.
pub fn node_packages(folder: &str, packages: &[&str]) -> Result<()> {
    let place = tools().join(folder);
    let stamp = place.join(".installed");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == packages.join("\n")) {
        return Ok(());
    }
    step(&format!("fetching {} from npm", packages.join(", ")), || {
        std::fs::create_dir_all(&place)?;
        std::fs::write(place.join("package.json"), "{ \"private\": true, \"type\": \"module\" }\n")?;
        let mut npm = command("npm");
        npm.current_dir(&place).args([
            "install",
            "--ignore-scripts",
            "--omit=optional",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ]);
        run(npm.args(packages)).context("npm could not fetch the packages (is the network there?)")?;
        Ok(std::fs::write(&stamp, packages.join("\n"))?)
    })
}

/// The Python that has the clients and the tasks of `eval`; see [`python_packages`].
pub fn python() -> PathBuf {
    venv().join("bin").join("python")
}

fn venv() -> PathBuf {
    tools().join("clients").join("venv")
}

/// Installs packages of PyPI for [`python`].
pub fn python_packages() -> Result<()> {
    let stamp = venv().join(".installed");
    let wanted = [&CLIENTS_PYPI[..], &[TASKS_PYPI]].concat().join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    step(&format!("fetching {} from PyPI", wanted.replace('\n', ", ")), || {
        run(command("python3").args(["-m", "venv", "--clear"]).arg(venv()))?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(command(python()).args(install).args(CLIENTS_PYPI))?;
        run(command(python()).args(install).args(["--no-deps", TASKS_PYPI]))?;
        Ok(std::fs::write(&stamp, wanted)?)
    })
}
