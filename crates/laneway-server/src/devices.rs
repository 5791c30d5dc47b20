use anyhow::Result;

use crate::output::{print, table};

/// `laneway devices`.
pub fn run() -> Result<()> {
    let devices = futures::executor::block_on(laneway_engine::devices());
    let mut rows = vec![["--device", "NAME", "API", "DRIVER", "AUTO"].map(str::to_owned).to_vec()];
    // `auto` takes the first of the list that it may.
    let chosen = devices.iter().position(|device| device.automatic);
    rows.extend(devices.iter().enumerate().map(|(at, device)| {
        let automatic = if Some(at) == chosen { "yes" } else { "" };
        let cells = [&device.choice.to_string(), &device.name, &device.api, &device.driver, automatic];
        cells.map(str::to_owned).to_vec()
    }));
    print(&table(&rows, &[]))
}
