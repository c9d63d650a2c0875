//! Clients of a PostgreSQL that moves: through HAProxy, and through PgBouncer in front of it.
//!
//! ```text
//!   a client with occasional queries ──────┐
//!   a client that writes all the time ─────┴─▶ PgBouncer ─▶ HAProxy ─▶ the present primary
//! ```

use super::Lab;
use crate::cluster::free_ports;
use crate::hosts::{Host, Pool, Proxy, Session, User, Writer, waiting};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// User of the clients through PgBouncer: with a password, as in the sample. The host's own programs use another one.
pub(super) const USER: User = User { name: "app", password: "not-a-secret" };

/// Until a client is at the new primary.
const LIMIT: Duration = Duration::from_secs(20);

/// After this time without an answer to the writer PgBouncer has failed to connect.
const OUTAGE: Duration = Duration::from_millis(1500);

/// Where a client is.
const WHERE: &str = "select host(inet_server_addr())";

/// Commits of the writer to wait for.
const COMMITS: u64 = 20;

/// Both proxies, and two clients through PgBouncer.
pub(super) struct Doors {
    proxy: Proxy,
    pool: Pool,
    /// Connected once, at the beginning.
    session: Session,
    /// It has sent its query, and has no answer yet.
    asked: bool,
    writer: Writer,
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Doors {
    /// Starts them; `primary` takes writes.
    pub fn open(lab: &Lab, primary: &Host, other: &Host) -> Result<Self> {
        let port = free_ports(3)?;
        let proxy = Proxy::start(&lab.dir, local(port), [primary, other])?;
        let mut client = primary.pg.client()?;
        let User { name, password } = USER;
        client.query(&format!("create role {name} login password '{password}'"))?;
        client.query(&format!("create table pooled (n bigint primary key); alter table pooled owner to {name}"))?;
        let rows = client.query(&format!("select rolpassword from pg_authid where rolname = '{name}'"))?;
        let secret = rows.into_iter().flatten().next().flatten().context("no secret of a password")?;
        let at = local(port + 2);
        let pool = Pool::start(&lab.dir, at, waiting(proxy.at()), USER, &secret)?;
        // A user without the password is refused.
        let stranger = Session::open(at, User { password: "wrong", ..USER }, &lab.dir.join("psql.log"))?;
        let let_in = { stranger }.ask("select 1").is_ok();
        anyhow::ensure!(!let_in, "PgBouncer accepted a wrong password");
        let (session, writer) = (pool.session()?, pool.writer("pooled"));
        Ok(Self { proxy, pool, session, asked: false, writer })
    }

    /// While there is no primary, and PgBouncer knows it: a client sends a query over its old connection. It has to
    /// wait, and gets its answer in [`Doors::lead_to`].
    pub fn ask_meanwhile(&mut self) -> Result<()> {
        let Self { session, asked, writer, .. } = self;
        let (mut last, mut since) = (writer.acknowledged(), Instant::now());
        let stands = wait_until(LIMIT, || {
            let now = writer.acknowledged();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() >= OUTAGE
        });
        anyhow::ensure!(stands, "the writer behind PgBouncer continues, expected no primary for {OUTAGE:?}");
        session.send(WHERE)?;
        *asked = true;
        Ok(())
    }

    /// Clients are at `host` now, or will be soon.
    pub fn lead_to(&mut self, host: &Host) -> Result<()> {
        let Self { proxy, pool, session, asked, writer } = self;
        let took = proxy.reaches(host, LIMIT)?;
        note(format!("through HAProxy: {} after {} ms", host.name, took.as_millis()));
        pool.must_run()?;
        let (begun, before) = (Instant::now(), writer.acknowledged());
        let on = wait_until(LIMIT, || writer.acknowledged() >= before + COMMITS);
        anyhow::ensure!(on, "the writer behind PgBouncer does not continue: {before} commits so far");
        let took = begun.elapsed();
        // The client never sees that PgBouncer's connections broke.
        let meanwhile = if *asked { "asked meanwhile, " } else { "" };
        if !std::mem::take(asked) {
            session.send(WHERE)?;
        }
        let found = session.answer().context("over the connection that was there before")?;
        anyhow::ensure!(
            found == [host.address.clone()],
            "through PgBouncer: found {found:?}, expected {}",
            host.address
        );
        let took = took.as_millis();
        note(format!("through PgBouncer: {} after {took} ms more; {meanwhile}over the same connection", host.name));
        Ok(())
    }

    /// Closes them. All commits acknowledged through them are at `host`.
    pub fn close(self, host: &Host) -> Result<()> {
        let Self { pool, session, writer, .. } = self;
        drop(session);
        let written = writer.join()?;
        drop(pool);
        let rows = host.pg.client()?.query("select n from pooled")?;
        let there: BTreeSet<u64> = rows.into_iter().flatten().flatten().map(|n| n.parse()).collect::<Result<_, _>>()?;
        let lost = written.acknowledged.iter().filter(|n| !there.contains(n)).count();
        let known: BTreeSet<&u64> = written.acknowledged.iter().chain(&written.in_doubt).collect();
        let invented = there.iter().filter(|n| !known.contains(n)).count();
        let count = written.acknowledged.len();
        anyhow::ensure!(
            lost == 0 && invented == 0,
            "R1: {lost} of {count} commits through PgBouncer lost, {invented} invented"
        );
        note(format!(
            "through PgBouncer: {count} commits, all there; the writer connected {} times, was told last: {}",
            written.sessions, written.last_loss
        ));
        Ok(())
    }
}
