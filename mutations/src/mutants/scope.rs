//! Crates whose safety code gets mutants, and the tests that decide about each. `.cargo/mutants.toml` names the files.

/// One crate.
pub(super) struct Scope {
    /// The folder below `crates/`; the package is `holdfast-` and this.
    pub(super) name: &'static str,
    /// Arguments of `cargo test`: the targets that decide. They take seconds; simulation and scenarios are not among
    /// them.
    pub(super) tests: &'static [&'static str],
}

const fn scope(name: &'static str, tests: &'static [&'static str]) -> Scope {
    Scope { name, tests }
}

/// All of them, cheapest first.
pub(super) static SCOPES: [Scope; 10] = [
    scope("seal", &["--lib", "--test=seal"]),
    scope("journal", &["--lib", "--test=journal"]),
    scope("control", &["--lib", "--test=stories", "--test=model"]),
    scope("volume", &["--lib", "--test=bounded_decode"]),
    scope("log", &["--lib", "--test=log"]),
    scope("attach", &["--lib"]),
    scope("front", &["--lib"]),
    scope("raft", &["--lib"]),
    scope("set", &["--lib"]),
    scope("gateway", &["--lib"]),
];

impl Scope {
    pub(super) fn package(&self) -> String {
        format!("holdfast-{}", self.name)
    }

    /// Each of its test programs, as two words or one: `--test`, `seal` or `--lib`.
    pub(super) fn targets(&self) -> impl Iterator<Item = Vec<&'static str>> {
        self.tests.iter().map(|test| test.split('=').collect())
    }
}

/// The crate of a package.
pub(super) fn of_package(package: &str) -> Option<&'static Scope> {
    SCOPES.iter().find(|scope| scope.package() == package)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary::root;

    /// Without its tests, each mutant of a crate would survive.
    #[test]
    fn the_tests_that_decide_are_there() {
        for scope in &SCOPES {
            let folder = root().join("crates").join(scope.name);
            for target in scope.tests {
                let there = match target.strip_prefix("--test=") {
                    Some(name) => {
                        ["", "/main"].iter().any(|end| folder.join(format!("tests/{name}{end}.rs")).is_file())
                    }
                    None => folder.join("src/lib.rs").is_file(),
                };
                assert!(there, "{}: no target {target}", scope.name);
            }
        }
    }

    /// A pattern that matches no file leaves its file without mutants, and nobody would notice.
    #[test]
    fn each_file_of_the_settings_is_there_and_in_a_known_crate() {
        let text = std::fs::read_to_string(root().join(".cargo/mutants.toml")).unwrap();
        let globs = text.split("examine_globs = [").nth(1).unwrap().split("\n]").next().unwrap();
        let globs: Vec<&str> =
            globs.lines().filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect();
        assert!(globs.len() > SCOPES.len(), "{globs:?}");
        for glob in globs {
            let path = root().join(glob.strip_suffix("/**").unwrap_or(glob));
            assert!(path.exists(), "{glob}: no such file or folder");
            let name = glob.strip_prefix("crates/").and_then(|rest| rest.split('/').next());
            assert!(SCOPES.iter().any(|scope| Some(scope.name) == name), "{glob}: its crate is not in SCOPES");
        }
    }
}
