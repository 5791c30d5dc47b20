//! The WebAssembly build: which toolchain, which tools, and the build itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages;
use crate::process::{cargo, command, on_path, output, root, run, step, target, tools, works};

const TARGET: &str = "wasm32-unknown-unknown";

/// A way to compile for the browser.
enum Toolchain {
    /// The toolchain in use has the target.
    Native,
    /// Debian's toolchain compiles the standard library too.
    Debian { linker: PathBuf },
}

impl Toolchain {
    fn find() -> Result<Self> {
        if has_target()? {
            return Ok(Self::Native);
        }
        if on_path("rustup") {
            let added = step(&format!("adding {TARGET} to the Rust toolchain"), || {
                run(command("rustup").args(["target", "add", TARGET]))
            });
            if added.is_ok() && has_target()? {
                return Ok(Self::Native);
            }
            println!("rustup cannot add the target here; Debian's Rust packages will do");
        }
        packages::install(&[packages::DEBIAN_WASM_RUST])?;
        Ok(Self::Debian { linker: linker()? })
    }

    /// Cargo for this toolchain, and where it puts what it makes.
    fn cargo(&self) -> (Command, PathBuf) {
        match self {
            Self::Native => (cargo(), target()),
            Self::Debian { linker } => {
                // Another compiler in the same folder would make cargo compile everything again at every change between them.
                let folder = target().join("wasm");
                let path = std::env::var("PATH").unwrap_or_default();
                let mut cargo = command("/usr/bin/cargo");
                cargo
                    .env("PATH", format!("/usr/bin:{path}"))
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("CARGO_UNSTABLE_BUILD_STD", "std,panic_abort")
                    .env("CARGO_TARGET_DIR", &folder)
                    .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker)
                    .env_remove("LD_LIBRARY_PATH")
                    .env_remove("RUSTUP_TOOLCHAIN")
                    .env_remove("CARGO");
                (cargo, folder)
            }
        }
    }
}

/// Installs what [`build`] needs.
pub fn prepare() -> Result<()> {
    Toolchain::find()?;
    wasm_bindgen()?;
    Ok(())
}

/// Builds `crates/laneway-web` and its JavaScript into `web/pkg`.
pub fn build() -> Result<()> {
    let toolchain = Toolchain::find()?;
    let bindgen = wasm_bindgen()?;
    let (mut cargo, folder) = toolchain.cargo();
    step("building laneway-web for the browser", || {
        run(cargo.args(["build", "--release", "--target", TARGET, "-p", "laneway-web"]))
    })?;
    let module = folder.join(TARGET).join("release").join("laneway_web.wasm");
    let package = root().join("web").join("pkg");
    step("writing its JavaScript into web/pkg", || {
        // Names are a quarter of the file and help nobody who does not debug it.
        let slim = ["--remove-name-section", "--remove-producers-section"];
        let target = ["--target", "web", "--no-typescript", "--out-dir"];
        run(command(bindgen).args(slim).args(target).arg(&package).arg(&module))
    })?;
    let file = package.join("laneway_web_bg.wasm");
    let bytes = std::fs::metadata(&file).with_context(|| format!("{} is missing", file.display()))?.len();
    println!("web/pkg/laneway_web_bg.wasm: {:.2} MB", bytes as f64 / 1e6);
    Ok(())
}

fn has_target() -> Result<bool> {
    let libraries = output(command("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
    Ok(Path::new(libraries.trim()).is_dir())
}

/// `rust-lld` of the toolchain in use, else LLVM's `wasm-ld`.
fn linker() -> Result<PathBuf> {
    let sysroot = PathBuf::from(output(command("rustc").args(["--print", "sysroot"]))?.trim());
    let hosts = std::fs::read_dir(sysroot.join("lib").join("rustlib")).context("the Rust toolchain is incomplete")?;
    let linkers = hosts.flatten().map(|host| host.path().join("bin").join("rust-lld"));
    if let Some(linker) = linkers.into_iter().find(|linker| linker.is_file()) {
        return Ok(linker);
    }
    packages::install(&[packages::LLD])?;
    Ok("wasm-ld".into())
}

/// The `wasm-bindgen` program of exactly the version that the workspace links.
fn wasm_bindgen() -> Result<PathBuf> {
    let version = locked_version("wasm-bindgen")?;
    let tools = tools().join("tools");
    let own = tools.join("bin").join("wasm-bindgen");
    let fits = |program: &Path| {
        works(command(program).arg("--version"))
            && output(command(program).arg("--version"))
                .is_ok_and(|text| text.split_whitespace().last() == Some(&*version))
    };
    for program in [own.clone(), "wasm-bindgen".into()] {
        if fits(&program) {
            return Ok(program);
        }
    }
    step(&format!("building wasm-bindgen {version} (once, about two minutes)"), || {
        let mut cargo = cargo();
        cargo.args([
            "install",
            "--quiet",
            "--force",
            "wasm-bindgen-cli",
            "--version",
            &version,
            "--bin",
            "wasm-bindgen",
            "--root",
        ]);
        // Optimising the tool costs more than it saves.
        run(cargo.arg(&tools).env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "false"))
    })?;
    Ok(own)
}

fn locked_version(package: &str) -> Result<String> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{package}\""));
    let version = lines.nth(1).and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    Ok(version.with_context(|| format!("Cargo.lock has no {package}"))?.to_owned())
}
