//! Certificates that count no more before they expire (ADR 0049).
//!
//! - **REVOKE-V1** A certificate whose serial number or name is on the list opens no connection, at a door or of a
//!   client, and makes no call.
//! - **REVOKE-V2** A connection that is open ends once its peer's certificate comes on the list: at the next read or
//!   write, or at once where it waits for its peer.

use crate::der::{common_name, hex};
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConnection, SignatureScheme,
};
use tonic::transport::server::Connected;

/// Most bytes of a serial number: RFC 5280, 4.1.2.2 has 20.
const SERIAL_BYTES_MAX: usize = 64;

/// Certificates that count no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    /// Serial numbers, as [`serial_of`] writes them.
    pub serials: BTreeSet<String>,
    /// Common names.
    pub names: BTreeSet<String>,
    /// There is a list that could not be read, so it may be longer than this: a door takes no certificate (REVOKE-V4).
    pub unread: bool,
}

impl Revoked {
    /// Serial numbers and names together.
    pub fn len(&self) -> usize {
        self.serials.len() + self.names.len()
    }

    /// Whether nothing is on it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// SHA-256 of all that is on it, in hex: tells lists apart, and whole ones from others.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (kind, all) in [(b's', &self.serials), (b'n', &self.names)] {
            for one in all {
                hash.update([kind]);
                hash.update((one.len() as u64).to_le_bytes());
                hash.update(one.as_bytes());
            }
        }
        hex(&hash.finalize())
    }

    /// REVOKE-V1.
    ///
    /// # Errors
    /// What was found; for the peer and the log.
    pub fn check(&self, one: &Identity) -> Result<(), String> {
        if self.serials.contains(&one.serial) || self.names.contains(&one.name) {
            return Err(format!("found {one}, which is revoked"));
        }
        Ok(())
    }
}

/// What a certificate is revoked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The subject's common name; the serial number if there is none.
    pub name: String,
    /// The serial number in hex, without zeroes before it.
    pub serial: String,
}

impl Identity {
    /// Reads a certificate. Checks nothing: TLS does.
    ///
    /// # Errors
    /// The error in the bytes.
    pub fn of(certificate_der: &[u8]) -> Result<Self, String> {
        let der = CertificateDer::from(certificate_der);
        let certificate = webpki::EndEntityCert::try_from(&der).map_err(|error| error.to_string())?;
        Ok(Self::read(&certificate))
    }

    pub(crate) fn read(certificate: &webpki::EndEntityCert<'_>) -> Self {
        let serial = plain(&hex(certificate.serial()));
        let name = common_name(certificate.subject()).unwrap_or_else(|| serial.clone());
        Self { name, serial }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate {} (serial number {})", self.name, self.serial)
    }
}

/// Reads a serial number as people and programs write it (`0x4F:2a`, `serial=4F2A`), as [`Identity::serial`] has it.
///
/// # Errors
/// What was found and what was expected.
pub fn serial_of(text: &str) -> Result<String, String> {
    let bad = || format!("found {text:?}, expected a serial number in hex, as `openssl x509 -noout -serial` prints it");
    let digits = text.trim();
    let digits = digits.strip_prefix("serial=").unwrap_or(digits);
    let digits = digits.strip_prefix("0x").unwrap_or(digits).replace(':', "").to_ascii_lowercase();
    let hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !hex || digits.len() > 2 * SERIAL_BYTES_MAX {
        return Err(bad());
    }
    Ok(plain(&digits))
}

/// Whole bytes without zeroes before the first that counts: DER puts one before a number that would be negative.
fn plain(digits: &str) -> String {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return "00".to_string();
    }
    if digits.len().is_multiple_of(2) { digits.to_string() } else { format!("0{digits}") }
}

/// The list of a process. Clones share it; a change wakes affected connections.
#[derive(Clone, Debug, Default)]
pub struct Revocations(Arc<watch::Sender<Revoked>>);

impl Revocations {
    /// Replaces the list. From now on it counts (REVOKE-V1), and connections end by it (REVOKE-V2).
    pub fn replace(&self, list: Revoked) {
        self.0.send_if_modified(|known| {
            let changed = *known != list;
            *known = list;
            changed
        });
    }

