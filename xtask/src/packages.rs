//! Programs of the system: what is missing, and how Debian installs it.

use std::path::Path;

use anyhow::{Result, bail};

use crate::process::{command, on_path, output, run, step, works};

/// Something that the system must have.
pub struct Need {
    pub what: &'static str,
    pub packages: &'static [&'static str],
    pub is_met: fn() -> bool,
}

pub const CERTIFICATES: Need = Need {
    what: "root certificates, to fetch models",
    packages: &["ca-certificates"],
    is_met: || Path::new("/etc/ssl/certs/ca-certificates.crt").exists() || cfg!(not(target_os = "linux")),
};

pub const SOFTWARE_VULKAN: Need = Need {
    what: "a software Vulkan driver (lavapipe), on which the GPU tests run",
    packages: &["mesa-vulkan-drivers"],
    is_met: || {
        ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"].into_iter().any(has_lavapipe)
    },
};

pub const CHROMIUM: Need =
    Need { what: "Chromium, for the browser test", packages: &["chromium"], is_met: || on_path("chromium") };

pub const NODE: Need = Need {
    what: "Node.js, for the browser test and the JavaScript clients",
    packages: &["nodejs"],
    is_met: || on_path("node"),
};

pub const NPM: Need = Need { what: "npm, for the same", packages: &["npm"], is_met: || on_path("npm") };

pub const PYTHON: Need = Need {
    what: "Python with venv, for the Python clients",
    packages: &["python3", "python3-venv"],
    is_met: || works(command("python3").args(["-c", "import venv, ensurepip"])),
};

pub const DEBIAN_WASM_RUST: Need = Need {
    what: "a Rust toolchain with the sources of its standard library, for WebAssembly",
    packages: &["rustc-web", "cargo-web", "rust-web-src"],
    is_met: || works(command("dpkg").args(["-s", "rustc-web", "cargo-web", "rust-web-src"])),
};

pub const LLD: Need = Need { what: "a linker for WebAssembly", packages: &["lld"], is_met: || on_path("wasm-ld") };

/// Installs what is missing, or fails with the command that would.
pub fn install(needs: &[Need]) -> Result<()> {
    let missing: Vec<_> = needs.iter().filter(|need| !(need.is_met)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        println!("missing: {}", need.what);
    }
    let packages: Vec<_> = missing.iter().flat_map(|need| need.packages).copied().collect();
    let list = packages.join(" ");
    if !on_path("apt-get") {
        bail!("this is no Debian: install by hand what Debian calls {list}");
    }
    if output(command("id").arg("-u"))?.trim() != "0" {
        bail!("run this and try again:\n  sudo apt-get update && sudo apt-get install -y {list}");
    }
    step(&format!("installing {list}"), || {
        run(command("apt-get").args(["update", "-qq"]))?;
        let mut apt = command("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y", "-qq", "--no-install-recommends"]);
        run(apt.args(&packages))
    })?;
    match missing.iter().find(|need| !(need.is_met)()) {
        Some(need) => bail!("{list} was installed, and this is still missing: {}", need.what),
        None => Ok(()),
    }
}

fn has_lavapipe(folder: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("lvp_icd"))
}
