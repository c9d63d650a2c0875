//! Completions and manual pages, as the program prints them; an attach without usable TLS files.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn holdfast(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast")).env_clear().args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(args: &[&str]) -> String {
    let output = holdfast(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Has no page of its own: agents start it, not people.
const HIDDEN: &str = "holdfast agent watchdog";

/// The names of all help pages, as in the golden file: `holdfast agent switchover`.
fn commands() -> Vec<String> {
    let golden = include_str!("../golden/help.txt");
    golden.lines().filter_map(|line| line.strip_prefix("==== ")).map(str::to_string).collect()
}

/// A program on the path; if it is missing, a line says what was not tested.
fn there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !there {
        println!("not tried: {program} is not installed");
    }
    there
}

#[test]
fn each_shell_gets_completions_in_its_own_language() {
    let shells = [
        ("bash", "complete -F _holdfast"),
        ("elvish", "set edit:completion:arg-completer[holdfast]"),
        ("fish", "complete -c holdfast"),
        ("powershell", "Register-ArgumentCompleter -Native -CommandName 'holdfast'"),
        ("zsh", "#compdef holdfast"),
    ];
    for (shell, its_own) in shells {
        let script = text(&["completions", shell]);
        assert!(script.contains(its_own), "{shell}: {its_own:?} is not in it: {}", &script[..script.len().min(400)]);
        for (other, of_another) in shells.iter().filter(|(other, _)| *other != shell) {
            assert!(!script.contains(of_another), "{shell}: has what is {other}'s");
        }
        // Commands, their subcommands, and flags.
        for command in commands() {
            let last = command.rsplit(' ').next().unwrap();
            assert!(script.contains(last), "{shell}: {command} is not in it");
        }
        for flag in ["allow-data-loss", "output", "tls-ca"] {
            assert!(script.contains(flag), "{shell}: --{flag} is not in it");
        }
    }
    let output = holdfast(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        shells.iter().all(|(shell, _)| told.contains(shell)),
        "a shell that is none is told which there are: {told}"
    );
}

/// The completions that a person at a prompt gets, if the shell is installed.
#[test]
fn bash_takes_its_completions_and_finds_commands_with_them() {
    if !there("bash") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("holdfast.bash");
    std::fs::write(&script, text(&["completions", "bash"])).unwrap();
    let ask = |words: &str, at: usize| {
        let said = Command::new("bash")
            .args(["--norc", "-c"])
            .arg(format!(
                "source '{}' && COMP_WORDS=({words}) && COMP_CWORD={at} && cur=${{COMP_WORDS[$COMP_CWORD]}} && \
                 _holdfast holdfast \"$cur\" \"${{COMP_WORDS[$((COMP_CWORD-1))]}}\" && echo \"${{COMPREPLY[*]}}\"",
                script.display()
            ))
            .output()
            .unwrap();
        assert!(said.status.success(), "{words}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap().trim().to_string()
    };
    assert_eq!(ask("holdfast sw", 1), "switchover");
    assert_eq!(ask("holdfast agent switchover --dr", 3), "--dry-run");
    assert_eq!(ask("holdfast --output j", 2), "json");
}

/// Problems that the formatter of manual pages finds in a page.
fn unformatted(page: &Path) -> String {
    let said = Command::new("groff").args(["-man", "-ww", "-z", "-Kutf8", "-Tutf8"]).arg(page).output().unwrap();
    String::from_utf8_lossy(&said.stderr).into_owned()
}

#[test]
fn the_manual_has_a_page_for_the_program_and_one_for_each_command() {
    let page = text(&["man"]);
    for words in [".TH holdfast 1", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", "holdfast\\-switchover(1)"] {
        assert!(page.contains(words), "{words:?} is not in the page");
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    assert_eq!(text(&["man", "--dir", pages.to_str().unwrap()]), "", "files, nothing else");
    let groff = there("groff");
    let commands = commands();
    assert!(commands.len() > 80, "{}", commands.len());
    for command in commands.iter().filter(|command| *command != HIDDEN) {
        let path = pages.join(format!("{}.1", command.replace(' ', "-")));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(page.contains(".TH ") && page.contains(".SH SYNOPSIS"), "{command}: {page}");
        if groff {
            assert_eq!(unformatted(&path), "", "{command}");
        }
    }
    // A directory that does not exist.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = holdfast(&["man", "--dir", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("manual pages"), "{told}");
}

/// LIVE-C4: attach itself looks whether its TLS files can be used, since devices may wait for it. What looks at this
/// host alone needs none.
#[test]
fn an_attach_looks_for_devices_before_its_tls_files() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let (run, gone) = (at("run"), at("gone.pem"));
    let attach = |more: &[&str]| {
        let mut args = vec!["attach", "demo", "--dir", run.as_str()];
        for flag in ["--tls-ca", "--tls-certificate", "--tls-key"] {
            args.extend([flag, gone.as_str()]);
        }
        args.extend(more);
        let output = holdfast(&args);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, told) = attach(&["--status"]);
    assert!(code == Some(1) && told.contains("nothing is attached there"), "{code:?}: {told}");
    let (code, told) = attach(&["--owner", "db1", "--device", "none"]);
    assert!(code == Some(2) && told.contains("gone.pem") && told.contains("--tls-key"), "{code:?}: {told}");
}
