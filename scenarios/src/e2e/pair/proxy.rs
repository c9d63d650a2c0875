//! A TCP proxy that can be cut silently: nothing passes, and nothing is closed.

use anyhow::Result;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a stream checks whether it is cut.
const LOOK: Duration = Duration::from_millis(20);

/// A proxy in front of one port of 127.0.0.1.
pub(super) struct Proxy {
    port: u16,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    pub(super) fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let cut = Arc::new(AtomicBool::new(false));
        let silent = cut.clone();
        // Ends with this process: there is nothing to wait for.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let silent = silent.clone();
                std::thread::spawn(move || {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { return };
                    let (Ok(near_2), Ok(far_2)) = (near.try_clone(), far.try_clone()) else { return };
                    let there = silent.clone();
                    std::thread::spawn(move || pass(near_2, far_2, &there));
                    pass(far, near, &silent);
                });
            }
        });
        Ok(Self { port, cut })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Nothing passes from now on, or everything again.
    pub(super) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    let _ = from.set_nodelay(true);
    loop {
        match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                while cut.load(Ordering::SeqCst) {
                    std::thread::sleep(LOOK);
                }
                if to.write_all(&bytes[..n]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
