//! An NBD export on a Unix socket, such as attach's, for our own client, which speaks TCP.

use crate::nbd::Uri;
use anyhow::Result;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Forwards TCP connections to a Unix socket.
#[derive(Debug)]
pub struct Bridge {
    /// URI for the client.
    pub uri: Uri,
}

impl Bridge {
    /// Forwards to the socket of `export`, until this process ends. Fails when there is no port.
    pub fn to(socket: &Path, export: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?.to_string();
        let socket = socket.to_path_buf();
        std::thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                // If the socket is gone, the user's connection is closed.
                let Ok(unix) = UnixStream::connect(&socket) else { continue };
                pass_on(tcp, unix);
            }
        });
        Ok(Self { uri: Uri { addr, export: export.into() } })
    }
}

fn pass_on(tcp: TcpStream, unix: UnixStream) {
    let (Ok(mut tcp_in), Ok(mut unix_in)) = (tcp.try_clone(), unix.try_clone()) else { return };
    let (mut tcp_out, mut unix_out) = (tcp, unix);
    let _ = tcp_out.set_nodelay(true);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut tcp_in, &mut unix_out);
        let _ = unix_out.shutdown(Shutdown::Write);
    });
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut unix_in, &mut tcp_out);
        let _ = tcp_out.shutdown(Shutdown::Both);
    });
}
