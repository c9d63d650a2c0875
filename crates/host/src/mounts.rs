//! The kernel's mount table, of this process or of another one. It is read as bytes, because any user may mount at a
//! path that is not UTF-8. Reading it touches no device: the device may be dead.

mod spread;

pub use spread::Spread;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// This process's own.
const TABLE: &str = "/proc/self/mountinfo";

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Its number, unique while it exists, and its device's.
    pub id: String,
    /// Its source.
    pub source: String,
}

/// The mount that a path lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub at: PathBuf,
    /// Numbers of its device, `MAJOR:MINOR`.
    pub device: String,
    /// Its file system: `ext4`, `zfs`.
    pub kind: String,
    /// What is mounted: a device, or a ZFS dataset.
    pub source: String,
    /// Options of the file system itself, with commas between them.
    pub options: String,
}

/// A line of the table.
#[derive(Clone, Debug)]
struct Line {
    id: String,
    parent: String,
    /// The device's numbers.
    device: String,
    /// What of the file system is mounted.
    root: PathBuf,
    at: PathBuf,
    /// Its peer group.
    shared: Option<String>,
    /// The peer group that it follows.
    master: Option<String>,
    kind: String,
    source: String,
    options: String,
}

impl From<Line> for Mount {
    fn from(line: Line) -> Self {
        let Line { device, at, kind, source, options, .. } = line;
        Self { at, device, kind, source, options }
    }
}

/// A field without the kernel's escapes: blanks and the like are `\` and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(field.len()), field);
    loop {
        match rest {
            [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', more @ ..] => {
                plain.push(((high - b'0') << 6) | ((middle - b'0') << 3) | (low - b'0'));
                rest = more;
            }
            [byte, more @ ..] => {
                plain.push(*byte);
                rest = more;
            }
            [] => return plain,
        }
    }
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescaped(field)).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescaped(field)))
}

fn line(line: &[u8]) -> Option<Line> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    // There may be any number of optional fields before it.
    let dash = fields.iter().position(|field| *field == b"-")?;
    let tagged = |tag: &[u8]| fields.get(6..dash)?.iter().find_map(|field| field.strip_prefix(tag)).map(text);
    Some(Line {
        id: text(fields.first()?),
        parent: text(fields.get(1)?),
        device: text(fields.get(2)?),
        root: path(fields.get(3)?),
        at: path(fields.get(4)?),
        shared: tagged(b"shared:"),
        master: tagged(b"master:"),
        kind: text(fields.get(dash + 1)?),
        source: text(fields.get(dash + 2)?),
        options: fields.get(dash + 3).map(|field| text(field)).unwrap_or_default(),
    })
}

