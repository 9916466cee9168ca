//! Nothing committed names the machine it was written on.

use super::Text;
use super::finding::Finding;
use super::source::numbered;

/// Directories of one machine. In two halves, so that this file does not break its own rule.
const PLACES: [&str; 3] = [concat!("/wo", "rk"), concat!("/ro", "ot/"), concat!("/tmp/ba", "sh")];

/// Checks all texts.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in texts {
        for (number, line) in numbered(&text.text) {
            if let Some(place) = PLACES.iter().find(|place| names(line, place)) {
                let what = format!("{place} is a place on one machine");
                findings.push(Finding::at(&text.path, number, what));
            }
        }
    }
    findings
}

/// Whether `line` holds a path that begins with `place`: whole names, except after a second slash.
fn names(line: &str, place: &str) -> bool {
    let part_of_a_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + place.len()..].chars().next();
        let begins = !before.is_some_and(|c| c == '/' || part_of_a_name(c));
        let whole = place.matches('/').count() > 1 || !after.is_some_and(part_of_a_name);
        begins && whole
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_on_one_machine_is_found() {
        for place in PLACES {
            assert!(names(&format!("see {place}/x"), place), "{place}");
            assert!(names(&format!("(`{place}`)"), place), "{place}");
            assert!(!names(&format!("a{place}/x"), place), "{place}");
            assert!(!names(&format!("/srv{place}/x"), place), "{place}");
        }
        assert!(!names(concat!("/wo", "rkspace"), PLACES[0]));
        assert!(!names(concat!("98:0 /ro", "ot /mnt rw"), PLACES[1]));
        assert!(names(concat!("/tmp/ba", "sh_jobs"), PLACES[2]));
    }

    #[test]
    fn the_line_is_reported() {
        let text = Text { path: "a.md".to_owned(), text: format!("x\ny {}/z\n", PLACES[1]) };
        let findings = check(&[text]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().starts_with("a.md:2: "), "{}", findings[0]);
    }
}
