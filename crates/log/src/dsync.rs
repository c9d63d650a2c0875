//! A write that is durable on return, by whoever waits for it.

use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSlice};

/// Writes all of `data` with RWF_DSYNC: durable on return.
pub(crate) fn write_dsync(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        let part = [IoSlice::new(&data[done..])];
        match rustix::io::pwritev2(file, &part, offset + done as u64, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