fn lines(table: &[u8]) -> impl DoubleEndedIterator<Item = Line> {
    table.split(|byte| *byte == b'\n').filter_map(line)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// The mount at `at`, `None` if there is none.
///
/// # Errors
/// The table cannot be read: something may be mounted there.
pub fn mount_at(at: &Path) -> Result<Option<Mounted>, String> {
    mount_in(Path::new(TABLE), at)
}

fn mount_in(file: &Path, at: &Path) -> Result<Option<Mounted>, String> {
    Ok(entry_of(&read(file)?, at))
}

/// The last one counts: it hides earlier ones.
fn entry_of(table: &[u8], at: &Path) -> Option<Mounted> {
    let line = lines(table).rev().find(|line| line.at == at)?;
    Some(Mounted { id: format!("{} {}", line.id, line.device), source: line.source })
}

/// The table itself, for [`mount_over`] and [`points_below`].
///
/// # Errors
/// It cannot be read.
pub fn table() -> Result<Vec<u8>, String> {
    read(Path::new(TABLE))
}

/// The mount that `path`, which is without links, lies on by this table. It goes down from the root as the kernel does:
/// a mount that a later one hides is not found.
pub fn mount_over(table: &[u8], path: &Path) -> Option<Mount> {
    let mut left: Vec<Line> = lines(table).filter(|line| path.starts_with(&line.at)).collect();
    let depth = |line: &Line| line.at.components().count();
    // The root's own parent is not in the table.
    let root = left.iter().position(|line| left.iter().all(|other| other.id == line.id || other.id != line.parent))?;
    let mut found = left.remove(root);
    loop {
        // The first one on the way down; of several at one place the last.
        let children = left.iter().enumerate().filter(|(_, line)| line.parent == found.id);
        let Some((next, _)) = children.min_by_key(|(index, line)| (depth(line), usize::MAX - index)) else { break };
        found = left.remove(next);
    }
    Some(Mount::from(found))
}

/// The mount points below `dir`.
///
/// # Errors
/// The table cannot be read.
pub fn below(dir: &Path) -> Result<Vec<PathBuf>, String> {
    Ok(points_below(&read(Path::new(TABLE))?, dir))
}

/// The table of the mount namespace of another process, by its directory in /proc.
///
/// # Errors
/// It cannot be read, or the process has ended.
pub fn table_of(process: &Path) -> Result<Vec<u8>, String> {
    read(&process.join("mountinfo"))
}

/// All mounts of this table, in its order.
pub fn mounts_of(table: &[u8]) -> Vec<Mount> {
    lines(table).map(Mount::from).collect()
}

/// The mount points at `dir` and below it, by this table.
pub fn points_below(table: &[u8], dir: &Path) -> Vec<PathBuf> {
    lines(table).map(|line| line.at).filter(|at| at.starts_with(dir)).collect()
}

/// The device number of `path`, by this table.
pub fn device_under(table: &[u8], path: &Path) -> Option<String> {
    let covering = lines(table).filter(|line| path.starts_with(&line.at));
    // `max_by_key` returns the last of equal ones.
    covering.max_by_key(|line| line.at.components().count()).map(|line| line.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &[u8] = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        40 22 7:0 / /srv/pg rw,noatime shared:1 - ext4 /dev/loop0 rw\n\
        41 22 7:1 / /srv/pg rw,noatime - ext4 /dev/loop1 rw\n";

    #[test]
    fn the_last_mount_of_a_path_counts() {
        let last = Mounted { id: "41 7:1".into(), source: "/dev/loop1".into() };
        assert_eq!(entry_of(PLAIN, Path::new("/srv/pg")), Some(last));
        assert_eq!(entry_of(PLAIN, Path::new("/srv")), None);
    }

    /// Another user's mount must not hide this one: it would count as unmounted, and its device would be removed while
    /// in use.
    #[test]
    fn a_mount_is_found_beside_one_whose_path_is_no_text() {
        let table = [&b"30 22 0:50 / /mnt/\xff\xc3 rw - tmpfs \xff rw\n"[..], PLAIN].concat();
        let found = entry_of(&table, Path::new("/srv/pg")).map(|mounted| mounted.source);
        assert_eq!(found.as_deref(), Some("/dev/loop1"));
    }

    #[test]
    fn blanks_and_the_like_are_read_as_they_are() {
        let table = b"40 22 7:0 / /srv/my\\040pg\\011\\012\\134040 rw - fuse a\\040b\\043c rw\n\
            41 22 7:1 / /srv/my\\040pg/x\\0 rw - ext4 /dev/loop1 rw\n";
        let found = entry_of(table, Path::new("/srv/my pg\t\n\\040")).map(|mounted| mounted.source);
        assert_eq!(found.as_deref(), Some("a b#c"));
        assert_eq!(entry_of(table, Path::new("/srv/my pg")), None);
        assert_eq!(unescaped(b"a\\011\\012\\043\\134040\\04"), b"a\t\n#\\040\\04");
        let below = points_below(table, Path::new("/srv/my pg"));
        assert_eq!(below, [PathBuf::from("/srv/my pg/x\\0")], "no three digits");
    }

    #[test]
    fn a_table_that_cannot_be_read_does_not_say_that_nothing_is_mounted() {
        let why = mount_in(Path::new("/nonexistent/mountinfo"), Path::new("/srv/pg")).unwrap_err();
        assert!(why.contains("/nonexistent/mountinfo"), "{why}");
        assert!(matches!(mount_at(Path::new("/")), Ok(Some(_))));
    }

    #[test]
    fn a_path_lies_on_the_device_of_the_nearest_mount_above_it() {
        let of = |path: &str| device_under(PLAIN, Path::new(path));
        assert_eq!(of("/srv/pg/data").as_deref(), Some("7:1"));
        assert_eq!(of("/srv/pg2").as_deref(), Some("8:1"));
        assert_eq!(device_under(b"", Path::new("/srv/pg")), None);
    }

    /// By the longest path alone, PostgreSQL would be said to lie on a device that nobody reaches any more.
    #[test]
    fn a_mount_that_a_later_one_hides_is_not_what_a_path_lies_on() {
        let over = |table: &[u8], path: &str| mount_over(table, Path::new(path)).map(|mount| mount.source);
        assert_eq!(over(PLAIN, "/srv/pg/data").as_deref(), Some("/dev/loop1"));
        assert_eq!(over(PLAIN, "/srv/pg2").as_deref(), Some("/dev/sda1"));
        let hidden = [PLAIN, b"50 22 8:2 / /srv rw - ext4 /dev/sdb1 rw\n"].concat();
        assert_eq!(over(&hidden, "/srv/pg/data").as_deref(), Some("/dev/sdb1"));
        // Mounted over itself, and below: the last, and what is on it.
        let twice =
            [PLAIN, b"51 41 7:2 / /srv/pg rw - xfs /dev/loop2 rw\n52 51 0:60 / /srv/pg/wal rw - zfs tank/wal rw\n"]
                .concat();
        assert_eq!(over(&twice, "/srv/pg/data").as_deref(), Some("/dev/loop2"));
        let wal = mount_over(&twice, Path::new("/srv/pg/wal/data"));
        let expected = Mount {
            at: "/srv/pg/wal".into(),
            device: "0:60".into(),
            kind: "zfs".into(),
            source: "tank/wal".into(),
            options: "rw".into(),
        };
        assert_eq!(wal, Some(expected));
        assert_eq!(mount_over(b"", Path::new("/srv/pg")), None);
    }
}
