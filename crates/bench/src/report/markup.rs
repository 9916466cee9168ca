//! Text inside HTML and SVG: what it says is never taken for an element.

/// `text` as it stands inside an element.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
