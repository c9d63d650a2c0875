//! DOOR-D1 to DOOR-D7 over real sockets.

use super::*;
use std::error::Error;
use std::pin::pin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Endpoint;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any test: if a connection ends, something else ended it.
const FAR: Duration = Duration::from_secs(600);

fn limits(connections: usize, hello: Duration, idle: Duration) -> Limits {
    Limits { connections, newcomers: connections, hello, idle, answers: false, known_by_answer: false }
}

async fn door(limits: Limits) -> Result<(Door, SocketAddr, Arc<Places>)> {
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
    let (door, address, places) = door(limits(4, FAR, FAR)).await?;
    let interval = Duration::from_millis(100);
    let serving = serve(pinging(interval, interval * 5), door);
    let silent = CancellationToken::new();
    let way = proxy(address, silent.clone()).await?;
    let channel = Endpoint::from_shared(format!("http://{way}"))?.connect().await?;
    until("it is connected", || places.taken() == 1).await?;
    // The peer is alive but sends nothing by itself: it answers many pings.
    tokio::time::sleep(interval * 15).await;
    assert_eq!(places.taken(), 1, "a peer that answers keeps its connection");
    silent.cancel();
    until("the server's connection ends", || places.taken() == 0).await?;
    drop(channel);
    serving.abort();
    Ok(())
}

#[tokio::test]
async fn d1_who_finds_no_place_is_closed_at_once() -> Result {
    let (door, address, places) = door(limits(2, FAR, FAR)).await?;
    let (accepting, mut told) = accepting(door);
    let _first = TcpStream::connect(address).await?;
    let _second = TcpStream::connect(address).await?;
    let (one, two) = (told.recv().await, told.recv().await);
    for socket in one.iter().chain(&two) {
        socket.taken.place().shows(Standing::Proven);
    }
    assert_eq!(places.taken(), 2);
    let mut third = TcpStream::connect(address).await?;
    let ended = tokio::time::timeout(PATIENCE, third.read(&mut [0])).await?;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    drop(one);
    let _fourth = TcpStream::connect(address).await?;
    assert!(tokio::time::timeout(PATIENCE, told.recv()).await?.is_some(), "a returned place can be used again");
    drop(two);
    accepting.abort();
    Ok(())
}

/// Accepts all connections and hands them over.
fn accepting(mut door: Door) -> (tokio::task::JoinHandle<()>, tokio::sync::mpsc::UnboundedReceiver<Socket>) {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        loop {
            let _ = tell.send(door.next().await.0);
        }
    });
    (task, told)
}

#[tokio::test]
async fn d5_a_newcomer_closes_the_oldest_one_and_nobody_who_is_known() -> Result {
    let (door, address, _) = door(Limits { newcomers: 1, ..limits(4, FAR, FAR) }).await?;
    let (accepting, mut told) = accepting(door);
    let mut clients = Vec::new();
    let mut known = None;
    for n in 0..5 {
        clients.push(TcpStream::connect(address).await?);
        let mut socket = told.recv().await.ok_or("the door has ended")?;
        if n == 0 {
            socket.taken.place().shows(Standing::Asked);
            known = Some(socket);
        } else if n < 4 {
            // It waits for bytes until the next one comes.
            let next = TcpStream::connect(address).await?;
            let ended = tokio::time::timeout(PATIENCE, socket.read(&mut [0])).await?;
            assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionAborted));
            drop((next, told.recv().await));
        }
    }
    let mut known = known.ok_or("no first one")?;
    clients[0].write_all(b"x").await?;
    assert_eq!(tokio::time::timeout(PATIENCE, known.read(&mut [0])).await??, 1, "it goes on");
    accepting.abort();
    Ok(())
}

