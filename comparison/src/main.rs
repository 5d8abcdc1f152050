//! One measurement of Windlass or of apalis-postgres, printed as one line of JSON.
//!
//! Both systems go through the same columns ([`columns`]), so that what is measured, counted and checked is the same code.
//! Graphile Worker, which is not Rust, has the same columns in `graphile.mjs`. `run` calls both.

mod apalis_side;
mod columns;
mod job;
mod pacer;
mod plan;
mod report;
mod run_log;
mod server;
mod system;
mod windlass_side;

use anyhow::bail;

use crate::apalis_side::Apalis;
use crate::plan::Plan;
use crate::windlass_side::WindlassSide;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let plan = Plan::from_arguments()?;
    let report = match plan.system.as_str() {
        "windlass" => columns::measure(WindlassSide::open(&plan).await?, &plan).await?,
        "apalis" => columns::measure(Apalis::open(&plan).await?, &plan).await?,
        other => bail!("the system is windlass or apalis, not {other}"),
    };
    println!("{}", serde_json::to_string(&report)?);
    // Connections of systems that cannot be closed end with the process.
    std::process::exit(0)
}
