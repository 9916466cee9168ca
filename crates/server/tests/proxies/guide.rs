//! What the guide shows: pairs of a proxy's configuration and the server's.

const PAGE: &str = include_str!("../../../../docs/guide/proxies.md");

/// One proxy as the guide shows it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// `nginx`, `haproxy` or `caddy`.
    pub(crate) program: &'static str,
    pub(crate) proxy: String,
    /// What the server is told.
    pub(crate) server: String,
}

/// Every proxy of the page, in its order: a block of the proxy, and the next of the server.
pub(crate) fn all() -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut proxy = None;
    for (language, text) in blocks() {
        let program = ["nginx", "haproxy", "caddy"].into_iter().find(|name| *name == language);
        match (program, language) {
            (Some(program), _) => proxy = Some((program, text)),
            (None, "toml") => {
                if let Some((program, proxy)) = proxy.take() {
                    shown.push(Shown { program, proxy, server: text });
                }
            }
            _ => panic!("a block of {language:?} is not tried"),
        }
    }
    assert!(proxy.is_none(), "a proxy is shown without the server's part");
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
