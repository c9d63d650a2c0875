//! The licences of the crates that are linked into the program: most ask that their text goes with it.

use crate::sbom::Crate;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// How the names of such files begin, in capital letters.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// One text for all: first which crate has which licence, then each text once, with the crates that it came with. Fails
/// when a file cannot be read.
pub fn text(crates: &[Crate]) -> Result<String> {
    let outside: Vec<&Crate> = crates.iter().filter(|one| one.checksum.is_some()).collect();
    let mut out = String::from("Holdfast contains these crates, unchanged, from https://crates.io:\n\n");
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for one in outside {
        let license = one.license.as_deref().unwrap_or("see its text below");
        let _ = writeln!(out, "{} {}: {license}", one.name, one.version);
        for text in texts_of(&one.folder)? {
            texts.entry(text).or_default().insert(format!("{} {}", one.name, one.version));
        }
    }
    let mut sorted: Vec<(Vec<String>, String)> =
        texts.into_iter().map(|(text, names)| (names.into_iter().collect(), text)).collect();
    sorted.sort();
    for (names, text) in sorted {
        let _ = write!(out, "\n{}\nFrom: {}\n\n{}\n", "-".repeat(80), names.join(", "), text.trim_end());
    }
    Ok(out)
}

fn texts_of(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            // One text with other line ends is the same text.
            texts.push(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_two_crates_is_there_once_with_both_names() {
        let top = std::env::temp_dir().join(format!("holdfast-notices-{}", std::process::id()));
        let made = |name: &str, text: &str| {
            let folder = top.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("license-mit"), text).unwrap();
            std::fs::write(folder.join("README"), "no licence").unwrap();
            let (license, checksum) = (Some("MIT".to_owned()), Some("aa".to_owned()));
            Crate { name: name.into(), version: "1.0.0".into(), license, folder, checksum, uses: Vec::new() }
        };
        let crates = [made("one", "Permission\r\n"), made("two", "Permission\n"), made("three", "Other\n")];
        let text = text(&crates).unwrap();
        std::fs::remove_dir_all(&top).unwrap();
        assert!(text.contains("\none 1.0.0: MIT\n") && text.contains("\nFrom: one 1.0.0, two 1.0.0\n"), "{text}");
        assert_eq!(text.matches("Permission").count(), 1, "{text}");
        assert!(!text.contains("no licence"), "{text}");
    }
}
