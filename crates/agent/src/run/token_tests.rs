//! The file with the token, and the TLS files.

use super::opened::token_in;
use super::*;
use holdfast_tls::files::SECRET_BYTES_MAX;

/// A token file that is gone, or that others can read, is no reason to leave PostgreSQL without its agent. The check of
/// the settings tells it.
#[test]
fn an_agent_goes_on_without_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.token");
    let mut config = AgentConfig::default();
    assert_eq!(token_of(&config), None);
    check_files(&config).unwrap();
    config.http.token_file = Some(path.clone());
    let told = || check_files(&config).unwrap_err().to_string();
    assert_eq!(token_of(&config), None);
    assert!(told().contains("agent.token"), "{}", told());
    std::fs::write(&path, "secret").unwrap();
    let set = |mode| std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    set(0o644);
    assert_eq!(token_of(&config), None);
    assert!(told().contains("found mode 0644"), "{}", told());
    set(0o600);
    assert_eq!(token_of(&config).as_deref(), Some("secret"));
    check_files(&config).unwrap();
    // systemd makes it when it starts the unit.
    config.http.token_file = Some("/run/credentials/holdfast-no-such.service/agent.token".into());
    check_files(&config).unwrap();
}

/// The check of the settings tells it, and the start: before its run directory, its doors or a device are made.
#[tokio::test]
async fn an_agent_with_a_link_in_its_mount_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
    let mut config = AgentConfig { run_dir: real.join("run"), dir: real.join("dir"), ..AgentConfig::default() };
    config.pool.mount = real.join("link/pg");
    let expected = format!("set it to {}", real.join("pg").display());
    let checked = check_files(&config).unwrap_err().to_string();
    assert!(checked.starts_with("pool.mount: ") && checked.ends_with(&expected), "{checked}");
    let started = super::super::run(config, std::future::pending(), || Ok(())).await.unwrap_err().to_string();
    assert_eq!(started, checked);
    assert!(!real.join("run").exists());
}

/// LISTEN-L3: a certificate that is being written is no reason to leave PostgreSQL without its agent.
#[tokio::test]
async fn an_agent_with_something_to_do_goes_on_without_its_certificate() {
    use holdfast_tls::Role;
    use holdfast_tls::make::{Wanted, certificates};
    let (dir, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    certificates(dir.path(), &[Wanted::new("db1", Role::Host)], 30).unwrap();
    let at = |name: &str| Some(dir.path().join(name));
    let mut config = AgentConfig::default();
    (config.tls.ca, config.tls.certificate, config.tls.key) = (at("ca.pem"), at("db1.pem"), at("db1.key"));
    (config.dir, config.run_dir) = (dir.path().join("dir"), dir.path().join("run"));
    let good = crate::drivers::Real::new(&config).unwrap();
    check_tls(good.tls(), &fake).await.unwrap();
    std::fs::write(dir.path().join("db1.pem"), "").unwrap();
    let cut = crate::drivers::Real::new(&config).expect("it does not decide");
    let refused = check_tls(cut.tls(), &fake).await.unwrap_err().to_string();
    assert!(refused.starts_with("[tls]: ") && refused.contains("db1.pem"), "{refused}");
    let checked = check_files(&config).unwrap_err().to_string();
    assert!(checked.starts_with("[tls]: ") && checked.contains("db1.pem"), "{checked}");
    fake.world(|world| world.found.database = true);
    check_tls(cut.tls(), &fake).await.unwrap();
    assert!(cut.tls().unwrap().trouble().is_some(), "it has TLS, and none that works");
    check_tls(None, &Fake::default()).await.unwrap();
}

/// A setting that names a log or a device by mistake is reported, and the file is not read to its end.
#[test]
fn a_token_is_read_with_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.token");
    std::fs::write(&path, "  secret\n").unwrap();
    let set = |mode| std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    set(0o644);
    let told = token_in(&path).unwrap_err().to_string();
    assert!(told.contains("agent.token: found mode 0644") && told.contains("chmod 600"), "SECRET-F1: {told}");
    set(0o600);
    assert_eq!(&*token_in(&path).unwrap(), "secret");
    std::fs::write(&path, "x".repeat(SECRET_BYTES_MAX as usize + 1)).unwrap();
    let told = token_in(&path).unwrap_err().to_string();
    assert!(told.ends_with("agent.token: found at least 65537 bytes, expected at most 65536"), "{told}");
}
