//! The configurations that the guide shows: pairs for a proxy and the server.

const PAGE: &str = include_str!("../../../../../docs/guide/proxies.md");

/// The configurations for one proxy.
#[derive(Clone, Debug)]
pub(crate) struct GuideExample {
    /// `nginx`, `haproxy` or `caddy`.
    pub(crate) program: &'static str,
    pub(crate) proxy: String,
    /// The server's configuration.
    pub(crate) server: String,
}

/// All proxies of the page, in order: a block of the proxy, and the next block of the server.
pub(crate) fn all() -> Vec<GuideExample> {
    let mut shown = Vec::new();
    let mut proxy = None;
    for (language, text) in blocks() {
        let program = ["nginx", "haproxy", "caddy"].into_iter().find(|name| *name == language);
        match (program, language) {
            (Some(program), _) => proxy = Some((program, text)),
            (None, "toml") => {
                if let Some((program, proxy)) = proxy.take() {
                    shown.push(GuideExample { program, proxy, server: text });
                }
            }
            _ => panic!("no test for blocks of {language:?}"),
        }
    }
    assert!(proxy.is_none(), "a proxy's block has no block of the server");
    shown
}

/// The server's configuration for pages of other sites.
pub(crate) fn other_sites() -> String {
    let blocks = blocks();
    let (_, last) = blocks.last().expect("there are some");
    assert!(last.contains("allowed_origins"), "{last}");
    last.clone()
}

fn blocks() -> Vec<(&'static str, String)> {
    let mut blocks = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```").filter(|rest| !rest.is_empty()) else {
            continue;
        };
        let text = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n"));
        blocks.push((language, text.collect()));
    }
    blocks
}