    /// REVOKE-V1, now.
    ///
    /// # Errors
    /// As [`Revoked::check`].
    pub fn check(&self, one: &Identity) -> Result<(), String> {
        self.0.borrow().check(one)
    }

    /// The same for a client's certificate at a door, which REVOKE-V4 keeps out as well.
    pub(crate) fn check_client(&self, one: &Identity) -> Result<(), Error> {
        let list = self.0.borrow();
        if list.unread {
            return Err(Error::General("the list of revoked certificates could not be read (REVOKE-V4)".to_string()));
        }
        list.check(one).map_err(|_| Error::InvalidCertificate(CertificateError::Revoked))
    }

    /// Waits until the certificate is on the list. For ever if it never is.
    fn wait(&self, one: Arc<Identity>) -> Ending {
        let mut list = self.0.subscribe();
        // Unconstrained: it is asked at each read, and must not use up the turns of the task that reads.
        Box::pin(unconstrained(async move {
            loop {
                let found = list.borrow_and_update().check(&one);
                if found.is_err() {
                    return;
                }
                if list.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }))
    }

    /// `connection`, whose peer has proved to own this certificate; it ends when that is revoked.
    ///
    /// # Errors
    /// There is no certificate, it cannot be read, or it is revoked already.
    pub(crate) fn follow<T>(&self, connection: T, own: Option<Vec<u8>>) -> io::Result<Checked<T>> {
        let own = own.ok_or_else(|| io::Error::other("found no certificate"))?;
        let peer = Arc::new(Identity::of(&own).map_err(io::Error::other)?);
        // Before the check: a change after it is noticed.
        let (ending, list) = (Some(self.wait(peer.clone())), self.0.subscribe());
        self.check(&peer).map_err(aborted)?;
        Ok(Checked { inner: connection, peer, ending, list })
    }
}

/// Ends once a certificate is revoked.
type Ending = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

fn aborted(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

/// A connection with TLS that fails once its peer's certificate is revoked (REVOKE-V2).
pub struct Checked<T> {
    inner: T,
    peer: Arc<Identity>,
    /// Wakes the task that has read last, also if it waits for something else now: it looks again at its next read,
    /// write or flush. `None` once it has ended.
    ending: Option<Ending>,
    /// Writes, possibly of another task, check the list without waiting.
    list: watch::Receiver<Revoked>,
}

impl<T> Checked<T> {
    fn failed(&self) -> io::Error {
        aborted(format!("{} was revoked", self.peer))
    }

    fn may_read(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let ended = match &mut self.ending {
            Some(ending) => ending.as_mut().poll(cx).is_ready(),
            None => true,
        };
        if !ended {
            return Ok(());
        }
        // It must not be asked again.
        self.ending = None;
        Err(self.failed())
    }

    fn may_write(&mut self) -> io::Result<()> {
        // One comparison of numbers as long as the list stays as it is.
        if self.list.has_changed().unwrap_or(false) {
            let found = self.list.borrow_and_update().check(&self.peer);
            if found.is_err() {
                self.ending = None;
            }
        }
        if self.ending.is_some() { Ok(()) } else { Err(self.failed()) }
    }
}

impl<T> fmt::Debug for Checked<T> {
    /// Without what is sent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checked({})", self.peer)
    }
}

impl<C> Checked<tokio_rustls::server::TlsStream<C>> {
    /// The connection below, and the state of TLS.
    pub fn get_ref(&self) -> (&C, &ServerConnection) {
        self.inner.get_ref()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Checked<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.may_read(cx)?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Checked<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.may_write()?;
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.may_write()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.may_write()?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<T: Connected> Connected for Checked<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> T::ConnectInfo {
        self.inner.connect_info()
    }
}

/// The check of a door within the handshake, so that the peer is told why: `certificate_revoked` (RFC 8446, 6.2).
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) chain: Arc<dyn ClientCertVerifier>,
    pub(crate) revocations: Revocations,
}

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(own, intermediates, now)?;
        let bad = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
        let identity = Identity::of(own.as_ref()).map_err(bad)?;
        self.revocations.check_client(&identity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
#[path = "revoked_tests.rs"]
mod tests;
