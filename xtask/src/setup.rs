use anyhow::{Context, Result};

use crate::process::{cargo, command, run, step, tools, works};
use crate::{packages, web};

/// The npm packages of the tests, pinned to versions that Node.js 18 still runs.
const OPENAI_NPM: &str = "openai@6.30.1";
const PLAYWRIGHT: &str = "playwright-core@1.56.1";
const OPENAI_PYPI: &str = "openai==3.57.0";

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
    node_package("clients", OPENAI_NPM)?;
    node_package("browser", PLAYWRIGHT)?;
    python_client()?;
    println!("all that the tests need is there");
    Ok(())
}

/// Installs a package of npm under `target/NAME`, without running its scripts.
pub fn node_package(folder: &str, package: &str) -> Result<()> {
    node_packages(folder, &[package])
}

/// Installs packages of npm, and nothing that they call optional, under `target/NAME`.
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

fn python_client() -> Result<()> {
    let place = tools().join("clients").join("venv");
    let stamp = place.join(".installed");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == OPENAI_PYPI) {
        return Ok(());
    }
    step(&format!("fetching {OPENAI_PYPI} from PyPI"), || {
        run(command("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
        let mut pip = command(place.join("bin").join("python"));
        run(pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", OPENAI_PYPI]))?;
        Ok(std::fs::write(&stamp, OPENAI_PYPI)?)
    })
}