/// One byte after the other proves nothing.
#[tokio::test]
async fn d5_who_shows_nothing_is_closed_however_much_it_says() -> Result {
    let (door, address, _) = door(limits(4, Duration::from_millis(100), FAR)).await?;
    let (accepting, mut told) = accepting(door);
    let mut slow = TcpStream::connect(address).await?;
    let mut socket = told.recv().await.ok_or("the door has ended")?;
    let sending = tokio::spawn(async move {
        while slow.write_all(b"P").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let heard = async {
        let mut byte = [0];
        loop {
            if let Err(error) = socket.read(&mut byte).await {
                break error;
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, heard).await.map_err(|_| "it is never closed")?;
    assert!(ended.to_string().contains("DOOR-D5"), "{ended}");
    drop(socket);
    sending.await?;
    accepting.abort();
    Ok(())
}

#[tokio::test]
async fn d6_little_is_read_of_a_newcomer() -> Result {
    let (door, address, _) = door(limits(4, FAR, FAR)).await?;
    let (accepting, mut told) = accepting(door);
    let mut client = TcpStream::connect(address).await?;
    let mut socket = told.recv().await.ok_or("the door has ended")?;
    client.write_all(&[7; 2 * NEWCOMER_BYTES]).await?;
    let (mut read, mut buf) = (0, [0; 1024]);
    while read < NEWCOMER_BYTES {
        read += tokio::time::timeout(PATIENCE, socket.read(&mut buf)).await??;
    }
    assert!(read < NEWCOMER_BYTES + buf.len());
    let place = socket.taken.place().clone();
    let mut more = pin!(socket.read(&mut buf));
    assert!(futures_util::poll!(&mut more).is_pending(), "more is read of a client that has shown nothing");
    place.shows(Standing::Asked);
    assert!(tokio::time::timeout(PATIENCE, more).await?? > 0, "it goes on once it has");
    accepting.abort();
    Ok(())
}

#[tokio::test]
async fn d7_a_request_without_an_end_is_not_read() -> Result {
    let (door, address, _) = door(Limits { answers: true, known_by_answer: true, ..limits(4, FAR, FAR) }).await?;
    let (accepting, mut told) = accepting(door);
    let mut client = TcpStream::connect(address).await?;
    let mut socket = told.recv().await.ok_or("the door has ended")?;
    let mut buf = [0; 1024];
    // Answered: as many as it likes.
    for _ in 0..100 {
        client.write_all(&[7; 1024]).await?;
        let mut read = 0;
        while read < 1024 {
            read += tokio::time::timeout(PATIENCE, socket.read(&mut buf)).await??;
        }
        socket.write_all(b"an answer").await?;
    }
    assert_eq!(socket.standing(), Standing::Asked);
    client.write_all(&[7; 2 * NEWCOMER_BYTES]).await?;
    let heard = async {
        loop {
            if let Err(error) = socket.read(&mut buf).await {
                break error;
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, heard).await.map_err(|_| "it is read for ever")?;
    assert!(ended.to_string().contains("DOOR-D7"), "{ended}");
    accepting.abort();
    Ok(())
}

/// Also a client that sends too little at the start: HTTP/2 pings begin only after that.
#[tokio::test]
async fn d2_who_says_nothing_is_closed() -> Result {
    let (door, address, places) = door(limits(4, Duration::from_millis(100), Duration::from_millis(300))).await?;
    let serving = serve(pinging(FAR, FAR), door);
    let mut mute = TcpStream::connect(address).await?;
    let mut terse = TcpStream::connect(address).await?;
    terse.write_all(b"PRI").await?;
    for (what, stream) in [("mute", &mut mute), ("terse", &mut terse)] {
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "{what} is never closed");
    }
    until("their places are free", || places.taken() == 0).await?;
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
        let (door, address, places) = door(limits(4, FAR, FAR)).await?;
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
        assert_eq!(places.taken(), 0);
        setrlimit(Resource::Nofile, before)?;
        until("it is accepted now", || places.taken() == 1).await?;
        serving.abort();
        Ok(())
    })
}
