use std::ffi::OsString;

use anyhow::Result;

use crate::count::Count;
use crate::process::{command, root, run, step};
use crate::server::Server;
use crate::{packages, server, setup};

const URL_SCHEMES: [&str; 2] = ["http://", "https://"];

/// Measures the decisions of the server at the URL that comes first, or of one started with a small model.
pub fn measure(arguments: &[OsString]) -> Result<()> {
    packages::install(&[packages::CERTIFICATES, packages::PYTHON])?;
    setup::python_packages()?;
    match arguments.split_first() {
        Some((url, options)) if URL_SCHEMES.iter().any(|scheme| url.to_string_lossy().starts_with(scheme)) => {
            driver(&url.to_string_lossy(), options)
        }
        // The driver prints its help without a server.
        _ if arguments.iter().any(|argument| argument == "--help" || argument == "-h") => driver("", arguments),
        _ => {
            server::build()?;
            let server = Server::start(&server::default_model()?, "cpu", &[])?;
            step("measuring decisions", || driver(&server.address, arguments))?;
            server.stop()
        }
    }
}

/// Checks the measures on examples that were computed by hand.
pub fn test(count: &mut Count) -> Result<()> {
    step("the measures of eval", || count.run(command(setup::python()).arg("tests/eval/test_metrics.py")))
}

fn driver(address: &str, options: &[OsString]) -> Result<()> {
    let mut driver = command(setup::python());
    driver.arg(root().join("tests").join("eval").join("eval.py")).arg(address).args(options);
    // Files are named from where the user stands.
    run(driver.current_dir(std::env::current_dir()?))
}
