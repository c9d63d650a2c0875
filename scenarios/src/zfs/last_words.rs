//! What a guest says while it shuts down. Nobody can ask it then, and after a power-off its disk is gone: a unit that a
//! shutdown does not end writes it to the console, which is a file of the host.

/// Its name.
pub const UNIT: &str = "last-words.service";

/// Begin of each of its lines: systemd writes to the console too.
const MARK: &str = "said: ";

/// Logs that are not in the journal: PostgreSQL's of a Debian cluster, and that of the watchdog's helper.
const FILES: &str = "/var/log/postgresql/postgresql-15-main.log /run/holdfast-agent/watchdog.log";

/// The unit file, for the journal of these units.
pub fn unit_file(units: &[&str]) -> String {
    let units: Vec<String> = units.iter().map(|unit| format!("-u {unit}")).collect();
    format!(
        "[Unit]\nDescription=What is said while the machine shuts down\n\
         # No Conflicts=shutdown.target: it goes on until the last processes are killed.\nDefaultDependencies=no\n\
         [Service]\nExecStart=/bin/sh -c '(tail -q -n 0 -F {FILES} & journalctl -f -n 0 -o short-precise {}) 2>&1 \
         | sed -u \"s/^/{MARK}/\" > /dev/console'\n",
        units.join(" ")
    )
}

/// The last `lines` of these lines in a console's log. systemd writes its progress without an end of line.
pub fn of(console: &str, lines: usize) -> Vec<&str> {
    let said = console.lines().filter_map(|line| line.find(MARK).map(|at| line[at + MARK.len()..].trim_end()));
    let all: Vec<&str> = said.collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_among_those_of_systemd() {
        let console = "guest: up after 9.1 s\r\nsaid: 10:00:01 told to end\r\n\r\x1b[K[***  ] A stop job runs\
             said: 10:00:09 the agent ends\r\n[  OK  ] Stopped target\r\nsaid: 10:00:10 shut down\r\n";
        assert_eq!(of(console, 9), ["10:00:01 told to end", "10:00:09 the agent ends", "10:00:10 shut down"]);
        assert_eq!(of(console, 1), ["10:00:10 shut down"]);
        assert!(of("", 9).is_empty());
    }

    /// Otherwise a shutdown ends it first, and it shows nothing.
    #[test]
    fn the_unit_is_not_ended_by_a_shutdown() {
        let text = unit_file(&["a.service", "b.service"]);
        assert!(text.contains("\nDefaultDependencies=no\n") && !text.contains("\nConflicts="), "{text}");
        assert!(text.contains(" -u a.service -u b.service)"), "{text}");
    }
}
