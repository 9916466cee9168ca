//! The bench of Tactus: load, receivers, emulated disks, peers and reports.
//!
//! Promise: every bench starts what it needs, measures in interleaved rounds, writes one report and
//! takes everything down again. It needs root, and Linux; it never gates anything by itself.


use anyhow::Result;
use tactus_bench::*; use tactus_bench::peers::{Nginx, NginxStyle};
use tactus_core::units::{BitRate, SECOND, Nanos};

fn main() -> Result<()> {
    interrupt::listen()?;
    let wire = netns::Wire::lay()?;
    let rate = BitRate(8_800_000);
    let t = titles::Titles::lay(std::path::Path::new("/work/tgt/bench/data"), 200, run::Scene::title_size(rate, SECOND, SECOND, SECOND.times(20)))?;
    let idle = run::idle(SECOND.times(5))?;
    println!("{idle:?}");
    for style in [NginxStyle::Sendfile, NginxStyle::Defaults, NginxStyle::SendfileThreads] {
        let scene = run::Scene { wire: &wire, titles: &t, rate, streams: 200, stagger: SECOND, warm_up: SECOND, length: SECOND.times(20),
            start_up: SECOND.times(2), cold: true, server_cores: "0", receiver_core: 1, idle: Some(&idle), accept_noise: true };
        let o = run::run(&Nginx(style), &scene)?;
        println!("{:#?} {:?} {:?}", o.figures(&scene)?, o.reasons(), o.notes);
    }
    let _ : Nanos = SECOND;
    Ok(())
}
