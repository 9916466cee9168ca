//! Programs of others that a test needs.

/// The path of `program`.
///
/// # Panics
///
/// If it is not installed; `package` has it.
pub fn installed(program: &str, package: &str) -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|directory| directory.join(program));
    let found = places.find(|file| file.is_file()).unwrap_or_else(|| {
        panic!("{program} is missing: install the package {package}, or run cargo xtask setup")
    });
    found.to_str().expect("a plain name").to_owned()
}
