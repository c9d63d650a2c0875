//! The host: kernel, its nbd driver, clocks.

use super::finding::Finding;
use std::path::Path;
use std::time::Duration;

/// Linux of the kernel's nbd devices: earlier ones cannot replace the connection of a device.
const NBD_SINCE: (u32, u32) = (5, 14);

/// Clock sources that are read without a system call or a slow device.
const QUICK_CLOCKS: [&str; 6] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen", "riscv_clocksource"];

/// Time limit of the question whether the clock is synchronised.
const TIMEDATECTL_LIMIT: Duration = Duration::from_secs(5);

/// A short file below `root`, which is `/` except in tests.
fn read(root: &Path, path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(root.join(path)).map_err(|error| format!("/{path}: {error}"))?;
    Ok(text.trim().to_owned())
}

/// `MAJOR.MINOR` at the beginning of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The kernel. `devices`: this host attaches volumes as devices.
pub fn kernel(root: &Path, devices: bool) -> Vec<Finding> {
    let release = match read(root, "proc/sys/kernel/osrelease") {
        Ok(release) => release,
        Err(why) => return vec![Finding::unknown("kernel", why, "")],
    };
    let old = version(&release).is_some_and(|found| found < NBD_SINCE);
    let mut found = vec![match old && devices {
        true => Finding::warning(
            "kernel",
            format!("Linux {release}; expected {}.{} or later for nbd devices", NBD_SINCE.0, NBD_SINCE.1),
            "upgrade the kernel, or use `attach --device nbdfuse` for tests",
        ),
        false => Finding::ok("kernel", format!("Linux {release}")),
    }];
    if devices {
        found.push(nbd(root, &release));
    }
    found
}

fn nbd(root: &Path, release: &str) -> Finding {
    const CHECK: &str = "nbd driver";
    if root.join("sys/module/nbd").is_dir() {
        return Finding::ok(CHECK, "loaded");
    }
    let listed = |file: &str| read(root, &format!("lib/modules/{release}/{file}")).map(|list| list.contains("/nbd.ko"));
    match (listed("modules.builtin"), listed("modules.dep")) {
        (Ok(true), _) => Finding::ok(CHECK, "part of the kernel"),
        (_, Ok(true)) => Finding::warning(
            CHECK,
            "not loaded",
            "load it now and at each start: `modprobe nbd`, `echo nbd > /etc/modules-load.d/nbd.conf`",
        ),
        (_, Ok(false)) => Finding::warning(
            CHECK,
            format!("the kernel {release} has none"),
            "install the kernel's package with all modules; `attach --device nbdfuse` needs none, for tests",
        ),
        (_, Err(why)) => Finding::unknown(CHECK, why, "try `modprobe nbd` as root"),
    }
}

/// The kernel's clock, which each read of a client's data looks at (R3).
pub fn clock_source(root: &Path) -> Finding {
    const CHECK: &str = "clock source";
    match read(root, "sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Err(why) => Finding::unknown(CHECK, why, ""),
        Ok(source) if QUICK_CLOCKS.contains(&source.as_str()) => Finding::ok(CHECK, source),
        Ok(source) => Finding::warning(
            CHECK,
            format!("{source}, which is slow to read"),
            "`dmesg | grep -i clocksource` says why the kernel does not use the processor's",
        ),
    }
}

/// Whether something synchronises the time of day.
pub async fn time_of_day() -> Finding {
    let mut command = tokio::process::Command::new("timedatectl");
    command.args(["show", "--property=NTPSynchronized", "--value"]).kill_on_drop(true);
    command.stdin(std::process::Stdio::null());
    let said = match tokio::time::timeout(TIMEDATECTL_LIMIT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {TIMEDATECTL_LIMIT:?}")),
    };
    synchronised(said)
}

fn synchronised(said: Result<String, String>) -> Finding {
    const CHECK: &str = "time of day";
    match said.as_deref() {
        Ok("yes") => Finding::ok(CHECK, "synchronised"),
        Ok("no") => Finding::warning(
            CHECK,
            "not synchronised",
            "install chrony or systemd-timesyncd: stores refuse requests, and certificates expire, by this clock",
        ),
        Ok(other) => Finding::unknown(CHECK, format!("timedatectl: found {other:?}, expected yes or no"), ""),
        Err(why) => {
            Finding::unknown(CHECK, format!("timedatectl: {why}"), "check that chrony or another NTP client runs")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn verdicts(findings: &[Finding]) -> Vec<Verdict> {
        findings.iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn a_host_for_devices_needs_the_driver() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(verdicts(&kernel(root, true)), [Verdict::Unknown], "nothing can be read");
        write(root, "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
        assert_eq!(verdicts(&kernel(root, false)), [Verdict::Ok]);
        assert_eq!(verdicts(&kernel(root, true)), [Verdict::Ok, Verdict::Unknown], "no list of modules");
        write(root, "lib/modules/6.1.0-18-amd64/modules.dep", "kernel/drivers/block/loop.ko:\n");
        let found = kernel(root, true);
        assert!(found[1].verdict == Verdict::Warning && found[1].found.contains("has none"), "{found:?}");
        write(root, "lib/modules/6.1.0-18-amd64/modules.dep", "kernel/drivers/block/nbd.ko:\n");
        assert!(kernel(root, true)[1].next.contains("modprobe nbd"));
        write(root, "sys/module/nbd/refcnt", "0\n");
        assert_eq!(verdicts(&kernel(root, true)), [Verdict::Ok, Verdict::Ok]);
        write(root, "proc/sys/kernel/osrelease", "5.10.0-28-amd64\n");
        assert_eq!(kernel(root, true)[0].verdict, Verdict::Warning);
        assert_eq!(kernel(root, false)[0].verdict, Verdict::Ok, "a gateway makes no devices");
    }

    #[test]
    fn clocks_are_judged_and_what_is_not_known_is_not_bad() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(clock_source(dir.path()).verdict, Verdict::Unknown);
        let path = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        for (source, verdict) in [("tsc\n", Verdict::Ok), ("hpet\n", Verdict::Warning)] {
            write(dir.path(), path, source);
            assert_eq!(clock_source(dir.path()).verdict, verdict, "{source}");
        }
        for (said, verdict) in [
            (Ok("yes"), Verdict::Ok),
            (Ok("no"), Verdict::Warning),
            (Ok("n/a"), Verdict::Unknown),
            (Err("no such program"), Verdict::Unknown),
        ] {
            let finding = synchronised(said.map(String::from).map_err(String::from));
            assert_eq!(finding.verdict, verdict, "{finding:?}");
        }
    }
}
