//! What cargo says of a build (`--message-format json`): the programs that it made, and the errors with their places.

use serde_json::Value;
use std::path::{Path, PathBuf};

/// A program that cargo has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    package: String,
    /// `lib`, `bin` or `test`.
    kind: String,
    name: String,
    /// With tests in it.
    test: bool,
    pub(super) path: PathBuf,
    /// The package's folder, in which cargo runs its tests.
    pub(super) folder: PathBuf,
}

impl Program {
    /// Whether `cargo test -p PACKAGE TARGET` runs this.
    pub(super) fn is_test(&self, package: &str, target: &[&str]) -> bool {
        let named = match target {
            ["--lib"] => self.kind == "lib",
            ["--test", name] => self.kind == "test" && self.name == *name,
            ["--bin", name] => self.kind == "bin" && self.name == *name,
            _ => false,
        };
        self.test && named && self.package == package
    }

    /// Whether this is the program of that name itself.
    pub(super) fn is_program(&self, name: &str) -> bool {
        !self.test && self.kind == "bin" && self.name == name
    }
}

/// An error of the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Its first line.
    pub(super) text: String,
    /// Files and lines, beginning with the place of the error itself; those of its notes are last.
    pub(super) places: Vec<(String, usize)>,
}

/// All that cargo has said.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) programs: Vec<Program>,
    pub(super) errors: Vec<Failure>,
}

impl Said {
    /// Reads cargo's messages, one a line. Files of errors are relative to `tree`.
    pub(super) fn of(text: &str, tree: &Path) -> Self {
        let mut said = Self::default();
        for message in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            match message["reason"].as_str() {
                Some("compiler-artifact") => said.programs.extend(program(&message)),
                Some("compiler-message") => said.errors.extend(failure(&message["message"], tree)),
                _ => {}
            }
        }
        said
    }
}

fn program(message: &Value) -> Option<Program> {
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Program {
        package: package(message["package_id"].as_str()?)?.to_owned(),
        kind: message["target"]["kind"][0].as_str()?.to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        test: message["profile"]["test"].as_bool()?,
        path: PathBuf::from(message["executable"].as_str()?),
        folder: folder.to_owned(),
    })
}

/// The name in an id of a package: `path+file:///tree/crates/set#holdfast-set@0.1.0`, or
/// `path+file:///tree/crates/holdfast#0.1.0` where the folder has the same name.
fn package(id: &str) -> Option<&str> {
    let (path, version) = id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => path.rsplit('/').next(),
    }
}

fn failure(message: &Value, tree: &Path) -> Option<Failure> {
    if !message["level"].as_str()?.starts_with("error") {
        return None;
    }
    let mut places = Vec::new();
    for first in [true, false] {
        for span in message["spans"].as_array().into_iter().flatten() {
            if span["is_primary"] == first {
                add(span, tree, &mut places);
            }
        }
    }
    for note in message["children"].as_array().into_iter().flatten() {
        note["spans"].as_array().into_iter().flatten().for_each(|span| add(span, tree, &mut places));
    }
    Some(Failure { text: message["message"].as_str()?.lines().next().unwrap_or_default().to_owned(), places })
}

/// Adds the place of a span, and of the macro call that it comes from.
fn add(span: &Value, tree: &Path, places: &mut Vec<(String, usize)>) {
    let mut span = span;
    loop {
        if let (Some(file), Some(line)) = (span["file_name"].as_str(), span["line_start"].as_u64()) {
            let file = Path::new(file).strip_prefix(tree).unwrap_or(Path::new(file));
            places.push((file.display().to_string(), usize::try_from(line).unwrap_or(0)));
        }
        match &span["expansion"]["span"] {
            Value::Null => return,
            outer => span = outer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_as_cargo_test_names_them() {
        let text = r#"{"reason":"compiler-artifact","package_id":"path+file:///t/crates/set#holdfast-set@0.1.0","manifest_path":"/t/crates/set/Cargo.toml","target":{"kind":["lib"],"name":"holdfast_set"},"profile":{"test":true},"executable":"/b/holdfast_set-1"}
{"reason":"compiler-artifact","package_id":"path+file:///t/crates/set#holdfast-set@0.1.0","manifest_path":"/t/crates/set/Cargo.toml","target":{"kind":["lib"],"name":"holdfast_set"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///t/crates/holdfast#0.1.0","manifest_path":"/t/crates/holdfast/Cargo.toml","target":{"kind":["bin"],"name":"holdfast"},"profile":{"test":true},"executable":"/b/holdfast-2"}
{"reason":"compiler-artifact","package_id":"path+file:///t/crates/holdfast#0.1.0","manifest_path":"/t/crates/holdfast/Cargo.toml","target":{"kind":["bin"],"name":"holdfast"},"profile":{"test":false},"executable":"/b/holdfast"}
{"reason":"compiler-artifact","package_id":"path+file:///t/crates/holdfast#0.1.0","manifest_path":"/t/crates/holdfast/Cargo.toml","target":{"kind":["test"],"name":"program"},"profile":{"test":true},"executable":"/b/program-3"}
{"reason":"build-finished","success":true}
not json"#;
        let said = Said::of(text, Path::new("/t"));
        let of = |package: &str, target: &[&str]| {
            let found: Vec<_> = said.programs.iter().filter(|one| one.is_test(package, target)).collect();
            assert!(found.len() <= 1);
            found.first().map(|one| (one.path.to_str().unwrap(), one.folder.to_str().unwrap()))
        };
        assert_eq!(of("holdfast-set", &["--lib"]), Some(("/b/holdfast_set-1", "/t/crates/set")));
        assert_eq!(of("holdfast", &["--bin", "holdfast"]), Some(("/b/holdfast-2", "/t/crates/holdfast")));
        assert_eq!(of("holdfast", &["--test", "program"]), Some(("/b/program-3", "/t/crates/holdfast")));
        assert_eq!(of("holdfast", &["--lib"]), None);
        let program = said.programs.iter().find(|one| one.is_program("holdfast")).unwrap();
        assert_eq!(program.path, Path::new("/b/holdfast"));
        assert!(said.errors.is_empty());
    }

    #[test]
    fn an_error_has_the_places_of_its_spans_of_macro_calls_and_of_notes() {
        let text = r#"{"reason":"compiler-message","message":{"level":"warning","message":"w","spans":[],"children":[]}}
{"reason":"compiler-message","message":{"level":"error","message":"no Send\nmore","spans":[{"file_name":"crates/a/src/b.rs","line_start":9,"is_primary":false,"expansion":null},{"file_name":"/rustc/m.rs","line_start":1,"is_primary":true,"expansion":{"span":{"file_name":"/t/crates/a/src/b.rs","line_start":5,"expansion":null}}}],"children":[{"spans":[{"file_name":"crates/a/src/c.rs","line_start":7,"is_primary":true,"expansion":null}]}]}}
{"reason":"compiler-message","message":{"level":"error","message":"aborting","spans":[],"children":[]}}"#;
        let said = Said::of(text, Path::new("/t"));
        let place = |file: &str, line| (file.to_owned(), line);
        assert_eq!(said.errors.len(), 2);
        assert_eq!(said.errors[0].text, "no Send");
        let expected = [
            place("/rustc/m.rs", 1),
            place("crates/a/src/b.rs", 5),
            place("crates/a/src/b.rs", 9),
            place("crates/a/src/c.rs", 7),
        ];
        assert_eq!(said.errors[0].places, expected);
        assert!(said.errors[1].places.is_empty());
    }
}
