//! Health: whether the server works as configured (`/healthz`, `/readyz`, the status).
//!
//! Promise: an answer waits for no disk: it is a view of conditions, counters and alarms that other
//! parts maintain. Liveness depends on nothing.

use serde::Serialize;
use tactus_http::Response;
use tactus_storage::conditions::Severity;

use super::Sources;

/// The server's problems.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(super) struct Health {
    /// Whether requests should be sent to this server.
    pub(super) ready: bool,
    /// Reasons why not.
    pub(super) reasons: Vec<String>,
    /// Problems for an operator; with `strict`, they count as reasons.
    pub(super) warnings: Vec<String>,
}

impl Health {
    pub(super) fn now(sources: &Sources) -> Self {
        let mut reasons = vec![];
        for (index, volume) in sources.volumes.iter().enumerate() {
            if !sources.watchdog.is_up(index) {
                reasons.push(format!("volume {}: its disk does not respond", volume.mount));
            }
        }
        let mut warnings = sources.degraded_by_host();
        for condition in sources.conditions() {
            let line = format!("{}: {}", condition.subject, condition.message);
            match condition.severity {
                Severity::Fault => reasons.push(line),
                Severity::Warning => warnings.push(line),
                Severity::Notice => {}
            }
        }
        for core in sources.stalls.summary().standing {
            reasons.push(format!("core {} stands still: {}", core.core, core.cause));
        }
        if sources.config.strict {
            reasons.append(&mut warnings);
        }
        Self { ready: reasons.is_empty(), reasons, warnings }
    }

    /// The answer of `/readyz`: a status for load balancers, and one line per problem.
    pub(super) fn answer(&self) -> Response {
        let lines = |word: &str, all: &[String]| -> String {
            all.iter().map(|one| format!("\n{word}: {}", one.replace('\n', " "))).collect()
        };
        let warnings = lines("warning", &self.warnings);
        match self.ready {
            true => Response::text(200, format!("ready{warnings}")),
            false => {
                let reasons = lines("reason", &self.reasons);
                Response::text(503, format!("not ready{reasons}{warnings}"))
            }
        }
    }
}

/// The answer of `/healthz`: the program runs and responds.
pub(super) fn alive() -> Response {
    Response::text(200, "alive")
}
