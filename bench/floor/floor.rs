//! The floor: the least that three processes must do to acknowledge an NBD write on every one of their disks.
//!
//! No consensus engine, no index, no encryption, no recovery: not a store, a yardstick. One thread a process, blocking
//! sockets, one O_DIRECT|O_DSYNC write for each batch of whatever requests had arrived, followers written to before the
//! own disk, all three waited for. Data is kept in a plain file for reads (page cache).
//!
//!     rustc -O --edition 2024 floor.rs
//!     ./floor follow 22001 /dir/f1 &  ./floor follow 22002 /dir/f2 &
//!     ./floor lead 22000 /dir/f0 22001 22002 &          # each prints "ready"; nbd://127.0.0.1:22000/x, 4 GiB
use std::alloc::{alloc_zeroed, Layout};
use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const O_DIRECT_DSYNC: i32 = 0o40000 | 0o10000;
const JOURNAL: u64 = 256 << 20;
const EXPORT: u64 = 4 << 30;
const BATCH: usize = 1 << 20;
const ROOM: usize = 40 << 20;

/// Zeroed memory aligned for O_DIRECT; lives as long as the process.
fn aligned(len: usize) -> &'static mut [u8] {
    let memory = unsafe { alloc_zeroed(Layout::from_size_align(len, 4096).unwrap()) };
    unsafe { std::slice::from_raw_parts_mut(memory, len) }
}

struct Journal { file: File, at: u64 }

impl Journal {
    fn open(path: &str) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() < JOURNAL {
            let zeroes = vec![0; 1 << 20];
            for mib in 0..JOURNAL >> 20 { file.write_all_at(&zeroes, mib << 20)?; }
            file.sync_all()?;
        }
        Ok(Self { file: OpenOptions::new().write(true).custom_flags(O_DIRECT_DSYNC).open(path)?, at: 0 })
    }
    fn append(&mut self, batch: &[u8], len: usize) -> Result<()> {
        let len = (len + 4095) & !4095;
        if self.at + len as u64 > JOURNAL { self.at = 0; }
        self.file.write_all_at(&batch[..len], self.at)?;
        self.at += len as u64;
        Ok(())
    }
}

fn follow(port: u16, path: &str) -> Result<()> {
    let (mut journal, batch) = (Journal::open(path)?, aligned(ROOM));
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("ready");
    let (mut leader, _) = listener.accept()?;
    leader.set_nodelay(true)?;
    loop {
        let mut head = [0; 4];
        leader.read_exact(&mut head)?;
        let len = u32::from_be_bytes(head) as usize;
        leader.read_exact(&mut batch[..len])?;
        journal.append(batch, len)?;
        leader.write_all(&head)?;
    }
}

fn be(bytes: &[u8]) -> u64 { bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)) }

/// Fixed newstyle: EXPORT_NAME, INFO, GO; any name.
fn handshake(client: &mut TcpStream) -> Result<()> {
    const FLAGS: u16 = 1 | 4 | 8; // HAS_FLAGS, SEND_FLUSH, SEND_FUA
    client.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    let mut flags = [0; 4];
    client.read_exact(&mut flags)?;
    loop {
        let mut head = [0; 16];
        client.read_exact(&mut head)?;
        let option = be(&head[8..12]) as u32;
        let mut data = vec![0; be(&head[12..16]) as usize];
        client.read_exact(&mut data)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut out = 0x3_e889_0455_65a9_u64.to_be_bytes().to_vec();
            for word in [option, kind, data.len() as u32] { out.extend(word.to_be_bytes()); }
            out.extend(data);
            client.write_all(&out)
        };
        let size_and_flags = [&EXPORT.to_be_bytes()[..], &FLAGS.to_be_bytes()].concat();
        match option {
            1 => {
                let zeroes = if flags[3] & 2 == 0 { 124 } else { 0 };
                return client.write_all(&[size_and_flags, vec![0; zeroes]].concat());
            }
            2 => return Err(Error::other("abort")),
            6 | 7 => {
                reply(3, &[&[0, 0][..], &size_and_flags].concat())?;
                reply(1, &[])?;
                if option == 7 { return Ok(()); }
            }
            _ => reply(0x8000_0001, &[])?,
        }
    }
}

fn serve(client: &mut TcpStream, journal: &mut Journal, followers: &mut [TcpStream], image: &File) -> Result<()> {
    handshake(client)?;
    let (batch, mut input, mut out) = (aligned(ROOM), vec![0; ROOM], Vec::new());
    let (mut from, mut to) = (0, 0);
    let whole = |input: &[u8]| input.len() >= 28 && (input[7] != 1 || input.len() >= 28 + be(&input[24..28]) as usize);
    loop {
        input.copy_within(from..to, 0);
        (from, to) = (0, to - from);
        while !whole(&input[..to]) {
            let got = client.read(&mut input[to..])?;
            if got == 0 { return Ok(()); }
            to += got;
        }
        let (mut used, mut written) = (4, Vec::new());
        out.clear();
        while whole(&input[from..to]) {
            let request = &input[from..to];
            let (kind, cookie, at, len) = (be(&request[6..8]), &request[8..16], be(&request[16..24]), be(&request[24..28]) as usize);
            let size = 28 + if kind == 1 { len } else { 0 };
            match kind {
                0 => {
                    out.extend(0x6744_6698_u32.to_be_bytes());
                    out.extend([0; 4]);
                    out.extend(cookie);
                    let end = out.len();
                    out.resize(end + len, 0);
                    image.read_exact_at(&mut out[end..], at)?;
                }
                1 if used > 4 && used + size > BATCH => break,
                1 => {
                    batch[used..used + size].copy_from_slice(&request[..size]);
                    image.write_all_at(&request[28..size], at)?;
                    used += size;
                    written.extend_from_slice(cookie);
                }
                2 => return Ok(()),
                _ => written.extend_from_slice(cookie), // FLUSH: nothing left to wait for
            }
            from += size;
        }
        if used > 4 {
            batch[..4].copy_from_slice(&((used - 4) as u32).to_be_bytes());
            for follower in followers.iter_mut() { follower.write_all(&batch[..used])?; }
            journal.append(batch, used)?;
            for follower in followers.iter_mut() { follower.read_exact(&mut [0; 4])?; }
        }
        for cookie in written.chunks(8) {
            out.extend(0x6744_6698_u32.to_be_bytes());
            out.extend([0; 4]);
            out.extend(cookie);
        }
        client.write_all(&out)?;
    }
}

fn lead(port: u16, path: &str, peers: &[String]) -> Result<()> {
    let mut journal = Journal::open(path)?;
    let mut followers = Vec::new();
    for peer in peers {
        let follower = TcpStream::connect(("127.0.0.1", peer.parse().unwrap()))?;
        follower.set_nodelay(true)?;
        followers.push(follower);
    }
    let image = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(format!("{path}.image"))?;
    image.set_len(EXPORT)?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("ready");
    for client in listener.incoming() {
        let mut client = client?;
        client.set_nodelay(true)?;
        let _ = serve(&mut client, &mut journal, &mut followers, &image);
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("follow") => follow(args[2].parse().unwrap(), &args[3]),
        Some("lead") => lead(args[2].parse().unwrap(), &args[3], &args[4..]),
        _ => Err(Error::other("follow PORT FILE | lead PORT FILE PEER...")),
    }
}
