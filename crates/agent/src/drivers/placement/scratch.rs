//! Directories whose content PostgreSQL can lose: its own log, statistics and temporary files.

use crate::config::AgentConfig;
use std::path::Path;

/// Names of such directories, and of links in their place, in the data directory and in `base`.
pub const NAMES: [&str; 4] = ["log", "pg_log", "pg_stat_tmp", TEMPORARY];

/// Directory with temporary files, in `base` and in each tablespace.
const TEMPORARY: &str = "pgsql_tmp";

/// Whether `at` is in such a directory below `real`: the data directory, or a tablespace.
pub fn is_below(real: &Path, at: &Path) -> bool {
    let Ok(rest) = at.strip_prefix(real) else { return false };
    NAMES.iter().any(|name| rest.starts_with(name)) || has_temporary_files(rest)
}

/// Like `is_below`, for any path: a tablespace lies outside of the data directory. Of another service than PostgreSQL
/// nothing is known to be without worth, whatever its name is.
pub fn is_scratch(config: &AgentConfig, at: &Path) -> bool {
    config.service.is_none() && (is_below(config.data(), at) || has_temporary_files(at))
}

fn has_temporary_files(at: &Path) -> bool {
    at.components().any(|part| part.as_os_str() == TEMPORARY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_statistics_and_logs_may_be_lost() {
        let data = Path::new("/srv/pg/data");
        let may_be_lost = |at: &str| is_below(data, Path::new(at));
        for lost in ["pg_stat_tmp", "base/pgsql_tmp", "log", "pg_log/today", "pg_tblspc/1/PG_15_202209061/pgsql_tmp"] {
            assert!(may_be_lost(&format!("/srv/pg/data/{lost}")), "{lost}");
        }
        for kept in ["", "base", "base/16384", "pg_stat", "pg_wal", "pgsql_tmp2", "logs"] {
            assert!(!may_be_lost(&format!("/srv/pg/data/{kept}")), "{kept}");
        }
        assert!(!may_be_lost("/srv/pg/log") && !may_be_lost("/pgsql_tmp"));
        let mut config = AgentConfig::default();
        config.database.data = data.into();
        let is_scratch = |at: &str| is_scratch(&config, Path::new(at));
        assert!(is_scratch("/srv/pg/data/log") && is_scratch("/srv/pg/space/PG_15_202209061/pgsql_tmp"));
        assert!(!is_scratch("/srv/pg/log") && !is_scratch("/srv/pg/space"));
    }
}
