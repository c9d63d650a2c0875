//! Strangers at a door with TLS.

use super::*;
use crate::seams::Wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Asks over this connection, which stays open, and waits for the answer. A HEAD's ends with its headers.
async fn asked(stream: &mut (impl Wire + ?Sized)) -> std::io::Result<()> {
    stream.write_all(b"HEAD /health HTTP/1.1\r\nhost: a\r\n\r\n").await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    Ok(())
}

/// LISTEN-L7: a switchover comes from a host with a certificate, in a flood as well.
#[tokio::test]
async fn who_has_shown_a_certificate_keeps_its_place_in_a_flood() {
    let dir = certificates();
    let (address, serving) = secured(dir.path(), holdfast_tls::HttpTls::Checks).await;
    let limit = Duration::from_secs(20);
    let mut host = dial(dir.path(), "db2", &address, "db1")(address.clone()).await.unwrap();
    tokio::time::timeout(limit, asked(&mut *host)).await.unwrap().unwrap();
    let mut flood = Vec::new();
    for _ in 0..2 * crate::listen::CONNECTIONS_MAX {
        let mut stranger = tokio::net::TcpStream::connect(&address).await.unwrap();
        tokio::time::timeout(limit, asked(&mut stranger)).await.unwrap().unwrap();
        flood.push(stranger);
    }
    tokio::time::timeout(limit, asked(&mut *host)).await.unwrap().expect("its place is its own");
    serving.abort();
}
