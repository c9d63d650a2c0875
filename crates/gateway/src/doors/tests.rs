//! DOOR-D1 to DOOR-D4 over real sockets.

use super::*;
use std::error::Error;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Endpoint;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any test: if a connection ends, something else ended it.
const FAR: Duration = Duration::from_secs(600);

async fn door(limits: Limits) -> Result<(Door, SocketAddr, Arc<Semaphore>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let door = Door::new("a test's door", listener, limits);
    let places = door.places.clone();
    Ok((door, address, places))
}

async fn until(what: &str, holds: impl Fn() -> bool) -> Result {
    let all = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(tokio::time::timeout(PATIENCE, all).await.map_err(|_| format!("{what}: not within {PATIENCE:?}"))?)
}

/// Serves no calls, over HTTP/2, on the accepted connections.
fn serve(server: Server, door: Door) -> tokio::task::JoinHandle<()> {
    let mut server = server;
    let incoming = door.incoming();
    tokio::spawn(async move {
        let _ = server.add_routes(Routes::default()).serve_with_incoming(incoming).await;
    })
}

/// Forwards everything to `to` until `silent`. After that it forwards nothing and closes no socket, like a network cut
/// or a host that lost power.
async fn proxy(to: SocketAddr, silent: CancellationToken) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.expect("accepts");
        let mut far = TcpStream::connect(to).await.expect("connects");
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            () = silent.cancelled() => {}
        }
        tokio::time::sleep(FAR).await;
        drop((near, far));
    });
    Ok(address)
}

#[tokio::test]
async fn d3_a_peer_that_vanished_gives_its_place_back() -> Result {
    let (door, address, places) = door(Limits { connections: 4, hello: FAR, idle: FAR }).await?;
    let interval = Duration::from_millis(100);
    let serving = serve(pinging(interval, interval * 5), door);
    let silent = CancellationToken::new();
    let way = proxy(address, silent.clone()).await?;
    let channel = Endpoint::from_shared(format!("http://{way}"))?.connect().await?;
    until("it is connected", || places.available_permits() == 3).await?;
    // The peer is alive but sends nothing by itself: it answers many pings.
    tokio::time::sleep(interval * 15).await;
    assert_eq!(places.available_permits(), 3, "a peer that answers keeps its connection");
    silent.cancel();
    until("the server's connection ends", || places.available_permits() == 4).await?;
    drop(channel);
    serving.abort();
    Ok(())
}

#[tokio::test]
async fn d1_who_finds_no_place_is_closed_at_once() -> Result {
    let (mut door, address, places) = door(Limits { connections: 2, hello: FAR, idle: FAR }).await?;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let accepting = tokio::spawn(async move {
        loop {
            let _ = tell.send(door.next().await.0);
        }
    });
    let _first = TcpStream::connect(address).await?;
    let _second = TcpStream::connect(address).await?;
    let (one, _two) = (told.recv().await, told.recv().await);
    assert_eq!(places.available_permits(), 0);
    let mut third = TcpStream::connect(address).await?;
    let ended = tokio::time::timeout(PATIENCE, third.read(&mut [0])).await?;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    drop(one);
    let _fourth = TcpStream::connect(address).await?;
    assert!(tokio::time::timeout(PATIENCE, told.recv()).await?.is_some(), "a returned place can be used again");
    accepting.abort();
    Ok(())
}

/// Also a client that sends too little at the start: HTTP/2 pings begin only after that.
#[tokio::test]
async fn d2_who_says_nothing_is_closed() -> Result {
    use tokio::io::AsyncWriteExt;
    let limits = Limits { connections: 4, hello: Duration::from_millis(100), idle: Duration::from_millis(300) };
    let (door, address, places) = door(limits).await?;
    let serving = serve(pinging(FAR, FAR), door);
    let mut mute = TcpStream::connect(address).await?;
    let mut terse = TcpStream::connect(address).await?;
    terse.write_all(b"PRI").await?;
    for (what, stream) in [("mute", &mut mute), ("terse", &mut terse)] {
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "{what} is never closed");
    }
    until("their places are free", || places.available_permits() == 4).await?;
    serving.abort();
    Ok(())
}

/// In a process of its own: the limit and the CPU time count for the whole process.
#[test]
fn d4_a_moment_without_file_descriptors_is_waited_out() -> Result {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::time::{ClockId, clock_gettime};
    const STARVED: &str = "HOLDFAST_TEST_STARVED";
    if std::env::var_os(STARVED).is_none() {
        let name = "doors::tests::d4_a_moment_without_file_descriptors_is_waited_out";
        let output =
            std::process::Command::new(std::env::current_exe()?).args(["--exact", name]).env(STARVED, "1").output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (door, address, places) = door(Limits { connections: 4, hello: FAR, idle: FAR }).await?;
        let serving = serve(server(), door);
        let socket = TcpSocket::new_v4()?;
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before })?;
        let used = || {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
        };
        let from = used();
        let _waiting = socket.connect(address).await?;
        let time = Duration::from_secs(2);
        tokio::time::sleep(time).await;
        let spent = used().saturating_sub(from);
        assert!(spent < time / 10, "{spent:?} of the processor in {time:?}: it retries in a busy loop");
        assert_eq!(places.available_permits(), 4);
        setrlimit(Resource::Nofile, before)?;
        until("it is accepted now", || places.available_permits() == 3).await?;
        serving.abort();
        Ok(())
    })
}
